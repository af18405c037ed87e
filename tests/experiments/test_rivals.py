"""The study of published rivals on a small world: every row is there, and the page is written."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.runner import Header, Options, Outcome, Task

from experiments import rivals, synthetic_scaling


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
def test_every_rival_is_measured_on_the_models_of_both_trainings(tmp_path: Path, monkeypatch) -> None:
    small = replace(synthetic_scaling.SETTINGS, epochs=1, batch=100, hidden=())
    world = replace(
        rivals.WORLDS["synthetic_scaling"],
        settings=small,
        fold=lambda seed, trial, data: synthetic_scaling.fold_of(seed, trial, 600),  # noqa: ARG005
    )
    monkeypatch.setattr(rivals, "WORLDS", {"small": world})
    monkeypatch.setattr(rivals, "EPSILONS", (4.0,))
    done = []
    for task in rivals.tasks(Options(trials=1)):
        if task.kind == rivals.OVERFITTING:
            task = Task(task.study, task.kind, 0, 0, {"training_epsilons": [8.0]})
        done.append(Outcome(task, rivals.run(task, None), 0.0, "c"))
    rows = {(row["world"], row["training"], row["method"]): row for outcome in done for row in outcome.rows}
    assert {key[1:] for key in rows if key[0] == "small"} == {
        *((training, method) for training in rivals.TRAININGS for method in rivals.RIVALS),
        *((rivals.LIBRARY, method) for method in rivals.OURS),
    }
    for row in rows.values():
        assert 0 <= row["coverage"] <= 1
        assert 0 <= row["size"] <= 5
    proven = {method: rows["small", rivals.LIBRARY, method]["proven"] for method in (*rivals.RIVALS, "split")}
    assert proven["split"] == proven[rivals.PPS] == 0.9
    assert proven[rivals.PCOQS] is None
    assert 0 <= proven[rivals.DPCP] <= proven[rivals.DPCP_LEVEL] < 0.9
    # a model that knows its records is where in-sample calibration breaks
    assert rows["overfitting", rivals.OWN, rivals.DPCP]["coverage"] < 0.87
    rivals.report(done, Header("x", 0, "c", "d", "m", 0.0), Options(results=tmp_path, trials=1))
    assert {path.name for path in tmp_path.iterdir()} == {"rivals.csv", "rivals.md"}
    assert "made to overfit" in " ".join((tmp_path / "rivals.md").read_text().split())


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
