"""Least squares and ridge regression as linear maps of y, with exact updates."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A record with leverage this close to 1 is fitted by itself alone: dividing by 1 - leverage loses all digits.
_LARGEST_LEVERAGE = 1 - 1e-8
_EXACT_SOLVERS = ("auto", "svd", "cholesky")


@dataclass(frozen=True)
class LinearSmoother:
    """Hold a ridge fit through the SVD of the centered rows.

    It minimizes |y - b - X theta|^2 + ridge |theta|^2, with b = 0 without an intercept. Predictions are
    ``weights(X) @ y``.

    Attributes
    ----------
    left, singular, right : arrays of shape (n, r), (r,) and (r, d)
        The factors of the SVD.
    center : array of shape (d,)
    ridge : float
    intercept : bool
    y : array of shape (n,)
    """

    left: NDArray[np.float64]
    singular: NDArray[np.float64]
    right: NDArray[np.float64]
    center: NDArray[np.float64]
    ridge: float
    intercept: bool
    y: NDArray[np.float64]

    @classmethod
    def of(cls, estimator: Any, rows: NDArray[Any], y: NDArray[np.float64]) -> "LinearSmoother | None":
        """Make the smoother that ``estimator`` fits; None for other estimators."""
        ridge = _penalty(estimator)
        if ridge is None:
            return None
        X = rows.astype(np.float64)
        center = X.mean(axis=0) if estimator.fit_intercept else np.zeros(X.shape[1])
        left, singular, right = np.linalg.svd(X - center, full_matrices=False)
        kept = singular > max(X.shape) * np.finfo(float).eps * singular.max(initial=0.0)
        return cls(left[:, kept], singular[kept], right[kept], center, ridge, bool(estimator.fit_intercept), y)

    @property
    def is_unique(self) -> bool:
        """Whether the solution is unique, also with any further record."""
        return self.ridge > 0 or len(self.singular) == self.right.shape[1]

    def weights(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the weight of each record's y in the prediction at each row, (m, n)."""
        return self._weights((rows - self.center) @ self.right.T)

    @property
    def leverage(self) -> NDArray[np.float64]:
        """The weight of each record's y in its own prediction, (n,)."""
        shrunk = self.singular**2 / (self.singular**2 + self.ridge)
        return (self.left**2) @ shrunk + self._share

    @property
    def residuals(self) -> NDArray[np.float64]:
        """y minus the fit, (n,)."""
        return self.y - self._weights(self.left * self.singular) @ self.y

    def new_leverage(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return x' A^-1 x of each row, with A the penalized Gram matrix, (m,)."""
        inside = (rows - self.center) @ self.right.T
        total = (inside**2) @ (1 / (self.singular**2 + self.ridge)) + self._share
        if self.ridge > 0 and len(self.singular) < self.right.shape[1]:
            outside = (rows - self.center) - inside @ self.right
            total = total + (outside**2).sum(axis=1) / self.ridge
        return np.asarray(total)

    @property
    def can_leave_out(self) -> bool:
        """Whether the formula applies to every record: none has a leverage of 1."""
        return bool(self.leverage.max() < _LARGEST_LEVERAGE)

    def left_out_residuals(self) -> NDArray[np.float64]:
        """Return y_i minus the prediction at x_i of the fit without record i, (n,)."""
        return self.residuals / (1 - self.leverage)

    def left_out_predictions(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the prediction at each row of each fit without one record, (m, n).

        It is mu - weight * residual / (1 - h).
        """
        weights = self.weights(rows)
        return np.asarray((weights @ self.y)[:, None] - weights * self.left_out_residuals())

    def _weights(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        return (coordinates * (self.singular / (self.singular**2 + self.ridge))) @ self.left.T + self._share

    @property
    def _share(self) -> float:
        """The part of the intercept, which is not penalized and orthogonal to the rows."""
        return 1 / len(self.y) if self.intercept else 0.0


def _penalty(estimator: Any) -> float | None:
    """Return the penalty of an exact linear estimator; None for others."""
    from sklearn.linear_model import LinearRegression, Ridge  # slow to import, and few callers need it

    if type(estimator) is LinearRegression and not estimator.positive:
        return 0.0
    if type(estimator) is Ridge and not estimator.positive and estimator.solver in _EXACT_SOLVERS:
        return float(estimator.alpha) if np.ndim(estimator.alpha) == 0 else None
    return None
