"""The two rules by which a budget store decides whether a share fits.

``AdaptiveRule`` allows shares that are chosen by earlier outputs: a Gaussian-DP filter (``dpscp.privacy.adaptive``).
``SequenceRule`` is for shares that were declared in advance, and its total is tighter. Both use events only, never
records.

Theory: The budget store
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import epsilon_of
from dpscp.privacy.adaptive import Charge, charge_for, is_gaussian, least_slack
from dpscp.privacy.events import compose
from dpscp.privacy.ledger import Budget, Ledger
from dpscp.privacy.tradeoff import gdp_epsilon

__all__ = ["AdaptiveRule", "SequenceRule", "Share", "StoreRule"]


@dataclass(frozen=True)
class Share:
    """A reservation, and the commit that replaced it (None before the commit)."""

    reserved: Ledger
    committed: Ledger | None = None

    @property
    def counted(self) -> Ledger:
        """The ledger that counts as spent."""
        return self.reserved if self.committed is None else self.committed

    @property
    def is_replaced(self) -> bool:
        """Whether the commit differs from the reservation."""
        return bool(self.counted.event != self.reserved.event)


@dataclass(frozen=True)
class AdaptiveRule:
    """A Gaussian-DP filter with a fixed total of mu^2 and of slack.

    The slack covers what Gaussian noise does not. A first share that the filter rejects may take the whole total if it
    is (epsilon, delta)-DP alone, because it was chosen before anything was released.
    """

    budget: Budget
    slack: float
    name: ClassVar[str] = "adaptive"

    @property
    def words(self) -> str:
        """The rule, for the reader."""
        return f"each fit may be chosen by the results of earlier fits (slack {self.slack:g} of delta)"

    def spent(self, shares: Sequence[Share], delta: float) -> float:
        """Return epsilon at ``delta`` of a filter that would be full now.

        A share that takes the whole total counts as the whole total.
        """
        if not self._has_whole(shares):
            return self._filter_epsilon(shares, delta)
        if len(shares) > 1 or _worse_alone(shares[0], self.budget.delta) > self.budget.epsilon:
            return math.inf
        return self.budget.epsilon if delta == self.budget.delta else _worse_alone(shares[0], delta)

    def require(self, shares: Sequence[Share], trouble: str) -> None:
        """Raise ``BudgetError`` if these shares do not fit together."""
        spent = self.spent(shares, self.budget.delta)
        if not spent <= self.budget.epsilon:
            raise BudgetError(over_total(self.budget, spent, trouble))

    def _has_whole(self, shares: Sequence[Share]) -> bool:
        """Return whether the first share took the whole total; no commit gives any of it back."""
        reserved = [Share(share.reserved) for share in shares[:1]]
        if not reserved or self._filter_epsilon(reserved, self.budget.delta) <= self.budget.epsilon:
            return False
        return _worse_alone(reserved[0], self.budget.delta) <= self.budget.epsilon

    def _filter_epsilon(self, shares: Sequence[Share], delta: float) -> float:
        mu = math.hypot(*(charge.mu for charge in self.charges(shares)))
        return gdp_epsilon(delta - self.slack, mu) if delta > self.slack and math.isfinite(mu) else math.inf

    def charges(self, shares: Sequence[Share]) -> list[Charge]:
        """Return the charge of each share.

        The slack of a share is fixed when it is reserved, and never returned. A commit changes the charge only if both
        events are Gaussian: squares add up even if their number was decided during the run. Otherwise the run may have
        looked at a part of what it reserved, so the reservation counts, and a commit that costs more never fits.
        """
        left, users, charges = self.slack, 0, []
        for share in shares:
            needed = least_slack(share.reserved.event)
            allotted = needed + (left - needed) / (users + 2) if needed < left else 0.0
            charge = charge_for(share.reserved.event, allotted)
            left, users = left - charge.slack, users + (charge.slack > 0)
            if share.is_replaced:
                charge = _replaced_charge(share, charge, charge_for(share.counted.event, allotted))
            charges.append(charge)
        return charges


def _replaced_charge(share: Share, reserved: Charge, committed: Charge) -> Charge:
    """Return the charge of a share whose commit differs from its reservation."""
    if is_gaussian(share.reserved.event) and is_gaussian(share.counted.event):
        return committed
    return reserved if committed.mu <= reserved.mu else Charge(math.inf, reserved.slack)


def _worse_alone(share: Share, delta: float) -> float:
    """Return the larger epsilon of reservation and commit."""
    return max(epsilon_of(ledger.event, delta) for ledger in (share.reserved, share.counted))


@dataclass(frozen=True)
class SequenceRule:
    """Shares that were declared at creation, in their order; the total is exact."""

    budget: Budget
    sequence: tuple[Ledger, ...]
    name: ClassVar[str] = "sequence"

    @classmethod
    def declare(cls, budget: Budget, sequence: Sequence[Ledger]) -> "SequenceRule":
        """Return the rule of a new store; ``BudgetError`` if the sequence does not fit."""
        if not sequence:
            raise ValueError(
                "sequence must have at least one event or ledger; leave it out if fits are not known in advance"
            )
        spent = epsilon_of(compose(*(ledger.event for ledger in sequence)), budget.delta)
        if not spent <= budget.epsilon:
            raise BudgetError(over_total(budget, spent, "the declared sequence does not fit"))
        return cls(budget, tuple(sequence))

    @property
    def words(self) -> str:
        """The rule, for the reader."""
        return f"only the {len(self.sequence)} fits that were declared at creation, in their order"

    def spent(self, shares: Sequence[Share], delta: float) -> float:
        """Return epsilon at ``delta`` of the reserved shares."""
        return epsilon_of(compose(*(share.reserved.event for share in shares)), delta)

    def require(self, shares: Sequence[Share], trouble: str) -> None:
        """Raise ``BudgetError`` unless these shares are the first of the sequence."""
        for place, share in enumerate(shares):
            if place >= len(self.sequence):
                raise BudgetError(f"{trouble}: all {place} fits of the declared sequence are reserved already")
            declared = self.sequence[place].event
            if share.reserved.event != declared or share.counted.event != declared:
                raise BudgetError(
                    f"{trouble}: it is not fit {place + 1} of the {len(self.sequence)} that were declared when the "
                    "store was created; run the declared fit, or create a store without a sequence"
                )


StoreRule = AdaptiveRule | SequenceRule


def over_total(budget: Budget, spent: float, trouble: str) -> str:
    """Return the message for a total that is too large."""
    return (
        f"{trouble}: the store would reach epsilon = {format_epsilon(spent)} at delta = {format_number(budget.delta)}, "
        f"which is over its total of {format_number(budget.epsilon)}"
    )
