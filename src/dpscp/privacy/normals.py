"""Fill arrays with normal numbers, thousands at a time.

NumPy decides for each number whether a rectangle under the curve holds it. This takes longer than the cipher that makes
the bits. Here few numbers need a decision. The half under exp(-x^2 / 2), x > 0, is divided into

* 1016 rectangles of equal area: a number in one of them is uniform up to its width,
* pieces between the rectangles and the curve, and the tail beyond the widest rectangle.

One of 1024 parts is drawn. The first 1016 are the rectangles. The last eight are shapes around the pieces and the tail,
and a remainder that is always rejected. A point under the curve is taken; else the number is drawn anew, by NumPy. So
the law is the normal one up to the rounding of the tables, which is below 2**-40 of the density.

Bits: ten choose the part, 54 the sign and the place in a rectangle. The spacing is at most 2**-50.9 standard deviations
before the number is rounded to float64, where that of NumPy is 2**-50.1. The tail ends where NumPy's exponential
numbers end, beyond 13 standard deviations.

Reference: Marsaglia and Tsang (2000), The ziggurat method for generating random variables
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_PARTS = 1 << 10
_RECTANGLES = _PARTS - 8
# All parts together, over the area under the curve: shapes around pieces are larger than the pieces.
_EXCESS = 1.004
_PLACE_BITS = 53
# So many numbers stay in the cache from one operation to the next. For fewer the ziggurat is as fast.
_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class _Cover:
    """Rectangles under exp(-x^2 / 2), x > 0, from the widest one up, and the bounding shapes of what is left."""

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
    """Independent normal numbers from the bits of a generator.

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
        """Fill numbers from ``start`` on; return the places of those in no rectangle, which have their sign only."""
        numbers = out[start : start + _AT_ONCE]
        words = self._rng.bit_generator.random_raw(numbers.size).view(np.int64)
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
