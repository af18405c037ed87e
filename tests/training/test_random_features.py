"""Random features of public directions: what is added to a row, and every path that the weak regression takes."""

import json
import math

import numpy as np
import pytest

import dpscp as dp
from dpscp.data.sources import ArraySource
from dpscp.privacy import gdp_mu
from dpscp.training import DPSGD, Preprocessed, PreprocessedModel, RandomFeatures
from dpscp.training.recipe import WEAK_SIGNAL, recipe

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(400, 3))
Y = 3 * X[:, 0] * X[:, 1] + 0.1 * RNG.normal(size=400)


def fitted(step, width):
    return step.fit(np.empty((0, width)), n_records=1, rng=np.random.default_rng(1))


def test_rows_are_shortened_and_kept_and_bent_functions_are_added():
    transform = fitted(RandomFeatures(2.0, count=5, weight=0.7), 3)
    rows = RNG.normal(size=(50, 3)) * 3
    short = rows * np.minimum(1, 2.0 / np.linalg.norm(rows, axis=1))[:, None]
    out = transform.apply(rows)
    assert out.shape == (50, 8) == (50, transform.width)
    np.testing.assert_allclose(out[:, :3], short)
    mean = math.sqrt(2 / (3 * math.pi)) * np.linalg.norm(short, axis=1)[:, None]
    np.testing.assert_allclose(out[:, 3:], transform.scale * (np.abs(short @ transform.matrix) - mean))
    np.testing.assert_allclose(np.linalg.norm(transform.matrix, axis=0), 1.0)


def test_the_added_features_have_the_length_of_their_weight_and_no_common_part():
    """Mean squares over 4,000 normal rows, and the mean of a row's features; directions are many, so 5 % is far."""
    transform = fitted(RandomFeatures(1e3, count=2_000, weight=0.3), 10)
    rows = RNG.normal(size=(4_000, 10))
    added = transform.apply(rows)[:, 10:]
    assert (added**2).sum(axis=1).mean() == pytest.approx(0.3 * 10, rel=0.1)
    assert np.abs(added.mean(axis=1)).mean() < 0.05 * np.abs(added).mean()


def test_a_row_has_the_same_bits_wherever_it_stands_and_huge_rows_stay_finite():
    transform = fitted(RandomFeatures(4.0), 3)
    whole = transform.apply(X)
    np.testing.assert_array_equal(transform.apply(X[7:8]), whole[7:8])
    assert np.isfinite(transform.apply(np.full((1, 3), 1e300))).all()


def test_directions_follow_from_the_seed_alone():
    step = RandomFeatures(1.0)
    first, second = (step.fit(rows, n_records=n, rng=np.random.default_rng(n)) for rows, n in ((X, 400), (-X[:9], 9)))
    np.testing.assert_array_equal(first.matrix, second.matrix)
    assert first.scale == second.scale
    assert not np.array_equal(first.matrix, fitted(RandomFeatures(1.0, seed=1), 3).matrix)
    assert step.is_public
    assert dp.privacy.epsilon_of(step.event, 1e-9) == 0


@pytest.mark.parametrize("wrong", [{"bound": 0.0}, {"count": 0}, {"weight": -1.0}, {"seed": -1}])
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RandomFeatures(**{"bound": 1.0} | wrong)


def test_a_shift_bound_counts_the_added_columns():
    inner = DPSGD(loss="huber", feature_bound=2.0, noise_multiplier=1e6)
    behind = Preprocessed((RandomFeatures(1.0, count=4),), inner)
    assert behind.stability(3, 1_000).shift_bound == inner.stability(7, 1_000).shift_bound
    assert behind.stability(3, 1_000).shift_bound != inner.stability(3, 1_000).shift_bound
    trained = behind.train(X, np.clip(Y, -1, 1), random_state=0, n_records=1_000)
    assert trained.stability.shift_bound == inner.stability(7, 1_000).shift_bound


# ---- the rule


def plan_of(**changes):
    declared = {"n_records": 500, "n_features": 3, "epsilon": 1.0, "delta": 1e-6}
    declared |= {"feature_bounds": (-1.0, 1.0), "y_bounds": (-4.0, 4.0)}
    return recipe("regression", **declared | changes)


def parts_of(plan):
    """Return the steps and the engine."""
    behind = plan.mechanism.mechanism
    return behind.steps, behind.mechanism


@pytest.mark.parametrize(("n", "weak"), [(500, True), (20_000, False)])
@pytest.mark.parametrize("levels", [None, (0.2, 0.8)])
def test_a_weak_regression_gets_random_features_and_no_hidden_layer(n, weak, levels):
    plan = plan_of(n_records=n, quantiles=levels)
    steps, engine = parts_of(plan)
    assert (plan.reasons["signal"][0] < WEAK_SIGNAL) == weak
    assert any(isinstance(step, RandomFeatures) for step in steps) == weak
    assert (engine.hidden == ()) == weak
    assert ("random_features_weight" in plan.public_facts()) == weak
    assert engine.loss == ("huber" if levels is None else "pinball")


