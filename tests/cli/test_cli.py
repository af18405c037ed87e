"""The command line, as a person and as a script use it."""

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli import demo, main
from dpscp.data.schema import Schema, parse_schema, template
from dpscp.data.sources.tables import Table

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-9182"
SCHEMA = """
task = "classification"
target = "bought"
classes = ["no", "yes"]
n_records = 2500

[columns.age]
type = "numeric"
bounds = [18, 90]

[columns.region]
type = "categorical"
categories = ["north", "south", "west"]

[columns.score]
type = "numeric"
bounds = [-5, 5]

[columns.id]
type = "ignore"
"""


def people(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, score = rng.integers(18, 91, n), rng.normal(size=n)
    bought = np.where(score + (age - 54) / 30 + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    region = rng.choice(["north", "south", "west"], n)
    return pd.DataFrame({"id": np.arange(n), "age": age, "region": region, "score": score.round(3), "bought": bought})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    people(2500, 0).to_csv(place / "people.csv", index=False)
    people(500, 1).to_csv(place / "new.csv", index=False)
    people(500, 1).to_parquet(place / "new.parquet")
    (place / "people.toml").write_text(SCHEMA)
    line = f"fit {place}/people.csv --schema {place}/people.toml --epsilon 2 --seed 1 --confidence 0.8 0.9"
    code = main([*line.split(), "-o", str(place / "model.dpscp")])
    assert code == 0
    return place


DEMO = "demo --folder demo"


class Demonstrated(NamedTuple):
    """The folder that the demo wrote into, what it printed, and what it would print as JSON."""

    folder: Path
    printed: str
    summary: dict[str, Any]


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    place, summaries = tmp_path_factory.mktemp("demonstrated"), []
    run_demo = demo.run_demo

    def keep_summary(*arguments, **options):
        summaries.append(run_demo(*arguments, **options))
        return summaries[0]

    with contextlib.chdir(place), contextlib.redirect_stdout(io.StringIO()) as said, pytest.MonkeyPatch.context() as m:
        m.setattr(demo, "run_demo", keep_summary)
        assert main(DEMO.split()) == 0
    return Demonstrated(place / "demo", said.getvalue(), json.loads(json.dumps(summaries[0])))


def refused(result, *said: str, code: int = 1) -> None:
    found, out, err = result
    assert found == code
    assert out == ""
    lines = err.strip().splitlines()
    assert len([x for x in lines if x.startswith("dpscp: error:")]) == 1
    assert len(lines[-1]) < 600
    for text in said:
        assert text in lines[-1]
    assert CANARY not in err


def no_debris(folder: Path) -> None:
    assert not [p for p in folder.iterdir() if p.name.startswith(".dpscp-")]


# ---- the way of a new user


def test_schema_fit_predict_report(run, folder):
    code, out, _ = run("schema people.csv --target bought -o draft.toml")
    assert code == 0
    assert "dpscp fit" in out
    draft = (folder / "draft.toml").read_text()
    assert not re.search(r"north|south|2500", draft)  # nothing of the records but the column names
    assert parse_schema(draft) == template(["id", "age", "region", "score", "bought"], target="bought")

    code, out, _ = run("fit people.csv --schema people.toml --epsilon 2 --evaluate new.csv --report r.html -o m.dpscp")
    assert code == 0
    assert re.search(r"Privacy: epsilon [12]\.\d+ at delta 1e-05, for adding or removing one record", out)
    assert "500 labeled records" in out
    assert "NOT private: the evaluation" in out
    model = dp.load(folder / "m.dpscp")
    assert model.ledger_.is_private
    assert Schema.from_dict(model.ledger_.public_facts["schema"]) == parse_schema(SCHEMA)
    assert (folder / "r.html").read_text().startswith("<!doctype html>")

    code, _, _ = run("predict m.dpscp new.csv -o out.csv")
    assert code == 0
    found = pd.read_csv(folder / "out.csv")
    assert list(found.columns[-4:]) == ["prediction", "set", "set_size", "errors"]
    assert found["errors"].isna().all()
    sets = model.predict_set(parse_schema(SCHEMA).matrix(people(500, 1)))[1][:, :, 0]
    assert found["set_size"].tolist() == sets.sum(axis=1).tolist()
    assert [s.split("|") if s else [] for s in found["set"].fillna("")] == [
        model.classes_[row].tolist() for row in sets
    ]
    no_debris(folder)


def _copies_of_the_training_file(folder: Path) -> dict[str, str]:
    table = pd.read_csv(folder / "people.csv")
    table.sample(frac=1, random_state=0)[["score", "region", "bought", "age", "id"]].to_csv(
        folder / "shuffled.csv", index=False
    )
    table.head(300).to_csv(folder / "part.csv", index=False)
    (folder / "bytes.csv").write_bytes((folder / "people.csv").read_bytes())
    if not (folder / "link.csv").exists():
        (folder / "link.csv").symlink_to(folder / "people.csv")
    return {
        "people.csv": "the table that",
        "link.csv": "the table that",
        "bytes.csv": "holds records",
        "shuffled.csv": "holds records",
        "part.csv": "holds records",
    }


def test_evaluation_on_the_training_file_is_refused(run, folder, monkeypatch):
    for name, said in _copies_of_the_training_file(folder).items():
        refused(run(f"report model.dpscp -o t.html --evaluate {name}"), said, "was fitted on", "did not use")
        assert not (folder / "t.html").exists()
    monkeypatch.setattr(
        "dpscp.cli.fit.fit_estimator", lambda *_, **__: pytest.fail("spent before the evaluation was refused")
    )
    for name, said in _copies_of_the_training_file(folder).items():
        refused(run(f"fit people.csv --schema people.toml -o t.dpscp --evaluate {name}"), said, "was fitted on")


def test_without_its_note_an_evaluation_states_what_it_assumes(run, folder):
    """Without its note, or with that of another model, nobody knows whose records these are."""
    (folder / "alone").mkdir()
    (folder / "alone" / "m.dpscp").write_bytes((folder / "model.dpscp").read_bytes())
    for note in (None, "[]", (folder / "model.dpscp.origin.json").read_text().replace("model_sha256", "sha256")):
        if note is not None:
            (folder / "alone" / "m.dpscp.origin.json").write_text(note)
        code, out, _ = run("report alone/m.dpscp -o alone/r.html --evaluate people.csv")
        assert (code, "nothing about new records if the fit used these" in out) == (0, True)
        section = (folder / "alone" / "r.html").read_text().split('<section id="evaluation">')[1].split("</section>")[0]
        assert "If the fit used these records, the numbers say nothing about new records." in section
    told = json.loads(run("report model.dpscp -o r.html --evaluate new.csv --json")[1])
    assert told["verdict"]["has_exact_numbers"]


def test_neither_model_nor_note_holds_a_function_of_the_records(run, folder):
    """Two tables of one name and one time of writing: the notes differ in the checksum of the model only."""
    notes = []
    for seed in (7, 8):
        people(300, seed).to_csv(folder / "same.csv", index=False)
        os.utime(folder / "same.csv", ns=(1, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert run("fit same.csv --schema people.toml --epsilon 2 -o same.dpscp --force")[0] == 0
        note = json.loads((folder / "same.dpscp.origin.json").read_text())
        model = (folder / "same.dpscp").read_bytes()
        assert note.pop("model_sha256") == hashlib.sha256(model).hexdigest()
        assert hashlib.sha256((folder / "same.csv").read_bytes()).hexdigest().encode() not in model
        notes.append(note)
    assert notes[0] == notes[1]


def test_demo_writes_everything(run, demonstrated):
    place, out, _ = demonstrated
    named = dict(re.findall(r"^([a-z][a-z ]+): +(.*)$", out, re.M))
    assert list(named) == [
        *("proven", "privacy strength", "usefulness", "who is served worse", "persons"),
        "report",
    ]
    assert "adding or removing one person" in out
    assert "19 of 20 such releases cover at least" in out
    assert "NOT private: the evaluation of 1,200 labeled records" in out
    assert named["persons"] == "3,431 (declared)"
    assert "coverage, class none" in out
    made = {p.name for p in place.iterdir()}
    assert made - {"model.dpscp.origin.json"} == {
        "records.csv",
        "heldout.csv",
        "schema.toml",
        "model.dpscp",
        "report.html",
    }
    refused(run(f"report {place}/model.dpscp -o again.html --evaluate {place}/records.csv"), "was fitted on")
    assert run(f"predict {place}/model.dpscp {place}/heldout.csv -o predicted.csv")[0] == 0


def test_the_demo_shares_nobody_and_its_sets_are_of_use(demonstrated):
    records, held_out = demo.load_demo_tables()
    assert not set(records.person) & set(held_out.person)
    assert records.person.nunique() == demo.SCHEMA.n_persons
    assert records.person.value_counts().max() <= demo.SCHEMA.rows_per_person
    told = demonstrated.summary[0]["evaluation"]
    # 1.47 labels of two on average over fits, and one fit is 0.06 off
    assert 1 < told["set_size"][0]["estimate"] < 1.47 + 4 * 0.06


# ---- refusals


def test_types_are_never_guessed(run):
    assert run("schema people.csv --target bought -o open.toml --force")[0] == 0
    refused(run("fit people.csv --schema open.toml -o x.dpscp"), "the task", "type of columns 'id', 'age'")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [("age", "", "missing values"), ("age", CANARY, "not a number"), ("region", CANARY, "declared categories")],
)
def test_records_that_do_not_fit(run, folder, column, value, said):
    """A fit is refused; of rows to predict, a bad one has no prediction and says why, by its number."""
    table = people(50, 2).astype(str)
    table.loc[7, column] = value
    table.to_csv(folder / "odd.csv", index=False)
    refused(run("fit odd.csv --schema people.toml -o odd.out"), said, column)
    assert not (folder / "odd.out").exists()
    code, out, err = run("predict model.dpscp odd.csv -o odd.csv.gz --json")
    assert (code, json.loads(out)["errors"]) == (0, 1)
    assert "1 of 50 rows" in err
    found = pd.read_csv(folder / "odd.csv.gz")
    (bad,) = np.flatnonzero(found["errors"].notna())
    assert bad == 7
    assert found["errors"][7].startswith(f"row 8: column {column!r}")
    assert said in found["errors"][7]
    assert CANARY not in found["errors"][7]
    assert found.loc[7, ["prediction", "set_80", "set_size_80", "set_90", "set_size_90"]].isna().all()
    fine = pd.read_csv(folder / "odd.csv.gz").drop(index=7)
    assert fine[["prediction", "set_size_90"]].notna().all().all()
    assert (fine["set_90"].notna() == (fine["set_size_90"] > 0)).all()
    people(50, 2).drop(index=7).to_csv(folder / "even.csv", index=False)
    assert run("predict model.dpscp even.csv -o even.out.csv")[0] == 0
    pd.testing.assert_series_equal(fine["set_90"], pd.read_csv(folder / "even.out.csv")["set_90"], check_index=False)


@pytest.mark.parametrize(
    "command", ["fit people.csv --schema people.toml", "predict model.dpscp new.csv", "report model.dpscp"]
)
@pytest.mark.parametrize(
    ("output", "said"), [("no/where.csv", "does not exist"), (".", "is a folder"), ("new.csv/x", "not exist")]
)
def test_unwritable_output_is_found_first(run, command, output, said, monkeypatch):
    monkeypatch.setattr(
        "dpscp.cli.fit.fit_estimator", lambda *_, **__: pytest.fail("spent before the output was checked")
    )
    refused(run(f"{command} -o {output}"), said)


def test_inputs_are_not_overwritten(run, folder):
    refused(run("predict model.dpscp new.csv -o new.csv"), "is an input file")
    (folder / "filled.toml").write_text(SCHEMA)
    refused(run("schema people.csv -o filled.toml"), "exists")
    assert (folder / "filled.toml").read_text() == SCHEMA
    assert run("schema people.csv -o filled.toml --force --header")[0] == 0
    people(5, 0).assign(prediction=1).to_csv(folder / "taken.csv", index=False)
    refused(run("predict model.dpscp taken.csv -o t.csv"), "already has a column 'prediction'")


@pytest.mark.parametrize(
    "content",
    [
        f"{CANARY},engineer,Paris\nBob,nurse,Rome\nEve,nurse,Oslo\n",  # texts only: nothing tells a record apart
        f"{CANARY},unknown,Paris\nBob,34,Rome\nEve,51,Oslo\n",  # a missing number in the first record
        f"{CANARY},north,west\nBob,north,5\nEve,south,6\n",  # a cell that comes again below
        f"{CANARY};3,5;Paris\nBob;5,1;Rome\n",  # another separator
        f"{CANARY},engineer,Paris\nBob,nurse\n1,2,3,4\n",
    ],
)
def test_schema_never_takes_a_record_for_column_names(run, folder, content):
    (folder / "headless.csv").write_text(content)
    for line in ("schema headless.csv -o h.toml", "schema headless.csv --target income -o h.toml"):
        refused(run(line), "first line of")
        assert not (folder / "h.toml").exists()
    # a fit lists the columns that are not declared: not the cells of a record
    refused(run("fit headless.csv --schema people.toml -o unwritten.dpscp"), "first line of")


def test_files_that_are_not_there_or_no_models(run, folder):
    refused(run("fit none.csv --schema people.toml -o unwritten.dpscp"), "file 'none.csv' does not exist")
    refused(run("fit people.csv --schema none.toml -o unwritten.dpscp"), "does not exist")
    refused(run("predict none.dpscp new.csv -o o.csv"), "model file 'none.dpscp' does not exist")
    refused(run("report people.csv"), "cannot be loaded")
    clf = dp.PrivateConformalClassifier(classes=[0, 1], random_state=0, epsilon=2)
    X = np.random.default_rng(0).normal(size=(500, 2))
    clf.fit(X, (X[:, 0] > 0).astype(int)).save(folder / "plain.dpscp")
    refused(run("predict plain.dpscp new.csv -o o.csv"), "has no schema")
    assert run("report plain.dpscp -o plain.html")[0] == 0


def test_budget_errors_have_their_own_code(run):
    refused(run("fit people.csv --schema people.toml --epsilon 1 --delta 2 -o unwritten.dpscp"), "delta")
    assert run("budget create tiny.budget --epsilon 0.1 --delta 1e-5 --dataset people")[0] == 0
    line = "fit people.csv --schema people.toml --epsilon 1 --budget tiny.budget --dataset people -o t.dpscp"
    refused(run(line), "epsilon", code=3)


def test_budget_store_is_spent(run):
    assert run("budget create study.budget --epsilon 3 --delta 1e-5 --dataset people")[0] == 0
    line = "fit people.csv --schema people.toml --epsilon 1 --budget study.budget -o b.dpscp"
    assert run(f"{line} --dataset people")[0] == 0
    code, out, _ = run("budget show study.budget --json")
    assert code == 0
    told = json.loads(out)
    # reserved and committed, with what each costs alone; a person reads what counts
    reserved, committed = (x["epsilon"] for x in told["lines"][1:])
    assert reserved == committed <= 1.0 < told["spent"] / committed < 1.01
    text, explained = run("budget show study.budget")[1].splitlines()[-2:]
    assert explained.startswith("Each epsilon alone is at delta 1e-05, that of the store.")
    assert re.fullmatch(r"2: \d{4}-\d\d-\d\dT\S+ commit epsilon [01]\.\d{3} alone: \w+\.fit", text)
    refused(run("budget create other.budget"), "--epsilon, --delta")
    refused(run("budget create other.budget --epsilon 3 --delta 1e-5"), "--dataset")
    refused(run("budget create study.budget --epsilon 3 --delta 1e-5 --dataset people"), "the file exists")
    refused(run("budget show none.budget"), "no budget store")


def test_a_fit_repeats_the_name_of_the_budget_store(run, folder, monkeypatch):
    assert run("budget create named.budget --epsilon 3 --delta 1e-5 --dataset 'people 2025'")[0] == 0
    monkeypatch.setattr(Table, "batches", lambda *_: pytest.fail("records were read before the refusal"))
    line = "fit people.csv --schema people.toml -o n.dpscp"
    refused(run(f"{line} --budget named.budget"), "dataset must be 'people 2025'", "none was given")
    refused(run(f"{line} --budget named.budget --dataset others"), "got 'others'")
    refused(run(f"{line} --budget named.budget --dataset 'people 2025' --seed 1"), "seed", "random_state=None")
    refused(run(f"{line} --budget gone.budget --dataset 'people 2025'"), "no budget store")
    refused(run(f"{line} --dataset 'people 2025'"), "--budget")
    assert not (folder / "gone.budget").exists()
    assert json.loads(run("budget show named.budget --json")[1])["spent"] == 0


def test_a_useless_fit_is_called_that_in_every_output(run, folder):
    """Twenty records: the promise holds only because the sets are full, and no number of records was declared."""
    people(20, 4).to_csv(folder / "twenty.csv", index=False)
    (folder / "twenty.toml").write_text(SCHEMA.replace("n_records = 2500\n", ""))
    sentence = "The promise holds only because the sets contain nearly every answer"
    fit = "fit twenty.csv --schema twenty.toml -o twenty.dpscp --force"
    code, out, _ = run(fit)
    assert code == 0
    assert sentence in out
    assert re.search(r"records: +20 \(counted in the table", out)
    commands = ("report twenty.dpscp -o twenty.html", "predict twenty.dpscp twenty.csv -o twenty-out.csv")
    for line in commands:
        assert sentence in run(line)[1]
    for line in (fit, *commands):
        assert json.loads(run(f"{line} --json")[1])["verdict"]["usefulness"]["grade"] == "not useful"
    page = (folder / "twenty.html").read_text()
    assert "so it is not useful" in page
    assert "counted in the table and published" in page
    found = json.loads(run("report model.dpscp -o full.html --json")[1])
    assert found["verdict"]["usefulness"]["grade"] == "not measured"
    assert ", declared in advance" in (folder / "full.html").read_text()


def test_usage_errors_and_help(capsys):
    for line in ([], ["fit"], ["fit", "table.csv"], ["nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(line)
        assert caught.value.code == 2
    for name in ["demo", "schema", "fit", "predict", "report", "plan", "audit", "budget", "reproduce"]:
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert "examples:" in text
        assert "--json" in text


def test_warnings_are_one_line_and_vacuous_is_said(run, folder):
    people(30, 4).to_csv(folder / "few.csv", index=False)
    text = SCHEMA.replace("n_records = 2500", "n_records = 30")
    (folder / "few.toml").write_text(text)
    code, out, err = run("fit few.csv --schema few.toml --epsilon 0.1 -o few.dpscp --json")
    assert code == 0
    assert err.startswith("dpscp: warning:")
    assert "VACUOUS" in err
    assert len(err.strip().splitlines()) == 1
    assert "More records" in err
    assert "Numbers:" not in err  # the certificate in the model has them
    assert json.loads(out)["statement"]["coverage"][0]["is_vacuous"]


def test_unexpected_errors_show_their_kind_only(run, monkeypatch):
    def broken(*_, **__):
        raise KeyError(CANARY)

    monkeypatch.setattr("dpscp.cli.fit.fit_estimator", broken)
    refused(run("fit people.csv --schema people.toml -o unwritten.dpscp"), "unexpected KeyError")


# ---- large files: block by block


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few records, so that a small file has many."""
    monkeypatch.setattr("dpscp.data.sources.files.BLOCK_BYTES", 512)
    monkeypatch.setattr("dpscp.data.sources.tables.count_rows", lambda _: 17)


@pytest.mark.parametrize("name", ["whole.csv", "whole.csv.gz", "whole.tsv", "whole.parquet"])
def test_a_table_in_blocks_gives_what_one_block_gives(run, folder, small_blocks, monkeypatch, name):
    """Cells that are not used come out as they went in, quotes, separators, line ends and leading zeros too."""
    table = people(200, 4).astype(str)
    table["id"] = ["00" + text for text in table["id"]]
    table["note"] = ['say "no", or\nnothing', "", "a\tb", " é "] * 50
    table.loc[::3, "age"] = " 44 "
    if name.endswith(".parquet"):
        table["list"] = [[[1], [2]]] * 200
        table.to_parquet(folder / name, index=False)
        refused(run(f"predict model.dpscp {name} -o lists.csv"), "'list' cannot be written as CSV")
        assert not (folder / "lists.csv").exists()
    else:
        table.to_csv(folder / name, index=False, sep="\t" if name.endswith(".tsv") else ",")
    assert run(f"predict model.dpscp {name} -o blocks-{name}")[0] == 0
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert run(f"predict model.dpscp {name} -o once-{name}")[0] == 0
    read = pd.read_parquet if name.endswith(".parquet") else partial(pd.read_csv, sep=None, engine="python", dtype=str)
    many, once = read(folder / f"blocks-{name}"), read(folder / f"once-{name}")
    pd.testing.assert_frame_equal(many, once)
    pd.testing.assert_frame_equal(many[table.columns].fillna(""), table.fillna(""), check_dtype=False)
    sets = dp.load(folder / "model.dpscp").predict_set(parse_schema(SCHEMA).matrix(table))[1]
    assert many["set_size_80"].astype(int).tolist() == sets[:, :, 0].sum(axis=1).tolist()


# ---- plan, audit, reproduce


def test_plan(run, folder):
    code, out, err = run("plan --n 5000 --epsilon 1 --json --html plan.html")
    assert (code, err) == (0, "")
    assert json.loads(out)["rows"][0]["guarantee"] == "universal"
    assert (folder / "plan.html").read_text().startswith("<!doctype html>")
    assert "universal" in run("plan --n 5000 --epsilon 1")[1]
    assert "needed_n" in json.loads(run("plan --epsilon 1 --overshoot 0.02 --regression --json")[1])["rows"][0]
    refused(run("plan --n 5000"), "n and epsilon")
    refused(run("plan --n 5000 --epsilon 1 --regression --classes 3"), "not both")


def test_a_broken_promise_fails_the_audit_command(run, monkeypatch):
    from dpscp.audit import Audit

    broken = Audit("search", "white-box", 10, 0.99, (0.01,), (1.0,), (2.0,))
    monkeypatch.setattr(sys.modules["dpscp.audit"], "audit", lambda *_, **__: broken)
    monkeypatch.setattr("dpscp.cli.commands.load_model", lambda _: None)
    code, out, _ = run("audit model.dpscp")
    assert (code, "BROKEN" in out) == (1, True)


# ---- terminals and processes


# stops a fit between writing the temporary file and the rename
_STOPPED = """
import sys, time
from dpscp.cli import main
import dpscp.data.model_files

def stop(*_, **__):
    print("here", flush=True)
    time.sleep(120)

dpscp.data.model_files.os.replace = stop
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_fit_leaves_no_half_written_file(folder):
    """The output of an earlier fit stays as it was."""
    line = "fit people.csv --schema people.toml -o killed.dpscp --report killed.html --force"
    (folder / "killed.dpscp").write_bytes(b"earlier")
    command = [sys.executable, "-c", _STOPPED, *line.split()]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    process.kill()
    process.communicate(timeout=60)
    assert (folder / "killed.dpscp").read_bytes() == b"earlier"
    assert not (folder / "killed.html").exists()
    for debris in folder.glob(".dpscp-*"):  # a kill leaves the temporary file, under a name of its own
        debris.unlink()


def test_an_interrupt_in_training_leaves_no_file(run, folder, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpscp.training.mechanisms.dpsgd.progress", interrupt)
    line = "fit people.csv --schema people.toml --epsilon 2 -o stopped.dpscp --report stopped.html"
    code, out, err = run(line)
    assert (code, out) == (130, "")
    assert err.endswith("dpscp: error: interrupted; no output file was left incomplete\n")
    assert not (folder / "stopped.dpscp").exists()
    assert not (folder / "stopped.html").exists()
    no_debris(folder)


# ---- the documents


def _shell_blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = "\n".join(re.findall(r"```bash\n(.*?)```", path.read_text(), flags=re.DOTALL))
        lines = [x for x in text.replace("\\\n", " ").splitlines() if x.startswith("dpscp ")]
        if lines:
            is_long = path.stem in ("README", "choosing", "start")  # what the others call too
            yield pytest.param(lines, id=path.name, marks=[pytest.mark.slow] * is_long)


@pytest.mark.parametrize("lines", list(_shell_blocks()))
def test_commands_in_the_documents_run(lines, demonstrated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words == DEMO.split():  # most of them begin with it
            shutil.copytree(demonstrated.folder, "demo")
        elif words[0] != "serve":  # it ends with Ctrl-C alone; tests/deployment/test_server.py starts it
            assert main(words) == 0, capsys.readouterr().err
