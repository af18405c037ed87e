"""Columns at the ends of the range: each fits, its cost is in the ledger, and no message depends on a record."""

import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.exceptions import SeededWarning

N = 1500
COLUMNS = {
    "heavy tail": lambda rng: np.exp(4 * rng.normal(size=N)),
    "10^300": lambda rng: rng.choice([-1e300, 1e-300, 1e300], N),
    "constants, two values, denormals": lambda rng: np.column_stack(
        [np.full(N, 7.0), rng.integers(0, 2, N).astype(float), rng.choice([0.0, 5e-324], N)]
    ),
}


def fit_with_messages(estimator, *data, **options):
    """Return the fitted estimator and the texts of all warnings but that of the seed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(*data, **options)
    return estimator, [str(w.message) for w in caught if not issubclass(w.category, SeededWarning)]


def table(name, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([COLUMNS[name](rng), rng.uniform(size=N)])
    return X, 5 * X[:, -1] + rng.normal(size=N)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_without_declared_bounds_fits_at_a_cost_in_the_ledger(name):
    X, y = table(name)
    reg = dp.PrivateConformalRegressor(epsilon=2.0, guarantee="universal", random_state=0)
    reg, messages = fit_with_messages(reg, X, y)
    assert messages == []
    stages = ["bounds", "scale of the target", "quantiles of the features", "training", "calibration"]
    assert [entry.stage for entry in reg.ledger_.entries] == stages
    assert set(reg.ledger_.found_privately) == {"feature_bounds", "y_bounds"}
    assert reg.ledger_.epsilon(1e-5) <= 2.0
    prediction, intervals = reg.predict_interval(X)
    assert np.isfinite(prediction).all()
    assert dp.metrics.coverage(y, intervals[:, :, 0]) > 0.85


@pytest.mark.parametrize(("offset", "unit"), [(1.6e9, 1.0), (0.0, 1e200), (0.0, 1e-100)])
def test_a_target_whose_units_float32_cannot_hold_loses_nothing(offset, unit, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(600, 2))
    y = 5 * X[:, 0] + rng.normal(size=600)
    found = []
    for add, times in ((0.0, 1.0), (offset, unit)):
        bounds = tuple(add + times * end for end in (-5.0, 10.0))
        reg = dp.PrivateConformalRegressor(epsilon=4.0, y_bounds=bounds, feature_bounds=(0, 1), random_state=0)
        reg, messages = fit_with_messages(reg, X, add + times * y)
        assert messages == []
        reg.save(tmp_path / "fit.dpscp")
        _, intervals = dp.load(tmp_path / "fit.dpscp").predict_interval(X)
        found.append((intervals - add) / times)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_messages_and_cost_are_those_of_a_neighbor():
    X, y = table("heavy tail")
    found = []
    for extra in ([0.5, 0.5], [1e308, -1e308]):
        rows, targets = np.vstack([X, extra]), np.append(y, extra[0])
        settings = {"epsilon": 1.0, "random_state": 0, "n_records": N, "guarantee": "universal"}
        reg, messages = fit_with_messages(dp.PrivateConformalRegressor(**settings), rows, targets)
        found.append((messages, [entry.event for entry in reg.ledger_.entries]))
    assert found[0] == found[1]
