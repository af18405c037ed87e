"""Decide from public numbers what a fit does: guarantee, budget and mechanism.

Everything here is a function of ``Request``: the estimator's parameters, the nominal number of records, the width of a
row and the class list.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from dpscp._base.object_state import copy_if_possible, refuse_memory
from dpscp.core.evaluation import EvaluationPlan, sensitive_sums
from dpscp.core.own_mechanism import own_mechanism
from dpscp.core.request import Request
from dpscp.core.tasks import Task
from dpscp.data.persons import require_unit
from dpscp.data.scales import LINEAR
from dpscp.data.sources import RecordSource
from dpscp.data.sources.base import Collective
from dpscp.data.sources.places import innermost, is_in_memory
from dpscp.data.validation import suppress_float_warnings
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees.base import Guarantee
from dpscp.guarantees.certificate import check_release_confidence
from dpscp.guarantees.registry import AUTO, automatic, guarantee_of
from dpscp.guarantees.split import SPLIT
from dpscp.guarantees.universal import UNIVERSAL
from dpscp.privacy import (
    RECORDS,
    Ledger,
    Unit,
    compose,
    counts_secrecy,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    gdp_mu,
    release_accountant,
    secret_shares,
    secret_split,
    sized_lattice_noise,
)
from dpscp.privacy.events import describe_event
from dpscp.privacy.split_budget import SplitBudget
from dpscp.training import Mechanism, Model, Preprocessed, Trained
from dpscp.training.base import Needs, paid_event, require_persons, require_sources
from dpscp.training.engine.loop import StepObserver
from dpscp.training.preprocessing.features import ColumnScales
from dpscp.training.preprocessing.private_bounds import PrivateBounds
from dpscp.training.preprocessing.private_target import PrivateTarget
from dpscp.training.preprocessing.quantile_transform import QuantileTransform
from dpscp.training.preprocessing.scaling import ScaledTarget
from dpscp.training.private_model import PrivateModel
from dpscp.training.recalibration import Recalibrated
from dpscp.training.recipe import Recipe, calibration_fraction, pair_levels, pays_as_pair, recipe, train_share
from dpscp.training.spending import TrainingCost

# Of the mu that a plan gives the search of a held-out part, what training must have left.
_LEAST_ROOM = 0.8
_STAGE_NOTES = {
    "bounds": "noisy counts on a public grid",
    PrivateTarget.stage: "noisy mean and spread of the target",
    QuantileTransform.stage: "noisy counts in cells of each feature",
    Recalibrated.stage: "noisy sums for temperature and intercepts",
}


@dataclass(frozen=True)
class FitPlan:
    """Hold the decisions: guarantee, mechanism with its noise, and held-out part."""

    guarantee: Guarantee
    n_training: int
    mechanism: Mechanism | None = None
    model: PrivateModel | None = None
    calibration_fraction: float | None = None
    secret_part: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    unit: Unit = RECORDS
    """What training counts: records, or persons with ids."""
    evaluation: EvaluationPlan | None = None

    @property
    def held_out(self) -> float | None:
        """The share of the records that training does not see; None where it sees all."""
        if self.calibration_fraction is None:
            return None
        return self.calibration_fraction + (0.0 if self.evaluation is None else self.evaluation.fraction)

    @property
    def part(self) -> float:
        """The share of the records whose scores are searched."""
        return 1.0 if self.calibration_fraction is None else self.calibration_fraction

    @property
    def spent(self) -> Ledger:
        """The cost of training, known before it runs."""
        if self.model is not None:
            return self.model.ledger
        assert self.mechanism is not None
        ledger = Ledger()
        for stage, event in self.mechanism.stages:
            ledger = ledger.add(stage, event, unit=self.unit)
        return ledger

    def train(self, source: RecordSource, random_state: int | None, observer: StepObserver | None = None) -> Trained:
        """Run the mechanism; use a model that was trained elsewhere unchanged."""
        if self.model is not None:
            return Trained(self.model.model, self.model.ledger.event, None)
        assert self.mechanism is not None
        return self.mechanism.train_source(
            source, random_state=random_state, n_records=self.n_training, observer=observer
        )

    def training_cost(self, request: Request) -> TrainingCost:
        """Return how this fit counts an event of its training: by its accountant, unit and secret parts."""

        def epsilon(event: DpEvent) -> float:
            if self.secret_part is not None and self.held_out is not None:
                event = secret_split(event, compose(), self.held_out)
            alone = Ledger().add("training", event, unit=self.unit).convert_unit(request.unit)
            return alone.epsilon(request.budget.delta, request.accountant)

        return TrainingCost(epsilon, request.budget.delta)

    def check_source(self, source: RecordSource, task: Task) -> None:
        """Refuse a mechanism that cannot train on several blocks, before any cost."""
        if self.mechanism is not None and not is_in_memory(source):
            require_sources(self.mechanism)
        reader = innermost(source)
        if isinstance(reader, Collective):
            reader.check_picklable(self.mechanism, task)

    def enter(self, ledger: Ledger, trained: Trained) -> Ledger:
        """Add the cost of training to the ledger."""
        if self.model is not None:
            # what this fit declares (its n_records, say) stands above what the model's training declared
            return ledger.then(self.model.ledger).declare(**ledger.public_facts)
        notes = {"training": str(trained.public_facts.get("mechanism", "")), **_STAGE_NOTES}
        for stage, event in trained.stages:
            ledger = ledger.add(stage, event, notes.get(stage, describe_event(event)), unit=self.unit)
        return ledger


def plan_fit(request: Request) -> FitPlan:
    """Plan a fit from public numbers only.

    ``guarantee="auto"`` chooses the certified guarantee with the smaller predicted sets, see ``guarantees.automatic``.
    A fixed guarantee is never replaced.
    """
    if request.model is not None:
        return _for_private_model(request, request.model)
    epsilon, delta, n = request.budget.epsilon, request.budget.delta, request.n_records
    guarantee = choose_guarantee(request)
    if guarantee.held_out:
        given = request.calibration_fraction
        fraction = calibration_fraction(n, epsilon, delta) if given == "auto" else float(given)
        measured = check_evaluation_part(fraction, request.evaluation_fraction)
        held_out = fraction + measured
        n_training, unit = max(1, round((1 - held_out) * n)), request.unit.counted
        mechanism, facts = _mechanism(request, guarantee, None, held_out, n_training)
        facts = {"guarantee": guarantee.name, **facts, "calibration_fraction": fraction}
        facts |= {"evaluation_fraction": measured} if measured else {}
        secret = fraction if counts_secrecy(epsilon, request.accountant) else None
        planned = FitPlan(guarantee, n_training, mechanism, None, fraction, secret, facts, unit)
        return replace(planned, evaluation=_plan_evaluation(request, planned)) if measured else planned
    share = _best_train_share(request, guarantee) if request.train_share == "auto" else float(request.train_share)
    mechanism, facts = _mechanism(request, guarantee, share, None, n)
    facts = {"guarantee": guarantee.name, **facts, "train_share": share}
    return FitPlan(guarantee, n, mechanism, facts=facts, unit=request.unit.counted)


def warn_large_delta(delta: float, n_records: int) -> None:
    """Warn if delta is so large that it permits publishing a random record."""
    if delta * n_records >= 1:
        warnings.warn(
            f"delta = {delta:g} is not below 1 / n_records = {1 / n_records:g}. A delta this large would permit "
            "publishing one random record; choose a smaller delta",
            GuaranteeWarning,
            stacklevel=4,
        )


def _plan_evaluation(request: Request, planned: FitPlan) -> EvaluationPlan:
    """Plan the evaluation with the noise that the whole held-out share could afford beside training.

    A search of the same cost then fits as well: the mixture of three parts is at most the mean of two mixtures, each
    with all the held-out records in one part.

    Theory: section 13
    """
    measured, (epsilon, delta) = request.evaluation_fraction or 0.0, (request.budget.epsilon, request.budget.delta)
    n_groups = 0 if request.groups_are_labels else len(request.group_values or ())
    counts = sensitive_sums(
        len(request.alphas), len(request.task.classes or ()), n_groups and request.groups_per_record
    )
    secret = None if planned.secret_part is None else planned.secret_part + measured
    before = None if secret is None else planned.spent
    (noise,), _ = sized_lattice_noise(
        epsilon, delta, counts, (1.0,), before, release_accountant(request.accountant), 0.0, secret
    )
    return EvaluationPlan(measured, noise, counts)


def check_evaluation_part(calibration: float, evaluation: float | None) -> float:
    """Return the share of the evaluation part, 0 without one; refuse parts that leave nothing for training."""
    measured = evaluation or 0.0
    if calibration + measured >= 1:
        raise ValueError(
            f"calibration_fraction and evaluation_fraction must leave records for training: their sum is "
            f"{calibration + measured:g}, and must be below 1"
        )
    return measured


def choose_guarantee(request: Request) -> Guarantee:
    """Return the requested guarantee; public numbers resolve ``"auto"``."""
    if request.guarantee != AUTO:
        return guarantee_of(request.guarantee)
    needs_held_out = (request.release_confidence, request.evaluation_fraction, request.ratio_bound)
    if any(value is not None for value in needs_held_out):
        return SPLIT  # the only one for a single release, for another population, or with records to evaluate
    return automatic(request.n_records, gdp_mu(request.budget.epsilon, request.budget.delta))


def choose_score(request: Request) -> str:
    """Return the score of ``conformity_score="auto"``, from public numbers.

    A caller's own mechanism or model has one output by default, and shift bounds are about the absolute residual. These
    get ``"absolute"``; for the others see ``recipe.pays_as_pair``.
    """
    if request.estimator is not None or request.model is not None or choose_guarantee(request).needs_stability:
        return "absolute"
    signal = request.n_records * gdp_mu(request.budget.epsilon, request.budget.delta) / request.unit.group
    return "cqr" if pays_as_pair(signal, request.n_features) else "absolute"


def _best_train_share(request: Request, guarantee: Guarantee) -> float:
    """Return the share of epsilon for the recipe's share of the squared budget."""
    epsilon, delta = request.budget.epsilon, request.budget.delta
    mu = math.sqrt(train_share(guarantee, epsilon, delta, request.n_records)) * gdp_mu(epsilon, delta)
    return gdp_epsilon(delta, mu) / epsilon


