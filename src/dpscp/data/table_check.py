"""Check a table against a schema before a fit.

The curator sees problems with their numbers of records, and hints. The result is computed from the records without
noise. It is for the curator of the records, is in no release, and must not be published.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.frames import SchemaError, list_columns, select_columns
from dpscp.data.persons import MISSING_IDS, read_person_ids
from dpscp.data.schema import Schema
from dpscp.data.sources.files import TableError
from dpscp.data.sources.tables import Table, count_rows, is_table, replace_patterns

NOT_PRIVATE = "NOT private: computed from the records without noise. For the curator only; do not publish"
# The largest number of records in which repeated values are counted.
_MOST_RECORDS = 2**20
# The smallest number of ids of a column of persons, and the range of their average number of repeats.
_FEWEST_IDS, _FEWEST_REPEATS, _MOST_REPEATS = 20, 1.05, 20
_CLIPPED_SHARE = 0.5
# A declared size may be rounded. A larger difference gets a hint that does not state the true size.
_SIZE_TOLERANCE = 0.05


@dataclass(frozen=True)
class TableProblem:
    """Describe one reason why a fit would refuse a table.

    Attributes
    ----------
    message : str
        What is wrong, where, and what to do. It contains no value.
    n_records : int, optional
        The number of records with this problem; None if the problem is not about single records.
    place : str
        The number of the first of these records, counted from 1, or the line or the row group, and the file; "" if
        there is none.
    """

    message: str
    n_records: int | None = None
    place: str = ""

    def __str__(self) -> str:
        if self.n_records is None:
            return f"{self.message} [first found in {self.place}]" if self.place else self.message
        return f"{self.message} [{self.n_records:,} record{'s' * (self.n_records > 1)}, the first is {self.place}]"


@dataclass(frozen=True)
class TableCheck:
    """Hints, and problems that a fit would refuse; NOT private: do not publish them.

    Attributes
    ----------
    n_records : int
    problems : tuple of TableProblem
    hints : tuple of str
        Possible mistakes: a column that looks like person ids, bounds that clip most of a column, columns that the
        schema does not mention.
    """

    n_records: int
    problems: tuple[TableProblem, ...]
    hints: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{NOT_PRIVATE}.", f"records:  {self.n_records:,}", f"problems: {len(self.problems) or 'none'}"]
        lines += [f"  - {problem}" for problem in self.problems]
        return "\n".join(lines + [f"hint:     {hint}" for hint in self.hints])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        problems = [vars(problem) for problem in self.problems]
        return {"not_private": NOT_PRIVATE, "n_records": self.n_records, "problems": problems, "hints": [*self.hints]}


def check_table(table: Any, schema: Schema) -> TableCheck:
    """List what a fit would refuse in a table, and hints; spend no budget.

    The result is NOT private. It is for the curator of the records.

    Parameters
    ----------
    table : frame, path, URL, list of these, or data set that ``TableSource`` reads
        A ``RecordBatchReader`` is used up: make a new one for the fit.
    schema : Schema
        It also declares how CSV files are written.

    Returns
    -------
    TableCheck
    """
    checking = _Checking(replace_patterns(schema, table).require_complete())
    if is_table(table):
        checking.read_parts(Table(table, schema.csv))
    else:
        names = list_columns(table)
        checking.compare_names(names, "the table")
        checking.look(select_columns(table, names), "the table")
    return checking.result()


class _Checking:
    """Collect problems and hints, part by part."""

    def __init__(self, schema: Schema) -> None:
        self.schema, self.n_records = schema, 0
        self._used = (*schema.target_names, schema.person, *(column.name for column in schema.feature_columns))
        self._problems: dict[str, TableProblem] = {}
        self._undeclared: dict[str, None] = {}
        self._keys: dict[str, list[NDArray[np.uint64]]] = {}
        # for each column with bounds: the number of values, and the number outside
        self._clipped: dict[str, NDArray[np.int64]] = {}

    def read_parts(self, table: Table) -> None:
        """Check all files; a file that cannot be read becomes a problem."""
        for part in table.parts:
            first = 0
            try:
                self.compare_names(part.names, part.said)
                for _, batch in part.batches(part.names, count_rows(part.names)):
                    frame = table.as_frame(batch, self.schema)
                    others = {name: batch[name].to_pandas() for name in batch.schema.names if name not in frame}
                    self.look({**frame, **others}, part.said, first)
                    first += len(batch)
            except TableError as error:
                self._note(str(error), part.find_damage())
            except SchemaError as error:
                self._note(str(error), part.said)

    def compare_names(self, names: Sequence[str], where: str) -> None:
        """Compare the columns of a table or file with those of the schema."""
        missing = [repr(name) for name in self._used if name is not None and name not in names]
        if missing:
            self._note(f"{where} lacks column {', '.join(missing)}, which the schema declares; add it")
        known = (*self._used, *(column.name for column in self.schema.columns))
        self._undeclared |= dict.fromkeys(name for name in names if name not in known)

    def look(self, values: Mapping[str, Any], where: str, first: int = 0) -> None:
        """Check the columns of some records; ``first`` is the number of the first one."""
        for column in self.schema.feature_columns:
            if column.name in values:
                with self._noting(where):
                    self._note_records(column.read(values[column.name])[1], where, first)
                    is_outside = column.kind.outside(column, values[column.name])
                    count = np.array([np.isfinite(is_outside).sum(), np.nansum(is_outside)], dtype=np.int64)
                    self._clipped[column.name] = self._clipped.get(column.name, 0) + count
        if set(self.schema.target_names) <= set(values):
            with self._noting(where):
                columns = {name: values[name] for name in self.schema.target_names}
                self._note_records(self.schema.read_targets(columns)[1], where, first)
        person = self.schema.person
        if person is not None and person in values:
            with self._noting(where):
                is_missing = np.asarray(values[person].isna(), dtype=bool)
                self._note_records({MISSING_IDS: is_missing}, where, first)
                self._keys.setdefault(person, []).append(read_person_ids(values[person][~is_missing]).hashes())
        elif person is None and self.n_records < _MOST_RECORDS:
            for name in values:
                if name not in self._used:
                    self._keys.setdefault(name, []).append(_hash_values(values[name]))
        self.n_records += len(next(iter(values.values()), ()))

    @contextmanager
    def _noting(self, where: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError) as error:  # a message of this package contains no value
            self._note(str(error), where)

    def _note(self, message: str, place: str = "") -> None:
        self._problems.setdefault(message, TableProblem(message, place=place))

    def _note_records(self, wrong: Mapping[str, NDArray[np.bool_]], where: str, first: int) -> None:
        for message, is_wrong in wrong.items():
            if count := int(is_wrong.sum()):
                place = f"record {first + int(is_wrong.argmax()) + 1:,} of {where}"
                known = self._problems.get(message, TableProblem(message, 0, place))
                self._problems[message] = replace(known, n_records=(known.n_records or 0) + count)

    def result(self) -> TableCheck:
        """Return all problems and hints."""
        hints = [
            f"the bounds of column {name!r} clip {outside / count:.0%} of its values; are they in the same unit?"
            for name, (count, outside) in self._clipped.items()
            if outside > _CLIPPED_SHARE * count
        ]
        n_ids = {name: len(np.unique(np.concatenate(parts))) for name, parts in self._keys.items() if parts}
        for name, count in n_ids.items():
            n_keys = sum(map(len, self._keys[name]))
            if (
                name != self.schema.person
                and count >= _FEWEST_IDS
                and _FEWEST_REPEATS <= n_keys / count <= _MOST_REPEATS
            ):
                hints.append(
                    f"column {name!r} is not used, and its values repeat like ids: {n_keys:,} records, {count:,} "
                    f"values. If they are persons, set person = {name!r} and rows_per_person in the schema"
                )
        name = "n_records" if self.schema.person is None else "n_persons"
        declared, size = getattr(self.schema, name), n_ids.get(self.schema.person or "", self.n_records)
        if declared is not None and abs(size - declared) > _SIZE_TOLERANCE * declared:
            hints.append(
                f"the table is more than {_SIZE_TOLERANCE:.0%} {'larger' if size > declared else 'smaller'} than "
                f"{name} = {declared} in the schema. The certificate is valid for a table of the declared size: set "
                f"{name} to the publicly known number"
            )
        if self._undeclared:
            names = ", ".join(map(repr, self._undeclared))
            hints.append(f'the schema does not mention column {names}; declare it, or set type = "ignore"')
        return TableCheck(self.n_records, tuple(self._problems.values()), tuple(hints))


def _hash_values(values: Any) -> NDArray[np.uint64]:
    """Return a hash of each value that is not missing."""
    from pandas.util import hash_array

    return np.asarray(hash_array(values.dropna().astype(str).to_numpy(dtype=object), categorize=False))
