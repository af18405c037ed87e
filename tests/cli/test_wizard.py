"""The questions of ``dpscp fit``: every answer is in the schema file at once, and nothing is lost."""

import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli import main, wizard
from dpscp.cli.files import CommandError
from dpscp.data.csv_format import CSVFormat
from dpscp.data.schema import Column, parse_schema, read_schema, template

NAMES = ["age", "kind", "visit", "patient", "y"]
PERSONS = ["yes", "patient", "3", ""]
COLUMNS = ["num", "0, 110", "mark", "cat", 'a, "b, c"', "no", "ignore"]


def ask(answers, *, names=NAMES, schema=None, path):
    """Run the questions with scripted answers; an exception among them is raised."""
    questions, left = [], iter(answers)

    def answer(question):
        questions.append(question)
        found = next(left)
        if isinstance(found, BaseException) or (isinstance(found, type) and issubclass(found, BaseException)):
            raise found
        return found

    found = wizard.ask_declarations(schema or template(names), path, "dpscp fit t.csv", names, answer)
    assert next(left, None) is None
    return found, questions


EXPECTED = parse_schema(
    'task = "classification"\ntarget = "y"\nclasses = ["no", "yes"]\nperson = "patient"\nrows_per_person = 3\n'
    '[columns.age]\ntype = "numeric"\nbounds = [0, 110]\nmissing = "indicator"\n'
    '[columns.kind]\ntype = "categorical"\ncategories = ["a", "b, c"]\n[columns.visit]\ntype = "ignore"\n'
)


def test_questions_complete_a_schema_and_show_it(tmp_path, capsys):
    found, questions = ask(["y", *PERSONS, "class", "no", "no, yes", *COLUMNS, "yes"], path=tmp_path / "s.toml")
    assert found == read_schema(tmp_path / "s.toml") == EXPECTED
    assert "several rows" in questions[1]
    shown = capsys.readouterr().err
    assert (tmp_path / "s.toml").read_text() in shown
    for line in ("enter at least two labels", str(tmp_path / "s.toml")):
        assert line in shown


def test_dates_are_asked_for_as_dates(tmp_path, capsys):
    answers = [
        "y",
        "no",
        "",
        "class",
        "no, yes",
        "date",
        "soon",
        "2020-01-01 to 2030-12-31",
        "never",
        "2025-01-01",
        "yes",
    ]
    found, questions = ask(answers, names=["visit", "y"], path=tmp_path / "s.toml")
    assert found.columns == (Column("visit", "date", ("2020-01-01", "2030-12-31"), "2025-01-01"),)
    assert "or a public date to fill in" in questions[-2]
    assert "must be a pair of dates" in capsys.readouterr().err


def test_wide_bounds_get_a_question_about_logarithms_and_numbers_have_the_declared_mark(tmp_path, capsys):
    answers = ["y", "no", "", "regr", "1,5 to 90000", "yes", "num", "0,5, 2", "0,5 2", "0,75"]
    answers += ["num", "0 5000", "yes", "no", "num", "0 5000", "no", "no", "yes"]
    schema = replace(template(["dose", "cost", "days", "y"]), csv=CSVFormat(separator=";", decimal=","))
    found, questions = ask(answers, names=["dose", "cost", "days", "y"], schema=schema, path=tmp_path / "s.toml")
    assert (found.bounds, found.scale) == ((1.5, 90_000.0), "log")
    assert [(c.bounds, c.scale) for c in found.columns] == [
        ((0.5, 2.0), "linear"),
        ((0.0, 5000.0), "log1p"),
        ((0.0, 5000.0), "linear"),
    ]
    assert found.columns[0].missing == 0.75
    assert sum("ratios" in question for question in questions) == 3
    assert "Columns: dose, cost, days, y." in capsys.readouterr().err


def test_bad_answers_are_asked_again_and_lose_nothing(tmp_path, capsys):
    answers = ["target", "y", "perhaps", "yes", "patients", "y", "patient", "0", "3", "x", "500"]
    answers += ["maybe", "regr", "low", "5 1", "0 to 1", "what", "num", "1, 0", "0 110", "yes", "7.5"]
    answers += ["cat", " ", "a", "sure", "yes", "ign", "yes"]
    found, _ = ask(answers, path=tmp_path / "s.toml")
    assert (found.bounds, found.n_persons, found.rows_per_person) == ((0.0, 1.0), 500, 3)
    assert [(c.missing, c.unknown, c.categories) for c in found.columns[:2]] == [
        (7.5, "refuse", None),
        ("refuse", "other", ("a",)),
    ]
    said = capsys.readouterr().err
    for text in (
        "the table has no column 'patients'. Did you mean 'patient'?",
        "the target cannot be the id",
        "enter a whole number above 0",
        "enter one of yes, no",
        "enter one of classification, regression",
        "enter two numbers with a decimal point",
        "enter no, mark, or a number",
        "enter at least one value",
    ):
        assert text in said


