"""Apply fitted preprocessing: fixed functions of one row.

They contain public constants and released numbers only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_positive
from dpscp.data.scales import LINEAR, check_scale, finite_on_scale
from dpscp.training.engine.networks import check_rows, largest_entries, squared_norms
from dpscp.training.engine.padding import aligned_empty

# Temporaries of so many numbers stay in the cache.
_NUMBERS_AT_ONCE = 1 << 16


@runtime_checkable
class Transform(Protocol):
    """A fitted step.

    A fixed function of one row, with nothing in it that was not paid for.
    """

    def apply(self, X: ArrayLike) -> FloatArray:
        """Return the transformed rows, as a new float64 array.

        The caller of the steps checks that numbers are finite.
        """

    def arrays(self) -> dict[str, FloatArray]:
        """Return the released numbers, for saving."""

    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values."""


@runtime_checkable
class HasRowLength(Protocol):
    """A transform that may give every row the same length; rows of zeros stay zero."""

    @property
    def row_length(self) -> float | None:
        """Return the length; None where rows differ in length."""


@runtime_checkable
class HasWidth(Protocol):
    """A transform that changes the number of columns."""

    @property
    def width(self) -> int:
        """Return the number of columns of a transformed row."""


@dataclass(frozen=True)
class FeatureTransform:
    """Clip, shift, divide and clip each feature.

    Values are clipped to [low, high], shifted by ``shift``, divided by ``scale`` and clipped to +-``limit``.

    An infinite ``limit`` or bound switches that clipping off.

    Theory: section 1.5
    """

    low: FloatArray
    high: FloatArray
    shift: FloatArray
    scale: FloatArray
    limit: float = math.inf

    kind: ClassVar[str] = "feature"

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = np.array(check_rows(X, len(self.shift), finite=False), dtype=np.float64)
        np.clip(rows, self.low, self.high, out=rows)
        rows -= self.shift
        rows /= self.scale
        return np.clip(rows, -self.limit, self.limit, out=rows) if math.isfinite(self.limit) else rows

    def arrays(self) -> dict[str, FloatArray]:
        return {"low": self.low, "high": self.high, "shift": self.shift, "scale": self.scale}

    def config(self) -> dict[str, Any]:
        """Return the public constants as JSON values (an infinite limit is null)."""
        return {"kind": self.kind, "limit": self.limit if math.isfinite(self.limit) else None}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        limit = math.inf if config["limit"] is None else check_positive("limit", config["limit"])
        low, high, shift, scale = (
            np.asarray(arrays[name], dtype=np.float64) for name in ("low", "high", "shift", "scale")
        )
        return cls(low, high, shift, scale, limit)


@dataclass(frozen=True)
class ScaleTransform:
    """Put each feature on its public scale; numbers where it is not defined become its smallest one.

    Theory: section 1.1
    """

    scales: tuple[str, ...]

    kind: ClassVar[str] = "scale"

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = np.array(check_rows(X, len(self.scales), finite=False), dtype=np.float64)
        for place, scale in enumerate(self.scales):
            if scale != LINEAR:
                # a number that is not finite stays so, and is refused by the reader of all rows
                rows[:, place] = np.where(
                    np.isfinite(rows[:, place]), finite_on_scale(rows[:, place], scale), rows[:, place]
                )
        return rows

    def arrays(self) -> dict[str, FloatArray]:
        return {}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "scales": list(self.scales)}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:  # noqa: ARG003
        return cls(tuple(check_scale("scales[i]", scale, None) for scale in config["scales"]))


@dataclass(frozen=True)
class RowTransform:
    """Row-wise: scale a row to norm ``bound`` (``unit``), or only if it is longer.

    Then subtract ``shift``.

    A row of zeros stays a row of zeros. The result depends on the row and on released numbers only.

    Theory: section 1.5
    """

    bound: float
    unit: bool
    shift: FloatArray | None = None
    n_features: int | None = None

    kind: ClassVar[str] = "row"

    @property
    def row_length(self) -> float | None:
        return self.bound if self.unit and self.shift is None else None

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = scaled_rows(check_rows(X, self.n_features, finite=False), self.bound, unit=self.unit)
        if self.shift is not None:
            rows -= self.shift
        return rows

    def arrays(self) -> dict[str, FloatArray]:
        return {} if self.shift is None else {"shift": self.shift}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "bound": self.bound, "unit": self.unit, "n_features": self.n_features}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        shift = arrays.get("shift")
        released = None if shift is None else np.asarray(shift, dtype=np.float64)
        return cls(check_positive("bound", config["bound"]), bool(config["unit"]), released, config["n_features"])


def scaled_rows(rows: NDArray[Any], bound: float, *, unit: bool) -> FloatArray:
    """Return a float64 copy with every row scaled or shortened to ``bound``.

    No row is longer than ``bound`` after rounding.

    Rows are divided by their largest entry first, so that squares neither overflow nor underflow. A row's
    result has the same bits wherever the row stands.
    """
    out = aligned_empty(rows.shape, "float64")
    out[...] = rows
    step = max(1, _NUMBERS_AT_ONCE // rows.shape[1])
    for start in range(0, len(out), step):
        part = out[start : start + step]
        largest = largest_entries(part)[:, None]
        part /= np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(squared_norms(part))[:, None]
        target = np.full_like(lengths, bound)
        if not unit:
            with np.errstate(over="ignore"):
                np.minimum(target, lengths * largest, out=target)
        # slightly inside the ball: the promise "norm at most bound" must survive rounding
        np.divide(target * (1 - 1e-15 * (4 + rows.shape[1])), lengths, out=target, where=lengths > 0)
        part *= target
    return out
