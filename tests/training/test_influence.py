"""Result D: corrected outputs against exact retraining, and what each of them depends on."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from dpscp.training import DPSGD, NormClip, Preprocessed, UnitNorm
from dpscp.training.engine.influence import corrected_outputs
from dpscp.training.engine.rows import unit_targets
from dpscp.training.model import softmax
from dpscp.training.preprocessing.rescaled import ScaledTarget


@functools.cache
def records(n=120, d=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = 1.5 * rng.normal(size=(k, d))[y] + rng.normal(size=(n, d))
    return X, y


BASE = DPSGD(
    classes=(0, 1, 2), steps=60, learning_rate=1.0, clip_norm=20.0, noise_multiplier=0.02, dtype="float64",
    keep_trajectory=True,
)  # fmt: skip
VARIANTS = {
    "plain": {},
    "clipped": {"clip_norm": 0.8},
    "momentum": {"momentum": 0.6, "learning_rate": 0.4},
    "averaged": {"averaging": 0.5, "schedule": "linear"},
    "no intercept": {"fit_intercept": False},
    "logistic": {"classes": (0, 1), "loss": "logistic"},
    "squared": {"loss": "squared", "classes": None, "learning_rate": 0.05},
    "huber": {"loss": "huber", "classes": None, "learning_rate": 0.1},
}


def setting(name):
    mechanism = replace(BASE, **VARIANTS[name])
    X, y = records()
    if name == "logistic":
        y = (y > 0).astype(int)
    if mechanism.task == "regression":
        y = X @ np.array([1.0, -1.0, 0.5, 0.0]) + y
    return mechanism, X, y


def retrained(mechanism, X, y, i):
    """Outputs of record i under training without it: same noise, same public constants."""
    keep = np.arange(len(X)) != i
    return mechanism.train(X[keep], y[keep], random_state=0, n_records=len(X)).model.outputs(X[[i]])[0]


def slope_and_likeness(mechanism, X, y, **options):
    """The corrected shift of every sixth record against that of exact retraining, for each trajectory asked for."""
    trained = mechanism.train(X, y, random_state=0)
    index = list(range(0, len(X), 6))
    plain = trained.model.outputs(X)
    exact = np.array([retrained(mechanism, X, y, i) for i in index]) - plain[index]
    for trajectory in (trained.trajectory, replace(trained.trajectory, row_length=None)):
        shift = (corrected_outputs(trained.model, trajectory, X, y, **options) - plain)[index]
        yield (shift * exact).sum() / (exact**2).sum(), np.corrcoef(shift.ravel(), exact.ravel())[0, 1]


@pytest.mark.parametrize("name", VARIANTS)
def test_correction_points_where_exact_retraining_goes(name):
    """Short steps: the first-order shift is nearly all of the true one; a factor 2 or a missing clip would show."""
    mechanism, X, y = setting(name)
    mechanism = replace(mechanism, steps=6, learning_rate=mechanism.learning_rate / 50)
    slope, likeness = next(slope_and_likeness(mechanism, X, y))
    assert 0.95 < slope < 1.2
    assert likeness > 0.98


@pytest.mark.parametrize("name", ["plain", "averaged", "logistic", "squared", "huber"])
def test_correction_errs_on_the_safe_side_on_long_runs(name):
    """Without the others' response the shift is too long, not too short: corrected scores are conservative."""
    mechanism, X, y = setting(name)
    slope, likeness = next(slope_and_likeness(replace(mechanism, feature_bound=1.0), X, y))
    assert slope > 1.0
    assert likeness > 0.8


@pytest.mark.parametrize("name", ["clipped", "momentum", "no intercept", "logistic", "huber"])
def test_the_response_of_the_others_takes_off_what_is_too_much(name):
    """Rows of one length: much of the excess is gone, and the shift is still not shorter than that of retraining."""
    mechanism, X, y = setting(name)
    options = {"y_bounds": (-2.0, 3.0)} if mechanism.task == "regression" else {}
    (slope, likeness), (without, _) = slope_and_likeness(Preprocessed((UnitNorm(),), mechanism), X, y, **options)
    assert 1.0 <= slope < 1 + 0.75 * (without - 1)
    assert likeness > 0.9


