"""Turn outputs into losses, and private gradients into steps of torch's optimizers."""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dpscp.torch.library import torch
from dpscp.torch.settings import name_of


def record_losses(loss: str | Callable[..., Any], outputs: Any, target: Any) -> Any:
    """Return one loss for each record, (records,)."""
    if callable(loss):
        return loss(outputs, target)
    functional = torch.nn.functional
    if loss == "cross_entropy":
        if outputs.ndim != 2:
            raise ValueError("cross_entropy needs module outputs of shape (records, classes)")
        return functional.cross_entropy(outputs, target, reduction="none")
    columns = outputs.reshape(len(outputs), -1)
    target = target.to(columns.dtype)[:, None].expand_as(columns)
    name = functional.mse_loss if loss == "squared" else functional.huber_loss
    return name(columns, target, reduction="none").sum(1)


@dataclass(frozen=True)
class Updates:
    """An optimizer and a scheduler of torch; see ``TorchDPSGD``.

    They see parameters and private gradients only, so what they do is post-processing. ``steps`` is the number of
    training steps, None while it is not known.
    """

    optimizer: str | Callable[..., Any]
    learning_rate: float
    momentum: float
    scheduler: Callable[..., Any] | None
    steps: int | None

    def start(self, parameters: list[Any]) -> tuple[Any, Any]:
        """Return the optimizer of these parameters, and its scheduler or None.

        TypeError for one that needs a loss, ValueError for one that fails or belongs to other parameters.
        """
        optimizer = self._make_optimizer(parameters)
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                f"optimizer must return an optimizer of torch that takes one gradient a step, got "
                f"{type(optimizer).__name__}; give torch.optim.AdamW, or a function of (parameters, lr)"
            )
        own = {id(parameter) for parameter in parameters}
        if not all(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"optimizer returned a {type(optimizer).__name__} of other parameters than those that it was given; "
                "make the optimizer in the function, from its first argument"
            )
        return optimizer, None if self.scheduler is None else self._make_scheduler(optimizer)

    def _make_optimizer(self, parameters: list[Any]) -> Any:
        rate = float(self.learning_rate)
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=rate, momentum=self.momentum)
        make: Any = torch.optim.Adam if self.optimizer == "adam" else self.optimizer
        with _explained("optimizer", self.optimizer, "for the parameters of this module", _OPTIMIZER):
            return make(parameters, lr=rate)

    def _make_scheduler(self, optimizer: Any) -> Any:
        assert self.scheduler is not None
        schedulers = torch.optim.lr_scheduler
        count = {"steps": int(self.steps)} if self.steps is not None and _takes_steps(self.scheduler) else {}
        with _explained("scheduler", self.scheduler, "for this optimizer", _SCHEDULER):
            scheduler = self.scheduler(optimizer, **count)
        if not isinstance(scheduler, schedulers.LRScheduler) or isinstance(scheduler, schedulers.ReduceLROnPlateau):
            raise TypeError(
                f"scheduler must return a learning-rate scheduler of torch that needs no loss, got "
                f"{type(scheduler).__name__}; a loss of the records would not be private"
            )
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ValueError(
                f"scheduler returned a {type(scheduler).__name__} of another optimizer, which would change nothing; "
                "make the scheduler in the function, from its first argument"
            )
        return scheduler

    def try_steps(self, parameters: list[Any]) -> None:
        """Make two steps with synthetic gradients of these shapes, and all steps of the schedule.

        ValueError for what would fail in training, before any record or budget is used. The parameters stay as they
        are.
        """
        copies = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # torch warns about its own arguments, and does so again in training
            optimizer, scheduler = self.start(copies)
            for name in ("first", "second"):  # the first one may make what the second one uses
                for parameter in copies:
                    parameter.grad = torch.ones_like(parameter)
                with _explained("optimizer", self.optimizer, f"in its {name} step, on synthetic gradients", _OPTIMIZER):
                    optimizer.step()
            for step in range(0 if scheduler is None or self.steps is None else self.steps):
                where = f"after step {step + 1} of {self.steps} training steps"
                with _explained("scheduler", self.scheduler, where, _SCHEDULER):
                    scheduler.step()


_OPTIMIZER = "It is called with the parameters and lr=learning_rate, and returns an optimizer for them all"
_SCHEDULER = (
    "It is called with the optimizer, and with the number of training steps where it has a parameter of the name "
    "steps. It makes one step after each step of training, not after each epoch: lambda optimizer, steps: "
    "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)"
)


@contextmanager
def _explained(argument: str, function: Any, where: str, advice: str) -> Iterator[None]:
    """Raise ValueError for an error of the caller's function; it speaks of shapes and arguments, which are public."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{argument}={name_of(function)} failed {where} ({error}). {advice}") from error


def _takes_steps(factory: Callable[..., Any]) -> bool:
    """Return whether a caller's function has a parameter ``steps`` that has no value yet."""
    if isinstance(factory, functools.partial) and "steps" in factory.keywords:
        return False
    try:
        return "steps" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a function of C has none
        return False


def set_gradients(parameters: list[Any], gradients: list[Any]) -> None:
    """Give the parameters these gradients, on their device and in their precision."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype).view(parameter.shape)
