"""Set sizes of the default classifier by number of records, budget and level: the table behind the planner's page.

One fit has all levels, so each level gets somewhat less of the budget than it would alone.
"""

import csv
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_classification

import dpscp as dp
from experiments import data as loaders
from experiments import tables
from experiments.runner import DELTA, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "set_sizes"
LEVELS = (0.8, 0.9, 0.95)
SIZES = (500, 2_000, 8_000)
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
N_TEST = 5_000
MOST_TRIALS = 4
# kind of task -> title and number of classes
TASKS = {
    "adult": ("Adult census, income above 50K", 2),
    "synthetic": ("synthetic records, five classes", 5),
    "bloodmnist": ("BloodMNIST, blood cells, image features", 8),
}
_COLUMNS = ("task", "classes", "n", "epsilon", "level", "coverage", "size", "size_sd", "trials")


def tasks(options: Options) -> list[Task]:
    """One fit for each trial, task, size and budget."""
    return [
        Task(NAME, kind, trial, options.seed, {"n": n, "epsilon": epsilon, "levels": list(LEVELS), "test": N_TEST})
        for trial in range(options.trials_of(quick=1, most=MOST_TRIALS))
        for n in (SIZES[:1] if options.quick else SIZES)
        for epsilon in BUDGETS
        for kind in TASKS
    ]


@lru_cache(maxsize=3)
def table(kind: str, data: Path | None) -> loaders.Table:
    """The records of one task."""
    if kind == "adult":
        return loaders.adult(data)
    if kind == "bloodmnist":
        return loaders.blood_features(data, "effnet_hr")
    X, y = make_classification(
        20_000, n_features=10, n_informative=10, n_redundant=0, n_classes=5, class_sep=1.0, random_state=0
    )
    return loaders.Table(np.clip(X, -8, 8), y, (np.full(10, -8.0), np.full(10, 8.0)))


def run(task: Task, data: Path | None) -> list[Row]:
    """One fit, and the size and coverage of its sets at each level."""
    records, n = table(task.kind, data), task.config["n"]
    drawn = np.random.default_rng(seed_of(task.seed, NAME, task.kind, task.trial)).permutation(len(records.X))
    fitted, tested = drawn[:n], drawn[n : n + N_TEST]
    bounds: dict[str, Any] = {} if records.bounds is None else {"feature_bounds": records.declared_bounds}
    model = dp.PrivateConformalClassifier(
        epsilon=task.config["epsilon"],
        delta=DELTA,
        confidence_level=list(LEVELS),
        classes=list(range(TASKS[task.kind][1])),
        n_records=n,
        random_state=seed_of(task.seed, NAME, task.kind, task.trial, n, task.config["epsilon"]),
        **bounds,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)  # few records give full sets, which are measured too
        model.fit(records.X[fitted], records.y[fitted])
    sets = model.predict_set(records.X[tested])[1]
    coverage, sizes = dp.metrics.coverage(records.y[tested], sets), sets.sum(axis=1).mean(axis=0)
    return [
        {"level": level, "coverage": float(covered), "size": float(size)}
        for level, covered, size in zip(LEVELS, np.atleast_1d(coverage), sizes, strict=True)
    ]


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV and page: means over the trials."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for outcome in outcomes:
        config = outcome.task.config
        for row in outcome.rows:
            found.setdefault((outcome.task.kind, config["n"], config["epsilon"], row["level"]), []).append(row)
    options.results.mkdir(parents=True, exist_ok=True)
    body: dict[tuple[Any, ...], list[str]] = {}
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for (kind, n, epsilon, level), rows in sorted(found.items()):
            sizes, covered = [row["size"] for row in rows], np.mean([row["coverage"] for row in rows])
            spread = np.std(sizes, ddof=1) if len(sizes) > 1 else 0.0
            numbers = [f"{value:.4g}" for value in (covered, np.mean(sizes), spread)]
            writer.writerow([kind, TASKS[kind][1], n, f"{epsilon:g}", f"{level:g}", *numbers, len(rows)])
            body.setdefault((kind, n, epsilon), []).append(f"{np.mean(sizes):.3f} ({covered:.3f})")
    lines = [[TASKS[kind][0], f"{n:,}", f"{epsilon:g}", *cells] for (kind, n, epsilon), cells in body.items()]
    tables.write_page(
        options.results / f"{NAME}.md",
        "Set sizes by number of records, budget and level",
        header,
        [
            f"Mean number of labels in a set (coverage) on {N_TEST:,} records that the fit did not use; "
            f"{max(map(len, found.values()))} trials, delta {DELTA:g}, defaults. One fit has all three levels.",
            "\n".join(tables.grid(["task", "n", "eps", *(f"level {level:g}" for level in LEVELS)], lines)),
        ],
    )


STUDY = Study(NAME, tasks, run, report)
