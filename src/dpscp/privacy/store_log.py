"""The rule of a budget store and the meaning of the lines of its file.

``dpscp.privacy.store`` reads and writes the file.

The rule allows shares that are chosen by earlier outputs: a Gaussian-DP filter. A share is charged a pair (mu, slack).
Its privacy profile lies nowhere above the profile of this mechanism: "reveal everything with probability slack,
otherwise release a normal number with mean mu (with the record) or 0 (without)". Shares may be chosen in any way while
the sum of mu^2 and the sum of slack stay within fixed totals. The rule uses events only, never records.

Theory: The budget store
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy import special

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_probability, last_where
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import as_accountant, epsilon_of, is_private
from dpscp.privacy.ledger import Ledger
from dpscp.privacy.tradeoff import gdp_epsilon
from dpscp.privacy.units import Budget, join_units

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


def _exact_mu(event: DpEvent) -> float | None:
    """Return the exact charge of Gaussian noise; None for other events."""
    return as_accountant("pld").exact_mu(event) if is_private(event) else None


@lru_cache(maxsize=512)
def least_slack(event: DpEvent) -> float:
    """Return the limit of an event's delta at large epsilon; 0 for Gaussian noise."""
    return 0.0 if _exact_mu(event) is not None else float(as_accountant("pld").delta(event, _LARGEST_EPSILON))


@lru_cache(maxsize=512)
def charge_for(event: DpEvent, slack: float) -> Charge:
    """Return the smallest charge of an event with at most this slack.

    The charge is exact and needs no slack for Gaussian noise.
    """
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

    def epsilon(self, delta: float) -> float:
        """Return the larger epsilon of reservation and commit alone."""
        return max(epsilon_of(ledger.event, delta) for ledger in (self.reserved, self.counted))


def _replaced_charge(share: Share, reserved: Charge, committed: Charge) -> Charge:
    """Return the charge of a share whose commit differs from its reservation."""
    if _exact_mu(share.reserved.event) is not None and _exact_mu(share.counted.event) is not None:
        return committed
    return reserved if committed.mu <= reserved.mu else Charge(math.inf, reserved.slack)


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


def next_line(lines: Sequence[Line], kind: str, reservation: str, note: str, content: str) -> Line:
    """Return the line after these, with its digest."""
    last = lines[-1] if lines else Line(-1, "", "", "", "", "", _FIRST_DIGEST)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    line = Line(last.line + 1, kind, reservation, written, str(note), content, "")
    return replace(line, digest=line.expected_digest(last.digest))


@dataclass(frozen=True)
class Account:
    """What the lines of a store say, and the filter that decides whether a share fits.

    The filter has a fixed total of mu^2 and of slack, which covers what Gaussian noise does not. A first share that it
    rejects may take the whole total if it is (epsilon, delta)-DP alone, because it was chosen before anything was
    released.

    Attributes
    ----------
    lines : tuple of Line
        Each contains a digest of the line before.
    budget : Budget
        The total that was fixed when the store was created.
    dataset : str
        The name of the records.
    slack : float
        The part of delta that covers what Gaussian noise does not.
    shares : mapping of str to Share
        Each reservation with its commit, in the order of reservation.
    """

    lines: tuple[Line, ...]
    budget: Budget
    dataset: str
    slack: float
    shares: Mapping[str, Share]

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]]) -> "Account":
        """Return the account in these lines; ``ValueError`` if a line is wrong."""
        lines = tuple(Line(*row) for row in rows)
        previous = _FIRST_DIGEST
        for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
            # SQLite accepts any type in any column: a damaged file may contain bytes instead of text
            texts = all(isinstance(value, str) for value in row[1:])
            if line.line != place or not texts or line.digest != line.expected_digest(previous):
                raise ValueError(f"the budget store was altered at line {place}; restore it from a backup")
            previous = line.digest
        try:
            if lines[0].kind != "budget":
                raise ValueError("line 0 is no budget")
            content = json.loads(lines[0].content)
            budget, dataset = Budget(content["epsilon"], content["delta"]), content["dataset"]
            if not isinstance(dataset, str):
                raise ValueError("the name of the data set is not a text")
            slack = check_probability("slack", content["slack"])
        except (LookupError, TypeError, ValueError, RecursionError):
            raise ValueError(
                "the budget store is damaged: its first line has no budget, name or slack; restore it from a backup"
            ) from None
        shares: dict[str, Share] = {}
        for line in lines[1:]:
            spent, before = Ledger.from_json(line.content), shares.get(line.reservation)
            shares[line.reservation] = Share(spent) if before is None else Share(before.reserved, spent)
        return cls(lines, budget, dataset, slack, shares)

    def ledger(self) -> Ledger:
        """Return commits, and reservations without a commit, as one ledger."""
        # each fit has its own facts, which would overwrite each other
        return Ledger(tuple(entry for share in self.shares.values() for entry in share.counted.entries))

    def alone(self, line: Line) -> float:
        """Return the cost of one line alone, at the budget's delta."""
        return Ledger.from_json(line.content).epsilon(self.budget.delta)

    def require(self, identity: str, share: Share, trouble: str) -> None:
        """Raise ``BudgetError`` if ``share``, new or as a replacement, does not fit.

        Raise ``ValueError`` if it protects rows and the other shares protect persons with ids, or the reverse.
        """
        joined = replace(self, shares={**self.shares, identity: share})
        join_units(other.counted.unit for other in joined.shares.values())  # rows and persons are not added up
        spent, total = joined.spent(), format_number(self.budget.epsilon)
        if not spent <= self.budget.epsilon:
            raise BudgetError(
                f"{trouble}: the store would reach epsilon = {format_epsilon(spent)} at delta = "
                f"{format_number(self.budget.delta)}, which is over its total of {total} (spent so far: "
                f"{format_epsilon(self.spent())} of {total}); spend less, or start a new study with new records"
            )

    def spent(self, delta: float | None = None) -> float:
        """Return epsilon of a filter that would be full now.

        ``delta`` is by default that of the budget. A share that takes the whole total counts as the whole total.
        """
        at, shares = self.budget.delta if delta is None else check_probability("delta", delta), [*self.shares.values()]
        if not self._has_whole(shares):
            return self._filter_epsilon(shares, at)
        if len(shares) > 1 or shares[0].epsilon(self.budget.delta) > self.budget.epsilon:
            return math.inf
        return self.budget.epsilon if at == self.budget.delta else shares[0].epsilon(at)

    def _has_whole(self, shares: Sequence[Share]) -> bool:
        """Return whether the first share took the whole total.

        No commit gives any of it back.
        """
        reserved = [Share(share.reserved) for share in shares[:1]]
        if not reserved or self._filter_epsilon(reserved, self.budget.delta) <= self.budget.epsilon:
            return False
        return reserved[0].epsilon(self.budget.delta) <= self.budget.epsilon

    def _filter_epsilon(self, shares: Sequence[Share], delta: float) -> float:
        mu = math.hypot(*(charge.mu for charge in self._charges(shares)))
        return gdp_epsilon(delta - self.slack, mu) if delta > self.slack and math.isfinite(mu) else math.inf

    def _charges(self, shares: Sequence[Share]) -> list[Charge]:
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
            if share.counted.event != share.reserved.event:
                charge = _replaced_charge(share, charge, charge_for(share.counted.event, allotted))
            charges.append(charge)
        return charges
