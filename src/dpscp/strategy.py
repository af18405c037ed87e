"""What a fit will do, decided from public numbers before any record is used: guarantee, budget shares, mechanism.

Everything here is a function of ``Request``: the estimator's parameters, the nominal number of records, the width of a row
and the class list.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._checks import check_choice, check_fraction, check_positive, check_probability
from dpscp.guarantees import marginal_offset, universal_alpha
from dpscp.privacy import Budget, Ledger, gaussian_tradeoff, gdp_mu
from dpscp.training import (
    DPSGD,
    DenseModel,
    Mechanism,
    Model,
    NormClip,
    Preprocessed,
    PreprocessedModel,
    PublicBounds,
    Trained,
    UnitNorm,
    corrected_outputs,
)
from dpscp.training.private_model import PrivateModel
from dpscp.training.scaling import ScaledTarget, ScaledTargetModel

__all__ = ["Request", "Strategy", "choose_strategy", "corrected_model_outputs", "load_model"]

GUARANTEES = ("auto", "universal", "stability", "split", "corrected", "finite", "asymptotic")
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
    accountant: str
    grouped: bool
    classes: tuple[Any, ...] | None = None
    classes_found: bool = False
    y_bounds: tuple[float, float] | None = None
    quantile_pair: bool = False

    def __post_init__(self) -> None:
        check_choice("guarantee", self.guarantee, GUARANTEES)
        check_choice("accountant", self.accountant, ("pld", "rdp"))
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
            return ledger.then(self.model.ledger)
        name = type(_innermost(self.mechanism)).__name__
        return ledger.add("training", trained.event, name)


def choose_strategy(request: Request) -> Strategy:
    """The strategy of a fit, from public numbers only.

    ``guarantee="auto"`` takes the certified guarantee with the smaller predicted sets, see ``predicted_size``. A fixed guarantee is never
    swapped for another one.
    """
    if isinstance(request.estimator, PrivateModel):
        return _for_private_model(request)
    guarantee = _automatic_guarantee(request) if request.guarantee == "auto" else request.guarantee
    if guarantee == "split":
        fraction = request.calibration_fraction
        if fraction == "auto":
            fraction = best_calibration_fraction(request)
        n_training = max(1, round((1 - float(fraction)) * request.n_records))
        mechanism = _mechanism(request, guarantee, n_training, request.budget.epsilon)
        facts = {"guarantee": guarantee, "calibration_fraction": float(fraction), **_facts_of(mechanism)}
        return Strategy(guarantee, n_training, mechanism, calibration_fraction=float(fraction), facts=facts)
    share = request.train_share
    if share == "auto":
        share = best_train_share(request, guarantee)
    mechanism = _mechanism(request, guarantee, request.n_records, float(share) * request.budget.epsilon)
    facts = {"guarantee": guarantee, "train_share": float(share), **_facts_of(mechanism)}
    return Strategy(guarantee, request.n_records, mechanism, facts=facts)


def _for_private_model(request: Request) -> Strategy:
    """A model from elsewhere: ``split`` says that it never saw these records, anything else that it did."""
    guarantee = "universal" if request.guarantee == "auto" else request.guarantee
    if guarantee == "stability":
        raise ValueError("guarantee='stability' needs a mechanism with a stability bound; a PrivateModel carries none")
    model = request.estimator
    if model.model.n_features != request.n_features:
        raise ValueError(f"X must have the model's {model.model.n_features} features, got {request.n_features}")
    return Strategy(guarantee, request.n_records, model=model, facts={"guarantee": guarantee})


def _mechanism(request: Request, guarantee: str, n_training: int, epsilon: float) -> Mechanism:
    """The training mechanism with its noise set for (epsilon, delta) and everything else from public numbers."""
    if request.estimator is None:
        mechanism = _recipe(request, guarantee, n_training, epsilon)
    else:
        mechanism = _own_mechanism(request)
    wanted: dict[str, Any] = {"keep_trajectory": guarantee == "corrected"}
    if request.classes is not None:
        # labels travel as their index, so that a class without a record keeps its place
        wanted["classes"] = tuple(range(len(request.classes)))
    mechanism = configured(mechanism, **wanted)
    if not _noise_is_set(mechanism):
        mechanism = mechanism.calibrated(epsilon, request.budget.delta, accountant=request.accountant)
    return mechanism


def _own_mechanism(request: Request) -> Mechanism:
    """The caller's mechanism or torch module, behind the public feature bounds if any were given."""
    mechanism = request.estimator
    if any(base.__module__.startswith("torch.") for base in type(mechanism).__mro__):
        from dpscp.training.opacus import OpacusTraining

        loss = "cross_entropy" if request.task == "classification" else "squared"
        mechanism = OpacusTraining(mechanism, loss=loss)
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            "estimator must be None, a training mechanism (dpscp.training.DPSGD, ...), a torch.nn.Module or a "
            f"PrivateModel, got {type(mechanism).__name__}"
        )
    if request.feature_bounds is not None:
        return Preprocessed((PublicBounds(*request.feature_bounds),), mechanism)
    if request.feature_bound is not None:
        return Preprocessed((NormClip(request.feature_bound),), mechanism)
    return mechanism


