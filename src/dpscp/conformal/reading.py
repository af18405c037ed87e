"""The records of a fit, in memory or in a source: every number and target looked at once, before anything is spent."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.exceptions import SeededWarning
from dpscp.persons import Unit, kept_rows
from dpscp.privacy.seeds import KEPT_ROWS, PlacedDraws, stream_seed
from dpscp.records import check_finite, group_index
from dpscp.sources import ArraySource, Block, DistributedSource, RecordSource
from dpscp.sources.persons import KeptRows
from dpscp.sources.places import Census, Places, UnitSource, census, is_here
from dpscp.training.device import check_device


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


@dataclass(frozen=True)
class Given:
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
class Taken:
    """The records of a fit and what is public about them; ``found``, the number of units, only where it is declared."""

    records: RecordSource
    width: int
    group_values: tuple[Any, ...] | None
    unit: Unit
    found: int


def from_source(given: Given, reading: Reading, random_state: int | None, device: str | None) -> Taken:
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
    places = Places.of(source.map(replace(reading, thorough=True)).sum(_FirstLook(by_person, device)))
    if not places.count:
        raise ValueError("X holds 0 sample(s): at least one record is needed")
    if by_person:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeededWarning)  # told once, when the release is made
            draws = PlacedDraws.of(stream_seed(random_state, KEPT_ROWS))
        source = source.map(KeptRows(draws, places, given.unit.cap))
    records = UnitSource(source.map(reading, keep=is_here(source)), given.unit.of_blocks, places)
    return Taken(records, source.width, reading.group_values, given.unit, places.count)


@dataclass(frozen=True)
class _FirstLook:
    """How many records and persons a block has, after a look at all its numbers."""

    by_person: bool
    device: str | None

    def __call__(self, block: Block) -> Census:
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
        return census(block)


def from_arrays(
    given: Given,
    targets: NDArray[Any],
    grouped: tuple[NDArray[np.int64] | None, tuple[Any, ...] | None],
    random_state: int | None,
) -> Taken:
    """Checked arrays as one block: all rows, or the kept ones of each person."""
    (groups, group_values), rows = grouped, given.rows
    assert rows is not None
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
    records = UnitSource(ArraySource.of_blocks([block]), given.unit.of_blocks)
    return Taken(records, rows.shape[1], group_values, given.unit, found)