def _for_private_model(request: Request, model: PrivateModel) -> FitPlan:
    """Plan for a model from elsewhere; only ``split`` means it saw other records."""
    guarantee = UNIVERSAL if request.guarantee == AUTO else guarantee_of(request.guarantee)
    if request.release_confidence is not None:
        check_release_confidence(request.release_confidence, guarantee)
    if guarantee.needs_stability:
        raise ValueError(
            f"guarantee={guarantee.name!r} needs a mechanism with a stability bound; a PrivateModel has none"
        )
    if missing := _list_missing_bounds(request):
        raise ValueError(
            f"{missing[0]} is left out or 'private', which needs training in this fit, but a PrivateModel was trained "
            f"elsewhere; pass public bounds: {_show_pairs(missing)}"
        )
    if request.task.y_scale != LINEAR or request.feature_scales is not None:
        raise ValueError(
            "y_scale and scales in feature_bounds need training in this fit, but a PrivateModel was trained elsewhere; "
            "transform target and features yourself, and leave them out"
        )
    spent = require_unit(model.ledger, request.unit)
    _check_shape(request, model.model.input_shape)
    if model.model.n_features != request.n_features:
        raise ValueError(f"X must have the model's {model.model.n_features} features, got {request.n_features}")
    request.task.check_model(model.model)
    _try_model(request, model.model)
    facts, unit = {"guarantee": guarantee.name}, request.unit.counted
    return FitPlan(guarantee, request.n_records, model=PrivateModel(model.model, spent), facts=facts, unit=unit)


