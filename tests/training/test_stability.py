"""Every bound is an upper bound on coupled runs, and a tenth of it is not."""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpscp.guarantees.stability import (
    LinearHead,
    Stability,
    batch_limits,
    stability_dpsgd_fixed_normalizer,
    stability_objective_perturbation,
    stability_output_perturbation,
    stability_summary,
    weighted_draws,
)
from dpscp.paper import (
    expected_gap_dpsgd_projection,
    stability_dpsgd_projection,
    stability_dpsgd_smooth,
)
from dpscp.training import DPSGD


def clipped(gradient, clip_norm):
    norm = np.linalg.norm(gradient, axis=-1, keepdims=True)
    return gradient * np.minimum(1.0, clip_norm / np.maximum(norm, 1e-300))


def coupled_gaps(gradient, *, n, d, eta, steps, rate, clip_norm, noise_std, rng, by_batch_size=False, trials=1):
    """Gaps after coupled runs on records 0..n-1 and 0..n; ``gradient(theta, indices)`` gives one row a record."""
    rates = np.broadcast_to(eta, steps)
    gaps = np.empty(trials)
    for trial in range(trials):
        theta = [np.zeros(d), np.zeros(d)]
        for t in range(steps):
            mask = rng.random(n + 1) < rate
            noise = noise_std * rng.normal(size=d)
            for world in (0, 1):
                batch = np.flatnonzero(mask[: n + world])
                if by_batch_size and len(batch) == 0:
                    continue
                total = clipped(gradient(theta[world], batch), clip_norm).sum(axis=0) + noise
                theta[world] = theta[world] - rates[t] * total / (len(batch) if by_batch_size else rate * n)
        gaps[trial] = np.linalg.norm(theta[1] - theta[0])
    return gaps


def logistic_gradient(rows, labels):
    def gradient(theta, batch):
        x, y = rows[batch], labels[batch]
        return (special.expit(x @ theta) - y)[:, None] * x

    return gradient


def constant_gradient(vectors):
    return lambda _theta, batch: vectors[batch]


def binomial_slack(probability, trials):
    return 4 * math.sqrt(max(probability, 1e-3) / trials)


# ---- the paper's two regimes


def test_projection_bound_is_the_probability_of_ever_being_drawn():
    rng = np.random.default_rng(0)
    rate, steps, trials = 0.02, 10, 3000
    bound = stability_dpsgd_projection(sampling_rate=rate, steps=steps)
    vectors = np.ones((4, 1))
    run = {"eta": 0.1, "steps": steps, "rate": rate, "clip_norm": 1.0, "noise_std": 1.0}
    gaps = coupled_gaps(constant_gradient(vectors), n=3, d=1, rng=rng, trials=trials, **run)
    moved = np.mean(gaps > 1e-12)
    assert bound.shift_bound == 0.0
    assert moved <= bound.delta_n + binomial_slack(bound.delta_n, trials)
    assert moved > bound.delta_n / 2
    assert bound.delta_n == pytest.approx(1 - 0.98**10)
    assert expected_gap_dpsgd_projection(diameter=3.0, sampling_rate=rate, steps=steps) == pytest.approx(
        3 * bound.delta_n
    )
    assert stability_dpsgd_projection(sampling_rate=1.0, steps=1).is_vacuous


def test_smooth_bound_holds_and_is_sharp_for_opposed_gradients():
    # without noise and curvature the bound is attained up to the empty-batch case: the new gradient opposes all others
    rng = np.random.default_rng(1)
    n, rate, steps, eta, trials = 20, 0.3, 15, 0.1, 400
    vectors = np.vstack([np.ones((n, 1)), -np.ones((1, 1))])
    both = {"steps": steps, "clip_norm": 1.0, "noise_std": 0.0}
    run = {"n": n, "d": 1, "eta": eta, "rate": rate, "by_batch_size": True, "trials": trials}
    gaps = coupled_gaps(constant_gradient(vectors), rng=rng, **run, **both)
    public = {"n_records": n, "n_parameters": 1, "learning_rate": eta, "sampling_rate": rate, "smoothness": 1e-6}
    bound = stability_dpsgd_smooth(**public, **both).shift_bound ** 1.5
    slack = 4 * gaps.std() / math.sqrt(trials)
    assert bound - slack * 2 <= gaps.mean() + slack
    assert gaps.mean() <= bound + slack


