"""Estimators that were trained elsewhere, without these records, in the estimator itself."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC

import dpscp as dp
from dpscp import NotFittedError, PrivateConformalClassifier

SETTINGS = {"epsilon": 1.0, "accountant": "rdp", "n_records": 1000}


def labeled(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return rng.normal(size=(n, 2)) + 2 * np.array([[0, 0], [1, 0], [0, 1]])[y], np.array(["c", "a", "b"])[y]


@pytest.fixture(scope="module")
def model():
    return GaussianNB().fit(*labeled(500, 0))


def test_all_records_calibrate_and_only_the_search_is_paid(model):
    clf = PrivateConformalClassifier(dp.Prefit(model), **SETTINGS).fit(*labeled(1000, 1))
    assert clf.classes_.tolist() == ["a", "b", "c"]
    assert [entry.stage for entry in clf.ledger_.entries] == ["calibration"]
    assert 0.9 < clf.ledger_.epsilon(1e-5, "rdp") <= 1.0
    assert clf.ledger_.is_private
    assert clf.certificate_.guarantee == "split"
    assert clf.certificate_.is_certified
    assert any("trained without these records" in text.sentence for text in clf.certificate_.assumptions)
    assert any("are not protected" in text.sentence for text in clf.ledger_.assumptions)
    assert "classes" not in clf.ledger_.taken_from_data
    assert clf.ledger_.public_facts["n_features"] == clf.n_features_in_ == 2
    X, _ = labeled(300, 2)
    np.testing.assert_allclose(clf.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(clf.predict(X), model.predict(X))
    with pytest.raises(TypeError, match="prefit estimator cannot be saved"):
        clf.save("never-written")


def test_coverage_over_many_draws_of_the_records(model):
    """Result E: the mean over records and noise is at least the level; the tolerance is three standard errors."""
    X, y = labeled(4000, 5)
    covered = []
    for seed in range(20):
        rows = np.random.default_rng(seed).integers(0, 4000, 1300)
        clf = PrivateConformalClassifier(dp.Prefit(model), random_state=seed, **SETTINGS)
        clf.fit(X[rows[:1000]], y[rows[:1000]])
        covered.append(dp.metrics.coverage(y[rows[1000:]], clf.predict_set(X[rows[1000:]])[1], classes=clf.classes_))
    assert np.mean(covered) >= 0.9 - 3 * stats.sem(covered)
    assert np.mean(covered) <= 0.96


def test_frames_with_texts_and_lists_of_texts_go_to_the_estimator_as_they_are():
    rng = np.random.default_rng(0)
    colors = np.array(["red", "blue"])[rng.integers(0, 2, 1000)]
    y = np.where(rng.random(1000) < 0.9, colors == "red", colors != "red").astype(int)
    frame = pd.DataFrame({"color": colors, "size": rng.normal(size=1000)})
    encode = make_column_transformer((OneHotEncoder(), ["color"]), remainder="passthrough")
    by_column = make_pipeline(encode, LogisticRegression()).fit(frame[:300], y[:300])
    clf = PrivateConformalClassifier(dp.Prefit(by_column), **SETTINGS).fit(frame, y)
    assert clf.feature_names_in_.tolist() == ["color", "size"]
    assert clf.predict_set(frame)[1].any()
    texts = [f"a {color} one" for color in colors]
    by_word = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts[:300], y[:300])
    assert PrivateConformalClassifier(dp.Prefit(by_word), **SETTINGS).fit(texts, y).predict(texts[:5]).shape == (5,)


class Transductive(GaussianNB):
    def predict_proba(self, X):
        return super().predict_proba(X - X.mean(axis=0))


class Telling(GaussianNB):
    def predict_proba(self, X):
        raise KeyError(f"never seen before: {X.ravel()[0]}")


@pytest.mark.parametrize(
    ("estimator", "options", "error", "told"),
    [
        (SVC().fit(*labeled(50, 0)), {}, TypeError, "with predict_proba and classes_ here, got SVC"),
        (Transductive().fit(*labeled(50, 0)), {}, ValueError, "estimator must compute the value"),
        (
            Telling().fit(*labeled(50, 0)),
            {},
            ValueError,
            r"failed on the records with KeyError",
        ),
        (GaussianNB().fit(*labeled(50, 0)), {"guarantee": "universal"}, ValueError, "which needs guarantee='split'"),
        (
            GaussianNB().fit(*labeled(50, 0)),
            {"feature_bounds": (0, 1)},
            ValueError,
            "remove feature_bounds",
        ),
        (GaussianNB().fit(*labeled(50, 0)), {"classes": ["b", "a", "c"]}, ValueError, "in the same order"),
    ],
)
def test_what_cannot_be_promised_is_refused_before_anything_is_spent(tmp_path, estimator, options, error, told):
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=1.5, delta=1e-5, dataset="x")
    clf = PrivateConformalClassifier(dp.Prefit(estimator), **SETTINGS, **options)
    with pytest.raises(error, match=told) as refused:
        clf.fit(*labeled(100, 1), budget=store)
    assert not store.ledger().entries
    assert "never seen" not in str(refused.value)


@pytest.mark.parametrize(
    ("estimator", "error", "told"),
    [
        (GaussianNB(), NotFittedError, "needs a fitted estimator"),
        (SVC, TypeError, "with predict or predict_proba, got the class SVC"),
        (None, TypeError, "with predict or predict_proba, got NoneType"),
    ],
)
def test_what_cannot_predict_is_refused_where_it_is_wrapped(estimator, error, told):
    with pytest.raises(error, match=told):
        dp.Prefit(estimator)


def test_without_prefit_a_fitted_estimator_is_refused_and_a_wrapped_one_survives_cloning(model):
    X, y = labeled(1000, 1)
    with pytest.raises(TypeError, match="for a fitted scikit-learn estimator"):
        PrivateConformalClassifier(model, classes=["a", "b", "c"], **SETTINGS).fit(X, y)
    frozen = clone(PrivateConformalClassifier(dp.Prefit(model), **SETTINGS))
    assert frozen.fit(X, y).predict_set(X)[1].shape == (1000, 3, 1)
