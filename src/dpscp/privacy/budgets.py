"""A privacy target for a whole release, and checks by public numbers alone whether it is worth having."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpscp._base.checks import check_choice, check_positive, check_probability
from dpscp._base.format import format_epsilon
from dpscp.exceptions import BudgetError, GuaranteeWarning
from dpscp.privacy.accounting import Accountant
from dpscp.privacy.ledger import Ledger
from dpscp.privacy.units import Relation

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

    def require(self, ledger: Ledger, accountant: str | Accountant = "pld") -> None:
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
    """Check a budget by public numbers; ``n_units`` is the public nominal number, None where there is none."""
    found = [] if n_units is None else [BudgetCheck("delta", budget.delta <= 1 / max(1, n_units))]
    found.append(BudgetCheck("epsilon", budget.epsilon <= _LARGEST_EPSILON))
    return (*found, BudgetCheck("relation", relation is Relation.ADD_OR_REMOVE))


def warn_of_failures(checks: Iterable[BudgetCheck], stacklevel: int = 2) -> None:
    """Warn of each check that failed; called before anything is spent."""
    for check in checks:
        if not check.passed:
            warnings.warn(check.sentence, GuaranteeWarning, stacklevel=stacklevel + 1)
