"""Define preprocessing steps and transforms; bound or standardize rows.

Standardizing with the data's own mean and scale leaks, because the released predictor contains them. A step either uses
public constants and the row itself only (`PublicStep`: no cost), or it releases something of the records with noise
(`SummedStep`, or `Step` itself). Sums are divided by the public ``n_records``, never by the number of rows.

To add a step, write its class and the class of its `Transform` in one module of this package, and enter the step in
``dpscp.training.__init__``. Outside this package the two classes alone are enough.

Theory: Fact 5; Result B
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.callers import ROUNDING, call_on_rows
from dpscp._base.checks import (
    check_count,
    check_positive,
    is_of_caller,
    require_normal,
)
from dpscp.data.scales import LINEAR, check_scale, finite_on_scale
from dpscp.data.sources import RecordSource
from dpscp.privacy import gaussian_event
from dpscp.training.base import (
    array_source,
    require_noise,
)
from dpscp.training.engine.noise import gaussian_release, source_sum, sum_slack
from dpscp.training.engine.rows import check_rows, scaled_rows

# One record, or one person with weights that add up to one, changes the sum of (v, v^2 - 1/2), v in [-1, 1], by at most
# this in norm.
MOMENT_SENSITIVITY = math.sqrt(1.25)
# No private scale is below this part of half the range.
_LEAST_SCALE = 0.01
TRANSFORMS: dict[str, type["Transform"]] = {}
"""The classes of fitted steps by the name that files have for them; a class with ``kind`` enters itself."""


class Transform(ABC):
    """Base class of fitted steps: a fixed function of one row.

    It contains released or public numbers only. Define `apply`. A dataclass with ``kind`` is saved by its fields:
    arrays, and JSON values.

    Assumes: a transformed row is computed from that row alone. So a transform leaves what one record adds to a later
    sum where the later step bounds it.

    Attributes
    ----------
    kind : str
        The name of the class in files; set by every class that files may hold.
    features : tuple of int
        The columns before the transform that a release kept; (): all of them.

    Theory: Fact 5
    """

    kind: ClassVar[str]
    features: tuple[int, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("kind")
        if own is not None and TRANSFORMS.setdefault(own, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"another class already saves its transforms as {own!r}; choose another kind")

    @abstractmethod
    def apply(self, X: ArrayLike) -> FloatArray:
        """Return the transformed rows, as a new float64 array.

        The caller of the steps checks that numbers are finite.
        """

    def apply_to_records(self, X: ArrayLike) -> FloatArray:
        """Return the transformed rows.

        Code of the caller gets copies of them, in two different divisions into blocks.
        """
        if not is_of_caller(self):
            return self.apply(X)
        rows = np.asarray(X)

        def read(found: Any, size: int) -> FloatArray:
            values = np.asarray(found, dtype=np.float64)
            if values.ndim != 2 or len(values) != size:
                raise ValueError(f"{type(self).__name__}.apply must return one row for each row")
            return values

        empty = np.empty((0, rows.shape[1] if self.width is None else self.width))
        return call_on_rows(
            type(self).__name__, self.apply, (rows,), len(rows), read=read, empty=empty, tolerance=ROUNDING
        )

    def arrays(self) -> dict[str, FloatArray]:
        """Return the released numbers, for saving."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values, with ``kind``."""
        constants = (own.name for own in fields(cast("Any", self)) if own.name not in self.arrays())
        return {"kind": self.kind, **{name: getattr(self, name) for name in constants}}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        """Rebuild the transform of `config` and `arrays`; its class checks fields."""
        constants = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items() if name != "kind"}
        return cls(**constants, **{name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()})

    @property
    def origins(self) -> tuple[int, ...]:
        """Return the column before this transform of each column after it.

        An empty tuple means that the first columns keep their places.
        """
        return ()

    @property
    def row_length(self) -> float | None:
        """Return the length of every row but rows of zeros; None if it varies."""
        return None

    @property
    def width(self) -> int | None:
        """Return the number of columns of a transformed row; None: as many as before."""
        return None


