"""The rules of a budget store, and the lines of its file with their meaning; ``dpscp.privacy.store`` has the file.

``AdaptiveRule`` allows shares that are chosen by earlier outputs: a Gaussian-DP filter. A share is charged a pair (mu,
slack). Its privacy profile lies nowhere above the profile of this mechanism: "reveal everything with probability slack,
otherwise release a normal number with mean mu (with the record) or 0 (without)". Shares may be chosen in any way while
the sum of mu^2 and the sum of slack stay within fixed totals. ``SequenceRule`` is for shares that were declared in
advance, and its total is tighter. Both use events only, never records.

Theory: The budget store
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy import special

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_probability
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import as_accountant, epsilon_of, is_private
from dpscp.privacy.budgets import Budget
from dpscp.privacy.events import compose, frozen_event
from dpscp.privacy.ledger import Ledger
from dpscp.privacy.tradeoff import gdp_epsilon, last_where
from dpscp.privacy.units import join_units

_FIRST_DIGEST = "0" * 64
# Points at which the profile of an event is compared with that of its charge. A chord bounds it between them.
_DOTS = 1024
# The precision of mu, and the rounding error of a comparison of deltas.
_WITHIN, _ROUNDING = 1e-5, 1e-15
_LARGEST_EPSILON = 200.0
_LARGEST_MU = 1e3


class Charge(NamedTuple):
    """What a share takes from a filter; a share with infinite ``mu`` never fits."""

    mu: float
    slack: float = 0.0


def charge_for(event: DpEvent, slack: float) -> Charge:
    """Return the smallest charge of an event with at most this slack.

    The charge is exact and needs no slack for Gaussian noise.
    """
    return _charge(frozen_event(event), slack)


def _exact_mu(event: DpEvent) -> float | None:
    """Return the charge of continuous Gaussian noise, which is exact and needs no slack; None for other events."""
    return as_accountant("pld").exact_mu(event) if is_private(event) else None


@lru_cache(maxsize=512)
def least_slack(event: DpEvent) -> float:
    """Return the limit of an event's delta at large epsilon; 0 for Gaussian noise."""
    return 0.0 if _exact_mu(event) is not None else float(as_accountant("pld").delta(event, _LARGEST_EPSILON))


@lru_cache(maxsize=512)
def _charge(event: DpEvent, slack: float) -> Charge:
    if not is_private(event):
        return Charge(math.inf)
    mu = _exact_mu(event)
    if mu is not None:
        return Charge(mu)
    accountant = as_accountant("pld")
    top = accountant.epsilon(event, slack) if slack > 0 else math.inf
    if not 0 < top <= _LARGEST_EPSILON:
        return Charge(0.0 if top == 0 else math.inf, slack)
    epsilons = np.linspace(0.0, top, _DOTS + 1)
    # delta falls with epsilon, so the slack alone is enough above the last point
    return Charge(_dominating_mu(epsilons, accountant.delta(event, epsilons) + _ROUNDING, slack), slack)


def _dominating_mu(epsilons: FloatArray, deltas: FloatArray, slack: float) -> float:
    """Return the smallest mu that dominates a profile with these points.

    Then slack + (1 - slack) * delta of mu-GDP is nowhere below the profile. The profile is convex in e^epsilon, so a
    chord bounds it between two points. The Gaussian profile is convex too, with slope -Phi(-epsilon / mu - mu / 2). It
    comes closest to a chord where it has the slope of the chord.
    """
    ratios = np.exp(epsilons)
    slopes = np.minimum(np.diff(deltas) / np.diff(ratios), 0.0)
    quantiles = special.ndtri(np.minimum(-slopes / (1 - slack), 1.0))

    def dominates(mu: float) -> bool:
        closest = np.clip(-mu * (quantiles + mu / 2), epsilons[:-1], epsilons[1:])
        chord = deltas[:-1] + slopes * (np.exp(closest) - ratios[:-1])
        second = np.exp(closest + special.log_ndtr(-closest / mu - mu / 2))
        gaussian = special.ndtr(-closest / mu + mu / 2) - second
        return bool(np.all(slack + (1 - slack) * gaussian >= chord))

    high = 1e-6
    while not dominates(high):
        high *= 2
        if high > _LARGEST_MU:
            return math.inf
    return last_where(dominates, high, high / 2, within=_WITHIN * high)


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
            raise BudgetError(_over_total(self.budget, spent, trouble))

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
    if _exact_mu(share.reserved.event) is not None and _exact_mu(share.counted.event) is not None:
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
            raise BudgetError(_over_total(budget, spent, "the declared sequence does not fit"))
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


