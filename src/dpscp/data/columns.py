"""The public declaration of one column, and the features that it becomes.

``TYPES`` has one class for each type of column: its declarations, its features, and the reader of its values.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, time, timedelta
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count, check_range, real_number
from dpscp.data.feature_bounds import PRIVATE, check_private
from dpscp.data.frames import (
    EPOCH,
    MICROSECONDS_PER_DAY,
    NO_TIME,
    SchemaError,
    describe_non_number,
    hash_labels,
    index_labels,
    label_text,
    parse_numbers,
    parse_times,
    refuse_unknown_keys,
    refuse_values,
    to_microseconds,
)
from dpscp.data.scales import LINEAR, check_scale

Result = TypeVar("Result")
Errors = dict[str, NDArray[np.bool_]]

HASH = "hash"
CODE = "code"
_LARGEST = float(np.finfo(np.float64).max)
_MOST_CELLS = 2**16
_DAY_OF_YEAR, _WEEKDAY = "day_of_year", "weekday"
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DAYS_PER_YEAR = 365.2425


@dataclass(frozen=True)
class Column:
    """Declare what is public about one column; raise ``SchemaError`` if it is wrong.

    Attributes
    ----------
    name : str
    type : ``"numeric"``, ``"categorical"``, ``"date"``, ``"ignore"``, or ``""`` if not declared yet
    bounds : (low, high) or ``"private"``, optional
        The public bounds of a numeric column, or of a date (as texts or dates). Without them, or with ``"private"``,
        the fit finds bounds with noise, at a cost.
    missing : ``"refuse"``, ``"indicator"``, or a public number or date
        How missing numbers or dates are treated.
    categories : tuple of str, or ``"hash"``, optional
        The public categories of a categorical column. With ``"hash"``, each value belongs to one of ``cells`` cells, by
        a public hash of its text.
    unknown : ``"refuse"`` or ``"other"``
        How a categorical column treats other values, and missing ones.
    scale : ``"linear"``, ``"log"`` or ``"log1p"``
        The scale on which the model sees a numeric column. Bounds and features are in the units of the column.
    cells : int, optional
        The public number of cells of ``categories="hash"``.
    format : str, optional
        How texts of a date are written, such as ``"%d.%m.%Y"``. None: ISO 8601 (``2025-01-31``).
    parts : tuple of ``"day_of_year"`` and ``"weekday"``
        Further features of a date, besides its number of days since 1970: two coordinates on the circle of the year, or
        seven indicators.
    encoding : ``"indicators"`` or ``"code"``, optional
        The features of a categorical column: an indicator of each category, or the number of its category, which the
        fit replaces by private shares of the target. None: the fit chooses.
    """

    name: str
    type: str = ""
    bounds: Any = None
    missing: Any = "refuse"
    categories: Any = None
    unknown: str = "refuse"
    scale: str = LINEAR
    cells: int | None = None
    format: str | None = None
    parts: Any = ()
    encoding: str | None = None

    def __post_init__(self) -> None:
        for name in ("bounds", "categories", "parts"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        if not self.type:
            return
        check_declaration(lambda: check_choice(f"type of {self.where}", self.type, tuple(TYPES)))
        if self.kind.keys:
            self._refuse_other_keys()
            for name, value in self.kind.check(self).items():
                object.__setattr__(self, name, value)

    def _refuse_other_keys(self) -> None:
        """Refuse a declaration that this type does not have."""
        for name, default in _DEFAULTS.items():
            if name not in self.kind.keys and getattr(self, name) != default:
                owners = " or ".join(repr(kind) for kind, found in TYPES.items() if name in found.keys)
                raise SchemaError(
                    f"{name} of {self.where} needs type {owners}, but its type is {self.type!r}; remove {name}"
                )

    @property
    def where(self) -> str:
        """The column in a message."""
        return f"column {self.name!r}"

    @property
    def kind(self) -> "ColumnType":
        """How columns of this type are declared and read."""
        return TYPES[self.type or "ignore"]

    @property
    def lacks(self) -> str | None:
        """The missing declaration: "type" or "categories"; None if complete."""
        if not self.type:
            return "type"
        return "categories" if "categories" in self.kind.keys and self.categories is None else None

    @property
    def features(self) -> tuple["Feature", ...]:
        """The features that the column becomes."""
        return self.kind.features(self)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def n_categories(self) -> int:
        """The number of declared categories, or of cells."""
        return (self.cells or 0) if self.categories == HASH else len(self.categories or ())

    @property
    def is_pattern(self) -> bool:
        """Whether this declares all columns of a table with such names: ``"diagnosis_*"``."""
        return "*" in self.name

    @property
    def pattern(self) -> str:
        """The regular expression of the names that a pattern stands for."""
        return ".*".join(map(re.escape, self.name.split("*")))

    def read(self, values: Any) -> tuple[NDArray[np.float64], Errors]:
        """Encode the values and list the rows with errors.

        Parameters
        ----------
        values : pandas Series of length n

        Returns
        -------
        features : array of shape (n, len(features))
            Not meaningful in rows with errors.
        errors : dict
            {message: bool array of shape (n,)}; no message contains a value.
        """
        features, wrong = self.kind.read(self, values)
        return features, {} if self.unknown == "other" and "unknown" in self.kind.keys else wrong

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values of everything that is declared."""
        declared = {name: getattr(self, name) for name in _DEFAULTS}
        found = {name: value for name, value in declared.items() if value != _DEFAULTS[name]}
        return {"type": self.type} | {name: _plain_declaration(value) for name, value in found.items()}

    @classmethod
    def from_dict(cls, name: str, data: Any) -> "Column":
        """Read the column of a schema file; raise ``SchemaError`` if it is wrong."""
        where = f"column {name!r}"
        if not isinstance(data, Mapping):
            raise SchemaError(f'{where} must be a table with a type, for example type = "numeric"')
        refuse_unknown_keys(data, COLUMN_KEYS, where)
        return cls(name, **{**data, "type": data.get("type") or ""})


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Column)[2:]}
COLUMN_KEYS = ("type", *_DEFAULTS)


