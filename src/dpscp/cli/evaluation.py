"""Evaluation on labelled records, and the refusal to do it on those that the model was fitted on.

``dpscp fit`` leaves a note beside the model: where the table lies, when it was last written, and the checksum of the
model file. Nothing in it is computed from the records. A checksum of the table would be: whoever knows all records but
one could try candidates for the last, so neither the model nor the note holds one. An evaluation reads the table again
and compares.
"""

import hashlib
import json
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.cli.tables import CommandError, read_table
from dpscp.exceptions import SeededWarning
from dpscp.persons import kept_rows
from dpscp.report.page import write_atomically
from dpscp.schema import Schema, SchemaError

__all__ = [
    "Labelled",
    "labelled_records",
    "note_of",
    "note_path",
    "refuse_training_records",
    "refuse_training_table",
    "write_note",
]

_FORMAT, _VERSION = "dpscp-origin", 1
# Where nearly all records of the fit differ from each other, other people's records are hardly found among them.
_MOSTLY_DISTINCT = 0.9


@dataclass(frozen=True)
class Labelled:
    """Labelled records of a file; ``held_out`` if a comparison told them from those of the fit."""

    X: NDArray[np.float64]
    y: NDArray[Any]
    held_out: bool = False

    @classmethod
    def of(cls, schema: Schema, frame: Any) -> "Labelled":
        """The features and targets of a frame, as the schema declares them."""
        return cls(schema.matrix(frame), schema.targets(frame))


@dataclass(frozen=True)
class Note:
    """Where the table of a fit lies; nothing about what it holds."""

    table: Path
    separator: str | None
    written: int

    @property
    def is_current(self) -> bool:
        """Whether the table is still there and has not been written since the fit."""
        return self.table.is_file() and self.table.stat().st_mtime_ns == self.written


def labelled_records(schema: Schema, path: Path, separator: str | None, *, one_each: bool = False) -> Labelled:
    """The features and targets of a labelled table.

    ``one_each``: of each person, where the schema names them, one record at random: what the promise is about, and
    independent of each other. The same ones each time, so that a report can be made again.
    """
    frame = read_table(path, separator)
    try:
        if one_each and schema.person is not None and schema.person in frame.columns:
            ids = schema.persons(frame)
            with warnings.catch_warnings():
                # the seed is no fault here: nothing about an evaluation is private, and the output says so
                warnings.simplefilter("ignore", SeededWarning)
                kept, _ = kept_rows(ids, n_rows=len(frame), rows_per_person=1, random_state=0)
            frame = frame.iloc[kept]
        return Labelled.of(schema, frame)
    except (SchemaError, ValueError) as error:
        raise CommandError(f"{str(path)!r} cannot be used for the evaluation: {error}") from None


def refuse_training_table(path: Path, table: Path) -> None:
    """Refuse to evaluate on the very file of the fit."""
    if path.exists() and table.exists() and path.samefile(table):
        raise CommandError(
            f"{str(path)!r} is the table that the model was fitted on, and coverage on it says nothing about new "
            "records: evaluate on labelled records that the fit did not see (if the file holds others now, rename it)"
        )


def refuse_training_records(evaluated: Labelled, training: Labelled, path: Path) -> Labelled:
    """Refuse the records of the fit, in whatever order, or a table that shares most of its records with them.

    Most means more than half of the smaller table. In a table of few distinct records honest new ones repeat old ones:
    there a large overlap proves nothing, so it is not refused and not called held out either.
    """
    known, asked = _counted(training), _counted(evaluated)
    overlap = 2 * (known & asked).total() > min(known.total(), asked.total())
    if known == asked or (overlap and len(known) >= _MOSTLY_DISTINCT * known.total()):
        raise CommandError(
            f"{str(path)!r} holds records that the model was fitted on, and coverage on them says nothing about new "
            "records: evaluate on labelled records that the fit did not see"
        )
    return replace(evaluated, held_out=not overlap)


def _counted(records: Labelled) -> Counter[tuple[bytes, Any]]:
    rows = records.X + 0.0  # 0 and -0 are one value
    return Counter((row.tobytes(), target) for row, target in zip(rows, records.y.tolist(), strict=True))


def write_note(model: Path, table: Path, separator: str | None) -> None:
    """Note beside a model file which table it was fitted on."""
    note = {
        "format": _FORMAT,
        "version": _VERSION,
        "model_sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "table": str(table.absolute()),
        "separator": separator,
        "table_written": table.stat().st_mtime_ns,
    }
    write_atomically(note_path(model), json.dumps(note, indent=1).encode())


def note_of(model: Path) -> Note | None:
    """The note beside a model file; None if there is none, or it belongs to another model of that name."""
    try:
        data = json.loads(note_path(model).read_text(encoding="utf-8"))
        if data["format"] != _FORMAT or data["version"] != _VERSION:
            return None
        if data["model_sha256"] != hashlib.sha256(model.read_bytes()).hexdigest():
            return None
        return Note(Path(data["table"]), data["separator"], int(data["table_written"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def note_path(model: Path) -> Path:
    """Where the note of a model file lies."""
    return model.with_name(model.name + ".origin.json")
