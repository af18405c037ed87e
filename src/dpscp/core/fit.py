"""Train the model and count the scores, before thresholds are searched.

A problem holds public numbers only; records and randomness are separate arguments. This module does not use
scikit-learn: the estimators check the arguments, call ``release`` and keep its result.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import CORRECTED, NOT_CORRECTED, Assumption
from dpscp._base.progress import announce
from dpscp.core.evaluation import SELF_CONFIDENCE, CountOutcomes, OutcomeCounts, PrivateEvaluation
from dpscp.core.fit_plan import FitPlan, plan_fit
from dpscp.core.losses import Multilabel, count_losses
from dpscp.core.plan import EvaluationPlan
from dpscp.core.problem import FitProblem
from dpscp.core.release import Counted, ThresholdRelease, release_counts
from dpscp.core.tasks import Prediction
from dpscp.data.groups import is_member
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import Places, is_in_memory, one_row_of_each, places_of
from dpscp.data.validation import NOT_PLAIN, plain, suppress_float_warnings
from dpscp.exceptions import SeededWarning
from dpscp.privacy import IntegerSource, Ledger
from dpscp.privacy.random_streams import EVALUATED, SCORED_ROWS, PlacedDraws, child_seeds, stream_seed
from dpscp.privacy.store import BudgetStore
from dpscp.threshold.counts import count_chunks
from dpscp.threshold.search import SearchView
from dpscp.training.base import Trained
from dpscp.training.engine.influence import has_influence_form
from dpscp.training.engine.loop import StepView
from dpscp.training.model import Model, model_for_records
from dpscp.training.preprocessing.preprocessed import unwrap_model

Observer = Callable[[StepView | SearchView], None]


@dataclass(frozen=True)
class Fit(ThresholdRelease):
    """What a fit publishes: thresholds, with model, task and evaluation."""

    model: Model = field(kw_only=True)
    task: Prediction = field(kw_only=True)
    evaluation: PrivateEvaluation | None = field(kw_only=True)


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
    plan = plan_fit(problem)  # a fit that the budget cannot pay for is refused before any record is used
    plan.check_source(records)
    training_seed, split_seed, search_seed = child_seeds(random_state, 3)
    fitted: list[tuple[FitProblem, Model, RecordSource]] = []

    def count() -> Counted:
        announce(f"train with guarantee {plan.guarantee.name!r}")
        for_training, for_threshold, for_evaluation = _parts(records, plan, split_seed)
        seen = for_training.map(partial(_replace_targets, problem.task.training_targets))
        trained = plan.train(seen, training_seed, observer)
        problem.task.check_model(trained.model)
        found = problem.with_found_ranges(trained)
        fitted.append((found, trained.model, for_evaluation))
        facts = found.public_facts() | dict(plan.facts)
        taken = (found.unit.count_name,) * found.n_found + ("classes",) * found.task.classes_found
        spent = declare_all(Ledger(seeded=search_seed is not None), trained, facts).mark_taken(*taken)
        spent = plan.enter(spent, trained).assume(*assumed)
        if isinstance(found.task, Multilabel):
            n_groups = found.n_group_places
            return count_losses(
                found.task, trained.model, for_threshold, spent, n_groups=n_groups, steps=plan.steps, seed=search_seed
            )
        return _count_scores(found, plan, trained, for_threshold, spent, search_seed)

    with quiet_steps():
        released = release_counts(plan, count, random_state=search_seed, store=store, note=note, observer=observer)
        ((found, model, for_evaluation),) = fitted
        measured = None
        if plan.evaluation is not None:
            measured = _evaluate(for_evaluation, found, plan.evaluation, model, released, search_seed)
    return Fit(**vars(released), model=model, task=found.task, evaluation=measured)


def _replace_targets(change: Callable[[Any], Any], block: Block) -> Block:
    """Replace the targets of a block by those that training sees."""
    return block.with_targets(change(block.targets))


def _parts(records: RecordSource, plan: FitPlan, seed: int | None) -> tuple[RecordSource, ...]:
    """Return the records for training, for calibration and for evaluation.

    One secret uniform number of each person decides. Without held-out records, all records train and calibrate; the
    third source is then not used.
    """
    parts = plan.parts
    if parts is None or parts.fraction is None:
        return records, records, records
    fraction, held_out = parts.fraction, parts.held_out
    coins, places, here = PlacedDraws.of(seed), places_of(records), is_in_memory(records)
    faces = ((held_out, 1.0), (0.0, fraction), (fraction, held_out))
    return tuple(records.map(partial(_part, coins, places, low, high), keep=here) for low, high in faces)


def _part(coins: PlacedDraws, places: Places, low: float, high: float, block: Block) -> Block:
    """Select the persons of a block whose uniform number is in [low, high)."""
    drawn = coins.uniform(places.persons[block.id])
    return block.part((low <= drawn) & (drawn < high))


def _evaluate(
    records: RecordSource,
    problem: FitProblem,
    planned: EvaluationPlan,
    model: Model,
    found: ThresholdRelease,
    seed: int | None,
) -> PrivateEvaluation:
    """Evaluate a release by noisy counts on the evaluation part.

    The ledger is that of the whole fit.

    One random record of each person is counted.

    Theory: Private evaluation
    """
    announce("evaluate the release on the evaluation part")
    row_seed, dither_seed, noise_seed = child_seeds(stream_seed(seed, EVALUATED), 3)
    places, task, by_label = places_of(records), problem.task, problem.groups_are_labels
    records = one_row_of_each(records, row_seed, places)
    groups = () if by_label else problem.group_values or ()
    draws, by_ratio = PlacedDraws.of(dither_seed), problem.population is not None
    count = CountOutcomes(task, model, found.threshold, len(groups), by_label, draws, places, by_ratio)
    counts = OutcomeCounts(*records.sum(count)).with_noise(planned.noise, IntegerSource(noise_seed))
    return counts.evaluation(
        planned.noise,
        targets=tuple(1 - alpha for alpha in problem.alphas),
        classes=task.classes,
        group_values=groups,
        limit=task.size_limit,
        confidence=SELF_CONFIDENCE,
        ledger=found.ledger,
        delta=problem.budget.delta,
        public_size=(problem.n_records, planned.fraction) if problem.n_found and not by_ratio else None,
    )


def _count_scores(
    problem: FitProblem, plan: FitPlan, trained: Trained, records: RecordSource, spent: Ledger, seed: int | None
) -> Counted:
    """Score each record and count the scores of each public group.

    A score depends on the record, its person and the trained model only.

    A record outside all groups is counted in none. One random record of each person is counted, so no person is in two
    groups. Scores stay with their blocks: only counts leave many blocks.

    Theory: Results B, D and H
    """
    task, corrected = problem.task, plan.guarantee.needs_trajectory
    announce("score the records")
    scored = records.map(partial(_score_block, task, trained, corrected), keep=True)
    scored = one_row_of_each(scored, stream_seed(seed, SCORED_ROWS), keep=True)
    counts = [BlockCounts(scored, group) for group in range(problem.n_group_places)] or [BlockCounts(scored)]
    assumptions = task.assumptions
    if corrected:
        assumptions += (CORRECTED if has_influence_form(trained.model, trained.trajectory) else NOT_CORRECTED,)
    stability = trained.stability if task.natural_score else None
    return Counted(counts, spent, task.score_range, assumptions, stability)


def _score_block(task: Prediction, trained: Trained, corrected: bool, block: Block) -> Block:
    """Replace the targets of a block by the scores of its records, and drop its rows."""
    # a model of the caller's own gets all rows at once, as in prediction
    own = not trained.model.is_row_wise
    model, steps = unwrap_model(trained.model)
    trained, read = replace(trained, model=model_for_records(model)), block.with_steps(*steps)
    found = [np.empty(0)]
    with suppress_float_warnings():
        for part, rows in read.parts(max(1, len(block)) if own else None):
            persons = None if read.persons is None else read.persons.between(part.start, part.stop)
            found.append(task.scores(trained, rows, read.targets[part], corrected=corrected, persons=persons))
    scores = np.concatenate(found[1:] or found)
    return replace(read, rows=np.empty((len(block), 0)), targets=scores, chosen=None, steps=())


class BlockCounts:
    """Count scores that stay in the blocks of a source: those of one group, or all."""

    def __init__(self, scored: RecordSource, group: int | None = None) -> None:
        self._scored, self._group = scored, group
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first reading."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return self._size or 0

    def counts_at(self, thresholds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of scores at most each threshold, in one reading."""
        counts, self._size = self._scored.sum(partial(_count_block, thresholds, self._group))
        return counts


