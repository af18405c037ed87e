"""Promise coverage for each group: people in good and in poor health, not only the average.

Data: RAND Health Insurance Experiment. Groups are disjoint, so each gets the whole calibration budget. A group that is
too small for its noise gets full sets. The certificate states the smallest size with smaller sets.
"""

import argparse

import numpy as np
import statsmodels.api as sm

import dpscp as dp

COLUMNS = ["lncoins", "lpi", "fmde", "disea", "hlthg", "hlthf", "hlthp"]
BOUNDS = np.array([(0, 4.7), (0, 7.2), (0, 8.5), (0, 60), (0, 1), (0, 1), (0, 1)], dtype=float).T


def health(X: np.ndarray) -> np.ndarray:
    """Return the group of each record: a fixed function of the record, never of the model."""
    return np.where(X[:, 5] + X[:, 6] > 0, "fair or poor", "good or better")


def main(quick: bool) -> None:
    frame = sm.datasets.randhie.load_pandas().data.sample(frac=1.0, random_state=0)[: 10_000 if quick else None]
    X, y = frame[COLUMNS].to_numpy(), (frame["mdvis"] > 0).to_numpy().astype(int)
    n = int(0.7 * len(y))
    clf = dp.PrivateConformalClassifier(
        epsilon=2.0,
        delta=1e-6,
        confidence_level=0.8,
        classes=[0, 1],
        feature_bounds=tuple(BOUNDS),
        groups=dp.Groups(health, values=["good or better", "fair or poor"]),
        n_records=n,
    ).fit(X[:n], y[:n])
    _, sets = clf.predict_set(X[n:])
    groups = health(X[n:])
    for name, coverage in dp.metrics.coverage_by_group(y[n:], sets[:, :, 0], groups).items():
        mine = groups == name
        size = dp.metrics.efficiency(sets[mine][:, :, 0])
        print(f"{name}: level 0.8: coverage {coverage:.4f} on {mine.sum()} held-out, {size:.2f} labels of 2")
    print("smallest useful group:", clf.certificate_.terms["smallest_group"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    main(parser.parse_args().quick)
