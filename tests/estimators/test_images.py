"""Records with a shape of their own, and records as torch users bring them, through the estimators."""

import numpy as np
import pytest

import dpscp as dp
from dpscp.data.torch_records import inputs_of, labeled_arrays
from dpscp.training import DPSGD, TorchDPSGD

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
data = torch.utils.data

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
]

SETTINGS = {"epsilon": 8.0, "guarantee": "split", "accountant": "rdp", "random_state": 0, "n_records": 400}


def images(n=400):
    """Bright left or bright right half, (n, 1, 6, 6) in [0, 255]."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    X = rng.uniform(0, 120, size=(n, 1, 6, 6))
    X[y == 0, :, :, :3] += 135
    X[y == 1, :, :, 3:] += 135
    return X.astype(np.uint8), y


def net(outputs=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, outputs)
    )


def training(module=None, **options):
    return TorchDPSGD(module or net(), steps=20, sampling_rate=0.2, learning_rate=0.5, **options)


def classifier(estimator=None, **options):
    settings = {"classes": [0, 1], "feature_bounds": (0, 255), **SETTINGS, **options}
    return dp.PrivateConformalClassifier(estimator or training(), **settings)


def dark_corner(X):
    return (np.asarray(X)[:, 0, 0, 0] < 100).astype(int)


@pytest.fixture(scope="module")
def fitted():
    return classifier(groups=dp.Groups(dark_corner, values=[0, 1])).fit(*images())


def test_images_go_in_and_sets_come_out(fitted, tmp_path):
    X, y = images()
    labels, sets = fitted.predict_set(X)
    assert sets.shape == (400, 2, 1)
    assert (labels == y).mean() > 0.9
    assert dp.metrics.coverage(y, sets) > 0.8
    assert fitted.n_features_in_ == 36
    assert fitted.input_shape_ == (1, 6, 6)
    assert fitted.ledger_.public_facts["input_shape"] == (1, 6, 6)
    fitted.save(tmp_path / "m")
    loaded = dp.load(tmp_path / "m", module=net())
    loaded.groups = fitted.groups
    np.testing.assert_array_equal(loaded.predict_set(torch.from_numpy(X))[1], sets)
    for wrong in (X.reshape(400, 36), X[:, 0], X.transpose(0, 2, 3, 1)):
        with pytest.raises(ValueError, match=r"X must have records of shape \(1, 6, 6\), as in fit, got "):
            loaded.predict(wrong)


def test_tensors_and_data_sets_are_the_same_records(fitted):
    X, y = images()
    tensors = torch.from_numpy(X), torch.from_numpy(y)
    pairs = data.TensorDataset(*tensors)
    options = {"groups": dp.Groups(dark_corner, values=[0, 1])}
    for brought in (tensors, (pairs,)):
        again = classifier(**options).fit(*brought)
        np.testing.assert_array_equal(again.threshold_, fitted.threshold_)
    np.testing.assert_array_equal(fitted.predict_set(pairs)[1], fitted.predict_set(X)[1])


def test_what_cannot_work_is_refused_before_any_budget_is_reserved(tmp_path):
    X, y = images(40)
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=8.0, delta=1e-5, dataset="images")
    engine = type("Engine", (), {"accountant": type("History", (), {"history": [(4.0, 0.1, 5)]})})
    trained = dp.PrivateModel.from_opacus(net(3), engine, input_shape=(1, 6, 6), classes=(0, 1, 2))
    pair = dp.PrivateModel.from_opacus(net(2), engine, input_shape=(1, 6, 6))
    options = {"random_state": None, "n_records": 40}
    for estimator, told in (
        (training(net(3)), "one output for each of the 2 classes"),
        (trained, "one output for each declared class"),
        (DPSGD(steps=3), "Expected 2D array for X"),
        (None, "Expected 2D array for X"),
        (dp.PrivateModel.from_opacus(net(2), engine, input_shape=(1, 6, 6), classes=(0, 1)), r"shape \(1, 6, 6\), got"),
    ):
        made = dp.PrivateConformalClassifier(estimator, classes=[0, 1], **SETTINGS | options)
        with pytest.raises(ValueError, match=told):
            made.fit(X[:, 0] if told.endswith("got") else X, y, budget=store)
    with pytest.raises(ValueError, match="needs a model with one output, but this one has 2"):
        dp.PrivateConformalRegressor(pair, y_bounds=(0, 1), conformity_score="absolute", **SETTINGS | options).fit(
            X, y, budget=store
        )
    with pytest.raises(ValueError, match=r"two numbers \(low, high\), for records of"):
        classifier(feature_bounds=(np.zeros(36), np.ones(36)), **options).fit(X, y, budget=store)
    assert not store.ledger().entries


class Stream(data.IterableDataset):
    def __iter__(self):
        return ((torch.full((2,), float(i)), i) for i in range(3000))


def test_loaders_streams_and_items_that_do_not_fit():
    for brought in (data.DataLoader(data.TensorDataset(torch.zeros(5, 2), torch.zeros(5))), Stream()):
        for read in (inputs_of, lambda given: labeled_arrays(given, None)):
            with pytest.raises(TypeError, match="is not read, because batches are drawn privately"):
                read(brought)
    lone = data.TensorDataset(torch.zeros(5, 2))
    with pytest.raises(ValueError, match="must be a pair"):
        labeled_arrays(lone, None)
    with pytest.raises(ValueError, match="y must be left out"):
        labeled_arrays(lone, np.zeros(5))
    table = [[1.0, 2.0]]
    assert inputs_of(table) is table
