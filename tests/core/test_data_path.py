"""One way from records to release: how often each step reads the records, plans and asks the budget."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.cli import files, main
from dpscp.core.fit_plan import FitPlan
from dpscp.core.tasks import Classification
from dpscp.data.validation import label_index
from dpscp.privacy import Budget
from dpscp.training.engine import networks
from dpscp.training.engine import rows as rows_module
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


@pytest.mark.parametrize(("guarantee", "readings"), [("universal", 1), ("corrected", 2)])
def test_numbers_are_looked_at_when_they_come_in(monkeypatch, records, guarantee, readings):
    """The estimator looks at all of them; nothing between it and the model does, which looks at what it scores."""
    exact = [counted(monkeypatch, module, "require_finite", np.size) for module in (rows_module, networks)]
    quick = counted(monkeypatch, networks, "is_small", lambda rows, *_: np.size(rows))
    linear = dp.training.DPSGD(steps=20)
    classifier(estimator=linear, guarantee=guarantee, random_state=0).fit(*records)
    assert sum(map(sum, exact)) + sum(quick) == readings * N * WIDTH


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


def test_indices_are_their_own_places():
    index = np.array([2, 0, 1, 1])
    assert label_index(index, (0, 1, 2)) is index
    assert label_index(np.array(["b", "a"]), ("a", "b")).tolist() == [1, 0]
    assert label_index(np.array(["b", 3], dtype=object), (3, "b")).tolist() == [1, 0]
    assert label_index(np.empty(0, dtype=int), (0, 1)).shape == (0,)
    for labels in (np.array([0, 3]), np.array([-1]), np.array([[1]], dtype=object)[0], np.array([0.5])):
        with pytest.raises(ValueError, match="not in classes"):
            label_index(labels, (0, 2) if labels.dtype == object else (0, 1, 2))


def test_the_head_of_a_table_is_read_once(monkeypatch, tmp_path, records):
    X, y = records
    table, schema, model = (tmp_path / name for name in ("t.csv", "t.toml", "m.dpscp"))
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{label}" for (a, b, c), label in zip(X, y, strict=True)]
    table.write_text("\n".join(["a,b,c,bought", *lines]))
    columns = "".join(f'[columns.{name}]\ntype = "numeric"\nbounds = [-1, 1]\n' for name in "abc")
    schema.write_text('task = "classification"\ntarget = "bought"\nclasses = ["no", "yes"]\n' + columns)
    opened = counted(monkeypatch, files, "_check_header")
    assert main(["fit", str(table), "--schema", str(schema), "--epsilon", "2", "--seed", "1", "-o", str(model)]) == 0
    assert len(opened) == 1
