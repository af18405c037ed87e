"""Read person ids and group rows by person.

A person is the unit of privacy if a person may have several records. At most ``rows_per_person`` rows of a person are
kept, by a uniform private choice. Each kept row has the weight one over the number of kept rows, so a person's weights
add up to one. A weighted sum of bounded terms then has the same sensitivity to a whole person as a plain sum has to one
record. A table without ids is the special case of one row for each person.

The number of persons and the number of rows of each are private: they are used inside the fit only.

Equal ids are one person. If equal ids were read as different, one person would become several, each with a separate
privacy loss. If different ids were read as equal, several persons would share the noise that protects one. So ids are
text or integers, of one kind in a column. Other ids are refused: floating-point numbers (several integers may round to
one), missing ids (the person is unknown), dates (which have units and time zones), tuples and other objects (their
class defines equality).

No message contains an id.

Theory: Result H
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.privacy import Ledger
from dpscp.privacy.random_streams import KEPT_ROWS, PlacedDraws, stream_seed
from dpscp.privacy.units import RECORDS, Unit

# Texts for a missing id in tables, R, SQL and `astype(str)`.
_MISSING_TEXTS = frozenset(("", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?", "."))
_LARGEST = 2**63
_ALLOWED = "text or integers, as a list, an array, or a column of pandas, polars or Arrow"
_FLOAT_IDS = (
    "persons has floating-point numbers, which can merge different integer ids. Read the ids as integers or as text "
    "(pandas reads integers with missing values as dtype 'Int64')"
)
_OBJECT_IDS = (
    "persons must be text or integers, and not other objects (dates, booleans, tuples, bytes, decimal numbers, "
    "tensors, your own classes). Convert each id to text, for example f'{clinic}/{patient}'"
)
MISSING_IDS = (
    "persons has a missing id (None, NaN, NaT, null, empty text, or a mark such as 'NA'). Give each row the id of its "
    "person, or drop the rows of unknown persons"
)
_MIXED_IDS = "persons mixes text and integers, and '7' is not 7. Convert all ids to one kind"


_TEXT, _INTEGER = "text", "integers"


@dataclass(frozen=True)
class PersonIds:
    """Hold one key for each row; equal keys of one kind are one person.

    Attributes
    ----------
    kind : "text", "integers", or None without rows
    keys : array of shape (n,)
        Strings for text. Otherwise whole numbers: int64, or Python integers if one does not fit.
    """

    kind: str | None
    keys: NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Any) -> "PersonIds":
        return PersonIds(self.kind, self.keys[rows])  # an empty part also has a kind

    @staticmethod
    def joined(parts: Sequence["PersonIds"]) -> "PersonIds":
        """Join the ids of several parts of a table; refuse parts of two kinds."""
        kinds = {part.kind for part in parts} - {None}
        if len(kinds) > 1:
            raise ValueError(_MIXED_IDS)
        kind = next(iter(kinds), None)
        found = [part.keys for part in parts if len(part)]
        return PersonIds(kind, np.concatenate(found) if found else np.empty(0, dtype=np.int64))

    def numbers(self) -> NDArray[np.int64]:
        """Number each row's person, in the order in which persons first appear, (n,)."""
        known: dict[Any, int] = {}
        return np.fromiter((known.setdefault(key, len(known)) for key in self.keys.tolist()), np.int64, len(self))

    def hashes(self) -> NDArray[np.uint64]:
        """Hash each row's id, (n,); equal ids have equal hashes in every process."""
        from pandas.util import hash_array

        if self.kind == _TEXT:
            return np.asarray(hash_array(self.keys, categorize=False))
        # two's complement: the key 7 has the same hash in a column with keys that do not fit into int64
        low = [key % 2**64 for key in self.keys.tolist()] if self.keys.dtype == object else self.keys
        return np.asarray(hash_array(np.asarray(low).astype(np.uint64), categorize=False))


