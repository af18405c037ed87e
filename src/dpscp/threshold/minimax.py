"""The minimax offset: how far above the target rank a search aims, as a game.

The search promises coverage for any scores, so the scores are an adversary. In units of the noise, let a *gap* be the
acceptance level minus the count at a point (the test score counted). A midpoint of gap g is accepted with probability
Q(g) = P(Z >= g). The adversary chooses the gap of each midpoint between the gaps of the two ends of the bracket (counts
are monotone, nothing else restricts them) and maximizes the final gap:

    U_0(l, h) = l,    U_k(l, h) = max over g in [l, h] of Q(g) U_{k-1}(g, h) + (1 - Q(g)) U_{k-1}(l, g).

Here l is the gap at the right end and h the gap at the left end. With V_N(l) = U_N(l, infinity), an offset c keeps
P(miss) <= alpha if and only if V_N(c - A) <= c, A = alpha (n + 1) / noise.

*Rounding is safe.* Gaps are rounded up to a grid. A gap that is rounded up to the point x_m is accepted as often as the
point below it: Q(x_{m-1}). Both can only help the adversary, because an acceptance is worth at least g to him and a
rejection at most g. So the game on the grid bounds the true one from above. With a spacing d it is the same game moved
by d, so its offset exceeds the exact one by at most d, for any number of steps. Gaps above the last point (7) are cut
there, which changes less than 1e-9.

*Graded steps.* The offsets may differ from step to step. Early midpoints are rarely near the target, so a higher
acceptance level costs little there. The last step can then aim at the rank itself: each step aims ``_RISE`` of the
noise above the next one. How far a step lies above the last one depends only on the number of steps left. So one
recursion gives V_N for every N, and everything above holds unchanged.

Theory: Result F
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from os import PathLike

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpscp._base.checks import check_count, check_nonnegative, check_probability
from dpscp.threshold.correction import expected_excess, marginal_offset

Gaps = NDArray[np.float64]

# The grid is fine where decisions are close. Outside, its spacing grows, which costs no precision.
_CLOSE = (-2.0, 3.0)
_TOP, _BOTTOM = 7.0, -4096.0
# Spacing and number of steps of the shipped table, and the smallest spacing that is stored.
_TABLE_SPACING, _TABLE_STEPS, _KEPT_SPACING = 1 / 256, 32, 1 / 64
_CUT = 1e-9
# The smallest rise with which the last of many steps needs no offset of its own; the mean overshoot is flat around it.
_RISE = 0.175


def gap_grid(spacing: float) -> Gaps:
    """Return the grid of gaps, ``spacing`` apart where decisions are close."""
    low, high = _CLOSE
    middle = np.arange(round((high - low) / spacing) + 1) * spacing + low
    above, below = [high], [low]
    while above[-1] < _TOP:
        above.append(min(_TOP, above[-1] + spacing * (1 + 4 * (above[-1] - high))))
    while below[-1] > _BOTTOM:
        stride = spacing * (1 + 6 * (low - below[-1]))
        below.append(max(_BOTTOM, below[-1] - (stride if below[-1] > 2.5 * low else -below[-1] / 8)))
    return np.concatenate([below[:0:-1], middle, above[1:]])


def solve_game(gaps: Gaps, accept: Sequence[Gaps]) -> list[Gaps]:
    """Return an upper bound of V_k on the grid for each k: the last k steps.

    ``accept[k]`` is the probability of accepting each of the increasing ``gaps`` at step k, in the order of the search.
    """
    size = gaps.size
    rows, columns = np.arange(size)[:, None], np.arange(size)[None, :]
    value = np.where(rows <= columns, gaps[:, None], 0.0)  # value[l, h]
    found = []
    for probability in reversed(accept):
        accepted = np.concatenate([[1.0], probability[:-1]])
        left = np.where(rows < columns, (1 - accepted) * value, -np.inf)
        later = value.copy()
        for h in range(1, size):
            later[:h, h] = np.max(left[:h, 1 : h + 1] + accepted[1 : h + 1] * value[1 : h + 1, h], axis=1)
        value = later
        found.append(value[:, -1] + _CUT)
    return found


def step_rises(steps: int) -> Gaps:
    """Return how far above the last step's offset each step aims.

    Parameters
    ----------
    steps : int

    Returns
    -------
    ndarray, shape (steps,)
        In units of the noise; all 0 for more steps than in the table.

    Theory: Result F
    """
    left = np.arange(check_count("steps", steps) - 1.0, -1.0, -1.0)
    return np.asarray(left * (_RISE if steps <= _TABLE_STEPS else 0.0), dtype=np.float64)


def write_table(path: str | PathLike[str]) -> None:
    """Solve the game for all equal and graded steps (minutes) and write the table.

    The table stores V_N(l) - l on a coarser grid, rounded up to float32. Between its points ``worst_final_gap`` is
    still an upper bound of V.
    """
    gaps = gap_grid(_TABLE_SPACING)
    kept = [gaps.size - 1]
    for index in range(gaps.size - 2, -1, -1):
        if gaps[kept[-1]] - gaps[index] >= _KEPT_SPACING:
            kept.append(index)
    kept.reverse()

    def rounded(rises: Gaps) -> NDArray[np.float32]:
        solved = solve_game(gaps, [special.ndtr(-gaps - rise) for rise in rises])
        excess = np.stack([v - gaps for v in solved])[:, kept]
        return np.asarray(np.nextafter(excess.astype(np.float32), np.float32(np.inf)))

    graded = rounded(step_rises(_TABLE_STEPS))
    np.savez_compressed(path, gaps=gaps[kept], excess=rounded(np.zeros(_TABLE_STEPS)), graded=graded)


@lru_cache(maxsize=2)
def _table(graded: bool) -> tuple[Gaps, Gaps]:
    with resources.files("dpscp.threshold").joinpath("minimax_table.npz").open("rb") as file, np.load(file) as table:
        return table["gaps"], table["graded" if graded else "excess"].astype(np.float64)


@lru_cache(maxsize=128)
def _row(steps: int, graded: bool = False) -> tuple[Gaps, Gaps]:
    """Return the grid and V_N - l on it, made monotone.

    V does not fall and V - l does not rise, as for the exact V.
    """
    gaps, excess = _table(graded)
    # beyond the table use Result A: the final gap is at most the largest of l and the noises
    own = excess[steps - 1] if steps <= len(excess) else np.array([expected_excess(x, steps) for x in gaps])
    own = np.maximum.accumulate(own + gaps) - gaps
    return gaps, np.maximum.accumulate(own[::-1])[::-1]


def worst_final_gap(start: Gaps | float, steps: int) -> Gaps:
    """Return an upper bound of V_N(start), the largest mean final gap.

    Parameters
    ----------
    start : float or array
        In units of the noise.
    steps : int
        The number of equal steps.

    Returns
    -------
    ndarray of the shape of ``start``

    Theory: Result F
    """
    gaps, _ = _row(check_count("steps", steps))
    # below the grid V is at most its value at the grid's end
    start = np.maximum(np.asarray(start, dtype=float), gaps[0])
    return np.asarray(start + worst_excess(start, steps))


def worst_excess(start: Gaps | float, steps: int, *, graded: bool = False) -> Gaps:
    """Return ``worst_final_gap`` minus ``start``, precise where it is tiny.

    It does not rise with ``start``. V does not fall and rises by at most the rise of ``start``, which bounds it between
    grid points. ``graded``: for steps that aim ``step_rises`` above the last.
    """
    gaps, excess = _row(check_count("steps", steps), graded)
    start = np.asarray(start, dtype=float)
    above = np.minimum(np.searchsorted(gaps, start), gaps.size - 1)
    to_next = gaps[above] - start + excess[above]
    within = np.where(above > 0, np.minimum(excess[np.maximum(above - 1, 0)], to_next), to_next)
    is_beyond = start > gaps[-1]
    if not is_beyond.any():
        return within
    # above the grid it is at most the sum of E[(Z - l)+] < density(l) / l^2
    far = np.maximum(start, gaps[-1])
    beyond = steps * np.exp(-(far**2) / 2) / (np.sqrt(2 * np.pi) * far**2)
    return np.asarray(np.where(is_beyond, beyond, within))


def minimax_offset(alpha: float, n_min: float, count_noise: float, steps: int) -> float:
    """Return the smallest offset that keeps the miss rate for any scores.

    A search of ``steps`` halvings that accepts a midpoint if count + noise >= (1 - alpha)(n + 1) + c misses one more
    exchangeable score with probability at most alpha, for every n >= ``n_min``. Ties are allowed, and some scores
    attain this.

    Parameters
    ----------
    alpha, n_min, count_noise : float
    steps : int

    Returns
    -------
    float
        In ranks. From 1 to 32 steps it exceeds the smallest c by at most .004 ``count_noise`` (.02 if n_min is so small
        that the offset exceeds alpha (n_min + 1)). Above 32 steps it is the offset of Result A.

    >>> [round(minimax_offset(0.1, 10**6, 1.0, n), 2) for n in (8, 12, 20)]
    [0.58, 0.84, 1.13]

    Theory: Result F
    """
    return _offset(alpha, n_min, count_noise, steps, graded=False)


def graded_offset(alpha: float, n_min: float, count_noise: float, steps: int) -> float:
    """Return the smallest offset of the last step of a graded search.

    Each step aims ``step_rises`` of the noise above the last. The promise is that of ``minimax_offset``. On smooth
    scores such a search overshoots less, by a fifth to two fifths.

    Parameters
    ----------
    alpha, n_min, count_noise : float
    steps : int
        Up to 32 steps are graded; more steps are equal.

    Returns
    -------
    float
        In ranks; negative for few steps.

    >>> [round(graded_offset(0.1, 10**6, 1.0, n), 2) for n in (6, 8, 12)], float(step_rises(3)[0])
    ([-0.1, -0.03, 0.01], 0.35)

    Theory: Result F
    """
    return _offset(alpha, n_min, count_noise, steps, graded=True)


def _offset(alpha: float, n_min: float, count_noise: float, steps: int, *, graded: bool) -> float:
    alpha, n_min = check_probability("alpha", alpha), check_nonnegative("n_min", n_min)
    noise, steps = check_nonnegative("count_noise", count_noise), check_count("steps", steps)
    if noise == 0:
        return 0.0
    surplus = alpha * (n_min + 1)
    gaps, excess = _row(steps, graded)
    if steps > _TABLE_STEPS or surplus / noise < excess[-1]:  # the latter is less than one part in 10^9
        return marginal_offset(n_min, alpha, noise, steps)
    # V(l) <= c with l = c - A says V(l) - l <= A: the first grid point where it holds, and c is V there
    first = int(np.argmax(excess <= surplus / noise))
    # with few steps the offset may be negative: the end of the range is a full set, which covers more than needed
    return float(gaps[first] + excess[first]) * noise
