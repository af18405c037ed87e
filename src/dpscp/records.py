"""Checks of what callers bring: rows, targets, levels and groups.

scikit-learn's own checks are used where their messages are harmless; a message that would print a value, a label or a
count of the records is replaced.
"""

import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import validate_data

from dpscp._checks import check_probability

__all__ = ["check_levels", "checked_labels", "checked_rows", "checked_targets", "class_list", "group_index"]

# The beginnings of scikit-learn messages that hold nothing from the records.
_HARMLESS = ("Input X contains", "X has ", "The feature names", "Sparse data", "Feature names")


def checked_rows(estimator: Any, X: Any, *, reset: bool, finite: bool = True) -> NDArray[np.float64]:
    """Finite numbers, (n, d); sets or checks ``n_features_in_`` and ``feature_names_in_`` on the estimator.

    ``finite=False`` leaves NaN and infinity to whoever reads the rows next.
    """
    columns = getattr(X, "columns", None)
    if columns is not None and len(set(columns)) != len(columns):
        raise ValueError("X has duplicate feature names; give every column a name of its own")
    failure = None
    try:
        rows: NDArray[np.float64] = validate_data(estimator, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)
        return rows
    except (ValueError, TypeError) as error:
        failure = _without_records(error)
    raise failure


def _without_records(error: Exception) -> Exception:
    """The same error with a text that carries nothing from the records."""
    text = str(error)
    if text.startswith(_HARMLESS):
        return type(error)(text)
    if text.startswith("Complex data"):  # the rest of that message is the array
        return ValueError("Complex data not supported")
    if "Expected 2D array" in text:
        return ValueError("Expected 2D array for X, got another shape. Reshape your data to (n, n_features)")
    if "0 sample(s)" in text:
        return ValueError("X holds 0 sample(s): at least one record is needed")
    if "0 feature(s)" in text:
        return ValueError("Found array with 0 feature(s) while a minimum of 1 is required.")
    needed = "X must be a two-dimensional array or frame of finite real numbers; encode other columns first"
    if isinstance(error, TypeError):
        return TypeError(f"{needed} (float() argument must be a string or a real number)")
    return ValueError(needed)


def checked_targets(y: Any, n: int) -> NDArray[np.float64]:
    """Finite real targets, one for each of the ``n`` rows."""
    values = _one_dimensional(y, n)
    try:
        targets = values.astype(np.float64)
    except (ValueError, TypeError):
        targets = None
    if targets is None:
        raise ValueError("y must hold real numbers")
    if not np.isfinite(targets).all():
        raise ValueError("Input y contains NaN or infinity.")
    return targets


def checked_labels(y: Any, n: int) -> NDArray[Any]:
    """Labels of a classification task, one for each of the ``n`` rows."""
    labels = _one_dimensional(y, n)
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("Input y contains NaN or infinity.")
    kind = "mixed"
    if labels.dtype.kind != "O" or _all_text(labels):
        with warnings.catch_warnings():
            # it warns about many distinct labels: that would tell something about the records
            warnings.simplefilter("ignore", UserWarning)
            kind = type_of_target(labels)
    if kind not in ("binary", "multiclass"):
        raise ValueError(f"Unknown label type: {kind}. A classifier needs discrete labels, all strings or all numbers")
    return labels


def _all_text(labels: NDArray[Any]) -> bool:
    return all(isinstance(label, str) for label in labels)


def _one_dimensional(y: Any, n: int) -> NDArray[Any]:
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None")
    try:
        values = np.asarray(y)
    except (ValueError, TypeError):
        values = None
    if values is None:  # outside the handler: the message of NumPy would print the number of records
        raise ValueError("y should be a 1d array of numbers or labels")
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn("A column-vector y was passed when a 1d array was expected", DataConversionWarning, stacklevel=4)
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"y should be a 1d array, got {values.ndim} dimensions")
    if np.iscomplexobj(values):
        raise ValueError("Complex data not supported")
    if len(values) != n:
        raise ValueError("X and y must hold the same number of records")
    return values


def class_list(labels: NDArray[Any], classes: Sequence[Any] | None) -> tuple[NDArray[Any], NDArray[np.int64], bool]:
    """The public labels, each record's index into them, and whether they had to be taken from the data."""
    found = classes is None
    public = np.unique(labels) if classes is None else np.asarray(classes)
    if public.ndim != 1 or len(np.unique(public)) != len(public):
        raise ValueError("classes must be a list of distinct labels")
    if len(public) < 2:
        raise ValueError("a classifier needs at least 2 classes, and one class was given or found; pass classes=[...]")
    order = np.argsort(public, kind="stable")
    comparable = (public.dtype.kind in "OUS") == (labels.dtype.kind in "OUS")
    place = np.searchsorted(public[order], labels) if comparable else np.zeros(len(labels), dtype=np.int64)
    index = order[np.minimum(place, len(public) - 1)]
    if not comparable or np.any(public[index] != labels):
        raise ValueError("y holds a label that is not in classes; add it to classes or drop those records")
    return public, index, found


def check_levels(confidence_level: Any) -> tuple[tuple[float, ...], bool]:
    """The miscoverage of each asked level, and whether a single one was asked for."""
    single = isinstance(confidence_level, numbers.Real) or not np.iterable(confidence_level)
    levels = [confidence_level] if single else list(confidence_level)
    if not levels:
        raise ValueError("confidence_level must hold at least one level")
    # 1 - 0.9 is a hair below 0.1: what was meant is the decimal
    return tuple(round(1 - check_probability("confidence_level", level), 12) for level in levels), single


def group_index(groups: Callable[[Any], Any], X: Any, group_values: Sequence[Any], n: int) -> NDArray[np.int64]:
    """Each record's place in the public ``group_values``; -1 for a group that is not among them."""
    distinct = list(group_values)
    if not distinct or any(value in distinct[:place] for place, value in enumerate(distinct)):
        raise ValueError("group_values must list at least one group, and each group once")
    values = np.asarray(groups(X))
    if values.shape != (n,):
        raise ValueError("groups must return one value for each record")
    index = np.full(n, -1, dtype=np.int64)
    for place, value in enumerate(distinct):
        index[values == value] = place
    return index
