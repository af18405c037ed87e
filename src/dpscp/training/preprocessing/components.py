"""Project bounded rows on the leading directions of one noisy second-moment matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.training.engine.networks import scaled_rows
from dpscp.training.preprocessing.second_moment import MatrixTransform, SecondMomentStep
from dpscp.training.preprocessing.step import Transform


@dataclass(frozen=True)
class ComponentTransform(MatrixTransform, Transform):
    """Shorten a row to norm ``bound`` and project it on released orthonormal directions.

    Theory: Fact 5
    """

    bound: float = 1.0

    kind: ClassVar[str] = "components"

    def apply(self, X: ArrayLike) -> FloatArray:
        # once more after the product, whose rounding may lengthen a row
        return scaled_rows(self.multiply(self.scale_rows(X, self.bound, unit=False)), self.bound, unit=False)

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "bound": self.bound}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        return cls(np.asarray(arrays["matrix"], dtype=np.float64), check_positive("bound", config["bound"]))


@dataclass(frozen=True)
class PrivatePCA(SecondMomentStep):
    """Keep the ``n_components`` leading directions of rows of norm at most ``bound``, privately.

    The directions are eigenvectors of the noisy second moment; they cost nothing beyond it. Nothing is centered: put
    ``PrivateStandardize`` or ``PrivateCentering`` before this step, and set ``bound`` to a typical row norm behind it.
    A smaller bound means less noise and more shortened rows.

    Privacy: one Gaussian release of the second moment, see ``SecondMomentStep``.

    Parameters
    ----------
    n_components : int
        The number of columns of the result; a public number, at most that of the rows.
    bound : float
        The public bound of the row norm.
    noise_multiplier : float, optional
        Default: the mechanism around this step sets it.

    >>> step = PrivatePCA(1, noise_multiplier=2.0)
    >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [10, 1, 1]
    >>> step.fit(rows, n_records=500, rng=np.random.default_rng(1)).apply(rows).shape
    (500, 1)

    Theory: Facts 1 and 5
    """

    n_components: int
    bound: float = 1.0
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_components", self.n_components)

    def width_after(self, width: int) -> int:
        """Return the number of columns of the result; refuse more than there are."""
        if self.n_components > width:
            raise ValueError(f"n_components must be at most the number of columns, {width}, got {self.n_components}")
        return self.n_components

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> ComponentTransform:
        """Return the transform with the leading directions in it."""
        second, _ = self.release_moment(total, n_records=n_records, rng=rng)
        _, vectors = np.linalg.eigh(second)  # by rising eigenvalues
        leading = vectors[:, ::-1][:, : self.width_after(len(second))]
        return ComponentTransform(np.ascontiguousarray(leading), float(self.bound))
