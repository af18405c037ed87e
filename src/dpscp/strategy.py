"""What a fit will do, decided from public numbers before any record is used: guarantee, budget shares, mechanism.

Everything here is a function of ``Request``: the estimator's parameters, the nominal number of records, the width of a
row and the class list.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._checks import check_choice, check_positive, check_probability
from dpscp.guarantees import check_release_confidence
from dpscp.privacy import Accountant, Budget, Ledger, gdp_epsilon, gdp_mu, release_accountant
from dpscp.training import (
    DenseModel,
    Mechanism,
    Model,
    NormClip,
    Preprocessed,
    PreprocessedModel,
    PublicBounds,
    Trained,
    corrected_outputs,
)
from dpscp.training.mechanism import Needs, configured, paid_event, rehearsal
from dpscp.training.private_model import PrivateModel
from dpscp.training.recipe import Recipe, calibration_fraction, recipe, train_share
from dpscp.training.scaling import ScaledTarget, ScaledTargetModel

__all__ = ["Request", "Strategy", "choose_strategy", "corrected_model_outputs", "load_model", "require_loadable"]

GUARANTEES = ("auto", "universal", "stability", "split", "corrected", "finite", "asymptotic")
_CROSSING = 11.0
_NO_CORRECTION = "no self-influence form is known for this model: this is Result A alone"
_CORRECTED = "the influence of a record on its own score is put back to first order; what remains is of second order"


@dataclass(frozen=True)
class Request:
    """The public side of one fit."""

    task: str
    estimator: Any
    budget: Budget
    alphas: tuple[float, ...]
    guarantee: str
    train_share: float | str
    calibration_fraction: float | str
    feature_bound: float | None
    feature_bounds: Any
    n_records: int
    n_found: bool
    n_features: int
    accountant: str | Accountant
    grouped: bool
    classes: tuple[Any, ...] | None = None
    classes_found: bool = False
    y_bounds: tuple[float, float] | None = None
    quantile_pair: bool = False
    release_confidence: float | None = None

    def __post_init__(self) -> None:
        check_choice("guarantee", self.guarantee, GUARANTEES)
        if self.release_confidence is not None:
            check_release_confidence(self.release_confidence, self.guarantee)
        release_accountant(self.accountant)
        for name in ("train_share", "calibration_fraction"):
            value = getattr(self, name)
            if value != "auto":
                check_probability(name, value)
        if self.feature_bound is not None:
            check_positive("feature_bound", self.feature_bound)
            if self.feature_bounds is not None:
                raise ValueError("give feature_bound (of the row norm) or feature_bounds (of each feature), not both")

    def public_facts(self) -> dict[str, Any]:
        """What this fit declares public, as plain JSON values."""
        facts: dict[str, Any] = {"n_records": self.n_records, "n_features": self.n_features}
        taken = [name for name, found in (("n_records", self.n_found), ("classes", self.classes_found)) if found]
        if taken:
            facts["taken_from_data"] = taken
        if self.classes is not None:
            facts["classes"] = list(self.classes)
        for name in ("feature_bound", "y_bounds"):
            if getattr(self, name) is not None:
                facts[name] = getattr(self, name)
        if self.feature_bounds is not None:
            facts["feature_bounds"] = [np.asarray(end, dtype=float).tolist() for end in self.feature_bounds]
        return facts


@dataclass(frozen=True)
class Strategy:
    """The decision: which guarantee, which mechanism (its noise set), which part is held out, and why."""

    guarantee: str
    n_training: int
    mechanism: Mechanism | None = None
    model: PrivateModel | None = None
    calibration_fraction: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether calibration sees records that training did not."""
        return self.guarantee == "split"

    def train(self, rows: NDArray[Any], targets: NDArray[Any], random_state: int | None) -> Trained:
        """Run the mechanism; a model that was trained elsewhere is taken as it is."""
        if self.model is not None:
            return Trained(self.model.model, self.model.ledger.event, None)
        assert self.mechanism is not None
        return self.mechanism.train(rows, targets, random_state=random_state, n_records=self.n_training)

    def enter(self, ledger: Ledger, trained: Trained) -> Ledger:
        """The ledger with what training spent."""
        if self.model is not None:
            # what this fit declares (its n_records, say) stands above what the model's training declared
            return ledger.then(self.model.ledger).declare(**ledger.public_facts)
        return ledger.add("training", trained.event, str(trained.public_facts.get("mechanism", "")))


