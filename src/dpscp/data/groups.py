"""Public groups of records, one or several for each record.

A group is a fixed function of the record. Each group has its own threshold. A row gets the largest threshold of its
groups, so the promise of each of them holds. The cost for one record is that of all groups that it may be in.

Theory: Results F and G, in each group
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.callers import call_on_rows
from dpscp._base.checks import check_count
from dpscp.data.schema import Schema
from dpscp.data.validation import dense_rows

Index = NDArray[np.int64]

LABEL = "label"
# The groups of a function or an array without declared values.
_BOOLEANS = (False, True)


@dataclass(frozen=True)
class Groups:
    """Declare public groups, each with its own threshold and promise.

    Parameters
    ----------
    functions : function, column, array, or a list of them
        A function of X returns the group of each row, from that row alone. A column is a categorical one of the schema.
        ``calibrate`` and ``control_risk`` take arrays with the group of each record. A list gives overlapping groups: a
        record is in one group of each item.
    values : list, optional
        The public groups that a function can return or an array can hold; for a list of functions, a list for each
        (None for a column). Without it the groups are False and True, and functions must return booleans.
    per_record : int, optional
        The function returns a boolean matrix with a column for each of ``values``, and this is the public maximum of
        groups of one record. They are charged together. A row in more groups than that is treated as in none.

    Examples
    --------
    >>> old = Groups(lambda X: X[:, 0] > 65)
    >>> sex_and_age = Groups([lambda X: X[:, 1], lambda X: X[:, 0] > 65], values=[["f", "m"], [False, True]])

    Theory: Results F and G, in each group
    """

    functions: Any
    _: KW_ONLY
    values: Sequence[Any] | None = None
    per_record: int | None = None

    def __post_init__(self) -> None:
        several = isinstance(self.functions, list | tuple)
        items = tuple(self.functions) if several else (self.functions,)
        if not items:
            raise ValueError("groups must be a list of at least one function, column or array")
        wrong = next((item for item in items if not _is_grouping(item)), None)
        if wrong is not None:
            raise TypeError(
                "groups must be a function of X, a column of the schema, an array, a list of these, or dp.Groups, got "
                f"{type(wrong).__name__}"
            )
        if several:
            object.__setattr__(self, "functions", items)
        if self.per_record is not None:
            if several or isinstance(self.functions, str):
                raise ValueError(
                    "per_record needs one function or array of booleans, with a column for each group. Remove it: "
                    "each of several functions or columns puts a record into at most one group"
                )
            if self.values is None:
                raise ValueError("per_record needs values, the public list of groups")
            object.__setattr__(self, "values", _check_values(self.values))
            count, n_groups = check_count("per_record", self.per_record), len(self.values)
            if count > n_groups:
                raise ValueError(f"per_record must be at most the number of groups, {n_groups}, got {count}")
            object.__setattr__(self, "per_record", count)
        elif self.values is not None:
            lists = tuple(self._check_list(*pair) for pair in self.pairs)
            object.__setattr__(self, "values", lists if several else lists[0])

    def _split_values(self) -> list[Any]:
        """Return the declared values of each item."""
        if self.values is None or not isinstance(self.functions, tuple):
            return [self.values] * len(self._items)
        lists, n = list(self.values), len(self.functions)
        if len(lists) != n or any(isinstance(v, str) or not (v is None or np.iterable(v)) for v in lists):
            raise ValueError(
                f"values must have one list for each of the {n} groups, such as values=[['f', 'm'], ['young', 'old']]"
            )
        return lists

    @staticmethod
    def _check_list(item: Any, values: Any) -> tuple[Any, ...] | None:
        if isinstance(item, str) and values is not None:
            raise ValueError(f"the groups of column {item!r} are the categories of the schema; remove its values")
        return None if values is None else _check_values(values)

    @property
    def _items(self) -> tuple[Any, ...]:
        return self.functions if isinstance(self.functions, tuple) else (self.functions,)

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Each item with its declared values."""
        return list(zip(self._items, self._split_values(), strict=True))

    @property
    def calls_functions(self) -> bool:
        """Whether the groups come from functions of the caller."""
        return any(map(callable, self._items))

    @property
    def count(self) -> int:
        """The number of groups.

        Raises ``ValueError`` for a column, whose categories only a schema declares.
        """
        if any(isinstance(item, str) for item in self._items):
            raise ValueError("a plan needs the number of groups, not columns: pass a number, for example groups=9")
        return sum(len(_BOOLEANS if values is None else values) for values in self._split_values())

    @property
    def most_per_record(self) -> int:
        """How many groups one record may be in."""
        return self.per_record or len(self._items)

    def of_rows(self, schema: Schema | None) -> "RowGroups":
        """Return the groups of rows of X.

        Raises ``ValueError`` for arrays, and for columns without a schema.
        """
        for item in self._items:
            if isinstance(item, str) and schema is None:
                raise ValueError(f"groups={item!r} is a column, which needs a schema; pass schema=dp.Schema...")
            if not isinstance(item, str) and not callable(item):
                raise ValueError("groups must be a function of X or, with a schema, a column; arrays are for calibrate")
            if isinstance(item, str) and schema is not None:
                schema.category_column(item)
        return RowGroups(self, schema)

    def of_records(self, n: int) -> "RecordGroups":
        """Return the groups of n records in memory, whose groups are arrays."""
        if any(callable(item) or isinstance(item, str) for item in self._items):
            raise ValueError("groups must be an array with the group of each record, or a list of such arrays")
        found = [_read_places(values, self.per_record, item, n) for item, values in self.pairs]
        lists = [_BOOLEANS if values is None else values for values in self._split_values()]
        names = lists[0] if len(lists) == 1 else name_groups([""] * len(lists), lists)
        return RecordGroups(names, join_places(found, list(map(len, lists))), self.most_per_record)


