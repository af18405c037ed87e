"""Coverage bounds as numbers: statements of the paper and Results A to G.

Every function takes public numbers only and can be called before any record is used.
"""

import math

from dpscp._base.checks import check_count, check_nonnegative, check_positive, check_probability, real_number
from dpscp.privacy.tradeoff import Tradeoff, last_where
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
