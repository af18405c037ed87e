"""Read the columns of a frame (pandas, polars, Arrow) as numbers or indices.

No message contains a value of the frame.
"""

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# Inferred types of pandas that are neither numbers nor categories.
_TIME_TYPES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period", "bytes")
# Texts for a missing number. In a categorical column only an empty cell is missing, because "NA" may be a category.
ABSENT = ("", "na", "n/a", "nan", "null", "none", "?", ".")
_LARGEST = sys.float_info.max


class SchemaError(ValueError):
    """Raised if a schema is incomplete or wrong, or if a table does not fit it.

    The message contains nothing from the records.
    """


@runtime_checkable
class Frame(Protocol):
    """A table of named columns with an Arrow stream, as in pandas, polars and Arrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the columns as an Arrow stream."""


def list_columns(frame: Any) -> list[str]:
    """Return the names of a frame's columns."""
    import pyarrow as pa

    if not isinstance(frame, Frame):
        raise SchemaError(f"pass a frame (pandas, polars, Arrow), got {type(frame).__name__}")
    names = frame.columns if hasattr(frame, "columns") else None
    if names is None or not all(isinstance(name, str) for name in names):  # Arrow's columns are arrays
        names = pa.table(frame).column_names
    return [str(name) for name in names]


def select_columns(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the named columns that the frame has, as pandas Series."""
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError:  # pragma: no cover (the test environment has both)
        raise SchemaError("a frame needs pandas and pyarrow; run: pip install 'dpscp[report]'") from None
    if not isinstance(frame, Frame):
        raise SchemaError(f"with a schema, pass a frame (pandas, polars, Arrow), got {type(frame).__name__}")
    if not isinstance(frame, pd.DataFrame):
        table = None
        try:
            table = pa.table(frame)
            table = table.select([name for name in dict.fromkeys(names) if name in table.column_names])
            frame = table.to_pandas(integer_object_nulls=True)
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
            table = None
        if table is None:  # outside the handler: Arrow's message may hold cells
            raise SchemaError("the frame cannot be read as an Arrow table; give each column its own name and one type")
    if not frame.columns.is_unique:
        raise SchemaError("the table has two columns with the same name; rename one")
    return {name: frame[name] for name in names if name in frame.columns}


def refuse_dates(values: Any, name: str) -> None:
    """Refuse a column of dates or times, which have no declared unit and origin."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) in _TIME_TYPES:
        raise SchemaError(
            f"column {name!r} has dates, times or bytes. Convert them to numbers with public bounds, such as days "
            'since a public day, or to a category such as the month, or set its type to "ignore"'
        )


def label_text(value: Any) -> str:
    """Format a label as text; 1, 1.0 and "1" are the same label."""
    if isinstance(value, float) and value.is_integer() and math.isfinite(value):
        value = int(value)
    return str(value).strip()


def index_labels(values: Any, labels: Sequence[str]) -> NDArray[np.int64]:
    """Return each value's index in ``labels``, compared as text; -1 if not there."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) in ("mixed", "mixed-integer"):
        values = values.map(label_text, na_action="ignore")  # True and 1 are equal to Python, and different labels
    codes, distinct = pd.factorize(values)
    place = {label: number for number, label in enumerate(labels)}
    found = np.array([*(place.get(label_text(value), -1) for value in distinct.tolist()), -1], dtype=np.int64)
    return np.asarray(found[codes])


def parse_numbers(values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Parse numbers, with NaN for missing and invalid ones; mark the invalid ones."""
    import pandas as pd

    numbers = None
    with contextlib.suppress(OverflowError):
        numbers = pd.to_numeric(values, errors="coerce")
    if numbers is None or pd.api.types.is_complex_dtype(numbers):
        values = values.map(_make_real)
        numbers = pd.to_numeric(values, errors="coerce")
    absent = values.isna()
    if not pd.api.types.is_numeric_dtype(values):
        absent |= values.astype(str).str.strip().str.lower().isin(ABSENT)
    return np.array(numbers, dtype=np.float64), np.asarray(numbers.isna() & ~absent, dtype=bool)


def _make_real(value: Any) -> Any:
    """Return a whole number beyond all floats as infinity and a complex number as text, which is no number."""
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        return math.inf if value > 0 else -math.inf
    return "complex" if isinstance(value, complex | np.complexfloating) else value


def describe_non_number(name: str) -> str:
    """Return the message for a numeric column with other values."""
    return (
        f"column {name!r} is declared numeric but has a value that is not a number. If a CSV file writes numbers "
        'in another way, declare it (decimal = "," and thousands = "." under [csv]). Otherwise correct the table '
        '(convert a date to days since a public day), or set the type to "categorical" or "ignore"'
    )
