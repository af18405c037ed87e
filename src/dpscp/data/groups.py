"""Public groups of records, one or several for each record.

A group is a fixed function of the record. Each group has its own threshold, and a row gets the largest threshold of its
groups, so the promise of each of them holds. One record costs what the groups that it may be in cost together.

Theory: Results F and G, in each group
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp._base.object_state import copy_if_possible, refuse_memory
from dpscp.data.schema import Schema
from dpscp.data.validation import check_row_by_row, group_index, places_of_values, suppress_float_warnings

Index = NDArray[np.int64]

_NO_VALUES = "group_values is required with groups; list the public values that groups can return"


class _Grouping(Protocol):
    """One way to group rows."""

    @property
    def label(self) -> str:
        """Its public name."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Its public groups."""

    @property
    def per_record(self) -> int:
        """How many of its groups one row may be in."""

    def places(self, X: Any, n: int, *, thorough: bool) -> Index:
        """Return the places of each row's groups in ``values``, (n,) or (n, per_record); -1 for none."""


@dataclass(frozen=True)
class _FunctionGrouping:
    """A function of rows that returns one of its values for each row."""

    function: Callable[[Any], Any]
    values: tuple[Any, ...]
    label: str = ""
    per_record: int = 1

    def places(self, X: Any, n: int, *, thorough: bool) -> Index:
        return group_index(self.function, X, self.values, n, thorough=thorough)


@dataclass(frozen=True)
class _ColumnGrouping:
    """The categories of a column that a schema declares."""

    schema: Schema
    label: str
    per_record: int = 1

    @property
    def values(self) -> tuple[Any, ...]:
        return self.schema.categories_of(self.label)

    def places(self, X: Any, n: int, *, thorough: bool) -> Index:  # noqa: ARG002 (the interface's arguments)
        return self.schema.groups(X, self.label)[0]


@dataclass(frozen=True)
class _MatrixGrouping:
    """A function of rows that returns a boolean for each row and group."""

    function: Callable[[Any], Any]
    values: tuple[Any, ...]
    per_record: int
    label: str = ""

    def places(self, X: Any, n: int, *, thorough: bool) -> Index:
        def places(part: Any, size: int) -> Index:
            return places_of_matrix(copy_if_possible(self.function)(part), len(self.values), self.per_record, size)

        with suppress_float_warnings(), refuse_memory("groups", self.function) if thorough else nullcontext():
            found = places(X, n)
            check_row_by_row("groups", places, X, found, thorough=thorough)
        return found


@dataclass(frozen=True)
class Groups:
    """The public groups of rows, in the order of their thresholds.

    Attributes
    ----------
    groupings : functions, columns or a matrix, each with its public values.
    """

    groupings: tuple[_Grouping, ...]

    @classmethod
    def declared(
        cls, groups: Any, group_values: Any, groups_per_record: Any = None, schema: Schema | None = None
    ) -> "Groups | None":
        """Return the groups that arguments declare, or raise; None for arguments of another kind.

        Parameters
        ----------
        groups : function of rows, column of ``schema``, or a list of them
        group_values : list, or with a list of ``groups`` one list for each function (None for a column)
        groups_per_record : int, optional
            ``groups`` is a function that returns a boolean matrix, one column for each of ``group_values``. A row in
            more groups than so many is in none.
        schema : Schema, optional
        """
        several = isinstance(groups, list | tuple)
        if groups_per_record is not None:
            if not callable(groups):
                raise ValueError(
                    "groups_per_record is for a function groups that returns a boolean matrix; remove it: of several "
                    "functions or columns each puts a record into one group at most"
                )
            values = _check_values(group_values)
            return cls((_MatrixGrouping(groups, values, check_per_record(groups_per_record, len(values))),))
        if not several:
            grouping = _one_grouping(groups, group_values, schema, "")
            return None if grouping is None else cls((grouping,))
        if not groups:
            raise ValueError("groups must be a list of at least one function or column")
        lists = _one_list_each(groups, group_values)
        found = [
            _one_grouping(item, values, schema, _name_of(item, place))
            for place, (item, values) in enumerate(zip(groups, lists, strict=True))
        ]
        if any(grouping is None for grouping in found):
            raise ValueError("groups must be a list of functions of X or, with a schema, of columns with categories")
        return cls(tuple(grouping for grouping in found if grouping is not None))

    @property
    def names(self) -> tuple[Any, ...]:
        """The public name of each group."""
        if len(self.groupings) == 1:
            return self.groupings[0].values
        return name_groups([g.label for g in self.groupings], [g.values for g in self.groupings])

    @property
    def per_record(self) -> int:
        """How many groups one record may be in."""
        return sum(grouping.per_record for grouping in self.groupings)

    def places(self, X: Any, n: int, *, thorough: bool) -> Index:
        """Return the places of each row's groups in ``names``: (n,), or (n, per_record) for several; -1 for none."""
        if n == 0:  # a caller's function need not know tables without a row
            return np.empty(0 if self.per_record == 1 else (0, self.per_record), dtype=np.int64)
        found = [grouping.places(X, n, thorough=thorough) for grouping in self.groupings]
        return join_places(found, [len(grouping.values) for grouping in self.groupings])


