"""Compute what events cost: epsilon, delta and trade-off functions.

Two accountants are registered:

``pld``  privacy loss distributions, tight up to discretization and always rounded up (the default);
``rdp``  Rényi DP on the order grid of Opacus, the accounting of the paper;

An accountant knows basic events only: ``profile`` computes the cost of one history of basic events. This module adds
what all accountants share: steps without privacy, parallel parts (a record lies in one of them, so the most expensive
history counts), trade-off functions, groups of records, and caches.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from dp_accounting.dp_event import DpEvent, NonPrivateDpEvent
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_count, check_probability
from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy.events import (
    SecretSplitDpEvent,
    basic_events,
    composed_parts,
    disclose_parts,
    frozen_event,
    possible_histories,
)
from dpscp.privacy.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_deltas,
    gdp_epsilon,
    tradeoff_from_profile,
    upper_envelope,
)

History = Mapping[DpEvent, int]
"""How often each basic event used one record."""

Direction = Literal["both", "add", "remove"]
"""Which of the two neighbors is the null: ``add`` bounds M(D) by M(D plus one record), as Result B needs."""

_OPPOSITE: dict[Direction, Direction] = {"both": "both", "add": "remove", "remove": "add"}
_LARGEST_EPSILON = 200.0
# The delta at the largest epsilon of a trade-off function. Groups need a smaller one: each step of the chain multiplies
# it.
_CURVE_TAIL, _GROUP_TAIL = 1e-12, 1e-30
# Below this delta the rounding of an accountant may matter, so the accountant for the smallest deltas is used as well.
_SMALL_DELTA = 1e-9
# The smallest false-alarm rate of the bisection for a group.
_SMALLEST_RATE = 1e-300


@dataclass(frozen=True)
class Profile:
    """The cost of one history.

    Attributes
    ----------
    epsilon : callable
        ``epsilon(delta)`` returns the smallest epsilon that is proven.
    delta : callable
        ``delta(epsilons, direction)`` returns the smallest proven delta at each epsilon of an array of shape (k,). The
        epsilons increase and are at least 0; ``direction`` is "both", "add" or "remove".
    mu : float, optional
        The level of Gaussian DP if it is the exact cost.
    """

    epsilon: Callable[[float], float]
    delta: Callable[[FloatArray, Direction], FloatArray]
    mu: float | None = None


@dataclass(frozen=True)
class Accountant:
    """One method to prove the cost of events; see ``register_accountant``.

    Attributes
    ----------
    name : str
    kinds : collection of types
        The classes of the basic events that ``profile`` supports. With ``SecretSplitDpEvent`` among them a secret split
        costs its mixture, otherwise its more expensive part.
    profile : callable
        ``profile(history)`` returns the cost of a history of such events. Every number must be an upper bound.
    bound : callable, optional
        Used instead of ``profile`` if parallel parts have too many combinations. It gets the composed events and
        returns one profile above those of all combinations.
    tail : Accountant, optional
        An accountant that rounds less, for the smallest deltas.
    """

    name: str
    kinds: Collection[type[DpEvent]] = field(hash=False)
    profile: Callable[[History], Profile]
    bound: Callable[[Sequence[DpEvent]], Profile] | None = None
    tail: "Accountant | None" = None

    @property
    def keeps_secrets(self) -> bool:
        """Whether the secrecy of a split lowers its cost."""
        return SecretSplitDpEvent in self.kinds

    def supports(self, event: DpEvent) -> bool:
        """Return whether the accountant supports every part of the event.

        Steps without privacy are supported: their cost is infinite.
        """
        try:
            if self.bound is None:
                possible_histories(event if self.keeps_secrets else disclose_parts(event))
            return not self._unknown(event)
        except UnsupportedEventError:
            return False

    def epsilon(self, event: DpEvent, delta: float, rows: int = 1) -> float:
        """Return the smallest epsilon that is proven at ``delta``.

        Parameters
        ----------
        event : DpEvent
        delta : float
        rows : int
            The size of the group that is added or removed.

        Returns
        -------
        float
            Infinite if a step is not private.
        """
        delta, rows = check_probability("delta", delta), check_count("rows", rows)
        return _known_epsilon(self, frozen_event(event), delta, rows)

    def delta(self, event: DpEvent, epsilon: ArrayLike, direction: Direction = "both") -> Any:
        """Return the smallest delta that is proven at each ``epsilon``.

        Parameters
        ----------
        event : DpEvent
        epsilon : float or array
            At least 0.
        direction : {"both", "add", "remove"}

        Returns
        -------
        float or ndarray of the shape of ``epsilon``
            1 if a step is not private.
        """
        check_choice("direction", direction, _OPPOSITE)
        epsilons = np.asarray(epsilon, dtype=float)
        if np.any(~(epsilons >= 0)):
            raise ValueError("epsilon must be at least 0")
        deltas = np.ones_like(epsilons)
        if is_private(event):
            # dp-accounting needs increasing epsilons
            flat, back = np.unique(epsilons.ravel(), return_inverse=True)
            worst = np.max([profile.delta(flat, direction) for profile in self._profiles(event)], axis=0)
            deltas = np.clip(worst, 0.0, 1.0)[back].reshape(epsilons.shape)
        return float(deltas) if epsilons.ndim == 0 else deltas

    def signed_delta(self, event: DpEvent, epsilons: FloatArray, direction: Direction = "both") -> FloatArray:
        """Return delta at increasing ``epsilons``, which may be negative."""
        negative, rest = epsilons[epsilons < 0], epsilons[epsilons >= 0]
        # exchanging the two laws gives the profile at negative epsilon
        swapped = 1 - np.exp(negative) * (1 - self.delta(event, -negative, _OPPOSITE[direction]))
        return np.concatenate([swapped, self.delta(event, rest, direction)])

    def tradeoff(self, event: DpEvent, direction: Direction = "both") -> Tradeoff:
        """Return the trade-off function of the event.

        It is exact for continuous Gaussian noise, otherwise a lower bound.
        """
        if not is_private(event):
            return epsilon_delta_tradeoff(0.0, 1.0)
        mu = self.exact_mu(event)
        if mu is not None:
            return gaussian_tradeoff(mu) if mu > 0 else epsilon_delta_tradeoff(0.0, 0.0)
        return _known_tradeoff(self, frozen_event(event), direction)

    def _profiles(self, event: DpEvent) -> list[Profile]:
        """Return the costs of all possible histories; the largest counts."""
        if unknown := self._unknown(event):
            able = [repr(other.name) for other in _ACCOUNTANTS.values() if not other._unknown(event)]
            raise UnsupportedEventError(
                f"accountant={self.name!r} cannot account for {', '.join(unknown)}; "
                + (f"use accountant={' or '.join(able)}, which can" if able else "no accountant can")
            )
        event = event if self.keeps_secrets else disclose_parts(event)
        try:
            histories = possible_histories(event)
        except UnsupportedEventError:  # too many to examine each
            parts = composed_parts(event)
            if self.bound is None or len(parts) == 1:
                raise
            return [self.bound(parts)]
        return [self.profile(history) for history in histories]

    def _unknown(self, event: DpEvent) -> list[str]:
        """Return the names of the basic events that are not supported."""
        basic = basic_events(event) - {NonPrivateDpEvent()}
        return sorted({type(e).__name__ for e in basic if type(e) not in self.kinds})

    def exact_mu(self, event: DpEvent) -> float | None:
        """Return the level of Gaussian DP if it is the exact cost, otherwise None."""
        levels = [profile.mu for profile in self._profiles(event)]
        return None if None in levels else max(mu for mu in levels if mu is not None)

    def replacement_epsilon(self, event: DpEvent, delta: float, rows: int = 1) -> float:
        """Return epsilon at ``delta`` for replacing ``rows`` records by others.

        It is infinite without privacy. Replacing is removing and adding: a chain of twice as many steps, each bounded
        by the worse direction.
        """
        delta, rows = check_probability("delta", delta), check_count("rows", rows)
        event = frozen_event(event)
        return self._group_epsilon(event, delta, 2 * rows, ("both",)) if is_private(event) else math.inf

    def _group_epsilon(
        self, event: DpEvent, delta: float, rows: int, directions: tuple[Direction, ...] = ("add", "remove")
    ) -> float:
        """Return epsilon for someone with ``rows`` records in any of the parallel parts.

        The records are added one after the other. Each step is bounded by the most expensive history at each error
        rate, in whichever part the record lies. So the chain bounds every distribution of the records over the parts.
        Chaining one history and taking the maximum afterwards would not. Adding all and removing all are two separate
        chains.
        """
        mu = self.exact_mu(event)
        if mu is not None:
            # G_mu of G_mu is G_2mu, and the cost is largest if all records lie in the part of the largest mu
            return gdp_epsilon(delta, rows * mu)
        far, far_deltas = np.empty(0), np.empty(0)
        if self.tail is not None and self.tail.supports(event):
            far = np.geomspace(0.05, _LARGEST_EPSILON, 120)
            far_deltas = self.tail.delta(event, far)
        pairs = (_proven_pairs(self, event, direction, _GROUP_TAIL) for direction in directions)
        return max(
            group_epsilon(np.append(epsilons, far), np.append(deltas, far_deltas), delta, rows)
            for epsilons, deltas in pairs
        )


@lru_cache(maxsize=512)
def _known_epsilon(accountant: Accountant, event: DpEvent, delta: float, rows: int) -> float:
    """Compute and cache epsilon: budget, ledger and certificate use the same total."""
    if not is_private(event):
        return math.inf
    if rows > 1:
        return accountant._group_epsilon(event, delta, rows)
    found = max(profile.epsilon(delta) for profile in accountant._profiles(event))
    if delta < _SMALL_DELTA and accountant.tail is not None and accountant.tail.supports(event):
        return min(found, accountant.tail.epsilon(event, delta))
    return found


@lru_cache(maxsize=32)
def _known_tradeoff(accountant: Accountant, event: DpEvent, direction: Direction) -> Tradeoff:
    """Compute and cache a trade-off function: a report reads one at many rates."""
    return tradeoff_from_profile(*_proven_pairs(accountant, event, direction, _CURVE_TAIL))


@lru_cache(maxsize=32)
def _proven_pairs(
    accountant: Accountant, event: DpEvent, direction: Direction, tail: float
) -> tuple[FloatArray, FloatArray]:
    """Return proven pairs (epsilon, delta) of one direction.

    The epsilons may be negative. A report uses the pairs for several groups and curves.
    """
    top, floor = 1.0, accountant.delta(event, _LARGEST_EPSILON)
    while accountant.delta(event, top) > floor + tail and top < _LARGEST_EPSILON:
        top *= 2
    # dense where coverage levels lie (small epsilon), coarse where f is nearly 0 or 1
    epsilons = np.unique(np.concatenate([np.linspace(0, min(top, 8), 3001), np.geomspace(1e-3, top, 200)]))
    epsilons = np.concatenate([-epsilons[:0:-1], epsilons])
    pairs = epsilons, accountant.signed_delta(event, epsilons, direction)
    for values in pairs:
        values.setflags(write=False)  # every caller gets the same arrays
    return pairs


def group_epsilon(epsilons: FloatArray, deltas: FloatArray, delta: float, rows: int) -> float:
    """Return the smallest epsilon >= 0 at ``delta`` for ``rows`` records.

    ``epsilons`` and ``deltas`` are pairs of one direction for one record; epsilons may be negative. They bound the
    power g(x) = 1 - f(x) of an attacker at false-alarm rate x by the smallest of the lines delta + e^epsilon x. For k
    records, added one after the other, the power is at most g applied k times. This chained power g_k is concave. So
    (g_k(x) - delta) / x rises while the tangent at x meets the axis below ``delta``, and falls
    afterwards. A bisection finds its maximum between two adjacent floats, and the result uses the worse end of each
    factor. It is infinite if the pairs prove nothing at this ``delta``.

    Paper: Supplement S2, trade-off functions; the chain is Theorem 2.14 of Dong, Roth and Su, Gaussian Differential
    Privacy
    """
    # no power is above 1
    intercepts, slopes = np.append(deltas, 1.0), np.append(np.exp(epsilons), 0.0)
    kept, starts = upper_envelope(-intercepts, slopes)
    intercepts, slopes = intercepts[kept], slopes[kept]

    def chain(x: float) -> tuple[float, float]:
        """Return g_k(x), and where its tangent meets the axis."""
        foot = 0.0
        for _ in range(rows):
            line = int(np.searchsorted(starts, x, side="right"))
            x, foot = intercepts[line] + slopes[line] * x, intercepts[line] + slopes[line] * foot
        return x, foot

    low, high = _SMALLEST_RATE, 1.0
    if chain(low)[1] > delta:
        return math.inf
    while True:
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        low, high = (middle, high) if chain(middle)[1] <= delta else (low, middle)
    power = chain(high)[0] * (1 + 1e-15 * rows)  # each step of the chain rounds
    return max(0.0, math.log((power - delta) / low)) if power > delta else 0.0


_ACCOUNTANTS: dict[str, Accountant] = {}


def register_accountant(accountant: Accountant) -> Accountant:
    """Register ``accountant`` under its name.

    Parameters
    ----------
    accountant : Accountant

    Returns
    -------
    Accountant
        The same object.
    """
    if _ACCOUNTANTS.setdefault(accountant.name, accountant) != accountant:
        raise ValueError(f"an accountant named {accountant.name!r} is registered already; choose another name")
    return accountant


def as_accountant(accountant: str | Accountant) -> Accountant:
    """Return the accountant of that name, or the given one.

    Parameters
    ----------
    accountant : str or Accountant

    Returns
    -------
    Accountant
    """
    if isinstance(accountant, Accountant):
        return accountant
    return _ACCOUNTANTS[check_choice("accountant", accountant, _ACCOUNTANTS)]


def is_private(event: DpEvent) -> bool:
    """Return whether every part of the event is private.

    Parameters
    ----------
    event : DpEvent

    Returns
    -------
    bool
    """
    return NonPrivateDpEvent() not in basic_events(event)


def epsilon_of(event: DpEvent, delta: float, accountant: str | Accountant = "pld", rows: int = 1) -> float:
    """Return the smallest epsilon that ``accountant`` proves at ``delta``.

    Parameters
    ----------
    event : DpEvent
    delta : float
    accountant : str or Accountant
    rows : int
        The size of the group that is added or removed, see ``Ledger.epsilon``.

    Returns
    -------
    float
        Infinite if a step is not private.
    """
    return as_accountant(accountant).epsilon(event, delta, rows)


def delta_of(
    event: DpEvent, epsilon: ArrayLike, accountant: str | Accountant = "pld", direction: Direction = "both"
) -> Any:
    """Return the smallest delta that ``accountant`` proves at each ``epsilon``.

    Parameters
    ----------
    event : DpEvent
    epsilon : float or array
        At least 0.
    accountant : str or Accountant
    direction : {"both", "add", "remove"}

    Returns
    -------
    float or ndarray of the shape of ``epsilon``
        1 if a step is not private.
    """
    return as_accountant(accountant).delta(event, epsilon, direction)


def tradeoff_of(event: DpEvent, accountant: str | Accountant = "pld", direction: Direction = "both") -> Tradeoff:
    """Return a lower bound of the trade-off function of the event.

    It is exact for continuous Gaussian noise.

    Parameters
    ----------
    event : DpEvent
    accountant : str or Accountant
    direction : {"both", "add", "remove"}
        ``"add"`` is the curve that Result B needs. It is tighter under subsampling.

    Returns
    -------
    callable
    """
    return as_accountant(accountant).tradeoff(event, direction)


def gaussian_profile(mu: float) -> Profile:
    """Return the exact cost of ``mu``-GDP; ``mu=0`` if nothing happened."""
    return Profile(lambda delta: gdp_epsilon(delta, mu), lambda epsilons, _direction: gdp_deltas(epsilons, mu), mu)
