"""Which rows belong to which person: the unit of privacy and of coverage when a person has several records.

At most ``rows_per_person`` rows of a person are kept, a uniform private choice, each with the weight one over the
number kept. A person's weights add up to one, so a weighted sum of bounded terms has for a whole person the
sensitivity that a plain sum has for one record. A table without ids is the special case of one row a person.

Who has how many rows, and how many persons there are, is private: nothing here leaves the fit.

Theory: Result H
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.data.person_ids import read_person_ids
from dpscp.privacy import Ledger, secure_generator
from dpscp.privacy.random_streams import KEPT_ROWS, SCORED_ROWS, stream_seed
from dpscp.privacy.units import RECORDS, PersonWithIds, PersonWithoutIds, Unit


def require_unit(ledger: Ledger, unit: Unit) -> Ledger:
    """What training spent, as steps about what ``unit`` counts; refused where the promise would be about less.

    Theory: Result H
    """
    about = ledger.unit
    if ledger.entries and about.by_person != unit.by_person:
        wanted = "persons asks for a promise per person" if unit.by_person else "rows are searched without ids"
        raise ValueError(
            f"the ledger of training is about {about.protected_words}, and {wanted}: give persons=ids to both or to "
            "none. A ledger of your own says who it is about by Ledger.add(..., unit=PersonWithIds(rows_per_person))"
        )
    if about.group > unit.group:
        raise ValueError(
            f"the ledger of training is about {about.protected_words}: give rows_per_person={about.cap}, or more"
        )
    return ledger.convert_unit(unit.counted)


def choose_unit(persons: Any, rows_per_person: int | None, *, n_records: int | None, n_persons: int | None) -> Unit:
    """The unit that a caller's arguments ask for; refused where they contradict each other."""
    if rows_per_person is not None:
        rows_per_person = check_count("rows_per_person", rows_per_person)
    if persons is None:
        if n_persons is not None:
            raise ValueError(f"n_persons={n_persons!r} needs persons, one id for each row; without ids give n_records")
        return RECORDS if rows_per_person in (None, 1) else PersonWithoutIds(rows_per_person)
    if rows_per_person is None:
        raise ValueError(
            "rows_per_person is needed with persons: the public cap k on the rows of one person that are used (3, say);"
            " it must not be looked up in the data"
        )
    if n_records is not None:
        raise ValueError(
            f"n_records={n_records!r} counts rows, and with persons it is persons that count: give n_persons instead"
        )
    return PersonWithIds(rows_per_person)


@dataclass(frozen=True)
class Persons:
    """Rows laid person by person: those from ``offsets[j]`` to ``offsets[j + 1]`` are person j's.

    ``rows_per_person`` is the public cap; None says that nobody gave ids and every row is its own person. The object
    lives only while a release is made.

    Theory: Result H
    """

    offsets: NDArray[np.int64]
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
        return RECORDS if self.rows_per_person is None else PersonWithIds(self.rows_per_person)

    @property
    def count_name(self) -> str:
        """What the nominal number of units is called."""
        return self.unit.count_name

    def public_facts(self, nominal: int) -> dict[str, object]:
        """What a release of these persons declares."""
        return self.unit.facts(nominal)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many rows each person has: private."""
        return np.diff(self.offsets)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each row; a person's add up to one."""
        if self._has_single_rows:
            return np.broadcast_to(1.0, self.n_rows)  # one number, however many rows
        return np.repeat(1.0 / self.sizes, self.sizes)

    @cached_property
    def _has_single_rows(self) -> bool:
        return self.n_rows == self.count

    def rows_of(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the chosen persons, person by person."""
        if self._has_single_rows:
            return chosen
        sizes = self.sizes[chosen]
        first_places = np.cumsum(sizes) - sizes
        return np.asarray(np.repeat(self.offsets[chosen] - first_places, sizes) + np.arange(int(sizes.sum())))

    def weights_of(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weights of these rows."""
        return self.weights[: len(rows)] if self._has_single_rows else self.weights.take(rows)

    def part(self, drawn: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], "Persons"]:
        """The persons that were drawn: which rows are theirs, and those rows' layout."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes[drawn])])
        return np.repeat(drawn, self.sizes), Persons(offsets, self.rows_per_person)

    def between(self, start: int, stop: int) -> "Persons":
        """The persons whose rows are those from ``start`` to ``stop``, where persons begin and end."""
        first, last = np.searchsorted(self.offsets, (start, stop))
        return Persons(self.offsets[first : last + 1] - start, self.rows_per_person)

    def one_row_each(self, random_state: int | None) -> NDArray[np.int64]:
        """One row of each person, chosen uniformly; in a stream of its own, so that no other draw moves."""
        if self._has_single_rows:
            return np.arange(self.count)
        return self.one_row_of_each(secure_generator(stream_seed(random_state, SCORED_ROWS)))

    def one_row_of_each(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """One row of each person, chosen uniformly by this generator."""
        return np.asarray(self.offsets[:-1] + generator.integers(0, self.sizes))


class _OnePerRow(Persons):
    """Every row its own person: one number instead of one for each row, unless somebody asks where rows begin."""

    def __init__(self, n_rows: int) -> None:
        object.__setattr__(self, "rows_per_person", None)
        object.__setattr__(self, "_n", n_rows)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
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


def number_persons(persons: Any, n_rows: int, columns: Iterable[Any] = ()) -> NDArray[np.int64]:
    """Each row's person, numbered in the order in which persons first appear.

    ``persons`` holds one id a row, as `dpscp.data.person_ids` reads them; ``columns`` are the names of the features.
    Too few ids, too many, and a column of ids that is also a feature are refused; nothing from the ids is printed.
    """
    name = getattr(persons, "name", None)
    if name is not None and any(name == column for column in columns):
        raise ValueError(
            f"persons is the column {name!r}, which is also a feature in X: a model must not learn from ids; "
            "drop the column from X"
        )
    ids = read_person_ids(persons)
    if len(ids) != n_rows:
        raise ValueError("persons must hold one id for each row of X: X and persons differ in length")
    return ids.numbers()


def keep_rows(
    persons: Any, *, n_rows: int, rows_per_person: int, random_state: int | None = None, columns: Iterable[Any] = ()
) -> tuple[NDArray[np.int64], Persons]:
    """Which rows are kept, ordered by person, and whose they are.

    At most ``rows_per_person`` rows of a person are kept, every subset of that size with the same probability, never
    the first ones: rows of one person may differ from early to late. Persons stand in the order of their first rows
    and a person's rows in the order of the table: with one row a person the table stays as it is.

    Theory: Result H
    """
    cap = check_count("rows_per_person", rows_per_person)
    number = number_persons(persons, n_rows, columns)
    return choose_kept_rows(number, cap, secure_generator(stream_seed(random_state, KEPT_ROWS)))


def choose_kept_rows(
    number: NDArray[np.int64], cap: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], Persons]:
    """As `keep_rows`, for persons who are numbered 0, 1, 2, ... in the order in which they first appear."""
    # a random order within each person, the first of it kept: the choice of one person moves nobody else's
    order = np.lexsort((generator.random(len(number)), number))
    sizes = np.bincount(number)
    place = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = np.sort(order[place < cap])
    kept = kept[np.argsort(number[kept], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.minimum(sizes, cap))])
    return kept, Persons(offsets, cap)
