"""Exact integer noise for private statistics.

* ``sample_discrete_gaussian``: the algorithm of Canonne, Kamath and Steinke (2020). Every decision compares integers
  drawn from operating-system entropy. No floating-point number takes part.
* ``LatticeNoise``: integer noise for a statistic of rational sensitivity. The object that the accountant charged is the
  one that is sampled from. It is passed on and never built a second time.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_positive
from dpscp.privacy.events import DpEvent, discrete_gaussian_event
from dpscp.privacy.random_streams import secure_bytes

# At this scale, rounding the noise scale up to an integer costs less than 0.03 %, and all products of the sampler fit
# in 64 bits.
_LATTICE_SCALE = 4096
_INT64_SCALE = 2**15
# Integers below this are drawn from one word of 64 bits each.
_SMALL_BOUND = 2**62
# Words of 64 bits that are drawn at once: a draw of noise needs a few hundred, a few at a time.
_WORDS_AT_ONCE = 256
# Up to so many draws, a loop over Python integers takes a fifth of the time of operations on arrays.
_FEW = 32


class IntegerSource:
    """Uniform integers from operating-system entropy, or from a seed (not private).

    Parameters
    ----------
    random_state : int, optional
        A seed for tests; warns.
    """

    def __init__(self, random_state: int | None = None) -> None:
        self._bytes = secure_bytes(random_state)
        self._drawn: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._as_integers: list[int] = []  # the same words, once a few are drawn
        self._used = 0

    def below(self, bound: int, size: int) -> NDArray[Any]:
        """Return independent integers, exactly uniform on 0 .. bound - 1, by rejection.

        Parameters
        ----------
        bound, size : int

        Returns
        -------
        ndarray, shape (size,)
        """
        if bound <= _SMALL_BOUND:
            return self._small(bound, size)
        width = (bound.bit_length() + 7) // 8
        mask = (1 << bound.bit_length()) - 1
        drawn = np.empty(size, dtype=object)
        for i in range(size):
            value = bound
            while value >= bound:
                value = int.from_bytes(self._bytes(width), "little") & mask
            drawn[i] = value
        return drawn

    def _small(self, bound: int, size: int) -> NDArray[np.int64]:
        most = (1 << (bound - 1).bit_length()) - 1
        mask = np.uint64(most)
        drawn = (self._words(size) & mask).view(np.int64)
        if most < bound:  # a power of two: nothing to reject
            return drawn
        todo = (drawn >= bound).nonzero()[0]
        while todo.size:
            drawn[todo] = self._words(todo.size) & mask
            todo = todo[drawn[todo] >= bound]
        return drawn

    def few(self, bound: int, size: int) -> list[int]:
        """Return what ``below`` returns, of the same words, as Python integers."""
        if bound == 1:
            self._take(size)
            return [0] * size
        mask = (1 << (bound - 1).bit_length()) - 1
        drawn = [word & mask for word in self._few_words(size)]
        if mask < bound:  # a power of two: nothing to reject
            return drawn
        while todo := [place for place, value in enumerate(drawn) if value >= bound]:
            for place, word in zip(todo, self._few_words(len(todo)), strict=True):
                drawn[place] = word & mask
        return drawn

    def _words(self, count: int) -> NDArray[np.uint64]:
        """Return the next words; each one is used once."""
        first = self._take(count)
        return self._drawn[first : first + count]

    def _few_words(self, count: int) -> list[int]:
        """Return the next words as Python integers."""
        first = self._take(count)
        if not self._as_integers:
            self._drawn, self._used, first = self._drawn[first:], count, 0
            self._as_integers = self._drawn.tolist()
        return self._as_integers[first : first + count]

    def _take(self, count: int) -> int:
        """Use the next words, and return where they begin in ``_drawn``."""
        if count > self._drawn.size - self._used:
            fresh = np.frombuffer(self._bytes(8 * max(count, _WORDS_AT_ONCE)), dtype="<u8")
            self._drawn, self._used = np.concatenate([self._drawn[self._used :], fresh]), 0
            self._as_integers = []
        self._used += count
        return self._used - count

    def bernoulli(self, numerator: Any, denominator: int) -> NDArray[np.bool_]:
        """Return independent Bernoulli(numerator / denominator) draws.

        Parameters
        ----------
        numerator : ndarray of int, shape (k,)
        denominator : int

        Returns
        -------
        ndarray of bool, shape (k,)
        """
        hits: NDArray[np.bool_] = np.asarray(self.below(denominator, len(numerator)) < numerator, dtype=bool)
        return hits

    def bernoulli_exp(self, numerator: Any, denominator: int) -> NDArray[np.bool_]:
        """Return independent Bernoulli(exp(-numerator / denominator)) draws.

        Uses the series of von Neumann. Parameters and result are those of ``bernoulli``.
        """
        if len(numerator) <= _FEW and denominator <= _SMALL_BOUND:
            return np.array(self.few_bernoulli_exp(numerator.tolist(), denominator), dtype=bool)
        alive = np.ones(len(numerator), dtype=bool)
        whole, rest = numerator // denominator, numerator % denominator
        # a Bernoulli(exp(-k)) draw is true if k draws of Bernoulli(exp(-1)) are true
        pending = (whole > 0).nonzero()[0]
        left = whole[pending]
        while pending.size:
            won = self._exp_below_one(np.ones(pending.size, dtype=np.int64), 1)
            alive[pending[~won]] = False
            left = left - 1
            keep = won & np.asarray(left > 0, dtype=bool)
            pending, left = pending[keep], left[keep]
        last = alive.nonzero()[0]
        alive[last] = self._exp_below_one(rest[last], denominator)
        return alive

    def few_bernoulli_exp(self, numerators: list[int], denominator: int) -> list[bool]:
        """Return the same for a few, of the same words."""
        alive = [True] * len(numerators)
        pending = [(place, n // denominator) for place, n in enumerate(numerators) if n >= denominator]
        while pending:
            won = self._few_exp_below_one([1] * len(pending), 1)
            for (place, _), is_won in zip(pending, won, strict=True):
                alive[place] = is_won
            pending = [(place, left - 1) for place, left in pending if left > 1 and alive[place]]
        last = [place for place, is_alive in enumerate(alive) if is_alive]
        if denominator == 1:  # exp(-0): always true, of two words each
            self._take(len(last))
            self._take(len(last))
            return alive
        rest = self._few_exp_below_one([numerators[place] % denominator for place in last], denominator)
        for place, is_won in zip(last, rest, strict=True):
            alive[place] = is_won
        return alive

    def _exp_below_one(self, numerator: Any, denominator: int) -> NDArray[np.bool_]:
        """Return Bernoulli(exp(-g)) draws for 0 <= g <= 1.

        Draw Bernoulli(g / k) for k = 1, 2, ... until one fails. The result is true if that k is odd.
        """
        if len(numerator) <= _FEW and denominator <= _SMALL_BOUND:
            return np.array(self._few_exp_below_one(numerator.tolist(), denominator), dtype=bool)
        result = np.zeros(len(numerator), dtype=bool)
        running = np.arange(len(numerator))
        k = 1
        while running.size:
            # Bernoulli(g / k) is Bernoulli(g) and, independently, Bernoulli(1 / k)
            again = self.bernoulli(numerator[running], denominator) & (self.below(k, running.size) == 0)
            result[running[~again]] = k % 2 == 1
            running = running[again]
            k += 1
        return result

    def _few_exp_below_one(self, numerators: list[int], denominator: int) -> list[bool]:
        """Return the same for a few: words are used in the same order, so that a seed gives the same draws."""
        result = [False] * len(numerators)
        running, k = list(range(len(numerators))), 1
        while running:
            draws, coins = self.few(denominator, len(running)), self.few(k, len(running))
            again, is_odd = [], k % 2 == 1
            for place, draw, coin in zip(running, draws, coins, strict=True):
                if coin == 0 and draw < numerators[place]:
                    again.append(place)
                else:
                    result[place] = is_odd
            running, k = again, k + 1
        return result


def sample_discrete_gaussian(sigma: int, size: int, source: IntegerSource) -> NDArray[Any]:
    """Return exact draws of the discrete Gaussian.

    P(x) is proportional to exp(-x^2 / (2 sigma^2)) on the integers. Only integer arithmetic is used: 64-bit integers
    where the products fit, Python integers otherwise.

    Parameters
    ----------
    sigma : int
        The noise scale.
    size : int
    source : IntegerSource

    Returns
    -------
    ndarray of int64 or of Python integers, shape (size,)

    Paper: Canonne, Kamath and Steinke (2020), The Discrete Gaussian for Differential Privacy
    """
    sigma = check_count("sigma", sigma)
    if size <= _FEW and sigma < _INT64_SCALE:
        return np.array(_few_gaussian(sigma, size, source), dtype=np.int64)
    dtype: Any = np.int64 if sigma < _INT64_SCALE else object
    t = sigma + 1
    scale = sigma * t
    drawn = np.empty(size, dtype=dtype)
    todo = np.arange(size)
    while todo.size:
        candidate = _discrete_laplace(t, todo.size, source).astype(dtype)
        # accept with probability exp(-(|x| t - sigma^2)^2 / (2 sigma^2 t^2)), the square split at multiples of
        # sigma * t so that every product stays small
        gap = abs(abs(candidate) * t - sigma * sigma)
        whole, rest = gap // scale, gap % scale
        accepted = source.bernoulli_exp(whole * whole, 2)
        index = accepted.nonzero()[0]
        index = index[source.bernoulli_exp(whole[index] * rest[index], scale)]
        index = index[source.bernoulli_exp(rest[index] * rest[index], 2 * scale * scale)]
        drawn[todo[index]] = candidate[index]
        todo = np.delete(todo, index)
    return drawn


def _few_gaussian(sigma: int, size: int, source: IntegerSource) -> list[int]:
    """Return the same for a few, of the same words."""
    t, scale = sigma + 1, sigma * (sigma + 1)
    drawn, todo = [0] * size, list(range(size))
    while todo:
        candidates = _few_laplace(t, len(todo), source)
        parts = [divmod(abs(abs(x) * t - sigma * sigma), scale) for x in candidates]
        index = list(range(len(todo)))
        for numerator, denominator in (
            ([whole * whole for whole, _ in parts], 2),
            ([whole * rest for whole, rest in parts], scale),
            ([rest * rest for _, rest in parts], 2 * scale * scale),
        ):
            hits = source.few_bernoulli_exp([numerator[i] for i in index], denominator)
            index = [i for i, is_hit in zip(index, hits, strict=True) if is_hit]
        for i in index:
            drawn[todo[i]] = candidates[i]
        done = {todo[i] for i in index}
        todo = [place for place in todo if place not in done]
    return drawn


def _few_laplace(t: int, size: int, source: IntegerSource) -> list[int]:
    """Return what ``_discrete_laplace`` returns, of the same words, as Python integers."""
    drawn, todo = [0] * size, list(range(size))
    while todo:
        offset = source.few(t, len(todo))
        kept = [i for i, is_hit in enumerate(source.few_bernoulli_exp(offset, t)) if is_hit]
        magnitude, running = [offset[i] for i in kept], list(range(len(kept)))
        while running:
            hits = source.few_bernoulli_exp([1] * len(running), 1)
            running = [i for i, is_hit in zip(running, hits, strict=True) if is_hit]
            for i in running:
                magnitude[i] += t
        done = set()
        for i, size_of, is_negative in zip(kept, magnitude, source.few(2, len(kept)), strict=True):
            if not (is_negative and size_of == 0):
                drawn[todo[i]] = -size_of if is_negative else size_of
                done.add(todo[i])
        todo = [place for place in todo if place not in done]
    return drawn


def _discrete_laplace(t: int, size: int, source: IntegerSource) -> NDArray[Any]:
    """Return exact draws with P(x) proportional to exp(-|x| / t)."""
    drawn = np.zeros(size, dtype=np.int64 if t <= _INT64_SCALE else object)
    todo = np.arange(size)
    while todo.size:
        offset = source.below(t, todo.size)
        kept = source.bernoulli_exp(offset, t).nonzero()[0]
        blocks = np.zeros(kept.size, dtype=np.int64)
        running = np.arange(kept.size)
        while running.size:
            running = running[source.bernoulli_exp(np.ones(running.size, dtype=np.int64), 1)]
            blocks[running] += 1
        magnitude = offset[kept].astype(drawn.dtype) + t * blocks.astype(drawn.dtype)
        negative = source.below(2, kept.size) == 1
        # zero would be drawn twice as often, once for each sign: reject one of them
        kept_again = ~(negative & np.asarray(magnitude == 0, dtype=bool))
        chosen = todo[kept[kept_again]]
        drawn[chosen] = np.where(negative, -magnitude, magnitude)[kept_again]
        todo = np.delete(todo, kept[kept_again])
    return drawn


@dataclass(frozen=True)
class LatticeNoise:
    """Integer noise for a statistic of rational sensitivity.

    Multiply the statistic by ``scale`` and add the noise.

    Attributes
    ----------
    scale : int
    sigma : int
        The noise scale on the integers. It is never below the requested one.
    sensitivity : int
        The sensitivity of the scaled statistic.

    Privacy: ``event(count)`` for ``count`` releases.
    """

    scale: int
    sigma: int
    sensitivity: int

    @classmethod
    def of(cls, count_noise: "float | LatticeNoise", sensitivity: Fraction) -> "LatticeNoise":
        """Return a ``LatticeNoise`` as it is, or make one of this standard deviation."""
        if not isinstance(count_noise, LatticeNoise):
            return lattice_noise(count_noise, sensitivity)
        if count_noise.scale * sensitivity != count_noise.sensitivity:
            made_for = Fraction(count_noise.sensitivity, count_noise.scale)
            raise ValueError(
                f"count_noise was made for a statistic of sensitivity {made_for}, this one has {sensitivity}; "
                "call lattice_noise(count_noise, sensitivity) for this statistic"
            )
        return count_noise

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise, in units of the statistic."""
        return self.sigma / self.scale

    def event(self, count: int) -> DpEvent:
        """Return the event of ``count`` releases."""
        return discrete_gaussian_event(self.sigma, self.sensitivity, count)

    def sample(self, size: int, source: IntegerSource) -> list[int]:
        """Return ``size`` draws, in units of 1 / scale."""
        return [int(z) for z in sample_discrete_gaussian(self.sigma, size, source)]


