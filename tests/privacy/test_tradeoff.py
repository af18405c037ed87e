"""f-DP: closed forms, inverses, profiles, and canonical noise that attains a trade-off exactly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpscp.privacy import (
    canonical_noise,
    epsilon_delta_tradeoff,
    gaussian_noise,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    invert,
    perfect_privacy,
    tradeoff_from_profile,
    tulap_noise,
)

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
    np.testing.assert_allclose(gaussian_tradeoff(0.0)(X), perfect_privacy()(X), atol=1e-15)


@pytest.mark.parametrize("f", [gaussian_tradeoff(0.8), epsilon_delta_tradeoff(0.7, 0.02), perfect_privacy()])
def test_floats_arrays_and_shapes(f):
    assert isinstance(f(0.3), float)
    assert isinstance(f(np.float64(0.3)), float)
    assert f(np.array([[0.1, 0.2], [0.3, 0.4]])).shape == (2, 2)
    assert f(np.array([])).shape == (0,)
    assert f([0.3])[0] == f(0.3)
    for bad in (-1e-9, 1 + 1e-9, math.nan, [0.1, 2.0]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            f(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda v: gaussian_tradeoff(v),
        lambda v: epsilon_delta_tradeoff(v, 0.1),
        lambda v: epsilon_delta_tradeoff(0.1, v),
        lambda v: tulap_noise(v),
        lambda v: tulap_noise(1.0, v),
        lambda v: gaussian_noise(v),
        lambda v: gdp_delta(1.0, v),
        lambda v: gdp_epsilon(0.1, v),
        lambda v: gdp_mu(v, 0.1),
        lambda v: gdp_mu(1.0, v),
    ],
)
@pytest.mark.parametrize("bad", [-0.5, math.nan, math.inf])
def test_bad_numbers(call, bad):
    with pytest.raises(ValueError, match="must"):
        call(bad)


def test_delta_above_one():
    with pytest.raises(ValueError, match="delta must be at most 1"):
        epsilon_delta_tradeoff(1.0, 1.1)
    with pytest.raises(ValueError, match="delta must be below 1"):
        tulap_noise(1.0, 1.0)


# ---- Gaussian DP


def test_the_issues_number():
    assert gdp_mu(0.5, 1e-5) == pytest.approx(0.1422, abs=5e-5)


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
    epsilons = np.linspace(0, 12, 6001)
    return epsilons, np.array([gdp_delta(e, mu) for e in epsilons])


@pytest.mark.parametrize("mu", [0.1, 0.8, 2.0])
def test_profile_gives_the_tradeoff_back(mu):
    f, exact = tradeoff_from_profile(*gaussian_profile(mu))(X), gaussian_tradeoff(mu)(X)
    assert np.all(f <= exact + 1e-12)
    np.testing.assert_allclose(f, exact, atol=2e-5)


@PROPERTY
@given(st.lists(st.tuples(st.floats(0, 6), st.floats(0, 1)), min_size=1, max_size=30), st.floats(0, 1))
def test_profile_is_the_best_of_its_lines(pairs, x):
    epsilons, deltas = map(np.array, zip(*pairs, strict=True))
    lines = np.maximum(1 - deltas - np.exp(epsilons) * x, np.exp(-epsilons) * (1 - deltas - x))
    f = tradeoff_from_profile(epsilons, deltas)
    assert f(x) == pytest.approx(max(0.0, lines.max()), abs=1e-12)
    one_sided = tradeoff_from_profile(epsilons, deltas, symmetric=False)
    assert one_sided(x) == pytest.approx(max(0.0, (1 - deltas - np.exp(epsilons) * x).max()), abs=1e-12)


def test_one_pair_is_the_epsilon_delta_form():
    np.testing.assert_allclose(
        tradeoff_from_profile([0.6], [0.01])(X), epsilon_delta_tradeoff(0.6, 0.01)(X), atol=1e-15
    )


def test_more_pairs_never_hurt():
    epsilons, deltas = gaussian_profile(1.0)
    few = tradeoff_from_profile(epsilons[::500], deltas[::500])(X)
    assert np.all(tradeoff_from_profile(epsilons, deltas)(X) >= few - 1e-15)


@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [
        ([], []),
        ([0.1], [0.1, 0.2]),
        ([[0.1]], [[0.1]]),
        ([-0.1], [0.1]),
        ([0.1], [math.nan]),
        ([math.nan], [0.1]),
        ([math.inf], [0.1]),
        ([0.1], [-0.1]),
        ([0.1], [1.1]),
    ],
)
def test_bad_profiles(epsilons, deltas):
    with pytest.raises(ValueError, match="epsilons"):
        tradeoff_from_profile(epsilons, deltas)


# ---- inverses


@pytest.mark.parametrize(
    "f", [gaussian_tradeoff(0.9), epsilon_delta_tradeoff(0.7, 0.02), perfect_privacy()], ids=["G", "f", "1-x"]
)
def test_symmetric_functions_are_their_own_inverse(f):
    np.testing.assert_allclose(invert(f)(X), f(X), atol=1e-12)


def test_inverse_of_an_asymmetric_function():
    # rejecting a mixture for its component: only lines of one direction
    f = tradeoff_from_profile([0.0, 0.2], [0.15, 0.0], symmetric=False)
    back = invert(f)
    for x in (0.0, 0.1, 0.5, 0.8):
        assert f(back(f(x))) <= f(x) + 1e-12
        assert back(f(x)) <= x + 1e-12
    assert back(1.0) == 0
    assert back(0.0) == pytest.approx(0.85)


# ---- canonical noise

EPSILON = 0.8
NOISES = {
    "gaussian": (gaussian_noise(0.7), gaussian_tradeoff(0.7)),
    "tulap": (tulap_noise(EPSILON), epsilon_delta_tradeoff(EPSILON, 0.0)),
    "truncated tulap": (tulap_noise(EPSILON, 0.05), epsilon_delta_tradeoff(EPSILON, 0.05)),
    "generic tulap": (
        canonical_noise(epsilon_delta_tradeoff(EPSILON, 0.0)),
        epsilon_delta_tradeoff(EPSILON, 0.0),
    ),
    "generic gaussian": (canonical_noise(gaussian_tradeoff(0.7)), gaussian_tradeoff(0.7)),
    "generic truncated": (
        canonical_noise(epsilon_delta_tradeoff(EPSILON, 0.05)),
        epsilon_delta_tradeoff(EPSILON, 0.05),
    ),
}


@pytest.mark.parametrize("name", NOISES)
def test_canonical_noise_attains_its_tradeoff(name):
    noise, f = NOISES[name]
    # the best test of F against F(. - 1) rejects large outputs: it misses with F(F^-1(1 - a) - 1)
    np.testing.assert_allclose(noise.cdf(noise.quantile(1 - INSIDE) - 1), f(INSIDE), atol=1e-9)


@pytest.mark.parametrize("name", NOISES)
def test_canonical_noise_is_a_symmetric_law(name):
    noise, _ = NOISES[name]
    t = np.linspace(-6, 6, 97)
    values = noise.cdf(t)
    np.testing.assert_allclose(values + noise.cdf(-t), 1.0, atol=1e-12)
    assert np.all(np.diff(values) >= -1e-12)
    assert noise.cdf(0.0) == pytest.approx(0.5)
    assert noise.quantile(0.5) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", NOISES)
def test_quantile_inverts_the_distribution_function(name):
    noise, _ = NOISES[name]
    t = np.linspace(-2, 2, 81)
    np.testing.assert_allclose(noise.quantile(noise.cdf(t)), t, atol=1e-8)
    np.testing.assert_allclose(noise.cdf(noise.quantile(INSIDE)), INSIDE, atol=1e-10)


@pytest.mark.parametrize(("generic", "closed"), [("generic tulap", "tulap"), ("generic truncated", "truncated tulap")])
def test_generic_construction_is_the_tulap_law(generic, closed):
    t = np.linspace(-5, 5, 83)
    np.testing.assert_allclose(NOISES[generic][0].cdf(t), NOISES[closed][0].cdf(t), atol=1e-12)
    np.testing.assert_allclose(NOISES[generic][0].quantile(INSIDE), NOISES[closed][0].quantile(INSIDE), atol=1e-8)


@pytest.mark.parametrize("name", NOISES)
def test_ends_of_the_law(name):
    noise, f = NOISES[name]
    low, high = noise.quantile(np.array([0.0, 1.0]))
    assert low == -high
    if f(0.0) < 1:  # truncated: with probability delta the output gives the record away
        assert math.isfinite(low)
        assert noise.cdf(low - 1e-6) == 0 < noise.cdf(low + 1e-6)
    else:
        assert low == -math.inf


@pytest.mark.parametrize("name", ["gaussian", "tulap", "truncated tulap"])
def test_draws_follow_the_law(name):
    noise, _ = NOISES[name]
    draws = noise.sample(4000, np.random.default_rng(5))
    assert draws.shape == (4000,)
    assert stats.kstest(draws, noise.cdf).pvalue > 1e-6
    assert stats.kstest(1.15 * draws, noise.cdf).pvalue < 1e-6


def test_no_noise_attains_perfect_privacy():
    with pytest.raises(ValueError, match="infinite noise"):
        canonical_noise(perfect_privacy())
