"""Which certified guarantee gives the smaller sets: the measurement behind guarantee="auto".

Prints the mean set size (label sets) or width (intervals) of `universal` and `split` on Adult, Bank Marketing and
synthetic tasks for several n and epsilon, with mu * sqrt(n), the number that the rule looks at. Evaluation rows are
outside the fit.

    python benchmarks/guarantee_choice.py [--data DIR] [--seeds 2] [--full]
"""

import argparse
import math
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification, make_friedman1

import dpscp as dp

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
    centres, y = rng.normal(size=(12, 300)), rng.integers(0, 12, 20_000)
    yield "embedding", 0.35 * centres[y] + rng.normal(size=(20_000, 300)), y, {}


def size(X, y, options, n, epsilon, guarantee, seed):
    order = np.random.default_rng(seed).permutation(len(y))
    fit, check = order[:n], order[n : n + 3000]
    common = {"epsilon": epsilon, "guarantee": guarantee, "train_share": "auto", "random_state": seed, **options}
    if "y_bounds" in options:
        model = dp.PrivateConformalRegressor(**common).fit(X[fit], y[fit])
        intervals = model.predict_interval(X[check])[1][:, :, 0]
        return dp.metrics.efficiency(np.clip(intervals, *options["y_bounds"]))
    model = dp.PrivateConformalClassifier(classes=list(range(y.max() + 1)), **common).fit(X[fit], y[fit])
    return dp.metrics.efficiency(model.predict_set(X[check])[1][:, :, 0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="folder with adult/ and bank/")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--full", action="store_true", help="all sizes and budgets (about half an hour)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sizes, budgets = ((1000, 4000, 15_000), (0.1, 0.25, 0.5, 1, 2)) if arguments.full else ((1000,), (0.5, 2))
    print(f"{'task':10} {'n':>6} {'epsilon':>7} {'mu sqrt n':>9} {'universal':>9} {'split':>7} {'ratio':>6}  rule")
    for name, X, y, options in tasks(arguments.data):
        for n in sizes:
            for epsilon in budgets:
                strength = dp.privacy.gdp_mu(epsilon, 1e-5) * math.sqrt(n)
                row = [
                    np.mean([size(X, y, options, n, epsilon, g, seed) for seed in range(arguments.seeds)])
                    for g in ("universal", "split")
                ]
                rule = "universal" if strength <= 11 else "split"
                numbers = f"{strength:9.1f} {row[0]:9.3f} {row[1]:7.3f} {row[0] / row[1]:6.2f}"
                print(f"{name:10} {n:6} {epsilon:7} {numbers}  {rule}", flush=True)


if __name__ == "__main__":
    main()