def steps_of_signal(signal, width):
    """Return the weight of the random features, and the sum of step sizes times the length of a row over the signal."""
    epsilon = dp.privacy.gdp_epsilon(1e-6, signal / 1_000)
    plan = plan_of(n_records=1_000, n_features=width, guarantee="asymptotic", train_epsilon=epsilon, epsilon=4.0)
    steps, engine = parts_of(plan)
    assert plan.reasons["signal"][0] == pytest.approx(1_000 * gdp_mu(epsilon, 1e-6))
    weights = [step.weight for step in steps if isinstance(step, RandomFeatures)] or [0.0]
    assert weights == [plan.public_facts()["random_features_weight"]]
    assert engine.feature_bound == pytest.approx(4 * math.sqrt(width * (1 + weights[0])))
    total = engine.learning_rate * engine.steps / (1 - engine.momentum)
    return weights[0], total * math.sqrt(width * (1 + weights[0]) + 1) / signal


def test_weight_and_steps_follow_from_the_signal_for_each_weight():
    """With 9 columns a model has 10 weights: signals of 1 to 29 for each, by the training budget alone.

    The weight is .5 q / (1 + q) with q = (signal / 10 / 1.8)^3 from a whole signal of 60 on. The steps are
    .9 * 1.5 * sqrt(3) * signal * 2 / (signal + 4)^1.5, so .9 at a signal of 8.
    """
    found = {signal: steps_of_signal(10.0 * signal, 9) for signal in (1.0, 8.0, 18.0, 29.0)}
    expected = {1.0: (0.0, 0.41826), 8.0: (0.04, 0.9), 18.0: (0.25, 0.81577), 29.0: (0.40, 0.71540)}
    for signal, numbers in expected.items():
        assert found[signal] == pytest.approx(numbers, rel=1e-4)


def test_a_wider_table_needs_more_signal_for_random_features():
    weights, steps = zip(*(steps_of_signal(105.0, width) for width in (4, 10, 46)), strict=True)
    assert weights == (0.46, 0.05, 0.0)
    assert steps[2] < steps[0] < steps[1]  # signals of 21, 9.5 and 2.2 for each weight: longest at 8


def test_a_weak_regression_follows_a_product_that_no_linear_model_shows():
    """Width at the exact threshold, against that of a constant (a linear model of a product): a tenth narrower."""
    rng = np.random.default_rng(3)
    rows = rng.uniform(-1, 1, size=(6_000, 3))
    y = 3 * rows[:, 0] * rows[:, 1]
    reg = dp.PrivateConformalRegressor(
        epsilon=2.0, delta=1e-6, feature_bounds=(-1, 1), y_bounds=(-3, 3), random_state=0, guarantee="split"
    ).fit(rows[:500], y[:500])
    assert reg.ledger_.public_facts["random_features_weight"] > 0.4
    errors = np.abs(reg.predict(rows[500:]) - y[500:])
    assert np.quantile(errors, 0.9) < 0.9 * np.quantile(np.abs(y[500:]), 0.9)


# ---- paths


def regressor(**options):
    settings = {"epsilon": 2.0, "delta": 1e-5, "feature_bounds": (-1, 1), "y_bounds": (-4, 4), "random_state": 0}
    return dp.PrivateConformalRegressor(**settings | options)


def test_the_default_is_saved_and_loaded(tmp_path):
    reg = regressor().fit(X, Y)
    assert [type(t).__name__ for t in reg.model_.transforms][-1] == "RandomFeatureRows"
    reg.save(tmp_path / "m")
    np.testing.assert_array_equal(dp.load(tmp_path / "m").predict_interval(X)[1], reg.predict_interval(X)[1])
    again = PreprocessedModel.from_parts(json.loads(json.dumps(reg.model_.config())), reg.model_.arrays())
    np.testing.assert_array_equal(again.outputs(X), reg.model_.outputs(X))


def test_blocks_and_persons_train_the_same_kind_of_model():
    whole, blocks = (regressor().fit(ArraySource(X, Y, n_blocks=n)) for n in (1, 3))
    np.testing.assert_allclose(whole.predict(X), blocks.predict(X), atol=1e-4)
    people = regressor(rows_per_person=2).fit(X, Y, persons=np.repeat(np.arange(200), 2))
    assert people.model_.inner.n_features == whole.model_.inner.n_features


def test_the_influence_of_a_record_is_known_behind_random_features():
    """`corrected` needs it: the linear head keeps its trajectory, and the rows in it are the transformed ones."""
    reg = regressor(guarantee="corrected").fit(X, Y)
    form = reg.model_.influence_form()
    rows = X
    for step in form.row_steps:
        rows = step(rows)
    np.testing.assert_array_equal(rows, reg.model_.transform(X))
    assert rows.shape[1] == reg.model_.inner.n_features
    assert np.isfinite(reg.predict_interval(X)[1]).all()
