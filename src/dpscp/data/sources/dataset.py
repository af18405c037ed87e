"""Read records item by item from a data set of torch, block by block."""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import OWN_DATASET
from dpscp._base.checks import check_count
from dpscp._base.progress import show_pass
from dpscp.data.named_inputs import NamedInputs, count_numbers, is_named, split_target
from dpscp.data.sources.base import MOST_IN_A_BLOCK, Block
from dpscp.data.sources.files import BLOCK_NUMBERS
from dpscp.data.sources.scanner import LocalSource

# The number of items that are read twice at the start; this detects random changes even of every second item.
READ_TWICE = 16
_REMEDY = (
    "Items must be the same at every reading. Turn off random augmentation in the data set, or move it into the "
    "module, which may draw at every step"
)
_ITEMS = (
    "each item must be a pair (input, target): a tensor or an array of real numbers in one shape, and one target. Or "
    "it is a dictionary of inputs, with the target under 'labels' or 'label'"
)


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
        refuse_changing_items(dataset, min(self._count, READ_TWICE))
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
            items = [_read_item(self._dataset[place]) for place in range(start, stop)]
            if any(shape != self._shape for _, _, shape in items):
                raise ValueError(_ITEMS)
            rows = np.stack([row for row, _, _ in items]).reshape(len(items), self.width)
            yield Block(number, rows, np.stack([target for _, target, _ in items]))


def _record_shape(dataset: Any) -> tuple[Any, ...]:
    """Return the public shape of a record: that of the first item, or of the tensors of a ``TensorDataset``."""
    if len(dataset):
        return _read_item(dataset[0])[2]
    tensors: Any = getattr(dataset, "tensors", ())
    if len(tensors) != 2:
        raise ValueError(
            f"the {type(dataset).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
            "or a TensorDataset of shape (0, ...) for a part without records"
        )
    return tuple(tensors[0].shape[1:])


def refuse_changing_items(dataset: Any, count: int) -> None:
    """Refuse a data set whose first items differ from one reading to the next."""
    for place in range(count):
        if _item_bytes(dataset[place]) != _item_bytes(dataset[place]):
            raise ValueError(f"an item of the {type(dataset).__name__} changed when it was read again. {_REMEDY}")


def _item_bytes(item: Any) -> list[bytes]:
    parts = item.values() if isinstance(item, Mapping) else item if isinstance(item, tuple | list) else (item,)
    return [_array(part).tobytes() for part in parts]


def _array(value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:  # the message of torch may describe the item
        raise ValueError(_ITEMS) from None


def _read_item(item: Any) -> tuple[NDArray[Any], NDArray[Any], tuple[Any, ...]]:
    """Return the input, the target and the shape of the input of an item."""
    if isinstance(item, Mapping):
        inputs, target = split_target(item)
        packed = NamedInputs.of({name: _array(value)[None] for name, value in inputs.items()})
        row, shape = packed.rows[0], packed.input_shape
    elif isinstance(item, tuple | list) and len(item) == 2:
        row, target = _array(item[0]), item[1]
        shape = row.shape
    else:
        raise ValueError(_ITEMS)
    found = _array(target)
    if row.dtype.kind not in "fiub" or not row.ndim or target is None or found.size != 1:
        raise ValueError(_ITEMS)
    return row, found.reshape(()), shape
