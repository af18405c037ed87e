"""All sources of random bits, all derivations of seeds, and exact integer noise.

* ``secure_generator``: a NumPy ``Generator`` on a cryptographic stream, for masks and Gaussian noise.
* ``secure_bytes``: bytes of the operating system, for exact integer noise.
* ``PlacedDraws``: one uniform number for each place of a table, the same at every reading.
* ``BlockStreams``: draws that belong to a block of records, the same on every machine and at every reading.
* ``child_seeds``, ``stream_seed``: seeds for the parts of a seeded run; no two parts share a stream.
* ``sample_discrete_gaussian``: the algorithm of Canonne, Kamath and Steinke (2020). Every decision compares integers
  drawn from operating-system entropy. No floating-point number takes part.
* ``LatticeNoise``: integer noise for a statistic of rational sensitivity. The object that the accountant charged is the
  one that is sampled from. It is passed on and never built a second time.

Anyone who knows a seed can recompute the draws. Seeds are for tests and experiments, and they warn.
"""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_positive
from dpscp.exceptions import SeededWarning
from dpscp.privacy.events import discrete_gaussian_event

# Streams other than that of the seed itself, which a training mechanism uses.
PREPROCESSING, TARGET_SCALE, KEPT_ROWS, SCORED_ROWS, BATCHES, BOUNDS, LAYERS = 1, 2, 3, 4, 5, 7, 8
THINNING, QUANTILES, EVALUATED, RECALIBRATION, RESIDUALS, ENCODINGS = 9, 10, 11, 12, 13, 14
_INTEGER_NOISE = 2
# Numbers that are drawn at once where only some of them are wanted.
_DRAWN_AT_ONCE = 1 << 16
# At this scale, rounding the noise scale up to an integer costs less than 0.03 %.
_LATTICE_SCALE = 4096
# Bytes that are drawn at once: a draw of noise needs a few hundred, a few at a time.
_BYTES_AT_ONCE = 2048


