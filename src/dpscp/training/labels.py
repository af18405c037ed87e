"""Encode labels and targets for the losses, and scale targets by public bounds; messages contain no data."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp.data.validation import label_index


def check_classes(classes: Any, loss: str) -> tuple[Any, ...]:
    """Return a public class list as a tuple of plain labels.

    At least two, no repeats, exactly two for the logistic loss.
    """
    if isinstance(classes, str) or not np.iterable(classes):
        raise TypeError(f"classes must be a sequence of labels, got {type(classes).__name__}")
    labels = tuple(c.item() if isinstance(c, np.generic) else c for c in classes)
    if len(set(labels)) != len(labels):
        raise ValueError("classes must not repeat a label")
    if len(labels) < 2:
        raise ValueError("classes must contain at least 2 labels; declare them with classes=(...)")
    if loss == "logistic" and len(labels) != 2:
        raise ValueError("loss='logistic' needs exactly 2 classes; use 'cross_entropy' for more")
    return labels


def _column(values: Array) -> Array:
    """Return one value per record; a single column is accepted."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got {values.ndim} dimensions")
    return values


def _label_array(y: ArrayLike) -> Array:
    labels = _column(np.asarray(y))
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("y must not hold NaN or infinity")
    return labels


def observed_labels(y: ArrayLike) -> list[Any]:
    """Return the labels in y, sorted; a caller that uses them makes them public."""
    try:
        found: list[Any] = np.unique(_label_array(y)).tolist()
    except TypeError:
        raise TypeError("y contains labels that cannot be sorted together; declare classes=(...)") from None
    return found


def encode_labels(y: ArrayLike, classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """Return the positions of the labels in the public class list.

    An unknown label is refused without printing it.
    """
    return label_index(_label_array(y), classes)


def encode_targets(y: ArrayLike, loss: str, classes: tuple[Any, ...] | None, dtype: str) -> Array:
    """Return the targets as the loss reads them.

    Class positions, 0/1 numbers for the logistic loss, or real numbers.
    """
    if classes is None:
        return real_targets(y, dtype)
    positions = encode_labels(y, classes)
    return positions.astype(dtype) if loss == "logistic" else positions


def real_targets(y: ArrayLike, dtype: str) -> Array:
    """Return finite real targets, one per record.

    A number beyond the dtype's range becomes the end of that range.
    """
    try:
        target = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y must hold real numbers for a regression loss") from None
    target = _column(target)
    if not np.isfinite(target).all():
        raise ValueError("y must not hold NaN or infinity")
    end = np.finfo(dtype).max
    return np.clip(target, -end, end).astype(dtype)


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
