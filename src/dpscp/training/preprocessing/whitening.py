"""Whiten bounded rows with one noisy second-moment matrix.

Noise in a linear head affects every direction of the rows alike. Features of pretrained networks have most of their
length in a few directions that say little about the label. Shrinking these (and scaling rows back to norm one) makes
the same noise cost less.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_positive
from dpscp.training.engine.networks import scaled_rows
from dpscp.training.preprocessing.second_moment import MatrixTransform, SecondMomentStep
from dpscp.training.preprocessing.step import Transform


@dataclass(frozen=True)
class WhiteningTransform(MatrixTransform, Transform):
    """Multiply a row by a released matrix and scale the result to norm one.

    A row of zeros stays zero.

    Theory: Fact 5
    """

    kind: ClassVar[str] = "whitening"
    row_length: ClassVar[float] = 1.0

    def apply(self, X: ArrayLike) -> FloatArray:
        # Unit rows first: the result does not depend on a row's length, and the product cannot overflow.
        return scaled_rows(self.multiply(self.scale_rows(X, 1.0, unit=True)), 1.0, unit=True)

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:  # noqa: ARG003
        return cls(np.asarray(arrays["matrix"], dtype=np.float64))


@dataclass(frozen=True)
class PrivateWhitening(SecondMomentStep):
    """Even out the second moment of rows of norm at most ``bound``, privately.

    Longer rows are shortened first. Rows are multiplied by (S + level I)^(-1/2) and scaled to norm one. S is the
    release with negative eigenvalues set to 0. ``level`` is ``ridge`` times the largest eigenvalue to be expected of
    the noise alone, so directions that the noise hides stay unchanged.

    Privacy: one Gaussian release of the second moment, see ``SecondMomentStep``.

    Parameters
    ----------
    bound : float
        The public bound on the norm of a row.
    noise_multiplier : float or None
        None while it is not set.
    ridge : float

    >>> step = PrivateWhitening(noise_multiplier=2.0)
    >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [10, 1, 1]
    >>> step.fit(rows, n_records=500, rng=np.random.default_rng(1)).apply(rows).shape
    (500, 3)

    Theory: Facts 1 and 5
    """

    bound: float = 1.0
    noise_multiplier: float | None = None
    ridge: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("ridge", self.ridge)

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> WhiteningTransform:
        """Return the transform with the private second moment in it."""
        second, noise = self.release_moment(total, n_records=n_records, rng=rng)
        values, vectors = np.linalg.eigh(second)
        level = self.ridge * noise * math.sqrt(2.0 * len(second)) / n_records
        factors = (np.maximum(values, 0.0) + level) ** -0.5
        return WhiteningTransform(np.asarray((vectors * (factors / factors.max())) @ vectors.T))
