"""Plan a fit: the parts of records and budget, and the mechanism with its noise.

Everything here is a function of ``FitProblem``: the estimator's parameters, the nominal number of records, the width
of a row and the class list.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpscp.core.evaluation import sensitive_sums
from dpscp.core.plan import EvaluationPlan, Plan, plan_rows
from dpscp.core.problem import FitProblem
from dpscp.data.feature_bounds import RowNorm
from dpscp.data.persons import require_unit
from dpscp.data.scales import LINEAR
from dpscp.data.sources import DistributedSource, RecordSource
from dpscp.data.sources.places import innermost, is_in_memory
from dpscp.data.torch_records import comes_from_torch
from dpscp.data.validation import suppress_float_warnings
from dpscp.guarantees.certificate import Promise
from dpscp.guarantees.registry import AUTO, SPLIT, UNIVERSAL, Guarantee, automatic, guarantee_of
from dpscp.privacy import (
    Ledger,
    Relation,
    as_accountant,
    compose,
    counts_secrecy,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    gdp_mu,
    secret_shares,
    secret_split,
    sized_lattice_noise,
)
from dpscp.privacy.events import describe_event
from dpscp.training import DPSGD, Mechanism, NormClip, Preprocessed, PublicBounds, Trained
from dpscp.training.base import Needs, paid_event, require_persons, require_sources
from dpscp.training.engine.loop import StepObserver
from dpscp.training.model import PrivateModel
from dpscp.training.preprocessing.private_bounds import PrivateBounds
from dpscp.training.preprocessing.rescaled import ScaledTarget
from dpscp.training.preprocessing.steps import ColumnScales, Step
from dpscp.training.recipe import Recipe, calibration_fraction, pair_levels, pays_as_pair, recipe, train_share

# Smallest part of its planned mu that training may leave to the search of a held-out part.
_LEAST_SEARCH_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class FitPlan(Plan):
    """Plan of a fit: its release, mechanism, training noise and held-out part.

    ``parts`` is None where the model was trained elsewhere.
    """

    problem: FitProblem
    n_training: int = 1
    mechanism: Mechanism | None = None
    model: PrivateModel | None = None
    parts: "Parts | None" = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def train(self, source: RecordSource, random_state: int | None, observer: StepObserver | None = None) -> Trained:
        """Run the mechanism, or return the model that was trained elsewhere."""
        if self.model is not None:
            return Trained(self.model.model, self.model.ledger.event, None)
        assert self.mechanism is not None
        return self.mechanism.train_source(
            source, random_state=random_state, n_records=self.n_training, observer=observer
        )

    def check_source(self, source: RecordSource) -> None:
        """Refuse a mechanism that cannot train on several blocks, at no cost.

        This happens before any budget is spent.
        """
        if self.mechanism is not None and not is_in_memory(source):
            require_sources(self.mechanism)
        reader = innermost(source)
        if isinstance(reader, DistributedSource):
            reader.check_picklable(self.mechanism, self.problem.task)

    def enter(self, ledger: Ledger, trained: Trained) -> Ledger:
        """Add the cost of training to the ledger."""
        if self.model is not None:
            # facts of this fit (such as n_records) replace those that the model's training declared
            return ledger.then(self.model.ledger).declare(**ledger.public_facts)
        for stage, event in trained.stages:
            note = str(trained.public_facts.get("mechanism", "")) if stage == "training" else describe_event(event)
            ledger = ledger.add(stage, event, note, unit=self.problem.unit.counted)
        return ledger


def plan_fit(problem: FitProblem) -> FitPlan:
    """Plan a fit within its budget, from public numbers only.

    ``guarantee="auto"`` chooses the certified guarantee with the smaller predicted sets, see ``guarantees.automatic``.
    A fixed guarantee is never replaced.
    """
    relation = Relation.ADD_OR_REMOVE if problem.model is None else problem.model.ledger.relation
    return plan_rows(problem, lambda budget: plan_training(replace(problem, budget=budget)).with_noise(), relation)


def plan_training(problem: FitProblem) -> FitPlan:
    """Plan all of a fit except the noise of its searches."""
    if problem.model is not None:
        return _for_private_model(problem, problem.model)
    guarantee = choose_guarantee(problem)
    parts = divide(problem, guarantee)
    n_training = max(1, round((1 - parts.held_out) * problem.n_records))
    mechanism, facts = _mechanism(problem, guarantee, parts, n_training)
    facts = {"guarantee": guarantee.name, **facts}
    if parts.fraction is None:
        facts["train_share"] = parts.share
    else:
        facts |= {"calibration_fraction": parts.fraction}
        facts |= {"evaluation_fraction": parts.measured} if parts.measured else {}
    spent = Ledger()
    for stage, event in mechanism.stages:
        spent = spent.add(stage, event, unit=problem.unit.counted)
    secret, evaluation = None, None
    if parts.fraction is not None:
        secret = parts.fraction if parts.is_mixed else None
        evaluation = _plan_evaluation(problem, spent, secret, parts.measured) if parts.measured else None
    return FitPlan.outline(
        replace(problem, guarantee=guarantee),
        spent,
        part=1.0 if parts.fraction is None else parts.fraction,
        waits_for_stability=guarantee.needs_stability,
        mu=None if parts.fraction is None else parts.search_mu,
        secret_part=secret,
        evaluation=evaluation,
        n_training=n_training,
        mechanism=mechanism,
        parts=parts,
        facts=facts,
    )


@dataclass(frozen=True)
class Parts:
    """Divide records and budget among training, calibration and evaluation.

    All numbers are public.

    Without held-out records ``share`` is the share of epsilon for training; with them ``fraction`` calibrates and
    ``measured`` evaluates. ``search_mu`` is about the Gaussian-DP level that is left for the searches.
    """

    train_epsilon: float
    search_mu: float
    share: float | None = None
    fraction: float | None = None
    measured: float = 0.0
    is_mixed: bool = False

    @property
    def held_out(self) -> float:
        """The share of the records that training does not see."""
        return (self.fraction or 0.0) + self.measured


def divide(problem: FitProblem, guarantee: Guarantee) -> Parts:
    """Divide records and budget for a guarantee."""
    (epsilon, delta), n = (problem.budget.epsilon, problem.budget.delta), problem.n_records
    if guarantee.held_out:
        given = problem.calibration_fraction
        fraction = calibration_fraction(n, epsilon, delta) if given == "auto" else float(given)
        measured = problem.evaluation_fraction or 0.0
        if fraction + measured >= 1:
            raise ValueError(
                f"calibration_fraction and evaluation_fraction must leave records for training: their sum is "
                f"{fraction + measured:g}, and must be below 1"
            )
        shares = secret_shares(epsilon, delta, fraction + measured, n, problem.accountant)
        return Parts(*shares, None, fraction, measured, counts_secrecy(epsilon, problem.accountant))
    share = best_train_share(problem, guarantee) if problem.train_share == "auto" else float(problem.train_share)
    left = gdp_mu(epsilon, delta) ** 2 - gdp_mu(share * epsilon, delta) ** 2
    return Parts(share * epsilon, math.sqrt(max(0.0, left)), share)


def _plan_evaluation(problem: FitProblem, spent: Ledger, secret: float | None, measured: float) -> EvaluationPlan:
    """Plan the evaluation with the noise that the held-out share can afford.

    The share is the whole one, beside training.

    A search of the same cost then fits as well: the mixture of three parts is at most the mean of two mixtures, each
    with all the held-out records in one part.

    Theory: Private evaluation
    """
    epsilon, delta = problem.budget.epsilon, problem.budget.delta
    n_groups = 0 if problem.groups_are_labels else len(problem.group_values or ())
    counts = sensitive_sums(
        len(problem.alphas), len(problem.task.classes or ()), n_groups and problem.groups_per_record
    )
    before, held_out = (None, None) if secret is None else (spent, secret + measured)
    (noise,), _ = sized_lattice_noise(
        epsilon, delta, counts, (1.0,), before, as_accountant(problem.accountant), 0.0, held_out
    )
    return EvaluationPlan(measured, noise, counts)


def choose_guarantee(problem: FitProblem) -> Guarantee:
    """Return the requested guarantee; public numbers resolve ``"auto"``."""
    if problem.guarantee != AUTO:
        return guarantee_of(problem.guarantee)
    if problem.task.promise is Promise.RISK:
        return SPLIT
    if (problem.release_confidence, problem.evaluation_fraction, problem.population) != (None, None, None):
        return SPLIT  # the only guarantee that supports release_confidence, population and evaluation_fraction
    return automatic(problem.n_records, gdp_mu(problem.budget.epsilon, problem.budget.delta))


def choose_score(problem: FitProblem) -> str:
    """Return the score of ``conformity_score="auto"``, from public numbers.

    A caller's own mechanism or model has one output by default, and shift bounds are about the absolute residual. These
    get ``"absolute"``; for the others see ``recipe.pays_as_pair``.
    """
    if problem.estimator is not None or problem.model is not None or choose_guarantee(problem).needs_stability:
        return "absolute"
    mu = gdp_mu(problem.budget.epsilon, problem.budget.delta) / math.sqrt(problem.task.n_targets)
    signal = problem.n_records * mu / problem.unit.group
    return "cqr" if pays_as_pair(signal, problem.n_features) else "absolute"


def best_train_share(problem: FitProblem, guarantee: Guarantee) -> float:
    """Return the share of epsilon for the recipe's share of the squared budget."""
    epsilon, delta = problem.budget.epsilon, problem.budget.delta
    mu = math.sqrt(train_share(guarantee, epsilon, delta, problem.n_records)) * gdp_mu(epsilon, delta)
    return gdp_epsilon(delta, mu) / epsilon


