"""What one release covers: a bound on the chance of covering less than a level.

The other results are about averages over records and noise. Given a model that never used the n scored records, let x
be a level and B the number of these scores in the lower x part of their law. Then B is Binomial(n, x) (with an atom
there, at most that in law). The search accepts where C + Z_k >= R + r_k (rises r_k of zero, or those of graded steps).
So it returns a threshold with a count of at least R - M, or the end of the range. M is the largest Z_k - r_k, and it is
independent of the scores. If the release covers less than x, all scores it counts lie in that lower part: B >= R - M.
Therefore

    P(this release covers less than x) <= P(B + M >= R),

for tied and for continuous scores; an atom of mass just below x attains it. This module computes it for what is known
about n, always rounded to the safe side.

Theory: Result I
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpscp._base.checks import (
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    real_number,
)
from dpscp.privacy.tradeoff import last_where
from dpscp.threshold.minimax import step_rises

# Sizes n this close to each other, in standard deviations of the rank, share one bound.
_BLOCK = 0.02
# The mass that the sums leave out, plus their rounding error.
LEFT_OUT = 1e-12
# The part of 1 - confidence that is charged for a released size far from the true one.
_SIZE_SHARE = 0.02
# The law of noise and size together, in units of the noise: spacing and reach of its table.
_SPACING, _REACH = 1 / 96, 9.0
# The same for the noise alone.
_FINE = 1 / 1024
# Values of a mixture over n are rounded up to this part of the noise.
_GRID = 1 / 128
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class _Blocks:
    """Values of n in blocks of ``width``, by their first value.

    ``masses`` are summed; None if the worst block counts.
    """

    starts: NDArray[np.int64]
    width: int
    masses: Numbers | None
    charge: float

    @classmethod
    def of(cls, low: int, high: int, width: int, charge: float) -> "_Blocks":
        return cls(np.arange(low, high + 1, width), width, None, charge)


class _LinearRank:
    """The rank of a search that subtracts 1 - alpha of its number of scores: nothing of the size is uncertain."""

    def rank_deviation(self, alpha: float) -> tuple[float, float]:  # noqa: ARG002 (others need it)
        """Return 0: no noise of the size enters the rank."""
        return 0.0, 0.0

    def target(self, alpha: float, n: int) -> float:
        """Return the target rank of a search of n scores, without the offset."""
        return (1 - alpha) * (n + 1)

    def step(self, alpha: float) -> float:
        """Return how much one more score can raise a count relative to the target."""
        return alpha


@dataclass(frozen=True)
class KnownSize(_LinearRank):
    """The number of scores is public: n.

    Parameters
    ----------
    n : int
    """

    n: int

    def __post_init__(self) -> None:
        check_count("n", self.n, minimum=0)

    @property
    def nominal_size(self) -> int:
        """The number of scores from which the target is computed."""
        return self.n

    @property
    def deviation(self) -> float:
        """The standard deviation of the nominal size around the true one."""
        return 0.0

    def blocks(self, alpha: float, count_noise: float, tail: float) -> _Blocks:  # noqa: ARG002 (others need them)
        """Return the one value."""
        return _Blocks.of(self.n, self.n, 1, 0.0)


@dataclass(frozen=True)
class DrawnSize(_LinearRank):
    """Each of ``n_records`` was drawn with probability ``part``.

    The search uses the linear statistic, which needs no n.

    Parameters
    ----------
    n_records : int
    part : float
    """

    n_records: int
    part: float

    def __post_init__(self) -> None:
        check_count("n_records", self.n_records)
        check_fraction("part", self.part)

    def blocks(self, alpha: float, count_noise: float, tail: float) -> _Blocks:  # noqa: ARG002 (others need it)
        """Return the binomial law of n."""
        return _drawn_blocks(self, alpha, count_noise)


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

    @property
    def law(self) -> tuple[Numbers, Numbers]:
        """Numbers of scores and their probabilities, up to a mass of ``LEFT_OUT``."""
        return _binomial(self.n_records, self.part)

    def blocks(self, alpha: float, count_noise: float, tail: float) -> _Blocks:  # noqa: ARG002 (others need it)
        """Return the binomial law of the number of scores."""
        return _drawn_blocks(self, alpha, count_noise)

    def rank_deviation(self, alpha: float) -> tuple[float, float]:  # noqa: ARG002 (others need it)
        """Return 0: the law of the size is in the blocks."""
        return 0.0, 0.0

    def target(self, alpha: float, n: int) -> float:
        """Return the target rank of a search of n scores, without the offset."""
        return 0.5 * (n + 1) + (0.5 - alpha) * (float(self.nominal_size) + 1)

    def step(self, alpha: float) -> float:  # noqa: ARG002 (others need it)
        """Return how much one more score can raise a count relative to the target."""
        return 0.5


@dataclass(frozen=True)
class NoisySize:
    """The number of scores was released once, with integer noise.

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
        return self._reach(_SIZE_SHARE * (1 - check_probability("confidence", confidence)))

    def _reach(self, tail: float) -> float:
        return self.size_noise * float(-special.ndtri(tail / 2)) + self.size_unit

    def blocks(self, alpha: float, count_noise: float, tail: float) -> _Blocks:
        """Return every n that the released number leaves possible; the worst counts."""
        charge = _SIZE_SHARE * tail
        low = max(0, math.ceil(self.released - self._reach(charge)))
        high = max(low, math.floor(self.released + self._reach(charge)))
        return _Blocks.of(low, high, _block_width(low, alpha, count_noise, alpha), charge)

    def rank_deviation(self, alpha: float) -> tuple[float, float]:
        """Return deviation and lattice spacing of (1/2 - alpha) times the size's noise."""
        swing = abs(0.5 - alpha)
        return swing * self.size_noise, swing * self.size_unit

    def target(self, alpha: float, n: int) -> float:
        """Return the target rank of a search of n scores, without offset and size noise."""
        return (1 - alpha) * (n + 1)

    def step(self, alpha: float) -> float:
        """Return how much one more score can raise a count relative to the target."""
        return alpha


