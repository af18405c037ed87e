"""Compute a lower bound on epsilon from an attacker's statistics."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from dpscp._base.checks import check_probability
from dpscp.audit.run import DELTAS

# Number of candidate thresholds, which are quantiles of the first half of the statistics.
_CANDIDATES = 512


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
    """Bound log((P(more >= t) - delta) / P(less >= t)) from below for each delta."""
    hits = len(more) - np.searchsorted(np.sort(more), thresholds, side="left")
    alarms = len(less) - np.searchsorted(np.sort(less), thresholds, side="left")
    lowest = np.where(hits > 0, stats.beta.ppf(failure, np.maximum(hits, 1), len(more) - hits + 1), 0.0)
    highest = np.where(alarms < len(less), stats.beta.isf(failure, alarms + 1, np.maximum(len(less) - alarms, 1)), 1.0)
    gain = np.maximum(lowest[None, :] - np.asarray(deltas)[:, None], 0.0)
    with np.errstate(divide="ignore"):
        ratio = np.log(gain) - np.log(highest)[None, :]
    return np.asarray(ratio)
