"""The exact sampler: the right law, integers only, system entropy; and the cryptographic stream for training."""

import math
import os
import random
import warnings
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpscp import SeededWarning
from dpscp.privacy import IntegerSource, LatticeNoise, epsilon_of, lattice_noise, random_streams
from dpscp.privacy import secure_generator as make_generator
from dpscp.privacy.random_streams import sample_discrete_gaussian, seed_of, sensitivity_fraction

# One false alarm in a million for each test of a right sampler.
ALARM = 1e-6


def discrete_probabilities(sigma, low, high):
    """Exact probabilities of ``low`` .. ``high`` with the two tails added to the ends."""
    support = np.arange(-int(40 * sigma) - 2, int(40 * sigma) + 3)
    weights = np.exp(-((support / sigma) ** 2) / 2)
    weights /= weights.sum()
    inside = weights[(support >= low) & (support <= high)]
    inside[0] += weights[support < low].sum()
    inside[-1] += weights[support > high].sum()
    return inside


def chi_square(draws, sigma, cells=60):
    """(statistic, degrees of freedom) of the draws against the exact law of scale ``sigma``."""
    reach = max(2, round(2.5 * sigma))
    expected = discrete_probabilities(sigma, -reach, reach)
    observed = np.bincount(np.clip(draws, -reach, reach).astype(int) + reach, minlength=expected.size)
    group = np.arange(expected.size) * min(cells, expected.size) // expected.size
    expected = np.bincount(group, expected) * len(draws)
    observed = np.bincount(group, observed)
    return float(np.sum((observed - expected) ** 2 / expected)), expected.size - 1


def assert_law(draws, sigma):
    statistic, freedom = chi_square(draws, sigma)
    assert statistic < stats.chi2.isf(ALARM, freedom)


# ---- the law


@pytest.mark.parametrize("sigma", [1, 7, 400])
def test_draws_follow_the_discrete_gaussian(sigma):
    size = 40_000
    draws = sample_discrete_gaussian(sigma, size, IntegerSource(sigma))
    assert len(draws) == size
    assert all(type(z) is int for z in draws)
    assert_law(draws, sigma)
    # the same test sees a scale that is 5 % off
    statistic, freedom = chi_square(draws, 1.05 * sigma)
    assert statistic > stats.chi2.isf(ALARM, freedom)


@pytest.mark.parametrize("sigma", [1, 7, 4096, 2**16])
def test_each_candidate_is_accepted_with_its_exact_probability(sigma, monkeypatch):
    """Rejection made exact: log P(candidate) + log P(accepted) is -x^2 / (2 sigma^2) up to a constant, as fractions."""
    candidates, scales, costs = [0, 1, -1, 2, -sigma, sigma + 1, 3 * sigma, -5 * sigma - 2], [], []
    waiting = iter(candidates)

    class Source:
        def bernoulli_exp(self, numerator, denominator):
            costs.append(Fraction(numerator, denominator))
            return True

    def propose(t, _source):
        scales.append(t)
        return next(waiting)

    monkeypatch.setattr(random_streams, "_discrete_laplace", propose)
    assert sample_discrete_gaussian(sigma, len(candidates), Source()) == candidates
    rest = {
        Fraction(abs(x), t) + cost - Fraction(x**2, 2 * sigma**2)
        for x, t, cost in zip(candidates, scales, costs, strict=True)
    }
    assert len(rest) == 1


def test_draws_are_independent():
    draws = np.array(sample_discrete_gaussian(50, 40_000, IntegerSource(3)), dtype=float)
    for lag in (1, 2, 17):
        correlation = np.corrcoef(draws[:-lag], draws[lag:])[0, 1]
        assert abs(correlation) < stats.norm.isf(ALARM / 2) / math.sqrt(draws.size - lag)


@pytest.mark.parametrize("sigma", [2**15 - 1, 2**15, 2**20, 2**40, 2**61])
def test_large_scales(sigma):
    # at these scales the law is normal to far below what any sample shows
    draws = sample_discrete_gaussian(sigma, 6000, IntegerSource(17))
    scaled = np.array([float(Fraction(int(z), sigma)) for z in draws])
    assert stats.kstest(scaled, "norm").pvalue > ALARM
    assert stats.kstest(1.2 * scaled, "norm").pvalue < ALARM
    assert np.abs(scaled).max() < 7


