"""Minimize penalized sums of losses of linear models to a proven tolerance.

The objective is sum_i loss_i(theta) + strength / 2 * ||theta||^2 + <linear, theta>. It is a sum, not a mean. With
strength = regularization * n_records it is n_records times the usual penalized risk with the public normalizer, and no
number of records enters it. Rows have norm at most ``feature_bound`` (enforced by clipping them), and a bias coordinate
1 is part of the row.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dpscp._base.arrays import FloatArray
from dpscp.guarantees.stability import LinearHead

_QUASI_NEWTON_STEPS = 2000


@dataclass(frozen=True)
class LinearRisk:
    """A loss on a linear model with its public constants.

    ``loss`` is "cross_entropy", "logistic" or "huber"; ``row_bound`` bounds the norm of a row, bias included.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    loss: str
    row_bound: float
    n_outputs: int
    strength: float
    huber_delta: float = 1.0

    @property
    def head(self) -> LinearHead:
        """Return the loss of one record with its constants.

        They do not depend on the number of outputs.
        """
        return LinearHead(self.loss, self.row_bound, self.huber_delta)

    def value_and_gradient(
        self,
        theta: FloatArray,
        rows: FloatArray,
        target: NDArray[Any],
        linear: FloatArray,
        weights: FloatArray | None = None,
    ) -> tuple[float, FloatArray]:
        """Return the objective and its gradient at the flat parameters ``theta``.

        Each record's loss is multiplied by its weight.
        """
        weights = np.ones(len(rows)) if weights is None else weights
        z = rows @ theta.reshape(self.n_outputs, -1).T
        if self.loss == "cross_entropy":
            every = np.arange(len(rows))
            log_sums = special.logsumexp(z, axis=1) if len(rows) else np.zeros(0)
            value = float(np.sum(weights * (log_sums - z[every, target])))
            error = np.exp(z - log_sums[:, None])
            error[every, target] -= 1.0
        elif self.loss == "logistic":
            margin = z[:, 0]
            value = float(np.sum(weights * (np.logaddexp(0.0, margin) - target * margin)))
            error = special.expit(z) - target[:, None]
        else:
            residual = z - target[:, None]
            error = np.clip(residual, -self.huber_delta, self.huber_delta)
            # r^2 / 2 inside, delta * (|r| - delta / 2) outside
            value = float(np.sum(weights[:, None] * (error * (residual - error / 2))))
        value += self.strength / 2 * float(theta @ theta) + float(linear @ theta)
        error *= weights[:, None]
        return value, (error.T @ rows).ravel() + self.strength * theta + linear

    def minimize(
        self,
        rows: FloatArray,
        target: NDArray[Any],
        *,
        tolerance: float,
        linear: FloatArray | None = None,
        weights: FloatArray | None = None,
    ) -> FloatArray:
        """Return parameters at which the gradient's norm is at most ``tolerance``.

        ``weights`` of the records are at most one each, and one for all where None.
        They are within tolerance / strength of the minimizer, by strong convexity. Quasi-Newton does the
        work; accelerated gradient descent, whose convergence is a theorem, finishes where a line search
        gave up.
        """
        size = self.n_outputs * rows.shape[1]
        offset = np.zeros(size) if linear is None else linear

        def objective(theta: FloatArray) -> tuple[float, FloatArray]:
            return self.value_and_gradient(theta, rows, target, offset, weights)

        options = {"maxiter": _QUASI_NEWTON_STEPS, "maxcor": 20, "gtol": tolerance / (2 * math.sqrt(size)), "ftol": 0.0}
        start = optimize.minimize(objective, np.zeros(size), jac=True, method="L-BFGS-B", options=options)
        theta = np.asarray(start.x, dtype=np.float64)
        if float(np.linalg.norm(objective(theta)[1])) <= tolerance:
            return theta
        return self._accelerated(theta, rows, target, offset, tolerance, weights)

    def _accelerated(
        self,
        theta: FloatArray,
        rows: FloatArray,
        target: NDArray[Any],
        linear: FloatArray,
        tolerance: float,
        weights: FloatArray | None = None,
    ) -> FloatArray:
        # smoothness of the whole objective from the rows at hand: it steers the solver and is never released
        largest = float(np.linalg.norm(rows, 2)) ** 2 if len(rows) else 0.0
        smooth = self.head.smoothness / self.row_bound**2 * largest + self.strength
        root = math.sqrt(self.strength / smooth)
        momentum = (1 - root) / (1 + root)
        ahead = theta
        for _ in range(int(200 / root) + 1000):
            gradient = self.value_and_gradient(ahead, rows, target, linear, weights)[1]
            if float(np.linalg.norm(gradient)) <= tolerance:
                return ahead
            following = ahead - gradient / smooth
            ahead, theta = following + momentum * (following - theta), following
        # the tolerance is far above rounding, so exact arithmetic is the only thing that could have failed
        raise ArithmeticError(
            "the penalized risk could not be minimized to the tolerance that privacy needs; raise the penalty"
        )
