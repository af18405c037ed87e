"""Lists of classes, and rows that are stored as sparse arrays."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

import dpscp as dp
from dpscp.data.validation import class_list


def test_lists_that_are_no_lists_of_classes_are_refused():
    for labels, classes, said in (
        ([0, 1], [0, "1"], "mixes text and numbers"),
        ([0, 1], 2, "list of distinct labels"),
        ([1, 2], [1, 2, 2], "distinct"),
        ([1, 1], None, "at least 2 classes"),
        ([1, 1], [1], "at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=said):
            class_list(np.array(labels), classes)


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
