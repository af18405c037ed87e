import json
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.runner import (
    Cache,
    Header,
    Options,
    Outcome,
    Study,
    Task,
    is_finished,
    minutes_left,
    run_study,
    seed_of,
)

from experiments import __main__ as command_line

calls: list[int] = []


def _tasks(options: Options) -> list[Task]:
    return [Task("toy", "square", trial, options.seed, {"power": 2}) for trial in range(options.trials)]


def run(task: Task, data: Path | None) -> list[dict[str, float]]:
    calls.append(task.trial)
    return [{"value": seed_of(task.seed, task.trial) % 97}]


def _nothing(outcomes: list[Outcome], header: Header, options: Options) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "toy.md").write_text("\n".join(header.lines()))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Study:
    import sys

    calls.clear()
    # the runner finds the function of a task by the name of its module
    monkeypatch.setitem(sys.modules, run.__module__, sys.modules.get(run.__module__) or sys.modules[__name__])
    return Study("toy", _tasks, run, _nothing)


def _options(tmp_path: Path, **changes: object) -> Options:
    return replace(Options(trials=3, workers=1, results=tmp_path / "results", cache=tmp_path / "cache"), **changes)


def test_a_second_run_computes_nothing_and_a_longer_one_only_what_is_new(toy: Study, tmp_path: Path) -> None:
    first = run_study(toy, _options(tmp_path), "toy")
    assert calls == [0, 1, 2]
    again = run_study(toy, _options(tmp_path), "toy")
    assert calls == [0, 1, 2]
    assert [o.rows for o in again] == [o.rows for o in first]
    assert [o.fresh for o in first + again] == [True] * 3 + [False] * 3
    run_study(toy, _options(tmp_path, trials=5), "toy")
    assert calls == [0, 1, 2, 3, 4]


def test_another_seed_configuration_or_library_is_never_mixed_in(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(toy, _options(tmp_path), "toy")
    run_study(toy, _options(tmp_path, seed=1), "toy")
    assert calls == [0, 1, 2] * 2
    task = Task("toy", "square", 0, 0, {"power": 2})
    others = [
        replace(task, config={"power": 3}),
        replace(task, kind="cube"),
        replace(task, trial=1),
        replace(task, seed=1),
        replace(task, study="other"),
    ]
    assert len({task.key, *(o.key for o in others)}) == 6
    before = task.key
    monkeypatch.setattr("experiments.runner.source_digest", lambda: "another library")
    assert task.key != before
    calls.clear()
    run_study(toy, _options(tmp_path), "toy")
    assert calls == [0, 1, 2]


def test_a_page_of_the_same_tasks_and_code_is_finished_on_another_machine(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(tmp_path)
    assert not is_finished(toy, options)
    run_study(toy, options, "toy")
    elsewhere = replace(options, cache=tmp_path / "another machine")
    assert is_finished(toy, elsewhere)
    assert minutes_left(toy, elsewhere) == 0.0
    for changed in ({"trials": 4}, {"seed": 1}, {"fresh": True}, {"kinds": ("square",)}):
        assert not is_finished(toy, replace(elsewhere, **changed))
    monkeypatch.setattr("experiments.runner.source_digest", lambda: "another library")
    assert not is_finished(toy, elsewhere)


def test_a_killed_run_leaves_a_cut_line_that_is_ignored(toy: Study, tmp_path: Path) -> None:
    run_study(toy, _options(tmp_path), "toy")
    path = tmp_path / "cache" / "toy.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])
    calls.clear()
    run_study(toy, _options(tmp_path), "toy")
    assert calls == [2]
    assert len(Cache(path).read()) == 3


def test_a_page_names_the_commit_of_each_computation_not_of_its_writing(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "results" / "toy.md"
    monkeypatch.setattr("experiments.runner._commit", lambda: "aaa")
    run_study(toy, _options(tmp_path), "toy")
    monkeypatch.setattr("experiments.runner._commit", lambda: "bbb")
    run_study(toy, _options(tmp_path), "toy")
    assert "commit aaa, dpscp" in page.read_text()
    run_study(toy, _options(tmp_path, trials=4), "toy")
    assert "commit aaa, bbb (the run was resumed), dpscp" in page.read_text()


def test_a_library_that_changed_during_a_run_computes_nothing(
    toy: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(["one"] * 4)  # three keys and what the run began with
    monkeypatch.setattr("experiments.runner.source_digest", lambda: next(digests, "two"))
    with pytest.raises(RuntimeError, match="changed while the study ran"):
        run_study(toy, _options(tmp_path), "toy")
    assert calls == []


def test_seeds_are_fixed_functions_of_their_parts() -> None:
    # the number itself: Python's own hash of a text would change from process to process
    assert seed_of(0, "housing", 3) == 572096609
    drawn = {seed_of(0, name, trial) for name in ("a", "b") for trial in range(50)}
    assert len(drawn) == 100
    assert all(0 <= s < 2**31 for s in drawn)


def test_the_command_line_runs_a_study_and_refuses_unknown_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path / "r"), "--cache", str(tmp_path / "c"), "--workers", "1"]
    assert command_line.main(["sharpness", "--trials", "1", *where]) == 0
    assert (tmp_path / "r" / "sharpness.csv").exists()
    assert str(tmp_path) not in (tmp_path / "r" / "sharpness.md").read_text()
    record = json.loads((tmp_path / "c" / "sharpness.jsonl").read_text())
    assert record["study"] == "sharpness"
    with pytest.raises(SystemExit):
        command_line.main(["nonsense"])
    assert "unknown study" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["sharpness", "--trials", "0"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        command_line.main(["sharpness", "--data", str(tmp_path / "nowhere")])
    assert "--data must be a folder" in capsys.readouterr().err


def test_a_study_whose_data_cannot_be_had_is_skipped_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    places = ["--data", tmp_path / "data", "--results", tmp_path / "results", "--cache", tmp_path / "cache"]
    where = [str(word) for word in places] + ["--workers", "1"]
    assert command_line.main(["bank", "sharpness", "--trials", "1", *where]) == 0
    printed = capsys.readouterr().out
    assert "bank: skipped, bank/bank-additional-full.csv.gz is not in the folder of --data\n" in printed
    assert "sharpness: 0." in printed
    story = (tmp_path / "results" / "README.md").read_text()
    assert "[sharpness](sharpness.md)" in story
    assert "bank" in story.split("Studies without results here:")[1]
