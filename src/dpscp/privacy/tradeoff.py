"""f-DP: trade-off functions, Gaussian DP, and the noise distributions that attain them.

A trade-off function f maps an attacker's false-alarm rate to the smallest miss rate possible. All functions here
accept floats and arrays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from dpscp._checks import check_nonnegative, check_positive, check_probability, real_number

__all__ = [
    "CanonicalNoise",
    "Tradeoff",
    "canonical_noise",
    "epsilon_delta_tradeoff",
    "gaussian_noise",
    "gaussian_tradeoff",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "invert",
    "perfect_privacy",
    "tradeoff_from_profile",
    "tulap_noise",
    "upper_envelope",
]

Tradeoff = Callable[[Any], Any]

# exp of more than this overflows a float
_LARGEST_EXPONENT = 700.0


def _on_unit_interval(body: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Tradeoff:
    """Give ``body`` the usual manners: floats in, floats out; arrays in, arrays out; nothing outside [0, 1]."""

    def f(x: ArrayLike) -> Any:
        points = np.asarray(x, dtype=float)
        if np.any(~((points >= 0) & (points <= 1))):
            raise ValueError("a trade-off function takes error rates between 0 and 1")
        values = np.clip(body(points), 0.0, 1.0)
        return float(values) if points.ndim == 0 else values

    return f


def perfect_privacy() -> Tradeoff:
    """f(x) = 1 - x: nothing is released, the attacker can only guess."""
    return _on_unit_interval(lambda x: 1 - x)


def epsilon_delta_tradeoff(epsilon: float, delta: float) -> Tradeoff:
    """f_{eps,delta}(x) = max(0, 1 - delta - e^eps x, e^-eps (1 - delta - x)).

    Paper: Section 2.1, definition of f_{eps,delta}
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta > 1:
        raise ValueError(f"delta must be at most 1, got {delta:g}")
    if epsilon > _LARGEST_EXPONENT:  # nothing is left of f but its value at 0
        return _on_unit_interval(lambda x: np.where(x == 0, 1 - delta, 0.0))
    return _on_unit_interval(
        lambda x: np.maximum(1 - delta - math.exp(epsilon) * x, math.exp(-epsilon) * (1 - delta - x))
    )


def gaussian_tradeoff(mu: float) -> Tradeoff:
    """G_mu(x) = Phi(Phi^-1(1 - x) - mu), the trade-off of telling N(0, 1) from N(mu, 1).

    Paper: Supplement S2, explicit form of G_mu
    """
    mu = check_nonnegative("mu", mu)
    return _on_unit_interval(lambda x: special.ndtr(-special.ndtri(x) - mu))


def tradeoff_from_profile(epsilons: ArrayLike, deltas: ArrayLike, *, symmetric: bool = True) -> Tradeoff:
    """The trade-off function that a list of proven (epsilon, delta) pairs implies.

    Each pair gives the line 1 - delta - e^eps x, and f is the largest of them, so a finite list errs on the safe side.
    ``symmetric=True`` adds the mirrored lines e^-eps (1 - delta - x), for pairs that hold in both directions;
    ``False`` is for pairs of one direction: P(A) <= e^eps Q(A) + delta, with f the trade-off of rejecting Q for P.

    Theory: Result B, f from a privacy profile
    """
    eps, dlt = np.atleast_1d(np.asarray(epsilons, float)), np.atleast_1d(np.asarray(deltas, float))
    if eps.shape != dlt.shape or eps.ndim != 1 or eps.size == 0:
        raise ValueError("epsilons and deltas must be one-dimensional and of equal length")
    if np.any(~np.isfinite(eps)) or np.any(~((dlt >= 0) & (dlt <= 1))):
        raise ValueError("epsilons must be finite and deltas must lie between 0 and 1")
    if symmetric and np.any(eps < 0):
        raise ValueError("a symmetric profile takes epsilons of at least 0")
    intercepts, slopes = 1 - dlt, np.exp(eps)
    if symmetric:
        intercepts = np.concatenate([intercepts, np.exp(-eps) * (1 - dlt)])
        slopes = np.concatenate([slopes, np.exp(-eps)])

    kept, starts = upper_envelope(intercepts, slopes)

    def best_line(x: NDArray[np.float64]) -> NDArray[np.float64]:
        line = kept[np.searchsorted(starts, x, side="right")]
        return np.asarray(intercepts[line] - slopes[line] * x)

    return _on_unit_interval(best_line)


