"""Coverage of the methods of the paper: each trial draws fresh records and one new one, so that hits are binomial.

Full and split conformal have a known coverage on continuous data, r / (n + 1) with r = ceil((1 - alpha)(n + 1)), and
are held to it from both sides. Every bound leaves a chance of 1e-6 to fail although the promise holds.
"""

import math

import numpy as np
import pytest
from scipy import stats

from dpscp.metrics import coverage
from dpscp.paper import DPSplit
from dpscp.privacy import count_noise
from dpscp.training import DPSGD

ALPHA, CHANCE = 0.1, 1e-6


@pytest.mark.parametrize("split", ["independent", "exact"])
def test_dp_split_ends_within_its_noise_of_the_target(split):
    """The threshold's rank is off by the largest noise at most, so its coverage is off by that over n_cal."""
    n, trials, steps, epsilon = 6000, 10, 20, 1.0
    rng = np.random.default_rng(8)

    def draw(size):
        X = rng.normal(size=(size, 3))
        return X, (X[:, 0] + 0.7 * rng.normal(size=size) > 0).astype(int)

    mechanism = DPSGD(classes=(0, 1), steps=30, learning_rate=2.0)
    X_new, y_new = draw(20_000)
    covered = []
    for trial in range(trials):
        model = DPSplit(mechanism, epsilon=epsilon, delta=1e-5, steps=steps, split=split, random_state=trial)
        covered.append(coverage(y_new, model.fit(*draw(n)).predict_set(X_new)[1][..., 0]))
    noise = count_noise(epsilon, 1e-5, steps) * stats.norm.isf(CHANCE / (2 * steps * trials))
    # the halves, the calibration scores and the new records each add a normal part
    spread = math.sqrt(ALPHA * (1 - ALPHA) * (1 / (trials * n * 0.45) + 1 / len(y_new))) * stats.norm.isf(CHANCE / 2)
    assert abs(np.mean(covered) - (1 - ALPHA)) <= noise / (0.45 * n) + spread