@dataclass(frozen=True)
class Feature:
    """Describe one column of the matrix.

    Attributes
    ----------
    name : str
    bounds : (low, high), optional
        Its public bounds; None: the fit finds them.
    is_indicator : bool
        Whether it is 0 or 1.
    scale : str
        The scale on which the model sees it.
    categories : int
        The number of categories, if it is a code of categories; 0 for other numbers.
    """

    name: str
    bounds: tuple[float, float] | None = (0.0, 1.0)
    is_indicator: bool = True
    scale: str = LINEAR
    categories: int = 0


class ColumnType:
    """Define how columns of one type are declared and read.

    The base class is for ignored columns.

    Attributes
    ----------
    keys : tuple of str
        The declarations that the type has.
    hints : tuple of str
        Comments in a template about optional declarations.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    hints: ClassVar[tuple[str, ...]] = ()

    def check(self, column: Column) -> dict[str, Any]:  # noqa: ARG002 (for types with declarations)
        """Return checked declarations by name."""
        return {}

    def features(self, column: Column) -> tuple[Feature, ...]:  # noqa: ARG002 (for types with features)
        """Return the features that a column becomes."""
        return ()

    def read(self, column: Column, values: Any) -> tuple[NDArray[np.float64], Errors]:
        """Encode the values and list the rows with errors, see ``Column.read``."""
        raise NotImplementedError

    def outside(self, column: Column, values: Any) -> NDArray[np.float64]:  # noqa: ARG002 (for types with ranges)
        """Return 1 for each value outside the public bounds, 0 inside, NaN for none."""
        return np.full(len(values), np.nan)


class _Bounded(ColumnType, ABC):
    """A numeric column: a number within bounds and, if declared, a missing mark.

    The mark is an indicator of missing values.
    """

    @abstractmethod
    def number(self, declared: Any) -> float:
        """Return a declared value as a number."""

    @abstractmethod
    def numbers(self, column: Column, values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the values as numbers, and a mask of the invalid ones.

        Missing and invalid values are NaN.
        """

    def outside(self, column: Column, values: Any) -> NDArray[np.float64]:
        numbers, _ = self.numbers(column, values)
        low, high = self.ends(column)
        return np.where(np.isnan(numbers), np.nan, (numbers < low) | (numbers > high))

    def _number_features(self, column: Column) -> tuple[Feature, ...]:
        bounds = None if column.bounds in (None, PRIVATE) else self.ends(column)
        number = Feature(column.name, bounds, is_indicator=False, scale=column.scale)
        return (number, Feature(f"{column.name} is missing")) if column.missing == "indicator" else (number,)

    def ends(self, column: Column) -> tuple[float, float]:
        """Return the range that numbers are clipped to.

        It contains all numbers if the fit finds the bounds.
        """
        if column.bounds in (None, PRIVATE):
            return -_LARGEST, _LARGEST
        low, high = map(self.number, column.bounds)
        return low, high

    def _fit_to_bounds(
        self, column: Column, numbers: NDArray[np.float64], odd: NDArray[np.bool_], said: str
    ) -> tuple[NDArray[np.float64], Errors]:
        """Return the features of numbers, and the rows with errors.

        Missing and ``odd`` numbers are NaN.
        """
        absent = np.isnan(numbers) & ~odd
        low, high = self.ends(column)
        # the middle of the bounds; if the fit finds them, a number on which the scale is defined
        numbers[odd | absent] = 1.0 if column.scale == "log" and low == -_LARGEST else low / 2 + high / 2
        if column.missing not in ("refuse", "indicator"):
            numbers[absent] = self.number(column.missing)
        # clip here too, because an infinite value is also outside the bounds
        numbers = np.clip(numbers, low, high)
        missing = (
            f'{column.where} has missing values. Fill them in, or set missing = "indicator" or a public value in the '
            "schema"
        )
        found = np.column_stack([numbers, absent]) if column.missing == "indicator" else numbers[:, None]
        return found, {said: odd, missing: absent & (column.missing == "refuse")}


