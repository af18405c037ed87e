"""The noisy second moment of bounded rows, and products of rows with a released matrix."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.training.base import require_noise
from dpscp.training.engine.gaussian_release import gaussian_release, sum_slack
from dpscp.training.engine.networks import Network, RowOutputs, check_rows, scaled_rows
from dpscp.training.engine.padding import blas_threads
from dpscp.training.preprocessing.step import SummedStep


@dataclass(frozen=True)
class MatrixTransform:
    """Multiply rows by a released matrix of shape (n_features, width)."""

    matrix: FloatArray

    @property
    def width(self) -> int:
        """The number of columns of the result."""
        return int(self.matrix.shape[1])

    def scale_rows(self, X: ArrayLike, bound: float, *, unit: bool) -> FloatArray:
        """Return the rows, scaled or shortened to ``bound``."""
        return scaled_rows(check_rows(X, self.matrix.shape[0], finite=False), bound, unit=unit)

    def multiply(self, rows: FloatArray) -> FloatArray:
        """Return the product; the bits of a row do not depend on the other rows."""
        threads = blas_threads()  # a product rounds by their number: see `AlikeBlocks`
        if threads not in self._products:
            self._products[threads] = RowOutputs(Network(self.matrix.shape, intercept=False), self.matrix.T.ravel())
        return np.asarray(self._products[threads](rows))

    @cached_property
    def _products(self) -> dict[tuple[int, ...], RowOutputs]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields only, not what is computed from them."""
        return {name: value for name, value in vars(self).items() if name != "_products"}

    def arrays(self) -> dict[str, FloatArray]:
        return {"matrix": self.matrix}


class SecondMomentStep(SummedStep):
    """Base class, for frozen dataclasses, of the steps that use the second moment of rows of norm at most ``bound``.

    Longer rows are shortened first.

    Privacy: ``event`` is one Gaussian release of the sum of x x^T / bound^2. The unit is one record, or one person (a
    weighted mean of such terms); the sensitivity is 1 in Frobenius norm. The noise is symmetric, with standard
    deviation noise_multiplier in an orthonormal basis of the symmetric matrices. The sum is divided by the public
    n_records.

    Theory: Facts 1 and 5
    """

    bound: float
    noise_multiplier: float | None

    stage: ClassVar[str] = "second moment of the rows"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)

    def part_moments(self, rows: NDArray[Any], weights: FloatArray | None) -> FloatArray:
        """Return the weighted sum of outer products."""
        scaled = scaled_rows(rows, self.bound, unit=False)
        scaled /= self.bound
        if weights is not None:
            scaled *= np.sqrt(weights)[:, None]
        return np.asarray(scaled.T @ scaled)

    def release_moment(
        self, total: FloatArray, *, n_records: int, rng: np.random.Generator
    ) -> tuple[FloatArray, float]:
        """Return the private second moment, (n_features, n_features), and the noise scale of the sum."""
        n, width = check_count("n_records", n_records), len(total)
        noise = require_noise(self.noise_multiplier) * (1 + sum_slack(n))
        released = gaussian_release(_coordinates(total), noise, rng, n) / n
        i, j = np.triu_indices(width)
        second = np.zeros((width, width))
        second[i, j] = released / np.where(i == j, 1.0, math.sqrt(2.0))
        second[j, i] = second[i, j]
        return second, noise


def _coordinates(symmetric: FloatArray) -> FloatArray:
    """Return a symmetric matrix in an orthonormal basis of the symmetric ones."""
    i, j = np.triu_indices(len(symmetric))
    return np.asarray(symmetric[i, j] * np.where(i == j, 1.0, math.sqrt(2.0)))
