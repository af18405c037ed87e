"""The refined coverage bound of the paper; usually vacuous at real sample sizes."""

import math

from dpscp._base.checks import check_count, check_nonnegative, check_positive, check_probability
from dpscp.guarantees.stability import Stability


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
