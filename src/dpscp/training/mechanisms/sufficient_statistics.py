"""Fit linear regressions from private sufficient statistics.

Everything the least-squares solution needs is the Gram matrix and the cross moments: sums over records of x
x' and x y. They are released once with Gaussian noise; the ridge, the solution and any later use are
post-processing.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from dpscp._base.arrays import FloatArray
from dpscp._base.assumptions import FIXED_PREPROCESSING
from dpscp._base.checks import check_positive, check_probability, check_range
from dpscp.guarantees.stability import Stability, stability_summary
from dpscp.training.base import GaussianSums, Trained, TrainingRun, require_noise
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import SUM_SLACK, gaussian_release, grid_slack, release_symmetric, sum_in_parts
from dpscp.training.engine.rows import bounded_targets, check_rows, feature_rows

__all__ = ["SufficientStatistics", "adaptive_ridge", "ball_minimizer"]


@dataclass(frozen=True)
class SufficientStatistics(GaussianSums):
    """Fit a ridge regression on a noisy Gram matrix and noisy cross moments.

    Rows are clipped to norm ``feature_bound`` (in prediction too), targets to ``y_bounds`` and centered there. The
    ridge is chosen from the noisy Gram matrix only. It is just large enough to lift the smallest eigenvalue to
    ``floor``.

    Privacy: ``event`` is one Gaussian release of ``noise_multiplier``; the unit is one record, or one person (a
    weighted mean of records). The coordinates are the upper triangle of x x' with its off-diagonal entries times
    sqrt(2), and x y. In them the sensitivities are B^2 and B Y. The noise scales are noise_multiplier * B^2 /
    sqrt(gram_share) and noise_multiplier * B Y / sqrt(1 - gram_share).

    Parameters
    ----------
    feature_bound : float
        A public bound on the norm of a row without bias.
    y_bounds : (low, high)
        The public range of the target.
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.
    gram_share : float in (0, 1)
        The share of the squared budget that the Gram matrix gets.
    floor : float or None
        None: the expected spectral norm of the noise, but at least the squared norm of one row.
    radius : float or None
        Confine the parameters to this ball. It makes the stability bound small; privacy does not need it.
    fit_intercept : bool

    Paper: Remark on private training [remark: dp mech stab]; Supplement S3 [sec:assumption_validation]
    """

    feature_bound: float
    y_bounds: tuple[float, float]
    noise_multiplier: float | None = None
    gram_share: float = 0.5
    floor: float | None = None
    radius: float | None = None
    fit_intercept: bool = True

    trains_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("feature_bound", self.feature_bound)
        object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        check_probability("gram_share", self.gram_share)
        for name in ("noise_multiplier", "floor", "radius"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))

    @property
    def row_bound(self) -> float:
        """Return the bound on the norm of a row, bias coordinate included."""
        return math.hypot(self.feature_bound, 1.0) if self.fit_intercept else float(self.feature_bound)

    @property
    def target_bound(self) -> float:
        """Return the bound on a centered target.

        Without an intercept targets are not centered.
        """
        low, high = self.y_bounds
        return (high - low) / 2 if self.fit_intercept else max(abs(low), abs(high))

    @property
    def gram_noise(self) -> float:
        """Return the noise scale of a diagonal entry of the Gram matrix.

        Off the diagonal it is divided by sqrt(2).
        """
        return self._noise * self.row_bound**2 / math.sqrt(self.gram_share)

    @property
    def cross_noise(self) -> float:
        """Return the noise scale of a cross moment."""
        return self._noise * self.row_bound * self.target_bound / math.sqrt(1 - self.gram_share)

    @property
    def _noise(self) -> float:
        return require_noise(self.noise_multiplier) * (1 + SUM_SLACK)

    def smallest_eigenvalue(self, n_features: int) -> float:
        """Return the public floor that the ridge lifts the noisy Gram matrix to."""
        if self.floor is not None:
            return float(self.floor)
        size = n_features + self.fit_intercept
        return max(self.row_bound**2, self.gram_noise * math.sqrt(2 * size))

    def moments(self, X: ArrayLike, y: ArrayLike, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the exact weighted Gram matrix and cross moments.

        ``train`` adds noise to them; they are never released without it.
        """
        rows = feature_rows(
            check_rows(X, finite=False), feature_bound=self.feature_bound, intercept=self.fit_intercept, dtype="float64"
        )
        # clipped again: rounding may leave the range
        target = np.clip(bounded_targets(y, self.y_bounds) - self._center, -self.target_bound, self.target_bound)
        if len(target) != len(rows):
            raise ValueError("X and y must hold the same number of records")
        # the square root on both sides: the product of an array with itself is symmetric to the last bit
        roots = np.sqrt(weights)
        rows, target = rows * roots[:, None], target * roots
        return sum_in_parts(lambda part: part.T @ part, rows), sum_in_parts(lambda part, y: part.T @ y, rows, target)

    def train_on(self, run: TrainingRun) -> Trained:
        """Release the noisy moments once and solve."""
        n, width, rng = run.n_records, run.source.width, run.generator()
        gram, cross = self.moments(run.rows, run.targets, run.weights)
        noisy_gram = release_symmetric(gram, self.gram_noise, rng)
        noisy_cross = gaussian_release(cross, self.cross_noise, rng)
        floor, reach = self.smallest_eigenvalue(width), self._reach(width, n)
        # n records cannot have longer cross moments: bringing noise back there is post-processing
        longest = n * self.row_bound * self.target_bound
        noisy_cross *= min(1.0, longest / max(float(np.linalg.norm(noisy_cross)), 1e-300))
        theta = ball_minimizer(adaptive_ridge(noisy_gram, floor), noisy_cross, reach)
        network = Network((width, 1), "relu", self.fit_intercept)
        if self.fit_intercept:
            theta[-1] += self._center
        facts: dict[str, object] = {
            "noise_multiplier": require_noise(self.noise_multiplier),
            "feature_bound": self.feature_bound,
            "y_bounds": self.y_bounds,
        }
        model = DenseModel(network, Loss("squared"), theta, None, self.feature_bound)
        return run.result(model, facts, stability=self.stability(width, n))

    def stability(self, n_features: int, n_records: int, classes: tuple[Any, ...] | None = None) -> Stability:  # noqa: ARG002
        """Return the shift bound under shared noise; it always holds.

        The solution minimizes theta' M theta / 2 - b' theta over a ball of radius R, strongly convex with
        ``floor``. One record adds x x' to the Gram matrix and lowers the adaptive ridge by at most B^2 (its
        smallest eigenvalue rises by no more), so M changes by at most B^2 in spectral norm, and b by B Y:
        the shift is at most B (Y + B R) / floor. R is ``radius``, or else the length that bounded cross
        moments allow.

        Theory: Result C
        """
        size = n_features + self.fit_intercept
        floor, reach = self.smallest_eigenvalue(n_features), self._reach(n_features, n_records)
        bound = stability_summary(
            summary_bound=self.row_bound * (self.target_bound + self.row_bound * reach),
            lipschitz=n_records / floor,
            n_records=n_records,
            score_lipschitz=self.row_bound,
        )
        rounding = 2 * grid_slack(self.gram_noise, size**2) * reach + grid_slack(self.cross_noise, size)
        assumptions = (*bound.assumptions, FIXED_PREPROCESSING)
        return replace(bound, shift_bound=bound.shift_bound + rounding / floor, assumptions=assumptions)

    @property
    def _center(self) -> float:
        return sum(self.y_bounds) / 2 if self.fit_intercept else 0.0

    def _reach(self, n_features: int, n_records: int) -> float:
        if self.radius is not None:
            return float(self.radius)
        return n_records * self.row_bound * self.target_bound / self.smallest_eigenvalue(n_features)


def adaptive_ridge(gram: FloatArray, floor: float) -> FloatArray:
    """Lift the smallest eigenvalue of ``gram`` to ``floor``.

    The smallest sufficient multiple of the identity is added.
    """
    smallest = float(np.linalg.eigvalsh(gram)[0])
    return np.asarray(gram + max(0.0, floor - smallest) * np.eye(len(gram)))


def ball_minimizer(matrix: FloatArray, linear: FloatArray, radius: float) -> FloatArray:
    """Minimize theta' matrix theta / 2 - linear' theta over a ball.

    ``matrix`` is positive definite.
    """
    values, vectors = np.linalg.eigh(matrix)
    turned = vectors.T @ linear

    def length(extra: float) -> float:
        return float(np.linalg.norm(turned / (values + extra)))

    extra = 0.0
    if length(0.0) > radius:
        # at this multiplier the solution is inside the ball for certain
        enough = float(np.linalg.norm(linear)) / radius
        extra = float(optimize.brentq(lambda v: length(v) - radius, 0.0, enough, xtol=1e-12 * enough, rtol=1e-14))
    return np.asarray(vectors @ (turned / (values + extra)))
