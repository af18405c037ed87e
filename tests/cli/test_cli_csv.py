"""CSV files of the real world: separators, encodings and marks in numbers, in Python and on the command line."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpscp as dp
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Column, Schema, SchemaError, parse_schema
from dpscp.data.sources import TableSource
from dpscp.data.sources.files import TableError

CANARY = "zyzzyva"
COMMON = {"epsilon": 8.0, "confidence_level": 0.5, "guarantee": "split", "random_state": 3}
OPTIONS = "--epsilon 8 --confidence 0.5 --guarantee split --seed 3"


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    income, score = rng.integers(0, 90_000, n).astype(float), rng.normal(size=n).round(3)
    city = rng.choice(["München", "Köln", "Oslo"], n)
    bought = np.where(score + 0.3 * rng.normal(size=n) > 0, "ja", "nein")
    return pd.DataFrame({"income": income, "score": score, "city": city, "bought": bought})


SCHEMA = Schema(
    "classification",
    "bought",
    (
        Column("income", "numeric", (0, 90_000)),
        Column("score", "numeric", (-4, 4)),
        Column("city", "categorical", categories=("München", "Köln", "Oslo")),
    ),
    classes=("nein", "ja"),
)
GERMAN = CSVFormat(";", "cp1252", ",", ".")


def write_german(frame, path):
    """Write a table as Excel does in Germany: semicolons, decimal commas, points in thousands, Windows-1252."""
    lines = [";".join(frame.columns)]
    for row in frame.itertuples(index=False):
        cells = [f"{row.income:,.2f}".replace(",", "x").replace(".", ",").replace("x", "."), f"{row.score}", row.city]
        cells[1] = cells[1].replace(".", ",")
        lines.append(";".join([*cells, row.bought]))
    path.write_bytes("\r\n".join([*lines, ""]).encode("cp1252"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("csv")
    people().to_csv(place / "plain.csv", index=False)
    write_german(people(), place / "german.csv")
    write_german(people(100, 1), place / "new.csv")
    schema = Schema(**{**vars(SCHEMA), "csv": GERMAN})
    (place / "german.toml").write_text(schema.to_toml())
    (place / "plain.toml").write_text(SCHEMA.to_toml())
    return place


def test_one_table_in_every_form_gives_one_fit(run, folder):
    """The command line and Python read the same file with the same seed and release the same model."""
    expected = dp.PrivateConformalClassifier(**COMMON).fit(people(), "bought", schema=SCHEMA)
    read = Schema.read(folder / "german.toml")
    assert read.csv == GERMAN
    in_python = dp.PrivateConformalClassifier(**COMMON).fit(folder / "german.csv", "bought", schema=read)
    np.testing.assert_array_equal(in_python.threshold_, expected.threshold_)
    marks = "--separator ';' --encoding cp1252 --decimal , --thousands ."
    for name, line in (("a", "--schema german.toml"), ("b", f"--schema plain.toml {marks}")):
        code, _, err = run(f"fit german.csv {line} {OPTIONS} -o {name}.dpscp --force")
        assert code == 0, err
        model = dp.load(folder / f"{name}.dpscp")
        np.testing.assert_array_equal(model.threshold_, in_python.threshold_)
        np.testing.assert_array_equal(model.predict_proba(people()), in_python.predict_proba(people()))
        assert model.schema_.csv == GERMAN  # so that later commands read such files without options


def test_intervals_are_written_with_the_decimal_mark(run, folder):
    regression = Schema("regression", "score", (SCHEMA.columns[0],), bounds=(-4, 4), csv=GERMAN)
    (folder / "score.toml").write_text(
        regression.to_toml() + '[columns.city]\ntype="ignore"\n[columns.bought]\ntype="ignore"\n'
    )
    code, _, err = run(f"fit german.csv --schema score.toml {OPTIONS} --clip-to-bounds -o score.dpscp")
    assert code == 0, err
    assert dp.load(folder / "score.dpscp").clip_to_bounds is True
    assert run("predict score.dpscp new.csv -o score.csv")[0] == 0
    table = pd.read_csv(folder / "score.csv", sep=";", decimal=",", thousands=".", encoding="cp1252")
    assert (table["lower"].dtype, table["upper"].dtype) == (np.float64, np.float64)
    assert ((table["lower"] >= -4) & (table["upper"] <= 4)).all()
    code, _, err = run("fit german.csv --schema german.toml --clip-to-bounds -o no.dpscp")
    assert (code, "remove it" in err) == (1, True)


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ("--separator ';' --decimal , --thousands .", "is not written in utf-8. Declare its encoding"),
        ("--encoding cp1252 --decimal , --thousands .", "use --separator ';'"),
        (
            "--separator ';' --encoding cp1252",
            "column 'income' is declared numeric but has a value that is not a number",
        ),
        ("--separator ';' --encoding cp1252 --decimal ,", "not a number"),
        ("--separator ';' --encoding cp1252 --thousands .", "must be different marks"),
        ("--separator ';;'", "separator must be one character"),
        ("--separator ';' --encoding klingon", "encoding 'klingon' is not known"),
        ("--separator ';' --encoding base64", "encoding 'base64' is not known"),
        ("--separator ';' --encoding cp1252 --thousands x", "thousands must be one of"),
        ("--separator ';' --encoding cp1252 --decimal , --thousands ,", "must be different marks"),
    ],
)
def test_a_wrong_declaration_is_an_error_without_a_value(run, marks, said):
    code, out, err = run(f"fit german.csv --schema plain.toml {marks} -o never.dpscp")
    assert (code, out) == (1, "")
    assert said in err
    assert "nchen" not in err
    assert "nein" not in err


def test_all_columns_with_errors_are_named_at_once(run, folder):
    table = people().astype(str)
    table.loc[3, "income"] = CANARY
    table.loc[4, "score"] = ""
    table.loc[5, "city"] = CANARY
    table.loc[6, "bought"] = CANARY
    table.to_csv(folder / "odd.csv", index=False)
    code, _, err = run("fit odd.csv --schema plain.toml -o never.dpscp")
    assert code == 1
    for said in (
        "'income' is declared numeric but",
        "'score' has missing values",
        "'city' has a missing value, or",
        "'bought' has a missing",
    ):
        assert said in err
    assert CANARY not in err
    with pytest.raises(SchemaError, match=r"'income' is declared numeric.*'score' has missing.*'bought'"):
        dp.PrivateConformalClassifier().fit(table, "bought", schema=SCHEMA)
    wrong = '[columns.a]\ntype = "number"\n[columns.b]\ntype = "numeric"\nbounds = [1, 0]\n'
    with pytest.raises(SchemaError, match=r"type of column 'a'.*bounds of column 'b'"):
        parse_schema(wrong)


@pytest.mark.parametrize(
    ("options", "cells", "numbers"),
    [
        (
            GERMAN,
            ["1.234,5", "-7", " 1234,5 ", ",5", "1,", "NA", "", "1e3"],
            [1234.5, -7, 1234.5, 0.5, 1, None, None, 1e3],
        ),
        (CSVFormat(decimal=","), ["3,5", "+4", "-inf"], [3.5, 4, -np.inf]),
        (CSVFormat(thousands=","), ["1,234,567.5", "12", "12,000"], [1234567.5, 12, 12000]),
        (CSVFormat(thousands=" "), ["1 234", "1\u00a0234", "1\u202f234.5"], [1234, 1234, 1234.5]),
        (CSVFormat(thousands="'"), ["1'234.5"], [1234.5]),
        (CSVFormat(), ["1.5", " 2 ", "n/a"], [1.5, 2, None]),
        (CSVFormat(thousands=""), ["1.5", "12"], [1.5, 12]),
    ],
)
def test_numbers_are_read_in_their_format(options, cells, numbers):
    assert options.parse_numbers(pa.array(cells)).to_pylist() == numbers


@pytest.mark.parametrize(
    ("options", "cell"),
    [
        (GERMAN, "1.23"),  # no group of three digits
        (GERMAN, "1,234.5"),
        (GERMAN, "1.2345,6"),
        (CSVFormat(decimal=","), "3.5"),
        (CSVFormat(thousands=","), "1,23"),
        (CSVFormat(), "3,5"),
    ],
)
def test_a_number_in_another_format_is_never_read(options, cell):
    """A wrong mark would change a number by a factor of a thousand, so the cell is refused."""
    schema = Schema("regression", "y", (Column("x", "numeric", (0, 10)),), bounds=(0, 1))
    found = options.parse_numbers(pa.array(["2", cell]))
    assert pa.types.is_string(found.type)
    with pytest.raises(SchemaError, match="not a number"):
        schema.matrix(pd.DataFrame({"x": found.to_pylist()}))
    assert [error is None for error in schema.rows(pd.DataFrame({"x": found.to_pylist()}))[1]] == [True, False]


def test_a_format_is_part_of_the_schema_file():
    for written in (GERMAN, CSVFormat(separator="tab"), CSVFormat(encoding="latin-1"), CSVFormat()):
        schema = Schema(**{**vars(SCHEMA), "csv": written})
        assert parse_schema(schema.to_toml()) == schema
        assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
    assert "csv" not in SCHEMA.to_dict()  # files of earlier versions stay the same
    assert CSVFormat(separator="\\t").separator == "\t"
    for text, said in (
        ("[csv]\nseperator = ';'", "unknown key 'seperator'.*Did you mean 'separator'"),
        ("csv = 3", "must be a table"),
        ("[csv]\ndecimal = 1", "decimal must be"),
        ("[csv]\nencoding = 1", "encoding 1 is not known"),
        ("[columns.a]\ntipe = 'numeric'", "unknown key 'tipe'.*Did you mean 'type'"),
    ):
        with pytest.raises(SchemaError, match=said):
            parse_schema(text)
    with pytest.raises(SchemaError, match="csv must be a CSVFormat"):
        Schema("", "", (), csv={})


def test_the_source_takes_the_format_of_the_schema(folder):
    source = TableSource(folder / "german.csv", replace(SCHEMA, csv=CSVFormat(";", "cp1252", ",", ".")))
    total = source.sum(lambda block: block.read().sum(axis=0))
    np.testing.assert_allclose(total, SCHEMA.matrix(people()).sum(axis=0))
    with pytest.raises(TableError, match=r"none of the columns.*separator"):
        TableSource(folder / "german.csv", replace(SCHEMA, csv=CSVFormat(encoding="cp1252"))).sum(len)
    with pytest.raises(TableError, match="not written in utf-8"):
        TableSource(folder / "german.csv", replace(SCHEMA, csv=CSVFormat(";"))).sum(len)
    (folder / "umlaut.csv").write_bytes("größe\n1\n".encode("cp1252"))
    with pytest.raises(TableError, match="not written in utf-8"):
        TableSource(folder / "umlaut.csv", SCHEMA)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "utf-8"])
def test_other_encodings_are_read_and_written(run, folder, encoding):
    if not (folder / "plain.dpscp").exists():
        assert run(f"fit plain.csv --schema plain.toml {OPTIONS} -o plain.dpscp")[0] == 0
    people(50, 2).to_csv(folder / "e.csv", index=False, encoding=encoding)
    code, _, err = run(f"predict plain.dpscp e.csv -o e.out.csv --encoding {encoding}")
    assert code == 0, err
    table = pd.read_csv(folder / "e.out.csv", encoding=encoding)
    assert table["city"].tolist() == people(50, 2)["city"].tolist()
    assert table["errors"].isna().all()


def test_a_label_that_the_encoding_lacks_is_not_printed(folder, run):
    people(50, 2).assign(city="Łódź").to_csv(folder / "l.csv", index=False)
    if not (folder / "plain.dpscp").exists():
        assert run(f"fit plain.csv --schema plain.toml {OPTIONS} -o plain.dpscp")[0] == 0
    people(50, 2).assign(city="Łódź").to_parquet(folder / "l.parquet", index=False)
    code, _, err = run("predict plain.dpscp l.parquet -o l.out.csv --encoding cp1252")
    assert (code, "cannot be written in cp1252; write to a .parquet file" in err, "Ł" in err) == (1, True, False)
    assert not (folder / "l.out.csv").exists()


def test_an_undeclared_value_belongs_to_no_group():
    column = Column("city", "categorical", categories=("a", "b"), unknown="other")
    schema = Schema("regression", "y", (column,), bounds=(0, 1))
    rows, _ = schema.rows(pd.DataFrame({"city": ["a", "b", "c"]}))
    assert schema.groups(rows, "city").tolist() == [0, 1, -1]