def _noise_is_set(mechanism: Any) -> bool:
    try:
        mechanism.event  # noqa: B018 (asking is the test)
    except ValueError:
        return False
    return True


def _recipe(request: Request, guarantee: str, n_training: int, epsilon: float) -> Mechanism:
    step = UnitNorm() if request.feature_bounds is None else PublicBounds(*request.feature_bounds)
    if request.task == "classification":
        return Preprocessed(
            (step,), DPSGD(loss="cross_entropy", steps=100, learning_rate=4.0, clip_norm=2.0, feature_bound=1.0)
        )
    loss = "pinball" if request.quantile_pair else "huber"
    q = (request.alphas[0] / 2, 1 - request.alphas[0] / 2)
    return ScaledTarget(
        Preprocessed((step,), DPSGD(loss=loss, steps=100, learning_rate=0.5, quantiles=q)), request.y_bounds
    )


def _facts_of(mechanism: Mechanism) -> dict[str, Any]:
    """The mechanism's own public constants that a reader of the ledger wants to see."""
    inner = _innermost(mechanism)
    if not isinstance(inner, DPSGD):
        return {"mechanism": type(inner).__name__}
    return {
        "mechanism": "DPSGD",
        "hidden": list(inner.hidden),
        "training_steps": inner.steps,
        "sampling_rate": inner.sampling_rate,
        "learning_rate": inner.learning_rate,
        "clip_norm": inner.clip_norm,
        "noise_multiplier": inner.noise_multiplier,
    }


def best_calibration_fraction(request: Request) -> float:
    return 0.2


def best_train_share(request: Request, guarantee: str) -> float:
    return 0.5


def _automatic_guarantee(request: Request) -> str:
    return "split"


def _innermost(mechanism: Any) -> Any:
    while hasattr(mechanism, "mechanism"):
        mechanism = mechanism.mechanism
    return mechanism


def configured(mechanism: Any, **wanted: Any) -> Any:
    """The same frozen mechanism with these fields set where it has them, behind any preprocessing as well."""
    if not is_dataclass(mechanism) or isinstance(mechanism, type):
        return mechanism
    names = {f.name for f in fields(mechanism)}
    changed = {k: v for k, v in wanted.items() if k in names}
    if "mechanism" in names:
        changed["mechanism"] = configured(mechanism.mechanism, **wanted)
    return replace(mechanism, **changed) if changed else mechanism


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
    if isinstance(model, PreprocessedModel):
        rows, model = model.transform(rows), model.inner
    if not isinstance(model, DenseModel) or len(model.network.widths) > 2 or trained.trajectory is None:
        return None, _NO_CORRECTION
    if trained.trajectory.weights is None:
        return None, _NO_CORRECTION
    labels = y if model.classes is None else np.asarray(model.classes)[y]
    outputs = corrected_outputs(model, trained.trajectory, rows, labels)
    return (outputs if unscale is None else unscale(outputs)), _CORRECTED


def load_model(config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Model:
    """Rebuild a saved model; only the classes named here can be built."""
    kinds: dict[str, type[Model]] = {
        "dense": DenseModel,
        "preprocessed": PreprocessedModel,
        "scaled_target": ScaledTargetModel,
    }
    return kinds[check_choice("model", config["model"], kinds)].from_parts(config, arrays)
