"""What an event is charged by the filter of a budget store, against closed forms and integrals."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpscp.privacy import (
    approximate_dp_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    gaussian_event,
    non_private_event,
    parallel,
    secret_split,
)
from dpscp.privacy.store_log import Charge, _dominating_mu, charge_for, least_slack


def gaussian_profile(epsilon, mu):
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def split_profiles(epsilon, mu_training, mu_held_out, fraction):
    """Delta of removing and of adding a record, for a secret split of two Gaussian releases; sums over a fine grid."""
    points = np.linspace(-8.5, 8.5, 501)
    weights = np.outer(norm.pdf(points), norm.pdf(points))
    weights /= weights.sum()
    ratios = (1 - fraction) * np.exp(mu_training * points - mu_training**2 / 2)[:, None]
    ratios = ratios + fraction * np.exp(mu_held_out * points - mu_held_out**2 / 2)
    factor = math.exp(epsilon)
    removed, added = np.maximum(ratios - factor, 0), np.maximum(1 - factor * ratios, 0)
    return float((weights * removed).sum()), float((weights * added).sum())


def test_gaussian_noise_is_charged_exactly_and_without_slack():
    assert charge_for(gaussian_event(4.0, 9), 1e-7) == Charge(0.75)
    assert charge_for(compose(gaussian_event(2.0), gaussian_event(3.0)), 0.0).mu == pytest.approx(math.sqrt(13) / 6)
    # a record lies in one of the parts
    assert charge_for(parallel(gaussian_event(2.0), gaussian_event(3.0)), 0.0) == Charge(0.5)
    assert charge_for(compose(), 0.0) == Charge(0.0)
    assert math.isinf(charge_for(compose(gaussian_event(2.0), non_private_event()), 1e-7).mu)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_randomized_answer_is_charged_by_its_formula(epsilon):
    """G_mu lies below the trade-off function of epsilon-DP from mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)) on."""
    mu = 2 * norm.ppf(1 / (1 + math.exp(-epsilon)))
    assert charge_for(approximate_dp_event(epsilon), 1e-9).mu == pytest.approx(mu, rel=1e-3)
    # with a delta of its own that is taken from the slack
    own = approximate_dp_event(epsilon, 1e-4)
    assert least_slack(own) == pytest.approx(1e-4, rel=1e-6)
    assert charge_for(own, 1.0001e-4).mu == pytest.approx(mu, rel=1e-3)
    assert math.isinf(charge_for(own, 0.9999e-4).mu)


@pytest.mark.parametrize(
    ("slack", "ends"), [(0.0, (math.tanh(1.0), 0.0)), (0.3, (math.tanh(1.0), 0.0)), (0.1, (0.3, 0.2))]
)
def test_the_mu_of_one_chord_is_the_smallest_by_a_search_over_its_points(slack, ends):
    """A chord in e^epsilon; with tanh(1) and 0 it is the profile of a randomized answer of epsilon 2."""
    grid = np.linspace(0.0, 2.0, 20_001)
    chord = ends[0] + (ends[1] - ends[0]) * np.expm1(grid) / math.expm1(2.0)
    exact = brentq(lambda mu: (slack + (1 - slack) * gaussian_profile(grid, mu) - chord).min(), 0.1, 9.0)
    found = _dominating_mu(grid[[0, -1]], np.array(ends), slack)
    assert exact * (1 - 1e-8) <= found <= exact * (1 + 2.1e-5)


def test_integer_noise_is_charged_little_more_than_its_continuous_sibling():
    charge = charge_for(discrete_gaussian_event(4096 * 20, 4096, 10), 1e-12)
    assert charge.mu == pytest.approx(math.sqrt(10) / 20, rel=1e-3)


@pytest.mark.parametrize(
    ("mu_training", "mu_held_out", "fraction"), [(0.25, 0.6, 0.125), (0.1, 1.3, 0.03), (1, 0.2, 0.5)]
)
def test_a_charge_dominates_a_secret_split_and_is_the_smallest_that_does(mu_training, mu_held_out, fraction):
    slack = 1e-6
    split = secret_split(gaussian_event(1 / mu_training), gaussian_event(1 / mu_held_out), fraction)
    charge = charge_for(split, slack)
    assert charge.slack == slack
    epsilons = np.linspace(0, 6, 41)
    needed = np.array([max(split_profiles(e, mu_training, mu_held_out, fraction)) for e in epsilons])
    assert (slack + (1 - slack) * gaussian_profile(epsilons, charge.mu) >= needed).all()
    smaller = slack + (1 - slack) * gaussian_profile(epsilons, 0.99 * charge.mu)
    assert (smaller < needed).any()


def test_more_slack_never_raises_a_charge():
    event = secret_split(dpsgd_event(2.0, 0.1, 30), discrete_gaussian_event(4096, 1024, 10), 0.125)
    levels = [charge_for(event, slack).mu for slack in (1e-12, 1e-9, 1e-7, 1e-5)]
    assert levels == sorted(levels, reverse=True)
    assert charge_for(event, 0.9).mu == 0.0  # "reveal all with probability 0.9" is worse already
    assert math.isinf(charge_for(event, 0.0).mu)
