"""Tests of replacing categories by private shares of the target."""

import math

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.schema import Column
from dpscp.privacy import gdp_mu
from dpscp.training import DPSGD, Preprocessed, PrivateTargetEncoding
from dpscp.training.base import array_source, one_block
from dpscp.training.preprocessing.encoding import category_places

RNG = np.random.default_rng
CATEGORIES = ((1, 7), (2, 4))


def records(n=4_000, seed=0):
    """A number, two columns of codes with effects of their own, and a target of about mean 0 and spread 1."""
    rng = RNG(seed)
    codes = np.column_stack([rng.integers(0, 7, n), rng.integers(0, 4, n)])
    y = (codes[:, 0] - 3) / 2.5 + 0.5 * (codes[:, 1] == 2) + 0.3 * rng.normal(size=n)
    return np.column_stack([rng.normal(size=n), codes]), (y - y.mean()) / y.std()


def step(noise=1.0, **options):
    return PrivateTargetEncoding(CATEGORIES, 3, **options).with_noise(noise)


def block_of(X, y, persons=None):
    return one_block(np.asarray(X, dtype=float), np.asarray(y), persons).sum(lambda block: [block])[0]


@pytest.mark.parametrize("classes", [None, (0, 1), (0, 1, 2)])
def test_one_record_changes_what_the_event_counts(classes):
    """Brute force: no record added to a table moves more counts, or farther, than the event pays for."""
    made = step(classes=classes)
    X, y = records(50)
    y = y if classes is None else RNG(1).integers(0, len(classes), 50)
    before = made.counts(block_of(X, y))
    targets = [-9.0, -0.67, 0.013, 0.7, 2.0, 1e300, np.inf, np.nan] if classes is None else classes
    most = 0
    for first in (-1.0, 0.0, 0.5, 6.0, 7.0, np.nan):
        for second in (0.0, 3.0, 1e9):
            for target in targets:
                after = made.counts(block_of(np.vstack([X, [0.0, first, second]]), np.append(y, target)))
                change = after - before
                assert np.abs(change).max(initial=0) <= 1
                assert np.count_nonzero(change) <= len(CATEGORIES)
                most = max(most, np.count_nonzero(change))
    assert most == len(CATEGORIES)
    assert made.noise.sensitivity == made.noise.scale
    assert made.event == made.noise.event(len(CATEGORIES))


def test_counts_are_what_they_say():
    X, y = records(300)
    counts = step().counts(block_of(X, y))
    places = category_places(X, (1, 2), (7, 4))
    for place in range(11):
        own = y[(places == place).any(axis=1)]
        expected = (own < -0.67).sum(), ((own >= -0.67) & (own < 0)).sum(), ((own >= 0) & (own < 0.67)).sum()
        assert counts[place].tolist() == [*expected, (own >= 0.67).sum()]


def test_encoded_numbers_follow_the_targets():
    """Standardized over the records; the share of large targets rises with the mean; others become zero."""
    X, y = records()
    rows = step(0.05).fit_source(array_source(X, y), n_records=len(X), random_state=1)
    found = rows.apply(X)
    assert found.shape == (len(X), rows.width) == (len(X), 9)
    np.testing.assert_array_equal(found[:, 0], X[:, 0])
    np.testing.assert_allclose(found[:, 1:].mean(axis=0), 0, atol=0.05)
    spreads = found[:, 1:].std(axis=0)
    assert (np.abs(spreads - 1) < 0.05).sum() >= 6
    assert np.all((np.abs(spreads - 1) < 0.05) | (spreads == 0))  # the share of a range may be the same everywhere
    of_codes = rows.apply(np.column_stack([np.zeros(7), np.arange(7), np.full(7, 2)]))
    assert of_codes[:3, 1].min() > of_codes[4:, 1].max()  # the lowest range
    assert of_codes[:3, 4].max() < of_codes[4:, 4].min()  # the highest one
    others = rows.apply(np.array([[1.0, 7.0, -1.0], [1.0, 0.5, np.inf], [1.0, np.nan, 4.0]]))
    np.testing.assert_array_equal(others, np.tile(np.eye(9)[0], (3, 1)))
    assert rows.origins == (0, 1, 1, 1, 1, 2, 2, 2, 2)


def test_classes_become_one_number_each():
    X, _ = records()
    y = (X[:, 1] >= 4).astype(int) + (X[:, 2] == 1)
    rows = step(0.05, classes=(0, 1, 2)).fit_source(array_source(X, y), n_records=len(X), random_state=1)
    assert rows.width == step(classes=(0, 1, 2)).width_after(3) == 7
    codes = np.column_stack([np.zeros(7), np.arange(7), np.zeros(7)])
    first = rows.apply(codes)[:, 1:4]  # the shares of the three classes in the categories of the first column
    assert (first[4:, 1][:, None] > first[:4, 1]).all()
    assert (first[4:, 0][:, None] < first[:4, 0]).all()
    assert rows.origins == (0, 1, 1, 1, 2, 2, 2)


