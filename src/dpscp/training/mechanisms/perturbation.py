"""Train penalized linear models by output or objective perturbation.

Both minimize sum_i loss_i(theta) + strength / 2 * ||theta||^2 over rows of bounded norm.
``OutputPerturbation`` adds noise to the minimizer, ``ObjectivePerturbation`` adds a random linear term
before minimizing (and a trace of noise after, because a computed minimizer is never the exact one).
``strength`` is regularization * n_records, so the losses are in effect divided by the public number of
records; neither the event nor the noise depends on it.
"""

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_positive, check_range
from dpscp.guarantees.stability import Stability, stability_objective_perturbation, stability_output_perturbation
from dpscp.privacy import Accountant, gaussian_event, noise_multiplier
from dpscp.training.base import Checked, GaussianSums, Mechanism, Needs, Trained, TrainingRun, require_noise
from dpscp.training.engine.gaussian_release import gaussian_release, grid_slack
from dpscp.training.engine.networks import DenseModel, Loss, Network, feature_rows
from dpscp.training.labels import bounded_targets, check_classes, encode_labels, observed_labels
from dpscp.training.mechanisms.objective_privacy import ObjectiveLoss, dominating_mu, largest_mu
from dpscp.training.mechanisms.regularized_risk import LinearRisk

__all__ = ["ObjectivePerturbation", "OutputPerturbation"]


LOSSES = ("cross_entropy", "logistic", "squared", "huber")
# Gradient norm at which the solver may stop, in units of one record's largest gradient.
SOLVER_SHARE = 1e-4
# Noise multiplier of the trace of output noise, in units of the main one: it adds 1 / 50^2 to the squared budget.
TRACE_NOISE = 50.0
# Default penalty of objective perturbation: smoothness / strength stays below this share of 1 / noise_multiplier.
EXPANSION_SHARE = 0.05


@dataclass(frozen=True)
class _TrainingData:
    """Checked records and public sizes; lives only while training runs."""

    run: TrainingRun
    rows: FloatArray
    target: NDArray[Any]
    n_outputs: int
    classes: tuple[Any, ...] | None
    center: float
    public_facts: dict[str, object]
    taken_from_data: tuple[str, ...]


@dataclass(frozen=True)
class _Perturbation(Mechanism):
    """The constants and the parts of training that both mechanisms have; see ``OutputPerturbation``."""

    loss: str = "cross_entropy"
    feature_bound: float = 1.0
    _: KW_ONLY
    noise_multiplier: float | None = None
    classes: tuple[Any, ...] | None = None
    y_bounds: tuple[float, float] | None = None
    huber_delta: float | None = None
    fit_intercept: bool = True
    parameter_norm: float | None = None

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LOSSES)
        check_positive("feature_bound", self.feature_bound)
        constants = {"noise_multiplier": self.noise_multiplier, "huber_delta": self.huber_delta}
        constants |= {"parameter_norm": self.parameter_norm, **self._own_constants}
        for name, value in constants.items():
            if value is not None:
                check_positive(name, value)
        if self.loss in ("squared", "huber"):
            if self.y_bounds is None:
                raise ValueError(f"y_bounds=(low, high) is required with loss={self.loss!r}")
            object.__setattr__(self, "y_bounds", check_range("y_bounds", self.y_bounds))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, self.loss))

    @property
    @abstractmethod
    def _own_constants(self) -> dict[str, float | None]:
        """Return the constants of this mechanism alone, by name; each is positive or None."""

    def configured(self, needs: Needs) -> Self:
        return replace(self, classes=needs.classes)

    def _half_range(self) -> float:
        low, high = self.y_bounds or (-1.0, 1.0)
        return (high - low) / 2 if self.fit_intercept else max(abs(low), abs(high))

    def _reach(self) -> float:
        if self.parameter_norm is not None:
            return float(self.parameter_norm)
        scale = 2 * self._half_range() if self.y_bounds is not None else 10.0
        return scale / float(self.feature_bound)

    def _risk(self, n_outputs: int, strength: float) -> LinearRisk:
        reach = math.hypot(self.feature_bound, 1.0) if self.fit_intercept else float(self.feature_bound)
        half = self._half_range()
        if self.loss == "squared":
            return LinearRisk("huber", reach, 1, strength, 2 * half)
        if self.loss == "huber":
            return LinearRisk("huber", reach, 1, strength, float(self.huber_delta or half))
        return LinearRisk(self.loss, reach, n_outputs if self.loss == "cross_entropy" else 1, strength)

    def _prepare(self, run: TrainingRun) -> _TrainingData:
        """Check the records and encode their targets."""
        block = run.block
        y = block.targets
        rows = feature_rows(
            block.read(), feature_bound=self.feature_bound, intercept=self.fit_intercept, dtype="float64"
        )
        classes, center = self.classes, 0.0
        from_data: tuple[str, ...] = ()
        target: NDArray[Any]
        noise = require_noise(self.noise_multiplier)
        facts: dict[str, object] = {"noise_multiplier": noise, "feature_bound": self.feature_bound}
        if self.y_bounds is not None and self.loss in ("squared", "huber"):
            low, high = self.y_bounds
            # without an intercept nothing can undo the centering
            center = (low + high) / 2 if self.fit_intercept else 0.0
            target, classes = bounded_targets(y, self.y_bounds) - center, None
        else:
            if classes is None:
                classes = check_classes(observed_labels(y), self.loss)
                from_data = ("classes",)
            target = encode_labels(y, classes)
        if classes is not None:
            facts["classes"] = classes
        if self.y_bounds is not None:
            facts["y_bounds"] = self.y_bounds
        outputs = len(classes) if classes is not None and self.loss == "cross_entropy" else 1
        return _TrainingData(run, rows, target, outputs, classes, center, facts, from_data)

    def _build_result(self, data: _TrainingData, theta: FloatArray, bound: Stability, output_noise: float) -> Trained:
        """Return the model with its shift bound; ``theta`` is released."""
        stability = replace(bound, shift_bound=bound.shift_bound + grid_slack(output_noise, len(theta)))
        network = Network((data.rows.shape[1] - self.fit_intercept, data.n_outputs), "relu", self.fit_intercept)
        if self.fit_intercept:
            theta = theta.copy()
            network.layers(theta)[0][:, -1] += data.center
        delta = self.huber_delta or self._half_range()
        model = DenseModel(network, Loss(self.loss, (), delta), theta, data.classes, self.feature_bound)
        return data.run.result(model, data.public_facts, stability=stability, taken_from_data=data.taken_from_data)