class Step(ABC):
    """Base class of preprocessing steps: public constants before a fit.

    A subclass is a frozen dataclass. Define `event` and `fit_source`, or inherit `PublicStep` or `SummedStep`, which
    define them.

    Privacy: ``event`` pays for everything that the transform contains of the records. State in the docstring of the
    class what one record, or one person with all their rows, can change (the sensitivity), and why.

    Assumes: nothing about the rows but their width, unless the docstring of the class says so.

    Attributes
    ----------
    stage : str
        The name of the step's entry in a ledger.
    is_public : bool
        Whether the transform follows from public constants and the width of a row alone.
    uses_own_target : bool
        Whether the target of a record changes its own transformed row, noise aside.

    Theory: Fact 5; Result H
    """

    stage: ClassVar[str] = "preprocessing"
    is_public: ClassVar[bool] = False
    uses_own_target: ClassVar[bool] = False

    @property
    @abstractmethod
    def event(self) -> DpEvent | None:
        """Return the cost of fitting, from public constants; None without noise."""

    @abstractmethod
    def fit_source(
        self, source: RecordSource, *, n_records: int, rng: np.random.Generator, random_state: int | None = None
    ) -> Transform:
        """Return the fitted transform.

        What is done with a block is a pure function that can be pickled. Noise is drawn here, not where the records
        are: from ``rng``, or as integers by ``random_state`` (None: the system's entropy).
        """

    @property
    def input_width(self) -> int | None:
        """Return the number of columns that this step is for; None for rows of any width."""
        return None

    def width_after(self, width: int) -> int | None:
        """Return the number of columns after this step; None if released later."""
        return width

    def with_noise(self, noise_multiplier: float) -> Self:
        """Return the same step with this noise, in units of its sensitivity."""
        if not (is_dataclass(self) and any(own.name == "noise_multiplier" for own in fields(self))):
            raise TypeError(f"{type(self).__name__} has no field noise_multiplier; define with_noise")
        return replace(self, noise_multiplier=noise_multiplier)

    def fit(self, X: ArrayLike, *, n_records: int, rng: np.random.Generator) -> Transform:
        """Return the transform fitted to rows in memory, each of a person of its own."""
        rows = check_rows(X)
        return self.fit_source(array_source(rows, np.zeros(len(rows))), n_records=n_records, rng=rng)


class PublicStep(Step):
    """A step of public constants and the data's width, at no privacy cost.

    Also inherit `Transform` and define `apply`, or define `transform_of`.
    """

    is_public: ClassVar[bool] = True

    @property
    def event(self) -> DpEvent:
        """Return the event of a step without cost."""
        return NoOpDpEvent()

    def transform_of(self, width: int) -> Transform:  # noqa: ARG002
        """Return the transform of rows of this width; the step itself, if it is one."""
        assert isinstance(self, Transform)
        return self

    def fit_source(self, source: RecordSource, **_: Any) -> Transform:
        return self.transform_of(source.width)


