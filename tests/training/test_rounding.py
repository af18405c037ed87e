"""One record moves the clipped sum by at most clip_norm * (1 + CLIP_SLACK), rounding of all the others included.

A record inserted in front shifts every other record to another place of another block. Each test compares the sums of
two neighboring data sets at the same parameters, with nothing added and nothing averaged.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpscp.data.sources.places import blocks_in_memory
from dpscp.training import DPSGD
from dpscp.training.engine.gradients import CLIP_SLACK, ClippedGradient
from dpscp.training.engine.loop import Descent
from dpscp.training.engine.networks import Loss, Network
from dpscp.training.engine.noise import grid_slack
from dpscp.training.engine.rows import feature_rows

HEAD = DPSGD(classes=(0, 1), noise_multiplier=1.0, clip_norm=0.1)
DTYPES = ("float32", "float64")
NET = DPSGD(hidden=(44,), classes=(0, 1), noise_multiplier=1.0, clip_norm=0.1)


def clipped_sum(mechanism, X, y, n_records, parameters=None):
    setup = mechanism.prepare(X, y, n_records=n_records)
    with threadpool_limits(1), np.errstate(all="ignore"):
        descent = Descent(setup)
        if parameters is not None:
            np.copyto(descent._fast, parameters, casting="same_kind")
        return np.array(descent.clipped_sum(None), dtype=float)


def change(mechanism, X, y, parameters=None):
    """By how many clip norms a copy of the first record, inserted in front, moves the sum."""
    with_copy = np.concatenate([X[:1], X]), np.concatenate([y[:1], y])
    sums = [clipped_sum(mechanism, rows, of, len(X), parameters) for rows, of in ((X, y), with_copy)]
    return np.linalg.norm(sums[1] - sums[0]) / mechanism.clip_norm


def ordinary(n):
    X = np.random.default_rng(0).normal(size=(n, 10)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int)


def all_alike(n):
    """Every addition rounds in the same direction."""
    return np.full((n, 10), 0.77, dtype=np.float32), np.zeros(n, dtype=int)


def positive(n):
    X, _ = ordinary(n)
    return np.abs(X), np.zeros(n, dtype=int)


@pytest.mark.parametrize("mechanism", [HEAD, NET], ids=["head", "net"])
@pytest.mark.parametrize("data", [ordinary, all_alike, positive])
@pytest.mark.covering
def test_a_record_in_front_moves_the_sum_of_many_by_one_clip_norm(mechanism, data):
    assert change(mechanism, *data(100_000)) <= 1 + CLIP_SLACK


def on_the_edge(n, weights, dtype="float32"):
    """Rows whose product with the weights is a rounding error, so that another rounding gives another sign."""
    X = np.random.default_rng(0).normal(size=(n, len(weights))).astype(dtype)
    weights = weights.astype(dtype).astype(float)
    X[:, 0] = -(X[:, 1:].astype(float) @ weights[1:]) / weights[0]
    return X


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "outputs"), [(32, 16), (64, 4), (40, 1)])
@pytest.mark.covering
def test_a_record_never_changes_the_error_of_another_one(d, outputs, dtype):
    """The pinball loss jumps at its target. Matrix products of two sizes round differently, and all records would jump
    at once: 28 clip norms for 300 records before blocks had sizes that round alike."""
    weights = np.random.default_rng(1).normal(size=d)
    mechanism = DPSGD(
        loss="pinball", quantiles=tuple(np.arange(1, outputs + 1) / (outputs + 1)), noise_multiplier=1.0,
        fit_intercept=False, dtype=dtype,
    )  # fmt: skip
    for n in (15, 64, 71, 75, 76, 149, 150, 300, 303):
        X = on_the_edge(n, weights, dtype)
        assert change(mechanism, X, np.zeros(n), np.tile(weights, outputs)) <= 1 + CLIP_SLACK


def test_a_record_never_switches_a_unit_of_another_one():
    d, hidden = 32, 16
    rng = np.random.default_rng(1)
    weights = rng.normal(size=d)
    mechanism = DPSGD(hidden=(hidden,), loss="squared", noise_multiplier=1.0, fit_intercept=False)
    parameters = np.concatenate([np.tile(weights, hidden), rng.normal(size=hidden)])
    for n in (64, 75, 76, 128, 150):
        assert change(mechanism, on_the_edge(n, weights), np.full(n, 50.0), parameters) <= 1 + CLIP_SLACK


def test_a_product_that_rounds_by_place_is_noticed(monkeypatch):
    """Blocks of 48 round one place differently, as an edge kernel does: they are not used. If all do in float32, blocks
    are float64; if all do in both, records go one at a time. The sum is the same."""
    network, loss = Network((20, 3)), Loss("cross_entropy")
    plain = ClippedGradient._backward

    def edge(sizes, dtypes=("float32", "float64")):
        def backward(self, loss, rows, target):
            v = plain(self, loss, rows, target)
            if len(rows) in sizes and rows.dtype in dtypes:
                for values in (v.every, v.wide):
                    values[:, -1] *= 1 + 2.0**-23
            return v

        return backward

    monkeypatch.setattr(ClippedGradient, "_backward", edge({48}))
    gradient = ClippedGradient(network, loss, 1.0, "float32", batch=100)
    assert gradient.size(40) == gradient.chunk > 48
    assert gradient.size(60) == 64
    X, y = ordinary(300)
    mechanism = DPSGD(classes=(0, 1), hidden=(8,), noise_multiplier=1.0)
    whole = clipped_sum(mechanism, X, y, 300)
    every = set(range(2, 10_000))
    monkeypatch.setattr(ClippedGradient, "_backward", edge(every, ("float32",)))
    gradient = ClippedGradient(network, loss, 1.0, "float32", batch=100)
    assert (gradient.dtype, gradient.chunk > 48) == ("float64", True)
    np.testing.assert_allclose(clipped_sum(mechanism, X, y, 300), whole, rtol=1e-5, atol=1e-5)
    assert change(mechanism, X, y, np.zeros(8 * (X.shape[1] + 1) + 18)) <= 1 + CLIP_SLACK
    monkeypatch.setattr(ClippedGradient, "_backward", edge(every))
    assert ClippedGradient(network, loss, 1.0, "float32", batch=100).chunk == 1
    np.testing.assert_allclose(clipped_sum(mechanism, X, y, 300), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("d", [3, 20_000])
@pytest.mark.parametrize("clip_norm", [1e-30, 1e-20, 1.0, 1e20])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e18])
@pytest.mark.covering
def test_squared_norms_lose_nothing_in_wide_rows_and_at_tiny_clip_norms(d, clip_norm, scale):
    X = (scale * np.random.default_rng(2).normal(size=(2, d))).astype(np.float32)
    mechanism = DPSGD(loss="logistic", classes=(0, 1), noise_multiplier=1.0, clip_norm=clip_norm)
    one = clipped_sum(mechanism, X[:1], np.array([1]), 1)
    exact = 0.5 * np.append(X[0].astype(float), 1.0)
    wanted = exact * min(1.0, clip_norm / np.linalg.norm(exact))
    np.testing.assert_allclose(one, -wanted, rtol=1e-9)
    assert np.linalg.norm(one) <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("hidden", [(44,), (300, 20)])
@pytest.mark.parametrize("clip_norm", [1e-20, 1.0])
@pytest.mark.covering
def test_no_record_of_a_network_is_longer_than_the_clip_norm(hidden, clip_norm):
    """Layers take their norms in float32, of rows that are too small or too large for their squares as well."""
    rng = np.random.default_rng(5)
    for i, scale in enumerate([1e-30, 1e-20, *[1.0] * 10, 1e9, 1e20, 1e28]):
        x = scale * rng.normal(size=(1, 10)).astype(np.float32)
        loss = {"loss": "squared"} if i % 2 else {"classes": (0, 1)}
        nets = [DPSGD(hidden=hidden, clip_norm=clip_norm, noise_multiplier=1.0, dtype=d, **loss) for d in DTYPES]
        short, long = (clipped_sum(net, x, np.array([1]), 1) for net in nets)
        assert np.linalg.norm(short) <= clip_norm * (1 + 1e-12)
        assert np.linalg.norm(short - long) <= 2e-4 * np.linalg.norm(long)


def test_a_tiny_clip_norm_is_refused():
    with pytest.raises(ValueError, match=r"clip_norm must be at least 1e-30"):
        replace(HEAD, clip_norm=1e-31)


def test_rows_are_scaled_onto_their_bound_before_they_are_cast():
    mechanism = DPSGD(classes=(0, 1), noise_multiplier=1.0, feature_bound=1.0, fit_intercept=False)
    rows = blocks_in_memory(mechanism.prepare(np.array([[3e39, 4e39]]), [0], n_records=1).source)[0].rows
    np.testing.assert_allclose(rows, [[0.6, 0.8]], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_widest_row_stays_within_its_bound(dtype):
    rows = np.stack([np.full(100_001, 0.77), np.random.default_rng(0).uniform(size=100_001)])
    bounded = feature_rows(rows, feature_bound=3.0, intercept=False, dtype=dtype).astype(float)
    lengths = [math.sqrt(math.fsum(row * row)) for row in bounded]
    assert max(lengths) <= 3.0
    assert min(lengths) >= 3.0 * (1 - 2e-6)


def test_two_releases_on_the_grid_differ_by_its_spacing_in_each_parameter():
    """They share their noise, and each of 49 parameters may be rounded to the next point."""
    assert grid_slack(3.0, 49) == pytest.approx(7 * 3 * 2.0**-20, rel=1e-12)
