"""Public declarations of a table's columns, and the matrix that follows from them.

A schema is a small TOML or JSON file: the task, the target, and for every column its type with public bounds or
categories. Nothing in it is taken from the records, and nothing is guessed: what is missing is named and refused.

    task = "classification"
    target = "visits"
    classes = ["none", "some"]          # regression: bounds = [low, high]
    person = "patient"                  # optional: whose record a row is, where a person can have several; and then
    rows_per_person = 3                 # the public cap on the records of one person (n_persons: their nominal number)

    [columns.age]
    type = "numeric"                    # "numeric", "categorical" or "ignore"
    bounds = [0, 110]
    missing = "indicator"               # optional: "refuse" (default), "indicator", or a public number

    [columns.region]
    type = "categorical"
    categories = ["north", "south"]
    unknown = "other"                   # optional: "refuse" (default) or "other"

Values outside the bounds are clipped silently: saying how many would tell about the records.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count, check_range, real_number
from dpscp.data.frames import (
    ABSENT,
    Frame,
    SchemaError,
    describe_non_number,
    index_labels,
    label_text,
    parse_numbers,
    refuse_dates,
    select_columns,
)
from dpscp.data.persons import choose_unit

__all__ = ["ABSENT", "Column", "Frame", "Schema", "SchemaError", "parse_schema", "read_schema", "template"]

TYPES = ("numeric", "categorical", "ignore")
_COLUMN_KEYS = ("type", "bounds", "missing", "categories", "unknown")
_SCHEMA_KEYS = (
    "format", "version", "task", "target", "classes", "bounds", "n_records", "person", "rows_per_person", "n_persons",
    "columns",
)  # fmt: skip
_FORMAT, _VERSION = "dpscp-schema", 1
_LARGEST_FILE = 16 * 2**20


@dataclass(frozen=True)
class Column:
    """What is publicly declared about one column."""

    name: str
    type: str = ""
    bounds: tuple[float, float] | None = None
    missing: str | float = "refuse"
    categories: tuple[str, ...] | None = None
    unknown: str = "refuse"

    @property
    def lacks(self) -> str | None:
        """What must still be declared: "type", "bounds" or "categories"; None if the column is complete."""
        if not self.type:
            return "type"
        if self.type == "numeric" and self.bounds is None:
            return "bounds"
        return "categories" if self.type == "categorical" and self.categories is None else None

    @property
    def _shown(self) -> tuple[str, ...]:
        """The categories with a feature of their own: of two, one tells the other."""
        categories = self.categories or ()
        return categories[1:] if len(categories) == 2 and self.unknown == "refuse" else categories

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that the column becomes."""
        if self.type == "ignore":
            return ()
        if self.type == "categorical":
            return tuple(f"{self.name}={category}" for category in self._shown)
        return (self.name, f"{self.name} is missing") if self.missing == "indicator" else (self.name,)

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """The public bounds of those features."""
        if self.type != "numeric":
            return ((0.0, 1.0),) * len(self.features)
        assert self.bounds is not None
        return (self.bounds, (0.0, 1.0))[: len(self.features)]

    def encode(self, values: Any) -> NDArray[np.float64]:
        """The features of the values (a pandas Series), one column each."""
        features, wrong = self.read(values, self.unknown)
        for said, rows in wrong.items():
            if rows.any():
                raise SchemaError(said)
        return features

    def read(self, values: Any, unknown: str) -> tuple[NDArray[np.float64], dict[str, NDArray[np.bool_]]]:
        """The features, and which rows have what wrong with them, in words without values: these rows mean nothing.

        An ``unknown`` category is wrong ("refuse") or sets no indicator ("other"); where one feature tells two
        categories apart, it then stands half-way.
        """
        refuse_dates(values, self.name)
        if self.type == "categorical":
            places = index_labels(values, self.categories or ())
            odd = places < 0
            hidden = len(self.categories or ()) - len(self._shown)
            features = np.asarray(places[:, None] == np.arange(hidden, hidden + len(self._shown)), dtype=np.float64)
            if hidden:
                features[odd] = 0.5
            said = (
                f"column {self.name!r} holds a value that is not among its declared categories (or is missing); "
                'add it to categories, or set unknown = "other" in the schema'
            )
            return features, {said: odd & (unknown == "refuse")}
        numbers, odd = parse_numbers(values)
        absent = np.isnan(numbers) & ~odd
        assert self.bounds is not None
        numbers[odd | absent] = self.bounds[0] / 2 + self.bounds[1] / 2
        if not isinstance(self.missing, str):
            numbers[absent] = self.missing
        # clipped here as well: an infinite value is beyond the bounds like any other
        numbers = np.clip(numbers, *self.bounds)
        missing = (
            f'column {self.name!r} has missing values; fill them in, or set missing = "indicator" or a public '
            "number in the schema"
        )
        wrong = {describe_non_number(self.name): odd, missing: absent & (self.missing == "refuse")}
        return np.column_stack([numbers, absent]) if self.missing == "indicator" else numbers[:, None], wrong

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; what was not declared is left out."""
        found: dict[str, Any] = {"type": self.type}
        if self.bounds is not None:
            found["bounds"] = list(self.bounds)
        if self.categories is not None:
            found["categories"] = list(self.categories)
        if self.missing != "refuse":
            found["missing"] = self.missing
        if self.unknown != "refuse":
            found["unknown"] = self.unknown
        return found

    @classmethod
    def from_dict(cls, name: str, data: Any) -> "Column":
        """The column that a schema file declares; ``SchemaError`` says what is wrong with it."""
        where = f"column {name!r}"
        if not isinstance(data, Mapping):
            raise SchemaError(f'{where} must be a table with a type, such as type = "numeric"')
        _refuse_unknown_keys(data, _COLUMN_KEYS, where)
        kind = data.get("type") or ""
        if kind:
            _check_declaration(lambda: check_choice(f"type of {where}", kind, TYPES))
        bounds = _read_bounds(data.get("bounds"), where)
        missing = data.get("missing", "refuse")
        if isinstance(missing, str):
            _check_declaration(lambda: check_choice(f"missing of {where}", missing, ("refuse", "indicator")))
        else:
            missing = _check_declaration(lambda: real_number(f"missing of {where}", missing))
        unknown = _check_declaration(
            lambda: check_choice(f"unknown of {where}", data.get("unknown", "refuse"), ("refuse", "other"))
        )
        return cls(
            name, kind, bounds, missing, _read_labels(data.get("categories"), f"categories of {where}", 1), unknown
        )


@dataclass(frozen=True)
class Schema:
    """The public declarations of a table. ``lacks`` lists what is still missing before it can be used."""

    task: str
    target: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None = None
    bounds: tuple[float, float] | None = None
    n_records: int | None = None
    person: str | None = None
    rows_per_person: int | None = None
    n_persons: int | None = None

    @property
    def lacks(self) -> tuple[str, ...]:
        """Everything that must still be declared, in words."""
        needed = []
        if not self.target:
            needed.append("the target")
        if not self.task:
            needed.append("the task (classification or regression)")
        if self.task == "classification" and self.classes is None:
            needed.append("the classes of the target")
        if self.task == "regression" and self.bounds is None:
            needed.append("the bounds of the target")
        for what in ("type", "bounds", "categories"):
            names = [repr(c.name) for c in self._feature_columns if c.lacks == what]
            if names:
                needed.append(f"the {what} of column{'s' if len(names) > 1 else ''} {', '.join(names)}")
        if not any(c.type in ("", "numeric", "categorical") for c in self._feature_columns):
            needed.append("at least one column that is not ignored")
        return tuple(needed)

    def require_complete(self) -> "Schema":
        """This schema, or ``SchemaError`` naming every missing declaration."""
        if self.lacks:
            raise SchemaError(
                f"the schema lacks {'; '.join(self.lacks)}. Declare them in the schema file from what is publicly "
                "known; they are never taken from the data"
            )
        return self

    @property
    def _feature_columns(self) -> tuple[Column, ...]:
        """The columns that may be features: neither target nor ids."""
        return tuple(c for c in self.columns if c.name not in (self.target, self.person))

    @property
    def _used_columns(self) -> tuple[Column, ...]:
        return tuple(c for c in self._feature_columns if c.type != "ignore")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a table that are read: features, target and ids of persons."""
        return (*(c.name for c in self._used_columns), *(name for name in (self.target, self.person) if name))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the matrix' columns."""
        return tuple(name for column in self._used_columns for name in column.features)

    @property
    def feature_bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The public lower and upper bounds of the matrix' columns."""
        low, high = np.array([b for column in self._used_columns for b in column.feature_bounds], dtype=float).T
        return low, high

    @property
    def declared(self) -> dict[str, Any]:
        """What a complete schema declares, by the estimators' names for it; None for what it leaves open."""
        return {
            "classes": None if self.classes is None else list(self.classes),
            "y_bounds": self.bounds,
            "feature_bounds": self.feature_bounds,
            "n_records": self.n_records,
            "rows_per_person": self.rows_per_person,
            "n_persons": self.n_persons,
        }

    def matrix(self, frame: Any) -> NDArray[np.float64]:
        """The features of a frame (pandas, polars, Arrow), (n, len(feature_names)).

        Columns that are not declared are left alone.
        """
        return np.hstack([column.encode(values) for column, values in self._select_values(frame)])

    def rows(self, frame: Any, *, unknown: str | None = None) -> tuple[NDArray[np.float64], list[str | None]]:
        """The matrix of a frame to predict, and what is wrong with each row, in words; None where nothing is.

        One bad row costs its own prediction only. ``unknown`` takes the place of what the columns declare.
        """
        features = []
        said: list[str | None] = []
        for column, values in self._select_values(frame):
            found, wrong = column.read(values, column.unknown if unknown is None else unknown)
            features.append(found)
            said = said or [None] * len(found)
            for text, bad in wrong.items():
                for place in np.flatnonzero(bad):
                    said[place] = "; ".join(filter(None, (said[place], text)))
        return np.hstack(features), said

    def _select_values(self, frame: Any) -> list[tuple[Column, Any]]:
        """The columns that become features, each with its values."""
        found = select_columns(frame, [c.name for c in self._used_columns])
        missing = [c.name for c in self._used_columns if c.name not in found]
        if missing:
            raise SchemaError(
                f"the table lacks column {', '.join(map(repr, missing))}, which the schema declares; add it, or "
                'declare it as "ignore" and fit again'
            )
        return [(column, found[column.name]) for column in self._used_columns]

    def targets(self, frame: Any) -> NDArray[Any]:
        """The target column: texts among the declared classes, or numbers."""
        values = select_columns(frame, [self.target]).get(self.target)
        if values is None:
            raise SchemaError(f"the table lacks the target column {self.target!r}")
        refuse_dates(values, self.target)
        if self.task == "regression":
            numbers, odd = parse_numbers(values)
            if odd.any():
                raise SchemaError(describe_non_number(self.target))
            if np.isnan(numbers).any():
                raise SchemaError(f"the target column {self.target!r} has missing values; drop those records")
            return numbers
        places = index_labels(values, self.classes or ())
        if (places < 0).any():
            raise SchemaError(
                f"the target column {self.target!r} holds a label that is not among the declared classes (or is "
                "missing); add it to classes or drop those records"
            )
        return np.array(self.classes, dtype=str)[places]

    def persons(self, frame: Any) -> Any:
        """The ids of the persons, one a row; None where every row is its own."""
        if self.person is None:
            return None
        ids = select_columns(frame, [self.person]).get(self.person)
        if ids is None:
            raise SchemaError(f"the table lacks the column of persons, {self.person!r}")
        return ids

    def groups(self, table: Any, name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Each row's place among the categories of a column, -1 for another value; and these categories.

        ``table`` is a frame, or the matrix of one.
        """
        column = next((c for c in self._used_columns if c.name == name and c.type == "categorical"), None)
        if column is None or column.categories is None:
            raise SchemaError(f"groups={name!r} must be a categorical column of the schema")
        if isinstance(table, Frame):
            values = select_columns(table, [name]).get(name)
            if values is None:
                raise SchemaError(f"the table lacks the column of groups, {name!r}")
            return index_labels(values, column.categories), column.categories
        first = self.feature_names.index(column.features[0])
        shown = np.asarray(table)[:, first : first + len(column.features)] > 0
        hidden = len(column.categories) - len(column.features)
        return np.where(shown.any(axis=1), shown.argmax(axis=1) + hidden, hidden - 1), column.categories

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as ``from_dict`` reads them."""
        found: dict[str, Any] = {"format": _FORMAT, "version": _VERSION, "task": self.task, "target": self.target}
        for name in ("classes", "bounds"):
            if getattr(self, name) is not None:
                found[name] = list(getattr(self, name))
        for name in ("n_records", "person", "rows_per_person", "n_persons"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        found["columns"] = {c.name: c.to_dict() for c in self.columns}
        return found

    @classmethod
    def from_dict(cls, data: Any) -> "Schema":
        """The schema of a parsed file; incomplete is allowed (see ``lacks``), wrong is a ``SchemaError``."""
        if not isinstance(data, Mapping):
            raise SchemaError("a schema must be a table of declarations")
        _refuse_unknown_keys(data, _SCHEMA_KEYS, "the schema")
        if data.get("format", _FORMAT) != _FORMAT:
            raise SchemaError(f"this is not a schema: its format is not {_FORMAT!r}")
        if data.get("version", _VERSION) != _VERSION:
            raise SchemaError(f"this release reads schema version {_VERSION} only: update dpscp")
        task = data.get("task") or ""
        if task:
            _check_declaration(lambda: check_choice("task", task, ("classification", "regression")))
        target = data.get("target") or ""
        columns = data.get("columns", {})
        if not isinstance(target, str) or not isinstance(columns, Mapping):
            raise SchemaError("target must be the name of a column, and columns a table for each column")
        counts: dict[str, int | None] = {name: data.get(name) for name in ("n_records", "rows_per_person", "n_persons")}
        for name, value in counts.items():
            if value is not None:
                counts[name] = _check_declaration(lambda name=name, value=value: check_count(name, value))
        person = data.get("person")
        if person is not None and (not isinstance(person, str) or not person or person == target):
            raise SchemaError("person must be the name of the column with the ids of the persons, not the target")
        _check_declaration(
            lambda: choose_unit(
                person, counts["rows_per_person"], n_records=counts["n_records"], n_persons=counts["n_persons"]
            )
        )
        found = cls(
            task=task,
            target=target,
            columns=tuple(Column.from_dict(str(name), column) for name, column in columns.items()),
            classes=_read_labels(data.get("classes"), "classes", 2),
            bounds=_read_bounds(data.get("bounds"), "the target"),
            person=person,
            **counts,
        )
        feature = next((c for c in found.columns if c.name == person and c.type not in ("", "ignore")), None)
        if feature is not None:
            raise SchemaError(
                f"column {person!r} holds the ids of the persons and is also declared as a feature: a model must not "
                'learn from ids; drop its declaration or set its type to "ignore"'
            )
        return found

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Schema":
        """The schema in a ``.toml`` or ``.json`` file, complete; ``SchemaError`` says what is missing or wrong."""
        return read_schema(path).require_complete()

    def to_toml(self) -> str:
        """The schema as a TOML file, with a comment for what is still to be filled in."""
        lines = [
            "# Public declarations for dpscp. Fill in what is publicly known (code books, units, laws of nature);",
            "# never look at the records for it: everything in this file counts as published.",
            f'format = "{_FORMAT}"',
            f"version = {_VERSION}",
            f'task = "{self.task}"' + ("" if self.task else '   # "classification" or "regression"'),
            f"target = {_format_toml(self.target)}" + ("" if self.target else "   # the column to predict"),
        ]
        if self.classes is not None:
            lines.append(f"classes = {_format_toml(list(self.classes))}")
        elif self.task != "regression":
            lines.append('# classes = ["no", "yes"]   # classification: the public labels')
        if self.bounds is not None:
            lines.append(f"bounds = {_format_toml(list(self.bounds))}")
        elif self.task != "classification":
            lines.append("# bounds = [low, high]   # regression: the public range of the target")
        if self.n_records is not None:
            lines.append(f"n_records = {self.n_records}")
        else:
            lines.append(
                "# n_records = 10000   # the public number of records; without it, the table's length is published"
            )
        if self.person is not None:
            lines.append(f"person = {_format_toml(self.person)}")
        elif self.rows_per_person is None:
            lines.append('# person = "id"   # the column that tells whose record a row is, if one can have several')
            lines.append("# rows_per_person = 3   # and how many records of one person are used at most")
        caps = {"rows_per_person": self.rows_per_person, "n_persons": self.n_persons}
        lines += [f"{name} = {value}" for name, value in caps.items() if value is not None]
        for column in self.columns:
            lines += ["", f"[columns.{_format_toml(column.name)}]"]
            known = column.to_dict()
            if not column.type:
                lines.append('type = ""   # "numeric", "categorical" or "ignore"')
                lines.append('# bounds = [low, high]   # numeric; if values can be missing: missing = "indicator" or 0')
                lines.append('# categories = ["a", "b"]   # categorical; and unknown = "other", if others can appear')
                del known["type"]
            lines += [f"{key} = {_format_toml(value)}" for key, value in known.items()]
        return "\n".join(lines) + "\n"

    def with_target(self, target: str) -> "Schema":
        """The same declarations for another target column."""
        return replace(self, target=target)


def template(columns: Sequence[str], *, target: str = "") -> Schema:
    """An empty schema for columns of these names; nothing else about a table is looked at."""
    names = [str(name) for name in columns]
    if len(set(names)) != len(names):
        raise SchemaError("the table has two columns of the same name; rename one")
    if target and target not in names:
        raise SchemaError(f"the table has no column {target!r}, given as the target")
    return Schema("", target, tuple(Column(name) for name in names if name != target))


def read_schema(path: str | PathLike[str]) -> Schema:
    """The schema in a ``.toml`` or ``.json`` file; incomplete is allowed, wrong is a ``SchemaError``."""
    file = Path(path)
    if not file.exists():
        raise SchemaError(f"there is no schema file {str(path)!r}; 'dpscp schema TABLE' writes a template")
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise SchemaError(f"{str(path)!r} is larger than any schema")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise SchemaError(f"{str(path)!r} cannot be read as text") from None
    return parse_schema(text, name=str(path))


def parse_schema(text: str, *, name: str = "schema") -> Schema:
    """The schema in a TOML or JSON text (JSON if it begins with a brace)."""
    try:
        data = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = f" (line {line})" if line else f" ({error})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise SchemaError(f"{name!r} is neither TOML nor JSON{place}") from None
    return Schema.from_dict(data)


# ---- checks and conversions


def _check_declaration(check: Any) -> Any:
    """The result of a range check; its error becomes a ``SchemaError``."""
    try:
        return check()
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(str(error)) from None


def _refuse_unknown_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [key for key in data if key not in known]
    if unknown:
        raise SchemaError(f"{where} has an unknown key {str(unknown[0])!r}; known are {', '.join(known)}")


def _read_bounds(value: Any, where: str) -> tuple[float, float] | None:
    if value is None or value == []:
        return None
    found: tuple[float, float] = _check_declaration(lambda: check_range(f"bounds of {where}", value))
    return found


def _read_labels(value: Any, where: str, least: int) -> tuple[str, ...] | None:
    """Distinct labels as texts; numbers and truth values are written as a table writes them."""
    if value is None or value == []:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SchemaError(f"{where} must be a list of labels")
    if any(isinstance(v, Mapping | list | tuple) or v is None for v in value):
        raise SchemaError(f"{where} must be a list of texts or numbers")
    labels = tuple(label_text(v) for v in value)
    if len(set(labels)) != len(labels) or len(labels) < least:
        raise SchemaError(f"{where} must hold at least {least} labels, each once")
    return labels


def _format_toml(value: Any) -> str:
    """A TOML value; JSON's texts, numbers and lists are TOML's too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
