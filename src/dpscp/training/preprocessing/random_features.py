"""Add bent functions of random public directions to rows, so that a linear model follows curves.

A hidden layer has noise in the directions and in the weights behind them. With few records the noise hides what it
learns. Here the directions are public and fixed, so only the weights are learned. The noise in an output depends on the
length of a row, whatever the number of directions.

Theory: Fact 5
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count, check_positive
from dpscp.training.engine.rows import check_rows, scaled_rows, squared_norms
from dpscp.training.preprocessing.preprocess import PublicStep, Transform
from dpscp.training.preprocessing.second_moment import MatrixProduct

# Standard deviation of |z| for a standard normal z.
_SPREAD = math.sqrt(1 - 2 / math.pi)


@dataclass(frozen=True)
class RandomFeatureRows(MatrixProduct, Transform):
    """Shorten a row x to norm ``bound`` and add ``scale`` * (|x . v| - m) for each column v of the matrix.

    m is about the mean of |x . v| over all directions.

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
    """Add ``count`` absolute values of projections on random public directions to each row.

    Put a step before it after which features have about mean 0 and spread 1, and a linear mechanism behind it. Products
    and bends of the features are then linear in the rows, as far as ``count`` directions show them. No privacy cost:
    the directions are drawn from ``seed`` alone.

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
