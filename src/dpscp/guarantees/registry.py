"""From the names of the public interface to guarantees; one line each."""

import math

from dpscp._base.checks import check_choice
from dpscp.guarantees.asymptotic import ASYMPTOTIC
from dpscp.guarantees.base import Guarantee
from dpscp.guarantees.corrected import CORRECTED
from dpscp.guarantees.finite import FINITE
from dpscp.guarantees.split import SPLIT
from dpscp.guarantees.universal import UNIVERSAL
from dpscp.guarantees.value_buffer_guarantee import STABILITY

AUTO = "auto"
GUARANTEES: dict[str, Guarantee] = {g.name: g for g in (UNIVERSAL, STABILITY, SPLIT, CORRECTED, FINITE, ASYMPTOTIC)}
# Where the universal certificate and the held-out part give sets of the same size: docs/recipe.md.
_CROSSING = 1.0


def guarantee_of(given: "str | Guarantee") -> Guarantee:
    """The guarantee that a caller named; a value is taken as it is."""
    if isinstance(given, Guarantee):
        return given
    return GUARANTEES[check_choice("guarantee", given, GUARANTEES)]


def register(guarantee: Guarantee) -> Guarantee:
    """Make a guarantee of one's own known by its name: certificates, plans and files find it there."""
    if not isinstance(guarantee, Guarantee):
        raise TypeError(f"guarantee must be a Guarantee, got {type(guarantee).__name__}")
    if guarantee.name == AUTO or GUARANTEES.get(guarantee.name, guarantee) != guarantee:
        raise ValueError(f"a guarantee named {guarantee.name!r} is there already; choose another name")
    GUARANTEES[guarantee.name] = guarantee
    return guarantee


def automatic(n_records: int, mu: float) -> Guarantee:
    """Split, but universal (all records, wider level) where mu * sqrt(n) is so small that hardly anything is learnt.

    What the universal certificate loses grows with mu alone; what holding records out loses falls with n, and since
    nobody learns which were held out it is little. On synthetic data, Adult and Bank Marketing at n = 200 to 15,000 and
    epsilon = 0.05 to 2 split gave the smaller sets wherever sets were not full; at mu * sqrt(n) near 1 the two are
    alike (docs/recipe.md). The stability certificate gave larger sets everywhere and is never chosen.
    """
    return UNIVERSAL if mu * math.sqrt(n_records) <= _CROSSING else SPLIT
