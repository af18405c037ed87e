"""Check the arguments of ``TorchDPSGD`` against each other, and compute those that follow from others."""

import functools
import math
from typing import Any

from dpscp._base.checks import check_choice, check_count, check_fraction, check_positive

LOSSES = ("cross_entropy", "squared", "huber")


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


def check_optimizer(optimizer: Any, momentum: float, scheduler: Any) -> None:
    """Refuse an optimizer or a schedule that is no function, and numbers that would not be used."""
    if isinstance(optimizer, str):
        check_choice("optimizer", optimizer, ("sgd", "adam"))
    for name, value in (("optimizer", optimizer), ("scheduler", scheduler)):
        if not callable(value) and not isinstance(value, str | None):
            raise TypeError(
                f"{name} must be a function that makes one, got an instance of {type(value).__name__}; pass "
                "torch.optim.AdamW itself, or lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, ...)"
            )
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must lie in [0, 1), got {momentum:g}")
    if momentum and optimizer != "sgd":
        raise ValueError(
            f"momentum={momentum:g} is used by optimizer='sgd' only; remove it, or pass "
            f"functools.partial(torch.optim.SGD, momentum={momentum:g}) as optimizer"
        )
    if isinstance(optimizer, functools.partial) and "lr" in optimizer.keywords:
        raise ValueError("lr of optimizer and learning_rate both set the learning rate; pass learning_rate alone")


def check_labels(classes: tuple[Any, ...] | None, labels: tuple[Any, ...] | None) -> None:
    """Refuse labels of an estimator that are not those of the module's outputs, in their order."""
    if classes is not None and labels is not None and classes != labels:
        given = list(classes)  # the estimator's may come from the records
        raise ValueError(
            f"classes={given} of TorchDPSGD differs from classes of the estimator in its labels or their order, "
            f"which is that of the module's outputs. Pass classes={given} to the estimator too, or leave classes out "
            "of TorchDPSGD"
        )