def _for_private_model(problem: FitProblem, model: PrivateModel) -> FitPlan:
    """Plan for a model that was trained elsewhere.

    Only ``split`` states that the model saw other records.
    """
    guarantee = UNIVERSAL if problem.guarantee == AUTO else guarantee_of(problem.guarantee)
    if guarantee.needs_stability:
        raise ValueError(
            f"guarantee={guarantee.name!r} needs a mechanism with a stability bound; a PrivateModel has none"
        )
    if missing := _list_missing_bounds(problem):
        raise ValueError(
            f"{missing[0]} must be public: private bounds need training in this fit, but a PrivateModel was trained "
            "elsewhere. Pass public bounds"
        )
    if problem.task.y_scale != LINEAR or problem.feature_scales is not None:
        raise ValueError(
            "y_scale and scales in feature_bounds need training in this fit, but a PrivateModel was trained elsewhere; "
            "transform target and features yourself, and leave them out"
        )
    spent = require_unit(model.ledger, problem.unit)
    _check_shape(problem, model.model.input_shape)
    if model.model.n_features != problem.n_features:
        raise ValueError(f"X must have the model's {model.model.n_features} features, got {problem.n_features}")
    problem.task.check_model(model.model)
    with suppress_float_warnings():
        outputs = np.asarray(model.model.outputs(np.zeros((1, problem.n_features))))  # a synthetic row
    problem.task.check_outputs(outputs.shape[1])
    return FitPlan.outline(
        replace(problem, guarantee=guarantee),
        spent,
        n_training=problem.n_records,
        model=PrivateModel(model.model, spent),
        facts={"guarantee": guarantee.name},
    )


