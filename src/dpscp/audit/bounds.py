"""From the attacker's statistics to a lower bound on epsilon, and the result of an audit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpscp._base.checks import check_probability
from dpscp.audit.run import DELTAS

# Candidate thresholds, as quantiles of each half's statistics.
_CANDIDATES = 512


@dataclass(frozen=True)
class Audit:
    """The claimed privacy curve and what an attacker could prove against it.

    ``audited[i]`` is a lower bound on the true epsilon at ``deltas[i]``; all of them hold together with probability
    ``confidence``. ``runs`` is the number of games in each of the two worlds.
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
        """Whether no audited bound exceeds its claim (for a null control: whether every bound is 0)."""
        limits = (0.0,) * len(self.deltas) if self.null else self.claimed
        return all(found <= limit for found, limit in zip(self.audited, limits, strict=True))

    def share(self, delta: float) -> float:
        """How much of the claimed epsilon at ``delta`` the attacker proved."""
        place = self.deltas.index(delta)
        return self.audited[place] / self.claimed[place] if self.claimed[place] else 0.0

    def __str__(self) -> str:
        kind = "null control, " if self.null else ""
        head = f"{self.game}, {self.knowledge}, {kind}{self.runs} runs on each side, confidence {self.confidence:g}"
        rows = [
            f"  delta {d:<6g} claimed epsilon {c:8.4f}   audited at least {a:8.4f}   {'ok' if a <= c else 'BROKEN'}"
            for d, c, a in zip(self.deltas, self.claimed, self.audited, strict=True)
        ]
        verdict = "  no violation found" if self.passed else "  THE CLAIM IS WRONG"
        return "\n".join([head, *rows, verdict])

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values."""
        return {**asdict(self), "passed": self.passed}

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw both curves into a picture file (needs matplotlib)."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.deltas, self.claimed, "o-", label="claimed: the true epsilon is at most")
        axes.plot(self.deltas, self.audited, "s--", label="audited: the true epsilon is at least")
        axes.set(xscale="log", xlabel="delta", ylabel="epsilon", title=f"{self.game}, {self.knowledge}")
        axes.set_ylim(bottom=0)
        axes.legend()
        figure.savefig(path)


def audited_epsilons(
    without: ArrayLike, with_record: ArrayLike, deltas: Sequence[float] = DELTAS, confidence: float = 0.99
) -> NDArray[np.float64]:
    """Lower bounds on epsilon, one for each delta, from what an attacker measured in the two worlds.

    ``without`` and ``with_record`` hold one row for each run: a statistic, or several features, which are first joined
    by the linear discriminant of the first half. Thresholds are chosen on the first half of the runs; rates are bounded
    on the second half by Clopper and Pearson. If the mechanism is (epsilon, delta)-DP for each of these pairs and the
    runs are independent, all bounds lie below with probability at least ``confidence``. Statistics may be infinite.

    >>> rng = np.random.default_rng(0)
    >>> bool((audited_epsilons(rng.normal(size=4000), rng.normal(size=4000)) == 0).all())
    True

    Theory: section 1.8 (the claims it tests)
    """
    check_probability("confidence", confidence)
    deltas = [check_probability("delta", d) for d in deltas]
    worlds = [_two_dimensional(w) for w in (without, with_record)]
    first = [w[: len(w) // 2] for w in worlds]
    second = [w[len(w) // 2 :] for w in worlds]
    if min(map(len, first)) == 0:
        raise ValueError("an audit needs at least 2 runs in each world")
    weights = _discriminant(*first)
    chosen, tested = [w @ weights for w in first], [w @ weights for w in second]
    # two rates, two directions, all deltas: one false bound in any of them is a failure
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
    # a certain proof is as good as a very large number, and can be added and multiplied
    array = np.nan_to_num(array, nan=0.0, posinf=1e12, neginf=-1e12)
    return array[:, None] if array.ndim == 1 else array


def _discriminant(without: NDArray[np.float64], with_record: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fisher's direction; a single statistic is taken as it is."""
    if without.shape[1] == 1:
        return np.ones(1)
    spread = np.cov(without, rowvar=False) + np.cov(with_record, rowvar=False)
    spread += 1e-9 * np.trace(spread) * np.eye(len(spread)) + 1e-30 * np.eye(len(spread))
    return np.asarray(np.linalg.solve(spread, with_record.mean(axis=0) - without.mean(axis=0)))


def _log_ratio(
    more: NDArray[np.float64],
    less: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    deltas: Sequence[float],
    failure: float,
) -> NDArray[np.float64]:
    """log((P(more >= t) - delta) / P(less >= t)) with both rates bounded safely; one row for each delta."""
    hits = len(more) - np.searchsorted(np.sort(more), thresholds, side="left")
    alarms = len(less) - np.searchsorted(np.sort(less), thresholds, side="left")
    lowest = np.where(hits > 0, stats.beta.ppf(failure, np.maximum(hits, 1), len(more) - hits + 1), 0.0)
    highest = np.where(alarms < len(less), stats.beta.isf(failure, alarms + 1, np.maximum(len(less) - alarms, 1)), 1.0)
    gain = np.maximum(lowest[None, :] - np.asarray(deltas)[:, None], 0.0)
    with np.errstate(divide="ignore"):
        ratio = np.log(gain) - np.log(highest)[None, :]
    return np.asarray(ratio)
