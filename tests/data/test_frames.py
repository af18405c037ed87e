"""Frames with a schema: the same model as from the matrix it describes, whatever library holds the frame."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import cross_val_score

import dpscp as dp
from dpscp.data.schema import Column, SchemaError

CANARY = "canary-3307"
SCHEMA = dp.Schema(
    task="classification",
    target="bought",
    classes=("yes", "no"),
    n_records=500,
    columns=(
        Column("age", "numeric", (0, 110), missing="indicator"),
        Column("region", "categorical", categories=("north", "south", "west"), unknown="other"),
        Column("note", "ignore"),
    ),
)


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, n).astype(float)
    region = rng.choice(["north", "south", "west"], n)
    bought = np.where(age + 20 * (region == "west") + rng.normal(0, 5, n) > 55, "yes", "no")
    age[::50] = np.nan
    return pd.DataFrame({"note": rng.permutation(n) // 2, "age": age, "region": region, "bought": bought})


def classifier(**changes):
    """A model of few steps: what it learns does not matter here."""
    training = dp.training.DPSGD(steps=5, learning_rate=1.0)
    common = {"estimator": training, "epsilon": 8.0, "confidence_level": 0.6, "random_state": 1}
    return dp.PrivateConformalClassifier(**{**common, **changes})


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(people(), "bought", schema=SCHEMA)


def polars_frame(frame):
    return pl.from_pandas(frame).with_columns(
        pl.col("region").cast(pl.Categorical), pl.col("bought").cast(pl.Enum(["no", "yes"]))
    )


def test_a_frame_gives_what_its_matrix_gives(fitted):
    low, high = SCHEMA.declared["feature_bounds"].pair
    plain = classifier(classes=["yes", "no"], feature_bounds=(low, high), n_records=500)
    plain.fit(SCHEMA.matrix(people()), SCHEMA.targets(people()))
    np.testing.assert_array_equal(fitted.threshold_, plain.threshold_)
    new = people(60, 1)
    for frame in (new, polars_frame(new), polars_frame(new).to_arrow(), SCHEMA.matrix(new)):
        np.testing.assert_array_equal(fitted.predict_set(frame)[1], plain.predict_set(SCHEMA.matrix(new))[1])


def test_persons_come_from_the_schema():
    schema = dp.Schema.from_dict({**SCHEMA.to_dict(), "n_records": None, "person": "note", "rows_per_person": 2})
    model = classifier().fit(people(), "bought", schema=schema)
    assert "one person" in model.ledger_.neighbors
    assert model.ledger_.public_facts["n_persons"] == 200
    with pytest.raises(ValueError, match="remove persons"):
        classifier().fit(people(), "bought", schema=schema, persons=people()["note"])


def test_a_column_gives_the_groups(tmp_path):
    model = classifier(groups="region").fit(people(), "bought", schema=SCHEMA)
    assert model.threshold_.shape == (3, 1)
    model.save(tmp_path / "model")
    loaded, new = dp.load(tmp_path / "model"), people(60, 1)
    sets = loaded.predict_set(polars_frame(new))[1]
    own = model.threshold_[[("north", "south", "west").index(r) for r in new["region"]]]
    np.testing.assert_array_equal(sets, (1 - loaded.predict_proba(new))[:, :, None] <= own[:, None, :])
    elsewhere = new.assign(region="elsewhere")
    for unknown in (elsewhere, SCHEMA.matrix(elsewhere)):
        assert loaded.predict_set(unknown)[1].all()
    np.testing.assert_array_equal(loaded.predict_set(SCHEMA.matrix(new))[1], sets)
    with pytest.raises(SchemaError, match="'age' must be a categorical column"):
        classifier(groups="age").fit(people(), "bought", schema=SCHEMA)
    with pytest.raises(ValueError, match="remove its values"):
        classifier(groups=dp.Groups("region", values=["north"])).fit(people(), "bought", schema=SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"y": "bought"}, TypeError, "y is the name of a column"),
        ({"y": "age", "schema": SCHEMA}, ValueError, "target column, 'bought'"),
        ({"y": None, "schema": SCHEMA}, ValueError, "target column, 'bought', or its values"),
        ({"y": "bought", "schema": "people.toml"}, TypeError, "Schema.read"),
        ({"y": "bought", "schema": replace(SCHEMA, task="regression", bounds=(0, 1))}, ValueError, "is for classif"),
        ({"y": "bought", "schema": replace(SCHEMA, classes=None)}, SchemaError, "lacks the classes"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        classifier().fit(people(10), **arguments)


def test_a_declaration_is_given_once():
    with pytest.raises(ValueError, match="classes is declared by the schema"):
        classifier(classes=["yes", "no"]).fit(people(10), "bought", schema=SCHEMA)
    with pytest.raises(SchemaError, match="got ndarray"):
        classifier().fit(people(10).to_numpy(), "bought", schema=SCHEMA)
    with pytest.raises(SchemaError, match="two columns with the same name"):
        classifier().fit(pd.concat([people(10), people(10)], axis=1), "bought", schema=SCHEMA)


NUMBERS = dp.Schema(task="regression", target="y", bounds=(0, 1), columns=(Column("a", "numeric", (0, 9)),))


def test_numbers_that_no_float_holds_are_clipped_like_infinite_ones():
    """As a CSV file's 1e400 is: bounds clip it. A target beyond floats is refused."""
    frame = pd.DataFrame({"a": [1.0, 10**400, -(10**400), "1e400", 2**70], "y": [0.5] * 5})
    np.testing.assert_array_equal(NUMBERS.matrix(frame)[:, 0], [1.0, 9.0, 0.0, 9.0, 9.0])
    frame["y"] = [0.5, 10**400, 0.5, 0.5, 0.5]
    with pytest.raises(ValueError, match="NaN or infinity"):
        dp.PrivateConformalRegressor(random_state=0).fit(frame, "y", schema=NUMBERS)


