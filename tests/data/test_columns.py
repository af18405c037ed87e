"""Types of columns: dates, hashed categories, patterns, shared declarations, and how tables store them."""

import datetime
import hashlib
import sys
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscp as dp
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Column, Schema, SchemaError, parse_schema
from dpscp.data.sources import TableSource

DAYS = [datetime.date(2024, 2, 29), datetime.date(2020, 1, 1), datetime.date(9999, 12, 31)]
# days since 1970, clipped to the bounds
NUMBERS = [19782, 18262, 20453]
HEAD = 'task = "classification"\ntarget = "y"\nclasses = ["no", "yes"]\n'


def day_schema(**declared):
    column = {"type": "date", "bounds": ["2010-01-01", "2025-12-31"], **declared}
    return Schema.from_dict({"columns": {"day": column}})


def parsed(text):
    return parse_schema(HEAD + text)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(DAYS),
        pd.Series([day.isoformat() for day in DAYS]),
        pd.Series(DAYS, dtype="datetime64[s]").dt.tz_localize("UTC"),
        pd.Series([20240229.0, 20200101.0, 99991231.0]),
        pd.Series(pd.Categorical([day.isoformat() for day in DAYS])),
    ],
)
def test_dates_become_days_whatever_stores_them(values):
    assert day_schema().matrix(pd.DataFrame({"day": values})).tolist() == [[n] for n in NUMBERS]


def test_times_are_parts_of_days_in_utc():
    berlin = datetime.datetime(2024, 2, 29, 19, tzinfo=ZoneInfo("Europe/Berlin"))
    columns = [["2024-02-29T18:00"], ["2024-02-29T19:00+01:00"], [berlin], pd.to_datetime(["2024-02-29 18:00"])]
    for column in columns:
        assert day_schema().matrix(pd.DataFrame({"day": column})).tolist() == [[19782.75]]


def test_parts_of_dates_are_features_of_their_own():
    schema = day_schema(parts=["day_of_year", "weekday"], missing="indicator")
    assert schema.feature_names[:4] == (*("day", "day is missing", "day day of year, cosine", "day day of year, sine"),)
    frame = pd.DataFrame({"day": ["2024-01-01", "", "2021-07-02"]})
    found = schema.matrix(frame)
    np.testing.assert_allclose(found[:, 2:4], [[1, 0], [0, 0], [np.cos(np.pi), 0]], atol=0.02)
    # a Monday, a missing day, a Friday
    assert found[:, 4:].tolist() == [[1, 0, 0, 0, 0, 0, 0], [0] * 7, [0, 0, 0, 0, 1, 0, 0]]
    assert found[:, 1].tolist() == [0, 1, 0]
    low, high = schema.declared["feature_bounds"].pair
    assert ((low <= found) & (found <= high)).all()
    assert schema.declared["feature_bounds"].indicators == (1, *range(4, 11))


@pytest.mark.parametrize(
    ("declared", "cell", "said"),
    [
        ({}, "31.01.2024", "is declared as a date but has a value that is not a date"),
        ({"format": "%d.%m.%Y"}, "2024-01-30", "Write texts as '%d.%m.%Y'"),
        ({}, "", "'day' has missing values"),
        ({}, "n/a", "'day' has missing values"),
        ({}, 4.25, "is declared as a date"),
        ({}, datetime.time(7, 31), "times of day"),
    ],
)
def test_values_that_are_no_dates_are_refused_without_showing_them(declared, cell, said):
    frame = pd.DataFrame({"day": pd.Series([cell], dtype=object)})
    with pytest.raises(SchemaError, match=said) as caught:
        day_schema(**declared).matrix(frame)
    assert not cell or str(cell) not in str(caught.value)


