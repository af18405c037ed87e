"""What a source of records is: blocks, a lazy ``map`` from block to block, and a ``sum`` over blocks.

A source of one's own (files, a cluster, a database) gives four things, see ``RecordSource``:

``width``           the number of features of a row: a public number, known without reading a record;
``whole``           None (only one array in memory answers with its block);
``map(function)``   a source of ``function(block)``, not computed before it is asked for;
``sum(function)``   ``added(function(block) for each block, in the order of their ids)``.

and promises:

* Ids are the integers 0, 1, 2, ...; reading the source again gives the same blocks with the same ids and the same rows
  in the same order. Draws (batches, held-out parts) are made from a key and the id where the block lies, so that a
  block that was lost and read again draws the same and nothing more is spent. ``fit`` compares a keyed digest of each
  block with that of the first reading (``digests``): totals may then also hold lists, put end to end.
* A block holds at most 2^25 records and is read into memory as a whole; work on it needs little beside it (functions
  read it in ``parts``). A source keeps no block longer than ``sum`` needs it, unless it was mapped with ``keep=True``:
  such a result is read at every step of training and is worth its memory.
* Functions and their results can be pickled. A function may be called more than once for a block, with the same result,
  and sees one block at a time. An exception of a function reaches the caller of ``sum`` as it is.
* Totals are numbers, arrays, or tuples of these. They are exact sums over records, private until the driver adds noise:
  a source neither prints, logs nor stores them.

* Where a schema names a column of persons, ``Block.persons`` says which rows are whose: all rows of a person, side by
  side in one block, before any cap (``dpscp.data.sources.persons.grouped`` makes such blocks). Else it is None.

Rows are real numbers (any float or integer type), targets one for each row. Whether they are finite, and labels among
the declared classes, is looked at once by whoever uses the source, before anything is spent: a source only reads.
"""

import math
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp.data.persons import Persons

Array = NDArray[Any]
Index = NDArray[np.int64]
Rows = Callable[[Array], Array]
Total = TypeVar("Total")

MOST_IN_A_BLOCK = 1 << 25
# Rows that are read at once, about so many numbers but not fewer rows than that: a part and what is computed from it
# stay in the cache and in memory that the process holds already, and what a step does once for each part costs little.
_PART_NUMBERS, _PART_ROWS = 1 << 15, 1 << 7


