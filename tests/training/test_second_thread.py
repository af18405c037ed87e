"""A second thread draws noise ahead and shares products: nothing that is computed changes, and errors come through."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpscp import training as dp_training
from dpscp.training import DPSGD
from dpscp.training.engine import threads as engine_threads
from dpscp.training.engine.noise import GridNoise


@pytest.mark.parametrize(("rate", "width"), [(1.0, 40), (0.2, 40), (0.2, 300)])
def test_training_beside_a_second_thread_gives_the_same_bits(rate, width, monkeypatch):
    """Also of a network so wide that its noise is drawn in bulk."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 70)).astype(np.float32), rng.integers(0, 3, 300)
    mechanism = DPSGD(hidden=(width, 20), classes=(0, 1, 2), sampling_rate=rate, steps=40, noise_multiplier=1.0)
    monkeypatch.setattr(engine_threads, "_WORTH_A_THREAD", 1)
    drawn_by = set()
    plain = GridNoise.next
    monkeypatch.setattr(GridNoise, "next", lambda self: drawn_by.add(threading.current_thread().name) or plain(self))
    parameters = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            parameters.append(mechanism.train(X, y, random_state=3, n_records=300).model.parameters)
    np.testing.assert_array_equal(*parameters)
    assert {"MainThread", "dpscp_0"} == drawn_by
    assert all(not thread.name.startswith("dpscp_") for thread in threading.enumerate())


def test_a_torch_module_beside_a_second_thread_gets_the_same_bits(monkeypatch):
    torch = pytest.importorskip("torch")
    from dpscp.torch.release import Release

    monkeypatch.setattr(engine_threads, "_WORTH_A_THREAD", 1)
    drawn_by = set()
    plain = Release.draw
    monkeypatch.setattr(Release, "draw", lambda self: drawn_by.add(threading.current_thread().name) or plain(self))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 6)).astype(np.float32), rng.integers(0, 3, 300)
    mechanism = dp_training.TorchDPSGD(
        torch.nn.Linear(6, 3), classes=(0, 1, 2), sampling_rate=0.2, steps=9, noise_multiplier=1.0
    )
    outputs, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with threadpool_limits(threads, user_api="blas"):
                outputs.append(mechanism.train(X, y, random_state=3, n_records=300).model.outputs(X))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(*outputs)
    assert {"MainThread", "dpscp_0"} == drawn_by
    assert all(not thread.name.startswith("dpscp_") for thread in threading.enumerate())
