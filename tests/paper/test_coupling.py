"""Coupled runs: the tool itself, and Result C's bound against the gaps it measures."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpscp.guarantees.stability import stability_dpsgd_fixed_normalizer
from dpscp.paper import coupled_run
from dpscp.training import DPSGD
from dpscp.training.engine.gradients import CLIP_SLACK, MOST_RECORDS


def blood_like(n, d=64, k=8, seed=0):
    """Unit-norm features with class centers, like the embeddings a linear head is trained on."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = rng.normal(size=(k, d))[y] + 2.0 * rng.normal(size=(n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def test_gap_opens_at_the_first_draw_only():
    X, y = blood_like(200)
    mechanism = DPSGD(
        classes=tuple(range(8)), sampling_rate=0.05, steps=60, learning_rate=1.0, noise_multiplier=1.0, dtype="float64",
        keep_trajectory=True,
    )  # fmt: skip
    for seed in range(5):
        outcome = coupled_run(mechanism, X, y, -X[0], 3, random_state=seed)
        opened = np.flatnonzero(outcome.gaps > 0)
        assert (len(opened) == 0) == (outcome.draws == 0)
        if len(opened):
            # at the first draw the gap is exactly the record's clipped gradient over the normalizer
            first = opened[0]
            assert (outcome.gaps[:first] == 0).all()
            assert outcome.gaps[first] <= 1.0 / 10 * (1 + 1e-5)
    assert outcome.iterates.shape == (61, outcome.without.parameters.size)
    np.testing.assert_allclose(outcome.iterates[-1], outcome.without.parameters)


def test_coupled_run_without_the_record_is_plain_training():
    """Full batch: the shared noise stream is the one `train` uses, so the run without the record is `train`'s."""
    X, y = blood_like(80)
    mechanism = DPSGD(classes=tuple(range(8)), steps=15, learning_rate=1.0, noise_multiplier=2.0)
    outcome = coupled_run(mechanism, X, y, X[0], y[0], random_state=4)
    alone = mechanism.train(X, y, random_state=4)
    joined = mechanism.train(np.vstack([X, X[:1]]), np.append(y, y[0]), random_state=4, n_records=80)
    np.testing.assert_array_equal(outcome.without.parameters, alone.model.parameters)
    np.testing.assert_array_equal(outcome.joined.parameters, joined.model.parameters)
    assert outcome.gaps[-1] > 0


# The setting documented for a stability certificate that says something at n = 13671: full batch, unit-norm
# rows, clip_norm at the gradient bound, learning rate at most 4 / B^2.
CERTIFIED = DPSGD(
    classes=tuple(range(8)), steps=200, learning_rate=2.0, clip_norm=2.0, feature_bound=1.0, noise_multiplier=60.0
)


def test_result_c_full_batch_is_an_upper_bound_and_not_vacuous():
    n = 13_671
    X, y = blood_like(n)
    bound = CERTIFIED.stability(X.shape[1], n, tuple(range(8)))
    assert bound.delta_n == 0
    # C * sum(eta) / n plus the rounding term, which must stay below a percent
    assert bound.shift_bound == pytest.approx(2.0 * 400 / n, rel=0.01)
    buffer = 2 * bound.score_lipschitz * bound.shift_bound
    # in units of the score 1 - p_y, which lives on [0, 1]
    assert buffer < 0.1
    # a record that fights its class from the first step to the last: the gap comes close to the bound
    outcome = coupled_run(CERTIFIED, X, y, -X[y == 0].mean(0) * 50, 0, n_records=n, random_state=0)
    assert outcome.gaps.max() <= bound.shift_bound
    assert outcome.released_gap <= bound.shift_bound
    assert outcome.released_gap > 0.3 * bound.shift_bound
    # the scores of fresh points move by at most L u
    fresh, labels = blood_like(500, seed=1)
    moved = outcome.without.predict_proba(fresh) - outcome.joined.predict_proba(fresh)
    assert np.abs(moved[np.arange(500), labels]).max() <= bound.score_lipschitz * bound.shift_bound


