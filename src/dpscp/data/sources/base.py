"""Define the base class of sources: blocks, lazy ``map``, ``sum``; read arrays.

Your own source (files, a cluster, a database) is a subclass of ``RecordSource`` with two members:

``width``   the number of features of a row: a public number, known without reading a record;
``read()``  the blocks, in the order of their ids.

The base class then has ``map(function)``, a source of ``function(block)`` that is computed when read, and
``sum(function)``: ``added(function(block) for each block, in the order of their ids)``.

A source keeps these promises:

* Ids are the integers 0, 1, 2, ... Reading the source again gives the same blocks with the same ids and the same rows
  in the same order. Draws (batches, held-out parts) belong to the place of a record in the order of all blocks
  (``places``). So a block that was lost and read again has the same draws, nothing more is spent, and the division into
  blocks does not matter. ``fit`` compares a keyed digest of each block with that of the first reading
  (``watch_changes``). Totals may therefore also contain lists, which are joined.
* A block holds at most 2^25 records and is read into memory as a whole. Work on it needs little more memory, because
  functions read it in ``parts``. A source keeps no block longer than ``sum`` needs it, unless it was mapped with
  ``keep=True``. Such a result is read at every step of training.
* Functions and their results can be pickled. A function may be called more than once for a block, with the same result,
  and sees one block at a time. An exception of a function reaches the caller of ``sum`` unchanged.
* Totals are numbers, arrays, other values with a ``+``, or tuples of these. They are exact sums over records, private
  until the driver adds noise. A source does not print, log or store them.
* If a schema declares a person column, ``Block.persons`` assigns rows to persons. All rows of a person are side
  by side in one block, before any cap (``persons.join_person_block`` builds such blocks). Else it is None.

Rows are real numbers (any float or integer type), with one target for each row. ``fit`` checks once, before anything is
spent, that numbers are finite and labels are among the declared classes. A source only reads.
"""

import hashlib
import math
import pickle
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp._base.assumptions import Assumption
from dpscp._base.checks import check_count
from dpscp.data.persons import Persons

Index = NDArray[np.int64]
Rows = Callable[[Array], Array]
Total = TypeVar("Total")
Found = TypeVar("Found")
Digests = list[tuple[int, bytes]]

MOST_IN_A_BLOCK = 1 << 25
# The size of a part: about so many numbers, but at least so many rows. A part and the results from it then stay in the
# cache, and the work of a step for each part costs little.
_PART_NUMBERS, _PART_ROWS = 1 << 15, 1 << 7
# Bytes of a digest of a block. Arrays of these kinds are compared by their bytes, others as text.
_DIGEST_BYTES, _PLAIN = 16, "biufcUSmM"


