"""Read tables, and keep blocks in memory or in a scratch file.

Tables are files, folders, URLs, and data sets of other libraries. Small blocks stay in memory. Others are written to an
unnamed temporary file that is read again for every sum.
"""

import mmap
import pickle
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import IO, Any, Generic, TypeVar

import numpy as np

from dpscp._base.checks import check_count
from dpscp._base.progress import announce, show_pass
from dpscp.data.csv_format import CSVFormat
from dpscp.data.frames import Frame, list_columns, table_to_pandas
from dpscp.data.persons import read_person_ids
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources.base import ArraySource, Block, RecordSource, hide_message
from dpscp.data.sources.files import (
    BLOCK_NUMBERS,
    ONE_BATCH,
    SEE_CHECK,
    TableError,
    TableFile,
    are_paths,
    is_path,
    list_files,
)
from dpscp.data.sources.places import join_person_block, split_by_person

Item = TypeVar("Item")
# Arrays start at multiples of this, so that the engine reads them without a copy.
_ALIGNED = 64
_PAGE = mmap.ALLOCATIONGRANULARITY
# The number of bytes up to which rows stay in memory.
_IN_MEMORY = 2**27
# The number of blocks into which persons are split; each batch of a table is split into so many pieces.
_MOST_PLACES = 256
# Classes of other libraries that yield the records of a table, by the first part of their module.
_LIBRARIES = {
    ("pyarrow", "Dataset"),
    ("pyarrow", "RecordBatchReader"),
    ("duckdb", "DuckDBPyRelation"),
    ("polars", "LazyFrame"),
    ("datasets", "Dataset"),
    ("datasets", "IterableDataset"),
    ("datasets", "DatasetDict"),  # which is refused
}


def is_table(table: Any) -> bool:
    """Return whether ``TableSource`` reads this, which is not a frame.

    It reads a path or a data set of another library.
    """
    if is_path(table) or are_paths(table):
        return True
    for kind in type(table).__mro__:
        if (kind.__module__.partition(".")[0].strip("_"), kind.__name__) in _LIBRARIES:
            return True
    return False


@dataclass(frozen=True)
class TableStream:
    """A data set of another library, which may be read only once."""

    data: Any
    is_csv = is_text = False

    @property
    def said(self) -> str:
        """The data set in a message."""
        return f"the {type(self.data).__name__}"

    @cached_property
    def names(self) -> list[str]:
        """The names of the columns."""
        if hasattr(self.data, "collect_schema"):  # polars
            return list(self.data.collect_schema().names())
        # Hugging Face and DuckDB, then Arrow
        found = getattr(self.data, "column_names", None) or getattr(self.data, "columns", None)
        if isinstance(found, dict):
            raise TableError("X is a DatasetDict; pass one of its data sets, such as X['train']")
        return list(self.data.schema.names if found is None else found)

    def find_damage(self) -> str:
        """Return "", because the place in a data set is unknown."""
        return ""

    def batches(self, names: Sequence[str], rows: int) -> Iterator[tuple[float, Any]]:
        """Yield the chosen columns of all records as Arrow batches.

        The share that was read is unknown.
        """
        self._require_same_fragments(names)
        stream = self._read(list(names), rows)
        while (batch := hide_message(lambda: next(stream, None), self.said)) is not None:
            yield 0.0, batch

    def _read(self, names: list[str], rows: int) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.dataset as ds

        if hasattr(self.data, "collect_schema"):
            for frame in self.data.select(names).collect_batches(chunk_size=rows, maintain_order=True):
                yield from frame.to_arrow().to_batches()
        elif hasattr(self.data, "select_columns"):
            for part in self.data.select_columns(names).with_format("arrow").iter(rows):
                yield from part.to_batches()
        elif isinstance(self.data, ds.Dataset):
            yield from self.data.to_batches(columns=names, batch_size=rows, **ONE_BATCH)
        else:
            for batch in pa.RecordBatchReader.from_stream(self.data):
                yield batch.select(names)

    def _require_same_fragments(self, names: Sequence[str]) -> None:
        """Refuse an Arrow dataset with a file that lacks a column.

        Arrow would fill it with missing values.
        """
        import pyarrow.dataset as ds

        fragments: list[Any] = []
        with suppress(ValueError):  # Arrow does not list the files of a filtered dataset
            fragments = list(self.data.get_fragments()) if isinstance(self.data, ds.Dataset) else []
        for fragment in fragments:
            known = {*fragment.physical_schema.names, *ds.get_partition_keys(fragment.partition_expression)}
            missing = [name for name in names if name not in known]
            if missing:
                raise TableError(f"a file of the dataset lacks column {missing[0]!r}; add it, or remove the file")


def _list_parts(table: Any, csv_format: CSVFormat) -> Sequence[TableFile | TableStream]:
    return list_files(table, csv_format) if is_path(table) or are_paths(table) else [TableStream(table)]


