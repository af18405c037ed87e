"""Divide the privacy budget of a ledger into the stages that used it, and compare it with published deployments."""

import math
from typing import NamedTuple

import numpy as np

from dpscp.privacy import Ledger, gdp_mu
from dpscp.report.statement import part_fractions

__all__ = ["DEPLOYMENTS", "BarPart", "Deployment", "budget_bar", "scale_place"]


class BarPart(NamedTuple):
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
        for (stage, _), chance in zip(entry.stages, part_fractions(entry.event), strict=True):
            width = whole / len(entry.stages) if chance is None else whole * chance
            bar.append(BarPart(stage, width, chance))
    return tuple(bar)


def _share_of(alone: float, epsilon: float, delta: float) -> float:
    """Return the share of a cost in the squared Gaussian-DP level of the budget; an infinite cost has share one."""
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
    unit : the unit of privacy that epsilon protects.
    year : year of publication.
    source : the publication of the value.
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