def test_no_draws_and_bad_scales():
    source = IntegerSource(0)
    assert sample_discrete_gaussian(5, 0, source) == []
    for bad in (0, -3):
        with pytest.raises(ValueError, match="sigma must be at least 1"):
            sample_discrete_gaussian(bad, 5, source)
    for bad in (2.0, True, None, "4"):
        with pytest.raises(TypeError, match="sigma must be an integer"):
            sample_discrete_gaussian(bad, 5, source)


# ---- its parts


def several(draw, size, *arguments):
    return [draw(*arguments) for _ in range(size)]


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 8, 10, 33])
def test_uniform_integers(bound):
    size = 30_000
    draws = several(IntegerSource(bound).below, size, bound)
    counts = np.bincount(draws, minlength=bound)
    assert counts.size == bound
    if bound > 1:
        assert stats.chisquare(counts).pvalue > ALARM


@pytest.mark.parametrize("bound", [2**62, 2**62 + 1, 3 * 2**61, 2**64, 10**30])
def test_uniform_large_integers(bound):
    draws = several(IntegerSource(7).below, 4000, bound)
    assert all(0 <= z < bound for z in draws)
    counts = np.bincount([int(z) * 10 // bound for z in draws], minlength=10)
    assert stats.chisquare(counts).pvalue > ALARM
    # the low end is uniform too: no modulo bias, no lost bits
    assert stats.chisquare(np.bincount([int(z) % 7 for z in draws], minlength=7)).pvalue > ALARM


def binomial_bound(probability, size):
    return stats.norm.isf(ALARM / 2) * math.sqrt(probability * (1 - probability) / size) + 1 / size


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [(0, 1), (1, 1000), (1, 2), (1, 1), (3, 2), (7, 3), (5, 1), (2**60, 2**61), (3 * 2**70, 2**71)],
)
def test_coins_of_an_exponential(numerator, denominator):
    size = 20_000
    share = np.mean(several(IntegerSource(numerator % 1000).bernoulli_exp, size, numerator, denominator))
    expected = math.exp(-numerator / denominator)
    assert abs(share - expected) <= binomial_bound(expected, size)


@pytest.mark.parametrize("t", [1, 4, 300])
def test_discrete_laplace(t):
    size = 30_000
    draws = several(random_streams._discrete_laplace, size, t, IntegerSource(t))
    reach = 5 * t
    support = np.arange(-reach, reach + 1)
    q = math.exp(-1 / t)
    expected = (1 - q) / (1 + q) * q ** np.abs(support)
    expected[[0, -1]] = (1 - expected[1:-1].sum()) / 2
    observed = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=support.size)
    group = np.arange(support.size) * min(40, support.size) // support.size
    assert stats.chisquare(np.bincount(group, observed), np.bincount(group, expected) * size).pvalue > ALARM


# ---- integers only