def count_rows(names: Sequence[str]) -> int:
    """Return how many records of these columns are read at once."""
    return max(1, BLOCK_NUMBERS // max(1, len(names)))


class Table:
    """The records of files or of a data set, as Arrow batches in a fixed order.

    Attributes
    ----------
    parts : list of TableFile, or of one TableStream
    names : list of str
        The columns of the first part. In a text file they may be a record.
    csv_format : CSVFormat
        How CSV files are written.
    current : TableFile, TableStream or None
        The part that is being read.
    """

    def __init__(self, table: Any, csv_format: CSVFormat) -> None:
        self.parts = _list_parts(table, csv_format)
        self.csv_format = csv_format
        self.current: TableFile | TableStream | None = None

    @property
    def first(self) -> TableFile | TableStream:
        """The first part."""
        return self.parts[0]

    @property
    def names(self) -> list[str]:
        """The names of the columns of the first part."""
        return self.first.names

    def batches(
        self, stage: str, names: Sequence[str] | None = None, rows: int | None = None, records: int | None = None
    ) -> Iterator[Any]:
        """Yield the columns of all records, and show the progress of the stage.

        A table without records has one batch without a row: an error would reveal that the only record is missing.

        Parameters
        ----------
        stage : str
        names : sequence of str, optional
            Columns of the first part; None: all, and no other part has more.
        rows : int, optional
            The most records of a batch; None: two million numbers.
        records : int, optional
            The public number of records.
        """
        import pyarrow as pa

        if names is None:
            names = self.names
            if any(set(part.names) - set(names) for part in self.parts):
                raise TableError(
                    f"a file has columns that {self.first.said} lacks; all files must have the same columns"
                )
        for part in self.parts:
            if len(set(part.names)) != len(part.names):
                raise TableError(f"{part.said} has two columns with the same name; rename one of them")
            missing = [name for name in names if name not in part.names]  # public: the first part has them
            if missing:
                raise TableError(
                    f"{part.said} lacks column {', '.join(map(repr, missing))}, which the files before it have. Add "
                    "it, or use files with the same columns"
                )
        done, is_empty = 0.0, True

        def read() -> Iterator[Any]:
            nonlocal done
            for number, part in enumerate(self.parts):
                self.current = part
                for share, batch in part.batches(names, rows or count_rows(names)):
                    done = (number + share) / len(self.parts)
                    yield batch

        announce(stage)
        for batch in show_pass(read(), lambda: done, records):
            is_empty = False
            yield batch
        if is_empty:
            yield pa.RecordBatch.from_pylist([], pa.schema([(name, pa.string()) for name in names]))

    def columns_of(self, schema: Schema) -> list[str]:
        """Return the names of the columns that the schema declares."""
        found = [name for name in self.names if name in schema.column_names]
        if not found:
            raise TableError(
                f"{self.first.said} contains none of the columns that the schema declares; check the schema and, for "
                "CSV, the separator and the first line, which must hold the column names"
            )
        return found

    def frames(self, stage: str, schema: Schema) -> Iterator[Any]:
        """Yield the columns of the schema as pandas frames."""
        for batch in self.batches(stage, self.columns_of(schema)):
            yield self.as_frame(batch, schema)

    def as_frame(self, batch: Any, schema: Schema) -> Any:
        """Return the columns of the schema in a batch as a pandas frame."""
        return as_frame(batch, schema, self.csv_format if self.first.is_csv else None)


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
    first = _list_parts(table, schema.csv)[0]
    if first.is_text and not set(schema.target_names) <= set(first.names):
        raise TableError(f"the first line of {first.said} lacks the target of the schema; it must hold column names")
    return schema.for_columns(first.names)


def as_frame(block: Any, schema: Schema, csv_format: CSVFormat | None = None) -> Any:
    """Return the columns of the schema as a pandas frame.

    Texts of numeric columns become numbers, as the format of a CSV file writes them (None: with a decimal point).

    A column with a cell that is neither a number nor a mark for a missing one stays text, and the schema refuses it.
    Ids of persons stay Arrow columns, because pandas would convert integers with a missing value to floating-point
    numbers.
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


@contextmanager
def _named_folder(folder: str | PathLike[str] | None) -> Iterator[None]:
    """Name the folder in a write error, such as a full disk.

    The file itself has no name.
    """
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
    """Base class of sources with one block at a time and a scratch file for blocks."""

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
    """Return blocks, or pieces that begin with their rows, for reading again.

    They are in memory if small, otherwise in a scratch file. If the public number of bytes is known and large, all
    blocks go to the file at once. The place of a block affects speed only, not results.
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
        """Add the file name as a note to an error, whose message does not change."""
        try:
            yield
        except TableError:  # its message already names the file
            raise
        except (ValueError, TypeError) as error:
            if isinstance(self._read_by.current, TableFile):
                error.add_note(f"This was found in the file {self._read_by.current.said}. {SEE_CHECK}")
            raise

    def _table(self) -> Iterator[Block]:
        """Yield blocks of the public number of records, for any division into files."""
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
        """Return the source of the same blocks, in memory if small, else on disk."""
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
