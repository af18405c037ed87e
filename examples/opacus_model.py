"""Train your own torch module by DP-SGD; one ledger holds the cost of training and threshold.

All records are used for both. Data: RAND Health Insurance Experiment. Needs the extra ``dpscp[torch]``.
"""

import argparse

import numpy as np
import statsmodels.api as sm
import torch

import dpscp as dp

COLUMNS = ["lncoins", "lpi", "fmde", "disea", "hlthg", "hlthf", "hlthp"]
BOUNDS = np.array([(0, 4.7), (0, 7.2), (0, 8.5), (0, 60), (0, 1), (0, 1), (0, 1)], dtype=float).T


def main(quick: bool) -> None:
    frame = sm.datasets.randhie.load_pandas().data.sample(frac=1.0, random_state=0)[: 6000 if quick else None]
    X, y = frame[COLUMNS].to_numpy(), (frame["mdvis"] > 0).to_numpy().astype(int)
    n = int(0.75 * len(y))
    module = torch.nn.Sequential(torch.nn.Linear(len(COLUMNS), 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    training = dp.training.TorchDPSGD(
        module, loss="cross_entropy", steps=60 if quick else 400, sampling_rate=256 / n, learning_rate=0.1
    )
    clf = dp.PrivateConformalClassifier(
        training,
        epsilon=1.0,
        delta=1e-6,
        guarantee="universal",
        classes=[0, 1],
        feature_bounds=tuple(BOUNDS),
        n_records=n,
    ).fit(X[:n], y[:n])
    _, sets = clf.predict_set(X[n:])
    coverage, size = dp.metrics.coverage(y[n:], sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
    print(f"level 0.9: coverage {coverage:.4f} on {len(sets)} held-out, {size:.2f} labels of 2")
    print(f"epsilon {clf.ledger_.epsilon(1e-6):.3f}; inner level {clf.certificate_.terms['inner_level']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records and steps")
    main(parser.parse_args().quick)
