"""Read and write CSV and Parquet tables in blocks, without guessing types."""

import csv
import gzip
import io
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from dpscp.data.model_files import open_atomically
from dpscp.data.schema import ABSENT, Schema
from dpscp.data.sources.tables import (
    as_frame,
    find_separator,
    is_parquet,
    not_utf8,
    open_text,
    parquet_names,
    parquet_rows,
    table_blocks,
)
from dpscp.training.engine.progress import progress

_LONGEST_HEADER = 2**20
# Separators to suggest if the first line does not contain the expected one.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
# Number of records that are compared with the first line to recognize a header.
_COMPARED_RECORDS = 1000
# Marks for a missing value; none of them is accepted as a column name.
_NO_VALUE = {*ABSENT, "-", "unknown", "missing", "nil", "not known", "not available", "refused", "true", "false"}


class CommandError(Exception):
    """Report why a command refuses, and the remedy; never with content of the records."""


def _require_readers() -> None:
    try:
        import pandas as pd  # noqa: F401
        import pyarrow as pa  # noqa: F401
    except ImportError:  # pragma: no cover (the test environment has it)
        raise CommandError("tables need pandas and pyarrow; install them with pip install 'dpscp[report]'") from None


@dataclass(frozen=True)
class Table:
    """Hold a table in a file, and its first lines.

    ``column_names`` may be a record of a CSV file without header: use ``public_names``. ``first_records`` is empty for
    Parquet, which stores its column names.
    """

    path: Path
    separator: str
    column_names: tuple[str, ...]
    first_records: tuple[tuple[str, ...], ...]

    def public_names(self, *, known: Collection[str] = (), confirmed: bool = False) -> tuple[str, ...]:
        """Return the column names; refuse a first line that could be a record.

        The first line of a CSV file counts as header if the user confirms it, if it contains most of the ``known``
        names, or if it differs from the records below: each cell looks like a name, none is repeated below, and a
        column of numbers has a word above it. Content of these records decides this, and is used for nothing else.
        """
        names = self.column_names
        is_known = 2 * sum(name in names for name in known) > len(known)
        if confirmed or is_known or is_parquet(self.path) or _is_header(names, self.first_records):
            return names
        raise CommandError(
            f"the first line of {str(self.path)!r} may be a record, which must not enter a schema or a message. If it "
            "contains column names, add --header, or name the target with --target; if not, insert a line with column "
            "names. If another character separates the cells, set --separator"
        )

    def blocks(self, label: str, columns: Collection[str] | None = None) -> Iterator[Any]:
        """Yield the records as Arrow batches of a few megabytes, and show progress with this label.

        ``columns`` selects columns; those that the table lacks are left out.
        """
        names = [name for name in self.column_names if columns is None or name in columns]

        def show_progress(blocks: Iterable[Any], total: int, position: Callable[[], int] | None) -> Iterator[Any]:
            return progress(blocks, total, label, position)

        return table_blocks(self.path, names, separator=self.separator, watch=show_progress)

    def estimate_bytes(self, n_features: int) -> int:
        """Estimate the memory for this many numbers a record; for CSV, the size of the file."""
        return 8 * n_features * parquet_rows(self.path) if is_parquet(self.path) else self.path.stat().st_size

    def frames(self, label: str, schema: Schema) -> Iterator[Any]:
        """Yield the columns of the schema as a pandas frame for each block."""
        for block in self.blocks(label, schema.column_names):
            yield as_frame(block, schema)


def open_table(path: Path, separator: str | None = None) -> Table:
    """Open a table and read its first lines; refuse a file without column names."""
    if not path.is_file():
        raise CommandError(f"file {str(path)!r} does not exist")
    _require_readers()
    between = find_separator(path, separator)
    names, records = (parquet_names(path), []) if is_parquet(path) else _csv_head(path, between)
    if len(set(names)) != len(names):
        raise CommandError(f"{str(path)!r} has two columns with the same name; rename one of them")
    return Table(path, between, tuple(names), tuple(map(tuple, records)))


