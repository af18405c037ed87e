"""Open tables for a command: recognize the header, and name columns that are missing.

The records themselves are read by ``dpscp.data.sources``, as everywhere else.
"""

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dpscp._base.suggestions import suggest
from dpscp.cli.errors import CommandError
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import ABSENT, Schema
from dpscp.data.sources.files import BLOCK_ROWS, TableFile, list_files
from dpscp.data.sources.scanner import as_frame, or_no_records

_LONGEST_HEADER = 2**20
# Separators to suggest if the first line does not contain the expected one.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
# Number of records that are compared with the first line to recognize a header.
_COMPARED_RECORDS = 1000
# Marks for a missing value; none of them is accepted as a column name.
_NO_VALUE = {*ABSENT, "-", "unknown", "missing", "nil", "not known", "not available", "refused", "true", "false"}


@dataclass(frozen=True)
class Table:
    """Hold a table in one or more files, and its first lines.

    ``column_names`` may be a record of a CSV file without header: use ``public_names``. ``first_records`` is empty for
    other files, which store their column names.
    """

    path: Path
    files: tuple[TableFile, ...]
    csv_format: CSVFormat
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
        if confirmed or is_known or not self.files[0].is_csv or _is_header(names, self.first_records, self.csv_format):
            return names
        raise CommandError(
            f"the first line of {str(self.path)!r} may be a record, which must not enter a schema or a message. If it "
            "contains column names, add --header, or name the target with --target; if not, insert a line with column "
            "names. If another character separates the cells, set --separator"
        )

    def require_columns(self, names: Collection[str], what: str = "the schema declares") -> None:
        """Refuse a table without these columns; suggest similar names if the first line is a header."""
        missing = [name for name in names if name not in self.column_names]
        if not missing:
            return
        # a first line that lacks most names may be a record
        known = self.column_names if 2 * len(missing) <= len(names) or not self.files[0].is_csv else ()
        said = " ".join(f"{name!r}{suggest(name, known) or '.'}" for name in missing)
        raise CommandError(f"{str(self.path)!r} lacks column{'s' * (len(missing) > 1)} that {what}: {said}")

    def blocks(self, label: str, columns: Collection[str] | None = None) -> Iterator[Any]:
        """Yield the records as Arrow batches of a few megabytes, and show progress with this label.

        ``columns`` selects columns; those that the table lacks are left out.
        """
        names = [name for name in self.column_names if columns is None or name in columns]
        batches = (batch for file in self.files for batch in file.batches(names, BLOCK_ROWS, label))
        return or_no_records(batches, names)

    def frames(self, label: str, schema: Schema) -> Iterator[Any]:
        """Yield the columns of the schema as a pandas frame for each block."""
        for block in self.blocks(label, schema.column_names):
            yield self.as_frame(block, schema)

    def as_frame(self, block: Any, schema: Schema) -> Any:
        """Return the columns of the schema in a block as a pandas frame."""
        return as_frame(block, schema, self.csv_format if self.files[0].is_csv else None)


def open_table(path: Path, csv_format: CSVFormat | None = None) -> Table:
    """Open a table and read its first lines; refuse a file without column names.

    The path may stand for a folder, a pattern or a URL.
    """
    written = csv_format or CSVFormat()
    files = list_files(path, written)
    names, records = _csv_head(files[0]) if files[0].is_csv else (files[0].names, [])
    for file in files[1:]:
        if set(file.names) != set(names):  # not named: the first line of a CSV file may be a record
            raise CommandError(f"{file.path!r} has other columns than {files[0].path!r}; a table has the same in all")
    return Table(path, tuple(files), written, tuple(names), tuple(map(tuple, records)))


def _csv_head(file: TableFile) -> tuple[list[str], list[list[str]]]:
    """Read the cells of the first line and of some records; no records if they are unreadable."""
    records: list[list[str]] = []
    path, csv_format = file.path, file.csv_format
    separator, first = csv_format.separator_in(path), ""
    names = file.names
    try:
        with file.open_text() as text:
            first = text.readline(_LONGEST_HEADER)
            records = list(islice(csv.reader(text, delimiter=separator), _COMPARED_RECORDS))
    except (OSError, csv.Error, EOFError):
        records = []
    if not first:
        raise CommandError(f"{path!r} is empty: it contains neither column names nor records")
    others = [mark for mark in _OTHER_SEPARATORS if mark in first and separator not in first]
    if others:
        suggestion = "tab" if others[0] == "\t" else f"'{others[0]}'"
        raise CommandError(
            f"the first line of {path!r} contains no {separator!r}; if another character separates the cells, use "
            f"--separator {suggestion}"
        )
    if not names or any(not name.strip() or _is_number(name, csv_format) for name in names):
        raise CommandError(
            f"the first line of {path!r} does not look like column names; insert a line with column names"
        )
    return names, records


def _is_header(names: Sequence[str], records: Sequence[Sequence[str]], csv_format: CSVFormat) -> bool:
    """Whether the first line looks like names and the records below like values."""
    if any(_looks_like_a_value(name) for name in names):
        return False
    columns = list(zip(*(record for record in records if len(record) == len(names)), strict=True))
    if any(name.strip() in {cell.strip() for cell in column} for name, column in zip(names, columns, strict=False)):
        return False
    filled = ([cell for cell in column if cell.strip().lower() not in _NO_VALUE] for column in columns)
    return any(cells and all(_is_number(cell, csv_format) for cell in cells) for cells in filled)


def _looks_like_a_value(name: str) -> bool:
    """Whether a cell looks like a number, a date or a missing value."""
    text = name.strip().lower()
    return text in _NO_VALUE or text[:1].isdigit() or not any(letter.isalpha() for letter in text)


def _is_number(text: str, csv_format: CSVFormat) -> bool:
    whole = text if csv_format.thousands is None else text.replace(csv_format.thousands, "")
    try:
        float(whole.replace(csv_format.decimal, "."))
    except ValueError:
        return False
    return True
