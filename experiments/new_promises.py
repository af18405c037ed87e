"""Promises after a fit, on real tables: risk, evaluation, monitoring, other populations, and probabilities.

    python -m experiments new_promises --trials 10 --data DIR

Every part is a task of its own. A row has one measured number, and what the library promises about it where it does.
None of the tables at hand is a panel of years; Bank Marketing is ordered by date, so its calendar months are batches.
"""

import csv
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from experiments import data as loaders
from experiments import table_recipe, tables
from experiments.runner import ALPHA, DELTA, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "new_promises"
Array = NDArray[Any]
EPSILON = 1.0
N = 20_000
TITLES = {
    "risk": "Risk control",
    "evaluation": "Private evaluation",
    "monitoring": "Monitoring",
    "months": "Calendar months as batches",
    "populations": "Other populations",
    "probabilities": "Calibrated probabilities",
}
ABOUT = {
    "risk": "A model of 20,000 records (one stay of each patient), and `dp.control_risk` on 4,000 others at epsilon 1. "
    "The loss is the public cost of the true class where the set misses it: 1 for a readmission within 30 days, .4 for "
    "a later one, .1 for none; on Adult 1 for an income above 50K and .2 below. Promise: the mean loss is at most the "
    "level.",
    "evaluation": "`dp.evaluate` of one fit on batches of 1,000 new records that do not overlap. The truth is the "
    "coverage of all records that the fit did not see. An interval holds with probability .95.",
    "monitoring": "`dp.CoverageMonitor` at epsilon .5 on Adult: 24 batches of 500 new records, as they come, and again "
    "with a change: from the 13th batch on all persons are married, who are covered less often. 20 streams for each "
    "fit. Promise: a false alarm has probability at most .05, and .05 more for the tolerated rate.",
    "months": "Bank Marketing is ordered by date: 26 calendar months, of which the first two are the records of the "
    "fit. After that `CoverageMonitor` gets a month at a time (those with 100 records or more). After an alarm "
    "`dp.recalibrate` finds a new threshold on that month, and a new monitor starts. Another monitor lets the "
    "thresholds follow (`follow=1.0`). Months are not exchangeable, so a month has no promised coverage. Where "
    "thresholds follow, `long_run` bounds the misses of all months with probability .95.",
    "populations": "diabetes130, first stay of each patient, fitted on all specialties. The new population is one of "
    "two groups of specialties, whose shares (.22 and .09) are declared public. `likelihood_ratio` and `groups` are "
    "fits of their own; `recalibrate` uses 1,000 records of the new population. Promise: coverage of at least .90 in "
    "the new population.",
    "probabilities": "`predict_proba` of the default, with the private recalibration and without it, at epsilon 1: "
    "slope of a logistic recalibration on the test part (1 is right), calibration error and log loss.",
}
EVALUATED, STREAMS, BATCHES, BATCH, CHANGED_FROM = 1_000, 20, 24, 500, 12
MONITOR_EPSILON = 0.5
LEAST_MONTH, FIRST_MONTHS = 100, 2
# groups of specialties, and the share of each in the file, rounded and declared public
SPECIALTIES = {
    "primary care": (("InternalMedicine", "Family/GeneralPractice"), 0.22),
    "surgery and cardiology": (("Surgery-General", "Cardiology"), 0.09),
}
COSTS = {"diabetes130": (0.1, 0.4, 1.0), "adult": (0.2, 1.0)}
RISK_LEVELS = (0.1, 0.05)
RISK_RECORDS, RECALIBRATED = 4_000, 1_000
PROBABILITIES = ("adult", "bank", "diabetes130")
# all that decides the result of a task
SETTINGS = (
    (EVALUATED, STREAMS, BATCHES, BATCH, CHANGED_FROM, MONITOR_EPSILON),
    (LEAST_MONTH, FIRST_MONTHS, SPECIALTIES, RECALIBRATED),
    (COSTS, RISK_LEVELS, RISK_RECORDS, PROBABILITIES),
)


@dataclass(frozen=True)
class Measured:
    """One number of a case, and what is promised: "<= 0.1" or ">= 0.9", or nothing."""

    case: str
    measure: str
    value: float
    promise: str = ""

    def row(self) -> Row:
        """The number as a row of the cache."""
        return {"case": self.case, "measure": self.measure, "value": self.value, "promise": self.promise}


def tasks(options: Options) -> list[Task]:
    """One task for each trial and part."""
    config = {"n": N, "epsilon": EPSILON, "settings": repr(SETTINGS)}
    return [
        Task(NAME, part, trial, options.seed, config)
        for trial in range(options.trials_of(quick=1))
        for part in (tuple(TITLES)[:2] if options.quick else TITLES)
    ]


