"""Persons against rows: hospital stays of patients, and made-up persons with very many easy rows.

Each trial draws new patients for the test: no patient has stays on both sides. Coverage is the mean over new persons
of the share of their records that is covered, the promise of Result H; sizes are averaged in the same way.

Theory: Result H
"""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from experiments import data as loaders
from experiments import plots, tables
from experiments.runner import ALPHA, DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "persons"
CAPS = (None, 1, 3, 5)
TEST_SHARE = 0.2
# made-up persons: few have very many rows that are easy to predict
PERSONS, NEW, EASY_SHARE, EASY_ROWS = 3_000, 3_000, 0.05, 200
# somebody with so many rows is what a promise per row is looked at for
SEVERAL = 5

Array = NDArray[Any]


def tasks(options: Options) -> list[Task]:
    """For each trial, budget and cap one fit on patients and one on made-up persons; a cap of None is a fit on rows."""
    return [
        Task(NAME, kind, trial, options.seed, {"epsilon": epsilon, "rows_per_person": cap})
        for kind in ("made-up", "diabetes")
        for trial in range(options.trials_of(quick=1))
        for epsilon in EPSILONS
        for cap in CAPS
    ]


def made_up(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
    """Rows, labels and ids: the label is the sign of the first feature, with noise for the persons with few rows."""
    easy = rng.random(count) < EASY_SHARE
    sizes = np.where(easy, EASY_ROWS, rng.integers(1, 4, count))
    ids = np.repeat(np.arange(count), sizes)
    own = rng.normal(size=count)  # what a person's records share
    X = np.clip(np.column_stack([own[ids] + 0.3 * rng.normal(size=len(ids)), rng.normal(size=len(ids))]), -4, 4)
    noise = np.where(easy[ids], 0.05, 2.0) * rng.normal(size=len(ids))
    return X, (X[:, 0] + noise > 0).astype(np.int64), ids


def worlds(task: Task, data: Path | None) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array], Any]:
    """The records of the fit, those of new persons, and the public bounds of the features."""
    rng = np.random.default_rng(seed_of(task.seed, NAME, task.kind, task.trial))
    if task.kind == "made-up":
        return made_up(rng, PERSONS), made_up(rng, NEW), (-4.0, 4.0)
    table = loaders.diabetes(data)
    assert table.persons is not None
    everyone, number = np.unique(table.persons, return_inverse=True)
    held = (rng.random(len(everyone)) < TEST_SHARE)[number]
    parts = [(table.X[part], table.y[part], number[part]) for part in (~held, held)]
    return parts[0], parts[1], table.declared_bounds


def run(task: Task, data: Path | None) -> list[Row]:
    """One fit, and what it covers."""
    (X, y, ids), (new, labels, of), bounds = worlds(task, data)
    cap, epsilon = task.config["rows_per_person"], task.config["epsilon"]
    persons = len(np.unique(ids))
    classes = list(range(len(np.unique(y))))
    counted = {"n_records": len(X)} if cap is None else {"rows_per_person": cap, "n_persons": persons}
    model = dp.PrivateConformalClassifier(
        epsilon=epsilon,
        delta=DELTA,
        confidence_level=1 - ALPHA,
        classes=classes,
        feature_bounds=bounds,
        random_state=seed_of(task.seed, NAME, task.kind, task.trial, epsilon, cap),
        **counted,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.SeededWarning)
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        model.fit(X, y, persons=None if cap is None else ids)
    sets = model.predict_set(new)[1][:, :, 0]
    covered, sizes = sets[np.arange(len(labels)), labels], sets.sum(axis=1)
    ledger = model.ledger_
    rows = SEVERAL if cap is None else None
    return [
        {
            "kind": task.kind,
            "epsilon": epsilon,
            "rows_per_person": cap,
            "guarantee": model.certificate_.guarantee,
            "coverage_persons": _over_persons(covered, of),
            "coverage_rows": float(covered.mean()),
            "size": _over_persons(sizes, of),
            "epsilon_of_a_person": ledger.epsilon(DELTA, rows=rows),
        }
    ]


