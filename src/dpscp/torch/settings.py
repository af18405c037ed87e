"""Check the arguments of ``TorchDPSGD`` against each other, and compute those that follow from others."""

import functools
import math
from collections.abc import Callable
from typing import Any

from dpscp._base.checks import check_choice, check_count, check_fraction, check_positive
from dpscp.torch.library import torch

LOSSES = ("cross_entropy", "squared", "huber")
OPTIMIZERS = ("sgd", "adam")


class DefaultCount(int):
    """A number of steps that the caller did not pass: the default, or what follows from ``epochs``."""


class DefaultNumber(float):
    """A number that the caller did not pass: the default, or what follows from other arguments."""


def is_given(value: float) -> bool:
    """Return whether the caller passed this number."""
    return not isinstance(value, DefaultCount | DefaultNumber)


def choose_rate(sampling_rate: float, batch_size: int | None, n_records: int | None) -> float:
    """Return the sampling rate, which follows from ``batch_size`` once the number of records is known."""
    check_fraction("sampling_rate", sampling_rate)
    if batch_size is None:
        return sampling_rate
    check_count("batch_size", batch_size)
    if is_given(sampling_rate):
        raise ValueError(
            f"sampling_rate={sampling_rate:g} and batch_size={batch_size} both set the size of a batch; pass one of "
            "them"
        )
    if n_records is None:
        return sampling_rate
    return DefaultNumber(min(1.0, batch_size / check_count("n_records", n_records)))


def choose_steps(steps: int, epochs: float | None, sampling_rate: float | None) -> int:
    """Return the number of steps, which follows from ``epochs`` once the sampling rate is known."""
    check_count("steps", steps)
    if epochs is None:
        return steps
    check_positive("epochs", epochs)
    if is_given(steps):
        raise ValueError(f"steps={steps} and epochs={epochs:g} both set the number of steps; pass one of them")
    return steps if sampling_rate is None else DefaultCount(math.ceil(epochs / sampling_rate))


def choose_learning_rate(learning_rate: float, optimizer: Any) -> float:
    """Return the learning rate, which may come from ``functools.partial(optimizer, lr=...)``."""
    check_positive("learning_rate", learning_rate)
    own = optimizer.keywords.get("lr") if isinstance(optimizer, functools.partial) else None
    if own is None:
        return learning_rate
    if is_given(learning_rate) and float(own) != learning_rate:
        raise ValueError(
            f"learning_rate={learning_rate:g} and lr={float(own):g} of optimizer both set the learning rate; pass one "
            "of them"
        )
    return DefaultNumber(check_positive("lr of optimizer", float(own)))


def check_loss(loss: str | Callable[..., Any]) -> None:
    """Refuse a loss that is unknown, or that returns one number for a whole batch."""
    if not callable(loss):
        check_choice("loss", loss, LOSSES)
        return
    modules = torch.nn.modules.loss._Loss
    if isinstance(loss, type):
        example = f"{loss.__name__}(reduction='none')" if issubclass(loss, modules) else f"{loss.__name__}(...)"
        raise TypeError(f"loss must be a function of (outputs, targets), got the class {loss.__name__}; pass {example}")
    if isinstance(loss, modules) and loss.reduction != "none":
        raise ValueError(
            f"loss={type(loss).__name__}(reduction={loss.reduction!r}) returns one number for a whole batch, and "
            f"gradients of single records need one for each record; pass {type(loss).__name__}(reduction='none')"
        )


def check_optimizer(optimizer: Any, momentum: float) -> None:
    """Refuse what is neither a name nor a function, and a momentum that would not be used."""
    is_name = isinstance(optimizer, str)
    if optimizer not in OPTIMIZERS if is_name else not callable(optimizer):
        given = optimizer if is_name else type(optimizer).__name__
        example = given if isinstance(getattr(torch.optim, given, None), type) else "AdamW"
        error = ValueError if is_name else TypeError
        raise error(
            f"optimizer must be 'sgd', 'adam' or a function of (parameters, lr), got "
            f"{repr(given) if is_name else f'an instance of {given}'}; pass torch.optim.{example} itself, or "
            f"functools.partial(torch.optim.{example}, ...) with its other arguments"
        )
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum:g}")
    if momentum and optimizer != "sgd":
        raise ValueError(
            f"momentum={momentum:g} is used by optimizer='sgd' only, got optimizer={name_of(optimizer)}; remove "
            f"momentum, or pass functools.partial(torch.optim.SGD, momentum={momentum:g}) as optimizer"
        )


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler that is not a function of the optimizer."""
    if scheduler is None or callable(scheduler):
        return
    name = type(scheduler).__name__
    example = name if hasattr(torch.optim.lr_scheduler, name) else "StepLR"
    raise TypeError(
        f"scheduler must be a function that is called with the optimizer and returns a scheduler, got an instance of "
        f"{name}; pass lambda optimizer: torch.optim.lr_scheduler.{example}(optimizer, ...)"
    )


def name_of(function: Any) -> str:
    """Return the name of a caller's function, for messages."""
    inner = function.func if isinstance(function, functools.partial) else function
    return repr(inner) if isinstance(inner, str) else getattr(inner, "__name__", type(inner).__name__)


def check_labels(classes: tuple[Any, ...] | None, labels: tuple[Any, ...] | None) -> None:
    """Refuse labels of an estimator that are not those of the module's outputs, in their order."""
    if classes is not None and labels is not None and classes != labels:
        given = list(classes)  # the estimator's may come from the records
        raise ValueError(
            f"classes={given} of TorchDPSGD differs from classes of the estimator in its labels or their order, "
            f"which is that of the module's outputs. Pass classes={given} to the estimator too, or leave classes out "
            "of TorchDPSGD"
        )
