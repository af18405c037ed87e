"""Offsets of Result A and of the paper: how far above the rank a search aims.

With such an offset the noise never costs coverage.

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
    """Return the expected maximum of ``steps`` independent standard normals.

    Parameters
    ----------
    steps : int

    Returns
    -------
    float

    >>> [round(expected_maximum(n), 3) for n in (10, 12, 20)]
    [1.539, 1.629, 1.867]
    """
    steps = check_count("steps", steps)
    # E[M] = integral of 1 - F^N above zero minus integral of F^N below
    return expected_excess(0.0, steps) - _shortfall(0.0, steps)


def _shortfall(level: float, steps: int) -> float:
    """Return E[(level - M)+] for the maximum M: the integral of P(M <= x)."""
    if level >= _REACH:
        return level - expected_maximum(steps)
    return _integral(lambda x: np.exp(steps * special.log_ndtr(x)), -_REACH, level)


def expected_excess(level: float, steps: int) -> float:
    """Return E[(M - level)+] for the maximum M: the integral of P(M > x)."""
    if level <= -_REACH:
        return expected_maximum(steps) - level
    return _integral(lambda x: -np.expm1(steps * special.log_ndtr(x)), level, _REACH)


def _integral(f: Callable[[NDArray[np.float64]], NDArray[np.float64]], low: float, high: float) -> float:
    """Integrate by Gauss-Legendre on pieces of length 1/4, to float precision."""
    if high <= low:
        return 0.0
    pieces = np.linspace(low, high, math.ceil((high - low) * 4) + 1)
    half = np.diff(pieces)[:, None] / 2
    return float(np.sum(half * _WEIGHTS * f(pieces[:-1, None] + half * (1 + _NODES))))


def marginal_offset(n_min: float, alpha: float, count_noise: float, steps: int) -> float:
    """Return the smallest c with E[min(c - max Z, alpha (n_min + 1))] >= 0.

    Z are the ``steps`` normal noises. A search that accepts above (1 - alpha)(n + 1) + c misses an exchangeable score
    with probability at most alpha, for every n >= n_min. On every path the returned threshold has C(threshold) >= (1 -
    alpha)(n + 1) + c - max Z, and the maximum is independent of the scores.

    Parameters
    ----------
    n_min, alpha, count_noise : float
    steps : int

    Returns
    -------
    float
        The offset, in ranks.

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
    """Return R of Result A: the noisy count that a search must reach.

    Coverage is then at least 1 - alpha on average.

    Parameters
    ----------
    n : int
        The nominal, public number of scores, never the true one.
    alpha, count_noise : float
    steps : int

    Returns
    -------
    float

    >>> round((marginal_rank_target(10**6, 0.1, 40.0, 20) - 0.9 * (10**6 + 1)) / 40.0, 3)
    1.867

    Theory: Result A
    """
    n = check_count("n", n)
    alpha = check_probability("alpha", alpha)
    return (1 - alpha) * (n + 1) + marginal_offset(n, alpha, count_noise, steps)


def union_noise_buffer(count_noise: float, steps: int, failure_probability: float) -> float:
    """Return tau = count_noise Phi^-1(1 - beta / N) - 1.

    With probability 1 - beta no step accepts below its rank.

    Parameters
    ----------
    count_noise : float
    steps : int
        N.
    failure_probability : float
        beta.

    Returns
    -------
    float

    Paper: Lemma 1 [lem:one_sided_qhat]
    """
    count_noise = check_positive("count_noise", count_noise)
    steps = check_count("steps", steps)
    beta = check_probability("failure_probability", failure_probability)
    return float(-count_noise * special.ndtri(beta / steps) - 1)