def _over_persons(values: Array, ids: Array) -> float:
    """The mean over persons of the mean over their records."""
    _, number = np.unique(ids, return_inverse=True)
    return float(np.mean(np.bincount(number, values) / np.bincount(number)))


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and pictures."""
    rows = tables.rows_of(outcomes)
    found = [
        _summary(kind, epsilon, cap, rows) for kind in ("diabetes", "made-up") for epsilon in EPSILONS for cap in CAPS
    ]
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    for what, name in (("coverage_persons", "coverage of new persons"), ("size", "mean set size")):
        panels = {kind: _curves(found, kind, what) for kind in ("diabetes", "made-up")}
        plots.lines(
            options.results / f"{NAME}_{what.split('_', maxsplit=1)[0]}.png",
            f"Persons against rows: {name}",
            panels,
            x_name="epsilon",
            y_name=name,
            log_x=True,
            target=1 - ALPHA if what != "size" else None,
        )
    tables.write_page(
        options.results / f"{NAME}.md",
        "Persons: the unit of privacy and of coverage",
        header,
        [
            "`rows`: every row its own record, the promise of a plain fit. `k = 1, 3, 5`: `fit(X, y, persons=ids)` "
            "with `rows_per_person=k`. Coverage of persons and size are means over new persons of the means over their "
            f"records; target {1 - ALPHA:g}. The last column is the epsilon of somebody with {SEVERAL} rows (for "
            "persons: with any number).",
            "## Diabetes 130-US hospitals: 101,766 stays of 71,518 patients, a fifth of the patients new\n\n"
            + "\n".join(_grid(found, "diabetes")),
            f"## Made up: {EASY_SHARE:.0%} of {PERSONS:,} persons have {EASY_ROWS} easy rows, the others 1 to 3 hard "
            "ones\n\n" + "\n".join(_grid(found, "made-up")),
            "![coverage](persons_coverage.png)",
            "![size](persons_size.png)",
        ],
    )


def _summary(kind: str, epsilon: float, cap: int | None, rows: list[Row]) -> Row:
    mine = [r for r in rows if (r["kind"], r["epsilon"], r["rows_per_person"]) == (kind, epsilon, cap)]
    found: Row = {
        "kind": kind,
        "epsilon": epsilon,
        "unit": "rows" if cap is None else f"k = {cap}",
        "trials": len(mine),
    }
    found["guarantee"] = "/".join(sorted({r["guarantee"] for r in mine}))
    for name in ("coverage_persons", "coverage_rows", "size", "epsilon_of_a_person"):
        values = [r[name] for r in mine]
        found[name] = round(float(np.mean(values)), 5)
        found[f"{name}_sd"] = round(float(np.std(values, ddof=1)), 5) if len(values) > 1 else None
    return found


def _curves(found: list[Row], kind: str, what: str) -> dict[str, tuple[list[float], list[float], list[float]]]:
    curves = {}
    for unit in dict.fromkeys(f["unit"] for f in found):
        mine = [f for f in found if f["kind"] == kind and f["unit"] == unit]
        errors = [2 * (f[f"{what}_sd"] or 0.0) / f["trials"] ** 0.5 for f in mine]
        curves[unit] = ([f["epsilon"] for f in mine], [f[what] for f in mine], errors)
    return curves


def _grid(found: list[Row], kind: str) -> list[str]:
    head = ["eps", "unit", "trials", "guarantee", "coverage, persons", "coverage, rows", "size", "eps of a person"]
    body = [
        [
            f"{f['epsilon']:g}",
            f["unit"],
            str(f["trials"]),
            f["guarantee"],
            tables.number(f["coverage_persons"], f["coverage_persons_sd"]),
            tables.number(f["coverage_rows"], f["coverage_rows_sd"]),
            tables.number(f["size"], f["size_sd"]),
            f"{f['epsilon_of_a_person']:.2f}",
        ]
        for f in found
        if f["kind"] == kind
    ]
    return tables.grid(head, body)


STUDY = Study(NAME, tasks, run, report)