def upper_envelope(
    intercepts: NDArray[np.float64], slopes: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The falling lines that are somewhere on top for x >= 0, from left to right, and where each takes over.

    Rounding may pick a neighbour of the best line: a lower value, so still a valid bound.
    """
    order = np.lexsort((slopes, -intercepts))
    kept, starts = [order[0]], [-math.inf]
    for line in order[1:]:
        if slopes[line] >= slopes[kept[-1]]:
            continue
        while True:
            top = kept[-1]
            start = (intercepts[top] - intercepts[line]) / (slopes[top] - slopes[line])
            if start > starts[-1]:
                break
            kept.pop(), starts.pop()
        kept.append(line)
        starts.append(start)
    return np.array(kept), np.array(starts[1:])


def invert(f: Tradeoff) -> Tradeoff:
    """The trade-off function with the two error rates exchanged: f^-1(y) = inf{x : f(x) <= y}."""

    def smallest(y: float) -> float:
        if f(0.0) <= y:
            return 0.0
        low, high = 0.0, 1.0
        while True:  # ends with f(high) <= y at the precision of a float
            middle = 0.5 * (low + high)
            if middle in (low, high):
                return high
            low, high = (low, middle) if f(middle) <= y else (middle, high)

    vectorised = np.vectorize(smallest, otypes=[float])
    return _on_unit_interval(lambda y: vectorised(y) if y.size else y)


def gdp_delta(epsilon: float, mu: float) -> float:
    """The smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP; any real epsilon.

    Paper: Supplement S2, conversion between mu-GDP and (epsilon, delta)-DP
    """
    epsilon, mu = real_number("epsilon", epsilon), check_nonnegative("mu", mu)
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    # log of the second term first: exp(epsilon) alone may overflow while the product is tiny
    second = math.exp(epsilon + special.log_ndtr(-epsilon / mu - mu / 2))
    return max(0.0, float(special.ndtr(-epsilon / mu + mu / 2)) - second)


def gdp_epsilon(delta: float, mu: float) -> float:
    """The smallest epsilon >= 0 for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up."""
    delta, mu = check_probability("delta", delta), check_nonnegative("mu", mu)
    if gdp_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gdp_delta(high, mu) > delta:
        high *= 2
    return _last_feasible(lambda eps: gdp_delta(eps, mu) <= delta, 0.0, high)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which every mu-GDP mechanism is (epsilon, delta)-DP, rounded down.

    >>> round(gdp_mu(0.5, 1e-5), 4)
    0.1422
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_probability("delta", delta)
    high = 1.0
    while gdp_delta(epsilon, high) <= delta:
        high *= 2
    return _last_feasible(lambda mu: gdp_delta(epsilon, mu) <= delta, high, 0.0)


def _last_feasible(feasible: Callable[[float], bool], infeasible_end: float, feasible_end: float) -> float:
    """Bisect to the precision of a float and return the end at which ``feasible`` is known to hold."""
    bad, good = infeasible_end, feasible_end
    while True:
        middle = 0.5 * (bad + good)
        if middle in (bad, good):
            return good
        bad, good = (bad, middle) if feasible(middle) else (middle, good)


@dataclass(frozen=True)
class CanonicalNoise:
    """A symmetric noise law F with T(F, F(. - 1)) = f: adding it to a statistic of sensitivity 1 spends f exactly.

    Paper: Supplement S2, canonical noise distribution; used by Theorem 1 [thm:dp_gap_two_sides]
    """

    cdf: Callable[[Any], Any]
    quantile: Callable[[Any], Any]

    def sample(self, size: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Draw by inversion. Simulation only: no released value may rest on floating-point inversion."""
        draws: NDArray[np.float64] = np.asarray(self.quantile(generator.uniform(size=size)), dtype=float)
        return draws


def gaussian_noise(mu: float) -> CanonicalNoise:
    """The canonical noise of G_mu: normal with standard deviation 1 / mu."""
    mu = check_positive("mu", mu)
    return CanonicalNoise(lambda x: special.ndtr(mu * np.asarray(x)), lambda p: special.ndtri(p) / mu)


def tulap_noise(epsilon: float, delta: float = 0.0) -> CanonicalNoise:
    """The canonical noise of f_{eps,delta}: the Tulap law (truncated when delta > 0), in closed form."""
    epsilon, delta = check_positive("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, got {delta:g}")
    b = math.exp(-epsilon)
    cut = 2 * delta * b / (1 - b + 2 * delta * b)

    def cdf(x: ArrayLike) -> Any:
        x = np.asarray(x, dtype=float)
        distance = np.abs(x)
        nearest = np.floor(distance + 0.5)
        upper_tail = b**nearest / (1 + b) * (b + (nearest - distance + 0.5) * (1 - b))
        untruncated = np.where(x > 0, 1 - upper_tail, upper_tail)
        return np.clip((untruncated - cut / 2) / (1 - cut), 0.0, 1.0)

    def quantile(p: ArrayLike) -> Any:
        p = np.asarray(p, dtype=float)
        tail = np.minimum(p, 1 - p) * (1 - cut) + cut / 2
        # on the cell of distances nearest to j the tail runs linearly from b^j / (1 + b) to b^(j+1) / (1 + b)
        inside = np.where(tail > 0, tail, 0.5)
        cell = np.maximum(np.floor(np.log(inside * (1 + b)) / -epsilon), 0)
        along = (np.exp(np.log(inside * (1 + b)) + epsilon * cell) - b) / (1 - b)
        distance = np.where(tail > 0, cell + 0.5 - along, np.inf)
        return np.where(p < 0.5, -distance, distance)

    return CanonicalNoise(cdf, quantile)


def canonical_noise(f: Tradeoff) -> CanonicalNoise:
    """A canonical noise for any symmetric trade-off function other than 1 - x, by F(x) = f(1 - F(x + 1)).

    Between -1/2 and 1/2 the law is linear and crosses the fixed point of f; outside it follows from the recursion.
    """
    if f(0.5) >= 0.5:
        raise ValueError("canonical_noise needs a trade-off function with f(1/2) < 1/2: 1 - x asks for infinite noise")
    fixed = float(optimize.brentq(lambda x: f(x) - x, 0.0, 1.0, xtol=1e-15))
    inverse = invert(f)

    def cdf_at(x: float) -> float:
        if x > 0:
            return 1 - cdf_at(-x)
        steps = math.ceil(-0.5 - x) if x < -0.5 else 0
        value = fixed * (0.5 - (x + steps)) + (1 - fixed) * (x + steps + 0.5)
        for _ in range(steps):
            value = f(1 - value)
        return value

    def quantile_at(p: float) -> float:
        if p > 0.5:
            return -quantile_at(1 - p)
        shift = 0
        while p < fixed:
            if (lifted := 1 - inverse(p)) <= p:  # the law has no lower end
                return -math.inf
            p, shift = lifted, shift + 1
        return (p - 0.5) / (1 - 2 * fixed) - shift

    return CanonicalNoise(np.vectorize(cdf_at, otypes=[float]), np.vectorize(quantile_at, otypes=[float]))
