"""Evaluation on labelled records, and the refusal to do it on those that the model was fitted on.

``dpscp fit`` leaves a note beside the model: where the table lies, when it was last written, and the checksum of the
model file. Nothing in it is computed from the records. A checksum of the table would be: whoever knows all records but
one could try candidates for the last, so neither the model nor the note holds one. An evaluation reads the table again
and compares.
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

from dpscp.cli.tables import CommandError, Table
from dpscp.data.person_ids import PersonIds, read_person_ids
from dpscp.data.persons import keep_rows
from dpscp.data.schema import Schema, SchemaError
from dpscp.exceptions import SeededWarning
from dpscp.report.page import write_atomically

_FORMAT, _VERSION = "dpscp-origin", 1
# Where nearly all records of the fit differ from each other, other people's records are hardly found among them.
_MOSTLY_DISTINCT = 0.9
# Multiplying by it keeps 64-bit numbers apart and stirs their bits.
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class LabeledTable:
    """Labelled records of a file, read block by block each time they are asked for.

    ``held_out`` if a comparison told them from those of the fit. ``one_each``: of each person, where the schema names
    them, one record at random: what the promise is about, and independent of each other. The same ones each time, so
    that a report can be made again.
    """

    schema: Schema
    table: Table
    one_each: bool = False
    held_out: bool = False

    def blocks(self, label: str) -> Iterator[tuple[NDArray[np.float64], NDArray[Any]]]:
        """Features and targets of each block."""
        try:
            kept, start = self._kept(label), 0
            for frame in self.table.frames(label, self.schema):
                chosen = slice(None) if kept is None else kept[start : start + len(frame)]
                start += len(frame)
                yield self.schema.matrix(frame)[chosen], self.schema.targets(frame)[chosen]
        except (SchemaError, ValueError) as error:
            raise CommandError(f"{str(self.table.path)!r} cannot be used for the evaluation: {error}") from None

    def _kept(self, label: str) -> NDArray[np.bool_] | None:
        person = self.schema.person
        if not self.one_each or person is None or person not in self.table.column_names:
            return None
        ids = PersonIds.joined([read_person_ids(block[person]) for block in self.table.blocks(label, [person])])
        with warnings.catch_warnings():
            # the seed is no fault here: nothing about an evaluation is private, and the output says so
            warnings.simplefilter("ignore", SeededWarning)
            kept, _ = keep_rows(ids, n_rows=len(ids), rows_per_person=1, random_state=0)
        chosen = np.zeros(len(ids), dtype=bool)
        chosen[kept] = True
        return chosen

    def prints(self) -> NDArray[np.uint64]:
        """A number of 64 bits for each record, equal for equal ones, in order of size: eight bytes a record."""
        found = [fingerprints(X, y) for X, y in self.blocks("comparing")]
        return np.sort(np.concatenate(found))


@dataclass(frozen=True)
class Origin:
    """Where the table of a fit lies; nothing about what it holds."""

    table: Path
    separator: str | None
    written: int

    @property
    def is_current(self) -> bool:
        """Whether the table is still there and has not been written since the fit."""
        return self.table.is_file() and self.table.stat().st_mtime_ns == self.written


def refuse_training_table(path: Path, table: Path) -> None:
    """Refuse to evaluate on the very file of the fit."""
    if path.exists() and table.exists() and path.samefile(table):
        raise CommandError(
            f"{str(path)!r} is the table that the model was fitted on, and coverage on it says nothing about new "
            "records: evaluate on labelled records that the fit did not see (if the file holds others now, rename it)"
        )


def is_held_out(evaluated: NDArray[np.uint64], training: NDArray[np.uint64], path: Path) -> bool:
    """Whether few of the evaluated records are among those of the fit; both as sorted fingerprints.

    Refuses the records of the fit, in whatever order, and a table that shares most of its records with them: more than
    half of the smaller table. In a table of few distinct records honest new ones repeat old ones: there a large overlap
    proves nothing, so it is not refused and not called held out either.
    """
    known, times_known = np.unique(training, return_counts=True)
    asked, times_asked = np.unique(evaluated, return_counts=True)
    _, left, right = np.intersect1d(known, asked, assume_unique=True, return_indices=True)
    shared = int(np.minimum(times_known[left], times_asked[right]).sum())
    overlap = 2 * shared > min(len(training), len(evaluated))
    if np.array_equal(evaluated, training) or (overlap and len(known) >= _MOSTLY_DISTINCT * len(training)):
        raise CommandError(
            f"{str(path)!r} holds records that the model was fitted on, and coverage on them says nothing about new "
            "records: evaluate on labelled records that the fit did not see"
        )
    return not overlap


def fingerprints(X: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.uint64]:
    """A number of 64 bits for each record, the same in every process; different records hardly ever share one."""
    import pandas as pd

    mixed: NDArray[np.uint64] = pd.util.hash_array(y.astype(object) if y.dtype.kind == "U" else y)
    for column in X.T + 0.0:  # 0 and -0 are one value
        mixed = (mixed ^ pd.util.hash_array(np.ascontiguousarray(column))) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return mixed


def write_origin(model: Path, table: Path, separator: str | None) -> None:
    """Note beside a model file which table it was fitted on."""
    note = {
        "format": _FORMAT,
        "version": _VERSION,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "table": str(table.absolute()),
        "separator": separator,
        "table_written": table.stat().st_mtime_ns,
    }
    write_atomically(origin_path(model), json.dumps(note, indent=1).encode())


def read_origin(model: Path) -> Origin | None:
    """The note beside a model file; None if there is none, or it belongs to another model of that name."""
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
    """Where the note of a model file lies."""
    return model.with_name(model.name + ".origin.json")
