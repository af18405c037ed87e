"""Add Gaussian noise to a sum on a grid, or integer noise to counts.

Only grid points are released. Floating-point noise has a fine structure that depends on the value it was added to
(Mironov 2012). The sum of statistic and noise is therefore rounded to a public grid, far finer than the noise and far
coarser than the floats.

The statistic itself is a rounded sum over records. `sum_in_parts` and `source_sum` keep the rounding below `sum_slack`
of one record's share. Callers scale their noise by 1 + sum_slack.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array
from dpscp.data.sources import Block, RecordSource
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.privacy.random_streams import NormalNumbers

Counts = NDArray[np.int64]

# Spacing of the released grid in noise standard deviations: a power of two, so that scaling by it is exact.
GRID = 2.0**-20
_NOISE_PER_BLOCK = 1 << 13
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
