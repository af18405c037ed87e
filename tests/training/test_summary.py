"""Privatized sufficient statistics: sensitivity, noise, ridge."""

import math

import numpy as np
from scipy import stats

from dpscp.privacy import secure_generator
from dpscp.training.engine.noise import gaussian_release, release_symmetric
from dpscp.training.mechanisms.sufficient_statistics import SufficientStatistics


def generator(seed=0):
    return np.random.default_rng(seed)


def problem(n=300, d=3, seed=0):
    r = generator(seed)
    X = r.normal(size=(n, d))
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    return X, 5 + X @ np.array([2.0, -1.0, 0.5])[:d] + 0.1 * r.normal(size=n)


READY = SufficientStatistics(1.0, (0.0, 10.0), noise_multiplier=2.0)


def test_noise_has_the_declared_scale_and_is_symmetric():
    gram, (scale, _) = np.eye(4), READY.noises
    draws = 400
    released = np.array([release_symmetric(gram, scale, generator(s)) for s in range(draws)])
    np.testing.assert_array_equal(released, released.transpose(0, 2, 1))
    noise = released - gram
    diagonal = np.einsum("kii->ki", noise) / scale
    above = noise[:, *np.triu_indices(4, 1)] / (scale / math.sqrt(2))
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


def test_the_solution_is_the_ridge_regression_whose_ridge_lifts_the_smallest_eigenvalue():
    """The Gram matrix is mostly noise: without a ridge it would have negative eigenvalues."""
    X, y = problem(5)
    trained = READY.train(X, y, n_records=5, random_state=1)
    rng = secure_generator(1)
    gram, cross = READY.moments(X, y, np.ones(5))
    gram, cross = release_symmetric(gram, READY.noises[0], rng), gaussian_release(cross, READY.noises[1], rng)
    cross *= min(1.0, 5 * math.prod(READY.bounds) / np.linalg.norm(cross))
    floor, smallest = READY.noises[0] * math.sqrt(8), np.linalg.eigvalsh(gram)[0]
    assert smallest < 0
    theta = np.linalg.solve(gram + (floor - smallest) * np.eye(4), cross)
    np.testing.assert_allclose(trained.model.parameters, theta + np.eye(4)[3] * 5, rtol=1e-9)
