"""The columns of a frame (pandas, polars, Arrow) as numbers and as places among declared labels.

Nothing here prints a value: what is wrong with a column is told in words.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

# What pandas calls columns that are neither numbers nor categories.
_TIME_TYPES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period", "bytes")
# What tables write for a missing number. In a categorical column only an empty cell is missing: "NA" may be a category.
ABSENT = ("", "na", "n/a", "nan", "null", "none", "?", ".")


class SchemaError(ValueError):
    """A schema is incomplete or wrong, or a table does not fit it; the text carries nothing from the records."""


@runtime_checkable
class Frame(Protocol):
    """A table of named columns, as pandas, polars and Arrow have it: it hands them out as an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The columns."""


def select_columns(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """Those of the named columns that the frame has, as pandas Series; other frames come through Arrow's protocol."""
    try:
        import pandas as pd
        import pyarrow as pa
    except ImportError:  # pragma: no cover (the test environment has both)
        raise SchemaError("frames need pandas and pyarrow: pip install 'dpscp[report]'") from None
    if not isinstance(frame, Frame):
        raise SchemaError(f"a schema reads a frame (pandas, polars, Arrow), got {type(frame).__name__}")
    if not isinstance(frame, pd.DataFrame):
        table = None
        try:
            table = pa.table(frame)
            table = table.select([name for name in dict.fromkeys(names) if name in table.column_names])
            frame = table.to_pandas(integer_object_nulls=True)
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
            table = None
        if table is None:  # outside the handler: Arrow's message may hold cells
            raise SchemaError("the frame cannot be read as an Arrow table of columns with names of their own")
    if not frame.columns.is_unique:
        raise SchemaError("the table has two columns of the same name; rename one")
    return {name: frame[name] for name in names if name in frame.columns}


def refuse_dates(values: Any, name: str) -> None:
    """Refuse a column of dates or times: as a number each has a unit and a beginning that nobody declared."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) in _TIME_TYPES:
        raise SchemaError(
            f"column {name!r} holds dates, times or bytes; make numbers of them that have public bounds, such as days "
            'since a public day, or a category such as the month, or declare the column as "ignore"'
        )


def label_text(value: Any) -> str:
    """One label as text: whole floats as integers, so that 1, 1.0 and "1" are the same category."""
    if isinstance(value, float) and value.is_integer() and math.isfinite(value):
        value = int(value)
    return str(value).strip()


def index_labels(values: Any, labels: Sequence[str]) -> NDArray[np.int64]:
    """Each value's place in ``labels``, compared as text; -1 for a missing one and for one that is not there."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=True) in ("mixed", "mixed-integer"):
        values = values.map(label_text, na_action="ignore")  # True and 1 are equal to Python, and different labels
    codes, distinct = pd.factorize(values)
    place = {label: number for number, label in enumerate(labels)}
    found = np.array([*(place.get(label_text(value), -1) for value in distinct.tolist()), -1], dtype=np.int64)
    return np.asarray(found[codes])


def parse_numbers(values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values as numbers, NaN for one that is missing or no number, and which are the latter."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce")
    absent = values.isna()
    if not pd.api.types.is_numeric_dtype(values):
        absent |= values.astype(str).str.strip().str.lower().isin(ABSENT)
    return np.array(numbers, dtype=np.float64), np.asarray(numbers.isna() & ~absent, dtype=bool)


def describe_non_number(name: str) -> str:
    """What to do about a column that should hold numbers and does not."""
    return (
        f"column {name!r} is declared numeric and holds something that is not a number; fix the table (a date "
        'can become days since a public day), or declare the column as "categorical" or "ignore"'
    )
