"""Every option of the command line changes what it says it changes.

Whoever writes a schema declares what is public; whoever types an option decides. A command that quietly takes something
else, from a default or from the table, breaks a promise that no error message shows.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.audit.model_game import ModelGame

# declared otherwise than the table looks: wider bounds, a label nobody has, a rounder number of records
SCHEMA = """
task = "classification"
target = "bought"
classes = ["yes", "no", "maybe"]
n_records = 450

[columns.age]
type = "numeric"
bounds = [0, 150]

[columns.score]
type = "numeric"
bounds = [-50, 60]
"""


def people(n, seed):
    rng = np.random.default_rng(seed)
    age, score = rng.integers(18, 91, n), rng.normal(size=n).round(3)
    bought = np.where(score + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"age": age, "score": score, "bought": bought})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("options")
    people(400, 0).to_csv(place / "people.csv", index=False)
    people(400, 0).to_csv(place / "semicolons.csv", index=False, sep=";")
    people(300, 1).to_csv(place / "new.csv", index=False)
    (place / "people.toml").write_text(SCHEMA)
    return place


@pytest.fixture
def succeed(run):
    """Run a command that succeeds; what it printed, read as JSON if it was asked for."""

    def call(line):
        code, out, err = run(line)
        assert code == 0, err
        return json.loads(out) if "--json" in line else out

    return call


def test_every_option_of_fit_reaches_the_estimator(succeed, folder):
    told = succeed(
        "fit people.csv --schema people.toml --epsilon 0.7 --delta 1e-7 --confidence 0.5 0.6 --guarantee universal "
        "--seed 3 -o all.dpscp --json"
    )
    model = dp.load(folder / "all.dpscp")
    assert (model.epsilon, model.delta, model.random_state, model.guarantee) == (0.7, 1e-7, 3, "universal")
    assert [c.target for c in model.certificates_] == [0.5, 0.6]
    assert [c.guarantee for c in model.certificates_] == ["universal"] * 2
    # the budget is used at the delta that was asked for, and not exceeded there
    assert 0.99 * 0.7 <= model.ledger_.epsilon(1e-7) <= 0.7
    assert model.ledger_.seeded
    facts = model.ledger_.public_facts
    assert facts["feature_bounds"] == ((0.0, -50.0), (150.0, 60.0))
    assert facts["n_records"] == 450
    assert model.classes_.tolist() == ["yes", "no", "maybe"]
    assert not model.ledger_.taken_from_data
    told = told["statement"]
    assert (told["privacy"]["budget"], told["is_private"]) == ({"epsilon": 0.7, "delta": 1e-7}, False)
    assert len(told["coverage"]) == 2


def test_score_and_groups_reach_the_estimator(succeed, folder):
    table = people(400, 0).assign(region=np.resize(["north", "south"], 400))
    table.loc[3, "region"] = "elsewhere"
    table.to_csv(folder / "regions.csv", index=False)
    region = '[columns.region]\ntype = "categorical"\ncategories = ["north", "south"]\nunknown = "other"\n'
    (folder / "regions.toml").write_text(SCHEMA + region)
    told = succeed(
        "fit regions.csv --schema regions.toml --epsilon 8 --confidence 0.5 --score raps --groups region "
        "--seed 1 -o regions.dpscp --json"
    )
    model = dp.load(folder / "regions.dpscp")
    assert (model.conformity_score, model.groups, model.group_values_) == ("raps", "region", ("north", "south"))
    assert len(told["statement"]["thresholds"]) == 2
    assert model.schema_.feature_names[-2:] == ("region=north", "region=south")
    succeed("predict regions.dpscp regions.csv -o regions.out.csv")
    assert pd.read_csv(folder / "regions.out.csv")["set_size"][3] == 3  # a group that was not declared


def test_what_one_release_covers_is_asked_for_and_told(succeed, folder):
    fit = "fit people.csv --schema people.toml --epsilon 8 --confidence 0.6 --guarantee split --seed 1"
    plain = succeed(f"{fit} -o one.dpscp")
    covered = re.search(r"19 of 20 such releases cover at least (\d+\.\d)%", plain)
    assert float(covered[1]) < 60
    asked = succeed(f"{fit} --release-confidence 0.9 -o two.dpscp")
    assert "9 of 10 such releases cover at least 60.0%" in asked
    assert dp.load(folder / "two.dpscp").release_confidence == 0.9
    assert dp.load(folder / "two.dpscp").threshold_[0] > dp.load(folder / "one.dpscp").threshold_[0]


@pytest.mark.parametrize("kind", ['type = "numeric"', ""], ids=["numeric", "no type"])
def test_the_declarations_of_the_targets_own_column_reach_the_estimator(succeed, folder, kind):
    text = SCHEMA[SCHEMA.index("[columns.score]") :]
    (folder / "age.toml").write_text(
        f'task = "regression"\ntarget = "age"\nn_records = 450\n{text}\n'
        f'[columns.age]\n{kind}\nbounds = [10, 150]\nscale = "log"\n[columns.bought]\ntype = "ignore"\n'
    )
    succeed("fit people.csv --schema age.toml --epsilon 8 --seed 0 --force -o age.dpscp")
    facts = dp.load(folder / "age.dpscp").ledger_.public_facts
    assert (facts["y_bounds"], facts["y_scale"]) == ((10.0, 150.0), "log")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--score aps", "--score is not for a multilabel task"),
        ("--release-confidence 0.9", "--release-confidence is not for a multilabel task"),
        ("--side upper", "--side is not for a "),
        ("--evaluate new.csv", "bounds a mean loss"),
        ("--confidence 0.7 0.8", ""),
    ],
)
def test_several_labels_are_fitted_and_predicted(run, folder, option, said):
    table = people(300, 0).assign(first=np.resize([0, 1, 1], 300), second=np.resize([1, 0], 300)).drop(columns="bought")
    table.to_csv(folder / "labels.csv", index=False)
    text = SCHEMA.replace("classification", "multilabel").replace('target = "bought"', 'targets = ["first", "second"]')
    (folder / "labels.toml").write_text(text.replace('classes = ["yes", "no", "maybe"]\n', ""))
    code, _, err = run(f"fit labels.csv --schema labels.toml --epsilon 8 --seed 0 --force -o labels.dpscp {option}")
    assert (code != 0) == bool(said), err
    assert said in err
    if said:
        assert not (folder / "labels.dpscp").exists()
        return
    model = dp.load(folder / "labels.dpscp")
    assert (model.risk, model.classes_.tolist()) == ([0.3, 0.2], ["first", "second"])
    assert run("predict labels.dpscp labels.csv -o labels.out.csv")[0] == 0
    X = table[["age", "score"]]
    sets = pd.read_csv(folder / "labels.out.csv")[["set_70 first", "set_70 second"]].to_numpy()
    np.testing.assert_array_equal(sets, model.predict_set(X)[1][:, :, 0])


def test_every_option_of_plan_changes_the_plan(succeed):
    plain = succeed("plan --n 5000 --epsilon 1 --json")
    options = ("--delta 1e-8", "--confidence 0.8", "--classes 7", "--features 300", "--train-share 0.2")
    for option in (*options, "--release-confidence 0.9"):
        changed = succeed(f"plan --n 5000 --epsilon 1 {option} --json")
        assert changed["rows"] != plain["rows"], option
    told = succeed("plan --n 5000 --epsilon 1 --delta 1e-8 --confidence 0.8 --features 7 --json")
    assert (told["delta"], told["alpha"], told["n_features"]) == (1e-8, 0.2, 7)
    assert succeed("plan --n 5000 --epsilon 1 --regression --json")["task"] == "regression"


def test_an_audit_of_ones_own_model_plays_with_its_settings(succeed, folder):
    succeed("fit people.csv --schema people.toml --epsilon 3 --confidence 0.5 --guarantee universal -o own.dpscp")
    told = succeed("audit own.dpscp --runs 8 --json")
    assert (told["passed"], told["runs"], told["knowledge"]) == (True, 8, "black-box")
    claim = ModelGame(dp.load(folder / "own.dpscp")).claim
    assert 0.95 * 3 <= dp.privacy.epsilon_of(claim, 1e-5) <= 3.0
    assert told["claimed"] == [dp.privacy.epsilon_of(claim, delta) for delta in told["deltas"]]
    control = succeed("audit own.dpscp --runs 8 --null --json")
    assert (control["null"], max(control["audited"])) == (True, 0)
