"""Make a release from counts: reserve, search, certify, commit."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import (
    ANOTHER_POPULATION,
    COINS,
    FIXED_GROUPS,
    INDEPENDENT,
    NORMALIZED_RATIO,
    OVERLAPPING_GROUPS,
    PERSONS_OF_ANOTHER,
    Assumption,
)
from dpscp._base.checks import check_range, smallest_where
from dpscp._base.progress import announce
from dpscp.core.plan import Plan, plan_release
from dpscp.core.problem import Problem
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import Certificate, Stability
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE, Promise, Terms
from dpscp.guarantees.formulas import minimax_miss_bound, universal_floor
from dpscp.privacy import Accountant, Budget, Ledger
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import BudgetCheck, check_budget, warn_of_failures
from dpscp.threshold import PrivateQuantile, private_quantile
from dpscp.threshold.search import SearchObserver, SharedCounts
from dpscp.threshold.sizes import KnownSize, NoisySize, Size

__all__ = ["Counted", "ThresholdRelease", "release_counts"]

_WIDE_BUFFER_ADVICE = (
    "The buffer for the influence of one record is wider than the range of the scores. Use more records, or "
    "guarantee='universal' or 'split', which need no buffer."
)
_WEAK_PROOF_ADVICE = "A smaller train_share would prove more; guarantee='split' proves the target itself."


@dataclass(frozen=True)
class ThresholdRelease:
    """Released thresholds, (n_groups, n_levels), with ledger and certificates.

    See ``dpscp.Release``.
    """

    threshold: Any
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    budget: Budget
    accountant: str | Accountant = "pld"
    kind: str = "scores"
    quantiles: tuple[PrivateQuantile, ...] = ()
    group_values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Counted:
    """Counts of a release, and public facts that the plan does not contain.

    Attributes
    ----------
    counts : sequence, one item for each group
        Scores, arrays of shape (n,), or objects that count.
    spent : Ledger
        What was spent before the search, with public facts and assumptions.
    score_range : (low, high), optional
        The public range of the scores; None: that of the task.
    assumptions : tuple of Assumption
        Further assumptions of the certificates.
    stability : Stability, optional
        The shift bound of training.
    facts : mapping
        Further public facts of the ledger.
    threshold_at : function, optional
        Turns the places that the search returns into thresholds.
    """

    counts: Sequence[Any]
    spent: Ledger
    score_range: tuple[float, float] | None = None
    assumptions: tuple[Assumption, ...] = ()
    stability: Stability | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    threshold_at: Callable[[NDArray[np.float64]], Any] | None = None


def release_counts(
    plan: Plan,
    count: Callable[[], Counted],
    *,
    random_state: int | None = None,
    store: BudgetStore | None = None,
    note: str = "",
    observer: SearchObserver | None = None,
) -> ThresholdRelease:
    """Make a release: reserve, count, search, ledger, certificates, commit.

    Every release goes this way. A fit trains in ``count``; other callers have their scores or losses already.

    Parameters
    ----------
    plan : Plan
        With its noise.
    count : function without arguments that returns Counted
        Called after the cost was reserved, and before anything is drawn.
    random_state : int, optional
    store : BudgetStore, optional
        The planned cost is reserved before ``count`` is called, and the true cost is committed at the end.
    note : str
        The note of the reservation.
    observer : SearchObserver, optional
        Called with every search, for tests and audits. What it sees is not private.

    Returns
    -------
    ThresholdRelease
        Its ``threshold`` has the shape (n_groups, n_levels).

    Theory: Which one to use
    """
    budget = plan.total or plan.problem.budget
    checks = check_budget(budget, plan.problem.n_records, plan.spent.relation)
    warn_of_failures(checks, stacklevel=4)
    reservation = None if store is None else store.reserve(plan.ledger(), note=note)
    with _explain_interrupt(store):
        counted, problem = count(), plan.problem
        plan = plan.after(counted.spent, counted.stability)
        announce("search the thresholds")
        score_range = check_range("score_range", counted.score_range or problem.task.score_range)
        found = _search(plan, counted.counts, score_range, random_state, observer)
    values = _read_thresholds(plan, found)
    facts = _list_search_facts(plan, found, score_range)
    facts |= {"date": datetime.now(UTC).date().isoformat(), "dpscp": version("dpscp")}
    # the cost for one row becomes the cost for a person without ids
    ledger = plan.ledger().declare(**facts).convert_unit(problem.unit)
    ledger = ledger.declare(**problem.unit.limit_facts, **problem.group_facts, **counted.facts)
    ledger = ledger.show_at(problem.budget.delta)
    if random_state is not None:
        ledger = ledger.mark_seeded()
    if reservation is not None:
        reservation.commit(ledger)
    assumed = counted.assumptions
    if plan.guarantee.needs_stability and counted.stability is not None:
        assumed = (*assumed, *counted.stability.assumptions)
    certificates = []
    for i in range(len(problem.alphas)):
        level = [row[plan.level_indices.index(i)] for row in found] if i in plan.level_indices else []
        certificates.append(_make_certificate(plan, i, level, assumed, checks))
    return ThresholdRelease(
        values if counted.threshold_at is None else counted.threshold_at(values),
        ledger,
        tuple(certificates),
        budget,
        problem.accountant,
        problem.task.name,
        tuple(q for row in found for q in row),
        problem.group_values,
    )


@contextmanager
def _explain_interrupt(store: BudgetStore | None) -> Iterator[None]:
    """Add to the interrupt a note about what the interrupted release has spent."""
    try:
        yield
    except KeyboardInterrupt as error:
        charged = "" if store is None else f", but the cost that was reserved in {str(store.path)!r} stays charged"
        error.add_note(f"Nothing was released, and no copy of the records is left{charged}.")
        raise


def release_scores(
    problem: Problem, counted: Counted, *, random_state: int | None, store: BudgetStore | None, note: str
) -> ThresholdRelease:
    """Plan and make a release of existing scores; see ``release_counts``."""
    problem.require_payable(store, seeded=random_state is not None)
    plan = plan_release(problem, counted.spent, counted.stability)
    return release_counts(plan, lambda: counted, random_state=random_state, store=store, note=note)


def _search(
    plan: Plan,
    counts: Sequence[Any],
    score_range: tuple[float, float],
    random_state: int | None,
    observer: SearchObserver | None,
) -> list[list[PrivateQuantile]]:
    """Run one search for each group and level.

    A group's levels share its released size and its noisy counts.
    """
    seed = seed_of(random_state)
    known: Size | None = plan.counted_size
    if plan.problem.n_groups is not None and not plan.has_released_size:
        # the paper's variants promise nothing for groups; an empty group is searched as well
        known = KnownSize(plan.n_nominal, 0.0)
    n_searches = len(counts) * len(plan.level_indices)
    seeds = iter((seed,) if n_searches == 1 else child_seeds(seed, n_searches))
    found: list[list[PrivateQuantile]] = []
    with warnings.catch_warnings():
        # the caller warns once, from the certificate and the released thresholds
        warnings.simplefilter("ignore", GuaranteeWarning)
        for scores in counts:
            row: list[PrivateQuantile] = []
            shared = SharedCounts() if plan.rank.is_same_at_all_levels else None
            for i, noise in zip(plan.level_indices, plan.noises, strict=True):
                row.append(
                    private_quantile(
                        scores,
                        alpha=plan.inner[i],
                        score_range=score_range,
                        count_noise=noise,
                        steps=plan.steps,
                        correction=plan.guarantee.correction,
                        rank=plan.rank,
                        rank_buffer=plan.guarantee.rank_buffer,
                        n_records=plan.n_nominal,
                        size=row[0].aim.size if row else known,
                        size_noise=None if row else plan.size_noise,
                        release_confidence=plan.problem.release_confidence,
                        shared_counts=shared,
                        fine_near=plan.problem.task.fine_near,
                        random_state=next(seeds),
                        observer=observer,
                    )
                )
            found.append(row)
    return found


def _read_thresholds(plan: Plan, found: Sequence[Sequence[PrivateQuantile]]) -> NDArray[np.float64]:
    """Return the thresholds of the searches, (n_groups, n_levels)."""
    values = np.full((len(found), len(plan.problem.alphas)), np.inf)
    if plan.level_indices:
        values[:, plan.level_indices] = [
            [q.threshold + plan.shift if q.is_finite else np.inf for q in row] for row in found
        ]
        # levels with separate noise: raise each threshold to those of lower levels, so that sets are nested
        rising = np.argsort([-a for a in plan.problem.alphas], kind="stable")
        values[:, rising] = np.maximum.accumulate(values[:, rising], axis=1)
    return values


def _list_search_facts(
    plan: Plan, found: Sequence[Sequence[PrivateQuantile]], score_range: tuple[float, float]
) -> dict[str, Any]:
    """List what the searches declare public; nothing without a search."""
    if not plan.level_indices:
        return {}
    unit, near = plan.problem.unit, plan.problem.task.fine_near
    facts: dict[str, Any] = {unit.count_name: plan.problem.n_records, "score_range": list(score_range)}
    if near is not None:
        facts["fine_near"] = list(near) if isinstance(near, tuple) else near
    facts |= {"search_steps": plan.steps, "inner_levels": [1 - q.alpha for q in found[0]]}
    if plan.has_released_size:
        facts["released_sizes"] = [round(float(row[0].aim.size.nominal_size), 2) for row in found]
    return facts


def _make_certificate(
    plan: Plan,
    index: int,
    searches: Sequence[PrivateQuantile],
    extra_assumptions: tuple[Assumption, ...],
    checks: tuple[BudgetCheck, ...],
) -> Certificate:
    """Make the certificate of one level, in words about the task.

    ``searches`` has one search for each group, and none for an impossible level.
    """
    problem, guarantee, unit, task = plan.problem, plan.guarantee, plan.problem.unit, plan.problem.task
    alpha, by_ratio = problem.alphas[index], problem.population is not None
    exchangeable, *others = unit.assumptions
    if by_ratio:
        exchangeable = PERSONS_OF_ANOTHER if unit.by_person else ANOTHER_POPULATION
    assumptions = [exchangeable, *others, guarantee.assumption]
    if plan.problem.n_groups is not None:
        several = problem.groups_per_record > 1
        assumptions.append(OVERLAPPING_GROUPS(problem.groups_per_record) if several else FIXED_GROUPS)
    elif not plan.has_released_size:
        assumptions.insert(1, unit.nominal_is_true)
    if plan.counted_size is not None:
        assumptions.append(COINS(unit.noun))
    if problem.is_weighted:
        assumptions.append(NORMALIZED_RATIO)
    terms = Terms(
        unit=unit,
        relation=plan.spent.relation,
        n_units=problem.n_records,
        calibration_units=plan.n_nominal if plan.part < 1 else None,
        ratio_bound=None if problem.population is None else problem.population.bound,
        conformity_score=task.score_facts.get("conformity_score"),
        resolution=task.resolution if task.promise is Promise.RISK else None,
        running_maximum=task.running_maximum,
        inner_level=1.0,
        finite_threshold_expected=False,
    )
    coverage, advice = 1 - alpha, guarantee.no_level
    if searches:
        coverage, advice, terms = _read_search(plan, index, searches, terms)
        if terms.release_level is not None:
            assumptions.append(INDEPENDENT(unit.noun))
    assumed = (*assumptions, *extra_assumptions, *plan.spent.assumptions)
    found = Certificate(guarantee.name, 1 - alpha, coverage, assumed, terms, advice, task.promise, checks=checks)
    if found.is_vacuous and not advice:
        found = replace(found, advice=_WEAK_PROOF_ADVICE)
    return found.with_found_classes() if task.classes_found else found


def _read_search(plan: Plan, index: int, searches: Sequence[PrivateQuantile], terms: Terms) -> tuple[float, str, Terms]:
    """Return the proven coverage, an advice and the terms of one level.

    The level has one search for each group.
    """
    problem, guarantee, q = plan.problem, plan.guarantee, searches[0]
    size = q.aim.size if isinstance(q.aim.size, NoisySize) else None
    smallest, smallest_part = _find_smallest_sizes(plan, index, q)
    too_wide = plan.shift >= q.score_range[1] - q.score_range[0]  # the buffer alone contains every score
    is_reachable = q.rank_target <= plan.n_nominal
    if size is not None:
        is_reachable = size.released >= (smallest if smallest_part is None else smallest_part)
    expected = (problem.n_groups is not None or is_reachable) and not too_wide
    own: dict[str, Any] = {"inner_level": 1 - q.alpha, "finite_threshold_expected": expected}
    own |= {"count_noise": q.count_noise, "steps": q.steps, "value_buffer": plan.shift or None}
    own["size_noise"] = None if size is None else size.size_noise
    if problem.n_groups is not None:  # each group has its own offset, target and size; the ledger lists the sizes
        own |= {"smallest_group": smallest, "smallest_group_calibration": smallest_part}
        own["groups_per_record"] = problem.groups_per_record if problem.groups_per_record > 1 else None
    else:
        own |= {"smallest_n": smallest, "smallest_n_calibration": smallest_part}
        own["released_size"] = None if size is None else round(float(size.released), 2)
        own |= {"noise_offset": q.offset, "rank_target": q.rank_target}
    target = coverage = 1 - problem.alphas[index]
    if not guarantee.certified:
        own["ideal_miss_bound"] = _ideal_miss_bound(plan, index, q)
        coverage = universal_floor(own["ideal_miss_bound"], plan.spent.tradeoff_function("add"))
    if guarantee.held_out and problem.task.resolution == 1:  # larger ones have no such bound (Result J)
        confidence, level = problem.release_confidence, target  # the searches used this level as their target
        if confidence is None:  # Result I; of a group, the lowest coverage
            confidence = RELEASE_CONFIDENCE
            levels = [s.aim.level_of_one_release(confidence, s.offset - s.aim.mean_rise) for s in searches]
            level = problem.covered_level(min(levels))
        own |= {"release_confidence": confidence, "release_level": level}
    noun, advice = problem.unit.noun, ""
    if too_wide:
        advice = _WIDE_BUFFER_ADVICE
    elif plan.problem.n_groups is not None:
        advice = f"A group with fewer than {smallest} {noun}s is expected to get full sets."
    elif not expected:  # more records may need more steps, so this is the smallest possible number
        advice = f"More {noun}s (at least {smallest} at this noise), {guarantee.remedy} would give smaller sets."
    return coverage, advice, replace(terms, **own)


def _ideal_miss_bound(plan: Plan, index: int, q: PrivateQuantile) -> float:
    """Bound the miscoverage of an unproven guarantee if reuse had no effect.

    Reuse means that training records are scored.
    """
    if plan.guarantee.correction.keeps_the_level:
        return plan.inner[index]
    # without a correction nothing holds for groups of unknown size
    return (
        1.0
        if plan.problem.n_groups is not None
        else minimax_miss_bound(plan.n_nominal, q.rank_target, q.count_noise, q.steps)
    )


def _find_smallest_sizes(plan: Plan, index: int, q: PrivateQuantile) -> tuple[int, int | None]:
    """Return the fewest records with a finite threshold: of table and of part."""
    confidence, target = plan.problem.release_confidence, 1 - plan.problem.searched_alphas[index]

    def useful(n: int) -> bool:
        """Whether the mean target lies among n scores; otherwise full sets are expected."""
        aim = q.aim.with_size(n)
        offset = float(aim.whole_offset(plan.guarantee.rank_buffer, None, confidence, target))
        return (1 - float(aim.level)) * (n + 1) + offset + aim.mean_rise <= n

    if isinstance(q.aim.size, KnownSize):
        smallest = max(1, math.ceil((1 - q.alpha + q.offset) / q.alpha))
    else:
        smallest = smallest_where(useful)
    if plan.part == 1:
        return smallest, None
    whole = math.ceil((smallest - 0.5) / plan.part)
    while round(plan.part * whole) < smallest:
        whole += 1
    return whole, smallest
