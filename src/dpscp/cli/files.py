"""Read and write the files of a command: tables, models, outputs, notes.

A note names a model's training table.

``dpscp fit`` writes the note beside the model, so that no evaluation uses the records of the fit by mistake. It
contains nothing computed from the records, so no checksum of the table: with a checksum, somebody who knows all records
but one could test guesses of the last one. An evaluation reads the table again and compares.
"""

import argparse
import errno
import hashlib
import json
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from dpscp._base.suggestions import suggest
from dpscp.data.csv_format import CSVFormat
from dpscp.data.persons import PersonIds, read_person_ids
from dpscp.data.schema import Schema
from dpscp.data.sources.files import TableFile, is_url, list_files, without_keys
from dpscp.data.sources.tables import Table
from dpscp.data.used_records import sketch_rows
from dpscp.estimators import PrivateConformalClassifier, PrivateConformalRegressor, PrivateMultilabelClassifier, load
from dpscp.report.page import write_atomically

Estimator = PrivateConformalClassifier | PrivateConformalRegressor | PrivateMultilabelClassifier

_LONGEST_HEADER = 2**20
# Separators to suggest if the first line does not contain the expected one.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
_NOTE_FORMAT, _NOTE_VERSION = "dpscp-origin", 1


class CommandError(Exception):
    """Raised if a command refuses.

    The message has the reason and the remedy, and nothing from the records.
    """


def describe_os_error(error: OSError) -> str:
    """Describe an error of the operating system with its file and a remedy.

    The remedy is for a full disk.
    """
    file = "" if error.filename is None else repr(str(error.filename))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {file or 'a file'} cannot be written. Free space, then run the command again"
    return f"{file}: {error.strerror}" if file and error.strerror else str(error)


def check_output(path: Path | None, *inputs: Path) -> None:
    """Refuse an output that cannot be written, before any budget is spent."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise CommandError(f"{str(path)!r} is a folder; use the name of a file")
    if any(file.exists() and path.exists() and path.samefile(file) for file in inputs):
        raise CommandError(f"{str(path)!r} is an input file; use another name for the output")
    if not folder.is_dir():
        raise CommandError(f"the folder {str(folder)!r} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise CommandError(f"the folder {str(folder)!r} is not writable; choose another folder")


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace existing files without ``force``.

    So no model is lost for which budget was spent.
    """
    for path in paths:
        if path.exists() and not force:
            raise CommandError(f"{str(path)!r} already exists; use another name, or --force to replace it")


# ---- tables


def public_names(table: Table, *, known: Collection[str] = (), confirmed: bool = False) -> list[str]:
    """Return the column names; refuse a first line that may be a record.

    The first line of a CSV file is a header if the user confirms it, or if it has most of the ``known`` names.
    """
    is_known = 2 * sum(name in table.names for name in known) > len(known)
    if confirmed or is_known or not table.first.is_text:
        return table.names
    raise CommandError(
        f"the first line of {table.first.said} may be a record, which must not enter a schema or a message. If it "
        "contains column names, name the target with --target, or run 'dpscp schema' with --header; if not, insert a "
        "line with column names. If another character separates the cells, set --separator"
    )


def require_columns(table: Table, names: Collection[str], what: str = "the schema declares") -> None:
    """Refuse a table without these columns.

    Similar names are suggested if the first line is a header.
    """
    missing = [name for name in names if name not in table.names]
    if not missing:
        return
    # a first line that lacks most names may be a record
    known = table.names if 2 * len(missing) <= len(names) or not table.first.is_text else ()
    said = " ".join(f"{name!r}{suggest(name, known) or '.'}" for name in missing)
    raise CommandError(f"{table.first.said} lacks column{'s' * (len(missing) > 1)} that {what}: {said}")


def read_labeled(table: Table, schema: Schema) -> tuple[Any, Any, PersonIds | None]:
    """Return features (n, n_features), targets (n,), and any person ids.

    The schema declares the column of ids.
    """
    require_columns(table, schema.column_names)
    try:
        X, y, persons = zip(*(schema.encode(frame) for frame in table.frames("read the table", schema)), strict=True)
    except ValueError as error:
        raise CommandError(f"{table.first.said} cannot be used for evaluation: {error}") from None
    ids = None if schema.person is None else PersonIds.joined([read_person_ids(part) for part in persons])
    return np.concatenate(X), np.concatenate(y), ids


