"""Where reuse without correction breaks: coverage against the training budget, for every rule, on two tasks.

One task is real (BloodMNIST features), one is made to overfit (few records, many features). A model is trained once for
each budget and calibrated by every full-data rule; the split trains on its own part, and `stability`, whose promise
needs a training with a proven bound, by the library's own mechanism.
"""

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpscp as dp
from dpscp.training import DPSGD, Preprocessed, Trained, UnitNorm, corrected_outputs
from experiments import data as loaders
from experiments import plots, tables
from experiments.library import classification_rows
from experiments.runner import ALPHA, DELTA, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "validity_map"
BUDGETS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# The whole release spends this much more epsilon than training alone.
SEARCH_SURPLUS = 0.25
CALIBRATION_FRACTION = 0.2
FULL_DATA = ("dp-scp-a", "dp-scp-f", "universal", "corrected")
METHODS = (*FULL_DATA, "split", "stability")
TASKS = {
    "bloodmnist": "BloodMNIST, EfficientNet-Lite0 features",
    "overfitting": "overfitting task (2,000 records, 400 features)",
}
N = {"bloodmnist": 13_671, "overfitting": 2_000}
N_CLASSES = {"bloodmnist": 8, "overfitting": 4}
N_TEST_MADE = 5_000
STEPS = {"bloodmnist": 150, "overfitting": 200}
LARGEST_RATE = 20.0
# noise would hide the small task at this rate: there it grows with the budget
RATE_PER_EPSILON = 10.0
CLIP = 1.0


def tasks(options: Options) -> list[Task]:
    """One task for each trial, data set and budget."""
    # a quick run looks at the two ends and the middle
    budgets = (BUDGETS[0], BUDGETS[2], BUDGETS[-1]) if options.quick else BUDGETS
    return [
        Task(
            NAME,
            name,
            trial,
            options.seed,
            {"epsilon": epsilon, "steps": STEPS[name], "rate": learning_rate(name, epsilon), "methods": list(METHODS)},
        )
        for name in TASKS
        for trial in range(options.trials_of(quick=1))
        for epsilon in budgets
    ]


def learning_rate(name: str, epsilon: float) -> float:
    """The step size, from public numbers."""
    return LARGEST_RATE if name == "bloodmnist" else min(LARGEST_RATE, RATE_PER_EPSILON * epsilon)


def run(task: Task, data: Path | None) -> list[Row]:
    """One budget of one trial, all rules."""
    name, epsilon = task.kind, task.config["epsilon"]
    seed = seed_of(task.seed, NAME, name, task.trial)
    X, y, X_test, y_test = records(name, seed, data)
    own = seed_of(seed, epsilon)
    rows = []
    trained = train(name, X, y, epsilon, own, keep=True)
    scores = dp.scores.lac(trained.model.predict_proba(X), y)
    for method in FULL_DATA:
        found = _calibrated(method, trained, X, y, scores, epsilon, own)
        rows.append({**_base(method, epsilon, len(X)), **_measured(trained, found, X_test, y_test)})
    held = np.random.default_rng(own).random(len(X)) < CALIBRATION_FRACTION
    trained = train(name, X[~held], y[~held], epsilon, own, keep=False, n=round((1 - CALIBRATION_FRACTION) * len(X)))
    scores = dp.scores.lac(trained.model.predict_proba(X[held]), y[held])
    found = _quiet_calibrate(
        scores, training=None, epsilon=epsilon, guarantee="split", held_out=True, random_state=own
    ).threshold
    rows.append({**_base("split", epsilon, len(X)), **_measured(trained, found, X_test, y_test)})
    options = {"epsilon": (1 + SEARCH_SURPLUS) * epsilon, "n_classes": N_CLASSES[name], "seed": own}
    (own_training,) = classification_rows(X, y, X_test, y_test, methods=("stability",), **options)
    measured = ("coverage", "size", "informativeness", "train_epsilon")
    rows.append({**_base("stability", epsilon, len(X)), **{what: own_training[what] for what in measured}})
    return rows


def records(name: str, seed: int, data: Path | None) -> tuple[NDArray[Any], ...]:
    """Rows and labels of the pool and of the test part."""
    if name == "bloodmnist":
        table = loaders.blood_features(data, "effnet_hr")
        X, y = table.X, table.y
    else:
        X, y = _overfitting()
    order = np.random.default_rng(seed).permutation(len(X))
    n = N[name]
    test = order[n:] if name == "bloodmnist" else order[n : n + N_TEST_MADE]
    return X[order[:n]], y[order[:n]], X[test], y[test]


@lru_cache(maxsize=1)
def _overfitting() -> tuple[NDArray[Any], NDArray[Any]]:
    """Four Gaussian classes whose means are short against 400 dimensions of noise."""
    rng = np.random.default_rng(20_250_101)
    means = rng.normal(size=(N_CLASSES["overfitting"], 400))
    means *= 2.5 / np.linalg.norm(means, axis=1, keepdims=True)
    y = rng.integers(0, len(means), size=20_000)
    return (means[y] + rng.normal(size=(len(y), 400))).astype(np.float32), y


