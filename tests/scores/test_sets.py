"""Sets hold y exactly when its score is at most the threshold, to the last bit, rounding included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpscp import scores, sets


def holds(intervals, y):
    return (intervals[:, 0] <= y) & (y <= intervals[:, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_label_sets_agree_with_the_score(dtype):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=1000).astype(dtype)
    y = rng.integers(4, size=1000)
    rows = np.arange(1000)
    for score, table in (
        (scores.lac(p, y), scores.lac_of_labels(p)),
        (scores.aps(p, y), scores.aps_of_labels(p)),
        (scores.raps(p, y), scores.raps_of_labels(p)),
    ):
        # thresholds that tie with a score, and their neighbors
        for tie in score[:20].astype(float):
            for threshold in (tie, np.nextafter(tie, 0), np.nextafter(tie, 2)):
                member = sets.label_set(table, threshold)[rows, y]
                assert np.array_equal(member, score.astype(float) <= threshold)


def test_float32_scores_meet_a_double_threshold():
    score = np.array([[np.float32(0.1)]])  # above the double 0.1
    assert not sets.label_set(score, 0.1).any()
    assert not sets.label_set(score, [0.1, 0.05]).any()
    assert sets.label_set(score, float(np.float32(0.1))).all()


def test_several_levels_add_a_last_axis():
    table = np.array([[0.1, 0.6], [0.4, 0.3]])
    masks = sets.label_set(table, [0.2, 0.5, np.inf])
    assert masks.shape == (2, 2, 3)
    for k, level in enumerate([0.2, 0.5, np.inf]):
        assert np.array_equal(masks[..., k], sets.label_set(table, level))
    assert masks[..., 2].all()
    prediction, scale = np.array([0.0, 10.0, -3.0]), np.array([1.0, 2.0, 4.0])
    for several, one in (
        (lambda t: sets.residual_interval(prediction, t), lambda t: sets.residual_interval(prediction, t)),
        (
            lambda t: sets.normalized_interval(prediction, scale, t),
            lambda t: sets.normalized_interval(prediction, scale, t),
        ),
        (
            lambda t: sets.quantile_interval(prediction, prediction + scale, t),
            lambda t: sets.quantile_interval(prediction, prediction + scale, t),
        ),
    ):
        both = several([0.5, 2.0, np.inf])
        assert both.shape == (3, 2, 3)
        for k, level in enumerate([0.5, 2.0, np.inf]):
            assert np.array_equal(both[..., k], one(level))
        assert np.array_equal(both[..., 2], [[-np.inf, np.inf]] * 3)


def test_intervals_by_hand():
    tight = {"rtol": 0, "atol": 2.0**-51}
    np.testing.assert_allclose(sets.residual_interval([1.0, 2.0], 0.5), [[0.5, 1.5], [1.5, 2.5]], **tight)
    np.testing.assert_allclose(sets.normalized_interval([1.0, 2.0], [2.0, 4.0], 0.5), [[0, 2], [0, 4]], **tight)
    np.testing.assert_allclose(sets.quantile_interval([1.0], [2.0], 0.25), [[0.75, 2.25]], **tight)
    empty = sets.quantile_interval([1.0], [2.0], -0.75)
    assert empty[0, 0] > empty[0, 1]


def awkward(rng, size):
    kind = rng.integers(4)
    if kind == 0:
        return np.round(rng.normal(size=size) * 5, 1)
    if kind == 1:
        return rng.normal(size=size) * 10.0 ** rng.integers(-12, 12, size=size)
    if kind == 2:
        return rng.integers(-9, 10, size=size) * 2.0 ** rng.integers(-3, 3) * (1 + rng.integers(-2, 3, size) * 2.0**-52)
    return rng.normal(size=size) * 1e-290


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_intervals_agree_with_the_score_to_the_last_bit(seed):
    """The ends are in the set, the numbers next to them are not, and ties fall on the score's side."""
    rng = np.random.default_rng(seed)
    prediction, threshold = awkward(rng, 40), float(abs(awkward(rng, 1)[0])) or 0.5
    if rng.uniform() < 0.3:  # cancellation: y far smaller than threshold and prediction
        prediction = -threshold * (1 + rng.integers(-3, 4, size=40) * 2.0**-52)
    other, scale = prediction + np.abs(awkward(rng, 40)), np.abs(awkward(rng, 40)) + 1e-300
    signed = rng.choice([-1.0, 1.0]) * threshold
    pairs = [
        (
            lambda y: scores.absolute_residual(y, prediction) <= threshold,
            sets.residual_interval(prediction, threshold),
        ),
        (lambda y: scores.cqr(y, prediction, other) <= signed, sets.quantile_interval(prediction, other, signed)),
        (
            lambda y: scores.normalized_residual(y, prediction, scale) <= threshold,
            sets.normalized_interval(prediction, scale, threshold),
        ),
    ]
    with np.errstate(over="ignore"):
        for member, interval in pairs:
            for y in (interval[:, 0], interval[:, 1], prediction, other):
                for moved in (y, np.nextafter(y, np.inf), np.nextafter(y, -np.inf)):
                    assert np.array_equal(holds(interval, moved), member(moved))


def test_plain_rounding_would_lose_counted_records():
    """Why the ends are searched for: tenths, one tie in twenty falls on the wrong side of prediction + threshold."""
    tenths = np.round(np.arange(-50, 50) * 0.1, 1)
    prediction, y = (grid.ravel() for grid in np.meshgrid(tenths, tenths))
    score = scores.absolute_residual(y, prediction)
    lost = 0
    for threshold in np.unique(score)[::7]:
        counted = score <= threshold
        lost += np.sum(counted & ~((prediction - threshold <= y) & (y <= prediction + threshold)))
        assert np.array_equal(holds(sets.residual_interval(prediction, threshold), y), counted)
    assert lost > 0


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
def test_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="scale must be positive"):
        sets.normalized_interval([1.0], [scale], np.inf)