def test_sampling_works_with_every_float_source_removed(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a floating-point path was used")

    for module, names in [
        (random, ["random", "gauss", "uniform", "normalvariate", "randrange", "getrandbits"]),
        (np.random, ["default_rng", "normal", "random", "rand", "randn", "uniform", "standard_normal", "Generator"]),
        (math, ["exp", "log", "sqrt", "floor", "ceil", "pow", "expm1", "log1p"]),
        (np, ["exp", "log", "sqrt", "floor", "ceil", "round", "true_divide", "divide", "power", "expm1", "log1p"]),
    ]:
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    for sigma in (3, 4096, 2**20):
        assert len(sample_discrete_gaussian(sigma, 50, IntegerSource())) == 50


# ---- entropy and seeds


def test_system_entropy_is_used(monkeypatch):
    asked = []
    system = os.urandom

    def counting(size):
        asked.append(size)
        return system(size)

    monkeypatch.setattr(os, "urandom", counting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = sample_discrete_gaussian(1000, 50, IntegerSource())
        # at least log2(1000 * sqrt(2 pi e)) bits for each draw
        assert sum(asked) * 8 > 50 * 12
        second = sample_discrete_gaussian(1000, 50, IntegerSource())
    assert not np.array_equal(first, second)


def test_a_seed_warns_and_repeats():
    with pytest.warns(SeededWarning, match=r"random_state=5.*NOT private"):
        source = IntegerSource(5)
    draws = sample_discrete_gaussian(90, 30, source)
    assert np.array_equal(draws, sample_discrete_gaussian(90, 30, IntegerSource(5)))
    assert not np.array_equal(draws, sample_discrete_gaussian(90, 30, IntegerSource(6)))
    assert not np.array_equal(draws, sample_discrete_gaussian(90, 30, source))


def test_seeds_are_checked():
    assert seed_of(None) is None
    assert seed_of(np.int64(4)) == 4
    for bad in (True, 1.0, "1", np.random.default_rng(0)):
        with pytest.raises(TypeError, match="random_state must be an integer"):
            seed_of(bad)
    with pytest.raises(ValueError, match="random_state must be at least 0"):
        IntegerSource(-1)


def test_training_and_search_do_not_share_a_seeded_stream():
    assert IntegerSource(3)._bytes(64) != make_generator(3).bytes(64)


def test_cryptographic_stream_is_aes(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: bytes(size))
    stream = make_generator().bytes(32)
    # AES-128 with a zero key: blocks of the little-endian counters 0 and 1 (FIPS-197 test vectors)
    assert stream[:16].hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    assert stream[16:].hex() == "47711816e91d6ff059bbbf2bf58e0fd3"


def test_the_whole_key_comes_from_the_system(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or bytes([7] * size))
    make_generator()
    assert sum(asked) >= 16


# ---- integer noise for a rational statistic


@pytest.mark.parametrize("sensitivity", [Fraction(1), Fraction(1, 2), Fraction(9, 10), Fraction(899_999, 10**6)])
@pytest.mark.parametrize("wanted", [0.3, 1.0, 8.917391304347825, 40, 1e4])
def test_lattice_noise(sensitivity, wanted):
    lattice = lattice_noise(wanted, sensitivity)
    assert Fraction(lattice.sensitivity, lattice.scale) == sensitivity
    assert wanted <= lattice.count_noise <= wanted * (1 + 1 / 4096)
    # a second pass through the float number never lowers the noise
    again = lattice_noise(lattice.count_noise, sensitivity)
    assert Fraction(again.sigma, again.sensitivity) >= Fraction(lattice.sigma, lattice.sensitivity) * (
        1 - Fraction(1, 10**15)
    )


@pytest.mark.parametrize("sensitivity", [1 / 3, 0.123456789, 1e-7, 1e-10, 0.9, 2.5])
def test_float_sensitivities_are_never_rounded_down(sensitivity):
    exact = sensitivity_fraction(sensitivity)
    assert Fraction(sensitivity) * (1 - Fraction(1, 10**15)) <= exact <= Fraction(sensitivity) + Fraction(1, 10**6)
    lattice = lattice_noise(2.0, sensitivity)
    assert Fraction(lattice.sensitivity, lattice.scale) == exact
    assert 0 < epsilon_of(lattice.event(1), 1e-5) < math.inf or sensitivity < 1e-4


def test_lattice_draws_have_the_promised_spread():
    lattice = lattice_noise(3.0, Fraction(1, 2))
    draws = lattice.sample(20_000, IntegerSource(8))
    assert all(type(z) is int for z in draws)
    in_units = np.array(draws) / lattice.scale
    spread = stats.norm.isf(ALARM / 2) * math.sqrt(2 / in_units.size)
    assert abs(in_units.var() / lattice.count_noise**2 - 1) < spread
    assert lattice.event(20) == LatticeNoise(lattice.scale, lattice.sigma, lattice.sensitivity).event(20)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_bad_lattices(bad):
    with pytest.raises(ValueError, match="count_noise must"):
        lattice_noise(bad)
    with pytest.raises(ValueError, match="sensitivity must"):
        lattice_noise(1.0, bad)
