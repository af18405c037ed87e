"""The training mechanism of a caller's ``estimator``: a mechanism, a torch module, or a list of steps before one."""

from typing import TYPE_CHECKING, Any

from dpscp.training import DPSGD, Mechanism, NormClip, Preprocessed, PublicBounds
from dpscp.training.preprocessing.preprocess import put_steps_before
from dpscp.training.preprocessing.scaling import ScaledTarget
from dpscp.training.preprocessing.sums import Step
from dpscp.training.torch.modules import comes_from_torch

if TYPE_CHECKING:
    from dpscp.pipeline.request import Request


def own_mechanism(request: "Request") -> Mechanism:
    """Return the caller's mechanism or torch module, with the steps before it and the feature bounds."""
    steps, mechanism = _separate_steps(request)
    if comes_from_torch(mechanism):
        from dpscp.training.torch.trainer import OpacusTraining

        loss = "squared" if request.task.classes is None else "cross_entropy"
        mechanism = OpacusTraining(mechanism, loss=loss, device=request.device or "cpu")
    if isinstance(mechanism, type) or not isinstance(mechanism, Mechanism):
        raise TypeError(
            "estimator must be None, a training mechanism (dpscp.training.DPSGD, ...), a list of private steps and a "
            "mechanism, a torch.nn.Module, a PrivateModel, or with prefit=True a fitted scikit-learn estimator, got "
            f"{type(mechanism).__name__}"
        )
    _check_task(request, mechanism)
    found = put_steps_before(steps, mechanism)
    if request.feature_bounds is not None and not request.private_features:
        return Preprocessed((PublicBounds(*request.scaled_feature_bounds),), found)
    if request.feature_bound is not None:
        return Preprocessed((NormClip(request.feature_bound),), found)
    return found


def _check_task(request: "Request", mechanism: Any) -> None:
    """Refuse a mechanism for the other task before any budget is reserved, where it says what it trains."""
    while not isinstance(trains := getattr(mechanism, "task", None), str):
        if (mechanism := getattr(mechanism, "mechanism", None)) is None:
            return
    if trains != request.task.name:
        raise ValueError(
            f"estimator must train a {request.task.name} model, this one trains a {trains} model; "
            f"its loss is {getattr(mechanism, 'loss', None)!r}"
        )


def _separate_steps(request: "Request") -> tuple[tuple[Any, ...], Any]:
    """Return the steps of a list and its mechanism; without one, a linear model by DP-SGD."""
    if not isinstance(request.estimator, list | tuple):
        return (), request.estimator
    *steps, last = request.estimator or (None,)
    if not isinstance(last, Step) or isinstance(last, Mechanism):
        return tuple(steps), last
    mechanism: Mechanism = DPSGD()
    if request.task.scaled_bounds is not None:
        mechanism = ScaledTarget(DPSGD(loss="huber"), request.task.scaled_bounds)
    return (*steps, last), mechanism
