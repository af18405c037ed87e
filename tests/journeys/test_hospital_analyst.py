"""A hospital analyst with an Excel export from Germany: from the file to predictions that Excel opens again."""

import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli import main

WARDS = ("Innere", "Chirurgie", "Pädiatrie")
MARKS = "--separator ';' --encoding cp1252 --decimal , --thousands ."


def stays(n_patients, seed):
    """Several stays for each patient, with missing values and costs above a thousand."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(n_patients), rng.integers(1, 4, n_patients))
    n = len(patient)
    crp, cost = rng.gamma(2.0, 20.0, n).round(1), rng.uniform(500, 30_000, n).round(2)
    ward = rng.choice(WARDS, n)
    again = np.where(crp / 40 + 0.4 * rng.normal(size=n) > 0.9, "ja", "nein")
    frame = pd.DataFrame({"Fallnr": 10_000 + np.arange(n), "PatID": [f"P{seed}-{i}" for i in patient]})
    frame = frame.assign(**{"CRP (mg/l)": crp, "Kosten": cost, "Station": ward, "Wiederaufnahme": again})
    frame.loc[rng.random(n) < 0.05, "CRP (mg/l)"] = np.nan
    return frame


def export(frame, path):
    """Write as Excel exports: ``;``, decimal commas, points in thousands, Windows-1252, empty cells, CRLF."""

    def cell(value):
        if isinstance(value, float):
            text = f"{value:,.2f}".replace(",", "_").replace(".", ",").replace("_", ".")
            return "" if np.isnan(value) else text
        return str(value)

    lines = [";".join(map(cell, row)) for row in (frame.columns, *frame.itertuples(index=False))]
    path.write_bytes("\r\n".join([*lines, ""]).encode("cp1252"))


DECLARED = """
task = "classification"
target = "Wiederaufnahme"
classes = ["nein", "ja"]
person = "PatID"
rows_per_person = 3
n_persons = 1200
[csv]
separator = ";"
encoding = "cp1252"
decimal = ","
thousands = "."
[columns.Fallnr]
type = "ignore"
[columns."CRP (mg/l)"]
type = "numeric"
bounds = [0, 300]
[columns.Kosten]
type = "numeric"
bounds = [0, 50000]
[columns.Station]
type = "categorical"
categories = ["Innere", "Chirurgie", "Pädiatrie"]
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(line):
        capsys.readouterr()
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return call


def test_the_hospital_analyst(run, tmp_path):
    export(stays(1200, 0), tmp_path / "export.csv")
    export(stays(300, 1), tmp_path / "neu.csv")

    # the first tries say what the file is, one thing at a time, and never show a cell
    code, _, err = run("schema export.csv")
    assert (code, "Declare its encoding" in err) == (1, True)
    code, _, err = run("schema export.csv --encoding cp1252")
    assert (code, "--separator ';'" in err) == (1, True)
    code, _, err = run(f"schema export.csv {MARKS}")
    assert (code, "with --header" in err) == (1, True)
    code, _, err = run(f"schema export.csv {MARKS} --header --target Wiederaufname")
    assert "no column 'Wiederaufname'. Did you mean 'Wiederaufnahme'?" in err
    code, out, err = run(f"schema export.csv {MARKS} --header --target Wiederaufnahme")
    assert (code, "P0-" in out + err) == (0, False)

    # the draft lists what it lacks, and the file is filled in
    path, fit = tmp_path / "export.schema.toml", "fit export.csv --schema export.schema.toml --epsilon 4 --seed 1"
    code, _, err = run(f"{fit} -o modell.dpscp")
    assert (code, "the schema lacks the task" in err) == (1, True)
    path.write_text(DECLARED)
    code, _, err = run(f"{fit} -o modell.dpscp")
    assert (code, "column 'CRP (mg/l)' has missing values" in err) == (1, True)
    path.write_text(DECLARED.replace("300]", '300]\nmissing = "indicator"'))
    code, out, err = run(f"{fit} -o modell.dpscp")
    assert code == 0, err
    assert "for adding or removing one person" in out
    assert re.search(r"persons: +1,200 \(declared\)", out)

    # predictions for Excel: the same marks, sets as a|b, the same as in Python
    assert run("predict modell.dpscp neu.csv -o neu_mit_mengen.csv")[0] == 0
    table = pd.read_csv(tmp_path / "neu_mit_mengen.csv", sep=";", decimal=",", thousands=".", encoding="cp1252")
    assert set(table["Station"]) == set(WARDS)
    assert table["errors"].isna().all()
    model = dp.load(tmp_path / "modell.dpscp")
    sets = model.predict_set(stays(300, 1))[1][:, :, 0]
    assert table["set"].fillna("").tolist() == ["|".join(model.classes_[row]) for row in sets]
    schema = dp.Schema.read(path)
    settings = {"epsilon": 4.0, "random_state": 1}
    again = dp.PrivateConformalClassifier(**settings).fit("export.csv", "Wiederaufnahme", schema=schema)
    np.testing.assert_array_equal(again.threshold_, model.threshold_)

    # later months: a private evaluation counts persons
    code, out, _ = run("evaluate modell.dpscp neu.csv --epsilon 4 --seed 1 --json")
    evaluation = json.loads(out)
    low, high = evaluation["n_records"]["interval"]
    assert (code, low <= 300 <= high) == (0, True)
