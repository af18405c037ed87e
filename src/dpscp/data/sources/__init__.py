"""Process blocks of rows, targets and owners where they are stored.

Every computation on records is a sum (moments, clipped gradients, counts). So it works the same way on an array, on a
file larger than memory and on a cluster. Only totals reach the driver, which alone draws noise and spends budget.
"""

from typing import Any

from dpscp.data.schema import Schema
from dpscp.data.sources.base import ArraySource, Block, RecordSource, added
from dpscp.data.sources.dask import DaskSource
from dpscp.data.sources.dataset import DatasetSource
from dpscp.data.sources.distributed import DistributedSource
from dpscp.data.sources.files import are_paths
from dpscp.data.sources.spark import SparkSource
from dpscp.data.sources.tables import TableSource, is_table

__all__ = [
    "ArraySource",
    "Block",
    "DaskSource",
    "DatasetSource",
    "DistributedSource",
    "RecordSource",
    "SparkSource",
    "TableSource",
    "added",
    "find_source",
    "is_dask",
]


def find_source(X: Any, y: Any = None, schema: Schema | None = None) -> RecordSource | None:
    """Return the source of a table, a Spark frame or Dask collections, or None.

    A schema reads the table or the Spark frame.
    """
    is_data = schema is None and y is not None and are_paths(X)  # a list of texts may be for the caller's own estimator
    if is_table(X) and not is_data:
        if schema is None:
            raise TypeError("X is a path or a data set, which needs a schema; pass schema=dp.Schema(...) too")
        return TableSource(X, schema).stored()
    if schema is None:
        return DaskSource(X, y) if is_dask(X) else None
    if hasattr(X, "mapInArrow"):
        return SparkSource(X, schema)
    return DaskSource.of_frame(X, schema) if is_dask(X) and hasattr(X, "npartitions") else None


def is_dask(X: Any) -> bool:
    """Return whether X is a Dask array or frame, without importing dask."""
    return hasattr(X, "to_delayed") and (hasattr(X, "npartitions") or hasattr(X, "chunks"))
