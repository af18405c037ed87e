"""Published rivals on the same splits and the same whole budget, with their own training and with the library's.

A split's model is trained once and serves every threshold, so rows of one table differ by their calibration alone.
"Own training" is DP-SGD with the paper's settings, half the records held out (private prediction sets, P-COQS) or half
of epsilon on training (DPCP); "the library's training" is the recipe, with the recipe's held-out part or share. All
noise is solved by privacy loss distributions, so that nobody pays for loose accounting.
"""

import csv
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray
from scipy import stats

import dpscp as dp
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.release import Counted, release_counts
from dpscp.core.tasks import OwnScores
from dpscp.data.feature_bounds import column_bounds
from dpscp.guarantees.formulas import universal_floor
from dpscp.paper import noisy_midpoint_quantile
from dpscp.privacy import (
    Budget,
    LatticeNoise,
    Ledger,
    dpsgd_event,
    noise_multiplier,
    secret_shares,
    sized_lattice_noise,
    tradeoff_of,
)
from dpscp.training.base import paid_event
from dpscp.training.model import Model
from dpscp.training.recipe import calibration_fraction, recipe
from experiments import adult, bank, bloodmnist, housing, synthetic_scaling, tables, tabular, validity_map
from experiments import data as loaders
from experiments.exponential import ExponentialQuantile, exponential_quantile, exponential_rate
from experiments.faithful import Fold, PaperSettings, standardized
from experiments.library import training_event
from experiments.runner import ALPHA, DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "rivals"
Array = NDArray[Any]
OWN, LIBRARY = "own", "library"
TRAININGS = {OWN: "its own training", LIBRARY: "the library's training"}
PPS, PCOQS, DPCP, DPCP_LEVEL = "pps", "p-coqs", "dpcp", "dpcp-level"
RIVALS = {
    PPS: "private prediction sets (Angelopoulos et al. 2022)",
    PCOQS: "P-COQS (Romanus and Molinari 2025)",
    DPCP: "DPCP (Wu et al. 2026)",
    DPCP_LEVEL: "DPCP, level of private prediction sets",
}
OURS = {"split": "split (the library)", "corrected": "corrected (the library)"}
# A rival is compared with the library's rule on the very same model.
COUNTERPART = {PPS: "split", PCOQS: "split", DPCP: "corrected", DPCP_LEVEL: "corrected"}
# The task of the validity map that is made to overfit, and what training on it spends.
OVERFITTING, OVERFITTING_EPSILONS = "overfitting", (0.5, 2.0, 8.0)
# Charged to alpha where the size of a held-out part is random.
_SIZE_TAIL = ALPHA / 1000
_OWN_SHARE = 0.5


@dataclass(frozen=True)
class World:
    """One data set: its folds, the settings of the paper's training, and what the recipe knows about the features."""

    title: str
    settings: PaperSettings
    fold: Callable[[int, int, Path | None], tuple[Fold, int]]
    bounds: Callable[[Path | None], Any] = lambda data: None  # noqa: ARG005
    standardize: bool = False
    what: str = "size"


def _table_fold(study: str, load: Callable[[Path | None], loaders.Table]) -> Callable[..., tuple[Fold, int]]:
    return lambda seed, trial, data: tabular.fold_of(study, seed, trial, load(data), 20_000, 10_000)


WORLDS = {
    "housing": World("California Housing", housing.SETTINGS, housing.fold_of, standardize=True, what="width"),
    "bloodmnist": World(
        "BloodMNIST, high-resolution features",
        bloodmnist.SETTINGS,
        lambda seed, trial, data: bloodmnist.fold_of(seed, trial, "effnet_hr", data),
    ),
    "adult": World(
        "Adult",
        tabular.SETTINGS,
        _table_fold(adult.NAME, loaders.adult),
        lambda data: loaders.adult(data).declared_bounds,
    ),
    "bank": World(
        "Bank Marketing",
        tabular.SETTINGS,
        _table_fold(bank.NAME, loaders.bank),
        lambda data: loaders.bank(data).declared_bounds,
    ),
    "synthetic_scaling": World(
        "Synthetic II, n = 10,000",
        synthetic_scaling.SETTINGS,
        lambda seed, trial, data: synthetic_scaling.fold_of(seed, trial, 10_000),  # noqa: ARG005
        lambda data: (np.full(10, -5.0), np.full(10, 5.0)),  # noqa: ARG005
        standardize=True,
    ),
}