class SummedStep(Step):
    """A step that releases one sum over the records, in two halves.

    Define three things: ``part_moments``, a pure function of some rows that runs in the process of the records;
    ``release``, which adds the noise once; and the field ``noise_multiplier``.

    Privacy: one Gaussian release of ``noise_multiplier``. The noise must be the multiplier times what one record can
    change in the sum, in Euclidean norm. A sum is divided by the public ``n_records``, never by the number of rows.

    Theory: Fact 5; Result H
    """

    noise_multiplier: float | None

    @abstractmethod
    def part_moments(self, rows: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the exact weighted sums of some rows, never released without noise.

        A function of them alone, and so of each row alone. The weights of one person add up to at most one.
        """

    @abstractmethod
    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> Transform:
        """Return the transform with the noisy total in it."""

    @property
    def event(self) -> DpEvent | None:
        return None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)

    def fit_source(self, source: RecordSource, *, n_records: int, rng: np.random.Generator, **_: Any) -> Transform:
        return self.release(source_sum(self.part_moments, source, n_records), n_records=n_records, rng=rng)


@dataclass(frozen=True)
class FeatureTransform(Transform):
    """Clip each feature, subtract ``shift``, divide by ``scale``, clip again.

    The first range is [low, high], the second one +-``limit``, if any.

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
        """Return how many features have bounds of their own; None if all share them."""
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
    """Scale every row to norm one, at no privacy cost; a row of zeros stays one.

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

    def part_moments(self, rows: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the weighted sum of the rows."""
        return weights @ scaled_rows(rows, self.bound, unit=False)

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> CenteredRows:
        """Return the transform with the private mean in it."""
        noise = require_noise(self.noise_multiplier) * self.bound * (1 + sum_slack(n_records))
        mean = gaussian_release(total, noise, rng, n_records) / check_count("n_records", n_records)
        return CenteredRows(float(self.bound), scaled_rows(mean[None, :], self.bound, unit=False)[0])


@dataclass(frozen=True)
class PrivateStandardize(SummedStep):
    """Subtract a private mean and divide by a private scale, per feature.

    Features are clipped to [low, high] and mapped to v in [-1, 1]. The scale is never below .01 (of half the range) nor
    below what the noise can resolve, both public. Standardized features are clipped to +-``limit``.

    Privacy: ``event`` is one Gaussian release of the sum of (v, v^2 - 1/2) over the rows; the unit is one record or
    person, the sensitivity sqrt(5/4 * features) in norm.

    Parameters
    ----------
    low, high : float, or array of shape (n_features,)
        The public bounds.
    noise_multiplier : float or None
        None while it is not set.
    limit : float

    Theory: Facts 1 and 5
    """

    low: Any
    high: Any
    noise_multiplier: float | None = None
    limit: float = 5.0

    stage: ClassVar[str] = "means and scales of the features"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_noise(self)
        check_positive("limit", self.limit)

    @property
    def input_width(self) -> int | None:
        """Return how many features have bounds of their own; None if all share them."""
        return width_of_bounds(self)

    def part_moments(self, rows: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the weighted sums of (v, v^2 - 1/2), shape (2, features)."""
        unit = PublicBounds(self.low, self.high).transform_of(rows.shape[1]).apply(rows)
        return unit_moments(unit, weights)

    def sensitivity(self, n_features: int) -> float:
        """Return the sensitivity of the sums, in Euclidean norm.

        It is the largest change by one record or person.
        """
        return MOMENT_SENSITIVITY * math.sqrt(n_features)

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> FeatureTransform:
        """Return the transform with the private mean and scale in it."""
        n, width = check_count("n_records", n_records), total.shape[1]
        noise = require_noise(self.noise_multiplier) * self.sensitivity(width) * (1 + sum_slack(n))
        mean, scale, _ = release_mean_and_scale(total, noise, n, rng)
        low, high = broadcast_bounds(self, width)
        middle, half = (low + high) / 2, (high - low) / 2
        return FeatureTransform(low, high, middle + mean * half, scale * half, float(self.limit))


def unit_moments(v: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted sums of (v, v^2 - 1/2), for numbers v in [-1, 1].

    The sums are over records, with the shape (2, ...).
    """
    return np.stack([weights @ v, weights @ (v**2 - 0.5)])


def release_mean_and_scale(
    total: FloatArray, noise: float, n_records: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, float]:
    """Return the private mean and scale of numbers in [-1, 1].

    They follow from their `unit_moments` and the least scale.
    """
    mean, square = gaussian_release(total, noise, rng, n_records) / n_records
    mean = np.clip(mean, -1.0, 1.0)
    # below this the variance would be mostly noise
    floor = min(1.0, max(_LEAST_SCALE, math.sqrt(2 * noise / n_records)))
    return mean, np.sqrt(np.clip(square + 0.5 - mean**2, floor**2, 1.0)), floor


def check_bounds(step: Any) -> None:
    """Check the bounds of a frozen step and convert them to (tuples of) floats."""
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
    """Return the number of features of checked bounds; None for a single number."""
    return next((len(bound) for bound in (step.low, step.high) if np.ndim(bound) == 1), None)


def broadcast_bounds(step: Any, width: int) -> tuple[FloatArray, FloatArray]:
    """Return checked bounds as arrays with one number for each feature."""
    if (found := width_of_bounds(step)) not in (None, width):
        raise ValueError(f"low and high must contain one number for each of the {width} features, got {found}")
    return np.broadcast_to(step.low, width).astype(np.float64), np.broadcast_to(step.high, width).astype(np.float64)


def check_columns(columns: tuple[int, ...], n_features: int) -> tuple[int, ...]:
    """Return distinct feature indices, all of them for (); else ValueError."""
    if not columns:
        return tuple(range(n_features))
    found = tuple(check_count("columns[i]", column, minimum=0) for column in columns)
    if len(set(found)) < len(found) or max(found) >= n_features:
        raise ValueError(f"columns must be distinct feature indices from 0 to {n_features - 1}")
    return found


def check_noise(step: Any) -> None:
    """Refuse a noise multiplier that is set and not positive."""
    if step.noise_multiplier is not None:
        check_positive("noise_multiplier", step.noise_multiplier)