def _mechanism(
    request: Request, guarantee: Guarantee, share: float | None, fraction: float | None, n_training: int
) -> tuple[Mechanism, dict[str, Any]]:
    """Return the training mechanism with its noise, and its public numbers."""
    mechanism: Mechanism
    facts: dict[str, Any] = {}
    if request.estimator is None:
        plan = _recipe(request, guarantee, share, fraction)
        mechanism, facts = plan.mechanism, plan.public_facts()
        if guarantee.needs_stability and request.task.scaled_bounds is not None:
            mechanism = ScaledTarget(mechanism, request.task.scaled_bounds)
    else:
        mechanism = own_mechanism(request)
    if missing := _list_missing_bounds(request):
        if guarantee.needs_stability:
            raise ValueError(
                f"{missing[0]} is left out or 'private', so it would depend on the records, but guarantee="
                f"{guarantee.name!r} needs public constants; pass public bounds, {_show_pairs(missing)}, or another "
                "guarantee"
            )
        columns = request.private_features
        mechanism = PrivateBounds(
            mechanism,
            request.n_features if columns else 0,
            target=request.task.private_range,
            target_scale=request.task.y_scale,
            columns=columns if 0 < len(columns) < request.n_features else None,
            feature_scales=request.feature_scales if columns else None,
        )
        facts["bounds_share"] = mechanism.share
    if request.feature_scales is not None:
        mechanism = Preprocessed((ColumnScales(request.feature_scales),), mechanism)
    # labels travel as their index, so that a class without a record keeps its place
    indices, labels = _indices(request.task), request.task.classes
    needs = Needs(indices, guarantee.needs_trajectory, request.input_shape, n_training, labels)
    mechanism = mechanism.configured(needs)
    if request.unit.by_person:
        require_persons(mechanism)
    _run_dry(request, mechanism)
    if mechanism.event is None:
        mechanism = _with_noise(request, mechanism, share, fraction)
    # a mechanism that came with its noise may be over the budget: better known before it has seen a record
    training = paid_event(mechanism)
    if fraction is not None and counts_secrecy(request.budget.epsilon, request.accountant):
        training = secret_split(training, compose(), fraction)
    request.budget.require(Ledger().add("training", training), request.accountant)
    return mechanism, facts