@pytest.mark.parametrize("stop", [KeyboardInterrupt, EOFError])
@pytest.mark.parametrize("place", range(1, 13))
def test_questions_resume_after_an_interruption_anywhere(tmp_path, stop, place):
    """What was answered is in the file; the next run asks for the rest only."""
    path = tmp_path / "s.toml"
    first = ["y", *PERSONS, "class", "no, yes", *COLUMNS]
    with pytest.raises((KeyboardInterrupt, CommandError), match=r"answers so far are in .*dpscp fit t.csv"):
        ask([*first[:place], stop], path=path)
    done = read_schema(path)
    assert done.target == "y"
    # the questions about persons, and those about a column, belong together
    starts = (1, 1, 1, 1, 5, 6, 7, 7, 7, 10, 10, 10)
    found, questions = ask([*first[starts[place - 1] :], "yes"], schema=done, path=path)
    assert found == EXPECTED
    assert len(questions) == len(first) - starts[place - 1] + 1


def test_a_file_of_the_user_is_kept_before_it_is_replaced(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('# my comment\ntask = "regression"\ntarget = "y"\nbounds = [0, 1]\n[columns.age]\ntype = ""\n')
    before = path.read_text()
    found, questions = ask(["num", "0 9", "no", "yes"], schema=read_schema(path), names=["age", "y"], path=path)
    assert found.columns == (Column("age", "numeric", (0.0, 9.0)),)
    assert len(questions) == 4  # who filled in the task is not asked about persons
    assert (tmp_path / "mine.toml.bak").read_text() == before
    path.write_text(before.replace("my", "your"))
    ask(["num", "0 9", "no", "yes"], schema=read_schema(path), names=["age", "y"], path=path)
    assert (tmp_path / "mine.toml.bak").read_text() == before


def test_answers_can_be_changed_at_the_end(tmp_path, capsys):
    answers = ["y", "no", "1000", "class", "no, yes", "num", "0 1", "no", "ignore", "ignore", "ignore"]
    changes = [
        "agee",
        "age",
        "num",
        "0 120",
        "no",
        "persons",
        "yes",
        "patient",
        "2",
        "9",
        "class",
        "task",
        "regr",
        "0 7",
    ]
    found, _ = ask([*answers, *changes, "persons", "no", "", "regr", "patient", "ign", "yes"], path=tmp_path / "s.toml")
    assert found.columns[0].bounds == (0.0, 120.0)
    assert (found.task, found.bounds, found.classes, found.person) == ("regression", (0.0, 7.0), None, None)
    said = capsys.readouterr().err
    assert "there is no 'agee'. Did you mean 'age'?" in said
    assert "n_records = 1000" in said


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    score = rng.normal(size=300)
    frame = pd.DataFrame({"score": score.round(3), "bought": np.where(score > 0, "yes", "no")})
    frame.loc[5, "score"] = np.nan
    frame.to_csv(tmp_path / "people.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(wizard, "is_interactive", lambda: True)

    def call(line, answers):
        left = iter(answers)

        def typed():
            found = next(left)
            if isinstance(found, type):
                raise found
            return found

        monkeypatch.setattr("builtins.input", typed)
        capsys.readouterr()
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return call


def test_a_missing_value_after_the_questions_loses_no_answer(run, tmp_path, monkeypatch):
    """Ctrl-C, then a refused table, then an edited file: no question is asked twice."""
    fit = "fit people.csv --target bought --epsilon 8 --confidence 0.5 --guarantee split --seed 1 -o m.dpscp"
    code, _, err = run(fit, ["no", "", "class", "no, yes", "num", KeyboardInterrupt])
    assert code == 130
    assert "the answers so far are in 'people.schema.toml'" in err
    assert f"Continue with: dpscp {fit} --schema people.schema.toml" in err
    code, _, err = run(fit, ["num", "-4 4", "no", "yes"])
    assert code == 1
    assert "column 'score' has missing values" in err
    written = read_schema("people.schema.toml")
    assert written.lacks == ()
    text = (tmp_path / "people.schema.toml").read_text()
    (tmp_path / "people.schema.toml").write_text(text.replace("bounds", 'missing = "indicator"\nbounds'))
    code, _, err = run(fit, [])
    assert code == 0, err
    assert dp.load("m.dpscp").schema_.columns[0].missing == "indicator"
    monkeypatch.setattr(wizard, "is_interactive", lambda: False)
    (tmp_path / "people.schema.toml").write_text(text.replace('type = "numeric"', 'type = ""'))
    code, _, err = run("fit people.csv --target bought -o n.dpscp", [])
    line = "dpscp fit people.csv --target bought -o n.dpscp --schema people.schema.toml"
    assert (code, f"complete 'people.schema.toml', then run: {line}" in err) == (1, True)
