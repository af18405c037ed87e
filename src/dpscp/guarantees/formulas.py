"""Coverage bounds as numbers: statements of the paper and Results A to G.

Every function takes public numbers only and can be called before any record is used. The paper's stability of DP-SGD is
here. The library trains with a fixed public normalizer and uses ``stability_dpsgd_fixed_normalizer`` instead.
"""

import math

from dpscp._base.assumptions import BATCH_DIVISOR, CONSTANT_RATE, LIPSCHITZ_GRADIENTS, SHARED_SAMPLING
from dpscp._base.checks import (
    check_count,
    check_fraction,
    check_nonnegative,
    check_positive,
    check_probability,
    last_where,
    real_number,
)
from dpscp.guarantees.stability import Stability, ever_sampled
from dpscp.privacy.tradeoff import Tradeoff
from dpscp.threshold import worst_final_gap

# ---- privacy statements of the paper


def search_mu(count_noise: float, steps: int, sensitivity: float = 1.0) -> float:
    """Return the GDP level of a search with continuous noise, for planning.

    Parameters
    ----------
    count_noise : float
    steps : int
    sensitivity : float

    Returns
    -------
    float
        sensitivity * sqrt(steps) / count_noise.

    Paper: Lemma 2 [lemma:search_privacy]
    """
    count_noise, sensitivity = check_positive("count_noise", count_noise), check_positive("sensitivity", sensitivity)
    return sensitivity * math.sqrt(check_count("steps", steps)) / count_noise


def overall_mu(mu_train: float, mu_calib: float) -> float:
    """Return the GDP level of training and calibration together.

    Parameters
    ----------
    mu_train, mu_calib : float

    Returns
    -------
    float
        sqrt(mu_train^2 + mu_calib^2).

    Paper: Theorem 1 [thm:overall_privacy]
    """
    return math.hypot(check_nonnegative("mu_train", mu_train), check_nonnegative("mu_calib", mu_calib))


# ---- coverage from privacy alone


def blackbox_floor(alpha: float, tradeoff: Tradeoff, failure_probability: float = 0.0) -> float:
    """Return f(alpha + beta - alpha beta): coverage from privacy alone.

    Parameters
    ----------
    alpha : float
    tradeoff : callable
        f of the whole pipeline.
    failure_probability : float
        beta, the probability that the search errs.

    Returns
    -------
    float

    Assumes: exchangeable records, training that is invariant under permutations.

    Paper: Theorem 2 [thm:dp_gap_two_sides], Corollary 1 [cor:blackbox_dpscp]
    """
    alpha = check_probability("alpha", alpha)
    beta = check_nonnegative("failure_probability", failure_probability)
    if beta >= 1:
        raise ValueError(f"failure_probability must be below 1, got {beta:g}")
    return float(tradeoff(alpha + beta - alpha * beta))


def universal_floor(inner_alpha: float, tradeoff: Tradeoff) -> float:
    """Return f_train(alpha'): the coverage of a search with ideal miss rate alpha'.

    Parameters
    ----------
    inner_alpha : float
        alpha'.
    tradeoff : callable
        That of *training* alone, in the direction "add". The calibration budget costs no coverage.

    Returns
    -------
    float

    Theory: Result B
    """
    return float(tradeoff(min(1.0, check_nonnegative("inner_alpha", inner_alpha))))


def universal_alpha(alpha: float, tradeoff: Tradeoff) -> float:
    """Return alpha': the largest inner level with f_train(alpha') >= 1 - alpha.

    Calibrating at alpha' gives coverage 1 - alpha in finite samples, without an assumption on model, density or ties.

    Parameters
    ----------
    alpha : float
    tradeoff : callable
        That of training alone, in the direction "add".

    Returns
    -------
    float
        Rounded down; 0 if there is none.

    >>> from dpscp.privacy import gaussian_tradeoff, gdp_mu
    >>> half = gdp_mu(1.0, 1e-5) / 2**0.5
    >>> round(1 - universal_alpha(0.1, gaussian_tradeoff(half)), 4)
    0.9294

    Theory: Result B
    """
    wanted = 1 - check_probability("alpha", alpha)
    if tradeoff(0.0) < wanted:
        return 0.0
    if tradeoff(alpha) >= wanted:  # f(x) <= 1 - x, so alpha' is at most alpha
        return alpha
    return last_where(lambda inner: tradeoff(inner) >= wanted, 0.0, alpha)


# ---- Result A and what follows from it


