"""Read the columns of a frame as numbers, times or indices.

A frame is from pandas, polars or Arrow. No message contains a value of the frame.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.suggestions import suggest

# Texts for a missing number or date. In a categorical column only an empty cell is missing, because "NA" may be a
# category.
ABSENT = ("", "na", "n/a", "nan", "null", "none", "?", ".")
EPOCH = datetime(1970, 1, 1)
MICROSECONDS_PER_DAY = 86_400_000_000
# The number for a missing time, as NaT in NumPy.
NO_TIME = np.iinfo(np.int64).min


class SchemaError(ValueError):
    """Raised if a schema is incomplete or wrong, or if a table does not fit it.

    The message contains nothing from the records.
    """


def refuse_unknown_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that the schema format does not have."""
    unknown = [key for key in data if key not in known]
    if unknown:
        hint = suggest(str(unknown[0]), known)
        raise SchemaError(f"{where} has an unknown key {str(unknown[0])!r}; use one of {', '.join(known)}{hint}")


@runtime_checkable
class Frame(Protocol):
    """A table of named columns with an Arrow stream, as in pandas, polars and Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the columns as an Arrow stream."""


def list_columns(frame: Any) -> list[str]:
    """Return the names of a frame's columns."""
    import pyarrow as pa

    _require_frame(frame)
    names = frame.columns if hasattr(frame, "columns") else None
    if names is None or not all(isinstance(name, str) for name in names):  # Arrow's columns are arrays
        names = pa.table(frame).column_names
    return [str(name) for name in names]


def _require_frame(frame: Any) -> None:
    if not isinstance(frame, Frame):
        raise SchemaError(
            "with a schema, pass a frame (pandas, polars, Arrow), a path, URL or list of paths, an Arrow Dataset or "
            "RecordBatchReader, a DuckDB relation, a polars LazyFrame or a Hugging Face Dataset, got "
            f"{type(frame).__name__}"
        )


