"""A torch user with a small network: tensors in, a private network with certified sets out, saved and loaded."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dpscp as dp  # noqa: E402 (after the check for torch)
from dpscp.training import PrivateStandardize, TorchDPSGD  # noqa: E402


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 16, 2)
    )


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
