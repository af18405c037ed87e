"""Where a private search aims: rank statistics, corrections and offsets.

All offset arithmetic is here, from public numbers only. Searches, plans and certificates use an ``Aim``.
The formulas are in ``correction`` (Result A and the paper), ``minimax`` (Result F) and ``sizes`` (Results G and I).

Theory: Fact 2
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_probability
from dpscp.threshold.correction import marginal_offset, union_noise_buffer
from dpscp.threshold.minimax import graded_offset, step_rises
from dpscp.threshold.single_release import release_level, release_offset
from dpscp.threshold.sizes import (
    CountedSize,
    KnownSize,
    NoisySize,
    Size,
    counted_offset,
    size_tail,
    sized_offset,
)

_LEVEL_UNIT = 10**6
# Nodes and weights of a mean over a normal law, exact for polynomials up to degree five.
_NODES, _WEIGHTS = (-math.sqrt(3), 0.0, math.sqrt(3)), (1 / 6, 2 / 3, 1 / 6)
# One lattice unit of the noise is less than this part of the noise.
_UNIT_SHARE = 1e-3


def _refuse_name(kind: type[StrEnum], value: object) -> None:
    """Refuse a name that a caller gave and that is none of this kind."""
    check_choice(kind.__name__.lower(), value, list(kind))


class Rank(StrEnum):
    """The rank statistic of a search: the count C minus a function of the size n.

    Theory: Fact 2
    """

    _missing_ = classmethod(_refuse_name)

    CENTERED = "centered"
    """C - (n + 1)/2."""
    LINEAR = "linear"
    """C - (1 - alpha)(n + 1)."""
    CEIL = "ceil"
    """C - ceil((1 - alpha)(n + 1)), as in the paper."""

    @property
    def is_same_at_all_levels(self) -> bool:
        """Whether one noisy value of the statistic can be used at every level."""
        return self is Rank.CENTERED

    def sensitivity(self, level: Fraction) -> Fraction:
        """Return how much one added or removed record changes the statistic."""
        if self is Rank.CENTERED:
            return Fraction(1, 2)
        return max(level, 1 - level) if self is Rank.LINEAR else Fraction(1)

    def subtracted_rank(self, level: Fraction, size: Fraction | int) -> Fraction:
        """Return what the statistic subtracts from a count of ``size`` scores."""
        if self is Rank.CEIL:
            return Fraction(conformal_rank(level, size))
        return (Fraction(1, 2) if self is Rank.CENTERED else 1 - level) * (size + 1)


class Correction(StrEnum):
    """What a search adds to the wanted rank, so that its noise costs no coverage."""

    _missing_ = classmethod(_refuse_name)

    MINIMAX = "minimax"
    """The smallest offsets that keep the level for any scores; earlier steps aim higher (Result F)."""
    MARGINAL = "marginal"
    """The mean of the largest noise (Result A)."""
    UNION = "union"
    """The buffer of the paper: except with a failure probability, no step accepts below its rank."""
    NONE = "none"
    """Nothing, and no promise."""

    @property
    def is_graded(self) -> bool:
        """Whether each step aims higher than the one after it."""
        return self is Correction.MINIMAX

    @property
    def keeps_the_level(self) -> bool:
        """Whether the level is proven on average over scores and noise."""
        return self in (Correction.MINIMAX, Correction.MARGINAL)


def round_level(alpha: float) -> Fraction:
    """Round ``alpha`` down to a multiple of 1e-6.

    The scaled rank statistic is then an integer.

    Parameters
    ----------
    alpha : float

    Returns
    -------
    Fraction
    """
    alpha = check_probability("alpha", alpha)
    exact, level = Fraction(alpha), Fraction(round(alpha * _LEVEL_UNIT), _LEVEL_UNIT)
    # a float such as 0.1 or 1 - 0.9 differs slightly from its decimal, which is the intended number
    if level - exact > Fraction(1, 2**52):
        level = Fraction(math.floor(exact * _LEVEL_UNIT), _LEVEL_UNIT)
    if level == 0:
        raise ValueError(f"alpha must be at least {1 / _LEVEL_UNIT:g}, got {alpha:g}; raise alpha")
    return level


def search_level(alpha: float, *, size_is_released: bool) -> Fraction:
    """Return the level of a search, less the charge for a released size, rounded down.

    Theory: Result G
    """
    alpha = check_probability("alpha", alpha)
    return round_level(alpha - size_tail(alpha) if size_is_released else alpha)


def rank_sensitivity(rank: str, alpha: float) -> Fraction:
    """Return how much one added or removed record changes the rank statistic.

    Parameters
    ----------
    rank : {"centered", "linear", "ceil"}
        C - (n + 1)/2, C - (1 - alpha)(n + 1), or C - ceil((1 - alpha)(n + 1)).
    alpha : float

    Returns
    -------
    Fraction
        1/2, max(alpha, 1 - alpha), or 1.

    Theory: Fact 2
    """
    return Rank(rank).sensitivity(round_level(alpha))


def conformal_rank(level: Fraction, n: Fraction | int) -> int:
    """Return ceil((1 - alpha)(n + 1)) in exact arithmetic."""
    return math.ceil((1 - level) * (n + 1))


@dataclass(frozen=True)
class Aim:
    """Where a search aims: the wanted rank and the offset above it.

    Offsets are in ranks and may be negative. They are those of the last step unless stated otherwise.

    Attributes
    ----------
    level : Fraction
        The miscoverage that the search uses.
    rank : Rank
    correction : Correction
    size : KnownSize, NoisySize or CountedSize
        What is known about the number of scores.
    count_noise : float
    steps : int
    """

    level: Fraction
    rank: Rank
    correction: Correction
    size: Size
    count_noise: float
    steps: int

    def __post_init__(self) -> None:
        needed = (Rank.CENTERED, Correction.MINIMAX)
        if not isinstance(self.size, KnownSize) and (self.rank, self.correction) != needed:
            raise ValueError(
                f"{type(self.size).__name__} needs rank='centered' and correction='minimax', got '{self.rank}' and "
                f"'{self.correction}'"
            )

    @property
    def wanted_rank(self) -> Fraction:
        """The rank of the quantile.

        It is an integer if the statistic or the buffer of the paper needs one.
        """
        size = Fraction(self.size.nominal_size)
        if self.rank is Rank.CEIL or (self.correction is Correction.UNION and self.rank is not Rank.LINEAR):
            return Fraction(conformal_rank(self.level, size))
        return (1 - self.level) * (size + 1)

    @property
    def rises(self) -> NDArray[np.float64]:
        """How far above the last step each step aims, in units of the noise."""
        return step_rises(self.steps) if self.correction.is_graded else np.zeros(self.steps)

    @property
    def mean_rise(self) -> float:
        """The mean aim of the steps above the last step, in ranks."""
        return self.count_noise * float(self.rises.mean())

    def offset(self, failure_probability: float | None = None) -> Fraction:
        """Return what the correction adds to the wanted rank."""
        alpha, noise, steps, size = float(self.level), self.count_noise, self.steps, self.size
        if self.correction is Correction.NONE:
            return Fraction(0)
        if isinstance(size, NoisySize):
            found = sized_offset(
                alpha, float(size.released), size.size_noise, noise, steps, size_unit=size.size_unit, graded=True
            )
        elif isinstance(size, CountedSize):
            found = counted_offset(alpha, size, noise, steps, graded=True)
        elif self.correction.keeps_the_level:
            least = float(size.n if size.least is None else size.least)
            graded = self.correction is Correction.MINIMAX
            found = graded_offset(alpha, least, noise, steps) if graded else marginal_offset(least, alpha, noise, steps)
        else:
            beta = failure_probability if failure_probability is not None else min(0.5, 1 / size.n)
            # the -1 of tau assumes an integer rank: a count below it lies at least 1 below it
            found = union_noise_buffer(noise, steps, beta) + (self.rank is Rank.LINEAR)
        return Fraction(found)

    def whole_offset(
        self,
        rank_buffer: float,
        failure_probability: float | None = None,
        release_confidence: float | None = None,
        covered: float = 0.0,
    ) -> Fraction:
        """Return the offset with the rank buffer, and at least that of one release.

        The buffer is rounded up to whole ranks. If ``release_confidence`` is given, one release covers the level
        ``covered`` at this confidence.

        Theory: Result I
        """
        offset = math.ceil(rank_buffer) + self.offset(failure_probability)
        if release_confidence is None:
            return offset
        if getattr(self.size, "least", None) is not None or not self.correction.keeps_the_level:
            raise ValueError(
                f"release_confidence={release_confidence:g} needs a known number of scores, not only a lower bound "
                "(least), and correction='minimax' or 'marginal'"
            )
        alone = release_offset(
            release_confidence,
            self.size,
            level=covered,
            alpha=float(self.level),
            count_noise=self.count_noise,
            steps=self.steps,
            graded=self.correction.is_graded,
        )
        return max(offset, Fraction(alone))

    def level_of_one_release(self, confidence: float, offset: float) -> float:
        """Return the level that one release with this offset covers at this confidence.

        Offsets fall with the size. So for a released size the offset is that of the largest number that could have been
        released. One lattice unit is subtracted for the integer noise.

        Theory: Result I
        """
        aimed = offset - _UNIT_SHARE * self.count_noise
        if isinstance(self.size, NoisySize):
            largest = float(self.size.released) + 2 * self.size.reach(confidence)
            aimed = float(replace(self, size=NoisySize(largest, self.size.size_noise)).offset())
        return release_level(
            confidence,
            self.size,
            alpha=float(self.level),
            offset=aimed,
            count_noise=self.count_noise,
            steps=self.steps,
            graded=self.correction.is_graded,
        )

    def typical_overshoot(self) -> float:
        """Return the mean aim above the wanted rank plus one standard deviation.

        It compares two ways to treat an unknown number of scores. All releases pay the mean, and a single release may
        pay the deviation too.
        """
        mean = float(self.offset())
        if isinstance(self.size, NoisySize):
            released, noise = float(self.size.released), self.size.size_noise
            around = (replace(self, size=replace(self.size, released=released + z * noise)) for z in _NODES)
            mean = sum(weight * float(aim.offset()) for weight, aim in zip(_WEIGHTS, around, strict=True))
        return mean + self.mean_rise + abs(0.5 - float(self.level)) * self.size.deviation

    def with_size(self, n: int) -> "Aim":
        """Return the aim of the same search if ``n`` scores are known or expected."""
        if isinstance(self.size, CountedSize):
            return replace(self, size=CountedSize(max(n, math.ceil(n / self.size.part)), self.size.part))
        known = KnownSize(n) if isinstance(self.size, KnownSize) else NoisySize(n, self.size.size_noise)
        return replace(self, size=known)
