"""A privacy target for a whole release."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpscp._base.checks import check_positive, check_probability
from dpscp._base.format import format_epsilon
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import Accountant

if TYPE_CHECKING:
    from dpscp.privacy.ledger import Ledger

__all__ = ["Budget"]


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

    def require(self, ledger: "Ledger", accountant: str | Accountant = "pld") -> None:
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