def read_groups(groups: Any) -> Groups | None:
    """Return the groups that an argument declares; None for None."""
    return groups if groups is None or isinstance(groups, Groups) else Groups(groups)


def _is_grouping(item: Any) -> bool:
    return callable(item) or isinstance(item, str) or np.ndim(item) > 0


@dataclass(frozen=True)
class RowGroups:
    """The public groups of rows, in the order of their thresholds."""

    declared: Groups
    schema: Schema | None

    @property
    def _lists(self) -> list[tuple[Any, ...]]:
        """The public groups of each function or column."""
        return [
            self.schema.category_column(item).categories
            if self.schema is not None and isinstance(item, str)
            else (_BOOLEANS if values is None else values)
            for item, values in self.declared.pairs
        ]

    @property
    def names(self) -> tuple[Any, ...]:
        """The public name of each group."""
        lists = self._lists
        labels = [_name_of(item, k) for k, (item, _) in enumerate(self.declared.pairs)]
        return lists[0] if len(lists) == 1 else name_groups(labels, lists)

    @property
    def per_record(self) -> int:
        """How many groups one record may be in."""
        return self.declared.most_per_record

    def places(self, X: Any, n: int) -> Index:
        """Return the indices of each row's groups in ``names``.

        The shape is (n,), or (n, per_record) for several; -1 means none.
        """
        X, found, per_record = dense_rows(X), [], self.declared.per_record
        for item, values in self.declared.pairs:
            if self.schema is not None and isinstance(item, str):
                found.append(self.schema.groups(X, item))
            else:
                read = partial(_read_places, values, per_record)
                empty = np.empty((0,) if per_record is None else (0, per_record), dtype=np.int64)
                found.append(call_on_rows("groups", item, (X,), n, read=read, empty=empty))
        return join_places(found, list(map(len, self._lists)))


def _read_places(values: tuple[Any, ...] | None, per_record: int | None, groups: Any, n: int) -> Index:
    """Return the indices of the groups of a function's result or array; -1: none."""
    if per_record is not None and values is not None:
        return places_of_matrix(groups, len(values), per_record, n)
    if values is None and np.asarray(groups).dtype != np.bool_:
        raise ValueError(
            "groups must be booleans if no values are declared; declare the public groups: "
            "dp.Groups(function, values=[...])"
        )
    return places_of_values(groups, _BOOLEANS if values is None else values, n)


def _check_values(values: Any) -> tuple[Any, ...]:
    found = tuple(values)
    if not found or any(value in found[:place] for place, value in enumerate(found)):
        raise ValueError("values must list at least one group, and each group once")
    return found


