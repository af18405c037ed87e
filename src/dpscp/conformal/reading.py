"""Records of a source as a fit reads them: every number and target looked at once, before anything is spent."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.records import check_finite, group_index
from dpscp.sources import Block, RecordSource

__all__ = ["Reading", "checked_source"]


@dataclass(frozen=True)
class Reading:
    """A block with its targets as the task counts them and each record's group.

    ``targets(y, n)`` checks and encodes the targets of n records; ``groups`` is a function of rows with public
    ``group_values``, or ``"label"``.
    """

    targets: Callable[[Any, int], NDArray[Any]]
    groups: str | Callable[[Any], Any] | None = None
    group_values: tuple[Any, ...] | None = None
    thorough: bool = False

    def __call__(self, block: Block) -> Block:
        """The block as a release takes it; refused with the words for a table in memory."""
        targets = self.targets(block.targets, len(block)) if len(block) else np.empty(0, dtype=np.int64)
        groups: NDArray[np.int64] | None = None
        if callable(self.groups):
            values = self.group_values or ()
            groups = group_index(self.groups, block.read(), values, len(block), thorough=self.thorough)
        elif self.groups is not None:
            groups = targets
        return replace(block, targets=targets, groups=groups)


def checked_source(source: RecordSource, reading: Reading) -> tuple[RecordSource, int]:
    """The source as the fit reads it, and how many records it holds; a bad record in any block is refused."""
    found = source.map(replace(reading, thorough=True)).sum(_look)
    if not found:
        raise ValueError("X holds 0 sample(s): at least one record is needed")
    return source.map(reading, keep=source.whole is not None), found


def _look(block: Block) -> int:
    if block.persons is not None:
        raise ValueError("persons in blocks are not known to a fit: give rows, targets and persons=ids as arrays")
    for _, rows in block.parts():
        check_finite(rows)
    return len(block)
