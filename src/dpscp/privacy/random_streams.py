"""All sources of random bits, and all derivations of seeds.

* ``secure_generator``: a NumPy ``Generator`` on a cryptographic stream, for masks and Gaussian noise.
* ``NormalNumbers``: normal numbers from such a generator, thousands at a time.
* ``secure_bytes``: bytes of the operating system, for exact integer noise.
* ``PlacedDraws``: one uniform number for each place of a table, the same at every reading.
* ``BlockStreams``: draws that belong to a block of records, the same on every machine and at every reading.
* ``child_seeds``, ``stream_seed``: seeds for the parts of a seeded run; no two parts share a stream.

Anyone who knows a seed can recompute the draws. Seeds are for tests and experiments, and they warn.
"""

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.exceptions import SeededWarning

# Streams other than that of the seed itself, which a training mechanism uses.
PREPROCESSING, TARGET_SCALE, KEPT_ROWS, SCORED_ROWS, BATCHES, BOUNDS, LAYERS = 1, 2, 3, 4, 5, 7, 8
THINNING, QUANTILES, EVALUATED, RECALIBRATION, RESIDUALS, ENCODINGS = 9, 10, 11, 12, 13, 14
_INTEGER_NOISE = 2
# Numbers that are drawn at once where only some of them are wanted.
_DRAWN_AT_ONCE = 1 << 16
# Parts of the ziggurat, and those of them that are rectangles.
_PARTS = 1 << 10
_RECTANGLES = _PARTS - 8
# All parts together, over the area under the curve: shapes around pieces are larger than the pieces.
_EXCESS = 1.004
_PLACE_BITS = 53
# So many numbers stay in the cache from one operation to the next. For fewer the ziggurat is as fast.
_AT_ONCE = 1 << 14


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


@dataclass(frozen=True)
class _Cover:
    """Cover the area under exp(-x^2 / 2), x > 0, by rectangles and other shapes.

    The rectangles are ordered from the widest one up. The other shapes bound what is left."""

    widths: NDArray[np.float64]
    floor: NDArray[np.float64]
    """Height at which the piece beside each rectangle begins: the top of the rectangle."""
    ceiling: NDArray[np.float64]
    """Height at which its bounding rectangle ends: the top of the next rectangle, and 1 above the last."""
    inner: NDArray[np.float64]
    """Width of the next rectangle, where the piece begins; 0 above the last."""
    ends: NDArray[np.float64]
    """Where the share of each piece ends, and at last that of the tail, if the last parts together are one."""


@cache
def _cover() -> _Cover:
    area = _EXCESS * math.sqrt(math.pi / 2) / _PARTS
    widths, floor = np.empty(_RECTANGLES), np.empty(_RECTANGLES)
    height, width = 0.0, 6.0
    for part in range(_RECTANGLES):
        # the corner lies on the curve: width = curve^-1(height + area / width), which converges from above
        while (smaller := math.sqrt(-2 * math.log(height + area / width))) < width:
            width = smaller
        height += area / width
        widths[part], floor[part] = width, height
    inner = np.append(widths[1:], 0.0)
    ceiling = np.exp(-0.5 * inner * inner)
    pieces = (widths - inner) * (ceiling - floor)
    tail = math.exp(-0.5 * widths[0] ** 2) / widths[0]
    return _Cover(widths, floor, ceiling, inner, np.append(pieces, tail).cumsum() / (area * (_PARTS - _RECTANGLES)))


class NormalNumbers:
    """Fill arrays with independent normal numbers, thousands at a time.

    NumPy decides for each number whether a rectangle under the curve holds it. This takes longer than the cipher that
    makes the bits. Here few numbers need a decision. The half under exp(-x^2 / 2), x > 0, is divided into

    * 1016 rectangles of equal area: a number in one of them is uniform up to its width,
    * pieces between the rectangles and the curve, and the tail beyond the widest rectangle.

    One of 1024 parts is drawn. The first 1016 are the rectangles. The last eight are shapes around the pieces and the
    tail, and a remainder that is always rejected. A point under the curve is taken; else the number is drawn anew, by
    NumPy. So the law is the normal one up to the rounding of the tables, which is below 2**-40 of the density.

    Bits: ten choose the part, 54 the sign and the place in a rectangle. The spacing is at most 2**-50.9 standard
    deviations before the number is rounded to float64, where that of NumPy is 2**-50.1. The tail ends where NumPy's
    exponential numbers end, beyond 13 standard deviations.

    Reference: Marsaglia and Tsang (2000), The ziggurat method for generating random variables

    Parameters
    ----------
    rng : numpy.random.Generator
        Its bit generator returns 64 random bits at a time, as that of `secure_generator` does.
    scale : float
        The standard deviation.
    """

    def __init__(self, rng: np.random.Generator, scale: float = 1.0) -> None:
        self._rng, self._scale, self._cover = rng, scale, _cover()
        self._factors = np.full(_PARTS, scale * 2.0**-_PLACE_BITS)
        self._factors[:_RECTANGLES] *= self._cover.widths
        self._part, self._factor = np.empty(_AT_ONCE, dtype=np.int64), np.empty(_AT_ONCE)

    def fill(self, out: NDArray[np.float64]) -> None:
        """Overwrite an array of one dimension with new numbers."""
        if out.size < _AT_ONCE:
            self._rng.standard_normal(out=out)
            out *= self._scale
            return
        rest = np.concatenate([self._fill_rectangles(out, start) for start in range(0, out.size, _AT_ONCE)])
        out[rest] = np.copysign(self._draw_rest(rest.size), out[rest])

    def _fill_rectangles(self, out: NDArray[np.float64], start: int) -> NDArray[np.intp]:
        """Fill numbers from ``start`` on; return the places of those in no rectangle.

        Those have their sign only.
        """
        numbers = out[start : start + _AT_ONCE]
        # the words of the bit generator as they are; its own `random_raw` takes twice as long
        words = self._rng.integers(0, 2**64, numbers.size, dtype=np.uint64).view(np.int64)
        part, factor = self._part[: numbers.size], self._factor[: numbers.size]
        np.bitwise_and(words, _PARTS - 1, out=part)
        words >>= 63 - _PLACE_BITS
        np.copyto(numbers, words)
        # mode="clip" writes straight into `out`; every part is one of the table
        self._factors.take(part, out=factor, mode="clip")
        numbers *= factor
        return (part >= _RECTANGLES).nonzero()[0] + start

    def _draw_rest(self, count: int) -> NDArray[np.float64]:
        """Return absolute values of numbers whose part is no rectangle."""
        rng, cover = self._rng, self._cover
        piece = cover.ends.searchsorted(rng.random(count), side="right")
        beside = np.minimum(piece, _RECTANGLES - 1)
        inner, floor = cover.inner[beside], cover.floor[beside]
        size = inner + rng.random(count) * (cover.widths[beside] - inner)
        height = floor + rng.random(count) * (cover.ceiling[beside] - floor)
        is_taken = (piece < _RECTANGLES) & (height < np.exp(-0.5 * size * size))
        # beyond the widest rectangle the curve is an exponential one times exp(-over^2 / 2)
        tail = np.flatnonzero(piece == _RECTANGLES)
        over = rng.standard_exponential(tail.size) / cover.widths[0]
        size[tail] = cover.widths[0] + over
        is_taken[tail] = 2 * rng.standard_exponential(tail.size) > over * over
        again = np.flatnonzero(~is_taken)
        size[again] = np.abs(rng.standard_normal(again.size))
        return size * self._scale
