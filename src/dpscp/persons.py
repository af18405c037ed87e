"""Which rows belong to which person: the unit of privacy and of coverage when a person has several records.

At most ``rows_per_person`` rows of a person are kept, a uniform private choice, each with the weight one over the
number kept. A person's weights add up to one, so a weighted sum of bounded terms has for a whole person the
sensitivity that a plain sum has for one record. A table without ids is the special case of one row a person.

Who has how many rows, and how many persons there are, is private: nothing here leaves the fit.

Theory: Result H
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._checks import check_count
from dpscp.privacy import Ledger
from dpscp.privacy.seeds import KEPT_ROWS, SCORED_ROWS, PlacedDraws, stream_seed

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Unit:
    """Who is protected and who is covered, in public numbers and in words.

    Without ``rows_per_person`` a record. With it and ids (``known``), a person with all their records, of which at most
    so many are used. With it and without ids, a person is known to have at most so many rows and nobody knows which:
    privacy is per person by group privacy, coverage per record.

    Theory: Result H
    """

    rows_per_person: int | None = None
    known: bool = True

    @property
    def by_person(self) -> bool:
        """Whether whose row is whose is known, so that persons are counted."""
        return self.rows_per_person is not None and self.known

    @property
    def of_blocks(self) -> "Unit":
        """What blocks of records count: persons where they are known, else single records."""
        return self if self.by_person else RECORDS

    @property
    def group(self) -> int:
        """How many rows at once the privacy of a row must cover: the cap where nobody knows whose row is whose."""
        return 1 if self.rows_per_person is None or self.known else self.rows_per_person

    @property
    def cap(self) -> int:
        """The most rows that a person has."""
        return self.rows_per_person or 1

    @property
    def protected(self) -> str:
        """Who privacy is about."""
        return "record" if self.rows_per_person is None else "person"

    @property
    def noun(self) -> str:
        """What is counted."""
        return "person" if self.by_person else "record"

    @property
    def count_name(self) -> str:
        """What the nominal number of units is called."""
        return f"n_{self.noun}s"

    def facts(self, nominal: int) -> dict[str, Any]:
        """The public facts: the nominal number of units, and the cap."""
        cap = {} if self.rows_per_person is None else {"rows_per_person": self.rows_per_person}
        return {self.count_name: nominal, **cap}

    @property
    def group_facts(self) -> dict[str, Any]:
        """What turns a ledger about rows into one about persons without ids; empty for the other units."""
        return {} if self.group == 1 else {"rows_per_person": self.group}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "Unit":
        """The unit that public facts, or the terms of a certificate, speak of."""
        cap = facts.get("rows_per_person")
        return cls(None if cap is None else int(cap), known="n_persons" in facts)

    @property
    def covered(self) -> str:
        """What coverage is about, one of them."""
        return "a record chosen at random among those of a new person" if self.by_person else "a new record"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What coverage needs of those who come and those who were there."""
        if self.by_person:
            return (
                "new persons are exchangeable with the ones used (records of one person may depend on each other in "
                "any way); the promise is for a record chosen at random among those of a new person",
            )
        exchangeable = "new records are exchangeable with the ones used"
        if self.rows_per_person is None:
            return (exchangeable,)
        return (
            exchangeable,
            f"privacy is per person, who has at most {self.rows_per_person} records (without ids nobody checked); "
            "coverage is per record, not per person",
        )

    @property
    def nominal_is_true(self) -> str:
        """The assumption where the number of units is not released."""
        return f"{self.count_name} is the true number of {self.noun}s"


RECORDS = Unit()


def require_person_ledger(ledger: Ledger) -> None:
    """Refuse, for a promise per person, a model whose training was private per record."""
    if ledger.entries and "n_persons" not in ledger.public_facts:
        raise ValueError(
            "the ledger of training is about records, and persons asks for a promise per person: train with persons, "
            "or declare rows_per_person and n_persons in that ledger if the training was private per person"
        )


def unit_of(persons: Any, rows_per_person: int | None, *, n_records: int | None, n_persons: int | None) -> Unit:
    """The unit that a caller's arguments ask for; refused where they contradict each other."""
    if rows_per_person is not None:
        rows_per_person = check_count("rows_per_person", rows_per_person)
    if persons is None:
        if n_persons is not None:
            raise ValueError(f"n_persons={n_persons!r} needs persons, one id for each row; without ids give n_records")
        return Unit(None if rows_per_person == 1 else rows_per_person, known=False)
    if rows_per_person is None:
        raise ValueError(
            "rows_per_person is needed with persons: the public cap k on the rows of one person that are used (3, say);"
            " it must not be looked up in the data"
        )
    if n_records is not None:
        raise ValueError(
            f"n_records={n_records!r} counts rows, and with persons it is persons that count: give n_persons instead"
        )
    return Unit(rows_per_person)


