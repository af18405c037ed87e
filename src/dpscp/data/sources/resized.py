"""Sources whose rows get another width from a step that adds columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from dpscp.data.sources.base import Block, RecordSource

Total = TypeVar("Total")


@dataclass(frozen=True)
class ResizedSource:
    """The blocks of ``source``, whose rows have ``width`` numbers after their steps."""

    source: RecordSource
    width: int

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "ResizedSource":
        return ResizedSource(self.source.map(function, keep=keep), self.width)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        return self.source.sum(function)


@dataclass(frozen=True)
class ResizeBlock:
    """Tell a block the width of its rows after the steps."""

    width: int

    def __call__(self, block: Block) -> Block:
        return replace(block, n_columns=self.width)
