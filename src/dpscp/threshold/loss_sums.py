"""Sums of dithered losses at public thresholds, in the place of counts of scores.

Theory: Result J
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

__all__ = ["LossSums"]


@dataclass(frozen=True)
class LossSums:
    """C(t) = sum over records of one minus the loss, at thresholds with places 0 .. m - 1, in exact multiples.

    ``sums[j]`` is ``resolution`` times C at place j, an integer that never falls with j. Places from m on mean "no
    finite threshold", where no record has a loss. A search of ``k`` halvings of ``place_range`` asks for whole places
    only.

    Theory: Result J
    """

    size: int
    resolution: int
    sums: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """The number of halvings that tell all places apart."""
        return len(self.sums).bit_length()

    @property
    def place_range(self) -> tuple[float, float]:
        """The public range of a search: each midpoint of its halvings is a whole number."""
        return -1.0, float(2**self.steps - 1)

    def count(self, left: float, right: float, steps_left: int) -> Fraction:  # noqa: ARG002 (the interface's question)
        """C at the middle of the bracket."""
        place = int((left + right) // 2)
        return Fraction(int(self.sums[place]), self.resolution) if place < len(self.sums) else Fraction(self.size)

    def require_lattice(self, scale: int, steps: int) -> None:
        """Refuse noise on a lattice that does not hold these sums, and steps between the places."""
        if scale % self.resolution:
            raise ValueError(
                f"the scale of the noise must be a multiple of resolution={self.resolution}, got {scale}: make it with "
                "lattice_noise(..., multiple=resolution)"
            )
        if steps > self.steps:
            raise ValueError(f"steps must be at most {self.steps} for {len(self.sums)} thresholds, got {steps}")