def test_dates_are_declared_as_texts_or_as_dates_of_toml():
    written = parsed("[columns.day]\ntype = 'date'\nbounds = [2010-01-01, 2025-12-31T12:00:00]\nmissing = 2015-01-01")
    assert written.columns[0] == Column("day", "date", ("2010-01-01", "2025-12-31T12:00:00"), "2015-01-01")
    assert parse_schema(written.to_toml()) == written == Schema.from_dict(written.to_dict())
    assert written.matrix(pd.DataFrame({"day": [None, "1999-01-01"]})).tolist() == [[16436], [14610]]
    draft = parsed("[columns.day]\nbounds = [2010-01-01, 2025-12-31]")  # its type is not declared yet
    assert parse_schema(draft.to_toml()).columns == (Column("day", bounds=("2010-01-01", "2025-12-31")),)
    shown = day_schema(format="%d.%m.%Y").matrix(pd.DataFrame({"day": ["29.02.2024"]}))
    assert shown.tolist() == [[19782]]


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"bounds": ["2025-01-01", "2020-01-01"]}, "low < high"),
        ({"bounds": ["2025-01-01", "soon"]}, "bounds of column 'day' must be a date"),
        ({"bounds": "2025-01-01"}, "private"),
        ({"missing": "never"}, '"refuse", "indicator" or a date'),
        ({"parts": ["month"]}, "parts of column 'day'"),
        ({"type": ["date"]}, "type of column 'day'"),
        ({"format": "dd.mm"}, "format of column 'day'"),
        ({"scale": "log"}, "scale of column 'day' needs type 'numeric'"),
        ({"cells": 4}, "cells of column 'day' needs type 'categorical'"),
    ],
)
def test_wrong_declarations_of_dates_are_refused(declared, said):
    with pytest.raises(SchemaError, match=said):
        day_schema(**declared)


@pytest.mark.parametrize("kind", ["numeric", "categorical", "date"])
def test_nested_columns_are_refused_with_a_hint(kind, tmp_path):
    schema = Schema.from_dict({"columns": {"x": {"type": kind, **({"categories": ["a"]} if kind[0] == "c" else {})}}})
    nested = pa.table({"x": [["canary"], []], "y": ["no", "yes"]})
    path = tmp_path / "nested.parquet"
    pq.write_table(nested, path)
    frames = (nested, nested.to_pandas(), pl.from_arrow(nested), pd.DataFrame({"x": [{"canary": 1}, {}]}))
    for frame in frames:
        with pytest.raises(SchemaError, match="column 'x' is nested") as caught:
            schema.matrix(frame)
        assert "canary" not in str(caught.value)
    source = TableSource(path, parsed("[columns.x]\ntype = 'numeric'"))
    with pytest.raises(SchemaError, match="column 'x' is nested"):
        source.sum(len)
    assert dp.Schema.from_frame(nested.drop("x"), "y").columns == ()


def test_hashed_categories_need_no_list():
    schema = parsed("[columns.code]\ntype = 'categorical'\ncategories = 'hash'\ncells = 5")
    codes = ["A00", "B99", "A00", 7, 7.0, "7"]
    found = schema.matrix(pd.DataFrame({"code": pd.Series(codes, dtype=object)}))
    cells = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 5 for text in ("A00", "B99", "7")]
    assert found.argmax(axis=1).tolist() == [cells[k] for k in (0, 1, 0, 2, 2, 2)]
    assert found.sum(axis=1).tolist() == [1] * 6
    assert schema.feature_names == tuple(f"code cell {cell}" for cell in range(5))
    assert parse_schema(schema.to_toml()) == schema
    missing = pd.DataFrame({"code": ["A00", None]})
    with pytest.raises(SchemaError, match="'code' has a missing value"):
        schema.matrix(missing)
    other = parsed("[columns.code]\ntype = 'categorical'\ncategories = 'hash'\ncells = 5\nunknown = 'other'")
    assert other.matrix(missing).sum(axis=1).tolist() == [1, 0]
    with pytest.raises(SchemaError, match="whose categories the schema lists"):
        schema.category_column("code")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[columns.x]\ntype = 'categorical'\ncategories = 'hash'", "needs cells"),
        ("[columns.x]\ntype = 'categorical'\ncategories = ['a']\ncells = 3", 'needs categories = "hash"'),
        ("[columns.x]\ntype = 'categorical'\ncategories = 'hash'\ncells = 100000", "at most 65536"),
        ("[columns.x]\ntype = 'categorical'\ncategories = 'cods'\n[categories]\ncodes = ['a']", "Did you mean 'codes'"),
        ("[categories]\nhash = ['a']\n[columns.x]\ntype = 'numeric'", "a list named 'hash'"),
        ("[defaults]\nkind = 'numeric'\n[columns.x]\ntype = 'numeric'", "defaults has an unknown key 'kind'"),
        ("defaults = 3", r"must be a table: \[defaults\]"),
        ("[columns.x]\ntype = 'numeric'\nunknown = 'other'", "unknown of column 'x' needs type 'categorical'"),
        ("[csv]\nmissing = 'k.A.'", "missing of csv must be a list"),
    ],
)
def test_wrong_shared_declarations_are_refused(text, said):
    with pytest.raises(SchemaError, match=said):
        parsed(text)


