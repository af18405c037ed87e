"""Predict how many doctor visits a person makes in a year, at two levels from one budget.

Data: RAND Health Insurance Experiment, 20,190 person-years, bundled with statsmodels. Bounds come from its code book.
"""

import argparse

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure

import dpscp as dp

CLASSES = ["none", "1-2", "3-5", "6 or more"]
BOUNDS = {  # log coinsurance, deductible plan, log incentive, log largest expense, limitation, diseases, health x 3
    "lncoins": (0, 4.7), "idp": (0, 1), "lpi": (0, 7.2), "fmde": (0, 8.5), "physlm": (0, 1), "disea": (0, 60),
    "hlthg": (0, 1), "hlthf": (0, 1), "hlthp": (0, 1),
}  # fmt: skip


def main(quick: bool, figure: str | None) -> None:
    frame = sm.datasets.randhie.load_pandas().data
    frame = frame.sample(frac=1.0, random_state=0)[: 8000 if quick else None]
    X = frame[list(BOUNDS)].to_numpy()
    y = np.array(CLASSES)[np.digitize(frame["mdvis"], [0.5, 2.5, 5.5])]
    n = int(0.75 * len(y))
    clf = dp.PrivateConformalClassifier(
        epsilon=1.0,
        delta=1e-6,
        confidence_level=[0.8, 0.9],
        classes=CLASSES,
        feature_bounds=tuple(np.array(list(BOUNDS.values()), dtype=float).T),
        n_records=n,
    ).fit(X[:n], y[:n])
    labels, sets = clf.predict_set(X[n:])
    for place, certificate in enumerate(clf.certificates_):
        coverage = dp.metrics.coverage(y[n:], sets[:, :, place], classes=clf.classes_)
        size = dp.metrics.efficiency(sets[:, :, place])
        print(
            f"level {certificate.target:g}: coverage {coverage:.4f} on {len(labels)} held-out, {size:.2f} labels of 4"
        )
    print(clf.ledger_.summary(1e-6).splitlines()[-2][:60])
    if figure:
        axis = Figure(figsize=(3.6, 4), layout="constrained").add_subplot(xlabel="label", ylabel="record")
        axis.imshow(sets[:12, :, 1], cmap="Blues", vmax=3, aspect="auto")
        axis.plot([CLASSES.index(label) for label in y[n : n + 12]], range(12), "o", color="C1", label="true label")
        axis.set(xticks=range(4), xticklabels=CLASSES, yticks=range(12), yticklabels=range(1, 13))
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1))
        axis.figure.savefig(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    parser.add_argument("--figure", help="picture file to write")
    main(**vars(parser.parse_args()))
