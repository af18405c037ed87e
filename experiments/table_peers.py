"""Models that a user could pick for a table: the same rows, the same budget, and a certified threshold for all of them.

    python -m experiments table_peers --trials 10 --data DIR

A peer trains on one part of the records and ``dp.calibrate`` finds its threshold on the other part, each with the whole
budget: two disjoint parts together spend it once. The part that is held out has the size that our recipe takes. Two
rows are not private: our model with practically no noise, and gradient boosting of scikit-learn.
"""

import csv
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from dpscp.training.recipe import calibration_fraction
from experiments import data as loaders
from experiments import housing, range_ends, tables
from experiments.runner import ALPHA, DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of
from experiments.table_models import MODELS, Layout, Records, fit_model, missing_models

NAME = "table_peers"
Array = NDArray[Any]
OURS, ONE_WIDTH = "default", "default, one width"
NOISELESS, BOOSTING = "default, no noise", "boosting"
TITLES = {
    OURS: "**dpscp, default**",
    ONE_WIDTH: "**dpscp, intervals of one width**",
    "dp-ebm": "DP-EBM (interpret)",
    "random trees": "boosted trees, random tests",
    "diffprivlib": "linear model (diffprivlib)",
    "adassp": "AdaSSP",
    NOISELESS: "dpscp's model, no noise (not private)",
    BOOSTING: "HistGradientBoosting (not private)",
}
NOT_PRIVATE = (NOISELESS, BOOSTING)
MEASURED = ("coverage", "size", "auc", "rmse", "log_loss")
# a budget under which noise no longer matters; the settings of training stay those of epsilon 1
_NO_NOISE, _SETTINGS_OF = 200.0, 1.0
_BOOSTING_HELD_OUT = 0.2
_LEAST_PROBABILITY = 1e-3


@dataclass(frozen=True)
class World:
    """A table: its title, the sizes of the pool, the size of the test part, and the range of its target."""

    title: str
    sizes: tuple[int, ...]
    n_test: int
    y_range: tuple[float, float] | None = None

    @property
    def is_labeled(self) -> bool:
        """Whether the target is one of two classes."""
        return self.y_range is None


WORLDS = {
    "adult": World("Adult", (2_000, 20_000), 10_000),
    "bank": World("Bank Marketing", (2_000, 20_000), 10_000),
    "housing": World("California Housing", (2_000, 16_512), 4_128, housing.TARGET_BOUNDS),
}


def tasks(options: Options) -> list[Task]:
    """One trial of everything after the other; a model whose package is not installed has none."""
    left_out = missing_models()
    found = []
    for name, world in WORLDS.items():
        for n in world.sizes[:1] if options.quick else world.sizes:
            models = [m for m in TITLES if m not in left_out and not (m == ONE_WIDTH and world.is_labeled)]
            for trial in range(options.trials_of(quick=1)):
                for model in models:
                    budgets = (None,) if model in NOT_PRIVATE else EPSILONS
                    config = {"n": n, "n_test": world.n_test, "model": model}
                    found += [Task(NAME, name, trial, options.seed, {**config, "epsilon": e}) for e in budgets]
    return sorted(found, key=lambda task: task.trial)


