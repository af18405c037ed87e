"""How far one more record can move the trained parameters, from public numbers alone.

Every function returns a ``Stability``: a distance ``shift_bound`` and a probability ``delta_n`` such that
the parameters trained on n records and those trained on the same n records plus one more, with the same
masks and the same noise, differ by more than the distance with probability at most ``delta_n``. The
functions see only public constants (clip norm, step sizes, nominal number of records), so they can be
evaluated before any data is touched. All of them are statements in exact arithmetic, for data sets of at
most ``n_records`` records where a batch size enters, and for one and the same frozen set of constants on
both data sets.

What the bounds rest on (the proofs are short, and each is checked against coupled runs in the tests):

* the fixed normaliser: noise and shared gradients cancel, so only the new record's clipped gradient enters;
* nonexpansive steps: for a convex function f with B-Lipschitz gradient, I - eta * grad f has Lipschitz
  constant max(1, eta * B - 1), because grad f / B is firmly nonexpansive;
* regularised empirical risk: the gradient of the objective is strongly monotone, so a change of the
  objective by one term of slope G / n_records moves the minimiser by at most G / (regularisation *
  n_records).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp._base.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    real_number,
)
from dpscp.guarantees.poisson_tails import batch_limits, weighted_draws


@dataclass(frozen=True)
class Stability:
    """Add-one stability: P(||theta_{n+1} - theta_n|| > shift_bound) <= delta_n under a coupling.

    ``assumptions`` lists, in plain words, what the promise rests on. ``score_lipschitz`` is the Lipschitz
    constant in the parameters of the model's natural score (1 - p_y for a softmax head, the absolute
    residual for a linear regression), or None when no such constant is known.

    Paper: Assumption 1 [ass:stab]; Assumption 2 [ass:lipschitz]
    """

    shift_bound: float
    delta_n: float
    assumptions: tuple[str, ...]
    score_lipschitz: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that cannot be a stability statement."""
        if math.isnan(self.shift_bound) or self.shift_bound < 0:
            raise ValueError(f"shift_bound must be at least 0, got {self.shift_bound}")
        if not 0 <= self.delta_n <= 1:
            raise ValueError(f"delta_n must lie in [0, 1], got {self.delta_n}")
        if self.score_lipschitz is not None:
            check_nonnegative("score_lipschitz", self.score_lipschitz)

    @property
    def is_vacuous(self) -> bool:
        """Whether the statement says nothing (no finite distance, or a failure probability of one)."""
        return self.delta_n >= 1 or math.isinf(self.shift_bound)


# ---- constants of a linear head


@dataclass(frozen=True)
class LinearHead:
    """A loss of one linear layer on rows of norm at most ``row_bound`` (bias coordinate included), and its constants.

    ``gradient_bound`` bounds the norm of one record's gradient, ``smoothness`` is the Lipschitz constant of that
    gradient, and ``score_lipschitz`` that of the natural score (1 - p_y, |residual|), all in the parameters. For the
    softmax head they are sqrt(2), 1/2 (diag(p) - pp' has eigenvalues up to 1/2, times the squared bound) and sqrt(2)/4.

    Paper: Assumption 2 [ass:lipschitz]; Theory: Result C
    """

    loss: str
    row_bound: float
    huber_delta: float = 1.0

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, LINEAR_LOSSES)
        check_positive("row_bound", self.row_bound)

    @property
    def gradient_bound(self) -> float:
        """Largest norm of one record's gradient, at any parameters; infinite for the squared loss."""
        slope = {"cross_entropy": math.sqrt(2.0), "logistic": 1.0, "squared": math.inf, "huber": self.huber_delta}
        return slope[self.loss] * self.row_bound

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of one record's gradient."""
        curvature = {"cross_entropy": 0.5, "logistic": 0.25, "squared": 2.0, "huber": 1.0}
        return curvature[self.loss] * self.row_bound**2

    @property
    def score_lipschitz(self) -> float:
        """Lipschitz constant in the parameters of 1 - p_y, or of the absolute residual."""
        slope = {"cross_entropy": math.sqrt(2.0) / 4, "logistic": 0.25, "squared": 1.0, "huber": 1.0}
        return slope[self.loss] * self.row_bound


LINEAR_LOSSES = ("cross_entropy", "logistic", "squared", "huber")


# ---- DP-SGD with a fixed public normaliser


