"""What bounds found privately cost against known ones, and what they save against none.

    python -m experiments.private_bounds --data DIR [--seeds 5]

Mean width (regression) or set size at 90 % on records that were not used, epsilon = 1, delta = 1e-5, guarantee "auto",
over random splits; in brackets the standard deviation. DIR holds scikit_learn_data/, adult/ and bank/.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import make_regression

import dpscp as dp
from experiments.data import Table, adult, bank, housing

# Plausible ranges: incomes in 10,000 dollars, ages, rooms, people, and where California lies.
HOUSING = ([0, 0, 0, 0, 0, 0, 32, -125], [15, 60, 20, 5, 10_000, 10, 42, -114])
Settings = dict[str, object]


def tables(data: Path | None) -> dict[str, tuple[Table, Settings]]:
    """Each table with its known bounds of the features, and what else the estimator is told."""
    houses = housing(data)
    X, y = make_regression(10_000, 10, n_informative=5, noise=20.0, random_state=0)
    low, high = np.full(10, -4.0), np.full(10, 4.0)
    return {
        "Housing": (
            Table(houses.X, houses.y, (np.array(HOUSING[0], float), np.array(HOUSING[1], float))),
            {"y_bounds": (0, 5.1)},
        ),
        "make_regression": (Table(X, y, (low, high)), {"y_bounds": (-600, 600)}),
        "Adult": (adult(data), {"classes": [0, 1]}),
        "Bank": (bank(data), {"classes": [0, 1]}),
    }


def size(table: Table, settings: Settings, seed: int) -> tuple[float, float]:
    """Mean width or set size, and coverage, on a fifth of the records."""
    order = np.random.default_rng(seed).permutation(len(table.X))
    test, pool = np.split(order, [len(order) // 5])
    kind = dp.PrivateConformalClassifier if "classes" in settings else dp.PrivateConformalRegressor
    model = kind(epsilon=1.0, delta=1e-5, random_state=seed, **settings).fit(table.X[pool], table.y[pool])
    if isinstance(model, dp.PrivateConformalClassifier):
        sets = model.predict_set(table.X[test])[1][:, :, 0]
    else:
        sets = model.predict_interval(table.X[test])[1][:, :, 0]
    return dp.metrics.efficiency(sets), dp.metrics.coverage(table.y[test], sets)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print('| table | features | known bounds | `feature_bounds="private"` | also `y_bounds="private"` | none |')
    print("|---|---|---|---|---|---|")
    for name, (table, told) in tables(given.data).items():
        choices: list[Settings | None] = [
            {**told, "feature_bounds": table.declared_bounds},
            {**told, "feature_bounds": "private"},
            {**told, "feature_bounds": "private", "y_bounds": "private"} if "y_bounds" in told else None,
            told,
        ]
        cells = []
        for settings in choices:
            if settings is None:
                cells.append("")
                continue
            found = np.array([size(table, settings, seed) for seed in range(given.seeds)])
            (mean, covered), spread = found.mean(axis=0), found[:, 0].std(ddof=1)
            cells.append(f"{mean:.3g} ({spread:.2g}), covered {covered:.3f}")
        print(f"| {name} | {table.X.shape[1]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
