"""From a request to a release: the whole order of steps, to be read from top to bottom.

A request is public numbers, records and randomness are arguments, and a release is what may be published. Nothing here
knows scikit-learn: the estimators check what callers bring, call ``release`` and keep what it returns.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.model_files import NOT_PLAIN, plain
from dpscp.data.sources import ArraySource, Block, RecordSource
from dpscp.data.sources.persons import OneRowEach, PersonSource
from dpscp.data.validation import suppress_float_warnings
from dpscp.exceptions import SeededWarning
from dpscp.guarantees import Certificate, Guarantee, Stability
from dpscp.guarantees.corrected import CORRECTED
from dpscp.pipeline.calibrate import search_thresholds
from dpscp.pipeline.evaluation import (
    SELF_CONFIDENCE,
    CountedRelease,
    CountOutcomes,
    OutcomeCounts,
    PrivateEvaluation,
)
from dpscp.pipeline.plan import FitPlan, Request, plan_fit, split_shares
from dpscp.pipeline.score import BlockCounts, Scoring
from dpscp.pipeline.search_plan import CalibrationRule, SearchPlan, make_rule, plan_search, row_budget
from dpscp.pipeline.tasks import Task
from dpscp.privacy import Budget, IntegerSource, Ledger, secure_generator
from dpscp.privacy.random_streams import EVALUATED, HELD_OUT, SCORED_ROWS, BlockStreams, child_seeds, stream_seed
from dpscp.privacy.store import BudgetStore
from dpscp.quantile.observer import SearchView
from dpscp.training.engine.loop import StepView
from dpscp.training.engine.progress import announce, verbosity
from dpscp.training.mechanism import Model, Trained

Observer = Callable[[StepView | SearchView], None]


@dataclass(frozen=True)
class Release:
    """What a fit publishes: model, thresholds (n_groups, n_levels), ledger, and a certificate for each level.

    ``task`` is the request's, with what training found. ``evaluation`` measures the release on a part of its own.
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
    assumed: tuple[str, ...] = (),
    random_state: int | None = None,
    store: BudgetStore | None = None,
    note: str = "",
    observer: Observer | None = None,
) -> Release:
    """Train, score, find the thresholds, and write down what was spent and what is proven.

    ``records`` are the private side of a fit, checked: numbers are finite, targets known (labels as indices), each
    record has its public group, if any. They live only while a release is made and are never stored.

    ``assumed`` is what privacy and coverage take on trust of functions of the caller. With ``store`` the cost is
    reserved before a record is used and committed at the end. ``observer``, for tests and audits of training by
    ``DPSGD``, is called with every noisy step and every search; what it hears is not private.

    Paper: Algorithm 1 [alg: dp-scp]; Theory: section 6
    """
    request = _for_rows(request, store)
    strategy = plan_fit(request)
    strategy.check_source(records, request.task)
    planned = plan_release_search(request, strategy)  # what does not fit the budget is refused before a record is used
    reservation = None if store is None else store.reserve(planned.ledger(strategy.spent), note=note)
    training_seed, split_seed, search_seed = child_seeds(random_state, 3)
    # no message of a step may tell of a record; that the run is seeded was told by the caller, once
    with suppress_float_warnings(), warnings.catch_warnings(), verbosity(request.verbose):
        warnings.simplefilter("ignore", SeededWarning)
        announce(f"train with guarantee {strategy.guarantee.name!r}")
        for_training, for_threshold, for_evaluation = _parts(records, strategy, split_seed)
        trained = strategy.train(for_training.map(_TrainingTargets(request.task)), training_seed, observer)
        request.task.check_model(trained.model)
        request = replace(request, task=request.task.after(trained))
        spent = Ledger((), _declared_facts(trained, request, strategy), seeded=random_state is not None)
        spent = strategy.enter(spent, trained).assume(*assumed)
        scoring = Scoring(request.task, trained, corrected=strategy.guarantee.needs_trajectory)
        scores_by_group, told = _scores_by_group(scoring, for_threshold, request, search_seed)
        stability = trained.stability if request.task.natural_score else None
        rule = _rule(strategy.guarantee, request, strategy, spent, stability)
        searches = planned
        if (rule, spent.event) != (planned.rule, strategy.spent.event):
            searches = plan_search(rule, spent=spent, budget=request.budget, accountant=request.accountant)
        if strategy.guarantee.needs_stability and trained.stability is not None:
            told = (*told, *trained.stability.assumptions)
        announce("search the thresholds")
        found = search_thresholds(
            scores_by_group,
            searches,
            spent=spent,
            score_range=request.task.score_range,
            fine_near=request.task.fine_near,
            random_state=search_seed,
            extra_assumptions=(*request.task.assumptions, *told),
            observer=observer,
        )
        counted = _noisy_outcomes(for_evaluation, request, strategy, trained.model, found.values, search_seed)
    # what one row meets becomes the promise to a person without ids
    ledger = found.ledger.convert_unit(request.unit).declare(**request.unit.limit_facts)
    if reservation is not None:
        reservation.commit(ledger)
    score = request.task.chosen.get("conformity_score")
    certificates = tuple(replace(c, terms=replace(c.terms, conformity_score=score)) for c in found.certificates)
    if request.task.classes_found:
        certificates = tuple(certificate.with_found_classes() for certificate in certificates)
    measured = _evaluation(counted, request, strategy, ledger)
    return Release(trained.model, found.values, ledger, certificates, request.task, measured)


