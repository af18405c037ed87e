"""``dpscp evaluate`` and ``dpscp monitor`` on files."""

import json
import re

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli import main

SCHEMA = """
task = "classification"
target = "ill"
classes = ["no", "yes"]
n_records = 2000
[columns.age]
type = "numeric"
bounds = [0, 100]
[columns.dose]
type = "numeric"
bounds = [0, 1]
"""


def write_table(path, n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.uniform(0, 100, n).round(2), "dose": rng.uniform(0, 1, n).round(4)})
    frame["ill"] = np.where(frame["age"] / 100 + 0.3 * rng.normal(size=n) > 0.5, "yes", "no")
    frame.to_csv(path, index=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("deployed")
    write_table(made / "train.csv", 2_000, 0)
    for month in (1, 2):
        write_table(made / f"2026-0{month}.csv", 500, month)
    (made / "schema.toml").write_text(SCHEMA)
    files = made / "train.csv", "--schema", made / "schema.toml", "-o", made / "m.dpscp"
    assert main(["fit", *map(str, files), "--seed", "1"]) == 0
    return made


def run(capsys, *arguments):
    capsys.readouterr()
    code = main(list(map(str, arguments)))
    found = capsys.readouterr()
    return code, found.out, found.err


def test_monitor(folder, capsys):
    state = folder / "monitor.json"
    command = ["monitor", folder / "m.dpscp"]
    page = folder / "monitor.html"
    options = ["--state", state, "--epsilon", "0.4", "--report", page]
    code, out, _ = run(capsys, *command, folder / "2026-01.csv", *options)
    assert code == 0
    assert "no alarm after 1 batch " in out
    assert re.search(rf"report: +{page}", out)
    assert "No alarm." in page.read_text()
    assert "<svg" in page.read_text()
    code, out, _ = run(capsys, *command, folder / "2026-02.csv", "--state", state, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["n_batches"], told["batch"], told["alarm"]) == (2, "2026-02.csv", False)
    assert told["epsilon"] <= 0.4
    before = state.read_bytes()
    code, _, err = run(capsys, *command, folder / "2026-02.csv", "--state", state)
    assert code == 1
    assert "counted before" in err
    code, _, err = run(capsys, *command, folder / "2026-02.csv", "--state", state, "--epsilon", "2")
    assert code == 1
    assert "already contains a monitor" in err
    assert state.read_bytes() == before


def test_monitor_lets_thresholds_follow(folder, capsys, tmp_path):
    state, model, page = (tmp_path / name for name in ("s.json", "following.dpscp", "p.html"))
    command = ["monitor", folder / "m.dpscp", folder / "2026-01.csv", "--state", state]
    code, _, err = run(capsys, *command, "-o", model)
    assert code == 1
    assert "--follow 1" in err
    assert not state.exists()
    code, out, _ = run(capsys, *command, "--follow", "2", "-o", model, "--report", page)
    assert code == 0
    assert "long run: For any sequence of records" in out
    assert "seen within 12 batches of 500" in out
    first, following = dp.load(folder / "m.dpscp"), dp.load(model)
    assert following.threshold_ != first.threshold_
    assert "follow new records" in str(following.certificate_)
    assert "coverage of each batch and the thresholds in force" in page.read_text()
    code, out, _ = run(capsys, *command[:2], folder / "2026-02.csv", "--state", state, "--json")
    assert json.loads(out)["threshold"] == [dp.CoverageMonitor.from_json(state.read_text(), first).thresholds[-1]]
    one = tmp_path / "one.json"
    assert run(capsys, *command[:3], "--state", one, "--follow")[0] == 0
    assert dp.CoverageMonitor.from_json(one.read_text(), first).follow == 1


def test_a_batch_that_became_unpredictable_raises_the_alarm(folder, capsys):
    frame = pd.read_csv(folder / "2026-02.csv")
    frame["ill"] = np.where(frame["ill"] == "yes", "no", "yes")
    frame.to_csv(folder / "2026-03.csv", index=False)
    code, out, _ = run(
        capsys,
        "monitor",
        folder / "m.dpscp",
        folder / "2026-03.csv",
        "--state",
        folder / "other.json",
        "--epsilon",
        "1",
    )
    assert code == 4
    assert out.startswith("ALARM")
    assert "dpscp recalibrate" in out


def test_both_commands_count_persons_where_the_schema_has_ids(tmp_path, capsys):
    """Rows of one person that counted each would break the promise to the person."""
    for name, seed in (("train", 0), ("new", 1)):
        write_table(tmp_path / f"{name}.csv", 900, seed)
        frame = pd.read_csv(tmp_path / f"{name}.csv").assign(who=np.arange(900) // 3 + 1_000 * seed)
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    persons = 'person = "who"\nrows_per_person = 3\nn_persons = 300\n'
    (tmp_path / "schema.toml").write_text(persons + SCHEMA.replace("n_records = 2000\n", ""))
    model = tmp_path / "m.dpscp"
    assert main(f"fit {tmp_path}/train.csv --schema {tmp_path}/schema.toml -o {model} --seed 1".split()) == 0
    whole_person = "adding or removing one person with all their records"
    code, out, _ = run(capsys, "evaluate", model, tmp_path / "new.csv", "--epsilon", "4", "--seed", "1", "--json")
    found = json.loads(out)
    assert code == 0
    assert dp.Ledger.from_json(json.dumps(found["ledger"])).neighbors == whole_person
    assert found["n_records"]["estimate"] == pytest.approx(300, abs=15)
    code, out, _ = run(capsys, "monitor", model, tmp_path / "new.csv", "--state", tmp_path / "s.json", "--json")
    assert code == 0
    assert json.loads(out)["neighbors"] == whole_person


def test_recalibrate_writes_a_model_with_its_own_promises(folder, capsys, tmp_path):
    output = tmp_path / "new.dpscp"
    command = ["recalibrate", folder / "m.dpscp", folder / "2026-01.csv", "-o", output, "--epsilon", "2"]
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert "records of the fit pay nothing more" in out
    new = dp.load(output)
    assert new.certificate_.terms["n_records"] == 500
    code, out, _ = run(capsys, *command, "--n", "500", "--json")
    assert code == 0
    assert json.loads(out)["coverage"] == 0.9
    code, _, err = run(capsys, "recalibrate", folder / "m.dpscp", folder / "train.csv", "-o", tmp_path / "x.dpscp")
    assert code == 1
    assert "fitted on" in err
    assert not (tmp_path / "x.dpscp").exists()