@dataclass(frozen=True)
class Block:
    """Hold some records of a source: rows, targets, persons and groups.

    Rows are read part by part, and no changed copy of the whole table is made.

    Parameters
    ----------
    id : int
        The number of the block in its source: 0, 1, 2, ...
    rows : array of shape (n_table_rows, n_features) or (n_table_rows, ...)
        The table in its original form: an array, a view or a memmap.
    targets : array of shape (n_records,)
        The targets of the chosen rows.
    persons : Persons or None
        The persons of the chosen rows. A person's rows are side by side in one block. None: each row is its own person.
    groups : int array of shape (n_records,) or (n_records, groups_per_record), or None
        The public group, or groups, of each chosen row; -1 for none.
    chosen : int array of shape (n_records,) or None
        The rows of the table that belong to the block; None: all.
    steps : tuple of functions
        Functions of one row each. They are applied when rows are read.
    n_columns : int or None
        The number of numbers in a row after the steps. None: as many as before them.

    Theory: Result H
    """

    id: int
    # a repr contains nothing of the records, because logs and tracebacks print it
    rows: Array = field(repr=False)
    targets: Array = field(repr=False)
    persons: Persons | None = field(default=None, repr=False)
    groups: Index | None = field(default=None, repr=False)
    chosen: NDArray[np.integer[Any]] | None = field(default=None, repr=False)
    steps: tuple[Rows, ...] = ()
    n_columns: int | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def width(self) -> int:
        """Return the number of numbers in a row after the steps."""
        return math.prod(self.rows.shape[1:]) if self.n_columns is None else self.n_columns

    @cached_property
    def owners(self) -> Persons:
        """Return the persons to whom these rows belong."""
        return Persons.of_rows(self.persons, len(self))

    def with_steps(self, *steps: Rows) -> Self:
        """Return the block with more functions to apply when rows are read."""
        return replace(self, steps=(*self.steps, *steps))

    def with_targets(self, targets: Array) -> Self:
        """Return the same rows with other targets."""
        return replace(self, targets=targets)

    def part(self, drawn: NDArray[np.bool_]) -> Self:
        """Return the records of the drawn persons without copying rows."""
        kept, persons = (drawn, None) if self.persons is None else self.persons.part(drawn)
        # there are fewer than 2^31, and 4 bytes are enough for each
        return self.take_rows(np.flatnonzero(kept).astype(np.int32), persons)

    def take_rows(self, places: NDArray[np.integer[Any]], persons: Persons | None) -> Self:
        """Return the records at these places without copying rows.

        ``persons`` are the owners of these records.
        """
        return replace(
            self,
            targets=self.targets[places],
            persons=persons,
            groups=None if self.groups is None else self.groups[places],
            chosen=places if self.chosen is None else self.chosen[places],
        )

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """Return the rows from ``start`` to ``stop`` with the steps applied.

        Steps are applied to some rows at a time.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        most = self._rows_at_once if self.steps else stop - start
        first = self._read_some(start, min(stop, start + most))
        if stop - start <= most:
            return first
        out = np.empty((stop - start, *first.shape[1:]), dtype=first.dtype)
        out[:most] = first
        for at in range(start + most, stop, most):
            out[at - start : at - start + most] = self._read_some(at, min(stop, at + most))
        return out

    def _read_some(self, start: int, stop: int) -> Array:
        rows = self.rows[start:stop] if self.chosen is None else self.rows[self.chosen[start:stop]]
        for step in self.steps:
            rows = step(rows)
        return rows

    @property
    def _rows_at_once(self) -> int:
        return max(_PART_ROWS, _PART_NUMBERS // self.width)

    def parts(self, most: int | None = None) -> Iterator[tuple[slice, Array]]:
        """Yield slices of whole persons and their rows.

        A slice has at most ``most`` records (None: as many as fit into the cache), or one person.
        """
        most = self._rows_at_once if most is None else most
        start = 0
        while start < len(self):
            stop = min(len(self), start + most)
            if self.persons is not None and stop < len(self):
                ends = self.persons.offsets
                person = int(np.searchsorted(ends, stop, side="right")) - 1
                # the persons that end within the part, or one person who is larger
                stop = int(ends[person] if ends[person] > start else ends[person + 1])
            yield slice(start, stop), self.read(start, stop)
            start = stop


class RecordSource(ABC):
    """The base class of sources: records in blocks, wherever they are stored.

    Define ``width`` and ``read``. Also define ``keep`` if kept blocks must not stay in the memory of this process. A
    source whose blocks are in other processes defines ``sum`` instead of ``read``. The docstring of the module lists
    what a source promises.

    Attributes
    ----------
    width : int
        The number of features of a row.
    assumption : Assumption or None
        The assumption about the source in the ledger.
    input_shape : tuple or None
        The shape of records that are images, sequences or the like, laid out as rows.
    is_fixed : bool
        Whether the source itself notices a change of its records. Otherwise ``fit`` compares digests of the blocks.
    change_remedy : str
        The remedy for such a change, in the error message.
    """

    width: int
    assumption: Assumption | None = None
    input_shape: tuple[Any, ...] | None = None
    is_fixed: bool = False
    change_remedy: str = "Persist the collection or write it to Parquet, then fit"
    _functions: tuple[Callable[[Any], Any], ...] = ()

    def read(self) -> Iterable[Block]:
        """Return the stored blocks, in the order of their ids."""
        raise NotImplementedError(f"{type(self).__name__} must define read or sum")

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "RecordSource":
        """Return the source of ``function(block)``, computed when it is read.

        Parameters
        ----------
        function : callable
            A function from a block to a block with the same id.
        keep : bool
            True if the result will be read many times. The source then keeps each result where its block is, if it can.

        Returns
        -------
        RecordSource
        """
        mapped = copy(self)
        vars(mapped)["_functions"] = (*self._functions, function)
        return mapped.keep() if keep else mapped

    def keep(self) -> "RecordSource":
        """Return a source of the same blocks, computed once."""
        return ArraySource.of_blocks(list(self.mapped()))

    def mapped(self) -> Iterator[Block]:
        """Yield the blocks with the functions of ``map`` applied."""
        for block in self.read():
            for function in self._functions:
                block = function(block)
            yield block

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total of ``function(block)`` over the blocks.

        Blocks are added by ``added`` in the order of their ids.
        """
        return added(map(function, self.mapped()))


