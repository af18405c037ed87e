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
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import special

from dpscp._base.checks import check_count, check_positive, check_probability, last_where, real_number
from dpscp.threshold.minimax import step_rises
from dpscp.threshold.sizes import LEFT_OUT, SIZE_SHARE, NoisySize, Numbers, Size, binomial_law

# The law of noise and size together, in units of the noise: spacing and reach of its table.
_SPACING, _REACH = 1 / 96, 9.0
# The same for the noise alone.
_FINE = 1 / 1024
# Buckets of the noise of a released size.
_BUCKETS = 64
# The precision of a level with a released size, in standard deviations of what a release covers.
_STRIDE = 1e-3
# Values of a mixture over n are rounded up to this part of the noise.
_GRID = 1 / 128


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

    >>> from dpscp.threshold import KnownSize
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

    The assumptions are those of ``release_miss_bound``. With a ``NoisySize`` the level may depend on the released
    number, and the confidence is an average over its noise.

    Parameters
    ----------
    confidence : float
    size, alpha, offset, count_noise, steps, graded
        See ``release_miss_bound``.

    Returns
    -------
    float
        Rounded down, by at most 5e-5 (1e-3 standard deviations with a ``NoisySize``); 0 if there is none.

    Theory: Result I
    """
    if isinstance(size, NoisySize):
        return _NoisyLevel(confidence, size, alpha, offset, count_noise, steps, graded=graded).largest()
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

    >>> from dpscp.threshold import KnownSize
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
        """Return whether the bound is small enough at the worst sizes or at all sizes.

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


class _NoisyLevel:
    """Levels x(n~) = 1 - alpha - q w(n~) that a release with noisy size n~ covers.

    w(m) is about the standard deviation of what a release covers, and q is the largest q_n of the n within reach of n~.
    Here q_n is the smallest q for which a search of n scores covers less than 1 - alpha - q w(n + Y) with at most the
    allowed probability, averaged over the noise Y of the size. For the true n the stated level is lower than that one
    unless |Y| exceeds its reach, which is charged.

    Theory: Result I
    """

    def __init__(
        self, confidence: float, size: NoisySize, alpha: float, offset: float, noise: float, steps: int, *, graded: bool
    ) -> None:
        self.tail = 1 - check_probability("confidence", confidence)
        self.alpha, self.offset = check_probability("alpha", alpha), real_number("offset", offset)
        self.size, self.noise = size, check_positive("count_noise", noise)
        rises = tuple(step_rises(check_count("steps", steps)).tolist()) if graded else (0.0,) * steps
        self.noise_tail = _largest_tail(np.arange(-_REACH, _REACH, _FINE), rises)
        self.noise_tail[0] = 1.0  # also used for everything below
        self.scatter = self.noise**2 + (0.5 - alpha) ** 2 * size.size_noise**2
        # the noise of the size in buckets, each charged at its worse ends
        reach = size.size_noise * np.linspace(-1, 1, _BUCKETS + 1) * (size.reach(confidence) / size.size_noise)
        self.ends = np.array([reach[:-1] - size.size_unit, reach[1:] + size.size_unit])
        self.masses = np.diff(special.ndtr(reach / size.size_noise))

    def largest(self) -> float:
        """Return the level that holds at every possible number of scores."""
        cases, q = self.size.cases(self.alpha, self.noise, self.tail), -_REACH
        last = max(int(cases.sizes[-1]), math.floor(self.size.released + self.size.reach(1 - self.tail)))
        blocks = [(n, after - n) for n, after in pairwise([*cases.sizes.tolist(), last + 1])]
        # the worst block is usually the last or the first: the others are then tried only once
        for n, width in (blocks[-1], *blocks[:-1]):
            if self._bound(n, width, q) > self.tail:
                stride, good = _STRIDE, q + _STRIDE
                while self._bound(n, width, good) > self.tail:
                    stride *= 2
                    q, good = good, good + stride
                q = last_where(lambda q: self._bound(n, width, q) <= self.tail, good, q, within=_STRIDE)  # noqa: B023
        return float(self._level(np.array(float(self.size.released)), q))

    def _level(self, released: Numbers, q: float) -> Numbers:
        m = np.maximum(released, 1.0)
        spread = np.sqrt(self.alpha * (1 - self.alpha) / m + self.scatter / m**2)
        return np.asarray(np.clip(1 - self.alpha - q * spread, 0.0, 1 - 1e-9))

    def _bound(self, n: int, width: int, q: float) -> float:
        """Bound the probability of covering too little at ``width`` sizes from n on."""
        levels = np.maximum(self._level(n + self.ends[0], q), self._level(n + width - 1 + self.ends[1], q))
        moved = np.min((0.5 - self.alpha) * self.ends, axis=0)
        targets = (1 - self.alpha) * (n + 1) - self.alpha * (width - 1) + self.offset + moved
        counts, mass = _binomial_laws(n, levels)
        places = np.floor(((targets[:, None] - counts) / self.noise + _REACH) / _FINE)
        tails = self.noise_tail[np.clip(places, 0, len(self.noise_tail) - 1).astype(np.int64)]
        failed = np.where(levels > 0, (mass * tails).sum(axis=1), 0.0)
        return float(self.masses @ failed) + SIZE_SHARE * self.tail + LEFT_OUT


def _binomial_laws(n: int, shares: Numbers) -> tuple[Numbers, Numbers]:
    """Return counts and their binomial probabilities for each share.

    A mass of ``LEFT_OUT`` is left out."""
    ends = np.array([shares.min(), shares.max()])
    reach = 8 * np.sqrt(n * np.max(np.where((ends - 0.5).prod() < 0, 0.25, ends * (1 - ends)))) + 40
    counts = np.arange(max(0, math.floor(n * ends[0] - reach)), min(n, math.ceil(n * ends[1] + reach)) + 1.0)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - counts[:-1]) / (counts[:-1] + 1)))])
    odds = np.log(np.maximum(shares, 1e-300)) - np.log1p(-shares)
    logs = logs + (counts - counts[0]) * odds[:, None]
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    return counts, mass / mass.sum(axis=1, keepdims=True)


def _mixture(laws: list[tuple[Numbers, Numbers]], weights: Numbers, spacing: float) -> tuple[Numbers, Numbers]:
    """Return the mixture of the laws on a grid, with every value rounded up."""
    low = min(values[0] for values, _ in laws)
    places = [np.ceil((values - low) / spacing).astype(np.int64) for values, _ in laws]
    total = np.zeros(max(int(place[-1]) for place in places) + 1)
    for place, (_, mass), weight in zip(places, laws, weights, strict=True):
        np.add.at(total, place, weight * mass)
    return low + spacing * np.arange(len(total)), total


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