WIDE = """
person = "id"
rows_per_person = 2

[categories]
codes = ["a", "b", "c"]

[defaults]
type = "categorical"
categories = "codes"
unknown = "other"
missing = "indicator"

[columns.age]
type = "numeric"
bounds = [0, 110]

[columns.diag_first]
categories = ["x", "y", "z"]

[columns."diag_*"]

[columns."*"]
type = "ignore"
"""


def test_defaults_patterns_and_shared_lists_declare_wide_tables():
    schema = parsed(WIDE).for_columns(["note", "id", "diag_2", "y", "age", "diag_first", "diag_1", "xdiag_3"])
    shared = {"type": "categorical", "categories": ("a", "b", "c"), "unknown": "other"}
    assert schema.columns == (
        Column("age", "numeric", (0.0, 110.0), "indicator"),
        Column("diag_first", "categorical", categories=("x", "y", "z"), unknown="other"),
        Column("diag_2", **shared),
        Column("diag_1", **shared),
        Column("note", "ignore"),
        Column("xdiag_3", "ignore"),
    )
    assert Schema.from_dict(schema.to_dict()) == schema
    assert parse_schema(parsed(WIDE).to_toml()) == parsed(WIDE)
    with pytest.raises(ValueError, match="need the column names of a table"):
        fit(np.ones((4, 2)), np.array(["no", "yes"] * 2), schema=parsed(WIDE))


def wide_frame(n=400):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({f"diag_{k}": rng.choice(list("abc?"), n) for k in (2, 1, 3)})
    frame["admitted"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    frame["code"] = rng.integers(0, 50, n).astype(str)
    frame["y"] = np.where(frame["diag_1"] == "a", "yes", "no")
    return frame


WIDE_FIT = """
n_records = 400
[defaults]
type = "categorical"
unknown = "other"
[categories]
codes = ["a", "b", "c"]
[columns.admitted]
type = "date"
bounds = [2024-01-01, 2026-12-31]
parts = ["weekday"]
[columns.code]
categories = "hash"
cells = 4
[columns."diag_*"]
categories = "codes"
"""


def fit(X, y, **options):
    return dp.PrivateConformalClassifier(epsilon=4.0, random_state=0).fit(X, y, **options)


def test_all_of_them_fit_and_predict_like_the_matrix_from_every_source(tmp_path):
    frame, schema = wide_frame(), parsed(WIDE_FIT)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    declared = schema.for_columns(list(frame.columns))
    bounds = {"feature_bounds": declared.declared["feature_bounds"], "classes": ["no", "yes"], "n_records": 400}
    plain = dp.PrivateConformalClassifier(epsilon=4.0, random_state=0, **bounds)
    plain.fit(declared.matrix(frame), declared.targets(frame))
    sets = plain.predict_set(declared.matrix(frame))[1]
    tables = (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame))
    for table in (*tables, tmp_path / "t.csv", tmp_path / "t.parquet", tmp_path / "t.xlsx"):
        found = fit(table, "y", schema=schema)
        np.testing.assert_array_equal(found.threshold_, plain.threshold_)
        np.testing.assert_array_equal(found.predict_set(table)[1], sets)
        assert found.schema_ == declared
    found.save(tmp_path / "model.dpscp")
    loaded = dp.load(tmp_path / "model.dpscp")
    np.testing.assert_array_equal(loaded.predict_set(frame[::-1])[1], sets[::-1])
    measured = dp.evaluate(loaded, frame, frame["y"], epsilon=1.0, delta=1e-5, random_state=0)
    assert measured.coverage.estimate is not None


