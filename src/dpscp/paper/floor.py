"""Theorem 2: the hard instance that attains the black-box floor.

For studies only: no released value depends on it. ``blackbox_floor`` is the floor itself.

Paper: Theorem 2 [thm:dp_gap_two_sides]; Supplement S2
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from dpscp._base.checks import check_nonnegative, check_positive, last_where
from dpscp.privacy.tradeoff import Tradeoff


@dataclass(frozen=True)
class CanonicalNoise:
    """A symmetric noise law F with T(F, F(. - 1)) = f.

    Adding this noise to a statistic of sensitivity 1 spends f exactly.

    Attributes
    ----------
    cdf : callable
        The distribution function F, for floats and arrays.
    quantile : callable
        The inverse of ``cdf``.

    Paper: Supplement S2, canonical noise distribution; used by Theorem 1 [thm:dp_gap_two_sides]
    """

    cdf: Callable[[Any], Any]
    quantile: Callable[[Any], Any]

    def sample(self, size: int, generator: np.random.Generator) -> NDArray[np.float64]:
        """Draw by inversion, for simulations only.

        No released value may depend on floating-point inversion.

        Parameters
        ----------
        size : int
        generator : numpy.random.Generator

        Returns
        -------
        ndarray of float, shape (size,)
        """
        draws: NDArray[np.float64] = np.asarray(self.quantile(generator.uniform(size=size)), dtype=float)
        return draws


def gaussian_noise(mu: float) -> CanonicalNoise:
    """Return the canonical noise of G_mu: normal with standard deviation 1 / mu.

    Parameters
    ----------
    mu : float

    Returns
    -------
    CanonicalNoise

    Paper: Supplement S2, canonical noise distribution
    """
    mu = check_positive("mu", mu)
    return CanonicalNoise(lambda x: special.ndtr(mu * np.asarray(x)), lambda p: special.ndtri(p) / mu)


def tulap_noise(epsilon: float, delta: float = 0.0) -> CanonicalNoise:
    """Return the canonical noise of f_{eps,delta}: the Tulap law.

    It is truncated if delta > 0. Both functions have closed forms.

    Parameters
    ----------
    epsilon, delta : float

    Returns
    -------
    CanonicalNoise

    Paper: Supplement S2, canonical noise distribution
    """
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
    """Return a canonical noise for a symmetric trade-off function.

    It satisfies F(x) = f(1 - F(x + 1)). Between -1/2 and 1/2 the law is linear and crosses the fixed point of f.
    Elsewhere it follows from the recursion.

    Parameters
    ----------
    f : callable
        A symmetric trade-off function other than 1 - x.

    Returns
    -------
    CanonicalNoise

    Paper: Supplement S2, canonical noise distribution
    """
    if f(0.5) >= 0.5:
        raise ValueError("f must satisfy f(1/2) < 1/2: the trade-off function 1 - x needs infinite noise")
    fixed = float(optimize.brentq(lambda x: f(x) - x, 0.0, 1.0, xtol=1e-15))

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
            inverse = 0.0 if f(0.0) <= p else last_where(lambda x: f(x) <= p, 1.0, 0.0)  # noqa: B023
            if (lifted := 1 - inverse) <= p:  # the law has no lower end
                return -math.inf
            p, shift = lifted, shift + 1
        return (p - 0.5) / (1 - 2 * fixed) - shift

    return CanonicalNoise(np.vectorize(cdf_at, otypes=[float]), np.vectorize(quantile_at, otypes=[float]))


def hard_instance_coverage(
    noise: CanonicalNoise,
    alpha: float,
    *,
    n_records: int,
    gap: float,
    draws: int,
    generator: np.random.Generator,
    is_member: bool = False,
) -> float:
    """Simulate the coverage of the hard instance.

    It is a noisy histogram with far more cells than records.

    A cell's count plus noise is released. The set holds the cells whose count is at least the one that records in the
    histogram reach with probability 1 - alpha. A new record has that level only if it was counted too.

    Parameters
    ----------
    noise : CanonicalNoise
        The canonical noise of the trade-off function of training.
    alpha : float
    n_records : int
    gap : float
        The paper's gamma: the probability that a new record falls into a cell with records is at most this.
    draws : int
    generator : numpy.random.Generator
    is_member : bool
        Count the new record too.

    Returns
    -------
    float

    Paper: Theorem 2 [thm:dp_gap_two_sides], part II
    """
    counts = generator.binomial(n_records, 1 / math.ceil(n_records / gap), draws) + int(is_member)
    return float(np.mean(counts + noise.sample(draws, generator) >= float(noise.quantile(alpha)) + 1))
