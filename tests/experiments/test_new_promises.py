"""The study of promises after a fit: small tables in place of the real ones, and what the page says."""

import csv
from pathlib import Path

import numpy as np
import pytest
from experiments.runner import Header, Options, Outcome, Task

from experiments import data, new_promises

HEADER = Header("x", 0, "c", "d", "m", 0.0)
MARRIED = new_promises._column("marital_status", "Married-civ-spouse")


def small(n: int, n_classes: int, seed: int = 0) -> data.Table:
    """Columns as in Adult: the label follows the first, with more noise for half of the records."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 47))
    X[:, 0] = rng.uniform(-1, 1, n)
    X[:, MARRIED] = rng.random(n) < 0.5
    signal = X[:, 0] + (0.05 + 0.6 * X[:, MARRIED]) * rng.normal(size=n)
    y = np.digitize(signal, np.linspace(-0.4, 0.4, n_classes - 1) if n_classes > 2 else [0.0])
    return data.Table(X, y, (np.full(47, -1.0), np.ones(47)), np.arange(n) // 2)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    specialties = np.array(["InternalMedicine", "Cardiology", "?", "Nephrology"])[np.arange(6_000) % 4 // 1]
    monkeypatch.setattr(data, "adult", lambda _: small(4_000, 2))
    monkeypatch.setattr(data, "bank", lambda _: small(4_000, 2))
    monkeypatch.setattr(data, "bank_months", lambda _: np.repeat(np.arange(8), 500))
    monkeypatch.setattr(data, "diabetes", lambda _: small(12_000, 3))
    monkeypatch.setattr(data, "diabetes_specialties", lambda _: np.repeat(specialties, 2))
    sizes = {"N": 2_000, "EVALUATED": 400, "STREAMS": 2, "BATCHES": 8, "BATCH": 200, "CHANGED_FROM": 4}
    sizes |= {"RISK_RECORDS": 1_000, "RECALIBRATED": 300}
    for name, value in sizes.items():
        monkeypatch.setattr(new_promises, name, value)


def found(part: str) -> dict[tuple[str, str], float]:
    rows = new_promises.run(Task(new_promises.NAME, part, 0, 0), None)
    return {(row["case"], row["measure"]): row["value"] for row in rows}


@pytest.mark.usefixtures("tables")
def test_the_mean_loss_is_near_its_level() -> None:
    numbers = found("risk")
    for name in new_promises.COSTS:
        losses = [numbers[f"{name}, level {level:g}", "mean loss"] for level in new_promises.RISK_LEVELS]
        # a thousand records decide the threshold: four standard deviations of a mean of losses in [0, 1]
        assert all(
            loss <= level + 4 * (level / 1_000) ** 0.5
            for loss, level in zip(losses, new_promises.RISK_LEVELS, strict=True)
        )
        assert losses[0] > losses[1]


@pytest.mark.usefixtures("tables")
def test_a_threshold_found_again_covers_the_later_months(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = found("months")
    assert quiet["monitor", "alarms"] <= 1
    changed = small(4_000, 2)
    later = np.repeat(np.arange(8), 500) >= 4
    y = np.where(later & (np.random.default_rng(0).random(4_000) < 0.4), 1 - changed.y, changed.y)
    monkeypatch.setattr(data, "bank", lambda _: data.Table(changed.X, y, changed.bounds))
    numbers = found("months")
    assert numbers["monitor", "alarms"] >= 1
    assert numbers["monitor", "first alarm in month"] >= 3
    first, again = "first release", "calibrated again after an alarm"
    assert numbers[again, "mean coverage of a month"] > numbers[first, "mean coverage of a month"] + 0.05


@pytest.mark.usefixtures("tables")
def test_every_release_covers_the_new_population() -> None:
    numbers = found("populations")
    assert len(numbers) == 2 * 4 * 2
    table, group = new_promises.specialty_table(None)
    assert len(table.X) == 6_000
    assert np.array_equal(new_promises._group_of(table.X), group)
    assert set(group) == {0, 1, 2}
    for (case, measure), value in numbers.items():
        if measure == "coverage" and not case.endswith("default"):
            # at least 45 records decide a threshold
            assert value >= 0.9 - 4 * (0.09 / 45) ** 0.5, case


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
