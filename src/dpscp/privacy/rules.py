"""The two rules by which a budget store decides whether one more share fits.

``AdaptiveRule`` holds whatever the next share was chosen by, also by what earlier ones released: a Gaussian-DP filter
(``dpscp.privacy.adaptive``). ``SequenceRule`` holds for shares that were declared before the first one, and adds them
up more tightly. Both look at events only, never at a record: docs/guarantees.md, the budget store.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import epsilon_of
from dpscp.privacy.adaptive import Charge, charge_for, least_slack
from dpscp.privacy.events import compose
from dpscp.privacy.ledger import Budget, Ledger
from dpscp.privacy.tradeoff import gdp_epsilon

__all__ = ["AdaptiveRule", "CalibrationRule", "SequenceRule", "Share"]


@dataclass(frozen=True)
class Share:
    """What was reserved, and what was committed in its place: None while the reservation itself counts."""

    reserved: Ledger
    committed: Ledger | None = None

    @property
    def counted(self) -> Ledger:
        """What counts as spent."""
        return self.reserved if self.committed is None else self.committed

    @property
    def is_replaced(self) -> bool:
        """Whether something else was committed than was reserved."""
        return bool(self.counted.event != self.reserved.event)


@dataclass(frozen=True)
class AdaptiveRule:
    """A filter: charges whose squares stay within a fixed total, and a fixed slack for what no Gaussian covers.

    A single share that the filter refuses may take the whole total if it is (epsilon, delta)-DP by itself: it was
    chosen before anything was released.
    """

    budget: Budget
    slack: float
    name: ClassVar[str] = "adaptive"

    @property
    def words(self) -> str:
        """What may be chosen, for a person."""
        return f"fits may be chosen by what earlier ones released; slack {self.slack:g} of delta"

    def spent(self, shares: Sequence[Share], delta: float) -> float:
        """Epsilon at ``delta`` of a filter that would be full now; the whole total for a share that takes all of it."""
        if any(share.counted.seeded for share in shares):  # an earlier release wrote such
            return math.inf
        if not self._is_whole(shares):
            return self._filtered(shares, delta)
        return self.budget.epsilon if delta == self.budget.delta else _worse_alone(shares[0], delta)

    def require(self, shares: Sequence[Share], trouble: str) -> None:
        """``BudgetError`` if these shares do not fit together."""
        spent = self.spent(shares, self.budget.delta)
        if not spent <= self.budget.epsilon:
            raise BudgetError(over_total(self.budget, spent, trouble))

    def _is_whole(self, shares: Sequence[Share]) -> bool:
        """Whether the only share is one that takes the whole total."""
        if len(shares) != 1 or self._filtered(shares, self.budget.delta) <= self.budget.epsilon:
            return False
        return _worse_alone(shares[0], self.budget.delta) <= self.budget.epsilon

    def _filtered(self, shares: Sequence[Share], delta: float) -> float:
        mu = math.hypot(*(charge.mu for charge in self.charges(shares)))
        return gdp_epsilon(delta - self.slack, mu) if delta > self.slack and math.isfinite(mu) else math.inf

    def charges(self, shares: Sequence[Share]) -> list[Charge]:
        """What each share is charged.

        The slack of each is fixed when it is reserved, from those reserved before, and never given back: a commit
        changes its mu alone. That a run did less than it had reserved lowers mu for Gaussian releases only: their
        squares add up even if their number was decided on the way. Otherwise the larger of the two mu counts.
        """
        left, users, charges = self.slack, 0, []
        for share in shares:
            needed = least_slack(share.reserved.event)
            allotted = needed + (left - needed) / (users + 2) if needed < left else 0.0
            charge = charge_for(share.reserved.event, allotted)
            left, users = left - charge.slack, users + (charge.slack > 0)
            if share.is_replaced:
                instead = charge_for(share.counted.event, allotted)
                is_gaussian = instead.slack == 0
                charge = Charge(instead.mu if is_gaussian else max(charge.mu, instead.mu), charge.slack)
            charges.append(charge)
        return charges


def _worse_alone(share: Share, delta: float) -> float:
    """Epsilon of what was reserved or of what was committed instead, the larger."""
    return max(epsilon_of(ledger.event, delta) for ledger in (share.reserved, share.counted))


@dataclass(frozen=True)
class SequenceRule:
    """Shares that were declared at creation, in their order: the total of the whole sequence fits, and is exact."""

    budget: Budget
    sequence: tuple[Ledger, ...]
    name: ClassVar[str] = "sequence"

    @classmethod
    def declare(cls, budget: Budget, sequence: Sequence[Ledger]) -> "SequenceRule":
        """The rule of a new store; ``BudgetError`` for a sequence that does not fit its total."""
        if not sequence:
            raise ValueError("sequence must hold at least one event or ledger; leave it out for free choices")
        spent = epsilon_of(compose(*(ledger.event for ledger in sequence)), budget.delta)
        if not spent <= budget.epsilon:
            raise BudgetError(over_total(budget, spent, "the declared sequence does not fit"))
        return cls(budget, tuple(sequence))

    @property
    def words(self) -> str:
        """What may be chosen, for a person."""
        return f"the {len(self.sequence)} fits that were declared at creation, in their order"

    def spent(self, shares: Sequence[Share], delta: float) -> float:
        """Epsilon at ``delta`` of the shares that were reserved, as they were declared."""
        return epsilon_of(compose(*(share.reserved.event for share in shares)), delta)

    def require(self, shares: Sequence[Share], trouble: str) -> None:
        """``BudgetError`` unless these shares are the first of the sequence."""
        for place, share in enumerate(shares):
            if place >= len(self.sequence):
                raise BudgetError(f"{trouble}: all {place} fits of the declared sequence are reserved already")
            declared = self.sequence[place].event
            if share.reserved.event != declared or share.counted.event != declared:
                raise BudgetError(
                    f"{trouble}: it is not fit {place + 1} of the {len(self.sequence)} that were declared when the "
                    "store was created; run the declared one, or create a store without a sequence for free choices"
                )


CalibrationRule = AdaptiveRule | SequenceRule


def over_total(budget: Budget, spent: float, trouble: str) -> str:
    """The message for a total that is too large."""
    return (
        f"{trouble}: the store would hold epsilon = {format_epsilon(spent)} at delta = {format_number(budget.delta)}, "
        f"over its total of {format_number(budget.epsilon)}"
    )
