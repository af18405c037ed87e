"""Check rows and targets, bound rows, and convert blocks for the engine.

Messages contain no data. A result for a row has the same bits in every place of an array.

Training reads the transformed rows at every step, and transforming them again takes as long as the step or longer. So
they are kept. Of a large table they are most of a fit's memory, so there a row is kept as 16-bit integers times a
float32 scale of its own. This is a function of that row alone, applied before any gradient. Integers are rounded
towards zero, so no row becomes longer than its bound (up to a few float32 roundings, which `ROW_SLACK` covers).
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import blocks_in_memory
from dpscp.data.validation import label_index

_CACHE_LINE = 64
# Rows are clipped to this relative distance below a feature bound, so that rounding cannot lift them above it.
ROW_SLACK = {"float32": 1e-6, "float64": 1e-13}
# Larger numbers in a row are replaced by this one, which is far below the largest number of the type.
ROW_END = {"float32": 2.0**100, "float64": 2.0**900}
# The largest number whose square is far from an overflow.
_MOST_SQUARED = {np.dtype("float32"): 2.0**60, np.dtype("float64"): 2.0**500}
# Numbers of input and activations that are handled at once, so that a chunk stays in cache.
CHUNK_NUMBERS = 1 << 18
# For shorter rows the calls of a maximum cost more than the maximum.
_SHORT_ROW = 64
# Sums of squares between these are exact to rounding.
_SAFE_SQUARES = 1e-200, 1e200
# Temporaries of so many numbers stay in the cache.
_NUMBERS_AT_ONCE = 1 << 16
# Tables of fewer numbers (64 MB in float32) are kept in float32.
_LARGE_TABLE = 1 << 24
_LARGEST = np.iinfo(np.int16).max
# Numbers below this in a row that has no larger one become zero: their scale would not be a normal number.
_SMALLEST = 2.0**-100


def aligned_empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Return an empty array that starts at a cache line.

    So products run in the same way for every array.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: Array, step: int) -> bool:
    """Return whether slices at multiples of ``step`` rows start at cache lines."""
    return array.ctypes.data % _CACHE_LINE == 0 and step * array.strides[0] % _CACHE_LINE == 0


def check_rows(X: ArrayLike, n_features: int | None = None, *, finite: bool = True) -> Array:
    """Return X as a checked two-dimensional array of real numbers.

    ``finite=False`` leaves the last check, the only one that reads every number, to the next reader of the rows.
    """
    if sparse.issparse(X):
        raise TypeError("X must be a dense array; convert sparse rows before training or prediction")
    try:
        rows = np.asarray(X)
        rows = rows if rows.dtype.kind in "fiubc" else rows.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("X must hold real numbers in equally long rows") from None
    if rows.dtype.kind == "c":
        raise TypeError("X must hold real numbers, not complex ones")
    if rows.ndim != 2:
        raise ValueError(f"X must be two-dimensional (records, features), got {rows.ndim} dimension(s)")
    if n_features is not None and rows.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {rows.shape[1]} features")
    if rows.shape[1] == 0:
        raise ValueError("X must have at least one feature, got 0 feature(s)")
    if finite:
        require_finite(rows)
    return rows


def require_finite(rows: Array) -> None:
    """Refuse NaN and infinity.

    Single numbers are checked only if the sum of all is not finite.
    """
    if rows.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return
    step = max(1, CHUNK_NUMBERS // rows.shape[1])  # temporaries stay small
    if not all(np.isfinite(rows[start : start + step]).all() for start in range(0, len(rows), step)):
        raise ValueError("X must not hold NaN or infinity")


def is_small(rows: Array, end: float) -> bool:
    """Return whether a sum of squares shows all numbers finite and at most `end`.

    This is faster than a check and a clip, which then change nothing. Half of `end` is compared, since the sum is
    rounded.
    """
    most = _MOST_SQUARED.get(rows.dtype)
    if most is None or not rows.flags.c_contiguous:
        return False
    numbers = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(numbers @ numbers <= min(end / 2, most) ** 2)


def squared_norms(rows: Array) -> Array:
    """Return each row's squared norm in float64, with the same bits in all places."""
    return inner_products(rows, rows)


