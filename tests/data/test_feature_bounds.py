"""Declared bounds stay as they are; the others are found by the fit, and only these are paid for."""

import sys
import warnings

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.feature_bounds import column_bounds
from dpscp.data.scales import check_scale
from dpscp.data.schema import Column, Schema
from dpscp.data.sources import Block
from dpscp.privacy import gaussian_event, lattice_noise
from dpscp.privacy.events import event_to_dict
from dpscp.training import PrivateBounds, QuantileTransform

SGD = dp.training.DPSGD(steps=5)


def visits(n=3000, seed=0):
    """A column of costs, a count that is mostly zero, a category, and a target that follows the count."""
    rng = np.random.default_rng(seed)
    events = rng.poisson(6, n) * (rng.uniform(size=n) < 0.05)
    cost = np.exp(rng.normal(5, 1, n))
    sex = rng.choice(["f", "m"], n)
    y = 2.0 * events + np.log(cost) + rng.normal(size=n)
    return pd.DataFrame({"cost": cost, "events": events, "sex": sex, "y": y, "ill": np.where(y > 6, "yes", "no")})


def schema_of(target="y", **changes):
    columns = {
        "events": Column("events", "numeric", (0.0, 30.0)),
        "cost": Column("cost", "numeric"),
        "sex": Column("sex", "categorical", categories=("f", "m")),
    } | changes
    if target == "y":
        return Schema("regression", "y", tuple(columns.values()))
    return Schema("classification", "ill", tuple(columns.values()), classes=("no", "yes"))


def entries_of(model, stage):
    return [entry for entry in model.ledger_.entries if entry.stage == stage]


def test_only_undeclared_bounds_are_found_and_paid_for():
    frame, changes = visits(), {"epsilon": 2.0, "guarantee": "universal", "random_state": 0, "n_records": 3000}
    clf = dp.PrivateConformalClassifier(**changes).fit(frame, "ill", schema=schema_of("ill"))
    facts = clf.ledger_.public_facts
    low, high = facts["feature_bounds"]
    assert (low[::2], high[::2]) == ((0, 0), (30, 1))
    assert low[1] < 20
    assert 400 < high[1] < 10_000
    assert facts["features_with_found_bounds"] == (1,)
    assert clf.ledger_.found_privately == ("feature_bounds",)
    sources = {fact["name"]: fact["source"] for fact in clf.statement()["public"]}
    assert sources["feature_bounds"] == "released with noise"
    assert sources["features_with_found_bounds"] == "declared, or set by the library"
    whole = dp.PrivateConformalClassifier(feature_bounds="private", classes=["no", "yes"], **changes)
    whole.fit(schema_of("ill").matrix(frame), frame["ill"])
    (one,), (three,) = entries_of(clf, "bounds"), entries_of(whole, "bounds")
    # the counts of one column, and those of three, for the same part of the budget
    assert "count" not in event_to_dict(one.event)
    assert event_to_dict(three.event)["count"] == 3
    assert "features_with_found_bounds" not in whole.ledger_.public_facts
    (fact,) = [fact for fact in whole.statement()["public"] if fact["name"] == "feature_bounds"]
    assert fact["source"] == "released with noise"


def test_every_column_that_is_counted_is_paid_for():
    """Two columns and the target have no bounds; the number from 0 to 1 has quantiles, the category has none."""
    columns = {"events": Column("events", "numeric"), "share": Column("share", "numeric", (0.0, 1.0))}
    frame = visits().assign(share=np.linspace(0, 1, 3000))
    changes = {"epsilon": 4.0, "guarantee": "universal", "random_state": 0, "n_records": 3000}
    reg = dp.PrivateConformalRegressor(**changes).fit(frame, "y", schema=schema_of(**columns))
    (bounds,), (quantiles,) = entries_of(reg, "bounds"), entries_of(reg, "quantiles of the features")
    assert event_to_dict(bounds.event)["count"] == 3
    assert event_to_dict(quantiles.event)["count"] == 3 * len(QuantileTransform.branching)
    noise = lattice_noise(7.0)
    own = PrivateBounds(SGD, 4, columns=(1, 3), target=True, noise=noise)
    assert own.own_parts[0][1] == noise.event(3)
    assert own.counts(Block(0, np.zeros((5, 4)), np.zeros(5))).sum(axis=1).tolist() == [5, 5, 5]