def _over_total(budget: Budget, spent: float, trouble: str) -> str:
    """Return the message for a total that is too large."""
    return (
        f"{trouble}: the store would reach epsilon = {format_epsilon(spent)} at delta = {format_number(budget.delta)}, "
        f"which is over its total of {format_number(budget.epsilon)}"
    )


@dataclass(frozen=True)
class Line:
    """One line of the file: the budget (line 0), a reservation, or its commit."""

    line: int
    kind: str
    reservation: str
    written: str
    note: str
    content: str
    digest: str

    def expected_digest(self, previous: str) -> str:
        """Return the digest that binds this line to all lines before it."""
        fields = [previous, self.line, self.kind, self.reservation, self.written, self.note, self.content]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


@dataclass(frozen=True)
class Account:
    """The lines of a store; each contains a digest of the line before."""

    lines: tuple[Line, ...] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> "Account":
        """Return the lines of the file; ``ValueError`` if a digest or line 0 is wrong."""
        lines = tuple(Line(*row) for row in rows)
        previous = _FIRST_DIGEST
        for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
            # SQLite accepts any type in any column: a damaged file may contain bytes instead of text
            texts = all(isinstance(value, str) for value in row[1:])
            if line.line != place or not texts or line.digest != line.expected_digest(previous):
                raise ValueError(f"the budget store was altered at line {place}; restore it from a backup")
            previous = line.digest
        if not lines or lines[0].kind != "budget":
            raise ValueError("the budget store was altered: it has no budget; restore it from a backup")
        return cls(lines)

    def next_line(self, kind: str, reservation: str, note: str, content: str) -> Line:
        """Return the next line with its digest."""
        last = self.lines[-1] if self.lines else Line(-1, "", "", "", "", "", _FIRST_DIGEST)
        # times must not decrease, even if the clock was set back
        written = max(datetime.now(UTC).isoformat(timespec="seconds"), last.written)
        line = Line(last.line + 1, kind, reservation, written, str(note), content, "")
        return replace(line, digest=line.expected_digest(last.digest))

    @cached_property
    def _head(self) -> tuple[Budget, str, StoreRule]:
        try:
            content = json.loads(self.lines[0].content)
            budget, dataset = Budget(content["epsilon"], content["delta"]), content["dataset"]
            if not isinstance(dataset, str):
                raise ValueError("the name of the data set is not a text")
            if "sequence" in content:
                return budget, dataset, SequenceRule(budget, tuple(map(Ledger.from_dict, content["sequence"])))
            return budget, dataset, AdaptiveRule(budget, check_probability("slack", content["slack"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError(
                "the budget store is damaged: its first line has no budget, name or rule; restore it from a backup"
            ) from None

    @property
    def budget(self) -> Budget:
        """The total that was fixed when the store was created."""
        return self._head[0]

    @property
    def dataset(self) -> str:
        """The name of the records."""
        return self._head[1]

    @property
    def rule(self) -> StoreRule:
        """The rule that decides whether a share fits."""
        return self._head[2]

    def shares(self) -> dict[str, Share]:
        """Return each reservation with its commit, in the order of reservation."""
        found: dict[str, Share] = {}
        for line in self.lines[1:]:
            spent = Ledger.from_json(line.content)
            before = found.get(line.reservation)
            found[line.reservation] = Share(spent) if before is None else Share(before.reserved, spent)
        return found

    def ledger(self) -> Ledger:
        """Return commits, and reservations without a commit, as one ledger."""
        ledgers = [share.counted for share in self.shares().values()]
        entries = tuple(entry for ledger in ledgers for entry in ledger.entries)
        # each fit has its own facts, which would overwrite each other
        return Ledger(entries)

    def spent(self, delta: float | None = None) -> float:
        """Return epsilon of all shares at ``delta`` (default: the budget's)."""
        at = self.budget.delta if delta is None else check_probability("delta", delta)
        return self.rule.spent(tuple(self.shares().values()), at)

    def alone(self, line: Line) -> float:
        """Return the cost of one line alone, at the budget's delta."""
        return Ledger.from_json(line.content).epsilon(self.budget.delta)

    def require(self, identity: str, share: Share, trouble: str) -> None:
        """Raise ``BudgetError`` if ``share``, new or as a replacement, does not fit.

        Raise ``ValueError`` if it protects rows and the other shares protect persons with ids, or the reverse.
        """
        shares = self.shares() | {identity: share}
        join_units(other.counted.unit for other in shares.values())  # rows and persons are not added up
        try:
            self.rule.require(tuple(shares.values()), trouble)
        except BudgetError as error:
            raise BudgetError(
                f"{error} (spent so far: {format_epsilon(self.spent())} of {format_number(self.budget.epsilon)}); "
                "spend less, or start a new study with new records"
            ) from None
