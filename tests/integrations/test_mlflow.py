"""Models logged to a local store of MLflow, and predicted with by MLflow itself."""

import json
import re
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.integrations.mlflow import load_model, log_model, save_model

# MLflow warns of its own stores and types
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
COLUMNS = {"age": {"type": "numeric", "bounds": [0, 9]}, "ward": {"type": "categorical", "categories": ["a", "b"]}}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    return tmp_path


def table(n=2000):
    age = np.random.default_rng(0).integers(0, 9, n)
    cost = age + np.random.default_rng(1).normal(size=n)
    return pd.DataFrame(
        {"age": age, "ward": np.where(age > 3, "a", "b"), "ill": np.where(age > 5, "yes", "no"), "cost": cost}
    )


def fit(task, **declared):
    schema = dp.Schema.from_dict({"task": task, "columns": COLUMNS, "n_records": 2000, **declared})
    kind = dp.PrivateConformalClassifier if task == "classification" else dp.PrivateConformalRegressor
    return kind(epsilon=4.0, random_state=0).fit(
        table()[["age", "ward", declared["target"]]], declared["target"], schema=schema
    )


@pytest.mark.parametrize(
    ("task", "declared", "names"),
    [
        ("classification", {"target": "ill", "classes": ["no", "yes"]}, ["prediction", "set", "set_size"]),
        ("regression", {"target": "cost", "bounds": [-5, 15]}, ["prediction", "lower", "upper"]),
    ],
)
def test_a_logged_model_predicts_as_the_estimator(store, task, declared, names):
    fitted, new = fit(task, **declared), table(50)
    new.index = new.index + 100
    with mlflow.start_run() as run:
        info = log_model(fitted, "risk")
    logged = mlflow.pyfunc.load_model(info.model_uri)
    found = logged.predict(new[["age", "ward"]])  # whole numbers, where the schema says a number
    assert list(found.columns) == names
    assert found.index.equals(new.index)
    expected = pd.DataFrame(fitted.predict_columns(new), index=new.index)
    pd.testing.assert_frame_equal(found, expected)
    assert logged.metadata.get_input_schema().input_names() == ["age", "ward"]
    with pytest.raises(mlflow.exceptions.MlflowException, match="missing inputs"):
        logged.predict(new[["age"]])
    loaded = load_model(info.model_uri)
    assert loaded.digest() == fitted.digest()
    tags = mlflow.get_run(run.info.run_id).data.tags
    assert float(tags["dpscp.epsilon"]) == fitted.ledger_.epsilon(fitted.delta)
    assert (tags["dpscp.is_private"], tags["dpscp.digest"]) == ("False", fitted.digest())
    assert float(tags["dpscp.coverage"]) == fitted.certificate_.coverage
    statement = mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/risk-statement.json")
    assert statement == json.loads(json.dumps(fitted.statement()))


def test_a_saved_folder_holds_the_file_of_the_estimator(store):
    fitted = fit("classification", target="ill", classes=["no", "yes"])
    save_model(fitted, store / "folder")
    assert load_model(str(store / "folder")).digest() == fitted.digest()
    assert not [path for path in (store / "folder").rglob("*") if path.suffix in (".pkl", ".pickle")]


def test_a_torch_module_is_refused_because_its_code_is_not_in_the_file(store):
    torch = pytest.importorskip("torch")
    X = np.random.default_rng(0).normal(size=(500, 2))
    training = dp.training.TorchDPSGD(torch.nn.Linear(2, 2), steps=3)
    clf = dp.PrivateConformalClassifier(training, epsilon=8.0, classes=[0, 1], n_records=500, random_state=0)
    clf.fit(X, (X[:, 0] > 0).astype(int))
    with pytest.raises(ValueError, match="architecture"):
        save_model(clf, store / "folder")
    assert not (store / "folder").exists()


def test_the_page_runs(store, monkeypatch, capsys):
    monkeypatch.chdir(store)
    page = Path(__file__).resolve().parents[2] / "docs" / "mlflow_onnx.md"
    exec("".join(re.findall(r"```py\n(.*?)```", page.read_text(), flags=re.DOTALL)), {})
    assert "set_size" in capsys.readouterr().out
