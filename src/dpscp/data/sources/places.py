"""Join the rows of each person in one block, and number all persons.

Random draws belong to these numbers. Rows of a table are in any order. They are first split into blocks by a hash of
the person's id, so that all rows of a person are in one block. The number of blocks depends on the number of rows. So
adding or removing a person may move others to other blocks. Privacy does not depend on that. There are three reasons.
The draws of persons (kept rows, batches, held-out parts) belong to their places in the order of their first rows in the
table, for any division into blocks. The cap and the weights bound what a person adds to a sum, in any block. The
rounding of sums is bounded, and charged, for any order of records.

A source is read once to count the persons of each block. The counts stay inside the fit and are never released. They
give every person a place 0, 1, 2, ..., block after block. Each random choice for a person (the coin of the secret
split, the batches, the choice of rows) is the draw for that place in one stream.

Why the distribution is correct. The draws of a stream are independent, have one distribution, and do not depend on the
records. Places depend on the records alone, and no two persons share one. So, given the records, the persons' draws are
independent with that distribution, for any blocks and order: a separate coin decides whether a person enters a batch or
a part. The same holds for a table with one more person. The proofs couple the two tables by inserting the new person's
draw at its place. All others keep theirs, and the sums differ by what the new person adds. The streams are secret and
fresh in each run, so the proofs do not need different draws for the two tables.

Theory: Fact 6; Result H
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp._base.checks import check_count
from dpscp.data.persons import PersonIds, Persons, choose_kept_rows, read_person_ids
from dpscp.data.sources.base import ArraySource, Block, RecordSource
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.privacy.units import RECORDS, Unit

Index = NDArray[np.int64]
Total = TypeVar("Total")
PersonRows = tuple[Array, Array, PersonIds]
"""Rows, targets, and the id of each row's person."""


def take_census(block: Block) -> list[tuple[int, int, int]]:
    """Return a block's number and its private numbers of persons and rows.

    ``sum`` can join the result.
    """
    return [(block.id, block.owners.count, len(block))]


@dataclass(frozen=True)
class Places:
    """Number the persons and the rows of each block among all.

    Blocks follow one another.
    """

    persons: Mapping[int, range]
    rows: Mapping[int, range]
    count: int

    @classmethod
    def of(cls, counted: list[tuple[int, int, int]]) -> Self:
        """Return the places that follow from the counts of all blocks."""
        persons, rows = {}, {}
        n_persons = n_rows = 0
        for number, more_persons, more_rows in sorted(counted):
            persons[number] = range(n_persons, n_persons + more_persons)
            rows[number] = range(n_rows, n_rows + more_rows)
            n_persons, n_rows = n_persons + more_persons, n_rows + more_rows
        return cls(persons, rows, n_persons)

    def shares(self, drawn: Index) -> dict[int, Index]:
        """Return the persons of each block that are at the drawn places, which increase."""
        if len(self.persons) == 1:
            return dict.fromkeys(self.persons, drawn)
        starts = [places.start for places in self.persons.values()]
        parts = np.split(drawn, np.searchsorted(drawn, starts[1:]))
        return {n: part - start for n, start, part in zip(self.persons, starts, parts, strict=True)}


@dataclass(frozen=True)
class UnitSource(RecordSource):
    """A source with its unit of privacy and, if known, places and row width.

    The width is that of its rows after a step. Where the unit is a person, every person has all their rows in one
    block, side by side, at most ``unit.cap`` of them. The places after ``map`` are not known, because a mapped source
    may have fewer persons.
    """

    source: RecordSource
    unit: Unit = RECORDS
    places: Places | None = None
    n_columns: int | None = None

    @property
    def width(self) -> int:  # type: ignore[override]  # that of the source, which does not change
        return self.source.width if self.n_columns is None else self.n_columns

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "UnitSource":
        return UnitSource(self.source.map(function, keep=keep), self.unit, None, self.n_columns)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        return self.source.sum(function)


def unit_of_blocks(source: RecordSource) -> Unit:
    """Return the unit of privacy of a source."""
    return source.unit if isinstance(source, UnitSource) else RECORDS


def innermost(source: RecordSource) -> RecordSource:
    """Return the source that reads the records, without its wrappers."""
    return innermost(source.source) if isinstance(source, UnitSource) else source


