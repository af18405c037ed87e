"""Public declarations: what they accept, what they refuse, and the matrix that follows from them."""

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from dpscp.data.schema import Column, Schema, SchemaError, parse_schema, read_schema, template

CANARY = "canary-7431"
TEXT = """
task = "classification"
target = "label"
classes = ["no", "yes"]
n_records = 100

[columns.age]
type = "numeric"
bounds = [0, 100]

[columns.income]
type = "numeric"
bounds = [-10, 10]
missing = "indicator"

[columns.region]
type = "categorical"
categories = ["north", "south", "east"]

[columns.member]
type = "categorical"
categories = [0, 1]

[columns.note]
type = "ignore"
"""


def frame(**changes):
    columns = {
        "age": ["50", "120"],
        "income": ["", "NA"],
        "region": ["north", "east"],
        "member": ["1", "0"],
        "note": ["a", "b"],
        "label": ["yes", "no"],
    }
    return pd.DataFrame({**columns, **changes}).replace("", None)


def test_matrix_follows_the_declarations():
    schema = parse_schema(TEXT).require_complete()
    names = ("age", "income", "income is missing", "region=north", "region=south", "region=east", "member=1")
    assert schema.feature_names == names
    low, high = schema.declared["feature_bounds"].pair
    assert low.tolist() == [0, -10, 0, 0, 0, 0, 0]
    assert high.tolist() == [100, 10, 1, 1, 1, 1, 1]
    expected = [[50, 0, 1, 1, 0, 0, 1], [100, 0, 1, 0, 0, 1, 0]]
    np.testing.assert_array_equal(schema.matrix(frame()), expected)
    assert schema.targets(frame()).tolist() == ["yes", "no"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": ["50", CANARY]}, "not a number"),
        ({"age": ["50", ""]}, "missing values"),
        ({"region": ["north", CANARY]}, "declared categories"),
        ({"region": ["north", ""]}, "declared categories"),
    ],
)
def test_records_that_do_not_fit_are_refused_without_showing_them(changes, said):
    with pytest.raises(SchemaError, match=said) as caught:
        parse_schema(TEXT).matrix(frame(**changes))
    assert CANARY not in str(caught.value)


def test_unknown_categories_and_missing_numbers_can_be_declared():
    schema = parse_schema(TEXT.replace('"east"]', '"east"]\nunknown = "other"').replace('"indicator"', "2.5"))
    matrix = schema.matrix(frame(region=["north", CANARY]))
    names = schema.feature_names
    assert matrix[1, [names.index(n) for n in ("region=north", "region=south", "region=east")]].sum() == 0
    assert matrix[:, names.index("income")].tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('categories = ["north", "south", "east"]', "", "the categories of column 'region'"),
        ('task = "classification"', "", "the task"),
        ('target = "label"', "", "the target"),
        ('classes = ["no", "yes"]', "", "the classes of the target"),
    ],
)
def test_what_is_not_declared_is_named(old, new, said):
    with pytest.raises(SchemaError, match=said):
        parse_schema(TEXT.replace(old, new)).require_complete()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[0, 100]", "[100, 0]", "low < high"),
        ("[0, 100]", "[1]", "pair"),
        ('type = "ignore"', 'type = "text"', "must be one of"),
        ('"indicator"', '"drop"', "missing of column 'income'"),
        ("n_records = 100", "n_records = 0", "at least 1"),
        ("n_records = 100", "records = 100", "unknown key 'records'"),
        ('type = "ignore"', 'kind = "ignore"', "unknown key 'kind'"),
        ('["no", "yes"]', '["no", "no"]', "each once"),
        ('["no", "yes"]', '["no"]', "at least 2"),
        ('["no", "yes"]', '"no"', "list of labels"),
        ('task = "classification"', 'task = "clustering"', "task must be one of"),
        ('task = "classification"', 'task = "classification', "neither valid TOML nor valid JSON"),
        ('task = "classification"', "version = 2", "update dpscp"),
        ('task = "classification"', 'format = "other"', "another format"),
    ],
)
def test_wrong_declarations_are_refused(old, new, said):
    assert old in TEXT
    with pytest.raises(SchemaError, match=said):
        parse_schema(TEXT.replace(old, new))


def test_both_formats_and_the_template_read_back(tmp_path):
    schema = parse_schema(TEXT)
    assert parse_schema(schema.to_toml()) == schema
    assert parse_schema(json.dumps(schema.to_dict())) == schema
    assert Schema.from_dict(schema.to_dict()) == schema
    empty = template(["age", 'a "quoted" é name', "y"], target="y")
    path = tmp_path / "s.toml"
    path.write_text(empty.to_toml(), encoding="utf-8")
    assert read_schema(path) == empty
    assert empty.lacks[1] == "the type of columns 'age', 'a \"quoted\" é name'"
    assert empty.columns == (Column("age"), Column('a "quoted" é name'))


