"""Check and convert rows, targets, levels, groups, shapes and other values that a caller passes.

scikit-learn's checks are used where their messages are harmless. A message that would print a value, a label or a
count of the records is replaced.
"""

import math
import numbers
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import validate_data

from dpscp._base.checks import check_probability

# The largest number of values of sparse rows after their conversion to dense ones: 2 GiB.
_MOST_DENSE_NUMBERS = 2**28
# Beginnings of the scikit-learn messages that contain nothing from the records.
_HARMLESS = ("X has ", "The feature names", "Sparse data", "Feature names")
NOT_PLAIN = object()


@contextmanager
def suppress_float_warnings() -> Iterator[None]:
    """Suppress floating-point warnings and errors, which would reveal a record."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def validate_rows(
    estimator: Any, X: Any, *, reset: bool, finite: bool = True, dtype: Any = np.float64
) -> NDArray[np.float64]:
    """Return finite numbers, (n, d), and set or check the estimator's features.

    Parameters
    ----------
    estimator : estimator with ``n_features_in_`` and ``feature_names_in_``
    X : array or frame with n rows
    reset : bool
        Whether to set these attributes (in a fit) or to check them.
    finite : bool
        Whether to refuse NaN and infinity here. False leaves that to the reader of the rows.
    dtype : dtype or tuple of dtypes

    A table without rows is valid, because an error would reveal that the only record is missing. See
    ``require_counted``.
    """
    columns = getattr(X, "columns", None)
    if columns is not None and len(set(columns)) != len(columns):
        raise ValueError("X has duplicate feature names; give each column its own name")
    failure = None
    try:
        with np.errstate(all="ignore"):  # a cast that overflows gives infinity, which is refused
            rows: NDArray[np.float64] = validate_data(
                estimator, X, reset=reset, dtype=dtype, ensure_all_finite=finite, ensure_min_samples=0
            )
        return rows
    except (ValueError, TypeError, OverflowError) as error:
        failure = _remove_records(error, X)
    raise failure


def dense_rows(X: Any) -> Any:
    """Convert a sparse matrix to a dense array; return other tables unchanged.

    So both give the same fit.
    """
    if not sparse.issparse(X):
        return X
    if math.prod(X.shape) > _MOST_DENSE_NUMBERS:
        raise ValueError(
            "X is sparse, and training needs it as dense rows, which take more than 2 GiB. Use fewer features, such as "
            "HashingVectorizer(n_features=1024) or a public list of categories, or write dense rows to a file and fit "
            "on its path"
        )
    return X.toarray()


def require_counted(count: int, declared: int | None, name: str) -> None:
    """Refuse a table without records if their number is counted and published.

    A declared number keeps the true one private. Then a table without records is as valid as one with a record.
    """
    if declared is None and count == 0:
        raise ValueError(f"X has 0 sample(s); at least one record is required, unless {name} is declared")


def check_finite(rows: NDArray[Any]) -> None:
    """Refuse NaN and infinity in rows, with the message for a table."""
    if not _is_finite(rows):
        raise _remove_records(ValueError("Input X contains NaN or infinity"), rows)


def _remove_records(error: Exception, X: Any) -> Exception:
    """Return the error without anything from the records; column names are public."""
    text = str(error)
    if text.startswith(_HARMLESS):
        return type(error)(text)
    if text.startswith("Input X contains"):  # the message of scikit-learn recommends imputers, whose means would leak
        return ValueError(
            f"Input X contains NaN or infinity{_name_bad_columns(X)}. Do not fill gaps with means or medians of the "
            "records: they would be published without noise. Fill in a public number and add a 0/1 feature that marks "
            'it, or pass a schema: dp.Schema with missing = "indicator" or a public number'
        )
    if text.startswith("Complex data"):  # the rest of that message is the array
        return ValueError("Complex data not supported")
    if "Expected 2D array" in text:
        return ValueError("Expected 2D array for X, got another shape. Reshape your data to (n, n_features)")
    if "0 feature(s)" in text:
        return ValueError("Found array with 0 feature(s) while a minimum of 1 is required.")
    needed = (
        f"X must be a two-dimensional array or frame of finite real numbers{_name_bad_columns(X)}. Encode other "
        "columns first, or pass a schema: fit(frame, target, schema=dp.Schema...)"
    )
    if isinstance(error, TypeError):
        return TypeError(f"{needed} (float() argument must be a string or a real number)")
    return ValueError(needed)


def _name_bad_columns(X: Any) -> str:
    """Name the columns of a frame that are not finite numbers; "" for an array."""
    columns = getattr(X, "columns", None)
    names = [] if columns is None else [name for name in columns if not _is_finite(X[name])]
    return f" (column {', '.join(map(repr, names))})" if names else ""


def _is_finite(values: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(values, dtype=np.float64)).all())
    except (ValueError, TypeError, OverflowError):
        return False


def validate_targets(y: Any, n: int, n_targets: int | None = 1) -> NDArray[np.float64]:
    """Return finite real targets: (n,), or (n, n_targets) for several.

    With ``n_targets`` None, any number is allowed.
    """
    values = _validate_shape(y, n, several=n_targets != 1)
    if n_targets is not None and values.shape[1:] != ((n_targets,) if n_targets > 1 else ()):
        raise ValueError(f"y must have {n_targets} columns, one for each target")
    try:
        with np.errstate(all="ignore"):
            targets = values.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        targets = None
    if targets is None:
        raise ValueError("y must have real numbers only")
    if not np.isfinite(targets).all():
        raise ValueError("Input y contains NaN or infinity.")
    return targets


def validate_labels(y: Any, n: int) -> NDArray[Any]:
    """Return the labels of a classification, (n,)."""
    labels = _validate_shape(y, n)
    if n == 0:
        return labels
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("Input y contains NaN or infinity.")
    kind = labels.dtype.kind
    if kind == "f" and (labels != np.floor(labels)).any():
        raise ValueError("Unknown label type: continuous. A classifier needs discrete labels")
    if kind not in "biufUT" and not (kind == "O" and all(isinstance(label, str) for label in labels)):
        raise ValueError("Unknown label type: mixed. A classifier needs discrete labels, all strings or all numbers")
    return labels


def validate_indicators(y: Any, n: int) -> NDArray[np.int64]:
    """Return indicators of true labels, (n, n_labels).

    A ``ValueError`` for anything else contains no value.
    """
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None")
    try:
        found = np.asarray(y)
    except (ValueError, TypeError):
        found = np.empty(0)
    if found.ndim != 2 or not found.shape[1] or found.dtype.kind not in "biuf":
        raise ValueError(
            "Unknown label type: y must be an indicator array of shape (n, n_labels): 1 where a label is true, else 0"
        )
    if len(found) != n:
        raise ValueError("X and y must have the same number of records")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError("Input y contains NaN or infinity; it must hold 0 and 1 only")
    if not np.isin(found, (0, 1)).all():
        raise ValueError("Unknown label type: y must hold 0 and 1 only")
    return found.astype(np.int64)


def _validate_shape(y: Any, n: int, *, several: bool = False) -> NDArray[Any]:
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None")
    try:
        values = np.asarray(y)
    except (ValueError, TypeError):
        values = None
    if values is None:  # raised outside the handler, because NumPy's message would print the number of records
        raise ValueError("y should be a 1d array of numbers or labels")
    if values.ndim == 2 and values.shape[1] == 1:
        warnings.warn("A column-vector y was passed when a 1d array was expected", DataConversionWarning, stacklevel=4)
        values = values[:, 0]
    if values.ndim != 1 and not (several and values.ndim == 2 and values.shape[1]):
        raise ValueError(f"y should be a 1d array, got {values.ndim} dimensions")
    if np.iscomplexobj(values):
        raise ValueError("Complex data not supported")
    if len(values) != n:
        raise ValueError("X and y must have the same number of records")
    return values


def class_list(labels: NDArray[Any], classes: Sequence[Any] | None) -> tuple[NDArray[Any], NDArray[np.int64], bool]:
    """Return the public labels, each record's index, and if the data defined them.

    Returns
    -------
    public : array of shape (n_classes,)
    index : int array of shape (n,)
    found : bool
        Whether the labels were taken from the data.
    """
    found = classes is None
    public = np.unique(labels) if classes is None else np.asarray(classes)
    if public.ndim != 1 or len(np.unique(public)) != len(public):
        raise ValueError("classes must be a list of distinct labels")
    if classes is not None and len({isinstance(label, str) for label in classes}) == 2:
        raise ValueError("classes mixes text and numbers; write all labels as text, or all as numbers, as in y")
    if len(public) < 2:
        raise ValueError("a classifier needs at least 2 classes, got one class; pass classes=[...] with every label")
    return public, label_index(labels, tuple(public.tolist())), found


def label_index(labels: NDArray[Any], classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """Return each label's index in ``classes``; refuse an unknown one unprinted."""
    places = {label: place for place, label in enumerate(classes)}
    if labels.dtype.kind in "iu" and tuple(places) == tuple(range(len(classes))):
        # labels that are indices are already places
        known = not len(labels) or (labels.min() >= 0 and labels.max() < len(classes))
        index = labels.astype(np.int64, copy=False)
    else:
        texts = labels.dtype.kind == "O"
        distinct, inverse = (labels, slice(None)) if texts else np.unique(labels, return_inverse=True)
        found = np.array([places.get(label, -1) for label in distinct.tolist()], dtype=np.int64)
        known, index = bool((found >= 0).all()), found[inverse]
    if not known:
        raise ValueError(
            "y has a label that is not in classes; add it to classes=[...], or drop those records (1 and '1' are "
            "different labels)"
        )
    return index


