"""Public declarations of a table's columns, and the matrix that they define.

A schema is a small TOML or JSON file: the task, the target, and for every column its type with public bounds or
categories. Nothing in it comes from the records and nothing is guessed. A missing declaration is an error that names
it, except for bounds: those that nobody declares are found by the fit.

    task = "classification"
    target = "visits"                   # several: targets = ["a", "b"]; of a multilabel task, columns of 0 and 1
    classes = ["none", "some"]          # regression, optional: bounds = [low, high]; scale = "log" or "log1p"
    person = "patient"                  # optional: the column of person ids, if a person can have several records
    rows_per_person = 3                 # with person: the public cap on the records of one person
    n_persons = 4000                    # with person, optional: the public nominal number of persons

    [csv]                               # optional: how CSV files are written
    separator = ";"                     # default: comma
    decimal = ","                       # default: "."
    thousands = "."                     # default: none
    encoding = "cp1252"                 # default: "utf-8"

    [metadata]                          # optional: declarations for the report about the release
    responsible = "City hospital"       # also purpose, data, contact, legal_basis, collection_period, recipients

    [categories]                        # optional: lists that several columns share
    codes = ["A00", "A01", "B99"]

    [defaults]                          # optional: declarations of every column that can have them and has no own
    unknown = "other"

    [columns.age]
    type = "numeric"                    # "numeric", "categorical", "date" or "ignore"
    bounds = [0, 110]                   # without it the fit finds bounds with noise, for a part of the budget
    scale = "log1p"                     # optional: "linear" (default), "log" or "log1p"
    missing = "indicator"               # optional: "refuse" (default), "indicator", or a public number

    [columns.region]
    type = "categorical"
    categories = ["north", "south"]
    unknown = "other"                   # optional: "refuse" (default) or "other"
    encoding = "indicators"             # optional: or "code", a single feature; without it the fit chooses

    [columns.admitted]
    type = "date"
    bounds = ["2015-01-01", "2025-12-31"]
    format = "%d.%m.%Y"                 # optional, for texts; default: ISO 8601
    parts = ["day_of_year", "weekday"]  # optional: more features than the number of days

    [columns."diagnosis_*"]             # all columns of the table with such names that nothing before it declares
    type = "categorical"
    categories = "codes"                # a list of [categories]; or "hash" with cells = 64, a public number of cells

Values outside the bounds are clipped without a message, because a count would reveal something about the records.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count
from dpscp.data.columns import (
    CODE,
    HASH,
    Column,
    Errors,
    Feature,
    check_declaration,
    collect_errors,
    read_bounds,
    read_labels,
    refuse_records,
    stored_type,
)
from dpscp.data.csv_format import CSVFormat
from dpscp.data.feature_bounds import FeatureBounds
from dpscp.data.frames import (
    ABSENT,
    Frame,
    SchemaError,
    describe_non_number,
    index_labels,
    list_columns,
    parse_numbers,
    refuse_unknown_keys,
    refuse_values,
    require_column,
    select_columns,
)
from dpscp.data.persons import choose_unit
from dpscp.data.scales import LINEAR, check_scale
from dpscp.data.schema_text import (
    FORMAT,
    VERSION,
    bounds_of_targets,
    check_metadata,
    format_schema,
    merge_shared,
    parse_text,
    read_text,
    scale_of_targets,
)

__all__ = ["ABSENT", "CSVFormat", "Column", "Frame", "Schema", "SchemaError", "parse_schema", "read_schema", "template"]

_COUNT_KEYS = ("n_records", "rows_per_person", "n_persons")
_OPTIONAL_KEYS = ("classes", "bounds", "scale", "person", "metadata", *_COUNT_KEYS)
_TABLES = ("csv", "columns", "defaults", "categories")
_SCHEMA_KEYS = ("format", "version", "task", "target", "targets", *_TABLES, *_OPTIONAL_KEYS)


@dataclass(frozen=True)
class Schema:
    """Declare what is public about a table; raise ``SchemaError`` if it is wrong.

    Use ``Schema.read(path)`` for a file and ``Schema.from_dict(data)`` for parsed values.

    Attributes
    ----------
    task : ``"classification"``, ``"regression"`` or ``"multilabel"``, or ``""`` if not declared yet
    target : str, or tuple of str
        The target column. A multilabel task has several columns of 0 and 1, and a regression may have several. A file
        lists them under the key ``targets``.
    columns : tuple of Column
    classes : tuple of str, optional
        The public labels of a classification.
    bounds : (low, high) or ``"private"``, optional
        The public range of a regression target. Without it, or with ``"private"``, the fit finds a range with noise. If
        bounds or scale are missing here, those of the target's column are used.
    scale : "linear", "log" or "log1p", optional
        The scale on which a regression target is trained and scored.
    n_records : int, optional
        The public nominal number of records.
    person : str, optional
        The name of the column of person ids.
    rows_per_person : int, optional
        The public cap on the rows of one person.
    n_persons : int, optional
        The public nominal number of persons.
    csv : CSVFormat
        How CSV files with these columns are written.
    metadata : mapping of str to str, optional
        Declarations for the report: purpose, data, responsible, contact, legal_basis, collection_period, recipients.
    lacks : tuple of str
        The declarations that are still missing.
    """

    task: str
    target: str | tuple[str, ...]
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None = None
    bounds: tuple[float, float] | str | None = None
    n_records: int | None = None
    person: str | None = None
    rows_per_person: int | None = None
    n_persons: int | None = None
    csv: CSVFormat = field(default_factory=CSVFormat)
    metadata: Mapping[str, str] | None = field(default=None, hash=False)
    scale: str | None = None

    def __post_init__(self) -> None:
        if self.metadata is not None:
            object.__setattr__(self, "metadata", check_metadata(self.metadata))
        if self.task:
            tasks = ("classification", "regression", "multilabel")
            check_declaration(lambda: check_choice("task", self.task, tasks))
        self._check_target()
        if not all(isinstance(column, Column) for column in self.columns):
            raise SchemaError("columns must be a tuple of Column")
        if not isinstance(self.csv, CSVFormat):
            raise SchemaError("csv must be a CSVFormat")
        if len({column.name for column in self.columns}) != len(self.columns):
            raise SchemaError("the schema declares two columns with the same name; remove one")
        object.__setattr__(self, "classes", read_labels(self.classes, "classes", 2))
        object.__setattr__(self, "bounds", read_bounds(self.bounds, "the target"))
        if self.scale is not None:
            public = None if isinstance(self.bounds, str) else self.bounds
            check_declaration(lambda: check_scale("scale of the target", self.scale, public))
            if self.task in ("classification", "multilabel"):
                raise SchemaError("scale needs a regression; remove scale")
        for name in _COUNT_KEYS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_declaration(partial(check_count, name, value)))
        self._check_person()

    def _check_target(self) -> None:
        """Refuse names of target columns that do not match the task."""
        if isinstance(self.target, str):
            if self.task == "multilabel" and self.target:
                raise SchemaError("a multilabel task needs targets, the list of its columns: targets = ['a', 'b']")
            return
        names = self.target
        if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
            raise SchemaError("target must be the name of a column, and targets a list of names")
        if len(set(names)) != len(names) or not names:
            raise SchemaError("targets must list at least one column, and each column once")
        if self.task == "classification":
            raise SchemaError("a classification has one target column; targets is for multilabel tasks and regressions")
        if self.classes is not None or (self.bounds is not None and self.task == "multilabel"):
            raise SchemaError("a multilabel task has neither classes nor bounds: targets are columns of 0 and 1")

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the target columns; empty before one is chosen."""
        return ((self.target,) if self.target else ()) if isinstance(self.target, str) else self.target

    def _check_person(self) -> None:
        """Refuse a column of person ids that is also a target or a feature.

        Counts that contradict it are refused too.
        """
        person = self.person
        if person is not None and (not isinstance(person, str) or not person or person in self.target_names):
            raise SchemaError("person must be the name of the column of person ids, and not the target")
        check_declaration(
            lambda: choose_unit(person, self.rows_per_person, n_records=self.n_records, n_persons=self.n_persons)
        )
        if any(c.name == person and c.type not in ("", "ignore") for c in self.columns):
            raise SchemaError(
                f"column {person!r} has the person ids and is also declared as a feature, but a model must not learn "
                'from ids. Remove its declaration, or set its type to "ignore"'
            )

    @property
    def lacks(self) -> tuple[str, ...]:
        """The missing declarations, in words."""
        needed = []
        if not self.target:
            needed.append("the target")
        if not self.task:
            needed.append("the task (classification, regression or multilabel)")
        if self.task == "classification" and self.classes is None:
            needed.append("the classes of the target")
        for what in ("type", "categories"):
            names = [repr(c.name) for c in self._candidate_columns if c.lacks == what]
            if names:
                needed.append(f"the {what} of column{'s' if len(names) > 1 else ''} {', '.join(names)}")
        if not any(c.type != "ignore" for c in self._candidate_columns):
            needed.append("at least one column that is not ignored")
        return tuple(needed)

    def require_complete(self) -> "Schema":
        """Return this schema, or raise ``SchemaError`` if declarations are missing.

        Two features with one name are refused too.
        """
        if self.lacks:
            raise SchemaError(
                f"the schema lacks {'; '.join(self.lacks)}. Add them to the schema from public knowledge; they are "
                "never taken from the data"
            )
        owners: dict[str, str] = {}
        for column in self.feature_columns:
            for name in column.feature_names:
                if name in owners:
                    raise SchemaError(
                        f"columns {owners[name]!r} and {column.name!r} both become a feature named {name!r}; "
                        "rename one of them in the table and in the schema"
                    )
                owners[name] = column.name
        return self

    @property
    def has_patterns(self) -> bool:
        """Whether a declaration is a pattern for several columns of a later table."""
        return any(column.is_pattern for column in self.columns)

    def for_columns(self, names: Sequence[str]) -> "Schema":
        """Return the schema of a table with these columns.

        Each pattern becomes the columns that it matches. A column belongs to the declaration with its name, or to the
        first pattern that matches. Column names are public.
        """
        if not self.has_patterns:
            return self
        others = {column.name for column in self.columns if not column.is_pattern} | {*self.target_names, self.person}
        free = [name for name in names if name not in others]
        columns: list[Column] = []
        for column in self.columns:
            found = (
                [name for name in free if re.fullmatch(column.pattern, name)] if column.is_pattern else [column.name]
            )
            free = [name for name in free if name not in found]
            columns += [replace(column, name=name) for name in found]
        return replace(self, columns=tuple(columns))

    @property
    def _candidate_columns(self) -> tuple[Column, ...]:
        """The columns that may be features: all except target and person ids."""
        return tuple(c for c in self.columns if c.name not in (*self.target_names, self.person))

    @property
    def feature_columns(self) -> tuple[Column, ...]:
        """The columns that become features."""
        return tuple(c for c in self._candidate_columns if c.type != "ignore")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a table that are read: features, target and person ids."""
        others = self.target_names if self.person is None else (*self.target_names, self.person)
        return (*(c.name for c in self.feature_columns), *others)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns of the matrix."""
        return tuple(feature.name for feature in self._features)

    @property
    def _features(self) -> tuple[Feature, ...]:
        return tuple(feature for column in self.feature_columns for feature in column.features)

    @property
    def _bounds(self) -> FeatureBounds:
        """The bounds of the matrix's columns, also of columns whose bounds the fit finds."""
        found = self._features
        low, high = np.array([feature.bounds or (-1.0, 1.0) for feature in found], dtype=float).T
        private = tuple(place for place, feature in enumerate(found) if feature.bounds is None)
        indicators = tuple(place for place, feature in enumerate(found) if feature.is_indicator)
        scales = tuple(feature.scale for feature in found)
        codes = tuple((place, feature.categories) for place, feature in enumerate(found) if feature.categories)
        return FeatureBounds(low, high, private, (), indicators, None if set(scales) <= {LINEAR} else scales, codes)

    @property
    def declared(self) -> dict[str, Any]:
        """The declarations by the estimators' parameter names; None if not declared."""
        own = [c for name in self.target_names for c in self.columns if c.name == name and c.type in ("", "numeric")]
        columns = [replace(column, type="numeric") for column in own if self.task == "regression"]
        labels = self.target if self.task == "multilabel" else self.classes
        return {
            "classes": None if labels is None else list(labels),
            "y_bounds": bounds_of_targets(columns, self.target) if self.bounds is None else self.bounds,
            "y_scale": scale_of_targets(columns) if self.scale is None else self.scale,
            "feature_bounds": self._bounds,
            "n_records": self.n_records,
            "rows_per_person": self.rows_per_person,
            "n_persons": self.n_persons,
        }

    def matrix(self, frame: Any) -> NDArray[np.float64]:
        """Encode the features of a frame.

        Undeclared columns are ignored.

        Parameters
        ----------
        frame : pandas, polars or Arrow table with n rows

        Returns
        -------
        array of shape (n, len(feature_names))

        Raises
        ------
        SchemaError
            If the frame does not fit the schema; with the errors of all columns.
        """
        features, wrong = self._read_features(frame)
        refuse_records(wrong)
        return features

    def encode(self, frame: Any) -> tuple[NDArray[np.float64], NDArray[Any], Any]:
        """Return matrix, targets and person ids of a frame.

        All errors are raised as one.
        """
        rows, targets, persons = collect_errors(
            [partial(read, frame) for read in (self.matrix, self.targets, self.persons)]
        )
        return rows, targets, persons

    def rows(self, frame: Any) -> tuple[NDArray[np.float64], list[str | None]]:
        """Encode a frame for prediction and list the errors of each row.

        Parameters
        ----------
        frame : pandas, polars or Arrow table with n rows

        Returns
        -------
        matrix : array of shape (n, len(feature_names))
        errors : list of n messages, None for a row without errors
        """
        features, wrong = self._read_features(frame)
        said: list[str | None] = [None] * len(features)
        for text, bad in wrong.items():
            for place in np.flatnonzero(bad):
                said[place] = "; ".join(filter(None, (said[place], text)))
        return features, said

    def _read_features(self, frame: Any) -> tuple[NDArray[np.float64], Errors]:
        """Return the features of a frame, and the rows with errors, see ``Column.read``."""
        columns = self._select_values(frame)
        found = collect_errors([partial(column.read, values) for column, values in columns])
        wrong = {text: bad for _, errors in found for text, bad in errors.items()}
        return np.hstack([features for features, _ in found]), wrong

    def _select_values(self, frame: Any) -> list[tuple[Column, Any]]:
        """Pair the columns that become features with their values."""
        if self.has_patterns:
            return self.for_columns(list_columns(frame))._select_values(frame)
        found = select_columns(frame, [c.name for c in self.feature_columns])
        if missing := [c.name for c in self.feature_columns if c.name not in found]:
            raise SchemaError(
                f"the table lacks column {', '.join(map(repr, missing))}, which the schema declares. Add it, or "
                'set its type to "ignore" and fit again'
            )
        return [(column, found[column.name]) for column in self.feature_columns]

    def targets(self, frame: Any) -> NDArray[Any]:
        """Return the target column, or those of several labels.

        Parameters
        ----------
        frame : pandas, polars or Arrow table with n rows

        Returns
        -------
        array of shape (n,), or (n, n_targets), of labels as text, numbers, or indicators
        """
        found, wrong = self.read_targets({name: require_column(frame, name, "target") for name in self.target_names})
        refuse_records(wrong)
        return found

    def read_targets(self, columns: Mapping[str, Any]) -> tuple[NDArray[Any], Errors]:
        """Return the targets in these columns, and the rows with errors.

        Columns are pandas Series, see ``Column.read``.
        """
        for name, values in columns.items():
            refuse_values(values, name)
        if isinstance(self.target, str) and self.task != "regression":
            places = index_labels(columns[self.target_names[0]], self.classes or ())
            said = (
                f"the target column {self.target!r} has a missing label, or one that is not in the declared classes. "
                "Add it to classes, or drop those records"
            )
            return np.array(self.classes, dtype=str)[places], {said: places < 0}
        read = {name: parse_numbers(values) for name, values in columns.items()}
        wrong: Errors = {}
        for name, (numbers, is_odd) in read.items():
            wrong[describe_non_number(name)] = is_odd
            missing = f"the target column {name!r} has missing values; drop those records"
            wrong[missing] = np.isnan(numbers) & ~is_odd
        found = np.column_stack([numbers for numbers, _ in read.values()])
        if self.task == "regression":
            return found[:, 0] if isinstance(self.target, str) else found, wrong
        said = "the target columns of a multilabel task must hold 0 and 1 only"
        is_other = np.asarray(~(np.isin(found, (0, 1)) | np.isnan(found)).all(axis=1))
        return np.where(is_other[:, None], 0, np.nan_to_num(found)).astype(np.int64), wrong | {said: is_other}

    def encode_targets(self, values: Any) -> NDArray[Any]:
        """Return the values of the target columns as ``targets`` returns them."""
        import pandas as pd

        columns = np.asarray(values) if isinstance(self.target, str) else np.asarray(values).T
        if not isinstance(self.target, str) and columns.shape[:1] != (len(self.target),):
            raise SchemaError(f"y must have one column for each of the {len(self.target)} targets of the schema")
        return self.targets(pd.DataFrame(dict(zip(self.target_names, np.atleast_2d(columns), strict=True))))

    def persons(self, frame: Any) -> Any:
        """Return the person ids, one for each row; None without a column of persons."""
        return None if self.person is None else require_column(frame, self.person, "person")

    def category_column(self, name: str) -> Column:
        """Return a categorical column with listed categories, or raise SchemaError."""
        column = next((c for c in self.feature_columns if c.name == name and c.type == "categorical"), None)
        if column is None or column.categories in (None, HASH):
            raise SchemaError(f"groups={name!r} must be a categorical column whose categories the schema lists")
        return column

    def groups(self, table: Any, name: str) -> NDArray[np.int64]:
        """Return the index of each row's category in a column; -1 for another value.

        Parameters
        ----------
        table : frame, or the matrix of one, with n rows
        name : str
            The column.

        Returns
        -------
        int array of shape (n,)
        """
        column = self.category_column(name)
        if isinstance(table, Frame):
            return index_labels(require_column(table, name, "groups"), column.categories)
        first = self.feature_names.index(column.feature_names[0])
        rows = np.asarray(table)[:, first : first + len(column.features)]
        if column.encoding == CODE:
            return np.where(rows[:, 0] < len(column.categories), rows[:, 0], -1).astype(np.int64)
        hidden = len(column.categories) - len(column.features)
        index = np.where((rows == 1).any(axis=1), rows.argmax(axis=1) + hidden, hidden - 1)
        # the caller's own matrix may have other numbers
        return np.where(((rows == 0) | (rows == 1)).all(axis=1), index, -1)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values that ``from_dict`` reads."""
        found: dict[str, Any] = {"format": FORMAT, "version": VERSION, "task": self.task}
        found |= {"target": self.target} if isinstance(self.target, str) else {"targets": list(self.target)}
        for name in ("classes", "bounds", "scale", "n_records", "person", "rows_per_person", "n_persons"):
            if (value := getattr(self, name)) is not None:
                found[name] = list(value) if isinstance(value, tuple) else value
        if self.csv.to_dict():
            found["csv"] = self.csv.to_dict()
        if self.metadata:
            found["metadata"] = dict(self.metadata)
        found["columns"] = {c.name: c.to_dict() for c in self.columns}
        return found

    @classmethod
    def from_dict(cls, data: Any) -> "Schema":
        """Read the schema from parsed values; raise ``SchemaError`` if one is wrong.

        A schema with missing declarations is allowed, see ``lacks``.
        """
        if not isinstance(data, Mapping):
            raise SchemaError("a schema must be a mapping of declarations")
        refuse_unknown_keys(data, _SCHEMA_KEYS, "the schema")
        if data.get("format", FORMAT) != FORMAT:
            raise SchemaError(f"the schema has another format than {FORMAT!r}; pass a schema of dpscp")
        if data.get("version", VERSION) != VERSION:
            raise SchemaError(f"this release reads schema version {VERSION} only; update dpscp")
        read = [partial(Column.from_dict, name, declared) for name, declared in merge_shared(data).items()]
        if "targets" in data and (data.get("target") or not isinstance(data["targets"], list)):
            raise SchemaError("targets must be a list of columns, such as targets = ['a', 'b'], in place of target")
        return cls(
            task=data.get("task") or "",
            target=tuple(data["targets"]) if "targets" in data else data.get("target") or "",
            columns=tuple(collect_errors(read)),
            csv=CSVFormat.from_dict(data.get("csv", {})),
            **{name: data.get(name) for name in _OPTIONAL_KEYS},
        )

    @classmethod
    def from_frame(cls, frame: Any, target: str = "", *, task: Any = "") -> "Schema":
        """Return a schema to complete: the names and types of a frame's columns.

        No value of the frame is used, only how columns are stored. ``print(schema.to_toml())`` shows what is still to
        be declared from public knowledge, and ``schema.lacks`` lists it.

        Parameters
        ----------
        frame : pandas, polars or Arrow table
        target : str, optional
            The column to predict.
        task : ``"classification"``, ``"regression"``, or an estimator, optional
            A fit with a schema that names no task takes that of the estimator.

        Returns
        -------
        Schema
        """
        names = list_columns(frame)
        empty, values = template(names, target=target), select_columns(frame, names)
        columns = tuple(Column(column.name, stored_type(values[column.name])) for column in empty.columns)
        return cls(getattr(task, "_name", task), target, columns)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Schema":
        """Read a complete schema from a ``.toml`` or ``.json`` file.

        Raises
        ------
        SchemaError
            With everything that is missing, or what is wrong.
        """
        return read_schema(path).require_complete()

    def to_toml(self) -> str:
        """Return the schema as TOML text, with comments for missing declarations."""
        return format_schema(self.to_dict())

    def with_target(self, target: str | list[str] | tuple[str, ...]) -> "Schema":
        """Return the same declarations for another target column, or for several."""
        return replace(self, target=tuple(target) if isinstance(target, list) else target)


def template(columns: Sequence[str], *, target: str = "") -> Schema:
    """Return an empty schema for columns of these names."""
    names = [str(name) for name in columns]
    if len(set(names)) != len(names):
        raise SchemaError("the table has two columns with the same name; rename one")
    if target and target not in names:
        raise SchemaError(f"the table has no column {target!r}; choose another target")
    return Schema("", target, tuple(Column(name) for name in names if name != target))


def read_schema(path: str | PathLike[str]) -> Schema:
    """Read a ``.toml`` or ``.json`` file; missing declarations are allowed."""
    return parse_schema(read_text(path), name=str(path))


def parse_schema(text: str, *, name: str = "schema") -> Schema:
    """Parse a TOML or JSON text (JSON if it begins with a brace)."""
    return Schema.from_dict(parse_text(text, name))
