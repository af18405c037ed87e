"""The studies of the recipe on tables: what is varied, what is measured, and what the pages say."""

import numpy as np
import pytest
from scipy.special import softmax

import dpscp as dp
from experiments import range_ends, table_recipe


def test_the_slope_and_the_errors_are_those_of_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    for n_classes in (2, 4):
        logits = rng.normal(size=(20_000, n_classes)) * 1.5
        y = (softmax(logits, axis=1).cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
        right = table_recipe.calibration(softmax(logits, axis=1), y)
        twice = table_recipe.calibration(softmax(2 * logits, axis=1), y)
        # the standard error of a slope is about 1 / sqrt(.3 n)
        assert right["slope"] == pytest.approx(1.0, abs=0.06)
        assert twice["slope"] == pytest.approx(0.5, abs=0.03)
        assert right["log_loss"] < twice["log_loss"]
        assert right["calibration_error"] < 0.02 < twice["calibration_error"]


@pytest.mark.parametrize("name", ["numbers, n = 200", "3 classes, n = 200"])
def test_the_grid_and_the_default_are_planned_alike(name: str) -> None:
    """Without a change the grid trains the default model, bit for bit."""
    case = range_ends.CASES[name]
    X, y = case.draw(np.random.default_rng(0), case.n)
    kind = dp.PrivateConformalClassifier if "classes" in case.declared else dp.PrivateConformalRegressor
    settings = {"epsilon": 2.0, "delta": 1e-5, "random_state": 0, **case.declared}
    unchanged = settings | range_ends.changed_settings(case, X.shape[1], 2.0, {})
    default, own = (kind(**chosen).fit(X, y) for chosen in (settings, unchanged))
    np.testing.assert_array_equal(own.model_.outputs(X), default.model_.outputs(X))
