"""How a release proves its coverage: each guarantee is a value, found by its name.

Everything that differs between guarantees is a field. Other packages use the fields and never compare names. To add a
guarantee, define its value and add it to ``GUARANTEES``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpscp._base.assumptions import HELD_OUT, INVARIANT, Assumption
from dpscp._base.checks import check_choice
from dpscp.guarantees.formulas import universal_alpha, value_buffer
from dpscp.guarantees.stability import Stability
from dpscp.privacy import Ledger
from dpscp.threshold.offsets import Correction, Rank


@dataclass(frozen=True)
class GuaranteeRequest:
    """The public numbers that a guarantee uses.

    Attributes
    ----------
    alphas : tuple of float
        The target miscoverages.
    spent : Ledger
        What was spent before the search.
    stability : Stability, optional
        A shift bound of training, with the Lipschitz constant of the score.
    """

    alphas: tuple[float, ...]
    spent: Ledger
    stability: Stability | None = None


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One way to prove coverage.

    Attributes
    ----------
    name : str
        The name in the public interface.
    proof : str
        The reason, for the certificate.
    certified : bool
        Whether the target is proven in finite samples.
    held_out : bool
        The threshold is computed from records that training did not use. Each part may then spend the whole budget.
    needs_stability, needs_trajectory : bool
        What training must provide.
    correction, rank, rank_buffer
        Those of the search.
    releases_size : bool
        Release a noisy number of scores if the exact one is private (Result G).
    training_share : callable
        Return the best part of mu^2 for training, from mu.
    inner_levels : callable
        Return the level to calibrate at for each target; 0 if none keeps the target.
    shift : callable
        Return what is added to the threshold.
    remedy, no_level : str
        The advice if only full sets keep the promise.

    Theory: Which one to use
    """

    name: str
    proof: str
    certified: bool
    held_out: bool = False
    needs_stability: bool = False
    needs_trajectory: bool = False
    correction: Correction = Correction.MINIMAX
    rank: Rank = Rank.CENTERED
    rank_buffer: float = 0.0
    releases_size: bool = True
    training_share: Callable[[float], float] = lambda _: 0.9
    inner_levels: Callable[[GuaranteeRequest], tuple[float, ...]] = lambda request: request.alphas
    shift: Callable[[GuaranteeRequest], float] = lambda _: 0.0
    remedy: str = "a larger alpha or a larger budget"
    no_level: str = "A larger alpha would help."

    def __post_init__(self) -> None:
        # both may be given by name; unknown names raise
        object.__setattr__(self, "correction", Correction(self.correction))
        object.__setattr__(self, "rank", Rank(self.rank))

    @property
    def assumption(self) -> Assumption:
        """What it assumes about training, besides exchangeable records."""
        return HELD_OUT if self.held_out else INVARIANT


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
    remedy="a larger alpha, or less of the budget for training (a smaller train_share)",
    no_level="Training spends too much for this guarantee, however many records there are. Give training less of the "
    "budget (more noise, a smaller train_share), raise alpha, or use guarantee='split', where reuse costs nothing.",
)

# ---- stability: all records, with training that has a shift bound for every score (Theory: Result C)


def _require_bound(request: GuaranteeRequest) -> Stability:
    if request.stability is None or request.stability.score_lipschitz is None:
        raise ValueError(
            "guarantee='stability' needs a training mechanism with a stability bound and a score with a Lipschitz "
            "constant; use 'universal' or 'split' instead"
        )
    return request.stability


def _stability_levels(request: GuaranteeRequest) -> tuple[float, ...]:
    bound = _require_bound(request)
    # without a finite buffer there is no level, and neither if delta_n exceeds alpha
    return tuple(0.0 if bound.is_vacuous else a - bound.delta_n for a in request.alphas)


def _stability_shift(request: GuaranteeRequest) -> float:
    bound = _require_bound(request)
    return 0.0 if bound.is_vacuous else value_buffer(bound.score_lipschitz or 0.0, bound.shift_bound)


STABILITY = Guarantee(
    name="stability",
    proof="Result C: one record moves every score by a bounded amount",
    certified=True,
    needs_stability=True,
    inner_levels=_stability_levels,
    shift=_stability_shift,
    no_level="The stability bound of training alone exceeds this alpha. Raise alpha, or use guarantee='universal' "
    "or 'split', which need no such bound.",
)

# ---- split: held-out records for the threshold, for any model and any training (Theory: Result E)


SPLIT = Guarantee(
    name="split",
    proof="Result E: the threshold was computed from records that training did not use",
    certified=True,
    held_out=True,
    training_share=lambda _: 1.0,
    remedy="a larger alpha, a larger budget or a larger held-out part",
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
