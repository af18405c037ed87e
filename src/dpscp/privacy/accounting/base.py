"""What an accountant is, and the registry behind the strings of the public interface.

An accountant knows basic events only: ``profile`` says what one record's history of them costs. What surrounds it is
the same for all and lives here: steps without privacy, parallel parts (a record lies in one of them, so the worst
history counts), trade-off functions, groups of records, remembered answers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import numpy as np
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count, check_probability
from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy.accounting.group import group_epsilon
from dpscp.privacy.events import (
    DiscreteGaussianDpEvent,
    TooManyHistoriesError,
    basic_events,
    composed_parts,
    disclosed,
    frozen_event,
    possible_histories,
    require_event,
)
from dpscp.privacy.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_epsilon,
    perfect_privacy,
    tradeoff_from_profile,
)

__all__ = [
    "Accountant",
    "Direction",
    "History",
    "Profile",
    "as_accountant",
    "delta_of",
    "epsilon_of",
    "is_private",
    "register_accountant",
    "release_accountant",
    "tradeoff_of",
]

Array = NDArray[np.float64]
History = Mapping[DpEvent, int]
"""How often one record met each basic event."""

Direction = Literal["both", "add", "remove"]
"""Which of the two neighbours is the null: ``add`` bounds M(D) by M(D plus one record), as Result B needs."""

_OPPOSITE: dict[Direction, Direction] = {"both": "both", "add": "remove", "remove": "add"}
_LARGEST_EPSILON = 200.0
# How small delta gets at the last epsilon of the lines of a trade-off function, and of those that are chained for
# groups: there each step multiplies it.
_CURVE_TAIL, _GROUP_TAIL = 1e-12, 1e-30
# Below this delta the rounding of an accountant may matter, and the one for the smallest deltas is asked as well.
_SMALL_DELTA = 1e-9


class Profile(Protocol):
    """What one history costs."""

    @property
    def mu(self) -> float | None:
        """The level of Gaussian DP where that is the exact cost, else None."""

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that is proven at ``delta``."""

    def delta(self, epsilons: Array, direction: Direction) -> Array:
        """The smallest delta that is proven at each of the increasing ``epsilons`` >= 0."""