def train(
    name: str, X: NDArray[Any], y: NDArray[Any], epsilon: float, seed: int, *, keep: bool, n: int | None = None
) -> Trained:
    """A linear head on unit rows, trained with this budget."""
    mechanism = Preprocessed(
        (UnitNorm(),),
        DPSGD(
            classes=tuple(range(N_CLASSES[name])),
            steps=STEPS[name],
            learning_rate=learning_rate(name, epsilon),
            clip_norm=CLIP,
            keep_trajectory=keep,
        ),
    ).calibrated(epsilon, DELTA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        return mechanism.train(X, y, random_state=seed, n_records=n or len(X))


def _calibrated(
    method: str, trained: Trained, X: NDArray[Any], y: NDArray[Any], scores: NDArray[Any], epsilon: float, seed: int
) -> float:
    """The released threshold of a full-data rule, for scores of records that training saw."""
    whole = (1 + SEARCH_SURPLUS) * epsilon
    guarantee = {"dp-scp-a": "asymptotic", "dp-scp-f": "finite", "universal": "universal"}.get(method)
    if guarantee is not None:
        found = _quiet_calibrate(scores, training=trained.event, epsilon=whole, guarantee=guarantee, random_state=seed)
        return found.threshold
    # Results D and F: each record at the parameters that training without it would have reached, to first order
    model = trained.model
    outputs = corrected_outputs(model.inner, trained.trajectory, model.transform(X), y)
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    own = dp.scores.lac(shifted / shifted.sum(axis=1, keepdims=True), y)
    noise = dp.privacy.count_noise(whole, DELTA, steps=12, training=trained.event, sensitivity=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        found = dp.private_quantile(
            np.maximum(scores, own), alpha=ALPHA, score_range=(0.0, 1.0), count_noise=noise, steps=12, random_state=seed
        )
    return found.threshold if found.is_finite else np.inf


def _quiet_calibrate(scores: NDArray[Any], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        return dp.calibrate(scores, delta=DELTA, alpha=ALPHA, score_range=(0.0, 1.0), **options)


def _base(method: str, epsilon: float, n: int) -> Row:
    return {"method": method, "epsilon": epsilon, "train_share": None, "n": n, "train_epsilon": epsilon}


def _measured(trained: Trained, threshold: float, X: NDArray[Any], y: NDArray[Any]) -> Row:
    sets = dp.scores.lac_of_labels(trained.model.predict_proba(X)) <= threshold
    return {
        "coverage": dp.metrics.coverage(y, sets),
        "size": dp.metrics.efficiency(sets),
        "informativeness": dp.metrics.informativeness(sets),
    }


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and the map."""
    summaries = tables.summarize(tables.rows_of(outcomes), NAME)
    tables.write_csv(options.results / f"{NAME}.csv", summaries)
    names = {n: name for name, n in N.items()}
    for what, target in (("coverage", 1 - ALPHA), ("size", None)):
        panels: dict[str, Any] = {TASKS[name]: {} for name in TASKS}
        for s in summaries:
            assert s.n is not None
            curve = panels[TASKS[names[s.n]]].setdefault(s.method, ([], [], []))
            curve[0].append(s.epsilon)
            curve[1].append(getattr(s, what))
            curve[2].append(2 * (getattr(s, f"{what}_sd") or 0.0) / np.sqrt(s.trials))
        plots.lines(
            options.results / f"{NAME}{'' if what == 'coverage' else '_size'}.png",
            f"{what} against the training budget (bars: two standard errors)",
            panels,
            x_name="training epsilon",
            y_name=what,
            log_x=True,
            target=target,
        )
    tables.write_page(
        options.results / f"{NAME}.md",
        "Validity map",
        header,
        [
            "Full-batch private gradient descent on a linear head with unit-norm rows, trained to learn hard "
            f"({STEPS['bloodmnist']} or {STEPS['overfitting']} steps; step size {LARGEST_RATE:g}, for the made task "
            f"{RATE_PER_EPSILON:g} times epsilon if that is less). The column `epsilon` is the budget of training; the "
            "whole release spends a quarter more (the split: no more). `stability` has the same budget for its whole "
            "release and divides it on its own. Target 0.90. BloodMNIST: EfficientNet-Lite0 "
            "features, not the paper's ResNet-18.",
            *(_table(summaries, name) for name in TASKS),
            "![coverage](validity_map.png)\n\n![size](validity_map_size.png)",
        ],
    )


def _table(summaries: list[tables.Summary], name: str) -> str:
    head = ["training eps", *(f"{tables.NAMES[m]}: {w}" for m in METHODS for w in ("coverage", "size"))]
    body, trials = [], 0
    for epsilon in dict.fromkeys(s.epsilon for s in summaries):
        cells = [f"{epsilon:g}"]
        for method in METHODS:
            s = next(s for s in summaries if (s.method, s.epsilon, s.n) == (method, epsilon, N[name]))
            cells += [tables.number(s.coverage, s.coverage_sd), tables.number(s.size, digits=2)]
            trials = s.trials
        body.append(cells)
    return f"## {TASKS[name]}, {trials} trials\n\n" + "\n".join(tables.grid(head, body))


STUDY = Study(NAME, tasks, run, report)
