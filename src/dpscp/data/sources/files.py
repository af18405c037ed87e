"""Read records from Parquet and CSV files, block by block through a schema."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from dpscp._base.checks import check_count
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Schema
from dpscp.data.sources.array import ArraySource
from dpscp.data.sources.base import Block, RecordSource, added
from dpscp.data.sources.persons import PersonRows, spill_person_blocks, split_by_person
from dpscp.data.sources.spill import Scratch
from dpscp.data.sources.tables import (
    TableError,
    as_frame,
    estimate_bytes,
    is_parquet,
    require_unique_names,
    table_blocks,
    table_names,
)

Total = TypeVar("Total")
# Numbers of a block: enough that the work on it outweighs the reading, few enough that a block and copies are small.
BLOCK_NUMBERS = 2**21
# Blocks into which persons are split: each batch of a table leaves a piece for each of them.
_MOST_PLACES = 256
# A table whose numbers take no more bytes is read once, into memory.
_IN_MEMORY = 2**28


class ReadSource:
    """Blocks that are read again, in the same order, for every sum.

    One block at a time is in memory.
    """

    def __init__(self, read: Callable[[], Iterable[Block]], width: int, folder: str | PathLike[str] | None) -> None:
        self._read, self.width, self._folder = read, width, folder
        self._functions: tuple[Callable[[Block], Block], ...] = ()

    def map(self, function: Callable[[Block], Block], *, keep: bool = False) -> "ReadSource":
        """Return the source of ``function(block)``.

        What is to be kept goes to a scratch file.
        """
        mapped = ReadSource(self._read, self.width, self._folder)
        mapped._functions = (*self._functions, function)
        if not keep:
            return mapped
        return ReadSource(Scratch(mapped._blocks(), self._folder).__iter__, self.width, self._folder)

    def sum(self, function: Callable[[Block], Total]) -> Total:
        """Return the total over the blocks, see ``RecordSource``."""
        return added(function(block) for block in self._blocks())

    def _blocks(self) -> Iterator[Block]:
        for block in self._read():
            for function in self._functions:
                block = function(block)
            yield block


class TableSource(ReadSource):
    """The records of files that a schema reads."""

    def __init__(
        self,
        path: str | PathLike[str],
        schema: Schema,
        folder: str | PathLike[str] | None,
        rows: int | None,
        csv_format: CSVFormat,
    ) -> None:
        given = Path(path)
        if not given.exists():
            raise FileNotFoundError(f"no such file: {str(given)!r}")
        self._files = sorted(p for p in given.iterdir() if _is_data(p)) if given.is_dir() else [given]
        if not self._files:
            raise TableError(f"the folder {str(given)!r} contains no Parquet file; give a folder of .parquet files")
        self._schema, width = schema.require_complete(), len(schema.feature_names)
        rows = max(1, BLOCK_NUMBERS // width) if rows is None else check_count("block_rows", rows)
        self._rows, self._csv_format = rows, csv_format
        names = {file: table_names(file, csv_format) for file in self._files}
        self._columns = {file: [n for n in names[file] if n in schema.column_names] for file in self._files}
        for file, columns in self._columns.items():
            require_unique_names(file, columns)
        if not all(self._columns.values()):
            raise TableError(
                f"{str(given)!r} contains none of the columns that the schema declares; check the schema and, for CSV, "
                "the separator and the first line, which must hold the column names"
            )
        self._file_states = {file: _file_state(file) for file in self._files}
        self._by_person: Scratch[Block] | None = None
        super().__init__(self._table if schema.person is None else self._persons, width, folder)

    def _batches(self) -> Iterator[Any]:
        for file in self._files:
            for batch in table_blocks(file, self._columns[file], csv_format=self._csv_format, rows=self._rows):
                if _file_state(file) != self._file_states[file]:
                    raise TableError(
                        f"{str(file)!r} was written to while it was read; fit again on a file that does not change"
                    )
                yield batch

    def frames(self) -> Iterator[Any]:
        """Yield the columns of the schema as pandas frames, one for each block of the files."""
        for batch in self._batches():
            yield as_frame(batch, self._schema, self._csv_format)

    def _table(self) -> Iterator[Block]:
        for number, frame in enumerate(self.frames()):
            rows, targets, _ = self._schema.encode(frame)
            yield Block(number, rows, targets)

    def _persons(self) -> Iterable[Block]:
        """Return blocks of whole persons from a scratch file.

        The first reading writes the file.
        """
        if self._by_person is None:
            count = self.places()
            self._by_person = spill_person_blocks(chain.from_iterable(self.split_by_person(count)), count, self._folder)
        return self._by_person

    @property
    def by_person(self) -> bool:
        """Return whether the schema declares a person column."""
        return self._schema.person is not None

    def places(self) -> int:
        """Return the number of blocks of whole persons for these records."""
        records = sum(map(len, self._batches()))
        return min(_MOST_PLACES, max(1, -(-records // self._rows)))

    def split_by_person(self, count: int, first: int = 0) -> Iterator[list[PersonRows]]:
        """Yield the rows of each batch, split into ``count`` places by person.

        The first row has the number ``first``.
        """
        for frame in self.frames():
            yield split_by_person(*self._schema.encode(frame), count, first)
            first += len(frame)

    def in_memory(self) -> RecordSource:
        """Return the same blocks in memory if they are small; otherwise this source.

        The size decides the speed alone: results do not depend on where a block is.
        """
        if sum(estimate_bytes(file, self.width) for file in self._files) > _IN_MEMORY:
            return self
        return ArraySource.of_blocks(list(self._blocks()))

    def join_persons(self, pieces: Iterable[PersonRows], count: int, senders: int) -> ReadSource:
        """Return the source of the rows that several senders sent to this process."""
        written = spill_person_blocks(pieces, count, self._folder, senders=senders)
        return ReadSource(written.__iter__, self.width, self._folder)


def _is_data(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith((".parquet", ".pq"))


def _file_state(path: Path) -> tuple[int, ...]:
    """Return properties of a file that change with its content.

    The time of the last change is one of them; no program can set it.
    """
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class ParquetSource(TableSource):
    """Read records from a Parquet file, or from all Parquet files of a folder.

    Files of a folder are read in the order of their names. Types and ranges come from the schema, never from the data.
    A file is read several times. What training reads at every step is in a scratch file. One block at a time is in
    memory.

    If the schema declares persons, all rows of a person are first moved into one block of the scratch file, by a hash
    of the ids. There are then up to 256 blocks of whole persons.

    Parameters
    ----------
    path : str or path
        A Parquet file, or a folder of them.
    schema : Schema
        It declares columns, bounds, categories, target and classes.
    scratch : str, path or None
        The folder of the scratch file; None: the system's folder for temporary files. The file contains records without
        encryption until the fit ends. It has no name, and nobody else can read it.
    block_rows : int or None
        Records in a block; None: two million numbers, 16 MB.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        schema: Schema,
        *,
        scratch: str | PathLike[str] | None = None,
        block_rows: int | None = None,
    ) -> None:
        super().__init__(path, schema, scratch, block_rows, CSVFormat())


