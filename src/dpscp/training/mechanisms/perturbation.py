"""Train penalized linear models by output or objective perturbation.

Both minimize sum_i loss_i(theta) + strength / 2 * ||theta||^2 over rows of bounded norm, bias coordinate included.
``OutputPerturbation`` adds noise to the minimizer. ``ObjectivePerturbation`` adds a random linear term before
minimizing, and a little noise afterwards, because a computed minimizer is never the exact one. The penalty is on the
sum of the losses, and neither the event nor the noise depends on the number of records.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy import optimize, special

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_positive, check_range
from dpscp.guarantees.stability import LinearHead, stability_output_perturbation
from dpscp.privacy import gaussian_event
from dpscp.training.base import GaussianSums, Mechanism, Needs, Trained, TrainingRun, require_noise
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import gaussian_release, grid_slack
from dpscp.training.engine.rows import bounded_targets, check_classes, encode_labels, feature_rows, observed_labels

__all__ = ["ObjectivePerturbation", "OutputPerturbation"]


LOSSES = ("cross_entropy", "logistic", "huber")
# Gradient norm at which the solver may stop, in units of one record's largest gradient.
SOLVER_SHARE = 1e-4
# Multiplier of the noise that covers the solver, in units of the main one: it adds 1 / 50^2 to the squared budget.
SOLVER_NOISE = 50.0
_QUASI_NEWTON_STEPS = 2000
# Objective perturbation: smoothness / strength is at most this share of 1 / noise_multiplier.
EXPANSION_SHARE = 0.05
# Likely norm of good parameters of a classifier, times the norm of a row.
_LIKELY_MARGIN = 10.0


@dataclass(frozen=True)
class _Perturbation(Mechanism):
    """Constants and training steps of both mechanisms; see ``OutputPerturbation``."""

    feature_bound: float = 1.0
    _: KW_ONLY
    noise_multiplier: float | None = None
    classes: tuple[Any, ...] | None = None

    if TYPE_CHECKING:

        @property
        def loss(self) -> str:
            """Return the name of the loss."""

        @property
        def y_bounds(self) -> tuple[float, float] | None:
            """Return the public range of real targets; None for classification."""

    def __post_init__(self) -> None:
        check_positive("feature_bound", self.feature_bound)
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, self.loss))

    @abstractmethod
    def strength(self, n_records: int, n_features: int) -> float:
        """Return the penalty on the sum of losses."""

    @abstractmethod
    def _output_noise(self, risk: "LinearRisk") -> float:
        """Return the standard deviation of the noise on the computed minimizer."""

    @abstractmethod
    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:
        """Draw the linear term of the objective; zeros: there is none."""

    @property
    def task(self) -> str:
        return "regression" if self.loss == "huber" else "classification"

    def configured(self, needs: Needs) -> Self:
        return replace(self, classes=needs.classes)

    @property
    def _half_range(self) -> float:
        return 1.0 if self.y_bounds is None else (self.y_bounds[1] - self.y_bounds[0]) / 2

    @property
    def _likely_norm(self) -> float:
        """Return a public guess of the norm of good parameters, for ``strength``."""
        return (_LIKELY_MARGIN if self.y_bounds is None else 2 * self._half_range) / float(self.feature_bound)

    def _risk(self, n_outputs: int, strength: float) -> "LinearRisk":
        return LinearRisk(self.loss, math.hypot(self.feature_bound, 1.0), n_outputs, strength, self._half_range)

    def train_on(self, run: TrainingRun) -> Trained:
        """Minimize the penalized risk, add noise, release."""
        y, classes = run.targets, self.classes
        rows = feature_rows(run.rows, feature_bound=self.feature_bound, intercept=True, dtype="float64")
        facts: dict[str, object] = {
            "noise_multiplier": require_noise(self.noise_multiplier),
            "feature_bound": self.feature_bound,
        }
        target: NDArray[Any]
        center = 0.0
        if self.y_bounds is not None:
            center = sum(self.y_bounds) / 2
            target, facts["y_bounds"] = bounded_targets(y, self.y_bounds) - center, self.y_bounds
        else:
            classes = check_classes(observed_labels(y), self.loss) if classes is None else classes
            target, facts["classes"] = encode_labels(y, classes), classes
        n_outputs = len(classes) if classes is not None and self.loss == "cross_entropy" else 1
        rng, n, width = run.generator(), run.n_records, run.source.width
        risk = self._risk(n_outputs, self.strength(n, width))
        bound, longest = risk.head.gradient_bound, SOLVER_SHARE * risk.head.gradient_bound
        linear, output_noise = self._draw_linear_term(rng, bound, n_outputs * rows.shape[1]), self._output_noise(risk)
        theta = risk.minimize(rows, target, linear, run.weights, tolerance=longest)
        theta = gaussian_release(theta, output_noise, rng)
        # the linear term is shared by two runs, so the bound is that of the minimizer without it
        shift = stability_output_perturbation(
            gradient_bound=bound,
            regularization=risk.strength / n,
            n_records=n,
            tolerance=longest / n,
            score_lipschitz=risk.head.score_lipschitz,
        )
        stability = replace(shift, shift_bound=shift.shift_bound + grid_slack(output_noise, len(theta)))
        network = Network((width, n_outputs))
        network.layers(theta)[0][:, width:] += center
        return run.result(
            DenseModel(network, Loss(self.loss, (), self._half_range), theta, classes, self.feature_bound),
            facts,
            stability=stability,
            taken_from_data=("classes",) if classes != self.classes else (),
        )


@dataclass(frozen=True)
class OutputPerturbation(GaussianSums, _Perturbation):
    """Minimize a penalized linear risk and add Gaussian noise to the minimizer.

    Privacy: ``event`` is one Gaussian release. The unit is one record, or one person with weighted records. It moves
    the minimizer by at most gradient_bound / strength (strong convexity), whatever the other records are. The tolerance
    of the solver is added to that sensitivity.

    Parameters
    ----------
    feature_bound : float
        A public bound on the norm of a row without bias. Longer rows are scaled onto it, in prediction too.
    loss : "cross_entropy", "logistic" or "huber"
        "logistic" is for two classes. "huber" is for regression, and linear beyond half the width of y_bounds.
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.
    classes : tuple or None
        The public labels; None declares the labels in y public.
    y_bounds : (low, high) or None
        The public range of the target (regression). Targets are clipped to it.
    regularization : float or None
        The weight of ||theta||^2 / 2 against the mean loss; None is a public rule (see ``strength``).

    Paper: Supplement S3 [sec:assumption_validation]
    """

    loss: str = "cross_entropy"
    _: KW_ONLY
    y_bounds: tuple[float, float] | None = None
    regularization: float | None = None

    trains_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)
        if (self.loss == "huber") != (self.y_bounds is not None):
            raise ValueError("y_bounds=(low, high) is required with loss='huber', and must be None for other losses")
        if self.y_bounds is not None:
            object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        if self.regularization is not None:
            check_positive("regularization", self.regularization)
        super().__post_init__()

    def strength(self, n_records: int, n_features: int) -> float:  # noqa: ARG002
        """Return the penalty on the sum of losses.

        It is regularization * n_records, or the public rule. The rule balances the expected excess loss caused by the
        noise, about n * curvature * noise^2 / 2, against the penalty at parameters of a likely norm.
        """
        if self.regularization is not None:
            return self.regularization * n_records
        head = self._risk(1, 1.0).head
        noise = require_noise(self.noise_multiplier) * head.gradient_bound / self._likely_norm
        return float((2 * n_records * head.smoothness * noise**2) ** (1 / 3))

    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:  # noqa: ARG002
        return np.zeros(size)

    def _output_noise(self, risk: "LinearRisk") -> float:
        sensitivity = risk.head.gradient_bound * (1 + 2 * SOLVER_SHARE) / risk.strength
        return require_noise(self.noise_multiplier) * sensitivity


@dataclass(frozen=True)
class ObjectivePerturbation(_Perturbation):
    """Minimize a penalized logistic risk of two classes with a random linear term.

    The linear term has coordinates of standard deviation noise_multiplier * gradient_bound.

    Privacy: ``event`` is one Gaussian event that covers two releases; the unit is one record. The first release is the
    exact minimizer: a Gaussian event slightly stronger than 1 / noise_multiplier (see ``dominating_mu``). The second
    covers the solver. The computed minimizer is within tolerance / strength of the exact one, and noise of SOLVER_NOISE
    * noise_multiplier times twice that is added.

    Assumes: each record is its own person. Persons with several rows are refused, because the Jacobian is bounded for
    the curvature of one record.

    Parameters
    ----------
    feature_bound, noise_multiplier
        As for ``OutputPerturbation``.
    classes : tuple or None
        The two public labels; None declares the labels in y public.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    loss: ClassVar[str] = "logistic"
    y_bounds: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.classes is not None and len(self.classes) != 2:
            raise ValueError(
                f"ObjectivePerturbation trains models of 2 classes, got {len(self.classes)}; use OutputPerturbation or "
                "DPSGD"
            )
        super().__post_init__()

    @property
    def event(self) -> DpEvent | None:
        """Return the Gaussian event of the minimizer and of the solver's noise.

        The latter noise covers the error of the solver.
        """
        noise = self.noise_multiplier
        if noise is None:
            return None
        return gaussian_event(
            1 / math.hypot(dominating_mu(1 / noise, EXPANSION_SHARE / noise), 1 / (SOLVER_NOISE * noise))
        )

    def strength(self, n_records: int, n_features: int) -> float:  # noqa: ARG002 (the event must not depend on it)
        """Return the penalty on the sum of losses, a public rule.

        It is the larger of the one that keeps the Jacobian as small as the event assumes and the one that fits the
        noise.
        """
        noise, head = require_noise(self.noise_multiplier), self._risk(1, 1.0).head
        fitting = noise * head.gradient_bound * math.sqrt(n_features + 1) / self._likely_norm
        return max(head.smoothness * noise / EXPANSION_SHARE, fitting)

    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:
        return rng.normal(0.0, require_noise(self.noise_multiplier) * gradient_bound, size)

    def _output_noise(self, risk: "LinearRisk") -> float:
        noise = SOLVER_NOISE * require_noise(self.noise_multiplier)
        return noise * 2 * SOLVER_SHARE * risk.head.gradient_bound / risk.strength