def _one_grouping(groups: Any, values: Any, schema: Schema | None, label: str) -> _Grouping | None:
    """Return a function with its values, or a column of the schema; None for anything else."""
    if callable(groups):
        return _FunctionGrouping(groups, _check_values(values), label)
    if schema is None or not isinstance(groups, str):
        return None
    if values is not None:
        raise ValueError("group_values are the categories that the schema declares; remove group_values")
    return _ColumnGrouping(schema, groups)


def _check_values(values: Any) -> tuple[Any, ...]:
    if values is None:
        raise ValueError(_NO_VALUES)
    found = tuple(values)
    if not found or any(value in found[:place] for place, value in enumerate(found)):
        raise ValueError("group_values must list at least one group, and each group once")
    return found


def check_per_record(per_record: object, n_groups: int) -> int:
    """Return the public maximum of groups of one record, or raise ValueError."""
    count = check_count("groups_per_record", per_record)
    if count > n_groups:
        raise ValueError(f"groups_per_record must be at most the number of groups, {n_groups}, got {count}")
    return count


def _one_list_each(groups: Sequence[Any], group_values: Any) -> list[Any]:
    """Return the values of each of several groupings."""
    if group_values is None:
        return [None] * len(groups)
    lists = list(group_values)
    if len(lists) != len(groups) or any(isinstance(v, str) or not (v is None or np.iterable(v)) for v in lists):
        raise ValueError(
            f"group_values must have one list of values for each of the {len(groups)} groups, such as "
            "group_values=[['f', 'm'], ['young', 'old']]"
        )
    return lists


def _name_of(item: Any, place: int) -> str:
    """Return the public name of a function: its own, or its place for one without a name."""
    name = getattr(item, "__name__", "")
    return name if name.isidentifier() else f"groups[{place}]"


def name_groups(labels: Sequence[str], values: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Return a name for each value of each grouping, such as ``"sex=f"``; names of groupings are made distinct."""
    distinct = labels if len(set(labels)) == len(labels) else [f"groups[{k}]" for k in range(len(labels))]
    return tuple(f"{label}={value}" for label, listed in zip(distinct, values, strict=True) for value in listed)


def join_places(found: Sequence[Index], sizes: Sequence[int]) -> Index:
    """Return the places of several groupings as columns, each after the groups of those before it."""
    if len(found) == 1:
        return found[0]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    moved = [np.where(places >= 0, places + start, -1) for places, start in zip(found, starts, strict=True)]
    return np.column_stack(moved)


def places_of_matrix(matrix: Any, n_groups: int, per_record: int, n: int) -> Index:
    """Return the places of the True columns of each row, (n, per_record), filled up with -1.

    A row with more than ``per_record`` of them is in no group: it is counted in none and gets full sets, so the promise
    of each group holds with it. The rule looks at the row alone.
    """
    member = np.asarray(matrix)
    if member.shape != (n, n_groups) or member.dtype != np.bool_:
        raise ValueError(f"groups must give a boolean for each record and each of the {n_groups} group_values")
    first = np.argsort(~member, axis=1, kind="stable")[:, :per_record]
    is_inside = np.take_along_axis(member, first, axis=1) & (member.sum(axis=1, keepdims=True) <= per_record)
    return np.where(is_inside, first, -1).astype(np.int64)


def group_facts(names: Sequence[Any], per_record: int) -> dict[str, Any]:
    """Return what groups declare public, as JSON values."""
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
    """Return the largest threshold of each row's groups, (n, n_levels); infinite for a row in no group.

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

    @classmethod
    def declared(cls, groups: Any, group_values: Any, groups_per_record: Any, n: int) -> "RecordGroups | None":
        """Return the groups that arrays declare, or raise; None without groups.

        Parameters
        ----------
        groups : (n,) values; a list of such arrays; or with ``groups_per_record`` an (n, n_groups) boolean array
        group_values : list of the public groups; for a list of arrays, a list of lists
        groups_per_record : int, optional
        n : int
            The number of records.
        """
        if groups is None and group_values is None and groups_per_record is None:
            return None
        if groups is None or group_values is None:
            raise ValueError(
                "groups and group_values go together: the group of each record, and the public list of groups"
            )
        if groups_per_record is not None:
            values = _check_values(group_values)
            per_record = check_per_record(groups_per_record, len(values))
            return cls(values, places_of_matrix(groups, len(values), per_record, n), per_record)
        if not isinstance(groups, list | tuple) or not groups or np.ndim(groups[0]) == 0:
            values = _check_values(group_values)
            return cls(values, places_of_values(groups, values, n), 1)
        lists = [_check_values(values) for values in _one_list_each(groups, group_values)]
        found = [places_of_values(array, values, n) for array, values in zip(groups, lists, strict=True)]
        names = lists[0] if len(lists) == 1 else name_groups([""] * len(lists), lists)
        return cls(names, join_places(found, [len(values) for values in lists]), len(lists))

    def take(self, rows: Index) -> "RecordGroups":
        """Return the groups of some records."""
        return RecordGroups(self.names, self.places[rows], self.per_record)

    @property
    def facts(self) -> dict[str, Any]:
        """What these groups declare public, as JSON values."""
        return group_facts(self.names, self.per_record)

    @property
    def members(self) -> list[NDArray[np.bool_]]:
        """Whether each record is in each group."""
        return [is_member(self.places, group) for group in range(len(self.names))]
