"""Random features of public directions: what is added to a row, and every path that the weak regression takes."""

import json
import math

import numpy as np
import pytest

import dpscp as dp
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
