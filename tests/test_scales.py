"""Scales of columns and targets: intervals come back in units, and targets outside a scale are never told."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dpscp as dp
from dpscp.data.columns import Column
from dpscp.data.feature_bounds import FeatureBounds
from dpscp.data.scales import SCALES, check_scale, column_scales, finite_on_scale, from_scale, to_scale
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources import ArraySource
from dpscp.pipeline.tasks import Regression
from dpscp.scores import interval_score
from dpscp.training.preprocessing.sums import ColumnScales
from dpscp.training.preprocessing.transforms import ScaleTransform
from dpscp.training.private_model import PrivateModel


def costs(n=3000, seed=0):
    """Targets over several orders of magnitude, whose logarithm is linear in the features."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, np.exp(2 * X[:, 0] + X[:, 1] + 0.3 * rng.normal(size=n) + 3)


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_is_monotone_and_comes_back(scale):
    low = {"linear": -5.0, "log": 1e-3, "log1p": 0.0}[scale]
    values = np.linspace(low, 100.0, 201)
    scaled = to_scale(values, scale)
    assert (np.diff(scaled) > 0).all()
    assert_allclose(from_scale(scaled, scale), values, atol=1e-12)
    assert check_scale("s", scale, (low, 1.0)) == scale
    assert from_scale([-np.inf, np.inf], scale).tolist() == [-np.inf, np.inf]


def test_numbers_outside_a_scale_are_told_by_no_message():
    assert to_scale([-1.0, 0.0, 1.0], "log").tolist() == [-np.inf, -np.inf, 0.0]
    assert to_scale([-2.0, -1.0, 0.0], "log1p").tolist() == [-np.inf, -np.inf, 0.0]
    for scale in SCALES:
        assert np.isfinite(finite_on_scale([-1e300, -1.0, 0.0, 5e-324, 1e300], scale)).all()
    for scale, bounds in (("log", (0.0, 1.0)), ("log1p", (-1.0, 1.0))):
        with pytest.raises(ValueError, match="needs a lower bound above"):
            check_scale("y_scale", scale, bounds)
    with pytest.raises(ValueError, match="y_scale"):
        check_scale("y_scale", "sqrt", None)


@pytest.mark.parametrize("score", ["absolute", "cqr", "normalized"])
def test_a_target_is_in_its_interval_exactly_if_its_score_is_within_the_threshold(score):
    rng = np.random.default_rng(1)
    task = Regression((0.5, 2000.0), interval_score(score), y_scale="log")
    outputs = rng.uniform(-1, 8, size=(400, 2 if score != "absolute" else 1))
    y = np.concatenate([np.exp(rng.uniform(-2, 9, 380)), [-1.0, 0.0, -1e300, 1e300] * 5])
    scores = task._of_targets(y, outputs)
    for threshold in (-0.5, 0.7, 2.0, 5.0):
        low, high = task.intervals(task.pair(outputs), np.array([threshold]))[:, :, 0].T
        assert_array_equal((low <= y) & (y <= high), scores <= threshold)
    # full sets hold everything, also where the scale is not defined
    low, high = task.intervals(task.pair(outputs), np.array([np.inf]))[:, :, 0].T
    assert ((low <= y) & (y <= high)).all()


def test_training_and_scores_use_the_scale_and_facts_the_units(tmp_path):
    X, y = costs()
    reg = dp.PrivateConformalRegressor(
        epsilon=4.0, y_bounds=(0.1, 5000), y_scale="log", feature_bounds=(-1, 1), random_state=0
    ).fit(X[:2000], y[:2000])
    prediction, intervals = reg.predict_interval(X[2000:])
    assert (prediction > 0).all()
    assert reg.y_bounds_ == (0.1, 5000)
    assert reg.ledger_.public_facts["y_scale"] == "log"
    assert tuple(reg.ledger_.public_facts["y_bounds"]) == (0.1, 5000)
    width = intervals[:, 1, 0] - intervals[:, 0, 0]
    # intervals of one width in logarithms grow with the target
    assert np.corrcoef(np.log(width), np.log(prediction))[0, 1] > 0.5
    assert dp.metrics.coverage(y[2000:], intervals[:, :, 0]) > 0.9 - 4 * np.sqrt(0.09 / 1000)
    assert_array_equal(reg.predict(X[2000:]), prediction)
    reg.save(tmp_path / "model.dpscp")
    assert_array_equal(dp.load(tmp_path / "model.dpscp").predict_interval(X[2000:])[1], intervals)
    with pytest.raises(ValueError, match="y_scale"):
        dp.PrivateConformalRegressor(y_bounds=(0, 5000), y_scale="log", random_state=0).fit(X, y)
    model = PrivateModel.from_outputs(
        lambda rows: rows[:, :1], spent=dp.privacy.gaussian_event(4.0), task="regression", n_features=3
    )
    with pytest.raises(ValueError, match="need training in this fit"):
        dp.PrivateConformalRegressor(model, y_bounds=(1, 5000), y_scale="log", random_state=0).fit(X, y)


