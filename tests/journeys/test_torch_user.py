"""A torch user with a small network: tensors in, a private network with certified sets out, saved and loaded."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dpscp as dp  # noqa: E402 (after the check for torch)
from dpscp.training import PrivateStandardize, TorchDPSGD  # noqa: E402


def pictures(n, seed):
    """Noisy 6 x 6 pictures with a bright upper or lower half."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    images = rng.normal(0, 0.5, size=(n, 1, 6, 6)).astype("float32")
    images[label == 1, :, :3] += 0.8
    return images, label


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 16, 2)
    )


def test_a_network_becomes_a_release_and_comes_back_from_its_file(tmp_path):
    (X, y), (new, truth) = pictures(1500, 0), pictures(500, 1)
    training = TorchDPSGD(network(), steps=20, sampling_rate=0.2, learning_rate=0.5)
    clf = dp.PrivateConformalClassifier(training, epsilon=3.0, classes=[0, 1], accountant="rdp", n_records=1500)
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    clf.fit(data)
    assert clf.ledger_.is_private
    assert clf.certificate_.is_certified
    assert any("torch module" in text.sentence for text in clf.ledger_.assumptions)
    labels, sets = clf.predict_set(torch.from_numpy(new))
    assert (labels == truth).mean() > 0.8
    assert sets[np.arange(500), truth, 0].mean() > 0.83
    clf.save(tmp_path / "net.dpscp")
    loaded = dp.load(tmp_path / "net.dpscp", module=network())
    np.testing.assert_array_equal(loaded.predict_set(new)[1], sets)
    assert loaded.statement()["is_private"]


def test_a_network_behind_a_private_step():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    y = rng.integers(0, 2, 1500)
    X = (rng.normal(size=(1500, 4)) + 2 * y[:, None]) * [1, 5, 10, 20]
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    steps = [PrivateStandardize(-100, 100), TorchDPSGD(net, steps=15, sampling_rate=0.2, learning_rate=0.5)]
    clf = dp.PrivateConformalClassifier(steps, epsilon=3.0, classes=[0, 1], accountant="rdp", n_records=1500).fit(X, y)
    assert clf.ledger_.epsilon(1e-5, "rdp") <= 3.0
    assert any("torch module" in text.sentence for text in clf.ledger_.assumptions)
    assert clf.score(X, y) > 0.8
