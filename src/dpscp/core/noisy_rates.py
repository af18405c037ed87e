"""Compute confidence intervals for a rate from noisy counts.

Theory: Private evaluation
"""

from collections.abc import Callable

import numpy as np
from scipy import special, stats

from dpscp.privacy import LatticeNoise
from dpscp.privacy.accounting.pld import discrete_gaussian_cdf

# Share of the allowed error for a noisy size outside its reach.
_SIZE_TAIL = 0.1
# Binomial counts beyond this many standard deviations have a mass that is 0 in floating point.
_WINDOW = 12.0
# More than the rounding error of the sums below; added to each tail, so that intervals are never too narrow.
_ROUNDING = 1e-9


def rate_interval(noisy_count: float, noisy_size: float, noise: LatticeNoise, confidence: float) -> tuple[float, float]:
    """Return an interval for the rate p of a count M ~ Bin(n, p), from M + Z and n + Y.

    Z and Y are independent draws of ``noise``. The interval contains p with probability at least ``confidence``, for
    every n and p: P(Bin(n, p) + Z <= m) is inverted in p, at the smallest n within reach of n + Y for the upper limit
    and at the largest for the lower one. The reach fails with a tenth of the allowed error.

    Theory: Private evaluation
    """
    error = 1 - confidence
    reach = size_reach(noise, _SIZE_TAIL * error)
    tail = (1 - _SIZE_TAIL) * error / 2
    fewest, most = max(0, int(np.ceil(noisy_size - reach))), max(0, int(np.floor(noisy_size + reach)))
    high = _largest(lambda p: _probability_at_most(noisy_count, fewest, p, noise) + _ROUNDING >= tail)
    low = 1 - _largest(lambda q: 1 - _probability_below(noisy_count, most, 1 - q, noise) + _ROUNDING >= tail)
    return (low, high) if low <= high else (0.0, 1.0)


def size_reach(noise: LatticeNoise, probability: float) -> float:
    """Return r with P(|Y| > r) at most ``probability`` for one draw Y of ``noise``."""
    reach = np.ceil(noise.sigma * special.ndtri(1 - probability / 2)) + 1
    while 2 * float(discrete_gaussian_cdf(-reach - 1, noise.sigma)) > probability:
        reach += max(1.0, noise.sigma // 1000)
    return float(reach / noise.scale)


def _probability_at_most(bound: float, n: int, p: float, noise: LatticeNoise) -> float:
    """P(Bin(n, p) + Z <= bound)."""
    counts, masses = _binomial(n, p)
    return float(masses @ discrete_gaussian_cdf(np.round((bound - counts) * noise.scale), noise.sigma))


def _probability_below(bound: float, n: int, p: float, noise: LatticeNoise) -> float:
    """P(Bin(n, p) + Z < bound)."""
    counts, masses = _binomial(n, p)
    return float(masses @ discrete_gaussian_cdf(np.round((bound - counts) * noise.scale) - 1, noise.sigma))


def _binomial(n: int, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts with positive mass, and their masses."""
    spread = _WINDOW * (np.sqrt(n * p * (1 - p)) + 3)
    low, high = max(0, int(n * p - spread)), min(n, int(n * p + spread) + 1)
    counts = np.arange(low, high + 1)
    return counts, stats.binom.pmf(counts, n, p)


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest rate at which a monotone condition holds, rounded up; 0 if it never holds."""
    low, high = 0.0, 1.0
    if holds(high):
        return high
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
