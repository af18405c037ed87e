"""Read tables through a schema: files, folders, URLs, and data sets of other libraries."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np

from dpscp._base.checks import check_count
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Schema
from dpscp.data.sources.base import ArraySource, Block, RecordSource
from dpscp.data.sources.files import BLOCK_NUMBERS, SEE_CHECK, TableError
from dpscp.data.sources.persons import PersonRows, spill_person_blocks, split_by_person
from dpscp.data.sources.spill import LocalSource, ReadSource, Scratch
from dpscp.data.sources.tables import Table, replace_patterns

# Blocks into which persons are split: each batch of a table leaves a piece for each of them.
_MOST_PLACES = 256
# A table whose numbers take no more bytes is read once, into memory.
_IN_MEMORY = 2**28


class TableSource(LocalSource):
    """Read records of a table through a schema, block by block.

    Types and ranges come from the schema, never from the data. A block has the same public number of records, however
    the table is divided into files. Files are read once, into a scratch file of eight bytes a number, and every later
    reading is one of this file. What training reads at every step is in another one. One block at a time is in memory.
    If the schema declares persons, files are read twice, and all rows of a person are moved into one block, by a hash
    of the ids. There are then up to 256 blocks of whole persons.

    Parameters
    ----------
    table : path, URL, list of these, or data set
        A Parquet, CSV, Arrow or ORC file; a folder or a pattern (``"2024/*.parquet"``); a URL that Arrow or fsspec
        opens (``file``, ``memory``, ``s3``, ``gs``, ...). All files below a folder are read in the order of their
        names, and folders such as ``year=2024`` become columns. Or an Arrow ``Dataset`` or ``RecordBatchReader``, a
        DuckDB relation, a polars ``LazyFrame`` or a Hugging Face ``Dataset``: it is read once, into the scratch file.
    schema : Schema
        It declares columns, bounds, categories, target and classes.
    csv : CSVFormat, optional
        How CSV files are written; None: as the schema declares.
    scratch : str, path or None
        The folder of the scratch file; None: the system's folder for temporary files. The file contains records without
        encryption until the fit ends. It has no name, and nobody else can read it.
    block_rows : int or None
        Records in a block; None: two million numbers, 16 MB.
    """

    def __init__(
        self,
        table: Any,
        schema: Schema,
        *,
        csv: CSVFormat | None = None,
        scratch: str | PathLike[str] | None = None,
        block_rows: int | None = None,
    ) -> None:
        self._read_by = Table(table, schema.csv if csv is None else csv)
        self._schema = replace_patterns(schema, table).require_complete()
        self._columns = self._read_by.columns_of(self._schema)
        width = len(self._schema.feature_names)
        self._rows = max(1, BLOCK_NUMBERS // width) if block_rows is None else check_count("block_rows", block_rows)
        self._read_once = None if self._read_by.is_files else Scratch(self._read_table(), scratch)
        self._kept: list[Scratch[Block]] = []  # also of the sources that are mapped from this one
        self.width, self._folder = width, scratch

    def _read_table(self) -> Iterator[Any]:
        return self._read_by.batches("read the table", self._columns, self._rows, self._schema.n_records)

    def _batches(self) -> Iterable[Any]:
        return self._read_table() if self._read_once is None else self._read_once

    def _encoded(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield matrix, targets and person ids of the batches."""
        with self._naming_file():
            for batch in self._batches():
                yield self._schema.encode(self._read_by.as_frame(batch, self._schema))

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Name the file in an error about its records, as a note: the message is that of a table in memory."""
        try:
            yield
        except TableError:  # it names the file
            raise
        except (ValueError, TypeError) as error:
            if self._read_by.is_files and self._read_by.current is not None:
                error.add_note(f"This was found in the file {self._read_by.current.said}. {SEE_CHECK}")
            raise

    def _table(self) -> Iterator[Block]:
        """Yield blocks of the public number of records, whatever the files and batches are."""
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
        """Return the blocks from a scratch file, which the first reading of the table writes."""
        if not self._kept:
            self._kept.append(self._join_persons() if self.by_person else Scratch(self._table(), self._folder))
        return self._kept[0]

    def _join_persons(self) -> Scratch[Block]:
        count = self.places()
        return spill_person_blocks(chain.from_iterable(self.split_by_person(count)), count, self._folder)

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
        for rows, targets, ids in self._encoded():
            with self._naming_file():
                pieces = split_by_person(rows, targets, ids, count, first)
            yield pieces
            first += len(rows)

    def in_memory(self) -> RecordSource:
        """Return the same blocks in memory if they are small; otherwise this source.

        The size decides the speed alone: results do not depend on where a block is.
        """
        if self._read_once is None:
            size = self._read_by.estimate_bytes(self.width)
        else:
            size = 8 * self.width * sum(map(len, self._read_once))
        if size > _IN_MEMORY:
            return self
        return ArraySource.of_blocks(list(self._join_persons() if self.by_person else self._table()))

    def join_persons(self, pieces: Iterable[PersonRows], count: int, senders: int) -> ReadSource:
        """Return the source of the rows that several senders sent to this process."""
        written = spill_person_blocks(pieces, count, self._folder, senders=senders)
        return ReadSource(written, self.width, self._folder)


def _join(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the rows and targets of all parts."""
    if len(parts) == 1:
        return parts[0]
    rows, targets = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(targets)
