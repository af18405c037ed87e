"""Trade-off functions (f-DP) and Gaussian DP.

A trade-off function f maps the false-alarm rate of an attacker to the smallest possible miss rate. All functions accept
floats and arrays.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpscp._base.checks import check_nonnegative, check_probability, last_where, real_number

Tradeoff = Callable[[Any], Any]

# exp of more than this overflows a float
_LARGEST_EXPONENT = 700.0


def _on_unit_interval(body: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Tradeoff:
    """Make ``body`` accept floats and arrays on [0, 1] and return values in [0, 1]."""

    def f(x: ArrayLike) -> Any:
        points = np.asarray(x, dtype=float)
        if np.any(~((points >= 0) & (points <= 1))):
            raise ValueError("the argument of a trade-off function must lie between 0 and 1")
        values = np.clip(body(points), 0.0, 1.0)
        return float(values) if points.ndim == 0 else values

    return f


def epsilon_delta_tradeoff(epsilon: float, delta: float) -> Tradeoff:
    """Return f(x) = max(0, 1 - delta - e^eps x, e^-eps (1 - delta - x)).

    Parameters
    ----------
    epsilon, delta : float

    Returns
    -------
    callable

    Paper: Section 2.1, definition of f_{eps,delta}
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta > 1:
        raise ValueError(f"delta must be at most 1, got {delta:g}")
    if epsilon > _LARGEST_EXPONENT:  # f is 0 except at 0
        return _on_unit_interval(lambda x: np.where(x == 0, 1 - delta, 0.0))
    return _on_unit_interval(
        lambda x: np.maximum(1 - delta - math.exp(epsilon) * x, math.exp(-epsilon) * (1 - delta - x))
    )


def gaussian_tradeoff(mu: float) -> Tradeoff:
    """Return G_mu(x) = Phi(Phi^-1(1 - x) - mu), the trade-off of N(0,1) and N(mu,1).

    Parameters
    ----------
    mu : float

    Returns
    -------
    callable

    Paper: Supplement S2, explicit form of G_mu
    """
    mu = check_nonnegative("mu", mu)
    return _on_unit_interval(lambda x: special.ndtr(-special.ndtri(x) - mu))


def tradeoff_from_profile(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> Tradeoff:
    """Return the trade-off function that proven pairs (epsilon, delta) imply.

    A pair says P(A) <= e^eps Q(A) + delta for all A, and the function is about rejecting Q for P. Each pair gives the
    line 1 - delta - e^eps x. The function is the largest of the lines, so a finite list is a valid lower bound.

    Theory: Result B, f from a privacy profile
    """
    intercepts, slopes = 1 - deltas, np.exp(epsilons)
    kept, starts = upper_envelope(intercepts, slopes)

    def best_line(x: NDArray[np.float64]) -> NDArray[np.float64]:
        line = kept[np.searchsorted(starts, x, side="right")]
        return np.asarray(intercepts[line] - slopes[line] * x)

    return _on_unit_interval(best_line)


def upper_envelope(
    intercepts: NDArray[np.float64], slopes: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the lines of the upper envelope for x >= 0, and where each one starts.

    The lines fall. Rounding may select a neighbor of the best line. Its value is lower, so it is still a valid bound.
    """
    order = np.lexsort((slopes, -intercepts)).tolist()
    # Python numbers: arithmetic on the items of an array takes twice as long
    heights, falls = intercepts.tolist(), slopes.tolist()
    kept, starts = [order[0]], [-math.inf]
    for line in order[1:]:
        if falls[line] >= falls[kept[-1]]:
            continue
        while True:
            top = kept[-1]
            start = (heights[top] - heights[line]) / (falls[top] - falls[line])
            if start > starts[-1]:
                break
            kept.pop(), starts.pop()
        kept.append(line)
        starts.append(start)
    return np.array(kept), np.array(starts[1:])


def chained_misses(f: Tradeoff, x: ArrayLike, rows: int) -> Any:
    """Return the smallest miss rate against someone with ``rows`` records.

    The chain is Theorem 2.14 of Dong, Roth and Su, Gaussian Differential Privacy.

    Theory: Result H
    """
    missed = f(x)
    for _ in range(rows - 1):
        missed = f(1 - missed)
    return missed


def gdp_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta of a mu-GDP mechanism at ``epsilon``.

    Parameters
    ----------
    epsilon : float
        Any real number.
    mu : float

    Returns
    -------
    float

    Paper: Supplement S2, conversion between mu-GDP and (epsilon, delta)-DP
    """
    return _gdp_delta(real_number("epsilon", epsilon), check_nonnegative("mu", mu))


def _gdp_delta(epsilon: float, mu: float) -> float:
    """Compute ``gdp_delta`` without checks: a bisection calls it many times."""
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    # use the log of the second term: exp(epsilon) may overflow although the product is tiny
    second = math.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    return max(0.0, float(special.ndtr(-epsilon / mu + mu / 2)) - second)


def gdp_deltas(epsilons: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """Return ``gdp_delta`` at each of many epsilons, in one pass over the array.

    Parameters
    ----------
    epsilons : ndarray of shape (n,)
        Real numbers.
    mu : float
        At least 0.

    Returns
    -------
    ndarray of shape (n,)
    """
    if mu == 0:
        return np.maximum(0.0, -np.expm1(epsilons))
    # a tiny mu gives infinite ratios, whose probabilities are 0 and 1
    with np.errstate(over="ignore"):
        ratios = epsilons / mu
    second = np.exp(epsilons + special.log_ndtr(-ratios - mu / 2))
    return np.asarray(np.maximum(0.0, special.ndtr(-ratios + mu / 2) - second))


@lru_cache(maxsize=512, typed=True)
def gdp_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 of a mu-GDP mechanism at ``delta``.

    Parameters
    ----------
    delta, mu : float

    Returns
    -------
    float
        Rounded up.

    Paper: Supplement S2, conversion between mu-GDP and (epsilon, delta)-DP
    """
    delta, mu = check_probability("delta", delta), check_nonnegative("mu", mu)
    if _gdp_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while _gdp_delta(high, mu) > delta:
        high *= 2
    return last_where(lambda eps: _gdp_delta(eps, mu) <= delta, high, 0.0)


@lru_cache(maxsize=512, typed=True)
def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose mu-GDP mechanisms are (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float

    Returns
    -------
    float
        Rounded down.

    >>> round(gdp_mu(0.5, 1e-5), 4)
    0.1422

    Paper: Supplement S2, conversion between mu-GDP and (epsilon, delta)-DP
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_probability("delta", delta)
    high = 1.0
    while _gdp_delta(epsilon, high) <= delta:
        high *= 2
    return last_where(lambda mu: _gdp_delta(epsilon, mu) <= delta, 0.0, high)
