import csv
from pathlib import Path

from experiments.runner import EPSILONS, Header, Options, Outcome, Task

from experiments import defaults


def made_up(study: str, features: str | None, epsilon: float) -> Outcome:
    config = {"epsilon": epsilon} | ({} if features is None else {"features": features})
    row = {"epsilon": epsilon, "train_share": None, "n": 100, "coverage": 0.91, "size": 1.0, "informativeness": None}
    rows = [{**row, "method": method, "variant": ""} for method in (*defaults.SHOWN, "split", "stability")]
    return Outcome(Task(study, "library", 0, 0, config), rows, 1.0, "none")


def test_the_page_shows_then_now_and_the_change(tmp_path: Path) -> None:
    tables = [("housing", None), ("bloodmnist", "effnet_hr"), ("bloodmnist", "vgg16"), ("adult", None), ("bank", None)]
    outcomes = [made_up(study, features, epsilon) for study, features in tables for epsilon in EPSILONS]
    defaults.report(outcomes, Header("x", 0, "c", "d", "m", 0.0), Options(results=tmp_path))
    with defaults.EARLIER.open(newline="") as file:
        then = next(
            r for r in csv.DictReader(file) if (r["study"], r["method"], r["epsilon"]) == ("bank", "default", "2")
        )
    line = (tmp_path / "defaults.md").read_text().split("| Bank Marketing | 2 |")[1].split("\n")[0]
    assert f"{float(then['size']):.3f}" in line
    assert f"{100 * (1 / float(then['size']) - 1):+.1f} %" in line
    with (tmp_path / "defaults.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {r["study"] for r in found} == set(defaults.TITLES)
    assert len(found) == 5 * 3 * 5
