"""Estimate distribution functions of columns from noisy counts in the cells of a public grid.

A column's cells form a regular tree: ``branching = (8, 8, 8)`` has 8 cells, each with 8 cells in it, each with 8 again.
The records in every cell of every level are counted and integer noise is added. One record changes one count of each
level by one. What follows uses the noisy counts only, so it costs nothing.

Theory: Fact 5
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray

Counts = NDArray[np.int64]

# A third of the cells is spaced evenly, a third by the logarithm of the distance to the nearer end, a third by that of
# the distance to the middle; over so many octaves.
_OCTAVES = 20
# A cell whose share is below so many standard deviations of its count is not divided.
_DIVIDED_FROM = 3.0
# A column with a larger share of its records between its ends is no indicator, however large the noise.
_LARGEST_BETWEEN = 0.3


def cell_edges(low: float, high: float, n_cells: int) -> FloatArray:
    """Return the inner edges of ``n_cells`` cells between public bounds, closer together at the ends and in the middle.

    >>> cell_edges(-1.0, 1.0, 4).tolist()
    [-0.5, 0.0, 0.5]
    """
    # the distance of an edge from the nearer end, in units of half the range, and its place among the cells
    near = np.geomspace(2.0**-_OCTAVES, 0.5, 64 * _OCTAVES + 1)
    distance = np.concatenate([near, 1 - near[-2::-1]])
    place = (distance + 1 + (np.log2(distance) - np.log2(1 - distance)) / _OCTAVES) / 3
    at = np.arange(1, n_cells) / n_cells * 2
    apart = np.interp(np.minimum(at, 2 - at), np.r_[0.0, place, 1.0], np.r_[0.0, distance, 1.0])
    position = np.where(at <= 1, apart - 1, 1 - apart)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    inner: FloatArray = np.clip(middle + half * position, low, high)
    return inner


@dataclass(frozen=True)
class DistributionFunction:
    """A released distribution function: ``levels[i]`` of the records lie below ``knots[i]``; linear between them."""

    knots: FloatArray
    levels: FloatArray

    def quantile(self, level: float) -> float:
        """Return the smallest number with this share of the records below it."""
        at = int(np.searchsorted(self.levels, level, side="left"))
        if at == 0:
            return float(self.knots[0])
        if at == len(self.levels):
            return float(self.knots[-1])
        below, above = self.levels[at - 1], self.levels[at]
        part = (level - below) / (above - below)
        return float(self.knots[at - 1] * (1 - part) + self.knots[at] * part)


def column_counts(cells: NDArray[np.integer], branching: tuple[int, ...]) -> Counts:
    """Return the number of records in each cell of each level, level after level.

    Never released as they are.
    """
    counts = np.bincount(cells, minlength=math.prod(branching)).astype(np.int64)
    levels = [counts]
    for fan in branching[:0:-1]:
        levels.insert(0, levels[0].reshape(-1, fan).sum(axis=1))
    return np.concatenate(levels)


def level_sizes(branching: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of cells of each level."""
    return tuple(math.prod(branching[: i + 1]) for i in range(len(branching)))


def lies_at_ends(noisy: FloatArray, noise: float, total: float, branching: tuple[int, ...]) -> bool:
    """Return whether the noisy counts of one column show records in its first and its last cell only.

    ``noise`` is the standard deviation of one count.
    """
    sizes = level_sizes(branching)
    between = noisy[: sizes[0]].sum() - noisy[-sizes[-1]] - noisy[-1]
    return bool(between <= min(_DIVIDED_FROM * math.sqrt(sizes[0] + 2) * noise, _LARGEST_BETWEEN * total))


def distribution_function(
    noisy: FloatArray, noise: float, total: float, branching: tuple[int, ...], low: float, high: float
) -> DistributionFunction:
    """Return the distribution function that fits the noisy counts of one column.

    Every count is first combined with the sum of its parts, weighted by their variances. Then, from the top, each
    count is divided among its parts: the nearest non-negative numbers that add up to it. So the function never
    decreases. A count that is mostly noise is not divided. ``total`` is the public nominal number of records.
    """
    sizes = level_sizes(branching)
    levels = np.split(noisy, np.cumsum(sizes)[:-1])
    variance = [1.0] * len(levels)
    for i in range(len(levels) - 2, -1, -1):
        fan = branching[i + 1]
        parts = fan * variance[i + 1]
        levels[i] = (levels[i] * parts + levels[i + 1].reshape(-1, fan).sum(axis=1)) / (1 + parts)
        variance[i] = parts / (1 + parts)
    edges = np.concatenate([[low], cell_edges(low, high, sizes[-1]), [high]])
    knots, masses = _divided(levels, [noise * math.sqrt(v) for v in variance], total, branching, edges)
    cumulative = np.concatenate([[0.0], np.cumsum(masses)])
    return DistributionFunction(np.asarray(knots), np.minimum(cumulative / cumulative[-1], 1.0))


def _divided(
    levels: list[FloatArray], noise: list[float], total: float, branching: tuple[int, ...], edges: FloatArray
) -> tuple[list[float], list[float]]:
    """Return the edges of the cells that are kept, and what is between them."""
    # rounding may make the first edges equal: what is between them belongs to the first cell that is kept
    knots, masses = [float(edges[0])], [0.0]
    # (level, first cell, mass) of cells to be divided or kept, the leftmost on top
    waiting = [(-1, 0, float(total))]
    while waiting:
        level, cell, mass = waiting.pop()
        is_leaf = level == len(levels) - 1
        if not is_leaf and (level < 0 or mass >= _DIVIDED_FROM * noise[level + 1]):
            fan = branching[level + 1]
            parts = project_on_simplex(levels[level + 1][cell * fan : (cell + 1) * fan], mass)
            waiting += [(level + 1, cell * fan + i, float(parts[i])) for i in range(fan - 1, -1, -1)]
            continue
        leaves = math.prod(branching[level + 1 :])
        right = float(edges[(cell + 1) * leaves])
        if right > knots[-1]:  # edges that rounding makes equal hold nothing between them
            knots.append(right)
            masses.append(mass)
        else:
            masses[-1] += mass
    return knots, [masses[0] + masses[1], *masses[2:]]


def project_on_simplex(values: FloatArray, total: float) -> FloatArray:
    """Return the nearest non-negative numbers that add up to ``total``.

    >>> project_on_simplex(np.array([3.0, 1.0, -2.0]), 3.0).tolist()
    [2.5, 0.5, 0.0]
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    kept = int(np.flatnonzero(ordered > excess)[-1])
    return np.asarray(np.maximum(values - excess[kept], 0.0))
