"""Prediction sets {y : score(x, y) <= threshold} of the scores of this package.

A set agrees with its score exactly. The ends of an interval are the outermost numbers whose *rounded* score is at most
the threshold. The rounded sum prediction + threshold would lose records that were counted when the threshold was found
(on data rounded to tenths, one tie in twenty).

An infinite threshold gives every label, or an infinite interval. Several thresholds add a last axis.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["label_set", "normalized_interval", "quantile_interval", "residual_interval"]

_SPACINGS = 2
# Rows handled at once, so that the temporaries of a chunk stay in cache.
_ROWS = 1 << 14


def label_set(label_scores: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """Mark the labels whose score is at most the threshold.

    Parameters
    ----------
    label_scores : array of shape (n, n_classes)
    threshold : float, or array of shape (n_levels,)

    Returns
    -------
    bool array of shape (n, n_classes), or (n, n_classes, n_levels) for several thresholds
    """
    scores, levels = np.asarray(label_scores), np.asarray(threshold, float)
    # one more axis for a single level too: a scalar would be rounded to the precision of the scores by older NumPy
    within = scores[..., None] <= np.atleast_1d(levels)
    return np.asarray(within if levels.ndim else within[..., 0])


def residual_interval(prediction: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """Return [prediction - threshold, prediction + threshold].

    Parameters
    ----------
    prediction : array of shape (n,)
    threshold : float, or array of shape (n_levels,) or (n, n_levels)

    Returns
    -------
    array of shape (n, 2) or (n, 2, n_levels)
    """
    center = np.asarray(prediction, float)
    return _interval(center, center, np.asarray(threshold, float))


def normalized_interval(prediction: ArrayLike, scale: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """Return [prediction - threshold * scale, prediction + threshold * scale].

    Parameters
    ----------
    prediction, scale : arrays of shape (n,)
    threshold : float, or array of shape (n_levels,) or (n, n_levels)

    Returns
    -------
    array of shape (n, 2) or (n, 2, n_levels)
    """
    center, scale, level = np.asarray(prediction, float), np.asarray(scale, float), np.asarray(threshold, float)
    if np.any(~(scale > 0)):
        raise ValueError("scale must be positive in every row; bound it from below by a public constant")
    ends = _interval(center, center, scaled_threshold(level, scale[:, None]))
    return ends if level.ndim else ends[..., 0]


def scaled_threshold(threshold: NDArray[Any], scale: Any) -> NDArray[Any]:
    """Return the largest number whose rounded ratio to the scale is in the set."""
    return _largest((threshold + _half_spacing(threshold)) * scale, lambda number: number / scale <= threshold)


def quantile_interval(lower: ArrayLike, upper: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """Return [lower - threshold, upper + threshold].

    The interval is empty (low end above high end) for a threshold below minus half the width.

    Parameters
    ----------
    lower, upper : arrays of shape (n,)
    threshold : float, or array of shape (n_levels,) or (n, n_levels)

    Returns
    -------
    array of shape (n, 2) or (n, 2, n_levels)
    """
    return _interval(np.asarray(lower, float), np.asarray(upper, float), np.asarray(threshold, float))


def _interval(low: NDArray[Any], high: NDArray[Any], reach: NDArray[Any]) -> NDArray[Any]:
    """Extend [low, high] by ``reach``, whose last axis, if any, is levels."""
    levels = np.atleast_1d(reach)
    ends = np.empty((len(low), 2, levels.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(low), _ROWS):
            rows = slice(start, start + _ROWS)
            own = levels[rows] if levels.ndim == 2 else levels
            np.negative(_furthest(-low[rows, None], own), out=ends[rows, 0])
            ends[rows, 1] = _furthest(high[rows, None], own)
    return ends if reach.ndim else ends[..., 0]


def _furthest(center: NDArray[Any], reach: NDArray[Any]) -> NDArray[Any]:
    """Return the largest y for which y - center, rounded, is at most ``reach``.

    y - center is rounded to the spacing of reach, so y may lie half a spacing beyond. Exactly there it is rounded to
    the even neighbor, which is reach or the next number. The bound is the sum center + reach + half. Two exact
    additions (a rounded sum and its rounding error) show whether the rounded bound lies above the exact one. The work
    is done in place: a million rows should cost about as much as the plain sum.
    """
    half = _half_spacing(reach)
    total = center + reach
    part = total - center
    rest = total - part
    np.subtract(center, rest, out=rest)
    np.subtract(reach, part, out=part)
    rest += part  # center + reach = total + rest, exactly
    rest += half
    # |total| >= |rest| or one of them is 0: three operations are enough to be exact again
    found = total + rest
    np.subtract(found, total, out=part)
    rest -= part  # the bound is found + rest, exactly
    # a tie belongs to reach if that is even; below 0 means at most the negative number next to it
    beyond = rest <= np.where(reach + half > reach, 0.0, -np.nextafter(0.0, 1.0))
    if found.all():
        # one number down by the bits, many times faster: minus one for positive numbers, plus one for negative ones
        bits, step = found.view(np.int64), part.view(np.int64)
        np.right_shift(bits, 63, out=step)
        step |= 1
        step *= beyond
        bits -= step
    else:
        found = np.where(beyond, np.nextafter(found, -np.inf), found)
    return found if np.isfinite(reach).all() else np.where(np.isfinite(reach), found, reach)


def _half_spacing(values: NDArray[Any]) -> NDArray[Any]:
    """Return half the distance to the next larger number; 0 where there is none."""
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.asarray((np.nextafter(finite, np.inf) - finite) / 2)


def _largest(guess: NDArray[Any], holds: Callable[[NDArray[Any]], Any]) -> NDArray[Any]:
    """Find the largest number for which the monotone condition ``holds``.

    ``guess`` must be a few spacings away at most.
    """
    for _ in range(_SPACINGS):
        guess = np.nextafter(guess, np.inf)
    for _ in range(3 * _SPACINGS):
        guess = np.where(holds(guess), guess, np.nextafter(guess, -np.inf))
    return guess
