"""The ends of the range: the default against the best of a small grid, on synthetic development tables.

    python -m experiments range_ends --trials 8 --workers 16

Few records, many one-hot columns, many classes, a rare class, a target with a heavy tail, missing values, 10^6 records.
Every case is fitted by the defaults and by the recipe's model with another learning rate or other hidden layers (then
without random features). Sizes are those at the exact 90 % threshold of the test part, because the search of few
records varies more than training does. The page shows how far the default is behind the best of them, with a standard
error. More than 3 %, and more than two standard errors, is a defect.
"""

import csv
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

import dpscp as dp
from dpscp.data.feature_bounds import column_bounds
from dpscp.privacy import gdp_mu, secret_shares
from dpscp.training import DPSGD, Preprocessed, RandomFeatures
from dpscp.training.mechanisms.by_width import LayersByWidth
from dpscp.training.recipe import calibration_fraction, pair_levels, pays_as_pair, recipe
from experiments import paired, tables
from experiments.runner import ALPHA, DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "range_ends"
Array = NDArray[Any]
N_TEST = 4_000
# A default that is further behind, in percent, is a defect.
LARGEST_GAP = 3.0
# changes of the recipe's engine: a factor of the learning rate, and hidden layers where they are not the recipe's
GRID: dict[str, dict[str, Any]] = {
    "rate x 0.5": {"rate": 0.5},
    "rate x 2": {"rate": 2.0},
    "linear": {"hidden": ()},
    "hidden 16": {"hidden": (16,)},
    "hidden 64": {"hidden": (64,)},
}


@dataclass(frozen=True)
class Case:
    """A table of so many records: a function of the seed and the number of rows, and what is declared of it."""

    n: int
    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]
    declared: dict[str, Any]
    most_trials: int | None = None
    epsilons: tuple[float, ...] = EPSILONS


