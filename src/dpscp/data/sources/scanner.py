"""Read tables through a schema: files, folders, URLs, and data sets of other libraries."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np

from dpscp._base.checks import check_count
from dpscp.data.persons import read_person_ids
from dpscp.data.schema import Schema
from dpscp.data.sources.base import Block, RecordSource
from dpscp.data.sources.files import BLOCK_NUMBERS, SEE_CHECK, TableError, TableFile
from dpscp.data.sources.persons import join_person_block, split_by_person
from dpscp.data.sources.spill import LocalSource, keep_or_spill, store_blocks
from dpscp.data.sources.tables import Table, replace_patterns

# The number of blocks into which persons are split; each batch of a table is split into so many pieces.
_MOST_PLACES = 256


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
