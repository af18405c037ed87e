"""Algorithm 2 (buffered right-endpoint search) and 4 (noisy midpoint rule)."""

import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dpscp._base.checks import check_count, check_positive, check_range
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.threshold import PrivateQuantile, private_quantile
from dpscp.threshold.counts import EVEN, as_counter
from dpscp.threshold.offsets import Aim, Correction, Rank, conformal_rank, round_level
from dpscp.threshold.search import require_counted
from dpscp.threshold.sizes import KnownSize


def buffered_quantile(
    scores: Any,
    *,
    alpha: float,
    score_range: tuple[float, float],
    count_noise: float | LatticeNoise,
    steps: int = 20,
    rank_buffer: float = 0,
    failure_probability: float | None = None,
    n_records: int | None = None,
    random_state: int | None = None,
) -> PrivateQuantile:
    """Return the right endpoint of the search at rank r + m_n + tau.

    It is never below the score of rank r + m_n, with probability 1 - beta (Lemma 1).

    Parameters
    ----------
    scores : as in ``private_quantile``
    alpha : float
    score_range : tuple of float
        The paper's [a, b].
    count_noise : float or LatticeNoise
        The paper's sigma.
    steps : int
        The paper's N.
    rank_buffer : float
        The paper's m_n.
    failure_probability : float, optional
        The paper's beta. None sets tau = 0.
    n_records : int, optional
        The public number of scores. None declares the exact number public.
    random_state : int, optional

    Returns
    -------
    PrivateQuantile

    Privacy: ``steps`` counts of sensitivity 1, Lemma 2 [lemma:search_privacy].

    Paper: Algorithm 2 [alg:dp_binary_search]
    """
    with warnings.catch_warnings():
        # a method of the paper warns once, for all its levels
        warnings.simplefilter("ignore", GuaranteeWarning)
        return private_quantile(
            scores,
            alpha=alpha,
            score_range=score_range,
            count_noise=count_noise,
            steps=steps,
            correction="none" if failure_probability is None else "union",
            rank="ceil",
            rank_buffer=rank_buffer,
            failure_probability=failure_probability,
            n_records=n_records,
            random_state=random_state,
        )


def noisy_midpoint_quantile(
    scores: Any,
    *,
    alpha: float,
    score_range: tuple[float, float],
    count_noise: float | LatticeNoise,
    steps: int = 20,
    precision: float | None = None,
    n_records: int | None = None,
    random_state: int | None = None,
) -> PrivateQuantile:
    """Return a threshold by the midpoint rule of earlier work, as a baseline.

    The rule itself can under-cover. Both ends move on noisy evidence, the left one by ``precision`` beyond the
    midpoint, and the midpoint is returned.

    Parameters
    ----------
    scores : as in ``private_quantile``, but no iterator
    alpha : float
    score_range : tuple of float
    count_noise : float or LatticeNoise
    steps : int
    precision : float, optional
        Default: the range over 2^steps.
    n_records : int, optional
        The public number of scores. None declares the exact number public.
    random_state : int, optional

    Returns
    -------
    PrivateQuantile

    Privacy: the same as ``private_quantile(rank="ceil")``. The true number of scores enters the noisy counts only.

    Paper: Algorithm 4 [alg:noisy-midpoint]
    """
    low, high = check_range("score_range", score_range)
    level = round_level(alpha)
    steps = check_count("steps", steps)
    if n_records is not None:
        check_count("n_records", n_records)
    jump = check_positive("precision", precision) if precision is not None else (high - low) / 2.0**steps
    noise = LatticeNoise.of(count_noise, Fraction(1))
    if isinstance(scores, Iterator):
        raise TypeError("noisy_midpoint_quantile needs scores that can be read again, not an iterator; pass an array")
    counter = as_counter(scores, (low, high), steps)
    require_counted(counter, is_private=n_records is not None)
    nominal = n_records or counter.size
    rank = conformal_rank(level, counter.size)
    aim = Aim(level, Rank.CEIL, Correction.NONE, KnownSize(nominal), noise.count_noise, steps)
    left, right = low, high
    for drawn in noise.sample(steps, IntegerSource(random_state)):
        middle = EVEN.middle(left, right)
        # the left end is not on the grid of midpoints, so each count needs its own pass
        count = counter.size if middle >= high else counter.count(left, right, 1)
        if noise.scale * (count - rank) + drawn < 0:
            left = middle + jump
        else:
            right = middle
    return PrivateQuantile(
        threshold=float(EVEN.middle(left, right)),
        aim=aim,
        rank_target=float(aim.wanted_rank),
        offset=0.0,
        event=noise.event(steps),
        score_range=(low, high),
        n_records=nominal,
        seeded=random_state is not None,
    )
