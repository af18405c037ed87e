"""Scale columns and add their quantiles, by noisy counts in public cells.

A few large values, or public bounds far wider than the values, leave a scaled column nearly constant. Its
quantile, the share of the records below its value, is spread evenly whatever the column is like. A column's cells form
a regular tree: ``branching = (8, 8, 8)`` has 8 cells, each with 8 cells in it, each with 8 again. The records in every
cell of every level are counted and integer noise is added. One record changes one count of each level by one. Mean,
scale and quantile follow from the noisy counts, so this replaces ``PrivateStandardize``.

Theory: Fact 5
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import Array, FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.places import one_row_of_each
from dpscp.privacy import IntegerSource, LatticeNoise, lattice_noise
from dpscp.privacy.random_streams import QUANTILES, SCORED_ROWS, stream_seed
from dpscp.training.engine.noise import Counts, release_counts
from dpscp.training.engine.rows import check_rows
from dpscp.training.preprocessing.steps import (
    Step,
    Transform,
    broadcast_bounds,
    check_bounds,
    check_columns,
)

# A third of the cells is spaced evenly, a third by the logarithm of the distance to the nearer end, a third by that of
# the distance to the middle; over so many octaves.
_OCTAVES = 20
# A cell whose share is below so many standard deviations of its count is not divided.
_DIVIDED_FROM = 3.0
# A column with a larger share of its records between its ends is no indicator, however large the noise.
_LARGEST_BETWEEN = 0.3
# Mean and scale leave out this share of the records at either end, or what noise can make up.
_TAIL = 0.002
# A quantile is added from this distance to the scaled column on (of its spread), and from so many times its noise.
_LEAST_DISTANCE, _NOISE_FACTOR = 0.15, 2.0
# A scale is never below this part of half the range of the bounds: it would be that of one cell.
_LEAST_SCALE = 2.0**-20
# Octaves of float32 numbers below 1/2 that have buckets of their own: one more than cells distinguish.
_BUCKET_OCTAVES, _MANTISSA_BITS, _MOST_BUCKET_BITS = _OCTAVES + 1, 23, 14


@dataclass(frozen=True)
class QuantileRows(Transform):
    """Rows with scaled features, then the quantiles of some ``columns``.

    Features are scaled as by `FeatureTransform`.

    ``features`` are those that rows keep; (): all. Of the records, ``levels[i, j]`` lie below edge j of the cells of
    ``columns[i]``, see ``cell_edges``. Quantiles lie in [-sqrt(3), sqrt(3)]: those of a column spread evenly have mean
    0 and variance 1. Behind them are, for each of ``columns``, indicators of ``parts`` ranges of equal shares.

    Theory: Fact 5
    """

    low: FloatArray
    high: FloatArray
    shift: FloatArray
    scale: FloatArray
    levels: FloatArray
    columns: tuple[int, ...]
    limit: float
    features: tuple[int, ...] = ()
    parts: int = 0

    kind: ClassVar[str] = "quantile"

    @property
    def width(self) -> int:
        return (len(self.features) or len(self.shift)) + len(self.columns) * (1 + self.parts)

    def keeping(self, features: tuple[int, ...]) -> Self:
        """Return the transform that keeps these features and their quantiles only."""
        places = [place for place, column in enumerate(self.columns) if column in features]
        columns = tuple(np.array(self.columns)[places].tolist())
        return replace(self, features=features, columns=columns, levels=self.levels[places])

    def middle_ranks(self, X: ArrayLike) -> FloatArray:
        """Return the middle rank in [-1, 1] of each number's cell; the mean is 0.

        The numbers are those of ``columns``.
        """
        rows, lookup = np.clip(X, self.low, self.high, dtype=np.float64), CellLookup.of(self.levels.shape[1] - 1)
        cells = lookup.cells(unit_places(rows, self.low, self.high, self.columns))
        return self.cell_ranks.take(cells + lookup.offsets(len(self.columns)))

    @property
    def cell_ranks(self) -> FloatArray:
        """Return the middle rank of each cell of each column, shape (columns, cells)."""
        return np.asarray(self.levels[:, :-1] + self.levels[:, 1:] - 1)

    @cached_property
    def lines(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The quantile at the lower edge of each cell of each column, and its slope."""
        widths = np.diff(CellLookup.of(self.levels.shape[1] - 1).edges.astype(np.float64))
        steps = np.diff(self.levels, axis=1)
        slopes = np.divide(steps, widths, out=np.zeros_like(steps), where=widths > 0)
        starts, slopes = (2 * self.levels[:, :-1] - 1) * math.sqrt(3), 2 * math.sqrt(3) * slopes
        return starts.astype(np.float32), slopes.astype(np.float32)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields only, not what is computed from them."""
        return {name: value for name, value in vars(self).items() if name != "lines"}

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = check_rows(X, len(self.shift), finite=False)
        out = np.zeros((len(rows), self.width))
        start = len(self.features) or len(self.shift)
        end = start + len(self.columns)
        scaled = np.clip(rows, self.low, self.high, dtype=np.float64)
        if self.columns:
            lookup, (starts, slopes) = CellLookup.of(self.levels.shape[1] - 1), self.lines
            places = unit_places(scaled, self.low, self.high, self.columns)
            cells = lookup.cells(places)
            places -= lookup.edges.take(cells)
            cells += lookup.offsets(len(self.columns))
            places *= slopes.take(cells)
            places += starts.take(cells)
            out[:, start:end] = places
            if self.parts:
                own = ((places / math.sqrt(3) + 1) / 2 * self.parts).astype(int).clip(0, self.parts - 1)
                np.put_along_axis(out, end + own + self.parts * np.arange(len(self.columns)), 1.0, axis=1)
        scaled -= self.shift
        scaled /= self.scale
        np.clip(scaled, -self.limit, self.limit, out=scaled)
        out[:, :start] = scaled[:, self.features] if self.features else scaled
        return out


@dataclass(frozen=True)
class QuantileTransform(Step):
    """Scale each feature and add its quantile, by private distribution functions.

    Each feature is clipped to public bounds ``low`` and ``high`` (numbers, or one number a feature). Its range has
    ``math.prod(branching)`` cells in ``len(branching)`` levels. One record, or one random record of each person, lies
    in one cell of each level of each counted feature. So it changes features * levels counts by one each, and each
    count gets exact discrete Gaussian noise.

    The quantile of a feature is left out where it differs from the scaled feature by no more than its noise. A counted
    feature with bounds 0 and 1 that has records at its bounds alone is an indicator, and scaled like the others.

    Parameters
    ----------
    low, high : float, or array of shape (n_features,)
    n_features : int
    columns : tuple of int
        The features that are counted; (): all. The others, such as indicators, are scaled to [0, ``others``] by their
        public bounds.
    branching : tuple of int
        The number of cells that each level divides a cell into.
    noise : LatticeNoise or None
        The noise of a count; None while it is not set.
    limit : float
        Scaled features are clipped to +-limit.
    others : float
        The largest value of a feature that is not counted; at most ``limit``.
    standardized : tuple of int
        Features that are not counted and stay as they are, because they have mean 0 and spread 1 already.
    parts : int
        The number of ranges of equal shares of which each quantile gets indicators; 0: none.

    Privacy: ``event`` is one unit discrete Gaussian event for each count that a record changes.

    Theory: Facts 1 and 5; Result H; What preprocessing and recalibration release
    """

    low: Any
    high: Any
    n_features: int
    branching: tuple[int, ...] = (8, 8, 8)
    noise: LatticeNoise | None = None
    limit: float = 5.0
    columns: tuple[int, ...] = ()
    others: float = 1.0
    standardized: tuple[int, ...] = ()
    parts: int = 0

    stage: ClassVar[str] = "quantiles of the features"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_count("n_features", self.n_features)
        object.__setattr__(self, "columns", check_columns(self.columns, self.n_features))
        fans = tuple(check_count("branching[i]", fan, minimum=2) for fan in self.branching)
        if not fans:
            raise ValueError("branching must contain the number of cells of at least one level, such as (8, 8, 8)")
        object.__setattr__(self, "branching", fans)
        check_positive("limit", self.limit)
        check_positive("others", self.others)
        check_count("parts", self.parts, minimum=0)
        if self.others > self.limit:
            raise ValueError(
                f"others must be at most limit = {self.limit:g}, to which scaled features are clipped, got "
                f"{self.others:g}; lower it, or raise limit"
            )
        broadcast_bounds(self, self.n_features)

    @property
    def input_width(self) -> int:
        """Return the number of features of a row."""
        return self.n_features

    @property
    def n_releases(self) -> int:
        """Return the number of counts that one record changes."""
        return len(self.columns) * len(self.branching)

    @property
    def event(self) -> DpEvent | None:
        return None if self.noise is None else self.noise.event(self.n_releases)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the step with this noise, in units of the sensitivity.

        It is the sensitivity of all counts together.
        """
        check_positive("noise_multiplier", noise_multiplier)
        return replace(self, noise=lattice_noise(noise_multiplier * math.sqrt(self.n_releases)))

    def counts(self, block: Block) -> Counts:
        """Return the number of records in each cell.

        The shape is (counted features, cells of all levels). Never released as they are.
        """
        lookup, n_columns = CellLookup.of(math.prod(self.branching)), len(self.columns)
        low, high = broadcast_bounds(self, self.n_features)
        leaves = np.zeros((n_columns, math.prod(self.branching)), dtype=np.int64)
        for _, rows in block.parts():
            clipped = np.clip(check_rows(rows, self.n_features), low, high, dtype=np.float64)
            cells = lookup.cells(unit_places(clipped, low, high, self.columns))
            cells += lookup.offsets(n_columns)
            leaves += np.bincount(cells.ravel(), minlength=leaves.size).reshape(leaves.shape)
        levels = [leaves]
        for fan in self.branching[:0:-1]:
            levels.insert(0, levels[0].reshape(len(leaves), -1, fan).sum(axis=2))
        return np.concatenate(levels, axis=1)

    @cached_property
    def _edges(self) -> FloatArray:
        counted = list(self.columns)
        low, high = broadcast_bounds(self, self.n_features)
        return cell_edges(low[counted], high[counted], math.prod(self.branching))

    def release(self, counts: Counts, *, n_records: int, source: IntegerSource) -> tuple[QuantileRows, QuantileRows]:
        """Return the transform, and one with quantiles of all counted features.

        Both follow from noisy counts.
        """
        lattice, n = self.noise, check_count("n_records", n_records)
        released = release_counts(counts, lattice, source)
        assert lattice is not None
        noisy, noise = released / lattice.scale, lattice.count_noise
        low, high = broadcast_bounds(self, self.n_features)
        # high - low would overflow for the widest bounds
        shift, scale = low.copy(), 2 * (high / (2 * self.others) - low / (2 * self.others))
        shift[list(self.standardized)], scale[list(self.standardized)] = 0.0, 1.0
        levels = distribution_functions(noisy, noise, n, self.branching, self._edges)
        added = []
        for place, i in enumerate(self.columns):
            if (low[i], high[i]) == (0, 1) and lies_at_ends(noisy[place], noise, n, self.branching):
                continue
            shift[i], scale[i], distance = scale_column(self._edges[place], levels[place], noise / n, self.limit)
            if distance > max(_LEAST_DISTANCE, _NOISE_FACTOR * math.sqrt(12) * noise / n):
                added.append(place)
        whole = QuantileRows(low, high, shift, scale, levels, self.columns, float(self.limit), parts=self.parts)
        return replace(whole, levels=levels[added], columns=tuple(np.array(self.columns)[added].tolist())), whole

    def width_after(self, width: int) -> None:
        """Return None: the release decides which quantiles are added."""

    def fit_source(
        self, source: RecordSource, *, n_records: int, random_state: int | None = None, **_: Any
    ) -> QuantileRows:
        if self.noise is None:  # before any record is used
            raise ValueError("QuantileTransform: noise is not set; call with_noise, or calibrate its mechanism")
        seed = stream_seed(random_state, QUANTILES)
        counts = one_row_of_each(source, stream_seed(seed, SCORED_ROWS)).sum(self.counts)
        return self.release(counts, n_records=n_records, source=IntegerSource(seed))[0]


