"""Add Gaussian noise to a sum on a grid, or integer noise to counts.

Only grid points are released. Floating-point noise has a fine structure that depends on the value it was added to
(Mironov 2012). The sum of statistic and noise is therefore rounded to a public grid, far finer than the noise and far
coarser than the floats.

The statistic itself is a rounded sum over records. `sum_in_parts` and `source_sum` keep the rounding below `sum_slack`
of one record's share. Callers scale their noise by 1 + sum_slack.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.privacy import IntegerSource, LatticeNoise

Counts = NDArray[np.int64]

# Spacing of the released grid in noise standard deviations: a power of two, so that scaling by it is exact.
GRID = 2.0**-20
_NOISE_PER_BLOCK = 1 << 13
# Parts of the ziggurat, and those of them that are rectangles.
_PARTS = 1 << 10
_RECTANGLES = _PARTS - 8
# All parts together, over the area under the curve: shapes around pieces are larger than the pieces.
_EXCESS = 1.004
_PLACE_BITS = 53
# So many numbers stay in the cache from one operation to the next. For fewer the ziggurat is as fast.
_AT_ONCE = 1 << 14
# One record changes a computed sum by at most 1 + SUM_SLACK times its bound, rounding included: see `sum_in_parts`.
SUM_SLACK = 1e-4
_MOST_RECORDS = 1 << 28
_MORE_THAN_NOMINAL = 4
_RECORDS_PER_PART = 1 << 10


def sum_slack(n_records: int) -> float:
    """Return by which share rounding may increase the effect of one unit on a sum.

    A unit is a record or a person, and the share is one of its bound.

    ``n_records`` is the public nominal number.

    The rounding of a sum grows with its terms (`sum_in_parts`). Above 2^26 nominal records the noise grows with it: by
    0.4 % at 2.7 * 10^9. The slack covers four times the nominal number; more records are refused.
    """
    return SUM_SLACK * max(1.0, n_records * _MORE_THAN_NOMINAL / _MOST_RECORDS)


def source_sum(
    part_sum: Callable[..., NDArray[np.float64]], source: RecordSource, n_records: int, *, with_targets: bool = False
) -> NDArray[np.float64]:
    """Return the total of ``part_sum`` over a source.

    Its arguments are ``(rows, weights)`` or ``(rows, weights, targets)``. One record or person changes it by at most 1
    + `sum_slack` times its bound.
    """
    return total_of_blocks(partial(_sum_block, part_sum, with_targets), source, n_records)


def _sum_block(part_sum: Callable[..., Any], with_targets: bool, block: Block) -> NDArray[np.float64]:
    weights, targets = block.owners.weights, block.targets

    def part(i: int, j: int) -> Any:
        return part_sum(block.read(i, j), weights[i:j], *([targets[i:j]] if with_targets else []))

    return _pairwise_sum(part, 0, len(block))


def total_of_blocks(
    block_sum: Callable[[Block], NDArray[np.float64]], source: RecordSource, n_records: int
) -> NDArray[np.float64]:
    """Return the total of the sums of all blocks.

    Blocks add their totals by pairs: with the levels inside a block, a term still goes through fewer than D additions.
    A person's terms add up to at most the bound of one record, so persons are counted.
    """
    total, count = source.sum(partial(_sum_and_count, block_sum))
    if count > max(_MOST_RECORDS, n_records * _MORE_THAN_NOMINAL):
        raise ValueError(
            f"the source holds more than {_MORE_THAN_NOMINAL} times the declared number, {n_records}, so the rounding "
            "of its sums is not bounded; declare a number near the true one"
        )
    return total


def _sum_and_count(block_sum: Callable[[Block], NDArray[np.float64]], block: Block) -> tuple[NDArray[np.float64], int]:
    return block_sum(block), block.owners.count


def sum_in_parts(part_sum: Callable[..., Any], *arrays: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``part_sum(*arrays)``, a sum over records, with a bounded rounding error.

    A record inserted in front changes the rounding of all other terms. Here a term goes through at most D = 1100
    float64 additions: 1024 in a part, at most 45 between parts and between blocks, and a few roundings of the result on
    its way to the grid. In whatever order they run, the sum of N terms of norm at most B is off by at most D u N B, u =
    2^-53, so that two neighboring sums differ by at most B (1 + 2 D u N) < B (1 + 6.6e-5) for N <= 2^28. Rounding of
    the terms themselves has the rest of SUM_SLACK. For more, in blocks, see `sum_slack`.
    """
    if len(arrays[0]) > _MOST_RECORDS:
        raise ValueError(
            f"X holds more than {_MOST_RECORDS} records, the most for which the rounding of a sum is bounded; use a "
            "source"
        )
    return _pairwise_sum(lambda start, stop: part_sum(*(array[start:stop] for array in arrays)), 0, len(arrays[0]))


