"""The guarantees of the library, and the registry of all guarantees by name."""

import math

from dpscp._base.checks import check_choice
from dpscp.guarantees.base import Guarantee, GuaranteeRequest
from dpscp.guarantees.formulas import universal_alpha, value_buffer
from dpscp.guarantees.stability import Stability
from dpscp.threshold.offsets import Correction, Rank

# ---- universal: all records and any private training; privacy bounds the effect of reuse (Theory: Result B)


def _universal_share(mu: float) -> float:
    """Return training's share, which falls with the budget.

    The more training may learn about one record, the higher the inner level must be.
    """
    return min(0.9, max(0.2, 0.3 / math.sqrt(mu)))


def _universal_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    tradeoff = request.spent.tradeoff_function("add")
    return tuple(universal_alpha(a, tradeoff) for a in request.alphas)


UNIVERSAL = Guarantee(
    name="universal",
    proof="Result B: the privacy of training bounds the effect of reusing its records",
    certified=True,
    training_share=_universal_share,
    inner_levels=_universal_levels,
    # not a larger budget: training takes a share of it, which raises the inner level
    more_room="a larger alpha, or less of the budget for training (a smaller train_share)",
    no_level="Training spends too much for this guarantee, however many records there are. Give training less of the "
    "budget (more noise, a smaller train_share), raise alpha, or use guarantee='split', where reuse costs nothing.",
)

# ---- stability: all records, with training that has a shift bound for every score (Theory: Result C)


def _require_bounds(request: GuaranteeRequest) -> tuple[Stability, float]:
    lipschitz = request.score_lipschitz
    if request.stability is not None and lipschitz is None:
        lipschitz = request.stability.score_lipschitz
    if request.stability is None or lipschitz is None:
        raise ValueError(
            "guarantee='stability' needs a training mechanism with a stability bound and a score with a Lipschitz "
            "constant; use 'universal' or 'split' instead"
        )
    return request.stability, lipschitz


def _stability_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    bound, _ = _require_bounds(request)
    # without a finite buffer there is no level, and neither if delta_n exceeds alpha
    return tuple(0.0 if bound.is_vacuous else a - bound.delta_n for a in request.alphas)


def _stability_shift(request: GuaranteeRequest) -> float:
    bound, lipschitz = _require_bounds(request)
    return 0.0 if bound.is_vacuous else value_buffer(lipschitz, bound.shift_bound)


STABILITY = Guarantee(
    name="stability",
    proof="Result C: one record moves every score by a bounded amount",
    certified=True,
    needs_stability=True,
    inner_levels=_stability_levels,
    shift=_stability_shift,
    no_level="The stability bound of training leaves no level at this alpha. Use guarantee='universal' or 'split', "
    "which need no such bound.",
)

# ---- split: held-out records for the threshold, for any model and any training (Theory: Result E)


def _whole_budget(mu: float) -> float:  # noqa: ARG001
    return 1.0


SPLIT = Guarantee(
    name="split",
    proof="Result E: the threshold was computed from records that training did not use",
    certified=True,
    held_out=True,
    training_share=_whole_budget,
    more_room="a larger alpha, a larger budget or a larger held-out part",
)

# ---- corrected: all records; each record's own influence is removed to first order (Theory: Results D and F)

CORRECTED = Guarantee(
    name="corrected",
    proof="Results D and F: asymptotic; each record's own influence on its score is removed to first order",
    certified=False,
    needs_trajectory=True,
)

# ---- the paper's variants of Algorithm 1 [alg: dp-scp]

FINITE = Guarantee(
    name="finite",
    proof="DP-SCP-F of the paper: rank buffer and union noise buffer",
    certified=False,
    correction=Correction.UNION,
    rank=Rank.CEIL,
    rank_buffer=10.0,  # m_n in all experiments of the paper
    releases_size=False,
)

ASYMPTOTIC = Guarantee(
    name="asymptotic",
    proof="DP-SCP-A of the paper: no buffer, so coverage is only asymptotic",
    certified=False,
    correction=Correction.NONE,
    rank=Rank.CEIL,
    releases_size=False,
)

# ---- the registry

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