def test_a_file_with_two_columns_of_one_name_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,age,region,bought,note,note\n" + "3,4,north,yes,x,y\n" * 30)
    with pytest.raises(ValueError, match=r"people.csv' has two columns with the same name; rename one of them"):
        classifier().fit(str(path), "bought", schema=SCHEMA)


def test_messages_name_the_columns_and_nothing_else():
    frame = pd.DataFrame({"age": [3.0, np.nan, 4.0], "height": [1.0, 2.0, 3.0], "name": [CANARY, "b", "c"]})
    for columns, named in (
        (["age", "height"], "NaN or infinity (column 'age')"),
        (["name", "height"], "(column 'name')"),
    ):
        with pytest.raises(ValueError, match="column") as caught:
            classifier(classes=[0, 1]).fit(frame[columns], [0, 1, 0])
        assert named in str(caught.value)
        assert "height" not in str(caught.value)
        assert CANARY not in str(caught.value)


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
def test_frames_with_a_schema_work_in_cross_validation():
    frame = people()
    folds = cross_val_score(classifier(), frame, frame["bought"], cv=2, params={"schema": SCHEMA}, error_score="raise")
    assert (folds > 0.4).all()
    one = classifier().fit(frame, frame["bought"], schema=SCHEMA)
    np.testing.assert_array_equal(one.threshold_, classifier().fit(frame, "bought", schema=SCHEMA).threshold_)
    schema = dp.Schema("regression", "age", (SCHEMA.columns[1],), bounds=(0, 110))
    model = dp.PrivateConformalRegressor(dp.training.DPSGD(loss="squared", steps=5), epsilon=8.0, random_state=1)
    frame = frame.dropna()
    cross_val_score(model, frame, frame["age"], cv=2, params={"schema": schema}, error_score="raise")
    assert model.fit(frame, "age", schema=schema).score(frame, "age") == model.score(frame, frame["age"])


