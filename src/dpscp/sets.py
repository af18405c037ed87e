"""Prediction sets {y : score(x, y) <= threshold}, the partners of ``scores``.

An infinite threshold ("no finite threshold was found") gives every label, or an infinite interval. Several
thresholds at once add a last axis.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["label_set", "normalized_interval", "quantile_interval", "residual_interval"]


def label_set(label_scores: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """Which labels score at most the threshold: (n, n_classes), or (n, n_classes, n_levels) for several thresholds."""
    scores, levels = np.asarray(label_scores), np.asarray(threshold, float)
    if levels.ndim == 0:
        return np.asarray(scores <= levels)
    return np.asarray(scores[..., None] <= levels)


def residual_interval(prediction: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """[prediction - threshold, prediction + threshold]: (n, 2), or (n, 2, n_levels)."""
    centre = np.asarray(prediction, float)
    return _interval(centre, centre, np.asarray(threshold, float))


def normalized_interval(prediction: ArrayLike, scale: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """[prediction -+ threshold * scale]: (n, 2), or (n, 2, n_levels)."""
    centre, scale, level = np.asarray(prediction, float), np.asarray(scale, float), np.asarray(threshold, float)
    if level.ndim == 0:
        return np.stack([centre - level * scale, centre + level * scale], axis=1)
    return _interval(centre, centre, level * scale[:, None])


def quantile_interval(lower: ArrayLike, upper: ArrayLike, threshold: ArrayLike) -> NDArray[Any]:
    """[lower - threshold, upper + threshold]: (n, 2), or (n, 2, n_levels); empty (low end above high) if so small."""
    return _interval(np.asarray(lower, float), np.asarray(upper, float), np.asarray(threshold, float))


def _interval(low: NDArray[Any], high: NDArray[Any], reach: NDArray[Any]) -> NDArray[Any]:
    """``reach`` is one number, or has a last axis of levels."""
    if reach.ndim == 0:
        return np.stack([low - reach, high + reach], axis=1)
    return np.stack([low[:, None] - reach, high[:, None] + reach], axis=1)