def _count_block(thresholds: NDArray[np.float64], group: int | None, block: Block) -> tuple[NDArray[np.int64], int]:
    """Count the scores of a block at most each threshold, and all of them.

    The block holds the records of one group.
    """
    if group is not None:
        assert block.groups is not None
        return count_chunks([block.targets[is_member(block.groups, group)]], thresholds)
    # Result K: a record that the coins of a likelihood ratio rejected has the lowest score, and is never missed
    rejected = None if block.groups is None else block.groups < 0
    scores = block.targets if rejected is None else np.where(rejected, -np.inf, block.targets)
    return count_chunks([scores], thresholds)


def declare_all(ledger: Ledger, trained: Trained, own: Mapping[str, Any]) -> Ledger:
    """List as JSON values what training and this fit (``own``) make public."""
    found = trained.public_facts.items()
    facts = {name: str(value) if (shown := plain(value)) is NOT_PLAIN else shown for name, value in found}
    declared = ledger.declare(**(facts | dict(own)))
    return declared.mark_taken(*trained.taken_from_data).mark_found(*trained.found_privately)


@contextmanager
def quiet_steps() -> Iterator[None]:
    """Suppress the warnings of a step, which could reveal a record.

    The caller has warned about the seed already.
    """
    with suppress_float_warnings(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)
        yield
