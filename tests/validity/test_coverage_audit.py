"""The coverage audit: distributions chosen to hurt, on which every certified guarantee must keep its level.

Coverage of a fit is estimated on fresh records and averaged over fits; the tolerance is four standard errors of that
average plus nothing. A control shows that the battery can fail: without a correction the same battery finds a miss.
"""

import math
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.privacy import gdp_mu
from dpscp.training import DPSGD

LEVEL = 0.9
N, FRESH = 600, 2000


def ties(rng, n):
    X = rng.integers(0, 2, size=(n, 2)).astype(float)
    return X, (X[:, 0] + (rng.random(n) < 0.2)).astype(int) % 2


def label_noise(rng, n):
    return rng.normal(size=(n, 5)), rng.integers(0, 3, n)


def one_class(rng, n):
    return rng.normal(size=(n, 3)), (rng.random(n) < 0.002).astype(int)


def overfitting(rng, n):
    X = rng.normal(size=(n, 60))
    return X, (X[:, 0] + 3 * rng.normal(size=n) > 0).astype(int)


def separable(rng, n):
    y = rng.integers(0, 2, n)
    return 5.0 * y[:, None] + 0.01 * rng.normal(size=(n, 2)), y


def atoms(rng, n):
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, np.where(rng.random(n) < 0.8, 0.0, X[:, 0])


def heavy_tails(rng, n):
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, X[:, 0] + rng.standard_cauchy(n)


def two_values(rng, n):
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, np.where(rng.random(n) < 0.905, 0.0, 1.0)


def outside_the_bounds(rng, n):
    X = rng.uniform(-1, 1, size=(n, 2))
    return X, 100 * X[:, 0]


CLASSIFICATION = {f.__name__: f for f in (ties, label_noise, one_class, overfitting, separable)}
REGRESSION = {f.__name__: f for f in (atoms, heavy_tails, two_values, outside_the_bounds)}
GUARANTEES = ("universal", "split", "stability")


def required(covered):
    """The mean may lie below the level by four of its standard errors."""
    spread = np.std(covered, ddof=1) / math.sqrt(len(covered))
    return LEVEL - 4 * max(spread, math.sqrt(LEVEL * (1 - LEVEL) / (FRESH * len(covered))))


def classifier(guarantee, labels, seed):
    hidden = DPSGD(hidden=(8,), steps=30, learning_rate=1.0) if guarantee != "stability" else None
    return dp.PrivateConformalClassifier(
        hidden,
        epsilon=2.0,
        guarantee=guarantee,
        classes=labels,
        feature_bounds=dp.RowNorm(4.0),
        random_state=seed,
    )


def mean_coverage(make, draw, fits):
    covered = []
    for seed in range(fits):
        rng = np.random.default_rng([seed, 9])
        X, y = draw(rng, N)
        fresh, truth = draw(rng, FRESH)
        model = make(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dp.GuaranteeWarning)
            model.fit(X, y)
        if hasattr(model, "predict_set"):
            sets = model.predict_set(fresh)[1][:, :, 0]
            covered.append(sets[np.arange(FRESH), np.searchsorted(model.classes_, truth)].mean())
        else:
            low, high = model.predict_interval(fresh)[1][:, :, 0].T
            covered.append(((low <= truth) & (truth <= high)).mean())
    return np.array(covered)


def check(name, guarantee, fits):
    def make(seed):
        if name in REGRESSION:
            return dp.PrivateConformalRegressor(
                epsilon=2.0, guarantee=guarantee, y_bounds=(-3, 3), feature_bounds=(-1, 1), random_state=seed
            )
        return classifier(guarantee, [0, 1, 2] if name == "label_noise" else [0, 1], seed)

    covered = mean_coverage(make, (CLASSIFICATION | REGRESSION)[name], fits)
    assert covered.mean() >= required(covered)


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("name", ["ties", "two_values"])
def test_certified_guarantees_keep_their_level(name, guarantee):
    check(name, guarantee, 4)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("name", [*CLASSIFICATION, *REGRESSION])
def test_in_many_fits(name, guarantee):
    check(name, guarantee, 25)


def hard_instance(guarantee, trials):
    """The paper's hard instance: a noisy histogram; every record has a cell of its own, a new one has none."""
    n, mu, rng = 3000, gdp_mu(1.0, 1e-5) / math.sqrt(2), np.random.default_rng(3)
    event, width = dp.privacy.gaussian_event(1 / mu), 12 / mu
    covered = []
    for _ in range(trials):
        scores = -(1 + rng.normal(size=n) / mu)
        found = dp.calibrate(
            scores, training=event, epsilon=1.0, delta=1e-5, alpha=1 - LEVEL, score_range=(-width, width),
            guarantee=guarantee, random_state=int(rng.integers(2**31)),
        )  # fmt: skip
        fresh = -rng.normal(size=FRESH) / mu
        covered.append((fresh <= found.threshold).mean())
    return np.array(covered)


def test_hard_instance():
    covered = hard_instance("universal", 20)
    assert covered.mean() >= required(covered)


def test_the_battery_can_fail():
    covered = hard_instance("asymptotic", 20)
    assert covered.mean() < required(covered)