def read_person_ids(persons: Any) -> PersonIds:
    """Read one id for each row; refuse ids that may split or merge persons.

    Parameters
    ----------
    persons : list, NumPy array, column of pandas, polars or Arrow, or torch tensor of integers
        A category or dictionary is read as its values.

    Returns
    -------
    PersonIds
    """
    if isinstance(persons, PersonIds):
        return persons
    if isinstance(persons, list | tuple | range):
        found = _read_objects(persons)
    else:
        found = _read_array(persons if isinstance(persons, np.ndarray) else _to_numpy(persons))
    return found if len(found) else PersonIds(None, np.empty(0, dtype=np.int64))


def _to_numpy(persons: Any) -> NDArray[Any]:
    """Return a column of another library as an array.

    A missing id becomes None, NA or NaN.
    """
    if not hasattr(persons, "detach") and not hasattr(persons, "to_numpy"):
        raise TypeError(f"persons must have one id for each row of X: {_ALLOWED}, or a torch tensor of integers")
    # a category of pandas, for which True and 1 are equal
    categories = getattr(getattr(persons, "cat", persons), "categories", ())
    if len({_find_kind(one) for one in categories}) > 1:
        raise ValueError(_MIXED_IDS)
    with suppress(Exception):  # the message of another library may contain an id
        if hasattr(persons, "detach"):  # torch
            return np.asarray(persons.detach().cpu())
        is_arrow = hasattr(persons, "to_pylist")
        return np.asarray(persons.to_numpy(zero_copy_only=False) if is_arrow else persons.to_numpy())
    raise TypeError(_OBJECT_IDS)


def _read_objects(ids: Sequence[Any]) -> PersonIds:
    if any(map(_is_missing, ids)):
        raise ValueError(MISSING_IDS)
    kinds = {_find_kind(one) for one in ids}
    if len(kinds) > 1:
        raise ValueError(_MIXED_IDS)
    return _read_texts(ids) if kinds == {_TEXT} else PersonIds(_INTEGER, _pack_integers([int(one) for one in ids]))


def _find_kind(one: Any) -> str:
    """Return the kind of one id; refuse subclasses, which may compare differently."""
    if type(one) in (str, np.str_):
        return _TEXT
    if type(one) is int or (isinstance(one, np.integer) and not isinstance(one, np.timedelta64)):
        return _INTEGER
    if isinstance(one, float | complex | np.inexact):
        raise ValueError(_FLOAT_IDS)
    raise TypeError(_OBJECT_IDS)


def _is_missing(one: Any) -> bool:
    pandas = sys.modules.get("pandas")
    if one is None or (pandas is not None and one is pandas.NA):
        return True
    return isinstance(one, float | np.floating) and bool(np.isnan(one))


def _read_texts(ids: Sequence[Any]) -> PersonIds:
    texts = [str(one) for one in ids]
    if any(text.strip().lower() in _MISSING_TEXTS for text in set(texts)):
        raise ValueError(MISSING_IDS)
    characters = set("".join(texts))
    if "\0" in characters or any("\ud800" <= character <= "\udfff" for character in characters):
        raise ValueError(
            "persons has text with NUL characters or unpaired surrogates, which some tables cannot distinguish. Write "
            "the ids without them"
        )
    keys = np.empty(len(texts), dtype=object)
    keys[:] = texts
    return PersonIds(_TEXT, keys)


def _pack_integers(numbers: Sequence[int]) -> NDArray[Any]:
    """Pack integers as int64, or as Python integers if one is too large."""
    if all(-_LARGEST <= number < _LARGEST for number in numbers):
        return np.array(numbers, dtype=np.int64)
    keys = np.empty(len(numbers), dtype=object)
    keys[:] = numbers
    return keys


