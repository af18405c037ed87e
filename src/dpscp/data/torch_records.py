"""Read tensors, inputs by name, or a ``Dataset`` of torch into rows of numbers.

A record is one item of the data set. A ``DataLoader`` is refused: batches are drawn privately, and its sampler and its
``collate_fn`` could drop, repeat or mix records.

The shape of a record with several inputs by name (``input_ids``, ``attention_mask``) is a tuple of (name, shape, kind),
where the kind is "real", "integer" or "boolean". That of other records is a tuple of sizes.

This module does not import torch.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dpscp._base.checks import check_choice, check_count
from dpscp.data.validation import count_numbers, is_named

# Names of the target in libraries of tokens and data sets.
TARGETS = ("labels", "label")
# The largest whole number up to which all are exact in float32.
_MOST_EXACT = 2**24
_LONGEST_RECORD = 2**24
_KINDS = {"f": "real", "i": "integer", "u": "integer", "b": "boolean"}
# The number of items that are read twice at the start; this detects random changes even of every second item.
_READ_TWICE = 16
CHANGE_REMEDY = (
    "Items must be the same at every reading. Turn off random augmentation in the data set, or move it into the "
    "module, which may draw at every step"
)
ITEMS = (
    "each item must be a pair (input, target): a tensor or an array of real numbers in one shape, and one target. Or "
    "it is a dictionary of inputs, with the target under 'labels' or 'label'"
)
Item = tuple[NDArray[Any], NDArray[Any] | None, tuple[Any, ...]]
"""The input of an item, its target if it has one, and the shape of the input."""


@dataclass(frozen=True)
class NamedInputs:
    """Hold records with several inputs as rows, with their public shape."""

    rows: NDArray[Any] = field(repr=False)
    input_shape: tuple[tuple[str, tuple[int, ...], str], ...]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """Pack arrays by name, records first.

        Parameters
        ----------
        columns : mapping from names to arrays of shape (n_records, ...)

        Returns
        -------
        NamedInputs
        """
        if not all(isinstance(name, str) for name in columns):
            raise ValueError("the names of the inputs must be text")
        arrays = {name: as_numbers(values, name) for name, values in columns.items()}
        if not arrays or len({len(values) for values in arrays.values()}) != 1:
            raise ValueError("X must hold at least one input by name, and all inputs the same number of records")
        shape = tuple((name, values.shape[1:], _KINDS[values.dtype.kind]) for name, values in arrays.items())
        kind = np.float64 if any(values.dtype == np.float64 for values in arrays.values()) else np.float32
        rows = [values.reshape(len(values), -1).astype(kind) for values in arrays.values()]
        return cls(np.concatenate(rows, axis=1), shape)


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """Return numbers in equal shapes as an array.

    Whole numbers must be exact in float32.
    """
    try:
        found = np.asarray(to_array(values))
    except Exception:  # the message of the library may describe records
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in _KINDS or not found.ndim:
        raise ValueError(
            f"{name!r} must hold real numbers in one shape for all records; pad texts to a public length, and remove "
            "columns that are not inputs"
        )
    if found.dtype.kind in "iu" and found.size and max(-int(found.min()), int(found.max())) > _MOST_EXACT:
        raise ValueError(f"{name!r} must hold whole numbers up to {_MOST_EXACT}")
    return found


def split_target(columns: Mapping[str, Any], target: Any = None) -> tuple[dict[str, Any], Any]:
    """Return the inputs and the target, which is a column; None without one.

    The column has this name, or one of ``TARGETS``.
    """
    known = (target,) if isinstance(target, str) else TARGETS
    name = next((name for name in known if name in columns), None)
    return {key: value for key, value in columns.items() if key != name}, None if name is None else columns[name]


def read_shape(written: Any) -> tuple[Any, ...]:
    """Return the shape of a record as written in a file.

    It has sizes, or (name, shape, kind) of each input.
    """
    kinds, named = tuple(_KINDS.values()), is_named(written)
    parts: list[Any] = [_read_input(part, kinds) if named else check_count("input_shape", part) for part in written]
    if not parts or count_numbers(parts) > _LONGEST_RECORD:
        raise ValueError(f"input_shape must be the shape of a record with at most {_LONGEST_RECORD} numbers")
    return tuple(parts)


def _read_input(part: Any, kinds: tuple[str, ...]) -> tuple[str, tuple[int, ...], str]:
    name, shape, kind = part
    return str(name), tuple(check_count("input_shape", size) for size in shape), check_choice("kind", kind, kinds)


def comes_from_torch(value: Any) -> bool:
    """Return whether an object's class comes from torch, without its import."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(value).__mro__)


