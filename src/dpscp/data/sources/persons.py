"""Persons with several rows: join all rows of a person in one block, and limit their number.

Rows of a table are in any order. They are first split into blocks by a hash of the person's id, so that all rows of a
person are in one block. The number of blocks depends on the number of rows. So adding or removing a person may move
others to other blocks. Privacy does not depend on that. There are three reasons. The draws of persons (kept rows,
batches, held-out parts) belong to their places in the order of their first rows in the table, see
``dpscp.data.sources.places``, for any division into blocks. The cap and the weights bound what a person adds to a sum,
in any block. The rounding of sums is bounded, and charged, for any order of records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscp._base.arrays import Array
from dpscp.data.persons import PersonIds, Persons, choose_kept_rows, read_person_ids
from dpscp.data.sources.base import Block
from dpscp.data.sources.places import Places
from dpscp.privacy.random_streams import PlacedDraws

PersonRows = tuple[Array, Array, PersonIds]
"""Rows, targets, and the id of each row's person."""


@dataclass(frozen=True)
class KeptRows:
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
class OneRowEach:
    """Choose one row of each person uniformly.

    A count of these rows changes by at most one with a person.

    Theory: Result H
    """

    draws: PlacedDraws
    places: Places

    def __call__(self, block: Block) -> Block:
        drawn = self.draws.uniform(self.places.persons[block.id])
        return block.take_rows(block.owners.one_row_of_each(drawn), None)


def split_by_person(rows: Array, targets: Array, persons: Any, count: int) -> list[PersonRows]:
    """Split rows, targets and ids into places by a hash of the ids; the order of rows is kept."""
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
