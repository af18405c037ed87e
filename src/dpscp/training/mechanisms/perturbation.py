"""Train penalized linear models by output or objective perturbation.

Both minimize sum_i loss_i(theta) + strength / 2 * ||theta||^2 over rows of bounded norm, bias coordinate included.
``OutputPerturbation`` adds noise to the minimizer, ``ObjectivePerturbation`` adds a random linear term
before minimizing (and a trace of noise after, because a computed minimizer is never the exact one).
``strength`` is regularization * n_records, so the losses are in effect divided by the public number of
records; neither the event nor the noise depends on it.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy import optimize, special

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_positive, check_range
from dpscp.guarantees.stability import (
    LinearHead,
    Stability,
    stability_objective_perturbation,
    stability_output_perturbation,
)
from dpscp.privacy import Accountant, gaussian_event, noise_multiplier
from dpscp.training.base import Checked, GaussianSums, Mechanism, Needs, Trained, TrainingRun, require_noise
from dpscp.training.engine.networks import DenseModel, Loss, Network
from dpscp.training.engine.noise import gaussian_release, grid_slack
from dpscp.training.engine.rows import bounded_targets, check_classes, encode_labels, feature_rows, observed_labels
from dpscp.training.mechanisms.objective_privacy import ObjectiveLoss, dominating_mu, largest_mu

__all__ = ["ObjectivePerturbation", "OutputPerturbation"]


LOSSES = ("cross_entropy", "logistic", "squared", "huber")
# Gradient norm at which the solver may stop, in units of one record's largest gradient.
SOLVER_SHARE = 1e-4
# Noise multiplier of the trace of output noise, in units of the main one: it adds 1 / 50^2 to the squared budget.
TRACE_NOISE = 50.0
_QUASI_NEWTON_STEPS = 2000
# Default penalty of objective perturbation: smoothness / strength stays below this share of 1 / noise_multiplier.
EXPANSION_SHARE = 0.05


@dataclass(frozen=True)
class _Perturbation(Mechanism):
    """The constants and the parts of training that both mechanisms have; see ``OutputPerturbation``."""

    loss: str = "cross_entropy"
    feature_bound: float = 1.0
    _: KW_ONLY
    noise_multiplier: float | None = None
    classes: tuple[Any, ...] | None = None
    y_bounds: tuple[float, float] | None = None
    fit_intercept: bool = True

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)
        check_positive("feature_bound", self.feature_bound)
        for name in ("noise_multiplier", "regularization", "penalty"):
            if getattr(self, name, None) is not None:
                check_positive(name, getattr(self, name))
        if self.loss in ("squared", "huber"):
            if self.y_bounds is None:
                raise ValueError(f"y_bounds=(low, high) is required with loss={self.loss!r}")
            object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, self.loss))

    _shift_bound: ClassVar[Callable[..., Stability]]
    """The bound on the shift of the minimizer by one record."""

    @abstractmethod
    def strength(self, n_records: int, n_features: int) -> float:
        """Return the penalty on the sum of losses."""

    @abstractmethod
    def _output_noise(self, risk: "LinearRisk") -> float:
        """Return the standard deviation of the noise that is added to the computed minimizer."""

    @abstractmethod
    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:
        """Draw the linear term of the objective; zeros: there is none."""

    def configured(self, needs: Needs) -> Self:
        return replace(self, classes=needs.classes)

    @property
    def _half_range(self) -> float:
        low, high = self.y_bounds or (-1.0, 1.0)
        return (high - low) / 2 if self.fit_intercept else max(abs(low), abs(high))

    @property
    def _reach(self) -> float:
        """Return a public guess of the norm of good parameters, for the rules of ``strength``."""
        return (10.0 if self.y_bounds is None else 2 * self._half_range) / float(self.feature_bound)

    def _risk(self, n_outputs: int, strength: float) -> "LinearRisk":
        reach = math.hypot(self.feature_bound, 1.0) if self.fit_intercept else float(self.feature_bound)
        if self.loss in ("squared", "huber"):
            return LinearRisk("huber", reach, 1, strength, self._half_range * (2 if self.loss == "squared" else 1))
        return LinearRisk(self.loss, reach, n_outputs if self.loss == "cross_entropy" else 1, strength)

    @property
    def _center(self) -> float:
        """Return what is taken from targets; without an intercept nothing could undo it."""
        has_center = self.fit_intercept and self.loss in ("squared", "huber")
        return sum(self.y_bounds) / 2 if has_center and self.y_bounds else 0.0

    def train_on(self, run: TrainingRun) -> Trained:
        """Minimize the penalized risk, add noise, release."""
        y, classes = run.targets, self.classes
        rows = feature_rows(run.rows, feature_bound=self.feature_bound, intercept=self.fit_intercept, dtype="float64")
        noise = require_noise(self.noise_multiplier)
        facts: dict[str, object] = {"noise_multiplier": noise, "feature_bound": self.feature_bound}
        target: NDArray[Any]
        if self.y_bounds is not None and self.loss in ("squared", "huber"):
            target, classes = bounded_targets(y, self.y_bounds) - self._center, None
        else:
            classes = check_classes(observed_labels(y), self.loss) if classes is None else classes
            target = encode_labels(y, classes)
        facts |= {} if classes is None else {"classes": classes}
        facts |= {} if self.y_bounds is None else {"y_bounds": self.y_bounds}
        n_outputs = len(classes) if classes is not None and self.loss == "cross_entropy" else 1
        rng, n, width = run.generator(), run.n_records, run.source.width
        risk = self._risk(n_outputs, self.strength(n, width))
        bound, longest = risk.head.gradient_bound, SOLVER_SHARE * risk.head.gradient_bound
        linear, output_noise = self._draw_linear_term(rng, bound, n_outputs * rows.shape[1]), self._output_noise(risk)
        theta = risk.minimize(rows, target, linear, run.weights, tolerance=longest)
        theta = gaussian_release(theta, output_noise, rng)
        shift = self._shift_bound(
            gradient_bound=bound,
            regularization=risk.strength / n,
            n_records=n,
            tolerance=longest / n,
            score_lipschitz=risk.head.score_lipschitz,
        )
        stability = replace(shift, shift_bound=shift.shift_bound + grid_slack(output_noise, len(theta)))
        network = Network((width, n_outputs), "relu", self.fit_intercept)
        network.layers(theta)[0][:, width:] += self._center
        loss = Loss(self.loss, (), self._half_range)
        return run.result(
            DenseModel(network, loss, theta, classes, self.feature_bound),
            facts,
            stability=stability,
            taken_from_data=("classes",) if self.classes is None and classes is not None else (),
        )


@dataclass(frozen=True)
class OutputPerturbation(GaussianSums, _Perturbation):
    """Minimize a penalized linear risk and add Gaussian noise to the minimizer.

    Privacy: ``event`` is one Gaussian release. The unit is one record, or one person with weighted records. It moves
    the minimizer by at most gradient_bound / strength (strong convexity), whatever the other records are. The tolerance
    of the solver is added to that sensitivity.

    Parameters
    ----------
    loss : "cross_entropy", "logistic", "huber" or "squared"
        "logistic" is for two classes. "huber" is linear beyond half the width of y_bounds, "squared" beyond that width,
        which is squared error wherever predictions lie in y_bounds.
    feature_bound : float
        A public bound on the norm of a row without bias. Longer rows are scaled onto it, in prediction too.
    regularization : float or None
        The weight of ||theta||^2 / 2 against the mean loss; None is a public rule (see ``strength``).
    noise_multiplier : float or None
        Noise scale over sensitivity; None: call ``calibrated`` first.
    classes : tuple or None
        The public labels; None declares the labels in y public.
    y_bounds : (low, high) or None
        The public range of the target (regression). Targets are clipped to it.
    fit_intercept : bool

    Paper: Supplement S3 [sec:assumption_validation]
    """

    _: KW_ONLY
    regularization: float | None = None

    trains_persons: ClassVar[bool] = True
    _shift_bound = staticmethod(stability_output_perturbation)

    def strength(self, n_records: int, n_features: int) -> float:  # noqa: ARG002
        """Return the penalty on the sum of losses: regularization * n_records, or the public rule.

        The rule balances the expected excess loss caused by the noise, about n * curvature * noise^2 / 2,
        against the penalty at parameters of a likely norm.
        """
        if self.regularization is not None:
            return self.regularization * n_records
        head = self._risk(2, 1.0).head
        noise = require_noise(self.noise_multiplier) * head.gradient_bound / self._reach
        return float((2 * n_records * head.smoothness * noise**2) ** (1 / 3))

    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:  # noqa: ARG002
        return np.zeros(size)

    def _output_noise(self, risk: "LinearRisk") -> float:
        sensitivity = risk.head.gradient_bound * (1 + 2 * SOLVER_SHARE) / risk.strength
        return require_noise(self.noise_multiplier) * sensitivity


@dataclass(frozen=True)
class ObjectivePerturbation(_Perturbation):
    """Minimize a penalized linear risk with a random linear term.

    The linear term has coordinates of standard deviation noise_multiplier * gradient_bound.

    Privacy: ``event`` is one Gaussian event that covers two releases; the unit is one record. The first release is the
    exact minimizer: a Gaussian event slightly stronger than 1 / noise_multiplier, because it pays for the Jacobian (see
    ``objective_privacy``). The second covers the solver. The computed minimizer is within tolerance / strength of the
    exact one, and noise of TRACE_NOISE * noise_multiplier times twice that is added.

    Assumes: each record is its own person. Persons with several rows are refused, because the Jacobian is bounded for
    the rank of one record's curvature.

    Parameters
    ----------
    penalty : float or None
        The weight of ||theta||^2 / 2 against the *sum* of losses. It enters the event, so it must not depend on
        n_records. None is a public rule: the larger of the strength that keeps the Jacobian cheap and the one that fits
        the noise.
    classes : tuple or None
        The public labels. "cross_entropy" needs them, because the event depends on their number.
    loss, feature_bound, noise_multiplier, y_bounds, fit_intercept
        As for ``OutputPerturbation``.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    _: KW_ONLY
    penalty: float | None = None

    _shift_bound = staticmethod(stability_objective_perturbation)

    @property
    def event(self) -> DpEvent | None:
        """Return the Gaussian event of the minimizer and its small output noise.

        None while the noise is not set, or the classes that it depends on are not declared.
        """
        noise = self.noise_multiplier
        if noise is None or (self.loss == "cross_entropy" and self.classes is None):
            return None
        mu = dominating_mu(self._privacy_loss(1 / noise))
        return gaussian_event(1 / math.hypot(mu, 1 / (TRACE_NOISE * noise)))

    def calibrated(self, epsilon: float, delta: float, *, accountant: str | Accountant = "pld") -> Self:
        """Return a copy with nearly the smallest noise within (epsilon, delta); see `Mechanism.calibrated`."""
        target = 1 / noise_multiplier(epsilon, delta, 1.0, 1, accountant=accountant)
        # sqrt(mu'^2 + (mu / TRACE_NOISE)^2) <= target holds when mu' is this, because mu <= target
        mu = largest_mu(target * math.sqrt(1 - TRACE_NOISE**-2), self._privacy_loss)
        return self.with_noise(1 / mu)

    def strength(self, n_records: int, n_features: int) -> float:  # noqa: ARG002 (the event must not depend on it)
        """Return the penalty on the sum of losses: ``penalty``, or the public rule."""
        if self.penalty is not None:
            return float(self.penalty)
        noise = require_noise(self.noise_multiplier)
        unit = self._risk(self._outputs, 1.0)
        size = self._outputs * (n_features + self.fit_intercept)
        fitting = noise * unit.head.gradient_bound * math.sqrt(size) / self._reach
        return max(unit.head.smoothness / self._largest_expansion(1 / noise), fitting)

    def _draw_linear_term(self, rng: np.random.Generator, gradient_bound: float, size: int) -> FloatArray:
        return rng.normal(0.0, require_noise(self.noise_multiplier) * gradient_bound, size)

    def _output_noise(self, risk: "LinearRisk") -> float:
        noise = TRACE_NOISE * require_noise(self.noise_multiplier)
        return noise * 2 * SOLVER_SHARE * risk.head.gradient_bound / risk.strength

    def check(self, input_shape: tuple[int, ...]) -> Checked | None:
        self._require_classes()
        return super().check(input_shape)

    @property
    def _outputs(self) -> int:
        return 1 if self.loss != "cross_entropy" else len(self._require_classes())

    def _require_classes(self) -> tuple[Any, ...]:
        if self.loss == "cross_entropy" and self.classes is None:
            raise ValueError(
                "classes must be declared, because the privacy of this mechanism depends on their number; pass "
                "classes=(...)"
            )
        return self.classes or ()

    def _largest_expansion(self, mu: float) -> float:
        # more classes push in more directions: keep the sum of their quadratic terms small
        return EXPANSION_SHARE * mu / max(1.0, (self._outputs - 1) / 3)

    def _privacy_loss(self, mu: float) -> ObjectiveLoss:
        unit = self._risk(self._outputs, 1.0)
        expansion = self._largest_expansion(mu) if self.penalty is None else unit.head.smoothness / self.penalty
        rank = max(1, self._outputs - 1)
        if self.loss == "cross_entropy":
            # diag(p) - pp' has rank K - 1 and trace at most 1 - 1/K; its largest eigenvalue, 1/2, is in `expansion`
            log_determinant = rank * math.log1p(2 * expansion / (rank + 1))
        else:
            log_determinant = math.log1p(expansion)
        one_sided = self.loss == "logistic" or (self.loss == "cross_entropy" and self._outputs == 2)
        return ObjectiveLoss(mu, expansion, log_determinant, rank, one_sided)


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

        ``weights`` of the records are at most one each.
        They are within tolerance / strength of the minimizer, by strong convexity. Quasi-Newton does the
        work; accelerated gradient descent, whose convergence is a theorem, finishes where a line search
        gave up.
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
        # smoothness of the whole objective from the rows at hand: it steers the solver and is never released
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
        # the tolerance is far above rounding, so exact arithmetic is the only thing that could have failed
        raise ArithmeticError(
            "the penalized risk could not be minimized to the tolerance that privacy needs; raise the penalty"
        )
