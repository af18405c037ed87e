"""Transform columns privately: scale each one and add its quantile, the share of the records below its value.

A few large values, or public bounds far wider than the values, leave a scaled column nearly constant. Its quantile is
spread evenly whatever the column is like. One release of noisy counts (``count_trees``) gives the distribution function
of every column. Mean, scale and quantile follow from it, so this step replaces ``PrivateStandardize``.

Theory: Fact 5
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.persons import OneRowEach
from dpscp.data.sources.places import places_of, unit_of_blocks
from dpscp.privacy import IntegerSource, LatticeNoise, lattice_noise
from dpscp.privacy.random_streams import QUANTILES, SCORED_ROWS, PlacedDraws, stream_seed
from dpscp.training.engine.networks import check_rows
from dpscp.training.preprocessing.count_trees import (
    Counts,
    DistributionFunction,
    cell_edges,
    column_counts,
    distribution_function,
    level_sizes,
    lies_at_ends,
)
from dpscp.training.preprocessing.features import broadcast_bounds, check_bounds, check_columns
from dpscp.training.preprocessing.step import Step, Transform
from dpscp.training.preprocessing.transforms import FeatureTransform

# Mean and scale leave out this share of the records at either end, or what noise can make up.
_TAIL = 0.002
# A quantile is added from this distance to the scaled column on (of its spread), and from so many times its noise.
_LEAST_DISTANCE, _NOISE_FACTOR = 0.15, 2.0
# A scale is never below this part of half the range of the bounds: it would be that of one cell.
_LEAST_SCALE = 2.0**-20


@dataclass(frozen=True)
class QuantileRows(Transform):
    """Rows with every feature scaled, and behind them the quantiles of the features ``columns``.

    Quantiles lie in [-sqrt(3), sqrt(3)]: those of a column spread evenly have mean 0 and variance 1.

    Theory: Fact 5
    """

    scaled: FeatureTransform
    columns: tuple[int, ...]
    functions: tuple[DistributionFunction, ...]

    kind: ClassVar[str] = "quantile"

    @property
    def width(self) -> int:
        """Return the number of features of a transformed row."""
        return len(self.scaled.shift) + len(self.columns)

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = check_rows(X, len(self.scaled.shift), finite=False)
        out = np.empty((len(rows), self.width))
        out[:, : rows.shape[1]] = self.scaled.apply(rows)
        for place, (column, function) in enumerate(zip(self.columns, self.functions, strict=True), rows.shape[1]):
            level = np.interp(rows[:, column].astype(np.float64), function.knots, function.levels)
            out[:, place] = (2 * level - 1) * math.sqrt(3)
        return out

    def arrays(self) -> dict[str, FloatArray]:
        """Return the released numbers.

        Those of the scaled features, and the knots and levels of columns 0, 1, ...
        """
        parts = self.scaled.arrays()
        for column, function in zip(self.columns, self.functions, strict=True):
            parts |= {f"knots{column}": function.knots, f"levels{column}": function.levels}
        return parts

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "columns": list(self.columns), "scaled": self.scaled.config()}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        columns = tuple(check_count("columns[i]", column, minimum=0) for column in config["columns"])
        functions = tuple(
            DistributionFunction(*(np.asarray(arrays[f"{part}{c}"], dtype=np.float64) for part in ("knots", "levels")))
            for c in columns
        )
        return cls(FeatureTransform.from_parts(config["scaled"], arrays), columns, functions)


@dataclass(frozen=True)
class QuantileTransform(Step):
    """Scale each feature and add its quantile, from privately released distribution functions.

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
    columns : tuple of int, optional
        The features that are counted; None: all. The others, such as indicators, are scaled to [0, ``others``] by their
        public bounds.
    branching : tuple of int
        The number of cells that each level divides a cell into.
    noise : LatticeNoise or None
        The noise of a count; None while it is not set.
    limit : float
        Scaled features are clipped to +-limit.
    others : float
        The largest value of a feature that is not counted; at most ``limit``.

    Theory: Facts 1 and 5; Result H; What preprocessing and recalibration release
    """

    low: Any
    high: Any
    n_features: int
    branching: tuple[int, ...] = (8, 8, 8)
    noise: LatticeNoise | None = None
    limit: float = 5.0
    columns: tuple[int, ...] | None = None
    others: float = 1.0

    stage: ClassVar[str] = "quantiles of the features"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_count("n_features", self.n_features)
        if self.columns is not None:
            object.__setattr__(self, "columns", check_columns(self.columns, self.n_features))
        object.__setattr__(
            self, "branching", tuple(check_count("branching[i]", fan, minimum=2) for fan in self.branching)
        )
        if not self.branching:
            raise ValueError("branching must contain the number of cells of at least one level, such as (8, 8, 8)")
        check_positive("limit", self.limit)
        check_positive("others", self.others)
        if self.others > self.limit:
            raise ValueError(
                f"others must be at most limit = {self.limit:g}, to which scaled features are clipped, got "
                f"{self.others:g}; lower it, or raise limit"
            )
        broadcast_bounds(self.low, self.high, self.n_features)

    @property
    def input_width(self) -> int:
        """Return the number of features that are counted."""
        return self.n_features

    @property
    def n_releases(self) -> int:
        """Return the number of counts that one record changes."""
        return len(self._counted) * len(self.branching)

    @property
    def _counted(self) -> tuple[int, ...]:
        return tuple(range(self.n_features)) if self.columns is None else self.columns

    @property
    def event(self) -> DpEvent | None:
        """Return one unit discrete Gaussian event for each count that a record changes.

        None while the noise is not set.
        """
        return None if self.noise is None else self.noise.event(self.n_releases)

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the same step with this noise.

        In units of the sensitivity of all counts together.
        """
        check_positive("noise_multiplier", noise_multiplier)
        return replace(self, noise=lattice_noise(noise_multiplier * math.sqrt(self.n_releases)))

    @property
    def _cells(self) -> int:
        return math.prod(self.branching)

    def counts(self, block: Block) -> Counts:
        """Return the number of records in each cell, of shape (counted features, cells of all levels).

        Never released as they are.
        """
        total = np.zeros((len(self._counted), sum(level_sizes(self.branching))), dtype=np.int64)
        for _, rows in block.parts():
            numbers = check_rows(rows, self.n_features)
            for counts, column, edges in zip(total, self._counted, self._edges, strict=True):
                cells = np.searchsorted(edges, numbers[:, column], side="right")
                counts += column_counts(cells, self.branching)
        return total

    @cached_property
    def _edges(self) -> tuple[FloatArray, ...]:
        low, high = broadcast_bounds(self.low, self.high, self.n_features)
        return tuple(cell_edges(low[i], high[i], self._cells) for i in self._counted)

    def release(self, counts: Counts, *, n_records: int, source: IntegerSource) -> QuantileRows:
        """Return the transform, from noisy counts."""
        noise, n = self._require_noise(), check_count("n_records", n_records)
        drawn = np.array(noise.sample(counts.size, source), dtype=np.int64).reshape(counts.shape)
        noisy = (counts * noise.scale + drawn) / noise.scale
        low, high = broadcast_bounds(self.low, self.high, self.n_features)
        # high - low would overflow for the widest bounds
        shift, scale = low.copy(), 2 * (high / (2 * self.others) - low / (2 * self.others))
        functions: dict[int, DistributionFunction] = {}
        for own, i in zip(noisy, self._counted, strict=True):
            if (low[i], high[i]) == (0, 1) and lies_at_ends(own, noise.count_noise, n, self.branching):
                continue
            found = distribution_function(own, noise.count_noise, n, self.branching, float(low[i]), float(high[i]))
            column = _Column.of(found, noise.count_noise / n, self.limit)
            shift[i], scale[i] = column.mean, column.scale
            if column.needs_quantile:
                functions[i] = found
        scaled = FeatureTransform(low, high, shift, scale, float(self.limit))
        return QuantileRows(scaled, tuple(functions), tuple(functions.values()))

    def width_after(self, width: int) -> None:
        """Return None: the release decides which quantiles are added."""

    def fit_source(
        self,
        source: RecordSource,
        *,
        n_records: int,
        rng: np.random.Generator | None = None,  # noqa: ARG002 (it draws floats, and the noise is integers)
        random_state: int | None = None,
    ) -> QuantileRows:
        self._require_noise()  # fails before any record is used
        seed = stream_seed(random_state, QUANTILES)
        if unit_of_blocks(source).by_person:
            draws = PlacedDraws.of(stream_seed(seed, SCORED_ROWS))
            source = source.map(OneRowEach(draws, places_of(source)))
        return self.release(source.sum(self.counts), n_records=n_records, source=IntegerSource(seed))

    def _require_noise(self) -> LatticeNoise:
        if self.noise is None:
            raise ValueError("QuantileTransform: noise is not set; call with_noise, or calibrate its mechanism")
        return self.noise


