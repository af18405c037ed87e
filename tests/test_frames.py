"""Frames with a schema: the same model as from the matrix it describes, whatever library holds the frame."""

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

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
    low, high = SCHEMA.feature_bounds
    plain = classifier(classes=["yes", "no"], feature_bounds=(low, high), n_records=500)
    plain.fit(SCHEMA.matrix(people()), SCHEMA.targets(people()))
    np.testing.assert_array_equal(fitted.threshold_, plain.threshold_)
    new = people(60, 1)
    for frame in (new, polars_frame(new), polars_frame(new).to_arrow(), SCHEMA.matrix(new)):
        np.testing.assert_array_equal(fitted.predict_set(frame)[1], plain.predict_set(SCHEMA.matrix(new))[1])


def test_polars_is_fitted_as_pandas_is(fitted):
    again = classifier().fit(polars_frame(people()), "bought", schema=SCHEMA)
    np.testing.assert_array_equal(again.threshold_, fitted.threshold_)


def test_the_file_keeps_the_schema(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = dp.load(tmp_path / "model")
    assert loaded.schema_ == SCHEMA
    np.testing.assert_array_equal(loaded.predict_set(people(60, 1))[1], fitted.predict_set(people(60, 1))[1])
    loaded.report(tmp_path / "page.html", people(60, 1), "bought")
    assert "60" in (tmp_path / "page.html").read_text()


def test_regression_takes_its_range_from_the_schema(tmp_path):
    schema = dp.Schema("regression", "age", (SCHEMA.columns[1],), bounds=(0, 110))
    frame = people().dropna()
    model = dp.PrivateConformalRegressor(dp.training.DPSGD(loss="squared", steps=5), epsilon=8.0, random_state=1)
    model.fit(frame, "age", schema=schema)
    model.save(tmp_path / "model")
    assert dp.load(tmp_path / "model").y_bounds_ == model.y_bounds_ == (0.0, 110.0)
    assert model.predict(pl.from_pandas(frame)).shape == (len(frame),)


def test_persons_come_from_the_schema():
    schema = dp.Schema.from_dict({**SCHEMA.to_dict(), "n_records": None, "person": "note", "rows_per_person": 2})
    model = classifier().fit(people(), "bought", schema=schema)
    assert "one person" in model.ledger_.neighbours
    assert model.ledger_.public_facts["n_persons"] == 200
    with pytest.raises(ValueError, match="leave persons out"):
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
    with pytest.raises(ValueError, match="remove group_values"):
        classifier(groups="region", group_values=["north"]).fit(people(), "bought", schema=SCHEMA)


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("value", [datetime.date(1931, 7, 4), datetime.datetime(1931, 7, 4), datetime.timedelta(1931)])
def test_dates_are_refused_with_advice(library, value):
    frame = library({"age": [value] * 3, "region": ["north"] * 3})
    with pytest.raises(SchemaError, match=r"'age' has dates.* days since") as caught:
        SCHEMA.matrix(frame)
    assert "1931" not in str(caught.value)


def test_bytes_are_refused_without_showing_one():
    with pytest.raises(SchemaError, match="'age' has dates, times or bytes"):
        SCHEMA.matrix(pd.DataFrame({"age": [b"\xc0", b"1"], "region": ["north", "south"]}))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"y": "bought"}, TypeError, "y is the name of a column"),
        ({"y": "age", "schema": SCHEMA}, ValueError, "target column, 'bought'"),
        ({"y": ["yes"] * 10, "schema": SCHEMA}, ValueError, "target column, 'bought'"),
        ({"y": "bought", "schema": "people.toml"}, TypeError, "Schema.read"),
        ({"y": "bought", "schema": replace(SCHEMA, task="regression", bounds=(0, 1))}, ValueError, "is for classif"),
        ({"y": "bought", "schema": replace(SCHEMA, classes=None)}, SchemaError, "lacks the classes"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        classifier().fit(people(10), **arguments)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Column("age", "numeric", (9, 1)), "low < high"),
        (lambda: Column("age", "number"), "type of column 'age'"),
        (lambda: Column("age", "numeric", missing="mean"), "missing of column 'age'"),
        (lambda: Column("region", "categorical", categories=("a", "a")), "each once"),
        (lambda: replace(SCHEMA, task="ranking"), "task must be"),
        (lambda: replace(SCHEMA, classes=("yes",)), "at least 2 labels"),
        (lambda: replace(SCHEMA, columns=SCHEMA.columns * 2), "two columns with the same name"),
        (lambda: replace(SCHEMA, n_records=None, person="age", rows_per_person=2), "must not learn"),
        (lambda: replace(SCHEMA, n_persons=3), "n_persons=3 needs persons"),
        (lambda: SCHEMA.with_target(3), "name of a column"),
    ],
)
def test_a_schema_built_in_code_is_checked_like_a_file(make, said):
    with pytest.raises(SchemaError, match=said):
        make()


def test_a_declaration_is_given_once():
    with pytest.raises(ValueError, match="classes is declared by the schema"):
        classifier(classes=["yes", "no"]).fit(people(10), "bought", schema=SCHEMA)
    with pytest.raises(SchemaError, match="got ndarray"):
        classifier().fit(people(10).to_numpy(), "bought", schema=SCHEMA)
    with pytest.raises(SchemaError, match="two columns with the same name"):
        classifier().fit(pd.concat([people(10), people(10)], axis=1), "bought", schema=SCHEMA)


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