def for_block(function: Callable[[Block], Total], number: int) -> Callable[[Block], Total]:
    """Return the function with the data that this block needs.

    The data for all blocks may be too large to send.
    """
    narrow = getattr(function, "for_block", None)
    return function if narrow is None else narrow(number)


@dataclass(frozen=True)
class Failure:
    """An error of a block, sent to the driver as a result.

    A scheduler that sees an exception would log the task.
    """

    error: BaseException

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Build a failure that can be pickled.

        It has no traceback, and text only where the error itself cannot be pickled.
        """
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error.with_traceback(None))


def capture_error(work: Callable[[], Total]) -> Total | Failure:
    """Return the result of ``work``, or its error as a ``Failure``."""
    try:
        return work()
    except Exception as error:
        return Failure.of(error)


def unwrap_results(results: Iterable[Total | Failure]) -> list[Total]:
    """Return the results, or raise the first error among them."""
    found: list[Total] = []
    for result in results:
        if isinstance(result, Failure):
            raise result.error
        found.append(result)
    return found


def hide_message(work: Callable[[], Total], where: str) -> Total:
    """Return the result of a library's work, or raise an error without its text.

    The work computes records, so the text could contain some. The text may contain a cell, such as one that cannot be
    converted.
    """
    failure = ""
    try:
        return work()
    except MemoryError:
        raise
    except Exception as error:
        failure = type(error).__name__
    raise ValueError(
        f"{where} cannot be read ({failure}): its query fails, or its parts store a column with different types. "
        "Compute it alone to see the message, which is hidden because it may contain values of records"
    )


def added(values: Iterable[Total]) -> Total:
    """Add numbers, arrays, or tuples of these by pairs.

    A value goes through at most log2(B) + 1 additions for B values. The order depends on the values' order alone, so
    the same blocks give the same bits on one machine and on many. At most log2(B) partial sums are held at one time.

    Parameters
    ----------
    values : iterable
        Values of one kind, at least one.

    Returns
    -------
    The sum, of the same kind.
    """
    waiting: list[tuple[int, Any]] = []
    for value in values:
        level, total = 0, value
        while waiting and waiting[-1][0] == level:
            total = _plus(waiting.pop()[1], total)
            level += 1
        waiting.append((level, total))
    if not waiting:
        raise ValueError("a source of records must have at least one block; return an empty one without records")
    result = waiting.pop()[1]
    while waiting:
        result = _plus(waiting.pop()[1], result)
    return result  # type: ignore[no-any-return]  # what the values were


def _plus(first: Any, second: Any) -> Any:
    if isinstance(first, tuple):
        return tuple(_plus(a, b) for a, b in zip(first, second, strict=True))
    return first + second


class ArraySource(RecordSource):
    """Read records from arrays or memory-mapped files, in one or several blocks.

    Blocks are views of the arrays; nothing is copied. A memmap is read block by block.

    Parameters
    ----------
    X : array of shape (n_records, n_features)
        Real numbers.
    y : array of shape (n_records,)
        One target for each row.
    n_blocks : int
        The number of blocks of equal size (up to one record). Results depend on it only by the order in which
        floating-point numbers are added.

    >>> X, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    >>> ArraySource(X, y, n_blocks=3).sum(lambda block: block.read().sum(axis=0)).tolist()
    [30.0, 36.0]
    """

    is_fixed = True

    def __init__(self, X: Any, y: Any, *, n_blocks: int = 1) -> None:
        rows, targets = np.asanyarray(X), np.asanyarray(y)
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            raise ValueError("X must be a two-dimensional array of real numbers (records, features)")
        if targets.ndim not in (1, 2) or len(targets) != len(rows):
            raise ValueError("y must have one target, or one row of indicators, for each row of X")
        count = check_count("n_blocks", n_blocks)
        ends = [len(rows) * i // count for i in range(count + 1)]
        parts = [slice(a, b) for a, b in pairwise(ends)]
        if max(part.stop - part.start for part in parts) > MOST_IN_A_BLOCK:
            raise ValueError(
                f"n_blocks={n_blocks} puts more than {MOST_IN_A_BLOCK} records in a block; use a larger n_blocks"
            )
        self._blocks = [Block(i, rows[part], targets[part]) for i, part in enumerate(parts)]

    @classmethod
    def of_blocks(cls, blocks: Sequence[Block]) -> "ArraySource":
        """Build a source from blocks in memory.

        Their ids are 0, 1, 2, ...
        """
        source = cls.__new__(cls)
        source._blocks = list(blocks)
        return source

    @property
    def width(self) -> int:  # type: ignore[override]  # the width of the blocks, which does not change
        """Return the number of features of a row."""
        return self._blocks[0].width

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks, all of them in the memory of this process."""
        return list(self.mapped())

    def read(self) -> list[Block]:
        """Return the blocks as they were given."""
        return self._blocks