@dataclass(frozen=True)
class Accountant:
    """One way to prove what events cost; ``register_accountant`` gives it a name in the public interface.

    To write one, give two functions: ``accounts_for(event)``, whether a basic event can be accounted for, and
    ``profile(history)``, the cost of a history of such events. Every number must err on the safe side.

    ``bound`` is asked instead of ``profile`` where parallel parts have too many combinations: it gets the composed
    events and returns one profile above every combination's. ``rounding`` is what a delta of ``profile`` may be short
    of; it is added where deltas are chained for groups, and ``tail`` is an accountant without it for the smallest ones.
    ``keeps_secrets``: ``profile`` knows ``SecretSplitDpEvent``; otherwise the worse of the two parts is counted.
    """

    name: str
    accounts_for: Callable[[DpEvent], bool]
    profile: Callable[[History], Profile]
    bound: Callable[[Sequence[DpEvent]], Profile] | None = None
    rounding: float = 0.0
    tail: "Accountant | None" = None
    keeps_secrets: bool = False

    def supports(self, event: DpEvent) -> bool:
        """Whether every part of the event can be accounted for; steps without privacy are: they cost everything."""
        try:
            if self.bound is None:
                possible_histories(event if self.keeps_secrets else disclosed(event))
            return not self._unknown(event)
        except UnsupportedEventError:
            return False

    def epsilon(self, event: DpEvent, delta: float, rows: int = 1) -> float:
        """The smallest epsilon that is proven at ``delta`` for a group of ``rows``; infinite without privacy."""
        delta, rows = check_probability("delta", delta), check_count("rows", rows)
        return _known_epsilon(self, frozen_event(require_event(event)), delta, rows)

    def delta(self, event: DpEvent, epsilon: ArrayLike, direction: Direction = "both") -> Any:
        """The smallest delta that is proven at each ``epsilon`` >= 0; 1 if a step is not private."""
        check_choice("direction", direction, _OPPOSITE)
        epsilons = np.asarray(epsilon, dtype=float)
        if np.any(~(epsilons >= 0)):
            raise ValueError("epsilon must be at least 0")
        deltas = np.ones_like(epsilons)
        if is_private(event):
            # dp-accounting asks for increasing epsilons
            flat, back = np.unique(epsilons.ravel(), return_inverse=True)
            worst = np.max([profile.delta(flat, direction) for profile in self._profiles(event)], axis=0)
            deltas = np.clip(worst, 0.0, 1.0)[back].reshape(epsilons.shape)
        return float(deltas) if epsilons.ndim == 0 else deltas

    def tradeoff(self, event: DpEvent, direction: Direction = "both") -> Tradeoff:
        """The trade-off function of the event: exact for continuous Gaussian noise, else a lower bound."""
        if not is_private(event):
            return epsilon_delta_tradeoff(0.0, 1.0)
        mu = self.exact_mu(event)
        if mu is not None:
            return gaussian_tradeoff(mu) if mu > 0 else perfect_privacy()
        return tradeoff_from_profile(*self._pairs(event, direction, _CURVE_TAIL), symmetric=False)

    def _profiles(self, event: DpEvent) -> list[Profile]:
        """The costs of all a record may have met; the worst of them counts."""
        if unknown := self._unknown(event):
            able = [repr(other.name) for other in _ACCOUNTANTS.values() if not other._unknown(event)]
            raise UnsupportedEventError(
                f"accountant={self.name!r} cannot account for {', '.join(unknown)}; "
                + (f"accountant={' or '.join(able)} can" if able else "no accountant can")
            )
        event = event if self.keeps_secrets else disclosed(event)
        try:
            return [self.profile(history) for history in possible_histories(event)]
        except TooManyHistoriesError:
            parts = composed_parts(event)
            if self.bound is None or len(parts) == 1:
                raise
            return [self.bound(parts)]

    def _unknown(self, event: DpEvent) -> list[str]:
        """The names of basic events without an account."""
        basic = basic_events(event) - {NonPrivateDpEvent()}
        return sorted({type(e).__name__ for e in basic if not self.accounts_for(e)})

    def exact_mu(self, event: DpEvent) -> float | None:
        """The level of Gaussian DP where that is the exact cost, else None."""
        levels = [profile.mu for profile in self._profiles(event)]
        return None if None in levels else max(mu for mu in levels if mu is not None)

    def _pairs(self, event: DpEvent, direction: Direction, tail: float) -> tuple[Array, Array]:
        """Proven pairs (epsilon, delta) of one direction, also at negative epsilons."""
        top, floor = 1.0, self.delta(event, _LARGEST_EPSILON)
        while self.delta(event, top) > floor + tail and top < _LARGEST_EPSILON:
            top *= 2
        # dense where coverage levels live (small epsilon), coarse where f is nearly 0 or 1
        epsilons = np.unique(np.concatenate([np.linspace(0, min(top, 8), 3001), np.geomspace(1e-3, top, 200)]))
        deltas = self.delta(event, epsilons, direction)
        # the other direction's pairs are this one's at negative epsilon: Q <= e^eps P + delta, solved for P's miss rate
        opposite = deltas if direction == "both" else self.delta(event, epsilons, _OPPOSITE[direction])
        return (np.concatenate([epsilons, -epsilons]), np.concatenate([deltas, 1 - np.exp(-epsilons) * (1 - opposite)]))

    def replacement_epsilon(self, event: DpEvent, delta: float, rows: int = 1) -> float:
        """Return an epsilon at ``delta`` for replacing ``rows`` records by as many others; infinite without privacy.

        Replacing is removing and adding: a chain of twice as many steps, each bounded by the worse direction, because
        steps of both directions follow each other.
        """
        delta, rows = check_probability("delta", delta), check_count("rows", rows)
        event = frozen_event(require_event(event))
        return self._group_epsilon(event, delta, 2 * rows, ("both",)) if is_private(event) else math.inf

    def _group_epsilon(
        self, event: DpEvent, delta: float, rows: int, directions: tuple[Direction, ...] = ("add", "remove")
    ) -> float:
        """Epsilon for someone with ``rows`` records, who may lie in any of the parallel parts, in one or in several.

        The records are added one after the other. Each is a neighbouring step, bounded by the worst history at each
        error rate, whichever part it falls in; so the chain of such steps bounds every way to spread the records.
        Chaining the steps of one history and taking the worst afterwards would not. Adding all and removing all are
        two chains: a step of one direction is followed by steps of the same.
        """
        mu = self.exact_mu(event)
        if mu is not None:
            # G_mu of G_mu is G_2mu, and the worst way to spread records is to have all in the part of the largest mu
            return gdp_epsilon(delta, rows * mu)
        far, far_deltas = np.empty(0), np.empty(0)
        if self.tail is not None and self.tail.supports(event):
            far = np.geomspace(0.05, _LARGEST_EPSILON, 120)
            far_deltas = self.tail.delta(event, far)
        pairs = (self._pairs(event, direction, _GROUP_TAIL) for direction in directions)
        return max(
            group_epsilon(np.append(epsilons, far), np.append(deltas + self.rounding, far_deltas), delta, rows)
            for epsilons, deltas in pairs
        )


