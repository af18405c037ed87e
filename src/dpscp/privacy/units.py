"""The unit of privacy: who a promise is about, as a type with three cases.

Every entry of a ledger carries its unit, and every number and word about who is protected follows from it. No public
fact takes part.

Theory: Result H
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from dpscp._base.checks import check_count

__all__ = ["RECORDS", "OneRecord", "PersonWithIds", "PersonWithoutIds", "Unit", "join_units"]

_EXCHANGEABLE = "new records are exchangeable with the ones used"
_WHOLE_PERSON = "adding or removing one person with all their records"


@dataclass(frozen=True)
class Unit(ABC):
    """Who is protected and who is covered, in public numbers and in words: one of the three classes below.

    Theory: Result H
    """

    kind: ClassVar[str]
    by_person: ClassVar[bool] = False
    """Whether whose row is whose is known, so that persons are counted."""
    protected: ClassVar[str] = "person"
    """Who privacy is about."""

    @property
    @abstractmethod
    def limit(self) -> int | None:
        """The public number of rows of one person; None where privacy is about a record."""

    @property
    @abstractmethod
    def neighbours(self) -> str:
        """Between which tables a promise about this unit holds, in words."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What coverage needs of those who come and those who were there."""

    @property
    def group(self) -> int:
        """How many rows at once the privacy of a row must cover: the bound where nobody knows whose row is whose."""
        return 1 if self.by_person else self.cap

    @property
    def cap(self) -> int:
        """The most rows that a person has."""
        return self.limit or 1

    @property
    def counted(self) -> "Unit":
        """The unit of one counted thing: a person where ids are known, else a record."""
        return self if self.by_person else RECORDS

    @property
    def noun(self) -> str:
        """What is counted."""
        return "person" if self.by_person else "record"

    @property
    def count_name(self) -> str:
        """What the nominal number of units is called."""
        return f"n_{self.noun}s"

    @property
    def covered(self) -> str:
        """What coverage is about, one of them."""
        return "a record chosen at random among those of a new person" if self.by_person else "a new record"

    @property
    def nominal_is_true(self) -> str:
        """The assumption where the number of units is not released."""
        return f"{self.count_name} is the true number of {self.noun}s"

    @property
    def limit_facts(self) -> dict[str, int]:
        """The public cap or bound, for people to read; empty for a record."""
        return {} if self.limit is None else {"rows_per_person": self.limit}

    def facts(self, nominal: int) -> dict[str, Any]:
        """The public facts: the nominal number of units, and the cap."""
        return {self.count_name: nominal, **self.limit_facts}

    def join(self, other: "Unit") -> "Unit":
        """The unit of a composition of steps about these two; ``ValueError`` where no proof leads to one.

        What one row meets is known of steps about records and about persons without ids: their composition, chained,
        covers the larger bound. Steps about persons with ids compose whatever their caps are.

        Theory: Result H
        """
        if self.by_person != other.by_person:
            raise ValueError(
                f"steps about {self.protected_words} and steps about {other.protected_words} cannot be added up: what "
                "a row meets does not say what a person with any number of rows meets. Use persons=ids in all of them, "
                "or in none"
            )
        # equal numbers: a person says more than a record
        return max(self, other, key=lambda unit: (unit.cap, unit.limit is not None))

    @property
    @abstractmethod
    def protected_words(self) -> str:
        """Who is protected, many of them, in a few words."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as ``from_dict`` reads them."""
        return {"kind": self.kind, **self.limit_facts}

    @staticmethod
    def from_dict(data: Any) -> "Unit":
        """The unit that ``to_dict`` wrote; ``ValueError`` for anything else."""
        kinds: dict[str, type[PersonWithIds | PersonWithoutIds]] = {
            kind.kind: kind for kind in (PersonWithIds, PersonWithoutIds)
        }
        if data == RECORDS.to_dict():
            return RECORDS
        if isinstance(data, dict) and set(data) == {"kind", "rows_per_person"} and data["kind"] in kinds:
            return kinds[data["kind"]](data["rows_per_person"])
        raise ValueError("unit must be a record, or a person with or without ids and their rows_per_person")


@dataclass(frozen=True)
class OneRecord(Unit):
    """One record: whoever has several is protected less."""

    kind = "record"
    protected = "record"

    @property
    def limit(self) -> None:
        return None

    @property
    def neighbours(self) -> str:
        return "adding or removing one record"

    @property
    def protected_words(self) -> str:
        return "records"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (_EXCHANGEABLE,)


RECORDS = OneRecord()


@dataclass(frozen=True)
class _Person(Unit):
    """A person, with the public number of their rows that are used, or that they have."""

    rows_per_person: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_person", check_count("rows_per_person", self.rows_per_person))

    @property
    def limit(self) -> int:
        return self.rows_per_person


@dataclass(frozen=True)
class PersonWithIds(_Person):
    """A person with all their records, known by ids, of which at most ``rows_per_person`` are used.

    An event is then what a whole person meets.
    """

    kind = "person with ids"
    by_person = True

    @property
    def neighbours(self) -> str:
        return _WHOLE_PERSON

    @property
    def protected_words(self) -> str:
        return "persons with ids"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "new persons are exchangeable with the ones used (records of one person may depend on each other in "
            "any way); the promise is for a record chosen at random among those of a new person",
        )


@dataclass(frozen=True)
class PersonWithoutIds(_Person):
    """A person with at most ``rows_per_person`` records, and nobody knows which.

    An event is then what one row meets, and the promise is that of the chain of so many rows. Coverage is per record.
    """

    kind = "person without ids"

    @property
    def neighbours(self) -> str:
        return f"{_WHOLE_PERSON}, at most {self.rows_per_person}"

    @property
    def protected_words(self) -> str:
        return f"persons without ids, with at most {self.rows_per_person} records each"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            _EXCHANGEABLE,
            f"privacy is per person, who has at most {self.rows_per_person} records (without ids nobody checked); "
            "coverage is per record, not per person",
        )


def join_units(units: Iterable[Unit]) -> Unit:
    """The unit of a composition of steps; a record where there are none."""
    found = tuple(units)
    return reduce(Unit.join, found) if found else RECORDS


def unit_of_old_facts(facts: Mapping[str, Any]) -> Unit:
    """The unit that a file of 0.1 to 0.3 speaks of, from the public facts or terms that those releases wrote.

    A number of records beside one of persons is the mark of steps about both: the larger epsilon is taken, that of a
    person without ids.
    """
    if "rows_per_person" not in facts:
        return RECORDS
    with_ids = "n_persons" in facts and "n_records" not in facts
    return (PersonWithIds if with_ids else PersonWithoutIds)(facts["rows_per_person"])
