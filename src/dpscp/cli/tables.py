"""Tables in files: CSV and Parquet, read and written in blocks, without guessing types, in one piece or not at all."""

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
# What else separates the cells of a table, where the expected mark is nowhere in the first line.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
# As many records are compared with the first line before it is believed to be a header.
_COMPARED_RECORDS = 1000
# What a record may hold in place of a number; as the name of a column none of these is believed.
_NO_VALUE = {*ABSENT, "-", "unknown", "missing", "nil", "not known", "not available", "refused", "true", "false"}


class CommandError(Exception):
    """What a command refuses, in one line with the remedy; nothing in it comes from the records."""


def _require_readers() -> None:
    try:
        import pandas as pd  # noqa: F401
        import pyarrow as pa  # noqa: F401
    except ImportError:  # pragma: no cover (the test environment has it)
        raise CommandError("tables need pandas and pyarrow: pip install 'dpscp[report]'") from None


@dataclass(frozen=True)
class Table:
    """A table in a file whose head was read: ``column_names`` before they are known to be public, and some records.

    A Parquet file says what its columns are called, so none of its records are kept.
    """

    path: Path
    separator: str
    column_names: tuple[str, ...]
    first_records: tuple[tuple[str, ...], ...]

    def public_names(self, *, known: Collection[str] = (), confirmed: bool = False) -> tuple[str, ...]:
        """The column names, for a schema or a message; refused where they could be a record.

        A Parquet file says what its columns are called. The first line of a CSV file is believed to hold names if the
        user says so (``confirmed``), if most of the names that are ``known`` from elsewhere are in it, or if the
        records below tell it apart: each cell looks like a name, none is repeated below, and a column of numbers stands
        under a word. What these records hold decides about believing and goes nowhere else.
        """
        names = self.column_names
        told = confirmed or 2 * sum(name in names for name in known) > len(known)
        if told or is_parquet(self.path) or _stands_out(names, self.first_records):
            return names
        raise CommandError(
            f"the first line of {str(self.path)!r} may be a record, which must not get into a schema or a message. If "
            "it holds column names, say --header or name the target with --target; if it does not, add a line with the "
            "names; if the cells are not separated by commas, give --separator"
        )

    def blocks(self, label: str, columns: Collection[str] | None = None) -> Iterator[Any]:
        """Its records in order, as Arrow batches of a few megabytes, under a progress line with this label.

        ``columns``: these only, as far as the table has them.
        """
        names = [name for name in self.column_names if columns is None or name in columns]

        def shown(blocks: Iterable[Any], total: int, position: Callable[[], int] | None) -> Iterator[Any]:
            return progress(blocks, total, label, position)

        return table_blocks(self.path, names, separator=self.separator, watch=shown)

    def bytes_of(self, n_features: int) -> int:
        """About how many bytes its records take as so many numbers each; of a CSV file, the bytes of the file."""
        return 8 * n_features * parquet_rows(self.path) if is_parquet(self.path) else self.path.stat().st_size

    def frames(self, label: str, schema: Schema) -> Iterator[Any]:
        """The columns that the schema uses, a pandas frame for each block."""
        for block in self.blocks(label, schema.column_names):
            yield as_frame(block, schema)


def open_table(path: Path, separator: str | None = None) -> Table:
    """The table in a file, its head read once; refused where the first line cannot be one of names."""
    if not path.is_file():
        raise CommandError(f"there is no file {str(path)!r}")
    _require_readers()
    between = find_separator(path, separator)
    names, records = (parquet_names(path), []) if is_parquet(path) else _csv_head(path, between)
    if len(set(names)) != len(names):
        raise CommandError(f"{str(path)!r} has two columns of the same name; rename one")
    return Table(path, between, tuple(names), tuple(map(tuple, records)))


