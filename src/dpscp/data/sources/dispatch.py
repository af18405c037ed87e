"""Choose the source for a path, Dask collections or a Spark frame."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Protocol, runtime_checkable

from dpscp.data.schema import Schema
from dpscp.data.sources.base import RecordSource
from dpscp.data.sources.dask import DaskSource
from dpscp.data.sources.files import table_source
from dpscp.data.sources.spark import SparkSource
from dpscp.threshold.counts import DaskArray


@runtime_checkable
class DaskFrame(Protocol):
    """What is used of a dask frame, so that it is known without importing dask."""

    columns: Sequence[Any]
    npartitions: int

    def to_delayed(self) -> Any:
        """Return the partitions."""
        ...


@runtime_checkable
class SparkFrame(Protocol):
    """What is used of a Spark frame, so that it is known without importing pyspark."""

    columns: Sequence[Any]

    def checkpoint(self) -> Any:
        """Write the frame and return it."""

    def mapInArrow(self, func: Any, schema: Any) -> Any:  # noqa: N802 (Spark's name)
        """Return the frame of the results of a function of each partition."""


def is_dask(X: Any) -> bool:
    """Return whether X is a Dask array or frame."""
    return isinstance(X, DaskArray | DaskFrame)


def find_source(X: Any, y: Any) -> RecordSource | None:
    """Return the source of Dask arrays, or of a dask frame of numbers and a series.

    None for anything else.
    """
    if isinstance(X, str | PathLike):
        raise TypeError("X is the path of a table, and a table needs a schema; give schema=dp.Schema(...) too")
    return DaskSource(X, y) if is_dask(X) else None


def source_from_schema(X: Any, schema: Schema) -> RecordSource | None:
    """Return the source of a table that a schema reads.

    A path, a dask or a Spark frame; None for anything else.
    """
    if isinstance(X, str | PathLike):
        return table_source(X, schema).in_memory()
    if isinstance(X, SparkFrame):
        return SparkSource(X, schema)
    return DaskSource.of_frame(X, schema) if isinstance(X, DaskFrame) else None
