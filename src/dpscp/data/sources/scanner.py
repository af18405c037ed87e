"""Read tables through a schema: files, folders, URLs, and data sets of other libraries."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np

from dpscp._base.checks import check_count
from dpscp._base.progress import announce
from dpscp.data.csv_format import CSVFormat
from dpscp.data.frames import Frame, list_columns, table_to_pandas
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources.base import ArraySource, Block, RecordSource, hide_message
from dpscp.data.sources.files import (
    ONE_BATCH,
    SEE_CHECK,
    TableError,
    TableFile,
    are_paths,
    is_path,
    list_files,
    read_files,
)
from dpscp.data.sources.persons import PersonRows, spill_person_blocks, split_by_person
from dpscp.data.sources.spill import LocalSource, ReadSource, Scratch

# Numbers of a block: enough that the work on it outweighs the reading, few enough that a block and copies are small.
BLOCK_NUMBERS = 2**21
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
        self._csv = schema.csv if csv is None else csv
        self._files = list_files(table, self._csv) if is_path(table) or are_paths(table) else []
        self._schema = replace_patterns(schema, table).require_complete()
        width = len(self._schema.feature_names)
        self._rows = max(1, BLOCK_NUMBERS // width) if block_rows is None else check_count("block_rows", block_rows)
        self._read_once: Scratch[Any] | None = None
        if self._files:
            self._columns = self._find_columns(self._files[0].names, repr(self._files[0].path))
            for file in self._files[1:]:
                require_same_columns(self._columns, file)
        else:
            self._columns = self._find_columns(_stream_names(table), f"the {type(table).__name__}")
            self._read_once = Scratch(_read_stream(table, self._columns, self._rows), scratch)
        self._states = {file.path: file.state() for file in self._files}
        self._kept: list[Scratch[Block]] = []  # also of the sources that are mapped from this one
        self._path = ""  # of the file that is read now
        self.width, self._folder = width, scratch

    def _find_columns(self, names: Sequence[str], said: str) -> list[str]:
        """Return the names of the columns that the schema declares."""
        if len(set(names)) != len(names):
            raise TableError(f"{said} has two columns with the same name; rename one of them")
        found = [name for name in names if name in self._schema.column_names]
        if not found:
            raise TableError(
                f"{said} contains none of the columns that the schema declares; check the schema and, for CSV, "
                "the separator and the first line, which must hold the column names"
            )
        return found

    def _batches(self) -> Iterator[Any]:
        announce("read the table")
        yield from self._read_once or ()
        for file, batch in read_files(self._files, self._columns, self._rows, self._schema.n_records):
            if file.state() != self._states[file.path]:
                raise TableError(
                    f"{file.path!r} was written to while it was read; fit again on a file that does not change"
                )
            self._path = file.path
            yield batch

    def frames(self) -> Iterator[Any]:
        """Yield the columns of the schema as pandas frames, in the order of the records."""
        written = self._csv if self._files and self._files[0].is_csv else None
        for batch in or_no_records(self._batches(), self._columns):
            yield as_frame(batch, self._schema, written)

    def _encoded(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield matrix, targets and person ids of the batches."""
        with self._naming_file():
            for frame in self.frames():
                yield self._schema.encode(frame)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Name the file in an error about its records, as a note: the message is that of a table in memory."""
        try:
            yield
        except TableError:  # it names the file
            raise
        except (ValueError, TypeError) as error:
            if self._path:
                error.add_note(f"This was found in the file {self._path!r}. {SEE_CHECK}")
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
        size = sum(file.estimate_bytes(self.width) for file in self._files)
        if self._read_once is not None:
            size = 8 * self.width * sum(map(len, self._read_once))
        if size > _IN_MEMORY:
            return self
        return ArraySource.of_blocks(list(self._join_persons() if self.by_person else self._table()))

    def join_persons(self, pieces: Iterable[PersonRows], count: int, senders: int) -> ReadSource:
        """Return the source of the rows that several senders sent to this process."""
        written = spill_person_blocks(pieces, count, self._folder, senders=senders)
        return ReadSource(written, self.width, self._folder)


def or_no_records(batches: Iterable[Any], names: Sequence[str]) -> Iterator[Any]:
    """Yield the batches, or one without a row: an error would reveal that the only record is missing."""
    import pyarrow as pa

    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        yield pa.RecordBatch.from_pylist([], pa.schema([(name, pa.string()) for name in names]))


def require_same_columns(names: Sequence[str], file: TableFile) -> None:
    """Refuse a file without one of these public columns, which the first file of the table has."""
    missing = [name for name in names if name not in file.names]
    if missing:
        raise TableError(
            f"{file.path!r} lacks column {', '.join(map(repr, missing))}, which the files before it have. Add it, or "
            "fit on files with the same columns"
        )


def _join(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the rows and targets of all parts."""
    if len(parts) == 1:
        return parts[0]
    rows, targets = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(targets)


