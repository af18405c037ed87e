"""Output and objective perturbation: sensitivity, noise, the privacy of the random linear term, stability."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import special, stats

from dpscp.privacy import epsilon_of, gdp_delta
from dpscp.training import Mechanism
from dpscp.training.engine.rows import feature_rows
from dpscp.training.mechanisms.perturbation import (
    EXPANSION_SHARE,
    SOLVER_NOISE,
    SOLVER_SHARE,
    LinearRisk,
    ObjectivePerturbation,
    OutputPerturbation,
    dominating_mu,
)


def generator(seed=0):
    return np.random.default_rng(seed)


def problem(loss, n=60, d=3, seed=0):
    r = generator(seed)
    rows = r.normal(size=(n, d))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    if loss == "huber":
        return rows, r.normal(size=n)
    return rows, r.integers(0, 3 if loss == "cross_entropy" else 2, n)


RISKS = {
    "cross_entropy": LinearRisk("cross_entropy", 1.0, 3, 2.0),
    "logistic": LinearRisk("logistic", 1.0, 1, 2.0),
    "huber": LinearRisk("huber", 1.0, 1, 2.0, 0.8),
}


# ---- the risk


@pytest.mark.parametrize("loss", RISKS)
def test_gradient_is_the_derivative_of_the_value(loss):
    risk, (rows, target) = RISKS[loss], problem(loss)
    r = generator(1)
    theta = r.normal(size=risk.n_outputs * 3)
    linear = r.normal(size=theta.size)
    _, gradient = risk.value_and_gradient(theta, rows, target, linear, np.ones(len(rows)))
    for i in range(theta.size):
        step = 1e-6 * np.eye(theta.size)[i]
        up = risk.value_and_gradient(theta + step, rows, target, linear, np.ones(len(rows)))[0]
        down = risk.value_and_gradient(theta - step, rows, target, linear, np.ones(len(rows)))[0]
        assert gradient[i] == pytest.approx((up - down) / 2e-6, abs=1e-5)


@pytest.mark.parametrize("loss", RISKS)
def test_constants_bound_gradients_and_curvature(loss):
    risk, r = RISKS[loss], generator(2)
    steepest, sharpest = 0.0, 0.0
    for _ in range(500):
        row = r.normal(size=(1, 3))
        row /= np.linalg.norm(row)
        target = np.array([r.integers(0, 2)]) if loss != "huber" else r.normal(size=1)
        # both ends on the line through the row: that is where gradients and curvature are largest
        scale = r.choice([0.05, 1.0, 30.0])
        theta = np.outer(r.normal(size=risk.n_outputs), row).ravel() * scale
        other = theta + 1e-3 * np.outer(r.normal(size=risk.n_outputs), row).ravel()
        penalty = risk.strength
        a = risk.value_and_gradient(theta, row, target, -penalty * theta, np.ones(1))[1]
        b = risk.value_and_gradient(other, row, target, -penalty * other, np.ones(1))[1]
        steepest = max(steepest, np.linalg.norm(a))
        sharpest = max(sharpest, np.linalg.norm(a - b) / np.linalg.norm(theta - other))
    assert 0.9 * risk.head.gradient_bound < steepest <= risk.head.gradient_bound * (1 + 1e-9)
    assert 0.75 * risk.head.smoothness < sharpest <= risk.head.smoothness * (1 + 1e-6)


@pytest.mark.parametrize("loss", RISKS)
def test_solver_reaches_its_tolerance_also_without_the_quasi_newton_start(loss):
    risk, (rows, target) = RISKS[loss], problem(loss)
    linear = generator(3).normal(size=risk.n_outputs * 3) * 5
    weights = np.ones(len(rows))
    theta = risk.minimize(rows, target, linear, weights, tolerance=1e-6)
    assert np.linalg.norm(risk.value_and_gradient(theta, rows, target, linear, weights)[1]) <= 1e-6
    objective = partial(risk.value_and_gradient, rows=rows, target=target, linear=linear, weights=weights)
    slow = risk._accelerated(np.zeros(theta.size), rows, objective, 1e-6)
    assert np.linalg.norm(slow - theta) <= 2e-6 / risk.strength
    empty = risk.minimize(rows[:0], target[:0], linear, weights[:0], tolerance=1e-6)
    np.testing.assert_allclose(empty, -linear / risk.strength, atol=1e-6)


@pytest.mark.parametrize("loss", RISKS)
def test_one_record_moves_the_minimizer_by_at_most_gradient_bound_over_strength(loss):
    risk, (rows, target) = RISKS[loss], problem(loss, n=2)
    limit, worst = risk.head.gradient_bound / risk.strength, 0.0
    nothing = np.zeros(risk.n_outputs * 3)
    base = risk.minimize(rows, target, nothing, np.ones(2), tolerance=1e-8)
    for seed in range(60):
        r = generator(seed)
        row = r.normal(size=(1, 3))
        row /= np.linalg.norm(row)
        value = r.integers(0, 2, 1) if loss != "huber" else r.choice([-50.0, 50.0], 1)
        moved = risk.minimize(np.vstack([rows, row]), np.append(target, value), nothing, np.ones(3), tolerance=1e-8)
        worst = max(worst, np.linalg.norm(moved - base))
    assert limit / 10 < worst <= limit + 1e-6


# ---- the privacy of the random linear term


def hockey_stick(p, q, epsilon, cell):
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)) * cell)


@pytest.mark.parametrize("strength", [0.4, 3.0])
@pytest.mark.covering
def test_exact_divergences_stay_below_the_dominating_gaussian(strength):
    # one feature: the density of the released minimizer is known in closed form, with and without the extra record
    noise = 2.0
    mu = dominating_mu(1 / noise, 0.25 / strength)
    grid = np.linspace(-60, 60, 400_001)
    cell = grid[1] - grid[0]

    def density(records):
        first, second = strength * grid, np.full_like(grid, strength)
        for x, y in records:
            p = special.expit(x * grid)
            first, second = first + (p - y) * x, second + p * (1 - p) * x**2
        return stats.norm.pdf(first / noise) / noise * second

    worst = 0.0
    for base in [[], [(1.0, 1), (0.5, 0)], [(1.0, 0)] * 3, [(-0.8, 1)] * 2]:
        for extra in [(1.0, 0), (1.0, 1), (-1.0, 1), (0.3, 0)]:
            p, q = density(base), density([*base, extra])
            assert np.sum(p) * cell == pytest.approx(1.0, abs=1e-4)
            for epsilon in (0.0, 0.05, 0.2, 0.5, 1.0):
                allowed = gdp_delta(epsilon, mu)
                for a, b in ((p, q), (q, p)):
                    exact = hockey_stick(a, b, epsilon, cell)
                    assert exact <= allowed + 1e-7
                    worst = max(worst, exact / gdp_delta(epsilon, mu / 4))
    assert worst > 1  # a quarter of mu would be a false promise


@pytest.mark.parametrize("mu", [1e-3, 0.5, 4.0])
@pytest.mark.parametrize("expansion", [1e-3, 0.2, 3.0])
def test_the_dominating_gaussian_is_the_smallest_for_this_bound_of_the_loss(mu, expansion):
    # the trade-off function of the bound: a scaled Gaussian one, then a line to the diagonal
    middle = stats.norm.sf(mu / 2)
    left = np.geomspace(1e-30, 1, 200) * middle / (1 + expansion)
    line = np.linspace(left[-1], middle / (1 + expansion / 2), 200)
    bound = np.r_[stats.norm.cdf(stats.norm.isf((1 + expansion) * left) - mu), 2 * middle - (1 + expansion) * line]

    def error(candidate):
        return stats.norm.cdf(stats.norm.isf(np.r_[left, line]) - candidate)

    found = dominating_mu(mu, expansion)
    assert np.all(error(found) <= bound * (1 + 1e-9))
    assert np.any(error(found * (1 - 1e-6)) > bound * (1 + 1e-9))
    assert dominating_mu(mu, 0.0) == pytest.approx(mu)


# ---- the mechanisms


MECHANISMS = [
    OutputPerturbation(classes=(0, 1, 2)),
    OutputPerturbation(loss="logistic", classes=(0, 1)),
    OutputPerturbation(loss="huber", y_bounds=(-4, 4)),
    ObjectivePerturbation(classes=(0, 1)),
]
IDS = [f"{type(m).__name__}-{m.loss}" for m in MECHANISMS]


def data_for(mechanism, n=600, seed=5):
    r = generator(seed)
    X = r.normal(size=(n, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    if mechanism.y_bounds is not None:
        return X, 2 * X[:, 0] + 0.1 * r.normal(size=n)
    if mechanism.loss == "logistic":
        return X, (X[:, 0] > 0).astype(int)
    return X, np.argmax(X, axis=1)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_calibrated_keeps_the_budget_and_training_learns(mechanism):
    done = mechanism.calibrated(4.0, 1e-6)
    assert isinstance(done, Mechanism)
    assert 3.9 < epsilon_of(done.event, 1e-6) <= 4.0
    X, y = data_for(mechanism, n=4000)
    trained = done.train(X, y, random_state=0, n_records=4000)
    out = trained.model.outputs(X)
    if mechanism.y_bounds is not None:
        assert np.mean((out[:, 0] - y) ** 2) < 0.5 * np.var(y)
    else:
        assert np.mean(np.argmax(out, axis=1) == y) > 0.8
    assert trained.event == done.event
    assert trained.is_seeded
    assert trained.public_facts["n_records"] == 4000
    assert sum(a.size for a in trained.model.arrays().values()) < 20
    assert mechanism.event is None
    with pytest.raises(ValueError, match="noise_multiplier is not set"):
        mechanism.train(X, y)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=IDS)
def test_coupled_runs_stay_within_the_stability_bound(mechanism):
    # the same seed is the same noise: the two runs differ by one adversarial record
    small = replace(mechanism, noise_multiplier=3.0)
    if isinstance(mechanism, OutputPerturbation):
        small = replace(small, regularization=0.05)
    X, y = data_for(small, n=100)
    worst, bound = 0.0, None
    for seed in range(8):
        extra = generator(seed).normal(size=(1, 3))
        extra *= 100 / np.linalg.norm(extra)
        wrong = 4.0 * np.sign(-extra[0, 0]) if small.y_bounds else int(np.argmin(extra[0])) % len(small.classes)
        a = small.train(X, y, random_state=seed, n_records=400)
        b = small.train(np.vstack([X, extra]), np.append(y, wrong), random_state=seed, n_records=400)
        bound = a.stability
        gap = np.linalg.norm(a.model.parameters - b.model.parameters)
        assert gap <= bound.shift_bound
        worst = max(worst, gap)
    assert worst > bound.shift_bound / 10
    assert bound.delta_n == 0.0
    assert bound.score_lipschitz > 0


def test_output_noise_has_the_declared_scale():
    mechanism = OutputPerturbation(loss="logistic", classes=(0, 1), regularization=0.1, noise_multiplier=5.0)
    X, y = data_for(mechanism, n=50)
    draws = 300
    thetas = np.array([mechanism.train(X, y, random_state=s, n_records=50).model.parameters for s in range(draws)])
    reach = math.sqrt(2.0)
    risk = LinearRisk("logistic", reach, 1, 0.1 * 50)
    rows = feature_rows(X, feature_bound=1.0, intercept=True, dtype="float64")
    center = risk.minimize(rows, y, np.zeros(rows.shape[1]), np.ones(50), tolerance=1e-8)
    std = 5.0 * (reach + 2 * SOLVER_SHARE * reach) / (0.1 * 50)
    statistic = np.sum((thetas - center) ** 2) / std**2
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], thetas.size)
    assert low < statistic < high


def test_objective_noise_has_the_declared_scale():
    # without records the minimizer is -b / strength exactly; what else is released is the noise that covers the solver
    mechanism = ObjectivePerturbation(classes=(0, 1), noise_multiplier=3.0)
    X, y = np.zeros((0, 3)), np.zeros(0, dtype=int)
    draws, reach, strength = 1000, math.sqrt(2.0), mechanism.strength(50, 3)
    thetas = np.array([mechanism.train(X, y, random_state=s, n_records=50).model.parameters for s in range(draws)])
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], thetas.size)
    assert low < np.sum(thetas**2) / (3.0 * reach / strength) ** 2 < high
    # the linear term is the first thing a seeded run draws
    linear = np.array([generator(s).normal(0.0, 3.0 * reach, 4) for s in range(draws)])
    rest = thetas + linear / strength
    std = SOLVER_NOISE * 3.0 * 2 * SOLVER_SHARE * reach / strength
    assert low < np.sum(rest**2) / std**2 < high


@pytest.mark.parametrize("n_features", [1, 1000])
def test_the_event_of_objective_perturbation_covers_its_penalty_and_its_solver(n_features):
    mechanism = ObjectivePerturbation(classes=(0, 1), noise_multiplier=4.0)
    expansion = 0.25 * 2.0 / mechanism.strength(100, n_features)  # smoothness 1/4 at rows of squared norm 2
    assert expansion <= EXPANSION_SHARE / 4.0 * (1 + 1e-12)
    exact = math.hypot(dominating_mu(1 / 4.0, EXPANSION_SHARE / 4.0), 1 / (4.0 * SOLVER_NOISE))
    assert 1 / mechanism.event.noise_multiplier == pytest.approx(exact)
    assert mechanism.event.noise_multiplier < 4.0


def test_rows_and_targets_are_clipped_in_training_and_prediction():
    mechanism = OutputPerturbation(
        loss="huber", y_bounds=(-1, 1), regularization=0.1, noise_multiplier=1e-6, feature_bound=1.0
    )
    X, y = data_for(mechanism, n=100)
    wild = mechanism.train(X * 1e6, y * 1e6, random_state=0).model
    tame = mechanism.train(X, np.sign(y), random_state=0).model
    np.testing.assert_allclose(wild.parameters, tame.parameters, atol=1e-3)
    np.testing.assert_allclose(wild.outputs(X * 1e9), wild.outputs(X), rtol=1e-6)


def test_the_center_of_the_target_range_returns_with_the_intercept():
    mechanism = OutputPerturbation(loss="huber", y_bounds=(90, 110), noise_multiplier=1e-3, regularization=1e-4)
    X, y = data_for(mechanism, n=2000)
    np.testing.assert_allclose(mechanism.train(X, y + 100, random_state=0).model.outputs(X)[:, 0], y + 100, atol=0.6)


def test_bad_input_is_named_without_data():
    X, y = data_for(MECHANISMS[0], n=30)
    ready = OutputPerturbation(classes=(0, 1), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="not in classes") as caught:
        ready.train(X, np.full(30, 7777), random_state=0)
    assert "7777" not in str(caught.value)
    with pytest.raises(ValueError, match="same number of records"):
        ready.train(X, np.zeros(29, dtype=int))
    with pytest.raises(ValueError, match="NaN"):
        ready.train(np.full((30, 3), np.nan), y)
    with pytest.raises(ValueError, match="feature_bound must be greater than 0"):
        OutputPerturbation(feature_bound=0.0)
    with pytest.raises(ValueError, match="y_bounds"):
        OutputPerturbation(loss="huber")
    with pytest.raises(ValueError, match="2 classes, got 3"):
        ObjectivePerturbation(classes=(0, 1, 2))
    with pytest.raises(ValueError, match="loss must be one of"):
        OutputPerturbation(loss="hinge")
    found = OutputPerturbation(noise_multiplier=1.0).train(X, y, random_state=0)
    assert found.taken_from_data == ("n_records", "classes")
