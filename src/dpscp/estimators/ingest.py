"""The records of a fit, in memory or in a source: every number and target looked at once, before anything is spent."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.persons import kept_rows
from dpscp.data.populations import Thinning
from dpscp.data.sources import ArraySource, Block, DistributedSource, RecordSource
from dpscp.data.sources.digests import FirstReading, SameBlocks, is_fixed
from dpscp.data.sources.persons import KeptRows, PersonSource
from dpscp.data.validation import check_finite, group_index
from dpscp.exceptions import SeededWarning
from dpscp.privacy.random_streams import KEPT_ROWS, BlockStreams, secure_bytes
from dpscp.privacy.units import Unit
from dpscp.training.engine.cuda import check_device


@dataclass(frozen=True)
class BlockReader:
    """A block with its targets as the task counts them and each record's group.

    ``targets(y, n)`` checks and encodes the targets of n records; ``groups`` is a function of rows with public
    ``group_values``, or ``"label"``. ``thinning`` puts records that its coins reject into no group.
    """

    targets: Callable[[Any, int], NDArray[Any]]
    groups: str | Callable[[Any], Any] | None = None
    group_values: tuple[Any, ...] | None = None
    thorough: bool = False
    thinning: Thinning | None = None

    def __call__(self, block: Block) -> Block:
        """The block as a release takes it; refused with the words for a table in memory."""
        targets = self.targets(block.targets, len(block)) if len(block) else np.empty(0, dtype=np.int64)
        groups: NDArray[np.int64] | None = None
        if callable(self.groups):
            values = self.group_values or ()
            groups = group_index(self.groups, block.read(), values, len(block), thorough=self.thorough)
        elif self.groups is not None:
            groups = targets
        if self.thinning is not None:
            groups = self.thinning.place_groups(
                block.id, block.read(), block.targets, groups, len(block), thorough=self.thorough
            )
        return replace(block, targets=targets, groups=groups)


@dataclass(frozen=True)
class FitInput:
    """What a caller gave to ``fit``: X as it was ``brought``, as a ``table``, and as a schema or a source reads it.

    ``rows`` are checked numbers; None for the records of a source.
    """

    brought: Any
    table: Any
    X: Any
    y: Any
    persons: Any
    rows: NDArray[np.float64] | None
    unit: Unit


@dataclass(frozen=True)
class FitRecords:
    """The records of a fit and what is public about them; ``found``, the number of units, only where it is declared."""

    records: RecordSource
    width: int
    group_values: tuple[Any, ...] | None
    unit: Unit
    found: int


def records_from_source(
    given: FitInput, reading: BlockReader, random_state: int | None, device: str | None
) -> FitRecords:
    """The records of a source as the fit reads them; a bad one in any block is refused before anything is spent, and so
    is a process that has some and no such device.
    """
    if given.y is not None:
        raise ValueError("y must be left out: the blocks of a source hold their targets")
    source: RecordSource = given.X
    by_person = given.unit.by_person
    if by_person and isinstance(source, DistributedSource) and not source.by_person:
        raise ValueError(
            "rows of one person may lie in several processes: give the ids, DistributedSource(X, y, persons=ids), or "
            "files that are read by the same schema"
        )
    look = _FirstLook(replace(reading, thorough=True), by_person, device)
    if is_fixed(source):
        found = source.sum(look)
    else:
        key = secure_bytes()(32)
        found, digests = source.sum(FirstReading(look, key))
        source = source.map(SameBlocks(dict(digests), key))
    if not found:
        raise ValueError("X holds 0 sample(s): at least one record is needed")
    if by_person:
        streams = BlockStreams.of(random_state, KEPT_ROWS)
        source = PersonSource(source.map(KeptRows(streams, given.unit.cap)), given.unit)
    records = source.map(reading, keep=source.whole is not None)
    return FitRecords(records, source.width, reading.group_values, given.unit, found)


@dataclass(frozen=True)
class _FirstLook:
    """How many records, or persons, a block has, after a look at all its numbers."""

    reading: BlockReader
    by_person: bool
    device: str | None

    def __call__(self, block: Block) -> int:
        block = self.reading(block)
        if self.device is not None:
            check_device(self.device)
        if len(block) and (block.persons is not None) != self.by_person:
            raise ValueError(
                "the blocks of this source hold persons, and nothing says so: give the schema that names their column"
                if block.persons is not None
                else "the schema names a column of persons, and the blocks of this source hold none"
            )
        for _, rows in block.parts():
            check_finite(rows)
        return block.owners.count


def records_from_arrays(
    given: FitInput,
    targets: NDArray[Any],
    grouped: tuple[NDArray[np.int64] | None, tuple[Any, ...] | None],
    random_state: int | None,
    thinning: Thinning | None = None,
) -> FitRecords:
    """Checked arrays as one block: all rows, or the kept ones of each person."""
    (groups, group_values), rows = grouped, given.rows
    assert rows is not None
    if thinning is not None:
        groups = thinning.place_groups(0, given.table, given.y, groups, len(rows), thorough=True)
    found, block = len(rows), Block(0, rows, targets, groups=groups)
    if given.unit.by_person:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # told once, when the release is made
            kept, owners = kept_rows(
                given.persons,
                n_rows=len(rows),
                rows_per_person=given.unit.cap,
                random_state=random_state,
                columns=getattr(given.X, "columns", ()),
            )
        groups, found = None if groups is None else groups[kept], owners.count
        block = Block(0, rows, targets[kept], owners, groups, kept)
    return FitRecords(ArraySource.of_blocks([block]), rows.shape[1], group_values, given.unit, found)
