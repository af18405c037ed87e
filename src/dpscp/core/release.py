"""From a request to a release: all steps, in order.

A request is public numbers, records and randomness are arguments, and a release is what may be published. This module
does not use scikit-learn: the estimators check the arguments, call ``release`` and keep its result.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import Assumption
from dpscp._base.progress import announce, verbosity
from dpscp.core.evaluation import (
    SELF_CONFIDENCE,
    CountedRelease,
    CountOutcomes,
    OutcomeCounts,
    PrivateEvaluation,
)
from dpscp.core.plan import FitPlan, plan_fit, split_shares, warn_large_delta
from dpscp.core.request import Request
from dpscp.core.score import BlockCounts, Scoring
from dpscp.core.search_plan import CalibrationRule, SearchPlan, make_rule, plan_search, row_budget
from dpscp.core.tasks import Task
from dpscp.core.thresholds import search_thresholds
from dpscp.data.model_files import NOT_PLAIN, plain
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.persons import OneRowEach
from dpscp.data.sources.places import Places, is_in_memory, places_of, unit_of_blocks
from dpscp.data.validation import suppress_float_warnings
from dpscp.exceptions import SeededWarning
from dpscp.guarantees import Certificate, Guarantee, Stability
from dpscp.guarantees.corrected import CORRECTED
from dpscp.privacy import Budget, IntegerSource, Ledger
from dpscp.privacy.random_streams import EVALUATED, SCORED_ROWS, PlacedDraws, child_seeds, stream_seed
from dpscp.privacy.store import BudgetStore
from dpscp.threshold.observer import SearchView
from dpscp.training.base import Trained
from dpscp.training.engine.loop import StepView
from dpscp.training.model import Model
from dpscp.training.spending import count_training

Observer = Callable[[StepView | SearchView], None]


@dataclass(frozen=True)
class Release:
    """Hold what a fit publishes.

    Attributes
    ----------
    model : Model
    thresholds : array of shape (n_groups, n_levels)
    ledger : Ledger
    certificates : tuple of Certificate
        One for each level.
    task : Task
        The request's task, with what training found.
    evaluation : PrivateEvaluation or None
        The private evaluation of the release on a part of its own.
    """

    model: Model
    thresholds: NDArray[np.float64]
    ledger: Ledger
    certificates: tuple[Certificate, ...]
    task: Task
    evaluation: PrivateEvaluation | None = None


def release(
    request: Request,
    records: RecordSource,
    *,
    assumed: tuple[Assumption, ...] = (),
    random_state: int | None = None,
    store: BudgetStore | None = None,
    note: str = "",
    observer: Observer | None = None,
) -> Release:
    """Train, score, find the thresholds, and state what was spent and proven.

    Parameters
    ----------
    request : Request
        The public side of the fit.
    records : RecordSource
        The private side, checked: finite numbers, known targets (labels as indices), and each record's public group, if
        any. They are used only while the release is made and never stored.
    assumed : tuple of str
        The assumptions about the caller's functions.
    random_state : int, optional
    store : BudgetStore, optional
        The cost is reserved before a record is used and committed at the end.
    note : str
        The note of the reservation.
    observer : function, optional
        Called with every noisy step and every search, for tests and audits of training by ``DPSGD``. What it sees is
        not private.

    Paper: Algorithm 1 [alg: dp-scp]; Theory: section 6
    """
    request = _for_rows(request, store)
    strategy = plan_fit(request)
    strategy.check_source(records, request.task)
    planned = plan_release_search(request, strategy)  # what does not fit the budget is refused before a record is used
    reservation = None if store is None else store.reserve(planned.ledger(strategy.spent), note=note)
    training_seed, split_seed, search_seed = child_seeds(random_state, 3)
    with quiet_steps(), verbosity(request.verbose):
        announce(f"train with guarantee {strategy.guarantee.name!r}")
        for_training, for_threshold, for_evaluation = _parts(records, strategy, split_seed)
        with count_training(strategy.training_cost(request)):
            trained = strategy.train(for_training.map(_TrainingTargets(request.task)), training_seed, observer)
        request.task.check_model(trained.model)
        request = request.with_found_ranges(trained)
        facts = request.public_facts() | dict(strategy.facts)
        spent = declare_all(Ledger(seeded=random_state is not None), trained, facts).take(*request.taken_from_data)
        spent = strategy.enter(spent, trained).assume(*assumed)
        scoring = Scoring(request.task, trained, corrected=strategy.guarantee.needs_trajectory)
        scores_by_group = _scores_by_group(scoring, for_threshold, request, search_seed)
        assumptions = (*request.task.assumptions, *scoring.assumptions)
        stability = trained.stability if request.task.natural_score else None
        rule = _rule(strategy.guarantee, request, strategy, spent, stability)
        searches = planned
        if rule != planned.rule:
            searches = plan_search(rule, spent=spent, budget=request.budget, accountant=request.accountant)
        if strategy.guarantee.needs_stability and trained.stability is not None:
            assumptions = (*assumptions, *trained.stability.assumptions)
        announce("search the thresholds")
        found = search_thresholds(
            scores_by_group,
            searches,
            spent=spent,
            score_range=request.task.score_range,
            fine_near=request.task.fine_near,
            random_state=search_seed,
            extra_assumptions=assumptions,
            observer=observer,
        )
        counted = _count_outcomes(for_evaluation, request, strategy, trained.model, found.values, search_seed)
    # what one row meets becomes the promise to a person without ids
    ledger = found.ledger.convert_unit(request.unit).declare(**request.unit.limit_facts)
    ledger = ledger.show_at(request.budget.delta)
    if reservation is not None:
        reservation.commit(ledger)
    score = request.task.score_facts.get("conformity_score")
    certificates = tuple(replace(c, terms=replace(c.terms, conformity_score=score)) for c in found.certificates)
    if request.task.classes_found:
        certificates = tuple(certificate.with_found_classes() for certificate in certificates)
    measured = _evaluate_counts(counted, request, strategy, ledger)
    return Release(trained.model, found.values, ledger, certificates, request.task, measured)


def _for_rows(request: Request, store: BudgetStore | None) -> Request:
    """Convert the budget to single rows, where a person has up to k without ids.

    Theory: Result H
    """
    warn_large_delta(request.budget.delta, request.n_records)
    if store is not None and request.unit.group > 1:
        raise ValueError(
            "a budget store adds up costs of single records, but rows_per_person without ids is about persons. Pass "
            "persons=ids, or fit without budget"
        )

    def planned(budget: Budget) -> Ledger:
        tried = replace(request, budget=budget)
        strategy = plan_fit(tried)
        return plan_release_search(tried, strategy).ledger(strategy.spent)

    budget = row_budget(request.budget, request.unit.group, planned, request.accountant)
    return replace(request, budget=budget)


def plan_release_search(request: Request, strategy: FitPlan) -> SearchPlan:
    """Plan the searches of a release and their cost, from public numbers alone."""
    # a shift bound is known after training; it moves levels and threshold, and costs nothing
    guarantee = CORRECTED if strategy.guarantee.needs_stability else strategy.guarantee
    spent = strategy.spent
    rule = _rule(guarantee, request, strategy, spent)
    return plan_search(rule, spent=spent, budget=request.budget, accountant=request.accountant)


def _rule(
    guarantee: Guarantee, request: Request, strategy: FitPlan, spent: Ledger, stability: Stability | None = None
) -> CalibrationRule:
    rule = make_rule(
        guarantee,
        request.alphas,
        spent,
        request.n_records,
        part=strategy.part,
        stability=stability,
        n_groups=None if request.group_values is None else len(request.group_values),
        counted=request.n_found,
        release_confidence=request.release_confidence,
    )
    rule = rule.for_overlap(request.groups_per_record).for_population(request.ratio_bound)
    if strategy.calibration_fraction is not None:
        rule = rule.with_sharper_size(split_shares(request, strategy.held_out or 0.0).held_out_mu)
    return replace(rule, unit=request.unit, secret_part=strategy.secret_part, evaluation=strategy.evaluation)


@dataclass(frozen=True)
class _TrainingTargets:
    """Replace the targets of a block by those that training sees."""

    task: Task

    def __call__(self, block: Block) -> Block:
        return block.with_targets(self.task.training_targets(block.targets))


def _parts(records: RecordSource, strategy: FitPlan, seed: int | None) -> tuple[RecordSource, ...]:
    """Return the records for training, for calibration and for evaluation.

    One secret uniform number of each person decides. Without held-out records, all records train and calibrate; the
    third source is then not used.
    """
    fraction, held_out = strategy.calibration_fraction, strategy.held_out
    if fraction is None or held_out is None:
        return records, records, records
    coins, places, here = PlacedDraws.of(seed), places_of(records), is_in_memory(records)
    faces = ((held_out, 1.0), (0.0, fraction), (fraction, held_out))
    return tuple(records.map(_Part(coins, places, low, high), keep=here) for low, high in faces)


@dataclass(frozen=True)
class _Part:
    """Select the persons of a block whose uniform number is at least ``low`` and below ``high``."""

    coins: PlacedDraws
    places: Places
    low: float
    high: float

    def for_block(self, number: int) -> "_Part":
        return replace(self, places=self.places.for_block(number))

    def __call__(self, block: Block) -> Block:
        drawn = self.coins.uniform(self.places.persons[block.id])
        return block.part((self.low <= drawn) & (drawn < self.high))


def _count_outcomes(
    records: RecordSource, request: Request, strategy: FitPlan, model: Model, thresholds: Any, seed: int | None
) -> OutcomeCounts | None:
    """Return noisy counts of the outcomes on the evaluation part; None without one.

    One random record of each person is counted.

    Theory: section 13
    """
    if strategy.evaluation is None:
        return None
    announce("evaluate the release on records of its own")
    row_seed, dither_seed, noise_seed = child_seeds(stream_seed(seed, EVALUATED), 3)
    places = places_of(records)
    if unit_of_blocks(records).by_person:
        records = records.map(OneRowEach(PlacedDraws.of(row_seed), places))
    n_groups, by_label = len(request.group_values or ()), request.groups_are_labels
    draws, by_ratio = PlacedDraws.of(dither_seed), request.ratio_bound is not None
    found = records.sum(CountOutcomes(request.task, model, thresholds, n_groups, by_label, draws, places, by_ratio))
    return OutcomeCounts(*found).with_noise(strategy.evaluation.noise, IntegerSource(noise_seed))


def _evaluate_counts(
    counts: OutcomeCounts | None, request: Request, strategy: FitPlan, ledger: Ledger
) -> PrivateEvaluation | None:
    """Return the private evaluation of a release; its ledger is that of the whole fit."""
    if counts is None or strategy.evaluation is None:
        return None
    low, high = request.task.y_bounds or (0.0, float(len(request.task.classes or ())))
    counted = CountedRelease(
        targets=tuple(1 - alpha for alpha in request.alphas),
        classes=request.task.classes,
        group_values=() if request.groups_are_labels else request.group_values or (),
        limit=high - low,
    )
    noise, delta = strategy.evaluation.noise, request.budget.delta
    return counted.evaluation(counts, noise, confidence=SELF_CONFIDENCE, ledger=ledger, delta=delta)


def _scores_by_group(scoring: Scoring, records: RecordSource, request: Request, seed: int | None) -> list[BlockCounts]:
    """Return the counts of the scores of each public group.

    A record outside all groups is counted in none. One random record of each person is counted, so no person is in two
    groups.

    Theory: Result H
    """
    scored = records.map(scoring, keep=True)
    if unit_of_blocks(records).by_person:
        draws = PlacedDraws.of(stream_seed(seed, SCORED_ROWS))
        scored = scored.map(OneRowEach(draws, places_of(scored)), keep=True)
    return [BlockCounts(scored, group) for group in range(request.n_group_places)] or [BlockCounts(scored)]


def declare_all(ledger: Ledger, trained: Trained, own: Mapping[str, Any]) -> Ledger:
    """Declare everything that training and this fit (``own``) make public, as JSON values."""
    found = {name: plain(value) for name, value in trained.public_facts.items()}
    facts = {name: str(trained.public_facts[name]) if v is NOT_PLAIN else v for name, v in found.items()}
    declared = ledger.declare(**(facts | dict(own)))
    return declared.take(*trained.taken_from_data).find(*trained.found_privately)


@contextmanager
def quiet_steps() -> Iterator[None]:
    """Let no message of a step reveal a record; the caller has warned about the seed already."""
    with suppress_float_warnings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)
        yield
