"""Scores against slow references, their public ranges, and refusals without a value in the message."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpscp as dp
from dpscp import scores as s
from dpscp._base.assumptions import OWN_SCORE
from dpscp.core.tasks import Classification, MissingScore, Regression
from dpscp.training import DPSGD


def random_probabilities(rng, n, k, dtype=np.float64, ties=False):
    p = rng.dirichlet(np.full(k, 0.7), size=n)
    if ties:
        p = rng.choice([0.0, 0.25, 0.5], size=(n, k)) + 0.25
        p /= p.sum(axis=1, keepdims=True)
    return p.astype(dtype)


def slow_aps(row, label):
    """Labels one by one in order of falling probability, ties by label."""
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))
    place = order.index(label)
    mass = 0.0
    for j in order[:place]:
        mass += float(row[j])
    return mass + float(row[label]), place


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 6), st.booleans())
def test_aps_and_raps_against_a_slow_reference(seed, k, ties):
    rng = np.random.default_rng(seed)
    p = random_probabilities(rng, 5, k, ties=ties)
    labels = rng.integers(k, size=5)
    fast, fast_raps = s.aps(p, labels), s.raps(p, labels, penalty=0.3, free_labels=2)
    for i in range(5):
        expected, place = slow_aps(p[i], labels[i])
        assert fast[i] == pytest.approx(expected, abs=1e-12)
        assert fast_raps[i] == pytest.approx(expected + 0.3 * max(place + 1 - 2, 0), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_a_labels_score_is_its_entry_to_the_last_bit(dtype, ties):
    rng = np.random.default_rng(1)
    p = random_probabilities(rng, 500, 5, dtype, ties)
    y = rng.integers(5, size=500)
    rows = np.arange(500)
    assert np.array_equal(s.lac(p, y), s.lac_of_labels(p)[rows, y])
    assert np.array_equal(s.aps(p, y), s.aps_of_labels(p)[rows, y])
    assert np.array_equal(s.raps(p, y), s.raps_of_labels(p)[rows, y])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_stay_in_their_public_range(dtype):
    rng = np.random.default_rng(2)
    p = random_probabilities(rng, 2000, 7, dtype)
    p[0] = np.eye(7)[0]  # certainty
    low, high = s.raps_range(7, penalty=0.05, free_labels=2)
    assert (low, high) == (0.0, 1.25)
    for values in (s.lac_of_labels(p), s.aps_of_labels(p)):
        assert values.min() >= 0
        assert values.max() <= 1
    values = s.raps_of_labels(p, penalty=0.05, free_labels=2)
    assert values.min() >= low
    assert values.max() <= high
    assert s.raps_of_labels(p, penalty=0.05, free_labels=2).max() == high  # the range is tight


def test_regression_scores_by_hand():
    assert s.absolute_residual([1, 5], [3, 4.5]).tolist() == [2.0, 0.5]
    assert s.normalized_residual([1, 5], [3, 4.5], [4, 0.25]).tolist() == [0.5, 2.0]
    assert s.cqr([1.0, 5.0, 3.0], [2, 2, 2], [4, 4, 4]).tolist() == [1.0, 1.0, -1.0]


def test_equal_probabilities_are_ordered_by_label():
    p = np.array([[0.25, 0.25, 0.25, 0.25]])
    assert s.aps_of_labels(p).tolist() == [[0.25, 0.5, 0.75, 1.0]]


CANARY = 7.391824


class TestRefusals:
    @pytest.mark.parametrize(
        "p",
        [
            np.array([0.5, 0.5]),
            np.array([[1, 0]]),
            np.empty((3, 0)),
            np.array([["a"]]),
            np.array([[np.nan, 0.5]]),
            np.array([[CANARY, 0.5]]),
            np.array([[-CANARY, 0.5]]),
        ],
    )
    def test_probabilities(self, p):
        for function in (s.lac_of_labels, s.aps_of_labels, s.raps_of_labels):
            with pytest.raises(ValueError, match="probabilities must") as caught:
                function(p)
            assert "7.39" not in str(caught.value)

    @pytest.mark.parametrize("labels", [[0], [0, 3], [0, -1], [0.0, 1.0], ["a", "b"], [[0], [1]]])
    def test_labels(self, labels):
        p = np.full((2, 3), 1 / 3)
        for function in (s.lac, s.aps, s.raps):
            with pytest.raises(ValueError, match="labels must") as caught:
                function(p, np.array(labels))
            assert "3" not in str(caught.value)

    @pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
    def test_scale(self, scale):
        with pytest.raises(ValueError, match="scale must be positive"):
            s.normalized_residual([1.0], [1.0], [scale])

    def test_raps_parameters(self):
        p = np.full((2, 3), 1 / 3)
        for function in (lambda **k: s.raps_of_labels(p, **k), lambda **k: s.raps_range(3, **k)):
            with pytest.raises(ValueError, match="penalty"):
                function(penalty=-1.0)
            with pytest.raises(ValueError, match="free_labels"):
                function(free_labels=-1)


class SquaredMiss:
    """A label score of a user: the squared probability that was missing."""

    natural = False

    def range(self, n_classes):  # noqa: ARG002
        return 0.0, 1.0

    def of_labels(self, probabilities):
        return (1 - probabilities) ** 2


class HalfScale:
    """An interval score of a user: half the absolute residual."""

    natural = False
    outputs = 1

    def range(self, y_bounds):
        return 0.0, (y_bounds[1] - y_bounds[0]) / 2

    def of_targets(self, targets, pair):
        return np.abs(targets - pair.center) / 2

    def interval(self, pair, thresholds):
        reach = 2 * np.broadcast_to(thresholds, (len(pair.center), np.shape(thresholds)[-1]))
        return np.stack([pair.center[:, None] - reach, pair.center[:, None] + reach], axis=1)


class NarrowInterval(HalfScale):
    """A mistake: the interval leaves out targets that the score accepts."""

    def interval(self, pair, thresholds):
        return super().interval(pair, np.asarray(thresholds) / 2)


class OfTheBatch(HalfScale):
    """A mistake: scores in units of the batch."""

    def of_targets(self, targets, pair):
        return np.abs(targets - pair.center) / np.abs(targets).max()


def test_a_score_of_ones_own_is_a_value_with_a_set():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(4000, 3))
    y = (X[:, 0] + 0.2 * rng.normal(size=4000) > 0).astype(int)
    common = {
        "estimator": DPSGD(steps=20, learning_rate=1.0),
        "epsilon": 4.0,
        "guarantee": "split",
        "feature_bounds": (-1, 1),
        "accountant": "rdp",
        "random_state": 0,
    }
    own = dp.PrivateConformalClassifier(classes=[0, 1], conformity_score=SquaredMiss(), **common).fit(X, y)
    known = dp.PrivateConformalClassifier(classes=[0, 1], conformity_score=lambda p: (1 - p) ** 2, **common).fit(X, y)
    np.testing.assert_array_equal(own.threshold_, known.threshold_)
    assert OWN_SCORE in own.certificate_.assumptions

    target = X.sum(axis=1) + 0.2 * rng.normal(size=4000)
    common |= {"estimator": DPSGD(loss="huber", steps=20, learning_rate=1.0), "y_bounds": (-4, 4)}
    half = dp.PrivateConformalRegressor(conformity_score=HalfScale(), **common).fit(X, target)
    whole = dp.PrivateConformalRegressor(conformity_score="absolute", **common).fit(X, target)
    assert 2 * half.threshold_[0] == pytest.approx(whole.threshold_[0], rel=0.02)
    np.testing.assert_allclose(half.predict_interval(X)[1], whole.predict_interval(X)[1], atol=0.05)
    assert OWN_SCORE in half.ledger_.assumptions


@pytest.mark.parametrize("score", [NarrowInterval(), OfTheBatch()])
def test_a_wrong_interval_score_is_refused_before_anything_is_spent(score, tmp_path):
    store = dp.BudgetStore.create(tmp_path / "study", 5.0, 1e-5, dataset="made up")
    model = dp.PrivateConformalRegressor(conformity_score=score, y_bounds=(-4, 4))
    with pytest.raises(ValueError, match="conformity_score"):
        model.fit(np.zeros((50, 2)), np.arange(50) / 50, budget=store)
    assert not store.ledger().entries


def test_the_center_of_a_single_output_is_that_output():
    """Without a second array: the sum of two large ones would overflow, and a million rows would be read again."""
    pair = s.Pair.of(np.array([[1e308], [-1.5]]), (-1.7e308, 1.7e308))
    assert pair.center is pair.lower is pair.upper
    assert pair.center.tolist() == [1e308, -1.5]


def test_the_name_of_a_score_does_not_stand_in_for_the_callers_own():
    for task in (Classification((0, 1), MissingScore()), Regression((0.0, 1.0), MissingScore())):
        assert task.with_own_score("lac" if isinstance(task, Classification) else "residual") is task
    found = Classification((0, 1), MissingScore()).with_own_score(lambda probabilities, _: 1 - probabilities)
    assert found.score_assumptions == (OWN_SCORE,)
    assert not isinstance(found.score, MissingScore)


def test_a_missing_score_is_refused_at_every_use():
    for task in (Classification((0, 1), MissingScore()), Regression((0.0, 1.0), MissingScore(2))):
        assert task.score_assumptions == (OWN_SCORE,)
        with pytest.raises(ValueError, match=r"set_params\(conformity_score="):
            task.try_score()
        with pytest.raises(ValueError, match=r"set_params\(conformity_score="):
            _ = task.score_range


def test_a_score_that_equals_a_built_in_one_by_its_own_word_is_the_callers():
    class Claimant(HalfScale):
        def __eq__(self, other):
            return True

        __hash__ = None

    assert Regression((0.0, 1.0), s.interval_score(Claimant())).score_assumptions == (OWN_SCORE,)
