"""Read records item by item from a data set of torch, block by block."""

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np

from dpscp._base.assumptions import OWN_DATASET
from dpscp._base.checks import check_count
from dpscp._base.progress import show_pass
from dpscp.data.sources.base import MOST_IN_A_BLOCK, Block
from dpscp.data.sources.files import BLOCK_NUMBERS
from dpscp.data.sources.tables import LocalSource
from dpscp.data.torch_records import (
    CHANGE_REMEDY,
    ITEMS,
    Item,
    read_item,
    record_shape,
    refuse_changing_items,
    stack_items,
)
from dpscp.data.validation import count_numbers, is_named


class DatasetSource(LocalSource):
    """Read records from a ``torch.utils.data.Dataset`` that does not fit into memory.

    An item is one record: (input, target), or a dictionary of several inputs with the target under "labels" or "label".
    Items are read one by one, in the order of their indices, with one block in memory at a time. ``fit`` reads the data
    set several times, so items must not change (random augmentation). The first items are read twice here, and every
    later reading is compared with the first. A scratch file holds the rows that training reads at every step.

    Parameters
    ----------
    dataset : torch.utils.data.Dataset
        With ``len`` and indices 0, 1, 2, ... All inputs have the shape of the first one, which is public.
    scratch : str, path or None
        The folder of the scratch file, see ``TableSource``.
    block_rows : int or None
        Records in a block; None: two million numbers. Results depend on it only by the order in which floating-point
        numbers are added.

    >>> import torch
    >>> source = DatasetSource(torch.utils.data.TensorDataset(torch.ones(6, 2, 2), torch.arange(6)), block_rows=4)
    >>> source.width, source.input_shape, source.sum(lambda block: int(block.targets.sum()))
    (4, (2, 2), 15)
    """

    assumption = OWN_DATASET
    is_fixed = False
    change_remedy = CHANGE_REMEDY

    def __init__(
        self, dataset: Any, *, scratch: str | PathLike[str] | None = None, block_rows: int | None = None
    ) -> None:
        if not all(hasattr(type(dataset), name) for name in ("__len__", "__getitem__")):
            raise TypeError(
                f"dataset must have len() and items 0, 1, 2, ..., got {type(dataset).__name__}; a DataLoader has its "
                "data set in .dataset, and a stream of items must be written to a file first"
            )
        self._dataset, self._count = dataset, len(dataset)
        shape = record_shape(dataset)
        if self._count:
            _read_pair(dataset[0])
        refuse_changing_items(dataset)
        self.input_shape = tuple(shape) if len(shape) > 1 or is_named(shape) else None
        self.width = count_numbers(shape)
        rows = BLOCK_NUMBERS // max(1, self.width) if block_rows is None else check_count("block_rows", block_rows)
        self._shape, self._rows = shape, min(max(1, rows), MOST_IN_A_BLOCK)
        self.folder = scratch

    def read(self) -> Iterator[Block]:
        if not self._count:
            yield Block(0, np.empty((0, self.width)), np.empty(0, dtype=np.int64))
        stop = 0
        starts = show_pass(range(0, self._count, self._rows), lambda: stop / self._count)
        for number, start in enumerate(starts):
            stop = min(self._count, start + self._rows)
            rows, targets = stack_items([_read_pair(self._dataset[place]) for place in range(start, stop)], self._shape)
            assert targets is not None
            yield Block(number, rows.reshape(len(rows), self.width), targets)


def _read_pair(item: Any) -> Item:
    """Read an item that has one target."""
    row, target, shape = read_item(item)
    if target is None or target.size != 1:
        raise ValueError(ITEMS)
    return row, target.reshape(()), shape