class CSVSource(TableSource):
    """Read records from a CSV file whose first line holds the column names.

    It works like ``ParquetSource``. A block is also at most eight megabytes of the file. Parquet is several times
    faster.

    Parameters
    ----------
    path : str or path
        A file with the ending ``.csv``, ``.csv.gz`` or ``.tsv``.
    schema : Schema
        It declares columns, bounds, categories, target and classes.
    separator : str or None
        The separator of cells; None: that of the schema, else a tab for ``.tsv`` and a comma for others.
    encoding, decimal, thousands : str or None
        How the file is written, see ``CSVFormat``; None: as the schema declares.
    scratch : str, path or None
        The folder of the scratch file, see ``ParquetSource``.
    block_rows : int or None
        Records in a block; None: two million numbers, 16 MB.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        schema: Schema,
        *,
        separator: str | None = None,
        encoding: str | None = None,
        decimal: str | None = None,
        thousands: str | None = None,
        scratch: str | PathLike[str] | None = None,
        block_rows: int | None = None,
    ) -> None:
        written = schema.csv.with_changes(separator=separator, encoding=encoding, decimal=decimal, thousands=thousands)
        super().__init__(path, schema, scratch, block_rows, written)


def table_source(
    path: str | PathLike[str], schema: Schema, *, scratch: str | PathLike[str] | None = None
) -> ParquetSource | CSVSource:
    """Return the source of a table in a file, Parquet or CSV by its name.

    A folder holds Parquet files.
    """
    if Path(path).is_dir() or is_parquet(Path(path)):
        return ParquetSource(path, schema, scratch=scratch)
    return CSVSource(path, schema, scratch=scratch)