class _Numeric(_Bounded):
    keys = ("bounds", "missing", "scale")
    hints = (
        "# bounds = [low, high]   # numeric: public bounds; without them the fit finds some, at a cost",
        '# missing = "indicator"   # numeric: if values can be missing; or a public number',
        '# scale = "log"   # numeric: for costs and durations; "log1p" where 0 can occur',
    )

    def check(self, column: Column) -> dict[str, Any]:
        bounds, missing = read_bounds(column.bounds, column.where), column.missing
        public = None if isinstance(bounds, str) else bounds
        check_declaration(lambda: check_scale(f"scale of {column.where}", column.scale, public))
        if isinstance(missing, str):
            check_declaration(lambda: check_choice(f"missing of {column.where}", missing, ("refuse", "indicator")))
        else:
            missing = check_declaration(lambda: real_number(f"missing of {column.where}", column.missing))
        return {"bounds": bounds, "missing": missing}

    def number(self, declared: Any) -> float:
        return float(declared)

    def features(self, column: Column) -> tuple[Feature, ...]:
        return self._number_features(column)

    def numbers(self, column: Column, values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        refuse_values(values, column.name)
        return parse_numbers(values)

    def read(self, column: Column, values: Any) -> tuple[NDArray[np.float64], Errors]:
        return self._fit_to_bounds(column, *self.numbers(column, values), describe_non_number(column.name))


class _Categorical(ColumnType):
    keys = ("categories", "unknown", "cells", "encoding")
    hints = ('# categories = ["a", "b"]   # categorical; if other values can appear: unknown = "other"',)

    def check(self, column: Column) -> dict[str, Any]:
        check_declaration(lambda: check_choice(f"unknown of {column.where}", column.unknown, ("refuse", "other")))
        if column.encoding not in (None, "indicators", CODE):
            raise SchemaError(f'encoding of {column.where} must be "indicators" or "code", got {column.encoding!r}')
        if column.categories == HASH:
            if column.cells is None:
                raise SchemaError(f'categories = "hash" of {column.where} needs cells, the public number of cells')
            return {"cells": check_declaration(lambda: _check_cells(column))}
        if column.cells is not None:
            raise SchemaError(f'cells of {column.where} needs categories = "hash"; remove cells')
        return {"categories": read_labels(column.categories, f"categories of {column.where}", 1)}

    @staticmethod
    def _shown(column: Column) -> tuple[str, ...]:
        """The categories that have their own feature; of two, only the second."""
        categories: tuple[str, ...] = column.categories or ()
        return categories[1:] if len(categories) == 2 and column.unknown == "refuse" else categories

    def features(self, column: Column) -> tuple[Feature, ...]:
        if column.encoding == CODE:
            return (Feature(column.name, (0.0, float(column.n_categories)), False, categories=column.n_categories),)
        if column.categories == HASH:
            return tuple(Feature(f"{column.name} cell {cell}") for cell in range(column.cells or 0))
        return tuple(Feature(f"{column.name}={category}") for category in self._shown(column))

    def read(self, column: Column, values: Any) -> tuple[NDArray[np.float64], Errors]:
        refuse_values(values, column.name)
        if column.categories == HASH:
            places, n_shown, hidden = hash_labels(values, column.cells or 1), column.cells or 1, 0
            said = f'{column.where} has a missing value. Fill it in, or set unknown = "other" in the schema'
        else:
            places = index_labels(values, column.categories)
            n_shown = len(self._shown(column))
            hidden = len(column.categories) - n_shown
            said = (
                f"{column.where} has a missing value, or one outside its declared categories. "
                'Add it to categories, or set unknown = "other" in the schema'
            )
        odd = places < 0
        if column.encoding == CODE:
            return np.where(odd, column.n_categories, places).astype(np.float64)[:, None], {said: odd}
        return np.asarray(places[:, None] == np.arange(hidden, hidden + n_shown), dtype=np.float64), {said: odd}


class _Date(_Bounded):
    """A date or time as the number of days since 1970-01-01.

    A time with a time zone is converted to UTC.
    """

    keys = ("bounds", "missing", "format", "parts")
    hints = (
        '# bounds = ["2015-01-01", "2025-12-31"]   # date: public bounds; without them the fit finds some, at a cost',
        '# format = "%d.%m.%Y"   # date: if texts are not like 2025-01-31',
        '# parts = ["day_of_year", "weekday"]   # date: more features',
    )

    def check(self, column: Column) -> dict[str, Any]:
        missing, parts = column.missing, column.parts
        if missing not in ("refuse", "indicator"):
            missing = check_declaration(lambda: _date_text(f"missing of {column.where}", missing))
        if parts not in ((), (_DAY_OF_YEAR,), (_WEEKDAY,), (_DAY_OF_YEAR, _WEEKDAY), (_WEEKDAY, _DAY_OF_YEAR)):
            raise SchemaError(f'parts of {column.where} must be a list of "{_DAY_OF_YEAR}" and "{_WEEKDAY}"')
        if column.format is not None and (not isinstance(column.format, str) or "%" not in column.format):
            raise SchemaError(f'format of {column.where} must be like "%d.%m.%Y", got {column.format!r}')
        return {"bounds": read_bounds(column.bounds, column.where, _check_dates), "missing": missing}

    def number(self, declared: Any) -> float:
        return to_microseconds(declared, None) / MICROSECONDS_PER_DAY

    def features(self, column: Column) -> tuple[Feature, ...]:
        found = self._number_features(column)
        if _DAY_OF_YEAR in column.parts:
            found += tuple(
                Feature(f"{column.name} day of year, {end}", (-1.0, 1.0), is_indicator=False)
                for end in ("cosine", "sine")
            )
        if _WEEKDAY in column.parts:
            found += tuple(Feature(f"{column.name} weekday={day}") for day in _WEEKDAYS)
        return found

    def numbers(self, column: Column, values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        refuse_values(values, column.name, dates=True)
        times, odd = parse_times(values, column.format)
        return np.where(times == NO_TIME, np.nan, times / MICROSECONDS_PER_DAY), odd

    def read(self, column: Column, values: Any) -> tuple[NDArray[np.float64], Errors]:
        numbers, odd = self.numbers(column, values)
        has_time = ~np.isnan(numbers)
        days = np.floor(np.where(has_time, numbers, 0)).astype(np.int64)
        how = "ISO 8601 (2025-01-31)" if column.format is None else repr(column.format)
        said = (
            f"{column.where} is declared as a date but has a value that is not a date. Write texts as {how}, "
            'declare another format = "%d.%m.%Y" in the schema, or correct the table'
        )
        found, wrong = self._fit_to_bounds(column, numbers, odd, said)
        more = [found]
        if _DAY_OF_YEAR in column.parts:
            years = days.astype("datetime64[D]").astype("datetime64[Y]").astype("datetime64[D]")
            angle = 2 * np.pi * (days - years.astype(np.int64)) / _DAYS_PER_YEAR
            more.append(np.column_stack([np.cos(angle), np.sin(angle)]) * has_time[:, None])
        if _WEEKDAY in column.parts:  # 1970-01-01 was a Thursday
            more.append(((days + 3) % 7)[:, None] == np.where(has_time[:, None], np.arange(7), -1))
        return np.column_stack(more).astype(np.float64), wrong


TYPES: dict[str, ColumnType] = {
    "numeric": _Numeric(),
    "categorical": _Categorical(),
    "date": _Date(),
    "ignore": ColumnType(),
}


def check_declaration(check: Callable[[], Any]) -> Any:
    """Run a check and convert its error to a ``SchemaError``."""
    try:
        return check()
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(str(error)) from None


def collect_errors(readings: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of all readings, or raise their errors as one error.

    The error is a ``SchemaError``.
    """
    results, errors = [], []
    for read in readings:
        try:
            results.append(read())
        except SchemaError as error:
            errors.append(str(error))
    if errors:
        raise SchemaError(". ".join(dict.fromkeys(errors)))
    return results


def refuse_records(wrong: Errors) -> None:
    """Raise one ``SchemaError`` with the messages that apply to some record."""
    found = [said for said, rows in wrong.items() if rows.any()]
    if found:
        raise SchemaError(". ".join(found))


def read_bounds(value: Any, where: str, check: Callable[[str, Any], Any] = check_range) -> Any:
    """Return (low, high) as ``check`` returns it, "private", or None."""
    if value is None or value in ([], ()):
        return None
    check = check_private if isinstance(value, str) else check
    return check_declaration(lambda: check(f"bounds of {where}", value))


def read_labels(value: Any, where: str, least: int) -> tuple[str, ...] | None:
    """Read distinct labels as text, written as a table writes them."""
    if value is None or value in ([], ()):
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SchemaError(f"{where} must be a list of labels")
    if any(isinstance(v, Mapping | list | tuple) or v is None for v in value):
        raise SchemaError(f"{where} must be a list of strings or numbers")
    labels = tuple(label_text(v) for v in value)
    if len(set(labels)) != len(labels) or len(labels) < least:
        raise SchemaError(f"{where} must have at least {least} labels, each once")
    return labels


def _plain_declaration(value: Any) -> Any:
    """Return a JSON value of a declaration; dates of TOML become texts."""
    if isinstance(value, list | tuple):
        return [_plain_declaration(part) for part in value]
    return value.isoformat() if isinstance(value, date | time) else value


def _date_text(name: str, value: Any) -> str:
    """Return a declared date as ISO 8601."""
    try:
        days, rest = divmod(to_microseconds(value, None), MICROSECONDS_PER_DAY)
    except (ValueError, OverflowError):
        words = '"refuse", "indicator" or ' if name.startswith("missing") else ""
        raise ValueError(f'{name} must be {words}a date such as "2025-01-31", got {value!r}') from None
    found = EPOCH + timedelta(days=days, microseconds=rest)
    return (found if rest else found.date()).isoformat()


def _check_dates(name: str, bounds: Any) -> tuple[str, ...]:
    """Return declared bounds as ISO 8601, or raise ValueError."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ValueError(f'{name} must be a pair of dates, such as ["2015-01-01", "2025-12-31"]')
    low, high = (_date_text(name, end) for end in bounds)
    if to_microseconds(low, None) >= to_microseconds(high, None):
        raise ValueError(f"{name} must be (low, high) with low < high, got {low} and {high}")
    return low, high


def _check_cells(column: Column) -> int:
    count = check_count(f"cells of {column.where}", column.cells)
    if count > _MOST_CELLS:
        raise ValueError(f"cells of {column.where} must be at most {_MOST_CELLS}, got {count}")
    return count


def stored_type(values: Any) -> str:
    """Return the type that a column's storage alone decides; "" if it does not."""
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(values.dtype):
        return "categorical"
    if types.is_numeric_dtype(values.dtype):
        return "numeric"
    if types.is_datetime64_any_dtype(values.dtype):
        return "date"
    texts = types.is_string_dtype(values.dtype) or types.is_object_dtype(values.dtype)
    return "categorical" if texts or isinstance(values.dtype, pd.CategoricalDtype) else ""
