"""Typed checks of a budget by public numbers alone: whether its promise is worth having."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy.budgets import Budget
from dpscp.privacy.relations import Relation

__all__ = ["BudgetCheck", "CheckName", "check_budget", "warn_of_failures"]

_LARGEST_EPSILON = 10.0


class CheckName(StrEnum):
    """What a budget is checked for."""

    DELTA = "delta"
    EPSILON = "epsilon"
    RELATION = "relation"


_PASSED = {
    CheckName.DELTA: "delta is at most 1 / n, for the public number n",
    CheckName.EPSILON: f"epsilon is at most {_LARGEST_EPSILON:g}",
    CheckName.RELATION: "the promise is about adding or removing",
}
_FAILED = {
    CheckName.DELTA: "delta is above 1 / n, for the public number n. A delta this large would permit publishing one "
    "random record; choose delta well below 1 / n",
    CheckName.EPSILON: f"epsilon is above {_LARGEST_EPSILON:g}, so each person is protected weakly; 1 is a common "
    "choice",
    CheckName.RELATION: "training is private for replacing one record only, because its engine uses the true number of "
    "records. So epsilon and delta are about replacing one, and not about adding or removing",
}


@dataclass(frozen=True)
class BudgetCheck:
    """One check and its outcome.

    Parameters
    ----------
    name : CheckName
    passed : bool
    """

    name: CheckName
    passed: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", CheckName(self.name))
        if not isinstance(self.passed, bool):
            raise ValueError("passed must be true or false")

    @property
    def question(self) -> str:
        """What is checked, in words."""
        return _PASSED[self.name]

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        return (_PASSED if self.passed else _FAILED)[self.name]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the sentence is for people."""
        return {"name": str(self.name), "passed": self.passed, "sentence": self.sentence}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "BudgetCheck":
        """Return the check that ``to_dict`` wrote, without reading its sentence."""
        return BudgetCheck(data["name"], data["passed"])


def check_budget(
    budget: Budget, n_units: int | None = None, relation: Relation = Relation.ADD_OR_REMOVE
) -> tuple[BudgetCheck, ...]:
    """Check a budget by public numbers; ``n_units`` is the public nominal number, None where there is none."""
    found = [] if n_units is None else [BudgetCheck(CheckName.DELTA, budget.delta <= 1 / max(1, n_units))]
    found.append(BudgetCheck(CheckName.EPSILON, budget.epsilon <= _LARGEST_EPSILON))
    return (*found, BudgetCheck(CheckName.RELATION, relation is Relation.ADD_OR_REMOVE))


def warn_of_failures(checks: Iterable[BudgetCheck], stacklevel: int = 2) -> None:
    """Warn of each check that failed; called before anything is spent."""
    for check in checks:
        if not check.passed:
            warnings.warn(check.sentence, GuaranteeWarning, stacklevel=stacklevel + 1)
