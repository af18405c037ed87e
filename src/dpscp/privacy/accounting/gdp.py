"""Exact Gaussian DP, for compositions of continuous Gaussian releases only."""

import math
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting.base import Accountant, Direction, History
from dpscp.privacy.tradeoff import gdp_deltas, gdp_epsilon


@dataclass(frozen=True)
class GaussianProfile:
    """The exact cost of ``mu``-GDP; ``mu=0`` if nothing happened."""

    mu: float

    @classmethod
    def of(cls, history: History) -> "GaussianProfile":
        """Return the cost of continuous Gaussian releases."""
        return cls(math.sqrt(sum(count / event.noise_multiplier**2 for event, count in history.items())))

    def epsilon(self, delta: float) -> float:
        return gdp_epsilon(delta, self.mu)

    def delta(self, epsilons: FloatArray, direction: Direction) -> FloatArray:  # noqa: ARG002 (both directions are alike)
        return gdp_deltas(epsilons, self.mu)


def _is_gaussian(event: DpEvent) -> bool:
    return isinstance(event, GaussianDpEvent)


GDP = Accountant("gdp", _is_gaussian, GaussianProfile.of)
