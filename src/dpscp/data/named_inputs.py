"""Pack records with several inputs by name (``input_ids``, ``attention_mask``) into rows of numbers.

The shape of such a record is a tuple of (name, shape, kind), where the kind is "real", "integer" or "boolean". That of
other records is a tuple of sizes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count

# Names of the target in libraries of tokens and data sets.
TARGETS = ("labels", "label")
# The largest whole number up to which all are exact in float32.
_MOST_EXACT = 2**24
_LONGEST_RECORD = 2**24
_KINDS = {"f": "real", "i": "integer", "u": "integer", "b": "boolean"}


def count_numbers(input_shape: Sequence[Any]) -> int:
    """Return how many numbers a record of this shape has."""
    return sum(math.prod(part[1]) for part in input_shape) if is_named(input_shape) else math.prod(input_shape)


def is_named(input_shape: Sequence[Any]) -> bool:
    """Return whether this is the shape of a record with several inputs by name."""
    return bool(input_shape) and isinstance(input_shape[0], tuple | list)


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
    """Return numbers in equal shapes as an array; whole numbers must be exact in float32."""
    if callable(getattr(values, "detach", None)):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        found = np.asarray(values)
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
    """Return the inputs and the target: the column with this name or one of ``TARGETS``; None without such a column."""
    known = (target,) if isinstance(target, str) else TARGETS
    name = next((name for name in known if name in columns), None)
    return {key: value for key, value in columns.items() if key != name}, None if name is None else columns[name]


def read_shape(written: Any) -> tuple[Any, ...]:
    """Return the shape of a record from a file: sizes, or (name, shape, kind) of each input."""
    kinds, named = tuple(_KINDS.values()), is_named(written)
    parts: list[Any] = [_read_input(part, kinds) if named else check_count("input_shape", part) for part in written]
    if not parts or count_numbers(parts) > _LONGEST_RECORD:
        raise ValueError(f"input_shape must be the shape of a record with at most {_LONGEST_RECORD} numbers")
    return tuple(parts)


def _read_input(part: Any, kinds: tuple[str, ...]) -> tuple[str, tuple[int, ...], str]:
    name, shape, kind = part
    return str(name), tuple(check_count("input_shape", size) for size in shape), check_choice("kind", kind, kinds)
