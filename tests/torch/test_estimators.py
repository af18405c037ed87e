"""A torch module in an estimator: labels, precision, token ids, scaled targets, and what was spent so far."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dpscp as dp
from dpscp.audit.model_game import ModelGame
from dpscp.estimators.fitted import MissingEstimator
from dpscp.training import DPSGD, TorchDPSGD, UnitNorm

torch = pytest.importorskip("torch")
nn: Any = torch.nn

pytestmark = [
    pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

SETTINGS = {"epsilon": 3.0, "n_records": 300, "guarantee": "split", "accountant": "rdp"}


def records(n=300):
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, np.clip(np.digitize(X[:, 0], [-0.5, 0.5]), 0, 2)


def training(module, **options):
    return TorchDPSGD(module, **({"steps": 3, "sampling_rate": 0.2} | options))


def classifier(estimator, **options):
    return dp.PrivateConformalClassifier(estimator, **({"classes": [0, 1, 2]} | SETTINGS | options))


def regressor(estimator, **options):
    return dp.PrivateConformalRegressor(estimator, **({"y_bounds": (0, 2)} | SETTINGS | options))


@pytest.fixture
def store(tmp_path):
    return dp.BudgetStore.create(tmp_path / "b", epsilon=9.0, delta=1e-5, dataset="records")


# ---- labels


def public_head():
    """Outputs of the classes 2, 1 and 0, in this order."""
    module = nn.Linear(4, 3)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    module.weight.data[0, 0], module.weight.data[2, 0] = 5.0, -5.0
    module.bias.data[1] = 2.5
    return module


def test_labels_of_the_outputs_in_another_order_are_refused_and_the_same_order_is_kept(store):
    X, y = records()
    mechanism = training(public_head(), classes=(2, 1, 0), learning_rate=1e-9)
    for options in ({}, {"classes": ["a", "b", "c"]}, {"classes": None}):
        labels = np.array(options["classes"])[y] if options.get("classes") else y
        with pytest.raises(ValueError, match=r"classes=\[2, 1, 0\] of TorchDPSGD differs") as refused:
            classifier(mechanism, **options).fit(X, labels, budget=store)
        assert "Pass classes=[2, 1, 0] to the estimator" in str(refused.value)
        assert "'a'" not in str(refused.value)
    assert not store.ledger().entries
    fitted = classifier(mechanism, classes=[2, 1, 0]).fit(X, y)
    assert (fitted.predict(X) == y).mean() > 0.95
    assert fitted.classes_.tolist() == [2, 1, 0]


def test_a_loss_of_the_callers_own_is_for_the_task_of_the_estimator():
    X, y = records()
    smoothed = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1)
    assert classifier(training(nn.Linear(4, 3), loss=smoothed)).fit(X, y).classes_.tolist() == [0, 1, 2]
    regressor(training(nn.Linear(4, 1), loss=lambda z, t: (z[:, 0] - t).abs())).fit(X, y.astype(float))
    with pytest.raises(ValueError, match="this one trains a classification model; pass a loss for regression"):
        regressor(training(nn.Linear(4, 1))).fit(X, y.astype(float))
    with pytest.raises(ValueError, match="loss='squared' is for regression; leave classes out"):
        classifier(training(nn.Linear(4, 3), loss="squared")).fit(X, y)


# ---- precision


class Centered(nn.Module):
    """Seconds since 1970, twenty apart: float32 has steps of 128 there."""

    def __init__(self, outputs=2):
        super().__init__()
        self.last = nn.Linear(1, outputs)

    def forward(self, x):
        return self.last((x.flatten(1) - 1.7e9 - 10) / 10)


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)])
@pytest.mark.parametrize("listed", [False, True])
def test_rows_keep_the_precision_of_a_float64_module(shape, listed):
    y = np.arange(300) % 2
    X = (1.7e9 + 20.0 * y).reshape(300, *shape)
    torch.manual_seed(0)
    mechanism = training(Centered().double(), steps=20, sampling_rate=0.3, learning_rate=2.0)
    fitted = classifier([mechanism] if listed else mechanism, classes=[0, 1], epsilon=8.0, random_state=0).fit(X, y)
    assert (fitted.predict(X) == y).all()
    assert fitted.threshold_[0] < 0.5  # the scores too
    outputs = fitted.module_(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(fitted.model_.outputs(X), outputs, rtol=1e-12)


def test_targets_have_the_precision_of_the_module_in_the_dry_run_and_in_training(store):
    X, y = records()
    seen = set()

    def strict(outputs, targets):
        seen.add((outputs.dtype, targets.dtype))
        return nn.functional.huber_loss(outputs[:, 0], targets, reduction="none")  # refuses a mixture in float64

    regressor(training(nn.Linear(4, 1).double(), loss=strict)).fit(X, y.astype(float), budget=store)
    assert seen == {(torch.float64, torch.float64)}
    seen.clear()
    regressor(training(nn.Linear(4, 1), loss=strict)).fit(X, y.astype(float))
    assert all(outputs == targets for outputs, targets in seen)


# ---- token ids


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(12, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.table(x.long()).mean(1))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"feature_bounds": (0, 8)}, "feature_bounds"),
        ({"feature_bounds": dp.RowNorm(9.0)}, "feature_bounds"),
        ({}, "steps before the module"),
    ],
)
def test_token_ids_are_not_scaled(options, name, store):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 9, size=(300, 6)), rng.integers(0, 3, size=300)
    mechanism = training(Tokens()) if options else [UnitNorm(), training(Tokens())]
    with pytest.raises(ValueError, match=f"as ids .it has an Embedding.*{name}.*would change"):
        classifier(mechanism, **options).fit(X, y, budget=store)
    assert not store.ledger().entries
    classifier(training(Tokens())).fit(X, y)


# ---- scaled targets


def far_targets():
    X, _ = records()
    return X, 100 + 20 * X[:, 0]


def test_a_module_is_trained_on_targets_between_minus_one_and_one():
    X, y = far_targets()
    torch.manual_seed(0)
    fitted = regressor(nn.Linear(4, 1), y_bounds=(0, 200), epsilon=8.0, random_state=0).fit(X, y)
    assert fitted.model_.y_bounds == (0, 200)
    assert np.sqrt(np.mean((fitted.predict(X) - y) ** 2)) < np.std(y)  # 90 where outputs start at 0
    outputs = fitted.module_(torch.from_numpy(X).float()).detach().numpy()
    np.testing.assert_allclose(100 + 100 * outputs, fitted.model_.outputs(X), rtol=1e-4)


def test_steps_without_a_mechanism_scale_targets_on_their_scale():
    X, _ = records()
    y = np.exp(3 + X[:, 0])
    fitted = regressor([UnitNorm()], y_bounds=(1, 1000), y_scale="log", epsilon=8.0, random_state=0).fit(X, y)
    assert fitted.model_.inner.y_bounds == pytest.approx((0.0, np.log(1000)))


# ---- hints and messages


def test_lists_of_tensors_are_records():
    X, y = records()
    images = [torch.from_numpy(row).float().reshape(1, 2, 2) for row in X]
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    labels = [torch.tensor(label) for label in y]
    fitted = classifier(training(module)).fit(images, labels)
    assert fitted.input_shape_ == (1, 2, 2)
    np.testing.assert_array_equal(fitted.predict(images), fitted.predict(torch.stack(images)))
    short = [image.bfloat16() for image in images]
    np.testing.assert_array_equal(fitted.predict(short), fitted.predict(torch.stack(short).float()))
    np.testing.assert_array_equal(fitted.predict(short), fitted.predict(torch.stack(short)))
    for wrong in ([*images[:-1], torch.zeros(1, 2, 47)], [*images[:-1], 0]):
        with pytest.raises(ValueError, match="one tensor for each record, all of one shape") as refused:
            fitted.predict(wrong)
        assert "47" not in str(refused.value)


@pytest.mark.parametrize("physical_batch", [None, 5])  # float64 sums, integers
def test_another_default_device_of_torch_changes_nothing(physical_batch, tmp_path):
    X, y = records()
    module, again = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
    mechanism = training(module, physical_batch=physical_batch)
    counts = {"n_records": None, "n_persons": 100, "rows_per_person": 3}
    with torch.device("meta"):  # tensors without numbers, where the device is not written out
        fitted = classifier(mechanism, **counts).fit(X, y, persons=np.repeat(np.arange(100), 3))
        fitted.save(tmp_path / "model")
        loaded = dp.load(tmp_path / "model", module=again)
        np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))


def test_sources_are_not_predicted():
    X, y = records()
    fitted = classifier(training(nn.Linear(4, 3))).fit(X, y)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    for predict in (fitted.predict, fitted.predict_set, fitted.predict_proba):
        with pytest.raises(TypeError, match="got the record source DatasetSource; pass an array"):
            predict(dp.sources.DatasetSource(pairs))
    assert fitted.predict(pairs).shape == (300,)


# ---- files


def test_a_loaded_module_is_not_fitted_by_the_recipe(tmp_path, store):
    X, y = records()
    torch.manual_seed(0)
    classifier(training(nn.Linear(4, 3))).fit(X, y).save(tmp_path / "m")
    loaded = dp.load(tmp_path / "m", module=nn.Linear(4, 3))
    assert isinstance(loaded.estimator, MissingEstimator)
    for again in (loaded, clone(loaded)):
        with pytest.raises(ValueError, match=r"set_params\(estimator=\.\.\.\)"):
            again.fit(X, y, budget=store)
    assert loaded.predict(X).shape == (300,)  # a refused fit leaves the loaded one
    loaded.save(tmp_path / "again")
    with pytest.raises(ValueError, match="not in its file"):
        ModelGame(dp.load(tmp_path / "again", module=nn.Linear(4, 3)))
    assert not store.ledger().entries
    loaded.set_params(estimator=training(nn.Linear(4, 3))).fit(X, y)


def test_a_loaded_recipe_is_fitted_again(tmp_path):
    X, y = records()
    for estimator, known in ((None, True), (DPSGD(steps=3), False)):
        classifier(estimator, feature_bounds=(-4, 4)).fit(X, y).save(tmp_path / "m")
        assert (dp.load(tmp_path / "m").estimator is None) == known
    classifier(None, feature_bounds=(-4, 4)).fit(X, y).save(tmp_path / "m")
    dp.load(tmp_path / "m").fit(X, y)


def test_a_bare_module_trains_where_its_parameters_are(monkeypatch):
    seen = []
    monkeypatch.setattr("dpscp.torch.trainer.released_module", lambda module, _: seen.append(module) or 1 / 0)
    X, y = np.random.default_rng(0).normal(size=(50, 6)), np.arange(50) % 2
    module = torch.nn.Linear(6, 2)
    with pytest.raises(ZeroDivisionError):
        dp.PrivateConformalClassifier(module, classes=[0, 1], n_records=50).fit(X, y)
    assert seen == [module]
    assert TorchDPSGD(module).device is None
