"""Plan one guarantee at one n and epsilon, from public numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpscp.core.evaluation import SELF_CONFIDENCE, rate_interval, sensitive_sums
from dpscp.core.fit_plan import Parts, best_train_share, divide, plan_training
from dpscp.core.plan import Plan
from dpscp.core.problem import FitProblem
from dpscp.guarantees import Guarantee, guarantee_of
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.privacy import RECORDS, Budget, Ledger, gaussian_event, gdp_mu, lattice_noise

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


def plan_row(guarantee: str, problem: FitProblem, *, bare: bool = False) -> PlanRow:
    """Plan one guarantee at one n and epsilon.

    ``bare`` leaves out the smallest n, for searches.
    """
    plan, parts = _outline(problem, guarantee)
    chosen = plan.guarantee
    return PlanRow(
        guarantee=guarantee,
        certified=chosen.certified,
        train_share=parts.share,
        best_train_share=None if chosen.held_out else best_train_share(problem, chosen),
        train_epsilon=parts.train_epsilon,
        calibration_fraction=parts.fraction,
        inner_level=1 - plan.inner[0] if plan.possible[0] else 1.0,
        value_buffer=plan.shift,
        smallest_n=None if bare else _find_smallest_n(guarantee, problem),
        evaluation_interval=None if bare or not chosen.held_out else _plan_evaluation(problem, parts.search_mu),
        **_plan_search_numbers(plan, parts.search_mu, bare=bare),
    )


def _outline(problem: FitProblem, guarantee: str) -> tuple[Plan, Parts]:
    """Return the plan of one guarantee without its noise, and how it divides records and budget."""
    chosen = guarantee_of(guarantee)
    problem = replace(problem, guarantee=chosen) if chosen.held_out else without_held_out(problem, chosen)
    parts, stability, spent = divide(problem, chosen), None, Ledger()
    if parts.fraction is None:
        spent = spent.add("training", gaussian_event(1 / gdp_mu(parts.train_epsilon, problem.budget.delta)))
    if chosen.needs_stability:
        mechanism = plan_training(replace(problem, unit=RECORDS)).mechanism
        assert mechanism is not None
        stability = mechanism.stability(problem.n_features, problem.n_records, problem.task.classes)
    return Plan.outline(problem, spent, part=parts.fraction or 1.0, stability=stability, mu=parts.search_mu), parts


def without_held_out(problem: FitProblem, guarantee: Guarantee) -> FitProblem:
    """Return the problem without what needs held-out records, to show another guarantee for comparison."""
    return replace(problem, guarantee=guarantee, release_confidence=None, population=None, evaluation_fraction=None)


def with_value(problem: FitProblem, name: str, value: float) -> FitProblem:
    """Return the problem with another ``"n"``, ``"epsilon"`` or ``"alpha"``."""
    if name == "n":
        return replace(problem, n_records=round(value))
    if name == "alpha":
        return replace(problem, alphas=(float(value),))
    return replace(problem, budget=Budget(float(value), problem.budget.delta))


def plan_others(
    guarantee: str, problem: FitProblem, epsilons: Sequence[float], levels: Sequence[float]
) -> list[list[PlanRow]]:
    """Plan one guarantee at other budgets and levels: one list for each epsilon, with one row for each level."""
    others = [
        [with_value(with_value(problem, "epsilon", e), "alpha", round(1 - level, 12)) for level in levels]
        for e in epsilons
    ]
    return [[plan_row(guarantee, other, bare=True) for other in line] for line in others]


def _plan_search_numbers(plan: Plan, mu: float, *, bare: bool) -> dict[str, Any]:
    """Plan the threshold search: steps, noise, offset, overshoot, single release."""
    if not plan.possible[0]:
        return {"steps": None, "count_noise": None, "rank_offset": None, "overshoot": None, "useful": False}
    aim, covered, target = plan.planned_aim(0, mu / SEARCH_MARGIN), None, 1 - plan.problem.alphas[0]
    last = float(aim.whole_offset(plan.rank_buffer, None, plan.problem.release_confidence, target))
    if plan.problem.release_confidence is not None:
        covered = target
    elif plan.guarantee.held_out and not bare:
        covered = aim.level_of_one_release(RELEASE_CONFIDENCE, last)
    level, offset = float(aim.level), last + aim.mean_rise
    n_scores = plan.n_nominal
    low, high = plan.problem.task.y_bounds or (0.0, 1.0)
    reach = plan.shift / (high - low)
    return {
        "steps": aim.steps,
        "count_noise": aim.count_noise,
        "rank_offset": offset,
        "overshoot": min(1.0, 1 - level + offset / (n_scores + 1) + reach) - target,
        "useful": (1 - level) * (n_scores + 1) + offset <= n_scores and reach < 1,
        "release_level": covered,
    }


def _plan_evaluation(problem: FitProblem, mu: float) -> tuple[float, float] | None:
    """Return the interval of a fit that measures its target exactly; None without an evaluation part."""
    if problem.evaluation_fraction is None:
        return None
    per_record = 0 if problem.n_groups is None else problem.groups_per_record
    counts = sensitive_sums(1, len(problem.task.classes or ()), per_record)
    noise = lattice_noise(math.sqrt(counts) / mu, Fraction(1))
    size = round(problem.evaluation_fraction * problem.n_records)
    error = 1 - SELF_CONFIDENCE
    low, high = rate_interval(problem.alphas[0] * size, (size, size), noise, error / 2)
    return 1 - high, 1 - low


def _find_smallest_n(guarantee: str, problem: FitProblem) -> int | None:
    """Find the smallest n with a finite threshold at this budget; None if none."""
    found = find_first(
        lambda n: plan_row(guarantee, with_value(problem, "n", n), bare=True).useful, SIZES[::3], whole=True
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
