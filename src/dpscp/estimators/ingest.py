"""Read the records of a fit and check every number before anything is spent."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.groups import RowGroups
from dpscp.data.populations import Thinning
from dpscp.data.sources import Block, RecordSource, find_source
from dpscp.data.sources.base import FirstReading, watch_changes
from dpscp.data.sources.places import Places, UnitSource, is_in_memory, keep_rows, take_census
from dpscp.data.used_records import RowDigests, Sketch
from dpscp.data.validation import check_finite
from dpscp.privacy.random_streams import KEPT_ROWS, PlacedDraws, secure_bytes, stream_seed
from dpscp.privacy.units import Unit


@dataclass(frozen=True)
class BlockReader:
    """Read a block: encode its targets and find the group of each record.

    Attributes
    ----------
    targets : function of (y, n)
        Checks and encodes the targets of n records.
    groups : RowGroups, ``"label"`` or None
    group_values : tuple or None
        The public groups.
    thinning : Thinning, optional
        The secret coins of a likelihood ratio; a record that they reject is in no group.
    places : Places, optional
        The places of the coins. Without them, ratios are only checked.
    """

    targets: Callable[[Any, int], NDArray[Any]]
    groups: str | RowGroups | None = None
    group_values: tuple[Any, ...] | None = None
    thinning: Thinning | None = None
    places: Places | None = None

    def __call__(self, block: Block) -> Block:
        """Return the block with encoded targets and groups."""
        targets = (
            self.targets(block.targets, len(block))
            if len(block)
            else np.empty((0, *block.targets.shape[1:]), dtype=np.int64)
        )
        groups: NDArray[np.int64] | None = None
        if isinstance(self.groups, RowGroups):
            groups = self.groups.places(block.read(), len(block))
        elif self.groups is not None:
            groups = targets
        if self.thinning is not None:
            ratios = self.thinning.population.ratios_of(block.read(), block.targets, len(block))
            if self.places is not None:
                groups = self.thinning.place_groups(ratios, groups, block.owners, self.places.persons[block.id])
        return replace(block, targets=targets, groups=groups)


@dataclass(frozen=True)
class FitInput:
    """Hold the validated arguments of ``fit``.

    Attributes
    ----------
    table : X as a table
    X : X as a schema or a source reads it
    y, persons : targets and ids
    rows : array of shape (n, n_features), or None for a source
    unit : Unit
    recognized : rows by which later uses recognize the records
    """

    table: Any
    X: Any
    y: Any
    persons: Any
    rows: NDArray[np.float64] | None
    unit: Unit
    recognized: Any = None


@dataclass(frozen=True)
class FitRecords:
    """Hold the records of a fit and the public facts about them.

    ``found`` is the number of units, used only where it is declared. ``sketch`` recognizes the records in a later use.
    """

    records: RecordSource
    width: int
    group_values: tuple[Any, ...] | None
    unit: Unit
    found: int
    sketch: Sketch


def read_without_schema(X: Any, y: Any, persons: Any) -> tuple[Any, Any, Any]:
    """Return rows, targets and ids, or the source of a collection."""
    if isinstance(y, str):
        raise TypeError(
            "y is the name of a column, but there is no schema; pass schema=dp.Schema..., or pass an array of targets"
        )
    source = find_source(X, y)
    if persons is not None and (source is not None or isinstance(X, RecordSource)):
        raise ValueError(
            "persons needs X and y in memory, because a person's rows may be in several blocks of a source. Pass a "
            "path or a frame with a schema that declares the column of ids, schema=dp.Schema..."
        )
    return (X, y, persons) if source is None else (source, None, None)


def records_from_source(given: FitInput, reading: BlockReader, random_state: int | None) -> FitRecords:
    """Check every block of a source and return its records for the fit."""
    if given.y is not None:
        raise ValueError("y must not be passed with a source, because its blocks contain the targets; remove y")
    source: RecordSource = given.X
    by_person = given.unit.by_person
    look = partial(_look_first, reading, by_person, RowDigests())
    if source.is_fixed:
        found, sketch = source.sum(look)
    else:
        key = secure_bytes()(32)
        (found, sketch), digests = source.sum(FirstReading(look, key))
        source = watch_changes(source, digests, key)
    places = Places.of(found)
    if by_person:
        draws = PlacedDraws.of(stream_seed(random_state, KEPT_ROWS))
        source = source.map(partial(keep_rows, draws, places, given.unit.cap))
    reading = reading if reading.thinning is None else replace(reading, places=places)
    records = UnitSource(source.map(reading, keep=is_in_memory(source)), given.unit.counted, places)
    return FitRecords(records, source.width, reading.group_values, given.unit, places.count, sketch)


def _look_first(
    reading: BlockReader, by_person: bool, digests: RowDigests, block: Block
) -> tuple[list[tuple[int, int, int]], Sketch]:
    """Check a block's numbers, count its records and persons, sketch its rows."""
    block = reading(block)
    if len(block) and (block.persons is not None) != by_person:
        raise ValueError(
            "the source has person ids; pass a schema that declares them"
            if block.persons is not None
            else "the schema declares a column of persons, but the source has no ids; pass a frame or a path"
        )
    for _, rows in block.parts():
        check_finite(rows)
    return take_census(block), digests(block)
