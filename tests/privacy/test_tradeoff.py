"""f-DP: closed forms and profiles."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpscp.privacy import (
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
)
from dpscp.privacy.tradeoff import tradeoff_from_profile

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)
X = np.linspace(0, 1, 101)
INSIDE = np.linspace(0.001, 0.999, 101)


# ---- closed forms


def test_epsilon_delta_form():
    f = epsilon_delta_tradeoff(1.0, 0.1)
    assert f(0.0) == pytest.approx(0.9)
    assert f(0.2) == pytest.approx(0.9 - math.e * 0.2)
    assert f(0.6) == pytest.approx(0.3 / math.e)
    assert f(0.95) == 0
    np.testing.assert_allclose(epsilon_delta_tradeoff(0.0, 0.0)(X), 1 - X)
    np.testing.assert_array_equal(epsilon_delta_tradeoff(0.0, 1.0)(X), 0)
    huge = epsilon_delta_tradeoff(1000.0, 0.1)
    assert huge(0.0) == 0.9
    assert huge(1e-300) == 0


def test_gaussian_form():
    f = gaussian_tradeoff(1.0)
    assert f(0.0) == 1
    assert f(1.0) == 0
    assert f(0.5) == pytest.approx(stats.norm.cdf(-1))
    np.testing.assert_allclose(f(INSIDE), stats.norm.cdf(stats.norm.isf(INSIDE) - 1), rtol=1e-12)
    np.testing.assert_allclose(gaussian_tradeoff(0.0)(X), epsilon_delta_tradeoff(0, 0)(X), atol=1e-15)


@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_bad_numbers(bad):
    calls = [(gaussian_tradeoff, ()), (epsilon_delta_tradeoff, (0.1,)), (gdp_mu, (0.1,))]
    for function, rest in calls:
        with pytest.raises(ValueError, match="must"):
            function(bad, *rest)
    for function in (epsilon_delta_tradeoff, gdp_delta, gdp_epsilon, gdp_mu):
        with pytest.raises(ValueError, match="must"):
            function(0.1, bad)


# ---- Gaussian DP


@PROPERTY
@given(st.floats(0, 30), st.floats(1e-9, 0.99))
def test_mu_is_the_largest_that_fits(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    assert gdp_delta(epsilon, mu) <= delta
    assert gdp_delta(epsilon, mu * (1 + 1e-9)) > delta * (1 - 1e-6)


@PROPERTY
@given(st.floats(0.01, 20), st.floats(1e-12, 0.99))
def test_epsilon_is_the_smallest_that_fits(mu, delta):
    epsilon = gdp_epsilon(delta, mu)
    assert gdp_delta(epsilon, mu) <= delta
    if epsilon > 0:
        assert gdp_delta(epsilon - max(epsilon, 1.0) * 1e-9, mu) > delta * (1 - 1e-6)
    else:
        assert gdp_delta(0.0, mu) <= delta


@PROPERTY
@given(st.floats(-5, 8), st.floats(0.05, 6))
def test_gdp_delta_is_the_conjugate_of_the_tradeoff(epsilon, mu):
    # the best test of N(0, 1) against N(mu, 1) at slope e^eps cuts at eps / mu + mu / 2
    cut = epsilon / mu + mu / 2
    expected = stats.norm.sf(cut - mu) - math.exp(epsilon) * stats.norm.sf(cut)
    assert gdp_delta(epsilon, mu) == pytest.approx(max(0.0, expected), abs=1e-14)


def test_gdp_at_the_ends():
    assert gdp_delta(0.5, 0.0) == 0
    assert gdp_delta(-1.0, 0.0) == pytest.approx(1 - math.exp(-1))
    assert gdp_epsilon(1e-5, 0.0) == 0
    assert gdp_delta(2000.0, 30.0) == pytest.approx(0.0, abs=1e-100)
    assert gdp_delta(1.0, 100.0) == pytest.approx(1.0)


# ---- profiles


def gaussian_profile(mu):
    epsilons = np.linspace(-12, 12, 12001)
    return epsilons, np.array([gdp_delta(e, mu) for e in epsilons])


@pytest.mark.parametrize("mu", [0.1, 0.8, 2.0])
def test_profile_gives_the_tradeoff_back(mu):
    f, exact = tradeoff_from_profile(*gaussian_profile(mu))(X), gaussian_tradeoff(mu)(X)
    assert np.all(f <= exact + 1e-12)
    np.testing.assert_allclose(f, exact, atol=2e-5)


@PROPERTY
@given(st.lists(st.tuples(st.floats(-6, 6), st.floats(0, 1)), min_size=1, max_size=30), st.floats(0, 1))
def test_profile_is_the_best_of_its_lines(pairs, x):
    epsilons, deltas = map(np.array, zip(*pairs, strict=True))
    f = tradeoff_from_profile(epsilons, deltas)
    assert f(x) == pytest.approx(max(0.0, (1 - deltas - np.exp(epsilons) * x).max()), abs=1e-12)