def seed_of(random_state: object) -> int | None:
    """Return None for system entropy, or a checked seed with a warning."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    warnings.warn(
        f"random_state={seed}: the noise can be recomputed from the seed, so this run is NOT private; "
        "use random_state=None for anything that you release",
        SeededWarning,
        stacklevel=3,
    )
    return seed


def child_seeds(seed: int | None, count: int) -> tuple[int | None, ...]:
    """Return independent seeds for the parts of one run; None for system entropy."""
    if seed is None:
        return (None,) * count
    return tuple(int(child) for child in np.random.SeedSequence(seed).generate_state(count))


def stream_seed(random_state: int | None, stream: int) -> int | None:
    """Return the seed of a separate stream, for a step beside the seeded one."""
    if random_state is None:
        return None
    seed = check_count("random_state", random_state, minimum=0)
    return int(np.random.SeedSequence([seed, stream]).generate_state(1)[0])


def secure_generator(random_state: int | None = None) -> np.random.Generator:
    """Return a NumPy generator on AES-128 in counter mode, or a seeded one.

    The key comes from the operating system. Without the key, the output cannot be distinguished from uniform bits.
    Gaussian draws from it are still floating-point numbers; docs/floating_point.md states the consequences.

    Parameters
    ----------
    random_state : int, optional
        A seed for tests; warns, and the draws are not private.

    Returns
    -------
    numpy.random.Generator
    """
    seed = seed_of(random_state)
    if seed is not None:
        return np.random.Generator(np.random.PCG64(seed))
    from randomgen import AESCounter  # only training needs it

    return np.random.Generator(AESCounter(key=int.from_bytes(os.urandom(16), "little")))


@dataclass(frozen=True)
class PlacedDraws:
    """Assign a fixed uniform number in [0, 1) to each place 0, 1, 2, ...

    The draws do not depend on how records are divided into blocks.

    The numbers are those of one cryptographic stream (or of a seeded one) in order; a block moves the stream forward to
    its own places. Reading a block again, on whatever machine, gives the same numbers. Whoever holds the key can repeat
    the draws; it goes where the records are and nowhere else.

    >>> draws = PlacedDraws(seed=7)
    >>> bool((draws.uniform(range(10))[3:5] == draws.uniform(range(3, 5))).all())
    True
    """

    seed: int | None = field(default=None, repr=False)
    key: int = field(default=0, repr=False)

    @classmethod
    def of(cls, random_state: int | None) -> Self:
        """Return a stream keyed by the operating system, or by a seed (warns)."""
        seed = seed_of(random_state)
        return cls(seed, 0 if seed is not None else int.from_bytes(os.urandom(16), "little"))

    def uniform(self, places: "range | NDArray[np.int64]") -> NDArray[np.float64]:
        """Return the numbers of these increasing places."""
        if isinstance(places, range):
            return self._from(places.start).random(len(places))
        found = np.empty(len(places))
        if not len(places):
            return found
        generator = self._from(int(places[0]))
        # what lies between two places is drawn and left: a cipher is faster than a search for each place
        for start in range(int(places[0]), int(places[-1]) + 1, _DRAWN_AT_ONCE):
            drawn = generator.random(_DRAWN_AT_ONCE)
            first, last = np.searchsorted(places, (start, start + _DRAWN_AT_ONCE))
            found[first:last] = drawn[places[first:last] - start]
        return found

    def _from(self, place: int) -> np.random.Generator:
        """Return the generator whose next number is that of this place (64 bits each)."""
        if self.seed is not None:
            return np.random.Generator(np.random.PCG64(self.seed).advance(place))
        from randomgen import AESCounter

        bits = AESCounter(key=self.key)
        bits.advance(place)
        return np.random.Generator(bits)


@dataclass(frozen=True)
class BlockStreams:
    """Random draws for the blocks of a source: AES-128 at (key, step, block).

    A block that is read again, on any machine, gets the same draws. A lost batch can be repeated at no extra cost.
    Anyone who has the key can repeat the draws, so it is sent only to where the records are.

    >>> streams = BlockStreams(key=7)
    >>> bool((streams.generator(3, step=2).random(5) == streams.generator(3, step=2).random(5)).all())
    True
    """

    key: int = field(repr=False)

    @classmethod
    def of(cls, random_state: int | None, stream: int) -> Self:
        """Return streams with a system key, or with the key of a seed and a purpose."""
        if random_state is None:
            return cls(int.from_bytes(os.urandom(16), "little"))
        return cls(int.from_bytes(np.random.SeedSequence([random_state, stream]).generate_state(4).tobytes(), "little"))

    def generator(self, block: int, step: int = 0) -> np.random.Generator:
        """Return the generator of one block in one step."""
        from randomgen import AESCounter

        # 2^56 counter values for each of 2^40 blocks and 2^32 steps: no two of them share a value
        counter = (check_count("step", step, minimum=0) << 96) + (check_count("block", block, minimum=0) << 56)
        return np.random.Generator(AESCounter(key=self.key, counter=counter))


def secure_bytes(random_state: int | None = None) -> Callable[[int], bytes]:
    """Return a function that returns random bytes, of the system or of a seed."""
    seed = seed_of(random_state)
    # a separate stream: training is seeded with random_state itself, and its noise must not be repeated here
    return os.urandom if seed is None else np.random.default_rng([seed, _INTEGER_NOISE]).bytes


class IntegerSource:
    """Uniform integers from operating-system entropy, or from a seed (not private).

    Parameters
    ----------
    random_state : int, optional
        A seed for tests; warns.
    """

    def __init__(self, random_state: int | None = None) -> None:
        self._bytes = secure_bytes(random_state)
        self._drawn, self._used = b"", 0

    def below(self, bound: int) -> int:
        """Return an integer that is exactly uniform on 0 .. bound - 1, by rejection."""
        bits = (bound - 1).bit_length()
        width, mask = (bits + 7) // 8, (1 << bits) - 1
        while True:
            start = self._used
            if start + width > len(self._drawn):
                self._drawn, start = self._bytes(max(width, _BYTES_AT_ONCE)), 0
            self._used = start + width  # each byte is used once
            value = int.from_bytes(self._drawn[start : start + width], "little") & mask
            if value < bound:
                return value

    def bernoulli_exp(self, numerator: int, denominator: int) -> bool:
        """Return a Bernoulli(exp(-numerator / denominator)) draw (von Neumann)."""
        # a Bernoulli(exp(-k)) draw is true if k draws of Bernoulli(exp(-1)) are true
        while numerator > denominator:
            if not self.bernoulli_exp(1, 1):
                return False
            numerator -= denominator
        # draw Bernoulli(g / k) for k = 1, 2, ... until one fails: true if that k is odd
        k = 1
        while self.below(k * denominator) < numerator:
            k += 1
        return k % 2 == 1


def sample_discrete_gaussian(sigma: int, size: int, source: IntegerSource) -> list[int]:
    """Return exact draws of the discrete Gaussian.

    P(x) is proportional to exp(-x^2 / (2 sigma^2)) on the integers. Only arithmetic of Python integers is used.

    Parameters
    ----------
    sigma : int
        The noise scale.
    size : int
    source : IntegerSource

    Returns
    -------
    list of int

    Paper: Canonne, Kamath and Steinke (2020), The Discrete Gaussian for Differential Privacy
    """
    sigma = check_count("sigma", sigma)
    t, drawn = sigma + 1, list[int]()
    while len(drawn) < size:
        candidate = _discrete_laplace(t, source)
        if source.bernoulli_exp((abs(candidate) * t - sigma * sigma) ** 2, 2 * (sigma * t) ** 2):
            drawn.append(candidate)
    return drawn


def _discrete_laplace(t: int, source: IntegerSource) -> int:
    """Return an exact draw with P(x) proportional to exp(-|x| / t)."""
    while True:
        magnitude = source.below(t)
        if not source.bernoulli_exp(magnitude, t):
            continue
        while source.bernoulli_exp(1, 1):
            magnitude += t
        is_negative = source.below(2) == 1
        # zero would be drawn twice as often, once for each sign: reject one of them
        if magnitude or not is_negative:
            return -magnitude if is_negative else magnitude


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
        return sample_discrete_gaussian(self.sigma, size, source)


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
