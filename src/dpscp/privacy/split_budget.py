"""Divide a budget between the two parts of a secret split, for planning.

Both parts are treated as Gaussian. The numbers decide what training may spend and where the search for the noise of the
held-out part starts. The accountant proves the cost from the events themselves.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpscp.privacy.tradeoff import gdp_epsilon, gdp_mu, last_where

__all__ = ["SplitBudget", "spare_mu", "split_budget"]

# The relative decrease of the set size for an e-fold of training's mu (4 to 15 % per doubling on real tables), its
# relative increase with an overshoot in coverage, and the overshoot times (held-out records * mu): docs/recipe.md.
TRAINING_GAIN = 0.1
SIZE_OF_OVERSHOOT, OVERSHOOT = 3.0, 1.5
# Candidate shares of its largest mu that training gives up for the search.
GIVEN_UP = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class SplitBudget:
    """What two parts may spend: epsilon of training, and mu of the search.

    ``mixed``: the split is secret. Otherwise each part may spend the whole budget, and the more expensive part counts.
    """

    train_epsilon: float
    held_out_mu: float
    mixed: bool = True


@lru_cache(maxsize=256)
def split_budget(epsilon: float, delta: float, fraction: float, n_records: int) -> SplitBudget:
    """Divide a budget between training and search for the smallest expected sets.

    Training alone would be a release on a Poisson sample of rate 1 - ``fraction``. The more it gives up of what that
    allows, the more the search gets.

    >>> found = split_budget(1.0, 1e-5, 0.125, 15_000)
    >>> round(found.train_epsilon, 3), round(found.held_out_mu / gdp_mu(1.0, 1e-5), 2)
    (1.084, 2.15)

    Theory: The secret split
    """
    largest = _sampled_mu(epsilon, delta, 1 - fraction)

    def size(mu_training: float, mu: float) -> float:
        overshoot = OVERSHOOT / (fraction * n_records * mu) if mu > 0 else math.inf
        return SIZE_OF_OVERSHOOT * overshoot - TRAINING_GAIN * math.log(mu_training)

    # a level near delta costs no epsilon, so no noise could be computed for it: training then gets the whole epsilon
    levels = [(1 - given_up) * largest for given_up in GIVEN_UP]
    levels = [level for level in levels if gdp_epsilon(delta, level) > 0] or [gdp_mu(epsilon, delta)]
    shares = [(level, _held_out_mu(epsilon, delta, fraction, level)) for level in levels]
    mu_training, mu = min(shares, key=lambda share: size(*share))
    return SplitBudget(gdp_epsilon(delta, mu_training) or epsilon, mu or gdp_mu(epsilon, delta))


def _sampled_mu(epsilon: float, delta: float, rate: float) -> float:
    """Return the mu on a Poisson sample that is (epsilon, delta)-DP for removal."""
    # log(1 + (e^epsilon - 1) / rate), where e^epsilon may be too large for a float
    return gdp_mu(epsilon + math.log1p((rate - 1) * math.exp(-epsilon)) - math.log(rate), min(delta / rate, 0.5))


def spare_mu(epsilon: float, delta: float, fraction: float, train_epsilon: float) -> float:
    """Estimate mu of a secret part beside training of ``train_epsilon``."""
    found = _held_out_mu(epsilon, delta, fraction, gdp_mu(train_epsilon, delta))
    return found or gdp_mu(epsilon, delta)


def _held_out_mu(epsilon: float, delta: float, fraction: float, mu_training: float) -> float:
    """Return the largest mu of the held-out part beside training; 0 if there is none.

    One integral is numerical, over the normal variable of training. The other one has a formula.
    """
    z = np.linspace(-9.0, 9.0, 361)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    trained = (1 - fraction) * np.exp(mu_training * z - mu_training**2 / 2)

    def delta_at(mu: float) -> float:
        removed = _call((math.exp(epsilon) - trained) / fraction, mu)
        strike = (math.exp(-epsilon) - trained) / fraction
        added = math.exp(epsilon) * np.where(strike > 0, _call(strike, mu) - 1 + strike, 0.0)
        return float(fraction * max(weights @ removed, weights @ added))

    smallest = 1e-3 * mu_training
    if delta_at(smallest) > delta:
        return 0.0
    largest = _sampled_mu(epsilon, delta, fraction)
    return last_where(lambda mu: delta_at(mu) <= delta, smallest, largest, within=1e-4 * largest)


def _call(strike: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """Return E max(0, L - strike) for L = exp(mu Z - mu^2 / 2).

    L is the density ratio of two normal laws.
    """
    positive = np.maximum(strike, 1e-300)
    reach = mu / 2 - np.log(positive) / mu
    return np.asarray(np.where(strike > 0, special.ndtr(reach) - positive * special.ndtr(reach - mu), 1 - strike))
