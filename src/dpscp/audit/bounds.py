"""Compute a lower bound on epsilon from an attacker's statistics."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpscp._base.checks import check_probability
from dpscp.audit.run import DELTAS

# Number of candidate thresholds, which are quantiles of the first half of the statistics.
_CANDIDATES = 512


@dataclass(frozen=True)
class Audit:
    """Hold the claimed epsilons and the lower bounds that an attacker proved.

    Attributes
    ----------
    game, knowledge : the attacked mechanism, and what the attacker sees.
    runs : number of runs with the record, and of runs without it.
    confidence : probability with which all lower bounds hold together.
    deltas, claimed, audited : for each delta, the claimed epsilon and the lower bound on the true one.
    null : whether no run contained the record.
    """

    game: str
    knowledge: str
    runs: int
    confidence: float
    deltas: tuple[float, ...]
    claimed: tuple[float, ...]
    audited: tuple[float, ...]
    null: bool = False

    @property
    def passed(self) -> bool:
        """Whether no bound exceeds its claim; in a null control, whether every bound is 0."""
        limits = (0.0,) * len(self.deltas) if self.null else self.claimed
        return all(bound <= limit for bound, limit in zip(self.audited, limits, strict=True))

    def share(self, delta: float) -> float:
        """Return the proven share of the claimed epsilon at ``delta``."""
        place = self.deltas.index(delta)
        return self.audited[place] / self.claimed[place] if self.claimed[place] else 0.0

    def __str__(self) -> str:
        kind = "null control, " if self.null else ""
        head = f"{self.game}, {self.knowledge}, {kind}{self.runs} runs on each side, confidence {self.confidence:g}"
        rows = [
            f"  delta {d:<6g} claimed epsilon {c:8.4f}   audited at least {a:8.4f}   {'ok' if a <= c else 'BROKEN'}"
            for d, c, a in zip(self.deltas, self.claimed, self.audited, strict=True)
        ]
        verdict = "  no violation found" if self.passed else "  THE CLAIM IS DISPROVED"
        return "\n".join([head, *rows, verdict])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "passed": self.passed}

    def plot(self, path: str | PathLike[str]) -> None:
        """Plot claimed and audited epsilons into a file; needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.deltas, self.claimed, "o-", label="claimed (upper bound)")
        axes.plot(self.deltas, self.audited, "s--", label="audited (lower bound)")
        axes.set(xscale="log", xlabel="delta", ylabel="epsilon", title=f"{self.game}, {self.knowledge}")
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.savefig(path)


def audited_epsilons(
    without: ArrayLike, with_record: ArrayLike, deltas: Sequence[float] = DELTAS, confidence: float = 0.99
) -> NDArray[np.float64]:
    """Compute a lower bound on epsilon for each delta from an attacker's statistics.

    Thresholds are chosen on the first half of the runs. Rates are bounded on the second half by Clopper-Pearson
    intervals. If the mechanism is (epsilon, delta)-DP for each pair and the runs are independent, all bounds are valid
    with probability at least ``confidence``.

    Parameters
    ----------
    without, with_record : (runs,) or (runs, n_features) statistics of runs without and with the record; infinite
        values are allowed. Several features are combined by the linear discriminant of the first half.
    deltas : values of delta.
    confidence : probability with which all bounds hold.

    Returns
    -------
    (len(deltas),) array

    >>> rng = np.random.default_rng(0)
    >>> bool((audited_epsilons(rng.normal(size=4000), rng.normal(size=4000)) == 0).all())
    True

    Theory: Fact 8
    """
    check_probability("confidence", confidence)
    deltas = [check_probability("delta", d) for d in deltas]
    worlds = [_two_dimensional(w) for w in (without, with_record)]
    first = [w[: len(w) // 2] for w in worlds]
    second = [w[len(w) // 2 :] for w in worlds]
    if min(map(len, first)) == 0:
        raise ValueError("an audit needs at least 2 runs with the record and 2 without it")
    weights = _discriminant(*first)
    chosen, tested = [w @ weights for w in first], [w @ weights for w in second]
    # two rates, two directions, all deltas: none of the bounds may fail
    failure = (1 - confidence) / (4 * len(deltas))
    bounds = np.zeros(len(deltas))
    for more, less, sign in ((1, 0, 1.0), (0, 1, -1.0)):
        thresholds = np.unique(np.quantile(sign * chosen[more], np.linspace(0, 1, _CANDIDATES), method="lower"))
        guesses = _log_ratio(sign * chosen[more], sign * chosen[less], thresholds, deltas, failure)
        for i, delta in enumerate(deltas):
            best = thresholds[[int(np.argmax(guesses[i]))]]
            proven = _log_ratio(sign * tested[more], sign * tested[less], best, [delta], failure)
            bounds[i] = max(bounds[i], float(proven[0, 0]))
    return bounds


def _two_dimensional(world: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(world, dtype=np.float64)
    # replace infinity, a certain proof, by a large number that can be added and multiplied
    array = np.nan_to_num(array, nan=0.0, posinf=1e12, neginf=-1e12)
    return array[:, None] if array.ndim == 1 else array


def _discriminant(without: NDArray[np.float64], with_record: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute Fisher's linear discriminant; a single statistic is used unchanged."""
    if without.shape[1] == 1:
        return np.ones(1)
    covariance = np.cov(without, rowvar=False) + np.cov(with_record, rowvar=False)
    covariance += (1e-9 * np.trace(covariance) + 1e-30) * np.eye(len(covariance))
    return np.asarray(np.linalg.solve(covariance, with_record.mean(axis=0) - without.mean(axis=0)))


def _log_ratio(
    more: NDArray[np.float64],
    less: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    deltas: Sequence[float],
    failure: float,
) -> NDArray[np.float64]:
    """Bound log((P(more >= t) - delta) / P(less >= t)) from below; one row for each delta."""
    hits = len(more) - np.searchsorted(np.sort(more), thresholds, side="left")
    alarms = len(less) - np.searchsorted(np.sort(less), thresholds, side="left")
    lowest = np.where(hits > 0, stats.beta.ppf(failure, np.maximum(hits, 1), len(more) - hits + 1), 0.0)
    highest = np.where(alarms < len(less), stats.beta.isf(failure, alarms + 1, np.maximum(len(less) - alarms, 1)), 1.0)
    gain = np.maximum(lowest[None, :] - np.asarray(deltas)[:, None], 0.0)
    with np.errstate(divide="ignore"):
        ratio = np.log(gain) - np.log(highest)[None, :]
    return np.asarray(ratio)
