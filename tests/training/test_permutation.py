"""Training must not depend on the order of the records: the certificates rest on it."""

import numpy as np
import pytest

from dpscp.training import DPSGD, Preprocessed, PrivateCentering, UnitNorm
from dpscp.training.recipe import recipe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
LABELS = (X[:, 0] + RNG.normal(scale=0.5, size=400) > 0).astype(int)
HEAD = DPSGD(classes=(0, 1), steps=20, learning_rate=1.0, noise_multiplier=5.0, dtype="float64")


@pytest.mark.parametrize(
    "mechanism",
    [
        HEAD,
        DPSGD(hidden=(8,), classes=(0, 1), steps=20, learning_rate=0.5, noise_multiplier=5.0, dtype="float64"),
        Preprocessed((UnitNorm(), PrivateCentering(noise_multiplier=5.0)), HEAD),
        recipe(
            "classification",
            n_records=400,
            n_features=6,
            classes=(0, 1),
            epsilon=2.0,
            delta=1e-5,
            guarantee="universal",
        ).calibrated(),
    ],
    ids=["head", "net", "preprocessed", "recipe"],
)
def test_full_batch_training_ignores_the_order_of_the_records(mechanism):
    """With the same noise the order enters through rounding only; a mechanism that used it would differ at once."""
    order = RNG.permutation(400)
    one = mechanism.train(X, LABELS, random_state=3, n_records=400).model.outputs(X)
    two = mechanism.train(X[order], LABELS[order], random_state=3, n_records=400).model.outputs(X)
    assert np.ptp(one) > 0.01
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3 * np.ptp(one))