def _csv_head(path: Path, separator: str) -> tuple[list[str], list[list[str]]]:
    """The cells of the first line and of some records below it; no records where they cannot be read."""
    names: list[str] = []
    records: list[list[str]] = []
    first, is_utf8 = "", True
    try:
        with open_text(path) as file:
            first = file.readline(_LONGEST_HEADER)
            names = next(csv.reader(io.StringIO(first), delimiter=separator), [])
            records = list(islice(csv.reader(file, delimiter=separator), _COMPARED_RECORDS))
    except UnicodeDecodeError:
        is_utf8 = False  # refused outside the handler: the decoder's message shows bytes of the file
    except (OSError, csv.Error, EOFError):
        records = []
    if not is_utf8:
        raise CommandError(not_utf8(path))
    if path.stat().st_size == 0:
        raise CommandError(f"{str(path)!r} is empty: it holds neither column names nor records")
    others = [mark for mark in _OTHER_SEPARATORS if mark in first and separator not in first]
    if others:
        shown = "$'\\t'" if others[0] == "\t" else f"'{others[0]}'"
        raise CommandError(
            f"the first line of {str(path)!r} holds no {separator!r}; if its cells are separated otherwise, give "
            f"--separator {shown}"
        )
    if not names or any(not name.strip() or _is_number(name) for name in names):
        raise CommandError(f"the first line of {str(path)!r} does not look like column names; add a line with them")
    return names, records


def _stands_out(names: Sequence[str], records: Sequence[Sequence[str]]) -> bool:
    """Whether the first line differs from the records below it as names differ from values."""
    if any(_looks_like_a_value(name) for name in names):
        return False
    columns = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    if any(name.strip() in {cell.strip() for cell in column} for name, column in zip(names, columns, strict=False)):
        return False
    filled = ([cell for cell in column if cell.strip().lower() not in _NO_VALUE] for column in columns)
    return any(cells and all(map(_is_number, cells)) for cells in filled)


def _looks_like_a_value(name: str) -> bool:
    """A number with a unit, a date, a mark for "missing": what a record holds rather than a header."""
    text = name.strip().lower()
    return text in _NO_VALUE or text[:1].isdigit() or not any(letter.isalpha() for letter in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_output(path: Path, *inputs: Path) -> None:
    """Refuse an output that cannot be written, before anything is spent."""
    folder = path.absolute().parent
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder; give the name of a file")
    if any(given.exists() and path.exists() and path.samefile(given) for given in inputs):
        raise CommandError(f"{str(path)!r} is the input; give another name for the output")
    if not folder.is_dir():
        raise CommandError(f"the folder {str(folder)!r} does not exist; create it first")
    try:
        handle, name = tempfile.mkstemp(prefix=".dpscp-", dir=folder)
        os.close(handle)
        os.unlink(name)
    except OSError:
        raise CommandError(f"the folder {str(folder)!r} cannot be written to; choose another place") from None


def keep_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace files that are there already, unless the user says so: a paid-for model is never lost."""
    for path in () if force else paths:
        if path.exists():
            raise CommandError(f"{str(path)!r} exists and would be lost; give another name, or --force to replace it")


@contextmanager
def written_table(path: Path) -> Iterator[Callable[[Any], None]]:
    """A function that writes Arrow batches, one after the other, as CSV or Parquet by the name of the file.

    The file appears once it is complete; a failure leaves none.
    """
    with open_atomically(path) as file, ExitStack() as open_ones:
        if is_parquet(path):
            yield _parquet_writer(file, open_ones)
        elif path.name.lower().endswith(".gz"):
            yield _csv_writer(open_ones.enter_context(gzip.GzipFile("", "wb", 6, file)), find_separator(path, None))
        else:
            yield _csv_writer(file, find_separator(path, None))


def _parquet_writer(file: Any, open_ones: ExitStack) -> Callable[[Any], None]:
    import pyarrow.parquet as pq

    writer: Any = None

    def write(block: Any) -> None:
        nonlocal writer
        writer = writer or open_ones.enter_context(pq.ParquetWriter(file, block.schema))
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

    if pa.types.is_floating(column.type):  # what is no number is an empty cell
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        return column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        pass
    raise CommandError(f"column {name!r} cannot be written as CSV; drop it, or give an output that ends in .parquet")


def _cells(texts: Any, separator: str) -> Any:
    """Texts as cells of a CSV file: quoted where they hold what would end a cell."""
    import pyarrow.compute as pc

    held = b"".join(bytes(buffer) for buffer in texts.buffers()[-1:] if buffer is not None)
    marks = (separator, '"', "\r", "\n")
    if not any(mark.encode() in held for mark in marks):
        return texts
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    needed = [pc.match_substring(texts, mark) for mark in marks]
    return pc.if_else(reduce(pc.or_, needed), quoted, texts)