@dataclass(frozen=True)
class Persons:
    """Rows laid person by person: those from ``offsets[j]`` to ``offsets[j + 1]`` are person j's.

    ``rows_per_person`` is the public cap; None says that nobody gave ids and every row is its own person. The object
    lives only while a release is made.

    Theory: Result H
    """

    offsets: Index
    rows_per_person: int | None = None

    @staticmethod
    def single(n_rows: int) -> "Persons":
        """Every row its own person."""
        return _OnePerRow(n_rows)

    @classmethod
    def of_rows(cls, persons: "Persons | None", n_rows: int) -> "Persons":
        """The given persons, who must have these rows; without any, every row is its own."""
        if persons is None:
            return cls.single(n_rows)
        if persons.n_rows != n_rows:
            raise ValueError("persons must be those of the rows in X; lay X and y out as kept_rows says")
        return persons

    @property
    def count(self) -> int:
        """The number of persons: private, unless the caller declares it."""
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """The number of rows: private."""
        return int(self.offsets[-1])

    @property
    def unit(self) -> Unit:
        """The public side."""
        return Unit(self.rows_per_person)

    @property
    def count_name(self) -> str:
        """What the nominal number of units is called."""
        return self.unit.count_name

    def public_facts(self, nominal: int) -> dict[str, object]:
        """What a release of these persons declares."""
        return self.unit.facts(nominal)

    @cached_property
    def sizes(self) -> Index:
        """How many rows each person has: private."""
        return np.diff(self.offsets)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each row; a person's add up to one."""
        if self._one_each:
            return np.broadcast_to(1.0, self.n_rows)  # one number, however many rows
        return np.repeat(1.0 / self.sizes, self.sizes)

    @cached_property
    def _one_each(self) -> bool:
        return self.n_rows == self.count

    def rows_of(self, chosen: Index) -> Index:
        """The rows of the chosen persons, person by person."""
        if self._one_each:
            return chosen
        sizes = self.sizes[chosen]
        first_places = np.cumsum(sizes) - sizes
        return np.asarray(np.repeat(self.offsets[chosen] - first_places, sizes) + np.arange(int(sizes.sum())))

    def weights_of(self, rows: Index) -> NDArray[np.float64]:
        """The weights of these rows."""
        return self.weights[: len(rows)] if self._one_each else self.weights.take(rows)

    def part(self, drawn: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], "Persons"]:
        """The persons that were drawn: which rows are theirs, and those rows' layout."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes[drawn])])
        return np.repeat(drawn, self.sizes), Persons(offsets, self.rows_per_person)

    def between(self, start: int, stop: int) -> "Persons":
        """The persons whose rows are those from ``start`` to ``stop``, where persons begin and end."""
        first, last = np.searchsorted(self.offsets, (start, stop))
        return Persons(self.offsets[first : last + 1] - start, self.rows_per_person)

    def one_row_each(self, random_state: int | None) -> Index:
        """One row of each person, chosen uniformly; in a stream of its own, so that no other draw moves."""
        if self._one_each:
            return np.arange(self.count)
        draws = PlacedDraws.of(stream_seed(random_state, SCORED_ROWS))
        return self.one_row_of_each(draws.uniform(range(self.count)))

    def one_row_of_each(self, drawn: NDArray[np.float64]) -> Index:
        """One row of each person, by a uniform number in [0, 1) of their own."""
        return np.asarray(self.offsets[:-1] + (drawn * self.sizes).astype(np.int64))


class _OnePerRow(Persons):
    """Every row its own person: one number instead of one for each row, unless somebody asks where rows begin."""

    def __init__(self, n_rows: int) -> None:
        object.__setattr__(self, "rows_per_person", None)
        object.__setattr__(self, "_n", n_rows)

    @cached_property
    def offsets(self) -> Index:
        """0, 1, 2, ..."""
        return np.arange(self.n_rows + 1)

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.n_rows

    @property
    def n_rows(self) -> int:
        """The number of rows: private."""
        return int(vars(self)["_n"])


def person_numbers(persons: Any, n_rows: int, columns: Iterable[Any] = ()) -> Index:
    """Each row's person, numbered in the order in which persons first appear.

    ``persons`` holds one id a row, any hashable values; ``columns`` are the names of the features. Ids that are
    missing (None, NaN, empty text), of two kinds (text and numbers: "7" would not be 7), that may stand for two persons
    (text with NUL characters, floats beyond their whole numbers), too few or too many are refused; nothing from them is
    printed.
    """
    if isinstance(persons, str | bytes) or not np.iterable(persons) or getattr(persons, "ndim", 1) != 1:
        raise TypeError("persons must hold one id for each row of X: a list, an array or a column")
    name = getattr(persons, "name", None)
    if name is not None and any(name == column for column in columns):
        raise ValueError(
            f"persons is the column {name!r}, which is also a feature in X: a model must not learn from ids; "
            "drop the column from X"
        )
    ids = persons.tolist() if isinstance(persons, np.ndarray) else list(persons)
    if len(ids) != n_rows:
        raise ValueError("persons must hold one id for each row of X: X and persons differ in length")
    if any(map(_is_missing, ids)):
        raise ValueError(
            "persons holds a missing id (None, NaN or empty text): give each row the id of its person, or drop rows "
            "whose person is not known"
        )
    if len({isinstance(i, str) for i in ids}) > 1:
        raise ValueError("persons mixes text with other ids, and '7' is not 7: make all of them text or none")
    _check_told_apart(ids, str(getattr(persons, "dtype", "")).lower())
    numbers: dict[Any, int] = {}
    found = None
    try:
        found = np.fromiter((numbers.setdefault(i, len(numbers)) for i in ids), dtype=np.int64, count=n_rows)
    except TypeError:
        found = None
    if found is None:  # outside the handler: its message would name the type of an id only, but may print more
        raise TypeError("persons must hold hashable ids: text, numbers or tuples")
    return found


def _check_told_apart(ids: Sequence[Any], dtype: str) -> None:
    """Refuse ids of which two may look like one: the persons behind them would share the noise that hides one."""
    texts = "".join(i for i in ids if isinstance(i, str))
    if "\0" in texts or any("\ud800" <= character <= "\udfff" for character in set(texts)):
        raise ValueError(
            "persons holds text with NUL characters or half surrogate pairs, which not every table tells apart: write "
            "the ids without them"
        )
    digits = {"float16": 11, "float32": 24}.get(dtype, 53)
    if any(isinstance(i, float | np.floating) and abs(float(i)) >= 2.0**digits for i in ids):
        raise ValueError(
            f"persons holds floating-point numbers of 2^{digits} and more, where several whole numbers are one: give "
            "ids as text or as integers, from where they were read first"
        )


def _is_missing(identity: Any) -> bool:
    if identity is None or (isinstance(identity, str) and not identity.strip()):
        return True
    try:
        return bool(identity != identity)  # NaN and pandas' NaT differ from themselves
    except (TypeError, ValueError):  # pandas' NA has no truth value
        return True


def kept_rows(
    persons: Any, *, n_rows: int, rows_per_person: int, random_state: int | None = None, columns: Iterable[Any] = ()
) -> tuple[Index, Persons]:
    """Which rows are kept, ordered by person, and whose they are.

    At most ``rows_per_person`` rows of a person are kept, every subset of that size with the same probability, never
    the first ones: rows of one person may differ from early to late. Persons stand in the order of their first rows
    and a person's rows in the order of the table: with one row a person the table stays as it is.

    Theory: Result H
    """
    cap = check_count("rows_per_person", rows_per_person)
    number = person_numbers(persons, n_rows, columns)
    draws = PlacedDraws.of(stream_seed(random_state, KEPT_ROWS))
    return kept_of(number, cap, draws.uniform(range(n_rows)))


def kept_of(number: Index, cap: int, drawn: NDArray[np.float64]) -> tuple[Index, Persons]:
    """As `kept_rows`, for persons who are numbered 0, 1, 2, ... in the order in which they first appear.

    ``drawn`` holds a uniform number for each row, person by person, a person's rows in the order of the table.
    """
    sizes = np.bincount(number)
    # a random order within each person, the first of it kept: the choice of one person moves nobody else's
    by_person = np.argsort(number, kind="stable")
    order = by_person[np.lexsort((drawn, number[by_person]))]
    place = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[place < cap])
    kept = kept[np.argsort(number[kept], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, cap))])
    return kept, Persons(offsets, cap)