def _mechanism(
    problem: FitProblem, guarantee: Guarantee, parts: Parts, n_training: int
) -> tuple[Mechanism, dict[str, Any]]:
    """Return the training mechanism with its noise, and its public numbers."""
    mechanism: Mechanism
    facts: dict[str, Any] = {}
    if problem.estimator is None:
        plan = _recipe(problem, guarantee, parts)
        mechanism, facts = plan.mechanism, plan.public_facts()
        if guarantee.needs_stability and problem.task.scaled_bounds is not None:
            mechanism = ScaledTarget(mechanism, problem.task.scaled_bounds)
    else:
        mechanism = _own_mechanism(problem)
    mechanism = problem.task.around(mechanism)
    if missing := _list_missing_bounds(problem):
        if guarantee.needs_stability:
            raise ValueError(
                f"{missing[0]} would depend on the records (it is None or 'private'), but guarantee={guarantee.name!r} "
                f"needs public constants. Pass public bounds for {' and '.join(missing)}, or another guarantee"
            )
        columns = problem.private_features
        mechanism = PrivateBounds(
            mechanism,
            problem.n_features if columns else 0,
            target=problem.task.private_range,
            target_scale=problem.task.y_scale,
            columns=columns,
            feature_scales=(problem.feature_scales or ()) if columns else (),
        )
        facts["bounds_share"] = mechanism.share
    if problem.feature_scales is not None:
        mechanism = Preprocessed((ColumnScales(problem.feature_scales),), mechanism)
    needs = Needs(
        problem.task.training_labels,
        guarantee.needs_trajectory,
        problem.input_shape,
        n_training,
        problem.task.classes,
        None if problem.task.private_range else problem.task.scaled_bounds,
    )
    mechanism = mechanism.configured(needs)
    if problem.unit.by_person:
        require_persons(mechanism)
    _run_dry(problem, mechanism)
    if mechanism.event is None:
        mechanism = _with_noise(problem, mechanism, parts)
    # a mechanism with its own noise may exceed the budget; fail before it uses a record
    training = paid_event(mechanism)
    if parts.is_mixed:
        training = secret_split(training, compose(), parts.held_out)
    problem.budget.require(Ledger().add("training", training), problem.accountant)
    return mechanism, facts


