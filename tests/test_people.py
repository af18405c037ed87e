"""What people do on the first day: their files, their habits, their mistakes."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli import main
from dpscp.cli.demo import unused_folder
from dpscp.records import column_bounds

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


# ---- arguments as people write them

LOW, HIGH = [0.0, -1.0, 2.0], [1.0, 1.0, 5.0]


@pytest.mark.parametrize(
    "bounds",
    [
        (LOW, HIGH),
        (np.array(LOW), np.array(HIGH)),
        np.array([LOW, HIGH]),
        list(zip(LOW, HIGH, strict=True)),
        tuple(zip(LOW, HIGH, strict=True)),
        np.array([LOW, HIGH]).T,
        {"c": (2.0, 5.0), "a": (0, 1), "b": (-1, 1)},
    ],
)
def test_feature_bounds_in_every_usual_form(bounds):
    low, high = column_bounds(bounds, 3, ["a", "b", "c"])
    assert np.array_equal(low, LOW)
    assert np.array_equal(high, HIGH)


def test_feature_bounds_of_all_features():
    assert column_bounds((-1, 1), 3, None) == (-1, 1)
    assert column_bounds([-1, 1], 2, None) == (-1, 1)
    low, high = column_bounds({0: (1, 2), 1: (3, 4)}, 2, None)
    assert (low.tolist(), high.tolist()) == ([1, 3], [2, 4])
    assert column_bounds(None, 3, None) is None


def test_square_feature_bounds():
    """Refused where both readings are bounds; taken where only one is, or both are the same."""
    for ambiguous in ([[0, 1], [2, 3]], np.array([[0.0, 1.0], [2.0, 3.0]]), ((0, 1), (2, 3))):
        with pytest.raises(ValueError, match=r"read as .* and as two"):
            column_bounds(ambiguous, 2, None)
    low, high = column_bounds([[0, -50], [150, 60]], 2, None)
    assert (low.tolist(), high.tolist()) == ([0, -50], [150, 60])
    low, high = column_bounds([[0, 150], [-50, 60]], 2, None)
    assert (low.tolist(), high.tolist()) == ([0, -50], [150, 60])
    low, high = column_bounds((np.array([0, 1]), np.array([2, 3])), 2, None)  # two arrays are (lows, highs)
    assert (low.tolist(), high.tolist()) == ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"a": (0, 1)}, "lacks column of X 'b'"),
        ({"a": (0, 1), "b": (0, 1), "z": (0, 1)}, "'z'; there is no such column"),
        ({"a": (0, 1), "b": (1, 0)}, r"feature_bounds\['b'\]"),
        ([(0, 1)] * 3, "a pair for each of the 2 features"),
        ("ab", "feature_bounds must be"),
        (5, "feature_bounds must be"),
    ],
)
def test_feature_bounds_that_fit_nothing(bounds, said):
    with pytest.raises((ValueError, TypeError), match=said):
        column_bounds(bounds, 2, ["a", "b"])


def test_feature_bounds_by_the_names_of_a_frame():
    X = np.random.default_rng(0).uniform([0, 10], [1, 30], (400, 2))
    y = (X[:, 0] > 0.5).astype(int)
    frame = pd.DataFrame(X, columns=["share", "age"])
    common = {"epsilon": 2.0, "classes": [0, 1], "n_records": 400, "guarantee": "split", "random_state": 0}
    by_name = dp.PrivateConformalClassifier(feature_bounds={"age": (10, 30), "share": (0, 1)}, **common).fit(frame, y)
    by_array = dp.PrivateConformalClassifier(feature_bounds=(np.array([0, 10]), np.array([1, 30])), **common).fit(X, y)
    assert by_name.ledger_.public_facts["feature_bounds"] == ((0, 10), (1, 30))
    assert np.array_equal(by_name.threshold_, by_array.threshold_)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_values_get_our_own_advice(bad):
    X = np.random.default_rng(0).normal(size=(50, 2))
    X[3, 1] = bad
    model = dp.PrivateConformalClassifier(classes=[0, 1], random_state=0)
    with pytest.raises(ValueError, match='missing = "indicator" or a public number') as found:
        model.fit(X, np.arange(50) % 2)
    assert "mputer" not in str(found.value)
    assert "mputer" not in str(found.value.__cause__) + str(found.value.__context__)


def test_schema_in_python(tmp_path):
    """A schema from a file or a dict turns a frame into what an estimator takes."""
    (tmp_path / "people.toml").write_text(SCHEMA.format(n=600))
    schema = dp.Schema.read(tmp_path / "people.toml")
    assert dp.Schema.from_dict(schema.to_dict()) == schema
    frame = people(600, 0)
    model = dp.PrivateConformalClassifier(
        epsilon=4.0,
        classes=schema.classes,
        feature_bounds=schema.feature_bounds,
        n_records=schema.n_records,
        guarantee="split",
        random_state=0,
    )
    labels, sets = model.fit(schema.matrix(frame), schema.targets(frame)).predict_set(schema.matrix(frame))
    assert set(labels) <= {"no", "yes"}
    assert sets.shape == (600, 2, 1)
    with pytest.raises(ValueError, match="lacks column 'age'"):
        schema.matrix(frame.drop(columns="age"))
    (tmp_path / "half.toml").write_text('task = "classification"\ntarget = "bought"\n')
    with pytest.raises(ValueError, match="the classes of the target"):
        dp.Schema.read(tmp_path / "half.toml")
