"""The registry of guarantees by name."""

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
# At this mu * sqrt(n) the universal certificate and the held-out part give sets of equal size: docs/recipe.md.
_CROSSING = 1.0


def guarantee_of(given: "str | Guarantee") -> Guarantee:
    """Return the guarantee of that name, or the given one.

    Parameters
    ----------
    given : str or Guarantee

    Returns
    -------
    Guarantee
    """
    if isinstance(given, Guarantee):
        return given
    return GUARANTEES[check_choice("guarantee", given, GUARANTEES)]


def register(guarantee: Guarantee) -> Guarantee:
    """Register a guarantee under its name, for certificates, plans and files.

    Parameters
    ----------
    guarantee : Guarantee

    Returns
    -------
    Guarantee
        The same object.
    """
    if not isinstance(guarantee, Guarantee):
        raise TypeError(f"guarantee must be a Guarantee, got {type(guarantee).__name__}")
    if guarantee.name == AUTO or GUARANTEES.get(guarantee.name, guarantee) != guarantee:
        raise ValueError(f"a guarantee named {guarantee.name!r} already exists; choose another name")
    GUARANTEES[guarantee.name] = guarantee
    return guarantee


def automatic(n_records: int, mu: float) -> Guarantee:
    """Return split, or universal if mu * sqrt(n) is very small.

    The loss of the universal certificate grows with mu alone. The loss of holding records out falls with n, and it is
    small because the split is secret. On synthetic data, Adult and Bank Marketing at n = 200 to 15,000 and epsilon =
    0.05 to 2, split gave the smaller sets wherever sets were not full. Near mu * sqrt(n) = 1 both are equal
    (docs/recipe.md). The stability certificate gave larger sets everywhere and is never selected.

    Parameters
    ----------
    n_records : int
    mu : float
        The Gaussian-DP level of the budget.

    Returns
    -------
    Guarantee
    """
    return UNIVERSAL if mu * math.sqrt(n_records) <= _CROSSING else SPLIT
