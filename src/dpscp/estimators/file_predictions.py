"""Read the rows of a file to predict in blocks, so that the file is never in memory as a whole."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.schema import Schema
from dpscp.data.sources.base import is_source
from dpscp.data.sources.scanner import TableSource


def refuse_source(X: Any) -> None:
    """Refuse a source of records, which is read in ``fit`` only."""
    if is_source(X):
        raise TypeError(
            f"X must be rows to predict, got the record source {type(X).__name__}; pass an array, a frame, a tensor, a "
            "Dataset (a DatasetSource was made from one), or the path of a table"
        )


def read_frames(table: Any, schema: Schema | None) -> Iterator[Any]:
    """Return the rows of a table as frames of a few megabytes."""
    if schema is None:
        raise TypeError("X is the path of a table, which needs the schema of the fit; fit with schema=dp.Schema...")
    return TableSource(table, schema).frames()


def join_blocks(blocks: list[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:
    """Return arrays of all rows from those of the blocks."""
    return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