def _csv_head(path: Path, separator: str) -> tuple[list[str], list[list[str]]]:
    """Read the cells of the first line and of some records; no records if they are unreadable."""
    names: list[str] = []
    records: list[list[str]] = []
    first, is_utf8 = "", True
    try:
        with open_text(path) as file:
            first = file.readline(_LONGEST_HEADER)
            names = next(csv.reader(io.StringIO(first), delimiter=separator), [])
            records = list(islice(csv.reader(file, delimiter=separator), _COMPARED_RECORDS))
    except UnicodeDecodeError:
        is_utf8 = False  # raised outside the handler: the decoder's message contains bytes of the file
    except (OSError, csv.Error, EOFError):
        records = []
    if not is_utf8:
        raise CommandError(not_utf8(path))
    if path.stat().st_size == 0:
        raise CommandError(f"{str(path)!r} is empty: it contains neither column names nor records")
    others = [mark for mark in _OTHER_SEPARATORS if mark in first and separator not in first]
    if others:
        suggestion = "$'\\t'" if others[0] == "\t" else f"'{others[0]}'"
        raise CommandError(
            f"the first line of {str(path)!r} contains no {separator!r}; if another character separates the cells, use "
            f"--separator {suggestion}"
        )
    if not names or any(not name.strip() or _is_number(name) for name in names):
        raise CommandError(
            f"the first line of {str(path)!r} does not look like column names; insert a line with column names"
        )
    return names, records


def _is_header(names: Sequence[str], records: Sequence[Sequence[str]]) -> bool:
    """Whether the first line looks like names and the records below like values."""
    if any(_looks_like_a_value(name) for name in names):
        return False
    columns = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    if any(name.strip() in {cell.strip() for cell in column} for name, column in zip(names, columns, strict=False)):
        return False
    filled = ([cell for cell in column if cell.strip().lower() not in _NO_VALUE] for column in columns)
    return any(cells and all(map(_is_number, cells)) for cells in filled)


def _looks_like_a_value(name: str) -> bool:
    """Whether a cell looks like a number, a date or a missing value."""
    text = name.strip().lower()
    return text in _NO_VALUE or text[:1].isdigit() or not any(letter.isalpha() for letter in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse an output that cannot be written, before any budget is spent."""
    folder = path.absolute().parent
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder; use the name of a file")
    if any(file.exists() and path.exists() and path.samefile(file) for file in inputs):
        raise CommandError(f"{str(path)!r} is an input file; use another name for the output")
    if not folder.is_dir():
        raise CommandError(f"the folder {str(folder)!r} does not exist; create it first")
    try:
        handle, name = tempfile.mkstemp(prefix=".dpscp-", dir=folder)
        os.close(handle)
        os.unlink(name)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} is not writable; choose another folder") from None


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace existing files without ``force``, so that no paid model is lost."""
    for path in () if force else paths:
        if path.exists():
            raise CommandError(f"{str(path)!r} already exists; use another name, or --force to replace it")


@contextmanager
def open_writer(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes Arrow batches as CSV or Parquet, by the name of the file.

    The file appears when it is complete; a failure leaves no file.
    """
    with open_atomically(path) as file, ExitStack() as stack:
        if is_parquet(path):
            yield _parquet_writer(file, stack)
        elif path.name.lower().endswith(".gz"):
            yield _csv_writer(stack.enter_context(gzip.GzipFile("", "wb", 6, file)), find_separator(path, None))
        else:
            yield _csv_writer(file, find_separator(path, None))


def _parquet_writer(file: Any, stack: ExitStack) -> Callable[[Any], None]:
    import pyarrow.parquet as pq

    writer: Any = None

    def write(block: Any) -> None:
        nonlocal writer
        writer = writer or stack.enter_context(pq.ParquetWriter(file, block.schema))
        writer.write_batch(block)

    return write


def _csv_writer(file: Any, separator: str) -> Callable[[Any], None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    has_header = False

    def write(block: Any) -> None:
        nonlocal has_header
        if not has_header:
            file.write(separator.join(_cells(pa.array(block.schema.names), separator).to_pylist()).encode() + b"\n")
            has_header = True
        columns = [_cells(_as_text(name, block[name]), separator) for name in block.schema.names]
        lines = pc.binary_join_element_wise(*columns, separator, null_handling="replace", null_replacement="")
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        file.write(pc.binary_join(whole, "\n")[0].as_buffer())
        file.write(b"\n")

    return write


def _as_text(name: str, column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):  # NaN becomes an empty cell
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        pass
    raise CommandError(f"column {name!r} cannot be written as CSV; drop it, or write to a .parquet file")


def _cells(texts: Any, separator: str) -> Any:
    """Quote the texts that contain a separator, a quote or a line end."""
    import pyarrow.compute as pc

    content = b"".join(bytes(buffer) for buffer in texts.buffers()[-1:] if buffer is not None)
    marks = (separator, '"', "\r", "\n")
    if not any(mark.encode() in content for mark in marks):
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    needed = [pc.match_substring(texts, mark) for mark in marks]
    return pc.if_else(reduce(pc.or_, needed), quoted, texts)