def _read_array(ids: NDArray[Any]) -> PersonIds:
    if ids.ndim != 1:
        raise TypeError("persons must have one id for each row of X: pass a list, a one-dimensional array or a column")
    if isinstance(ids, np.ma.MaskedArray):
        if np.ma.getmaskarray(ids).any():
            raise ValueError(MISSING_IDS)
        ids = ids.filled()
    kind = ids.dtype.kind
    if kind in "iu":
        large = kind == "u" and bool((ids >= _LARGEST).any())
        return PersonIds(_INTEGER, _pack_integers(ids.tolist()) if large else ids.astype(np.int64))
    if kind in "fc":
        raise ValueError(MISSING_IDS if np.isnan(ids).any() else _FLOAT_IDS)
    if kind in "UOT":
        return _read_objects(ids.tolist())
    raise TypeError(_OBJECT_IDS)


# ---- persons


def require_unit(ledger: Ledger, unit: Unit) -> Ledger:
    """Convert the ledger of training to ``unit``; refuse one that protects less.

    Theory: Result H
    """
    about = ledger.unit
    if ledger.entries and about.by_person != unit.by_person:
        wanted = "one person (persons=ids)" if unit.by_person else "one record (no persons)"
        raise ValueError(
            f"the ledger of training protects {about.protected_words}, but the calibration protects {wanted}. Pass "
            "persons=ids to both or to neither; your own ledger declares its unit by "
            "Ledger.add(..., unit=Unit(rows_per_person, by_person=True))"
        )
    if about.group > unit.group:
        raise ValueError(
            f"the ledger of training protects {about.protected_words}; pass rows_per_person={about.cap} or more"
        )
    return ledger.convert_unit(unit.counted)


def choose_unit(persons: Any, rows_per_person: int | None, *, n_records: int | None, n_persons: int | None) -> Unit:
    """Return the unit that the arguments define; refuse contradictions."""
    if rows_per_person is not None:
        rows_per_person = check_count("rows_per_person", rows_per_person)
    if persons is None:
        if n_persons is not None:
            raise ValueError(f"n_persons={n_persons!r} needs persons, one id for each row; without ids pass n_records")
        return RECORDS if rows_per_person in (None, 1) else Unit(rows_per_person)
    if rows_per_person is None:
        raise ValueError(
            "rows_per_person is required with persons: pass a public cap on the rows of one person, for example 3; do "
            "not take it from the data"
        )
    if n_records is not None:
        raise ValueError(
            f"n_records={n_records!r} counts rows, but with persons the unit is a person; pass n_persons instead"
        )
    return Unit(rows_per_person, by_person=True)


@dataclass(frozen=True)
class Persons:
    """Assign rows ``offsets[j]`` to ``offsets[j + 1]`` to person j.

    The object exists only while a release is made.

    Attributes
    ----------
    offsets : int array of shape (count + 1,)
    rows_per_person : int or None
        The public cap. None means that there are no ids and every row is its own person.

    Theory: Result H
    """

    offsets: NDArray[np.int64]
    rows_per_person: int | None = None

    @staticmethod
    def single(n_rows: int) -> "Persons":
        """Make every row its own person."""
        return _OnePerRow(n_rows)

    @classmethod
    def of_rows(cls, persons: "Persons | None", n_rows: int) -> "Persons":
        """Return ``persons`` with ``n_rows`` rows; None makes every row its own."""
        if persons is None:
            return cls.single(n_rows)
        if persons.n_rows != n_rows:
            raise ValueError("persons must have as many rows as X; order X and y by the indices that keep_rows returns")
        return persons

    @cached_property
    def count(self) -> int:
        """The number of persons: private, unless the caller declares it."""
        return len(self.offsets) - 1

    @cached_property
    def n_rows(self) -> int:
        """The number of rows: private."""
        return int(self.offsets[-1])

    @property
    def unit(self) -> Unit:
        """The public unit of privacy."""
        return RECORDS if self.rows_per_person is None else Unit(self.rows_per_person, by_person=True)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of rows of each person, (count,): private."""
        return np.diff(self.offsets)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each row, (n_rows,); a person's weights add up to one."""
        if self._has_single_rows:
            return np.broadcast_to(1.0, self.n_rows)  # a single stored number for all rows
        return np.repeat(1.0 / self.sizes, self.sizes)

    @cached_property
    def _has_single_rows(self) -> bool:
        return self.n_rows == self.count

    def rows_of(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the chosen persons, person by person."""
        if self._has_single_rows:
            return chosen
        sizes = self.sizes[chosen]
        first_places = np.cumsum(sizes) - sizes
        return np.asarray(np.repeat(self.offsets[chosen] - first_places, sizes) + np.arange(int(sizes.sum())))

    def weights_of(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weights of these rows."""
        return self.weights[: len(rows)] if self._has_single_rows else self.weights.take(rows)

    def part(self, drawn: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], "Persons"]:
        """Select persons: return the mask of their rows and those rows' ``Persons``."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes[drawn])])
        return np.repeat(drawn, self.sizes), Persons(offsets, self.rows_per_person)

    def between(self, start: int, stop: int) -> "Persons":
        """Return the persons of rows ``start`` to ``stop``, at person boundaries."""
        first, last = np.searchsorted(self.offsets, (start, stop))
        return Persons(self.offsets[first : last + 1] - start, self.rows_per_person)

    def one_row_of_each(self, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
        """Choose one row of each person, by a uniform number in [0, 1) for each person."""
        return np.asarray(self.offsets[:-1] + (drawn * self.sizes).astype(np.int64))


class _OnePerRow(Persons):
    """Make every row its own person, without storing an offset for each row."""

    def __init__(self, n_rows: int) -> None:
        vars(self).update(rows_per_person=None, count=n_rows, n_rows=n_rows)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The offsets 0, 1, 2, ..."""
        return np.arange(self.n_rows + 1)