def _list_missing_bounds(problem: FitProblem) -> list[str]:
    """Return the names of the bounds that the fit has to find privately."""
    return ["feature_bounds"] * bool(problem.private_features) + ["y_bounds"] * problem.task.private_range


def _with_noise(problem: FitProblem, mechanism: Mechanism, parts: Parts) -> Mechanism:
    """Set the noise for a share of the budget, or for a part of a secret split."""
    (epsilon, delta), accountant = (problem.budget.epsilon, problem.budget.delta), problem.accountant
    solved = mechanism.calibrated(parts.train_epsilon, delta, accountant=accountant)
    if not parts.is_mixed:
        return solved
    # training that is far from Gaussian may leave less budget than planned: then each part has the whole budget
    search = gaussian_event(1 / (_LEAST_SEARCH_SHARE * parts.search_mu))
    if epsilon_of(secret_split(paid_event(solved), search, parts.held_out), delta, accountant) <= epsilon:
        return solved
    return mechanism.calibrated(epsilon, delta, accountant=accountant)


def _run_dry(problem: FitProblem, mechanism: Mechanism) -> None:
    """Run the caller's code on synthetic records before any budget is reserved."""
    if mechanism.task not in (None, problem.task.name):
        raise ValueError(
            f"estimator must train a {problem.task.name} model, but this one trains a {mechanism.task} model; pass a "
            f"loss for {problem.task.trains}"
        )
    shape = problem.input_shape or (problem.n_features,)
    seen = mechanism.check(shape)
    _check_shape(problem, None if seen is None else shape)
    if seen is None:
        return
    problem.task.check_outputs(seen.n_outputs)
    if seen.looks_up_rows:
        _refuse_scaled_ids(problem)


def _refuse_scaled_ids(problem: FitProblem) -> None:
    """Refuse to scale rows whose numbers a module looks up as ids (Embedding)."""
    scaling = [] if problem.feature_bounds is None and problem.feature_bound is None else ["feature_bounds"]
    scaling += ["steps before the module"] if isinstance(problem.estimator, list | tuple) else []
    if scaling:
        raise ValueError(
            f"the module uses numbers of a row as ids (it has an Embedding), but {' and '.join(scaling)} would change "
            "these numbers. Remove them, and scale other features inside the module"
        )


def _check_shape(problem: FitProblem, taken: tuple[Any, ...] | None) -> None:
    """Refuse records of another shape than the model's."""
    if problem.input_shape is None or problem.input_shape == taken:
        return
    if taken is None:
        raise ValueError(
            "Expected 2D array for X, got another shape. Reshape your data to (n, n_features), or pass a torch module "
            "as estimator, which takes records of any shape"
        )
    raise ValueError(f"X must have records of the model's shape {taken}, got {problem.input_shape}")