def lattice_noise(count_noise: float, sensitivity: float | Fraction = 1, multiple: int = 1) -> LatticeNoise:
    """Return integer noise of standard deviation ``count_noise``.

    Parameters
    ----------
    count_noise : float
        It is rounded up by less than 0.03 %.
    sensitivity : float or Fraction
    multiple : int
        The scale is a multiple of it: a statistic in units of 1 / ``multiple`` is an integer on this lattice.

    Returns
    -------
    LatticeNoise

    >>> noise = lattice_noise(40, Fraction(1, 2))
    >>> noise.sensitivity / noise.scale, noise.count_noise
    (0.5, 40.0)
    """
    count_noise = check_positive("count_noise", count_noise)
    exact = sensitivity_fraction(sensitivity)
    base = math.lcm(exact.denominator, multiple)
    refine = max(1, math.ceil(Fraction(_LATTICE_SCALE) / (Fraction(count_noise) * base)))
    scale = base * refine
    sigma = math.ceil(Fraction(count_noise) * scale)
    return LatticeNoise(scale, sigma, int(exact * scale))


def sensitivity_fraction(sensitivity: float | Fraction) -> Fraction:
    """Return the sensitivity as a fraction; floats are rounded up to 1e-6."""
    check_positive("sensitivity", sensitivity)
    if isinstance(sensitivity, Fraction):
        return sensitivity
    return Fraction(max(1, math.ceil(Fraction(sensitivity).limit_denominator(10**9) * 10**6)), 10**6)
