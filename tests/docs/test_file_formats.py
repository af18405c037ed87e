"""docs/file_formats.md, against files that this version writes: version 1 of each format is frozen."""

import json
import re
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dpscp as dp

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "file_formats.md").read_text()
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(1500, 2))
SETTINGS = {"epsilon": 2.0, "n_records": 1500, "feature_bounds": (-1, 1), "random_state": 0}


def documented(of: str) -> set[str]:
    """The names in the first column of the table whose first head begins with ``of``."""
    _, found, rest = PAGE.partition(f"\n| {of}")
    assert found, of
    rows = [line for line in rest.split("\n\n")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.fixture(scope="module")
def classifier():
    return dp.PrivateConformalClassifier(classes=[0, 1], **SETTINGS).fit(X, (X[:, 0] > 0).astype(int))


@pytest.fixture(
    params=[
        pytest.param("classifier", id="classifier"),
        pytest.param("regressor", id="regressor", marks=pytest.mark.slow),
        pytest.param("multilabel", id="multilabel", marks=pytest.mark.slow),
    ]
)
def archive(request, classifier, tmp_path):
    models = {
        "classifier": lambda: classifier,
        "regressor": lambda: dp.PrivateConformalRegressor(y_bounds=(-1, 1), **SETTINGS).fit(X, X[:, 0]),
        "multilabel": lambda: dp.PrivateMultilabelClassifier(**SETTINGS).fit(X, (X > 0).astype(int)),
    }
    models[request.param]().save(tmp_path / "m.dpscp")
    with zipfile.ZipFile(tmp_path / "m.dpscp") as file:
        yield file


def test_a_model_file_has_the_documented_members_and_keys(archive):
    header = json.loads(archive.read("header.json"))
    assert set(header) == documented("key of `header.json`")
    assert (header["format"], header["version"]) == ("dpscp-model", 1)
    assert set(archive.namelist()) == {"header.json", *(f"{name}.npy" for name in header["arrays"])}
    body = header["body"]
    assert set(body) == documented("key of `body`")
    assert (body["ledger"]["format"], body["ledger"]["version"]) == ("dpscp-ledger", 1)
    assert set(body["ledger"]) == documented("key of a ledger")
    assert set(body["ledger"]["entries"][0]) | {"parts", "components"} == documented("key of an entry")
    arrays = {"model/..." if name.startswith("model/") else name for name in header["arrays"]}
    needed = {"threshold", "model/..."}
    is_classifier = body["class"] == "PrivateConformalClassifier"
    assert arrays == (documented("array member") if is_classifier else needed)


def test_a_store_has_the_documented_table(tmp_path):
    dp.BudgetStore.create(tmp_path / "s.budget", 1.0, 1e-6, dataset="d")
    with sqlite3.connect(tmp_path / "s.budget") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        columns = {row[1] for row in connection.execute("PRAGMA table_info(lines)")}
    connection.close()
    assert columns == documented("column of `lines`")


def test_a_monitor_has_the_documented_keys(classifier):
    state = json.loads(dp.CoverageMonitor(classifier, epsilon=1.0, delta=1e-6, random_state=0).to_json())
    assert set(state) == documented("key of a monitor")
    assert (state["format"], state["version"]) == ("dpscp-monitor", 1)


def test_statements_schemas_and_notes_have_version_1(classifier, tmp_path):
    from dpscp.cli.files import note_path, write_note

    schema = {"task": "regression", "target": "y", "bounds": [0, 1], "columns": {"a": {"type": "numeric"}}}
    classifier.save(tmp_path / "m.dpscp")
    write_note(tmp_path / "m.dpscp", tmp_path / "table.csv")
    note = json.loads(note_path(tmp_path / "m.dpscp").read_text())
    for found in (classifier.statement(), dp.Schema.from_dict(schema).to_dict(), note):
        assert found["version"] == 1
        assert f"`{found['format']}`" in PAGE
