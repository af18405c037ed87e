"""Exact tails of Poisson sampling, for the stability bounds.

They bound how often one record is drawn, and how large batches get.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_GRID = 1 << 14  # cells of the convolution; weights are rounded up, so the result is an upper bound for any grid


def ever_sampled(rate: float, times: int) -> float:
    """Return the probability that a record is in at least one of ``times`` samples."""
    return 1.0 if rate == 1.0 else -math.expm1(times * math.log1p(-rate))


def batch_limits(
    rates: NDArray[np.float64], smoothness: float, n: int, rate: float, divisor: float, target: float, *, convex: bool
) -> list[tuple[int, float]]:
    """Return candidate caps on the batch size and the probability to exceed each."""

    def exceeds(limit: float) -> float:
        tail = float(stats.binom.sf(math.floor(limit), n, rate))
        return 1.0 if tail >= 1.0 else -math.expm1(len(rates) * math.log1p(-tail))

    candidates = []
    steepest = float(np.max(rates)) * smoothness
    if convex and steepest > 0:
        # slightly below 2, so that a rounded quotient cannot make the cap too large by one
        nonexpansive = min(n, math.floor(2.0 * divisor / steepest * (1 - 1e-12)))
        if nonexpansive >= 0 and exceeds(nonexpansive) <= target / 2:
            candidates.append((nonexpansive, exceeds(nonexpansive)))
    if smoothness == 0:
        return [(n, 0.0)]
    # the smallest cap that is exceeded with at most half of the failure probability
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if exceeds(middle) <= target / 2 else (middle, high)
    candidates.append((high, exceeds(high)))
    return candidates


def weighted_draws(weights: NDArray[np.float64], rate: float, target: float) -> tuple[float, float]:
    """Return (u, tail) with P(sum_t weights_t b_t > u) <= tail <= target.

    The b_t are independent Bernoulli(rate). The simple bound adds the largest weights, as many as the record is drawn.
    The sharper bound convolves. Both are upper bounds, and the smaller one is returned.
    """
    draws = int(stats.binom.isf(target, len(weights), rate))
    while stats.binom.sf(draws, len(weights), rate) > target:  # isf may be wrong by one in the far tail
        draws += 1
    tail = float(stats.binom.sf(draws, len(weights), rate))
    largest_first = np.sort(weights)[::-1]
    crude = float(np.sum(largest_first[:draws]))
    if draws == 0 or largest_first[0] == largest_first[-1]:
        return crude, tail
    cell = crude / _GRID
    mass = np.zeros(_GRID + 1)
    mass[0] = 1.0
    for cells in np.ceil(weights / cell).astype(np.int64):
        if cells > 0:
            moved = rate * mass[: max(0, _GRID + 1 - cells)]
            mass *= 1 - rate
            mass[cells:] += moved
    # mass beyond the grid counts as failure; the constant covers accumulated rounding
    tails = np.maximum(0.0, 1.0 - np.cumsum(mass)) + 1e-12
    good = np.flatnonzero(tails <= target)
    if good.size == 0:
        return crude, tail
    return float(good[0] * cell) * (1 + 1e-12), float(tails[good[0]])