def run(task: Task, data: Path | None) -> list[Row]:
    """All numbers of one part."""
    seed = seed_of(task.seed, NAME, task.kind, task.trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [found.row() for found in PARTS[task.kind](data, seed, task)]


def _fit(X: Array, y: Array, bounds: Any, seed: int, n_classes: int = 2, **settings: Any) -> Any:
    model = dp.PrivateConformalClassifier(
        epsilon=EPSILON,
        delta=DELTA,
        confidence_level=1 - ALPHA,
        classes=list(range(n_classes)),
        feature_bounds=bounds,
        n_records=len(X),
        random_state=seed,
        **settings,
    )
    return model.fit(X, y)


def _shuffled(table: loaders.Table, seed: int) -> tuple[Array, Array]:
    order = np.random.default_rng(seed).permutation(len(table.X))
    return table.X[order], table.y[order]


def _covered(model: Any, X: Array, y: Array) -> tuple[Array, Array]:
    """Whether the set of each row holds its label, and the sizes of the sets."""
    sets = model.predict_set(X)[1][:, :, 0]
    return sets[np.arange(len(y)), y], sets.sum(axis=1)


# ---- the parts


def risk(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """Mean costs of new records at the released threshold, and the sizes of the sets."""
    for name, costs in COSTS.items():
        # one stay of each patient: the records are independent
        table = specialty_table(data)[0] if name == "diabetes130" else loaders.adult(data)
        X, y = _shuffled(table, seed)
        model = _fit(X[:N], y[:N], table.declared_bounds, seed, len(costs))
        doubt = 1 - model.predict_proba(X[N:])
        new = slice(RISK_RECORDS, None)
        cost = dp.scores.class_costs(doubt[:RISK_RECORDS], y[N:][:RISK_RECORDS], costs=list(costs))
        later = dp.scores.class_costs(doubt[new], y[N:][new], costs=list(costs))
        for level in RISK_LEVELS:
            found = dp.control_risk(
                cost,
                alpha=level,
                threshold_range=(0, 1),
                epsilon=EPSILON,
                delta=DELTA,
                n_records=RISK_RECORDS,
                random_state=seed,
            )
            case = f"{name}, level {level:g}"
            yield Measured(case, "mean loss", float(np.mean(later(found.threshold))), f"<= {level:g}")
            yield Measured(case, "set size", float((doubt[new] <= found.threshold).sum(axis=1).mean()))


def evaluation(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """Errors of private estimates beside those of a plain count, and how often intervals hold the truth."""
    table = loaders.adult(data)
    X, y = _shuffled(table, seed)
    model = _fit(X[:N], y[:N], table.declared_bounds, seed)
    X, y = X[N:], y[N:]
    covered, sizes = _covered(model, X, y)
    truth = {
        "coverage": covered.mean(),
        "set size": sizes.mean(),
        "accuracy": (model.predict(X) == y).mean(),
    }
    batches = np.split(np.arange(len(y) // EVALUATED * EVALUATED), len(y) // EVALUATED)
    for epsilon in (0.5, 1.0):
        found = [
            dp.evaluate(model, X[b], y[b], epsilon=epsilon, delta=DELTA, random_state=seed + place)
            for place, b in enumerate(batches)
        ]
        estimates = {
            "coverage": [f.coverage for f in found],
            "set size": [f.set_size for f in found],
            "accuracy": [f.accuracy for f in found],
        }
        for name, values in estimates.items():
            case = f"{name}, epsilon {epsilon:g}"
            errors = np.array([v.estimate - truth[name] for v in values])
            held = [v.interval[0] <= truth[name] <= v.interval[1] for v in values]
            yield Measured(case, "error (root mean square)", float(np.sqrt(np.mean(errors**2))))
            yield Measured(case, "intervals that hold", float(np.mean(held)), ">= 0.95")
            yield Measured(case, "half the interval", float(np.mean([np.ptp(v.interval) / 2 for v in values])))
    plain = np.array([covered[b].mean() for b in batches]) - truth["coverage"]
    yield Measured("coverage, counted without noise", "error (root mean square)", float(np.sqrt(np.mean(plain**2))))


def monitoring(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """False alarms in streams without a change, and the delay after a change."""
    table = loaders.adult(data)
    X, y = _shuffled(table, seed)
    model = _fit(X[:N], y[:N], table.declared_bounds, seed)
    X, y = X[N:], y[N:]
    covered, _ = _covered(model, X, y)
    married = X[:, _column("marital_status", "Married-civ-spouse")] == 1
    rng = np.random.default_rng(seed)
    false, found, delays = 0, 0, []
    for stream in range(STREAMS):
        quiet = rng.permutation(len(y))[: BATCHES * BATCH]
        first = _alarm_at(model, X, y, quiet, seed + stream)
        false += first is not None
        others = rng.permutation(np.flatnonzero(married))[: (BATCHES - CHANGED_FROM) * BATCH]
        changed = np.r_[quiet[: CHANGED_FROM * BATCH], others]
        first = _alarm_at(model, X, y, changed, seed + STREAMS + stream)
        if first is not None and first >= CHANGED_FROM:
            found += 1
            delays.append(first - CHANGED_FROM + 1)
    yield Measured("no change", "share of misses", float(1 - covered.mean()))
    yield Measured("no change", "streams with an alarm", false / STREAMS, "<= 0.1")
    yield Measured("married persons only", "share of misses", float(1 - covered[married].mean()))
    yield Measured("married persons only", "streams with an alarm afterwards", found / STREAMS)
    if delays:
        yield Measured("married persons only", "batches until the alarm", float(np.mean(delays)))


def _column(name: str, value: str) -> int:
    """The place of an indicator among the columns of Adult."""
    listed = [(key, one) for key, values in loaders.ADULT_CATEGORIES.items() for one in values.split(", ")]
    return len(loaders.ADULT_NUMBERS) + listed.index((name, value))


def _alarm_at(model: Any, X: Array, y: Array, rows: Array, seed: int) -> int | None:
    monitor = dp.CoverageMonitor(model, epsilon=MONITOR_EPSILON, delta=DELTA, expected_batch=BATCH, random_state=seed)
    for place, batch in enumerate(np.split(rows, len(rows) // BATCH)):
        if monitor.update(X[batch], y[batch]).alarm:
            return place
    return None


def months(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """Coverage of later months by the first release, and by releases that are calibrated again after an alarm."""
    table = loaders.bank(data)
    batches = loaders.bank_months(data)
    first = np.flatnonzero(batches < FIRST_MONTHS)
    kept = np.random.default_rng(seed).permutation(first)[: int(0.9 * len(first))]
    model = _fit(table.X[kept], table.y[kept], table.declared_bounds, seed)
    current, monitor, alarms, when = model, _monitor(model, seed), 0, math.nan
    following, missed = _monitor(model, seed, follow=1.0), []
    coverage: dict[str, list[float]] = {
        "first release": [],
        "calibrated again after an alarm": [],
        "thresholds that follow": [],
    }
    later = [np.flatnonzero(batches == month) for month in range(FIRST_MONTHS, batches.max() + 1)]
    used_rows = [batch for batch in later if len(batch) >= LEAST_MONTH]
    for place, rows in enumerate(used_rows):
        X, y = table.X[rows], table.y[rows]
        for name, used in zip(coverage, (model, current, following.estimator), strict=True):
            coverage[name].append(float(_covered(used, X, y)[0].mean()))
        missed.append((1 - coverage["thresholds that follow"][-1]) * len(y))
        following.update(X, y)
        if monitor.update(X, y).alarm:
            alarms += 1
            when = place + 1 if math.isnan(when) else when
            current = dp.recalibrate(
                current, X, y, epsilon=EPSILON, delta=DELTA, n_records=len(y), random_state=seed + place
            )
            monitor = _monitor(current, seed + place)
    for name, values in coverage.items():
        yield Measured(name, "mean coverage of a month", float(np.mean(values)))
        yield Measured(name, "worst month", min(values))
        yield Measured(name, "months below 0.85", float(np.mean(np.array(values) < 0.85)))
    share, bound = sum(missed) / sum(map(len, used_rows)), following.long_run(beta=0.05).rate
    yield Measured("thresholds that follow", "share of misses, all months", share)
    yield Measured("thresholds that follow", "bound on this share", bound)
    yield Measured("thresholds that follow", "more misses than the bound", float(share > bound), "<= 0.05")
    yield Measured("monitor", "alarms", alarms)
    if alarms:
        yield Measured("monitor", "first alarm in month", when)


def _monitor(model: Any, seed: int, follow: float | None = None) -> dp.CoverageMonitor:
    return dp.CoverageMonitor(model, epsilon=MONITOR_EPSILON, delta=DELTA, follow=follow, random_state=seed)


def populations(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """Coverage and size in a group of specialties, by four releases."""
    table, group = specialty_table(data)
    order = np.random.default_rng(seed).permutation(len(table.y))
    X, y, group = table.X[order], table.y[order], group[order]
    places = {name: table.X.shape[1] - len(SPECIALTIES) + place for place, name in enumerate(SPECIALTIES)}
    fitted = (X[:N], y[:N], table.declared_bounds, seed, 3)
    plain = _fit(*fitted)
    grouped = _fit(*fitted, groups=dp.Groups(_group_of, values=range(len(SPECIALTIES) + 1)))
    for name, (_, share) in SPECIALTIES.items():
        here = np.flatnonzero(group[N:] == list(SPECIALTIES).index(name) + 1) + N
        again, new = here[:RECALIBRATED], here[RECALIBRATED:]

        def ratio(rows: Array, place: int = places[name], share: float = share) -> Array:
            return rows[:, place] / share

        releases = {
            "default": plain,
            "likelihood_ratio": _fit(*fitted, population=dp.Population(ratio, bound=1 / share)),
            "groups": grouped,
            "recalibrate": dp.recalibrate(
                plain, X[again], y[again], epsilon=EPSILON, delta=DELTA, n_records=RECALIBRATED, random_state=seed
            ),
        }
        for method, model in releases.items():
            covered, sizes = _covered(model, X[new], y[new])
            promise = "" if method == "default" else f">= {1 - ALPHA:g}"
            yield Measured(f"{name}: {method}", "coverage", float(covered.mean()), promise)
            yield Measured(f"{name}: {method}", "set size", float(sizes.mean()))


def specialty_table(data: Path | None) -> tuple[loaders.Table, Array]:
    """First stays with an indicator for each group of specialties, and the group of each (0: another one)."""
    table, listed = loaders.diabetes(data), loaders.diabetes_specialties(data)
    assert table.persons is not None
    assert table.bounds is not None
    first = np.sort(np.unique(table.persons, return_index=True)[1])
    group = np.zeros(len(listed), dtype=np.int64)
    for place, (names, _) in enumerate(SPECIALTIES.values()):
        group[np.isin(listed, names)] = place + 1
    indicators = group[:, None] == np.arange(1, len(SPECIALTIES) + 1)
    extra = len(SPECIALTIES)
    bounds = (np.r_[table.bounds[0], np.zeros(extra)], np.r_[table.bounds[1], np.ones(extra)])
    return loaders.Table(np.column_stack([table.X, indicators])[first], table.y[first], bounds), group[first]


def _group_of(X: Array) -> Array:
    return (X[:, -len(SPECIALTIES) :] @ np.arange(1, len(SPECIALTIES) + 1)).astype(np.int64)


def probabilities(data: Path | None, seed: int, task: Task) -> Iterator[Measured]:  # noqa: ARG001
    """Slope, calibration error and log loss of the study of the recipe, with and without recalibration."""
    for name in PROBABILITIES:
        n, n_test, _ = table_recipe.TABLES[name]
        for variant, told in (("", "recalibrated"), ("no recalibration", "not recalibrated")):
            config = {"n": n, "n_test": n_test, "epsilon": EPSILON, "variant": variant}
            (row,) = table_recipe.run(Task(table_recipe.NAME, name, task.trial, task.seed, config), data)
            for measure in ("slope", "calibration_error", "log_loss"):
                yield Measured(f"{name}, {told}", measure.replace("_", " "), row[measure])


PARTS: dict[str, Callable[[Path | None, int, Task], Iterator[Measured]]] = {
    "risk": risk,
    "evaluation": evaluation,
    "monitoring": monitoring,
    "months": months,
    "populations": populations,
    "probabilities": probabilities,
}


# ---- the page


def is_kept(mean: float, error: float | None, promise: str) -> str:
    """Whether a mean is where it was promised to be, two standard errors allowed; empty where nobody can say."""
    if not promise or error is None:
        return ""
    sign, limit = promise.split()
    beyond = mean - float(limit) if sign == "<=" else float(limit) - mean
    return "yes" if beyond <= 2 * error else "no"


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Means and standard errors over the trials, as CSV and page."""
    groups: dict[tuple[str, str, str, str], list[float]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            key = (outcome.task.kind, row["case"], row["measure"], row["promise"])
            groups.setdefault(key, []).append(row["value"])
    options.results.mkdir(parents=True, exist_ok=True)
    body: dict[str, list[list[str]]] = {}
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "case", "measure", "trials", "value", "value_se", "promise", "kept"])
        for (part, case, measure, promise), values in groups.items():
            mean = float(np.mean(values))
            error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
            kept = is_kept(mean, error, promise)
            shown = "" if error is None else f"{error:.6g}"
            writer.writerow([TITLES[part], case, measure, len(values), f"{mean:.6g}", shown, promise, kept])
            body.setdefault(part, []).append([case, measure, tables.number(mean, error), promise, kept])
    head = ["", "", "mean (standard error)", "promise", "kept"]
    blocks = [
        "What the library promises beyond the fit, measured on real tables. Fits have epsilon 1, delta 1e-5, target "
        "coverage 0.90. Kept: the mean over the trials is where it was promised to be, two standard errors allowed.",
        *(
            f"## {TITLES[part]}\n\n{ABOUT[part]}\n\n" + "\n".join(tables.grid(head, rows))
            for part, rows in body.items()
        ),
    ]
    tables.write_page(options.results / f"{NAME}.md", "Promises after a fit", header, blocks)


STUDY = Study(NAME, tasks, run, report)
