"""Calibrate a gradient-boosting model from public data on private records that it never saw.

Data: Fair's survey. One half serves as a public study that anybody may train on without privacy. The other half is
private. The whole budget goes to one threshold, because the model has learned nothing from the private records.
"""

import argparse

import numpy as np
import statsmodels.api as sm
from sklearn.ensemble import HistGradientBoostingClassifier

import dpscp as dp


def main(quick: bool) -> None:
    frame = sm.datasets.fair.load_pandas().data.sample(frac=1.0, random_state=0)
    X, y = frame.drop(columns="affairs").to_numpy(), (frame["affairs"] > 0).to_numpy().astype(int)
    public, private, new = slice(0, 2500), slice(2500, 5000), slice(5000, None)
    model = HistGradientBoostingClassifier(max_iter=20 if quick else 100, random_state=0).fit(X[public], y[public])

    probabilities = model.predict_proba(X[private])
    scores = 1 - probabilities[np.arange(len(probabilities)), y[private]]
    released = dp.calibrate(
        scores, epsilon=0.5, delta=1e-6, alpha=0.1, score_range=(0, 1), guarantee="split", held_out=True, n_records=2500
    )
    sets = 1 - model.predict_proba(X[new]) <= released.threshold
    coverage, size = dp.metrics.coverage(y[new], sets), dp.metrics.efficiency(sets)
    print(f"level 0.9: coverage {coverage:.4f} on {len(sets)} held-out, {size:.2f} labels of 2")
    print(f"epsilon {released.ledger.epsilon(1e-6):.3f} at delta 1e-06, threshold {released.threshold:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model")
    main(parser.parse_args().quick)
