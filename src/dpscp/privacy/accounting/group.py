"""Group privacy: what pairs (epsilon, delta) that hold for one record prove for someone with several.

For one record the pairs bound an attacker's power g(x) = 1 - f(x) at false-alarm rate x by the smallest of the lines
delta + e^epsilon x. For k records, added one after the other, the power is at most g(g(...g(x))): k times.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpscp.privacy.tradeoff import upper_envelope

# Below this false-alarm rate nothing is looked for.
_SMALLEST_RATE = 1e-300


def group_epsilon(epsilons: NDArray[np.float64], deltas: NDArray[np.float64], delta: float, rows: int) -> float:
    """The smallest epsilon >= 0 at ``delta`` for ``rows`` records, from pairs of one direction for a single one.

    ``epsilons`` may be negative. The chained power g_k is concave, so (g_k(x) - delta) / x rises while the tangent at x
    meets the axis below ``delta`` and falls afterwards: a bisection finds its top between two neighbouring floats, and
    the result is taken from the worse end of each. Infinite where the pairs prove nothing at this ``delta``.

    Paper: Supplement S2, trade-off functions; the chain is Theorem 2.14 of Dong, Roth and Su, Gaussian Differential
    Privacy
    """
    # no power is above 1
    intercepts, slopes = np.append(deltas, 1.0), np.append(np.exp(epsilons), 0.0)
    kept, starts = upper_envelope(-intercepts, slopes)
    intercepts, slopes = intercepts[kept], slopes[kept]

    def chain(x: float) -> tuple[float, float]:
        """g_k(x), and where its tangent there meets the axis."""
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
