"""A source whose rows have another width than they were stored with, after a step that adds columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from dpscp.data.sources.base import Block, RecordSource
from dpscp.data.sources.persons import PersonSource

Total = TypeVar("Total")


@dataclass(frozen=True)
class ResizedSource:
    """The blocks of ``source``, whose rows have ``width`` numbers after their steps."""

    source: RecordSource
    width: int

    @property
    def whole(self) -> Block | None:
        return self.source.whole

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "ResizedSource":
        return ResizedSource(self.source.map(function, keep=keep), self.width)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        return self.source.sum(function)


@dataclass(frozen=True)
class _ResizedBlock:
    """A block that knows the width of its rows after the steps."""

    width: int

    def __call__(self, block: Block) -> Block:
        return replace(block, n_columns=self.width)


def resize_rows(source: RecordSource, width: int) -> RecordSource:
    """The same source, whose last step gives rows of this public width."""
    if isinstance(source, PersonSource):
        return PersonSource(resize_rows(source.source, width), source.unit)
    return ResizedSource(source.map(_ResizedBlock(width)), width)
