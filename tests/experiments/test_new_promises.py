"""The study of promises after a fit: small tables in place of the real ones, and what the page says."""

import csv
from pathlib import Path

from experiments.runner import Header, Options, Outcome

from experiments import new_promises

HEADER = Header("x", 0, "c", "d", "m", 0.0)


def test_the_page_says_what_is_promised_and_whether_it_is_kept(tmp_path: Path) -> None:
    tasks = new_promises.tasks(Options(trials=2))
    assert [t.kind for t in tasks] == 2 * list(new_promises.TITLES)
    assert len(new_promises.tasks(Options(trials=2, quick=True))) == 2
    rows = [
        {"case": "a", "measure": "loss", "value": 0.09, "promise": "<= 0.1"},
        {"case": "a", "measure": "coverage", "value": 0.8, "promise": ">= 0.9"},
        {"case": "a", "measure": "size", "value": 1.5, "promise": ""},
    ]
    outcomes = [Outcome(t, rows, 1.0, "c") for t in tasks if t.kind == "risk"]
    new_promises.report(outcomes, HEADER, Options(results=tmp_path))
    page = (tmp_path / "new_promises.md").read_text()
    assert "| a | loss | 0.090 (0.000) | <= 0.1 | yes |" in page
    assert "| a | coverage | 0.800 (0.000) | >= 0.9 | no |" in page
    assert "| a | size | 1.500 (0.000) |  |  |" in page
    new_promises.report(outcomes[:1], HEADER, Options(results=tmp_path))
    with (tmp_path / "new_promises.csv").open(newline="") as file:
        assert {(r["part"], r["kept"], r["value_se"]) for r in csv.DictReader(file)} == {("Risk control", "", "")}
    assert new_promises.is_kept(0.11, 0.006, "<= 0.1") == "yes"
    assert new_promises.is_kept(0.12, 0.006, "<= 0.1") == "no"
