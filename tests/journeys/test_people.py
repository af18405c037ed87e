"""What people do on the first day: their files, their habits, their mistakes."""

import json

import numpy as np
import pandas as pd
import pytest

import dpscp as dp

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


def test_demo_and_fit_replace_nothing_unless_forced(run, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("records.csv", "model.dpscp", "report.html", "model.dpscp.origin.json"):
        own = tmp_path / "mine" / name
        own.write_text("mine")
        code, _, err = run("demo --folder mine")
        assert code == 1
        assert f"'mine/{name}' already exists" in err
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


def test_a_wrong_number_of_records_is_reported_here_and_nowhere_else(run, tmp_path, is_quick):
    people(1500, 0).to_csv(tmp_path / "people.csv", index=False)
    cases = [(1550, False), (1600, True), (1500, False), (1400, True)]
    for declared, is_reported in cases[: 2 if is_quick else None]:
        (tmp_path / "people.toml").write_text(SCHEMA.format(n=declared))
        _, out, err = run("fit people.csv --schema people.toml --epsilon 2 --report r.html --json --force")
        assert ("do not publish" in err) == is_reported
        assert "1500" not in err
        assert "1,500" not in err
        assert "not publish" not in out
        assert f"{declared:,}" in json.loads(out)["verdict"]["privacy"]["words"]
        assert "not publish" not in (tmp_path / "r.html").read_text()


# ---- arguments as people write them


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_values_get_our_own_advice(bad):
    X = np.random.default_rng(0).normal(size=(50, 2))
    X[3, 1] = bad
    model = dp.PrivateConformalClassifier(classes=[0, 1], random_state=0)
    with pytest.raises(ValueError, match='missing = "indicator" or a public number') as found:
        model.fit(X, np.arange(50) % 2)
    assert "mputer" not in str(found.value)
    assert "mputer" not in str(found.value.__cause__) + str(found.value.__context__)


# ---- errors that say what is true and what to do


def test_an_interrupted_fit_tells_of_its_reservation(run, tmp_path, monkeypatch):
    people(100, 0).to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "people.toml").write_text(SCHEMA.format(n=100))
    assert run("budget create study.budget --epsilon 3 --delta 1e-5 --dataset people")[0] == 0

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpscp.cli.fit.fit_estimator", interrupted)
    fit = "fit people.csv --schema people.toml"
    code, _, err = run(f"{fit} --budget study.budget --dataset people")
    assert code == 130
    assert "reserved in 'study.budget' and counts as spent" in err
    assert "dpscp budget show study.budget" in err
    code, _, err = run(fit)
    assert code == 130
    assert "reserved" not in err


# ---- notebooks