@lru_cache(maxsize=512)
def _known_epsilon(accountant: Accountant, event: DpEvent, delta: float, rows: int) -> float:
    """A fit asks for the same total several times: for the budget, the ledger and the certificate."""
    if not is_private(event):
        return math.inf
    if rows > 1:
        return accountant._group_epsilon(event, delta, rows)
    found = max(profile.epsilon(delta) for profile in accountant._profiles(event))
    if delta < _SMALL_DELTA and accountant.tail is not None and accountant.tail.supports(event):
        return min(found, accountant.tail.epsilon(event, delta))
    return found


_ACCOUNTANTS: dict[str, Accountant] = {}


def register_accountant(accountant: Accountant) -> Accountant:
    """Make ``accountant`` known by its name wherever a name is taken; a name is given once."""
    if _ACCOUNTANTS.setdefault(accountant.name, accountant) != accountant:
        raise ValueError(f"an accountant named {accountant.name!r} is registered already; choose another name")
    return accountant


def as_accountant(accountant: str | Accountant) -> Accountant:
    """The accountant of that name, or the one given."""
    if isinstance(accountant, Accountant):
        return accountant
    return _ACCOUNTANTS[check_choice("accountant", accountant, _ACCOUNTANTS)]


def release_accountant(accountant: str | Accountant) -> Accountant:
    """``as_accountant`` for a release with a private search: one that accounts for its integer noise."""
    integer_noise = DiscreteGaussianDpEvent(1)
    if isinstance(accountant, Accountant) and accountant.supports(integer_noise):
        return accountant
    able = [name for name, known in _ACCOUNTANTS.items() if known.supports(integer_noise)]
    return _ACCOUNTANTS[check_choice("accountant", accountant, able)]


def is_private(event: DpEvent) -> bool:
    """Whether no part of the event is without privacy."""
    return NonPrivateDpEvent() not in basic_events(event)


def epsilon_of(event: DpEvent, delta: float, accountant: str | Accountant = "pld", rows: int = 1) -> float:
    """The smallest epsilon that ``accountant`` proves at ``delta``; infinite if a step is not private.

    ``rows`` is the size of the group that is added or removed, see ``Ledger.epsilon``.
    """
    return as_accountant(accountant).epsilon(event, delta, rows)


def delta_of(
    event: DpEvent, epsilon: ArrayLike, accountant: str | Accountant = "pld", direction: Direction = "both"
) -> Any:
    """The smallest delta that ``accountant`` proves at each ``epsilon`` >= 0; 1 if a step is not private."""
    return as_accountant(accountant).delta(event, epsilon, direction)


def tradeoff_of(event: DpEvent, accountant: str | Accountant = "pld", direction: Direction = "both") -> Tradeoff:
    """The trade-off function of the event, a lower bound that is exact for continuous Gaussian noise.

    ``direction="add"`` gives the curve that Result B needs, tighter under subsampling.
    """
    return as_accountant(accountant).tradeoff(event, direction)
