"""Rows of files are predicted block by block, as the same rows in memory are."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpscp as dp
from dpscp.data.csv_format import CSVFormat
from dpscp.data.table_writer import open_writer

SCHEMA = dp.Schema.from_dict(
    {
        "task": "classification",
        "target": "bought",
        "classes": ["no", "yes"],
        "n_records": 400,
        "columns": {
            "age": {"type": "numeric", "bounds": [0, 110]},
            "region": {"type": "categorical", "categories": ["north", "south", "west"]},
        },
    }
)


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.uniform(18, 90, n)
    region = rng.choice(["north", "south", "west"], n)
    bought = np.where(age + rng.normal(0, 9, n) > 50, "yes", "no")
    return pd.DataFrame({"age": age, "region": region, "bought": bought})


@pytest.fixture(scope="module")
def classifier():
    training = dp.training.DPSGD(steps=5, learning_rate=1.0)
    clf = dp.PrivateConformalClassifier(training, epsilon=8.0, confidence_level=[0.6, 0.8], random_state=1)
    return clf.set_params(accountant="rdp").fit(people(), "bought", schema=SCHEMA)


@pytest.fixture(scope="module")
def regressor():
    schema = dp.Schema("regression", "age", SCHEMA.columns[1:], bounds=(0, 110))
    training = dp.training.DPSGD(loss="squared", steps=5)
    reg = dp.PrivateConformalRegressor(training, epsilon=8.0, random_state=1, accountant="rdp")
    return reg.fit(people(), "age", schema=schema)


@pytest.fixture(params=["new.parquet", "new.csv"])
def table(request, tmp_path, monkeypatch):
    """A file of new rows without targets, in blocks of 7 rows, and the rows."""
    new = people(30, 1).drop(columns="bought")
    path = tmp_path / request.param
    new.to_parquet(path) if path.suffix == ".parquet" else new.to_csv(path, index=False)
    monkeypatch.setattr("dpscp.data.sources.tables.count_rows", lambda _: 7)
    return path, new


def test_a_path_gives_what_its_rows_give(classifier, regressor, table):
    path, new = table
    for found, expected in zip(classifier.predict_set(path), classifier.predict_set(new), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(classifier.predict(str(path)), classifier.predict(new))
    np.testing.assert_array_equal(classifier.predict_proba(path), classifier.predict_proba(new))
    columns = classifier.predict_columns(new)
    assert [found.tolist() for found in classifier.predict_columns(path).values()] == [
        expected.tolist() for expected in columns.values()
    ]
    new = new.assign(age=0.0)  # the target, which is not used
    np.testing.assert_array_equal(regressor.predict(path), regressor.predict(new))
    np.testing.assert_array_equal(regressor.predict_interval(path)[1], regressor.predict_interval(new)[1])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_predictions_are_written_in_the_order_of_the_rows(classifier, regressor, table, tmp_path, ending):
    path, new = table
    out = tmp_path / f"predicted.{ending}"
    read = pd.read_parquet if ending == "parquet" else pd.read_csv
    classifier.predict_file(path, out)
    found = read(out)
    assert found["prediction"].tolist() == classifier.predict(new).tolist()
    for percent in (60, 80):
        sets = list(map(list, classifier.predict_columns(new)[f"set_{percent}"]))
        expected = sets if ending == "parquet" else ["|".join(labels) for labels in sets]
        assert [list(s) if ending == "parquet" else s for s in found[f"set_{percent}"].fillna("")] == expected
        assert found[f"set_size_{percent}"].tolist() == [len(labels) for labels in sets]
    regressor.predict_file(path, out)
    center, intervals = regressor.predict_interval(new)
    np.testing.assert_allclose(read(out), np.column_stack([center, intervals[:, :, 0]]))


def test_a_row_that_does_not_fit_has_a_full_set_in_the_file(classifier, tmp_path):
    people(3, 1).assign(region=["north", "elsewhere", "west"]).to_csv(tmp_path / "new.csv", index=False)
    classifier.predict_file(tmp_path / "new.csv", tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["prediction"].isna().tolist() == [False, True, False]
    assert list(found["set_60"][1]) == list(found["set_80"][1]) == ["no", "yes"]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_table_without_a_row_gets_no_predictions(classifier, tmp_path, ending):
    (people(0).to_parquet if ending == "parquet" else people(0).to_csv)(tmp_path / f"none.{ending}", index=False)
    assert classifier.predict_set(tmp_path / f"none.{ending}")[1].shape == (0, 2, 2)
    classifier.predict_file(tmp_path / f"none.{ending}", tmp_path / f"out.{ending}")
    found = (pd.read_parquet if ending == "parquet" else pd.read_csv)(tmp_path / f"out.{ending}")
    columns = ["prediction", "set_60", "set_size_60", "set_80", "set_size_80"]
    assert (len(found), list(found.columns)[-5:]) == (0, columns)


def test_what_cannot_be_read_is_refused_and_leaves_no_file(classifier, tmp_path):
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        classifier.predict_file(tmp_path / "damaged.parquet", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    plain = dp.PrivateConformalClassifier(
        dp.training.DPSGD(steps=5), epsilon=8.0, classes=[0, 1], random_state=0, accountant="rdp", confidence_level=0.6
    ).fit(np.arange(800.0).reshape(400, 2) / 800, np.arange(400) % 2)
    with pytest.raises(TypeError, match="but the fit had no schema"):
        plain.predict_set("new.parquet")
    with pytest.raises(dp.NotFittedError):
        dp.PrivateConformalClassifier().predict_file("new.parquet", "out.parquet")


def test_marks_inside_labels_are_escaped(tmp_path):
    sets = pa.array([["a|b", "c\\d"], [], None, ["e"]], pa.list_(pa.string()))
    with open_writer(tmp_path / "s.csv") as write:
        write(pa.record_batch({"set": sets, "x": [1, 2, 3, 4]}))
    assert (tmp_path / "s.csv").read_text().splitlines() == ["set,x", "a\\|b|c\\\\d,1", ",2", ",3", "e,4"]


def test_a_csv_file_has_the_marks_of_the_schema_and_labels_that_are_numbers(tmp_path):
    sets = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    with open_writer(tmp_path / "s.csv", CSVFormat(separator=";", decimal=",")) as write:
        write(pa.record_batch({"set": sets, "x": [1.5, 2.0, 3.25]}))
    assert (tmp_path / "s.csv").read_text().splitlines() == ["set;x", "1|2;1,5", ";2", "3;3,25"]


FORMULAS = ["=1+1", "+SUM(A1)", "-2+cmd", "@x", "\tx", "\rx", "'=x", "=a,b"]
HARMLESS = ["a=b", "'x", "", "x-", "-1.5", "+3", "-1e-5"]


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_text_like_a_formula_gets_an_apostrophe_in_csv(tmp_path, separator):
    texts = FORMULAS + HARMLESS
    block = pa.record_batch({"=n": texts, "sets": [[t, "b"] for t in texts], "x": np.linspace(-1, 1, len(texts))})
    marks = CSVFormat(separator)
    for name, raw in (("escaped.csv", False), ("raw.csv", True)):
        with open_writer(tmp_path / name, marks, raw=raw) as write:
            write(block)
    escaped, raw = (
        pd.read_csv(tmp_path / name, sep=separator, keep_default_na=False, dtype={0: str})
        for name in ("escaped.csv", "raw.csv")
    )
    assert list(escaped.columns) == ["'=n", "sets", "x"]
    assert list(raw.columns) == ["=n", "sets", "x"]
    assert raw["=n"].tolist() == texts
    assert escaped["'=n"].tolist() == ["'" + text for text in FORMULAS] + HARMLESS
    assert escaped["sets"].str.startswith("'").tolist() == [
        text in [*FORMULAS, "'x", "-1.5", "+3", "-1e-5"] for text in texts
    ]
    back = escaped["'=n"].str.replace(r"^'('*[=+\-@\t\r])", r"\1", regex=True)
    assert back.tolist() == texts  # as docs/command_line.md says
    assert escaped["x"].tolist() == raw["x"].tolist()


def test_predictions_of_labels_like_formulas_are_escaped(tmp_path):
    classes = ["=cmd|' /C calc'!A0", "-yes"]
    schema = dp.Schema.from_dict({"task": "classification", "target": "bought", "classes": classes, "n_records": 400})
    schema = dp.Schema(**{**vars(schema), "columns": SCHEMA.columns})
    records = people().assign(bought=lambda f: np.where(f["bought"] == "no", *classes))
    training = dp.training.DPSGD(steps=5, learning_rate=1.0)
    clf = dp.PrivateConformalClassifier(training, epsilon=8.0, random_state=1, accountant="rdp", confidence_level=0.6)
    clf.fit(records, "bought", schema=schema).save(tmp_path / "m")
    new = people(30, 1).drop(columns="bought").assign(note="=HYPERLINK(0)")
    new.to_csv(tmp_path / "new.csv", index=False)
    clf.predict_file(tmp_path / "new.csv", tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")["prediction"]
    assert found.tolist() == ["'" + label for label in clf.predict(new)]
    clf.predict_file(tmp_path / "new.csv", tmp_path / "out.csv", raw=True)
    assert pd.read_csv(tmp_path / "out.csv")["prediction"].tolist() == clf.predict(new).tolist()

    from dpscp.cli import main

    out = tmp_path / "out.csv"
    for options, mark in (([], "'"), (["--raw"], "")):
        assert main(["predict", str(tmp_path / "m"), str(tmp_path / "new.csv"), "-o", str(out), *options]) == 0
        found = pd.read_csv(out)
        assert found["prediction"].tolist() == [mark + label for label in clf.predict(new)]
        assert set(found["note"]) == {mark + "=HYPERLINK(0)"}
