"""Charge events that are chosen by earlier outputs: a Gaussian-DP filter.

A share is charged a pair (mu, slack). Its privacy profile lies nowhere above the profile of this mechanism: "reveal
everything with probability slack, otherwise release a normal number with mean mu (with the record) or 0 (without)".
Shares may be chosen in any way while the sum of mu^2 and the sum of slack stay within fixed totals.

Theory: The budget store
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy import special

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting import as_accountant, is_private
from dpscp.privacy.events import frozen_event
from dpscp.privacy.tradeoff import last_where

__all__ = ["Charge", "charge_for", "is_gaussian", "least_slack"]

# Points at which the profile of an event is compared with that of its charge. A chord bounds it between them.
_DOTS = 1024
# The precision of mu, and the rounding error of a comparison of deltas.
_WITHIN, _ROUNDING = 1e-5, 1e-15
_LARGEST_EPSILON = 200.0
_LARGEST_MU = 1e3


@dataclass(frozen=True)
class Charge:
    """What a share takes from a filter; a share with infinite ``mu`` never fits."""

    mu: float
    slack: float = 0.0


def charge_for(event: DpEvent, slack: float) -> Charge:
    """Return the smallest charge of an event with at most this slack.

    The charge is exact and needs no slack for Gaussian noise.
    """
    return _charge(frozen_event(event), slack)


def is_gaussian(event: DpEvent) -> bool:
    """Return whether an event is continuous Gaussian noise, whose charge is exact and needs no slack."""
    return _exact_mu(frozen_event(event)) is not None


def least_slack(event: DpEvent) -> float:
    """Return the limit of an event's delta at large epsilon; 0 for Gaussian noise."""
    return _least_slack(frozen_event(event))


def _exact_mu(event: DpEvent) -> float | None:
    return as_accountant("pld").exact_mu(event) if is_private(event) else None


@lru_cache(maxsize=512)
def _least_slack(event: DpEvent) -> float:
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
