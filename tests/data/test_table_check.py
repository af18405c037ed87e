"""What a table has that a fit would refuse, with counts, and hints that never reach a release."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

import dpscp as dp
from dpscp.data.schema import parse_schema

SCHEMA = """
task = "classification"
target = "y"
classes = ["no", "yes"]
n_records = 500
[columns.age]
type = "numeric"
bounds = [0, 10]
[columns.day]
type = "date"
bounds = ["2020-01-01", "2030-01-01"]
[columns.region]
type = "categorical"
categories = ["north", "south"]
[columns.patient]
type = "ignore"
"""


def people(n=500):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(30, 90, n).astype(float),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "region": rng.choice(["north", "south"], n),
            "patient": np.sort(rng.integers(0, 180, n)) + 770_000,
            "y": rng.choice(["no", "yes"], n),
        }
    )


def spoiled():
    frame = people().astype({"age": object, "day": str})
    frame.loc[3:9, "age"] = "canary-age"
    frame.loc[20, "age"] = None
    frame.loc[5:6, "day"] = "31.12.2024"
    frame.loc[400, "region"] = "canary-region"
    frame.loc[7, "y"] = "canary-label"
    return frame


def test_problems_have_counts_and_places_and_no_values(tmp_path):
    frame, schema = spoiled(), parse_schema(SCHEMA)
    for part, name in ((frame[:250], "a.csv"), (frame[250:], "b.csv")):
        part.to_csv(tmp_path / name, index=False)
    expected = {
        "column 'age' is declared numeric": (7, "record 4 of"),
        "column 'age' has missing values": (1, "record 21 of"),
        "column 'day' is declared as a date": (2, "record 6 of"),
        "column 'region' has a missing value, or one": (1, "record 401 of"),
        "the target column 'y' has a missing label": (1, "record 8 of"),
    }
    for table in (frame, pl.from_pandas(frame.astype({"age": "str"})), [tmp_path / "a.csv", tmp_path / "b.csv"]):
        found = dp.check_table(table, schema)
        assert found.n_records == 500
        assert "canary" not in str(found)
        problems = {problem.message: problem for problem in found.problems}
        assert len(problems) == len(expected)
        for begin, (count, place) in expected.items():
            (problem,) = [p for message, p in problems.items() if message.startswith(begin)]
            assert problem.n_records == count
            if isinstance(table, list):
                place = place.replace("401", "151")
            assert problem.place.startswith(place)
        assert str(found).startswith("NOT private")
        with pytest.raises(ValueError, match="column 'age'"):
            dp.PrivateConformalClassifier(random_state=0).fit(table, "y", schema=schema)
    assert repr(str(tmp_path / "b.csv")) in str(found)


def test_files_that_differ_are_all_listed(tmp_path):
    schema = parse_schema(SCHEMA)
    people(40).to_parquet(tmp_path / "a.parquet")
    people(40).drop(columns=["day", "region"]).to_parquet(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"no Parquet")
    found = dp.check_table(tmp_path, schema)
    texts = [str(problem) for problem in found.problems]
    assert any("b.parquet' lacks column 'day', 'region', which the schema declares" in text for text in texts)
    assert any("c.parquet' cannot be read as Parquet" in text for text in texts)
    assert all(problem.n_records is None for problem in found.problems)
    assert found.n_records == 80


def test_hints_name_forgotten_persons_bounds_that_clip_and_undeclared_columns():
    frame = people().assign(extra=1)
    found = dp.check_table(frame, parse_schema(SCHEMA))
    assert found.problems == ()
    clip, persons, extra = found.hints
    assert "bounds of column 'age' clip 100 % of its values".replace(" %", "%") in clip
    assert "column 'patient' is not used, and its values repeat like ids: 500 records" in persons
    assert "does not mention column 'extra'" in extra
    declared = parse_schema('person = "patient"\nrows_per_person = 4\n' + SCHEMA.replace("n_records = 500", ""))
    quiet = dp.check_table(people().assign(age=5.0), declared)
    assert (quiet.problems, quiet.hints) == ((), ())
    unknown = people().astype({"patient": object})
    unknown.loc[0, "patient"] = None
    assert "missing id" in str(dp.check_table(unknown, declared))
    with pytest.raises(ValueError, match=r"pass a frame .*got list"):
        dp.check_table([frame], declared)


def test_the_command_lists_problems_and_a_fit_prints_hints_on_standard_error_only(tmp_path, monkeypatch, capsys):
    from dpscp.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text(SCHEMA)
    spoiled().to_csv("bad.csv", index=False)
    people().to_csv("good.csv", index=False)
    assert main(["check", "bad.csv", "--schema", "s.toml"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("NOT private")
    assert "7 records, the first is record 4 of 'bad.csv'" in out
    assert "canary" not in out + err
    assert "hint: column 'patient' is not used" in err
    assert main(["check", "good.csv", "--schema", "s.toml", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["problems"] == []
    assert "hint" not in err
    fit = ["fit", "good.csv", "--schema", "s.toml", "--json", "--report", "r.html", "-o"]
    assert main([*fit, "loud.dpscp"]) == 0
    out, err = capsys.readouterr()
    assert "hint: the bounds of column 'age' clip" in err
    assert "hint: column 'patient'" in err
    assert "NOT private: computed from the records without noise" in err
    released = out + (tmp_path / "r.html").read_text() + str((tmp_path / "loud.dpscp").read_bytes())
    assert not any(word in released for word in ("clip 100", "like ids", "the curator"))
    assert main([*fit, "quiet.dpscp", "--quiet", "--force"]) == 0
    assert "hint" not in capsys.readouterr().err
