"""The training mechanism of a caller's ``estimator``: a mechanism, a torch module, or a list of steps before one."""

import warnings
from typing import TYPE_CHECKING, Any

from dpscp.exceptions import HintWarning
from dpscp.torch.records import comes_from_torch
from dpscp.training import DPSGD, Mechanism, NormClip, Preprocessed, PublicBounds
from dpscp.training.preprocessing.preprocess import put_steps_before
from dpscp.training.preprocessing.scaling import ScaledTarget
from dpscp.training.preprocessing.step import Step

if TYPE_CHECKING:
    from dpscp.core.problem import FitProblem

# Farther from zero, targets are out of reach of the steps that are usual for a new module.
_FAR_TARGET = 10.0


def own_mechanism(problem: "FitProblem") -> Mechanism:
    """Return the caller's mechanism or torch module, with the steps before it and the feature bounds."""
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
    _check_task(problem, mechanism)
    _hint_at_scaled_targets(problem, mechanism)
    found = put_steps_before(steps, mechanism)
    bounds = problem.scaled_feature_bounds
    if bounds is not None and len(bounds.private) < problem.n_features:
        return Preprocessed((PublicBounds(*bounds.pair),), found)
    if problem.feature_bound is not None:
        return Preprocessed((NormClip(problem.feature_bound),), found)
    return found


def _train_module(problem: "FitProblem", module: Any) -> Mechanism:
    """Return the training of a caller's own torch module with default settings, on the device of its parameters.

    Outputs of a new module are near zero, so targets are scaled to [-1, 1], as for the models of this library.
    """
    from dpscp.torch.trainer import TorchDPSGD

    if problem.task.trains == "classification":
        return TorchDPSGD(module)
    training = TorchDPSGD(module, loss="squared")
    bounds = problem.task.scaled_bounds
    return training if bounds is None or problem.task.private_range else ScaledTarget(training, bounds)


def _check_task(problem: "FitProblem", mechanism: Any) -> None:
    """Refuse a mechanism for the other task before any budget is reserved, where it says what it trains."""
    while not isinstance(trains := getattr(mechanism, "task", None), str):
        if (mechanism := getattr(mechanism, "mechanism", None)) is None:
            return
    loss = getattr(mechanism, "loss", None)
    if callable(loss):  # a function may be for either task; the dry run shows whether it fits
        return
    if trains != problem.task.trains:
        remedy = "'cross_entropy'" if problem.task.trains == "classification" else "'squared' or 'huber'"
        raise ValueError(
            f"estimator must train a {problem.task.trains} model, this one trains a {trains} model; its loss is "
            f"{loss!r}, pass loss={remedy}"
        )


def _hint_at_scaled_targets(problem: "FitProblem", mechanism: Any) -> None:
    """Hint at targets that are far from the outputs of a new torch module, by their public bounds."""
    while (inner := getattr(mechanism, "mechanism", None)) is not None:
        if hasattr(mechanism, "y_bounds"):
            return
        mechanism = inner
    own = comes_from_torch(getattr(mechanism, "module", None)) and not callable(mechanism.loss)
    if not own or problem.task.scaled_bounds is None or problem.task.private_range:
        return
    low, high = problem.task.scaled_bounds
    if max(-low, high) > _FAR_TARGET:
        warnings.warn(
            f"TorchDPSGD trains the module on targets between {low:g} and {high:g}, and outputs of a new module "
            "are near 0, so noisy steps may not reach them. Pass dp.training.ScaledTarget(training, "
            f"({low:g}, {high:g})) as estimator: it trains on targets in [-1, 1] and predicts in their units",
            HintWarning,
            stacklevel=2,
        )


def _separate_steps(problem: "FitProblem") -> tuple[tuple[Any, ...], Any]:
    """Return the steps of a list and its mechanism; without one, a linear model by DP-SGD."""
    if not isinstance(problem.estimator, list | tuple):
        return (), problem.estimator
    *steps, last = problem.estimator or (None,)
    if not isinstance(last, Step):
        return tuple(steps), last
    mechanism: Mechanism = DPSGD()
    if problem.task.scaled_bounds is not None:
        mechanism = ScaledTarget(DPSGD(loss="huber"), problem.task.scaled_bounds)
    return (*steps, last), mechanism
