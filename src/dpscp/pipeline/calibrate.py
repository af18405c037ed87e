"""Private calibration: from scores to thresholds, with a ledger and certificates.

``search_thresholds`` is the general form with several levels and disjoint groups. ``calibrate`` is the form with one
threshold for callers with their own scores. Both use scores, the ledger of earlier costs, and public numbers.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_nonnegative, check_probability, check_range
from dpscp._base.trust import OWN_SCORES
from dpscp.data.persons import choose_unit, keep_rows, require_unit
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import Certificate, Guarantee, Stability, guarantee_of
from dpscp.guarantees.certificate import RELEASE_CONFIDENCE
from dpscp.guarantees.formulas import minimax_miss_bound, smallest_where, universal_floor
from dpscp.guarantees.split import SPLIT
from dpscp.guarantees.terms import Terms
from dpscp.guarantees.universal import UNIVERSAL
from dpscp.pipeline.listed_scores import ListedScores
from dpscp.pipeline.search_plan import CalibrationRule, SearchPlan, make_rule, plan_search, row_budget
from dpscp.privacy import Budget, Ledger, Unit, as_event
from dpscp.privacy.accounting import Accountant
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.quantile import PrivateQuantile, private_quantile
from dpscp.quantile.counts import known_size
from dpscp.quantile.observer import SearchObserver
from dpscp.quantile.search import SharedCounts

__all__ = ["Calibration", "Thresholds", "calibrate", "search_thresholds"]

INDEPENDENT = "for what a single release covers: the held-out {} are independent draws from one distribution"
COINS = "each {} was held out by an independent coin; the promise is an average over these coins too"
FIXED_GROUPS = "a record's group is a fixed function of the record; the promise holds within each group"
OVERLAPPING_GROUPS = (
    "a record's groups, {} at most, are fixed functions of the record; the promise holds within each group, because a "
    "row gets the largest threshold of its groups"
)
ANOTHER_POPULATION = (
    "records are independent, and new ones come from the declared population: its density relative to that of the "
    "calibration records is proportional to likelihood_ratio (if it is not, the promise moves by at most the total "
    "variation distance)"
)
PERSONS_OF_ANOTHER = (
    "persons are independent (records of one person may depend on each other in any way), and of each one random "
    "record counts; of these, {}"
)

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
    extra_assumptions: tuple[str, ...] = (),
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
    extra_assumptions : tuple of str
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
    ledger = searches.ledger(spent).declare(**_list_search_facts(searches, spent, found, (low, high)))
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
    searches: SearchPlan, spent: Ledger, found: Sequence[Sequence[PrivateQuantile]], score_range: tuple[float, float]
) -> dict[str, Any]:
    """List what the searches declare public; nothing without a search."""
    if not searches.level_indices:
        return {}
    unit, n, near = searches.rule.unit, searches.rule.n_records, found[0][0].fine_near
    facts: dict[str, Any] = {
        **(unit.facts(n) if unit.by_person else {}),
        unit.count_name: spent.public_facts.get(unit.count_name, n),
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
    extra_assumptions: tuple[str, ...],
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
        exchangeable = (PERSONS_OF_ANOTHER if rule.unit.by_person else "{}").format(ANOTHER_POPULATION)
    assumptions = [exchangeable, *others, rule.guarantee.assumption]
    several = rule.groups_per_record > 1
    if rule.has_groups:
        assumptions.append(OVERLAPPING_GROUPS.format(rule.groups_per_record) if several else FIXED_GROUPS)
    elif not rule.has_released_size:
        assumptions.insert(1, rule.unit.nominal_is_true)
    if rule.counted_size is not None:
        assumptions.append(COINS.format(rule.unit.noun))
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
            assumptions.append(INDEPENDENT.format(f"{rule.unit.noun}s"))
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


@dataclass(frozen=True)
class Calibration:
    """Hold a released threshold with its ledger and certificate.

    Attributes
    ----------
    threshold : float, or array of shape (n_groups,) with groups
        Infinite where no finite one exists.
    ledger : Ledger
        What was spent, with training.
    certificate : Certificate
        What is proven about coverage.
    quantile : PrivateQuantile or None
        The search; None where the level is impossible, and with groups.
    """

    threshold: Any
    ledger: Ledger
    certificate: Certificate
    quantile: PrivateQuantile | None


def calibrate(  # noqa: PLR0913 (public: one argument a choice)
    scores: Any,
    *,
    training: DpEvent | Ledger | None = None,
    epsilon: float,
    delta: float,
    alpha: float = 0.1,
    score_range: tuple[float, float],
    guarantee: str | Guarantee = "universal",
    held_out: bool = False,
    stability: Stability | None = None,
    score_lipschitz: float | None = None,
    rank_buffer: float | None = None,
    failure_probability: float | None = None,
    steps: int | None = None,
    fine_near: float | tuple[float, float] | None = None,
    n_records: int | None = None,
    persons: Any = None,
    rows_per_person: int | None = None,
    n_persons: int | None = None,
    release_confidence: float | None = None,
    likelihood_ratio: Any = None,
    ratio_bound: float | None = None,
    groups: Any = None,
    group_values: Sequence[Any] | None = None,
    groups_per_record: int | None = None,
    accountant: str | Accountant = "pld",
    random_state: int | None = None,
) -> Calibration:
    """Find a private threshold for your own scores.

    The whole release, training included, is (epsilon, delta)-differentially private.

    Parameters
    ----------
    scores : array of shape (n,), Dask array or iterator of arrays
        The scores s(x_i, y_i; theta) of the records. A score may depend on its record, the model and independent noise
        only.
    training : event or Ledger, optional
        What the training of the model spent. Required unless ``held_out``.
    epsilon, delta : float
        The privacy budget of training and calibration. Calibration gets what training left.
    alpha : float, default 0.1
        The wanted miscoverage.
    score_range : (low, high)
        The public range of the scores; scores outside are clipped.
    guarantee : str or Guarantee, default "universal"
        With ``"universal"``, ``"stability"``, ``"finite"`` or ``"asymptotic"`` the scored records are the training
        records.
    held_out : bool, default False
        Whether the scored records were not used in training (guarantee ``"split"``). Each part may then spend the whole
        budget.
    stability : Stability, optional
        The bound on the model's change, for ``guarantee="stability"``.
    score_lipschitz : float, optional
        The Lipschitz constant of the score in the parameters.
    rank_buffer : float, optional
        Ranks that ``guarantee="finite"`` adds for the change of the model.
    failure_probability : float, optional
        The probability with which the union buffer may fail.
    steps : int, optional
        The number of halvings of the search; None chooses it.
    fine_near : float or pair, optional
        A public value near which the grid of thresholds is finest: 0 for residuals, both ends for probabilities. A
        ``score_range`` that is far too wide then costs little.
    n_records : int, optional
        The public nominal number of scores. None declares the true number public. A given number is a plan only: the
        true one stays private, and a noisy one is released.
    persons : one id for each score, optional
        Where a person has several scores, one random score of each person is counted. Then ``training`` must be the
        cost per person with at most ``rows_per_person`` rows each, and a ledger must have that unit. The certificate is
        for a random record of a new person.
    rows_per_person : int, optional
        The public cap on the rows of one person. Without ``persons``, each person is assumed to have at most so many
        scores. The budget then holds for all of them together, and coverage is per record.
    n_persons : int, optional
        The public nominal number of persons. None declares the true number public.
    release_confidence : float, optional
        The probability with which this threshold itself covers the level, in addition to the average. It needs
        held-out, independent scores.
    likelihood_ratio : array of shape (n,), optional
        For held-out scores: the density w of the population that new records come from, relative to that of these, a
        public function of the record. Together with ``ratio_bound``, the promise is for that population: a secret coin
        keeps each score with probability w / W.
    ratio_bound : float, optional
        The public bound W >= w.
    groups : array of shape (n,), list of such arrays, or boolean array of shape (n, n_groups), optional
        The group of each score: each group has its own threshold and promise. A score in no listed group counts in
        none. With several arrays, or with ``groups_per_record``, groups overlap. A new row then gets the largest
        threshold of its groups, or the full set if it is in no group.
    group_values : list, optional
        The public groups; for a list of arrays, a list of lists.
    groups_per_record : int, optional
        For a boolean array: the public maximum of groups of one record. They are charged together. A score in more
        groups counts in none, and such a new row gets the full set.
    accountant : str or Accountant, default "pld"
    random_state : int, optional
        None uses system entropy. An integer makes the run repeatable and NOT private.

    Returns
    -------
    Calibration
        Threshold, ledger and certificate.

    Examples
    --------
    >>> import numpy as np
    >>> from dpscp.privacy import dpsgd_event
    >>> scores = np.random.default_rng(0).uniform(size=20_000)
    >>> spent = dpsgd_event(40.0, 1.0, 50)
    >>> c = calibrate(scores, training=spent, epsilon=1, delta=1e-6, score_range=(0, 1), random_state=0)
    >>> c.ledger.epsilon(1e-6) <= 1, c.certificate.coverage
    (True, 0.9)

    Theory: Results B, C, E, F, G, H, I and K
    """
    budget, alpha = Budget(epsilon, delta), check_probability("alpha", alpha)
    chosen = _choose_guarantee(guarantee, held_out=held_out, trained=training is not None)
    unit = choose_unit(persons, rows_per_person, n_records=n_records, n_persons=n_persons)
    spent = read_training_cost(training, unit).assume(OWN_SCORES)
    listed = ListedScores.of(scores, likelihood_ratio, ratio_bound, groups, group_values, groups_per_record)
    if unit.by_person:
        places, n_records = _choose_one_row_each(scores, persons, unit, random_state), n_persons
        scores, listed = np.asarray(scores)[places], listed.take(places)
    rule = make_rule(
        chosen,
        (alpha,),
        spent,
        check_count(unit.count_name, n_records if n_records is not None else _count_scores(scores)),
        stability=stability,
        score_lipschitz=score_lipschitz,
        n_groups=listed.n_groups,
        counted=n_records is None,
        release_confidence=release_confidence,
    )
    rule = rule.for_overlap(listed.groups_per_record).for_population(listed.ratio_bound)
    rule = _with_rank_buffer(replace(rule, failure_probability=failure_probability, unit=unit), rank_buffer)
    found = search_thresholds(
        listed.scores_by_group(scores, random_state),
        plan_row_searches(rule, spent, budget, steps, accountant),
        spent=spent,
        score_range=score_range,
        fine_near=fine_near,
        random_state=random_state,
        extra_assumptions=stability.assumptions if chosen.needs_stability and stability is not None else (),
    )
    return _make_calibration(found, unit, listed, budget.delta)


def _make_calibration(found: Thresholds, unit: Unit, listed: ListedScores, delta: float) -> Calibration:
    """Return the calibration of one level; warn if its sets are full."""
    thresholds, certificate = found.values[:, 0], found.certificates[0]
    if certificate.is_vacuous or np.isinf(thresholds).any():
        warnings.warn(str(certificate), GuaranteeWarning, stacklevel=3)
    ledger = found.ledger.convert_unit(unit).declare(**unit.limit_facts).show_at(delta)
    if listed.groups is None:
        return Calibration(float(thresholds[0]), ledger, certificate, next(iter(found.quantiles), None))
    return Calibration(thresholds, ledger.declare(**listed.groups.facts), certificate, None)


def _with_rank_buffer(rule: CalibrationRule, rank_buffer: float | None) -> CalibrationRule:
    """Return the rule with the caller's buffer, if the guarantee has one."""
    if rank_buffer is None or not rule.guarantee.rank_buffer:
        return rule
    return replace(rule, rank_buffer=check_nonnegative("rank_buffer", rank_buffer))