def test_a_mapping_declares_some_bounds():
    frame = visits()[["cost", "events", "y"]]
    bounds = column_bounds({"cost": "private", "events": (0, 30)}, 2, ["cost", "events"])
    assert bounds.private == (0,)
    assert [end.tolist() for end in bounds.pair] == [[-1, 0], [1, 30]]
    reg = dp.PrivateConformalRegressor(
        epsilon=4.0, random_state=0, feature_bounds={"events": (0, 30), "cost": "private"}, n_records=3000
    )
    reg.fit(frame[["cost", "events"]], frame["y"])
    low, high = reg.ledger_.public_facts["feature_bounds"]
    assert (low[1], high[1]) == (0, 30)
    assert high[0] > 400
    own = dp.PrivateConformalClassifier(
        SGD, epsilon=4.0, random_state=0, feature_bounds=reg.feature_bounds, classes=[False, True]
    )
    own.fit(frame[["cost", "events"]], frame["y"] > 6)
    assert own.ledger_.public_facts["features_with_found_bounds"] == (0,)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((5, -5), r"feature_bounds must satisfy low < high, got \(5, -5\)"),
        ((0, np.inf), r"feature_bounds\[1\] must be finite"),
        ((np.zeros(3), np.array([1.0, np.nan, 1.0])), r"feature_bounds of column 'b'\[1\] must be finite"),
        ((np.zeros(3), np.array([1, 0, 1])), "feature_bounds of column 'b' must satisfy low < high"),
        ((np.zeros(2), np.ones(2)), "feature_bounds must be .* each of the 3 features"),
        ([(0, 1), (3, 4), (0, 1)], "feature_bounds must be .* two arrays"),
    ],
)
def test_a_wrong_pair_names_the_parameter_and_the_column(bounds, message):
    with pytest.raises(ValueError, match=message):
        column_bounds(bounds, 3, ["a", "b", "c"])


def test_found_bounds_are_in_units_whatever_the_scale(tmp_path):
    frame = visits()
    changes = {"epsilon": 4.0, "random_state": 0, "n_records": 3000}
    schema = schema_of(cost=Column("cost", "numeric", scale="log"))
    reg = dp.PrivateConformalRegressor(**changes).fit(frame, "y", schema=schema)
    low, high = reg.ledger_.public_facts["feature_bounds"]
    assert 1 <= low[1] < 100  # 1.6 to 16 on the scale of the logarithm
    assert high[1] > 400
    rows = schema.matrix(frame)
    assert rows[:, 1].max() > 400
    by_index = dp.PrivateConformalRegressor(feature_bounds={0: (0, 30), 1: ("private", "log"), 2: (0, 1)}, **changes)
    by_index.fit(rows, frame["y"])
    assert by_index.ledger_.public_facts["feature_bounds"] == (low, high)
    same = dp.PrivateConformalRegressor(feature_bounds=schema.declared["feature_bounds"], **changes)
    same.fit(rows, frame["y"])
    np.testing.assert_array_equal(same.predict_interval(rows[:50])[1], reg.predict_interval(frame[:50])[1])
    by_index.save(tmp_path / "model")
    again = dp.load(tmp_path / "model")
    assert again.feature_bounds == {0: [0, 30], 1: ["private", "log"], 2: [0, 1]}
    np.testing.assert_array_equal(again.predict(rows[:50]), by_index.predict(rows[:50]))
    assert again.fit(rows, frame["y"]).ledger_.public_facts == by_index.ledger_.public_facts


def test_bounds_that_must_be_public_are_refused_where_a_fit_cannot_find_them():
    frame, schema = visits(200), schema_of("ill")
    with pytest.raises(ValueError, match=r"feature_bounds would depend on the records .*guarantee='stability' needs"):
        dp.PrivateConformalClassifier(guarantee="stability", random_state=0).fit(frame, "ill", schema=schema)
    model = dp.PrivateModel.from_outputs(
        lambda rows: rows[:, :2], spent=gaussian_event(4.0), task="classification", n_features=3, classes=["no", "yes"]
    )
    with pytest.raises(ValueError, match="feature_bounds must be public"):
        dp.PrivateConformalClassifier(model, random_state=0).fit(frame, "ill", schema=schema)
    with pytest.raises(ValueError, match=r"feature_bounds is declared by the schema .* correct the schema"):
        dp.PrivateConformalClassifier(feature_bounds=(0, 1), random_state=0).fit(frame, "ill", schema=schema)


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_private_bounds_are_paid_once_for_several_labels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_000, 2))
    options = {"epsilon": 8.0, "feature_bounds": "private", "random_state": 0}
    several = dp.PrivateMultilabelClassifier(**options).fit(X, (X > 0).astype(int))
    assert "feature_bounds" in several.ledger_.found_privately
    (entry,) = several.ledger_.entries
    (names,) = [names for names in entry.components if names]
    assert names.count("bounds") == 1


