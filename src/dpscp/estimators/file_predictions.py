"""Read the rows of a file to predict in blocks, so that the file is never in memory as a whole."""

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.schema import Schema
from dpscp.data.sources.base import is_source
from dpscp.data.sources.files import table_source


def is_path(X: Any) -> bool:
    """Whether rows to predict are in a file."""
    return isinstance(X, str | PathLike)


def refuse_source(X: Any) -> None:
    """Refuse a source of records, which is read in ``fit`` only."""
    if is_source(X):
        raise TypeError(
            f"X must be rows to predict, got the record source {type(X).__name__}; pass an array, a frame, a tensor, a "
            "Dataset (a DatasetSource was made from one), or the path of a table"
        )


def read_frames(path: str | PathLike[str], schema: Schema | None) -> Iterator[Any]:
    """Return the rows of a CSV or Parquet file as frames of a few megabytes; a file without a row is refused."""
    if schema is None:
        raise TypeError("X is the path of a table, which needs the schema of the fit; fit with schema=dp.Schema...")
    return table_source(path, schema).frames()


def join_blocks(blocks: list[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """Return arrays of all rows from those of the blocks."""
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