Size = KnownSize | DrawnSize | NoisySize | CountedSize


def release_miss_bound(
    level: float,
    size: Size,
    *,
    alpha: float,
    offset: float,
    count_noise: float,
    steps: int,
    confidence: float = 0.95,
    graded: bool = False,
) -> float:
    """Return a bound on the probability that one release covers less than ``level``.

    The probability is over scores and noise. The search accepts where a noisy count reaches (1 - alpha)(n + 1) +
    ``offset``.

    Parameters
    ----------
    level : float
    size : KnownSize, DrawnSize, NoisySize or CountedSize
    alpha : float
    offset : float
        With a ``NoisySize``, the smallest offset of any released number.
    count_noise : float
        The standard deviation of normal noise. For integer noise of spacing u, subtract u from the offset.
    steps : int
    confidence : float
        Decides what is charged for a ``NoisySize``.
    graded : bool
        The offset is that of the last step; earlier steps aim higher by ``step_rises``, as in ``private_quantile``.

    Returns
    -------
    float

    Assumes: given the model, the scored records are independent draws of one law, and the model has not used them.

    >>> size = KnownSize(1000)
    >>> release_miss_bound(0.9, size, alpha=0.1, offset=23.0, count_noise=5.0, steps=10) <= 0.05
    True

    Theory: Result I
    """
    tail = 1 - check_probability("confidence", confidence)
    search = _Search(alpha, count_noise, steps, size, tail, graded=graded)
    return search.miss_bound(check_probability("level", level), real_number("offset", offset))


@lru_cache(maxsize=256)
def release_level(
    confidence: float, size: Size, *, alpha: float, offset: float, count_noise: float, steps: int, graded: bool = False
) -> float:
    """Return the largest level that a release covers with this confidence.

    The assumptions are those of ``release_miss_bound``.

    Parameters
    ----------
    confidence : float
    size, alpha, offset, count_noise, steps, graded
        See ``release_miss_bound``.

    Returns
    -------
    float
        Rounded down, by at most 5e-5; 0 if there is none.

    Theory: Result I
    """
    tail = 1 - check_probability("confidence", confidence)
    search, offset = _Search(alpha, count_noise, steps, size, tail, graded=graded), real_number("offset", offset)
    good, bad = 0.0, 1.0
    while good < bad:
        good = last_where(lambda level: search.holds(level, offset, tail), good, bad, within=5e-5)
        if good == 0 or search.holds_for_all(good, offset, tail):
            break
        good, bad = 0.0, good
    return good