def test_a_mapping_declares_indicators():
    declared = {"member": "indicator", "age": (0, 110), "cost": "private", "rate": (0, 1)}
    bounds = column_bounds(declared, 4, list(declared))
    assert [end.tolist() for end in bounds.pair] == [[0, 0, -1, 0], [1, 110, 1, 1]]
    assert (bounds.indicators, bounds.private) == ((0,), (2,))
    with pytest.raises(ValueError, match=r"feature_bounds\['member'\].*'indicator'"):
        column_bounds(declared | {"member": "binary"}, 4, list(declared))


def test_a_declared_indicator_costs_nothing_and_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(18, 90, size=3000), rng.uniform(size=3000) < 0.3])
    y = X[:, 0] + 5 * X[:, 1] + rng.normal(size=3000)
    counted = {}
    for kind in ("indicator", (0, 1)):
        declared = {"feature_bounds": {0: (18, 90), 1: kind}, "y_bounds": (0, 110)}
        reg = dp.PrivateConformalRegressor(epsilon=1.0, guarantee="universal", random_state=0, **declared).fit(X, y)
        (entry,) = entries_of(reg, "quantiles of the features")
        counted[kind] = entry.event.count
    assert counted == {"indicator": 3, (0, 1): 6}
    reg.set_params(feature_bounds={0: (18, 90), 1: "indicator"}).fit(X, y).save(tmp_path / "model.dpscp")
    assert dp.load(tmp_path / "model.dpscp").feature_bounds == {0: [18, 90], 1: "indicator"}


SUBNORMAL = 5e-324
NARROW = {
    "feature_bounds": lambda X, y: fit_narrow(X, y, feature_bounds=(0, SUBNORMAL)),
    "feature_bounds of a column": lambda X, y: fit_narrow(X, y, feature_bounds={0: (0, SUBNORMAL), 1: (0, 1)}),
    "feature_bounds as arrays": lambda X, y: fit_narrow(X, y, feature_bounds=(np.zeros(2), np.array([1, SUBNORMAL]))),
    "feature_bound": lambda X, y: fit_narrow(X, y, feature_bounds=dp.RowNorm(SUBNORMAL)),
    "a logarithm": lambda *_: check_scale("y_scale", "log", (1e300, float(np.nextafter(1e300, np.inf)))),
    "y_bounds": lambda X, y: dp.PrivateConformalRegressor(y_bounds=(0, SUBNORMAL)).fit(X, y),
    "score_range": lambda X, _: dp.calibrate(X[:, 0], epsilon=1, delta=1e-5, score_range=(0, SUBNORMAL), held_out=True),
    "threshold_range": lambda X, _: dp.control_risk(
        lambda t: np.full(len(X), t), threshold_range=(0, SUBNORMAL), alpha=0.1, epsilon=1, delta=1e-5
    ),
    "a schema": lambda *_: dp.Schema.from_dict(
        {"target": "y", "classes": ["0", "1"], "columns": {"a": {"type": "numeric", "bounds": [0, SUBNORMAL]}}}
    ),
    "population": lambda *_: dp.Population(lambda X: X[:, 0], bound=SUBNORMAL),
    "steps": lambda *_: dp.training.PublicBounds(0, SUBNORMAL),
    "clip_norm": lambda *_: dp.training.DPSGD(clip_norm=SUBNORMAL),
}


def fit_narrow(X, y, **options):
    return dp.PrivateConformalClassifier(classes=[0, 1], **options).fit(X, y)


@pytest.mark.parametrize("name", NARROW)
def test_widths_below_normal_numbers_are_refused(name):
    """1 / width is infinite and 0 * infinity is NaN: a sum would be NaN because of one record."""
    X = np.zeros((200, 2))
    with pytest.raises(ValueError, match="smallest normal number"):
        NARROW[name](X, np.arange(200) % 2)


def test_the_narrowest_normal_bounds_give_finite_models():
    width = sys.float_info.min
    X = np.random.default_rng(0).uniform(0, width, size=(600, 2))
    X[0] = width, 1e300
    clf = dp.PrivateConformalClassifier(
        epsilon=2.0, classes=[0, 1], feature_bounds=(0, width), n_records=600, accountant="rdp", guarantee="split"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        clf.fit(X, np.arange(600) % 2)
    assert np.isfinite(clf.predict_proba(X)).all()
