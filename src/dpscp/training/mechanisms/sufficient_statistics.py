"""Fit linear regressions from private sufficient statistics.

Everything the least-squares solution needs is the Gram matrix and the cross moments: sums over records of x
x' and x y. They are released once with Gaussian noise; the ridge, the solution and any later use are
post-processing.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_positive, check_range
from dpscp.training.base import GaussianSums, Trained, TrainingRun, require_noise
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import SUM_SLACK, gaussian_release, release_symmetric, sum_in_parts
from dpscp.training.engine.rows import bounded_targets, check_rows, feature_rows

# Each of the two releases gets half of the squared budget.
_HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class SufficientStatistics(GaussianSums):
    """Fit a ridge regression on a noisy Gram matrix and noisy cross moments.

    Rows are clipped to norm ``feature_bound`` (in prediction too), targets to ``y_bounds`` and centered there. The
    ridge is chosen from the noisy Gram matrix only. It is just large enough to lift the smallest eigenvalue to the
    expected spectral norm of the noise, and to the squared norm of one row.

    Privacy: ``event`` is one Gaussian release of ``noise_multiplier``; the unit is one record, or one person (a
    weighted mean of records). The coordinates are the upper triangle of x x' with its off-diagonal entries times
    sqrt(2), and x y. In them the sensitivities are B^2 and B Y, where B bounds a row with its bias coordinate and Y a
    centered target. The noise scales are noise_multiplier * B^2 * sqrt(2) and noise_multiplier * B Y * sqrt(2).

    Parameters
    ----------
    feature_bound : float
        A public bound on the norm of a row without bias.
    y_bounds : (low, high)
        The public range of the target.
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.

    Paper: Remark on private training [remark: dp mech stab]; Supplement S3 [sec:assumption_validation]
    """

    feature_bound: float
    y_bounds: tuple[float, float]
    noise_multiplier: float | None = None

    trains_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("feature_bound", self.feature_bound)
        object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the bounds on a row's norm (with bias) and on a centered target."""
        return math.hypot(self.feature_bound, 1.0), (self.y_bounds[1] - self.y_bounds[0]) / 2

    @property
    def noises(self) -> tuple[float, float]:
        """Return the noise scales of a Gram diagonal entry and of a cross moment."""
        noise, (row, target) = require_noise(self.noise_multiplier) * (1 + SUM_SLACK), self.bounds
        return noise * row**2 / _HALF, noise * row * target / _HALF

    def moments(self, X: ArrayLike, y: ArrayLike, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the exact weighted Gram matrix and cross moments.

        ``train`` adds noise to them; they are never released without it.
        """
        rows = feature_rows(
            check_rows(X, finite=False), feature_bound=self.feature_bound, intercept=True, dtype="float64"
        )
        # clipped again: rounding may leave the range
        longest = self.bounds[1]
        target = np.clip(bounded_targets(y, self.y_bounds) - sum(self.y_bounds) / 2, -longest, longest)
        if len(target) != len(rows):
            raise ValueError("X and y must hold the same number of records")
        # the square root on both sides: the product of an array with itself is symmetric to the last bit
        roots = np.sqrt(weights)
        rows, target = rows * roots[:, None], target * roots
        return sum_in_parts(lambda part: part.T @ part, rows), sum_in_parts(lambda part, y: part.T @ y, rows, target)

    def train_on(self, run: TrainingRun) -> Trained:
        """Release the noisy moments once and solve."""
        n, width, rng = run.n_records, run.source.width, run.generator()
        (row_bound, target_bound), (gram_noise, cross_noise) = self.bounds, self.noises
        gram, cross = self.moments(run.rows, run.targets, run.weights)
        values, vectors = np.linalg.eigh(release_symmetric(gram, gram_noise, rng))
        noisy_cross = gaussian_release(cross, cross_noise, rng)
        # n records cannot have longer cross moments: bringing noise back there is post-processing
        noisy_cross *= min(1.0, n * row_bound * target_bound / max(float(np.linalg.norm(noisy_cross)), 1e-300))
        # the smallest sufficient multiple of the identity; the eigenvalues rise
        values += max(0.0, max(row_bound**2, gram_noise * math.sqrt(2 * len(values))) - values[0])
        theta = np.asarray(vectors @ (vectors.T @ noisy_cross / values))
        theta[-1] += sum(self.y_bounds) / 2
        facts: dict[str, object] = {
            name: getattr(self, name) for name in ("noise_multiplier", "feature_bound", "y_bounds")
        }
        model = DenseModel(Network((width, 1)), Loss("squared"), theta, None, self.feature_bound)
        return run.result(model, facts)
