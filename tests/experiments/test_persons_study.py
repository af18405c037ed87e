from dataclasses import replace
from pathlib import Path

from experiments.runner import Header, Options, Outcome, Task

from experiments import persons


def test_one_fit_on_rows_and_one_on_persons_tell_what_they_cover(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(persons, "PERSONS", 200)
    monkeypatch.setattr(persons, "NEW", 100)
    outcomes = []
    for cap in (None, 3):
        task = Task(persons.NAME, "made-up", 0, 0, {"epsilon": 2.0, "rows_per_person": cap})
        (row,) = persons.run(task, None)
        assert 0 <= row["coverage_persons"] <= 1
        outcomes.append(Outcome(task, [row], 1.0, "none"))
    # somebody with five rows is protected less by a promise per row
    assert outcomes[0].rows[0]["epsilon_of_a_person"] > 6 > 2.0 >= outcomes[1].rows[0]["epsilon_of_a_person"]
    every = [
        Outcome(
            replace(o.task, kind=kind, config={"epsilon": e, "rows_per_person": cap}),
            [{**o.rows[0], "kind": kind, "epsilon": e, "rows_per_person": cap}],
            1.0,
            "none",
        )
        for o in outcomes[1:]
        for kind in ("diabetes", "made-up")
        for e in persons.EPSILONS
        for cap in persons.CAPS
    ]
    persons.report(every, Header("x", 0, "c", "d", "m", 0.0), Options(results=tmp_path, trials=1))
    assert {p.name for p in tmp_path.iterdir()} == {
        "persons.csv",
        "persons.md",
        "persons_coverage.png",
        "persons_size.png",
    }
    assert len(persons.tasks(Options(trials=2))) == 2 * 2 * 3 * 4