def _pairwise_sum(part_sum: Callable[[int, int], Any], start: int, stop: int) -> NDArray[np.float64]:
    """Return the sum over a range of records, by halves down to parts."""
    if stop - start <= _RECORDS_PER_PART:
        return np.asarray(part_sum(start, stop), dtype=np.float64)
    half = start + (stop - start) // 2
    return _pairwise_sum(part_sum, start, half) + _pairwise_sum(part_sum, half, stop)


def gaussian_release(
    exact: ArrayLike, noise_std: float, rng: np.random.Generator, n_records: int = 0
) -> NDArray[np.float64]:
    """Return ``exact`` plus Gaussian noise, rounded to the public grid.

    Rounding is post-processing: the event is the Gaussian mechanism's. A sum of more than 2^26 nominal records gets a
    grid that grows with them, as the floats of its size do; at 10^10 it is still 4,000 times finer than the noise.

    Theory: Fact 3
    """
    value = np.asarray(exact, dtype=np.float64)
    growth = max(1.0, n_records * _MORE_THAN_NOMINAL / _MOST_RECORDS)
    spacing = GRID * noise_std * 2.0 ** math.ceil(math.log2(growth))
    noisy = np.asarray(rng.normal(0.0, noise_std, value.shape))
    noisy += value
    noisy /= spacing
    np.rint(noisy, out=noisy)
    noisy *= spacing
    return noisy


def release_symmetric(
    exact: NDArray[np.float64], noise_std: float, rng: np.random.Generator, n_records: int = 0
) -> NDArray[np.float64]:
    """Return a symmetric matrix plus Gaussian noise of this scale.

    The noise is in an orthonormal basis of the symmetric matrices. The coordinates are the upper triangle with its
    off-diagonal entries times sqrt(2).
    """
    upper = np.triu_indices(len(exact))
    units = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    released = np.zeros_like(exact)
    released[upper] = gaussian_release(exact[upper] * units, noise_std, rng, n_records) / units
    return np.asarray(released + np.triu(released, 1).T)


def grid_slack(noise_std: float, n_parameters: int) -> float:
    """Return the largest distance that rounding adds to two releases.

    Both have the same noise.

    Theory: Result C
    """
    return float(GRID * noise_std * np.sqrt(n_parameters))


def release_counts(counts: Counts, noise: LatticeNoise | None, source: IntegerSource) -> Counts:
    """Return counts with discrete Gaussian noise in units of 1 / ``noise.scale``.

    The noise is exact.
    """
    if noise is None:
        raise ValueError("noise is not set; call with_noise, or calibrate the mechanism")
    drawn = np.array(noise.sample(counts.size, source), dtype=np.int64).reshape(counts.shape)
    return np.asarray(counts * noise.scale + drawn)


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


class GridNoise:
    """Standard normal vectors in units of the grid, drawn in blocks of bounded size."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self._numbers = NormalNumbers(rng, 1 / GRID)
        shape = max(1, _NOISE_PER_BLOCK // size), size
        self._block, self._before = np.empty(shape), np.empty(shape)
        self._used = len(self._block)

    def next(self) -> Array:
        """Return the next vector; the second call after this one may overwrite it."""
        if self._used == len(self._block):
            self._block, self._before = self._before, self._block
            self._numbers.fill(self._block.reshape(-1))
            self._used = 0
        vector: Array = self._block[self._used]
        self._used += 1
        return vector
