"""The public declaration of one column, and the features that it defines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_range, real_number
from dpscp._base.suggestions import suggest
from dpscp.data.feature_bounds import check_private
from dpscp.data.frames import SchemaError, describe_non_number, index_labels, label_text, parse_numbers, refuse_dates
from dpscp.data.scales import LINEAR, check_scale

TYPES = ("numeric", "categorical", "ignore")
Result = TypeVar("Result")
_COLUMN_KEYS = ("type", "bounds", "scale", "missing", "categories", "unknown")


@dataclass(frozen=True)
class Column:
    """Declare what is public about one column; raise ``SchemaError`` if it is wrong.

    Attributes
    ----------
    name : str
    type : ``"numeric"``, ``"categorical"``, ``"ignore"``, or ``""`` if not declared yet
    bounds : (low, high) or ``"private"``, optional
        The public bounds of a numeric column. Without them, or with ``"private"``, the fit finds bounds with noise, at
        a cost.
    scale : ``"linear"``, ``"log"`` or ``"log1p"``
        The scale on which the model sees a numeric column. Bounds and features are in the units of the column.
    missing : ``"refuse"``, ``"indicator"`` or a public number
        How a numeric column treats missing values.
    categories : tuple of str, optional
        The public categories of a categorical column.
    unknown : ``"refuse"`` or ``"other"``
        How a categorical column treats other values.
    """

    name: str
    type: str = ""
    bounds: tuple[float, float] | str | None = None
    missing: str | float = "refuse"
    categories: tuple[str, ...] | None = None
    unknown: str = "refuse"
    scale: str = LINEAR

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        if self.type:
            check_declaration(lambda: check_choice(f"type of {where}", self.type, TYPES))
        if isinstance(self.missing, str):
            check_declaration(lambda: check_choice(f"missing of {where}", self.missing, ("refuse", "indicator")))
        else:
            missing = check_declaration(lambda: real_number(f"missing of {where}", self.missing))
            object.__setattr__(self, "missing", missing)
        check_declaration(lambda: check_choice(f"unknown of {where}", self.unknown, ("refuse", "other")))
        object.__setattr__(self, "bounds", read_bounds(self.bounds, where))
        public = None if isinstance(self.bounds, str) else self.bounds
        check_declaration(lambda: check_scale(f"scale of {where}", self.scale, public))
        if self.scale != LINEAR and self.type not in ("", "numeric"):
            raise SchemaError(f"scale of {where} is for numbers, but its type is {self.type!r}; remove scale")
        object.__setattr__(self, "categories", read_labels(self.categories, f"categories of {where}", 1))

    @property
    def lacks(self) -> str | None:
        """The missing declaration: "type" or "categories"; None if complete."""
        if not self.type:
            return "type"
        return "categories" if self.type == "categorical" and self.categories is None else None

    @property
    def _shown(self) -> tuple[str, ...]:
        """The categories that have their own feature; of two, only the second."""
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
    def has_private_bounds(self) -> bool:
        """Whether the fit finds the bounds of this column."""
        return self.type == "numeric" and not isinstance(self.bounds, tuple)

    @property
    def _ends(self) -> tuple[float, float]:
        """The range that values are clipped to; all numbers if the fit finds the bounds."""
        largest = float(np.finfo(np.float64).max)
        return self.bounds if isinstance(self.bounds, tuple) else (-largest, largest)

    @property
    def _middle(self) -> float:
        """The number that stands for a missing value: the middle of the bounds, or one that the scale has."""
        if self.has_private_bounds:
            return 1.0 if self.scale == "log" else 0.0
        low, high = self._ends
        return low / 2 + high / 2

    @property
    def feature_bounds(self) -> tuple[tuple[float, float], ...]:
        """The public bounds of those features; -1 to 1 where the fit finds them."""
        if self.type != "numeric":
            return ((0.0, 1.0),) * len(self.features)
        own = (-1.0, 1.0) if self.has_private_bounds else self._ends
        return (own, (0.0, 1.0))[: len(self.features)]

    def encode(self, values: Any) -> NDArray[np.float64]:
        """Encode the values (a pandas Series) as features, (n, len(features))."""
        features, wrong = self.read(values, self.unknown)
        found = [said for said, rows in wrong.items() if rows.any()]
        if found:
            raise SchemaError(". ".join(found))
        return features

    def read(self, values: Any, unknown: str) -> tuple[NDArray[np.float64], dict[str, NDArray[np.bool_]]]:
        """Encode the values and list the rows with errors.

        Parameters
        ----------
        values : pandas Series of length n
        unknown : ``"refuse"`` or ``"other"``
            Whether an unknown category is an error or sets no indicator. Where one feature stands for two categories,
            an unknown one gets 0.5.

        Returns
        -------
        features : array of shape (n, len(features))
            Not meaningful in rows with errors.
        errors : dict
            {message: bool array of shape (n,)}; no message contains a value.
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
                f"column {self.name!r} has a missing value or one that is not in its declared categories. "
                'Add it to categories, or set unknown = "other" in the schema'
            )
            return features, {said: odd & (unknown == "refuse")}
        numbers, odd = parse_numbers(values)
        absent = np.isnan(numbers) & ~odd
        low, high = self._ends
        numbers[odd | absent] = self._middle
        if not isinstance(self.missing, str):
            numbers[absent] = self.missing
        # clip here too, because an infinite value is outside the bounds as well
        numbers = np.clip(numbers, low, high)
        missing = (
            f'column {self.name!r} has missing values. Fill them in, or set missing = "indicator" or a public '
            "number in the schema"
        )
        wrong = {describe_non_number(self.name): odd, missing: absent & (self.missing == "refuse")}
        return np.column_stack([numbers, absent]) if self.missing == "indicator" else numbers[:, None], wrong

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values of everything that is declared."""
        found: dict[str, Any] = {"type": self.type}
        if self.bounds is not None:
            found["bounds"] = self.bounds if isinstance(self.bounds, str) else list(self.bounds)
        if self.categories is not None:
            found["categories"] = list(self.categories)
        if self.scale != LINEAR:
            found["scale"] = self.scale
        if self.missing != "refuse":
            found["missing"] = self.missing
        if self.unknown != "refuse":
            found["unknown"] = self.unknown
        return found

    @classmethod
    def from_dict(cls, name: str, data: Any) -> "Column":
        """Read the column of a schema file; raise ``SchemaError`` if it is wrong."""
        where = f"column {name!r}"
        if not isinstance(data, Mapping):
            raise SchemaError(f'{where} must be a table with a type, for example type = "numeric"')
        refuse_unknown_keys(data, _COLUMN_KEYS, where)
        return cls(name, **{**data, "type": data.get("type") or ""})


def check_declaration(check: Any) -> Any:
    """Run a check and turn its error into a ``SchemaError``."""
    try:
        return check()
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(str(error)) from None


def collect_errors(readings: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run all readings and return their results, or raise all their errors as one ``SchemaError``."""
    results, errors = [], []
    for read in readings:
        try:
            results.append(read())
        except SchemaError as error:
            errors.append(str(error))
    if errors:
        raise SchemaError(". ".join(dict.fromkeys(errors)))
    return results