def _name_of(item: Any, place: int) -> str:
    """Return the public name of a column or function.

    A function without a name gets its place.
    """
    if isinstance(item, str):
        return item
    name = getattr(item, "__name__", "")
    return name if name.isidentifier() else f"groups[{place}]"


def places_of_values(groups: Any, values: Sequence[Any], n: int) -> Index:
    """Return the place of each record's group in ``values``, (n,); -1 for another one."""
    given = np.asarray(groups)
    if given.shape != (n,):
        raise ValueError("groups must have one value for each record")
    places = np.full(n, -1, dtype=np.int64)
    for place, value in enumerate(values):
        places[given == value] = place
    return places


def name_groups(labels: Sequence[str], values: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return a name for each value of each grouping, such as ``"sex=f"``.

    Names of groupings are made distinct.
    """
    distinct = labels if len(set(labels)) == len(labels) else [f"groups[{k}]" for k in range(len(labels))]
    return tuple(f"{label}={value}" for label, listed in zip(distinct, values, strict=True) for value in listed)


def join_places(found: Sequence[Index], sizes: Sequence[int]) -> Index:
    """Return the indices of several groupings as columns.

    Each grouping is numbered after those before it.
    """
    if len(found) == 1:
        return found[0]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    moved = [np.where(places >= 0, places + start, -1) for places, start in zip(found, starts, strict=True)]
    return np.column_stack(moved)


def places_of_matrix(matrix: Any, n_groups: int, per_record: int, n: int) -> Index:
    """Return the indices of each row's True columns, (n, per_record).

    Rows with fewer are filled up with -1. A row with more than ``per_record`` of them is in no group: it is counted in
    none and gets full sets, so the promise of each group still holds. The rule depends on the row alone.
    """
    member = np.asarray(matrix)
    if member.shape != (n, n_groups) or member.dtype != np.bool_:
        raise ValueError(f"groups must give a boolean for each record and each of the {n_groups} values")
    first = np.argsort(~member, axis=1, kind="stable")[:, :per_record]
    is_inside = np.take_along_axis(member, first, axis=1) & (member.sum(axis=1, keepdims=True) <= per_record)
    return np.where(is_inside, first, -1).astype(np.int64)


def group_facts(names: Sequence[Any], per_record: int) -> dict[str, Any]:
    """Return the public facts about groups, as JSON values."""
    facts: dict[str, Any] = {"group_values": [str(name) for name in names]}
    return facts if per_record == 1 else {**facts, "groups_per_record": per_record}


def is_member(places: Index, group: int) -> NDArray[np.bool_]:
    """Return whether each row is in one group."""
    found = places == group
    return found if found.ndim == 1 else np.asarray(found.any(axis=1))


def has_group(places: Index) -> NDArray[np.bool_]:
    """Return whether each row is in some group."""
    found = places >= 0
    return found if found.ndim == 1 else np.asarray(found.any(axis=1))


def largest_thresholds(places: Index, thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest threshold of each row's groups, (n, n_levels).

    It is infinite for a row in no group.

    Parameters
    ----------
    places : array of shape (n,) or (n, per_record)
    thresholds : array of shape (n_groups, n_levels)

    Theory: Results F and G, in each group
    """
    nowhere = np.full((1, thresholds.shape[1]), np.inf)
    if places.ndim == 1:
        return np.asarray(np.vstack([thresholds, nowhere])[places])
    largest = np.vstack([thresholds, -nowhere])[places].max(axis=1)
    return np.where(has_group(places)[:, None], largest, np.inf)


@dataclass(frozen=True)
class RecordGroups:
    """The groups of records in memory.

    Attributes
    ----------
    names : tuple
        The public groups.
    places : array of shape (n,) or (n, per_record)
        The places of each record's groups in ``names``; -1 for none.
    per_record : int
        How many groups one record may be in.
    """

    names: tuple[Any, ...]
    places: Index
    per_record: int

    def take(self, rows: Index) -> "RecordGroups":
        """Return the groups of some records."""
        return RecordGroups(self.names, self.places[rows], self.per_record)

    @property
    def members(self) -> list[NDArray[np.bool_]]:
        """Whether each record is in each group."""
        return [is_member(self.places, group) for group in range(len(self.names))]
