"""Whiten bounded rows with one noisy second-moment matrix.

Noise in a linear head affects every direction of the rows alike. Features of pretrained networks have most of their
length in a few directions that say little about the label. Shrinking these (and scaling rows back to norm one) makes
the same noise cost less.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count, check_positive
from dpscp.training.engine.gaussian_release import gaussian_release, sum_slack
from dpscp.training.engine.networks import Network, RowOutputs, check_rows
from dpscp.training.engine.padding import blas_threads
from dpscp.training.mechanism import require_noise
from dpscp.training.preprocessing.sums import SummedStep
from dpscp.training.preprocessing.transforms import scaled_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WhiteningTransform:
    """Multiply a row by a released matrix and scale the result to norm one.

    A row of zeros stays zero.

    Theory: section 1.5
    """

    matrix: Array

    kind: ClassVar[str] = "whitening"
    row_length: ClassVar[float] = 1.0

    def apply(self, X: ArrayLike) -> Array:
        # Unit rows first: the result does not depend on a row's length, and the product cannot overflow.
        rows = scaled_rows(check_rows(X, self.matrix.shape[0], finite=False), 1.0, unit=True)
        threads = blas_threads()  # a product rounds by their number: see `AlikeBlocks`
        if threads not in self._products:
            self._products[threads] = RowOutputs(Network(self.matrix.shape, intercept=False), self.matrix.T.ravel())
        return scaled_rows(self._products[threads](rows), 1.0, unit=True)

    @cached_property
    def _products(self) -> dict[tuple[int, ...], RowOutputs]:
        return {}

    def __reduce__(self) -> tuple[type[Self], tuple[Array]]:
        """Pickle the matrix only, not what is computed from it."""
        return type(self), (self.matrix,)

    def arrays(self) -> dict[str, Array]:
        return {"matrix": self.matrix}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:  # noqa: ARG003
        return cls(np.asarray(arrays["matrix"], dtype=np.float64))


@dataclass(frozen=True)
class PrivateWhitening(SummedStep):
    """Even out the second moment of rows of norm at most ``bound``, privately.

    Longer rows are shortened first. Rows are multiplied by (S + level I)^(-1/2) and scaled to norm one. S is the
    release with negative eigenvalues set to 0. ``level`` is ``ridge`` times the largest eigenvalue to be expected of
    the noise alone, so directions that the noise hides stay unchanged.

    Privacy: ``event`` is one Gaussian release of the sum of x x^T / bound^2. The unit is one record, or one person (a
    weighted mean of such terms); the sensitivity is 1 in Frobenius norm. The noise is symmetric, with standard
    deviation noise_multiplier in an orthonormal basis of the symmetric matrices. The sum is divided by the public
    n_records.

    >>> step = PrivateWhitening(noise_multiplier=2.0)
    >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [10, 1, 1]
    >>> step.fit(rows, n_records=500, rng=np.random.default_rng(1)).apply(rows).shape
    (500, 3)

    Theory: sections 1.1, 1.5
    """

    bound: float = 1.0
    noise_multiplier: float | None = None
    ridge: float = 0.5

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_positive("ridge", self.ridge)
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)

    def with_noise(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def part_moments(self, rows: NDArray[Any], weights: Array | None) -> Array:
        """Return the weighted sum of outer products."""
        scaled = scaled_rows(rows, self.bound, unit=False)
        scaled /= self.bound
        if weights is not None:
            scaled *= np.sqrt(weights)[:, None]
        return np.asarray(scaled.T @ scaled)

    def release(self, total: Array, *, n_records: int, rng: np.random.Generator) -> WhiteningTransform:
        """Return the transform with the private second moment in it."""
        n, width = check_count("n_records", n_records), len(total)
        noise = require_noise(self.noise_multiplier) * (1 + sum_slack(n))
        released = gaussian_release(_coordinates(total), noise, rng, n) / n
        i, j = np.triu_indices(width)
        second = np.zeros((width, width))
        second[i, j] = released / np.where(i == j, 1.0, math.sqrt(2.0))
        second[j, i] = second[i, j]
        values, vectors = np.linalg.eigh(second)
        level = self.ridge * noise * math.sqrt(2.0 * width) / n
        factors = (np.maximum(values, 0.0) + level) ** -0.5
        return WhiteningTransform(np.asarray((vectors * (factors / factors.max())) @ vectors.T))


def _coordinates(symmetric: Array) -> Array:
    """Return a symmetric matrix in an orthonormal basis of the symmetric ones."""
    i, j = np.triu_indices(len(symmetric))
    return np.asarray(symmetric[i, j] * np.where(i == j, 1.0, math.sqrt(2.0)))
