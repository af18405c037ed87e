"""A privacy officer: one budget for a study, what it pays for, and papers that answer the questions."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from dpscp.cli import main

SCHEMA = """task = "classification"
target = "default"
classes = ["no", "yes"]
n_records = 1500

[columns.income]
type = "numeric"
bounds = [0, 200000]

[columns.region]
type = "categorical"
categories = ["north", "south"]
"""
CANARY = "91234.56"


def loans(n, seed):
    rng = np.random.default_rng(seed)
    income = rng.gamma(3.0, 15_000, n).round(2)
    default = np.where(income + 20_000 * rng.normal(size=n) < 30_000, "yes", "no")
    frame = pd.DataFrame({"income": income, "region": rng.choice(["north", "south"], n), "default": default})
    frame.loc[0, "income"] = float(CANARY)
    return frame


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(line):
        capsys.readouterr()
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return call


def test_the_privacy_officer(run, tmp_path):
    loans(1500, 0).to_csv(tmp_path / "loans.csv", index=False)
    (tmp_path / "loans.toml").write_text(SCHEMA)

    # before any data: what a budget buys
    code, out, _ = run("plan --n 1500 --epsilon 2 --json")
    assert (code, json.loads(out)["rows"][0]["guarantee"]) == (0, "universal")

    # one budget for the study; a fit must name it and its records, and cannot spend more
    assert run("budget create study.budget --epsilon 2 --delta 1e-6 --dataset 'loans 2025'")[0] == 0
    fit = "fit loans.csv --schema loans.toml --budget study.budget"
    code, _, err = run(f"{fit} --epsilon 2 --delta 1e-6 -o a.dpscp")
    assert (code, "dataset" in err) == (1, True)
    fit += " --dataset 'loans 2025' --delta 1e-6"
    code, out, err = run(f"{fit} --epsilon 2 -o a.dpscp --purpose 'credit risk' --report a.html")
    assert code == 0, err
    assert "for adding or removing one record" in out
    code, _, err = run(f"{fit} --epsilon 2 -o b.dpscp")
    assert code == 3
    assert not (tmp_path / "b.dpscp").exists()
    code, out, _ = run("budget show study.budget --json")
    state = json.loads(out)
    assert (code, len(state["entries"]), state["dataset"]) == (0, 1, "loans 2025")
    assert 0 <= state["remaining"] < 0.1

    # papers: report, statement as JSON and for a model card, with the state of the study; nothing of a record
    assert run("report a.dpscp -o report.html --budget study.budget --purpose 'credit risk'")[0] == 0
    code, out, _ = run("statement a.dpscp --budget study.budget --json")
    assert code == 0
    statement = json.loads(out)
    assert run("statement a.dpscp --markdown -o card.md --budget study.budget")[0] == 0
    papers = [(tmp_path / name).read_text() for name in ("a.html", "report.html", "card.md")]
    assert "credit risk" in papers[1]
    assert "loans 2025" in papers[1]
    assert all(CANARY not in text for text in (*papers, json.dumps(statement)))
    assert CANARY.encode() not in (tmp_path / "a.dpscp").read_bytes()
