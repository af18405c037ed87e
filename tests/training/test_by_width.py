"""Tests of hidden layers that are chosen by the number of inputs, after private steps were released."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.training import DPSGD
from dpscp.training.mechanisms.by_width import LayersByWidth
from dpscp.training.recipe import recipe

RNG = np.random.default_rng
ENGINE = DPSGD(loss="huber", hidden=(3,), steps=5, noise_multiplier=2.0)


@pytest.mark.parametrize(("width", "hidden"), [(1, (5, 4)), (2, (5, 4)), (3, (6,)), (4, (6,)), (5, (3,))])
def test_the_first_layers_that_are_wide_enough_are_trained(width, hidden):
    made = LayersByWidth(ENGINE, ((2, ((5, 4), "tanh")), (4, ((6,), "relu"))))
    trained = made.train(RNG(0).normal(size=(50, width)), RNG(1).normal(size=50), n_records=50, random_state=2)
    assert trained.model.network.widths == (width, *hidden, 1)
    assert trained.model.network.activation == ("tanh" if width < 3 else "relu")
    assert trained.event == ENGINE.event
    assert trained.public_facts["hidden"] == trained.found_privately["hidden"] == list(hidden)


def plan_for(n_features, n_records=8_000, **options):
    bounds = (np.zeros(n_features), np.ones(n_features))
    declared = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": bounds, "quantiles": (0.1, 0.9), **options}
    return recipe("regression", n_records=n_records, n_features=n_features, **declared)


def test_a_plan_shows_what_the_release_will_choose_from():
    assert "hidden_by_inputs = (20, 16) relu up to 12 inputs, then (32,) relu" in str(plan_for(8))
    # six columns have at most twelve inputs, thirteen have more
    assert plan_for(6).reasons["hidden"][0] == (20, 16)
    assert plan_for(13, indicators=tuple(range(4, 13))).reasons["hidden"][0] == (32,)
    # columns that tell nothing are left out from ten on, so there may be few inputs again
    assert "(20, 16) relu up to 12 inputs, then (32,) relu" in plan_for(15).reasons["hidden_by_inputs"][0]
    # 24 columns, at another signal
    assert "(32, 16) tanh up to 19 inputs, then (16,) relu" in plan_for(24, 14_000).reasons["hidden_by_inputs"][0]


@pytest.mark.parametrize("n_records", [3_000, 12_000, 50_000])
def test_no_release_decides_where_the_layers_are_the_same(n_records):
    assert "hidden_by_inputs" not in plan_for(8, n_records).reasons


def test_quantiles_of_skewed_columns_make_one_layer_of_two():
    """The same table in two scales: eight inputs get two hidden layers, sixteen one, at the same cost."""
    u = RNG(3).uniform(size=(1_200, 8))
    y = 3 * u[:, 0] + 4 * u[:, 1] * u[:, 2] + 0.3 * RNG(4).normal(size=len(u))
    found = []
    for X, high in ((u, 1.0), (np.exp(9 * u), 8_104.0)):
        reg = dp.PrivateConformalRegressor(epsilon=8.0, feature_bounds=(0.0, high), y_bounds=(-1, 9), random_state=0)
        found.append(reg.fit(X, y).ledger_)
    assert [ledger.public_facts["hidden"] for ledger in found] == [(20, 16), (32,)]
    assert all("hidden" in ledger.found_privately for ledger in found)
    assert found[0].entries == found[1].entries
    assert found[0].epsilon(1e-5) == found[1].epsilon(1e-5) <= 8.0
