"""Suggestions, a full disk, signs of life: what helps a person at a terminal."""

import errno
import io
import json
import os
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp._base import progress
from dpscp.data.schema import Column, Schema

SCHEMA = Schema(
    "classification",
    "bought",
    (Column("age", "numeric", (0, 100)), Column("region", "categorical", categories=("north", "south"))),
    classes=("no", "yes"),
)


def people(n, seed):
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, n)
    bought = np.where(age + 20 * rng.normal(size=n) > 50, "yes", "no")
    return pd.DataFrame({"age": age, "region": rng.choice(["north", "south"], n), "bought": bought})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("help")
    people(400, 0).to_csv(place / "people.csv", index=False)
    people(50, 1).to_csv(place / "new.csv", index=False)
    (place / "people.toml").write_text(SCHEMA.to_toml())
    model = dp.PrivateConformalClassifier(epsilon=8.0, confidence_level=0.5, guarantee="split", random_state=0)
    model.fit(place / "people.csv", "bought", schema=SCHEMA).save(place / "m.dpscp")
    return place


# ---- suggestions


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fti people.csv", "Did you mean 'fit'?"),
        ("fit people.csv --epsilom 1", "Did you mean '--epsilon'?"),
        ("fit people.csv --epsilom=1", "Did you mean '--epsilon'?"),
        ("predict m.dpscp new.csv --ouput x.csv", "Did you mean '--output'?"),
        ("demo --foldr x", "Did you mean '--folder'?"),
    ],
)
def test_misspelt_commands_and_options(run, line, said):
    code, _, err = run(line)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit people.csv --schema people.toml --target bougth", "no column 'bougth'. Did you mean 'bought'?"),
        ("schema people.csv --target Bought -o x.toml --header", "Did you mean 'bought'?"),
        ("fit people.csv --schema people.toml --groups regoin", "Did you mean 'region'?"),
        ("fit people.csv --schema people.toml --groups zzzz", "'zzzz' is not a categorical column of the schema"),
        ("fit pepple.csv --schema people.toml", "file 'pepple.csv' does not exist. Did you mean 'people.csv'?"),
        ("fit none/t.csv --schema people.toml", "file 'none/t.csv' does not exist"),
        (
            "fit other.csv --schema people.toml",
            "lacks column that the schema declares: 'age'. Did you mean 'agee'?",
        ),
        ("predict m.dpscp other.csv -o x.csv", "lacks column that the model needs: 'age'. Did you mean 'agee'?"),
        ("predict m.dpscp two.csv -o x.csv", "lacks columns that the model needs: 'age'. 'region'."),
    ],
)
def test_misspelt_columns_and_files(run, folder, line, said):
    table = people(50, 1).assign(more=1)
    table.rename(columns={"age": "agee"}).drop(columns="more").to_csv(folder / "other.csv", index=False)
    # a first line that lacks most names may be a record: no cell of it is suggested
    table.rename(columns={"age": "agee", "region": "regoin"}).to_csv(folder / "two.csv", index=False)
    code, _, err = run(f"{line} -o never.dpscp" if line.startswith("fit") else line)
    assert code == 1
    assert said in err
    assert "regoin'?" not in err


def test_the_draft_of_a_schema_names_the_next_command(run, folder):
    """It runs as it is printed, without the options that the draft keeps."""
    people(50, 1).to_csv(folder / "semi colons.csv", index=False, sep=";", encoding="cp1252")
    code, out, _ = run("schema 'semi colons.csv' --header --target bought --separator ';' --encoding cp1252")
    assert code == 0
    following = out.split("then run: dpscp ")[1].strip()
    code, _, err = run(following)
    assert code == 1
    assert "the schema lacks the task" in err


# ---- a full disk


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_with_the_file(run, folder, monkeypatch):
    class Full(io.BytesIO):
        write = full_disk

    real = os.fdopen
    monkeypatch.setattr(
        "dpscp.data.model_files.os.fdopen", lambda handle, mode: (real(handle, mode).close(), Full())[1]
    )
    code, _, err = run("predict m.dpscp new.csv -o never.csv")
    assert code == 1
    assert f"the disk is full: '{folder / 'never.csv'}' cannot be written. Free space" in err
    assert not (folder / "never.csv").exists()


def test_a_model_that_is_paid_for_is_saved_elsewhere_if_its_folder_fails(run, folder, monkeypatch, tmp_path):
    model = dp.load(folder / "m.dpscp")
    monkeypatch.setattr("dpscp.cli.fit.fit_estimator", lambda *_, **__: model)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real = type(model).save

    def save(self, path):
        if path.name == "paid.dpscp" and path.parent == type(path)():
            full_disk()
        real(self, path)

    monkeypatch.setattr(type(model), "save", save)
    code, out, err = run("fit people.csv --schema people.toml --epsilon 8 -o paid.dpscp --json")
    assert code == 0, err
    assert "the disk is full" in err
    assert "instead; move it" in err
    written = json.loads(out)["model"]
    assert written.startswith(str(tmp_path))
    assert dp.load(written).threshold_ == model.threshold_


# ---- small numbers, verdicts, extras


def test_the_demo_names_the_extra_that_is_missing(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("demo --folder bare")
    assert code == 1
    assert "the demo needs statsmodels, matplotlib" in err
    assert "pip install 'dpscp[demo]'" in err
    assert not (folder / "bare").exists()


# ---- signs of life


class Terminal(io.StringIO):
    def isatty(self):
        return True


def wait_for(screen, text):
    end = time.monotonic() + 10
    while text not in screen.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return screen.getvalue()


def test_a_quiet_command_shows_activity_within_two_seconds(monkeypatch):
    assert progress._FIRST_SECONDS + 2 * progress._REDRAW_SECONDS <= 2
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_FIRST_SECONDS", 0.02)
    with progress.show_activity("dpscp fit"):
        assert "dpscp fit ... 0 s" in wait_for(screen, "dpscp fit ...")
        progress.announce("training")
        assert "training ... 0 s" in wait_for(screen, "training ...")
        with progress.pause_activity():
            before = screen.getvalue()
            assert before.endswith("\r\033[K")
            time.sleep(0.1)
            assert screen.getvalue() == before  # a question is not overwritten
        assert len(wait_for(screen, before + "\r\033[Ktraining")) > len(before)
        progress.clear_activity()
    assert screen.getvalue().endswith("\r\033[K")
    assert threading.active_count() == 1 or not any("run" in t.name for t in threading.enumerate())
