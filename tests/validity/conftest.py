from pathlib import Path

import numpy as np
import pytest

from dpscp.privacy import LatticeNoise


def pytest_collection_modifyitems(items):
    """Thousands of repetitions of lines that other tests run too: tracing them would take half as long again."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("no_cover")


@pytest.fixture(scope="session")
def pool():
    """Draws of the discrete Gaussian at scale 4096, from a table of its probabilities, in units of the scale."""
    support = np.arange(-40_960, 40_961)
    weights = np.exp(-((support / 4096) ** 2) / 2)
    return np.random.default_rng(31).choice(support, 400_000, p=weights / weights.sum()) / 4096


@pytest.fixture
def fast_noise(monkeypatch, pool):
    """Noise of every search from the pool; drawn one at a time it would take most of a simulation."""
    rng = np.random.default_rng(5)
    monkeypatch.setattr(
        LatticeNoise, "sample", lambda self, size, _: [round(z * self.sigma) for z in rng.choice(pool, size)]
    )