def _list_missing_bounds(request: Request) -> list[str]:
    """Return the names of the bounds that are to be found privately."""
    are_missing = {"feature_bounds": request.private_features, "y_bounds": request.task.private_range}
    return [name for name, is_missing in are_missing.items() if is_missing]


def _show_pairs(names: list[str]) -> str:
    return " and ".join(f"{name}=(low, high)" for name in names)


def _with_noise(request: Request, mechanism: Mechanism, share: float | None, fraction: float | None) -> Mechanism:
    """Set the noise for a share of the budget, or for a part of a secret split."""
    (epsilon, delta), accountant = (request.budget.epsilon, request.budget.delta), request.accountant
    if fraction is None:
        assert share is not None
        return mechanism.calibrated(share * epsilon, delta, accountant=accountant)
    planned = split_shares(request, fraction)
    solved = mechanism.calibrated(planned.train_epsilon, delta, accountant=accountant)
    if not planned.mixed:
        return solved
    # training that is far from Gaussian may leave less budget than planned: then each part has the whole budget
    search = gaussian_event(1 / (_LEAST_ROOM * planned.held_out_mu))
    if epsilon_of(secret_split(paid_event(solved), search, fraction), delta, accountant) <= epsilon:
        return solved
    return mechanism.calibrated(epsilon, delta, accountant=accountant)


