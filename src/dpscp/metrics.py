"""Compute metrics of prediction sets and probabilities.

Labeled records must not have been used in the fit.

Every function of sets takes label sets (bool, (n, n_classes)) or intervals (float, (n, 2)). A third axis holds several
levels; every result then is an array of shape (n_levels,).

These numbers are exact functions of the records, so they are not private.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count, check_probability
from dpscp.data.frames import label_text

__all__ = [
    "coverage",
    "coverage_by_group",
    "coverage_by_size",
    "covered",
    "efficiency",
    "expected_calibration_error",
    "informativeness",
    "size_stratified_coverage",
    "winkler_score",
]


def coverage(y: ArrayLike, sets: ArrayLike, *, classes: ArrayLike | None = None) -> Any:
    """Compute the share of sets that contain the true value.

    Parameters
    ----------
    y : array of shape (n,)
        Real targets, or labels: class indices, or members of ``classes``. Numbers and booleans are compared with
        classes that are text as a schema writes them: 1 and 1.0 are "1". Several targets, (n, n_targets), count
        together.
    sets : array of shape (n, n_classes), (n, 2) or (n, n_targets, 2), or with one more axis of levels
        Label sets (bool) or intervals.
    classes : array of shape (n_classes,), optional
        The label of each column of the label sets.

    Returns
    -------
    float, or array of shape (n_levels,)

    Paper: Definition 3, coverage
    """
    return _mean(covered(y, sets, classes=classes))


def coverage_by_group(
    y: ArrayLike, sets: ArrayLike, groups: ArrayLike, *, classes: ArrayLike | None = None
) -> dict[Hashable, Any]:
    """Compute the coverage within each group of records.

    Parameters
    ----------
    y, sets, classes : see ``coverage``.
    groups : array of shape (n,)
        The group of each record.

    Returns
    -------
    dict
        {group: coverage}, each coverage a float or an array of shape (n_levels,).
    """
    inside, groups = covered(y, sets, classes=classes), np.asarray(groups)
    if groups.shape != inside.shape[:1]:
        raise ValueError("groups must have one value for each set")
    return {value: _mean(inside[groups == value]) for value in np.unique(groups).tolist()}


def coverage_by_size(
    y: ArrayLike, sets: ArrayLike, *, bins: int = 3, classes: ArrayLike | None = None
) -> dict[Hashable, float]:
    """Compute the coverage of sets of about the same size, for one level.

    Parameters
    ----------
    y, sets, classes : see ``coverage``; ``sets`` without an axis of levels.
    bins : int
        The largest number of groups of interval widths. The groups hold about as many records each.

    Returns
    -------
    dict
        {number of labels: coverage}, or {(narrowest, widest): coverage} for intervals.
    """
    array = _sets(sets)
    if array.ndim != 2:
        raise ValueError("coverage_by_size takes one level; pass sets[:, :, level]")
    inside = covered(y, array, classes=classes)
    if array.dtype == np.bool_:
        sizes = array.sum(axis=1)
        return {int(size): _mean(inside[sizes == size]) for size in np.unique(sizes)}
    widths = np.maximum(array[:, 1] - array[:, 0], 0.0)
    shares = np.arange(1, check_count("bins", bins)) / bins
    place = np.searchsorted(np.unique(np.quantile(widths, shares, method="lower")), widths)
    groups = [place == k for k in np.unique(place)]
    return {(float(widths[g].min()), float(widths[g].max())): _mean(inside[g]) for g in groups}


def size_stratified_coverage(y: ArrayLike, sets: ArrayLike, *, bins: int = 3, classes: ArrayLike | None = None) -> Any:
    """Compute the lowest coverage among sets of about the same size.

    A value far below the level shows that small sets cover too little, even where the average coverage is right. Sizes
    that few records have make the value noisy.

    Parameters
    ----------
    y, sets, bins, classes : see ``coverage_by_size``; ``sets`` may have an axis of levels.

    Returns
    -------
    float, or array of shape (n_levels,)
    """
    array = _sets(sets)
    if array.ndim == 2:
        return min(coverage_by_size(y, array, bins=bins, classes=classes).values())
    levels = (array[:, :, place] for place in range(array.shape[2]))
    return np.array([size_stratified_coverage(y, level, bins=bins, classes=classes) for level in levels])


def expected_calibration_error(
    y: ArrayLike, probabilities: ArrayLike, *, classes: ArrayLike | None = None, bins: int = 15
) -> float:
    """Compute the expected calibration error of class probabilities.

    It is the mean distance between the probability of the most likely label and how often it is right.

    Records are put into bins of equal width by that probability. The distance of a bin is that of its means, weighted
    by its records. Chance adds about sqrt(bins / n) / 2 at most.

    Parameters
    ----------
    y : array of shape (n,)
        Labels: class indices, or members of ``classes``, see ``coverage``.
    probabilities : array of shape (n, n_classes)
        The result of ``predict_proba``.
    classes : array of shape (n_classes,), optional
        The label of each column.
    bins : int
        The number of bins between 0 and 1.

    Returns
    -------
    float
    """
    array = np.asarray(probabilities, dtype=np.float64)
    if array.ndim != 2 or len(array) == 0 or not (np.abs(array - 0.5) <= 0.5).all():
        raise ValueError("probabilities must have shape (n, n_classes), with n > 0 and numbers from 0 to 1")
    right = covered(y, array.argmax(axis=1)[:, None] == np.arange(array.shape[1]), classes=classes)
    top = array.max(axis=1)
    place = np.minimum((top * check_count("bins", bins)).astype(np.int64), bins - 1)
    return float(np.abs(np.bincount(place, weights=top - right)).sum() / len(top))


def winkler_score(y: ArrayLike, intervals: ArrayLike, *, confidence_level: float | Sequence[float]) -> Any:
    """Compute the mean interval score; smaller is better.

    The score of an interval is its width plus 2 / alpha times the distance from y to the interval, where alpha is
    1 - ``confidence_level``. The quantiles at alpha / 2 and 1 - alpha / 2 have the smallest expected score. An infinite
    interval makes the score infinite.

    Parameters
    ----------
    y : array of shape (n,)
        Real targets.
    intervals : array of shape (n, 2) or (n, 2, n_levels)
    confidence_level : float, or one for each level
        The levels of the intervals.

    Returns
    -------
    float, or array of shape (n_levels,)
    """
    array = _sets(intervals)
    if array.dtype == np.bool_:
        raise ValueError("the Winkler score is defined for intervals, not for label sets (bool)")
    levels = np.atleast_1d(np.asarray(confidence_level, dtype=float))
    for level in levels.tolist():
        check_probability("confidence_level", level)
    if (array.ndim == 3 and levels.shape != array.shape[2:]) or (array.ndim == 2 and levels.shape != (1,)):
        raise ValueError("confidence_level must have one value for each level of the intervals")
    truth = _targets(y, array)
    low, high = array[:, 0], array[:, 1]
    outside = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    penalty = 2 / (1 - levels)
    return _mean(high - low + (penalty if array.ndim == 3 else penalty[0]) * outside)


def efficiency(sets: ArrayLike) -> Any:
    """Compute the mean size of the sets.

    The size is the number of labels or the width of the interval. An empty interval has width 0.

    Parameters
    ----------
    sets : see ``coverage``.

    Returns
    -------
    float, or array of shape (n_levels,)

    Paper: Definition 3, efficiency
    """
    array = _sets(sets)
    if array.dtype == np.bool_:
        return _mean(array.sum(axis=1))
    return _mean(np.maximum(array[:, 1] - array[:, 0], 0.0))


def informativeness(sets: ArrayLike) -> Any:
    """Compute the share of label sets with exactly one label.

    Parameters
    ----------
    sets : bool array of shape (n, n_classes) or (n, n_classes, n_levels)

    Returns
    -------
    float, or array of shape (n_levels,)

    Paper: Definition 3, informativeness
    """
    array = _sets(sets)
    if array.dtype != np.bool_:
        raise ValueError("informativeness is defined for label sets (bool), not for intervals")
    return _mean(array.sum(axis=1) == 1)


def covered(y: ArrayLike, sets: ArrayLike, *, classes: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Mark the sets that contain the true value.

    Parameters
    ----------
    y, sets, classes : see ``coverage``.

    Returns
    -------
    bool array of shape (n,) or (n, n_levels)
    """
    truth = np.asarray(y)
    if truth.ndim == 2 and np.ndim(sets) > 2 and np.shape(sets)[:2] == truth.shape:
        each = [covered(truth[:, k], np.asarray(sets)[:, k]) for k in range(truth.shape[1])]
        return np.asarray(np.all(each, axis=0))
    array = _sets(sets, least=0)
    if truth.shape != array.shape[:1]:
        raise ValueError("y must have one value for each row of sets or probabilities")
    if array.dtype == np.bool_:
        if classes is not None and np.shape(classes) != array.shape[1:2]:
            raise ValueError("classes must have one label for each column of sets or probabilities")
        index = truth if classes is None else _class_index(truth, np.asarray(classes))
        if not np.issubdtype(index.dtype, np.integer):
            raise ValueError("labels must be class indices; for other labels pass classes=[...]")
        if np.any((index < 0) | (index >= array.shape[1])):
            raise ValueError(
                "y has a label that is not among the classes; pass classes=[...] with the label of each column"
            )
        return np.asarray(array[np.arange(len(array)), index])
    truth = _targets(truth, array)
    return np.asarray((array[:, 0] <= truth) & (truth <= array[:, 1]))


