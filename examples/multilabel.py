"""Control the share of true labels that a multilabel set misses, on records that the model never saw.

Data: synthetic notes with six possible diagnoses each. One half is public and trains a model without privacy. The other
half is private: the whole budget goes to one threshold. On average a set misses at most one in ten true diagnoses.
"""

import argparse

from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

import dpscp as dp


def main(quick: bool) -> None:
    n = 4000 if quick else 12000
    X, Y = make_multilabel_classification(n, n_features=20, n_classes=6, n_labels=2, random_state=0)
    public, private, new = slice(0, n // 4), slice(n // 4, n // 2), slice(n // 2, None)
    model = OneVsRestClassifier(LogisticRegression(max_iter=500)).fit(X[public], Y[public])
    doubt = 1 - model.predict_proba(X)

    released = dp.control_risk(
        dp.scores.missed_labels(doubt[private], Y[private]),
        alpha=0.1,
        threshold_range=(0, 1),
        epsilon=1.0,
        delta=1e-6,
        n_records=n // 4,
    )
    sets = doubt[new] <= released.threshold
    loss = dp.scores.missed_labels(doubt[new], Y[new])(released.threshold).mean()
    print(f"risk 0.1: mean loss {loss:.4f} on {len(sets)} held-out, {sets.sum(axis=1).mean():.2f} labels of 6")
    print(f"epsilon {released.ledger.epsilon(1e-6):.3f} at delta 1e-06, proven risk {released.certificate.risk}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    main(parser.parse_args().quick)
