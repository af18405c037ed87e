"""Train penalized linear models by output or objective perturbation.

Both minimize sum_i loss_i(theta) + strength / 2 * ||theta||^2 over rows of bounded norm.
``OutputPerturbation`` adds noise to the minimizer, ``ObjectivePerturbation`` adds a random linear term
before minimizing (and a trace of noise after, because a computed minimizer is never the exact one).
``strength`` is regularisation * n_records, so the losses are in effect divided by the public number of
records; neither the event nor the noise depends on it.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count, check_positive, check_range
from dpscp.data.persons import Persons
from dpscp.guarantees.stability import Stability, stability_objective_perturbation, stability_output_perturbation
from dpscp.privacy import Accountant, gaussian_event, noise_multiplier, secure_generator
from dpscp.training.engine.gaussian_release import gaussian_release, grid_slack, warn_large_delta
from dpscp.training.engine.networks import DenseModel, Loss, Network, check_rows, feature_rows
from dpscp.training.labels import check_classes, encode_labels, observed_labels
from dpscp.training.mechanism import GaussianSums, Needs, Trained, paid_event, require_noise
from dpscp.training.mechanisms.objective_privacy import ObjectiveLoss, dominating_mu, largest_mu
from dpscp.training.mechanisms.regularized_risk import LinearRisk
from dpscp.training.targets import bounded_targets

__all__ = ["ObjectivePerturbation", "OutputPerturbation"]

Array = NDArray[np.float64]

LOSSES = ("cross_entropy", "logistic", "squared", "huber")
# Gradient norm at which the solver may stop, in units of one record's largest gradient.
SOLVER_SHARE = 1e-4
# Noise multiplier of the trace of output noise, in units of the main one: it adds 1 / 50^2 to the squared budget.
TRACE_NOISE = 50.0
# Default penalty of objective perturbation: smoothness / strength stays below this share of 1 / noise_multiplier.
EXPANSION_SHARE = 0.05


@dataclass(frozen=True)
class OutputPerturbation(GaussianSums):
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
    regularisation : float or None
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
    budget : (epsilon, delta) or None
        Set by ``calibrated``: the budget of the noise.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    loss: str = "cross_entropy"
    feature_bound: float = 1.0
    regularisation: float | None = None
    noise_multiplier: float | None = None
    classes: tuple[Any, ...] | None = None
    y_bounds: tuple[float, float] | None = None
    huber_delta: float | None = None
    fit_intercept: bool = True
    parameter_norm: float | None = None
    budget: tuple[float, float] | None = None

    trains_persons: ClassVar[bool] = True
    releases: ClassVar[tuple[float, int]] = (1.0, 1)

    def __post_init__(self) -> None:
        _check_fields(self)

    def configured(self, needs: Needs) -> Self:
        return replace(self, classes=needs.classes)

    def strength(self, n_records: int) -> float:
        """Return the penalty on the sum of losses.

        Regularisation * n_records, or the public rule.

        The rule balances the expected excess loss caused by the noise, about n * curvature * noise^2 / 2,
        against the penalty at parameters of norm ``parameter_norm``.
        """
        if self.regularisation is not None:
            return self.regularisation * n_records
        unit = _risk(self, 2, 1.0)
        reach = _parameter_norm(self)
        noise = require_noise(self.noise_multiplier) * unit.head.gradient_bound / reach
        excess = 2 * n_records * unit.head.smoothness * noise**2
        return float(excess ** (1 / 3))

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
    ) -> Trained:
        """Minimize, add noise, release; the cost is ``event``, whatever the records are."""
        event = paid_event(self)
        data = _prepare(self, X, y, n_records, persons)
        risk = _risk(self, data.n_outputs, self.strength(data.n_records))
        tolerance = SOLVER_SHARE * risk.head.gradient_bound
        noise = require_noise(self.noise_multiplier) * (risk.head.gradient_bound + 2 * tolerance) / risk.strength
        minimizer = risk.minimize(data.rows, data.target, tolerance=tolerance, weights=data.persons.weights)
        theta = gaussian_release(minimizer, noise, secure_generator(random_state))
        bound = stability_output_perturbation(
            gradient_bound=risk.head.gradient_bound,
            regularisation=risk.strength / data.n_records,
            n_records=data.n_records,
            tolerance=tolerance / data.n_records,
            score_lipschitz=risk.head.score_lipschitz,
        )
        return _build_result(self, data, theta, event, bound, noise, random_state)


@dataclass(frozen=True)
class ObjectivePerturbation:
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
    loss, feature_bound, noise_multiplier, y_bounds, huber_delta, fit_intercept, parameter_norm, budget
        As for ``OutputPerturbation``.

    Paper: Supplement S3 [sec:assumption_validation]
    """

    loss: str = "cross_entropy"
    feature_bound: float = 1.0
    penalty: float | None = None
    noise_multiplier: float | None = None
    classes: tuple[Any, ...] | None = None
    y_bounds: tuple[float, float] | None = None
    huber_delta: float | None = None
    fit_intercept: bool = True
    parameter_norm: float | None = None
    budget: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check_fields(self)

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
        """Return a copy with nearly the smallest noise within (epsilon, delta).

        The noise is never too small.
        """
        target = 1 / noise_multiplier(epsilon, delta, 1.0, 1, accountant=accountant)
        # sqrt(mu'^2 + (mu / TRACE_NOISE)^2) <= target holds when mu' is this, because mu <= target
        mu = largest_mu(target * math.sqrt(1 - TRACE_NOISE**-2), self._privacy_loss)
        return replace(self, noise_multiplier=1 / mu, budget=(float(epsilon), float(delta)))

    def with_noise(self, noise_multiplier: float) -> Self:
        return replace(self, noise_multiplier=noise_multiplier)

    def configured(self, needs: Needs) -> Self:
        return replace(self, classes=needs.classes)

    def strength(self, n_features: int) -> float:
        """Return the penalty on the sum of losses: ``penalty``, or the public rule."""
        if self.penalty is not None:
            return float(self.penalty)
        noise = require_noise(self.noise_multiplier)
        unit = _risk(self, self._outputs, 1.0)
        size = self._outputs * (n_features + self.fit_intercept)
        fitting = noise * unit.head.gradient_bound * math.sqrt(size) / _parameter_norm(self)
        return max(unit.head.smoothness / self._largest_expansion(1 / noise), fitting)

    def train(
        self, X: ArrayLike, y: ArrayLike, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Draw the linear term, minimize, add the trace of noise, release.

        The cost is ``event``.
        """
        self._require_classes()
        event = paid_event(self)
        data = _prepare(self, X, y, n_records)
        risk = _risk(self, data.n_outputs, self.strength(data.rows.shape[1] - self.fit_intercept))
        rng = secure_generator(random_state)
        size = data.n_outputs * data.rows.shape[1]
        linear = rng.normal(0.0, require_noise(self.noise_multiplier) * risk.head.gradient_bound, size)
        tolerance = SOLVER_SHARE * risk.head.gradient_bound
        trace = TRACE_NOISE * require_noise(self.noise_multiplier) * 2 * tolerance / risk.strength
        theta = risk.minimize(data.rows, data.target, tolerance=tolerance, linear=linear)
        bound = stability_objective_perturbation(
            gradient_bound=risk.head.gradient_bound,
            regularisation=risk.strength / data.n_records,
            n_records=data.n_records,
            tolerance=tolerance / data.n_records,
            score_lipschitz=risk.head.score_lipschitz,
        )
        return _build_result(self, data, gaussian_release(theta, trace, rng), event, bound, trace, random_state)

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
        unit = _risk(self, self._outputs, 1.0)
        expansion = self._largest_expansion(mu) if self.penalty is None else unit.head.smoothness / self.penalty
        rank = max(1, self._outputs - 1)
        if self.loss == "cross_entropy":
            # diag(p) - pp' has rank K - 1 and trace at most 1 - 1/K; its largest eigenvalue, 1/2, is in `expansion`
            log_determinant = rank * math.log1p(2 * expansion / (rank + 1))
        else:
            log_determinant = math.log1p(expansion)
        one_sided = self.loss == "logistic" or (self.loss == "cross_entropy" and self._outputs == 2)
        return ObjectiveLoss(mu, expansion, log_determinant, rank, one_sided)


# ---- what both share


@dataclass(frozen=True)
class _TrainingData:
    """Checked records and public sizes; lives only while training runs."""

    rows: Array
    target: NDArray[Any]
    persons: Persons
    n_records: int
    n_outputs: int
    classes: tuple[Any, ...] | None
    center: float
    public_facts: dict[str, object]


_Perturbation = OutputPerturbation | ObjectivePerturbation


def _check_fields(mechanism: _Perturbation) -> None:
    check_choice("loss", mechanism.loss, LOSSES)
    check_positive("feature_bound", mechanism.feature_bound)
    for name in ("regularisation", "penalty", "noise_multiplier", "huber_delta", "parameter_norm"):
        if getattr(mechanism, name, None) is not None:
            check_positive(name, getattr(mechanism, name))
    if mechanism.loss in ("squared", "huber"):
        if mechanism.y_bounds is None:
            raise ValueError(f"y_bounds=(low, high) is required with loss={mechanism.loss!r}")
        object.__setattr__(mechanism, "y_bounds", check_range("y_bounds", mechanism.y_bounds))
    if mechanism.classes is not None:
        object.__setattr__(mechanism, "classes", check_classes(mechanism.classes, mechanism.loss))


def _half_range(mechanism: _Perturbation) -> float:
    low, high = mechanism.y_bounds or (-1.0, 1.0)
    return (high - low) / 2 if mechanism.fit_intercept else max(abs(low), abs(high))


def _parameter_norm(mechanism: _Perturbation) -> float:
    if mechanism.parameter_norm is not None:
        return float(mechanism.parameter_norm)
    scale = 2 * _half_range(mechanism) if mechanism.y_bounds is not None else 10.0
    return scale / float(mechanism.feature_bound)


def _risk(mechanism: _Perturbation, n_outputs: int, strength: float) -> LinearRisk:
    reach = math.hypot(mechanism.feature_bound, 1.0) if mechanism.fit_intercept else float(mechanism.feature_bound)
    half = _half_range(mechanism)
    if mechanism.loss == "squared":
        return LinearRisk("huber", reach, 1, strength, 2 * half)
    if mechanism.loss == "huber":
        return LinearRisk("huber", reach, 1, strength, float(mechanism.huber_delta or half))
    return LinearRisk(mechanism.loss, reach, n_outputs if mechanism.loss == "cross_entropy" else 1, strength)


def _prepare(
    mechanism: _Perturbation, X: ArrayLike, y: ArrayLike, n_records: int | None, persons: Persons | None = None
) -> _TrainingData:
    raw = check_rows(X, finite=False)
    rows = feature_rows(raw, feature_bound=mechanism.feature_bound, intercept=mechanism.fit_intercept, dtype="float64")
    units = Persons.of_rows(persons, len(raw))
    from_data = [] if n_records is not None else [units.count_name]
    n = check_count(units.count_name, units.count if n_records is None else n_records)
    warn_large_delta(mechanism.budget, n)
    classes, center = mechanism.classes, 0.0
    target: NDArray[Any]
    if mechanism.y_bounds is not None and mechanism.loss in ("squared", "huber"):
        low, high = mechanism.y_bounds
        # without an intercept nothing can carry the centre back
        center = (low + high) / 2 if mechanism.fit_intercept else 0.0
        target, classes = bounded_targets(y, mechanism.y_bounds) - center, None
    else:
        if classes is None:
            classes = check_classes(observed_labels(y), mechanism.loss)
            from_data.append("classes")
        target = encode_labels(y, classes)
    if len(target) != len(raw):
        raise ValueError("X and y must hold the same number of records")
    facts: dict[str, object] = {
        "mechanism": type(mechanism).__name__,
        "noise_multiplier": require_noise(mechanism.noise_multiplier),
        **units.public_facts(n),
        "n_features": raw.shape[1],
        "feature_bound": mechanism.feature_bound,
        "taken_from_data": tuple(from_data),
    }
    if classes is not None:
        facts["classes"] = classes
    if mechanism.y_bounds is not None:
        facts["y_bounds"] = mechanism.y_bounds
    outputs = len(classes) if classes is not None and mechanism.loss == "cross_entropy" else 1
    return _TrainingData(rows, target, units, n, outputs, classes, center, facts)


def _build_result(
    mechanism: _Perturbation,
    data: _TrainingData,
    theta: Array,
    event: DpEvent,
    bound: Stability,
    output_noise: float,
    random_state: int | None,
) -> Trained:
    stability = replace(bound, shift_bound=bound.shift_bound + grid_slack(output_noise, len(theta)))
    network = Network((data.rows.shape[1] - mechanism.fit_intercept, data.n_outputs), "relu", mechanism.fit_intercept)
    if mechanism.fit_intercept:
        theta = theta.copy()
        network.layers(theta)[0][:, -1] += data.center
    delta = mechanism.huber_delta or _half_range(mechanism)
    model = DenseModel(network, Loss(mechanism.loss, (), delta), theta, data.classes, mechanism.feature_bound)
    facts = data.public_facts | ({"seeded": True} if random_state is not None else {})
    return Trained(model, event, stability, facts, unit=data.persons.unit)
