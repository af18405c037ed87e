"""Number the persons of all blocks; draws belong to these places, not to blocks.

A source is read once to count the persons of each block. The counts stay inside the fit and are never released. They
give every person a place 0, 1, 2, ...: block after block, or, where rows of a person were joined from all over a table,
in the order of first rows. Each random choice for a person (the coin of the secret split, the batches, the choice of
rows) is the draw for that place in one stream.

Why the distribution is correct. The draws of a stream are independent, have one distribution, and do not depend on the
records. Places depend on the records alone, and no two persons share one. So, given the records, the persons' draws are
independent with that distribution, for any blocks and order: a separate coin decides whether a person enters a batch or
a part. The same holds for a table with one more person. The proofs couple the two tables by inserting the new person's
draw at its place. All others keep theirs, and the sums differ by what the new person adds. The streams are secret and
fresh in each run, so the proofs do not need different draws for the two tables.

Theory: Fact 6; Result H
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.data.persons import Persons
from dpscp.data.sources.base import ArraySource, Block, RecordSource
from dpscp.privacy.units import RECORDS, Unit

Index = NDArray[np.int64]
Some = range | Index
Total = TypeVar("Total")


@dataclass(frozen=True)
class BlockCounts:
    """The private counts of a block; if blocks mix persons, also each person's order and number of rows."""

    number: int
    persons: int
    rows: int
    order: Index | None
    sizes: Index | None


def take_census(block: Block) -> list[BlockCounts]:
    """Return the counts of one block, in a form that ``sum`` joins."""
    owners = block.owners
    sizes = None if block.order is None else owners.sizes
    return [BlockCounts(block.id, owners.count, len(block), block.order, sizes)]


@dataclass(frozen=True)
class Places:
    """The place of each person among all persons, and of each row.

    Rows are numbered person by person.
    """

    persons: Mapping[int, Some]
    rows: Mapping[int, Some]
    count: int

    @classmethod
    def of(cls, counted: list[BlockCounts]) -> Self:
        """Return the places that follow from the counts of all blocks."""
        blocks = sorted(counted, key=attrgetter("number"))
        persons, rows = {}, {}
        n_persons = n_rows = 0
        for block in blocks:
            if block.order is not None:
                return cls._from_orders(blocks)
            persons[block.number] = range(n_persons, n_persons + block.persons)
            rows[block.number] = range(n_rows, n_rows + block.rows)
            n_persons, n_rows = n_persons + block.persons, n_rows + block.rows
        return cls(persons, rows, n_persons)

    @classmethod
    def _from_orders(cls, blocks: list[BlockCounts]) -> Self:
        count = sum(block.persons for block in blocks)
        nobody = np.empty(0, dtype=np.int64)
        orders = [nobody if block.order is None else block.order for block in blocks]
        sizes = np.concatenate([nobody if block.sizes is None else block.sizes for block in blocks])
        by_place = np.argsort(np.concatenate(orders), kind="stable")
        places = np.empty(count, dtype=np.int64)
        places[by_place] = np.arange(count)
        row_starts = np.empty(count, dtype=np.int64)
        row_starts[by_place] = np.cumsum(sizes[by_place]) - sizes[by_place]
        ends = np.cumsum([len(order) for order in orders])[:-1]
        parts = zip(np.split(places, ends), np.split(row_starts, ends), np.split(sizes, ends), strict=True)
        found = {block.number: part for block, part in zip(blocks, parts, strict=True)}
        return cls(
            {number: persons for number, (persons, _, _) in found.items()},
            {number: _runs(starts, own) for number, (_, starts, own) in found.items()},
            count,
        )

    def for_block(self, number: int) -> Self:
        """Return the places of one block alone."""
        return replace(self, persons={number: self.persons[number]}, rows={number: self.rows[number]})

    def shares(self, drawn: Index) -> dict[int, Index]:
        """Return the persons of each block that are at the drawn places.

        The drawn places increase.
        """
        if len(self.persons) == 1:
            return dict.fromkeys(self.persons, drawn)
        if self._holders is None:
            # blocks follow one another
            starts = [places.start for places in self._ranges]
            parts = np.split(drawn, np.searchsorted(drawn, starts[1:]))
            return {n: part - start for n, start, part in zip(self.persons, starts, parts, strict=True)}
        holder, own_place = self._holders
        order = np.argsort(holder[drawn], kind="stable")
        sorted_places = drawn[order]
        ends = np.searchsorted(holder[sorted_places], np.arange(1, len(self.persons)))
        parts = np.split(own_place[sorted_places], ends)
        return dict(zip(self.persons, parts, strict=True))

    @property
    def _ranges(self) -> list[range]:
        return [places for places in self.persons.values() if isinstance(places, range)]

    @cached_property
    def _holders(self) -> tuple[Index, Index] | None:
        """Return the block and the person at each place.

        None where blocks follow one another.
        """
        if len(self._ranges) == len(self.persons):
            return None
        holder, own_place = np.empty((2, self.count), dtype=np.int64)
        for i, places in enumerate(self.persons.values()):
            holder[places], own_place[places] = i, np.arange(len(places))
        return holder, own_place


class PlacedFunction:
    """Base class, for frozen dataclasses, of functions of a block that use places; a block gets only its own."""

    places: Places

    def for_block(self, number: int) -> Self:
        """Return the function with the places of one block."""
        return replace(self, places=self.places.for_block(number))  # type: ignore[type-var]  # a dataclass


def _runs(starts: Index, sizes: Index) -> Index:
    """Return one run of consecutive numbers for each start and size."""
    offsets = np.cumsum(sizes) - sizes
    return np.asarray(np.repeat(starts - offsets, sizes) + np.arange(int(sizes.sum())), dtype=np.int64)


@dataclass(frozen=True)
class UnitSource(RecordSource):
    """A source with its unit of privacy and, if known, its places and the width of its rows after a step.

    Where the unit is a person, every person has all their rows in one block, side by side, at most ``unit.cap`` of
    them. The places after ``map`` are not known, because a mapped source may have fewer persons.
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
        order=None,
    )


def nominal_count(source: RecordSource, n_records: int | None) -> int:
    """Return the public nominal number of records or persons; None declares the true number public."""
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
