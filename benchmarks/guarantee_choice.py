"""What the held-out fraction, the training share and the choice of guarantee="auto" were fixed with.

For Adult, Bank Marketing and synthetic tasks, several n and epsilon: mean set size (label sets) or width (intervals) of
`split` by held-out fraction and of `universal` by share of mu^2 for training, then of both at the recipe's own choice.
Sizes are taken on rows outside the fit at the level that the search is expected to reach (`dp.plan`), averaged over its
scatter: what is compared is the price of the choices, not the luck of one search.

    python benchmarks/guarantee_choice.py [--data DIR] [--seeds 1] [--full]
"""

import argparse
import functools
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.datasets import make_classification, make_friedman1

import dpscp as dp
from dpscp.guarantees.registry import automatic
from dpscp.privacy import gdp_epsilon, gdp_mu
from dpscp.training.recipe import calibration_fraction, recipe, train_share

DELTA = 1e-5
FRACTIONS = (0.08, 0.12, 0.2, 0.3, 0.5)
SHARES = (0.3, 0.6, 0.8, 0.92)
SCATTER = norm.ppf(np.linspace(0.05, 0.95, 10))

ADULT = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours country"


def one_hot(frame, numeric, categorical):
    coded = pd.get_dummies(frame[categorical]).astype(float)
    low = np.r_[[r[0] for r in numeric.values()], np.zeros(coded.shape[1])]
    high = np.r_[[r[1] for r in numeric.values()], np.ones(coded.shape[1])]
    return np.hstack([frame[list(numeric)].astype(float), coded]), {"feature_bounds": (low, high)}


def adult(folder):
    columns = [*ADULT.split(), "income"]
    frame = pd.concat(
        pd.read_csv(folder / "adult" / name, names=columns, skipinitialspace=True, skiprows=skip)
        for name, skip in (("adult.data.gz", 0), ("adult.test.gz", 1))
    )
    numeric = {"age": (17, 90), "education_num": (1, 16), "hours": (1, 99)}
    X, bounds = one_hot(frame, numeric, ["workclass", "marital", "occupation", "relationship", "race", "sex"])
    return X, frame["income"].str.startswith(">").to_numpy().astype(int), bounds


def bank(folder):
    frame = pd.read_csv(folder / "bank" / "bank-additional-full.csv.gz", sep=";")
    numeric = {
        "age": (17, 98),
        "campaign": (1, 20),
        "previous": (0, 7),
        "euribor3m": (0, 6),
        "nr.employed": (4900, 5300),
    }
    X, bounds = one_hot(frame, numeric, ["job", "marital", "education", "default", "contact", "month", "poutcome"])
    return X, (frame["y"] == "yes").to_numpy().astype(int), bounds


def tasks(folder):
    if folder is not None:
        yield "adult", *adult(folder)
        yield "bank", *bank(folder)
    else:
        print("no --data: Adult and Bank Marketing are left out")
    X, y = make_classification(20_000, 10, n_informative=10, n_redundant=0, n_classes=5, class_sep=0.8, random_state=1)
    yield "5 classes", X, y, {"feature_bounds": (-6, 6)}
    X, y = make_friedman1(20_000, 10, noise=1.5, random_state=0)
    yield "friedman", X, y, {"feature_bounds": (0, 1), "y_bounds": (-5, 35)}
    rng = np.random.default_rng(0)
    centers, y = rng.normal(size=(12, 300)), rng.integers(0, 12, 20_000)
    yield "embedding", 0.35 * centers[y] + rng.normal(size=(20_000, 300)), y, {}


@functools.cache
def planned(n, epsilon, guarantee, fraction, share):
    """The row of the plan, and the training budget."""
    budget = None if share is None else gdp_epsilon(DELTA, math.sqrt(share) * gdp_mu(epsilon, DELTA))
    chosen = {"calibration_fraction": fraction} if share is None else {"train_share": budget / epsilon}
    row = dp.plan(n=n, epsilon=epsilon, **chosen).row(guarantee)
    return row, row.train_epsilon