@lru_cache(maxsize=256)
def release_offset(
    confidence: float, size: Size, *, level: float, alpha: float, count_noise: float, steps: int, graded: bool = False
) -> float:
    """Return the smallest offset with which a release covers ``level``.

    It does so with probability ``confidence``. The assumptions are those of ``release_miss_bound``. With a
    ``NoisySize`` the result holds for every released number, so it may depend on it.

    Parameters
    ----------
    confidence, level : float
    size, alpha, count_noise, steps, graded
        See ``release_miss_bound``.

    Returns
    -------
    float
        In ranks, rounded up; it may be negative.

    >>> [round(release_offset(0.95, KnownSize(n), level=0.9, alpha=0.1, count_noise=5, steps=10)) for n in (100, 1000)]
    [14, 23]

    Theory: Result I
    """
    tail = 1 - check_probability("confidence", confidence)
    level = check_probability("level", level)
    search = _Search(alpha, count_noise, steps, size, tail, graded=graded)
    good, bad = 1.0, 0.0
    while not search.holds_for_all(level, good, tail):
        good, bad = 2 * good, good
    while search.holds(level, bad, tail):
        bad = 2 * bad - count_noise
    enough = good
    while True:
        near = 1e-3 * max(1.0, count_noise / 8)
        good = last_where(lambda more: search.holds(level, more, tail), good, bad, within=near)
        if search.holds_for_all(level, good, tail):
            return good
        good, bad = enough, good


class _Search:
    """The noise of a search and the law of n, for several levels and offsets."""

    def __init__(self, alpha: float, count_noise: float, steps: int, size: Size, tail: float, *, graded: bool) -> None:
        self.alpha, self.size = check_probability("alpha", alpha), size
        self.count_noise = check_positive("count_noise", count_noise)
        steps = check_count("steps", steps)
        self.rises = tuple(step_rises(steps).tolist()) if graded else (0.0,) * steps
        spread, self.unit = size.rank_deviation(self.alpha)
        self.spread = spread / self.count_noise
        self.sizes = size.blocks(self.alpha, self.count_noise, tail)
        self._laws: dict[tuple[float, int], tuple[Numbers, Numbers]] = {}
        self._count = 1 if self.sizes.masses is not None else len(self.sizes.starts)
        # the worst blocks so far: they alone decide most comparisons
        self._hard = [self._count - 1]

    def miss_bound(self, level: float, offset: float) -> float:
        """Return P(B + M >= target + offset), summed over n or at the worst n."""
        return max(self._bounds(level, offset, range(self._count)))

    def holds(self, level: float, offset: float, tail: float) -> bool:
        """Return whether the bound is at most ``tail`` at the worst sizes so far."""
        return max(self._bounds(level, offset, self._hard)) <= tail

    def holds_for_all(self, level: float, offset: float, tail: float) -> bool:
        """Return whether the bound is at most ``tail`` at every size.

        If not, the worst size is remembered.
        """
        bounds = self._bounds(level, offset, range(self._count))
        worst = int(np.argmax(bounds))
        if bounds[worst] > tail and worst not in self._hard:
            self._hard.append(worst)
        return bounds[worst] <= tail

    def _bounds(self, level: float, offset: float, which: Iterable[int]) -> list[float]:
        # the first n stands for its block: each further record raises B minus its target by at most one step
        needed = offset - self.unit - self.size.step(self.alpha) * (self.sizes.width - 1)
        found = []
        for place in which:
            ranks, mass = self._ranks(level, place)
            total = float(mass @ _noise_tail((needed - ranks) / self.count_noise, self.rises, self.spread))
            found.append(min(1.0, total + self.sizes.charge + LEFT_OUT))
        return found

    def _ranks(self, level: float, place: int) -> tuple[Numbers, Numbers]:
        """Return the law of B minus its target at one block, or over all n."""
        if (level, place) not in self._laws:
            self._laws = {key: law for key, law in self._laws.items() if key[0] == level}
            self._laws[level, place] = self._compute_law(level, place)
        return self._laws[level, place]

    def _compute_law(self, level: float, place: int) -> tuple[Numbers, Numbers]:
        if self.sizes.masses is None:
            return self._at(int(self.sizes.starts[place]), level)
        laws = [self._at(int(n), level) for n in self.sizes.starts]
        return _mixture(laws, self.sizes.masses, _GRID * self.count_noise)

    def _at(self, n: int, level: float) -> tuple[Numbers, Numbers]:
        counts, mass = _binomial(n, level)
        return counts - self.size.target(self.alpha, n), mass


