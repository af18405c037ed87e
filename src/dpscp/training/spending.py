"""Say while training runs what its steps have cost so far.

A fit counts its own way: with its accountant, its unit of privacy and the secret of its parts. A mechanism alone does
not know these, so the fit passes them around the training (``count_training``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpscp._base.format import format_epsilon
from dpscp.privacy import epsilon_of

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True)
class TrainingCost:
    """The epsilon, at ``delta``, of training by an event."""

    epsilon: "Callable[[DpEvent], float]"
    delta: float


_cost: ContextVar[TrainingCost | None] = ContextVar("dpscp_training_cost", default=None)


@contextmanager
def count_training(cost: TrainingCost) -> Iterator[None]:
    """Count the training inside as the fit around it does."""
    token = _cost.set(cost)
    try:
        yield
    finally:
        _cost.reset(token)


def describe_spending(event: "DpEvent", delta: float) -> str:
    """Return what the steps behind this event cost, from public numbers; ``delta`` is that outside a fit."""
    cost = _cost.get() or TrainingCost(lambda spent: epsilon_of(spent, delta), delta)
    return f"training has spent epsilon {format_epsilon(cost.epsilon(event))} at delta {cost.delta:.2g}"