def stability_dpsgd_fixed_normaliser(  # noqa: PLR0913 (public: one argument a choice)
    *,
    clip_norm: float,
    learning_rate: float | Sequence[float] | NDArray[np.floating],
    steps: int,
    sampling_rate: float,
    n_records: int,
    smoothness: float,
    convex: bool = False,
    delta_n: float = 1e-3,
    normaliser: float | None = None,
    gradient_bound: float | None = None,
    score_lipschitz: float | None = None,
) -> Stability:
    """Shift bound of (projected) DP-SGD whose noisy sum is divided by a fixed public constant.

    The gap obeys gap_{t+1} <= rho_t * gap_t + eta_t * b_t * C / normaliser with b_t ~
    Bernoulli(sampling_rate): rho_t = 1 + eta_t * smoothness * |B_t| / normaliser in general, and max(1,
    eta_t * smoothness * |B_t| / normaliser - 1) when every clipped loss is convex. C is the smaller of
    ``clip_norm`` and ``gradient_bound`` (a bound on the unclipped gradient, where one is known). The
    returned ``delta_n`` is at most the one asked for: it is shared between the tail of the batch sizes
    (independent over steps, exact binomial tails at ``n_records`` records) and the tail of the weighted
    number of times the new record is drawn (exact binomial tail for equal weights, otherwise a convolution
    with weights rounded up). With ``sampling_rate`` 1 the bound is deterministic and the returned
    ``delta_n`` is 0.

    Assumes plain SGD: momentum and Adam have no such bound. Projection on a convex set and averaging the
    iterates keep it (the bound never decreases along the run). ``convex`` promises that the *clipped*
    losses are convex: true when clip_norm is at least the gradient bound, and for scalar-link linear models
    at any clip norm, but not for a clipped softmax head. ``normaliser`` defaults to sampling_rate *
    n_records.

    Theory: Result C
    """
    rates = _learning_rates(learning_rate, steps)
    rate, n = check_fraction("sampling_rate", sampling_rate), check_count("n_records", n_records)
    smooth = check_nonnegative("smoothness", smoothness)
    influence = check_positive("clip_norm", clip_norm)
    if gradient_bound is not None:
        influence = min(influence, check_positive("gradient_bound", gradient_bound))
    divisor = rate * n if normaliser is None else check_positive("normaliser", normaliser)
    target = check_probability("delta_n", delta_n)
    assumptions = _fixed_normaliser_assumptions(n, convex=convex)

    if rate == 1.0:
        factors = _step_factors(rates, smooth, n, divisor, convex=convex)
        shift = float(np.sum(_weights(rates, factors))) * influence / divisor
        return Stability(shift, 0.0, assumptions, score_lipschitz)

    best: tuple[float, float] | None = None
    for limit, batch_tail in batch_limits(rates, smooth, n, rate, divisor, target, convex=convex):
        weights = _weights(rates, _step_factors(rates, smooth, limit, divisor, convex=convex))
        if not np.all(np.isfinite(weights)):
            continue
        total, draw_tail = weighted_draws(weights, rate, target - batch_tail)
        if best is None or total < best[0]:
            best = total, min(target, batch_tail + draw_tail)
    if best is None:
        return Stability(math.inf, 0.0, assumptions, score_lipschitz)
    return Stability(best[0] * influence / divisor, best[1], assumptions, score_lipschitz)


def _fixed_normaliser_assumptions(n_records: int, *, convex: bool) -> tuple[str, ...]:
    shape = "every clipped loss is convex and smooth" if convex else "every clipped loss is smooth"
    return (
        f"at most {n_records} besides the new one",
        shape,
        "plain SGD with a fixed public normaliser: no momentum, no adaptive step",
        "preprocessing does not depend on the data",
    )


def _learning_rates(learning_rate: float | Sequence[float] | NDArray[np.floating], steps: int) -> NDArray[np.float64]:
    count = check_count("steps", steps)
    if np.ndim(learning_rate) == 0:
        return np.full(count, check_positive("learning_rate", learning_rate))
    rates = np.array([real_number("learning_rate", r) for r in np.asarray(learning_rate).ravel().tolist()])
    if rates.shape != (count,):
        raise ValueError(f"learning_rate must be a number or {count} numbers (one a step), got {rates.size}")
    if np.any(rates < 0):
        raise ValueError("learning_rate must not be negative")
    return rates


def _step_factors(
    rates: NDArray[np.float64], smoothness: float, batch: float, divisor: float, *, convex: bool
) -> NDArray[np.float64]:
    curvature = rates * smoothness * batch / divisor
    return np.maximum(1.0, curvature - 1.0) if convex else 1.0 + curvature


