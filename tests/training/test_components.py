"""Private principal components: the right noise, the right directions, and every path that a step takes."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.data.sources import ArraySource
from dpscp.training import (
    DPSGD,
    NormClip,
    Preprocessed,
    PrivatePCA,
    PrivateStandardize,
    PrivateWhitening,
)

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 600)
X = np.column_stack([2.0 * Y - 1 + 0.3 * RNG.normal(size=600), 0.05 * RNG.normal(size=(600, 3))])


def test_the_directions_are_those_of_the_second_moment_of_shortened_rows():
    rows = RNG.normal(size=(300, 4)) * [3.0, 1.0, 0.3, 0.1]
    fitted = PrivatePCA(2, bound=2.0, noise_multiplier=1e-9).fit(rows, n_records=300, rng=np.random.default_rng(1))
    short = rows * np.minimum(1, 2.0 / np.linalg.norm(rows, axis=1))[:, None]
    expected = np.linalg.eigh(short.T @ short)[1][:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs((fitted.matrix * expected).sum(axis=0)), 1.0, atol=1e-6)
    projected = fitted.apply(rows)
    np.testing.assert_allclose(np.abs(projected), np.abs(short @ expected), atol=1e-6)
    assert np.linalg.norm(projected, axis=1).max() <= 2.0
    assert fitted.width == 2


def test_the_noise_has_the_size_of_the_event():
    step, n, reps = PrivatePCA(2, noise_multiplier=3.0), 100, 400
    rng = np.random.default_rng(2)
    drawn = np.array([step.release_moment(np.zeros((2, 2)), n_records=n, rng=rng)[0] for _ in range(reps)]) * n
    # entries on the diagonal have the scale of the event, those beside it 1 / sqrt(2) of it; bound: 5 standard errors
    assert abs(drawn[:, 0, 0].std() / 3.0 - 1) < 5 / np.sqrt(2 * reps)
    assert abs(drawn[:, 0, 1].std() / (3.0 / np.sqrt(2)) - 1) < 5 / np.sqrt(2 * reps)
    np.testing.assert_array_equal(drawn[:, 0, 1], drawn[:, 1, 0])
    assert step.event == dp.privacy.gaussian_event(3.0)


@pytest.mark.parametrize("weights", [np.ones(1), np.full(2, 0.5)])
def test_one_record_or_person_changes_the_sum_by_at_most_one(weights):
    step = PrivatePCA(1, bound=0.5)
    rows = np.array([[1e9, -1e9], [0.3, 0.4]])[: len(weights)]
    assert np.linalg.norm(step.part_moments(rows, weights)) <= 1 + 1e-12
    assert np.linalg.norm(step.part_moments(np.array([[0.5, 0.0]]), np.ones(1))) == pytest.approx(1)


def classifier(estimator, **options):
    options = {"epsilon": 8.0, "accountant": "rdp", "guarantee": "split", "classes": [0, 1]} | options
    return dp.PrivateConformalClassifier(estimator, **options)


@pytest.mark.parametrize("mechanism", [(), (DPSGD(steps=20),)])
def test_a_list_of_steps_is_one_mechanism_with_one_entry(mechanism, tmp_path):
    clf = classifier([PrivateStandardize(-3, 3), PrivatePCA(2, bound=2.0), *mechanism], random_state=0).fit(X, Y)
    assert clf.ledger_.epsilon(1e-5, "rdp") <= 8.0
    assert (clf.model_.n_features, clf.model_.inner.n_features) == (4, 2)
    assert [type(t).__name__ for t in clf.model_.transforms] == ["FeatureTransform", "MatrixTransform"]
    assert clf.score(X, Y) > 0.9
    clf.save(tmp_path / "m")
    np.testing.assert_array_equal(dp.load(tmp_path / "m").predict_set(X)[1], clf.predict_set(X)[1])
    assert not clf.ledger_.assumptions


def test_a_list_without_a_mechanism_or_step_is_refused():
    with pytest.raises(TypeError, match="a list of private steps and a mechanism"):
        classifier([]).fit(X, Y)
    with pytest.raises(TypeError, match="steps must be instances of subclasses"):
        classifier([DPSGD(), DPSGD()]).fit(X, Y)


def test_persons_blocks_and_arrays_give_the_same_kind_of_model():
    persons = np.repeat(np.arange(300), 2)
    clf = classifier([PrivatePCA(1, bound=2.0)], rows_per_person=2, random_state=0)
    assert clf.fit(X, Y, persons=persons).score(X, Y) > 0.9
    whole, blocks = (
        classifier([PrivatePCA(1, bound=2.0)], random_state=0).fit(ArraySource(X, Y, n_blocks=n)) for n in (1, 3)
    )
    np.testing.assert_allclose(whole.predict_proba(X), blocks.predict_proba(X), atol=1e-5)


def test_a_step_that_keeps_the_width_keeps_the_shape():
    steps = Preprocessed((NormClip(1.0), PrivateWhitening()), DPSGD())
    assert steps._shape_after((2, 3)) == (2, 3)
    assert Preprocessed((PrivatePCA(6),), DPSGD())._shape_after((2, 3)) == (2, 3)
    assert Preprocessed((NormClip(1.0), PrivatePCA(5), PrivatePCA(2)), DPSGD())._shape_after((2, 3)) == (2,)