def _friedman(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    u = rng.uniform(size=(n, 10))
    y = 10 * np.sin(np.pi * u[:, 0] * u[:, 1]) + 20 * (u[:, 2] - 0.5) ** 2 + 10 * u[:, 3] + 5 * u[:, 4]
    return u, y + rng.normal(size=n)


def _heavy_target(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    u, y = _friedman(rng, n)
    return u, np.exp(y / 5)


def _missing(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    u, y = _friedman(rng, n)
    absent = rng.uniform(size=u.shape) < 0.25
    return np.hstack([np.where(absent, 0.5, u), absent]), y


def _mixed(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Ten numbers, and three columns of six categories as indicators, some of them rare."""
    u, y = _friedman(rng, n)
    effects = np.random.default_rng(6).normal(scale=2.0, size=(3, 6))  # the same population for all trials
    indicators = []
    for own in effects:
        drawn = rng.choice(6, p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01], size=n)
        y = y + own[drawn]
        indicators.append(np.eye(6)[drawn])
    return np.hstack([4 * u - 2, *indicators]), y


def _one_hot(columns: int) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        public = np.random.default_rng(columns)  # the same population for all trials
        pulls = public.normal(size=columns) * (public.uniform(size=columns) < 0.2)
        chosen = rng.integers(0, 10, size=(n, columns // 10)) + 10 * np.arange(columns // 10)
        X = np.zeros((n, columns), dtype=np.float32)
        np.put_along_axis(X, chosen, 1.0, axis=1)
        margin = 4 * pulls[chosen].sum(axis=1) / np.sqrt((pulls**2).sum() / 10)
        return X, (rng.uniform(size=n) < 1 / (1 + np.exp(-margin))).astype(np.int64)

    return draw


def _classes(n_classes: int, **options: Any) -> Callable[[np.random.Generator, int], tuple[Array, Array]]:
    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        # one population for all trials: scikit-learn draws its clusters from the seed
        width = options.get("n_features", 10)
        settings = {"n_features": width, "n_informative": width - 2, "n_redundant": 0, **options}
        X, y = make_classification(40_000, n_classes=n_classes, random_state=n_classes, **settings)
        kept = rng.permutation(len(X))[:n]
        return X[kept], y[kept]

    return draw


_NUMBERS = {"feature_bounds": (0.0, 1.0), "y_bounds": (-10.0, 40.0)}
_MIXED = {
    "feature_bounds": {place: (-2.0, 2.0) if place < 10 else "indicator" for place in range(28)},
    "y_bounds": (-20.0, 50.0),
}
_HEAVY = {"feature_bounds": (0.0, 1.0), "y_bounds": (0.01, 1000.0)}
CASES: dict[str, Case] = {
    **{f"numbers, n = {n:,}": Case(n, _friedman, _NUMBERS) for n in (200, 500, 1_000, 3_000)},
    **{
        f"3 classes, n = {n:,}": Case(n, _classes(3), {"feature_bounds": (-8.0, 8.0), "classes": [0, 1, 2]})
        for n in (200, 500, 1_000, 3_000)
    },
    **{
        f"{width:,} one-hot columns": Case(
            10_000,
            _one_hot(width),
            {"feature_bounds": dict.fromkeys(range(width), "indicator"), "classes": [0, 1]},
            most_trials=1,
        )
        for width in (200, 1_000, 2_000)
    },
    "50 classes": Case(
        20_000,
        _classes(50, n_features=20, n_clusters_per_class=1, class_sep=2.0),
        {"feature_bounds": (-10.0, 10.0), "classes": list(range(50))},
        most_trials=2,
    ),
    **{
        f"{k} classes of {clusters} clusters, n = {n:,}": Case(
            n,
            _classes(k, n_features=16, n_clusters_per_class=clusters, class_sep=distance),
            {"feature_bounds": (-10.0, 10.0), "classes": list(range(k))},
            most_trials=3,
        )
        for k, n, clusters, distance in (
            (12, 2_500, 2, 1.0),
            (20, 3_000, 2, 1.5),
            (30, 4_000, 1, 1.0),
            (50, 8_000, 2, 2.0),
        )
    },
    "a class of 1 %": Case(
        20_000,
        _classes(2, weights=[0.99], flip_y=0.002),
        {"feature_bounds": (-8.0, 8.0), "classes": [0, 1]},
        most_trials=1,
    ),
    "heavy target": Case(8_000, _heavy_target, _HEAVY),
    "heavy target, log": Case(8_000, _heavy_target, {**_HEAVY, "y_scale": "log"}),
    "numbers and categories": Case(8_000, _mixed, _MIXED),
    "a quarter missing": Case(8_000, _missing, _NUMBERS),
    "10^6 records": Case(1_000_000, _friedman, _NUMBERS, most_trials=1, epsilons=(0.5,)),
}


def tasks(options: Options) -> list[Task]:
    """One trial of everything after the other."""
    found = []
    for name, case in CASES.items():
        for trial in range(options.trials_of(quick=1, most=case.most_trials)):
            for epsilon in case.epsilons:
                choices = ("", *GRID) if "y_scale" not in case.declared else ("",)
                found += [Task(NAME, name, trial, options.seed, {"epsilon": epsilon, "grid": g}) for g in choices]
    return sorted(found, key=lambda task: task.trial)


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (all tables are synthetic)
    """One fit, measured on records that it did not see."""
    case, epsilon = CASES[task.kind], task.config["epsilon"]
    seed = seed_of(task.seed, NAME, task.kind, task.trial)
    X, y = case.draw(np.random.default_rng(seed), case.n + N_TEST)
    settings: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "random_state": seed, **case.declared}
    if task.config["grid"]:
        settings |= changed_settings(case, X.shape[1], epsilon, GRID[task.config["grid"]])
    is_labeled = "classes" in case.declared
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = dp.PrivateConformalClassifier if is_labeled else dp.PrivateConformalRegressor
        model: Any = kind(**settings).fit(X[: case.n], y[: case.n])
    rows, targets = X[case.n :], y[case.n :]
    sets = (model.predict_set(rows) if is_labeled else model.predict_interval(rows))[1][:, :, 0]
    measured = {"released_size": dp.metrics.efficiency(sets), "coverage": dp.metrics.coverage(targets, sets)}
    measured["size"] = exact_size(model, rows, targets, sets, is_log="y_scale" in case.declared)
    return [{"epsilon": epsilon, "grid": task.config["grid"], **measured}]


def exact_size(model: Any, X: Array, y: Array, sets: Array, *, is_log: bool) -> float:
    """The mean size of the sets at the threshold that covers 90 % of these records.

    For intervals on the scale of a logarithm, and for infinite ones, it is the size of the released sets.
    """
    if sets.dtype == np.bool_:
        p = model.predict_proba(X)
        smallest = np.quantile(p[np.arange(len(y)), y], ALPHA, method="lower")
        return float((p >= smallest).sum(axis=1).mean())
    released = dp.metrics.efficiency(sets)
    if is_log or not np.isfinite(released):
        return float(released)
    # intervals end at the threshold below and above a pair of predictions, or one prediction
    threshold = float(model.threshold_[0])
    outside = np.maximum(sets[:, 0] - y, y - sets[:, 1]) + threshold
    return float(released + 2 * (np.quantile(outside, 1 - ALPHA, method="higher") - threshold))


def changed_settings(case: Case, width: int, epsilon: float, change: dict[str, Any]) -> dict[str, Any]:
    """The recipe's mechanism with a change of its engine, as an estimator of the caller's own."""
    classes = case.declared.get("classes")
    signal = case.n * gdp_mu(epsilon, DELTA)
    pair = classes is None and pays_as_pair(signal, width)
    # the default plans training with what a secret split leaves to it
    fraction = calibration_fraction(case.n, epsilon, DELTA)
    bounds = column_bounds(case.declared["feature_bounds"], width, None)
    assert bounds is not None
    plan = recipe(
        "regression" if classes is None else "classification",
        n_records=case.n,
        n_features=width,
        classes=None if classes is None else tuple(range(len(classes))),
        epsilon=epsilon,
        delta=DELTA,
        feature_bounds=bounds.pair,
        indicators=bounds.indicators,
        y_bounds=case.declared.get("y_bounds"),
        quantiles=pair_levels(ALPHA, signal) if pair else None,
        train_epsilon=secret_shares(epsilon, DELTA, fraction, case.n)[0],
        held_out_fraction=fraction,
    )
    own: dict[str, Any] = {"estimator": _changed(plan.mechanism, change), "feature_bounds": None, "guarantee": "split"}
    return own | ({"conformity_score": "cqr" if pair else "absolute"} if classes is None else {})


def _changed(mechanism: Any, change: dict[str, Any]) -> Any:
    """The mechanism with its innermost engine changed; other layers replace random features."""
    if isinstance(mechanism, Preprocessed) and "hidden" in change:
        kept = tuple(step for step in mechanism.steps if not isinstance(step, RandomFeatures))
        mechanism = replace(mechanism, steps=kept)
    if isinstance(mechanism, LayersByWidth) and "hidden" in change:
        return _changed(mechanism.mechanism, change)
    if not isinstance(mechanism, DPSGD):
        return replace(mechanism, mechanism=_changed(mechanism.mechanism, change))
    rate = mechanism.learning_rate * change.get("rate", 1.0)
    return replace(mechanism, learning_rate=rate, hidden=change.get("hidden", mechanism.hidden))


@dataclass(frozen=True)
class Gap:
    """How far the default is behind the best of the grid, in percent of the best, with its standard error."""

    best: str
    percent: float
    error: float

    @classmethod
    def of(cls, sizes: dict[str, Array]) -> "Gap":
        """The gap of the means; the error is that of the mean difference of trials on the same records."""
        means = {name: float(np.mean(of_trials)) for name, of_trials in sizes.items()}
        best = min(means, key=lambda name: means[name])
        if best == "" or not np.isfinite(means[""]):
            return cls(best, 0.0, 0.0)
        differences = 100 * (sizes[""] - sizes[best]) / means[best]
        n = len(differences)
        error = float(np.std(differences, ddof=1) / np.sqrt(n)) if n > 1 else np.inf
        return cls(best, float(np.mean(differences)), error)

    @property
    def is_defect(self) -> bool:
        """More than 3 %, and more than two standard errors."""
        return self.percent > max(LARGEST_GAP, 2 * self.error)

    def __str__(self) -> str:
        error = f" ({self.error:.1f})" if 0 < self.error < np.inf else ""
        return f"{self.percent:.1f} %{error}{', behind' if self.is_defect else ''}"


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Mean size of the default and of the best of the grid, as CSV and page."""
    found: dict[tuple[str, float], dict[str, dict[int, Row]]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            choices = found.setdefault((outcome.task.kind, row["epsilon"]), {})
            choices.setdefault(row["grid"], {})[outcome.task.trial] = row
    options.results.mkdir(parents=True, exist_ok=True)
    sizes = {
        (case, grid, epsilon): {trial: row["size"] for trial, row in rows.items()}
        for (case, epsilon), choices in found.items()
        for grid, rows in choices.items()
    }
    paired.write_trials(options.results / f"{NAME}_trials.csv", sizes)
    body, behind = [], 0
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "epsilon", "choice", "trials", "size", "size_sd", "released_size", "coverage"])
        for (case, epsilon), choices in found.items():
            # trials that every choice has: the differences are those on the same records
            trials = sorted(set.intersection(*(set(rows) for rows in choices.values())))
            columns = {
                name: {key: np.array([rows[t][key] for t in trials]) for key in ("size", "released_size", "coverage")}
                for name, rows in choices.items()
            }
            for name, column in columns.items():
                spread = float(np.std(column["size"], ddof=1)) if len(trials) > 1 else 0.0
                numbers = [column["size"].mean(), spread, column["released_size"].mean(), column["coverage"].mean()]
                printed = [f"{number:.6g}" for number in numbers]
                writer.writerow([case, f"{epsilon:g}", name or "default", len(trials), *printed])
            gap = Gap.of({name: column["size"] for name, column in columns.items()})
            behind += gap.is_defect
            default, best = columns[""], columns[gap.best]
            numbers = [
                f"{default['size'].mean():.4g} ({default['coverage'].mean():.3f})",
                f"{best['size'].mean():.4g}",
                gap.best or "default",
            ]
            body.append([case, f"{epsilon:g}", f"{len(trials)}", *numbers, str(gap)])
    tables.write_page(
        options.results / f"{NAME}.md",
        "The default at the ends of the range",
        header,
        [
            "Mean width of intervals or mean size of sets at the exact 90 % threshold of the test part, delta 1e-5, on "
            "synthetic development tables. In brackets behind a size: the coverage of the released sets. In brackets "
            "behind a gap: the standard error of the mean difference of trials on the same records. The best of the "
            "grid is chosen by the same trials, so a small gap is its luck. A row is called behind where the gap is "
            f"more than {LARGEST_GAP:g} % and more than two standard errors: {behind} of {len(body)} rows.",
            "\n".join(tables.grid(["case", "eps", "trials", "default (coverage)", "best", "which", "gap"], body)),
        ],
    )


STUDY = Study(NAME, tasks, run, report)