def test_the_content_of_a_table_decides_nothing_that_is_declared():
    """Dictionary values, unused categories and stored types change neither features nor bounds."""
    frame, schema = wide_frame(), parsed(WIDE_FIT)
    for column in ("diag_1", "code"):
        stored = frame.assign(**{column: pd.Categorical(frame[column], [*sorted(set(frame[column])), "canary"])})
        a, b = fit(frame, "y", schema=schema), fit(stored, "y", schema=schema)
        assert a.ledger_.to_dict()["public_facts"] == b.ledger_.to_dict()["public_facts"]
        assert a.digest() == b.digest()
        assert "canary" not in b.ledger_.to_json()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_are_recognized_whatever_is_declared(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_text("größe,y\n1.5,no\n2,yes\n", encoding=encoding)
    for declared in ("utf-8", "cp1252"):
        schema = parsed(f"[csv]\nencoding = '{declared}'\n[columns.\"größe\"]\ntype = 'numeric'\nbounds = [0, 9]")
        (block,) = TableSource(path, schema).stored().blocks
        assert block.read().tolist() == [[1.5], [2.0]]
        assert block.targets.tolist() == ["no", "yes"]


def test_marks_of_missing_cells_are_declared(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,c,d,y\n -9 ,-,k.A.,no\n3,a,2024-02-29,yes\n")
    text = """
        [csv]
        missing = ["k.A.", "-", "-9"]
        [columns.x]
        type = "numeric"
        bounds = [-10, 10]
        missing = "indicator"
        [columns.c]
        type = "categorical"
        categories = ["a", "b", "c"]
        unknown = "other"
        [columns.d]
        type = "date"
        bounds = ["2010-01-01", "2030-01-01"]
        missing = "indicator"
    """
    schema = parsed(text)
    assert schema.csv == CSVFormat(missing=("k.A.", "-", "-9"))
    assert parse_schema(schema.to_toml()) == schema
    (block,) = TableSource(path, schema).stored().blocks
    assert block.read()[:, [0, 1, 2, 6]].tolist() == [[0, 1, 0, 1], [3, 0, 1, 0]]


def test_spreadsheets_say_what_to_do(tmp_path, monkeypatch):
    schema = parsed("[columns.x]\ntype = 'numeric'\nbounds = [0, 9]")
    path = tmp_path / "two.xlsx"
    with pd.ExcelWriter(path) as writer:
        for name in "ab":
            pd.DataFrame({"x": [1.5, None, 3], "y": ["no", "yes", "no"]}).to_excel(writer, sheet_name=name, index=False)
    with pytest.raises(ValueError, match="several sheets"):
        TableSource(path, schema)
    (tmp_path / "old.xls").touch()
    with pytest.raises(ValueError, match="Save another kind of spreadsheet as CSV UTF-8"):
        TableSource(tmp_path / "old.xls", schema)
    pd.DataFrame({"x": [1.5, 2, 3], "y": ["no", "yes", "no"]}).to_excel(path, index=False)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"needs .*openpyxl.*save the file as CSV UTF-8"):
        TableSource(path, schema)


def test_a_first_line_that_may_be_a_record_never_becomes_column_names(tmp_path):
    path = tmp_path / "headless.csv"
    path.write_text("canary-a,canary-b,no\nc,d,yes\n")
    with pytest.raises(ValueError, match="must hold column names") as caught:
        fit(path, "y", schema=parsed("[columns.'*']\ntype = 'numeric'"))
    assert "canary" not in str(caught.value)