def test_smooth_bound_holds_with_noise_and_curvature():
    rng = np.random.default_rng(2)
    n, d, rate, steps, eta = 30, 3, 0.2, 20, 0.2
    rows = rng.normal(size=(n + 1, d))
    labels = rng.integers(0, 2, n + 1)
    arguments = {"clip_norm": 0.7, "noise_std": 0.5, "steps": steps}
    run = {"n": n, "d": d, "eta": eta, "rate": rate, "by_batch_size": True, "trials": 60}
    gaps = coupled_gaps(logistic_gradient(rows, labels), rng=rng, **run, **arguments)
    constants = {"n_records": n, "n_parameters": d, "learning_rate": eta, "sampling_rate": rate}
    constants["smoothness"] = float((rows**2).sum(axis=1).max()) / 4
    split = stability_dpsgd_smooth(**constants, **arguments)
    assert gaps.mean() <= split.shift_bound**1.5
    assert split.delta_n == pytest.approx(min(1.0, split.shift_bound**0.5))


def test_smooth_bound_is_vacuous_rather_than_an_overflow():
    steep = {"learning_rate": 10.0, "steps": 1000, "smoothness": 1.0, "n_parameters": 10}
    bound = stability_dpsgd_smooth(n_records=100, clip_norm=1.0, noise_std=1.0, sampling_rate=0.1, **steep)
    assert bound.is_vacuous
    assert math.isinf(bound.shift_bound)


# ---- fixed normalizer


def test_full_batch_bound_is_deterministic_and_attained():
    rng = np.random.default_rng(3)
    n, steps = 12, 9
    eta = rng.uniform(0.01, 0.2, steps)
    vectors = rng.normal(size=(n + 1, 4)) * 100
    both = {"steps": steps, "clip_norm": 0.5}
    run = {"n": n, "d": 4, "eta": eta, "rate": 1.0, "noise_std": 2.0, "trials": 3}
    gaps = coupled_gaps(constant_gradient(vectors), rng=rng, **run, **both)
    bound = stability_dpsgd_fixed_normalizer(
        learning_rate=eta, sampling_rate=1.0, n_records=n, smoothness=1.0, convex=True, **both
    )
    assert bound.delta_n == 0.0
    assert bound.shift_bound == pytest.approx(0.5 * eta.sum() / n)
    assert gaps == pytest.approx(np.full(3, bound.shift_bound))


def test_long_convex_steps_expand_as_the_bound_says():
    # one direction, unit curvature, eta = 3: a gap is doubled by every step, which is max(1, eta - 1)
    n, steps, eta = 5, 6, 3.0
    gap, total = 0.0, 0.0
    for _ in range(steps):
        gap = abs(1 - eta) * gap + eta * 1.0 / n
        total = 2 * total + eta / n
    public = {"clip_norm": 1.0, "learning_rate": eta, "steps": steps, "n_records": n}
    bound = stability_dpsgd_fixed_normalizer(sampling_rate=1.0, smoothness=1.0, convex=True, **public)
    assert bound.shift_bound == pytest.approx(total)
    assert bound.shift_bound == pytest.approx(gap)


def test_nonconvex_losses_get_the_general_factor_and_it_is_attained():
    # concave loss -theta^2/2 + theta for the new record: every shared step multiplies the gap by 1 + eta
    n, steps, eta = 6, 10, 0.1

    def gradient(theta, batch):
        return np.where(batch[:, None] < n, -theta[None, :], 1.0)

    both = {"steps": steps, "clip_norm": 1.0}
    gaps = coupled_gaps(gradient, n=n, d=1, eta=eta, rate=1.0, noise_std=0.0, rng=np.random.default_rng(0), **both)
    bound = stability_dpsgd_fixed_normalizer(learning_rate=eta, sampling_rate=1.0, n_records=n, smoothness=1.0, **both)
    assert gaps[0] == pytest.approx(bound.shift_bound)