def refuse_unknown_keys(data: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that the schema format does not have."""
    unknown = [key for key in data if key not in known]
    if unknown:
        hint = suggest(str(unknown[0]), known)
        raise SchemaError(f"{where} has an unknown key {str(unknown[0])!r}; use one of {', '.join(known)}{hint}")


def read_bounds(value: Any, where: str) -> tuple[float, float] | str | None:
    """Return (low, high) or "private"; None if nothing is declared."""
    if value is None or value == []:
        return None
    if isinstance(value, str):
        return str(check_declaration(lambda: check_private(f"bounds of {where}", value)))
    found: tuple[float, float] = check_declaration(lambda: check_range(f"bounds of {where}", value))
    return found


def read_labels(value: Any, where: str, least: int) -> tuple[str, ...] | None:
    """Read distinct labels as text, written as a table writes them."""
    if value is None or value == []:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SchemaError(f"{where} must be a list of labels")
    if any(isinstance(v, Mapping | list | tuple) or v is None for v in value):
        raise SchemaError(f"{where} must be a list of strings or numbers")
    labels = tuple(label_text(v) for v in value)
    if len(set(labels)) != len(labels) or len(labels) < least:
        raise SchemaError(f"{where} must have at least {least} labels, each once")
    return labels


def describe_column(name: str, values: Any, *, is_public: bool) -> Column:
    """Return the declaration of a column: its type, and public facts only where its values are public."""
    kind = _type_of_column(values)
    if not is_public or not kind:
        return Column(name, kind)
    if kind == "numeric":
        return Column(name, kind, bounds=public_range(name, values))
    return Column(name, kind, categories=public_labels(values))


def _type_of_column(values: Any) -> str:
    """Return the type by the kind of storage alone; "" for dates and other kinds."""
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(values.dtype):
        return "categorical"
    if types.is_numeric_dtype(values.dtype):
        return "numeric"
    texts = types.is_string_dtype(values.dtype) or types.is_object_dtype(values.dtype)
    return "categorical" if texts or isinstance(values.dtype, pd.CategoricalDtype) else ""


def public_range(name: str, values: Any) -> tuple[float, float]:
    """Return the smallest and largest value of a column whose values are public."""
    numbers, _ = parse_numbers(values)
    found = numbers[np.isfinite(numbers)]
    if not len(found) or found.min() == found.max():
        raise SchemaError(f"column {name!r} has no two different numbers; declare its bounds")
    return float(found.min()), float(found.max())


def public_labels(values: Any) -> tuple[str, ...]:
    """Return the sorted labels of a column whose values are public."""
    return tuple(sorted({label_text(value) for value in values.dropna().unique().tolist()}))
