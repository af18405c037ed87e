"""Predict for how many years a person is married, with intervals of one width and adaptive ones.

Data: Fair's survey of 6,366 people (Redbook, 1974), bundled with statsmodels. Bounds are those of the questionnaire.
"""

import argparse
import os
import tempfile

import numpy as np
import statsmodels.api as sm

import dpscp as dp
from dpscp.report import plot_intervals

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
            plot_intervals(y[n:], intervals[:, :, 0], most=120).savefig(figure)
        print(f"epsilon of both fits together {study.ledger().epsilon(1e-5):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    parser.add_argument("--figure", help="picture file to write")
    main(**vars(parser.parse_args()))
