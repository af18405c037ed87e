"""Read tensors, inputs by name or a ``Dataset`` of torch once into NumPy arrays.

A record is one item of the data set. A ``DataLoader`` is refused: batches are drawn privately, and its sampler and its
``collate_fn`` could drop, repeat or mix records.

This module does not import torch.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

    Other values stay as they are. A ``Dataset`` holds both in each item, (input, target) or a dictionary. Inputs by
    name, such as a ``BatchEncoding`` or a ``datasets.Dataset``, may hold the target under "labels" or "label"; ``y``
    may be the name of its column.
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
    """Return the inputs alone, as an array or as inputs by name: of a ``Dataset`` the first part of each item."""
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
    return _holds_items(value) and type(value) is not _torch().utils.data.TensorDataset


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
    return sys.modules["torch"]


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
    if isinstance(value, data.DataLoader | data.IterableDataset):
        raise TypeError(
            f"a {type(value).__name__} is not read, because batches are drawn privately and each record must be read "
            "once; pass a Dataset with len() and items, such as the dataset of the loader"
        )
    return isinstance(value, data.Dataset)


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


def _items_of(dataset: Any) -> tuple[NDArray[Any], ...] | dict[str, NDArray[Any]]:
    """Return the parts of all items, one array each, by name where the items are dictionaries."""
    if type(dataset) is _torch().utils.data.TensorDataset:  # its items are rows of its tensors, which may have none
        return tuple(np.asarray(_array(part)) for part in dataset.tensors)
    refuse_changing_items(dataset, min(len(dataset), READ_TWICE))
    items = [_parts_of(dataset[place]) for place in range(len(dataset))]
    if not items:
        raise ValueError(
            f"the {type(dataset).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
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


def _parts_of(item: Any) -> dict[Any, Any]:
    """Return the parts of an item by name, or by place."""
    if isinstance(item, Mapping):
        return dict(item)
    return dict(enumerate(item)) if isinstance(item, tuple | list) else {0: item}
