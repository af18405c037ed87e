"""The study of published rivals on a small world: every row is there, and the page is written."""

import csv
from pathlib import Path

import pytest
from experiments.runner import Header, Options, Outcome, Task

from experiments import rivals


def test_a_rival_is_compared_with_the_rule_on_its_own_model(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rivals, "EPSILONS", (1.0,))
    common = {"world": "adult", "epsilon": 1.0, "coverage": 0.9, "proven": None}

    def outcome(trial, training, **sizes):
        rows = [{**common, "training": training, "method": m.replace("_", "-"), "size": s} for m, s in sizes.items()]
        return Outcome(Task(rivals.NAME, training, trial, 0, {"world": "adult"}), rows, 0.0, "c")

    done = [
        outcome(0, rivals.OWN, pps=3.0),
        outcome(0, rivals.LIBRARY, split=1.0, corrected=2.0, pps=1.1, dpcp=1.8),
        outcome(1, rivals.LIBRARY, split=2.0, corrected=2.0, pps=2.6, dpcp=1.8),
    ]
    rivals.report(done, Header("x", 0, "c", "d", "m", 0.0), Options(results=tmp_path, trials=2))
    with (tmp_path / "rivals.csv").open() as file:
        found = {(row["training"], row["method"]): row for row in csv.DictReader(file)}
    assert found["own", "pps"]["size_minus_ours_percent"] == ""  # another model: no pairs
    assert float(found["library", "pps"]["size_minus_ours_percent"]) == pytest.approx((10 + 30) / 2)
    assert float(found["library", "pps"]["size_minus_ours_percent_se"]) == pytest.approx(10.0)
    assert float(found["library", "dpcp"]["size_minus_ours_percent"]) == pytest.approx(-10)
    page = " ".join((tmp_path / "rivals.md").read_text().split())
    assert "1 of 3 cells" in page
    assert "-10.0 %, 1.800 (0.900) against 2.000 (0.900) of `corrected`" in page
