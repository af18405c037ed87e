"""What an event costs when events are chosen one after the other by what earlier ones released: a Gaussian-DP filter.

A share is charged a pair (mu, slack): its privacy profile lies nowhere above that of "reveal all with probability
slack, otherwise release one normal number of mean mu with the record and 0 without". Shares that are charged so may be
chosen in any way, as long as the squares of their mu and their slacks stay within fixed totals: docs/guarantees.md,
the budget store.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy import special

from dpscp.privacy.accounting import as_accountant, is_private
from dpscp.privacy.accounting.base import Array
from dpscp.privacy.events import frozen_event
from dpscp.privacy.tradeoff import last_where

__all__ = ["Charge", "charge_for", "least_slack"]

# Dots at which an event's profile is compared with that of its charge; between them a chord bounds it.
_DOTS = 1024
# How closely mu is found, and what float rounding may take from a comparison of deltas.
_WITHIN, _ROUNDING = 1e-5, 1e-15
_LARGEST_EPSILON = 200.0
_LARGEST_MU = 1e3


@dataclass(frozen=True)
class Charge:
    """What a share takes from a filter; an infinite ``mu`` fits none."""

    mu: float
    slack: float = 0.0


def charge_for(event: DpEvent, slack: float) -> Charge:
    """The smallest charge of an event that uses this much slack at most; exact and without any for Gaussian noise."""
    return _charge(frozen_event(event), slack)


def least_slack(event: DpEvent) -> float:
    """What an event's delta does not fall below at any epsilon; nothing for Gaussian noise."""
    return _least_slack(frozen_event(event))


@lru_cache(maxsize=512)
def _least_slack(event: DpEvent) -> float:
    accountant = as_accountant("pld")
    if is_private(event) and accountant.exact_mu(event) is not None:
        return 0.0
    return float(accountant.delta(event, _LARGEST_EPSILON))


@lru_cache(maxsize=512)
def _charge(event: DpEvent, slack: float) -> Charge:
    if not is_private(event):
        return Charge(math.inf)
    accountant = as_accountant("pld")
    mu = accountant.exact_mu(event)
    if mu is not None:
        return Charge(mu)
    top = accountant.epsilon(event, slack) if slack > 0 else math.inf
    if not 0 < top <= _LARGEST_EPSILON:
        return Charge(0.0 if top == 0 else math.inf, slack)
    epsilons = np.linspace(0.0, top, _DOTS + 1)
    # above the last dot the slack alone is enough: delta falls
    return Charge(_dominating_mu(epsilons, accountant.delta(event, epsilons) + _ROUNDING, slack), slack)


def _dominating_mu(epsilons: Array, deltas: Array, slack: float) -> float:
    """The smallest mu with slack + (1 - slack) * delta of mu-GDP nowhere below a profile with these dots.

    A profile is convex in e^epsilon, so a chord bounds it between two dots. The Gaussian one is convex as well, with
    the slope -Phi(-epsilon / mu - mu / 2), so it comes closest to a chord where it has the chord's slope.
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
