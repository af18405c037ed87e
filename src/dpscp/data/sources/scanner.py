"""Read tables through a schema, and keep blocks in memory or in a scratch file.

Tables are files, folders, URLs, and data sets of other libraries. Small blocks stay in memory. Others are written to an
unnamed temporary file that is read again for every sum.
"""

import mmap
import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import IO, Any, Generic, TypeVar

import numpy as np

from dpscp._base.checks import check_count
from dpscp._base.progress import show_pass
from dpscp.data.persons import read_person_ids
from dpscp.data.schema import Schema
from dpscp.data.sources.base import ArraySource, Block, RecordSource
from dpscp.data.sources.files import BLOCK_NUMBERS, SEE_CHECK, TableError, TableFile
from dpscp.data.sources.places import join_person_block, split_by_person
from dpscp.data.sources.tables import Table, replace_patterns

Item = TypeVar("Item")
# Arrays start at multiples of this, so that the engine reads them without a copy.
_ALIGNED = 64
_PAGE = mmap.ALLOCATIONGRANULARITY
# The number of bytes up to which rows stay in memory.
_IN_MEMORY = 2**27
# The number of blocks into which persons are split; each batch of a table is split into so many pieces.
_MOST_PLACES = 256


@contextmanager
def _named_folder(folder: str | PathLike[str] | None) -> Iterator[None]:
    """Name the folder in a write error, such as a full disk, because the file has no name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(folder or tempfile.gettempdir())
        raise


class Scratch(Generic[Item]):
    """Blocks in an unnamed file on disk, mapped into memory when they are read.

    Free memory of the machine keeps them in its cache.

    The file has no name, cannot be read by others, and disappears with the process. It holds unencrypted records,
    like the files they came from: ``folder`` (None: the system's folder for temporary files) should be as protected as
    theirs, with space for two to eight bytes for each feature of each record.
    """

    def __init__(self, blocks: Iterable[Item], folder: str | PathLike[str] | None = None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix=".dpscp-", dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._heads: list[tuple[bytes, list[tuple[int, int]]]] = []
        for block in blocks:
            buffers: list[pickle.PickleBuffer] = []
            head = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
            with _named_folder(folder):
                self._heads.append((head, [self._write_buffer(buffer) for buffer in buffers]))
        with _named_folder(folder):
            self._file.flush()

    def __iter__(self) -> Iterator[Item]:
        done = 0

        def items() -> Iterator[Item]:
            nonlocal done
            for item in self[:]:
                done += 1
                yield item

        return show_pass(items(), lambda: done / len(self._heads))

    def __getitem__(self, which: slice) -> Iterator[Item]:
        """Yield the items at these places."""
        for head, places in self._heads[which]:
            yield pickle.loads(head, buffers=[self._map_memory(*place) for place in places])

    def _write_buffer(self, buffer: pickle.PickleBuffer) -> tuple[int, int]:
        """Write an array and return the place and the number of its bytes."""
        start = -(-self._file.tell() // _ALIGNED) * _ALIGNED
        self._file.seek(start)
        with buffer.raw() as raw:
            return start, self._file.write(raw)

    def _map_memory(self, start: int, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        page = start // _PAGE * _PAGE
        whole = mmap.mmap(self._file.fileno(), start + size - page, access=mmap.ACCESS_READ, offset=page)
        return memoryview(whole)[start - page :]


class LocalSource(RecordSource):
    """The base class of sources that hold one block at a time, and keep blocks in a scratch file."""

    is_fixed = True
    folder: str | PathLike[str] | None

    def keep(self) -> "ReadSource":
        return ReadSource(Scratch(self.mapped(), self.folder), self.width, self.folder)


class ReadSource(LocalSource):
    """Blocks that are read again, in the same order, for every sum."""

    def __init__(self, blocks: Iterable[Block], width: int, folder: str | PathLike[str] | None) -> None:
        self._stored, self.width, self.folder = blocks, width, folder

    def read(self) -> Iterable[Block]:
        return self._stored


def keep_or_spill(
    items: Iterable[Item], folder: str | PathLike[str] | None, public_size: int = 0
) -> list[Item] | Scratch[Item]:
    """Return blocks, or pieces that begin with their rows, in memory if small, otherwise in a scratch file.

    If the public number of bytes is known and large, all blocks go to the file at once. The place of a block affects
    speed only, not results.
    """
    first, size, more = list[Item](), 0, iter(items)
    for item in more:
        first.append(item)
        size += (item.rows if isinstance(item, Block) else item[0]).nbytes  # type: ignore[index]  # a tuple
        if max(size, public_size) > _IN_MEMORY:
            first.reverse()
            return Scratch(chain((first.pop() for _ in range(len(first))), more), folder)
    return first


def store_blocks(
    blocks: Iterable[Block], width: int, folder: str | PathLike[str] | None, public_size: int = 0
) -> RecordSource:
    """Return a source of the blocks, which are computed once."""
    kept = keep_or_spill(blocks, folder, public_size)
    return ArraySource.of_blocks(kept) if isinstance(kept, list) else ReadSource(kept, width, folder)


class TableSource(LocalSource):
    """Read records of a table through a schema, block by block.

    Types and ranges come from the schema, never from the data. A block has the same public number of records, however
    the table is divided into files. The table is read once. Up to 128 MB of numbers stay in memory. More are written
    to a scratch file of eight bytes a number, and one block at a time is in memory. A second scratch file holds the
    rows that training reads at every step. If the schema declares persons, all rows of a person are moved into one
    block, by a hash of the ids. There are then up to 256 blocks of whole persons.

    Parameters
    ----------
    table : path, URL, list of these, or data set
        A Parquet, CSV, Arrow or ORC file; a folder or a pattern (``"2024/*.parquet"``); a URL that Arrow or fsspec
        opens (``file``, ``memory``, ``s3``, ``gs``, ...). All files below a folder are read in the order of their
        names, and folders such as ``year=2024`` become columns. Or an Arrow ``Dataset`` or ``RecordBatchReader``, a
        DuckDB relation, a polars ``LazyFrame`` or a Hugging Face ``Dataset``.
    schema : Schema
        It declares columns, bounds, categories, target and classes, and how CSV files are written.
    scratch : str, path or None
        The folder of the scratch file; None: the system's folder for temporary files. The file contains records without
        encryption until the fit ends. The file has no name, and nobody else can read it.
    block_rows : int or None
        Records in a block; None: two million numbers, 16 MB.
    """

    def __init__(
        self,
        table: Any,
        schema: Schema,
        *,
        scratch: str | PathLike[str] | None = None,
        block_rows: int | None = None,
    ) -> None:
        self._read_by = Table(table, schema.csv)
        self._schema = replace_patterns(schema, table).require_complete()
        self._columns = self._read_by.columns_of(self._schema)
        width = len(self._schema.feature_names)
        self._rows = max(1, BLOCK_NUMBERS // width) if block_rows is None else check_count("block_rows", block_rows)
        self._stored: list[RecordSource] = []  # also for sources that ``map`` makes from this one
        self.width, self.folder = width, scratch

    def _encoded(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield matrix, targets and person ids of the batches."""
        with self._naming_file():
            for batch in self._read_by.batches("read the table", self._columns, self._rows, self._schema.n_records):
                rows, targets, persons = self._schema.encode(self._read_by.as_frame(batch, self._schema))
                yield rows, targets, None if persons is None else read_person_ids(persons)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Add the file name to an error about its records as a note; the message does not change."""
        try:
            yield
        except TableError:  # its message already names the file
            raise
        except (ValueError, TypeError) as error:
            if isinstance(self._read_by.current, TableFile):
                error.add_note(f"This was found in the file {self._read_by.current.said}. {SEE_CHECK}")
            raise

    def _table(self) -> Iterator[Block]:
        """Yield blocks of the public number of records, for any division into files and batches."""
        number, waiting = 0, []
        for rows, targets, _ in self._encoded():
            waiting.append((rows, targets))
            if sum(len(part) for _, part in waiting) >= self._rows:
                rows, targets = _join(waiting)
                for start in range(0, len(rows) - self._rows + 1, self._rows):
                    yield Block(number, rows[start : start + self._rows], targets[start : start + self._rows])
                    number += 1
                rest = len(rows) - len(rows) % self._rows
                waiting = [(rows[rest:], targets[rest:])]
        rows, targets = _join(waiting)
        if len(rows) or not number:
            yield Block(number, rows, targets)

    def read(self) -> Iterable[Block]:
        """Return the blocks, which the first reading of the table stores."""
        return self.stored().read()

    def stored(self) -> RecordSource:
        """Return the source of the same blocks in memory or in a scratch file, by their size."""
        if not self._stored and self._schema.person is not None:
            self._stored.append(store_blocks(self._person_blocks(), self.width, self.folder, self._public_size))
        elif not self._stored:
            self._stored.append(store_blocks(self._table(), self.width, self.folder, self._public_size))
        return self._stored[0]

    def _person_blocks(self) -> Iterator[Block]:
        """Yield blocks of whole persons, by a hash of the ids."""
        batches = keep_or_spill(self._encoded(), self.folder, self._public_size)
        records = sum(len(targets) for _, targets, _ in batches)
        count = min(_MOST_PLACES, max(1, -(-records // self._rows)))
        split = chain.from_iterable(split_by_person(*batch, count) for batch in batches)
        pieces = keep_or_spill(split, self.folder, self._public_size)
        del batches
        for place in range(count):
            yield join_person_block(place, list(pieces[place::count]))

    @property
    def _public_size(self) -> int:
        """The size in bytes of the declared number of records; 0 without such a number."""
        schema = self._schema
        declared = schema.n_records or (schema.n_persons or 0) * (schema.rows_per_person or 0)
        return 8 * self.width * declared


def _join(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the rows and targets of all parts."""
    if len(parts) == 1:
        return parts[0]
    rows, targets = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(targets)
