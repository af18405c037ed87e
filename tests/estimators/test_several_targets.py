"""Several real targets of a record: one threshold, intervals that contain all of them at once."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import dpscp as dp
from dpscp.core.tasks import JointRegression, Regression
from dpscp.data.schema import SchemaError
from dpscp.data.sources import Block
from dpscp.scores import interval_score
from dpscp.training.mechanisms import one_vs_rest
from dpscp.training.mechanisms.one_vs_rest import OneVsRest, SeveralTargets, residual_sums
from dpscp.training.model import FunctionModel

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
QUICK = dp.training.DPSGD(loss="huber", steps=25, learning_rate=0.3)
BOUNDS = ((-8.0, 8.0), (-150.0, 150.0))
COMMON = {"epsilon": 2.0, "delta": 1e-5, "y_bounds": BOUNDS, "feature_bounds": (-1, 1), "random_state": 0}


def data(n, seed=0):
    """Two targets of different units; the second one is predicted worse, in parts of its range."""
    rng = np.random.default_rng(seed)
    X, noise = rng.uniform(-1, 1, size=(n, 3)), rng.normal(size=(n, 2))
    return X, np.column_stack([X.sum(axis=1) + 0.3 * noise[:, 0], 50 * X[:, 0] + 10 * noise[:, 1]])


def fit(n=3_000, seed=0, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.PrivateConformalRegressor(**COMMON | {"estimator": QUICK} | options).fit(*data(n, seed))


@pytest.fixture(scope="module")
def fitted():
    return fit()


@pytest.mark.parametrize("score", ["absolute", "cqr", "normalized", "absolute_upper"])
def test_all_targets_are_inside_exactly_if_the_score_is_within_the_threshold(score):
    rng = np.random.default_rng(1)
    each = tuple(Regression(b, interval_score(score)) for b in BOUNDS)
    task = JointRegression(each, spreads=(0.3, 7.0))
    outputs = rng.normal(size=(500, task.n_targets * task.score_outputs)).round(1) * np.repeat(
        [1.0, 20.0], task.score_outputs
    )
    y = (rng.normal(size=(500, 2)) * [1, 20]).round(1)
    scores = task._own_scores(outputs, y)
    low, high = task.score_range
    assert ((low <= scores) & (scores <= high)).all()
    unit = (1.0, 1.0) if score == "normalized" else task.spreads
    assert high == max(own.score_range[1] / spread for own, spread in zip(each, unit, strict=True))
    for threshold in (-0.5, 0.3, *scores[:20], math.inf):
        _, intervals = task.answers(outputs, np.array([threshold]))
        inside = (intervals[:, :, 0, 0] <= y) & (y <= intervals[:, :, 1, 0])
        np.testing.assert_array_equal(inside.all(axis=1), scores <= threshold)
        np.testing.assert_array_equal(dp.metrics.covered(y, intervals)[:, 0], scores <= threshold)


def test_coverage_of_all_targets_together_is_proven_and_kept(is_quick):
    """Mean over fits within three standard errors of at least the level, and near it: one target alone has more."""
    X, y = data(10_000, 5)
    together, alone = [], []
    for seed in range(10 if is_quick else 40):
        model = fit(1_500, 100 + seed, random_state=seed, conformity_score="absolute", guarantee="split")
        intervals = model.predict_interval(X)[1]
        together.append(dp.metrics.coverage(y, intervals)[0])
        alone.append([dp.metrics.coverage(y[:, k], intervals[:, k])[0] for k in (0, 1)])
    assert model.certificate_.coverage == pytest.approx(0.9)
    error = np.std(together) / math.sqrt(len(together))
    assert 0.9 - 3 * error <= np.mean(together) < 0.95
    # the released spreads make both targets about as hard
    assert np.ptp(np.mean(alone, axis=0)) < 0.06


def test_the_spreads_are_paid_for_and_have_the_noise_of_their_sensitivity(fitted, monkeypatch):
    heads = OneVsRest(QUICK, 2)
    several = SeveralTargets(heads, BOUNDS).calibrated(2.0, 1e-5, accountant="rdp")
    spent = dp.Ledger().add("training", several.event)
    alone = dp.Ledger().add("training", several.mechanism.event)
    assert alone.epsilon(1e-5, accountant="rdp") < spent.epsilon(1e-5, accountant="rdp") <= 2.0
    assert [name for name, _ in several.stages] == ["training", "spread of the residuals"]
    scales = []

    def spy(total, noise, *others):
        scales.append(noise)
        return np.asarray(total)

    monkeypatch.setattr(one_vs_rest, "gaussian_release", spy)
    X, y = data(500)
    trained = several.train(X, y, random_state=0, n_records=500)
    assert scales[0] >= several.noise_multiplier * math.sqrt(2)
    # without its noise the spread is the mean residual; what noise alone would be is its least value
    exact = np.abs(y - trained.model.outputs(X)).mean(axis=0)
    least = 2 * scales[0] / 500 * np.array([8, 150])
    np.testing.assert_allclose(trained.found_privately["target_spread"], np.maximum(exact, least), rtol=1e-9)
    assert "target_spread" in fitted.ledger_.found_privately
    assert fitted.ledger_.epsilon(1e-5) <= 2.0


def test_one_record_adds_at_most_one_for_each_target():
    """Also where the model overflows."""
    model = FunctionModel(lambda X: np.where(X[:, :1] > 0, np.nan, 1.0) * np.ones((1, 2)), "regression", 1)
    for x in (-1.0, 1.0):
        block = Block(0, np.array([[x]]), np.array([[1e300, -1e300]]))
        assert residual_sums(block, model, BOUNDS).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    "options",
    [
        {"y_bounds": None},
        {"y_bounds": (-150, 150), "guarantee": "universal"},
        {"side": "lower", "clip_to_bounds": True, "confidence_level": [0.8, 0.9]},
        {"conformity_score": "cqr", "estimator": None, "epsilon": 8.0},
        {"guarantee": "corrected"},
    ],
)
def test_every_choice_covers_all_targets(options):
    model, (X, y) = fit(**options), data(5_000, 1)
    predictions, intervals = model.predict_interval(X)
    levels = len(model.certificates_)
    assert predictions.shape == (5_000, 2)
    assert intervals.shape == (5_000, 2, 2, levels)
    targets = [certificate.target for certificate in model.certificates_]
    assert (dp.metrics.coverage(y, intervals) > np.array(targets) - 0.05).all()
    assert np.shape(model.y_bounds_) == (2, 2)
    assert model.ledger_.epsilon(1e-5) <= model.epsilon


def test_later_steps_know_it(fitted, tmp_path):
    X, y = data(3_000, 2)
    fitted.save(tmp_path / "m")
    again = dp.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_interval(X)[1], fitted.predict_interval(X)[1])
    assert again.digest() == fitted.digest()
    found = dp.evaluate(again, X, y, epsilon=2.0, delta=1e-6, random_state=0)
    intervals = fitted.predict_interval(X)[1][:, :, :, 0]
    widths = np.minimum(intervals[:, :, 1] - intervals[:, :, 0], [16, 300]) / [16, 300]
    assert found.set_size.estimate == pytest.approx(widths.mean(), abs=0.02)
    assert found.coverage.estimate == pytest.approx(dp.metrics.coverage(y, intervals), abs=0.02)
    monitor = dp.CoverageMonitor(fitted, epsilon=1.0, delta=1e-6, follow=1.0, random_state=0)
    assert not monitor.update(X, y).alarm
    assert monitor.update(X, y + np.array([0, 200]), batch="later").threshold > fitted.threshold_[0]
    moved = dp.recalibrate(fitted, X, y + np.array([0, 20]), epsilon=1.0, delta=1e-6, random_state=0)
    assert moved.threshold_[0] > fitted.threshold_[0]
    fitted.report(tmp_path / "r.html", X, y)
    json.dumps(fitted.statement())
    assert fitted.score(X, y) > 0.8
    assert list(fitted.predict_columns(X[:2]))[:3] == ["prediction 0", "lower 0", "upper 0"]


COLUMNS = {name: {"type": "numeric", "bounds": [-1, 1]} for name in "abc"}
TARGETS = {name: {"type": "numeric", "bounds": list(b)} for name, b in zip("yz", BOUNDS, strict=True)}


def test_a_schema_names_several_targets(tmp_path):
    X, y = data(2_000)
    table = pd.DataFrame(np.column_stack([X, y]), columns=list("abcyz"))
    table.to_csv(tmp_path / "t.csv", index=False)
    declared = {"task": "regression", "targets": ["y", "z"], "n_records": 2_000}
    schema = dp.Schema.from_dict(declared | {"columns": COLUMNS | TARGETS})
    assert dp.Schema.from_dict(schema.to_dict()) == schema
    model = dp.PrivateConformalRegressor(QUICK, epsilon=2.0, random_state=0)
    for source in (table, tmp_path / "t.csv"):
        model.fit(source, ["y", "z"], schema=schema)
        assert model.y_bounds_ == BOUNDS
        assert dp.metrics.coverage(y, model.predict_interval(table)[1])[0] > 0.85
    model.predict_file(tmp_path / "t.csv", tmp_path / "p.csv")
    assert {"prediction y", "lower z", "upper z"} <= set(pd.read_csv(tmp_path / "p.csv"))
    model.report(tmp_path / "r.html")
    assert "y, z" in (tmp_path / "r.html").read_text()
    half = {"y": TARGETS["y"], "z": {"type": "numeric"}}
    with pytest.raises(SchemaError, match="some targets have bounds"):
        model.fit(table, ["y", "z"], schema=dp.Schema.from_dict(declared | {"columns": COLUMNS | half}))


def test_a_model_from_elsewhere_predicts_all_targets():
    X, y = data(1_500, 3)
    options = {"estimator": dp.Prefit(LinearRegression().fit(*data(500, 4))), "feature_bounds": None}
    model = fit(**options)
    assert 0.85 < dp.metrics.coverage(y, model.predict_interval(X)[1])[0] < 0.96
    with pytest.raises(ValueError, match="trained elsewhere need y_bounds"):
        fit(**options, y_bounds=None)


def test_other_targets_are_refused(fitted):
    X, y = data(200, 3)
    for wrong in (y[:, 0], np.column_stack([y, y])):
        with pytest.raises(ValueError, match="y must have 2 columns"):
            dp.evaluate(fitted, X, wrong, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="1d array"):
        dp.PrivateConformalClassifier().fit(X, y)
