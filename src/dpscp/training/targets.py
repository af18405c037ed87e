"""Clip and scale regression targets by public bounds."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp.training.labels import real_targets


def bounded_targets(y: ArrayLike, y_bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Return finite real targets, one per record, clipped to the public bounds.

    Theory: Fact 1
    """
    return np.clip(real_targets(y, "float64"), *y_bounds)


def unit_targets(y: ArrayLike, y_bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Clip targets to the public bounds and scale these to -1 and 1.

    Theory: Fact 1
    """
    low, high = y_bounds
    unit = (bounded_targets(y, y_bounds) - (low + high) / 2) * (2 / (high - low))
    return np.clip(unit, -1.0, 1.0)  # rounding may leave the range


def target_units(outputs: ArrayLike, y_bounds: tuple[float, float]) -> NDArray[np.float64]:
    """Return outputs for targets in [-1, 1] in the units of the target: the inverse of ``unit_targets``."""
    low, high = y_bounds
    return np.asarray((low + high) / 2 + (high - low) / 2 * np.asarray(outputs, dtype=np.float64))
