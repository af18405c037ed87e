"""The unit of privacy: a record, a person with ids, or a person without ids.

Every entry of a ledger has a unit. All numbers and words about who is protected follow from it, and from no public
fact.

Theory: Result H
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from dpscp._base.assumptions import (
    CAP_WITHOUT_IDS,
    EXCHANGEABLE,
    EXCHANGEABLE_PERSONS,
    NOMINAL_PERSONS,
    NOMINAL_RECORDS,
    Assumption,
)
from dpscp._base.checks import check_count

__all__ = ["RECORDS", "OneRecord", "PersonWithIds", "PersonWithoutIds", "Unit", "join_units"]

_WHOLE_PERSON = "adding or removing one person with all their records"


@dataclass(frozen=True)
class Unit(ABC):
    """Who is protected and who is covered, as public numbers and in words.

    Theory: Result H
    """

    kind: ClassVar[str]
    by_person: ClassVar[bool] = False
    """Whether ids assign rows to persons, so that persons are counted."""
    protected: ClassVar[str] = "person"
    """The unit that is protected."""

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The public number of rows of one person; None if records are protected."""

    @property
    @abstractmethod
    def neighbors(self) -> str:
        """The pairs of tables between which the promise holds, in words."""

    @property
    def replacements(self) -> str:
        """The pairs of tables between which a promise about a replacement holds, in words."""
        if self.limit is None:
            return "replacing one record by another, at a fixed number of records"
        return "replacing one person with all their records by another, at a fixed number of records"

    @property
    @abstractmethod
    def assumptions(self) -> tuple[Assumption, ...]:
        """What coverage assumes about new and old units."""

    @property
    def group(self) -> int:
        """The number of rows that the privacy of a row must cover at once."""
        return 1 if self.by_person else self.cap

    @property
    def cap(self) -> int:
        """The largest number of rows of a person."""
        return self.limit or 1

    @property
    def counted(self) -> "Unit":
        """The unit that is counted: a person with ids, otherwise a record."""
        return self if self.by_person else RECORDS

    @property
    def noun(self) -> str:
        """The name of what is counted."""
        return "person" if self.by_person else "record"

    @property
    def count_name(self) -> str:
        """The name of the nominal number of units."""
        return f"n_{self.noun}s"

    @property
    def covered(self) -> str:
        """What coverage is about."""
        return "a random record of a new person" if self.by_person else "a new record"

    @property
    def nominal_is_true(self) -> Assumption:
        """The assumption if the number of units is not released."""
        return NOMINAL_PERSONS if self.by_person else NOMINAL_RECORDS

    @property
    def limit_facts(self) -> dict[str, int]:
        """The public cap or bound; empty for a record."""
        return {} if self.limit is None else {"rows_per_person": self.limit}

    def facts(self, nominal: int) -> dict[str, Any]:
        """Return the public facts: the nominal number of units, and the cap."""
        return {self.count_name: nominal, **self.limit_facts}

    def join(self, other: "Unit") -> "Unit":
        """Return the unit of a composition of steps about both units.

        Steps about records and about persons without ids describe one row. Their composition, chained, covers the
        larger bound. Steps about persons with ids compose for all caps. Raises ``ValueError`` for the other pairs:
        there is no proof.

        Theory: Result H
        """
        if self.by_person != other.by_person:
            raise ValueError(
                f"steps about {self.protected_words} and steps about {other.protected_words} cannot be added up: the "
                "cost for a row does not bound the cost for a person with many rows. Use persons=ids in all of them, "
                "or in none"
            )
        # at equal numbers a promise about a person is stronger than one about a record
        return max(self, other, key=lambda unit: (unit.cap, unit.limit is not None))

    @property
    @abstractmethod
    def protected_words(self) -> str:
        """Who is protected, as a plural noun."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values for ``from_dict``."""
        return {"kind": self.kind, **self.limit_facts}

    @staticmethod
    def from_dict(data: Any) -> "Unit":
        """Return the unit that ``to_dict`` wrote; raise ``ValueError`` otherwise."""
        kinds: dict[str, type[PersonWithIds | PersonWithoutIds]] = {
            kind.kind: kind for kind in (PersonWithIds, PersonWithoutIds)
        }
        if data == RECORDS.to_dict():
            return RECORDS
        if isinstance(data, dict) and set(data) == {"kind", "rows_per_person"} and data["kind"] in kinds:
            return kinds[data["kind"]](data["rows_per_person"])
        raise ValueError("unit must be a record, or a person with or without ids and with rows_per_person")


@dataclass(frozen=True)
class OneRecord(Unit):
    """One record; a person with several records is protected less."""

    kind = "record"
    protected = "record"

    @property
    def limit(self) -> None:
        return None

    @property
    def neighbors(self) -> str:
        return "adding or removing one record"

    @property
    def protected_words(self) -> str:
        return "records"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return (EXCHANGEABLE,)


RECORDS = OneRecord()


@dataclass(frozen=True)
class _Person(Unit):
    """A person, with a public number of rows."""

    rows_per_person: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_person", check_count("rows_per_person", self.rows_per_person))

    @property
    def limit(self) -> int:
        return self.rows_per_person


@dataclass(frozen=True)
class PersonWithIds(_Person):
    """A person with all their records, identified by ids.

    At most ``rows_per_person`` of their rows are used. An event is what happens to a whole person.

    Parameters
    ----------
    rows_per_person : int
    """

    kind = "person with ids"
    by_person = True

    @property
    def neighbors(self) -> str:
        return _WHOLE_PERSON

    @property
    def protected_words(self) -> str:
        return "persons with ids"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return (EXCHANGEABLE_PERSONS,)


@dataclass(frozen=True)
class PersonWithoutIds(_Person):
    """A person with at most ``rows_per_person`` records that are not identified.

    An event is what happens to one row. The promise chains so many rows. Coverage is per record.

    Parameters
    ----------
    rows_per_person : int
    """

    kind = "person without ids"

    @property
    def neighbors(self) -> str:
        return f"{_WHOLE_PERSON}, at most {self.rows_per_person}"

    @property
    def protected_words(self) -> str:
        return f"persons without ids, with at most {self.rows_per_person} records each"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return EXCHANGEABLE, CAP_WITHOUT_IDS.of(self.rows_per_person)


def join_units(units: Iterable[Unit]) -> Unit:
    """Return the unit of a composition of steps; a record if there are none."""
    found = tuple(units)
    return reduce(Unit.join, found) if found else RECORDS