def split_shares(request: Request, fraction: float) -> SplitBudget:
    """Return what training and search may spend in a random split."""
    budget = request.budget
    return secret_shares(budget.epsilon, budget.delta, fraction, request.n_records, request.accountant)


def _run_dry(request: Request, mechanism: Mechanism) -> None:
    """Run the caller's code on synthetic records before any budget is reserved."""
    shape = request.input_shape or (request.n_features,)
    seen = mechanism.check(shape)
    _check_shape(request, None if seen is None else shape)
    if seen is None:
        return
    if seen.task != request.task.name:
        raise ValueError(f"estimator must train a {request.task.name} model, this one trains a {seen.task} model")
    _check_outputs(request.task, seen.n_outputs)
    if seen.looks_up_rows:
        _refuse_scaled_ids(request)


def _refuse_scaled_ids(request: Request) -> None:
    """Refuse to scale rows whose numbers are indices of a module's embedding."""
    scaling = [] if request.feature_bounds is None and request.feature_bound is None else ["feature_bounds"]
    scaling += ["steps before the module"] if isinstance(request.estimator, list | tuple) else []
    if scaling:
        raise ValueError(
            f"the module looks numbers of a row up in an Embedding, so they are ids, but {' and '.join(scaling)} would "
            "scale them to other numbers; leave out what scales, and scale other features inside the module"
        )


def _try_model(request: Request, model: Model) -> None:
    """Evaluate a model from elsewhere on a synthetic row, to check its outputs."""
    with refuse_memory("estimator", model):
        try:
            with suppress_float_warnings():
                outputs = np.asarray(copy_if_possible(model).outputs(np.zeros((1, model.n_features))))
        except Exception as error:
            raise ValueError("the model fails on a synthetic row of zeros; no record was used") from error
    _check_outputs(request.task, outputs.shape[1])


def _check_outputs(task: Task, n_outputs: int) -> None:
    if task.classes is None and n_outputs != (2 if task.quantile_pair else 1):
        needs = "a pair of quantiles" if task.quantile_pair else "one output"
        raise ValueError(f"conformity_score needs a model with {needs}, but this one has {n_outputs}")


def _check_shape(request: Request, taken: tuple[int, ...] | None) -> None:
    """Refuse records of another shape than the model's."""
    if request.input_shape is None or request.input_shape == taken:
        return
    if taken is None:
        raise ValueError(
            "Expected 2D array for X, got another shape. Reshape your data to (n, n_features), or pass a torch module "
            "as estimator, which takes records of any shape"
        )
    raise ValueError(f"X must have records of the model's shape {taken}, got {request.input_shape}")


def _indices(task: Task) -> tuple[int, ...] | None:
    """Return the labels as training sees them."""
    return None if task.classes is None else tuple(range(len(task.classes)))


def _recipe(request: Request, guarantee: Guarantee, share: float | None, fraction: float | None) -> Recipe:
    """Return the library's own model for this fit."""
    features, bounds = "unit", request.scaled_feature_bounds
    if bounds is not None:
        features = "bounded"
    elif request.feature_bound is not None:
        features = "clipped"
    signal = request.n_records * gdp_mu(request.budget.epsilon, request.budget.delta)
    quantiles = pair_levels(request.alphas[0], signal) if request.task.quantile_pair else None
    train_epsilon = None if share is None else share * request.budget.epsilon
    if fraction is not None:
        train_epsilon = split_shares(request, fraction).train_epsilon
    return recipe(
        request.task.name,
        n_records=request.n_records,
        n_features=request.n_features,
        classes=_indices(request.task),
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        guarantee=guarantee,
        features=features,
        feature_bound=request.feature_bound,
        feature_bounds=None if bounds is None else bounds.pair,
        indicators=() if bounds is None else bounds.indicators,
        y_bounds=request.task.scaled_bounds,
        quantiles=quantiles,
        train_epsilon=train_epsilon,
        held_out_fraction=fraction,
    )
