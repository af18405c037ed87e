"""Turn outputs into losses, and private gradients into steps of torch's optimizers."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpscp.torch.library import torch


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
    """An optimizer and a schedule of torch; see ``TorchDPSGD``.

    They see parameters and private gradients only, so what they do is post-processing.
    """

    optimizer: str | Callable[..., Any]
    learning_rate: float
    momentum: float
    scheduler: Callable[..., Any] | None
    steps: int

    def start(self, parameters: list[Any]) -> tuple[Any, Any]:
        """Return the optimizer of these parameters, and its schedule or None."""
        known = {"sgd": partial(torch.optim.SGD, momentum=self.momentum), "adam": torch.optim.Adam}
        make: Any = known[self.optimizer] if isinstance(self.optimizer, str) else self.optimizer
        optimizer = make(parameters, lr=float(self.learning_rate))
        return optimizer, None if self.scheduler is None else self.scheduler(optimizer, self.steps)

    def dry_run(self, parameters: list[Any]) -> None:
        """Make two steps with synthetic gradients of these shapes, and all steps of the schedule.

        ValueError for what would fail in training, before any record or budget is used. The parameters stay as they
        are.
        """
        copies, done = [torch.nn.Parameter(p.detach().clone()) for p in parameters], "at the start"
        try:  # what fails speaks of shapes and arguments, which are public
            with warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")  # torch warns about its own arguments, and does so again in training
                optimizer, scheduler = self.start(copies)
                for step in (1, 2):  # the first one may make what the second one uses
                    for parameter in copies:
                        parameter.grad = torch.ones_like(parameter)
                    done = f"in step {step} of the optimizer, on synthetic gradients"
                    optimizer.step()
                for step in range(0 if scheduler is None else self.steps):
                    done = f"in the schedule, after step {step + 1} of {self.steps} training steps"
                    scheduler.step()
        except Exception as error:
            raise ValueError(
                f"optimizer or scheduler failed {done} ({type(error).__name__}: {error}). optimizer is called with the "
                "parameters and lr=learning_rate, scheduler with the optimizer and the number of training steps. It "
                "makes one step after each step of training, not after each epoch, and gets no loss"
            ) from error


def set_gradients(parameters: list[Any], gradients: list[Any]) -> None:
    """Give the parameters these gradients, on their device and in their precision."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype).view(parameter.shape)