@dataclass(frozen=True)
class OutputPerturbation(GaussianSums, _Perturbation):
    """Minimize a penalized linear risk and add Gaussian noise to the minimizer.

    Privacy: ``event`` is one Gaussian release. The unit is one record, or one person with weighted records. It moves
    the minimizer by at most gradient_bound / strength (strong convexity), whatever the other records are. The tolerance
    of the solver is added to that sensitivity.

    Parameters
    ----------
    loss : "cross_entropy", "logistic", "huber" or "squared"
        "logistic" is for two classes. "squared" is the Huber loss with huber_delta equal to the width of y_bounds,
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
    huber_delta : float or None
        The constant of the Huber loss; None: half the width of y_bounds.
    fit_intercept : bool
    parameter_norm : float or None
        A public guess of the norm of good parameters. Only the rule of ``strength`` uses it; privacy does not need it.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    _: KW_ONLY
    regularization: float | None = None

    trains_persons: ClassVar[bool] = True

    @property
    def _own_constants(self) -> dict[str, float | None]:
        return {"regularization": self.regularization}

    def strength(self, n_records: int) -> float:
        """Return the penalty on the sum of losses.

        Regularization * n_records, or the public rule.

        The rule balances the expected excess loss caused by the noise, about n * curvature * noise^2 / 2,
        against the penalty at parameters of norm ``parameter_norm``.
        """
        if self.regularization is not None:
            return self.regularization * n_records
        unit = self._risk(2, 1.0)
        reach = self._reach()
        noise = require_noise(self.noise_multiplier) * unit.head.gradient_bound / reach
        excess = 2 * n_records * unit.head.smoothness * noise**2
        return float(excess ** (1 / 3))

    def train_on(self, run: TrainingRun) -> Trained:
        """Minimize, add noise, release."""
        data = self._prepare(run)
        risk = self._risk(data.n_outputs, self.strength(run.n_records))
        tolerance = SOLVER_SHARE * risk.head.gradient_bound
        noise = require_noise(self.noise_multiplier) * (risk.head.gradient_bound + 2 * tolerance) / risk.strength
        minimizer = risk.minimize(data.rows, data.target, tolerance=tolerance, weights=run.weights)
        theta = gaussian_release(minimizer, noise, run.generator())
        bound = stability_output_perturbation(
            gradient_bound=risk.head.gradient_bound,
            regularization=risk.strength / run.n_records,
            n_records=run.n_records,
            tolerance=tolerance / run.n_records,
            score_lipschitz=risk.head.score_lipschitz,
        )
        return self._build_result(data, theta, bound, noise)


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
    loss, feature_bound, noise_multiplier, y_bounds, huber_delta, fit_intercept, parameter_norm
        As for ``OutputPerturbation``.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    _: KW_ONLY
    penalty: float | None = None

    @property
    def _own_constants(self) -> dict[str, float | None]:
        return {"penalty": self.penalty}

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

    def strength(self, n_features: int) -> float:
        """Return the penalty on the sum of losses: ``penalty``, or the public rule."""
        if self.penalty is not None:
            return float(self.penalty)
        noise = require_noise(self.noise_multiplier)
        unit = self._risk(self._outputs, 1.0)
        size = self._outputs * (n_features + self.fit_intercept)
        fitting = noise * unit.head.gradient_bound * math.sqrt(size) / self._reach()
        return max(unit.head.smoothness / self._largest_expansion(1 / noise), fitting)

    def train_on(self, run: TrainingRun) -> Trained:
        """Draw the linear term, minimize, add the trace of noise, release."""
        data = self._prepare(run)
        risk = self._risk(data.n_outputs, self.strength(data.rows.shape[1] - self.fit_intercept))
        rng = run.generator()
        size = data.n_outputs * data.rows.shape[1]
        linear = rng.normal(0.0, require_noise(self.noise_multiplier) * risk.head.gradient_bound, size)
        tolerance = SOLVER_SHARE * risk.head.gradient_bound
        trace = TRACE_NOISE * require_noise(self.noise_multiplier) * 2 * tolerance / risk.strength
        theta = risk.minimize(data.rows, data.target, tolerance=tolerance, linear=linear)
        bound = stability_objective_perturbation(
            gradient_bound=risk.head.gradient_bound,
            regularization=risk.strength / run.n_records,
            n_records=run.n_records,
            tolerance=tolerance / run.n_records,
            score_lipschitz=risk.head.score_lipschitz,
        )
        return self._build_result(data, gaussian_release(theta, trace, rng), bound, trace)

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
