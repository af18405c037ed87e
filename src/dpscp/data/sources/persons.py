"""Persons with several rows in the blocks of a source: brought together into one block each, capped, counted.

Rows of a table lie in any order. Before anything else is done with them they are dealt out to blocks by a hash of the
person's id, so that all rows of a person meet in one block. How many blocks there are follows from the number of rows:
a person who comes or goes may move others to other blocks. Privacy does not rest on who lies where. The draws of
persons (kept rows, batches, held-out parts) belong to their places in the order of their first rows in the table, see
``dpscp.sources.places``, whatever the blocks are; a person adds to a sum what the cap and the weights allow, in
whatever block; and the rounding of sums is bounded, and charged, for any order of records.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.persons import Persons, choose_kept_rows
from dpscp.data.sources.base import Block
from dpscp.data.sources.places import Places
from dpscp.data.sources.spill import Scratch
from dpscp.privacy.random_streams import PlacedDraws

Array = NDArray[Any]
PersonRows = tuple[Array, Array, PersonIds, Array]
"""Rows, targets, the id of each row's person, and each row's number in the order of the table."""


@dataclass(frozen=True)
class KeptRows:
    """At most so many rows of each person of a block, a uniform choice, the same at each reading.

    Theory: Result H
    """

    draws: PlacedDraws
    places: Places
    rows_per_person: int

    def for_block(self, number: int) -> "KeptRows":
        """The same with the places of one block alone."""
        return replace(self, places=self.places.for_block(number))

    def __call__(self, block: Block) -> Block:
        sizes = block.owners.sizes
        number = np.repeat(np.arange(len(sizes)), sizes)
        drawn = self.draws.uniform(self.places.rows[block.id])
        return block.take_rows(*choose_kept_rows(number, self.rows_per_person, drawn))


@dataclass(frozen=True)
class OneRowEach:
    """One row of each person of a block, chosen uniformly; plain counts of them change by one with a person.

    Theory: Result H
    """

    draws: PlacedDraws
    places: Places

    def for_block(self, number: int) -> "OneRowEach":
        """The same with the places of one block alone."""
        return replace(self, places=self.places.for_block(number))

    def __call__(self, block: Block) -> Block:
        drawn = self.draws.uniform(self.places.persons[block.id])
        return block.take_rows(block.owners.one_row_of_each(drawn), None)


def split_by_person(rows: Array, targets: Array, persons: Any, count: int, first: int = 0) -> list[PersonRows]:
    """Rows, targets and ids dealt out to so many places by a hash of the ids, in their order.

    ``first`` is the number of the first row in the order of the table; any numbers do that increase with it.
    """
    ids = read_person_ids(persons)
    if not len(ids) == len(rows) == len(targets):
        raise ValueError("persons must contain one id for each row")
    place = ids.hashes() % np.uint64(count)
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(1, count, dtype=np.uint64))
    return [(rows[part], targets[part], ids[part], first + part) for part in np.split(order, ends)]


def spill_person_blocks(
    pieces: Iterable[PersonRows], count: int, folder: str | PathLike[str] | None, *, senders: int = 1
) -> Scratch[Block]:
    """As `join_persons`, on disk."""
    return Scratch(join_persons(Scratch(pieces, folder).some, count, senders=senders), folder)


def join_persons(pieces: Callable[[slice], Iterable[PersonRows]], count: int, *, senders: int = 1) -> Iterator[Block]:
    """Blocks of whole persons, from what each of the senders in turn dealt out to ``count`` places, time after time.

    Rows stand in the order of the senders, and within one in the order in which it dealt them: a person who is missing
    moves nobody else.
    """
    for place in range(count):
        lots = (pieces(slice(sender * count + place, None, senders * count)) for sender in range(senders))
        yield join_person_block(place, list(chain.from_iterable(lots)))


def join_person_block(number: int, pieces: Sequence[PersonRows]) -> Block:
    """The block of what was dealt to one place; persons in the order in which they first appear."""
    # an empty piece too says of which kind the ids of its table are, unless that was empty as well
    ids = PersonIds.joined([piece[2] for piece in pieces])
    found = [piece for piece in pieces if len(piece[2])] or list(pieces[:1])
    rows, targets, numbers = (np.concatenate([piece[part] for piece in found]) for part in (0, 1, 3))
    person = ids.numbers()
    order = np.argsort(person, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person))]) if len(ids) else np.zeros(1, dtype=np.int64)
    places = numbers[order[offsets[:-1].astype(np.int64)]].astype(np.int64)
    return Block(number, rows[order], targets[order], Persons(offsets.astype(np.int64)), order=places)