def number_persons(persons: Any, n_rows: int, columns: Iterable[Any] = ()) -> NDArray[np.int64]:
    """Number each row's person, in the order in which persons first appear.

    Parameters
    ----------
    persons : one id for each row, see ``dpscp.data.persons``
    n_rows : int
        The number of rows of X.
    columns : iterable
        The names of the features; a column of ids must not be one of them.

    Returns
    -------
    int array of shape (n_rows,)
    """
    name = getattr(persons, "name", None)
    if name is not None and any(name == column for column in columns):
        raise ValueError(
            f"persons is the column {name!r}, which is also a feature in X, but a model must not learn from ids. "
            "Remove the column from X"
        )
    ids = read_person_ids(persons)
    if len(ids) != n_rows:
        raise ValueError("persons must have one id for each row of X, but their lengths differ")
    return ids.numbers()


def keep_rows(
    persons: Any, *, n_rows: int, rows_per_person: int, random_state: int | None = None, columns: Iterable[Any] = ()
) -> tuple[NDArray[np.int64], Persons]:
    """Choose the rows that are kept, ordered by person.

    At most ``rows_per_person`` rows of a person are kept, each subset with the same probability. The first rows would
    be a biased choice, because a person's rows may change over time. Persons are in the order of their first rows, and
    a person's rows in the order of the table. So a table with one row for each person does not change.

    Returns
    -------
    kept : int array of row indices
    persons : Persons
        The persons of the kept rows.

    Theory: Result H
    """
    cap = check_count("rows_per_person", rows_per_person)
    number = number_persons(persons, n_rows, columns)
    draws = PlacedDraws.of(stream_seed(random_state, KEPT_ROWS))
    return choose_kept_rows(number, cap, draws.uniform(range(n_rows)))


def choose_kept_rows(
    number: NDArray[np.int64], cap: int, drawn: NDArray[np.float64]
) -> tuple[NDArray[np.int64], Persons]:
    """Choose kept rows as ``keep_rows`` does, for persons that are numbered already.

    ``drawn`` holds a uniform number for each row, person by person, a person's rows in the order of the table.
    """
    sizes = np.bincount(number)
    # keep the first rows of a random order within each person, so that persons do not affect each other
    by_person = np.argsort(number, kind="stable")
    order = by_person[np.lexsort((drawn, number[by_person]))]
    place = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[place < cap])
    kept = kept[np.argsort(number[kept], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, cap))])
    return kept, Persons(offsets, cap)
