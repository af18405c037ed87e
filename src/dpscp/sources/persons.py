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

from dpscp.persons import Persons, kept_of, person_numbers
from dpscp.privacy.seeds import PlacedDraws
from dpscp.sources.base import Block
from dpscp.sources.places import Places
from dpscp.sources.scratch import Scratch

Array = NDArray[Any]
Dealt = tuple[Array, ...]
"""Rows, targets, the id of each row's person, and each row's number in the order of the table (where it is known)."""


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
        return block.taking(*kept_of(number, self.rows_per_person, drawn))


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
        return block.taking(block.owners.one_row_of_each(drawn), None)


def dealt(rows: Array, targets: Array, persons: Any, count: int, first: int = 0) -> list[Dealt]:
    """Rows, targets and ids dealt out to so many places by a hash of the ids, in their order.

    ``first`` is the number of the first row in the order of the table; any numbers do that increase with it.
    """
    from pandas.util import hash_array

    ids = _keys(persons)
    place = hash_array(ids.astype(object) if ids.dtype.kind == "U" else ids, categorize=False) % np.uint64(count)
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(1, count, dtype=np.uint64))
    return [(rows[part], targets[part], ids[part], first + part) for part in np.split(order, ends)]


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
    if len({ids.dtype.kind for ids in (piece[2] for piece in pieces)} - {_NO_IDS.dtype.kind}) > 1:
        raise ValueError("persons mixes text with other ids, and '7' is not 7: make all of them text or none")
    found = [piece for piece in pieces if len(piece[2])] or list(pieces[:1])
    rows, targets, ids, *numbers = (np.concatenate(parts) for parts in zip(*found, strict=True))
    person = person_numbers(ids, len(ids))
    order = np.argsort(person, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(person))]) if len(ids) else np.zeros(1, dtype=np.int64)
    first_rows = order[offsets[:-1].astype(np.int64)]
    places = numbers[0][first_rows].astype(np.int64) if numbers else None
    return Block(number, rows[order], targets[order], Persons(offsets.astype(np.int64)), order=places)


_NO_IDS = np.empty(0, dtype=bool)


def _keys(persons: Any) -> Array:
    """Ids as text, or as whole numbers of one kind: equal ids must be equal bits, in whatever part of a table."""
    person_numbers(persons, len(persons))  # missing, mixed, unhashable or doubtful ids are refused with its words
    ids = np.asarray(persons)
    if not len(ids):
        return _NO_IDS
    if ids.dtype.kind == "u" and ids.max() >= 2**63:
        raise ValueError(
            "persons in a table that is read in blocks must be whole numbers below 2^63, or text: make the ids text"
        )
    if ids.dtype.kind in "iu" or (ids.dtype.kind == "f" and (ids == np.floor(ids)).all()):
        return ids.astype(np.int64)
    texts = ids.tolist()
    if not all(isinstance(one, str) for one in texts):
        raise TypeError("persons in a table that is read in blocks must be text or whole numbers: make the ids text")
    return np.array(texts)
