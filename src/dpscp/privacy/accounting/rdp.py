"""Rényi DP on the order grid of Opacus: the accounting of the paper."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting.base import Accountant, Direction, History, Profile
from dpscp.privacy.accounting.gdp import GaussianProfile
from dpscp.privacy.accounting.sampled_renyi import sampled_gaussian_divergences
from dpscp.privacy.events import BoundedRangeDpEvent, DiscreteGaussianDpEvent

OPACUS_ORDERS = tuple([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))


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
    if isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent):
        rate, noise = float(event.sampling_probability), float(event.event.noise_multiplier)
        if 0 < rate < 1 and noise > 0:
            return sampled_gaussian_divergences(rate, noise, OPACUS_ORDERS)
    with _quiet_orders():
        return np.asarray(RdpAccountant(OPACUS_ORDERS).compose(_STANDS_FOR[type(event)](event))._rdp)


@contextmanager
def _quiet_orders() -> Iterator[None]:
    """Drop dp-accounting's messages about orders whose series does not converge.

    Such an order gets an infinite divergence, so the bound of the other orders holds, and a caller can do nothing.
    """
    import_module("absl.logging")  # creates the logger, with a class of its own
    logger = logging.getLogger("absl")

    def is_other(record: logging.LogRecord) -> bool:
        return "failed to converge" not in str(record.msg)

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _has_divergences(event: DpEvent) -> bool:
    return type(event) in _STANDS_FOR


RDP = Accountant("rdp", _has_divergences, _profile)
