"""Read records from memory or a memory-mapped file, in one or several blocks."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from dpscp._base.checks import check_count
from dpscp.data.sources.base import MOST_IN_A_BLOCK, Block, added

Total = TypeVar("Total")


class ArraySource:
    """Read records from arrays or memory-mapped files, in one or several blocks.

    Blocks are views of the arrays; nothing is copied. A memmap is read block by block.

    Parameters
    ----------
    X : array of shape (n_records, n_features)
        Real numbers.
    y : array of shape (n_records,)
        One target for each row.
    n_blocks : int
        The number of blocks of equal size (up to one record). Results depend on it only by the order in which
        floating-point numbers are added.

    >>> X, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    >>> ArraySource(X, y, n_blocks=3).sum(lambda block: block.read().sum(axis=0)).tolist()
    [30.0, 36.0]
    """

    def __init__(self, X: Any, y: Any, *, n_blocks: int = 1) -> None:
        rows, targets = np.asanyarray(X), np.asanyarray(y)
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise ValueError("X must be a two-dimensional array of real numbers (records, features)")
        if targets.ndim not in (1, 2) or len(targets) != len(rows):
            raise ValueError("y must have one target, or one row of indicators, for each row of X")
        count = check_count("n_blocks", n_blocks)
        ends = [len(rows) * i // count for i in range(count + 1)]
        parts = [slice(a, b) for a, b in pairwise(ends)]
        if max(part.stop - part.start for part in parts) > MOST_IN_A_BLOCK:
            raise ValueError(
                f"n_blocks={n_blocks} puts more than {MOST_IN_A_BLOCK} records in a block; use a larger n_blocks"
            )
        self._blocks = [Block(i, rows[part], targets[part]) for i, part in enumerate(parts)]
        self._functions: tuple[Callable[[Block], Block], ...] = ()

    @classmethod
    def of_blocks(cls, blocks: Sequence[Block]) -> "ArraySource":
        """Build a source from blocks in memory.

        Their ids are 0, 1, 2, ...
        """
        source = cls.__new__(cls)
        source._blocks, source._functions = list(blocks), ()
        return source

    @property
    def width(self) -> int:
        """Return the number of features of a row."""
        return self._blocks[0].width

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks, which are in the memory of this process."""
        return [self._apply_functions(block) for block in self._blocks]

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "ArraySource":
        """Return the source of ``function(block)``."""
        source = ArraySource.of_blocks(self._blocks)
        source._functions = (*self._functions, function)
        return ArraySource.of_blocks(source.blocks) if keep else source

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks, see ``RecordSource``."""
        return added(function(self._apply_functions(block)) for block in self._blocks)

    def _apply_functions(self, block: Block) -> Block:
        for function in self._functions:
            block = function(block)
        return block