def resize_rows(source: RecordSource, width: int) -> UnitSource:
    """Return the source with this public width of its rows after the last step."""
    whole = source if isinstance(source, UnitSource) else UnitSource(source)
    return replace(whole, source=whole.source.map(partial(replace, n_columns=width)), n_columns=width)


def places_of(source: RecordSource) -> Places:
    """Return the places of a source's persons; read the source if needed."""
    known = source.places if isinstance(source, UnitSource) else None
    return Places.of(source.sum(take_census)) if known is None else known


def is_in_memory(source: RecordSource) -> bool:
    """Return whether the blocks of a source are in the memory of this process.

    It costs little to keep a result of such blocks.
    """
    return isinstance(innermost(source), ArraySource)


def blocks_in_memory(source: RecordSource) -> list[Block]:
    """Return the blocks of a source in the memory of this process.

    The list is empty for a source whose records are elsewhere.
    """
    inner = innermost(source)
    return inner.blocks if isinstance(inner, ArraySource) else []


def as_one_block(source: RecordSource) -> Block | None:
    """Return all records in one block, for code that needs arrays.

    None where they are not in this process.
    """
    blocks = blocks_in_memory(source)
    if len(blocks) < 2:
        return blocks[0] if blocks else None
    first = blocks[0]
    sizes = np.concatenate([block.owners.sizes for block in blocks])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return replace(
        first,
        rows=np.concatenate([block.read() for block in blocks]),
        targets=np.concatenate([block.targets for block in blocks]),
        persons=None if first.persons is None else Persons(offsets, first.persons.rows_per_person),
        groups=None if first.groups is None else np.concatenate([block.groups for block in blocks]),
        chosen=None,
        steps=(),
    )


def nominal_count(source: RecordSource, n_records: int | None) -> int:
    """Return the public nominal number of records or persons.

    None declares the true number public.
    """
    name = unit_of_blocks(source).count_name
    if n_records is not None:
        return check_count(name, n_records)
    counted = source.sum(unit_count)
    if not counted:
        raise ValueError(f"X contains no records; pass {name}, the public nominal number")
    return int(counted)


def unit_count(block: Block) -> int:
    """Return the number of persons, or of records without ids, in a block. Private."""
    return block.owners.count


def keep_rows(draws: PlacedDraws, places: Places, rows_per_person: int, block: Block) -> Block:
    """Limit the rows of each person to a uniform choice, equal at each reading.

    Theory: Result H
    """
    sizes = block.owners.sizes
    number = np.repeat(np.arange(len(sizes)), sizes)
    drawn = draws.uniform(places.rows[block.id])
    return block.take_rows(*choose_kept_rows(number, rows_per_person, drawn))


def one_row_of_each(
    source: RecordSource, seed: int | None, places: Places | None = None, *, keep: bool = False
) -> RecordSource:
    """Choose one row of each person of a source uniformly, with this seed.

    All rows are kept where each is a record. A count of these rows changes by at most one with a person.

    Theory: Result H
    """
    if not unit_of_blocks(source).by_person:
        return source
    return source.map(partial(choose_one_row, PlacedDraws.of(seed), places or places_of(source)), keep=keep)


def choose_one_row(draws: PlacedDraws, places: Places, block: Block) -> Block:
    """Choose one row of each person of a block uniformly."""
    drawn = draws.uniform(places.persons[block.id])
    return block.take_rows(block.owners.one_row_of_each(drawn), None)


def split_by_person(rows: Array, targets: Array, persons: Any, count: int) -> list[PersonRows]:
    """Split rows, targets and ids by a hash of the ids, in the order of rows."""
    ids = read_person_ids(persons)
    if not len(ids) == len(rows) == len(targets):
        raise ValueError("persons must contain one id for each row")
    place = ids.hashes() % np.uint64(count)
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(1, count, dtype=np.uint64))
    return [(rows[part], targets[part], ids[part]) for part in np.split(order, ends)]


def join_person_block(number: int, pieces: Sequence[PersonRows]) -> Block:
    """Build the block of one place; persons are in order of first appearance."""
    # an empty piece also has the kind of the ids in its table, unless the table was empty too
    ids = PersonIds.joined([piece[2] for piece in pieces])
    found = [piece for piece in pieces if len(piece[2])] or list(pieces[:1])
    rows, targets = (np.concatenate([piece[part] for piece in found]) for part in (0, 1))
    person = ids.numbers()
    order = np.argsort(person, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person))]).astype(np.int64)
    return Block(number, rows[order], targets[order], Persons(offsets))
