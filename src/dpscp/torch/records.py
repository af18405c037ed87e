"""Read tensors, inputs by name, a ``Dataset`` or a ``DataLoader`` once into NumPy arrays.

Training draws its own batches, so only the data set of a loader counts: a record is one item of it. A loader that would
drop or repeat records is refused, because its records are not the data set that the promises are about. So is one with
the caller's own ``collate_fn``, which sees several records at once. Padding to the longest of them would publish a
length, and a mean over them would spread one record over all others.

This module is read without torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dpscp.data.named_inputs import NamedInputs, split_target
from dpscp.data.sources.dataset import READ_TWICE, refuse_changing_items


def comes_from_torch(value: Any) -> bool:
    """Return whether an object's class comes from torch, which is not imported for that."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(value).__mro__)


def _has_names(X: Any) -> bool:
    """Return whether records have inputs by name; some sparse matrices are mappings of places."""
    return _is_table_of_columns(X) or (isinstance(X, Mapping) and not issparse(X))


def labeled_arrays(X: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and targets as arrays.

    Other values stay as they are. A ``Dataset`` or ``DataLoader`` holds both in each item, (input, target) or a
    dictionary; its order is that of the data set. Inputs by name, such as a ``BatchEncoding`` or a
    ``datasets.Dataset``, may hold the target under "labels" or "label"; ``y`` may be the name of its column.
    """
    if _has_names(X):
        columns, target = split_target(_columns_of(X), y)
        if (target is None) == (y is None or isinstance(y, str)):
            raise ValueError("pass the targets as y, or in X under 'labels', and not twice")
        return NamedInputs.of(columns), _array(y if target is None else target)
    if not _holds_items(X):
        return _array(X), _array(y)
    if y is not None:
        raise ValueError(f"y must be left out, because the items of a {type(X).__name__} contain the targets")
    found = _items_of(X)
    if isinstance(found, dict):
        columns, target = split_target(found)
        if target is None:
            raise ValueError("each item must hold its target under 'labels' or 'label'")
        return NamedInputs.of(columns), target
    if len(found) != 2:
        raise ValueError("each item must be a pair (input, target) of tensors or numbers")
    return found[0], found[1]


def inputs_of(X: Any) -> Any:
    """Return the inputs alone, as an array or as inputs by name.

    Of a ``Dataset`` or ``DataLoader`` the first part of each item.
    """
    if _has_names(X):
        return NamedInputs.of(split_target(_columns_of(X))[0])
    if not _holds_items(X):
        return _array(X)
    found = _items_of(X)
    return NamedInputs.of(split_target(found)[0]) if isinstance(found, dict) else found[0]


def has_own_items(value: Any) -> bool:
    """Return whether the caller's code may compute the items.

    Those of a ``TensorDataset`` are rows of its tensors.
    """
    if not _holds_items(value):
        return False
    data = _torch().utils.data
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
    if owner is None or not isinstance(owner, _torch().nn.Module):
        return False
    return {p.dtype for p in owner.parameters()} == {_torch().float64}


def _torch() -> Any:
    """Return torch, which an object of it has imported already."""
    return import_module("dpscp.torch.library").torch


def _is_table_of_columns(value: Any) -> bool:
    """Return whether this is a ``datasets.Dataset``, a table with lists as columns."""
    return any(f"{base.__module__}.{base.__name__}" == "datasets.arrow_dataset.Dataset" for base in type(value).__mro__)


def _columns_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    table = value.with_format("numpy")
    return {name: table[name][:] for name in table.column_names}


def _holds_items(value: Any) -> bool:
    if not comes_from_torch(value):
        return False
    data = _torch().utils.data
    return isinstance(value, data.Dataset | data.DataLoader)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) and comes_from_torch(value[0]):
        return _stacked(value)
    if not comes_from_torch(value) or not isinstance(value, _torch().Tensor):
        return value
    plain = value.detach().cpu()
    # NumPy has no bfloat16, and all its numbers are float32 numbers too
    return (plain.float() if plain.dtype == _torch().bfloat16 else plain).numpy()


def _stacked(tensors: Sequence[Any]) -> NDArray[Any]:
    """Return a list of tensors, one for each record, as one array."""
    torch, found = _torch(), None
    if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        with suppress(RuntimeError):  # its message prints shapes of the records
            found = _array(torch.stack([tensor.detach().cpu() for tensor in tensors]))
    if found is None:
        raise ValueError("a list of tensors must hold one tensor for each record, all of one shape and type")
    return np.asarray(found)


def _items_of(source: Any) -> tuple[NDArray[Any], ...] | dict[str, NDArray[Any]]:
    """Return the parts of all items, one array each, by name where the items are dictionaries."""
    data, dataset = _torch().utils.data, source
    if isinstance(source, data.DataLoader):
        _refuse_other_records(source)
        dataset = source.dataset
    if type(dataset) is data.TensorDataset:  # its items are rows of its tensors, which may have none
        return tuple(np.asarray(_array(part)) for part in dataset.tensors)
    if not isinstance(dataset, data.IterableDataset):
        refuse_changing_items(dataset, min(len(dataset), READ_TWICE))
    items = [_parts_of(item) for item in _items(dataset)]
    if not items:
        raise ValueError(
            f"the {type(source).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
            "or a TensorDataset of shape (0, ...) for a part without records"
        )
    names, found = tuple(items[0]), dict[Any, NDArray[Any]]()
    with suppress(TypeError, ValueError):  # their messages may print items
        if all(tuple(item) == names for item in items):
            found = {name: np.stack([np.asarray(_array(item[name])) for item in items]) for name in names}
    if not found or any(values.dtype == object for values in found.values()):
        raise ValueError(
            "the items must be equally shaped tensors or numbers: (input, target), the input alone, or a dictionary of "
            "inputs with the target under 'labels'"
        )
    return found if isinstance(names[0], str) else tuple(found.values())


def _items(dataset: Any) -> Iterator[Any]:
    if isinstance(dataset, _torch().utils.data.IterableDataset):
        return iter(dataset)
    return (dataset[place] for place in range(len(dataset)))


def _parts_of(item: Any) -> dict[Any, Any]:
    """Return the parts of an item by name, or by place."""
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple | list) else {0: item}


def _refuse_other_records(loader: Any) -> None:
    """Refuse a loader that does not return every record once and unchanged."""
    data = _torch().utils.data
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