def dominating_mu(mu: float, expansion: float) -> float:
    """Return mu of the Gaussian mechanism that dominates the exact minimizer.

    ``mu`` is the gradient bound over the noise of the linear term, ``expansion`` the smoothness over the strength. The
    result is -2 Phi^-1(Phi(-mu / 2) / (1 + expansion / 2)).

    Theory: Fact 9
    """
    return float(-2 * special.ndtri_exp(special.log_ndtr(-mu / 2) - math.log1p(expansion / 2)))


@dataclass(frozen=True)
class LinearRisk:
    """A penalized sum of losses of a linear model, minimized to a proven tolerance.

    The objective is sum_i loss_i(theta) + strength / 2 * ||theta||^2 + <linear, theta>. It is a sum, not a mean, and no
    number of records enters it.

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
        """Return the constants of one record's loss, for any number of outputs."""
        return LinearHead(self.loss, self.row_bound, self.huber_delta)

    def value_and_gradient(
        self,
        theta: FloatArray,
        rows: FloatArray,
        target: NDArray[Any],
        linear: FloatArray,
        weights: FloatArray,
    ) -> tuple[float, FloatArray]:
        """Return the objective and its gradient at the flat parameters ``theta``.

        Each record's loss is multiplied by its weight.
        """
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
        linear: FloatArray,
        weights: FloatArray,
        *,
        tolerance: float,
    ) -> FloatArray:
        """Return parameters at which the gradient's norm is at most ``tolerance``.

        ``weights`` of the records are at most one each. The result is within tolerance / strength of the minimizer, by
        strong convexity. Most work is done by a quasi-Newton method. Where its line search fails, accelerated gradient
        descent continues, whose convergence is proven.
        """

        def objective(theta: FloatArray) -> tuple[float, FloatArray]:
            return self.value_and_gradient(theta, rows, target, linear, weights)

        largest = tolerance / (2 * math.sqrt(len(linear)))
        options = {"maxiter": _QUASI_NEWTON_STEPS, "maxcor": 20, "gtol": largest, "ftol": 0.0}
        start = optimize.minimize(objective, np.zeros(len(linear)), jac=True, method="L-BFGS-B", options=options)
        theta = np.asarray(start.x, dtype=np.float64)
        if float(np.linalg.norm(objective(theta)[1])) <= tolerance:
            return theta
        return self._accelerated(theta, rows, objective, tolerance)

    def _accelerated(
        self,
        theta: FloatArray,
        rows: FloatArray,
        objective: Callable[[FloatArray], tuple[float, FloatArray]],
        tolerance: float,
    ) -> FloatArray:
        # smoothness of the whole objective for these rows: it only steers the solver and is never released
        largest = float(np.linalg.norm(rows, 2)) ** 2 if len(rows) else 0.0
        smooth = self.head.smoothness / self.row_bound**2 * largest + self.strength
        root = math.sqrt(self.strength / smooth)
        momentum = (1 - root) / (1 + root)
        ahead = theta
        for _ in range(int(200 / root) + 1000):
            gradient = objective(ahead)[1]
            if float(np.linalg.norm(gradient)) <= tolerance:
                return ahead
            following = ahead - gradient / smooth
            ahead, theta = following + momentum * (following - theta), following
        # convergence is proven, and the tolerance is far above rounding
        raise ArithmeticError(
            "the penalized risk could not be minimized to the tolerance that privacy needs; raise the penalty"
        )
