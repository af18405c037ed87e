"""What is known about the number of scores, and the offsets that follow from it.

*A released size.* The centered statistic C - (n + 1)/2 has sensitivity 1/2 but needs n. If n is private, release n~ =
n + Y with integer noise, and compare the centered statistic with (1/2 - alpha)(n~ + 1) + c(n~). Relative to the true
target the offset is then c(n~) + (1/2 - alpha) Y. With V_N of Result F the miss rate given Y = y is at most

    alpha + W(c(n + y) + (1/2 - alpha) y) noise / (n + 1),    W(c) = V_N(c - A) - c in units of the noise.

V is flat on the left and has slope one on the right. So the noise of the size costs coverage if n is small, and c at n~
or at a lower confidence value of n is not valid. The rule: c~(n) solves E[W(c~ + (1/2 - alpha) Y)] <= 0 at a level
lower by ``size_tail``, and c(n~) = c~(n~ - reach) with P(Y > reach) <= ``size_tail``. If Y <= reach, this is at least
c~(n), because c~ does not rise with n, and W falls in c. Otherwise a miss costs at most 1, with that probability.

*A counted table.* Where each of n counted records was drawn with probability f, no size is released. The search
compares the centered statistic with (1/2 - alpha)(f n + 1) + c. Given that k records were drawn, this is the search of
Result F with the offset c + (1/2 - alpha)(f n - k). Given the assignment, the k drawn scores and the new one are
exchangeable, so the factor 1/(k + 1) of the miss rate is inside the mean over k. The offset c is valid if

    sum_k Bin(n, f)(k) W(c + (1/2 - alpha)(f n - k), alpha (k + 1)) / (k + 1) <= 0,    W(c, A) = V_N(c - A) - c.

W subtracts alpha (k + 1) at its start. So the left side is the mean of (V_N(l_k) - l_k) noise / (k + 1) less alpha,
with l_k = c - alpha (k + 1) + (1/2 - alpha)(f n - k). Numbers of similar size are never subtracted.

Theory: Result G; Sizes of small parts that were counted
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy import special, stats

from dpscp._base.checks import (
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    last_where,
    real_number,
)
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.threshold.minimax import worst_excess

# The part of alpha that is charged for a released size that is far too large.
_TAIL, _TAIL_SHARE = 1e-4, 0.01
# Lower ends of buckets of a standard normal. V(l) - l does not rise, so each bucket is charged at its lower end. The
# mass below the first end is 1e-33, which changes no float.
_ENDS = np.linspace(-12.0, 6.0, 1801)
_MASSES = np.diff(special.ndtr(_ENDS), append=1.0)
# Sizes n this close to each other, in standard deviations of the rank, share one bound.
_BLOCK = 0.02
# The mass that the sums leave out, plus their rounding error.
LEFT_OUT = 1e-12
# The part of 1 - confidence that is charged for a released size far from the true one.
SIZE_SHARE = 0.02
Numbers = NDArray[np.float64]


class Cases(NamedTuple):
    """Possible numbers of scores, in blocks of equal width, and their targets.

    Attributes
    ----------
    sizes : int array of shape (k,)
    targets : array of shape (k,)
        The target rank without the offset.
    masses : array of shape (k,), optional
        The law of the blocks. None: the worst block counts.
    slack : float
        Ranks that a further record of a block, and the lattice of a released size, may add to a count relative to its
        target.
    spread : float
        The deviation of the target by a released size, in units of the noise of the counts.
    charge : float
        The probability of all other n.
    """

    sizes: NDArray[np.int64]
    targets: Numbers
    masses: Numbers | None = None
    slack: float = 0.0
    spread: float = 0.0
    charge: float = 0.0


@dataclass(frozen=True)
class KnownSize:
    """The number of scores is public: n, or at least ``least`` of a random part.

    Parameters
    ----------
    n : int
    least : float, optional
        Default: n.
    """

    n: int
    least: float | None = None

    def __post_init__(self) -> None:
        check_count("n", self.n, minimum=0)
        if self.least is not None and check_nonnegative("least", self.least) > self.n:
            raise ValueError(f"least must be at most n, got {self.least:g} and {self.n}")

    @property
    def nominal_size(self) -> int:
        """The number of scores from which the target is computed."""
        return self.n

    @property
    def deviation(self) -> float:
        """The standard deviation of the nominal size around the true one."""
        return 0.0

    def cases(self, alpha: float, count_noise: float, tail: float) -> Cases:  # noqa: ARG002 (others need them)
        """Return the one number."""
        sizes = np.array([self.n])
        return Cases(sizes, np.asarray((1 - alpha) * (sizes + 1.0)))


@dataclass(frozen=True)
class CountedSize:
    """A secret random part of a table with a public number of records.

    The search uses the centered statistic and aims by the expected number of scores. Statements are averages over the
    assignment too.

    Parameters
    ----------
    n_records : int
        The public count.
    part : float
        The probability with which each record was drawn.
    """

    n_records: int
    part: float

    def __post_init__(self) -> None:
        check_count("n_records", self.n_records)
        check_fraction("part", self.part)

    @property
    def nominal_size(self) -> Fraction:
        """The number of scores from which the target is computed: the expected one."""
        return Fraction(self.part) * self.n_records

    @property
    def deviation(self) -> float:
        """The standard deviation of the nominal size around the true one."""
        return math.sqrt(self.n_records * self.part * (1 - self.part))

    def cases(self, alpha: float, count_noise: float, tail: float) -> Cases:  # noqa: ARG002 (others need it)
        """Return the binomial law of the number of scores, in blocks."""
        expected = float(self.nominal_size)
        width = block_width(expected, alpha, count_noise, 0.5)
        sizes, _ = binomial_law(self.n_records, self.part)
        starts = sizes[::width].astype(np.int64)
        masses = np.diff(stats.binom(self.n_records, self.part).cdf(np.append(starts, starts[-1] + width) - 1))
        targets = 0.5 * (starts + 1.0) + (0.5 - alpha) * (expected + 1)
        return Cases(starts, np.asarray(targets), masses, slack=0.5 * (width - 1), charge=LEFT_OUT)


@dataclass(frozen=True)
class NoisySize:
    """The number of scores was released once, with integer noise; it is public then.

    Parameters
    ----------
    released : float or Fraction
        The released number.
    size_noise : float
        The standard deviation of its noise.
    size_unit : float
        The lattice spacing of its noise, in ranks.
    """

    released: float | Fraction
    size_noise: float
    size_unit: float = 0.0

    def __post_init__(self) -> None:
        real_number("released", float(self.released))
        check_positive("size_noise", self.size_noise)
        check_nonnegative("size_unit", self.size_unit)

    @property
    def nominal_size(self) -> float | Fraction:
        """The number of scores from which the target is computed."""
        return self.released

    @property
    def deviation(self) -> float:
        """The standard deviation of the nominal size around the true one."""
        return self.size_noise

    def reach(self, confidence: float) -> float:
        """Return the largest error of the released number at this confidence.

        The remaining probability is charged to the bound.
        """
        charge = SIZE_SHARE * (1 - check_probability("confidence", confidence))
        return self.size_noise * float(-special.ndtri(charge / 2)) + self.size_unit

    def cases(self, alpha: float, count_noise: float, tail: float) -> Cases:
        """Return all possible numbers in blocks; the worst one counts."""
        reach, swing = self.reach(1 - tail), abs(0.5 - alpha)
        low = max(0, math.ceil(self.released - reach))
        width = block_width(low, alpha, count_noise, alpha)
        sizes = np.arange(low, max(low, math.floor(self.released + reach)) + 1, width)
        slack = alpha * (width - 1) + swing * self.size_unit
        spread = swing * self.size_noise / count_noise
        return Cases(sizes, np.asarray((1 - alpha) * (sizes + 1.0)), None, slack, spread, SIZE_SHARE * tail)


Size = KnownSize | NoisySize | CountedSize


def binomial_law(n: int, share: float) -> tuple[Numbers, Numbers]:
    """Return values and probabilities of Binomial(n, share).

    A mass of ``LEFT_OUT`` is left out (Bernstein).
    """
    reach = 8 * math.sqrt(n * share * (1 - share)) + 40
    low, high = max(0, math.floor(n * share - reach)), min(n, math.ceil(n * share + reach))
    counts = np.arange(low, high + 1, dtype=np.float64)
    if share in (0, 1):
        return counts, np.where(counts == n * share, 1.0, 0.0)
    # ratios of successive counts are exact to a few ulps at any n; a formula with factorials is not
    ratios = (n - counts[:-1]) / (counts[:-1] + 1) * (share / (1 - share))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    mass = np.exp(logs - logs.max())
    return counts, mass / mass.sum()


def block_width(n: float, alpha: float, count_noise: float, step: float) -> int:
    """Return the width of blocks near n; a record adds at most ``step`` ranks."""
    return max(1, math.floor(_BLOCK * math.hypot(math.sqrt(n * alpha * (1 - alpha)), count_noise) / step))


def release_size(size: int, size_noise: float | LatticeNoise, source: IntegerSource) -> tuple[NoisySize, DpEvent]:
    """Return ``size`` with integer noise of this standard deviation, and the cost.

    Privacy: one record changes the size by 1; the event is that of one release.

    Theory: Result G
    """
    if not isinstance(size_noise, LatticeNoise):
        check_positive("size_noise", size_noise)
    noise = LatticeNoise.of(size_noise, Fraction(1))
    (drawn,) = noise.sample(1, source)
    return NoisySize(size + Fraction(drawn, noise.scale), noise.count_noise, 1 / noise.scale), noise.event(1)


def size_tail(alpha: float) -> float:
    """Return the part of ``alpha`` that a released size costs.

    Parameters
    ----------
    alpha : float

    Returns
    -------
    float

    Theory: Result G
    """
    return min(_TAIL, _TAIL_SHARE * check_probability("alpha", alpha))


@lru_cache(maxsize=1024)
def sized_offset(
    alpha: float,
    released: float,
    size_noise: float,
    count_noise: float,
    steps: int,
    *,
    size_unit: float = 0.0,
    graded: bool = False,
) -> float:
    """Return c(n~), the offset of a search that aims by a released size n~.

    The miss rate is then at most alpha plus ``size_tail`` for every true n, conditionally on n.

    Parameters
    ----------
    alpha : float
        The level of the search, already lower by ``size_tail``.
    released : float
        n~.
    size_noise, count_noise : float
    steps : int
    size_unit : float
        The lattice spacing of the size's noise. In law, integer noise is at most normal noise moved by one unit.
    graded : bool
        Return the offset of the last step; earlier steps aim higher by ``step_rises``, as in ``private_quantile``.

    Returns
    -------
    float
        In ranks.

    Theory: Result G
    """
    alpha = check_probability("alpha", alpha)
    size_noise, count_noise = check_nonnegative("size_noise", size_noise), check_positive("count_noise", count_noise)
    reach = size_noise * float(-special.ndtri(size_tail(alpha))) + size_unit
    swing, surplus = abs(0.5 - alpha), alpha * (max(0.0, released - reach) + 1) / count_noise
    starts = swing * size_noise / count_noise * _ENDS - surplus

    def holds(c: float) -> bool:
        # the normal has mean zero, so E[V(l)] <= c is E[V(l) - l] <= surplus: no difference of similar numbers
        return float(_MASSES @ worst_excess(c + starts, steps, graded=graded)) <= surplus

    return _smallest(holds, 1.0) * count_noise + swing * size_unit


def counted_miss_bound(
    alpha: float, size: CountedSize, offset: float, count_noise: float, steps: int, *, graded: bool = False
) -> float:
    """Bound the miss rate of a search of a drawn part, for any scores.

    It is an average over the random assignment.

    Theory: Sizes of small parts that were counted
    """
    alpha, count_noise = check_probability("alpha", alpha), check_positive("count_noise", count_noise)
    sizes, masses = binomial_law(size.n_records, size.part)
    needed = real_number("offset", offset) + (0.5 - alpha) * (float(size.nominal_size) - sizes) - alpha * (sizes + 1)
    misses = count_noise * worst_excess(needed / count_noise, check_count("steps", steps), graded=graded) / (sizes + 1)
    return float(masses @ np.minimum(1.0, misses)) + LEFT_OUT


@lru_cache(maxsize=1024)
def counted_offset(alpha: float, size: CountedSize, count_noise: float, steps: int, *, graded: bool = False) -> float:
    """Return the smallest offset c of a search of a secret part of a counted table.

    The search compares the centered statistic with (1/2 - alpha)(f n + 1) + c, where f n is the expected size of the
    part. It then misses one more exchangeable score with probability at most alpha, over scores, noise and assignment.
    Ties are allowed.

    Parameters
    ----------
    alpha : float
    size : CountedSize
    count_noise : float
    steps : int
    graded : bool
        Return the offset of the last step; earlier steps aim higher by ``step_rises``.

    Returns
    -------
    float
        In ranks; it may be negative.

    >>> round(counted_offset(0.1, CountedSize(150, 0.5), 5.6, 6, graded=True), 1)
    0.5

    Theory: Sizes of small parts that were counted
    """

    def holds(c: float) -> bool:
        return counted_miss_bound(alpha, size, c, count_noise, steps, graded=graded) <= alpha

    return _smallest(holds, count_noise)


def _smallest(holds: Callable[[float], bool], unit: float) -> float:
    """Return the smallest number from which on ``holds`` is true.

    It may be negative, and is at most 1e-5 units too large.
    """
    good, bad = unit, -unit
    while not holds(good):
        good, bad = 2 * good, good
    while holds(bad):
        good, bad = bad, 2 * bad
    return last_where(holds, good, bad, within=1e-5 * unit)
