"""Read tensors, a ``Dataset`` or a ``DataLoader`` once into NumPy arrays.

Training draws its own batches, so only the data set of a loader counts: a record is one item of it. A loader that would
drop or repeat records is refused, because its records are not the data set that the promises are about. So is one with
the caller's own ``collate_fn``, which sees several records at once. Padding to the longest of them would publish a
length, and a mean over them would spread one record over all others.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.training.torch.modules import comes_from_torch, load_torch, rows_dtype

_ITEMS_AT_ONCE = 1024
_UNEQUAL_ITEMS = "the items must be equally shaped tensors or numbers: (input, target), or the input alone"


def labeled_arrays(X: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and targets as arrays.

    What does not come from torch stays as it is.

    A ``Dataset`` or ``DataLoader`` holds both, (input, target) in each item; its order is that of the data set.
    """
    if not _holds_items(X):
        return _array(X), _array(y)
    if y is not None:
        raise ValueError(f"y must be left out, because the items of a {type(X).__name__} contain the targets")
    columns = _columns(X)
    if len(columns) != 2:
        raise ValueError("each item must be a pair (input, target) of tensors or numbers")
    return columns[0], columns[1]


def inputs_of(X: Any) -> Any:
    """Return the inputs alone, as an array.

    Of a ``Dataset`` or ``DataLoader`` the first part of each item.
    """
    return _columns(X)[0] if _holds_items(X) else _array(X)


def has_own_items(value: Any) -> bool:
    """Return whether the caller's code may compute the items.

    Those of a ``TensorDataset`` are rows of its tensors.
    """
    if not _holds_items(value):
        return False
    data = load_torch().utils.data
    dataset = value.dataset if isinstance(value, data.DataLoader) else value
    return type(dataset) is not data.TensorDataset


def takes_float64(owner: Any) -> bool:
    """Return whether a torch module inside an estimator, a mechanism or a model takes float64 rows."""
    while owner is not None and not comes_from_torch(owner):
        if isinstance(owner, list | tuple):
            owner = owner[-1] if owner else None
        else:
            inside = (getattr(owner, name, None) for name in ("module", "mechanism", "inner", "model"))
            owner = next((part for part in inside if part is not None), None)
    if owner is None or not isinstance(owner, load_torch().nn.Module):
        return False
    return bool(rows_dtype(owner) == load_torch().float64)


def _holds_items(value: Any) -> bool:
    if not comes_from_torch(value):
        return False
    data = load_torch().utils.data
    return isinstance(value, data.Dataset | data.DataLoader)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) and comes_from_torch(value[0]):
        return _stacked(value)
    if not comes_from_torch(value) or not isinstance(value, load_torch().Tensor):
        return value
    plain = value.detach().cpu()
    # NumPy has no bfloat16, and all its numbers are float32 numbers too
    return (plain.float() if plain.dtype == load_torch().bfloat16 else plain).numpy()


def _stacked(tensors: Sequence[Any]) -> NDArray[Any]:
    """Return a list of tensors, one for each record, as one array."""
    torch, found = load_torch(), None
    if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        with suppress(RuntimeError):  # its message prints shapes of the records
            found = _array(torch.stack([tensor.detach().cpu() for tensor in tensors]))
    if found is None:
        raise ValueError("a list of tensors must hold one tensor for each record, all of one shape and type")
    return np.asarray(found)


def _columns(source: Any) -> tuple[NDArray[Any], ...]:
    """Return the parts of all items, one array each."""
    torch = load_torch()
    dataset = source
    if isinstance(source, torch.utils.data.DataLoader):
        _refuse_other_records(source)
        dataset = source.dataset
    if type(dataset) is torch.utils.data.TensorDataset:  # its items are rows of its tensors, which may have none
        return tuple(np.asarray(_array(part)) for part in dataset.tensors)
    batches = list(_batches(_items(dataset)))
    if not batches:
        raise ValueError(
            f"the {type(source).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
            "or a TensorDataset of shape (0, ...) for a part without records"
        )
    try:
        return tuple(
            np.concatenate([np.asarray(_array(part)) for part in parts]) for parts in zip(*batches, strict=True)
        )
    except (TypeError, ValueError):
        raise ValueError(_UNEQUAL_ITEMS) from None


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, load_torch().utils.data.IterableDataset):
        return iter(dataset)
    return (dataset[place] for place in range(len(dataset)))


def _batches(items: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the parts of some items at a time, collated as torch does it.

    Items of other shapes do not fit.
    """
    collate = load_torch().utils.data.default_collate
    while some := list(islice(items, _ITEMS_AT_ONCE)):
        try:
            batch = collate(some)
        except Exception:  # its message may print items
            batch = None
        if batch is None:
            raise ValueError(_UNEQUAL_ITEMS)
        yield tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def _refuse_other_records(loader: Any) -> None:
    """Refuse a loader that does not return every record once and unchanged."""
    data = load_torch().utils.data
    if loader.collate_fn is not data.default_collate:
        raise ValueError(
            "collate_fn sees several records at once, so its result for one record may depend on the others (padding "
            "to the longest record, a mean). Give a Dataset whose items are the (input, target) of one record in one "
            "public shape, or a DataLoader without collate_fn"
        )
    batches = loader.batch_sampler
    plain = type(batches) is data.BatchSampler  # not a subclass, which may draw what it likes
    sampler = batches.sampler if plain else loader.sampler
    if isinstance(loader.dataset, data.IterableDataset):
        once = True
    elif type(sampler) is data.RandomSampler:  # another order, which training does not use
        once = not sampler.replacement and sampler.num_samples == len(loader.dataset)
    else:
        once = type(sampler) is data.SequentialSampler and len(sampler) == len(loader.dataset)
    if not plain or not once or type(loader).__iter__ is not data.DataLoader.__iter__:
        raise ValueError(
            f"this {type(loader).__name__} draws its own batches ({type(sampler).__name__}) and may drop or repeat "
            "records; batches are drawn privately here, so give its dataset, or a DataLoader without a sampler"
        )
    if batches.drop_last:
        raise ValueError("drop_last=True drops records; give the dataset itself, or a DataLoader with drop_last=False")
