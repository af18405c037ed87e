"""Persons with several rows: join all rows of a person in one block, and limit their number.

Rows of a table are in any order. They are first split into blocks by a hash of the person's id, so that all rows of a
person are in one block. The number of blocks depends on the number of rows. So adding or removing a person may move
others to other blocks. Privacy does not depend on that. There are three reasons. The draws of persons (kept rows,
batches, held-out parts) belong to their places in the order of their first rows in the table, see
``dpscp.data.sources.places``, for any division into blocks. The cap and the weights bound what a person adds to a sum,
in any block. The rounding of sums is bounded, and charged, for any order of records.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np

from dpscp._base.arrays import Array
from dpscp.data.persons import PersonIds, Persons, choose_kept_rows, read_person_ids
from dpscp.data.sources.base import Block, RecordSource
from dpscp.data.sources.places import PlacedFunction, Places
from dpscp.data.sources.spill import keep_or_spill, store_blocks
from dpscp.privacy.random_streams import PlacedDraws

PersonRows = tuple[Array, Array, PersonIds, Array]
"""Rows, targets, the id of each row's person, and each row's number in the order of the table."""


@dataclass(frozen=True)
class KeptRows(PlacedFunction):
    """Limit the rows of each person to a uniform choice, equal at each reading.

    Theory: Result H
    """

    draws: PlacedDraws
    places: Places
    rows_per_person: int

    def __call__(self, block: Block) -> Block:
        sizes = block.owners.sizes
        number = np.repeat(np.arange(len(sizes)), sizes)
        drawn = self.draws.uniform(self.places.rows[block.id])
        return block.take_rows(*choose_kept_rows(number, self.rows_per_person, drawn))


@dataclass(frozen=True)
class OneRowEach(PlacedFunction):
    """Choose one row of each person uniformly.

    A count of these rows changes by at most one with a person.

    Theory: Result H
    """

    draws: PlacedDraws
    places: Places

    def __call__(self, block: Block) -> Block:
        drawn = self.draws.uniform(self.places.persons[block.id])
        return block.take_rows(block.owners.one_row_of_each(drawn), None)


def split_by_person(rows: Array, targets: Array, persons: Any, count: int, first: int = 0) -> list[PersonRows]:
    """Split rows, targets and ids into places by a hash of the ids.

    The order of rows is kept.

    ``first`` is the number of the first row in the order of the table, or any number that increases with it.
    """
    ids = read_person_ids(persons)
    if not len(ids) == len(rows) == len(targets):
        raise ValueError("persons must contain one id for each row")
    place = ids.hashes() % np.uint64(count)
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(1, count, dtype=np.uint64))
    return [(rows[part], targets[part], ids[part], first + part) for part in np.split(order, ends)]


def store_persons(
    pieces: Iterable[PersonRows],
    count: int,
    width: int,
    folder: str | PathLike[str] | None,
    *,
    senders: int = 1,
    public_size: int = 0,
) -> RecordSource:
    """Return the source of the blocks of ``join_persons``."""
    kept = keep_or_spill(pieces, folder, public_size)
    return store_blocks(join_persons(kept.__getitem__, count, senders=senders), width, folder, public_size)


def join_persons(pieces: Callable[[slice], Iterable[PersonRows]], count: int, *, senders: int = 1) -> Iterator[Block]:
    """Yield blocks of whole persons from the rows of several senders.

    Each sender in turn split its rows into ``count`` places.

    Rows stand in the order of the senders, and within one in the order in which it sent them: a person who is missing
    does not move other persons.
    """
    for place in range(count):
        lots = (pieces(slice(sender * count + place, None, senders * count)) for sender in range(senders))
        yield join_person_block(place, list(chain.from_iterable(lots)))


def join_person_block(number: int, pieces: Sequence[PersonRows]) -> Block:
    """Build the block of one place; persons are in order of first appearance."""
    # an empty piece also has the kind of the ids in its table, unless the table was empty too
    ids = PersonIds.joined([piece[2] for piece in pieces])
    found = [piece for piece in pieces if len(piece[2])] or list(pieces[:1])
    rows, targets, numbers = (np.concatenate([piece[part] for piece in found]) for part in (0, 1, 3))
    person = ids.numbers()
    order = np.argsort(person, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person))]) if len(ids) else np.zeros(1, dtype=np.int64)
    places = numbers[order[offsets[:-1].astype(np.int64)]].astype(np.int64)
    return Block(number, rows[order], targets[order], Persons(offsets.astype(np.int64)), order=places)
