"""Canonical noise attains a trade-off function; ``validity/test_paper_statements.py`` has the hard instance."""

import numpy as np
import pytest
from scipy import stats

from dpscp.paper import canonical_noise, gaussian_noise, tulap_noise
from dpscp.privacy import epsilon_delta_tradeoff, gaussian_tradeoff

INSIDE = np.linspace(0.001, 0.999, 101)


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


@pytest.mark.parametrize("name", ["gaussian", "tulap", "truncated tulap"])
def test_draws_follow_the_law(name):
    noise, _ = NOISES[name]
    draws = noise.sample(4000, np.random.default_rng(5))
    assert draws.shape == (4000,)
    assert stats.kstest(draws, noise.cdf).pvalue > 1e-6
    assert stats.kstest(1.15 * draws, noise.cdf).pvalue < 1e-6


def test_no_noise_attains_perfect_privacy():
    with pytest.raises(ValueError, match="infinite noise"):
        canonical_noise(epsilon_delta_tradeoff(0, 0))