def test_files_that_are_no_schema(tmp_path):
    with pytest.raises(SchemaError, match="does not exist"):
        read_schema(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SchemaError, match="cannot be read as UTF-8 text"):
        read_schema(tmp_path / "bytes.toml")
    with pytest.raises(SchemaError, match="neither valid TOML nor valid JSON"):
        parse_schema("{" * 10)
    with pytest.raises(SchemaError, match=r"mapping of declarations|neither"):
        parse_schema("[" * 3)


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (Column("sex", "categorical", categories=("f", "m")), Column("sex=m", "numeric"), "sex=m"),
        (Column("a", "numeric", (0.0, 1.0), missing="indicator"), Column("a is missing", "numeric"), "a is missing"),
    ],
)
def test_two_features_of_one_name_are_refused_and_keep_their_places(first, second, name):
    schema = Schema("regression", "y", (first, second))
    said = f"columns '{first.name}' and '{second.name}' both become a feature named '{name}'"
    with pytest.raises(SchemaError, match=said):
        schema.require_complete()
    place = len(first.features)
    assert schema.declared["feature_bounds"].private == (place,)
    assert place not in schema.declared["feature_bounds"].indicators
    # a table without the other column, or with it as target, has no such features
    assert Schema("regression", first.name, (first, second)).require_complete().feature_names == (name,)


@pytest.mark.parametrize("kind", [{"type": "numeric"}, {}], ids=["numeric", "no type"])
def test_a_target_that_is_declared_as_a_column_has_its_bounds_and_scale(kind):
    column = {**kind, "bounds": [1, 100], "scale": "log"}
    data = {"task": "regression", "columns": {"age": {"type": "numeric"}, "cost": column}}
    schema = Schema.from_dict(data).with_target("cost")
    assert [c.name for c in schema.feature_columns] == ["age"]
    assert (schema.declared["y_bounds"], schema.declared["y_scale"]) == ((1.0, 100.0), "log")
    above = Schema.from_dict({**data, "target": "cost", "bounds": [2, 50], "scale": "linear"})
    assert (above.declared["y_bounds"], above.declared["y_scale"]) == ((2.0, 50.0), "linear")


@pytest.mark.parametrize("own", [{"categories": ["no", "yes"]}, {"bounds": [0, 1]}, {"type": "categorical"}])
def test_the_target_of_a_classification_has_no_range(own):
    columns = {"age": {"type": "numeric"}, "ill": own}
    data = {"task": "classification", "target": "ill", "classes": ["no", "yes"], "columns": columns}
    declared = Schema.from_dict(data).require_complete().declared
    assert (declared["y_bounds"], declared["y_scale"], declared["classes"]) == (None, None, ["no", "yes"])


def test_the_declaration_of_another_column_says_nothing_about_the_target():
    columns = {"age": {"type": "numeric"}, "cost": {"type": "numeric", "bounds": [1, 100], "scale": "log"}}
    declared = Schema.from_dict({"task": "regression", "target": "age", "columns": columns}).declared
    assert (declared["y_bounds"], declared["y_scale"]) == (None, None)


FRAME = pd.DataFrame(
    {
        "age": [18.5, 93.25, np.nan],
        "region": ["canary-north", "canary-south", None],
        "kind": pd.Categorical(["canary-b", "canary-a", "canary-b"]),
        "member": [True, False, True],
        "day": [datetime.date(2020, 1, d) for d in (1, 2, 3)],
        "since": pd.to_datetime(["2020-01-01"] * 3),
        "y": ["canary-yes", "canary-no", "canary-no"],
    }
)


def test_no_value_enters_a_template():
    schema = Schema.from_frame(FRAME, "y", task="classification")
    text = schema.to_toml()
    assert not any(mark in text for mark in ("canary", "18.5", "93.25", "2020-"))
    kinds = {column.name: column.type for column in schema.columns}
    text_types = {"region": "categorical", "kind": "categorical", "member": "categorical", "day": "categorical"}
    assert kinds == {"age": "numeric", "since": "date", **text_types}
    assert "the classes of the target" in schema.lacks
    assert not any("bounds" in words for words in schema.lacks)  # a fit finds them
    assert text.count("# bounds = [low, high]   # numeric") == 1
    assert text.count('# bounds = ["2015-01-01", "2025-12-31"]   # date') == 1
    assert parse_schema(text) == schema
    other = FRAME.assign(age=[1.0, 2.0, 3.0], region="x", kind=pd.Categorical(["z"] * 3), y="w")
    assert Schema.from_frame(other, "y", task="classification") == schema


def test_what_is_wrong_is_refused():
    with pytest.raises(SchemaError, match="no column 'z'"):
        Schema.from_frame(FRAME, "z")
    with pytest.raises(SchemaError, match="pass a frame"):
        Schema.from_frame(np.ones((2, 2)))
