"""The offset for a secret random part of a counted table; no size is released.

The table has n records, a public count, and each was drawn with probability f. The search compares the centered
statistic with (1/2 - alpha)(f n + 1) + c. Given that k records were drawn, this is the search of Result F with the
offset c + (1/2 - alpha)(f n - k). So with V_N of the game, in units of the noise,

    P(miss | k) <= alpha + W(c + (1/2 - alpha)(f n - k), alpha (k + 1)) noise / (k + 1) = E[Gamma] / (k + 1) + alpha,

W(c, A) = V_N(c - A) - c, Gamma the final gap. Given the assignment, the k drawn scores and the new one are
exchangeable, so the factor 1/(k + 1) is inside the mean over k. The offset c is valid if

    sum_k Bin(n, f)(k) W(c + (1/2 - alpha)(f n - k), alpha (k + 1)) / (k + 1) <= 0.

W subtracts alpha (k + 1) at its start. So the left side is the mean of (V_N(l_k) - l_k) noise / (k + 1) less alpha,
with l_k = c - alpha (k + 1) + (1/2 - alpha)(f n - k). Numbers of similar size are never subtracted.

Theory: Sizes of small parts that were counted
"""

from functools import lru_cache

import numpy as np

from dpscp._base.checks import check_count, check_positive, check_probability, real_number
from dpscp.threshold.minimax import worst_excess
from dpscp.threshold.single_release import LEFT_OUT, CountedSize


def counted_miss_bound(
    alpha: float, size: CountedSize, offset: float, count_noise: float, steps: int, *, graded: bool = False
) -> float:
    """Bound the miss rate of a search of a drawn part, for any scores.

    It is an average over the random assignment.

    Theory: Sizes of small parts that were counted
    """
    alpha, count_noise = check_probability("alpha", alpha), check_positive("count_noise", count_noise)
    sizes, masses = size.law
    needed = real_number("offset", offset) + (0.5 - alpha) * (float(size.nominal_size) - sizes) - alpha * (sizes + 1)
    misses = count_noise * worst_excess(needed / count_noise, check_count("steps", steps), graded=graded) / (sizes + 1)
    return float(masses @ np.minimum(1.0, misses)) + LEFT_OUT


@lru_cache(maxsize=1024)
def counted_offset(alpha: float, size: CountedSize, count_noise: float, steps: int, *, graded: bool = False) -> float:
    """Return the smallest offset c of a search of a secret part of a counted table.

    The search compares the centered statistic with (1/2 - alpha)(f n + 1) + c, where f n is the expected size of the
    part. It then misses one more exchangeable score with probability at most alpha, over scores, noise and assignment.
    Ties are allowed.

    Parameters
    ----------
    alpha : float
    size : CountedSize
    count_noise : float
    steps : int
    graded : bool
        Return the offset of the last step; earlier steps aim higher by ``step_rises``.

    Returns
    -------
    float
        In ranks; it may be negative.

    >>> round(counted_offset(0.1, CountedSize(150, 0.5), 5.6, 6, graded=True), 1)
    0.5

    Theory: Sizes of small parts that were counted
    """

    def holds(c: float) -> bool:
        return counted_miss_bound(alpha, size, c, count_noise, steps, graded=graded) <= alpha

    good, bad = count_noise, -count_noise
    while not holds(good):
        good, bad = 2 * good, good
    while holds(bad):
        good, bad = bad, 2 * bad
    while good - bad > 1e-5 * max(count_noise, abs(good)):
        middle = (good + bad) / 2
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good