def watch_changes(source: RecordSource, digests: Digests, key: bytes) -> RecordSource:
    """Return the source, whose blocks are compared with those of the first reading.

    A fit reads a source several times. It draws the training and held-out records by their places in the blocks. A
    source that returns its rows in another order would mix the two parts. So the first reading stores a digest of each
    block, keyed with random bits that stay in memory. Every later reading is compared with it, in the process that has
    the block.
    """
    return source.map(SameBlocks(dict(digests), key, source.change_remedy))


@dataclass(frozen=True)
class FirstReading(Generic[Found]):
    """The result of ``look`` for a block, and the digest of the block."""

    look: Callable[[Block], Found]
    key: bytes = field(repr=False)

    def __call__(self, block: Block) -> tuple[Found, Digests]:
        return self.look(block), [(block.id, digest(block, self.key))]


@dataclass(frozen=True)
class SameBlocks:
    """Return the block if it equals that of the first reading, else refuse it."""

    digests: Mapping[int, bytes] = field(repr=False)
    key: bytes = field(repr=False)
    remedy: str

    def __call__(self, block: Block) -> Block:
        if self.digests.get(block.id) != digest(block, self.key):
            raise RuntimeError(
                "the source returned other records, or the same records in another order, than at its first reading. "
                f"Training records could become held-out records. {self.remedy}"
            )
        return block


def digest(block: Block, key: bytes) -> bytes:
    """Return a keyed digest of rows, targets and persons, in their order."""
    found = hashlib.blake2b(key=key, digest_size=_DIGEST_BYTES)
    offsets = np.empty(0, dtype=np.int64) if block.persons is None else block.persons.offsets
    for part in (block.read(), block.targets, offsets):
        values = np.asarray(part)
        plain = np.ascontiguousarray(values if values.dtype.kind in _PLAIN else values.astype(str))
        found.update(f"{plain.dtype.str}{plain.shape}".encode())
        found.update(plain.reshape(-1).view(np.uint8).data)
    return found.digest()
