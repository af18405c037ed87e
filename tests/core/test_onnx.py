"""Graphs of fitted estimators, run by onnxruntime: the answers of the estimator."""

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

import dpscp as dp

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
TOLERANCE = 1e-6
N = 1000


def rows(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return np.exp(rng.normal(size=(n, 6)))


def answers(estimator, X, path):
    estimator.to_onnx(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": np.asarray(X, dtype=float)}), strict=True))


def fit_classifier(labels=(0, 1, 2), **choices):
    X = rows()
    index = (X[:, 0] + np.random.default_rng(1).normal(size=N) > 1.5).astype(int) + (X[:, 1] > 2)
    clf = dp.PrivateConformalClassifier(
        epsilon=8.0, classes=list(labels), n_records=N, accountant="rdp", random_state=1, **choices
    )
    return clf.fit(X, np.asarray(labels)[index])


def check_classifier(clf, X, path):
    found, (labels, sets) = answers(clf, X, path), clf.predict_set(X)
    probabilities = clf.predict_proba(X)
    np.testing.assert_allclose(found["probabilities"], probabilities, atol=TOLERANCE)
    ordered = np.sort(probabilities, axis=1)
    is_clear = ordered[:, -1] - ordered[:, -2] > TOLERANCE
    assert is_clear.mean() > 0.9
    assert (found["label"] == labels)[is_clear].all()
    assert found["label"].dtype.kind == ("i" if clf.classes_.dtype.kind == "i" else "O")
    assert found["sets"].shape == sets.shape
    scores = clf.task_.score.of_labels(probabilities)[:, :, None]
    is_near = np.abs(scores - clf.threshold_) <= TOLERANCE
    assert (found["sets"] == sets)[~is_near].all()
    assert 0 < sets.mean() < 1


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"conformity_score": "aps", "confidence_level": [0.8, 0.95]},
        {"conformity_score": "raps", "labels": ("a", "b", "c")},
        {"groups": "label", "feature_bounds": "private"},
        {"feature_bounds": dp.RowNorm(3.0)},
        {"feature_bounds": dict.fromkeys(range(6), (0.01, 20, "log"))},
        {"feature_bounds": dict.fromkeys(range(6), (0, 20, "log1p"))},
        {"estimator": dp.training.DPSGD(hidden=(8,), activation="tanh"), "feature_bounds": (0, 20)},
        {"estimator": [dp.training.PrivateStandardize(0, 9), dp.training.PrivateWhitening(), dp.training.DPSGD()]},
        {"estimator": [dp.training.RandomFeatures(8), dp.training.PrivateCentering(), dp.training.DPSGD()]},
    ],
    ids=lambda choices: "-".join(choices) or "recipe",
)
def test_sets_are_those_of_the_estimator(choices, tmp_path):
    check_classifier(fit_classifier(**choices), rows(500, seed=2), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "choices",
    [
        {"conformity_score": "absolute"},
        {"conformity_score": "cqr", "confidence_level": [0.8, 0.95]},
        {"conformity_score": "normalized"},
        {"side": "upper"},
        {"y_scale": "log1p", "y_bounds": (0, 20), "clip_to_bounds": True},
        {"y_scale": "log", "y_bounds": (0.01, 20), "side": "lower"},
        {"y_bounds": "private"},
    ],
    ids=lambda choices: "-".join(choices),
)
def test_intervals_are_those_of_the_estimator(choices, tmp_path):
    X = rows()
    y = np.clip(X[:, 0] + 0.3 * np.random.default_rng(1).normal(size=N), 0.02, 19)
    choices = {"y_bounds": (-1, 20), **choices}
    options = {"feature_bounds": (0, 20), "n_records": N, "accountant": "rdp", "random_state": 1}
    reg = dp.PrivateConformalRegressor(epsilon=8.0, **options, **choices)
    new = rows(500, seed=2)
    prediction, intervals = reg.fit(X, y).predict_interval(new)
    found, width = answers(reg, new, tmp_path / "m.onnx"), np.ptp(y)
    np.testing.assert_allclose(found["prediction"], prediction, atol=TOLERANCE * width)
    np.testing.assert_allclose(found["intervals"], intervals, atol=TOLERANCE * width)


def test_a_graph_takes_the_rows_of_a_schema_and_names_them(tmp_path):
    columns = {"age": {"type": "numeric", "bounds": [0, 9]}, "ward": {"type": "categorical", "categories": ["a", "b"]}}
    declared = {"task": "classification", "target": "ill", "classes": ["no", "yes"], "columns": columns}
    schema, age = dp.Schema.from_dict(declared), np.random.default_rng(0).uniform(0, 9, N)
    frame = pd.DataFrame({"age": age, "ward": np.where(age > 3, "a", "b"), "ill": np.where(age > 5, "yes", "no")})
    clf = dp.PrivateConformalClassifier(epsilon=4.0, n_records=N, random_state=0).fit(frame, "ill", schema=schema)
    found = answers(clf, schema.matrix(frame), tmp_path / "m.onnx")
    assert found["label"].tolist() == clf.predict(frame).tolist()
    facts = {prop.key: prop.value for prop in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert facts["dpscp.features"].split("\n") == list(schema.feature_names)
    assert facts["dpscp.model"] == clf.digest()
    assert "90%" in facts["dpscp.promise"].replace(" %", "%")


def test_torch_modules_have_graphs(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv1d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    X = rows()[:, None, :] / 10
    y = (X[:, 0, 0] > 0.1).astype(int) + (X[:, 0, 1] > 0.1)
    training = dp.training.TorchDPSGD(net, steps=20, sampling_rate=0.2)
    clf = dp.PrivateConformalClassifier(training, epsilon=8.0, classes=[0, 1, 2], n_records=N, random_state=0).fit(X, y)
    new = rows(64, seed=3) / 10
    found = answers(clf, new, tmp_path / "m.onnx")
    np.testing.assert_allclose(found["probabilities"], clf.predict_proba(new[:, None, :]), atol=TOLERANCE)
    assert (found["sets"] == clf.predict_set(new[:, None, :])[1]).mean() > 0.99


def test_what_has_no_graph_is_refused_and_leaves_no_file(tmp_path):
    by_rows = fit_classifier(groups=lambda X: X[:, 0] > 1)
    own_score = fit_classifier(conformity_score=lambda p: 1 - p)
    with pytest.raises(TypeError, match="groups of rows"):
        by_rows.to_onnx(tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="your own conformity_score"):
        own_score.to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
