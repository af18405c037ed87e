"""What callers bring is checked without a word about the records."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

import dpscp as dp
from dpscp.data.validation import (
    class_list,
    validate_labels,
    validate_rows,
    validate_targets,
)

CANARY_NUMBER, CANARY_TEXT = 98765.4321, "zebra-canary"
N = 1237  # a prime: it would not appear by chance


class Anything(BaseEstimator):
    """An estimator to hang feature names on."""


def rows(n=N, d=3):
    return np.random.default_rng(0).normal(size=(n, d))


def spoiled(value, dtype=float):
    X = rows().astype(dtype)
    X[5, 1] = value
    return X


def everything_said(error):
    """Message, notes and chained errors, as a user's traceback prints them, without the source lines."""
    return "".join(
        str(e)
        for e in (error, error.__cause__, error.__context__ if not error.__suppress_context__ else None)
        if e is not None
    ) + "".join(getattr(error, "__notes__", []))


def assert_silent(error):
    text = everything_said(error)
    for secret in ("98765", CANARY_TEXT, str(N), "1236"):
        assert secret not in text, f"{secret!r} is in {text!r}"


BAD_TARGETS = {
    "text": ["1.0"] * (N - 1) + [CANARY_TEXT],
    "nan": [CANARY_NUMBER] * (N - 1) + [np.nan],
    "infinity": [CANARY_NUMBER] * (N - 1) + [np.inf],
    "too few": [CANARY_NUMBER] * (N - 1),
    "two columns": np.full((N, 2), CANARY_NUMBER),
    "ragged": [[CANARY_NUMBER]] * (N - 1) + [[1, 2]],
    "complex": np.full(N, 1j * CANARY_NUMBER),
    "objects": np.array([{CANARY_TEXT: 1}] * N),
    "none inside": np.array([None, *[CANARY_NUMBER] * (N - 1)]),
    "nothing": None,
}


@pytest.mark.parametrize("name", BAD_TARGETS)
@pytest.mark.parametrize("check", [validate_targets, validate_labels])
def test_bad_targets_are_refused_without_telling_anything(name, check):
    y = BAD_TARGETS[name]
    if name == "text" and check is validate_labels:
        y = np.array(y, dtype=object)
        y[0] = CANARY_NUMBER  # text alone is a fine label; a mixture is not
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"y|label|Complex") as caught:
            check(y, N)
    assert_silent(caught.value)


def test_numbers_in_text_and_objects_are_read():
    X = rows(20)
    for form in (X.astype(object), X.astype(str), X.tolist(), pd.DataFrame(X, columns=list("abc")).astype(object)):
        np.testing.assert_allclose(validate_rows(Anything(), form, reset=True), X)


def test_rows_at_prediction_must_fit_in_width_and_names():
    estimator = Anything()
    validate_rows(estimator, pd.DataFrame(rows(), columns=list("abc")), reset=True)
    assert list(estimator.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        validate_rows(estimator, pd.DataFrame(rows(d=2), columns=list("ab")), reset=False)
    with pytest.raises(ValueError, match="feature names"):
        validate_rows(estimator, pd.DataFrame(rows(), columns=list("abd")), reset=False)
    with pytest.raises(ValueError, match=r"feature names[\s\S]*same order"):
        validate_rows(estimator, pd.DataFrame(rows(), columns=list("acb")), reset=False)
    unnamed = Anything()
    validate_rows(unnamed, rows(), reset=True)
    with pytest.raises(ValueError, match="is expecting 3 features"):
        validate_rows(unnamed, rows(d=2), reset=False)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        validate_rows(estimator, rows(), reset=False)


def test_continuous_labels_are_refused_and_many_distinct_ones_are_not_remarked_upon():
    with pytest.raises(ValueError, match="continuous") as caught:
        validate_labels(np.linspace(0, CANARY_NUMBER, N), N)
    assert_silent(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validate_labels(np.arange(30), 30)


def test_targets_in_many_forms():
    y = np.arange(5.0)
    for form in (y.tolist(), pd.Series(y), y.astype(str), y.astype(int), pd.Series(y, dtype="Float64")):
        np.testing.assert_array_equal(validate_targets(form, 5), y)
    with pytest.warns(match="column-vector"):
        np.testing.assert_array_equal(validate_targets(y[:, None], 5), y)


class TestClassList:
    @pytest.mark.parametrize("labels", [np.array([True, False]), np.array([0.0, 2.0]), np.array(["x", "y"], object)])
    def test_any_type_of_label(self, labels):
        public, index, _ = class_list(labels, list(labels))
        assert (public[index] == labels).all()

    @pytest.mark.parametrize(
        ("labels", "classes"),
        [
            (np.array(["a", CANARY_TEXT]), ["a", "b"]),
            (np.array([1.0, CANARY_NUMBER]), [1, 2]),
            (np.array([1, 2]), ["1", "2"]),
            (np.array(["1", "2"]), [1, 2]),
        ],
    )
    def test_an_unknown_label_is_refused_but_not_printed(self, labels, classes):
        with pytest.raises(ValueError, match="not in classes") as caught:
            class_list(labels, classes)
        assert_silent(caught.value)

    def test_lists_that_are_no_lists_of_classes(self):
        with pytest.raises(ValueError, match="mixes text and numbers"):
            class_list(np.array([0, 1]), [0, "1"])
        with pytest.raises(ValueError, match="list of distinct labels"):
            class_list(np.array([0, 1]), 2)
        with pytest.raises(ValueError, match="distinct"):
            class_list(np.array([1, 2]), [1, 2, 2])
        with pytest.raises(ValueError, match="at least 2 classes"):
            class_list(np.array([1, 1]), None)
        with pytest.raises(ValueError, match="at least 2 classes"):
            class_list(np.array([1, 1]), [1])


def test_sparse_rows_give_the_fit_of_the_same_dense_rows():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.random.default_rng(2).integers(0, 2, (600, 6)).astype(float)
    y = dense[:, 0] * 2 + dense[:, 1]
    stored = sparse.csr_array(dense)
    options = {"y_bounds": (0, 3), "feature_bounds": (0, 1), "groups": lambda X: X[:, 2] > 0, "random_state": 0}
    for estimator in (None, dp.training.SufficientStatistics(feature_bound=3.0, y_bounds=(0, 3))):
        reg, same = (dp.PrivateConformalRegressor(estimator, epsilon=3.0, **options).fit(X, y) for X in (stored, dense))
        np.testing.assert_array_equal(reg.threshold_, same.threshold_)
        np.testing.assert_array_equal(reg.predict_interval(stored)[1], same.predict_interval(dense)[1])
        assert reg.digest() == same.digest()
        a, b = (dp.evaluate(same, X, y, epsilon=1.0, delta=1e-5, random_state=0).to_dict() for X in (stored, dense))
        assert a == b


def test_sparse_rows_of_a_pipeline_are_accepted_and_too_many_features_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    texts = [f"{'good' if k % 2 else 'bad'} day {k % 7}" for k in range(400)]
    labels = np.arange(400) % 2
    clf = dp.PrivateConformalClassifier(epsilon=4.0, classes=[0, 1], random_state=0)
    fitted = make_pipeline(HashingVectorizer(n_features=64), clf).fit(texts, labels)
    assert fitted.score(texts, labels) > 0.9
    assert not fitted[-1].certificate_.void_because
    with pytest.raises(ValueError, match=r"sparse.*more than 2 GiB.*HashingVectorizer\(n_features=1024\)"):
        clf.fit(sparse.csr_array((400, 2**20)), labels)
