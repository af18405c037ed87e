"""Who is protected and how well: the unit of privacy, the relation, the budget.

Every entry of a ledger has both. All numbers and words about who is protected follow from them, and from no public
fact.

Theory: Result H
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any

from dpscp._base.assumptions import (
    CAP_WITHOUT_IDS,
    EXCHANGEABLE,
    EXCHANGEABLE_PERSONS,
    NOMINAL_PERSONS,
    NOMINAL_RECORDS,
    Assumption,
)
from dpscp._base.checks import check_choice, check_count, check_positive, check_probability
from dpscp._base.format import format_epsilon
from dpscp.exceptions import BudgetError, GuaranteeWarning

if TYPE_CHECKING:
    from dpscp.privacy.accounting import Accountant
    from dpscp.privacy.ledger import Ledger

_LARGEST_EPSILON = 10.0
# What a check asks, and what it says if the budget fails.
_CHECKS = {
    "delta": (
        "delta is at most 1 / n, for the public number n",
        "delta is above 1 / n, for the public number n. A delta this large would permit publishing one random record; "
        "choose delta well below 1 / n",
    ),
    "epsilon": (
        f"epsilon is at most {_LARGEST_EPSILON:g}",
        f"epsilon is above {_LARGEST_EPSILON:g}, so each person is protected weakly; 1 is a common choice",
    ),
    "relation": (
        "the promise is about adding or removing",
        "training is private for replacing one record only, because its engine uses the true number of records. So "
        "epsilon and delta are about replacing one, and not about adding or removing",
    ),
}


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
        raise ValueError("unit must be one record, or one person (with or without ids) with a cap rows_per_person")


RECORDS = Unit()


def join_units(units: Iterable[Unit]) -> Unit:
    """Return the unit of a composition of steps; a record if there are none."""
    found = tuple(units)
    return reduce(Unit.join, found) if found else RECORDS


@dataclass(frozen=True)
class Budget:
    """A privacy target: the whole release must be (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon : float
        Greater than 0.
    delta : float
        Between 0 and 1.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_probability("delta", self.delta)

    def require(self, ledger: "Ledger", accountant: "str | Accountant" = "pld") -> None:
        """Raise ``BudgetError`` if ``ledger`` spends more than this budget.

        Parameters
        ----------
        ledger : Ledger
        accountant : str or Accountant
        """
        spent = ledger.epsilon(self.delta, accountant)
        if not spent <= self.epsilon:
            stages = f" (not private: {', '.join(ledger.non_private_stages)})" if math.isinf(spent) else ""
            raise BudgetError(
                f"the ledger spends epsilon = {format_epsilon(spent)}{stages} at delta = {self.delta:g}, which is over "
                f"the budget of epsilon = {self.epsilon:g}; raise the budget or spend less"
            )


@dataclass(frozen=True)
class BudgetCheck:
    """One check of a budget and its outcome.

    Parameters
    ----------
    name : {"delta", "epsilon", "relation"}
    passed : bool
    """

    name: str
    passed: bool

    def __post_init__(self) -> None:
        check_choice("name", self.name, _CHECKS)
        if not isinstance(self.passed, bool):
            raise ValueError("passed must be true or false")

    @property
    def question(self) -> str:
        """What is checked, in words."""
        return _CHECKS[self.name][0]

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        return _CHECKS[self.name][0 if self.passed else 1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the sentence is for people."""
        return {"name": self.name, "passed": self.passed, "sentence": self.sentence}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "BudgetCheck":
        """Return the check that ``to_dict`` wrote, without reading its sentence."""
        return BudgetCheck(data["name"], data["passed"])


def check_budget(
    budget: Budget, n_units: int | None = None, relation: Relation = Relation.ADD_OR_REMOVE
) -> tuple[BudgetCheck, ...]:
    """Check a budget by public numbers.

    ``n_units`` is the nominal number of units; None if there is no public one.
    """
    found = [] if n_units is None else [BudgetCheck("delta", budget.delta <= 1 / max(1, n_units))]
    found.append(BudgetCheck("epsilon", budget.epsilon <= _LARGEST_EPSILON))
    return (*found, BudgetCheck("relation", relation is Relation.ADD_OR_REMOVE))


def warn_of_failures(checks: Iterable[BudgetCheck], stacklevel: int = 2) -> None:
    """Warn of each check that failed; called before anything is spent."""
    for check in checks:
        if not check.passed:
            warnings.warn(check.sentence, GuaranteeWarning, stacklevel=stacklevel + 1)