def test_a_person_has_the_cost_of_one_record(monkeypatch):
    """One random row of each person is counted."""
    X, y = records(60)
    made, seen = step(1e-4), []
    monkeypatch.setattr(PrivateTargetEncoding, "release", lambda _, counts, __: seen.append(counts))
    source = one_block(X, y, Persons(np.arange(21) * 3, 3))
    made.fit_source(source, n_records=20, random_state=1)
    assert seen[0][:7].sum() == 20


def test_the_share_of_the_budget_is_kept():
    mechanism = Preprocessed((PrivateTargetEncoding(CATEGORIES, 3),), DPSGD(loss="huber"), 0.2)
    mu = gdp_mu(1.0, 1e-5)
    (found,) = mechanism.with_shares(mu).steps
    assert len(CATEGORIES) / found.noise.count_noise**2 == pytest.approx(0.2 * mu**2, rel=1e-3)
    assert PrivateTargetEncoding(CATEGORIES, 3).event is None
    with pytest.raises(ValueError, match="noise is not set"):
        PrivateTargetEncoding(CATEGORIES, 3).fit_source(array_source(*records(20)), n_records=20)


def frame_of(n=6_000, seed=1, n_values=300):
    """Categories of which few are frequent, and a number whose effect depends on them."""
    rng = RNG(seed)
    shares = 1 / np.arange(1, n_values + 1)
    code, x = rng.choice(n_values, p=shares / shares.sum(), size=n), rng.uniform(size=n)
    effects = RNG(9).normal(size=n_values)[code]
    y = effects + np.sin(6 * x) * (1 + effects) + 0.3 * rng.normal(size=n)
    return pd.DataFrame({"x": x, "kind": [f"k{c}" for c in code], "y": y})


def schema_of(encoding=None, n_values=300, **declared):
    listed = {"categories": tuple(f"k{i}" for i in range(n_values)), "unknown": "other", "encoding": encoding}
    columns = (Column("x", "numeric", bounds=(0, 1)), Column("kind", "categorical", **{**listed, **declared}))
    return dp.Schema("regression", "y", columns, bounds=(-8, 10))


def has_encoding(model):
    return "targets by category" in str(model.ledger_)


def test_a_schema_with_many_categories_is_encoded(tmp_path):
    """The fit chooses codes by public numbers, says so, is narrower for it, and is the same after loading."""
    frame, new = frame_of(), frame_of(2_000, 2)
    widths = []
    for encoding in (None, "indicators"):
        reg = dp.PrivateConformalRegressor(epsilon=1.0, random_state=0).fit(frame, "y", schema=schema_of(encoding))
        sets = reg.predict_interval(new)[1][:, :, 0]
        widths.append(dp.metrics.efficiency(sets))
        assert dp.metrics.coverage(new["y"].to_numpy(), sets) > 0.87
        assert has_encoding(reg) == (encoding is None)
        if encoding is None:
            assert reg.schema_.feature_names == ("x", "kind")
            assert reg.ledger_.public_facts["schema"]["columns"]["kind"]["encoding"] == "code"
            reg.save(tmp_path / "model.dpscp")
            loaded = dp.load(tmp_path / "model.dpscp")
            for rows in (new, new.assign(kind="not declared")):
                np.testing.assert_array_equal(loaded.predict(rows), reg.predict(rows))
    assert widths[0] < widths[1]


def test_a_file_gives_the_fit_of_the_frame(tmp_path):
    """A file with a declared number of records is encoded like the frame, and read as often as without codes."""
    frame = frame_of(3_000)
    frame.to_csv(tmp_path / "table.csv", index=False)
    models = []
    for X in (frame, tmp_path / "table.csv"):
        reg = dp.PrivateConformalRegressor(epsilon=2.0, random_state=0, n_records=3_000)
        models.append(reg.fit(X, "y", schema=schema_of()))
        assert has_encoding(models[-1])
    np.testing.assert_array_equal(models[0].predict(frame), models[1].predict(frame))
    # the number of records in a file is not known before it is read
    assert not has_encoding(
        dp.PrivateConformalRegressor(epsilon=2.0, random_state=0).fit(tmp_path / "table.csv", "y", schema=schema_of())
    )


def test_hashed_cells_are_encoded():
    frame = frame_of(5_000)
    reg = dp.PrivateConformalRegressor(epsilon=2.0, random_state=0)
    reg.fit(frame, "y", schema=schema_of(categories="hash", cells=512))
    assert has_encoding(reg)
    assert reg.schema_.feature_names == ("x", "kind")


def test_codes_of_an_array_are_encoded():
    """An array declares its codes by ("categories", k); the fit is that of the schema."""
    frame = frame_of(4_000)
    coded = schema_of("code")
    bounds = {0: (0, 1), 1: ("categories", 300)}
    options = {"epsilon": 1.0, "random_state": 0}
    of_frame = dp.PrivateConformalRegressor(**options).fit(frame, "y", schema=coded)
    of_array = dp.PrivateConformalRegressor(**options, feature_bounds=bounds, y_bounds=(-8, 10))
    X = coded.matrix(frame)
    of_array.fit(X, frame["y"].to_numpy())
    np.testing.assert_array_equal(of_frame.predict(frame), of_array.predict(X))
    with pytest.raises(ValueError, match="number of categories"):
        dp.PrivateConformalRegressor(**options, feature_bounds={**bounds, 1: ("categories", 0)}).fit(X, frame["y"])


