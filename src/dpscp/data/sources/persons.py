"""Persons with several rows in the blocks of a source: brought together into one block each, capped, counted.

Rows of a table lie in any order. Before anything else is done with them they are dealt out to blocks by a hash of the
person's id, so that all rows of a person meet in one block. How many blocks there are follows from the number of rows:
a person who comes or goes may move others to other blocks. Privacy does not rest on who lies where. The draws of
persons (kept rows, batches, held-out parts) are independent and have one law in every block, so that with or without a
person the others' have the same one; a person adds to a sum what the cap and the weights allow, in whatever block; and
the rounding of sums is bounded, and charged, for any order of records.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.persons import Persons, choose_kept_rows
from dpscp.data.sources.base import Block, RecordSource
from dpscp.data.sources.spill import Scratch
from dpscp.privacy.random_streams import BlockStreams
from dpscp.privacy.units import RECORDS, Unit

Array = NDArray[Any]
Dealt = tuple[Array, Array, PersonIds]
"""Rows, targets, and the id of each row's person."""
Total = TypeVar("Total")


@dataclass(frozen=True)
class PersonSource:
    """A source in whose blocks every person has all their rows, side by side, at most ``unit.cap`` of them."""

    source: RecordSource
    unit: Unit

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def whole(self) -> None:
        return

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "PersonSource":
        return PersonSource(self.source.map(function, keep=keep), self.unit)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        return self.source.sum(function)


def unit_of_blocks(source: RecordSource) -> Unit:
    """Whose privacy the blocks of a source are about."""
    if isinstance(source, PersonSource):
        return source.unit
    return RECORDS if source.whole is None else source.whole.owners.unit


@dataclass(frozen=True)
class KeptRows:
    """At most so many rows of each person of a block, a uniform choice, the same at each reading.

    Theory: Result H
    """

    streams: BlockStreams
    rows_per_person: int

    def __call__(self, block: Block) -> Block:
        sizes = block.owners.sizes
        number = np.repeat(np.arange(len(sizes)), sizes)
        return block.taking(*choose_kept_rows(number, self.rows_per_person, self.streams.generator(block.id)))


@dataclass(frozen=True)
class OneRowEach:
    """One row of each person of a block, chosen uniformly; plain counts of them change by one with a person.

    Theory: Result H
    """

    streams: BlockStreams

    def __call__(self, block: Block) -> Block:
        return block.taking(block.owners.one_row_of_each(self.streams.generator(block.id)), None)


def dealt(rows: Array, targets: Array, persons: Any, count: int) -> list[Dealt]:
    """Rows, targets and ids dealt out to so many places by a hash of the ids, in their order."""
    ids = read_person_ids(persons)
    if not len(ids) == len(rows) == len(targets):
        raise ValueError("persons must hold one id for each row")
    place = ids.hashes() % np.uint64(count)
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(1, count, dtype=np.uint64))
    return [(rows[part], targets[part], ids[part]) for part in np.split(order, ends)]


def regrouped(
    pieces: Iterable[Dealt], count: int, folder: str | PathLike[str] | None, *, senders: int = 1
) -> Scratch[Block]:
    """As `met`, on disk."""
    return Scratch(met(Scratch(pieces, folder).some, count, senders=senders), folder)


def met(pieces: Callable[[slice], Iterable[Dealt]], count: int, *, senders: int = 1) -> Iterator[Block]:
    """Blocks of whole persons, from what each of the senders in turn dealt out to ``count`` places, time after time.

    Rows stand in the order of the senders, and within one in the order in which it dealt them: a person who is missing
    moves nobody else.
    """
    for place in range(count):
        lots = (pieces(slice(sender * count + place, None, senders * count)) for sender in range(senders))
        yield grouped(place, list(chain.from_iterable(lots)))


def grouped(number: int, pieces: Sequence[Dealt]) -> Block:
    """The block of what was dealt to one place; persons in the order in which they first appear."""
    # an empty piece too says of which kind the ids of its table are, unless that was empty as well
    ids = PersonIds.joined([piece[2] for piece in pieces])
    found = [piece for piece in pieces if len(piece[2])] or list(pieces[:1])
    rows, targets = (np.concatenate([piece[part] for piece in found]) for part in (0, 1))
    person = ids.numbers()
    order = np.argsort(person, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person))]) if len(ids) else np.zeros(1, dtype=np.int64)
    return Block(number, rows[order], targets[order], Persons(offsets.astype(np.int64)))
