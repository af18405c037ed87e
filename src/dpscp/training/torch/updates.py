"""Turn outputs into losses, and private gradients into steps of torch's optimizers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpscp.training.torch.modules import load_torch

LOSSES = ("cross_entropy", "squared", "huber")


@dataclass(frozen=True)
class RecordLosses:
    """One loss for each record, from outputs and targets."""

    loss: str | Callable[..., Any]

    def __call__(self, outputs: Any, target: Any) -> Any:
        """Return the losses, (records,)."""
        if callable(self.loss):
            return self.loss(outputs, target)
        functional = load_torch().nn.functional
        if self.loss == "cross_entropy":
            if outputs.ndim != 2:
                raise ValueError("cross_entropy needs module outputs of shape (records, classes)")
            return functional.cross_entropy(outputs, target, reduction="none")
        column = outputs if outputs.ndim == 1 else outputs.flatten(1)
        target = target.to(column.dtype)
        target = target if column.ndim == 1 else target[:, None].expand_as(column)
        name = functional.mse_loss if self.loss == "squared" else functional.huber_loss
        losses = name(column, target, reduction="none")
        return losses if losses.ndim == 1 else losses.sum(1)


@dataclass(frozen=True)
class Updates:
    """An optimizer and a scheduler of torch; see ``OpacusTraining``.

    They see parameters and private gradients only, so what they do is post-processing.
    """

    optimizer: str | Callable[..., Any]
    learning_rate: float
    momentum: float
    scheduler: Callable[[Any], Any] | None

    def start(self, parameters: list[Any]) -> tuple[Any, Any]:
        """Return the optimizer of these parameters, and its scheduler or None.

        TypeError for one that needs a loss.
        """
        torch = load_torch()
        if callable(self.optimizer):
            optimizer = self.optimizer(parameters, lr=self.learning_rate)
        elif self.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        else:
            optimizer = torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                f"optimizer must return an optimizer of torch that takes one gradient a step, got "
                f"{type(optimizer).__name__}; give torch.optim.AdamW, or a function of (parameters, lr)"
            )
        scheduler = None if self.scheduler is None else self.scheduler(optimizer)
        schedulers = torch.optim.lr_scheduler
        if scheduler is not None and (
            not isinstance(scheduler, schedulers.LRScheduler) or isinstance(scheduler, schedulers.ReduceLROnPlateau)
        ):
            raise TypeError(
                f"scheduler must return a learning-rate scheduler of torch that needs no loss, got "
                f"{type(scheduler).__name__}; a loss of the records would not be private"
            )
        return optimizer, scheduler


def set_gradients(parameters: list[Any], sums: list[Any], scale: float) -> None:
    """Make the sums times ``scale`` the gradients of the parameters; the sums change."""
    kinds = {parameter.dtype for parameter in parameters}
    if parameters[0].device.type == "cpu" or len(kinds) > 1:
        parts = [total.mul_(scale).to(parameter.dtype) for parameter, total in zip(parameters, sums, strict=True)]
    else:  # few kernels: each one takes as long to start as to run
        flat = (load_torch().cat([total.flatten() for total in sums]) * scale).to(kinds.pop())
        parts = flat.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view(parameter.shape)
