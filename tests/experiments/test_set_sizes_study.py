"""The study behind the planner's set sizes: its tasks, one fit, and what it writes."""

import csv

import numpy as np
import pytest
from experiments.runner import Header, Options, Outcome

from experiments import set_sizes


def test_a_full_run_has_every_task_size_and_budget():
    found = set_sizes.tasks(Options(trials=30))
    assert len(found) == set_sizes.MOST_TRIALS * len(set_sizes.SIZES) * len(set_sizes.BUDGETS) * len(set_sizes.TASKS)
    assert {task.config["n"] for task in set_sizes.tasks(Options(trials=1, quick=True))} == {set_sizes.SIZES[0]}


@pytest.mark.slow
def test_one_fit_is_measured_on_new_records_and_written(tmp_path):
    task = next(t for t in set_sizes.tasks(Options(trials=1)) if t.kind == "synthetic" and t.config["epsilon"] == 8)
    rows = set_sizes.run(task, None)
    assert [row["level"] for row in rows] == list(set_sizes.LEVELS)
    sizes = [row["size"] for row in rows]
    assert sizes == sorted(sizes)
    # four standard deviations of coverage on this many new records below the level
    for row in rows:
        level = row["level"]
        slack = 4 * np.sqrt(level * (1 - level) * (1 / set_sizes.N_TEST + 1 / (0.125 * task.config["n"])))
        assert row["coverage"] > level - slack
    header = Header("command", 0, "commit", "date", "machine", 1.0)
    outcomes = [Outcome(task, rows, 1.0, "commit"), Outcome(task, rows, 1.0, "commit")]
    set_sizes.report(outcomes, header, Options(results=tmp_path))
    with (tmp_path / "set_sizes.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["size"]) for row in written] == pytest.approx(sizes, rel=1e-3)
    assert {row["trials"] for row in written} == {"2"}
    assert "five classes" in (tmp_path / "set_sizes.md").read_text()