def _targets(y: ArrayLike, intervals: NDArray[Any]) -> NDArray[np.float64]:
    """Reshape the targets so that they compare with interval ends at every level."""
    truth = np.asarray(y)
    if truth.shape != intervals.shape[:1]:
        raise ValueError("y must have one value for each row of sets or probabilities")
    return truth.astype(float).reshape(-1, *[1] * (intervals.ndim - 2))


def _class_index(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the index of each label among the classes; -1 for an unknown label."""
    names, values = classes.tolist(), labels.tolist()
    if all(isinstance(name, str) for name in names):
        # a schema reads classes and labels as texts without spaces around them, whatever type the target column has
        names, values = ([label_text(value) for value in column] for column in (names, values))
    places = {name: place for place, name in enumerate(names)}
    if len(places) < len(names):
        raise ValueError("classes must be distinct labels")
    return np.array([places.get(value, -1) for value in values], dtype=np.int64)


def _sets(values: ArrayLike, least: int = 1) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim not in (2, 3) or len(array) < least:
        raise ValueError("sets must have shape (n, n_classes), (n, 2), or one more axis of levels, with n > 0")
    if array.dtype != np.bool_ and array.shape[1] != 2:
        raise ValueError("intervals must have shape (n, 2) or (n, 2, n_levels); label sets must be bool")
    return array


def _mean(values: NDArray[Any]) -> Any:
    average = values.mean(axis=0)
    return float(average) if average.ndim == 0 else average
