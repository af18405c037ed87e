"""Read the records of tables: files, folders, URLs, and data sets of other libraries."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpscp._base.progress import announce, show_pass
from dpscp.data.csv_format import CSVFormat
from dpscp.data.frames import Frame, list_columns, table_to_pandas
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources.base import hide_message
from dpscp.data.sources.files import BLOCK_NUMBERS, ONE_BATCH, TableError, TableFile, are_paths, is_path, list_files

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
    """Return whether ``TableSource`` reads this: a path or a data set of another library, but not a frame."""
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
        """Yield the chosen columns of all records as Arrow batches; the share that was read is unknown."""
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
        """Refuse an Arrow dataset with a file that lacks a column: otherwise Arrow fills it with missing values."""
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
        """Yield the columns of all records, and show the progress with the name of the stage.

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
