"""Divide the privacy budget of a ledger into the stages that used it, and compare it with published deployments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dp_accounting.dp_event import DpEvent

from dpscp.privacy import Ledger, gdp_mu
from dpscp.privacy.entries import Entry
from dpscp.privacy.events import SecretSplitDpEvent, composed_parts, describe_event

__all__ = ["DEPLOYMENTS", "BarPart", "Deployment", "Spending", "budget_bar", "budget_tracks", "scale_place"]


@dataclass(frozen=True)
class Spending:
    """Hold one stage's part of the budget.

    Epsilons do not add up. Squared Gaussian-DP levels do, exactly for Gaussian noise, so ``share`` is computed from
    these.

    Attributes
    ----------
    stage : name of the stage.
    epsilon : its cost if it were the only stage.
    share : its share of the squared Gaussian-DP level of the budget.
    parts : the computations that the stage consists of, in the same units.
    chance : probability that a record is in this part of a secret split; None if there is no such split.
    """

    stage: str
    epsilon: float
    share: float
    parts: tuple["Spending", ...] = ()
    chance: float | None = None


@dataclass(frozen=True)
class BarPart:
    """Hold one part of the bar of the whole budget.

    Attributes
    ----------
    stage : name of the stage.
    width : its share of the bar.
    chance : probability that a record is in this part of a secret split; None for a stage that uses every record.
    """

    stage: str
    width: float
    chance: float | None = None


def budget_bar(ledger: Ledger, epsilon: float, delta: float) -> tuple[BarPart, ...]:
    """Divide the bar of the whole budget into its stages; the rest of the bar is not spent.

    An entry's width is its share of the squared Gaussian-DP level of the budget. The parts of one entry are
    alternatives for a record, not costs that add up: they divide the entry's width by the probabilities of a secret
    split, or equally.

    Parameters
    ----------
    ledger : Ledger
    epsilon, delta : the budget.

    Returns
    -------
    tuple of BarPart

    Theory: The secret split
    """
    bar: list[BarPart] = []
    for entry in ledger.entries:
        whole = _share_of(ledger.cost_of(entry.event, delta), epsilon, delta)
        chances: Sequence[float | None] = _secret_chances(entry.event) or [None] * len(entry.stages)
        for (stage, _), chance in zip(entry.stages, chances, strict=True):
            width = whole / len(entry.stages) if chance is None else whole * chance
            bar.append(BarPart(stage, width, chance))
    return tuple(bar)


def budget_tracks(ledger: Ledger, epsilon: float, delta: float) -> tuple[tuple[Spending, ...], ...]:
    """List the stages that use one record, for each part that it can be in.

    Epsilons are for the ledger's unit of privacy. For a secret split, the epsilon of a part is its cost for a record
    that is known to be in it, and shares are relative to that cost.

    Parameters
    ----------
    ledger : Ledger
    epsilon, delta : the budget.

    Returns
    -------
    One tuple of ``Spending`` for each disjoint part of the records.

    Paper: Theorem 1 [thm:overall_privacy]
    """
    tracks: list[tuple[Spending, ...]] = [()]
    for entry in ledger.entries:
        tracks = [(*track, item) for item in _measure_entry(entry, epsilon, delta, ledger) for track in tracks]
    return tuple(tracks)


def _secret_chances(event: DpEvent) -> list[float] | None:
    """Return the probability of each part of a secret split, training first; None for other events."""
    if not isinstance(event, SecretSplitDpEvent):
        return None
    # the held-out side of three parts is a secret split again
    return [1 - event.fraction, *(event.fraction * rest for rest in _secret_chances(event.held_out) or [1.0])]


def _measure_entry(entry: Entry, epsilon: float, delta: float, ledger: Ledger) -> list[Spending]:
    chances = _secret_chances(entry.event)
    found = []
    for place, (name, event) in enumerate(entry.stages):
        alone = ledger.cost_of(event, delta)
        # a secret part alone may cost more than the budget: its shares are relative to its own cost
        whole = epsilon if chances is None else max(epsilon, alone)
        pieces = _list_pieces(entry, place) if np.isfinite(alone) else []
        costs = [(words, ledger.cost_of(piece, delta)) for words, piece in pieces]
        parts = tuple(Spending(words, cost, _share_of(cost, whole, delta)) for words, cost in costs)
        chance = None if chances is None else chances[place]
        found.append(Spending(name, alone, _share_of(alone, whole, delta), parts if len(parts) > 1 else (), chance))
    return found


def _list_pieces(entry: Entry, place: int) -> list[tuple[str, DpEvent]]:
    """List the computations of one part in words, behind the names of its components where it has any."""
    part, event = entry.stages[place]
    pieces = []
    for name, component in entry.components_of(place):
        named = f"{name.removeprefix(f'{part}: ')}: " if component is not event else ""
        pieces += [(f"{named}{describe_event(piece)}", piece) for piece in composed_parts(component)]
    return pieces


def _share_of(alone: float, epsilon: float, delta: float) -> float:
    """Return the share of a cost in the squared Gaussian-DP level of the budget; an infinite cost is all of it."""
    if not np.isfinite(alone):
        return 1.0
    return float((gdp_mu(alone, delta) / gdp_mu(epsilon, delta)) ** 2) if alone > 0 else 0.0


_REGISTRY = "OpenDP Deployments Registry, registry.opendp.org"
_LIST = "D. Desfontaines, desfontain.es/blog/real-world-differential-privacy.html"
# The ends of the logarithmic scale.
_LEAST, _MOST = 0.1, 100.0


class Deployment(NamedTuple):
    """Hold one published deployment; units of privacy and trust differ, so it is an orientation, not a norm.

    Attributes
    ----------
    name : organization and product.
    epsilon : the published value.
    unit : what one epsilon protects.
    year : year of publication.
    source : where the value was read.
    """

    name: str
    epsilon: float
    unit: str
    year: int
    source: str


DEPLOYMENTS = (
    Deployment("Google, search trends of symptoms", 1.68, "one day of a user", 2020, "arXiv:2009.01265"),
    Deployment("Apple, types of health data in use", 2.0, "one day of a user, noise on the device", 2017, _LIST),
    Deployment("Google, searches about vaccination", 2.19, "one day of a user", 2021, "arXiv:2107.01179"),
    Deployment("Apple, popular emoji", 4.0, "one day of a user, noise on the device", 2017, _LIST),
    Deployment("Microsoft, text suggestions (Assistive AI)", 4.0, "a user", 2020, _REGISTRY),
    Deployment("Israel, registry of live births of 2014", 9.98, "one birth", 2024, _REGISTRY),
    Deployment(
        "US census of 2020, redistricting data",
        19.61,
        "a person and a housing unit",
        2021,
        "U.S. Census Bureau, Key Parameters to Protect Privacy in 2020 Census Results, 2021-06-09",
    ),
    Deployment("LinkedIn, audience statistics", 34.9, "one month of a member", 2020, _REGISTRY),
)


def scale_place(epsilon: float) -> float:
    """Return the place of an epsilon on the logarithmic scale, from 0 to 1."""
    if not math.isfinite(epsilon):
        return 1.0
    place = math.log(max(epsilon, _LEAST) / _LEAST) / math.log(_MOST / _LEAST)
    return min(1.0, place)
