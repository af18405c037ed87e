"""Train and score: the part of a fit before the one way to a release.

A problem is public numbers, records and randomness are arguments, and a release is what may be published. This module
does not use scikit-learn: the estimators check the arguments, call ``release`` and keep its result.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dpscp._base.assumptions import Assumption
from dpscp._base.progress import announce, verbosity
from dpscp.core.evaluation import (
    SELF_CONFIDENCE,
    CountedRelease,
    CountOutcomes,
    OutcomeCounts,
    PrivateEvaluation,
)
from dpscp.core.fit_plan import FitPlan, plan_fit
from dpscp.core.indicators import Multilabel
from dpscp.core.losses import count_losses
from dpscp.core.problem import FitProblem
from dpscp.core.release import Counted, Release, release_counts
from dpscp.core.score import BlockCounts, Scoring
from dpscp.core.tasks import Prediction, Scored
from dpscp.data.model_files import NOT_PLAIN, plain
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.persons import OneRowEach
from dpscp.data.sources.places import Places, is_in_memory, places_of, unit_of_blocks
from dpscp.data.validation import suppress_float_warnings
from dpscp.exceptions import SeededWarning
from dpscp.privacy import IntegerSource, Ledger
from dpscp.privacy.random_streams import EVALUATED, SCORED_ROWS, PlacedDraws, child_seeds, stream_seed
from dpscp.privacy.store import BudgetStore
from dpscp.threshold.observer import SearchView
from dpscp.training.base import Trained
from dpscp.training.engine.loop import StepView
from dpscp.training.model import Model
from dpscp.training.spending import count_training

Observer = Callable[[StepView | SearchView], None]


@dataclass(frozen=True)
class Fit(Release):
    """Hold what a fit publishes: also the model, the task with what training found, and the evaluation.

    ``evaluation`` is the private evaluation of the release on a part of its own; None without one.
    """

    model: Model = field(kw_only=True)
    task: Prediction = field(kw_only=True)
    evaluation: PrivateEvaluation | None = None


def release(
    problem: FitProblem,
    records: RecordSource,
    *,
    assumed: tuple[Assumption, ...] = (),
    random_state: int | None = None,
    store: BudgetStore | None = None,
    note: str = "",
    observer: Observer | None = None,
) -> Fit:
    """Train, score, find the thresholds, and state what was spent and proven.

    Parameters
    ----------
    problem : FitProblem
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

    Paper: Algorithm 1 [alg: dp-scp]; Theory: Which one to use
    """
    problem.require_payable(store, seeded=random_state is not None)
    plan = plan_fit(problem)  # what does not fit the budget is refused before a record is used
    plan.check_source(records)
    run = _FitRun(plan, child_seeds(random_state, 3), assumed, observer)
    with quiet_steps(), verbosity(problem.verbose):
        found = release_counts(
            plan, lambda: run.count(records), random_state=run.search_seed, store=store, note=note, observer=observer
        )
        return run.finish(found)


class _FitRun:
    """Train and score one fit; what it knows of the records lives as long as the release is made."""

    def __init__(
        self,
        plan: FitPlan,
        seeds: Sequence[int | None],
        assumed: tuple[Assumption, ...],
        observer: Observer | None,
    ) -> None:
        self.plan, self.problem, self.assumed, self.observer = plan, plan.problem, assumed, observer
        self.training_seed, self.split_seed, self.search_seed = seeds

    def count(self, records: RecordSource) -> Counted:
        """Train on one part of the records and score another one, or all of them."""
        plan = self.plan
        announce(f"train with guarantee {plan.guarantee.name!r}")
        for_training, for_threshold, self.for_evaluation = _parts(records, plan, self.split_seed)
        with count_training(plan.training_cost()):
            trained = plan.train(
                for_training.map(_TrainingTargets(self.problem.task)), self.training_seed, self.observer
            )
        self.problem.task.check_model(trained.model)
        problem = self.problem = self.problem.with_found_ranges(trained)
        self.model = trained.model
        facts = problem.public_facts() | dict(plan.facts)
        spent = declare_all(Ledger(seeded=self.search_seed is not None), trained, facts).take(*problem.taken_from_data)
        spent = plan.enter(spent, trained).assume(*self.assumed)
        task, seed = problem.task, self.search_seed
        if isinstance(task, Multilabel):
            counted = count_losses(
                task, trained.model, for_threshold, n_groups=problem.n_group_places, steps=plan.steps, seed=seed
            )
            return replace(counted, spent=spent)
        assert isinstance(task, Scored)
        scoring = Scoring(task, trained, corrected=plan.guarantee.needs_trajectory)
        return Counted(
            _scores_by_group(scoring, for_threshold, problem, seed),
            spent,
            task.score_range,
            (*task.assumptions, *scoring.assumptions),
            trained.stability if task.natural_score else None,
        )

    def finish(self, found: Release) -> Fit:
        """Evaluate the release where a part of the records is for that."""
        measured = None
        if self.plan.evaluation is not None:
            counted = _count_outcomes(
                self.for_evaluation, self.problem, self.plan, self.model, found.threshold, self.search_seed
            )
            measured = _evaluate_counts(counted, self.problem, self.plan, found.ledger)
        return Fit(**vars(found), model=self.model, task=self.problem.task, evaluation=measured)


@dataclass(frozen=True)
class _TrainingTargets:
    """Replace the targets of a block by those that training sees."""

    task: Prediction

    def __call__(self, block: Block) -> Block:
        return block.with_targets(self.task.training_targets(block.targets))


def _parts(records: RecordSource, plan: FitPlan, seed: int | None) -> tuple[RecordSource, ...]:
    """Return the records for training, for calibration and for evaluation.

    One secret uniform number of each person decides. Without held-out records, all records train and calibrate; the
    third source is then not used.
    """
    fraction, held_out = plan.calibration_fraction, plan.held_out
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
    records: RecordSource, problem: FitProblem, plan: FitPlan, model: Model, thresholds: Any, seed: int | None
) -> OutcomeCounts:
    """Return noisy counts of the outcomes on the evaluation part.

    One random record of each person is counted.

    Theory: Private evaluation
    """
    assert plan.evaluation is not None
    assert isinstance(problem.task, Scored)
    announce("evaluate the release on records of its own")
    row_seed, dither_seed, noise_seed = child_seeds(stream_seed(seed, EVALUATED), 3)
    places = places_of(records)
    if unit_of_blocks(records).by_person:
        records = records.map(OneRowEach(PlacedDraws.of(row_seed), places))
    n_groups, by_label = len(problem.group_values or ()), problem.groups_are_labels
    draws, by_ratio = PlacedDraws.of(dither_seed), problem.ratio_bound is not None
    found = records.sum(CountOutcomes(problem.task, model, thresholds, n_groups, by_label, draws, places, by_ratio))
    return OutcomeCounts(*found).with_noise(plan.evaluation.noise, IntegerSource(noise_seed))


def _evaluate_counts(counts: OutcomeCounts, problem: FitProblem, plan: FitPlan, ledger: Ledger) -> PrivateEvaluation:
    """Return the private evaluation of a release; its ledger is that of the whole fit."""
    assert plan.evaluation is not None
    low, high = problem.task.y_bounds or (0.0, float(len(problem.task.classes or ())))
    counted = CountedRelease(
        targets=tuple(1 - alpha for alpha in problem.alphas),
        classes=problem.task.classes,
        group_values=() if problem.groups_are_labels else problem.group_values or (),
        limit=high - low,
    )
    noise, delta = plan.evaluation.noise, problem.budget.delta
    return counted.evaluation(counts, noise, confidence=SELF_CONFIDENCE, ledger=ledger, delta=delta)


def _scores_by_group(
    scoring: Scoring, records: RecordSource, problem: FitProblem, seed: int | None
) -> list[BlockCounts]:
    """Return the counts of the scores of each public group.

    A record outside all groups is counted in none. One random record of each person is counted, so no person is in two
    groups.

    Theory: Result H
    """
    scored = records.map(scoring, keep=True)
    if unit_of_blocks(records).by_person:
        draws = PlacedDraws.of(stream_seed(seed, SCORED_ROWS))
        scored = scored.map(OneRowEach(draws, places_of(scored)), keep=True)
    return [BlockCounts(scored, group) for group in range(problem.n_group_places)] or [BlockCounts(scored)]


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