def _recipe(problem: FitProblem, guarantee: Guarantee, parts: Parts) -> Recipe:
    """Return the mechanism of the library's recipe for this fit."""
    bounds = None if problem.feature_bounds is None else problem.feature_bounds.on_scales
    norm = None if problem.feature_bound is None else RowNorm(problem.feature_bound)
    signal = problem.n_records * gdp_mu(problem.budget.epsilon, problem.budget.delta)
    # an interval with one end spends all miscoverage there, like one end of an interval with twice as much
    alpha = problem.alphas[0] * (2 if problem.task.is_one_sided else 1)
    quantiles = pair_levels(min(alpha, 1.0), signal) if problem.task.score_outputs == 2 else None
    delta, train_epsilon = problem.budget.delta, parts.train_epsilon
    if problem.task.n_targets > 1:  # each target has its own model and part of the budget
        train_epsilon = gdp_epsilon(delta, gdp_mu(train_epsilon, delta) / math.sqrt(problem.task.n_targets))
    return recipe(
        problem.task.trains,
        n_records=problem.n_records,
        n_features=problem.n_features,
        classes=problem.task.training_labels,
        epsilon=problem.budget.epsilon,
        delta=delta,
        guarantee=guarantee,
        feature_bounds=norm if bounds is None else bounds.pair,
        indicators=() if bounds is None else bounds.indicators,
        categories=() if bounds is None else bounds.categories,
        y_bounds=problem.task.scaled_bounds,
        quantiles=quantiles,
        train_epsilon=train_epsilon,
        held_out_fraction=parts.held_out or None,
    )


def _own_mechanism(problem: FitProblem) -> Mechanism:
    """Return the caller's mechanism or torch module, with its steps and bounds.

    These are the steps before it and the feature bounds.
    """
    steps, mechanism = _separate_steps(problem)
    if comes_from_torch(mechanism):
        mechanism = _train_module(problem, mechanism)
    if not isinstance(mechanism, Mechanism):
        kind = f"the class {mechanism.__name__}" if isinstance(mechanism, type) else type(mechanism).__name__
        raise TypeError(
            "estimator must be None, a training mechanism (an instance of a subclass of dp.training.Mechanism, such as "
            "dp.training.DPSGD), a list of private steps and a mechanism, a torch.nn.Module, a PrivateModel, or "
            f"dp.Prefit(estimator) for a fitted scikit-learn estimator, got {kind}"
        )
    found = Preprocessed(steps, mechanism) if steps else mechanism
    bounds = None if problem.feature_bounds is None else problem.feature_bounds.on_scales
    if bounds is not None and bounds.categories:
        raise ValueError(
            "only the recipe's model (estimator=None) reads columns of category codes. Declare indicators in the "
            "schema, or pass an array without feature_bounds and put PrivateTargetEncoding first in the list of steps"
        )
    if bounds is not None and len(bounds.private) < problem.n_features:
        return Preprocessed((PublicBounds(*bounds.pair),), found)
    if problem.feature_bound is not None:
        return Preprocessed((NormClip(problem.feature_bound),), found)
    return found


def _train_module(problem: FitProblem, module: Any) -> Mechanism:
    """Return the training of a caller's torch module with default settings.

    It runs on the device of the module's parameters.

    Outputs of a new module are near zero, so targets are scaled to [-1, 1], as for the models of this library.
    """
    from dpscp.torch.trainer import TorchDPSGD

    if problem.task.trains == "classification":
        return TorchDPSGD(module)
    training = TorchDPSGD(module, loss="squared")
    bounds = problem.task.scaled_bounds
    return training if bounds is None or problem.task.private_range else ScaledTarget(training, bounds)


def _separate_steps(problem: FitProblem) -> tuple[tuple[Any, ...], Any]:
    """Return the steps of a list and its mechanism, by default a linear model.

    The linear model is trained by DP-SGD.
    """
    if not isinstance(problem.estimator, list | tuple):
        return (), problem.estimator
    *steps, last = problem.estimator or (None,)
    if not isinstance(last, Step):
        return tuple(steps), last
    mechanism: Mechanism = DPSGD()
    if problem.task.scaled_bounds is not None:
        mechanism = ScaledTarget(DPSGD(loss="huber"), problem.task.scaled_bounds)
    return (*steps, last), mechanism
