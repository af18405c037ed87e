"""Tables in files: CSV and Parquet, read without guessing types and written in one piece or not at all."""

import csv
import gzip
import io
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dpscp.report.page import write_atomically
from dpscp.schema import ABSENT

__all__ = ["CommandError", "Table", "check_output", "keep_existing", "open_table", "read_table", "write_table"]

_CSV, _PARQUET = (".csv", ".csv.gz", ".tsv"), (".parquet", ".pq")
_LONGEST_HEADER = 2**20
# What else separates the cells of a table, where the expected mark is nowhere in the first line.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
# As many records are compared with the first line before it is believed to be a header.
_COMPARED_RECORDS = 1000
# What a record may hold in place of a number; as the name of a column none of these is believed.
_NO_VALUE = {*ABSENT, "-", "unknown", "missing", "nil", "not known", "not available", "refused", "true", "false"}


class CommandError(Exception):
    """What a command refuses, in one line with the remedy; nothing in it comes from the records."""


def _kind(path: Path) -> str:
    name = path.name.lower()
    if name.endswith(_PARQUET):
        return "parquet"
    if name.endswith(_CSV):
        return "csv"
    raise CommandError(f"{str(path)!r} is neither CSV nor Parquet by its name; use .csv, .csv.gz, .tsv or .parquet")


def _separator(path: Path, given: str | None) -> str:
    return given or ("\t" if path.name.lower().endswith(".tsv") else ",")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise CommandError(f"there is no file {str(path)!r}")


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:  # pragma: no cover (the test environment has it)
        raise CommandError("tables need pandas and pyarrow: pip install 'dpscp[report]'") from None
    return pd


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
        if told or _kind(self.path) == "parquet" or _stands_out(names, self.first_records):
            return names
        raise CommandError(
            f"the first line of {str(self.path)!r} may be a record, which must not get into a schema or a message. If "
            "it holds column names, say --header or name the target with --target; if it does not, add a line with the "
            "names; if the cells are not separated by commas, give --separator"
        )

    def read(self) -> Any:
        """All of it as a pandas frame. CSV cells stay texts (an empty one is missing): types come from the schema."""
        pd = _pandas()
        failed = out_of_memory = wrong_encoding = False
        try:
            if _kind(self.path) == "parquet":
                frame = pd.read_parquet(self.path)
            else:
                frame = pd.read_csv(
                    self.path,
                    sep=self.separator,
                    dtype=str,
                    keep_default_na=False,
                    na_values=[""],
                    encoding="utf-8-sig",
                    index_col=False,
                )
        except Exception as error:
            # raised outside the handler: the reader's own message may hold cells or line numbers
            failed = True
            wrong_encoding = isinstance(error, UnicodeDecodeError)
            out_of_memory = isinstance(error, MemoryError) or "out of memory" in str(error)  # pandas' own words
        if out_of_memory:
            raise MemoryError
        if wrong_encoding:
            raise CommandError(_not_utf8(self.path))
        if failed:
            raise CommandError(
                f"{str(self.path)!r} cannot be read: rows of different length, another separator (--separator)?"
            )
        if frame.empty:
            raise CommandError(f"{str(self.path)!r} holds no records")
        return frame


def open_table(path: Path, separator: str | None = None) -> Table:
    """The table in a file, its head read once; refused where the first line cannot be one of names."""
    _require_file(path)
    between = _separator(path, separator)
    names, records = _parquet_head(path) if _kind(path) == "parquet" else _csv_head(path, between)
    if len(set(names)) != len(names):
        raise CommandError(f"{str(path)!r} has two columns of the same name; rename one")
    return Table(path, between, tuple(names), tuple(map(tuple, records)))


def read_table(path: Path, separator: str | None = None) -> Any:
    """The table in a file as a pandas frame, see ``Table.read``."""
    return open_table(path, separator).read()


def _parquet_head(path: Path) -> tuple[list[str], list[list[str]]]:
    _pandas()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = [str(name) for name in pq.read_schema(path).names]
    except (pa.ArrowException, OSError, ValueError):
        names = None
    if names is None:
        raise CommandError(f"{str(path)!r} cannot be read as Parquet")
    return names, []


def _csv_head(path: Path, separator: str) -> tuple[list[str], list[list[str]]]:
    """The cells of the first line and of some records below it; no records where they cannot be read."""
    names: list[str] = []
    records: list[list[str]] = []
    first, is_utf8 = "", True
    try:
        with _opened(path) as file:
            first = file.readline(_LONGEST_HEADER)
            names = next(csv.reader(io.StringIO(first), delimiter=separator), [])
            records = list(islice(csv.reader(file, delimiter=separator), _COMPARED_RECORDS))
    except UnicodeDecodeError:
        is_utf8 = False  # refused outside the handler: the decoder's message shows bytes of the file
    except (OSError, csv.Error, EOFError):
        records = []
    if not is_utf8:
        raise CommandError(_not_utf8(path))
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


def _opened(path: Path) -> Any:
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    return opened(path, "rt", encoding="utf-8-sig", newline="")


def _not_utf8(path: Path) -> str:
    return (
        f"{str(path)!r} is not UTF-8 (perhaps Latin-1 or Windows-1252); write it again as UTF-8, for example with: "
        "iconv -f WINDOWS-1252 -t UTF-8 OLD.csv > NEW.csv"
    )


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


def write_table(path: Path, frame: Any) -> None:
    """Write the frame as CSV or Parquet, by the name of the file; a failure leaves no half-written file."""
    if _kind(path) == "parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        write_atomically(path, buffer.getvalue())
        return
    text = frame.to_csv(index=False, sep=_separator(path, None)).encode()
    write_atomically(path, gzip.compress(text) if path.name.endswith(".gz") else text)
