"""Apply fitted preprocessing: fixed functions of one row.

They contain public constants and released numbers only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_positive
from dpscp.data.scales import LINEAR, check_scale, finite_on_scale
from dpscp.training.engine.networks import check_rows, scaled_rows
from dpscp.training.preprocessing.step import Transform


@dataclass(frozen=True)
class FeatureTransform(Transform):
    """Clip, shift, divide and clip each feature.

    Values are clipped to [low, high], shifted by ``shift``, divided by ``scale`` and clipped to +-``limit``.

    An infinite ``limit`` or bound switches that clipping off.

    Theory: Fact 5
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
class ScaleTransform(Transform):
    """Put each feature on its public scale; numbers where it is not defined become its smallest one.

    Theory: Fact 1
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
class RowTransform(Transform):
    """Row-wise: scale a row to norm ``bound`` (``unit``), or only if it is longer.

    Then subtract ``shift``.

    A row of zeros stays a row of zeros. The result depends on the row and on released numbers only.

    Theory: Fact 5
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
