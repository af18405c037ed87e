"""The code of today gives what the committed tables hold, where that takes a moment.

What the project says about the tables is written from them: see ``test_story.py``.
"""

import csv
from importlib import resources
from pathlib import Path

import pytest
from experiments.accounting import paper_spending
from experiments.runner import Task

from experiments import bloodmnist, sharpness

RESULTS = Path(__file__).parents[2] / "results"


def rows(study: str) -> list[dict[str, str]]:
    with (RESULTS / f"{study}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_accounting_of_today_gives_the_committed_columns() -> None:
    made = {(r["method"], r["epsilon"], r["train_share"]): r for r in rows("bloodmnist")}
    for method, share, n in (("dp-scp-f", 0.5, 13_671), ("dp-split", None, 13_671 // 2)):
        spent = paper_spending(1.0, share, *bloodmnist.SETTINGS.loader(n))
        row = made[method, "1", "" if share is None else f"{share:g}"]
        assert float(row["train_epsilon"]) == pytest.approx(spent.train_epsilon, rel=1e-5)
        assert float(row["count_noise"]) == pytest.approx(spent.count_noise, rel=1e-5)


def test_the_hard_instance_of_today_gives_the_committed_coverage() -> None:
    again = sharpness.run(Task(sharpness.NAME, "draws", 0, 0), None)
    coverage = {(r["method"], f"{r['epsilon']:g}"): r["coverage"] for r in again if r["variant"] == "Gaussian"}
    for row in rows("sharpness"):
        # one trial against the mean of thirty: six of their standard deviations
        gap = abs(coverage[row["method"], row["epsilon"]] - float(row["coverage"]))
        assert gap <= 6 * float(row["coverage_sd"])


def test_the_set_sizes_of_the_planner_are_the_measured_ones():
    shipped = resources.files("dpscp.report").joinpath("set_sizes.csv").read_text(encoding="utf-8")
    assert shipped == (RESULTS / "set_sizes.csv").read_text()
