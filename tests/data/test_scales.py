"""Scales of columns and targets: intervals come back in units, and no message reports targets outside a scale."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dpscp as dp
from dpscp.core.tasks import FOUND_RANGE, Regression
from dpscp.data.columns import Column
from dpscp.data.feature_bounds import column_bounds
from dpscp.data.scales import SCALES, check_scale, finite_on_scale, from_scale, to_scale
from dpscp.data.schema import Schema, SchemaError
from dpscp.data.sources import ArraySource, Block
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import lattice_noise
from dpscp.scores import interval_score
from dpscp.training import DPSGD, PrivateBounds
from dpscp.training.model import PrivateModel
from dpscp.training.preprocessing.steps import ColumnScales


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


def test_no_message_reports_numbers_outside_a_scale():
    assert to_scale([-1.0, 0.0, 1.0], "log").tolist() == [-np.inf, -np.inf, 0.0]
    assert to_scale([-2.0, -1.0, 0.0], "log1p").tolist() == [-np.inf, -np.inf, 0.0]
    for scale in SCALES:
        assert np.isfinite(finite_on_scale([-1e300, -1.0, 0.0, 5e-324, 1e300], scale)).all()
    for scale, bounds, remedy in (("log", (0.0, 1.0), "log1p"), ("log1p", (-1.0, 1.0), "linear")):
        with pytest.raises(ValueError, match=f"needs a lower bound above .* use '{remedy}'"):
            check_scale("y_scale", scale, bounds)
    with pytest.raises(ValueError, match="y_scale"):
        check_scale("y_scale", "sqrt", None)


@pytest.mark.parametrize("score", ["absolute", "cqr", "normalized"])
def test_a_target_is_in_its_interval_exactly_if_its_score_is_within_the_threshold(score):
    rng = np.random.default_rng(1)
    task = Regression((0.5, 2000.0), interval_score(score), y_scale="log")
    outputs = rng.uniform(-1, 8, size=(400, 2 if score != "absolute" else 1))
    y = np.concatenate([np.exp(rng.uniform(-2, 9, 380)), [-1.0, 0.0, -1e300, 1e300] * 5])
    scores = task._own_scores(outputs, y)
    for threshold in (-0.5, 0.7, 2.0, 5.0):
        low, high = task.answers(outputs, np.array([threshold]))[1][:, :, 0].T
        assert_array_equal((low <= y) & (y <= high), scores <= threshold)
    # full sets hold everything, also where the scale is not defined
    low, high = task.answers(outputs, np.array([np.inf]))[1][:, :, 0].T
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
    # the new records are a sample, and so are those that were held out
    held_out = 2000 * reg.ledger_.public_facts["calibration_fraction"]
    assert dp.metrics.coverage(y[2000:], intervals[:, :, 0]) > 0.9 - 4 * np.sqrt(0.09 / 1000 + 0.09 / held_out)
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


@pytest.mark.parametrize("scale", [None, "log"])
def test_the_range_of_the_target_may_be_left_out(scale):
    X, y = costs(2000)
    y[:3] = (-5.0, 0.0, 1e300)  # outside the scale, and outside every range: the fit says nothing of them
    settings = {"epsilon": 4.0, "feature_bounds": (-1, 1), "y_scale": scale, "random_state": 0}
    found = dp.PrivateConformalRegressor(**settings, guarantee="universal").fit(X, y)
    stages = ["bounds", "scale of the target", "quantiles of the features", "training", "calibration"]
    assert [entry.stage for entry in found.ledger_.entries] == stages
    low, high = found.y_bounds_
    assert low < np.quantile(y, 0.1)
    assert np.quantile(y, 0.9) < high < 1e9
    assert "y_bounds" in found.ledger_.found_privately
    assert np.isfinite(found.predict(X)).all()
    blocks = dp.PrivateConformalRegressor(**settings, guarantee="universal").fit(ArraySource(X, y, n_blocks=3))
    assert blocks.y_bounds_ == found.y_bounds_
    with pytest.raises(ValueError, match="clip_to_bounds"):
        dp.PrivateConformalRegressor(**settings, clip_to_bounds=True).fit(X, y)


TRAINING = DPSGD(steps=5, loss="squared").with_noise(3.0)


def bounds_on(scale):
    return PrivateBounds(TRAINING, target=True, target_scale=scale, noise=lattice_noise(1.0))


def test_targets_outside_the_scale_do_not_widen_the_range():
    """They have the worst score whatever the range is, so the range is that of the others."""
    X, y = costs(3000)
    inside = y.copy()
    y[::20] = np.where(np.arange(150) % 2, 0.0, -7.0)
    bounds = bounds_on("log")

    def counts(targets):
        return bounds.counts(Block(0, X, finite_on_scale(targets, "log")))

    inside[::20] = 1e-320  # below the smallest number of the scale, too
    assert_array_equal(counts(y), counts(inside))
    assert counts(y).sum() == 2850
    reg = dp.PrivateConformalRegressor(epsilon=4.0, y_scale="log", feature_bounds=(-1, 1), random_state=0).fit(X, y)
    assert 1e-3 < reg.y_bounds_[0] < reg.y_bounds_[1] < 1e6


@pytest.mark.parametrize("scale", ["log", "log1p"])
def test_small_tables_and_budgets_never_fail_after_spending(scale, tmp_path, is_quick):
    """A range that noise alone made gives full intervals and a warning, and the file predicts the same."""
    rng = np.random.default_rng(3)
    cases = [(100, 0.1), (200, 0.5), (1000, 1.0), (100, 1.0), (200, 0.1), (1000, 0.1)]
    for seed, (n, epsilon) in enumerate(cases[: 2 if is_quick else None]):
        X, y = costs(n, seed)
        for targets in (y, np.where(rng.random(n) < 0.2, 0.0, y), -y):
            reg = dp.PrivateConformalRegressor(
                epsilon=epsilon, y_scale=scale, feature_bounds=(-1, 1), random_state=seed
            )
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                reg.fit(X, targets)
            prediction, intervals = reg.predict_interval(X)
            assert np.isfinite(prediction).all()
            if np.isinf(reg.threshold_).any():
                assert np.isinf(intervals).all()
                assert any(issubclass(w.category, GuaranteeWarning) for w in caught)
            reg.save(tmp_path / "model")
            loaded = dp.load(tmp_path / "model")
            assert_array_equal(loaded.predict_interval(X)[1], intervals)
            assert loaded._task() == reg._task()


def test_a_fit_whose_range_is_useless_commits_what_it_reserved(tmp_path):
    X, y = costs(1000)
    store = dp.BudgetStore.create(tmp_path / "b", 10.0, 1e-4, dataset="d")
    for place, targets in enumerate([-y, np.zeros(1000), np.where(np.arange(1000) % 5, y, 0.0)]):
        reg = dp.PrivateConformalRegressor(epsilon=1.0, y_scale="log", feature_bounds=(-1, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reg.fit(X, targets, budget=store)
        kinds = [line.kind for line in store.lines()]
        assert kinds[1:] == ["reserve", "commit"] * (place + 1)


def test_a_found_range_is_a_public_fact(tmp_path):
    X, y = costs(2000)
    reg = dp.PrivateConformalRegressor(epsilon=4.0, y_scale="log", feature_bounds=(-1, 1), random_state=0).fit(X, y)
    found = reg.ledger_.public_facts[FOUND_RANGE]
    assert_allclose(np.exp(found), reg.y_bounds_)
    (fact,) = [fact for fact in reg.statement()["public"] if fact["name"] == FOUND_RANGE]
    assert fact["source"] == "released with noise"
    expected = reg.predict_interval(X)[1]
    reg.save(tmp_path / "model")
    assert_allclose(dp.load(tmp_path / "model").predict_interval(X)[1], expected)
    declared = dp.PrivateConformalRegressor(
        epsilon=4.0, y_bounds=(1, 1e4), y_scale="log", feature_bounds=(-1, 1), random_state=0
    ).fit(X, y)
    assert FOUND_RANGE not in declared.ledger_.public_facts


@pytest.mark.parametrize("bounds", [(1e-4, 1e4), "private"])
def test_a_feature_on_its_scale_is_the_logarithm_that_a_caller_would_take(bounds):
    X, y = costs(1200)
    wide = X.copy()
    wide[:, 2] = np.exp(5 * X[:, 2])
    wide[0, 2] = -3.0  # where the scale is not defined
    logs = wide.copy()
    logs[:, 2] = finite_on_scale(wide[:, 2], "log")
    is_private = isinstance(bounds, str)
    others = dict.fromkeys((0, 1), "private" if is_private else (-1, 1))
    on_scale = others | {2: ("private", "log") if is_private else (*bounds, "log")}
    by_hand = others | {2: "private" if is_private else (np.log(1e-4), np.log(1e4))}
    settings = {"epsilon": 2.0, "y_bounds": (0, 5000), "guarantee": "universal", "random_state": 0}
    scaled = dp.PrivateConformalRegressor(**settings, feature_bounds=on_scale).fit(wide, y)
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

    with pytest.raises(ValueError, match=r"scale of feature_bounds\[0\]"):
        fit(feature_bounds={0: (0, 1, "log"), 1: (0, 1), 2: (0, 1)})
    with pytest.raises(ValueError, match="the scale in feature_bounds must be one of"):
        fit(feature_bounds={0: (1, 2, "sqrt"), 1: (0, 1), 2: (0, 1)})
    assert column_bounds({0: (0, 1, "linear")}, 1, None).scales is None
    assert column_bounds({0: ["private", "log"], 1: "indicator"}, 2, None).scales == ("log", "linear")
    bad = np.full((1, 2), np.nan)
    assert np.isnan(ColumnScales(("log", "linear")).apply(bad)).all()


def test_a_schema_declares_scales(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y = costs(1500)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "dose": np.exp(4 * X[:, 2]), "cost": y})
    dose = Column("dose", "numeric", (0.0, 100.0), "indicator", scale="log1p")
    columns = (*(Column(name, "numeric", (-1.0, 1.0)) for name in "ab"), dose)
    schema = Schema("regression", "cost", columns, bounds=(0.1, 5000.0), scale="log")
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    assert Schema.read(tmp_path / "schema.toml") == Schema.from_dict(schema.to_dict()) == schema
    assert_allclose(schema.matrix(frame)[:, 2], np.clip(frame["dose"], 0, 100))
    assert schema.declared["feature_bounds"].pair[1].tolist() == [1, 1, 100, 1]
    reg = dp.PrivateConformalRegressor(epsilon=4.0, random_state=0).fit(frame, "cost", schema=schema)
    facts = reg.ledger_.public_facts
    assert facts["y_scale"] == "log"
    assert facts["feature_scale"] == ("linear", "linear", "log1p", "linear")
    assert facts["feature_bounds"] == ((-1, -1, 0, 0), (1, 1, 100, 1))
    rows = schema.matrix(frame)
    declared = {"feature_bounds": schema.declared["feature_bounds"], "y_scale": "log"}
    same = dp.PrivateConformalRegressor(epsilon=4.0, random_state=0, y_bounds=(0.1, 5000), **declared)
    scaled = schema.matrix(frame[:20])
    assert_array_equal(same.fit(rows, y).model_.outputs(scaled), reg.model_.outputs(scaled))
    assert (reg.predict(frame) > 0).all()
    with pytest.raises(ValueError, match="y_scale is declared by the schema"):
        dp.PrivateConformalRegressor(y_scale="log1p", random_state=0).fit(frame, "cost", schema=schema)
    with pytest.raises(SchemaError, match="lower bound above 0"):
        Column("dose", "numeric", (0.0, 1.0), scale="log")
    with pytest.raises(SchemaError, match="scale of column 'sex' needs type 'numeric'"):
        Column("sex", "categorical", categories=("f", "m"), scale="log")
    with pytest.raises(SchemaError, match="scale needs a regression"):
        Schema("classification", "y", (), ("a", "b"), scale="log")