def select_columns(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the named columns that the frame has, as pandas Series."""
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError:  # pragma: no cover (the test environment has both)
        raise SchemaError("a frame needs pandas and pyarrow; run: pip install 'dpscp[tables]'") from None
    _require_frame(frame)
    if not isinstance(frame, pd.DataFrame):
        try:
            table = pa.table(frame)
            table = table.select([name for name in dict.fromkeys(names) if name in table.column_names])
        except MemoryError:
            raise
        except Exception:
            table = None
        if table is None:  # raised outside the handler, because a message of Arrow or of a query may contain cells
            raise SchemaError("the frame cannot be read as an Arrow table; give each column its own name and one type")
        frame = table_to_pandas(table, integer_object_nulls=True)
    if not frame.columns.is_unique:
        raise SchemaError("the table has two columns with the same name; rename one")
    return {name: frame[name] for name in names if name in frame.columns}


def table_to_pandas(table: Any, **options: Any) -> Any:
    """Return an Arrow table as a pandas frame; refuse nested columns."""
    import pyarrow as pa

    for field in table.schema:
        if pa.types.is_nested(field.type):
            raise nested_column(field.name)
    return table.to_pandas(date_as_object=False, **options)


def nested_column(name: str) -> SchemaError:
    """Return the error for a column whose cells are lists or records."""
    return SchemaError(
        f"column {name!r} is nested: its cells are lists or records. Write their parts to separate columns, or set "
        'its type to "ignore"'
    )


def label_text(value: Any) -> str:
    """Format a label as text; 1, 1.0 and "1" are the same label."""
    if isinstance(value, float) and value.is_integer() and math.isfinite(value):
        value = int(value)
    return str(value).strip()


def index_labels(values: Any, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return each value's index in ``labels``, compared as text; -1 if absent."""
    places = {label: number for number, label in enumerate(labels)}
    return number_labels(values, lambda text: places.get(text, -1))


def number_labels(values: Any, number: Callable[[str], int]) -> NDArray[np.int64]:
    """Return the number of each value's text; -1 for a missing value."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) in ("mixed", "mixed-integer"):
        values = values.map(label_text, na_action="ignore")  # True and 1 are equal in Python, but different labels
    codes, distinct = pd.factorize(values)
    found = np.array([*(number(label_text(value)) for value in distinct.tolist()), -1], dtype=np.int64)
    return np.asarray(found[codes])


def parse_numbers(values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Parse numbers, and return a mask of the invalid ones.

    Missing and invalid numbers are NaN.
    """
    import pandas as pd

    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf":
        return np.array(values, dtype=np.float64), np.zeros(len(values), dtype=bool)
    numbers = None
    with contextlib.suppress(OverflowError):  # a whole number beyond all floats, which is infinite as text
        numbers = pd.to_numeric(values, errors="coerce")
    if numbers is None or pd.api.types.is_complex_dtype(numbers):  # the text of a complex number is no number
        numbers = pd.to_numeric(values.astype(str), errors="coerce")
    absent = values.isna()
    if not pd.api.types.is_numeric_dtype(values):
        absent |= values.astype(str).str.strip().str.lower().isin(ABSENT)
    return np.array(numbers, dtype=np.float64), np.asarray(numbers.isna() & ~absent, dtype=bool)


def describe_non_number(name: str) -> str:
    """Return the message for a numeric column with other values."""
    return (
        f"column {name!r} is declared numeric but has a value that is not a number. If a CSV file writes numbers "
        'in another format, declare it (decimal = "," and thousands = "." under [csv]). Otherwise correct the table, '
        'or set the type to "date", "categorical" or "ignore"'
    )


def refuse_values(values: Any, name: str, *, dates: bool = False) -> None:
    """Refuse a column of lists or bytes and, without ``dates``, of dates or times."""
    import pandas as pd

    stored = values.cat.categories if isinstance(values.dtype, pd.CategoricalDtype) else values
    kind = pd.api.types.infer_dtype(stored, skipna=True)
    if kind == "mixed" and any(isinstance(value, list | tuple | set | dict | np.ndarray) for value in values):
        raise nested_column(name)
    if kind in ("bytes", "timedelta64", "timedelta", "time", "period"):
        raise SchemaError(
            f"column {name!r} has bytes, times of day or durations. Convert them to numbers with public bounds, such "
            'as hours, or set its type to "ignore"'
        )
    if not dates and kind in ("datetime64", "datetime", "date"):
        raise SchemaError(
            f'column {name!r} has dates or times. Set its type to "date" in the schema, convert it to a category such '
            'as the month, or set its type to "ignore"'
        )


def hash_labels(values: Any, cells: int) -> NDArray[np.int64]:
    """Return the cell of each value, by the SHA-256 hash of its text; -1: missing."""

    def cell(text: str) -> int:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % cells if text else -1

    return number_labels(values, cell)


def parse_times(values: Any, form: str | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return microseconds since 1970, and a mask of the invalid values.

    ``NO_TIME`` stands for missing and invalid ones.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(object)
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        values = values.dt.tz_convert("UTC").dt.tz_localize(None)
    if pd.api.types.is_datetime64_dtype(values.dtype):
        times = values.to_numpy().astype("datetime64[us]").astype(np.int64)  # NaT is the smallest integer
        return times, np.zeros(len(times), dtype=bool)
    codes, distinct = pd.factorize(values)
    found = [_read_time(value, form) for value in distinct.tolist()]
    times = np.array([*(NO_TIME if time is None else time for time in found), NO_TIME], dtype=np.int64)
    odd = np.array([*(time is None for time in found), False], dtype=bool)
    return times[codes], odd[codes]


def _read_time(value: Any, form: str | None) -> int | None:
    """Return microseconds since 1970, a mark if missing, or None if invalid."""
    if not isinstance(value, date) and label_text(value).lower() in ABSENT:
        return int(NO_TIME)
    try:
        return to_microseconds(value, form)
    except (ValueError, OverflowError):
        return None


def to_microseconds(value: Any, form: str | None) -> int:
    """Return microseconds since 1970 of a date, an instant or a text.

    Raises ``ValueError`` for another value.
    """
    if not isinstance(value, date):
        text = label_text(value)
        value = datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return int((value - EPOCH) // timedelta(microseconds=1))


def require_column(frame: Any, name: str, key: str) -> Any:
    """Return a column of a frame; ``key`` is the declaration that names it."""
    values = select_columns(frame, [name]).get(name)
    if values is None:
        raise SchemaError(f"the table lacks column {name!r}, which {key} names; add it, or change {key}")
    return values
