"""How good prediction sets are, exactly as the paper defines it, on labelled records outside the promise.

Sets are label masks (bool, n x n_classes) or intervals (float, n x 2); a third axis holds several levels and makes
every result an array with one number for each level.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["coverage", "coverage_by_group", "efficiency", "informativeness"]


def coverage(y: ArrayLike, sets: ArrayLike, *, classes: ArrayLike | None = None) -> Any:
    """The share of sets that hold the true y. Labels are class indices, or members of ``classes``.

    Paper: Definition 3, coverage
    """
    return _mean(_covered(y, sets, classes))


def coverage_by_group(
    y: ArrayLike, sets: ArrayLike, groups: ArrayLike, *, classes: ArrayLike | None = None
) -> dict[Hashable, Any]:
    """Coverage within each group of records."""
    covered, groups = _covered(y, sets, classes), np.asarray(groups)
    if groups.shape != covered.shape[:1]:
        raise ValueError("groups must hold one value for each set")
    return {value: _mean(covered[groups == value]) for value in np.unique(groups).tolist()}


def efficiency(sets: ArrayLike) -> Any:
    """The mean size: number of labels, or interval width (an empty interval has width 0).

    Paper: Definition 3, efficiency
    """
    array = _sets(sets)
    if array.dtype == np.bool_:
        return _mean(array.sum(axis=1))
    return _mean(np.maximum(array[:, 1] - array[:, 0], 0.0))


def informativeness(sets: ArrayLike) -> Any:
    """The share of sets with exactly one label; defined for label sets only.

    Paper: Definition 3, informativeness
    """
    array = _sets(sets)
    if array.dtype != np.bool_:
        raise ValueError("informativeness is defined for label sets (bool), not for intervals")
    return _mean(array.sum(axis=1) == 1)


def _covered(y: ArrayLike, sets: ArrayLike, classes: ArrayLike | None) -> NDArray[np.bool_]:
    array, truth = _sets(sets), np.asarray(y)
    if truth.shape != array.shape[:1]:
        raise ValueError("y must hold one value for each set")
    if array.dtype == np.bool_:
        index = truth if classes is None else _class_index(truth, np.asarray(classes))
        if not np.issubdtype(index.dtype, np.integer):
            raise ValueError("labels must be class indices, or pass classes=")
        if np.any((index < 0) | (index >= array.shape[1])):
            raise ValueError("a label lies outside the classes of the sets")
        return np.asarray(array[np.arange(len(array)), index])
    truth = truth.astype(float).reshape(-1, *[1] * (array.ndim - 2))
    return np.asarray((array[:, 0] <= truth) & (truth <= array[:, 1]))


def _class_index(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    order = np.argsort(classes)
    place = np.minimum(np.searchsorted(classes, labels, sorter=order), len(classes) - 1)
    index = order[place]
    if np.any(classes[index] != labels):
        raise ValueError("a label lies outside the classes of the sets")
    return index


def _sets(values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim not in (2, 3) or len(array) == 0:
        raise ValueError("sets must have shape (n, n_classes), (n, 2), or one more axis of levels, with n > 0")
    if array.dtype != np.bool_ and array.shape[1] != 2:
        raise ValueError("intervals must have shape (n, 2) or (n, 2, n_levels); label sets must be bool")
    return array


def _mean(values: NDArray[Any]) -> Any:
    average = values.mean(axis=0)
    return float(average) if average.ndim == 0 else average
