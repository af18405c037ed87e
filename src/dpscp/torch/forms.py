"""Describe the inputs of one record: their names, shapes and kinds of numbers.

Records travel through the library as rows of numbers. A module gets tensors: one of one shape, or several by name
(``input_ids``, ``attention_mask``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpscp.torch.library import Tensor, torch


@dataclass(frozen=True)
class Input:
    """One tensor of a record; ``name`` None: the only one, passed by position."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str

    @property
    def numbers(self) -> int:
        """Return how many numbers of a row this input takes."""
        return math.prod(self.shape)

    @property
    def is_real(self) -> bool:
        """Return whether it holds real numbers."""
        return self.dtype.startswith("float")


@dataclass(frozen=True)
class RecordForm:
    """The inputs of one record, in the order of the numbers of a row."""

    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, input_shape: Sequence[Any], dtype: str) -> Self:
        """Return the form of a shape, or of (name, shape, kind) for each input; ``dtype``: of real inputs."""
        if all(isinstance(size, int) for size in input_shape):
            return cls((Input(None, tuple(input_shape), dtype),))
        kinds = {"real": dtype, "integer": "int64", "boolean": "bool"}
        return cls(tuple(Input(name, tuple(shape), kinds[kind]) for name, shape, kind in input_shape))

    @property
    def numbers(self) -> int:
        """Return how many numbers a row has."""
        return sum(part.numbers for part in self.inputs)

    def with_integers(self) -> Self:
        """Return the form of one input with whole numbers in place of real ones."""
        (part,) = self.inputs
        return type(self)((Input(part.name, part.shape, "int64"),))

    def tensors(self, rows: NDArray[Any]) -> list[Tensor]:
        """Return the inputs of rows (n, numbers), records first, in memory of their own."""
        found, start = [], 0
        for part in self.inputs:
            columns = rows[:, start : start + part.numbers].reshape(len(rows), *part.shape)
            found.append(torch.tensor(np.ascontiguousarray(columns), dtype=getattr(torch, part.dtype)))
            start += part.numbers
        return found

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the arguments of a module, by position and by name."""
        named = {part.name: tensor for part, tensor in zip(self.inputs, tensors, strict=True) if part.name is not None}
        return [] if named else list(tensors), named

    def synthetic(self, count: int, seed: int) -> list[Tensor]:
        """Return synthetic records: real numbers in [0, 1), whole numbers 0 and 1.

        They are indices of any table, and masks.
        """
        draw = torch.Generator().manual_seed(seed)
        found = []
        for part in self.inputs:
            numbers = torch.rand((count, *part.shape), generator=draw, dtype=torch.float64)
            found.append((numbers if part.is_real else numbers < 0.75).to(getattr(torch, part.dtype)))
        return found