def inner_products(rows: Array, others: Array) -> Array:
    """Return the inner product of each pair of rows in float64.

    It has the same bits in every place.
    """
    n, d = rows.shape
    out, step = np.empty(n), max(1, CHUNK_NUMBERS // d)
    for start in range(0, n, step):
        part = slice(start, start + step)
        left = _whole_lines(rows[part])
        right = left if others is rows else _whole_lines(others[part])
        with np.errstate(over="ignore"):
            np.einsum("ij,ij->i", left, right, out=out[part])
    return out


def _whole_lines(rows: Array) -> Array:
    """Return the rows in float64, padded to whole cache lines.

    So each row is summed in the same way.
    """
    n, d = rows.shape
    if d % 8 == 0 and rows.dtype == np.float64 and rows.flags.c_contiguous and is_aligned(rows, 1):
        return rows
    lines = aligned_empty((n, 8 * math.ceil(d / 8)), "float64")
    lines[:, :d], lines[:, d:] = rows, 0
    return lines


def largest_entries(rows: Array) -> Array:
    """Return the largest absolute value of each row.

    Short rows are transposed first, which is faster.
    """
    if rows.shape[1] < _SHORT_ROW:
        return np.asarray(np.maximum.reduce(np.abs(rows.T, order="C"), axis=0))
    return np.asarray(np.maximum.reduce(np.abs(rows), axis=1))


def feature_rows(rows: Array, *, feature_bound: float | None, intercept: bool, dtype: str) -> Array:
    """Return rows as the engine reads them: finite, clipped, with a bias of 1.

    They are clipped to `feature_bound`, and the bias coordinate comes last. A row longer than the bound is scaled onto
    it before it is cast, a function of that row alone. The bound does not count the bias coordinate. Numbers beyond
    `ROW_END` become that, so that outputs hardly ever overflow.
    """
    require_finite(rows)
    n, d = rows.shape
    out = aligned_empty((n, d + intercept), dtype)
    if intercept:
        out[:, d] = 1.0
    fill_features(rows, feature_bound, out[:, :d])
    return out


def fill_features(rows: Array, feature_bound: float | None, out: Array) -> None:
    """Write finite rows into `out` as `feature_rows` does, without the bias."""
    n, d = rows.shape
    if feature_bound is None:
        _cast(rows, out, ROW_END[str(out.dtype)])
        return
    # the second term is what a sum of d squares may lose
    limit = feature_bound * (1 - ROW_SLACK[str(out.dtype)] - d * 2.0**-53)
    step = max(1, CHUNK_NUMBERS // d)
    for start in range(0, n, step):
        part = slice(start, start + step)
        np.copyto(out[part], scaled_rows(rows[part], limit, unit=False), casting="same_kind")


def scaled_rows(rows: NDArray[Any], bound: float, *, unit: bool) -> NDArray[np.float64]:
    """Return a float64 copy with every row scaled or shortened to ``bound``.

    No row is longer after rounding. A row whose squares overflow or underflow is divided by its largest entry first. A
    row's result has the same bits in every place.
    """
    out = aligned_empty(rows.shape, "float64")
    _cast(rows, out, float(np.finfo(np.float64).max))
    step = max(1, _NUMBERS_AT_ONCE // rows.shape[1])
    for start in range(0, len(out), step):
        part = out[start : start + step]
        squares, largest = squared_norms(part), np.ones(len(part))
        extreme = np.flatnonzero(~((squares > _SAFE_SQUARES[0]) & (squares < _SAFE_SQUARES[1])))
        if len(extreme):
            entries = largest_entries(part[extreme])
            largest[extreme] = np.where(entries > 0, entries, 1.0)
            part[extreme] /= largest[extreme, None]
            squares[extreme] = squared_norms(part[extreme])
        lengths, target = np.sqrt(squares), np.full(len(part), bound)
        if not unit:
            with np.errstate(over="ignore"):
                np.minimum(target, lengths * largest, out=target)
        # slightly inside the ball: the promise "norm at most bound" must survive rounding
        np.divide(target * (1 - 1e-15 * (4 + rows.shape[1])), lengths, out=target, where=lengths > 0)
        part *= target[:, None]
    return out


def _cast(values: Array, into: Array, end: float) -> None:
    """Copy finite numbers; a larger one than `end` becomes that."""
    if values.dtype.kind == "f" and float(np.finfo(values.dtype).max) > end:
        np.clip(values, -end, end, out=into, casting="same_kind")
    else:
        np.copyto(into, values, casting="unsafe")


def check_classes(classes: Any, loss: str) -> tuple[Any, ...]:
    """Return a public class list as a tuple of plain labels.

    It has at least two, and exactly two for the logistic loss.
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

    The message about an unknown label omits it.
    """
    return label_index(_label_array(y), classes)


def encode_targets(y: ArrayLike, loss: str, classes: tuple[Any, ...] | None, dtype: str) -> Array:
    """Return the targets as the loss reads them.

    They are class positions, 0/1 for the logistic loss, or real numbers.
    """
    if classes is None:
        return real_targets(y, dtype)
    positions = encode_labels(y, classes)
    return positions.astype(dtype) if loss == "logistic" else positions


def real_targets(y: ArrayLike, dtype: str) -> Array:
    """Return finite real targets, one per record, clipped to the range of the dtype."""
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
    """Return outputs in the units of the target: the inverse of ``unit_targets``.

    The outputs are for targets in [-1, 1].
    """
    low, high = y_bounds
    return np.asarray((low + high) / 2 + (high - low) / 2 * np.asarray(outputs, dtype=np.float64))


def observed_source_labels(source: RecordSource) -> list[Any]:
    """Return the labels in this process, which the caller declares public."""
    blocks = blocks_in_memory(source)
    if not blocks:
        raise ValueError("classes must be declared for records outside this process; pass classes=(...)")
    return observed_labels(np.concatenate([block.targets for block in blocks]))


@dataclass(frozen=True)
class EngineBlock(Block):
    """A block as the engine reads it, with bias; exists during training only."""

    squared_norms: Array = field(default_factory=lambda: np.empty(0), repr=False)
    """Of every row, for the ghost norms."""
    scales: Array | None = field(default=None, repr=False)
    """The scales of rows that are kept as integers, without a bias coordinate; None for other rows."""


def build_engine_block(
    block: Block,
    *,
    loss: str,
    classes: tuple[Any, ...] | None,
    feature_bound: float | None,
    intercept: bool,
    dtype: str,
    short: bool,
) -> EngineBlock:
    """Convert the rows of a block part by part into one array.

    It has 16 bits for each number if they are ``short``.
    """
    n, width = len(block), block.width
    target = encode_targets(block.targets, loss, classes, dtype)
    rows = np.empty((n, width), dtype=np.int16) if short else aligned_empty((n, width + intercept), dtype)
    scales, norms = np.empty(n, dtype=dtype) if short else None, np.empty(n)
    for part, values in block.parts():
        features = rows[part] if scales is None else aligned_empty((len(values), width + intercept), dtype)
        fill_features(values, feature_bound, features[:, :width])
        features[:, width:] = 1
        if scales is not None:
            scales[part] = shorten_rows(features[:, :width], rows[part])
            # norms are those of the rows that training multiplies
            restore_rows(rows[part], scales[part], features)
        norms[part] = squared_norms(features)
    return EngineBlock(block.id, rows, target, block.persons, squared_norms=norms, scales=scales)


def is_large_table(n_rows: int, width: int) -> bool:
    """Return whether the rows of a table of this public size are kept in 16 bits."""
    return n_rows * width >= _LARGE_TABLE


def shorten_rows(values: Array, integers: NDArray[np.int16]) -> Array:
    """Write float32 rows as integers; return the float32 scale of each row."""
    scales = np.maximum(largest_entries(values), np.float32(_SMALLEST))
    scales /= np.float32(_LARGEST)
    # the cast cuts towards zero
    np.divide(values, scales[:, None], out=integers, casting="unsafe")
    return scales


def restore_rows(integers: NDArray[np.int16], scales: Array, out: Array) -> None:
    """Write integers times scales into ``out``, and 1 into its bias, if any.

    The bias coordinate comes last.
    """
    width = integers.shape[1]
    np.multiply(integers, scales[:, None], out=out[:, :width])
    out[:, width:] = 1
