"""How far above the target rank a noisy search must aim so that its noise never costs coverage.

Paper: Algorithm 2 [alg:dp_binary_search]; Theory: Result A
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dpscp._base.checks import check_count, check_nonnegative, check_positive, check_probability, real_number

_REACH = 12.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@lru_cache(maxsize=256)
def expected_maximum(steps: int) -> float:
    """E of the largest of ``steps`` independent standard normals.

    >>> [round(expected_maximum(n), 3) for n in (10, 12, 20)]
    [1.539, 1.629, 1.867]
    """
    steps = check_count("steps", steps)
    # E[M] = integral of 1 - F^N above zero minus integral of F^N below
    return expected_excess(0.0, steps) - _shortfall(0.0, steps)


def _shortfall(level: float, steps: int) -> float:
    """E[(level - M)+] of the largest M of ``steps`` standard normals: the integral of P(M <= x) up to ``level``."""
    if level >= _REACH:
        return level - expected_maximum(steps)
    return _integral(lambda x: np.exp(steps * special.log_ndtr(x)), -_REACH, level)


def expected_excess(level: float, steps: int) -> float:
    """E[(M - level)+] of the largest M of ``steps`` standard normals: the integral of P(M > x) from ``level``."""
    if level <= -_REACH:
        return expected_maximum(steps) - level
    return _integral(lambda x: -np.expm1(steps * special.log_ndtr(x)), level, _REACH)


def _integral(f: Callable[[NDArray[np.float64]], NDArray[np.float64]], low: float, high: float) -> float:
    """Gauss-Legendre on pieces of a quarter, to the precision of a float for these smooth integrands."""
    if high <= low:
        return 0.0
    pieces = np.linspace(low, high, math.ceil((high - low) * 4) + 1)
    half = np.diff(pieces)[:, None] / 2
    return float(np.sum(half * _WEIGHTS * f(pieces[:-1, None] + half * (1 + _NODES))))


def marginal_offset(n_min: float, alpha: float, count_noise: float, steps: int) -> float:
    """The smallest c with E[min(c - max Z, alpha (n_min + 1))] >= 0 for ``steps`` normal noises Z.

    A search that accepts only above (1 - alpha)(n + 1) + c misses an exchangeable score with probability at most
    alpha, for every n >= n_min: the returned threshold has C(threshold) >= (1 - alpha)(n + 1) + c - max Z, whatever
    path the search took, and the maximum is independent of the scores.

    Theory: Result A
    """
    n_min = real_number("n_min", n_min)
    alpha, count_noise = check_probability("alpha", alpha), check_nonnegative("count_noise", count_noise)
    steps = check_count("steps", steps)
    if n_min < 0:
        raise ValueError(f"n_min must be at least 0, got {n_min:g}")
    if count_noise == 0:
        return 0.0
    cap = alpha * (n_min + 1) / count_noise  # in units of the noise

    def slack(c: float) -> float:
        # E[min(c - M, cap)] = c - E[M] - E[(c - cap - M)+]
        return c - expected_maximum(steps) - _shortfall(c - cap, steps)

    low = expected_maximum(steps)
    if slack(low) >= 0:
        return low * count_noise
    high = low + 1.0
    while slack(high) < 0:
        high += 1.0 + high - low
    root = float(optimize.brentq(slack, low, high, xtol=1e-12))
    while slack(root) < 0:
        root += 1e-12 * max(1.0, abs(root))
    return root * count_noise


def marginal_rank_target(n: int, alpha: float, count_noise: float, steps: int) -> float:
    """R of Result A: the noisy count a search must reach so that coverage is at least 1 - alpha on average.

    Called with public numbers only (the nominal n), never with the true number of records.

    >>> round((marginal_rank_target(10**6, 0.1, 40.0, 20) - 0.9 * (10**6 + 1)) / 40.0, 3)
    1.867

    Theory: Result A
    """
    n = check_count("n", n)
    alpha = check_probability("alpha", alpha)
    return (1 - alpha) * (n + 1) + marginal_offset(n, alpha, count_noise, steps)


def union_noise_buffer(count_noise: float, steps: int, failure_probability: float) -> float:
    """tau = count_noise Phi^-1(1 - beta / N) - 1: with probability 1 - beta no step accepts below its rank.

    Paper: Lemma 1 [lem:one_sided_qhat]
    """
    count_noise = check_positive("count_noise", count_noise)
    steps = check_count("steps", steps)
    beta = check_probability("failure_probability", failure_probability)
    return float(-count_noise * special.ndtri(beta / steps) - 1)


def expected_clipped_rank(rank_target: float, most: float, count_noise: float, steps: int) -> float:
    """E[clip(rank_target - max Z, 0, most)] for ``steps`` normal noises Z of standard deviation ``count_noise``.

    Theory: Result A
    """
    count_noise, steps = check_positive("count_noise", count_noise), check_count("steps", steps)
    top = rank_target / count_noise
    # (top - M)+ capped at most: what exceeds the cap is (top - most - M)+
    capped = _shortfall(top, steps) - _shortfall(top - most / count_noise, steps)
    return count_noise * capped