def run(task: Task, data: Path | None) -> list[Row]:
    """One model, measured on records that it did not see."""
    config, world = task.config, WORLDS[task.kind]
    records = load_records(task.kind, data)
    # the same records for every model and budget
    seed = seed_of(task.seed, NAME, task.kind, config["n"], task.trial)
    order = np.random.default_rng(seed).permutation(len(records.y))
    pool, test = order[: config["n"]], order[config["n"] : config["n"] + config["n_test"]]
    chosen = Records(records.X[pool], records.y[pool], records.layout, records.y_range)
    own = seed_of(seed, config["model"], config["epsilon"])
    fit = _FITS.get(config["model"], partial(_peer, config["model"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted, sets = fit(chosen, records.X[test], config["epsilon"], own)
    measured = measure(world, records.y[test], predicted, sets)
    return [{"model": config["model"], "epsilon": config["epsilon"], "n": config["n"], **measured}]


def load_records(name: str, data: Path | None) -> Records:
    """A whole table with its public facts."""
    if name == "housing":
        table = loaders.housing(data)
        return Records(table.X, table.y, Layout(*housing.FEATURE_BOUNDS), housing.TARGET_BOUNDS)
    load, numbers, categories = {
        "adult": (loaders.adult, loaders.ADULT_NUMBERS, loaders.ADULT_CATEGORIES),
        "bank": (loaders.bank, loaders.BANK_NUMBERS, loaders.BANK_CATEGORIES),
    }[name]
    low, high = (np.array([ends[side] for ends in numbers.values()], dtype=float) for side in (0, 1))
    table = load(data)
    return Records(table.X, table.y, Layout(low, high, tuple(len(c.split(", ")) for c in categories.values())))


def measure(world: World, y: Array, predicted: Array, sets: Array) -> Row:
    """Coverage and size of the sets, and how good the predictions are."""
    found = {"coverage": dp.metrics.coverage(y, sets), "size": dp.metrics.efficiency(sets)}
    if not world.is_labeled:
        return {**found, "rmse": float(np.sqrt(np.mean((predicted - y) ** 2)))}
    from sklearn.metrics import roc_auc_score

    p = np.clip(predicted, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return {
        **found,
        "auc": float(roc_auc_score(y, predicted)),
        "log_loss": float(-np.mean(np.log(np.where(y == 1, p, 1 - p)))),
    }


# ---- the models: each returns its predictions (probabilities of class 1) and sets for the new rows


def _ours(records: Records, X: Array, epsilon: float, seed: int, **settings: Any) -> tuple[Array, Array]:
    settings = {"epsilon": epsilon, "delta": DELTA, "confidence_level": 1 - ALPHA, "random_state": seed, **settings}
    bounds = _bounds(records.layout)
    if records.y_range is None:
        clf = dp.PrivateConformalClassifier(classes=[0, 1], feature_bounds=bounds, **settings)
        clf.fit(records.X, records.y)
        return clf.predict_proba(X)[:, 1], clf.predict_set(X)[1][:, :, 0]
    reg = dp.PrivateConformalRegressor(y_bounds=records.y_range, feature_bounds=bounds, **settings)
    predicted, intervals = reg.fit(records.X, records.y).predict_interval(X)
    return predicted, intervals[:, :, 0]


def _bounds(layout: Layout) -> dict[int, Any]:
    width = sum(layout.groups)
    return loaders.declare_columns(np.r_[layout.low, np.zeros(width)], np.r_[layout.high, np.ones(width)])


def _peer(name: str, records: Records, X: Array, epsilon: float, seed: int) -> tuple[Array, Array]:
    held_out = round(calibration_fraction(len(records.y), epsilon, DELTA) * len(records.y))
    # rows come in random order
    train = Records(records.X[held_out:], records.y[held_out:], records.layout, records.y_range)
    predict = fit_model(name, train, epsilon, DELTA, seed)
    scores = _scores(records, predict(records.X[:held_out]), records.y[:held_out])
    # both ends for probabilities, zero for residuals: where the grid of thresholds is finest
    top, near = (1.0, (0.0, 1.0)) if records.y_range is None else (float(np.ptp(records.y_range)), 0.0)
    found = dp.calibrate(
        scores,
        epsilon=epsilon,
        delta=DELTA,
        alpha=ALPHA,
        score_range=(0.0, top),
        fine_near=near,
        guarantee="split",
        held_out=True,
        n_records=held_out,
        random_state=seed,
    )
    return _with_sets(records, predict(X), found.threshold)


def _boosting(records: Records, X: Array, epsilon: None, seed: int) -> tuple[Array, Array]:  # noqa: ARG001
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    held_out = round(_BOOSTING_HELD_OUT * len(records.y))
    rest = records.X[held_out:], records.y[held_out:]
    if records.y_range is None:
        clf = HistGradientBoostingClassifier(random_state=seed).fit(*rest)
        return _calibrated(records, X, held_out, lambda rows: clf.predict_proba(rows)[:, 1])
    reg = HistGradientBoostingRegressor(random_state=seed).fit(*rest)
    return _calibrated(records, X, held_out, reg.predict)


def _noiseless(records: Records, X: Array, epsilon: None, seed: int) -> tuple[Array, Array]:  # noqa: ARG001
    """The recipe's training at epsilon 1 with the noise of a very large one, and the exact threshold."""
    declared: dict[str, Any] = {"feature_bounds": _bounds(records.layout)}
    declared |= {"classes": [0, 1]} if records.y_range is None else {"y_bounds": records.y_range}
    case = range_ends.Case(len(records.y), lambda _, n: (records.X[:n], records.y[:n]), declared)
    mechanism = range_ends.changed_settings(case, records.X.shape[1], _SETTINGS_OF, {})["estimator"]
    held_out = round(calibration_fraction(len(records.y), _SETTINGS_OF, DELTA) * len(records.y))
    quiet = mechanism.calibrated(_NO_NOISE, DELTA, accountant="rdp")
    model = quiet.train(records.X[held_out:], records.y[held_out:], random_state=seed).model
    if records.y_range is None:
        return _calibrated(records, X, held_out, lambda rows: model.predict_proba(rows)[:, 1])
    return _calibrated(records, X, held_out, model.outputs)


def _calibrated(records: Records, X: Array, held_out: int, predict: Any) -> tuple[Array, Array]:
    """Split conformal prediction without privacy."""
    scores = np.sort(_scores(records, predict(records.X[:held_out]), records.y[:held_out]))
    place = math.ceil((1 - ALPHA) * (held_out + 1))
    return _with_sets(records, predict(X), scores[place - 1] if place <= held_out else np.inf)


def _scores(records: Records, predicted: Array, y: Array) -> Array:
    if records.y_range is None:
        return np.where(y == 1, 1 - predicted, predicted)
    low, high = _ends(predicted)
    return np.maximum(low - y, y - high)


def _with_sets(records: Records, predicted: Array, threshold: float) -> tuple[Array, Array]:
    if records.y_range is None:
        return predicted, np.column_stack([predicted <= threshold, 1 - predicted <= threshold])
    low, high = _ends(predicted)
    return (low + high) / 2, np.column_stack([low - threshold, high + threshold])


def _ends(predicted: Array) -> tuple[Array, Array]:
    """A pair of quantiles, or one prediction twice."""
    pair = np.asarray(predicted).reshape(len(predicted), -1)
    return pair[:, 0], pair[:, -1]


_FITS: dict[str, Any] = {
    OURS: _ours,
    ONE_WIDTH: partial(_ours, conformity_score="absolute"),
    NOISELESS: _noiseless,
    BOOSTING: _boosting,
}


# ---- the page


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Means and standard errors over the trials, as CSV and page."""
    groups: dict[tuple[str, int, float | None, str], list[Row]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            key = (outcome.task.kind, row["n"], row["epsilon"], row["model"])
            groups.setdefault(key, []).append({**row, "seconds": outcome.seconds})
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = [f"{m}{s}" for m in MEASURED for s in ("", "_se")]
        writer.writerow(["table", "n", "epsilon", "model", "trials", *columns, "seconds"])
        for (name, n, epsilon, model), rows in groups.items():
            cells = [c for measure in MEASURED for c in _cells([r[measure] for r in rows if measure in r])]
            seconds = f"{np.mean([r['seconds'] for r in rows]):.3g}"
            shown = "" if epsilon is None else f"{epsilon:g}"
            writer.writerow([name, n, shown, model, len(rows), *cells, seconds])
    left_out = missing_models()
    blocks = [
        "Same rows, same budget (delta 1e-5), same target coverage of 0.90. A peer trains on one part of the records "
        "and `dp.calibrate` finds its threshold on the other part, each with the whole budget. In brackets: standard "
        "errors of the mean over the trials. Probabilities below 0.001 count as 0.001 in the log loss.",
        "- DP-EBM takes the categories and the number of rows from the records, without noise.\n"
        "- diffprivlib's logistic regression takes the number of rows from the records. Its models have no delta.\n"
        "- The trees and AdaSSP are written for this study (`experiments/table_models.py`), with noise from Gaussian "
        "differential privacy. The trees draw their tests from the public bounds. Their number, depth and step were "
        "chosen on other splits of the same tables.\n"
        "- Two rows are not private: our model, trained with practically no noise, and gradient boosting with "
        "scikit-learn's defaults; both with an exact threshold.",
        f"Not installed, and therefore not shown: {', '.join(left_out)}." if left_out else "",
        f"Install the packages with `{loaders.INSTALL}` and put `build/peers` on `PYTHONPATH`.",
        compare(groups),
        *(f"## {world.title}\n\n" + "\n".join(_grid(name, world, groups)) for name, world in WORLDS.items()),
    ]
    tables.write_page(options.results / f"{NAME}.md", "Models for tables", header, filter(None, blocks))


def _cells(values: Sequence[float]) -> list[str]:
    mean, error = _mean_error(values)
    return ["" if v is None else f"{v:.6g}" for v in (mean, error)]


def _mean_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    mean = float(np.mean(values))
    if not np.isfinite(mean) or len(values) < 2:
        return mean, None
    return mean, float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _grid(name: str, world: World, groups: dict[tuple[str, int, float | None, str], list[Row]]) -> list[str]:
    names = ("coverage", "size", "auc", "log_loss") if world.is_labeled else ("coverage", "size", "rmse")
    shown = {"auc": "AUC", "rmse": "RMSE", "size": "size" if world.is_labeled else "width"}
    body = []
    for (table, n, epsilon, model), rows in sorted(
        ((key, rows) for key, rows in groups.items() if key[0] == name),
        key=lambda item: (item[0][1], item[0][2] or math.inf, list(TITLES).index(item[0][3])),
    ):
        assert table == name
        cells = [tables.number(*_mean_error([row[m] for row in rows])) for m in names]
        budget = "-" if epsilon is None else f"{epsilon:g}"
        body.append([f"{n:,}", budget, TITLES[model], *cells, f"{np.mean([r['seconds'] for r in rows]):.2f}"])
    return tables.grid(["n", "eps", "model", *(shown.get(m, m.replace("_", " ")) for m in names), "seconds"], body)


def compare(groups: dict[tuple[str, int, float | None, str], list[Row]]) -> str:
    """Ours against each peer on the same splits: how often smaller, and where a peer is ahead by two errors."""
    told = []
    for peer in MODELS:
        cells = [key for key in groups if key[3] == peer]
        smaller, ahead = 0, []
        for name, n, epsilon, _ in cells:
            gaps = [
                mine["size"] - theirs["size"]
                for mine, theirs in zip(groups[name, n, epsilon, OURS], groups[name, n, epsilon, peer], strict=True)
            ]
            gap, error = _mean_error(gaps)
            assert gap is not None
            smaller += gap < 0
            if error is not None and gap > 2 * error:
                size = np.mean([row["size"] for row in groups[name, n, epsilon, peer]])
                ahead.append(f"{WORLDS[name].title} n = {n:,}, epsilon {epsilon:g} ({100 * gap / size:.1f} %)")
        if cells:
            told.append(
                f"- {TITLES[peer]}: our sets are smaller in {smaller} of {len(cells)} cells; the peer's are smaller by "
                f"more than two standard errors: {'; '.join(ahead) or 'nowhere'}"
            )
    return "\n".join(["On the same splits, mean size of the sets of the default:\n", *told, *_better_models(groups)])


def _better_models(groups: dict[tuple[str, int, float | None, str], list[Row]]) -> list[str]:
    """Where a private peer predicts better than our model without noise: there the model decides, not the noise."""
    found = []
    for name, n, epsilon, model in groups:
        loss = "log_loss" if WORLDS[name].is_labeled else "rmse"
        if model in MODELS and (name, n, None, NOISELESS) in groups:
            theirs, ours = (
                np.mean([row[loss] for row in groups[name, n, e, m]]) for e, m in ((epsilon, model), (None, NOISELESS))
            )
            if theirs < ours:
                found.append(f"{TITLES[model]} on {WORLDS[name].title}, n = {n:,}, epsilon {epsilon:g}")
    if not found:
        return []
    told = "Better predictions than those of our model without noise, so that noise is not the reason"
    return [f"- {told}: {'; '.join(found)}"]


STUDY = Study(NAME, tasks, run, report)