def size(X, y, options, n, epsilon, guarantee, seed, *, fraction=None, share=None):
    row, budget = planned(n, epsilon, guarantee, fraction, share)
    bounds, y_bounds = options.get("feature_bounds"), options.get("y_bounds")
    labels = None if y_bounds else tuple(range(int(y.max()) + 1))
    if not row.useful:
        return len(labels) if labels else y_bounds[1] - y_bounds[0]
    plan = recipe(
        "regression" if y_bounds else "classification",
        n_records=n,
        n_features=X.shape[1],
        classes=labels,
        epsilon=epsilon,
        delta=DELTA,
        guarantee=guarantee,
        feature_bounds=bounds and tuple(np.broadcast_to(np.asarray(end, float), X.shape[1]) for end in bounds),
        y_bounds=y_bounds,
        held_out_fraction=fraction,
        train_epsilon=budget,
    )
    order = np.random.default_rng(seed).permutation(len(y))
    fit, check = order[: plan.n_training], order[-5000:]
    targets = y if labels else np.clip(y, *y_bounds)
    model = plan.calibrated().train(X[fit], targets[fit], random_state=seed, n_records=plan.n_training).model
    scored = n * (1 if fraction is None else fraction)
    spread = math.sqrt(0.09 / scored + (row.count_noise / scored) ** 2)
    levels = np.minimum(0.9 + row.overshoot + spread * SCATTER, 1)
    if labels:
        scores = 1 - model.predict_proba(X[check])
        thresholds = np.quantile(scores[np.arange(len(check)), y[check]], levels)
        return np.mean([np.where(level < 1, (scores <= t).sum(axis=1), len(labels)).mean()
                        for level, t in zip(levels, thresholds, strict=True)])  # fmt: skip
    center = np.clip(model.outputs(X[check])[:, 0], *y_bounds)
    reach = np.quantile(np.abs(center - y[check]), levels)[:, None]
    widths = np.minimum(center + reach, y_bounds[1]) - np.maximum(center - reach, y_bounds[0])
    return np.where(levels[:, None] < 1, widths, y_bounds[1] - y_bounds[0]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder with adult/ and bank/")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="all sizes and budgets (about 25 minutes of one core)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes, budgets = ((1000, 4000, 15_000), (0.1, 0.25, 0.5, 1, 2)) if arguments.full else ((1000,), (0.5, 2))
    named = list(tasks(arguments.data))
    for n in sizes:
        for epsilon in budgets:
            mu = gdp_mu(epsilon, DELTA)
            of = {
                "fraction": calibration_fraction(n, epsilon, DELTA),
                "share": train_share("universal", epsilon, DELTA, n),
            }
            grid = [("split", {"fraction": f}) for f in (*FRACTIONS, of["fraction"])]
            grid += [("universal", {"share": p}) for p in (*SHARES, of["share"])]
            logs = []
            for name, X, y, options in named:
                for seed in range(arguments.seeds):
                    found = [size(np.asarray(X, float), y, options, n, epsilon, g, seed, **k) for g, k in grid]
                    print(f"  {name:10} {' '.join(f'{v:7.3f}' for v in found)}", flush=True)
                    logs.append(np.log(found))
            mean = np.exp(np.mean(logs, axis=0))
            split, universal = mean[: len(FRACTIONS) + 1], mean[len(FRACTIONS) + 1 :]
            print(
                f"n {n} epsilon {epsilon}: n mu {n * mu:.0f}, mu sqrt(n) {mu * math.sqrt(n):.1f}, means over the best"
            )
            for label, values, tried in (("split", split, FRACTIONS), ("universal", universal, SHARES)):
                chosen = of["fraction" if label == "split" else "share"]
                cells = [f"{x:.3g}: {v / values.min():.3f}" for x, v in zip((*tried, chosen), values, strict=True)]
                print(f"  {label:10} {', '.join(cells[:-1])}; rule {cells[-1]}")
            rule = automatic(n, mu).name
            print(f"  universal / split by the rules {universal[-1] / split[-1]:.3f}; auto takes {rule}", flush=True)


if __name__ == "__main__":
    main()