def _has_names(X: Any) -> bool:
    """Return whether records have inputs by name.

    Some sparse matrices are mappings of places.
    """
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
        return NamedInputs.of(columns), to_array(y if target is None else target)
    if not _holds_items(X):
        return to_array(X), to_array(y)
    if y is not None:
        raise ValueError(f"y must be left out, because the items of a {type(X).__name__} contain the targets")
    inputs, targets = _read_items(X)
    if targets is None:
        raise ValueError(ITEMS)
    return inputs, targets


def inputs_of(X: Any) -> Any:
    """Return the inputs alone, as an array or by name.

    In a ``Dataset``, they are the first part of each item.
    """
    if _has_names(X):
        return NamedInputs.of(split_target(_columns_of(X))[0])
    return _read_items(X)[0] if _holds_items(X) else to_array(X)


def has_own_items(value: Any) -> bool:
    """Return whether the caller's code may compute the items.

    Those of a ``TensorDataset`` are rows of its tensors.
    """
    if not comes_from_torch(value):
        return False
    data = _torch().utils.data
    return isinstance(value, data.Dataset) and type(value) is not data.TensorDataset


def takes_float64(owner: Any) -> bool:
    """Return whether a torch module inside this object takes float64 rows.

    The object is an estimator, a mechanism or a model.
    """
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


def to_array(value: Any) -> Any:
    """Return a tensor, or a list of one tensor for each record, as an array.

    Other values stay as they are.
    """
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
            found = to_array(torch.stack([tensor.detach().cpu() for tensor in tensors]))
    if found is None:
        raise ValueError("a list of tensors must hold one tensor for each record, all of one shape and type")
    return np.asarray(found)


def _read_items(dataset: Any) -> tuple[Any, NDArray[Any] | None]:
    """Return the inputs of all items, as an array or by name, and their targets.

    Targets are None if items have none.
    """
    if type(dataset) is _torch().utils.data.TensorDataset:  # its items are rows of its tensors, which may have none
        inputs, *others = (np.asarray(to_array(part)) for part in dataset.tensors)
        return inputs, others[0] if len(others) == 1 else None
    shape = record_shape(dataset)
    refuse_changing_items(dataset)
    rows, targets = stack_items([read_item(dataset[place]) for place in range(len(dataset))], shape)
    return NamedInputs(rows, shape) if is_named(shape) else rows, targets


def read_item(item: Any) -> Item:
    """Read one item of a data set."""
    is_mapping = isinstance(item, Mapping)
    try:
        if is_mapping:
            inputs, label = split_target(item)
            labels = [] if label is None else [label]
        else:
            first, *labels = item if isinstance(item, tuple | list) else (item,)
            inputs = {"": first}
        arrays = {name: np.asarray(to_array(value)) for name, value in inputs.items()}
        target = np.asarray(to_array(labels[0])) if len(labels) == 1 else None
    except Exception:  # a message of torch or NumPy may describe the item
        raise ValueError(ITEMS) from None
    packed = NamedInputs.of({name: values[None] for name, values in arrays.items()}) if is_mapping else None
    row, shape = (arrays[""], arrays[""].shape) if packed is None else (packed.rows[0], packed.input_shape)
    if row.dtype.kind not in _KINDS or not row.ndim or (target is not None and target.dtype == object):
        raise ValueError(ITEMS)
    return row, target, shape


def stack_items(items: Sequence[Item], shape: tuple[Any, ...]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return inputs and targets, (n, ...), of items with this shape of inputs."""
    targets = [target for _, target, _ in items if target is not None]
    if any(one != shape for *_, one in items) or len({target.shape for target in targets}) > 1:
        raise ValueError(ITEMS)
    return np.stack([row for row, *_ in items]), np.stack(targets) if len(targets) == len(items) else None


def record_shape(dataset: Any) -> tuple[Any, ...]:
    """Return the public shape of a record.

    It is that of the first item, or of the tensors of a ``TensorDataset``.
    """
    if len(dataset):
        return read_item(dataset[0])[2]
    tensors: Any = getattr(dataset, "tensors", ())
    if len(tensors) != 2:
        raise ValueError(
            f"the {type(dataset).__name__} contains 0 sample(s), so the shape of its records is not known; pass arrays "
            "or a TensorDataset of shape (0, ...) for a part without records"
        )
    return tuple(tensors[0].shape[1:])


def refuse_changing_items(dataset: Any) -> None:
    """Refuse a data set whose first items differ from one reading to the next."""
    for place in range(min(len(dataset), _READ_TWICE)):
        first, second = (read_item(dataset[place])[:2] for _ in range(2))
        if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in zip(first, second, strict=True)):
            raise ValueError(f"an item of the {type(dataset).__name__} changed when it was read again. {CHANGE_REMEDY}")