def _binomial(n: int, share: float) -> tuple[Numbers, Numbers]:
    """Return values and probabilities of Binomial(n, share), up to ``LEFT_OUT``."""
    counts = np.arange(*_window(n, share), dtype=np.float64)
    if share == 1:
        return counts, np.where(counts == n, 1.0, 0.0)
    # ratios of successive counts are exact to a few ulps at any n; a formula with factorials is not
    ratios = (n - counts[:-1]) / (counts[:-1] + 1) * (share / (1 - share))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    mass = np.exp(logs - logs.max())
    return counts, mass / mass.sum()


def _mixture(laws: list[tuple[Numbers, Numbers]], weights: Numbers, spacing: float) -> tuple[Numbers, Numbers]:
    """Return the mixture of the laws on a grid, with every value rounded up."""
    low = min(values[0] for values, _ in laws)
    places = [np.ceil((values - low) / spacing).astype(np.int64) for values, _ in laws]
    total = np.zeros(max(int(place[-1]) for place in places) + 1)
    for place, (_, mass), weight in zip(places, laws, weights, strict=True):
        np.add.at(total, place, weight * mass)
    return low + spacing * np.arange(len(total)), total


def _window(n: int, share: float) -> tuple[int, int]:
    """Return the range of Binomial(n, share) up to a mass of 1e-12 (Bernstein)."""
    reach = 8 * math.sqrt(n * share * (1 - share)) + 40
    return max(0, math.floor(n * share - reach)), min(n, math.ceil(n * share + reach)) + 1


def _drawn_blocks(size: DrawnSize | CountedSize, alpha: float, count_noise: float) -> _Blocks:
    """Return the law of the number of drawn records, in blocks."""
    low, high = _window(size.n_records, size.part)
    width = _block_width(size.n_records * size.part, alpha, count_noise, size.step(alpha))
    starts = np.arange(low, high, width)
    masses = np.diff(stats.binom(size.n_records, size.part).cdf(np.append(starts, starts[-1] + width) - 1))
    return _Blocks(starts, width, masses, LEFT_OUT)


def _block_width(n: float, alpha: float, count_noise: float, step: float) -> int:
    return max(1, math.floor(_BLOCK * math.hypot(math.sqrt(n * alpha * (1 - alpha)), count_noise) / step))


def _noise_tail(t: Numbers, rises: tuple[float, ...], spread: float) -> Numbers:
    """Return an upper bound of P(max of normals, less rises, + spread * N >= t)."""
    if spread == 0:
        return _largest_tail(t, rises)
    table = _tail_table(rises, spread)
    place = np.floor((t / (1 + spread) + _REACH) / _SPACING)
    return np.asarray(table[np.clip(place, 0, len(table) - 1).astype(np.int64)])


def _largest_tail(t: Numbers, rises: tuple[float, ...]) -> Numbers:
    """Return P(some standard normal reaches ``t`` plus its rise)."""
    return np.asarray(-np.expm1(sum(count * special.log_ndtr(t + rise) for rise, count in Counter(rises).items())))


@lru_cache(maxsize=64)
def _tail_table(rises: tuple[float, ...], spread: float) -> Numbers:
    """Return that probability on a grid; between points use the lower one."""
    points = (1 + spread) * (np.arange(round(2 * _REACH / _SPACING) + 1) * _SPACING - _REACH)
    ends = np.linspace(-_REACH, _REACH, 401)
    # each bucket of N is charged at its upper end, and the mass beyond the last end in full
    masses = np.diff(special.ndtr(ends), prepend=0.0, append=1.0)
    fine = _largest_tail(np.arange(-_REACH, _REACH, _FINE), rises)
    fine[0] = 1.0
    lower = np.floor((points[:, None] - spread * ends + _REACH) / _FINE)
    table = fine[np.clip(lower, 0, len(fine) - 1).astype(np.int64)] @ masses[:-1] + masses[-1]
    table[0] = 1.0  # also used for everything below
    return np.asarray(np.minimum(1.0, table))
