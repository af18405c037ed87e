"""Bound and standardize rows, by public constants or by noisy sums of bounded rows.

A step here either uses public constants and the row itself only (``PublicBounds``, ``ColumnScales``, ``UnitNorm``,
``NormClip``: no cost), or releases noisy sums over rows whose size it enforces (``PrivateCentering``,
``PrivateStandardize``: Gaussian events). Sums are divided by the public ``n_records``, never by the number of rows.

Theory: Fact 5
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive, require_normal
from dpscp.data.scales import LINEAR, check_scale, finite_on_scale
from dpscp.training.base import require_noise
from dpscp.training.engine.gaussian_release import gaussian_release, sum_slack, weighted_rows
from dpscp.training.engine.rows import check_rows, scaled_rows
from dpscp.training.preprocessing.preprocess import PublicStep, SummedStep, Transform


@dataclass(frozen=True)
class FeatureTransform(Transform):
    """Clip each feature to [low, high], subtract ``shift``, divide by ``scale`` and clip to +-``limit``, if any.

    Theory: Fact 5
    """

    low: FloatArray
    high: FloatArray
    shift: FloatArray
    scale: FloatArray
    limit: float | None = None

    kind: ClassVar[str] = "feature"

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_positive("limit", self.limit)

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = np.array(check_rows(X, len(self.shift), finite=False), dtype=np.float64)
        np.clip(rows, self.low, self.high, out=rows)
        rows -= self.shift
        rows /= self.scale
        return rows if self.limit is None else np.clip(rows, -self.limit, self.limit, out=rows)


@dataclass(frozen=True)
class PublicBounds(PublicStep):
    """Clip each feature to public bounds and rescale it to [-1, 1].

    No privacy cost.

    Parameters
    ----------
    low, high : float, or array of shape (n_features,)
        They must come from outside the data.

    Theory: Fact 1
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def input_width(self) -> int | None:
        """Return the number of features with bounds of their own; None where all have the same."""
        return width_of_bounds(self)

    def transform_of(self, width: int) -> FeatureTransform:
        low, high = broadcast_bounds(self, width)
        # the limit acts only where rounding does, as with bounds that lie far from zero and close together
        return FeatureTransform(low, high, (low + high) / 2, (high - low) / 2, limit=1.0)


@dataclass(frozen=True)
class ColumnScales(PublicStep, Transform):
    """Put each feature on a public scale: "linear", "log" or "log1p"; no privacy cost.

    Numbers where a scale is not defined become its smallest one.

    Parameters
    ----------
    scales : tuple of str
        The public scale of each column.

    Theory: Fact 1
    """

    scales: tuple[str, ...]

    kind: ClassVar[str] = "scale"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", tuple(check_scale("scales[i]", scale, None) for scale in self.scales))

    @property
    def input_width(self) -> int:
        """Return the number of scales."""
        return len(self.scales)

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = np.array(check_rows(X, len(self.scales), finite=False), dtype=np.float64)
        for place, scale in enumerate(self.scales):
            if scale != LINEAR:
                # a number that is not finite stays so, and is refused by the reader of all rows
                rows[:, place] = np.where(
                    np.isfinite(rows[:, place]), finite_on_scale(rows[:, place], scale), rows[:, place]
                )
        return rows


@dataclass(frozen=True)
class UnitNorm(PublicStep, Transform):
    """Scale every row to norm one; no constant and no privacy cost. A row of zeros stays one.

    Theory: Fact 1
    """

    kind: ClassVar[str] = "unit_norm"
    row_length: ClassVar[float] = 1.0

    def apply(self, X: ArrayLike) -> FloatArray:
        return scaled_rows(check_rows(X, finite=False), 1.0, unit=True)


@dataclass(frozen=True)
class NormClip(PublicStep, Transform):
    """Shorten every row longer than the public ``bound`` to it; no privacy cost.

    Parameters
    ----------
    bound : float
        The largest norm of a row.

    Theory: Fact 1
    """

    bound: float

    kind: ClassVar[str] = "norm_clip"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)

    def apply(self, X: ArrayLike) -> FloatArray:
        return scaled_rows(check_rows(X, finite=False), float(self.bound), unit=False)


@dataclass(frozen=True)
class CenteredRows(Transform):
    """Shorten a row to norm ``bound``, then subtract ``shift``.

    Theory: Fact 5
    """

    bound: float
    shift: FloatArray

    kind: ClassVar[str] = "centered"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)

    def apply(self, X: ArrayLike) -> FloatArray:
        return scaled_rows(check_rows(X, len(self.shift), finite=False), self.bound, unit=False) - self.shift


@dataclass(frozen=True)
class PrivateCentering(SummedStep):
    """Subtract a private mean from rows of norm at most ``bound``.

    Longer rows are shortened first. The noisy mean is projected on the ball of radius ``bound``, because a mean of such
    rows lies there. Centered rows have norm at most 2 * bound.

    Privacy: ``event`` is one Gaussian release of the weighted sum of the rows; the unit is one record or person, the
    sensitivity ``bound``. The noise scale is noise_multiplier * bound in each coordinate (0.01 % more, for the rounding
    of the sum). The sum is divided by the public n_records.

    Parameters
    ----------
    bound : float
    noise_multiplier : float or None
        None while it is not set.

    Theory: Facts 1 and 5
    """

    bound: float = 1.0
    noise_multiplier: float | None = None

    stage: ClassVar[str] = "mean of the rows"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_noise(self)

    def part_moments(self, rows: NDArray[Any], weights: FloatArray | None) -> FloatArray:
        """Return the weighted sum of the rows."""
        return np.asarray(weighted_rows(scaled_rows(rows, self.bound, unit=False), weights).sum(axis=0))

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> CenteredRows:
        """Return the transform with the private mean in it."""
        noise = require_noise(self.noise_multiplier) * self.bound * (1 + sum_slack(n_records))
        mean = gaussian_release(total, noise, rng, n_records) / check_count("n_records", n_records)
        return CenteredRows(float(self.bound), scaled_rows(mean[None, :], self.bound, unit=False)[0])


