"""Read records item by item from a data set of torch, block by block."""

import math
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import OWN_DATASET
from dpscp._base.checks import check_count
from dpscp.data.sources.base import MOST_IN_A_BLOCK, Block
from dpscp.data.sources.files import BLOCK_NUMBERS, ReadSource

Total = TypeVar("Total")
# Items that are read twice before anything else: a random change of one in two items shows here.
_READ_TWICE = 16
_REMEDY = (
    "Items must be the same at every reading: turn random augmentation off in the data set, or move it into the "
    "module, which may draw at every step"
)
_ITEMS = "each item must be a pair (input, target): a tensor or an array of real numbers in one shape, and one target"


class DatasetSource:
    """Read records from a ``torch.utils.data.Dataset`` that does not fit into memory.

    An item is one record, (input, target). Items are read one by one, in the order of their indices. One block of them
    is in memory. ``fit`` reads the data set several times, so items must not change (random augmentation). The first
    items are read twice here, and every later reading is compared with the first. What training reads at every step is
    in a scratch file.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        With ``len`` and indices 0, 1, 2, ... All inputs have the shape of the first one, which is public.
    scratch : str, path or None
        The folder of the scratch file, see ``ParquetSource``.
    block_rows : int or None
        Records in a block; None: two million numbers. Results depend on it only by the order in which floating-point
        numbers are added.

    >>> import torch
    >>> source = DatasetSource(torch.utils.data.TensorDataset(torch.ones(6, 2, 2), torch.arange(6)), block_rows=4)
    >>> source.width, source.input_shape, source.sum(lambda block: int(block.targets.sum()))
    (4, (2, 2), 15)
    """

    assumption = OWN_DATASET
    change_remedy = _REMEDY

    def __init__(
        self, dataset: Any, *, scratch: str | PathLike[str] | None = None, block_rows: int | None = None
    ) -> None:
        if not all(hasattr(type(dataset), name) for name in ("__len__", "__getitem__")):
            raise TypeError(
                f"dataset must have len() and items 0, 1, 2, ..., got {type(dataset).__name__}; a DataLoader has its "
                "data set in .dataset, and a stream of items must be written to a file first"
            )
        self._dataset, self._count = dataset, len(dataset)
        shape = _record_shape(dataset)
        _refuse_changing_items(dataset, min(self._count, _READ_TWICE))
        self.input_shape: tuple[int, ...] | None = tuple(shape) if len(shape) > 1 else None
        self.width = math.prod(shape)
        rows = BLOCK_NUMBERS // max(1, self.width) if block_rows is None else check_count("block_rows", block_rows)
        self._shape, self._rows = shape, min(max(1, rows), MOST_IN_A_BLOCK)
        self._source = ReadSource(self._blocks, self.width, scratch)

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> ReadSource:
        """Return the source of ``function(block)``, see ``RecordSource``."""
        return self._source.map(function, keep=keep)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks, see ``RecordSource``."""
        return self._source.sum(function)

    def _blocks(self) -> Iterator[Block]:
        if not self._count:
            yield Block(0, np.empty((0, self.width)), np.empty(0, dtype=np.int64))
        for number, start in enumerate(range(0, self._count, self._rows)):
            stop = min(self._count, start + self._rows)
            pairs = [_pair(self._dataset[place]) for place in range(start, stop)]
            if any(row.shape != self._shape for row, _ in pairs):
                raise ValueError(_ITEMS)
            rows = np.stack([row for row, _ in pairs]).reshape(len(pairs), self.width)
            yield Block(number, rows, np.stack([target for _, target in pairs]))


def _record_shape(dataset: Any) -> tuple[int, ...]:
    """Return the public shape of a record: that of the first item, or of the tensors of a ``TensorDataset``."""
    if len(dataset):
        return _pair(dataset[0])[0].shape
    tensors: Any = getattr(dataset, "tensors", ())
    if len(tensors) != 2:
        raise ValueError(
            f"the {type(dataset).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
            "or a TensorDataset of shape (0, ...) for a part without records"
        )
    return tuple(tensors[0].shape[1:])


def _refuse_changing_items(dataset: Any, count: int) -> None:
    """Refuse a data set whose first items differ from one reading to the next."""
    for place in range(count):
        first, second = _pair(dataset[place]), _pair(dataset[place])
        if any(a.shape != b.shape or a.tobytes() != b.tobytes() for a, b in zip(first, second, strict=True)):
            raise ValueError(f"an item of the {type(dataset).__name__} changed when it was read again. {_REMEDY}")


def _pair(item: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the input and the target of an item as arrays."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(_ITEMS)
    try:
        row, target = (np.asarray(part.detach().cpu() if hasattr(part, "detach") else part) for part in item)
    except Exception:  # its message may describe the item
        raise ValueError(_ITEMS) from None
    if row.dtype.kind not in "fiub" or not row.ndim or target.size != 1:
        raise ValueError(_ITEMS)
    return row, target.reshape(())
