"""Predict for how many years a person is married, with intervals of one width and adaptive ones.

Data: Fair's survey of 6,366 people (Redbook, 1974), bundled with statsmodels. Bounds are those of the questionnaire.
"""

import argparse
import os
import tempfile

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure

import dpscp as dp

BOUNDS = {"age": (17, 45), "children": (0, 6), "religious": (1, 4), "educ": (9, 20), "occupation": (1, 6)}


def main(quick: bool, figure: str | None) -> None:
    frame = sm.datasets.fair.load_pandas().data.sample(frac=1.0, random_state=0)[: 4000 if quick else None]
    X, y = frame[list(BOUNDS)].to_numpy(), frame["yrs_married"].to_numpy()
    n = int(0.75 * len(y))
    with tempfile.TemporaryDirectory() as folder:  # one store adds up the cost of two fits
        study = dp.BudgetStore.create(os.path.join(folder, "study.budget"), epsilon=4.0, delta=1e-5, dataset="fair")
        for score in ("absolute", "cqr"):
            reg = dp.PrivateConformalRegressor(
                epsilon=2.0,
                delta=1e-5,
                conformity_score=score,
                y_bounds=(0, 25),
                feature_bounds=tuple(np.array(list(BOUNDS.values()), dtype=float).T),
                n_records=n,
            ).fit(X[:n], y[:n], budget=study)
            _, intervals = reg.predict_interval(X[n:])
            coverage, width = dp.metrics.coverage(y[n:], intervals[:, :, 0]), dp.metrics.efficiency(intervals[:, :, 0])
            print(f"{score}: level 0.9: coverage {coverage:.4f} on {len(y) - n} held-out, {width:.1f} years wide")
        if figure:  # the intervals of the last fit, which adapt
            axis = Figure(figsize=(7, 3.4), layout="constrained").add_subplot(xticks=[], ylabel="years")
            low, high, truth = np.column_stack([intervals[:120, :, 0], y[n : n + 120]])[
                intervals[:120, 0, 0].argsort()
            ].T
            axis.vlines(range(120), low, high, color="lightsteelblue")
            for name, rows in (
                ("inside", (low <= truth) & (truth <= high)),
                ("outside", (truth < low) | (truth > high)),
            ):
                axis.plot(np.flatnonzero(rows), truth[rows], "o", markersize=3, label=name)
            axis.set_xlabel("records, sorted by the lower end of the interval")
            axis.legend(loc="upper left")
            axis.figure.savefig(figure)
        print(f"epsilon of both fits together {study.ledger().epsilon(1e-5):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    parser.add_argument("--figure", help="picture file to write")
    main(**vars(parser.parse_args()))