@pytest.mark.parametrize("guarantee", ["stability", "corrected"])
def test_guarantees_that_cannot_take_codes_refuse_them(guarantee):
    """The recipe leaves indicators alone there; codes that somebody declared are refused before a record is used."""
    frame = frame_of(2_000)
    options = {"epsilon": 1.0, "guarantee": guarantee, "conformity_score": "absolute", "random_state": 0}
    plain = dp.PrivateConformalRegressor(**options).fit(frame, "y", schema=schema_of())
    assert not has_encoding(plain)
    with pytest.raises(ValueError, match="declare their categories as indicators"):
        dp.PrivateConformalRegressor(**options).fit(frame, "y", schema=schema_of("code"))
    steps = [PrivateTargetEncoding(((1, 300),), 2)]
    X = schema_of("code").matrix(frame)
    with pytest.raises(ValueError, match=r"puts the target of a record into its own row|stability"):
        dp.PrivateConformalRegressor(steps, **options, y_bounds=(-8, 10)).fit(X, frame["y"].to_numpy())


def test_under_split_the_counts_are_those_of_the_training_part(monkeypatch):
    """Held-out records are in no count: all counts together are those of the training part."""
    seen = []
    release = PrivateTargetEncoding.release
    monkeypatch.setattr(
        PrivateTargetEncoding,
        "release",
        lambda self, counts, source: seen.append(counts.sum()) or release(self, counts, source),
    )
    frame = frame_of(4_000)
    for guarantee, expected in (("split", 2_000), ("universal", 4_000)):
        reg = dp.PrivateConformalRegressor(
            epsilon=1.0, guarantee=guarantee, calibration_fraction=0.5, random_state=0
        ).fit(frame, "y", schema=schema_of())
        assert has_encoding(reg)
        # binomial: five standard deviations
        assert abs(seen.pop() - expected) <= (5 * math.sqrt(1_000) if guarantee == "split" else 0)


def test_an_estimator_of_the_caller_gets_indicators_or_its_own_step():
    frame = frame_of(1_000)
    own = dp.PrivateConformalRegressor(DPSGD(loss="huber"), epsilon=2.0, random_state=0)
    assert not has_encoding(own.fit(frame, "y", schema=schema_of()))
    with pytest.raises(ValueError, match=r"only the recipe's model"):
        own.fit(frame, "y", schema=schema_of("code"))
    steps = [PrivateTargetEncoding(((1, 300),), 2)]
    listed = dp.PrivateConformalRegressor(steps, epsilon=2.0, random_state=0, y_bounds=(-8, 10))
    assert has_encoding(listed.fit(schema_of("code").matrix(frame), frame["y"].to_numpy()))


def test_groups_of_a_coded_column_are_those_of_indicators():
    frame = frame_of(100, n_values=5)
    frame.loc[3, "kind"] = "not declared"
    found = [schema_of(encoding, 5).groups(schema_of(encoding, 5).matrix(frame), "kind") for encoding in (None, "code")]
    np.testing.assert_array_equal(*found)
    assert found[0][3] == -1


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_graph_of_a_fit_gives_its_answers(task, tmp_path):
    """Declared codes, others and numbers that are no codes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    frame, options = frame_of(2_000), {"epsilon": 4.0, "random_state": 0}
    X, y = schema_of("code").matrix(frame), frame["y"].to_numpy()
    bounds = {0: (0, 1), 1: ("categories", 300)}
    if task == "regression":
        model = dp.PrivateConformalRegressor(**options, feature_bounds=bounds, y_bounds=(-8, 10)).fit(X, y)
    else:
        model = dp.PrivateConformalClassifier(**options, feature_bounds=bounds, classes=[0, 1, 2])
        model.fit(X, (y > 0).astype(int) + (y > 1))
    X[:4, 1] = -1, 300, 0.5, 1e300
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": X}), strict=True))
    if task == "regression":
        np.testing.assert_allclose(found["prediction"].ravel(), model.predict(X), atol=1e-5)
    else:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(X), atol=1e-6)


def test_the_columns_in_use_are_those_of_the_table():
    """Relevance leaves columns out behind the encoding; the ledger names them by their places before it."""
    rng = RNG(2)
    codes, numbers = rng.integers(0, 60, 6_000), rng.uniform(size=(6_000, 12))
    y = 4 * numbers[:, 3] + 2 * numbers[:, 7] + 0.3 * RNG(9).normal(size=60)[codes] + 0.3 * rng.normal(size=6_000)
    X = np.insert(numbers, 5, codes, axis=1)
    bounds = {place: ("categories", 60) if place == 5 else (0, 1) for place in range(13)}
    reg = dp.PrivateConformalRegressor(epsilon=2.0, feature_bounds=bounds, y_bounds=(-2, 8), random_state=0).fit(X, y)
    used = reg.ledger_.public_facts["features_used"]
    assert {3, 5, 8} <= set(used)  # the number in place 7 has moved behind the codes
    assert len(used) < 8
