"""Fits on the same records are told where they can be noticed, and scikit-learn's searches cannot hide a budget."""

import gc
import warnings

import numpy as np
import pytest
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB

import dpscp as dp
from dpscp import BudgetError, GuaranteeWarning, PrivateConformalClassifier
from dpscp.estimators import refit_warning as refits

RNG = np.random.default_rng(0)
MODEL = GaussianNB().fit(RNG.normal(size=(40, 2)) + np.repeat([[0], [2]], 20, axis=0), np.repeat([0, 1], 20))


def records(n=600):
    y = RNG.integers(0, 2, n)
    return RNG.normal(size=(n, 2)) + 2 * y[:, None], y


def classifier(**options):
    return PrivateConformalClassifier(dp.Prefit(MODEL), epsilon=2.0, accountant="rdp", **options)


def warned(*arguments, **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        classifier(**options).fit(*arguments)
    return [str(w.message) for w in seen if "each fit spends" in str(w.message)]


def test_a_second_fit_on_the_same_records_is_told():
    X, y = records()
    assert not warned(X[:300], y[:300])
    assert not warned(X[300:], y[300:])  # other records of the same array
    assert len(warned(X[:300], y[:300])) == 1
    assert len(warned(X[200:400], y[200:400])) == 1  # some of them
    assert len(warned(X[::-1], y[::-1])) == 1
    assert not warned(X, y, random_state=0)  # not private, and told as that
    assert "budget=store" in warned(X, y)[0]
    copied = X.copy()  # cannot be told from other records without looking at them
    assert not warned(copied, y)


def test_a_fit_that_used_a_store_counts_and_uses_none_of_the_warnings(tmp_path):
    X, y = records()
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=4.5, delta=1e-4, dataset="x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            classifier().fit(X, y, budget=store)
    assert len(warned(X, y)) == 1


def test_nothing_is_kept_of_records_that_are_gone():
    X, y = records()
    warned(X, y)
    before = len(refits._FITTED)
    del X
    gc.collect()
    warned(*records())
    assert len(refits._FITTED) <= before


def test_searches_are_told_and_a_store_stops_them(tmp_path):
    X, y = records()
    with pytest.warns(GuaranteeWarning, match="inside a search or cross-validation"):
        assert np.isfinite(cross_val_score(classifier(), X, y, cv=2)).all()
    grid = {"confidence_level": [0.8, 0.9]}
    with (
        pytest.warns(GuaranteeWarning, match="inside a search or cross-validation"),
        pytest.warns(GuaranteeWarning, match="GridSearchCV chose the parameters"),
    ):
        GridSearchCV(classifier(), grid, cv=2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dp.SeededWarning)
        cross_val_score(classifier(random_state=0), X, y, cv=2)
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=2.5, delta=1e-4, dataset="x")
    with pytest.raises(BudgetError):
        GridSearchCV(classifier(), grid, cv=2, error_score="raise").fit(X, y, budget=store)
    # without error_score="raise" scikit-learn makes NaN of it: it cannot be forced, and the warning names the error
    store = dp.BudgetStore.create(tmp_path / "c", epsilon=2.5, delta=1e-4, dataset="x")
    with pytest.warns(FitFailedWarning, match="BudgetError"), pytest.warns(UserWarning, match="non-finite"):
        GridSearchCV(classifier(), grid, cv=2, refit=False).fit(X, y, budget=store)