def test_corrected_scores_cover_their_level_where_plain_ones_do_not():
    """2,000 records in 400 dimensions, trained hard. Plain scores cover about .85; without the response it was .95."""
    fits, n, fresh = 2, 2000, 3000
    rng = np.random.default_rng(4)
    means = rng.normal(size=(4, 400))
    means *= 2.5 / np.linalg.norm(means, axis=1, keepdims=True)
    mechanism = Preprocessed(
        (UnitNorm(),),
        DPSGD(classes=(0, 1, 2, 3), steps=100, learning_rate=40.0, noise_multiplier=20.0, keep_trajectory=True),
    )
    covered = []
    for seed in range(fits):
        y = rng.integers(0, 4, n + fresh)
        X = means[y] + rng.normal(size=(n + fresh, 400))
        trained = mechanism.train(X[:n], y[:n], random_state=seed)
        plain = trained.model.outputs(X)
        one_off = corrected_outputs(trained.model, trained.trajectory, X[:n], y[:n])
        longer = corrected_outputs(trained.model, replace(trained.trajectory, row_length=None), X[:n], y[:n])
        scores = [1 - softmax(z)[np.arange(len(z)), y[: len(z)]] for z in (plain, plain[:n], one_off, longer)]
        new = scores[0][n:]
        covered.append([np.mean(new <= np.quantile(seen, 0.9, method="higher")) for seen in scores[1:]])
    uncorrected, corrected, unanswered = np.mean(covered, axis=0)
    tolerance = 4 * np.sqrt(0.09 / fits * (1 / n + 1 / fresh))
    assert abs(corrected - 0.9) < tolerance
    assert uncorrected < 0.9 - tolerance
    assert unanswered > 0.9 + tolerance


@pytest.mark.parametrize("name", ["plain", "clipped", "squared"])
def test_changing_one_record_changes_only_its_own_correction(name):
    """Given the released trajectory a corrected score is a function of its own record: a count keeps sensitivity 1."""
    mechanism, X, y = setting(name)
    trained = mechanism.train(X, y, random_state=0)
    before = corrected_outputs(trained.model, trained.trajectory, X, y)
    X2, y2 = X.copy(), y.copy()
    X2[17], y2[17] = -5 * X[17], y[18]
    after = corrected_outputs(trained.model, trained.trajectory, X2, y2)
    changed = np.flatnonzero(np.abs(before - after).max(axis=1) > 1e-12)
    np.testing.assert_array_equal(changed, [17])
    subset = corrected_outputs(trained.model, trained.trajectory, X[5:9], y[5:9])
    np.testing.assert_allclose(subset, before[5:9], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("outside", ["scaling", "preprocessing"])
def test_models_of_scaled_targets_are_corrected_in_the_units_of_the_target(outside):
    mechanism, X, y = setting("squared")
    bounds = (-12.0, 20.0)
    unit, y_unit = X / np.linalg.norm(X, axis=1, keepdims=True), unit_targets(y, bounds)
    wrapped = {
        "scaling": ScaledTarget(Preprocessed((UnitNorm(),), mechanism), bounds),
        "preprocessing": Preprocessed((UnitNorm(),), ScaledTarget(mechanism, bounds)),
    }[outside]
    outer, inner = wrapped.train(X, y, random_state=0), mechanism.train(unit, y_unit, random_state=0)
    trajectory = replace(inner.trajectory, row_length=1.0)
    expected = corrected_outputs(inner.model, trajectory, unit, y_unit, y_bounds=(-1.0, 1.0))
    found = corrected_outputs(outer.model, outer.trajectory, X, y, y_bounds=bounds)
    np.testing.assert_allclose(found, 4.0 + 16.0 * expected, rtol=1e-6)


@pytest.mark.parametrize(("steps", "length"), [((UnitNorm(),), 1.0), ((UnitNorm(), NormClip(0.5)), None), ((), 1.0)])
def test_only_preprocessing_that_gives_rows_a_length_says_so(steps, length):
    mechanism, X, y = setting("plain")
    nested = Preprocessed((UnitNorm(),), Preprocessed(steps, replace(mechanism, steps=2)))
    assert nested.train(X, y, random_state=0).trajectory.row_length == length


def test_refusals():
    mechanism, X, y = setting("plain")
    trained = mechanism.train(X, y, random_state=0)
    with pytest.raises(ValueError, match="keep_trajectory"):
        corrected_outputs(trained.model, None, X, y)
    with pytest.raises(ValueError, match="same number"):
        corrected_outputs(trained.model, trained.trajectory, X, y[:-1])
    adam = replace(mechanism, optimizer="adam", steps=3).train(X, y, random_state=0)
    with pytest.raises(ValueError, match="adam"):
        corrected_outputs(adam.model, adam.trajectory, X, y)
    net = replace(mechanism, hidden=(4,), steps=3).train(X, y, random_state=0)
    with pytest.raises(TypeError, match="hidden layers"):
        corrected_outputs(net.model, net.trajectory, X, y)
