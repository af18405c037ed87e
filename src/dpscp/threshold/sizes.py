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

*One release.* The other results are about averages over records and noise. Given a model that never used the n scored
records, let x be a level and B the number of these scores in the lower x part of their law. Then B is Binomial(n, x)
(with an atom there, at most that in law). The search accepts where C + Z_k >= R + r_k (rises r_k of zero, or those of
graded steps). So it returns a threshold with a count of at least R - M, or the end of the range. M is the largest Z_k -
r_k, and it is independent of the scores. If the release covers less than x, all scores it counts lie in that lower
part: B >= R - M.
Therefore

    P(this release covers less than x) <= P(B + M >= R),

for tied and for continuous scores; an atom of mass just below x attains it. This module computes it for what is known
about n, always rounded to the safe side.

Theory: Results G and I; Sizes of small parts that were counted
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
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
    real_number,
)
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.privacy.tradeoff import last_where
from dpscp.threshold.minimax import step_rises, worst_excess

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
# The law of noise and size together, in units of the noise: spacing and reach of its table.
_SPACING, _REACH = 1 / 96, 9.0
# The same for the noise alone.
_FINE = 1 / 1024
# Values of a mixture over n are rounded up to this part of the noise.
_GRID = 1 / 128
Numbers = NDArray[np.float64]


class Cases(NamedTuple):
    """Numbers of scores n in blocks of equal width, by their first value, and what the search aims at.

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
    """The number of scores is public: n, or at least ``least`` of a part of random size, which may be empty.

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
        """Return every number that the released one leaves possible, in blocks; the worst counts."""
        reach, swing = self.reach(1 - tail), abs(0.5 - alpha)
        low = max(0, math.ceil(self.released - reach))
        width = block_width(low, alpha, count_noise, alpha)
        sizes = np.arange(low, max(low, math.floor(self.released + reach)) + 1, width)
        slack = alpha * (width - 1) + swing * self.size_unit
        spread = swing * self.size_noise / count_noise
        return Cases(sizes, np.asarray((1 - alpha) * (sizes + 1.0)), None, slack, spread, SIZE_SHARE * tail)


Size = KnownSize | NoisySize | CountedSize


# ---- offsets of averages


def release_size(size: int, size_noise: float | LatticeNoise, source: IntegerSource) -> tuple[NoisySize, DpEvent]:
    """Release ``size`` with integer noise of standard deviation ``size_noise``; also return the cost.

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
    """Return the smallest number of any sign from which on ``holds`` is true, at most 1e-5 units too large."""
    good, bad = unit, -unit
    while not holds(good):
        good, bad = 2 * good, good
    while holds(bad):
        good, bad = bad, 2 * bad
    while good - bad > 1e-5 * max(unit, abs(good)):
        middle = (good + bad) / 2
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good


# ---- one release


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
    size : KnownSize, NoisySize or CountedSize
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

    >>> release_miss_bound(0.9, KnownSize(1000), alpha=0.1, offset=23.0, count_noise=5.0, steps=10) <= 0.05
    True

    Theory: Result I
    """
    tail = 1 - check_probability("confidence", confidence)
    search = _Search(alpha, count_noise, steps, size, tail, graded=graded)
    bounds = search.bounds(check_probability("level", level), real_number("offset", offset), range(search.count))
    return max(bounds)


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
        good = last_where(lambda level: search.holds(level, offset), good, bad, within=5e-5)
        if good == 0 or search.holds(good, offset, everywhere=True):
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
    while not search.holds(level, good, everywhere=True):
        good, bad = 2 * good, good
    while search.holds(level, bad):
        bad = 2 * bad - count_noise
    enough = good
    while True:
        near = 1e-3 * max(1.0, count_noise / 8)
        good = last_where(lambda more: search.holds(level, more), good, bad, within=near)
        if search.holds(level, good, everywhere=True):
            return good
        good, bad = enough, good


class _Search:
    """The noise of a search and the law of n, for several levels and offsets."""

    def __init__(self, alpha: float, count_noise: float, steps: int, size: Size, tail: float, *, graded: bool) -> None:
        self.count_noise, self.tail = check_positive("count_noise", count_noise), tail
        steps = check_count("steps", steps)
        self.rises = tuple(step_rises(steps).tolist()) if graded else (0.0,) * steps
        self.cases = size.cases(check_probability("alpha", alpha), self.count_noise, tail)
        self.count = len(self.cases.sizes) if self.cases.masses is None else 1
        # the worst blocks so far: they alone decide most comparisons
        self.hard = [self.count - 1]
        # other offsets at one level use the same law
        self.law = lru_cache(maxsize=16)(self._law)

    def holds(self, level: float, offset: float, *, everywhere: bool = False) -> bool:
        """Return whether the bound is small enough at the worst sizes so far, or at every size.

        If not at every size, the worst one is remembered.
        """
        which = range(self.count) if everywhere else self.hard
        bounds = self.bounds(level, offset, which)
        worst = max(range(len(bounds)), key=bounds.__getitem__)
        if everywhere and bounds[worst] > self.tail and worst not in self.hard:
            self.hard.append(worst)
        return bounds[worst] <= self.tail

    def bounds(self, level: float, offset: float, which: Iterable[int]) -> list[float]:
        """Return P(B + M >= target + offset) at some blocks, or over the law of n."""
        found = []
        for place in which:
            ranks, mass = self.law(level, place)
            gaps = (offset - self.cases.slack - ranks) / self.count_noise
            total = float(mass @ _noise_tail(gaps, self.rises, self.cases.spread))
            found.append(min(1.0, total + self.cases.charge + LEFT_OUT))
        return found

    def _law(self, level: float, place: int) -> tuple[Numbers, Numbers]:
        """Return the law of B minus its target at one block, or over all n."""
        cases, laws = self.cases, []
        blocks = slice(place, place + 1) if cases.masses is None else slice(None)
        for n, target in zip(cases.sizes[blocks].tolist(), cases.targets[blocks].tolist(), strict=True):
            counts, mass = binomial_law(n, level)
            laws.append((counts - target, mass))
        return laws[0] if cases.masses is None else _mixture(laws, cases.masses, _GRID * self.count_noise)


# ---- laws of counts and noise


def binomial_law(n: int, share: float) -> tuple[Numbers, Numbers]:
    """Return values and probabilities of Binomial(n, share), up to a mass of ``LEFT_OUT`` (Bernstein)."""
    reach = 8 * math.sqrt(n * share * (1 - share)) + 40
    low, high = max(0, math.floor(n * share - reach)), min(n, math.ceil(n * share + reach))
    counts = np.arange(low, high + 1, dtype=np.float64)
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


def block_width(n: float, alpha: float, count_noise: float, step: float) -> int:
    """Return the width of blocks of sizes near n; a further record adds at most ``step`` ranks."""
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