def replace_patterns(schema: Schema, table: Any) -> Schema:
    """Return the schema of a table, whose columns take the place of patterns.

    ``table`` is a frame, what ``TableSource`` reads, or None for rows without names. The first line of a file without
    types may be a record. It is refused if it lacks the target.
    """
    if not schema.has_patterns:
        return schema
    if table is None:
        raise SchemaError(
            "the schema has patterns, which need the column names of a table; pass a frame or a path, or use "
            "schema.for_columns(names)"
        )
    if isinstance(table, Frame):
        return schema.for_columns(list_columns(table))
    if not (is_path(table) or are_paths(table)):
        return schema.for_columns(_stream_names(table))
    file = list_files(table, schema.csv)[0]
    if file.is_text and not set(schema.target_names) <= set(file.names):
        raise TableError(f"the first line of {file.path!r} lacks the target of the schema; it must hold column names")
    return schema.for_columns(file.names)


def _stream_names(table: Any) -> list[str]:
    """Return the column names of a data set of another library."""
    if hasattr(table, "collect_schema"):  # polars
        return list(table.collect_schema().names())
    # Hugging Face and DuckDB, then Arrow
    names = getattr(table, "column_names", None) or getattr(table, "columns", None)
    if isinstance(names, dict):
        raise TableError("X is a DatasetDict; pass one of its data sets, such as X['train']")
    return list(table.schema.names if names is None else names)


def _read_stream(table: Any, names: list[str], rows: int) -> Iterator[Any]:
    """Yield the chosen columns of all records once, as Arrow batches in the order of the data set."""
    _require_same_fragments(table, names)
    stream = _stream_batches(table, names, rows)
    while (batch := hide_message(lambda: next(stream, None), f"the {type(table).__name__}")) is not None:
        yield batch


def _stream_batches(table: Any, names: list[str], rows: int) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    if hasattr(table, "collect_schema"):
        for frame in table.select(names).collect_batches(chunk_size=rows, maintain_order=True):
            yield from frame.to_arrow().to_batches()
    elif hasattr(table, "select_columns"):
        for part in table.select_columns(names).with_format("arrow").iter(rows):
            yield from part.to_batches()
    elif isinstance(table, ds.Dataset):
        yield from table.to_batches(columns=names, batch_size=rows, **ONE_BATCH)
    else:
        for batch in pa.RecordBatchReader.from_stream(table):
            yield batch.select(names)


def _require_same_fragments(table: Any, names: Sequence[str]) -> None:
    """Refuse an Arrow dataset with a file that lacks a column: Arrow would fill it with missing values."""
    import pyarrow.dataset as ds

    fragments: list[Any] = []
    with suppress(ValueError):  # Arrow does not list the files of a filtered dataset
        fragments = list(table.get_fragments()) if isinstance(table, ds.Dataset) else []
    for fragment in fragments:
        known = {*fragment.physical_schema.names, *ds.get_partition_keys(fragment.partition_expression)}
        missing = [name for name in names if name not in known]
        if missing:
            raise TableError(f"a file of the dataset lacks column {missing[0]!r}; add it, or leave the file out")


def as_frame(block: Any, schema: Schema, csv_format: CSVFormat | None = None) -> Any:
    """Return the columns of the schema as a pandas frame.

    Texts of numeric columns become numbers, as the format of a CSV file writes them (None: with a decimal point).

    A column with a cell that is neither a number nor a mark for a missing one stays text: the schema refuses it.
    Ids of persons stay Arrow's: pandas would make floating-point numbers of integers where one is missing.
    """
    import pandas as pd
    import pyarrow as pa

    numeric = {column.name for column in schema.columns if column.type == "numeric"}
    numeric |= set() if schema.task == "classification" else set(schema.target_names)
    used = [name for name in block.schema.names if name in schema.column_names]
    reading = csv_format or CSVFormat()
    columns = {name: reading.read_cells(block[name], are_numbers=name in numeric) for name in used}
    frame = table_to_pandas(pa.table(columns))
    if schema.person in used:
        frame[schema.person] = pd.arrays.ArrowExtensionArray(columns[schema.person])
    return frame