def choose_strategy(request: Request) -> Strategy:
    """The strategy of a fit, from public numbers only.

    ``guarantee="auto"`` takes the certified guarantee with the smaller predicted sets, see ``_automatic_guarantee``. A
    fixed guarantee is never swapped for another one.
    """
    if isinstance(request.estimator, PrivateModel):
        return _for_private_model(request)
    guarantee = _automatic_guarantee(request) if request.guarantee == "auto" else request.guarantee
    epsilon, delta, n = request.budget.epsilon, request.budget.delta, request.n_records
    if guarantee == "split":
        given = request.calibration_fraction
        fraction = calibration_fraction(n, epsilon, delta) if given == "auto" else float(given)
        mechanism, facts = _mechanism(request, guarantee, None, fraction)
        facts = {"guarantee": guarantee, "calibration_fraction": fraction, **facts}
        return Strategy(guarantee, max(1, round((1 - fraction) * n)), mechanism, None, fraction, facts)
    share = _best_train_share(request, guarantee) if request.train_share == "auto" else float(request.train_share)
    mechanism, facts = _mechanism(request, guarantee, share, None)
    return Strategy(guarantee, n, mechanism, facts={"guarantee": guarantee, **facts, "train_share": share})


def _best_train_share(request: Request, guarantee: str) -> float:
    """The share p of epsilon whose (p * epsilon, delta) is the recipe's share of the squared Gaussian-DP budget."""
    epsilon, delta = request.budget.epsilon, request.budget.delta
    mu = math.sqrt(train_share(guarantee, epsilon, delta)) * gdp_mu(epsilon, delta)
    return gdp_epsilon(delta, mu) / epsilon


def _for_private_model(request: Request) -> Strategy:
    """A model from elsewhere: ``split`` says that it never saw these records, anything else that it did."""
    guarantee = "universal" if request.guarantee == "auto" else request.guarantee
    if request.release_confidence is not None:
        check_release_confidence(request.release_confidence, guarantee)
    if guarantee == "stability":
        raise ValueError("guarantee='stability' needs a mechanism with a stability bound; a PrivateModel carries none")
    model = request.estimator
    if model.model.n_features != request.n_features:
        raise ValueError(f"X must have the model's {model.model.n_features} features, got {request.n_features}")
    return Strategy(guarantee, request.n_records, model=model, facts={"guarantee": guarantee})


def _mechanism(
    request: Request, guarantee: str, share: float | None, fraction: float | None
) -> tuple[Mechanism, dict[str, Any]]:
    """The training mechanism with its noise set, and the public numbers behind it."""
    mechanism: Mechanism
    facts: dict[str, Any] = {}
    if request.estimator is None:
        plan = _recipe(request, guarantee, share, fraction)
        mechanism, facts = plan.mechanism, plan.public_facts()
        if guarantee == "stability" and request.y_bounds is not None:
            mechanism = ScaledTarget(mechanism, request.y_bounds)
    else:
        mechanism = _own_mechanism(request)
    # labels travel as their index, so that a class without a record keeps its place
    labels = None if request.classes is None else tuple(range(len(request.classes)))
    mechanism = configured(mechanism, Needs(labels, trajectory=guarantee == "corrected"))
    _rehearse(request, mechanism)
    if mechanism.event is None:
        epsilon = request.budget.epsilon * (1.0 if share is None else share)
        mechanism = mechanism.calibrated(epsilon, request.budget.delta, accountant=request.accountant)
    # a mechanism that came with its noise may be over the budget: better known before it has seen a record
    request.budget.require(Ledger().add("training", paid_event(mechanism)), request.accountant)
    return mechanism, facts


def _rehearse(request: Request, mechanism: Mechanism) -> None:
    """Try code of the caller's own on made-up records: what fails there fails before any budget is reserved."""
    seen = rehearsal(mechanism, (request.n_features,))
    if seen is None:
        return
    if seen.task != request.task:
        raise ValueError(f"estimator must train a {request.task} model, this one trains a {seen.task} model")
    if request.task == "regression" and seen.n_outputs != (2 if request.quantile_pair else 1):
        needs = "a pair of quantiles" if request.quantile_pair else "one output"
        raise ValueError(f"this conformity_score needs a model with {needs}, this one has {seen.n_outputs}")


