"""Bounds on how far one more record moves the trained parameters.

Every function returns a ``Stability``: a distance ``shift_bound`` and a probability ``delta_n``. Train on n records,
and on the same n records plus one more, with the same masks and noise. Then the parameters differ by more than the
distance with probability at most ``delta_n``. The functions use public constants only (clip norm, step sizes, nominal
number of records), so they can be called before any record is used. They are statements in exact arithmetic, for the
same constants on both data sets. Where a batch size enters, they hold for at most ``n_records`` records.

The proofs are short, and the tests compare each bound with coupled runs:

* fixed normalizer: noise and shared gradients cancel, so only the clipped gradient of the new record enters;
* nonexpansive steps: for a convex function f with B-Lipschitz gradient, I - eta * grad f has Lipschitz constant
  max(1, eta * B - 1), because grad f / B is firmly nonexpansive;
* regularized empirical risk: the gradient of the objective is strongly monotone, so a new term of slope G / n_records
  moves the minimizer by at most G / (regularization * n_records).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp._base.assumptions import (
    AVERAGED_LOSSES,
    AVERAGED_SUMMARIES,
    CONVEX_AND_SMOOTH,
    CONVEX_WITH_PENALTY,
    FIXED_PREPROCESSING,
    MOST_OTHERS,
    PLAIN_SGD,
    PUBLIC_DIVISOR,
    SMOOTH,
    SUMMARIES_OVER_CONSTANT,
    Assumption,
    require_assumptions,
)
from dpscp._base.checks import (
    check_choice,
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    real_number,
    smallest_where,
)

_GRID = 1 << 14  # cells of the convolution; weights are rounded up, so the result is an upper bound for any grid


@dataclass(frozen=True)
class Stability:
    """Add-one stability: P(||theta_{n+1} - theta_n|| > shift_bound) <= delta_n.

    Attributes
    ----------
    shift_bound : float
    delta_n : float
    assumptions : tuple of Assumption
        What the bound assumes.
    score_lipschitz : float, optional
        The Lipschitz constant of the model's natural score in the parameters (1 - p_y for a softmax head, the absolute
        residual for a linear regression), if it is known.

    Paper: Assumption 1 [ass:stab]; Assumption 2 [ass:lipschitz]
    """

    shift_bound: float
    delta_n: float
    assumptions: tuple[Assumption, ...]
    score_lipschitz: float | None = None

    def __post_init__(self) -> None:
        """Reject numbers that cannot be a stability statement, and assumptions in words."""
        object.__setattr__(self, "assumptions", require_assumptions(self.assumptions))
        if math.isnan(self.shift_bound) or self.shift_bound < 0:
            raise ValueError(f"shift_bound must be at least 0, got {self.shift_bound}")
        if not 0 <= self.delta_n <= 1:
            raise ValueError(f"delta_n must lie in [0, 1], got {self.delta_n}")
        if self.score_lipschitz is not None:
            check_nonnegative("score_lipschitz", self.score_lipschitz)

    @property
    def is_vacuous(self) -> bool:
        """Whether the distance is infinite or the failure probability is one."""
        return self.delta_n >= 1 or math.isinf(self.shift_bound)


# ---- constants of a linear head


@dataclass(frozen=True)
class LinearHead:
    """Constants of a loss of one linear layer on rows of bounded norm.

    ``row_bound`` includes the bias coordinate. For the softmax head, per unit of ``row_bound``: gradient bound sqrt(2),
    smoothness 1/2 (diag(p) - pp' has eigenvalues up to 1/2) and score constant sqrt(2)/4.

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
        """The largest norm of one record's gradient; infinite for the squared loss."""
        slope = {"cross_entropy": math.sqrt(2.0), "logistic": 1.0, "squared": math.inf, "huber": self.huber_delta}
        return slope[self.loss] * self.row_bound

    @property
    def smoothness(self) -> float:
        """The Lipschitz constant of one record's gradient."""
        curvature = {"cross_entropy": 0.5, "logistic": 0.25, "squared": 2.0, "huber": 1.0}
        return curvature[self.loss] * self.row_bound**2

    @property
    def score_lipschitz(self) -> float:
        """The Lipschitz constant of 1 - p_y or |residual| in the parameters."""
        slope = {"cross_entropy": math.sqrt(2.0) / 4, "logistic": 0.25, "squared": 1.0, "huber": 1.0}
        return slope[self.loss] * self.row_bound


LINEAR_LOSSES = ("cross_entropy", "logistic", "squared", "huber")


# ---- DP-SGD with a fixed public normalizer


def stability_dpsgd_fixed_normalizer(
    *,
    clip_norm: float,
    learning_rate: float | Sequence[float] | NDArray[np.floating],
    steps: int,
    sampling_rate: float,
    n_records: int,
    smoothness: float,
    convex: bool = False,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Return the shift bound of DP-SGD with a fixed public normalizer.

    The gap satisfies gap_{t+1} <= rho_t * gap_t + eta_t * b_t * C / normalizer with b_t ~ Bernoulli(sampling_rate). In
    general rho_t = 1 + eta_t * smoothness * |B_t| / normalizer. If every clipped loss is convex, rho_t = max(1, eta_t *
    smoothness * |B_t| / normalizer - 1).

    ``delta_n`` is divided between two tails. The tail of the batch sizes is exact binomial at ``n_records`` records.
    The tail of the weighted number of draws of the new record is exact binomial for equal weights, otherwise a
    convolution with weights rounded up.

    Parameters
    ----------
    clip_norm : float
    learning_rate : float or array, shape (steps,)
    steps : int
    sampling_rate : float
        With 1 the bound is deterministic and the returned ``delta_n`` is 0.
    n_records : int
    smoothness : float
    convex : bool
        The *clipped* losses are convex. True if clip_norm is at least the gradient bound, and for linear models with a
        scalar link at any clip norm. False for a clipped softmax head.
    delta_n : float
        The largest failure probability.
    score_lipschitz : float, optional

    Returns
    -------
    Stability

    Assumes: plain SGD; momentum and Adam have no such bound. Projection on a convex set and averaging of iterates keep
    it, because the bound never decreases along the run.

    Theory: Result C
    """
    rates = _learning_rates(learning_rate, steps)
    rate, n = check_fraction("sampling_rate", sampling_rate), check_count("n_records", n_records)
    smooth = check_nonnegative("smoothness", smoothness)
    influence = check_positive("clip_norm", clip_norm)
    divisor, target = rate * n, check_probability("delta_n", delta_n)
    assumptions = (MOST_OTHERS(n), CONVEX_AND_SMOOTH if convex else SMOOTH, PLAIN_SGD, FIXED_PREPROCESSING)

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


def _learning_rates(learning_rate: float | Sequence[float] | NDArray[np.floating], steps: int) -> NDArray[np.float64]:
    count = check_count("steps", steps)
    if np.ndim(learning_rate) == 0:
        return np.full(count, check_positive("learning_rate", learning_rate))
    rates = np.array([real_number("learning_rate", r) for r in np.asarray(learning_rate).ravel().tolist()])
    if rates.shape != (count,):
        raise ValueError(f"learning_rate must be one number or {count} numbers (one per step), got {rates.size}")
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


# ---- Supplement S3: regularized empirical risk and summaries


def stability_output_perturbation(
    *,
    gradient_bound: float,
    regularization: float,
    n_records: int,
    tolerance: float = 0.0,
    noise_std: float | None = None,
    n_parameters: int | None = None,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Return the shift bound of a regularized minimizer plus noise.

    With the nominal normalizer (``noise_std`` None, as this package trains) the objective is sum(losses) / n_records +
    regularization / 2 * ||theta||^2. The noise cancels, and the shift is at most gradient_bound / (regularization *
    n_records) with certainty.

    With ``noise_std`` and ``n_parameters`` this is the mechanism of the supplement: losses averaged over the n records,
    noise of standard deviation noise_std / n. Both scales change with n: shift 2 * gradient_bound / (regularization *
    (n + 1)) + t / (n (n + 1)), with t the exact chi quantile of ``delta_n``. (The supplement prints n for n + 1 in the
    first term, and its expansion of F_{n+1} drops a piece of the penalty. The bound holds, because (n + 1) grad F_{n+1}
    at the old minimizer is the new gradient minus the average old one.)

    Parameters
    ----------
    gradient_bound, regularization : float
    n_records : int
    tolerance : float
        The gradient norm at which the solver may stop. Each of the two runs may be tolerance / regularization away from
        its minimizer.
    noise_std : float, optional
    n_parameters : int, optional
    delta_n : float
    score_lipschitz : float, optional

    Returns
    -------
    Stability

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    strength = check_positive("regularization", regularization)
    slope, n = check_positive("gradient_bound", gradient_bound), check_count("n_records", n_records)
    slack = 2 * check_nonnegative("tolerance", tolerance) / strength
    if noise_std is None:
        assumptions = (CONVEX_WITH_PENALTY, PUBLIC_DIVISOR, FIXED_PREPROCESSING)
        return Stability(slope / (strength * n) + slack, 0.0, assumptions, score_lipschitz)
    moving = 2 * slope / (strength * (n + 1)) + slack
    shift = moving + _rescaled_noise(noise_std, n_parameters, delta_n, n)
    return Stability(shift, delta_n, (CONVEX_WITH_PENALTY, AVERAGED_LOSSES, FIXED_PREPROCESSING), score_lipschitz)


def stability_objective_perturbation(
    *,
    gradient_bound: float,
    regularization: float,
    n_records: int,
    tolerance: float = 0.0,
    noise_std: float | None = None,
    n_parameters: int | None = None,
    delta_n: float = 1e-3,
    score_lipschitz: float | None = None,
) -> Stability:
    """Return the shift bound of a regularized minimizer with a random linear term.

    A change of the linear term moves a minimizer by 1 / regularization times that change. So the bound is that of
    ``stability_output_perturbation`` with ``noise_std`` (of the linear term b / n) divided by ``regularization``. With
    the nominal normalizer the linear term is shared and cancels. The unnamed a_n of the supplement is 2 *
    gradient_bound / (regularization * (n + 1)): the linear term is part of both optimality conditions.

    Parameters
    ----------
    gradient_bound, regularization : float
    n_records : int
    tolerance : float
    noise_std : float, optional
    n_parameters : int, optional
    delta_n : float
    score_lipschitz : float, optional
        All as in ``stability_output_perturbation``.

    Returns
    -------
    Stability

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    strength = check_positive("regularization", regularization)
    return stability_output_perturbation(
        gradient_bound=gradient_bound,
        regularization=strength,
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
    """Return the shift bound of a Lipschitz function of a privatized mean.

    With the nominal normalizer (``noise_std`` None), sum(psi) / n_records moves by at most summary_bound / n_records
    and the noise cancels: shift lipschitz * summary_bound / n_records with certainty. The form of the supplement
    divides by the number n of records and adds noise of standard deviation noise_std / n in ``n_parameters``
    coordinates: lipschitz * (2 * summary_bound / (n + 1) + t / (n (n + 1))).

    Parameters
    ----------
    summary_bound : float
        The largest norm of one record's vector.
    lipschitz : float
    n_records : int
    noise_std : float, optional
    n_parameters : int, optional
    delta_n : float
    score_lipschitz : float, optional

    Returns
    -------
    Stability

    Paper: Supplement S3 [sec:assumption_validation]; Theory: Result C
    """
    bound, slope = check_positive("summary_bound", summary_bound), check_positive("lipschitz", lipschitz)
    n = check_count("n_records", n_records)
    if noise_std is None:
        assumptions = (SUMMARIES_OVER_CONSTANT,)
        return Stability(slope * bound / n, 0.0, assumptions, score_lipschitz)
    shift = slope * (2 * bound / (n + 1) + _rescaled_noise(noise_std, n_parameters, delta_n, n))
    assumptions = (AVERAGED_SUMMARIES,)
    return Stability(shift, delta_n, assumptions, score_lipschitz)


def _rescaled_noise(noise_std: float, n_parameters: int | None, delta_n: float, n: int) -> float:
    # |1/n - 1/(n+1)| times the chi quantile of the shared base noise
    if n_parameters is None:
        raise ValueError("noise_std needs n_parameters, which bounds the length of the noise vector; pass it")
    dimension = check_count("n_parameters", n_parameters)
    tail = check_probability("delta_n", delta_n)
    radius = check_nonnegative("noise_std", noise_std) * math.sqrt(float(stats.chi2.isf(tail, dimension)))
    return radius / (n * (n + 1))


# ---- exact tails of Poisson sampling: how often one record is drawn, and how large batches get


def ever_sampled(rate: float, times: int) -> float:
    """Return the probability that a record is in at least one of ``times`` samples."""
    return 1.0 if rate == 1.0 else -math.expm1(times * math.log1p(-rate))


def batch_limits(
    rates: NDArray[np.float64], smoothness: float, n: int, rate: float, divisor: float, target: float, *, convex: bool
) -> list[tuple[int, float]]:
    """Return candidate caps on the batch size and the probability to exceed each."""

    def exceeds(limit: float) -> float:
        tail = float(stats.binom.sf(math.floor(limit), n, rate))
        return 1.0 if tail >= 1.0 else -math.expm1(len(rates) * math.log1p(-tail))

    candidates = []
    steepest = float(np.max(rates)) * smoothness
    if convex and steepest > 0:
        # slightly below 2, so that a rounded quotient cannot make the cap too large by one
        nonexpansive = min(n, math.floor(2.0 * divisor / steepest * (1 - 1e-12)))
        if nonexpansive >= 0 and exceeds(nonexpansive) <= target / 2:
            candidates.append((nonexpansive, exceeds(nonexpansive)))
    if smoothness == 0:
        return [(n, 0.0)]
    # the smallest cap that is exceeded with at most half of the failure probability
    smallest = min(n, smallest_where(lambda limit: exceeds(limit - 1) <= target / 2) - 1)
    candidates.append((smallest, exceeds(smallest)))
    return candidates


def weighted_draws(weights: NDArray[np.float64], rate: float, target: float) -> tuple[float, float]:
    """Return (u, tail) with P(sum_t weights_t b_t > u) <= tail <= target.

    The b_t are independent Bernoulli(rate). The simple bound adds the largest weights, as many as the record is drawn.
    The sharper bound convolves. Both are upper bounds, and the smaller one is returned.
    """
    draws = int(stats.binom.isf(target, len(weights), rate))
    while stats.binom.sf(draws, len(weights), rate) > target:  # isf may be wrong by one in the far tail
        draws += 1
    tail = float(stats.binom.sf(draws, len(weights), rate))
    largest_first = np.sort(weights)[::-1]
    crude = float(np.sum(largest_first[:draws]))
    if draws == 0 or largest_first[0] == largest_first[-1]:
        return crude, tail
    cell = crude / _GRID
    mass = np.zeros(_GRID + 1)
    mass[0] = 1.0
    for cells in np.ceil(weights / cell).astype(np.int64):
        if cells > 0:
            moved = rate * mass[: max(0, _GRID + 1 - cells)]
            mass *= 1 - rate
            mass[cells:] += moved
    # mass beyond the grid counts as failure; the constant covers accumulated rounding
    tails = np.maximum(0.0, 1.0 - np.cumsum(mass)) + 1e-12
    good = np.flatnonzero(tails <= target)
    if good.size == 0:
        return crude, tail
    return float(good[0] * cell) * (1 + 1e-12), float(tails[good[0]])