def test_a_fit_that_measures_itself_does_so_in_units():
    X, y = costs(4000)
    reg = dp.PrivateConformalRegressor(
        epsilon=8.0, y_bounds=(1, 1000), y_scale="log", feature_bounds=(-1, 1), evaluation_fraction=0.3, random_state=0
    ).fit(X[:3000], y[:3000])
    prediction, intervals = reg.predict_interval(X[3000:])
    width = np.minimum(intervals[:, 1, 0] - intervals[:, 0, 0], 999).mean()
    error = np.abs(prediction - y[3000:])
    # two samples of about 1,000 records, and noise: five standard errors
    assert reg.evaluation_.set_size.estimate == pytest.approx(width, rel=0.3)
    assert reg.evaluation_.mean_absolute_error.estimate == pytest.approx(
        error.mean(), abs=5 * error.std() / np.sqrt(900) + 0.1 * error.mean()
    )


@pytest.mark.parametrize("scale", [None, "log"])
def test_the_range_of_the_target_may_be_left_out(scale):
    X, y = costs(2000)
    y[:3] = (-5.0, 0.0, 1e300)  # outside the scale, and outside every range: the fit says nothing of them
    settings = {"epsilon": 4.0, "feature_bounds": (-1, 1), "y_scale": scale, "random_state": 0}
    found = dp.PrivateConformalRegressor(**settings, guarantee="universal").fit(X, y)
    assert [entry.stage for entry in found.ledger_.entries] == ["bounds", "training", "calibration"]
    low, high = found.y_bounds_
    assert low < np.quantile(y, 0.1)
    assert np.quantile(y, 0.9) < high < 1e9
    assert "y_bounds" in found.ledger_.public_facts["found_privately"]
    assert np.isfinite(found.predict(X)).all()
    blocks = dp.PrivateConformalRegressor(**settings, guarantee="universal").fit(ArraySource(X, y, n_blocks=3))
    assert blocks.y_bounds_ == found.y_bounds_
    with pytest.raises(ValueError, match="clip_to_bounds"):
        dp.PrivateConformalRegressor(**settings, clip_to_bounds=True).fit(X, y)


@pytest.mark.parametrize("bounds", [([-1, -1, 1e-4], [1, 1, 1e4]), "private"])
def test_a_feature_on_its_scale_is_the_logarithm_that_a_caller_would_take(bounds):
    X, y = costs(1200)
    wide = X.copy()
    wide[:, 2] = np.exp(5 * X[:, 2])
    wide[0, 2] = -3.0  # where the scale is not defined
    logs = wide.copy()
    logs[:, 2] = finite_on_scale(wide[:, 2], "log")
    by_hand = bounds if isinstance(bounds, str) else ([-1, -1, np.log(1e-4)], [1, 1, np.log(1e4)])
    settings = {"epsilon": 2.0, "y_bounds": (0, 5000), "guarantee": "universal", "random_state": 0}
    scaled = dp.PrivateConformalRegressor(**settings, feature_bounds=bounds, feature_scale={2: "log"}).fit(wide, y)
    own = dp.PrivateConformalRegressor(**settings, feature_bounds=by_hand).fit(logs, y)
    assert_array_equal(scaled.predict_interval(wide)[1], own.predict_interval(logs)[1])
    assert tuple(scaled.ledger_.public_facts["feature_scale"]) == ("linear", "linear", "log")
    assert [entry.stage for entry in scaled.ledger_.entries] == [entry.stage for entry in own.ledger_.entries]
    assert scaled.ledger_.event == own.ledger_.event
    again = type(scaled.model_).from_parts(scaled.model_.config(), scaled.model_.arrays())
    assert_array_equal(again.outputs(wide), scaled.model_.outputs(wide))