@dataclass(frozen=True)
class Block:
    """Some records of a source: rows, a target for each, whose they are, and each record's public group, if any.

    ``rows`` is a table as it lies (an array, a view, a memmap). Which of its rows count (``chosen``; None: all) and
    what is done with them (``steps``: functions of one row each, applied to some rows at a time) is remembered and done
    when rows are read, part by part: no changed copy of the whole table is ever made. Targets, persons and groups are
    those of the chosen rows.

    A person's rows lie in one block, side by side (``Persons``); None: each row is its own person.

    Theory: Result H
    """

    id: int
    # nothing of the records is in a repr: logs and tracebacks print these
    rows: Array = field(repr=False)
    targets: Array = field(repr=False)
    persons: Persons | None = field(default=None, repr=False)
    groups: Index | None = field(default=None, repr=False)
    chosen: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    steps: tuple[Rows, ...] = ()
    n_columns: int | None = None
    """How many numbers a row has after the steps; None: as many as before them."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def width(self) -> int:
        """How many numbers a row has after the steps."""
        return math.prod(self.rows.shape[1:]) if self.n_columns is None else self.n_columns

    @cached_property
    def owners(self) -> Persons:
        """Whose rows these are."""
        return Persons.of_rows(self.persons, len(self))

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """The weight of each record, a person's adding up to one; None: one each."""
        return None if self.persons is None else self.persons.weights

    def through(self, *steps: Rows) -> Self:
        """The block with these functions of a row applied when its rows are read."""
        return replace(self, steps=(*self.steps, *steps))

    def with_targets(self, targets: Array) -> Self:
        """The same rows with other targets."""
        return replace(self, targets=targets)

    def part(self, drawn: NDArray[np.bool_]) -> Self:
        """The records of the persons that were drawn; rows are not copied."""
        kept, persons = (drawn, None) if self.persons is None else self.persons.part(drawn)
        return self.taking(np.flatnonzero(kept).astype(np.int32), persons)  # fewer than 2^31, and many of them

    def taking(self, places: NDArray[np.integer[Any]], persons: Persons | None) -> Self:
        """The records at these places, which are these persons'; rows are not copied."""
        return replace(
            self,
            targets=self.targets[places],
            persons=persons,
            groups=None if self.groups is None else self.groups[places],
            chosen=places if self.chosen is None else self.chosen[places],
        )

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """The rows from ``start`` to ``stop`` with the steps applied, some rows at a time."""
        start, stop, _ = slice(start, stop).indices(len(self))
        most = self._at_once if self.steps else stop - start
        first = self._changed(start, min(stop, start + most))
        if stop - start <= most:
            return first
        out = np.empty((stop - start, *first.shape[1:]), dtype=first.dtype)
        out[:most] = first
        for at in range(start + most, stop, most):
            out[at - start : at - start + most] = self._changed(at, min(stop, at + most))
        return out

    def _changed(self, start: int, stop: int) -> Array:
        rows = self.rows[start:stop] if self.chosen is None else self.rows[self.chosen[start:stop]]
        for step in self.steps:
            rows = step(rows)
        return rows

    @property
    def _at_once(self) -> int:
        return max(_PART_ROWS, _PART_NUMBERS // self.width)

    def parts(self, most: int | None = None) -> Iterator[tuple[slice, Array]]:
        """Slices of whole persons, at most so many records each (None: what fits a cache), and their rows."""
        most = self._at_once if most is None else most
        start = 0
        while start < len(self):
            stop = min(len(self), start + most)
            if self.persons is not None and stop < len(self):
                ends = self.persons.offsets
                person = int(np.searchsorted(ends, stop, side="right")) - 1
                # the persons that end by here, or the one that does not fit
                stop = int(ends[person] if ends[person] > start else ends[person + 1])
            yield slice(start, stop), self.read(start, stop)
            start = stop


@runtime_checkable
class RecordSource(Protocol):
    """Blocks of records, wherever they lie; the docstring of the module says what an implementation promises."""

    @property
    def width(self) -> int:
        """How many features a row has."""

    @property
    def whole(self) -> Block | None:
        """The only block, where the source is one array in memory: it may then be handed on as an array."""

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "RecordSource":
        """The source of ``function(block)`` (same id), computed when it is read.

        ``keep``: it will be read many times, and each result is to be kept where its block lies, if there is room.
        """

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """The total of ``function(block)`` over the blocks, as ``added`` adds them in the order of their ids."""


def is_source(X: Any) -> bool:
    """Whether a caller brought a source; a frame may have columns of any name, also those of a source's methods."""
    return isinstance(X, RecordSource) and getattr(X, "columns", None) is None


@dataclass(frozen=True)
class Failure:
    """An error on its way from a block to the driver, as a result: a scheduler that sees an error logs the task."""

    error: BaseException

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The error as it can travel: without its traceback, and in words alone where it cannot be pickled."""
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error.with_traceback(None))


def attempted(work: Callable[[], Total]) -> Total | Failure:
    """What ``work`` gives, or its error."""
    try:
        return work()
    except Exception as error:
        return Failure.of(error)


def succeeded(results: Iterable[Total | Failure]) -> list[Total]:
    """The results where there is no error among them; the first error is raised."""
    found: list[Total] = []
    for result in results:
        if isinstance(result, Failure):
            raise result.error
        found.append(result)
    return found


def added(values: Iterable[Total]) -> Total:
    """The sum of numbers, of arrays, or of tuples of these, by pairs: B values meet at most log2(B) + 1 additions each.

    The order is that of the values alone, so that the same blocks give the same bits on one machine and on many. Beside
    the value that comes in, at most log2(B) partial sums are held.
    """
    waiting: list[tuple[int, Any]] = []
    for value in values:
        level, total = 0, value
        while waiting and waiting[-1][0] == level:
            total = _plus(waiting.pop()[1], total)
            level += 1
        waiting.append((level, total))
    if not waiting:
        raise ValueError("a source of records must have at least one block; it may be an empty one")
    result = waiting.pop()[1]
    while waiting:
        result = _plus(waiting.pop()[1], result)
    return result  # type: ignore[no-any-return]  # what the values were


def _plus(first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(_plus(a, b) for a, b in zip(first, second, strict=True))
    return first + second