def read_training_cost(training: DpEvent | Ledger | None, unit: Unit) -> Ledger:
    """Return the cost of training as a ledger; refuse one with another unit."""
    if isinstance(training, Ledger):
        return require_unit(training, unit)
    return Ledger() if training is None else Ledger().add("training", as_event(training), unit=unit.counted)


def plan_row_searches(
    rule: CalibrationRule, spent: Ledger, budget: Budget, steps: int | None, accountant: str | Accountant
) -> SearchPlan:
    """Plan the searches within the budget, for k rows together without ids."""

    def searches(budget: Budget) -> SearchPlan:
        return plan_search(rule, spent=spent, budget=budget, steps=steps, accountant=accountant)

    return searches(row_budget(budget, rule.unit.group, lambda tried: searches(tried).ledger(spent), accountant))


def _choose_one_row_each(scores: Any, persons: Any, unit: Unit, random_state: int | None) -> NDArray[np.int64]:
    """Return the position of one random score of each person.

    Theory: Result H
    """
    if np.ndim(scores) != 1:
        raise ValueError("with persons, scores must be a one-dimensional array")
    kept, owners = keep_rows(persons, n_rows=len(scores), rows_per_person=unit.cap, random_state=random_state)
    return np.asarray(kept[owners.one_row_each(random_state)])


def _choose_guarantee(name: str | Guarantee, *, held_out: bool, trained: bool) -> Guarantee:
    """Return the guarantee; refuse one that does not fit how the scores were made."""
    chosen = SPLIT if held_out and name == UNIVERSAL.name else guarantee_of(name)
    if chosen.needs_trajectory:
        raise ValueError(
            f"guarantee={chosen.name!r} removes each record's influence from its own score, which needs the trained "
            "model; use an estimator, or guarantee='universal'"
        )
    if held_out != chosen.held_out:
        raise ValueError(
            "guarantee='split' and held_out=True belong together: pass both for scores of held-out records"
        )
    if not held_out and not trained:
        raise ValueError(
            f"guarantee={chosen.name!r} needs training=, the event or ledger of the model's training, because the "
            "scored records are its training records. For a model that did not use them, pass held_out=True"
        )
    return chosen


def _count_scores(scores: Any) -> int:
    """Return the number of scores, which the caller declares public."""
    size = known_size(scores)
    if size is None:
        raise ValueError("n_records is required for scores whose number is not known before they are read")
    if size == 0:
        raise ValueError("scores is empty; at least one score is required")
    return size
