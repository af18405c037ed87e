"""Privatized sufficient statistics: sensitivity, noise, ridge, stability."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpscp.training.engine.noise import release_symmetric
from dpscp.training.mechanisms.sufficient_statistics import SufficientStatistics, adaptive_ridge, ball_minimizer


def generator(seed=0):
    return np.random.default_rng(seed)


def problem(n=300, d=3, seed=0):
    r = generator(seed)
    X = r.normal(size=(n, d))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    return X, 5 + X @ np.array([2.0, -1.0, 0.5])[:d] + 0.1 * r.normal(size=n)


READY = SufficientStatistics(1.0, (0.0, 10.0), noise_multiplier=2.0)


def in_noise_units(mechanism, gram, cross):
    """The released vector with every coordinate divided by its noise: sensitivity 1 / noise_multiplier."""
    upper = np.triu_indices(len(gram))
    stretch = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    return np.concatenate([gram[upper] * stretch / mechanism.gram_noise, cross / mechanism.cross_noise])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.covering
def test_one_record_moves_the_release_by_at_most_one_noise_multiplier(share, intercept):
    mechanism = SufficientStatistics(1.5, (0.0, 10.0), noise_multiplier=2.0, gram_share=share, fit_intercept=intercept)
    X, y = problem(20)
    base, worst = in_noise_units(mechanism, *mechanism.moments(X, y, np.ones(20))), 0.0
    for seed in range(200):
        r = generator(seed)
        row = r.normal(size=(1, 3)) * r.choice([1.0, 1e6])
        target = r.choice([-1e9, 0.0, 5.0, 1e9])
        moved = in_noise_units(mechanism, *mechanism.moments(np.vstack([X, row]), np.append(y, target), np.ones(21)))
        worst = max(worst, np.linalg.norm(moved - base))
    assert 0.95 / 2.0 < worst <= 1 / 2.0 + 1e-9


def test_noise_has_the_declared_scale_and_is_symmetric():
    gram = np.eye(4)
    draws = 400
    released = np.array([release_symmetric(gram, READY.gram_noise, generator(s)) for s in range(draws)])
    np.testing.assert_array_equal(released, released.transpose(0, 2, 1))
    noise = released - gram
    diagonal = np.einsum("kii->ki", noise) / READY.gram_noise
    above = noise[:, *np.triu_indices(4, 1)] / (READY.gram_noise / math.sqrt(2))
    for part in (diagonal, above):
        low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], part.size)
        assert low < np.sum(part**2) < high


def test_training_recovers_the_regression_with_little_noise():
    X, y = problem(5000)
    quiet = SufficientStatistics(1.0, (0.0, 10.0), noise_multiplier=1e-4)
    model = quiet.train(X, y, random_state=0, n_records=5000).model
    np.testing.assert_allclose(model.layers[0][0], [2.0, -1.0, 0.5, 5.0], atol=0.02)
    assert model.task == "regression"
    private = SufficientStatistics(1.0, (0.0, 10.0)).calibrated(2.0, 1e-5).train(X, y, random_state=0)
    assert np.mean((private.model.outputs(X)[:, 0] - y) ** 2) < 0.2 * np.var(y)
    assert private.taken_from_data == ("n_records",)
    assert private.model.parameters.size == 4
    bare = SufficientStatistics(1.0, (-3.0, 3.0), noise_multiplier=1e-4, fit_intercept=False)
    np.testing.assert_allclose(bare.train(X, y - 5, random_state=0).model.parameters, [2.0, -1.0, 0.5], atol=0.02)


@pytest.mark.parametrize("radius", [None, 3.0])
def test_coupled_runs_stay_within_the_stability_bound(radius):
    # few records and a low floor, so that the bound is not dwarfed by the data
    mechanism = SufficientStatistics(1.0, (-1.0, 1.0), noise_multiplier=0.5, floor=4.0, radius=radius)
    worst = 0.0
    for seed in range(60):
        r = generator(seed)
        X, y = r.normal(size=(6, 2)), r.choice([-1.0, 1.0], 6)
        a = mechanism.train(X, y, random_state=seed, n_records=6)
        record, target = r.normal(size=(1, 2)) * 10, r.choice([-9.0, 9.0])
        b = mechanism.train(np.vstack([X, record]), np.append(y, target), random_state=seed, n_records=6)
        gap = np.linalg.norm(a.model.parameters - b.model.parameters)
        assert gap <= a.stability.shift_bound
        worst = max(worst, gap / a.stability.shift_bound)
    assert worst > 0.1
    assert a.stability.delta_n == 0.0
    assert a.stability.score_lipschitz == pytest.approx(math.sqrt(2.0))


def test_the_shift_bound_holds_the_rounding_of_both_releases():
    """Nine entries of the Gram matrix, used twice with a solution of length 3, and three cross moments."""
    quiet, loud = (
        SufficientStatistics(1.0, (-1.0, 2.0), noise_multiplier=z, floor=4.0, radius=3.0) for z in (1e-6, 1e6)
    )
    rounding = 2.0**-20 * (2 * 3 * loud.gram_noise * 3.0 + math.sqrt(3) * loud.cross_noise) / 4.0
    found = loud.stability(2, 100).shift_bound - quiet.stability(2, 100).shift_bound
    assert found == pytest.approx(rounding, rel=1e-6)
    # B (Y + B R) / floor with B = sqrt(2) and Y = 1.5, beside rounding that is negligible
    expected = math.sqrt(2) * (1.5 + math.sqrt(2) * 3.0) / 4.0
    assert quiet.stability(2, 100).shift_bound == pytest.approx(expected, rel=1e-9)


def test_ridge_lifts_the_smallest_eigenvalue_exactly_to_the_floor():
    r = generator(1)
    for _ in range(20):
        noise = r.normal(size=(5, 5))
        gram = noise + noise.T
        assert np.linalg.eigvalsh(adaptive_ridge(gram, 2.0))[0] == pytest.approx(2.0)
    high = 9 * np.eye(3)
    np.testing.assert_array_equal(adaptive_ridge(high, 2.0), high)
    assert READY.smallest_eigenvalue(3) == pytest.approx(READY.gram_noise * math.sqrt(8))


def test_ball_minimizer_solves_the_constrained_problem():
    r = generator(2)
    for _ in range(10):
        root = r.normal(size=(3, 3))
        matrix, linear = root @ root.T + 0.1 * np.eye(3), 5 * r.normal(size=3)
        inside = ball_minimizer(matrix, linear, 1e9)
        np.testing.assert_allclose(matrix @ inside, linear, atol=1e-7)
        ours = ball_minimizer(matrix, linear, 0.5)
        assert np.linalg.norm(ours) <= 0.5 + 1e-9

        def value(theta, matrix=matrix, linear=linear):
            return theta @ matrix @ theta / 2 - linear @ theta

        reference = optimize.minimize(
            value,
            np.zeros(3),
            method="SLSQP",
            constraints={"type": "ineq", "fun": lambda t: 0.25 - t @ t},
            options={"ftol": 1e-12},
        )
        assert value(ours) <= reference.fun + 1e-5


def test_bad_input_is_named_without_data():
    X, y = problem(30)
    with pytest.raises(ValueError, match="same number of records"):
        READY.train(X, y[:-1])
    with pytest.raises(ValueError, match="real numbers"):
        READY.train(X, ["secret"] * 30)
    with pytest.raises(ValueError, match="NaN"):
        READY.train(X * np.nan, y)
    with pytest.raises(ValueError, match="feature_bound must be greater than 0"):
        SufficientStatistics(-1.0, (0.0, 1.0))
    with pytest.raises(ValueError, match="low < high"):
        SufficientStatistics(1.0, (1.0, 0.0))
    with pytest.raises(ValueError, match="noise_multiplier is not set"):
        SufficientStatistics(1.0, (0.0, 1.0)).train(X, y)
