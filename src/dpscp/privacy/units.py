"""Who is protected: the unit of privacy, and the relation between two tables.

Every entry of a ledger has both. All numbers and words about who is protected follow from them, and from no public
fact.

Theory: Result H
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import Any

from dpscp._base.assumptions import (
    CAP_WITHOUT_IDS,
    EXCHANGEABLE,
    EXCHANGEABLE_PERSONS,
    NOMINAL_PERSONS,
    NOMINAL_RECORDS,
    Assumption,
)
from dpscp._base.checks import check_count


class Relation(StrEnum):
    """Between which two tables a step is private.

    A promise for adding or removing one unit implies one for replacing one unit, at the cost of two: the old one is
    removed, and the new one is added. The other direction has no proof.
    """

    ADD_OR_REMOVE = "add or remove one"
    """One unit is in one of the two tables only."""
    REPLACE_ONE = "replace one"
    """Both tables have the same number of units, and one unit differs. The step may use their true number."""

    @property
    def steps(self) -> int:
        """How many units are added or removed on the way from one table to the other."""
        return 2 if self is Relation.REPLACE_ONE else 1


@dataclass(frozen=True)
class Unit:
    """One record, or one person with all their records.

    Parameters
    ----------
    rows_per_person : int, optional
        A person has at most so many rows. None: one record is protected, and a person with several records less.
    by_person : bool
        True: ids assign rows to persons. Then an event is what happens to a whole person, of whom at most
        ``rows_per_person`` rows are used, and persons are counted and covered. False: an event is what happens to one
        row, a promise about a person chains as many rows, and coverage is per record.

    Theory: Result H
    """

    rows_per_person: int | None = None
    by_person: bool = False

    def __post_init__(self) -> None:
        if self.rows_per_person is not None or self.by_person:
            object.__setattr__(self, "rows_per_person", check_count("rows_per_person", self.rows_per_person))

    @property
    def kind(self) -> str:
        """The name of the unit in files."""
        if self.rows_per_person is None:
            return "record"
        return "person with ids" if self.by_person else "person without ids"

    @property
    def protected(self) -> str:
        """The unit that is protected."""
        return "record" if self.rows_per_person is None else "person"

    @property
    def protected_words(self) -> str:
        """Who is protected, as a plural noun."""
        if self.rows_per_person is None or self.by_person:
            return "persons with ids" if self.by_person else "records"
        return f"persons without ids, with at most {self.rows_per_person} records each"

    @property
    def neighbors(self) -> str:
        """The pairs of tables between which the promise holds, in words."""
        if self.rows_per_person is None:
            return "adding or removing one record"
        most = "" if self.by_person else f", at most {self.rows_per_person}"
        return f"adding or removing one person with all their records{most}"

    @property
    def replacements(self) -> str:
        """The pairs of tables between which a promise about a replacement holds, in words."""
        one = "record" if self.rows_per_person is None else "person with all their records"
        return f"replacing one {one} by another, at a fixed number of records"

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What coverage assumes about new and old units."""
        if self.by_person:
            return (EXCHANGEABLE_PERSONS,)
        cap = () if self.rows_per_person is None else (CAP_WITHOUT_IDS(self.rows_per_person),)
        return EXCHANGEABLE, *cap

    @property
    def group(self) -> int:
        """The number of rows that the privacy of a row must cover at once."""
        return 1 if self.by_person else self.cap

    @property
    def cap(self) -> int:
        """The largest number of rows of a person."""
        return self.rows_per_person or 1

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
        return {} if self.rows_per_person is None else {"rows_per_person": self.rows_per_person}

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
        return max(self, other, key=lambda unit: (unit.cap, unit.rows_per_person is not None))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values for ``from_dict``."""
        return {"kind": self.kind, **self.limit_facts}

    @staticmethod
    def from_dict(data: Any) -> "Unit":
        """Return the unit that ``to_dict`` wrote; raise ``ValueError`` otherwise."""
        if data == RECORDS.to_dict():
            return RECORDS
        if isinstance(data, dict) and set(data) == {"kind", "rows_per_person"}:
            for by_person in (True, False):
                unit = Unit(check_count("rows_per_person", data["rows_per_person"]), by_person)
                if data["kind"] == unit.kind:
                    return unit
        raise ValueError("unit must be a record, or a person with or without ids and with rows_per_person")


RECORDS = Unit()


def join_units(units: Iterable[Unit]) -> Unit:
    """Return the unit of a composition of steps; a record if there are none."""
    found = tuple(units)
    return reduce(Unit.join, found) if found else RECORDS
