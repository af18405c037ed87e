"""Fit on few records: plan for 569 tumors first, then compare the plan with the result.

Data: Wisconsin breast cancer, bundled with scikit-learn. Its features are positive and skewed. Every row is scaled to
norm one, so no bounds are needed.
"""

import argparse
import warnings

from sklearn.datasets import load_breast_cancer
from sklearn.utils import shuffle

import dpscp as dp


def main(quick: bool) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, y = shuffle(X, y, random_state=0)
    n = 400
    for epsilon in (0.2, 1.0) if quick else (0.2, 0.5, 1.0, 3.0):
        plan = dp.plan(n=n, epsilon=epsilon, n_features=X.shape[1])
        row = plan.row(plan.automatic)
        promise = (
            f"overshoot {row.overshoot:.1%}" if row.useful else f"full sets (from {row.smallest_n} records on not)"
        )
        clf = dp.PrivateConformalClassifier(epsilon=epsilon, classes=[0, 1], n_records=n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dp.GuaranteeWarning)  # the plan already reported full sets
            clf.fit(X[:n], y[:n])
        _, sets = clf.predict_set(X[n:])
        coverage, size = dp.metrics.coverage(y[n:], sets[:, :, 0]), dp.metrics.efficiency(sets[:, :, 0])
        print(
            f"epsilon {epsilon}: {plan.automatic}, planned {promise}; "
            f"level 0.9: coverage {coverage:.4f} on {len(sets)} held-out, {size:.2f} labels of 2"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two budgets")
    main(parser.parse_args().quick)