def _weights(rates: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    # weight of a draw at step t: eta_t times the product of the factors of all later steps
    logs = np.cumsum(np.log(factors[::-1]))[::-1]
    later = np.append(logs[1:], 0.0)
    with np.errstate(over="ignore"):
        return np.asarray(rates * np.exp(later))


# ---- Supplement S3: regularised empirical risk and summaries


def stability_output_perturbation(
    *,
    gradient_bound: float,
    regularisation: float,
    n_records: int,
    tolerance: float = 0.0,
    noise_std: float | None = None,
    n_parameters: int | None = None,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Shift bound of a regularised minimiser plus noise.

    With the nominal normaliser (``noise_std`` None, what this package trains) the objective is
    sum(losses) / n_records + regularisation / 2 * ||theta||^2, the noise cancels, and the shift is at most
    gradient_bound / (regularisation * n_records), surely. ``tolerance`` is the gradient norm at which the
    solver may stop; each of the two runs may be tolerance / regularisation away from its minimiser.

    With ``noise_std`` (and ``n_parameters``) this is the supplement's mechanism instead: losses averaged
    over the n records really present, noise of standard deviation noise_std / n, so both scales change with
    n: shift 2 * gradient_bound / (regularisation * (n + 1)) + t / (n (n + 1)), t the exact chi quantile of
    ``delta_n``. (The supplement prints n for n + 1 in the first term, and its expansion of F_{n+1} drops a
    piece of the penalty; the bound survives, because (n + 1) grad F_{n+1} at the old minimiser is the new
    gradient minus the average old one.)

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    steady, slack = _regularised_shift(gradient_bound, regularisation, n_records, tolerance)
    if noise_std is None:
        return Stability(steady + slack, 0.0, _risk_assumptions(nominal=True), score_lipschitz)
    moving = 2 * steady * n_records / (n_records + 1) + slack
    shift = moving + _rescaled_noise(noise_std, n_parameters, delta_n, n_records)
    return Stability(shift, delta_n, _risk_assumptions(nominal=False), score_lipschitz)


def stability_objective_perturbation(
    *,
    gradient_bound: float,
    regularisation: float,
    n_records: int,
    tolerance: float = 0.0,
    noise_std: float | None = None,
    n_parameters: int | None = None,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Shift bound of the minimiser of a regularised risk with a random linear term.

    A minimiser moves by 1 / regularisation times a change of the linear term, so the bound is that of
    ``stability_output_perturbation`` with ``noise_std`` (of the linear term b / n) divided by
    ``regularisation``. With the nominal normaliser the linear term is shared and cancels. The supplement's
    unnamed a_n is 2 * gradient_bound / (regularisation * (n + 1)): the linear term drops out of it, being
    part of both optimality conditions.

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    strength = check_positive("regularisation", regularisation)
    return stability_output_perturbation(
        gradient_bound=gradient_bound,
        regularisation=strength,
        n_records=n_records,
        tolerance=tolerance,
        noise_std=None if noise_std is None else noise_std / strength,
        n_parameters=n_parameters,
        delta_n=delta_n,
        score_lipschitz=score_lipschitz,
    )


def stability_summary(
    *,
    summary_bound: float,
    lipschitz: float,
    n_records: int,
    noise_std: float | None = None,
    n_parameters: int | None = None,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Shift bound of an estimator that is a Lipschitz function of a privatised mean of bounded vectors.

    Nominal normaliser (``noise_std`` None): sum(psi) / n_records moves by at most summary_bound / n_records
    and the noise cancels: shift lipschitz * summary_bound / n_records, surely. The supplement's form
    divides by the n records really present and adds noise of standard deviation noise_std / n in
    ``n_parameters`` coordinates: lipschitz * (2 * summary_bound / (n + 1) + t / (n (n + 1))).

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    bound, slope = check_positive("summary_bound", summary_bound), check_positive("lipschitz", lipschitz)
    n = check_count("n_records", n_records)
    if noise_std is None:
        assumptions = ("summaries of bounded norm, divided by a public constant",)
        return Stability(slope * bound / n, 0.0, assumptions, score_lipschitz)
    shift = slope * (2 * bound / (n + 1) + _rescaled_noise(noise_std, n_parameters, delta_n, n))
    assumptions = ("summaries of bounded norm, averaged over the records",)
    return Stability(shift, delta_n, assumptions, score_lipschitz)


def _regularised_shift(
    gradient_bound: float, regularisation: float, n_records: int, tolerance: float
) -> tuple[float, float]:
    strength = check_positive("regularisation", regularisation)
    slope, n = check_positive("gradient_bound", gradient_bound), check_count("n_records", n_records)
    return slope / (strength * n), 2 * check_nonnegative("tolerance", tolerance) / strength


def _risk_assumptions(*, nominal: bool) -> tuple[str, ...]:
    return (
        "convex losses with bounded gradients and a quadratic penalty",
        "losses divided by a public constant" if nominal else "losses averaged over the records really present",
        "preprocessing does not depend on the data",
    )


def _rescaled_noise(noise_std: float, n_parameters: int | None, delta_n: float, n: int) -> float:
    # |1/n - 1/(n+1)| times the chi quantile of the shared base noise
    if n_parameters is None:
        raise ValueError("n_parameters is needed with noise_std: it bounds the length of the noise vector")
    dimension = check_count("n_parameters", n_parameters)
    tail = check_probability("delta_n", delta_n)
    radius = check_nonnegative("noise_std", noise_std) * math.sqrt(float(stats.chi2.isf(tail, dimension)))
    return radius / (n * (n + 1))