def minimax_miss_bound(n: int, rank_target: float, count_noise: float, steps: int) -> float:
    """Return the largest miss rate of a search over all scores.

    The search accepts noisy counts of at least R = ``rank_target``. With the test score counted, E[C(threshold)] >= R -
    count_noise V_N((R - n - 1) / count_noise). Some scores attain it, up to .004 count_noise / (n + 1).

    Parameters
    ----------
    n : int
    rank_target, count_noise : float
    steps : int

    Returns
    -------
    float

    Assumes: exchangeable scores.

    Theory: Result F
    """
    n, count_noise = check_count("n", n), check_positive("count_noise", count_noise)
    target = real_number("rank_target", rank_target)
    worst = count_noise * float(worst_final_gap((target - n - 1) / count_noise, steps))
    return min(1.0, max(0.0, 1 - (target - worst) / (n + 1)))


def value_buffer(score_lipschitz: float, shift_bound: float) -> float:
    """Return 2 L u: what Result C adds to the threshold.

    Parameters
    ----------
    score_lipschitz : float
        L, the Lipschitz constant of the scores.
    shift_bound : float
        u, the largest move of the parameters.

    Returns
    -------
    float

    Theory: Result C
    """
    return 2 * check_nonnegative("score_lipschitz", score_lipschitz) * check_nonnegative("shift_bound", shift_bound)


# ---- the paper's stability of DP-SGD, which divides by the batch size; usually vacuous at real sample sizes


def stability_dpsgd_projection(*, sampling_rate: float, steps: int) -> Stability:
    """Return shift 0, and the probability that the new record is ever sampled.

    That is 1 - (1 - sampling_rate)**steps. Until the record is drawn, the coupled runs are the same. So the bound holds
    for any loss, any model and any optimizer (momentum and Adam included), and needs no projection. It is useless if
    sampling_rate * steps is of order one.

    Parameters
    ----------
    sampling_rate : float
    steps : int

    Returns
    -------
    Stability

    Paper: Lemma 3 [thm:proj_dpsgd_stability]
    """
    rate, count = check_fraction("sampling_rate", sampling_rate), check_count("steps", steps)
    return Stability(0.0, ever_sampled(rate, count), (SHARED_SAMPLING,))


def expected_gap_dpsgd_projection(*, diameter: float, sampling_rate: float, steps: int) -> float:
    """Return an upper bound on E||theta_{n+1} - theta_n|| for projected DP-SGD.

    Parameters
    ----------
    diameter : float
        That of the projection set.
    sampling_rate : float
    steps : int

    Returns
    -------
    float

    Paper: Lemma 3 [thm:proj_dpsgd_stability]
    """
    rate, count = check_fraction("sampling_rate", sampling_rate), check_count("steps", steps)
    return check_positive("diameter", diameter) * ever_sampled(rate, count)


def stability_dpsgd_smooth(
    *,
    n_records: int,
    clip_norm: float,
    noise_std: float,
    n_parameters: int,
    learning_rate: float,
    steps: int,
    sampling_rate: float,
    smoothness: float,
) -> Stability:
    """Return the paper's bound for smooth losses.

    Its shift is E_n**(2/3), and its delta_n is E_n**(1/3).

    E_n bounds E||theta_{n+1} - theta_n||, and Markov's inequality splits it. The bound is vacuous (delta_n = 1) once
    E_n reaches one, which is the usual case at real sample sizes. The paper's DP-SGD divides by the batch size and
    skips empty batches. If only the new record was drawn, its effect is at most clip_norm + noise, and the recurrence
    allows 2 * clip_norm + noise.

    Parameters
    ----------
    n_records : int
    clip_norm : float
    noise_std : float
        The standard deviation of each coordinate of the noise on the sum of clipped gradients (noise multiplier times
        clip norm). The proof of the paper absorbs the clip norm into its sigma.
    n_parameters : int
    learning_rate : float
        Constant.
    steps : int
    sampling_rate, smoothness : float

    Returns
    -------
    Stability
        Its shift is infinite if the exponential overflows.

    Paper: Theorem 4 [thm:dpsgd_stability_smooth]; Corollary 2 [cor:dpsgd_coverage]
    """
    n = check_count("n_records", n_records)
    rate, count = check_fraction("sampling_rate", sampling_rate), check_count("steps", steps)
    clip, std = check_positive("clip_norm", clip_norm), check_nonnegative("noise_std", noise_std)
    dimension = check_count("n_parameters", n_parameters)
    eta, smooth = check_positive("learning_rate", learning_rate), check_positive("smoothness", smoothness)
    exponent = eta * smooth * count
    growth = math.expm1(exponent) if exponent < 700 else math.inf
    gap = ever_sampled(rate, n + 1) / ((n + 1) * smooth) * (2 * clip + std * math.sqrt(dimension)) * growth
    return Stability(gap ** (2 / 3), min(1.0, gap ** (1 / 3)), (LIPSCHITZ_GRADIENTS, BATCH_DIVISOR, CONSTANT_RATE))