def choose_csv_format(options: argparse.Namespace, declared: CSVFormat | None = None) -> CSVFormat:
    """Return the format of CSV files: the declared one, changed by the options."""
    marks = {name: getattr(options, name) for name in ("separator", "encoding", "decimal", "thousands")}
    changes: dict[str, Any] = {name: "" if mark == "none" else mark for name, mark in marks.items() if mark is not None}
    return replace(declared or CSVFormat(), **changes)


def open_table(path: Path, csv_format: CSVFormat) -> Table:
    """Open a file, folder, pattern or URL and read its column names.

    A table without columns is refused.
    """
    table = Table(path, csv_format)
    if isinstance(table.first, TableFile) and table.first.is_csv:
        _check_header(table.first)
    return table


def _check_header(file: TableFile) -> None:
    """Refuse a first line that cannot be a header."""
    names, first, separator = file.names, "", file.csv_format.separator_in(file.path)
    with suppress(OSError, EOFError), file.open_text() as text:
        first = text.readline(_LONGEST_HEADER)
    if not first:
        raise CommandError(f"{file.said} is empty: it contains neither column names nor records")
    others = [mark for mark in _OTHER_SEPARATORS if mark in first and separator not in first]
    if others:
        suggestion = "tab" if others[0] == "\t" else f"'{others[0]}'"
        raise CommandError(
            f"the first line of {file.said} contains no {separator!r}; if another character separates the cells, use "
            f"--separator {suggestion}"
        )
    if not names or not all(any(letter.isalpha() for letter in name) for name in names):
        raise CommandError(
            f"the first line of {file.said} does not look like column names; insert a line with column names"
        )


# ---- models, and the tables that they were fitted on


def load_release(path: Path) -> Any:
    """Load the release in a file, of any class."""
    if not path.is_file():
        raise CommandError(f"model file {str(path)!r} does not exist; create one with 'dpscp fit'")
    return load(path)


def load_model(path: Path) -> Estimator:
    """Load the model in a file."""
    found = load_release(path)
    if not isinstance(found, Estimator):
        raise CommandError(f"{str(path)!r} has a {type(found).__name__}; use it in Python, with dpscp.load(path)")
    return found


def require_schema(estimator: Estimator) -> Schema:
    """Return the schema of the fit; refuse a model without one."""
    if estimator.schema_ is None:
        raise CommandError(
            "this model has no schema: it was fitted in Python without one. Use dpscp.load(path).predict in Python"
        )
    return estimator.schema_


def note_path(model: Path) -> Path:
    """Return the path of the note of a model file."""
    return model.with_name(model.name + ".origin.json")


def write_note(model: Path, table: Path) -> None:
    """Write a note beside a model file that names its training table.

    The note has its path, or its URL without keys.
    """
    note = {
        "format": _NOTE_FORMAT,
        "version": _NOTE_VERSION,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "table": without_keys(table if is_url(table) else table.absolute()),
    }
    write_atomically(note_path(model), json.dumps(note, indent=1).encode())


def read_note(model: Path) -> Path | None:
    """Return the training table of a model file; None if no note names one."""
    try:
        data = json.loads(note_path(model).read_text(encoding="utf-8"))
        is_own = data["model_sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
        is_known = (data["format"], data["version"]) == (_NOTE_FORMAT, _NOTE_VERSION)
        table = Path(data["table"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return table if is_own and is_known else None


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths, patterns or URLs name the same file or folder."""
    if is_url(one) or is_url(other):
        return without_keys(one) == without_keys(other)
    return one.absolute() == other.absolute() or (one.exists() and other.exists() and one.samefile(other))


def _is_there(table: Path) -> bool:
    try:
        return bool(list_files(table, CSVFormat()))
    except (OSError, ValueError):  # a table that no longer exists, or a URL that needs its keys
        return False


def read_new_records(
    path: Path, csv_format: CSVFormat, schema: Schema, fitted: Path | None
) -> tuple[Any, Any, PersonIds | None]:
    """Read labeled records; refuse those of the fit, in the table ``fitted``.

    Records are refused, in any order, if more of them equal training records than chance explains.
    """
    advice = "Coverage on them says nothing about new records: evaluate on labeled records that the fit did not use"
    if fitted is not None and is_same_file(path, fitted):
        raise CommandError(f"{without_keys(path)!r} is the table that the model was fitted on. {advice}")
    X, y, persons = read_labeled(open_table(path, csv_format), schema)
    if fitted is not None and _is_there(fitted):
        frames = open_table(fitted, schema.csv).frames("compare the tables", schema)
        if sketch_rows(X).shares_records(reduce(add, (sketch_rows(schema.matrix(frame)) for frame in frames))):
            raise CommandError(f"{without_keys(path)!r} holds records that the model was fitted on. {advice}")
    return X, y, persons
