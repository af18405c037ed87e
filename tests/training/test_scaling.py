"""Targets on a public scale: what training sees, what comes back, and what it costs (nothing)."""

import numpy as np
import pytest

from dpscp.training import DPSGD
from dpscp.training.preprocessing.rescaled import ScaledTarget

BOUNDS = (10.0, 30.0)
INNER = DPSGD(loss="huber", steps=10, learning_rate=0.5, feature_bound=1.0, dtype="float64", noise_multiplier=5.0)


def records(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, 20 + 4 * X[:, 0] + rng.normal(size=n)


def test_outputs_come_back_in_the_targets_units():
    X, y = records()
    mechanism = ScaledTarget(INNER, BOUNDS)
    model = mechanism.train(X, y, random_state=0, n_records=300).model
    inner = INNER.train(X, (np.clip(y, 10, 30) - 20) / 10, random_state=0, n_records=300).model
    np.testing.assert_allclose(model.outputs(X), 20 + 10 * inner.outputs(X))
    assert (model.task, model.n_features, model.classes) == ("regression", 3, None)
    with pytest.raises(TypeError, match="regression"):
        model.predict_proba(X)


def test_scores_move_as_much_more_as_the_target_is_wider():
    X, y = records()
    outer = ScaledTarget(INNER, BOUNDS).train(X, y, random_state=0, n_records=300).stability
    inner = INNER.train(X, y * 0, random_state=0, n_records=300).stability
    assert outer.shift_bound == inner.shift_bound
    assert outer.score_lipschitz == pytest.approx(10 * inner.score_lipschitz)


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, np.inf), (np.nan, 1), (1,), 3])
def test_bounds(bounds):
    with pytest.raises((ValueError, TypeError), match="y_bounds"):
        ScaledTarget(INNER, bounds)
