"""Compare the guarantees at a small and at a moderate budget.

Data: RAND Health Insurance Experiment, visit or no visit. The split is usually best at moderate budgets. Reusing all
records pays when the budget is small.
"""

import argparse
import warnings

import numpy as np
import statsmodels.api as sm

import dpscp as dp

COLUMNS = ["lncoins", "lpi", "fmde", "disea", "hlthg", "hlthf", "hlthp"]
BOUNDS = np.array([(0, 4.7), (0, 7.2), (0, 8.5), (0, 60), (0, 1), (0, 1), (0, 1)], dtype=float).T


def main(quick: bool) -> None:
    frame = sm.datasets.randhie.load_pandas().data.sample(frac=1.0, random_state=0)[: 5000 if quick else 12_000]
    X, y = frame[COLUMNS].to_numpy(), (frame["mdvis"] > 0).to_numpy().astype(int)
    n = int(0.75 * len(y))
    for epsilon in (0.1, 1.0):
        for guarantee in ("universal", "split") if quick else ("universal", "stability", "split", "corrected"):
            clf = dp.PrivateConformalClassifier(
                epsilon=epsilon,
                guarantee=guarantee,
                classes=[0, 1],
                confidence_level=0.8,
                feature_bounds=tuple(BOUNDS),
                n_records=n,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", dp.GuaranteeWarning)  # full sets are part of the comparison
                clf.fit(X[:n], y[:n])
            _, sets = clf.predict_set(X[n:])
            coverage, size = dp.metrics.coverage(y[n:], sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
            proven = "proven" if clf.certificate_.is_certified else "not proven"
            print(
                f"epsilon {epsilon}, {guarantee} ({proven}): level 0.8: coverage {coverage:.4f} on {len(sets)} held-out, "
                f"{size:.2f} labels of 2"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records and guarantees")
    main(parser.parse_args().quick)
