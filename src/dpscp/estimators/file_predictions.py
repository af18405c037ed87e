"""Predict the rows of a file in blocks, so that the file is never in memory as a whole."""

from collections.abc import Callable, Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.model_files import open_atomically
from dpscp.data.schema import Schema
from dpscp.data.sources.files import table_source
from dpscp.data.sources.tables import is_parquet

_LABEL_SEPARATOR = "|"


def is_path(X: Any) -> bool:
    """Whether rows to predict are in a file."""
    return isinstance(X, str | PathLike)


def read_frames(path: str | PathLike[str], schema: Schema | None) -> Iterator[Any]:
    """Yield the rows of a CSV or Parquet file as frames of a few megabytes; a file without a row is refused."""
    if schema is None:
        raise TypeError("X is the path of a table, which needs the schema of the fit; fit with schema=dp.Schema...")
    yield from table_source(path, schema).frames()


def join_blocks(blocks: list[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """Return arrays of all rows from those of the blocks."""
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


def write_predictions(out: str | PathLike[str], blocks: Iterator[dict[str, Any]]) -> None:
    """Write columns of predictions as CSV or Parquet, by the name of the file, block by block.

    A list of labels is a list in Parquet, and joined by ``|`` in CSV. The file appears when it is complete.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    path = Path(out)
    make: Callable[..., Any] = pa.parquet.ParquetWriter if is_parquet(path) else pa.csv.CSVWriter
    as_table = pa.table if is_parquet(path) else _as_text_table
    tables = map(as_table, blocks)
    first = next(tables)
    with open_atomically(path) as file, make(file, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _as_text_table(columns: dict[str, Any]) -> Any:
    import pyarrow as pa

    sets = columns.get("set")
    if sets is not None:
        columns = columns | {"set": [_LABEL_SEPARATOR.join(map(str, labels)) for labels in sets.to_pylist()]}
    return pa.table(columns)