@dataclass(frozen=True)
class PrivateStandardize(SummedStep):
    """Subtract a private mean and divide by a private scale, per feature.

    Features are clipped to [low, high] and mapped to v in [-1, 1]. The scale is never below ``scale_floor`` (of half
    the range) nor below what the noise can resolve, both public. Standardized features are clipped to +-``limit``.

    Privacy: ``event`` is one Gaussian release of the sum of (v, v^2 - 1/2) over the rows; the unit is one record or
    person, the sensitivity sqrt(5/4 * features) in norm.

    Parameters
    ----------
    low, high : float, or array of shape (n_features,)
        The public bounds.
    noise_multiplier : float or None
        None while it is not set.
    scale_floor, limit : float

    Theory: Facts 1 and 5
    """

    low: Any
    high: Any
    noise_multiplier: float | None = None
    scale_floor: float = 0.01
    limit: float = 5.0

    stage: ClassVar[str] = "means and scales of the features"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_noise(self)
        check_positive("scale_floor", self.scale_floor)
        check_positive("limit", self.limit)

    @property
    def input_width(self) -> int | None:
        """Return the number of features with bounds of their own; None where all have the same."""
        return width_of_bounds(self)

    def part_moments(self, rows: NDArray[Any], weights: FloatArray | None) -> FloatArray:
        """Return the weighted sums of (v, v^2 - 1/2), shape (2, features)."""
        unit = PublicBounds(self.low, self.high).transform_of(rows.shape[1]).apply(rows)
        return np.stack([weighted_rows(v, weights).sum(axis=0) for v in (unit, unit**2 - 0.5)])

    def sensitivity(self, n_features: int) -> float:
        """Return the largest change of the sums by one record or person, in Euclidean norm."""
        return math.sqrt(1.25 * n_features)

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> FeatureTransform:
        """Return the transform with the private mean and scale in it."""
        n, width = check_count("n_records", n_records), total.shape[1]
        noise = require_noise(self.noise_multiplier) * self.sensitivity(width) * (1 + sum_slack(n))
        mean, square = gaussian_release(total, noise, rng, n) / n
        mean = np.clip(mean, -1.0, 1.0)
        # below this the variance would be mostly noise
        floor = max(float(self.scale_floor), math.sqrt(2 * noise / n))
        scale = np.sqrt(np.clip(square + 0.5 - mean**2, min(floor, 1.0) ** 2, 1.0))
        low, high = broadcast_bounds(self, width)
        middle, half = (low + high) / 2, (high - low) / 2
        return FeatureTransform(low, high, middle + mean * half, scale * half, float(self.limit))


def check_bounds(step: Any) -> None:
    """Check the bounds of a frozen step and turn them into numbers or tuples of numbers."""
    try:
        low, high = np.asarray(step.low, dtype=np.float64), np.asarray(step.high, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("low and high must be numbers, or one number per feature") from None
    if low.ndim > 1 or high.ndim > 1:
        raise ValueError("low and high must be numbers, or one number per feature")
    if low.ndim == high.ndim == 1 and len(low) != len(high):
        raise ValueError(f"low and high must contain one number for each feature, got {len(low)} and {len(high)}")
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
        raise ValueError("low and high must be finite with low < high for every feature")
    require_normal("high - low", high - low)
    # tuples, so that a frozen step can be compared and hashed
    for name, value in (("low", low), ("high", high)):
        object.__setattr__(step, name, float(value) if value.ndim == 0 else tuple(value.tolist()))


def width_of_bounds(step: Any) -> int | None:
    """Return the number of features of checked bounds; None for one number that holds for all."""
    return next((len(bound) for bound in (step.low, step.high) if np.ndim(bound) == 1), None)


def broadcast_bounds(step: Any, width: int) -> tuple[FloatArray, FloatArray]:
    """Return checked bounds as arrays with one number for each feature."""
    if (found := width_of_bounds(step)) not in (None, width):
        raise ValueError(f"low and high must contain one number for each of the {width} features, got {found}")
    return np.broadcast_to(step.low, width).astype(np.float64), np.broadcast_to(step.high, width).astype(np.float64)


def check_columns(columns: tuple[int, ...], n_features: int) -> tuple[int, ...]:
    """Return different numbers of features, all of them for (); ValueError for anything else."""
    if not columns:
        return tuple(range(n_features))
    found = tuple(check_count("columns[i]", column, minimum=0) for column in columns)
    if len(set(found)) < len(found) or max(found) >= n_features:
        raise ValueError(f"columns must be different numbers of features, from 0 to {n_features - 1}")
    return found


def check_noise(step: Any) -> None:
    """Refuse a noise multiplier that is set and not positive."""
    if step.noise_multiplier is not None:
        check_positive("noise_multiplier", step.noise_multiplier)
