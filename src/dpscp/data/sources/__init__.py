"""Where records come from: blocks of rows, targets and owners, mapped where they lie and summed.

Everything this method does with records is a sum (moments, clipped gradients, counts), so it runs alike on an array, on
a file larger than memory and on a cluster: only totals come to the driver, which alone draws noise and spends budget.
"""

from dpscp.data.sources.array import ArraySource
from dpscp.data.sources.base import Block, RecordSource, added
from dpscp.data.sources.dask import DaskSource
from dpscp.data.sources.distributed import DistributedSource
from dpscp.data.sources.files import CSVSource, ParquetSource
from dpscp.data.sources.spark import SparkSource

__all__ = [
    "ArraySource",
    "Block",
    "CSVSource",
    "DaskSource",
    "DistributedSource",
    "ParquetSource",
    "RecordSource",
    "SparkSource",
    "added",
]
