"""One way from records to release: how often each step reads the records, plans and asks the budget."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.core.fit_plan import FitPlan
from dpscp.core.tasks import Classification
from dpscp.privacy import Budget
from dpscp.training.preprocessing import steps

N, WIDTH = 400, 3


@pytest.fixture
def records():
    X = np.random.default_rng(0).uniform(-1, 1, (N, WIDTH))
    return X, np.where(X[:, 0] > 0, "yes", "no")


def counted(monkeypatch, owner, name, amount=lambda *_: 1):
    """Everything that ``amount`` says about the calls, one entry each."""
    calls, real = [], getattr(owner, name)

    def watched(*args, **kwargs):
        calls.append(amount(*args))
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, watched)
    return calls


def classifier(**options):
    given = {"epsilon": 2.0, "classes": ["no", "yes"], "feature_bounds": (-2.0, 2.0), "n_records": N}
    return dp.PrivateConformalClassifier(**{**given, **options})


@pytest.mark.parametrize("guarantee", ["universal", "corrected"])
def test_records_are_preprocessed_once_to_train_and_once_to_score(monkeypatch, records, guarantee):
    made = counted(monkeypatch, steps.FeatureTransform, "apply", lambda _, rows: len(rows))
    scored = counted(monkeypatch, Classification, "scores", lambda _, trained, rows, *__: (trained.model, rows))
    X, y = records
    model = classifier(estimator=dp.training.DPSGD(steps=20), guarantee=guarantee, random_state=0).fit(X, y)
    assert sum(made) == 2 * N
    [(inner, rows)] = scored
    assert inner is model.model_.inner
    np.testing.assert_array_equal(rows, model.model_.transform(X))
    assert not np.array_equal(rows, X)


def test_a_fit_with_a_store_is_planned_once_and_asks_the_budget_twice(monkeypatch, records, tmp_path):
    """Before a record is used: training alone, and the whole. What was reserved is what was spent."""
    plans = counted(monkeypatch, FitPlan, "with_noise")
    asked = counted(monkeypatch, Budget, "require")
    store = dp.BudgetStore.create(tmp_path / "store", 3.0, 1e-5, dataset="x")
    model = classifier(guarantee="universal").fit(*records, budget=store)
    assert len(plans) == 1
    assert len(asked) == 2
    assert store.ledger().event == model.ledger_.event


def test_a_fit_that_does_not_fit_its_budget_never_sees_a_record(monkeypatch, records):
    trained = counted(monkeypatch, dp.training.DPSGD, "train")
    mechanism = dp.training.DPSGD(steps=3, noise_multiplier=1.3, sampling_rate=1.0)
    spent = dp.Ledger().add("training", mechanism.event).epsilon(1e-5)
    with pytest.raises(dp.BudgetError, match="nothing is left for calibration"):
        classifier(estimator=mechanism, epsilon=spent, guarantee="universal").fit(*records)
    assert not trained