# ---- the paper's coverage under stability; usually vacuous at real sample sizes


def _moved_mass(density_bound: float, score_lipschitz: float, shift_bound: float) -> float:
    """Return fbar L u_n: the largest probability mass that a shift moves."""
    density = check_nonnegative("density_bound", density_bound)
    return (
        density * check_nonnegative("score_lipschitz", score_lipschitz) * check_nonnegative("shift_bound", shift_bound)
    )


def rank_buffer(n: int, density_bound: float, score_lipschitz: float, shift_bound: float, delta_n: float) -> int:
    """Return m_n = ceil(n fbar L u_n / delta_n), at least 0; 0 if nothing moves.

    Parameters
    ----------
    n : int
    density_bound : float
        fbar, a bound of the score density near the target quantile.
    score_lipschitz, shift_bound, delta_n : float

    Returns
    -------
    int

    Paper: Theorem 3 [thm: coverage]
    """
    n = check_count("n", n)
    moved = _moved_mass(density_bound, score_lipschitz, shift_bound)
    if moved == 0:
        return 0
    return math.ceil(n * moved / check_positive("delta_n", delta_n))


def coverage_lower_bound(
    n: int,
    alpha: float,
    failure_probability: float,
    density_bound: float,
    score_lipschitz: float,
    shift_bound: float,
    delta_n: float,
) -> float:
    """Return (1 - beta)(1 - alpha - 2 fbar L u_n - 3 delta_n - 1/(n+1)), at least 0.

    Parameters
    ----------
    n : int
    alpha : float
    failure_probability : float
        beta.
    density_bound : float
        fbar.
    score_lipschitz : float
        L.
    shift_bound : float
        u_n.
    delta_n : float

    Returns
    -------
    float

    Assumes: stable training (u_n, delta_n), L-Lipschitz scores without ties, score density at most fbar near the target
    quantile, and a search with the rank buffer m_n of ``rank_buffer`` and the union noise buffer.

    Paper: Theorem 3 [thm: coverage]
    """
    n = check_count("n", n)
    alpha = check_probability("alpha", alpha)
    beta = check_nonnegative("failure_probability", failure_probability)
    if beta >= 1:
        raise ValueError(f"failure_probability must be below 1, got {beta:g}")
    loss = 2 * _moved_mass(density_bound, score_lipschitz, shift_bound)
    bound = (1 - beta) * (1 - alpha - loss - 3 * check_nonnegative("delta_n", delta_n) - 1 / (n + 1))
    return max(0.0, bound)


def dpsgd_coverage(
    n: int, alpha: float, failure_probability: float, density_bound: float, score_lipschitz: float, stability: Stability
) -> dict[str, float]:
    """Return the coverage bound of the paper for a known stability, term by term.

    At real sample sizes the bound is usually vacuous: ``coverage`` is then 0.

    Parameters
    ----------
    n : int
    alpha, failure_probability, density_bound, score_lipschitz : float
        As in ``coverage_lower_bound``.
    stability : Stability
        From ``stability_dpsgd_projection`` (regime I) or ``stability_dpsgd_smooth`` (regime II).

    Returns
    -------
    dict of str to float

    Paper: Corollary 2 [cor:dpsgd_coverage]
    """
    u, delta_n = stability.shift_bound, stability.delta_n
    buffer = n if stability.is_vacuous else rank_buffer(n, density_bound, score_lipschitz, u, delta_n)
    coverage = 0.0
    if not stability.is_vacuous:
        coverage = coverage_lower_bound(n, alpha, failure_probability, density_bound, score_lipschitz, u, delta_n)
    feasible = math.ceil((1 - alpha) * (n + 1)) + buffer <= n
    return {
        "coverage": coverage if feasible else 0.0,
        "shift_bound": u,
        "delta_n": delta_n,
        "rank_buffer": float(buffer),
        "density_term": 2 * density_bound * score_lipschitz * u,
        "stability_term": 3 * delta_n,
        "sample_term": 1 / (n + 1),
    }