@pytest.mark.parametrize("schedule", ["constant", "decaying"])
def test_poisson_bound_has_the_promised_tail_and_is_sharp(schedule):
    rng = np.random.default_rng(5)
    steps, rate, trials, target = 60, 0.1, 200_000, 0.02
    eta = np.full(steps, 0.2) if schedule == "constant" else 0.2 * (1 - np.arange(steps) / steps)
    public = {"clip_norm": 1.0, "learning_rate": eta, "steps": steps, "sampling_rate": rate, "n_records": 1000}
    bound = stability_dpsgd_fixed_normalizer(smoothness=1e-3, convex=True, delta_n=target, **public)
    # constant gradients: the gap is exactly the weighted number of draws
    gaps = (rng.random((trials, steps)) < rate) @ eta / (rate * 1000)
    assert bound.delta_n <= target
    assert np.mean(gaps > bound.shift_bound) <= bound.delta_n + binomial_slack(target, trials)
    assert np.mean(gaps > 0.85 * bound.shift_bound) > target


def test_batches_that_break_nonexpansiveness_are_charged():
    # theory.md: at curvature 1/2 (B = 1), batch 32 of many: eta 4 breaks in .45 of the steps, eta 2 in 2e-7
    n, rate = 32 * 428, 1 / 428
    tail = stats.binom.sf(32, n, rate)
    assert 0.4 < tail < 0.5
    assert stats.binom.sf(64, n, rate) == pytest.approx(2e-7, rel=0.5)
    calm = batch_limits(np.full(100, 2.0), 0.5, n, rate, 32.0, 1e-3, convex=True)
    assert calm[0] == (63, pytest.approx(1 - (1 - stats.binom.sf(63, n, rate)) ** 100, rel=1e-6))
    wild = batch_limits(np.full(100, 4.0), 0.5, n, rate, 32.0, 1e-3, convex=True)
    assert len(wild) == 1
    limit, probability = wild[0]
    assert probability <= 5e-4
    assert 1 - (1 - stats.binom.sf(limit - 1, n, rate)) ** 100 > 5e-4


@pytest.mark.parametrize("weights", [(1.0, 2.0, 4.0, 8.0), (1.0, 1.0, 4.0, 4.0)])
def test_weighted_draws_agrees_with_the_exact_law(weights):
    weights = np.array(weights)
    outcomes = np.arange(16)
    bits = (outcomes[:, None] >> np.arange(4)) & 1
    probability = np.prod(np.where(bits == 1, 0.3, 0.7), axis=1)
    for target in (0.01, 0.1, 0.25):
        total, tail = weighted_draws(weights, 0.3, target)
        exact = probability[bits @ weights > total].sum()
        assert exact <= tail <= target
        below = probability[bits @ weights > total * 0.99 - 1e-9].sum()
        assert below > target or total == pytest.approx(weights.sum(), rel=1e-3)


def test_softmax_constants_bound_random_heads():
    rng = np.random.default_rng(8)
    worst_gradient, worst_score, worst_curvature = 0.0, 0.0, 0.0
    for _ in range(3000):
        k = rng.integers(2, 6)
        p = special.softmax(rng.normal(size=k) * rng.choice([0.1, 1, 10]))
        y = rng.integers(k)
        push = p - np.eye(k)[y]
        worst_gradient = max(worst_gradient, np.linalg.norm(push))
        worst_score = max(worst_score, p[y] * np.linalg.norm(push))
        worst_curvature = max(worst_curvature, np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1])
    head = LinearHead("cross_entropy", 1.0)
    assert 0.9 * head.gradient_bound < worst_gradient <= head.gradient_bound
    assert 0.9 * head.score_lipschitz < worst_score <= head.score_lipschitz + 1e-12
    assert 0.9 * head.smoothness < worst_curvature <= head.smoothness + 1e-12


# ---- Supplement S3


def test_nominal_risk_bound_is_attained_by_linear_losses():
    # loss <g, theta>: the minimizer is -sum(g) / (regularization * n), so one more record moves it by the bound
    n, regularization = 50, 0.3
    bound = stability_output_perturbation(gradient_bound=2.0, regularization=regularization, n_records=n)
    assert bound.shift_bound == pytest.approx(2.0 / (regularization * n))
    assert bound.delta_n == 0.0
    assert stability_objective_perturbation(
        gradient_bound=2.0, regularization=regularization, n_records=n
    ).shift_bound == pytest.approx(bound.shift_bound)


def ridge_minimizer(vectors, regularization, linear=0.0):
    # loss of record i: <g_i, theta>, averaged over the records really present
    return -(vectors.mean(axis=0) + linear) / regularization


