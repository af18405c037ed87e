"""Private recalibration: what one record adds, the event of the steps, and honest probabilities."""

import math
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.sources import Block
from dpscp.privacy import compose, epsilon_of, gaussian_event
from dpscp.training import (
    DPSGD,
    FunctionModel,
    Preprocessed,
    PrivateBounds,
    QuantileTransform,
    Recalibrated,
)
from dpscp.training.preprocessing import rescaled
from dpscp.training.preprocessing.rescaled import RECALIBRATION_SENSITIVITY, block_outputs, block_sums, record_sums
from dpscp.training.recipe import recipe

SGD = DPSGD(classes=(0, 1), steps=5, learning_rate=0.5, noise_multiplier=1.0)
OWN = Recalibrated(SGD, noise_multiplier=2.0)


def records(n=600, n_classes=2, seed=0):
    """Rows, labels drawn from the softmax of the first columns, and these logits."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_classes + 1))
    logits = 2.0 * X[:, :n_classes]
    y = (softmax(logits, axis=1).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return X, y, logits


@pytest.mark.parametrize("n_classes", [2, 3, 8, 16, 17, 60])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3, 1e30])
def test_one_record_adds_a_vector_within_the_sensitivity(n_classes, scale):
    rng = np.random.default_rng(n_classes)
    logits = scale * rng.normal(size=(400, n_classes))
    logits[:100] = scale * rng.choice([-1.0, 0.0, 1.0], size=(100, n_classes))
    labels = rng.integers(0, n_classes, 400)
    size = 1 + (n_classes if n_classes <= 16 else 0)
    for factor in (-2.0, 0.0, 3.0):
        place = np.r_[factor, rng.normal(size=size - 1)]
        rows = record_sums(logits, labels, place)
        assert rows.shape == (400, size + size * (size + 1) // 2)
        assert np.linalg.norm(rows, axis=1).max() <= RECALIBRATION_SENSITIVITY * (1 + 1e-12)
        assert np.abs(rows[:, 0]).max() <= 2.0
        assert np.linalg.norm(rows[:, size:], axis=1).max() <= 1 + 1e-12
    assert math.sqrt(6) == RECALIBRATION_SENSITIVITY


@pytest.mark.parametrize("n_classes", [2, 3, 5, 16])
def test_no_record_near_the_longest_one_exceeds_the_sensitivity(n_classes):
    # a likeliest class, and a label, ties and other classes at any distance below it
    rng = np.random.default_rng(n_classes)
    places = np.r_[0.0, 0.01, 0.1, 0.3, 1, 1.5, 2, 2.1, 2.5, 3, 4, 6, 9, 20, 40]
    logits = -rng.choice(places, size=(40_000, n_classes), p=rng.dirichlet(np.full(len(places), 0.3)))
    logits[:, 0], labels = 0.0, rng.integers(0, n_classes, len(logits))
    norms = np.linalg.norm(record_sums(logits, labels, np.zeros(1 + n_classes)), axis=1)
    same = -np.geomspace(1e-3, 50, 4_000)  # all others as far, where the curvature is longest
    alike = np.c_[np.zeros(4_000), np.repeat(same[:, None], n_classes - 1, axis=1)]
    alike_norms = np.linalg.norm(record_sums(alike, np.ones(4_000, int), np.zeros(1 + n_classes)), axis=1)
    assert max(norms.max(), alike_norms.max()) <= RECALIBRATION_SENSITIVITY * (1 + 1e-12)
    assert alike_norms.max() > 0.999 * RECALIBRATION_SENSITIVITY


def test_the_curvature_of_many_classes_is_shortened():
    # half of the probability on one of 20,000 classes: the derivative is about 5
    logits = np.full((1, 20_000), -math.log(19_999))
    logits[0, 0] = 0.0
    row = record_sums(logits, np.array([0]), np.zeros(1))
    assert row[0, 1] == pytest.approx(1.0)


def test_a_record_whose_logits_overflow_adds_nothing():
    # the distance between the logits of the third record is no float
    logits = np.array([[np.inf, 0.0], [np.nan, 0.0], [1.5e308, -1.5e308], [1.0, 0.0]])
    for factor in (0.0, 1.0):
        rows = record_sums(logits, np.array([0, 1, 1, 1]), np.array([factor, 0.0, 0.0]))
        assert not rows[:3].any()
        assert rows[3].any()


def test_the_sums_are_the_equations_and_their_derivatives():
    _, y, logits = records(50, 3)
    place = np.array([-0.3, 0.2, -0.1, 0.0])
    total = record_sums(logits, y, place).sum(axis=0)
    u = np.exp(place[0]) * logits + place[1:]
    p = softmax(u, axis=1)
    error = p - np.eye(3)[y]
    h = np.maximum(u - u.max(axis=1, keepdims=True), -2.0)
    assert_allclose(total[:4], np.r_[(error * h).sum(), error.sum(axis=0)], atol=1e-10)
    # the derivative of the errors with respect to the intercepts, by differences
    moved = record_sums(logits, y, place + np.r_[0, 1e-6, 0, 0]).sum(axis=0)
    numeric = (moved[1:4] - total[1:4]) / 1e-6
    curved = np.zeros((4, 4))
    upper = np.triu_indices(4)
    curved[upper] = total[4:] / 0.3 / np.where(upper[0] == upper[1], 1, math.sqrt(2))
    assert_allclose(curved[1, 1:], numeric, rtol=1e-3, atol=1e-4)


def test_neighbors_differ_by_the_sensitivity_at_most():
    X, y, _ = records(120)
    model = SGD.train(X, y, random_state=0).model

    def sums(block, factor=0.0):
        return block_sums(block_outputs(block, model), model.classes, np.r_[factor, 0, 0])

    whole = sums(Block(0, X, y))
    for out in range(0, 120, 7):
        less = sums(Block(0, np.delete(X, out, axis=0), np.delete(y, out)))
        assert np.linalg.norm(whole - less) <= RECALIBRATION_SENSITIVITY
    # a person with four copies of a record counts as one record, also where it is wrong and certain
    rows, labels = np.repeat(X[:30], 4, axis=0), np.repeat(y[:30], 4)
    certain = partial(sums, factor=3.0)
    persons = certain(Block(0, rows, labels, Persons(np.arange(0, 121, 4), 4)))
    for person in range(30):
        kept = np.r_[0 : 4 * person, 4 * person + 4 : 120]
        less = certain(Block(0, rows[kept], labels[kept], Persons(np.arange(0, 117, 4), 4)))
        assert np.linalg.norm(persons - less) <= RECALIBRATION_SENSITIVITY
    assert_allclose(persons, certain(Block(0, X[:30], y[:30])), rtol=1e-9, atol=1e-9)


def test_the_event_is_that_of_every_noisy_sum(monkeypatch):
    X, y, _ = records()
    drawn = []
    release = rescaled.gaussian_release

    def seen(total, noise, *rest):
        drawn.append(noise)
        return release(total, noise, *rest)

    monkeypatch.setattr(rescaled, "gaussian_release", seen)
    trained = OWN.train(X, y, random_state=0)
    assert len(drawn) == OWN.steps == 3
    assert min(drawn) >= 2.0 * RECALIBRATION_SENSITIVITY
    assert trained.event == OWN.event == compose(SGD.event, gaussian_event(2.0, 3))
    assert trained.stages == OWN.stages == (("training", SGD.event), ("recalibration", gaussian_event(2.0, 3)))
    assert trained.stability is None
    assert trained.trajectory is None
    whole = Recalibrated(SGD.with_noise(None)).calibrated(1.0, 1e-5)
    assert 0.98 < epsilon_of(whole.event, 1e-5) <= 1.0
    assert epsilon_of(whole.own_parts[0][1], 1e-5) < 0.25


def test_noise_that_is_not_set_is_refused_before_a_record_is_read():
    for unset in (Recalibrated(SGD), Recalibrated(SGD.with_noise(None), noise_multiplier=1.0)):
        assert unset.event is None
        with pytest.raises(ValueError, match="noise_multiplier is not set"):
            unset.train_source(None, n_records=40)
        with pytest.raises(ValueError, match="noise_multiplier is not set"):
            _ = unset.stages
    for wrong in ({"share": 0}, {"steps": 0}, {"noise_multiplier": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Recalibrated(SGD, **wrong)


def test_models_without_a_layer_of_logits_are_refused():
    X, y, _ = records(60)
    logistic = DPSGD(classes=(0, 1), loss="logistic", steps=2, noise_multiplier=1.0)
    with pytest.raises(TypeError, match="one output for each class"):
        Recalibrated(logistic, noise_multiplier=1.0).train(X, y, random_state=0)
    with pytest.raises(TypeError, match="DenseModel"):
        OWN._recalibrate(FunctionModel(lambda rows: rows, "regression", 3), None, 60, 0)


def test_entries_of_a_ledger_stand_in_order():
    inner = Recalibrated(Preprocessed((QuantileTransform(-1, 1, 3),), SGD.with_noise(None)))
    bounds = PrivateBounds(inner, n_features=3).calibrated(1.0, 1e-5)
    X, y, _ = records(500)
    trained = bounds.train(X, y, random_state=0)
    quantiles = QuantileTransform.stage
    assert [name for name, _ in trained.stages] == ["bounds", quantiles, "training", "recalibration"]
    assert trained.stages == bounds.stages
    clf = dp.PrivateConformalClassifier(
        epsilon=2.0, classes=[0, 1], guarantee="universal", feature_bounds=(-5, 5), random_state=0
    ).fit(*records(2000)[:2])
    assert [entry.stage for entry in clf.ledger_.entries] == [quantiles, "training", "recalibration", "calibration"]
    assert "noisy count" in clf.ledger_.entries[0].note
    assert "noisy sum" in clf.ledger_.entries[2].note
    assert clf.ledger_.public_facts["recalibration_share"] == 0.05


def test_the_recipe_recalibrates_where_public_numbers_say_so():
    def kind(n, guarantee="split"):
        plan = recipe(
            "classification", n_records=n, n_features=40, classes=(0, 1), epsilon=1.0, delta=1e-5, guarantee=guarantee
        )
        return type(plan.mechanism).__name__

    assert kind(4000) == kind(4000, "universal") == "Recalibrated"
    # a trajectory and a shift bound are about the parameters that were trained
    assert kind(4000, "corrected") == kind(4000, "stability") == kind(300) == "Preprocessed"


def test_probabilities_are_honest_after_a_private_fit():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(16_000, 40))
    y = (rng.random(16_000) < 1 / (1 + np.exp(-1.5 * X[:, 0] + 1.0))).astype(int)
    clf = dp.PrivateConformalClassifier(epsilon=2.0, classes=[0, 1], feature_bounds=(-6, 6), random_state=0)
    p = clf.fit(X[:8000], y[:8000]).predict_proba(X[8000:])
    # fifteen bins of 8,000 new records add at most sqrt(15 / n) / 2 by chance; the temperature is off by a few percent
    assert dp.metrics.expected_calibration_error(y[8000:], p) < math.sqrt(15 / 8000) / 2 + 0.02