def _for_rows(request: Request, store: BudgetStore | None) -> Request:
    """The request in a budget for single rows, where a person has up to k and nobody knows which.

    Theory: Result H
    """
    if store is not None and request.unit.group > 1:
        raise ValueError(
            "a budget store adds up promises about single records, and rows_per_person without ids makes one about "
            "persons: give persons=ids, or fit without budget="
        )

    def planned(budget: Budget) -> Ledger:
        tried = replace(request, budget=budget)
        strategy = plan_fit(tried)
        return plan_release_search(tried, strategy).ledger(strategy.spent)

    budget = row_budget(request.budget, request.unit.group, planned, request.accountant)
    return replace(request, budget=budget)


def plan_release_search(request: Request, strategy: FitPlan) -> SearchPlan:
    """What this release is going to ask of the scores and to spend on it, from public numbers alone."""
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
    if strategy.calibration_fraction is not None:
        rule = rule.with_sharper_size(split_shares(request, strategy.held_out or 0.0).held_out_mu)
    return replace(rule, unit=request.unit, secret_part=strategy.secret_part, evaluation=strategy.evaluation)


@dataclass(frozen=True)
class _TrainingTargets:
    """A block with its targets as training sees them."""

    task: Task

    def __call__(self, block: Block) -> Block:
        return block.with_targets(self.task.training_targets(block.targets))


def _parts(records: RecordSource, strategy: FitPlan, seed: int | None) -> tuple[RecordSource, ...]:
    """The records for training, for the threshold and for the evaluation: one secret uniform a person decides.

    Without a part that is held out all of them train and are searched, and none is evaluated.
    """
    fraction, held_out, block = strategy.calibration_fraction, strategy.held_out, records.whole
    if fraction is None or held_out is None:
        return records, records, records
    # training, calibration, evaluation: where the uniform falls
    faces = ((held_out, 1.0), (0.0, fraction), (fraction, held_out))
    if block is None:
        streams = BlockStreams.of(seed, HELD_OUT)
        return tuple(records.map(_Part(streams, low, high)) for low, high in faces)
    drawn = secure_generator(seed).random(block.owners.count)
    return tuple(ArraySource.of_blocks([block.part((low <= drawn) & (drawn < high))]) for low, high in faces)


@dataclass(frozen=True)
class _Part:
    """The persons of a block whose uniform lies from ``low`` to ``high``; the same at each reading."""

    streams: BlockStreams
    low: float
    high: float

    def __call__(self, block: Block) -> Block:
        drawn = self.streams.generator(block.id).random(block.owners.count)
        return block.part((self.low <= drawn) & (drawn < self.high))


def _noisy_outcomes(
    records: RecordSource, request: Request, strategy: FitPlan, model: Model, thresholds: Any, seed: int | None
) -> OutcomeCounts | None:
    """Noisy counts of what the release does on the part that neither trained nor calibrated; None without one.

    Theory: section 13
    """
    if strategy.evaluation is None:
        return None
    announce("measure the release on records of its own")
    n_groups, by_label = len(request.group_values or ()), request.groups_are_labels
    streams = BlockStreams.of(seed, EVALUATED)
    found = records.sum(CountOutcomes(request.task, model, thresholds, n_groups, by_label, streams))
    noise = strategy.evaluation.noise
    return OutcomeCounts(*found).with_noise(noise, IntegerSource(stream_seed(seed, EVALUATED)))


def _evaluation(
    counts: OutcomeCounts | None, request: Request, strategy: FitPlan, ledger: Ledger
) -> PrivateEvaluation | None:
    """The private evaluation of a release by itself; its ledger is that of the whole fit."""
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


def _scores_by_group(
    scoring: Scoring, records: RecordSource, request: Request, seed: int | None
) -> tuple[list[Any], tuple[str, ...]]:
    """The scores of each public group, or counts of them, and what is to be said about them.

    A record outside all groups counts in none. Of each person one record, at random: plain counts, and no person in two
    groups.

    Theory: Result H
    """
    groups, block = range(len(request.group_values or ())), records.whole
    if block is None:
        by_person = isinstance(records, PersonSource)
        scored = records.map(scoring, keep=not by_person)
        if by_person:
            scored = scored.map(OneRowEach(BlockStreams.of(seed, SCORED_ROWS)), keep=True)
        return [BlockCounts(scored, group) for group in groups] or [BlockCounts(scored)], scoring.told
    chosen = block.owners.one_row_each(seed)
    scores, told = scoring.scores(block)
    scores = scores[chosen]
    if block.groups is None:
        return [scores], told
    return [scores[block.groups[chosen] == group] for group in groups], told


def _declared_facts(trained: Trained, request: Request, strategy: FitPlan) -> dict[str, Any]:
    """Everything that was declared public, by training, by the caller and by the plan; JSON values."""
    found = {name: plain(value) for name, value in trained.public_facts.items() if name != "seeded"}
    facts = {name: str(trained.public_facts[name]) if v is NOT_PLAIN else v for name, v in found.items()}
    own = request.public_facts()
    taken = [*facts.pop("taken_from_data", []), *own.pop("taken_from_data", [])]
    return facts | own | dict(strategy.facts) | ({"taken_from_data": list(dict.fromkeys(taken))} if taken else {})
