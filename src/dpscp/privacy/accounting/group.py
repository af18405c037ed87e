"""Group privacy: what (epsilon, delta) pairs of one record prove for several.

For one record the pairs bound the power g(x) = 1 - f(x) of an attacker at false-alarm rate x by the smallest of the
lines delta + e^epsilon x. For k records, added one after the other, the power is at most g applied k times.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpscp.privacy.tradeoff import upper_envelope

# The smallest false-alarm rate of the bisection.
_SMALLEST_RATE = 1e-300


def group_epsilon(epsilons: NDArray[np.float64], deltas: NDArray[np.float64], delta: float, rows: int) -> float:
    """Return the smallest epsilon >= 0 at ``delta`` for ``rows`` records.

    ``epsilons`` and ``deltas`` are pairs of one direction for one record; epsilons may be negative. The chained power
    g_k is concave. So (g_k(x) - delta) / x rises while the tangent at x meets the axis below ``delta``, and falls
    afterwards. A bisection finds its maximum between two adjacent floats, and the result uses the worse end of each
    factor. It is infinite if the pairs prove nothing at this ``delta``.

    Paper: Supplement S2, trade-off functions; the chain is Theorem 2.14 of Dong, Roth and Su, Gaussian Differential
    Privacy
    """
    # no power is above 1
    intercepts, slopes = np.append(deltas, 1.0), np.append(np.exp(epsilons), 0.0)
    kept, starts = upper_envelope(-intercepts, slopes)
    intercepts, slopes = intercepts[kept], slopes[kept]

    def chain(x: float) -> tuple[float, float]:
        """Return g_k(x), and where its tangent meets the axis."""
        foot = 0.0
        for _ in range(rows):
            line = int(np.searchsorted(starts, x, side="right"))
            x, foot = intercepts[line] + slopes[line] * x, intercepts[line] + slopes[line] * foot
        return x, foot

    low, high = _SMALLEST_RATE, 1.0
    if chain(low)[1] > delta:
        return math.inf
    while True:
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        low, high = (middle, high) if chain(middle)[1] <= delta else (low, middle)
    power = chain(high)[0] * (1 + 1e-15 * rows)  # each step of the chain rounds
    return max(0.0, math.log((power - delta) / low)) if power > delta else 0.0
