"""What the frozen recipe gives on data it was not developed on: California Housing and the BloodMNIST features.

Run with `python benchmarks/recipe.py housing --data DIR` or `python benchmarks/recipe.py blood --data DIR`;
DIR holds `scikit_learn_data/cal_housing_py3.pkz` (default for Housing: scikit-learn's own cache or download)
and `features/bloodmnist_*_512.npz`. Each row is a mean over random splits with its standard deviation.

Housing follows the paper's protocol, its standardisation of x and y with the data's own mean and scale
included: that step is NOT private, and the numbers show the recipe, not a release. Everything else is what a
release would do.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dpscp as dp
from dpscp.privacy import count_noise, tradeoff_of
from dpscp.training.influence import corrected_outputs
from dpscp.training.mechanism import Trained
from dpscp.training.recipe import Recipe, recipe

ALPHA, DELTA = 0.1, 1e-5
STEPS = 12
TARGETS = {
    "housing": {"asymptotic": (2.06, 1.90, 1.79), "split": (2.08, 1.96, 1.83)},
    "blood": {"universal": (1.70, 1.57, 1.53), "split": (1.67, 1.42, 1.25), "corrected": (1.60, 1.42, 1.30)},
}
EPSILONS = (0.5, 1.0, 2.0)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@functools.cache
def prepared(task: str, n: int, d: int, classes: tuple[int, ...] | None, epsilon: float, guarantee: str, rows: str):
    """Recipe, mechanism with its noise, and the search: one a setting, whatever the split."""
    plan: Recipe = recipe(
        task,
        n_records=n,
        n_features=d,
        classes=classes,
        epsilon=epsilon,
        delta=DELTA,
        guarantee=guarantee,
        features=rows,
    )
    mechanism = plan.calibrated()
    held_out = guarantee == "split"
    spent = None if held_out else mechanism.event
    noise = count_noise(epsilon, DELTA, STEPS, training=spent, sensitivity=1 - ALPHA if held_out else 0.5)
    alpha = ALPHA
    if guarantee == "universal":
        alpha = dp.guarantees.universal_alpha(ALPHA, tradeoff_of(mechanism.event, direction="add"))
    return plan, mechanism, noise, alpha


def one_fit(
    setting: tuple[Any, ...], X: np.ndarray, y: np.ndarray, score: Callable[..., np.ndarray], top: float, seed: int
) -> tuple[Trained, float]:
    """Train and calibrate; the model and its threshold."""
    plan, mechanism, noise, alpha = prepared(*setting)
    guarantee = setting[5]
    rng = np.random.default_rng([seed, 7])
    fraction = plan.calibration_fraction
    held = np.ones(len(y), bool) if fraction is None else rng.random(len(y)) < fraction
    seen = np.ones(len(y), bool) if fraction is None else ~held
    trained = mechanism.train(X[seen], y[seen], random_state=seed, n_records=plan.n_training)
    scores = score(trained, X[held], y[held], corrected=guarantee == "corrected")
    extra: dict[str, Any] = {}
    if fraction is not None:
        tail = 1e-4
        n_min = dp.guarantees.minimum_part_size(len(y), fraction, tail)
        alpha, extra = alpha - tail, {"rank": "linear", "n_min": n_min, "n_records": round(fraction * len(y))}
    else:
        extra = {"n_records": len(y)}
    found = dp.private_quantile(
        scores, alpha=alpha, score_range=(0.0, top), count_noise=noise, steps=STEPS, random_state=seed, **extra
    )
    return trained, found.threshold


def residual(trained: Trained, X: np.ndarray, y: np.ndarray, *, corrected: bool) -> np.ndarray:
    del corrected  # no form is known for dense nets
    return np.abs(trained.model.outputs(X)[:, 0] - y)


def softmax_score(outputs: np.ndarray) -> np.ndarray:
    e = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return 1 - e / e.sum(axis=1, keepdims=True)


def lac(trained: Trained, X: np.ndarray, y: np.ndarray, *, corrected: bool) -> np.ndarray:
    at = np.arange(len(y)), y
    plain = softmax_score(trained.model.outputs(X))[at]
    if not corrected:
        return plain
    model: Any = trained.model
    moved = corrected_outputs(model.inner, trained.trajectory, model.transform(X), y)
    return np.maximum(plain, softmax_score(moved)[at])


def housing(data: Path | None) -> Callable[[int], tuple[Arrays, float]]:
    from sklearn.datasets import fetch_california_housing

    where = {} if data is None else {"data_home": data / "scikit_learn_data", "download_if_missing": False}
    bunch = fetch_california_housing(**where)

    def split(seed: int) -> tuple[Arrays, float]:
        order = np.random.default_rng([seed, 0]).permutation(len(bunch.target))
        train, test = order[:16_512], order[16_512:]
        X = (bunch.data - bunch.data[train].mean(axis=0)) / bunch.data[train].std(axis=0)
        scale = bunch.target[train].std()
        y = (bunch.target - bunch.target[train].mean()) / scale
        return (X[train], y[train], X[test], y[test]), scale

    return split


def blood(data: Path, name: str) -> Callable[[int], tuple[Arrays, float]]:
    stored = np.load(data / "features" / f"bloodmnist_{name}_512.npz")
    X, y = stored["features"].astype(np.float64), stored["labels"].astype(np.int64)

    def split(seed: int) -> tuple[Arrays, float]:
        order = np.random.default_rng([seed, 0]).permutation(len(y))
        train, test = order[:13_671], order[13_671:]
        return (X[train], y[train], X[test], y[test]), 1.0

    return split


def measure(study: str, split: Callable[[int], tuple[Arrays, float]], trials: int, only: str | None) -> Iterator[dict]:
    regression = study == "housing"
    for guarantee, targets in TARGETS["housing" if regression else "blood"].items():
        if only is not None and guarantee != only:
            continue
        for epsilon, target in zip(EPSILONS, targets, strict=True):
            started, results = time.perf_counter(), []
            for seed in range(trials):
                (X, y, X_test, y_test), scale = split(seed)
                classes = None if regression else tuple(range(8))
                task, rows = ("regression", "standardized") if regression else ("classification", "unit")
                setting = (task, len(y), X.shape[1], classes, epsilon, guarantee, rows)
                trained, threshold = one_fit(
                    setting, X, y, residual if regression else lac, 10.0 if regression else 1.0, seed
                )
                if regression:
                    covered = residual(trained, X_test, y_test, corrected=False) <= threshold
                    size = 2 * threshold * scale
                else:
                    sets = softmax_score(trained.model.outputs(X_test)) <= threshold
                    covered, size = sets[np.arange(len(y_test)), y_test], sets.sum(axis=1).mean()
                results.append((covered.mean(), size))
            coverage, size = np.mean(results, axis=0)
            spread = np.std(results, axis=0, ddof=1)
            yield {
                "study": study, "guarantee": guarantee, "epsilon": epsilon, "coverage": round(coverage, 4),
                "coverage_sd": round(spread[0], 4), "size": round(size, 4), "size_sd": round(spread[1], 4),
                "target": target, "met": bool(size <= target), "trials": trials,
                "seconds_a_fit": round((time.perf_counter() - started) / trials, 2),
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("housing", "blood"))
    parser.add_argument("--data", type=Path, help="folder with the data")
    parser.add_argument("--features", choices=("vgg16", "effnet_hr"), default="vgg16")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--guarantee", help="only this one")
    parser.add_argument("--out", type=Path, help="also write a CSV file")
    options = parser.parse_args()
    warnings.simplefilter("ignore", dp.SeededWarning)
    if options.study == "housing":
        split, name = housing(options.data), "housing"
    else:
        if options.data is None:
            parser.error("blood needs --data, the folder that holds features/")
        split, name = blood(options.data, options.features), f"blood_{options.features}"
    rows = []
    for row in measure(name, split, options.splits, options.guarantee):
        rows.append(row)
        print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if options.out is not None:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
