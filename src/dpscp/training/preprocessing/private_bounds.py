"""Find bounds by noisy counts on a public grid of powers of two.

Every number is in one cell of the grid: near zero, or a sign and the power of two below it. The records in each
cell are counted for each column, and exact integer noise is added to every count. The bounds of a column are the outer
edges of the outermost cells whose noisy count is beyond what noise alone reaches (beside such a cell, likely so). Cells
far outside the others do not count if they hold little, as a sentinel does, or what noise may have made. Values outside
are clipped, as with public bounds; their number is not released.

This follows the "approximate bounds" of Google's differential privacy library. Publicly known bounds cost nothing and
are better.
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_probability
from dpscp._base.progress import announce
from dpscp.data.scales import LINEAR, check_scale, scale_limits
from dpscp.data.sources import Block
from dpscp.data.sources.places import one_row_of_each
from dpscp.exceptions import HintWarning
from dpscp.privacy import IntegerSource, LatticeNoise, lattice_noise
from dpscp.privacy.random_streams import BOUNDS, SCORED_ROWS, stream_seed
from dpscp.training.base import Around, Mechanism, Trained, TrainingRun, check_width, require_mechanism
from dpscp.training.engine.noise import Counts, release_counts
from dpscp.training.model import Model
from dpscp.training.preprocessing.preprocessed import PreprocessedModel
from dpscp.training.preprocessing.rescaled import in_target_units, scale_targets
from dpscp.training.preprocessing.steps import (
    FeatureTransform,
    check_columns,
)

# Numbers below 2^_SMALLEST in size are in the cell of zero, those from 2^_LARGEST on in the last one.
_SMALLEST, _LARGEST = -32, 64
_LEVELS = _LARGEST - _SMALLEST
_CELLS = 2 * _LEVELS + 1
# The probability that noise alone looks like records in some cell; some bounds are then too wide.
_FALSE_ALARM = 0.01
# Next to a cell with records, so many standard deviations are enough, because an error only doubles the bounds.
_LIKELY = 2.0
# Numbers more than so many powers of two above all others are far outside. They are cut off if they are at most
# this share of the numbers of a feature, or so few that noise alone passes for them this often: it would scale the
# column away. A target keeps its share.
_GAP, _SMALL_SHARE, _FALSE_FAR = 4, 0.15, 1e-6
# The largest number of columns that a message names.
_SHOWN = 8


@dataclass(frozen=True)
class PrivateBounds(Around):
    """Train a mechanism inside privately found bounds of features, target, or both.

    The mechanism sees features and target in [-1, 1]; the model is returned in their own units. The bounds are released
    and are public facts, with None for features whose bounds are not found. There is no stability bound, because the
    bounds depend on the records.

    Parameters
    ----------
    mechanism : Mechanism
    n_features : int
        The number of features of a row; 0: no bounds of features are found.
    columns : tuple of int
        The features whose bounds are found; (): all. The others stay as they are.
    target : bool
        Whether the bounds of the target are found.
    share : float
        The part of the squared Gaussian-DP budget that ``calibrated`` spends on the counts.
    noise : LatticeNoise or None
        The noise of a count; None: call ``calibrated`` first.
    target_scale : str
        The public scale that the target is on, see ``dpscp.data.scales``. Cells that it cannot reach are left out, and
        so are targets where it is not defined.
    feature_scales : tuple of str
        The public scale that each of the ``n_features`` features is on, likewise; (): all are linear.

    Privacy: the counts of one column are one release of sensitivity 1 with exact discrete Gaussian noise, because one
    record (or one random record of each person) is in at most one cell of each column. ``event`` composes all
    columns and the mechanism. The cost follows from public constants and counts as training.

    The coverage promise does not depend on the bounds: scores use targets unchanged, also outside the bounds.

    Theory: Facts 1 and 5; Result B
    """

    mechanism: Mechanism
    n_features: int = 0
    target: bool = False
    share: float = 0.05
    noise: LatticeNoise | None = None
    columns: tuple[int, ...] = ()
    target_scale: str = LINEAR
    feature_scales: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_mechanism(self.mechanism)
        check_scale("target_scale", self.target_scale, None)
        n = check_count("n_features", self.n_features, minimum=0)
        scales = self.feature_scales or (LINEAR,) * n
        object.__setattr__(
            self, "feature_scales", tuple(check_scale("feature_scales[i]", scale, None) for scale in scales)
        )
        if len(scales) != n:
            raise ValueError(f"feature_scales must have one scale for each of {n} features, got {len(scales)}")
        check_probability("share", self.share)
        object.__setattr__(self, "columns", check_columns(self.columns, n))
        if not self.columns and not self.target:
            raise ValueError("PrivateBounds needs a feature or a target; set a positive n_features, or target=True")

    @property
    def _scales(self) -> tuple[str, ...]:
        """The scale of each column that is counted; the target is the last one."""
        scales = [self.feature_scales[place] for place in self.columns]
        return (*scales, self.target_scale) if self.target else tuple(scales)

    @property
    def input_width(self) -> int | None:
        """Return the number of features of a row; None if only a target is bounded."""
        return self.n_features or None

    @property
    def own_parts(self) -> tuple[tuple[str, DpEvent | None], ...]:
        """Return the cost of the counts; None while the noise is not set."""
        return (("bounds", None if self.noise is None else self.noise.event(len(self._scales))),)

    def with_own_noise(self, mu: float) -> Self:
        return replace(self, noise=lattice_noise(math.sqrt(len(self._scales)) / mu))

    def counts(self, block: Block) -> Counts:
        """Return the number of records in each cell, of shape (columns, cells).

        Never released as they are.
        """
        total = np.zeros((len(self._scales), _CELLS), dtype=np.int64)
        for part, rows in block.parts():
            columns = [rows[:, place] for place in self.columns] + [block.targets[part]] * self.target
            for counts, column, scale in zip(total, columns, self._scales, strict=True):
                # the smallest number of a scale stands for those where it is not defined, as the logarithm of zero
                counts += np.bincount(grid_cells(column[column > scale_limits(scale)[0]]), minlength=_CELLS)
        return total

    def release(self, counts: Counts, source: IntegerSource) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper bounds of the columns from noisy counts."""
        released, noise = release_counts(counts, self.noise, source), self.noise
        assert noise is not None
        smallest, largest = np.array([scale_limits(scale) for scale in self._scales]).T
        low, high = _edges(np.arange(_CELLS))
        can_be_reached = (low < largest[:, None]) & (high > smallest[:, None])  # the scale of a column limits its own
        noisy = np.where(can_be_reached, released, np.iinfo(np.int64).min)
        alarm, far = -ndtri(np.array([_FALSE_ALARM, _FALSE_FAR]) / can_be_reached.sum()) * noise.sigma
        likely = _LIKELY * noise.sigma
        self._warn_if_hidden(noisy.max(axis=1) < alarm)
        shares = [_SMALL_SHARE] * (len(noisy) - self.target) + [0.0] * self.target
        ends = np.array([_outermost(*own, alarm, likely, far) for own in zip(noisy, shares, strict=True)])
        # the outermost cells reach beyond a scale
        return np.maximum(low[ends[:, 0]], smallest), np.minimum(high[ends[:, 1]], largest)

    def _warn_if_hidden(self, is_hidden: NDArray[np.bool_]) -> None:
        """Warn about columns of which no noisy count stands out: their bounds are a guess."""
        columns = [f"feature {place}" for place in self.columns] + ["the target"] * self.target
        named = [column for column, hidden in zip(columns, is_hidden, strict=True) if hidden]
        if named:
            rest = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
            warnings.warn(
                f"the noise hides the values of {', '.join(named[:_SHOWN])}{rest}, so the bounds that were found are "
                "a guess and may be far from the values. Declare public bounds, or use more records or a "
                "larger epsilon. Features count from 0, in the order of X or of schema.feature_names",
                HintWarning,
                stacklevel=2,
            )

    def train_on(self, run: TrainingRun) -> Trained:
        """Find the bounds and train inside them.

        The model is returned in the units of the records.
        """
        check_width(self, run.source.width)  # before any record is used
        seed = stream_seed(run.random_state, BOUNDS)
        source = run.source
        announce("bounds")
        low, high = self.release(
            one_row_of_each(source, stream_seed(seed, SCORED_ROWS)).sum(self.counts), IntegerSource(seed)
        )
        facts: dict[str, object] = {}
        change, y_bounds = None, None
        if self.columns:
            change = self._scale_features(low, high)
            is_found = np.isfinite(change.low)
            facts["feature_bounds"] = tuple(
                tuple(float(end) if own else None for end, own in zip(ends, is_found, strict=True))
                for ends in (change.low, change.high)
            )
        if self.target:
            facts["y_bounds"] = y_bounds = float(low[-1]), float(high[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HintWarning)  # about bounds that the caller could give
            inner = run.train_inner(self.mechanism, source.map(partial(_scale_block, change=change, y_bounds=y_bounds)))
        model: Model = inner.model if y_bounds is None else in_target_units(inner.model, y_bounds)
        if change is not None:
            model = PreprocessedModel((change,), model, self.n_features)
        public, found = {**inner.public_facts, **facts}, {**inner.found_privately, **facts}
        return replace(inner, model=model, stability=None, public_facts=public, found_privately=found)

    def _scale_features(self, low: FloatArray, high: FloatArray) -> FeatureTransform:
        """Return the transform that puts the counted features into [-1, 1].

        Other features do not change.
        """
        numbers = np.array([[-math.inf], [math.inf], [0.0], [1.0]]).repeat(self.n_features, axis=1)
        columns = list(self.columns)
        low, high = low[: len(columns)], high[: len(columns)]
        numbers[:, columns] = low, high, (low + high) / 2, (high - low) / 2
        return FeatureTransform(*numbers)


def _scale_block(block: Block, change: FeatureTransform | None, y_bounds: tuple[float, float] | None) -> Block:
    """Scale features and targets of a block to [-1, 1] by the found bounds."""
    block = block if change is None else block.with_steps(change.apply_to_records)
    return block if y_bounds is None else scale_targets(block, y_bounds)


def grid_cells(values: ArrayLike) -> Counts:
    """Return the cell of each number.

    0 is the most negative one, the middle one holds zero. Exact for every float.
    """
    numbers = np.asarray(values, dtype=np.float64)
    # frexp: |v| = m 2^e with m in [1/2, 1), so that 2^(e - 1) <= |v| < 2^e
    level = np.clip(np.frexp(np.abs(numbers))[1] - _SMALLEST, 0, _LEVELS)
    level = np.where(np.abs(numbers) < 2.0**_SMALLEST, 0, level)
    return np.asarray(_LEVELS + np.sign(numbers) * level, dtype=np.int64)


def _outermost(noisy: Counts, share: float, alarm: float, likely: float, far: float) -> tuple[int, int]:
    """Return the first and last occupied cell, by noisy counts.

    A few numbers far outside are ignored. Where many numbers are near zero, all others are far from them, so these do
    not count as near.
    """
    # where no cell stands out, the largest count is the best guess
    beyond = np.flatnonzero(noisy >= min(int(noisy.max()), alarm))
    powers = np.abs(beyond - _LEVELS)
    for power, larger in pairwise(np.unique(powers[powers > 0])):
        outside = noisy[beyond[powers > power]].sum()
        if larger - power > _GAP and outside <= max(far, share * noisy[beyond[powers > 0]].sum()):
            beyond = beyond[powers <= power]
            break
    first, last = int(beyond[0]), int(beyond[-1])
    while first > 0 and noisy[first - 1] >= likely:
        first -= 1
    while last < len(noisy) - 1 and noisy[last + 1] >= likely:
        last += 1
    return first, last


def _edges(cells: Counts) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper edge of each cell."""
    level = cells - _LEVELS
    outer = np.ldexp(1.0, _SMALLEST + np.abs(level))
    inner = np.where(level == 0, -outer, outer / 2)
    return np.where(level < 0, -outer, inner), np.where(level < 0, -inner, outer)
