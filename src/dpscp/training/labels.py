"""Labels and targets as the losses read them; messages carry nothing from the data."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["check_classes", "encode_labels", "encode_targets", "found_labels", "real_targets"]

Array = NDArray[Any]


def check_classes(classes: Any, loss: str) -> tuple[Any, ...]:
    """A public class list as a tuple of plain labels: at least two, no repeats, exactly two for the logistic loss."""
    if isinstance(classes, str) or not np.iterable(classes):
        raise TypeError(f"classes must be a sequence of labels, got {type(classes).__name__}")
    labels = tuple(c.item() if isinstance(c, np.generic) else c for c in classes)
    if len(set(labels)) != len(labels):
        raise ValueError("classes must not repeat a label")
    if len(labels) < 2:
        raise ValueError("classes must name at least 2 labels; declare them with classes=(...)")
    if loss == "logistic" and len(labels) != 2:
        raise ValueError("loss='logistic' needs exactly 2 classes; use 'cross_entropy' for more")
    return labels


def _label_array(y: ArrayLike) -> Array:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got {labels.ndim} dimensions")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("y must not hold NaN or infinity")
    return labels


def found_labels(y: ArrayLike) -> list[Any]:
    """The labels that occur, in order: whoever uses them declares them public."""
    try:
        found: list[Any] = np.unique(_label_array(y)).tolist()
    except TypeError:
        raise TypeError("y mixes labels that cannot be ordered; declare classes=(...)") from None
    return found


def encode_labels(y: ArrayLike, classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """Positions of the labels in the public class list; an unknown label is refused without printing it."""
    labels = _label_array(y)
    position = {label: i for i, label in enumerate(classes)}
    try:
        if labels.dtype.kind == "O":
            return np.fromiter((position[label] for label in labels.tolist()), np.int64, len(labels))
        found, inverse = np.unique(labels, return_inverse=True)
        table = np.array([position[label] for label in found.tolist()], dtype=np.int64)
    except (KeyError, TypeError):
        raise ValueError("y holds a label that is not among the declared classes") from None
    return table[inverse] if len(table) else np.empty(0, dtype=np.int64)


def encode_targets(y: ArrayLike, loss: str, classes: tuple[Any, ...] | None, dtype: str) -> Array:
    """The targets as the loss reads them: class positions, 0/1 numbers for the logistic loss, or real numbers."""
    if classes is None:
        return real_targets(y, dtype)
    positions = encode_labels(y, classes)
    return positions.astype(dtype) if loss == "logistic" else positions


def real_targets(y: ArrayLike, dtype: str) -> Array:
    """Finite real targets, one a record; a number beyond the dtype's range becomes the end of that range."""
    try:
        target = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y must hold real numbers for a regression loss") from None
    if target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    if target.ndim != 1:
        raise ValueError(f"y must be one-dimensional, got {target.ndim} dimensions")
    if not np.isfinite(target).all():
        raise ValueError("y must not hold NaN or infinity")
    end = np.finfo(dtype).max
    return np.clip(target, -end, end).astype(dtype)
