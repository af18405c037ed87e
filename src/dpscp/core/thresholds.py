"""Search thresholds and certify them: several levels, disjoint or overlapping groups.

It uses scores, the ledger of earlier costs, and public numbers.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import (
    ANOTHER_POPULATION,
    COINS,
    FIXED_GROUPS,
    INDEPENDENT,
    OVERLAPPING_GROUPS,
    PERSONS_OF_ANOTHER,
    Assumption,
)
from dpscp._base.checks import check_range
from dpscp.core.search_plan import CalibrationRule, SearchPlan
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import Certificate
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.guarantees.formulas import minimax_miss_bound, smallest_where, universal_floor
from dpscp.guarantees.terms import Terms
from dpscp.privacy import Ledger
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.threshold import PrivateQuantile, private_quantile
from dpscp.threshold.observer import SearchObserver
from dpscp.threshold.search import SharedCounts

__all__ = ["Thresholds", "search_thresholds"]

_WIDE_BUFFER_ADVICE = (
    "The buffer for the change that one record can cause is wider than the range of the scores. More records make it "
    "smaller; guarantee='universal' and 'split' need no buffer."
)
_WEAK_PROOF_ADVICE = "A smaller train_share would prove more; guarantee='split' proves the target itself."


@dataclass(frozen=True)
class Thresholds:
    """Hold released thresholds with ledger and certificates.

    Attributes
    ----------
    values : array of shape (n_groups, n_levels)
        Infinite where no finite threshold was found.
    ledger : Ledger
    certificates : tuple of Certificate
        One for each level.
    quantiles : tuple of PrivateQuantile
        The searches, group by group.
    """

    values: NDArray[np.float64]
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    quantiles: tuple[PrivateQuantile, ...]


def search_thresholds(
    scores_by_group: Sequence[Any],
    searches: SearchPlan,
    *,
    spent: Ledger,
    score_range: tuple[float, float],
    fine_near: float | tuple[float, float] | None = None,
    random_state: int | None = None,
    extra_assumptions: tuple[Assumption, ...] = (),
    observer: SearchObserver | None = None,
) -> Thresholds:
    """Run the planned searches: one threshold for each group and level.

    Parameters
    ----------
    scores_by_group : sequence of scores, one item for each group
        Arrays of shape (n,), or objects that count.
    searches : SearchPlan
    spent : Ledger
        What training spent.
    score_range : (low, high)
        The public range of the scores.
    fine_near : float or pair, optional
        Where the grid of thresholds is finest, see ``private_quantile``.
    random_state : int, optional
    extra_assumptions : tuple of Assumption
        Further assumptions of the certificates.
    observer : SearchObserver, optional
        Called with every search, for tests and audits. What it sees is not private.
    """
    low, high = check_range("score_range", score_range)
    rule, n_levels = searches.rule, len(searches.rule.alphas)
    values = np.full((len(scores_by_group), n_levels), np.inf)
    found = _search_all(scores_by_group, searches, (low, high), fine_near, random_state, observer)
    if searches.level_indices:
        values[:, searches.level_indices] = [
            [q.threshold + rule.shift if q.is_finite else np.inf for q in row] for row in found
        ]
        # levels with separate noise: raise each threshold to those of lower levels, so that sets are nested
        rising = np.argsort([-a for a in rule.alphas], kind="stable")
        values[:, rising] = np.maximum.accumulate(values[:, rising], axis=1)
    ledger = searches.ledger(spent).declare(**_list_search_facts(searches, found, (low, high)))
    if random_state is not None:
        ledger = ledger.mark_seeded()
    by_level: list[list[PrivateQuantile]] = [[] for _ in range(n_levels)]
    for place, i in enumerate(searches.level_indices):
        by_level[i] = [row[place] for row in found]
    certificates = tuple(_make_certificate(rule, i, spent, by_level[i], extra_assumptions) for i in range(n_levels))
    return Thresholds(values, ledger, certificates, tuple(q for row in found for q in row))


def _search_all(
    scores_by_group: Sequence[Any],
    searches: SearchPlan,
    score_range: tuple[float, float],
    fine_near: float | tuple[float, float] | None,
    random_state: int | None,
    observer: SearchObserver | None,
) -> list[list[PrivateQuantile]]:
    """Run one search for each group and level.

    A group's levels share its released size and its noisy counts.
    """
    rule, seed = searches.rule, seed_of(random_state)
    n_searches = len(scores_by_group) * len(searches.level_indices)
    seeds = iter((seed,) if n_searches == 1 else child_seeds(seed, n_searches))
    found: list[list[PrivateQuantile]] = []
    with warnings.catch_warnings():
        # the caller warns once, from the certificate and the released thresholds
        warnings.simplefilter("ignore", GuaranteeWarning)
        for scores in scores_by_group:
            row: list[PrivateQuantile] = []
            counts = SharedCounts() if rule.shares_counts else None
            for i, noise in zip(searches.level_indices, searches.noises, strict=True):
                row.append(
                    private_quantile(
                        scores,
                        alpha=rule.inner[i],
                        score_range=score_range,
                        count_noise=noise,
                        steps=searches.steps,
                        correction=rule.guarantee.correction,
                        rank=rule.rank,
                        rank_buffer=rule.rank_buffer,
                        failure_probability=rule.failure_probability,
                        n_records=rule.n_nominal,
                        # the paper's variants promise nothing for groups; an empty group is searched as well
                        n_min=0.0 if rule.has_groups and not rule.has_released_size else None,
                        size_noise=None if row else searches.size_noise,
                        released_size=row[0].released_size if row else None,
                        counted_size=rule.counted_size,
                        release_confidence=rule.release_confidence,
                        asked=counts,
                        fine_near=fine_near,
                        random_state=next(seeds),
                        observer=observer,
                    )
                )
            found.append(row)
    return found


def _list_search_facts(
    searches: SearchPlan, found: Sequence[Sequence[PrivateQuantile]], score_range: tuple[float, float]
) -> dict[str, Any]:
    """List what the searches declare public; nothing without a search."""
    if not searches.level_indices:
        return {}
    unit, n, near = searches.rule.unit, searches.rule.n_records, found[0][0].fine_near
    facts: dict[str, Any] = {
        **(unit.facts(n) if unit.by_person else {}),
        unit.count_name: n,
        "score_range": list(score_range),
        **({} if near is None else {"fine_near": list(near) if isinstance(near, tuple) else near}),
        "search_steps": searches.steps,
        "inner_levels": [1 - q.alpha for q in found[0]],
    }
    if searches.rule.has_released_size:
        facts["released_sizes"] = [_round_released_size(row[0]) for row in found]
    return facts


def _round_released_size(q: PrivateQuantile) -> float:
    """Round the noisy number of scores for display."""
    return math.nan if q.released_size is None else round(float(q.released_size.value), 2)


def _make_certificate(
    rule: CalibrationRule,
    index: int,
    spent: Ledger,
    searches: Sequence[PrivateQuantile],
    extra_assumptions: tuple[Assumption, ...],
) -> Certificate:
    """Make the certificate of one level.

    ``searches`` has one search for each group, and none for an impossible level.
    """
    alpha = rule.alphas[index]
    q = searches[0] if searches else None
    terms = Terms(
        unit=rule.unit,
        n_units=rule.n_records,
        calibration_units=rule.n_nominal if rule.part < 1 else None,
        inner_level=1 - (q.alpha if q else 0.0),
        finite_threshold_expected=False,
    )
    exchangeable, *others = rule.unit.assumptions
    if rule.ratio_bound is not None:
        terms = replace(terms, ratio_bound=rule.ratio_bound)
        exchangeable = PERSONS_OF_ANOTHER if rule.unit.by_person else ANOTHER_POPULATION
    assumptions = [exchangeable, *others, rule.guarantee.assumption]
    several = rule.groups_per_record > 1
    if rule.has_groups:
        assumptions.append(OVERLAPPING_GROUPS.of(rule.groups_per_record) if several else FIXED_GROUPS)
    elif not rule.has_released_size:
        assumptions.insert(1, rule.unit.nominal_is_true)
    if rule.counted_size is not None:
        assumptions.append(COINS.of(rule.unit.noun))
    coverage, advice = 1 - alpha, rule.guarantee.no_level
    if q is not None:
        smallest, smallest_part = _find_smallest_sizes(rule, index, q)
        too_wide = rule.shift >= q.score_range[1] - q.score_range[0]  # the buffer alone contains every score
        is_reachable = q.rank_target <= rule.n_nominal
        if q.released_size is not None:
            is_reachable = q.released_size.value >= (smallest if smallest_part is None else smallest_part)
        expected = (rule.has_groups or is_reachable) and not too_wide
        terms = replace(_add_search_terms(terms, rule, q), finite_threshold_expected=expected)
        if rule.has_groups:
            terms = replace(terms, smallest_group=smallest, smallest_group_calibration=smallest_part)
            terms = replace(terms, groups_per_record=rule.groups_per_record if several else None)
        else:
            terms = replace(terms, smallest_n=smallest, smallest_n_calibration=smallest_part)
        if not rule.guarantee.certified:
            miss = _ideal_miss_bound(rule, index, q)
            terms = replace(terms, ideal_miss_bound=miss)
            coverage = universal_floor(miss, spent.tradeoff_function("add"))
        if rule.guarantee.held_out and rule.resolution == 1:  # larger ones have no such bound (Result J)
            confidence, level = _bound_single_release(rule, index, searches)
            terms = replace(terms, release_confidence=confidence, release_level=level)
            assumptions.append(INDEPENDENT.of(rule.unit.noun))
        advice = _WIDE_BUFFER_ADVICE if too_wide else _choose_advice(rule, smallest, expected)
    assumed = (*assumptions, *extra_assumptions, *spent.assumptions)
    found = Certificate(rule.guarantee.name, 1 - alpha, coverage, assumed, terms, advice)
    return replace(found, advice=_WEAK_PROOF_ADVICE) if found.is_vacuous and not advice else found


def _add_search_terms(terms: Terms, rule: CalibrationRule, q: PrivateQuantile) -> Terms:
    """Add the numbers of a search to the terms."""
    terms = replace(terms, count_noise=q.count_noise, steps=q.steps, value_buffer=rule.shift or None)
    size = q.released_size
    if size is not None:
        terms = replace(terms, size_noise=size.size_noise)
    if rule.has_groups:  # each group has its own offset, target and size; the ledger lists the sizes
        return terms
    released = None if size is None else _round_released_size(q)
    return replace(terms, noise_offset=q.offset, rank_target=q.rank_target, released_size=released)


def _ideal_miss_bound(rule: CalibrationRule, index: int, q: PrivateQuantile) -> float:
    """Bound the miscoverage of an unproven guarantee if reuse had no effect."""
    if rule.guarantee.correction.keeps_the_level:
        return rule.inner[index]
    # without a correction nothing holds for groups of unknown size
    return 1.0 if rule.has_groups else minimax_miss_bound(rule.n_nominal, q.rank_target, q.count_noise, q.steps)


def _choose_advice(rule: CalibrationRule, smallest: int, expected: bool) -> str:
    """Return what helps where full sets are expected."""
    if rule.has_groups:
        return f"A group with fewer than {smallest} {rule.unit.noun}s is expected to get full sets."
    if expected:
        return ""
    # more records may need more steps, so this is the smallest possible number
    more = f"More {rule.unit.noun}s (at least {smallest} at this noise)"
    return f"{more}, {rule.guarantee.more_room} would give smaller sets."


def _bound_single_release(
    rule: CalibrationRule, index: int, searches: Sequence[PrivateQuantile]
) -> tuple[float, float]:
    """Return a confidence and what a single release covers with it.

    With groups, it is the lowest coverage of a group.

    Theory: Result I
    """
    if rule.release_confidence is not None:  # the searches aimed at it
        return rule.release_confidence, 1 - rule.alphas[index]
    covered = [q.aim.level_of_one_release(RELEASE_CONFIDENCE, q.last_offset) for q in searches]
    return RELEASE_CONFIDENCE, min(covered)


def _find_smallest_sizes(rule: CalibrationRule, index: int, q: PrivateQuantile) -> tuple[int, int | None]:
    """Return the fewest records with a finite threshold: of table and of part."""
    smallest = _find_smallest_size(rule, index, q)
    if rule.part == 1:
        return smallest, None
    whole = math.ceil((smallest - 0.5) / rule.part)
    while round(rule.part * whole) < smallest:
        whole += 1
    return whole, smallest


def _find_smallest_size(rule: CalibrationRule, index: int, q: PrivateQuantile) -> int:
    """Return the smallest number of scores for which a finite threshold is expected."""
    if q.released_size is None and q.counted_size is None:
        return max(1, math.ceil((1 - q.alpha + q.offset) / q.alpha))

    def useful(n: int) -> bool:
        aim = q.aim.with_size(n)
        offset = aim.whole_offset(rule.rank_buffer, None, rule.release_confidence, 1 - rule.alphas[index])
        return aim.has_target_within(n, float(offset))

    return smallest_where(useful)