def unit_places(rows: Array, low: FloatArray, high: FloatArray, columns: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the position of numbers between public bounds: -1 lower, 1 upper.

    The bounds are those of these columns. The rows were clipped to the bounds before.
    """
    if len(columns) < rows.shape[1]:
        rows, low, high = rows[:, columns], low[list(columns)], high[list(columns)]
    # halves first: low + high would overflow for the widest bounds
    places = rows - (low / 2 + high / 2)
    places /= high / 2 - low / 2
    return np.asarray(np.clip(places, -1, 1, out=places), dtype=np.float32)


@dataclass(frozen=True)
class CellLookup:
    """Find the cell of numbers in [-1, 1] without a search: ten times as fast.

    Cells are narrow at the ends and in the middle, as floating-point numbers are near zero. So the leading bits of the
    distance to the nearest of these three points, as float32, select a bucket with at most one edge in it, whose first
    cell is in a table. ``depth`` is the largest number of edges in a bucket.
    """

    edges: NDArray[np.float32]
    first: NDArray[np.int32]
    shift: int
    depth: int

    @staticmethod
    @lru_cache(maxsize=8)
    def of(n_cells: int) -> "CellLookup":
        """Return the table for this number of cells."""
        edges = cell_edges(np.array([-1.0]), np.array([1.0]), n_cells)[0].astype(np.float32)
        for bits in range(_MOST_BUCKET_BITS + 1):
            shift = _MANTISSA_BITS - bits
            ends = (np.arange(_bucket(shift), (126 << bits) + 3) << shift).astype(np.int32).view(np.float32)
            near, far = ends[:-1].astype(np.float64), ends[1:].astype(np.float64)
            near[0] = 0.0  # smaller numbers are in the first bucket too
            # by sign, and by the side of 1/2: the smallest and the largest number of each bucket
            smallest = np.stack([near, 1 - far, -far, near - 1])
            largest = np.stack([far, 1 - near, -near, far - 1])
            first, last = (np.searchsorted(edges[1:-1], numbers, side="right") for numbers in (smallest, largest))
            depth = int((last - first).max())
            if depth <= 1:
                break
        return CellLookup(edges, first.astype(np.int32).ravel(), shift, depth)

    def cells(self, places: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the cell of each number; NaN is in any cell."""
        size, n_buckets = np.abs(places), len(self.first) // 4
        distance = np.minimum(size, 1 - size)
        buckets = distance.view(np.int32)
        buckets >>= self.shift
        buckets -= _bucket(self.shift)
        np.maximum(buckets, 0, out=buckets)
        buckets += np.int32(n_buckets) * (size > np.float32(0.5))
        buckets += np.int32(2 * n_buckets) * (places < 0)
        cells: NDArray[np.int32] = self.first.take(buckets, mode="clip")
        upper = np.append(self.edges[1:-1], np.float32(np.inf))
        for _ in range(self.depth):
            cells += places >= upper.take(cells)
        return cells

    def offsets(self, n_columns: int) -> NDArray[np.int32]:
        """Return the number of cells before those of each column."""
        return np.arange(n_columns, dtype=np.int32) * np.int32(len(self.edges) - 1)


def _bucket(shift: int) -> int:
    """Return the leading bits of the smallest distance that has a bucket of its own."""
    return (127 - 1 - _BUCKET_OCTAVES) << (_MANTISSA_BITS - shift)


def cell_edges(low: FloatArray, high: FloatArray, n_cells: int) -> FloatArray:
    """Return the edges of cells between public bounds.

    Edges are closer together at the ends and in the middle. The result has the shape (columns, n_cells + 1).

    >>> cell_edges(np.array([-1.0]), np.array([1.0]), 4).tolist()
    [[-1.0, -0.5, 0.0, 0.5, 1.0]]
    """
    # the distance of an edge from the nearer end, in units of half the range, and its place among the cells
    near = np.geomspace(2.0**-_OCTAVES, 0.5, 64 * _OCTAVES + 1)
    distance = np.concatenate([near, 1 - near[-2::-1]])
    place = (distance + 1 + (np.log2(distance) - np.log2(1 - distance)) / _OCTAVES) / 3
    at = np.arange(1, n_cells) / n_cells * 2
    apart = np.interp(np.minimum(at, 2 - at), np.r_[0.0, place, 1.0], np.r_[0.0, distance, 1.0])
    position = np.where(at <= 1, apart - 1, 1 - apart)
    low, high = low[:, None], high[:, None]
    inner = np.clip(low / 2 + high / 2 + (high / 2 - low / 2) * position, low, high)
    return np.hstack([low, inner, high])


def lies_at_ends(noisy: FloatArray, noise: float, total: float, branching: tuple[int, ...]) -> bool:
    """Return whether noisy counts show records in the first and last cell only.

    The counts are those of one column.

    ``noise`` is the standard deviation of one count.
    """
    between = noisy[: branching[0]].sum() - noisy[-math.prod(branching)] - noisy[-1]
    return bool(between <= min(_DIVIDED_FROM * math.sqrt(branching[0] + 2) * noise, _LARGEST_BETWEEN * total))


def distribution_functions(
    noisy: FloatArray, noise: float, total: float, branching: tuple[int, ...], edges: FloatArray
) -> FloatArray:
    """Return the share of the records below each edge, from noisy counts.

    The shape is that of ``edges``; each column has its counts. Every count is first combined with the sum of its parts,
    weighted by their variances. Then, from the top, each count is divided among its parts: the nearest non-negative
    numbers that add up to it. So no function decreases. A count that is mostly noise is spread evenly. ``total`` is the
    public nominal number of records.
    """
    sizes = np.cumprod(branching)
    levels, variances = np.split(noisy, np.cumsum(sizes)[:-1], axis=1), [1.0] * len(sizes)
    for i in range(len(levels) - 2, -1, -1):
        parts = branching[i + 1] * variances[i + 1]
        sums = levels[i + 1].reshape(*levels[i].shape, -1).sum(axis=2)
        levels[i] = (levels[i] * parts + sums) / (1 + parts)
        variances[i] = parts / (1 + parts)
    masses = np.full((len(noisy), 1), float(total))
    for own, variance, fan, size in zip(levels, variances, branching, sizes, strict=True):
        divided = project_on_simplex(own.reshape(-1, fan), masses.reshape(-1, 1)).reshape(*masses.shape, fan)
        widths = np.diff(edges[:, :: sizes[-1] // size] / 2).reshape(divided.shape)
        sums = widths.sum(axis=2, keepdims=True)
        even = np.divide(widths, sums, out=np.full_like(widths, 1 / fan), where=sums > 0) * masses[..., None]
        is_clear = (size == branching[0]) | (masses >= _DIVIDED_FROM * noise * math.sqrt(variance))
        masses = np.where(is_clear[..., None], divided, even).reshape(len(noisy), -1)
    cumulative = np.cumsum(masses, axis=1)
    return np.hstack([np.zeros((len(noisy), 1)), np.minimum(cumulative / cumulative[:, -1:], 1.0)])


def project_on_simplex(values: FloatArray, totals: FloatArray) -> FloatArray:
    """Return, for each row, the nearest non-negative numbers that add up to its total.

    >>> project_on_simplex(np.array([[3.0, 1.0, -2.0]]), np.array([[3.0]])).tolist()
    [[2.5, 0.5, 0.0]]
    """
    ordered = np.sort(values)[:, ::-1]
    excess = (np.cumsum(ordered, axis=1) - totals) / np.arange(1, values.shape[1] + 1)
    last = np.maximum((ordered > excess).sum(axis=1, keepdims=True), 1) - 1
    return np.maximum(values - np.take_along_axis(excess, last, axis=1), 0.0)


def scale_column(knots: FloatArray, levels: FloatArray, noise: float, limit: float) -> tuple[float, float, float]:
    """Return mean and scale of a column without tails, and its quantile's distance.

    This is how far the quantile is from the scaled column. The distance is the part of the quantile's spread that no
    linear function of the scaled column gives. ``noise`` is the standard deviation of one count, as a share of the
    records.
    """
    tail = min(0.25, max(_TAIL, 2 * noise))
    # in units of half the range: squares of the numbers themselves may overflow
    start, half = knots[0], knots[-1] / 2 - knots[0] / 2
    ends, masses = np.interp([tail, 1 - tail], levels, knots), np.diff(levels)
    middles = np.clip(knots[:-1] / 2 + knots[1:] / 2, *ends) / half - start / half
    mean = float(masses @ middles)
    scale = max(math.sqrt(max(0.0, float(masses @ (middles - mean) ** 2))), _LEAST_SCALE)
    scaled, ranks = np.clip((middles - mean) / scale, -limit, limit), (levels[:-1] + levels[1:]) / 2
    scaled, ranks = scaled - masses @ scaled, ranks - masses @ ranks
    products = float(masses @ ranks**2) * float(masses @ scaled**2)
    distance = math.sqrt(max(0.0, 1 - float(masses @ (ranks * scaled)) ** 2 / products)) if products > 0 else 0.0
    return float(start + mean * half), scale * float(half), distance
