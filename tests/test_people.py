"""What people do on the first day: their files, their habits, their mistakes."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from dpscp.cli import main
from dpscp.cli.demo import unused_folder

SCHEMA = """
task = "classification"
target = "bought"
classes = ["no", "yes"]
n_records = {n}

[columns.age]
type = "numeric"
bounds = [18, 90]

[columns.score]
type = "numeric"
bounds = [-5, 5]
"""


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, score = rng.integers(18, 91, n), rng.normal(size=n)
    bought = np.where(score + (age - 54) / 30 + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"age": age, "score": score.round(3), "bought": bought})


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command line in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(line: str):
        capsys.readouterr()
        code = main(shlex.split(line))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_demo_and_fit_replace_nothing_unless_forced(run, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("records.csv", "model.dpscp", "report.html", "model.dpscp.origin.json"):
        own = tmp_path / "mine" / name
        own.write_text("mine")
        code, _, err = run("demo --folder mine")
        assert code == 1
        assert f"'mine/{name}' exists" in err
        assert "--force" in err
        assert [p.name for p in (tmp_path / "mine").iterdir()] == [name]
        assert own.read_text() == "mine"
        own.unlink()

    people(2500, 0).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(SCHEMA.format(n=2500))
    fit = "fit people.csv --schema people.toml --epsilon 2 --seed 1"
    (tmp_path / "r.html").write_text("mine")
    assert run(f"{fit} --report r.html")[0] == 1
    assert (tmp_path / "r.html").read_text() == "mine"
    assert not (tmp_path / "model.dpscp").exists()
    assert run(fit)[0] == 0
    model = (tmp_path / "model.dpscp").read_bytes()
    assert run(fit)[0] == 1
    assert (tmp_path / "model.dpscp").read_bytes() == model
    assert run(f"{fit} --report r.html --force")[0] == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_demo_without_a_folder_makes_a_new_one(tmp_path):
    assert unused_folder(tmp_path / "demo") == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").write_text("")
    assert unused_folder(tmp_path / "demo") == tmp_path / "demo-3"


def test_a_wrong_number_of_records_is_told_here_and_nowhere_else(run, tmp_path):
    people(1500, 0).to_csv(tmp_path / "people.csv", index=False)
    for declared, told in ((1500, False), (1550, False), (1600, True), (1400, True)):
        (tmp_path / "people.toml").write_text(SCHEMA.format(n=declared))
        _, out, err = run("fit people.csv --schema people.toml --epsilon 2 --report r.html --json --force")
        assert ("do not publish this line" in err) == told
        assert "1500" not in err
        assert "1,500" not in err
        assert "publish this line" not in out
        assert json.loads(out)["public_facts"]["n_records"] == declared
        assert "publish this line" not in (tmp_path / "r.html").read_text()


def test_an_evaluation_below_the_promise_is_a_red_verdict(run, tmp_path):
    people(2500, 0).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(SCHEMA.format(n=2500))
    assert run("fit people.csv --schema people.toml --epsilon 2 --seed 1")[0] == 0
    other = people(800, 1)
    other["bought"] = np.where(other["bought"] == "yes", "no", "yes")  # a world where the promise does not hold
    other.to_csv(tmp_path / "other.csv", index=False)
    people(800, 2).to_csv(tmp_path / "alike.csv", index=False)
    for name, red in (("alike", False), ("other", True)):
        _, out, _ = run(f"report model.dpscp -o {name}.html --evaluate {name}.csv")
        assert ("verdict:  BELOW THE PROMISE of 90.0%" in out) == red
        assert ('class="verdict"' in (tmp_path / f"{name}.html").read_text()) == red
        _, out, _ = run(f"report model.dpscp -o {name}.html --evaluate {name}.csv --json")
        assert json.loads(out)["evaluation"]["levels"][0]["below_promise"] is red