@dataclass(frozen=True)
class _Column:
    """What follows from the released distribution function of one column."""

    mean: float
    scale: float
    needs_quantile: bool

    @classmethod
    def of(cls, function: DistributionFunction, noise: float, limit: float) -> Self:
        """Return mean and scale without the tails, and whether the quantile is needed.

        ``noise`` is the standard deviation of one count, as a share of the records.
        """
        tail = min(0.25, max(_TAIL, 2 * noise))
        ends = function.quantile(tail), function.quantile(1 - tail)
        half = function.knots[-1] / 2 - function.knots[0] / 2
        masses = np.diff(function.levels)
        # in units of half the range: squares of the numbers themselves may overflow
        start = function.knots[0]
        middles = np.clip(function.knots[:-1] / 2 + function.knots[1:] / 2, *ends) / half - start / half
        mean = float(masses @ middles)
        scale = max(math.sqrt(max(0.0, float(masses @ (middles - mean) ** 2))), _LEAST_SCALE)
        distance = _distance(np.clip((middles - mean) / scale, -limit, limit), function, masses)
        needed = distance > max(_LEAST_DISTANCE, _NOISE_FACTOR * math.sqrt(12) * noise)
        return cls(float(start + mean * half), scale * float(half), needed)


def _distance(scaled: FloatArray, function: DistributionFunction, masses: FloatArray) -> float:
    """Return the part of the quantile's spread that no linear function of the scaled column gives."""
    levels = (function.levels[:-1] + function.levels[1:]) / 2
    levels = levels - masses @ levels
    scaled = scaled - masses @ scaled
    spread, own = float(masses @ levels**2), float(masses @ scaled**2)
    if spread <= 0 or own <= 0:
        return 0.0
    return math.sqrt(max(0.0, 1 - float(masses @ (levels * scaled)) ** 2 / (spread * own)))