def tasks(options: Options) -> list[Task]:
    """For each trial, data set and training one task, which runs all budgets."""
    return [
        Task(NAME, training, trial, options.seed, {"world": name})
        for trial in range(options.trials_of(quick=1))
        for name in WORLDS
        for training in TRAININGS
    ] + [
        Task(NAME, OVERFITTING, trial, options.seed, {"training_epsilons": list(OVERFITTING_EPSILONS)})
        for trial in range(options.trials_of(quick=1))
    ]


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    if task.kind == OVERFITTING:
        return [
            {"world": OVERFITTING, "training": OWN, "n": validity_map.N[OVERFITTING], **r} for r in _overfitted(task)
        ]
    world = WORLDS[task.config["world"]]
    fold, seed = world.fold(task.seed, task.trial, data)
    rows = (_own_rows if task.kind == OWN else partial(_library_rows, bounds=world.bounds(data)))(world, fold, seed)
    return [{"world": task.config["world"], "training": task.kind, "n": len(fold.X), **row} for row in rows]


# ---- the plans: from public numbers, so each is solved once for all trials


@lru_cache(maxsize=64)
def _own_noise(settings: PaperSettings, n: int, epsilon: float) -> float:
    """The noise multiplier of the paper's training on n records, by privacy loss distributions."""
    return noise_multiplier(epsilon, DELTA, *settings.loader(n))


@lru_cache(maxsize=64)
def _rate(epsilon: float, spent: DpEvent | None, secret_part: float | None = None) -> float:
    return exponential_rate(Budget(epsilon, DELTA), spent, 1, secret_part=secret_part)


@lru_cache(maxsize=64)
def _midpoint_noise(epsilon: float, spent: DpEvent | None = None, secret_part: float | None = None) -> LatticeNoise:
    """Of each of the 20 counts of a midpoint search."""
    return sized_lattice_noise(epsilon, DELTA, 20, [1.0], spent, secret_part=secret_part)[0][0]


@lru_cache(maxsize=64)
def _our_searches(task: OwnScores, epsilon: float, spent: DpEvent, n: int, fraction: float) -> Plan:
    """What the library asks of the scores of a secret part."""
    training = Ledger().add("training", spent)
    budget = Budget(epsilon, DELTA)
    problem = Problem(task=task, budget=budget, alphas=(ALPHA,), n_records=n, guarantee="split")
    return Plan.outline(problem, training, part=fraction, secret_part=fraction).with_noise()


@lru_cache(maxsize=64)
def _floor(epsilon: float, spent: DpEvent, n: int, level: str) -> float:
    """What Result B proves for in-sample calibration by the exponential mechanism."""
    rate = _rate(epsilon, spent)
    probe = _exponential(np.zeros(n), (0.0, 1.0), rate, level, seed=0)
    return universal_floor(_miss_bound(probe.level, n, probe.bins, probe.rate), tradeoff_of(spent, "pld", "add"))


def _miss_bound(level: float, n: int, bins: int, rate: float) -> float:
    """The largest probability that one more exchangeable score lies above a threshold drawn for ``level`` >= 1/2."""
    failures = np.geomspace(1e-12, 0.5, 800)
    kept = np.maximum(level * n - np.log(bins / failures) / rate, 0.0) / (n + 1)
    return float(np.min(1 - (1 - failures) * np.minimum(kept, 1.0)))


# ---- the thresholds


