"""Sources of records: blocks of rows, targets and owners, processed where they are stored.

Every computation on records is a sum (moments, clipped gradients, counts). So it works the same way on an array, on a
file larger than memory and on a cluster. Only totals reach the driver, which alone draws noise and spends budget.
"""

from dpscp.data.sources.array import ArraySource
from dpscp.data.sources.base import Block, RecordSource, added
from dpscp.data.sources.dask import DaskSource
from dpscp.data.sources.dataset import DatasetSource
from dpscp.data.sources.distributed import DistributedSource
from dpscp.data.sources.scanner import TableSource
from dpscp.data.sources.spark import SparkSource

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
]
