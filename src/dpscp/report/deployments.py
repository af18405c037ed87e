"""Published deployments of differential privacy and their epsilon, for comparison.

Each value was read in the named source. Units of privacy and trust differ, so the list is an orientation, not a norm.
"""

import math
from dataclasses import dataclass

__all__ = ["DEPLOYMENTS", "Deployment", "scale_place"]

_REGISTRY = "OpenDP Deployments Registry, registry.opendp.org"
_LIST = "D. Desfontaines, desfontain.es/blog/real-world-differential-privacy.html"
# The ends of the logarithmic scale.
_LEAST, _MOST = 0.1, 100.0


@dataclass(frozen=True)
class Deployment:
    """Hold one published deployment.

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
