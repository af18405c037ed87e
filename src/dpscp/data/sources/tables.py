"""Read tables from CSV and Parquet files in blocks, without guessing types.

Errors have our own messages, because those of the reader may contain cells or line numbers.
"""

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpscp.data.schema import ABSENT, Schema

_CSV, _PARQUET = (".csv", ".csv.gz", ".tsv"), (".parquet", ".pq")
# What is read at once. A record must fit into a block.
BLOCK_BYTES, BLOCK_ROWS = 8 * 2**20, 2**16
_COLUMN_BYTES = 2**20

Watch = Callable[[Iterable[Any], int, Callable[[], int] | None], Iterator[Any]]
"""Passes blocks on and may show how far they are: of how many, or of how many bytes and where."""


class TableError(ValueError):
    """A file cannot be read as a table; nothing in the text comes from its records."""


def is_parquet(path: Path) -> bool:
    """Return whether the name is that of a Parquet file.

    One that is neither that nor CSV is refused.
    """
    name = path.name.lower()
    if not name.endswith(_CSV + _PARQUET):
        raise TableError(
            f"the name of {str(path)!r} is neither that of CSV nor of Parquet; use .csv, .csv.gz, .tsv or .parquet"
        )
    return name.endswith(_PARQUET)


def find_separator(path: Path, given: str | None = None) -> str:
    """Return the separator of the cells of a CSV file."""
    return given or ("\t" if path.name.lower().endswith(".tsv") else ",")


def not_utf8(path: Path) -> str:
    """Return the message for a file that is not in UTF-8."""
    return (
        f"{str(path)!r} is not UTF-8 (perhaps Latin-1 or Windows-1252); write it again as UTF-8, for example with: "
        "iconv -f WINDOWS-1252 -t UTF-8 OLD.csv > NEW.csv"
    )


def open_text(path: Path) -> Any:
    """Open a CSV file as text, decompressed if needed."""
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return opened(path, "rt", encoding="utf-8-sig", newline="")


def csv_names(path: Path, separator: str) -> list[str]:
    """Return the column names in the first line of a CSV file."""
    try:
        with open_text(path) as file:
            return next(csv.reader(file, delimiter=separator), [])
    except (OSError, csv.Error, EOFError, UnicodeDecodeError):
        pass
    raise TableError(f"{str(path)!r} cannot be read as CSV in UTF-8")


def parquet_names(path: Path) -> list[str]:
    """Return the column names of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [str(name) for name in pq.read_schema(path).names]
    except (pa.ArrowException, OSError, ValueError):
        pass
    raise TableError(f"{str(path)!r} cannot be read as Parquet")


def parquet_rows(path: Path) -> int:
    """Return the number of records in the metadata of a Parquet file.

    Private, like the records.
    """
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def table_blocks(
    path: Path, names: Sequence[str], *, separator: str = ",", rows: int | None = None, watch: Watch | None = None
) -> Iterator[Any]:
    """Yield the records of a file in order, as Arrow batches.

    A batch has at most ``rows`` rows, and a batch of CSV a few megabytes.

    ``names`` are the columns to read. CSV cells stay texts (an empty one is missing): types come from the schema.
    Reading an unchanged file again gives the same batches.
    """
    most = rows or BLOCK_ROWS
    batches = _parquet(path, names, most, watch) if is_parquet(path) else _csv(path, names, separator, watch)
    found = False
    while (batch := _next(path, batches)) is not None:
        for start in range(0, len(batch), most):
            found = True
            yield batch.slice(start, most)
    if not found:
        raise TableError(f"{str(path)!r} holds no records")


def _next(path: Path, batches: Iterator[Any]) -> Any:
    trouble = ""
    try:
        return next(batches, None)
    except MemoryError:
        raise
    except Exception as error:  # raised again outside the handler, without its text
        trouble = str(error)
    if "UTF8" in trouble:
        raise TableError(not_utf8(path))
    if "straddling" in trouble:
        raise TableError(
            f"{str(path)!r} contains a record of more than {BLOCK_BYTES // 2**20} megabytes; remove or shorten it"
        )
    raise TableError(f"{str(path)!r} cannot be read; check that all rows have the same length, and the separator")


def _watched(
    batches: Iterable[Any], total: int, position: Callable[[], int] | None, watch: Watch | None
) -> Iterable[Any]:
    return batches if watch is None else watch(batches, total, position)


def _parquet(path: Path, names: Sequence[str], rows: int, watch: Watch | None) -> Iterator[Any]:
    import pyarrow.parquet as pq

    # read as it is needed, through a small buffer for each column: by default the reader holds all it has read
    with pq.ParquetFile(path, buffer_size=_COLUMN_BYTES, pre_buffer=False) as file:
        total = file.metadata.num_rows // rows + file.metadata.num_row_groups
        batches = file.iter_batches(rows, columns=list(names), use_threads=False)
        yield from _watched(batches, total, None, watch)


def _csv(path: Path, names: Sequence[str], separator: str, watch: Watch | None) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    with open(path, "rb") as file:
        reader = arrow_csv.open_csv(
            pa.CompressedInputStream(file, "gzip") if path.name.lower().endswith(".gz") else file,
            arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=list(names),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
        yield from _watched(reader, path.stat().st_size, file.tell, watch)


def as_frame(block: Any, schema: Schema) -> Any:
    """Return the columns of the schema as a pandas frame.

    Texts of numeric columns become numbers.

    A column with a cell that is neither a number nor a mark for a missing one stays as it is: the schema refuses it.
    Ids of persons stay Arrow's: pandas would make floating-point numbers of integers where one is missing.
    """
    import pandas as pd
    import pyarrow as pa

    numeric = {column.name for column in schema.columns if column.type == "numeric"}
    numeric |= {schema.target} if schema.task == "regression" else set()
    used = [name for name in block.schema.names if name in schema.column_names]
    columns = [_numbers(block[name]) if name in numeric else block[name] for name in used]
    frame = pa.table(columns, names=used).to_pandas()
    if schema.person in used:
        frame[schema.person] = pd.arrays.ArrowExtensionArray(block[schema.person])
    return frame


def _numbers(texts: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return texts
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:
        pass
    trimmed = pc.utf8_trim_whitespace(texts)
    absent = pc.is_in(pc.utf8_lower(trimmed), pa.array(ABSENT))
    try:
        return pc.if_else(absent, pa.scalar(None, trimmed.type), trimmed).cast(pa.float64())
    except pa.ArrowInvalid:
        return texts
