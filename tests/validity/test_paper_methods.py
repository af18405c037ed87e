"""Coverage of the methods of the paper: each trial draws fresh records and one new one, so that hits are binomial.

Full and split conformal have a known coverage on continuous data, r / (n + 1) with r = ceil((1 - alpha)(n + 1)), and
are held to it from both sides. Every bound leaves a chance of 1e-6 to fail although the promise holds.
"""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LinearRegression, Ridge

from dpscp.metrics import coverage
from dpscp.paper import CVPlus, DPSplit, FullConformal, JackknifePlus, NaiveFull
from dpscp.privacy import count_noise
from dpscp.training import DPSGD

ALPHA, CHANCE = 0.1, 1e-6


def least(trials, probability):
    return stats.binom.ppf(CHANCE, trials, probability)


def most(trials, probability):
    return stats.binom.isf(CHANCE, trials, probability)


def linear(rng, n, d):
    X = rng.normal(size=(n + 1, d))
    return X, X @ np.linspace(-1, 1, d) + rng.standard_t(4, size=n + 1)


def hits(make, draw, trials, seed):
    """How often the set of the last record holds its y."""
    rng = np.random.default_rng(seed)
    count = 0
    for trial in range(trials):
        X, y = draw(rng)
        model = make(trial).fit(X[:-1], y[:-1])
        if y.dtype.kind == "f":
            low, high = model.predict_interval(X[-1:])[1][0, :, 0]
            count += bool(low <= y[-1] <= high)
        else:
            count += bool(model.predict_set(X[-1:])[1][0, y[-1], 0])
    return count


@pytest.mark.parametrize(("n", "d"), [(24, 3), (40, 32)])
def test_full_conformal_covers_exactly(n, d, is_quick):
    trials, exact = 200 if is_quick else 600, math.ceil(0.9 * (n + 1)) / (n + 1)
    count = hits(lambda _: FullConformal(Ridge(0.3)), lambda rng: linear(rng, n, d), trials, 1)
    assert count >= least(trials, exact)
    if d < n / 2:  # otherwise the hull may add to the set
        assert count <= most(trials, exact)


@pytest.mark.slow
def test_naive_reuse_fails_where_the_others_hold():
    n, d, trials = 40, 30, 300
    draw = lambda rng: linear(rng, n, d)  # noqa: E731
    naive = hits(lambda _: NaiveFull(LinearRegression()), draw, trials, 3)
    jackknife = hits(lambda _: JackknifePlus(LinearRegression()), draw, trials, 3)
    folds = hits(lambda seed: CVPlus(Ridge(1e-6), n_folds=10, random_state=seed), draw, trials // 2, 3)
    assert naive <= most(trials, 0.6)
    assert jackknife >= least(trials, 1 - 2 * ALPHA)
    assert folds >= least(trials // 2, 1 - 2 * ALPHA - min(2 * 0.9 / 5, 0.75 / 11))


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