def _exponential(
    scores: Array, score_range: tuple[float, float], rate: float, level: str, seed: int, **size: Any
) -> ExponentialQuantile:
    alpha = ALPHA - (_SIZE_TAIL if "n_min" in size else 0.0)
    options = {"alpha": alpha, "score_range": score_range, "rate": rate, "level": level, "random_state": seed, **size}
    return exponential_quantile(scores, **options)


def _midpoint(scores: Array, score_range: tuple[float, float], noise: LatticeNoise, seed: int) -> float:
    options: dict[str, Any] = {"alpha": ALPHA, "score_range": score_range, "count_noise": noise, "random_state": seed}
    return noisy_midpoint_quantile(scores, **options).threshold


def _finite(found: Any) -> float:
    return found.threshold if found.is_finite else math.inf


@dataclass(frozen=True)
class Judge:
    """How a trained model scores records, and what a threshold makes of the test records."""

    model: Model
    X_test: Array
    y_test: Array
    scale: float
    y_bounds: tuple[float, float] | None

    def scores(self, X: Array, y: Array) -> Array:
        """1 - p_y, or the absolute residual of the prediction within its bounds."""
        if self.model.task == "classification":
            return dp.scores.lac(self.model.predict_proba(X), y)
        outputs = np.asarray(self.model.outputs(X), float)[:, 0]
        return dp.scores.absolute_residual(y, outputs if self.y_bounds is None else np.clip(outputs, *self.y_bounds))

    def row(self, method: str, epsilon: float, threshold: float, proven: float | None) -> Row:
        """Coverage and size of the sets {score <= threshold}."""
        if self.model.task == "classification":
            sets = dp.sets.label_set(
                dp.scores.lac_of_labels(self.model.predict_proba(self.X_test)), np.array([threshold])
            )
            coverage, size = dp.metrics.coverage(self.y_test, sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
        else:
            coverage = float((self.scores(self.X_test, self.y_test) <= threshold).mean())
            size = 2 * threshold * self.scale
        return {"method": method, "epsilon": epsilon, "coverage": coverage, "size": size, "proven": proven}


def _own_rows(world: World, fold: Fold, seed: int) -> Iterator[Row]:
    """The rivals with DP-SGD at the paper's settings."""
    n, score_range = len(fold.X), world.settings.score_range
    order = np.random.default_rng(seed).permutation(n)
    everyone = np.arange(n)
    for training, calibration, methods in (
        (order[: n // 2], order[n // 2 :], (PPS, PCOQS)),
        (everyone, everyone, (DPCP, DPCP_LEVEL)),
    ):
        (X, y, X_cal, y_cal, X_test, y_test), scale = fold.parts(training, calibration)
        for epsilon in EPSILONS:
            own = seed_of(seed, NAME, epsilon, *methods)
            share = 1.0 if PPS in methods else _OWN_SHARE
            noise = _own_noise(world.settings, len(X), share * epsilon)
            judge = Judge(world.settings.train(X, y, noise, own, seed), X_test, y_test, scale, None)
            scores = judge.scores(X_cal, y_cal)
            if PPS in methods:
                found = _exponential(scores, score_range, _rate(epsilon, None), "corrected", own)
                yield judge.row(PPS, epsilon, _finite(found), 1 - ALPHA)
                yield judge.row(PCOQS, epsilon, _midpoint(scores, score_range, _midpoint_noise(epsilon), own), None)
            else:
                yield from _dpcp_rows(
                    judge, scores, score_range, epsilon, dpsgd_event(noise, *world.settings.loader(n)), own
                )


def _dpcp_rows(
    judge: Judge, scores: Array, score_range: tuple[float, float], epsilon: float, spent: DpEvent, seed: int
) -> Iterator[Row]:
    for method, level in ((DPCP, "plain"), (DPCP_LEVEL, "corrected")):
        found = _exponential(scores, score_range, _rate(epsilon, spent), level, seed)
        yield judge.row(method, epsilon, _finite(found), _floor(epsilon, spent, len(scores), level))


def _overfitted(task: Task) -> Iterator[Row]:
    """DPCP where a model knows its records: epsilon is that of training, a fifth of the whole budget is left."""
    seed = seed_of(task.seed, validity_map.NAME, OVERFITTING, task.trial)
    X, y, X_test, y_test = validity_map.records(OVERFITTING, seed, None)
    for epsilon in task.config["training_epsilons"]:
        own = seed_of(seed, epsilon)
        trained = validity_map.train(OVERFITTING, X, y, epsilon, own, keep=False)
        judge = Judge(trained.model, X_test, y_test, 1.0, None)
        whole = (1 + validity_map.SEARCH_SURPLUS) * epsilon
        for row in _dpcp_rows(judge, judge.scores(X, y), (0.0, 1.0), whole, trained.event, own):
            yield {**row, "epsilon": epsilon}


def _library_rows(world: World, fold: Fold, seed: int, bounds: Any) -> Iterator[Row]:
    """The same rivals, and the library's rules, on models that the recipe trains."""
    X, X_test = standardized(fold.X, fold.X_test) if world.standardize else (fold.X, fold.X_test)
    y, y_test, scale, y_bounds = fold.y, fold.y_test, 1.0, None
    task, classes, score_range = "classification", tuple(range(world.settings.n_classes or 0)), (0.0, 1.0)
    if world.settings.n_classes is None:
        task, classes = "regression", None
        mean, scale = y.mean(), float(y.std())
        y, y_test = standardized(y, y_test)
        y_bounds = tuple(float((end - mean) / scale) for end in housing.TARGET_BOUNDS)
        score_range = (0.0, y_bounds[1] - y_bounds[0])
    ends = column_bounds(bounds, X.shape[1], None)
    for epsilon in EPSILONS:
        own = seed_of(seed, NAME, "library", epsilon)
        plan = partial(
            recipe,
            task,
            n_records=len(X),
            n_features=X.shape[1],
            classes=classes,
            epsilon=epsilon,
            delta=DELTA,
            feature_bounds="standardized" if task == "regression" else None if ends is None else ends.pair,
            indicators=() if ends is None else ends.indicators,
        )
        # held out: each record by its own secret coin, as the library does; each rule has what the mixture leaves it
        n, fraction = len(X), calibration_fraction(len(X), epsilon, DELTA)
        train_epsilon, _ = secret_shares(epsilon, DELTA, fraction, n)
        split = plan(guarantee="split", train_epsilon=train_epsilon, held_out_fraction=fraction)
        held = np.random.default_rng(own).random(n) < fraction
        mechanism = split.calibrated()
        spent = paid_event(mechanism)
        # where the estimators have their grids fine
        scored = OwnScores(score_range, (0.0, 1.0) if task == "classification" else 0.0)
        searches = _our_searches(scored, epsilon, spent, n, fraction)
        with _quietly():
            model = mechanism.train(X[~held], y[~held], random_state=own, n_records=split.n_training).model
            judge = Judge(model, X_test, y_test, scale, y_bounds)
            scores = judge.scores(X[held], y[held])
            counted = Counted([scores], searches.spent)
            ours = release_counts(searches, lambda counted=counted: counted, random_state=own)
        yield judge.row("split", epsilon, float(ours.threshold[0, 0]), ours.certificates[0].coverage)
        least = max(1, int(stats.binom.ppf(_SIZE_TAIL, n, fraction)))
        size = {"n_records": round(fraction * n), "n_min": least}
        found = _exponential(scores, score_range, _rate(epsilon, spent, fraction), "corrected", own, **size)
        yield judge.row(PPS, epsilon, _finite(found), 1 - ALPHA)
        noise = _midpoint_noise(epsilon, spent, fraction)
        yield judge.row(PCOQS, epsilon, _midpoint(scores, score_range, noise, own), None)
        # all records train and calibrate
        options: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "guarantee": "corrected", "random_state": own}
        if task == "regression":
            options |= {"y_bounds": y_bounds, "conformity_score": "absolute"}
            fitted: Any = dp.PrivateConformalRegressor(plan(guarantee="corrected").mechanism, **options)
        else:
            fitted = dp.PrivateConformalClassifier(classes=list(classes or ()), feature_bounds=bounds, **options)
        fitted.set_params(train_share="auto", confidence_level=1 - ALPHA)
        with _quietly():
            fitted.fit(X, y)
        judge = Judge(fitted.model_, X_test, y_test, scale, y_bounds)
        yield judge.row("corrected", epsilon, float(fitted.threshold_[0]), fitted.certificate_.coverage)
        spent = training_event(fitted.ledger_)
        yield from _dpcp_rows(judge, judge.scores(X, y), score_range, epsilon, spent, own)


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        warnings.simplefilter("ignore", dp.SeededWarning)
        yield


# ---- the page


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV and page."""
    rows = tables.rows_of(outcomes)
    groups: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["world"], row["training"], row["method"], row["epsilon"]), []).append(row)
    found = {key: _summary(members, rows) for key, members in groups.items()}
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["world", "training", "method", "epsilon", *COLUMNS])
        for key, summary in found.items():
            writer.writerow([*key, *("" if v is None else format(v, ".6g") for v in summary.values())])
    blocks = [_INTRODUCTION]
    for name, world in WORLDS.items():
        mine = {key[1:]: summary for key, summary in found.items() if key[0] == name}
        if mine:
            blocks += [f"## {world.title} ({world.what})", "\n".join(_grid(mine))]
    blocks += ["## Where a rival is smaller, and why", _smaller(found), _WHY + _broken(found)]
    tables.write_page(options.results / f"{NAME}.md", "Published rivals", header, blocks)


COLUMNS = (
    "coverage",
    "coverage_sd",
    "size",
    "size_sd",
    "proven",
    "size_minus_ours_percent",
    "size_minus_ours_percent_se",
    "trials",
)
_INTRODUCTION = (
    "Same pools and test parts as the other pages, target coverage 0.90, delta 1e-5 for the whole release; cells are "
    "size (coverage). A rival and the library's rule under \"the library's training\" share one trained model in each "
    "trial: private prediction sets and P-COQS the model and the held-out part of `split`, DPCP the model of "
    "`corrected`; their difference is calibration alone. There records are held out by secret coins and every rule has "
    "what the mixture with training leaves it; the rivals' own training is on halves of fixed size, each with the "
    "whole budget, as published. The exponential mechanism is accounted for by its loss range "
    "in the privacy loss distribution of the whole release, at half the published cost, and P-COQS by the exact "
    "integer noise of its 20 counts. Of DPCP only the abstract was at hand: its quantile is taken to be that of "
    "private prediction sets, once at the plain conformal level and once at their raised one. All regression scores "
    "are absolute residuals. *Proven*: coverage that is proven for exchangeable records whatever their law; for DPCP "
    "and `corrected` that is Result B's floor, which follows from the privacy of training."
)


def _summary(members: list[Row], rows: list[Row]) -> dict[str, float | None]:
    """Means over the trials, and the paired difference to the library's rule on the same model, in percent."""
    first = members[0]
    ours = {
        row["trial"]: row["size"]
        for row in rows
        if first["training"] == LIBRARY
        and row["method"] == COUNTERPART.get(first["method"])
        and all(row[name] == first[name] for name in ("world", "training", "epsilon"))
    }
    differences = [100 * (row["size"] / ours[row["trial"]] - 1) for row in members if row["trial"] in ours]
    values: dict[str, list[float]] = {name: [row[name] for row in members] for name in ("coverage", "size")}
    several = len(members) > 1
    numbers: list[float | None] = []
    for column in (values["coverage"], values["size"]):
        numbers += [float(np.mean(column)), float(np.std(column, ddof=1)) if several else None]
    proven = [row["proven"] for row in members if row["proven"] is not None]
    numbers.append(min(proven) if proven else None)
    numbers.append(float(np.mean(differences)) if differences else None)
    numbers.append(float(np.std(differences, ddof=1) / math.sqrt(len(differences))) if len(differences) > 1 else None)
    return dict(zip(COLUMNS, [*numbers, len(members)], strict=True))


def _grid(found: dict[tuple[str, str, float], dict[str, Any]]) -> list[str]:
    head = ["method", *(f"eps {e:g}" for e in EPSILONS), "proven", "size minus ours, same model, %"]
    body = []
    for training, method in dict.fromkeys(key[:2] for key in found):
        mine = [found[training, method, e] for e in EPSILONS]
        name = f"**{OURS[method]}**" if method in OURS else f"{RIVALS[method]}, {TRAININGS[training]}"
        proven = [m["proven"] for m in mine]
        promised = "-" if None in proven else " / ".join(dict.fromkeys(f"{p:.2f}" for p in proven))
        paired = [
            f"{m['size_minus_ours_percent']:+.1f}"
            + ("" if m["size_minus_ours_percent_se"] is None else f" (se {m['size_minus_ours_percent_se']:.1f})")
            for m in mine
            if m["size_minus_ours_percent"] is not None
        ]
        body.append(
            [
                name,
                *(f"{tables.number(m['size'])} ({m['coverage']:.3f})" for m in mine),
                promised,
                " / ".join(paired) or "-",
            ]
        )
    return tables.grid(head, body)


_WHY = (
    "Why. *P-COQS* aims at the rank itself and its noise errs both ways; the library's offset buys a proof with the "
    "sets of a few ranks. Where P-COQS is smaller its coverage is lower by as much, and it has no proof: scores in a "
    "few lumps bring it below its level ([midpoint rule](quantile_failures.md)). *Private prediction sets* pay for a "
    "union over all ends of the grid, log(ends / failure probability) / rate ranks, where the minimax offset of the "
    "library's search is about the noise of one count. *DPCP* scores the records that its model was trained "
    "on and corrects nothing. Its quantile leans upwards by itself: the cost of an end rises by 1 for each record "
    "left above it but by 1/9 only for each record too many below it, so at level .9 it overshoots by about "
    "8 / rate ranks, which hides the optimism of a model that overfits little. Nothing ties the two together: "
)


def _smaller(found: dict[tuple[str, str, str, float], dict[str, Any]]) -> str:
    """The cells in which a rival's sets are smaller than those of the library's rule of the same kind."""
    lines, cells = [], 0
    for (world, training, method, epsilon), m in found.items():
        ours = found.get((world, LIBRARY, COUNTERPART.get(method, ""), epsilon))
        if ours is None:
            continue
        cells += 1
        if m["size"] < ours["size"]:
            gap = 100 * (m["size"] / ours["size"] - 1)
            lines.append(
                f"- {WORLDS[world].title}, eps {epsilon:g}: {RIVALS[method]}, {TRAININGS[training]}: {gap:+.1f} %, "
                f"{m['size']:.3f} ({m['coverage']:.3f}) against {ours['size']:.3f} ({ours['coverage']:.3f}) of "
                f"`{COUNTERPART[method]}`"
            )
    head = f"{len(lines)} of {cells} cells, each against the library's rule of the same kind:"
    return head + "\n\n" + "\n".join(lines)


def _broken(found: dict[tuple[str, str, str, float], dict[str, Any]]) -> str:
    """What DPCP covers where training overfits."""
    shares = [
        f"{m['coverage']:.3f} (plain level) and {found[world, training, DPCP_LEVEL, epsilon]['coverage']:.3f} (raised) "
        f"with a training epsilon of {epsilon:g}"
        for (world, training, method, epsilon), m in found.items()
        if world == OVERFITTING and method == DPCP
    ]
    return (
        "on the task of the [validity map](validity_map.md) that is made to overfit (2,000 records, 400 features), "
        "DPCP covers " + "; ".join(shares) + "."
    )


STUDY = Study(NAME, tasks, run, report)