@pytest.mark.parametrize(
    "mechanism",
    [
        DPSGD(classes=(0, 1, 2), clip_norm=2.0, learning_rate=1.0, sampling_rate=0.2, steps=80, averaging=0.5),
        DPSGD(classes=(0, 1, 2), clip_norm=2.0, learning_rate=2.0, schedule="linear", steps=80, radius=4.0),
        DPSGD(classes=(0, 1), loss="logistic", clip_norm=0.3, learning_rate=1.0, sampling_rate=0.3, steps=80),
        DPSGD(loss="squared", clip_norm=0.5, learning_rate=0.3, steps=80),
        DPSGD(loss="huber", clip_norm=0.4, learning_rate=0.5, sampling_rate=0.5, steps=80, fit_intercept=False),
    ],
    ids=lambda m: m.loss + ("" if m.sampling_rate == 1 else "-poisson"),
)
def test_bounds_hold_in_coupled_runs(mechanism):
    """Upper bound in every run (delta_n = 1e-6 over few runs), and within a factor of a nasty record."""
    n, d = 200, 5
    mechanism = replace(mechanism, feature_bound=1.0, noise_multiplier=3.0, delta_n=1e-6)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    k = 3 if mechanism.classes is None else len(mechanism.classes)
    y = rng.normal(size=n) if mechanism.task == "regression" else rng.integers(0, k, n)
    bound = mechanism.stability(d, n, mechanism.classes)
    worst = 0.0
    for seed in range(12):
        x_new = 10 * rng.normal(size=d)
        y_new = 30.0 if mechanism.task == "regression" else seed % k
        outcome = coupled_run(mechanism, X, y, x_new, y_new, random_state=seed)
        worst = max(worst, outcome.gaps.max())
    assert worst <= bound.shift_bound
    assert worst > bound.shift_bound / 10


@pytest.mark.parametrize(
    "change",
    [
        {"feature_bound": None}, {"momentum": 0.5}, {"optimizer": "adam"}, {"hidden": (4,)}, {"clip_norm": 1.9},
        {"sampling_rate": 1e-3, "learning_rate": 50.0},
    ],
    ids=str,
)  # fmt: skip
def test_no_bound_is_claimed_outside_the_proof(change):
    assert CERTIFIED.stability(5, 1000, (0, 1)) is not None
    # sqrt(2) * B with the bias coordinate is 2, just attained by CERTIFIED
    assert math.sqrt(2) * math.hypot(1, 1) == pytest.approx(2.0)
    assert replace(CERTIFIED, **change).stability(5, 1000, (0, 1)) is None
    assert DPSGD(loss="pinball", feature_bound=1.0, noise_multiplier=1.0).stability(5, 1000) is None


def test_the_bound_holds_the_rounding_to_the_grid():
    """Rounding may part two runs by sqrt(parameters) grid points a step; with much noise the grid is coarse."""
    quiet, loud = (replace(CERTIFIED, noise_multiplier=z).stability(5, 1000, (0, 1)) for z in (1e-3, 1e6))
    parameters, grid = 2 * 6, 2.0**-20 * 1e6 * CERTIFIED.clip_norm
    rounding = math.sqrt(parameters) * grid * CERTIFIED.learning_rates.sum() / 1000
    assert loud.shift_bound - quiet.shift_bound == pytest.approx(rounding, rel=1e-3)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_bound_holds_the_rounding_of_the_sum(rate):
    """A record changes a computed sum by clip_norm * (1 + CLIP_SLACK), and a batch without it is rounded twice."""
    n, reach = 1000, CERTIFIED.clip_norm * (1 + CLIP_SLACK)
    mechanism = replace(CERTIFIED, noise_multiplier=1e-12, sampling_rate=rate, learning_rate=0.5)
    exact = stability_dpsgd_fixed_normalizer(
        clip_norm=reach, learning_rate=0.5, steps=200, sampling_rate=rate, n_records=n, smoothness=1.0, convex=True
    )
    others = reach * CLIP_SLACK * n / MOST_RECORDS * 0.5 * 200 / (rate * n) if rate < 1 else 0.0
    assert mechanism.stability(5, n, (0, 1)).shift_bound - exact.shift_bound == pytest.approx(others, abs=1e-14)