def _own_mechanism(request: Request) -> Mechanism:
    """The caller's mechanism or torch module, behind the public feature bounds if any were given."""
    mechanism: Any = request.estimator
    if any(base.__module__.startswith("torch.") for base in type(mechanism).__mro__):
        from dpscp.training.opacus import OpacusTraining

        loss = "cross_entropy" if request.task == "classification" else "squared"
        mechanism = OpacusTraining(mechanism, loss=loss)
    if isinstance(mechanism, type) or not isinstance(mechanism, Mechanism):
        raise TypeError(
            "estimator must be None, a training mechanism (dpscp.training.DPSGD, ...), a torch.nn.Module or a "
            f"PrivateModel, got {type(mechanism).__name__}"
        )
    if request.feature_bounds is not None:
        return Preprocessed((PublicBounds(*request.feature_bounds),), mechanism)
    if request.feature_bound is not None:
        return Preprocessed((NormClip(request.feature_bound),), mechanism)
    return mechanism


def _recipe(request: Request, guarantee: str, share: float | None, fraction: float | None) -> Recipe:
    """The library's own model for this fit; labels travel as their index."""
    features = "unit"
    if request.feature_bounds is not None:
        features = "bounded"
    elif request.feature_bound is not None:
        features = "clipped"
    quantiles = (request.alphas[0] / 2, 1 - request.alphas[0] / 2) if request.quantile_pair else None
    return recipe(
        request.task,
        n_records=request.n_records,
        n_features=request.n_features,
        classes=None if request.classes is None else tuple(range(len(request.classes))),
        epsilon=request.budget.epsilon,
        delta=request.budget.delta,
        guarantee=guarantee,
        features=features,
        feature_bound=request.feature_bound,
        feature_bounds=request.feature_bounds,
        y_bounds=request.y_bounds,
        quantiles=quantiles,
        train_epsilon=None if share is None else share * request.budget.epsilon,
        held_out_fraction=fraction,
    )


def _automatic_guarantee(request: Request) -> str:
    """Universal (all records, wider level) where mu * sqrt(n) is small, else split (whole budget for each part).

    What the universal certificate loses grows with mu alone; what holding records out loses falls with n. On synthetic
    data, Adult and Bank Marketing at n = 1,000 to 15,000 and epsilon = 0.1 to 2 the two cross near mu * sqrt(n) = 11
    (docs/recipe.md). The stability certificate gave larger sets everywhere and is never chosen.
    """
    if request.release_confidence is not None:
        return "split"  # the only one that can say what a single release covers
    mu = gdp_mu(request.budget.epsilon, request.budget.delta)
    return "universal" if mu * math.sqrt(request.n_records) <= _CROSSING else "split"


def corrected_model_outputs(
    trained: Trained, rows: NDArray[Any], targets: NDArray[Any]
) -> tuple[NDArray[Any] | None, str]:
    """Outputs with each record's own influence taken out, or None where no form is known; and what to tell about it.

    Theory: Result D
    """
    model, y, unscale = trained.model, targets, None
    if isinstance(model, ScaledTargetModel):
        scaler = model
        low, high = scaler.y_bounds
        y, unscale, model = (y - (low + high) / 2) * (2 / (high - low)), scaler.rescaled, scaler.inner
    labels = y if model.classes is None else np.asarray(model.classes)[y]
    try:
        outputs = corrected_outputs(model, trained.trajectory, rows, labels)
    except (TypeError, ValueError):  # hidden layers, Adam, or no trajectory
        return None, _NO_CORRECTION
    return (outputs if unscale is None else unscale(outputs)), _CORRECTED


def load_model(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
    """Rebuild a saved model; only the classes named here can be built."""
    return _LOADABLE[check_choice("model", config["model"], _LOADABLE)].from_parts(config, arrays)


_LOADABLE: Mapping[str, type[Model]] = {
    "dense": DenseModel,
    "preprocessed": PreprocessedModel,
    "scaled_target": ScaledTargetModel,
}


def require_loadable(config: Mapping[str, Any]) -> None:
    """Refuse to save what ``load_model`` could not rebuild: a file that nobody can open is worse than none."""
    if config.get("model") not in _LOADABLE:
        raise TypeError(
            f"a model of kind {config.get('model')!r} cannot be saved: its code is not data; keep its state dict, "
            "ledger_.to_json() and the thresholds yourself"
        )
    if "inner" in config:
        require_loadable(config["inner"])
