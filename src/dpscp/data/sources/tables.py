"""Read tables from CSV and Parquet files in blocks, without guessing types.

Errors have our own messages, because those of the reader may contain cells or line numbers.
"""

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dpscp._base.progress import progress
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Schema

_CSV, _PARQUET = (".csv", ".csv.gz", ".tsv"), (".parquet", ".pq")
# What is read at once. A record must fit into a block.
BLOCK_BYTES, BLOCK_ROWS = 8 * 2**20, 2**16
_COLUMN_BYTES = 2**20
# Numbers written as text shrink to about this share when they are compressed.
_GZIP_RATIO = 4


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


def wrong_encoding(path: Path, csv_format: CSVFormat) -> str:
    """Return the message for a file in another encoding than the declared one."""
    return (
        f"{str(path)!r} is not written in {csv_format.encoding}. Declare its encoding, for example cp1252 (Excel on "
        'Windows) or latin-1: encoding = "cp1252" under [csv] in the schema, or --encoding cp1252 on the command line'
    )


def open_text(path: Path, csv_format: CSVFormat) -> Any:
    """Open a CSV file as text, decompressed if needed."""
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    return opened(path, "rt", encoding=csv_format.codec, newline="")


def table_names(path: Path, csv_format: CSVFormat) -> list[str]:
    """Return the column names of a Parquet file, or of the first line of a CSV file."""
    return parquet_names(path) if is_parquet(path) else csv_names(path, csv_format)


def require_unique_names(path: Path, names: Sequence[str]) -> None:
    """Refuse a table with two columns of the same name."""
    if len(set(names)) != len(names):
        raise TableError(f"{str(path)!r} has two columns with the same name; rename one of them")


def csv_names(path: Path, csv_format: CSVFormat) -> list[str]:
    """Return the column names in the first line of a CSV file."""
    message = f"{str(path)!r} cannot be read as CSV"
    try:
        with open_text(path, csv_format) as file:
            return next(csv.reader(file, delimiter=csv_format.separator_in(path)), [])
    except UnicodeError:
        message = wrong_encoding(path, csv_format)
    except (OSError, csv.Error, EOFError):
        pass
    raise TableError(message)


def parquet_names(path: Path) -> list[str]:
    """Return the column names of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return [str(name) for name in pq.read_schema(path).names]
    except (pa.ArrowException, OSError, ValueError):
        pass
    raise TableError(f"{str(path)!r} cannot be read as Parquet")


def estimate_bytes(path: Path, n_features: int) -> int:
    """Estimate the memory for the numbers of a table; private, like the number of its records."""
    import pyarrow.parquet as pq

    if is_parquet(path):
        return 8 * n_features * int(pq.read_metadata(path).num_rows)
    return path.stat().st_size * (_GZIP_RATIO if path.name.lower().endswith(".gz") else 1)


def table_blocks(
    path: Path,
    names: Sequence[str],
    *,
    csv_format: CSVFormat,
    rows: int | None = None,
    label: str = "reading",
) -> Iterator[Any]:
    """Yield the records of a file in order, as Arrow batches, and show progress.

    A batch has at most ``rows`` rows, and a batch of CSV a few megabytes.

    ``names`` are the columns to read. CSV cells stay texts (an empty one is missing): types come from the schema.
    Reading an unchanged file again gives the same batches.
    """
    most = rows or BLOCK_ROWS
    batches = _parquet(path, names, most, label) if is_parquet(path) else _csv(path, names, csv_format, label)
    found = False
    while (batch := _next(path, csv_format, batches)) is not None:
        for start in range(0, len(batch), most):
            found = True
            yield batch.slice(start, most)
    if not found:
        yield _no_records(path, names)


def _no_records(path: Path, names: Sequence[str]) -> Any:
    """Return a batch of these columns without a row: an error would reveal that the only record is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: Any = pq.read_schema(path) if is_parquet(path) else pa.schema([(name, pa.string()) for name in names])
    return pa.RecordBatch.from_pylist([], pa.schema([kinds.field(name) for name in names]))


def _next(path: Path, csv_format: CSVFormat, batches: Iterator[Any]) -> Any:
    trouble, is_encoding = "", False
    try:
        return next(batches, None)
    except MemoryError:
        raise
    except Exception as error:  # raised again outside the handler, without its text
        trouble, is_encoding = str(error), isinstance(error, UnicodeError)
    if is_encoding or "UTF8" in trouble:
        raise TableError(wrong_encoding(path, csv_format))
    if "straddling" in trouble:
        raise TableError(
            f"{str(path)!r} contains a record of more than {BLOCK_BYTES // 2**20} megabytes; remove or shorten it"
        )
    raise TableError(f"{str(path)!r} cannot be read; check that all rows have the same length, and the separator")


def _parquet(path: Path, names: Sequence[str], rows: int, label: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    # read as it is needed, through a small buffer for each column: by default the reader holds all it has read
    with pq.ParquetFile(path, buffer_size=_COLUMN_BYTES, pre_buffer=False) as file:
        counted = _CountedRows(file.iter_batches(rows, columns=list(names), use_threads=False))
        # the line shows a share: a number of blocks would reveal that of the records
        yield from progress(counted, max(1, file.metadata.num_rows), label, lambda: counted.done)


class _CountedRows:
    """Pass batches on and count their rows."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches, self.done = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.done += len(batch)
            yield batch


def _csv(path: Path, names: Sequence[str], csv_format: CSVFormat, label: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    encoding = "utf8" if csv_format.codec == "utf-8-sig" else csv_format.encoding
    with open(path, "rb") as file:
        reader = arrow_csv.open_csv(
            pa.CompressedInputStream(file, "gzip") if path.name.lower().endswith(".gz") else file,
            arrow_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, encoding=encoding),
            arrow_csv.ParseOptions(delimiter=csv_format.separator_in(path), newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=list(names),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
        yield from progress(reader, path.stat().st_size, label, file.tell)


def as_frame(block: Any, schema: Schema, csv_format: CSVFormat | None = None) -> Any:
    """Return the columns of the schema as a pandas frame.

    Texts of numeric columns become numbers, as the format of a CSV file writes them (None: with a decimal point).

    A column with a cell that is neither a number nor a mark for a missing one stays text: the schema refuses it.
    Ids of persons stay Arrow's: pandas would make floating-point numbers of integers where one is missing.
    """
    import pandas as pd
    import pyarrow as pa

    numeric = {column.name for column in schema.columns if column.type == "numeric"}
    numeric |= {schema.target} if schema.task == "regression" else set()
    used = [name for name in block.schema.names if name in schema.column_names]
    reading = csv_format or CSVFormat()
    columns = [reading.parse_numbers(block[n]) if n in numeric and _is_text(block[n]) else block[n] for n in used]
    frame = pa.table(columns, names=used).to_pandas()
    if schema.person in used:
        frame[schema.person] = pd.arrays.ArrowExtensionArray(block[schema.person])
    return frame


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
