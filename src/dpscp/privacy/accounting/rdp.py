"""Rényi DP on the order grid of Opacus: the accounting of the paper."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy import special

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting.base import Accountant, Direction, History, Profile
from dpscp.privacy.accounting.gdp import GaussianProfile
from dpscp.privacy.events import BoundedRangeDpEvent, DiscreteGaussianDpEvent

OPACUS_ORDERS = tuple([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))
# Where dp-accounting ends a series: at so many terms, or where a term is below exp of minus this of the sum.
_MOST_TERMS, _NEGLIGIBLE = 1000, 30.0
_CHUNK = 50


# For each kind of event, an event of dp-accounting whose Rényi divergences are at least as large. The discrete Gaussian
# is rho-zCDP with the rho of the continuous one. An exponential mechanism of loss range r is r^2 / 8-zCDP (Cesar and
# Rogers 2021), as a Gaussian of multiplier 2 / r.
_STANDS_FOR: dict[type[DpEvent], Callable[[Any], DpEvent]] = {
    GaussianDpEvent: lambda event: event,
    PoissonSampledDpEvent: lambda event: event,
    LaplaceDpEvent: lambda event: event,
    DiscreteGaussianDpEvent: lambda event: GaussianDpEvent(event.sigma / event.sensitivity),
    BoundedRangeDpEvent: lambda event: GaussianDpEvent(2 / event.loss_range),
}


@dataclass(frozen=True)
class _RenyiProfile:
    composed: RdpAccountant
    mu: None = None

    def epsilon(self, delta: float) -> float:
        return float(self.composed.get_epsilon(delta))

    def delta(self, epsilons: FloatArray, direction: Direction) -> FloatArray:  # noqa: ARG002 (the bound holds for both)
        """Return the bounds of dp-accounting for all epsilons at once.

        An order whose divergence was rounded to 0 proves nothing and is left out.
        """
        orders, rdp = np.array(OPACUS_ORDERS), np.asarray(self.composed._rdp, dtype=float)
        orders, rdp = orders[rdp > 0], rdp[rdp > 0]
        # the divergence of order 1 (KL) is at most each of these, and delta <= sqrt(1 - exp(-KL))
        by_kl = np.min(0.5 * np.log1p(-np.exp(-rdp)), initial=0.0)
        by_order = (orders - 1) * (rdp - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
        return np.asarray(np.exp(np.min(by_order, axis=1, initial=by_kl)))


def _profile(history: History) -> Profile:
    return _compose_divergences(tuple(history.items())) if history else GaussianProfile(0.0)


@lru_cache(maxsize=64)
def _compose_divergences(history: tuple[tuple[DpEvent, int], ...]) -> Profile:
    composed = RdpAccountant(OPACUS_ORDERS)
    for event, count in history:
        composed._rdp += count * _divergences(event)
    return _RenyiProfile(composed)


@lru_cache(maxsize=64)
def _divergences(event: DpEvent) -> FloatArray:
    """Return the divergences of one release; cached, since noise searches repeat it."""
    stands_for = _STANDS_FOR[type(event)](event)
    if isinstance(stands_for, PoissonSampledDpEvent):
        return _sampled_gaussian_divergences(stands_for.sampling_probability, stands_for.event.noise_multiplier)
    return np.asarray(RdpAccountant(OPACUS_ORDERS).compose(stands_for)._rdp)


def _sampled_gaussian_divergences(rate: float, sigma: float) -> FloatArray:
    """Return the divergences of one Poisson-sampled Gaussian release, for all orders at once.

    These are the sums of dp-accounting, which adds them term by term for one order after the other. An order whose
    series does not converge gets an infinite divergence, so the bound of the other orders holds.
    """
    orders = np.array(OPACUS_ORDERS)
    if rate == 0:
        return np.zeros(orders.shape)
    if sigma == 0:
        return np.full(orders.shape, np.inf)
    if rate == 1:
        return np.asarray(orders / (2 * sigma**2))
    is_whole = orders == np.floor(orders)
    log_moments = np.empty_like(orders)
    with np.errstate(all="ignore"):
        log_moments[is_whole] = _whole_log_moments(rate, sigma, orders[is_whole])
        log_moments[~is_whole] = _fractional_log_moments(rate, sigma, orders[~is_whole])
    return np.asarray(log_moments / (orders - 1))


def _log_binomial(orders: FloatArray, term: int | NDArray[np.int64]) -> FloatArray:
    found = special.gammaln(orders + 1) - special.gammaln(term + 1) - special.gammaln(orders - term + 1)
    return np.asarray(found)


def _whole_log_moments(rate: float, sigma: float, orders: FloatArray) -> FloatArray:
    """Return the log of E[(density ratio)^order] for whole orders: a finite sum."""
    total = np.full(orders.shape, -np.inf)
    for i in range(int(orders.max()) + 1):
        terms = _log_binomial(orders, i) + i * math.log(rate) + (orders - i) * math.log1p(-rate)
        total = np.where(i <= orders, np.logaddexp(total, terms + (i * i - i) / (2 * sigma**2)), total)
    return total


def _fractional_log_moments(rate: float, sigma: float, orders: FloatArray) -> FloatArray:
    """Return the same for other orders: two series (section 3.3 of Mironov, Talwar and Zhang 2019), in chunks."""
    z0 = sigma**2 * math.log(1 / rate - 1) + 0.5
    found, running = np.full(orders.shape, np.inf), np.arange(orders.size)
    sums = last = np.full((2, orders.size, 1), -np.inf)
    for first in range(0, _MOST_TERMS, _CHUNK):
        i = np.arange(first, first + _CHUNK)
        own = orders[running, None]
        rest, binomial = own - i, _log_binomial(own, i)
        below = i * math.log(rate) + rest * math.log1p(-rate) + (i * i - i) / (2 * sigma**2)
        above = rest * math.log(rate) + i * math.log1p(-rate) + (rest * rest - rest) / (2 * sigma**2)
        tails = special.log_ndtr((z0 - i) / sigma), special.log_ndtr((rest - z0) / sigma)
        added = np.stack([binomial + below + tails[0], binomial + above + tails[1]])
        sums = np.logaddexp.accumulate(np.append(sums, added, axis=2), axis=2)[:, :, 1:]
        total = np.logaddexp(*sums)
        is_falling = (added < np.append(last, added[:, :, :-1], axis=2)).all(axis=0)
        is_end = is_falling & (added.max(axis=0) < total - _NEGLIGIBLE)
        is_done, end = is_end.any(axis=1), is_end.argmax(axis=1)
        found[running[is_done]] = total[is_done, end[is_done]]
        running, sums, last = running[~is_done], sums[:, ~is_done, -1:], added[:, ~is_done, -1:]
        if not running.size:
            break
    return found


def _has_divergences(event: DpEvent) -> bool:
    return type(event) in _STANDS_FOR


RDP = Accountant("rdp", _has_divergences, _profile)