def check_levels(confidence_level: Any) -> tuple[tuple[float, ...], bool]:
    """Return the miscoverage of each level, and whether there is a single level.

    Levels come from ``confidence_level``.
    """
    single = isinstance(confidence_level, numbers.Real) or not np.iterable(confidence_level)
    levels = [confidence_level] if single else list(confidence_level)
    if not levels:
        raise ValueError("confidence_level must have at least one level")
    # 1 - 0.9 is slightly below 0.1 in binary; round it to the decimal number
    return tuple(round(1 - check_probability("confidence_level", level), 12) for level in levels), single


def plain(value: Any) -> Any:
    """Return an equal JSON value; ``NOT_PLAIN`` if there is none (functions)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        items = [plain(v) for v in value]
        return NOT_PLAIN if any(i is NOT_PLAIN for i in items) else items
    return value if value is None or isinstance(value, str | int | float | bool) else NOT_PLAIN


def count_numbers(input_shape: Sequence[Any]) -> int:
    """Return how many numbers a record of this shape has."""
    return sum(math.prod(part[1]) for part in input_shape) if is_named(input_shape) else math.prod(input_shape)


def is_named(input_shape: Sequence[Any]) -> bool:
    """Return whether this is the shape of a record with several inputs by name."""
    return bool(input_shape) and isinstance(input_shape[0], tuple | list)
