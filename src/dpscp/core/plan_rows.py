"""Plan one guarantee at one n and epsilon, from public numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpscp._base.checks import check_probability
from dpscp.core.evaluation import SELF_CONFIDENCE, sensitive_sums
from dpscp.core.noisy_rates import rate_interval
from dpscp.core.plan import check_evaluation_part, plan_fit
from dpscp.core.public_numbers import PublicNumbers
from dpscp.core.search_plan import CalibrationRule, make_rule
from dpscp.guarantees import Guarantee, Stability, guarantee_of
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.privacy import Ledger, gaussian_event, gdp_epsilon, gdp_mu, lattice_noise, secret_shares
from dpscp.training.recipe import calibration_fraction as recipe_fraction
from dpscp.training.recipe import train_share as recipe_share

__all__ = ["PlanRow"]

# The range that is searched for n: outside it a promise is free or impossible.
SIZES = tuple(round(20 * 1.25**k) for k in range(90))
# The exact integer noise of a fit exceeds the Gaussian formula by less than this.
SEARCH_MARGIN = 1.0005


@dataclass(frozen=True)
class PlanRow:
    """Hold the plan of one guarantee.

    Attributes
    ----------
    guarantee : str
    certified : bool
        Whether the coverage is proven for finite samples.
    train_share : float or None
        The share of epsilon that training gets; None for a split.
    best_train_share : float or None
        The share that ``train_share="auto"`` chooses.
    train_epsilon : float
    calibration_fraction : float or None
        The held-out share of the records.
    inner_level : float
    steps : int or None
    count_noise : float or None
    rank_offset : float or None
    value_buffer : float
    overshoot : float or None
        The expected coverage above the target (for ``stability``, with scores spread evenly over their range).
    useful : bool
        Whether a finite threshold is expected. If not, the numbers of the search are missing or not useful.
    smallest_n : int or None
        With fewer records only full sets keep the promise.
    release_level : float or None
        What a single release covers in 19 of 20 cases, or with the requested confidence; None if no bound is known.
    evaluation_interval : (low, high) or None
        With ``evaluation_fraction``: the 95 % interval that the fit reports if it measures the target exactly.
    """

    guarantee: str
    certified: bool
    train_share: float | None
    best_train_share: float | None
    train_epsilon: float
    calibration_fraction: float | None
    inner_level: float
    steps: int | None
    count_noise: float | None
    rank_offset: float | None
    value_buffer: float
    overshoot: float | None
    useful: bool
    smallest_n: int | None
    release_level: float | None = None
    evaluation_interval: tuple[float, float] | None = None


def plan_row(guarantee: str, public: PublicNumbers, *, bare: bool = False) -> PlanRow:
    """Plan one guarantee at one n and epsilon.

    ``bare`` leaves out the smallest n, for searches.
    """
    n, epsilon, delta = public.n, public.epsilon, public.delta
    assert n is not None
    assert epsilon is not None
    chosen = guarantee_of(guarantee)
    mu, share, best, fraction = gdp_mu(epsilon, delta), None, None, None
    stability = None
    if chosen.held_out:
        setting = public.calibration_fraction
        fraction = recipe_fraction(n, epsilon, delta) if setting == "auto" else check_probability("fraction", setting)
        measured = check_evaluation_part(fraction, public.evaluation_fraction)
        shared, spent = secret_shares(epsilon, delta, fraction + measured, n), Ledger()
        train_epsilon, mu_left = shared.train_epsilon, shared.held_out_mu
    else:
        best = gdp_epsilon(delta, math.sqrt(recipe_share(guarantee, epsilon, delta, n)) * mu) / epsilon
        share = best if public.train_share == "auto" else check_probability("train_share", public.train_share)
        train_epsilon = share * epsilon
        mu_train = gdp_mu(train_epsilon, delta)
        mu_left = math.sqrt(mu**2 - mu_train**2)
        spent = Ledger().add("training", gaussian_event(1 / mu_train))
        if chosen.needs_stability:
            stability = _bound_stability(public, chosen)
    promised = public.release_confidence if chosen.held_out else None
    rule = make_rule(
        guarantee,
        (public.alpha,),
        spent,
        n,
        part=fraction or 1.0,
        stability=stability,
        n_groups=public.n_groups,
        counted=public.counted,
        release_confidence=promised,
    ).for_overlap(public.groups_per_record)
    rule = rule.for_population(public.ratio_bound if chosen.held_out else None).with_sharper_size(mu_left)
    smallest = None if bare else _find_smallest_n(guarantee, public)
    return PlanRow(
        guarantee=guarantee,
        certified=chosen.certified,
        train_share=share,
        best_train_share=best,
        train_epsilon=train_epsilon,
        calibration_fraction=fraction,
        inner_level=1 - rule.inner[0] if rule.possible[0] else 1.0,
        value_buffer=rule.shift,
        smallest_n=smallest,
        evaluation_interval=None if bare or not chosen.held_out else _plan_evaluation(public, mu_left),
        **_plan_search_numbers(rule, public, mu_left, bare=bare),
    )


def plan_others(
    guarantee: str, public: PublicNumbers, epsilons: Sequence[float], levels: Sequence[float]
) -> list[list[PlanRow]]:
    """Plan one guarantee at other budgets and levels: one list for each epsilon, with one row for each level."""
    others = [
        [public.with_value("epsilon", e).with_value("alpha", round(1 - level, 12)) for level in levels]
        for e in epsilons
    ]
    return [[plan_row(guarantee, other, bare=True) for other in line] for line in others]


def _plan_search_numbers(rule: CalibrationRule, public: PublicNumbers, mu_left: float, *, bare: bool) -> dict[str, Any]:
    """Plan the threshold search: steps, noise, offset, overshoot, single release."""
    if not rule.possible[0]:
        return {"steps": None, "count_noise": None, "rank_offset": None, "overshoot": None, "useful": False}
    aim, covered = rule.planned_aim(0, mu_left / SEARCH_MARGIN), None
    last = float(aim.whole_offset(rule.rank_buffer, None, rule.release_confidence, 1 - public.alpha))
    if rule.release_confidence is not None:
        covered = 1 - public.alpha
    elif rule.guarantee.held_out and not bare:
        covered = aim.level_of_one_release(RELEASE_CONFIDENCE, last)
    level, offset = float(aim.level), last + aim.mean_rise
    n_scores = rule.n_nominal
    low, high = public.task.y_bounds or (0.0, 1.0)
    reach = rule.shift / (high - low)
    return {
        "steps": aim.steps,
        "count_noise": aim.count_noise,
        "rank_offset": offset,
        "overshoot": min(1.0, 1 - level + offset / (n_scores + 1) + reach) - (1 - public.alpha),
        "useful": (1 - level) * (n_scores + 1) + offset <= n_scores and reach < 1,
        "release_level": covered,
    }


def _plan_evaluation(public: PublicNumbers, mu: float) -> tuple[float, float] | None:
    """Return the interval of a fit that measures its target exactly; None without an evaluation part."""
    if public.evaluation_fraction is None or public.n is None:
        return None
    per_record = 0 if public.n_groups is None else public.groups_per_record
    counts = sensitive_sums(1, len(public.task.classes or ()), per_record)
    noise = lattice_noise(math.sqrt(counts) / mu, Fraction(1))
    size = round(public.evaluation_fraction * public.n)
    return rate_interval((1 - public.alpha) * size, size, noise, SELF_CONFIDENCE)


def _bound_stability(public: PublicNumbers, guarantee: Guarantee) -> Stability | None:
    """Return the bound of the recipe's stable training."""
    assert public.n is not None
    mechanism = plan_fit(public.request(guarantee.name)).mechanism
    assert mechanism is not None
    return mechanism.stability(public.n_features, public.n, public.task.classes)


def _find_smallest_n(guarantee: str, public: PublicNumbers) -> int | None:
    """Find the smallest n with a finite threshold at this budget; None if none."""
    found = find_first(
        lambda n: plan_row(guarantee, public.with_value("n", n), bare=True).useful, SIZES[::3], whole=True
    )
    return None if found is None else int(found)


def find_first(holds: Callable[[float], bool], grid: Sequence[float], *, whole: bool) -> float | None:
    """Find the smallest value for which ``holds``, between two grid points."""
    place = next((k for k, x in enumerate(grid) if holds(x)), None)
    if place is None:
        return None
    high = grid[place]
    low = grid[place - 1] if place else (0 if whole else high)
    while high - low > (1 if whole else 1e-4 * high):
        middle = (low + high) // 2 if whole else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