def test_a_row_that_does_not_fit_is_marked_and_the_others_are_predicted():
    strict = replace(SCHEMA, columns=(SCHEMA.columns[0], replace(SCHEMA.columns[1], unknown="refuse")))
    clf = classifier(groups="region").fit(people(), "bought", schema=strict)
    new = people(6, 1)
    odd = new.assign(region=["elsewhere", *new["region"][1:]])
    with pytest.warns(dp.HintWarning, match="some rows do not fit the schema") as seen:
        labels, sets = clf.predict_set(odd)
    assert "elsewhere" not in str(seen[0].message)
    assert sets[0].all()
    np.testing.assert_array_equal(sets[1:], clf.predict_set(new)[1][1:])
    assert labels[0] is None
    np.testing.assert_array_equal(labels[1:], clf.predict(new)[1:])
    assert clf.predict(odd)[0] is None
    assert np.isnan(clf.predict_proba(odd)[0]).all()
    assert np.isfinite(clf.predict_proba(odd)[1:]).all()
    # where every row counts, none is left out
    for refused in (
        lambda: clf.score(odd, "bought"),
        lambda: clf.report("never", odd, "bought"),
        lambda: dp.evaluate(clf, odd, strict.targets(odd), epsilon=1, delta=1e-5),
    ):
        with pytest.raises(SchemaError, match="outside its declared categories"):
            refused()


@pytest.mark.parametrize("hard", [False, True])
def test_a_row_that_does_not_fit_has_the_widest_interval(hard):
    schema = dp.Schema("regression", "age", (replace(SCHEMA.columns[1], unknown="refuse"),), bounds=(0, 110))
    frame = people().dropna()
    reg = dp.PrivateConformalRegressor(
        dp.training.DPSGD(loss="squared", steps=5), epsilon=8.0, random_state=1, clip_to_bounds=hard
    ).fit(frame, "age", schema=schema)
    odd = frame[:5].assign(region=["elsewhere", *frame["region"][1:5]])
    center, intervals = reg.predict_interval(odd)
    assert np.isnan(center[0])
    assert np.isnan(reg.predict(odd)[0])
    assert np.isfinite(center[1:]).all()
    assert intervals[0, :, 0].tolist() == ([0, 110] if hard else [-np.inf, np.inf])
    np.testing.assert_array_equal(intervals[1:], reg.predict_interval(frame[:5])[1][1:])


def test_a_schema_leaves_bounds_to_the_fit(tmp_path):
    private = replace(SCHEMA, columns=(replace(SCHEMA.columns[0], bounds="private"), SCHEMA.columns[1]))
    path = tmp_path / "schema.toml"
    path.write_text(private.to_toml())
    assert 'bounds = "private"' in path.read_text()
    schema = dp.Schema.read(path)
    assert schema == private == dp.Schema.from_dict(private.to_dict())
    clf = classifier().fit(people(), "bought", schema=schema)
    assert "feature_bounds" in clf.ledger_.found_privately
    assert 64 <= clf.ledger_.public_facts["feature_bounds"][1][0] <= 128
    assert clf.ledger_.public_facts["features_with_found_bounds"] == (0,)
    new = people(60, 1)
    np.testing.assert_array_equal(clf.predict_set(new)[1], clf.predict_set(schema.matrix(new))[1])
    clf.save(tmp_path / "model")
    assert dp.load(tmp_path / "model").schema_ == schema
    with pytest.raises(SchemaError, match="bounds of column 'age'"):
        replace(SCHEMA.columns[0], bounds="secret")


def test_a_schema_leaves_the_range_of_the_target_to_the_fit():
    schema = dp.Schema("regression", "age", (SCHEMA.columns[1],), bounds="private")
    assert dp.Schema.from_dict(schema.to_dict()) == schema
    assert 'bounds = "private"' in schema.to_toml()
    model = dp.PrivateConformalRegressor(dp.training.DPSGD(loss="squared", steps=5), epsilon=8.0, random_state=1)
    model.fit(people().dropna(), "age", schema=schema)
    assert 64 <= model.y_bounds_[1] <= 128