def test_scales_of_features_are_checked_before_anything_is_spent():
    X, y = costs(60)

    def fit(**changes):
        return dp.PrivateConformalRegressor(y_bounds=(0, 5000), random_state=0, **changes).fit(X, y)

    with pytest.raises(ValueError, match="no such column"):
        fit(feature_scale={7: "log"})
    with pytest.raises(ValueError, match=r"feature_scale\[0\]"):
        fit(feature_scale="log", feature_bounds=(0, 1))
    with pytest.raises(ValueError, match="one scale for each"):
        ColumnScales(("log",)).fit(X, n_records=60, rng=None)
    assert column_scales("linear", 3, None, None) is None
    assert column_scales("log1p", 2, ["a", "b"], FeatureBounds(0.0, np.ones(2))) == ("log1p", "log1p")
    assert column_scales("log", 2, None, FeatureBounds(-1.0, 1.0, (0, 1))) == ("log", "log")
    bad = np.full((1, 2), np.nan)
    assert np.isnan(ScaleTransform(("log", "linear")).apply(bad)).all()


def test_a_schema_declares_scales(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y = costs(1500)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "dose": np.exp(4 * X[:, 2]), "cost": y})
    text = """
        task = "regression"
        target = "cost"
        bounds = [0.1, 5000]
        scale = "log"
        [columns.a]
        type = "numeric"
        bounds = [-1, 1]
        [columns.b]
        type = "numeric"
        bounds = [-1, 1]
        [columns.dose]
        type = "numeric"
        bounds = [0, 100]
        scale = "log1p"
        missing = "indicator"
    """
    path = tmp_path / "schema.toml"
    path.write_text(text)
    schema = Schema.read(path)
    assert Schema.from_dict(schema.to_dict()) == schema
    path.write_text(schema.to_toml())
    assert Schema.read(path) == schema
    assert_allclose(schema.matrix(frame)[:, 2], np.clip(frame["dose"], 0, 100))
    assert schema.feature_bounds[1].tolist() == [1, 1, 100, 1]
    reg = dp.PrivateConformalRegressor(epsilon=4.0, random_state=0).fit(frame, "cost", schema=schema)
    facts = reg.ledger_.public_facts
    assert facts["y_scale"] == "log"
    assert facts["feature_scale"] == ("linear", "linear", "log1p", "linear")
    assert facts["feature_bounds"] == ((-1, -1, 0, 0), (1, 1, 100, 1))
    rows = schema.matrix(frame)
    declared = {"feature_scale": {2: "log1p"}, "feature_bounds": schema.feature_bounds, "y_scale": "log"}
    same = dp.PrivateConformalRegressor(epsilon=4.0, random_state=0, y_bounds=(0.1, 5000), **declared)
    scaled = schema.matrix(frame[:20])
    assert_allclose(same.fit(rows, y).model_.outputs(scaled), reg.model_.outputs(scaled), rtol=0.2)
    with pytest.raises(ValueError, match="feature_scale is declared by the schema"):
        dp.PrivateConformalRegressor(feature_scale={"a": "log"}, random_state=0).fit(frame, "cost", schema=schema)
    assert (reg.predict(frame) > 0).all()
    with pytest.raises(ValueError, match="y_scale is declared by the schema"):
        dp.PrivateConformalRegressor(y_scale="log1p", random_state=0).fit(frame, "cost", schema=schema)
    with pytest.raises(SchemaError, match="lower bound above 0"):
        Column("dose", "numeric", (0.0, 1.0), scale="log")
    with pytest.raises(SchemaError, match="scale of column 'sex' is for numbers"):
        Column("sex", "categorical", categories=("f", "m"), scale="log")
    with pytest.raises(SchemaError, match="for the target of a regression"):
        Schema("classification", "y", (), ("a", "b"), scale="log")
