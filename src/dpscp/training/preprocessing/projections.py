"""Multiply rows by a private whitening matrix or random public directions.

Second moment. Noise in a linear head affects every direction of the rows alike. Features of pretrained networks have
most of their length in a few directions that say little about the label. Shrinking these (and scaling rows back to norm
one) makes the same noise cost less.

Random directions. A hidden layer has noise in the directions and in the weights behind them. With few records the noise
hides what it learns. Public fixed directions leave only the weights to be learned. The noise in an output depends on
the length of a row, whatever the number of directions.

Theory: Fact 5
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.training.base import require_noise
from dpscp.training.engine.networks import Network, RowOutputs
from dpscp.training.engine.noise import release_symmetric, sum_slack
from dpscp.training.engine.rows import check_rows, scaled_rows, squared_norms
from dpscp.training.engine.threads import blas_threads
from dpscp.training.preprocessing.steps import PublicStep, SummedStep, Transform, check_noise

# Standard deviation of |z| for a standard normal z.
_SPREAD = math.sqrt(1 - 2 / math.pi)


@dataclass(frozen=True)
class MatrixProduct:
    """Base class of transforms that multiply rows by a matrix.

    The matrix has the shape (n_features, width).
    """

    matrix: FloatArray

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


@dataclass(frozen=True)
class MatrixTransform(MatrixProduct, Transform):
    """Give a row norm one, multiply it by a square matrix, and do the first again.

    A row of zeros stays zero. The result does not depend on a row's length, and the product cannot overflow.

    Theory: Fact 5
    """

    kind: ClassVar[str] = "matrix"
    row_length: ClassVar[float] = 1.0

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = scaled_rows(check_rows(X, len(self.matrix), finite=False), 1.0, unit=True)
        # once more after the product, whose rounding may lengthen a row
        return scaled_rows(self.multiply(rows), 1.0, unit=True)


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

    stage: ClassVar[str] = "second moment of the rows"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_positive("ridge", self.ridge)
        check_noise(self)

    def part_moments(self, rows: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the weighted sum of outer products."""
        scaled = scaled_rows(rows, self.bound, unit=False)
        scaled /= self.bound
        scaled *= np.sqrt(weights)[:, None]
        return np.asarray(scaled.T @ scaled)

    def release(self, total: FloatArray, *, n_records: int, rng: np.random.Generator) -> MatrixTransform:
        """Return the transform with the private second moment in it."""
        n = check_count("n_records", n_records)
        noise = require_noise(self.noise_multiplier) * (1 + sum_slack(n))
        values, vectors = np.linalg.eigh(release_symmetric(total, noise, rng, n) / n)
        level = self.ridge * noise * math.sqrt(2.0 * len(values)) / n
        factors = (np.maximum(values, 0.0) + level) ** -0.5
        return MatrixTransform(np.asarray((vectors * (factors / factors.max())) @ vectors.T))


@dataclass(frozen=True)
class RandomFeatureRows(MatrixProduct, Transform):
    """Shorten a row x and add ``scale`` * (|x . v| - m) for each column v.

    The row is shortened to norm ``bound``, and the columns are those of the matrix. m is about the mean of |x . v| over
    all directions.

    Theory: Fact 5
    """

    bound: float
    scale: float

    kind: ClassVar[str] = "random_features"

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_positive("scale", self.scale)

    @property
    def width(self) -> int:
        return sum(self.matrix.shape)

    def apply(self, X: ArrayLike) -> FloatArray:
        rows = scaled_rows(check_rows(X, len(self.matrix), finite=False), self.bound, unit=False)
        bent = np.abs(self.multiply(rows))
        # a constant would be right only for features whose spread is known
        bent -= math.sqrt(2 / (math.pi * rows.shape[1])) * np.sqrt(squared_norms(rows))[:, None]
        bent *= self.scale
        return np.hstack([rows, bent])


@dataclass(frozen=True)
class RandomFeatures(PublicStep):
    """Add ``count`` absolute random projections to each row.

    The directions are random and public. Put a step before it after which features have about mean 0 and spread 1, and
    a linear mechanism behind it. Products and bends of the features are then linear in the rows, as far as ``count``
    directions show them. No privacy cost: the directions are drawn from ``seed`` alone.

    Parameters
    ----------
    bound : float
        Longer rows are shortened to this norm.
    count : int
        The number of directions.
    weight : float
        The squared length of the added features, in parts of that of a row.
    seed : int
        The public seed of the directions.

    >>> RandomFeatures(8.0, count=16).width_after(4)
    20

    Theory: Facts 1 and 5
    """

    bound: float
    count: int = 128
    weight: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_count("count", self.count)
        check_positive("weight", self.weight)
        check_count("seed", self.seed, minimum=0)

    def width_after(self, width: int) -> int:
        """Return the number of columns with the added ones."""
        return width + self.count

    def transform_of(self, width: int) -> RandomFeatureRows:
        """Return the transform of rows of this width."""
        directions = np.random.Generator(np.random.PCG64(self.seed)).standard_normal((width, self.count))
        directions /= np.linalg.norm(directions, axis=0)
        scale = math.sqrt(self.weight * width / self.count) / _SPREAD
        return RandomFeatureRows(directions, float(self.bound), scale)
