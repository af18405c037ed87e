"""Rényi DP on the order grid of Opacus: the accounting of the paper."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, log_ndtr

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting import Accountant, Direction, History, Profile, gaussian_profile
from dpscp.privacy.events import DiscreteGaussianDpEvent

# Terms of a series that are added before a longer one is tried. An order that needs more than the last proves nothing.
_TERMS = (64, 256, 1000)
# A series ends where its terms decrease and are smaller than the sum by this factor (a logarithm).
_NEGLIGIBLE = 30.0

OPACUS_ORDERS = tuple([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))


# For each kind of event, an event of dp-accounting whose Rényi divergences are at least as large. The discrete Gaussian
# is rho-zCDP with the rho of the continuous one.
_STANDS_FOR: dict[type[DpEvent], Callable[[Any], DpEvent]] = {
    GaussianDpEvent: lambda event: event,
    PoissonSampledDpEvent: lambda event: event,
    DiscreteGaussianDpEvent: lambda event: GaussianDpEvent(event.sigma / event.sensitivity),
}


def _profile(history: History) -> Profile:
    return _compose_divergences(tuple(history.items())) if history else gaussian_profile(0.0)


@lru_cache(maxsize=64)
def _compose_divergences(history: tuple[tuple[DpEvent, int], ...]) -> Profile:
    composed = RdpAccountant(OPACUS_ORDERS)
    for event, count in history:
        composed._rdp += count * _divergences(event)

    def deltas(epsilons: FloatArray, _direction: Direction) -> FloatArray:
        """Return the bounds of dp-accounting at all epsilons, for both directions.

        An order whose divergence was rounded to 0 proves nothing and is left out.
        """
        orders, rdp = np.array(OPACUS_ORDERS), np.asarray(composed._rdp, dtype=float)
        orders, rdp = orders[rdp > 0], rdp[rdp > 0]
        # the divergence of order 1 (KL) is at most each of these, and delta <= sqrt(1 - exp(-KL))
        by_kl = np.min(0.5 * np.log1p(-np.exp(-rdp)), initial=0.0)
        by_order = (orders - 1) * (rdp - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
        return np.asarray(np.exp(np.min(by_order, axis=1, initial=by_kl)))

    return Profile(lambda delta: float(composed.get_epsilon(delta)), deltas)


@lru_cache(maxsize=64)
def _divergences(event: DpEvent) -> FloatArray:
    """Return the divergences of one release; cached, since noise searches repeat it."""
    if isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent):
        rate, noise = float(event.sampling_probability), float(event.event.noise_multiplier)
        if 0 < rate < 1 and noise > 0:
            return sampled_gaussian_divergences(rate, noise, OPACUS_ORDERS)
    return np.asarray(RdpAccountant(OPACUS_ORDERS).compose(_STANDS_FOR[type(event)](event))._rdp)


def sampled_gaussian_divergences(rate: float, noise: float, orders: Sequence[float]) -> FloatArray:
    """Return the divergences of one release; infinite if a series does not converge.

    Parameters
    ----------
    rate : float in (0, 1)
        The probability with which a record is in the sample.
    noise : float
        Noise scale over sensitivity, positive.
    orders : sequence of float above 1

    Returns
    -------
    ndarray, shape (n_orders,)

    Paper: Mironov, Talwar and Zhang (2019), Rényi Differential Privacy of the Sampled Gaussian Mechanism, section 3.3
    """
    alpha = np.array(orders, dtype=float)
    whole = alpha == np.floor(alpha)
    logs = np.full(len(alpha), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        logs[whole] = _finite_series(rate, noise, alpha[whole])
        left = np.flatnonzero(~whole)
        for terms in _TERMS:
            logs[left] = _infinite_series(rate, noise, alpha[left], terms)
            left = left[np.isinf(logs[left])]
    # what is no number proves nothing either
    return np.asarray(np.where(np.isnan(logs), np.inf, logs) / (alpha - 1))


def _log_binomials(alpha: FloatArray, i: FloatArray) -> FloatArray:
    """Return the logarithms of the magnitudes of the coefficients.

    The sum of magnitudes is at least the sum.
    """
    return np.asarray(gammaln(alpha + 1) - gammaln(i + 1) - gammaln(alpha - i + 1))


def _finite_series(rate: float, noise: float, alpha: FloatArray) -> FloatArray:
    """Return the logarithm of the moment of each whole order."""
    order, i = alpha[:, None], np.arange(alpha.max(initial=0.0) + 1)
    # terms beyond the order have the coefficient zero
    coefficients = np.where(i <= order, _log_binomials(order, np.minimum(i, order)), -np.inf)
    logs = coefficients + i * math.log(rate) + (order - i) * math.log1p(-rate) + (i * i - i) / (2 * noise**2)
    return np.asarray(np.logaddexp.reduce(logs, axis=1))


def _infinite_series(rate: float, noise: float, alpha: FloatArray, terms: int) -> FloatArray:
    """Return the same for other orders; infinite if ``terms`` are not enough."""
    i = np.arange(float(terms))
    j = alpha[:, None] - i
    coefficients = _log_binomials(alpha[:, None], i)
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    log_in, log_out = math.log(rate), math.log1p(-rate)
    # the integral from minus infinity to the middle, and the rest
    below = coefficients + i * log_in + j * log_out + (i * i - i) / (2 * noise**2) + log_ndtr((middle - i) / noise)
    above = coefficients + j * log_in + i * log_out + (j * j - j) / (2 * noise**2) + log_ndtr((j - middle) / noise)
    total = np.logaddexp(np.logaddexp.accumulate(below, axis=1), np.logaddexp.accumulate(above, axis=1))
    decreasing = (np.diff(below, axis=1) < 0) & (np.diff(above, axis=1) < 0)
    ends = decreasing & (np.maximum(below, above) < total - _NEGLIGIBLE)[:, 1:]
    found = np.where(ends.any(axis=1), total[np.arange(len(alpha)), 1 + ends.argmax(axis=1)], np.inf)
    return np.asarray(found)


RDP = Accountant("rdp", _STANDS_FOR, _profile)
