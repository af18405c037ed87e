"""Read labeled records for an evaluation, and refuse the records of the fit.

``dpscp fit`` writes a note beside the model: the path of the table, the time of its last change, and the checksum of
the model file. Nothing in the note is computed from the records. A checksum of the table would be: somebody who knows
all records but one could test guesses of the last one. An evaluation reads the table again and compares.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.cli.errors import CommandError
from dpscp.cli.tables import Table
from dpscp.data.csv_format import CSVFormat
from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.persons import keep_rows
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources.files import TableError, is_url, list_files
from dpscp.exceptions import SeededWarning
from dpscp.report.page import write_atomically

_FORMAT, _VERSION = "dpscp-origin", 1
# If nearly all records of the fit are distinct, new records rarely equal one of them.
_MOSTLY_DISTINCT = 0.9
# Multiplication by an odd constant is one-to-one on 64-bit numbers and mixes their bits.
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class LabeledTable:
    """Read labeled records of a file, block by block.

    Attributes
    ----------
    schema, table : the declarations, and the file.
    one_per_person : use one random record of each person, if the schema names a column of persons. The promise is about
        such a record, and they are independent. The choice has a fixed seed, so that a report can be repeated.
    held_out : whether a comparison showed that these are not the records of the fit.
    """

    schema: Schema
    table: Table
    one_per_person: bool = False
    held_out: bool = False

    def blocks(self, label: str) -> Iterator[tuple[NDArray[np.float64], NDArray[Any]]]:
        """Yield features and targets of each block."""
        try:
            kept, start = self._choose_records(label), 0
            for frame in self.table.frames(label, self.schema):
                chosen = slice(None) if kept is None else kept[start : start + len(frame)]
                start += len(frame)
                yield self.schema.matrix(frame)[chosen], self.schema.targets(frame)[chosen]
        except (SchemaError, ValueError) as error:
            raise CommandError(f"{str(self.table.path)!r} cannot be used for evaluation: {error}") from None

    def _choose_records(self, label: str) -> NDArray[np.bool_] | None:
        person = self.schema.person
        if not self.one_per_person or person is None or person not in self.table.column_names:
            return None
        ids = PersonIds.joined([read_person_ids(block[person]) for block in self.table.blocks(label, [person])])
        with warnings.catch_warnings():
            # a seed is acceptable: this evaluation is not private, and the output states it
            warnings.simplefilter("ignore", SeededWarning)
            kept, _ = keep_rows(ids, n_rows=len(ids), rows_per_person=1, random_state=0)
        chosen = np.zeros(len(ids), dtype=bool)
        chosen[kept] = True
        return chosen

    def fingerprint_records(self) -> NDArray[np.uint64]:
        """Return the sorted 64-bit fingerprints of all records."""
        return np.sort(np.concatenate([fingerprint_rows(X, y) for X, y in self.blocks("comparing")]))


@dataclass(frozen=True)
class Origin:
    """Hold the path of the training table; nothing of its content."""

    table: Path
    separator: str | None
    written: int

    @classmethod
    def of(cls, table: Path, separator: str | None) -> "Origin":
        """Return the origin of a model that is fitted on this table now."""
        return cls(table if is_url(table) else table.absolute(), separator, _last_changes(table))

    @property
    def is_current(self) -> bool:
        """Whether the table exists and was not changed since the fit."""
        try:
            return _last_changes(self.table) == self.written
        except (OSError, TableError):
            return False


def _last_changes(table: Path) -> int:
    """Return a number that differs once a file of the table was written again, added or removed."""
    return sum(file.system.get_file_info(file.path).mtime_ns or 0 for file in list_files(table, CSVFormat()))


def refuse_training_table(path: Path, table: Path) -> None:
    """Refuse to evaluate on the file of the fit."""
    if path.exists() and table.exists() and path.samefile(table):
        raise CommandError(
            f"{str(path)!r} is the table that the model was fitted on. Coverage on it says nothing about new records: "
            "evaluate on labeled records that the fit did not use (rename the file if it has new content)"
        )


def is_held_out(evaluated: NDArray[np.uint64], training: NDArray[np.uint64], path: Path) -> bool:
    """Check from sorted fingerprints that few evaluated records were used by the fit.

    The records of the fit are refused in any order, and so is a table that shares more than half of the smaller table
    with them. If the table has few distinct records, new records repeat old ones. A large overlap proves nothing then:
    it is not refused, and the result is False.
    """
    known, times_known = np.unique(training, return_counts=True)
    new, times_new = np.unique(evaluated, return_counts=True)
    _, left, right = np.intersect1d(known, new, assume_unique=True, return_indices=True)
    shared = int(np.minimum(times_known[left], times_new[right]).sum())
    overlap = 2 * shared > min(len(training), len(evaluated))
    if np.array_equal(evaluated, training) or (overlap and len(known) >= _MOSTLY_DISTINCT * len(training)):
        raise CommandError(
            f"{str(path)!r} holds records that the model was fitted on. Coverage on them says nothing about new "
            "records: evaluate on labeled records that the fit did not use"
        )
    return not overlap


def fingerprint_rows(X: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.uint64]:
    """Compute a 64-bit fingerprint of each record, the same in every process."""
    import pandas as pd

    mixed: NDArray[np.uint64] = pd.util.hash_array(y.astype(object) if y.dtype.kind == "U" else y)
    for column in X.T + 0.0:  # 0 and -0 are equal
        mixed = (mixed ^ pd.util.hash_array(np.ascontiguousarray(column))) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return mixed


def write_origin(model: Path, origin: Origin) -> None:
    """Write a note beside a model file with the path of its training table."""
    note = {
        "format": _FORMAT,
        "version": _VERSION,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "table": str(origin.table),
        "separator": origin.separator,
        "table_written": origin.written,
    }
    write_atomically(origin_path(model), json.dumps(note, indent=1).encode())


def find_earlier_fits(table: Path, *folders: Path) -> list[Path]:
    """Return the models in these folders whose notes name this table."""
    found = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for note in sorted(folder.glob("*.origin.json")):
            model = note.with_name(note.name.removesuffix(".origin.json"))
            origin = read_origin(model)
            if origin is not None and origin.table.exists() and origin.table.samefile(table):
                found.append(model)
    return found


def read_origin(model: Path) -> Origin | None:
    """Read the note beside a model file; return None if there is none for this model."""
    try:
        data = json.loads(origin_path(model).read_text(encoding="utf-8"))
        if data["format"] != _FORMAT or data["version"] != _VERSION:
            return None
        if data["model_sha256"] != hashlib.sha256(model.read_bytes()).hexdigest():
            return None
        return Origin(Path(data["table"]), data["separator"], int(data["table_written"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def origin_path(model: Path) -> Path:
    """Return the path of the note of a model file."""
    return model.with_name(model.name + ".origin.json")
