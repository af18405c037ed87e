"""Numbers of an evaluation, and the size of a constant answer with the same coverage."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrivateEstimate:
    """A private estimate and an interval that holds the true mean with the stated confidence.

    Attributes
    ----------
    estimate : float
        NaN where the noisy number of records is not positive.
    interval : (low, high)
    """

    estimate: float
    interval: tuple[float, float]

    def scaled(self, factor: float) -> "PrivateEstimate":
        """Return the estimate and its interval in other units."""
        low, high = self.interval
        return PrivateEstimate(factor * self.estimate, (factor * low, factor * high))

    def complement(self) -> "PrivateEstimate":
        """Return the estimate of one minus this rate."""
        low, high = self.interval
        return PrivateEstimate(1 - self.estimate, (1 - high, 1 - low))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; None stands for NaN."""
        return {"estimate": None if math.isnan(self.estimate) else self.estimate, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrivateEstimate":
        """Return the estimate that ``to_dict`` wrote."""
        estimate, (low, high) = data["estimate"], data["interval"]
        return cls(float("nan") if estimate is None else float(estimate), (float(low), float(high)))


def constant_set_size(shares: Iterable[float], level: float) -> float:
    """Return the mean size of the smallest constant set (the same for every record) that reaches a level.

    ``shares`` are those of the labels. The last label is in the set as often as the level needs it.

    >>> constant_set_size([0.25, 0.5, 0.25], 0.625)
    1.5
    """
    size, reached = 0.0, 0.0
    for share in sorted((max(0.0, share) for share in shares), reverse=True):
        if reached + share >= level:
            return size + (level - reached) / share if share else size
        size, reached = size + 1, reached + share
    return size


def around(rate: PrivateEstimate, size_at: Callable[[float], float]) -> PrivateEstimate:
    """Return a size that grows with a rate, at the estimate and at both ends of the interval."""
    low, high = rate.interval
    return PrivateEstimate(size_at(rate.estimate), (size_at(low), size_at(high)))