def test_supplement_bounds_hold_and_the_repaired_constant_is_sharp():
    rng = np.random.default_rng(9)
    n, d, regularization, noise, delta = 10, 3, 0.5, 0.2, 0.05
    unit = np.zeros(d)
    unit[0] = 1.0
    old, new = np.tile(unit, (n, 1)), np.vstack([np.tile(unit, (n, 1)), -unit])
    output, objective = [], []
    for _ in range(2000):
        xi = noise * rng.normal(size=d)
        output.append(
            ridge_minimizer(new, regularization) + xi / (n + 1) - ridge_minimizer(old, regularization) - xi / n
        )
        objective.append(
            ridge_minimizer(new, regularization, xi / (n + 1)) - ridge_minimizer(old, regularization, xi / n)
        )
    constants = {"gradient_bound": 1.0, "regularization": regularization, "n_records": n}
    constants |= {"noise_std": noise, "n_parameters": d, "delta_n": delta}
    for bound, shifts in (
        (stability_output_perturbation(**constants), output),
        (stability_objective_perturbation(**constants), objective),
    ):
        gaps = np.linalg.norm(shifts, axis=1)
        assert np.mean(gaps > bound.shift_bound) <= delta + binomial_slack(delta, len(gaps))
        assert np.max(gaps) > 0.9 * bound.shift_bound
        # the deterministic part alone is 2 G / (regularization (n + 1)), not G / (...)
        assert np.median(gaps) > 0.9 * 2 / (regularization * (n + 1))


def test_summary_bounds_hold_and_are_sharp():
    rng = np.random.default_rng(10)
    n, noise, delta = 8, 0.3, 0.05
    nominal = stability_summary(summary_bound=1.0, lipschitz=3.0, n_records=n)
    assert nominal.shift_bound == pytest.approx(3 / n)
    xi = noise * rng.normal(size=(4000, 2))
    old, new = np.array([1.0, 0.0]), np.array([(n - 1) / (n + 1), 0.0])
    gaps = 3 * np.linalg.norm(new - old + xi / (n + 1) - xi / n, axis=1)
    moving = stability_summary(
        summary_bound=1.0, lipschitz=3.0, n_records=n, noise_std=noise, n_parameters=2, delta_n=delta
    )
    assert np.mean(gaps > moving.shift_bound) <= delta + binomial_slack(delta, len(gaps))
    assert np.max(gaps) > 0.9 * moving.shift_bound


# ---- bad input


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="delta_n must lie"):
        Stability(0.1, 1.5, ())
    with pytest.raises(ValueError, match="shift_bound"):
        Stability(math.nan, 0.5, ())
    with pytest.raises(ValueError, match="needs n_parameters"):
        stability_summary(summary_bound=1.0, lipschitz=1.0, n_records=5, noise_std=1.0)
    constants = {"clip_norm": 1.0, "steps": 3, "sampling_rate": 0.5, "n_records": 5, "smoothness": 1.0}
    with pytest.raises(ValueError, match="learning_rate must be one number or 3 numbers"):
        stability_dpsgd_fixed_normalizer(learning_rate=[0.1, 0.2], **constants)
    with pytest.raises(ValueError, match="learning_rate must not be negative"):
        stability_dpsgd_fixed_normalizer(learning_rate=[0.1, 0.2, -0.1], **constants)
    huge = stability_dpsgd_fixed_normalizer(
        learning_rate=1e3, **{**constants, "steps": 500, "sampling_rate": 0.5, "n_records": 1000}
    )
    assert huge.is_vacuous


def test_the_rounding_of_each_parameter_is_charged():
    """A full batch shifts by one clipped gradient and the rounding of the noise, one grid step for each parameter."""
    classes, noises = (0, 1), (1e3, 1e6)
    made = [DPSGD(loss="logistic", feature_bound=1.0, clip_norm=1.0, noise_multiplier=s, steps=3) for s in noises]
    found = [one.stability(99, 10_000, classes).shift_bound for one in made]
    gradient = min(1.0, math.sqrt(2))  # clipped, of a row of norm one and the intercept
    expected = [gradient + math.sqrt(100) * 2.0**-20 * s for s in noises]
    assert found[1] / found[0] == pytest.approx(expected[1] / expected[0], rel=1e-4)
