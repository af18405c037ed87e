"""Choose the source for a table, Dask collections or a Spark frame."""

from typing import Any

from dpscp.data.schema import Schema
from dpscp.data.sources.base import RecordSource
from dpscp.data.sources.dask import DaskSource
from dpscp.data.sources.scanner import TableSource, is_table
from dpscp.data.sources.spark import SparkSource
from dpscp.threshold.counts import DaskArray


def is_dask_frame(X: Any) -> bool:
    """Return whether X is a Dask frame, without importing dask."""
    return hasattr(X, "npartitions") and hasattr(X, "to_delayed")


def is_dask(X: Any) -> bool:
    """Return whether X is a Dask array or frame."""
    return isinstance(X, DaskArray) or is_dask_frame(X)


def find_source(X: Any, y: Any) -> RecordSource | None:
    """Return the source of Dask arrays, or of a dask frame of numbers and a series.

    None for anything else.
    """
    if is_table(X):
        raise TypeError("X is the path of a table or a data set, which needs a schema; give schema=dp.Schema(...) too")
    return DaskSource(X, y) if is_dask(X) else None


def source_from_schema(X: Any, schema: Schema) -> RecordSource | None:
    """Return the source of a table that a schema reads.

    A table in files or of another library, a dask or a Spark frame; None for anything else.
    """
    if is_table(X):
        return TableSource(X, schema).in_memory()
    if hasattr(X, "mapInArrow"):
        return SparkSource(X, schema)
    return DaskSource.of_frame(X, schema) if is_dask_frame(X) else None
