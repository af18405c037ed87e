"""Control the mean cost of a triage whose mistakes differ: a missed emergency costs ten times a missed routine case.

Data: synthetic patients of three urgencies, and a model from public records. A set lists the urgencies that are still
possible. Its cost is that of the true urgency where the set misses it, and 0 elsewhere. A second release is for a
clinic with three times as many emergencies, whose share is publicly known.
"""

import argparse

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import dpscp as dp

COSTS = np.array([0.1, 0.4, 1.0])  # routine, urgent, emergency


def main(quick: bool) -> None:
    n = 6000 if quick else 20000
    X, y = make_classification(
        n, 10, n_informative=6, n_classes=3, weights=[0.6, 0.3, 0.1], n_clusters_per_class=1, flip_y=0.1, random_state=0
    )
    public, private, new = slice(0, n // 4), slice(n // 4, n // 2), slice(n // 2, None)
    doubt = 1 - LogisticRegression(max_iter=500).fit(X[public], y[public]).predict_proba(X)
    own = doubt[np.arange(n), y]

    released = dp.control_risk(
        dp.scores.class_costs(doubt[private], y[private], COSTS),
        alpha=0.05,
        threshold_range=(0, 1),
        epsilon=1.0,
        delta=1e-6,
        n_records=n // 4,
    )
    loss = dp.scores.class_costs(doubt[new], y[new], COSTS)(released.threshold).mean()
    size = (doubt[new] <= released.threshold).sum(axis=1)
    print(f"risk 0.05: mean loss {loss:.4f} on {n // 2} held-out, {size.mean():.2f} urgencies of 3")

    ratio = np.array([5 / 6, 2 / 3, 3.0])  # shares .5, .2, .3 there; .6, .3, .1 here
    elsewhere = dp.calibrate(
        own[private],
        population=dp.Population(ratio[y[private]], bound=3.0),
        held_out=True,
        score_range=(0, 1),
        epsilon=1.0,
        delta=1e-6,
        n_records=n // 4,
    )
    there = np.random.default_rng(0).random(n // 2) * 3 < ratio[y[new]]
    covered = own[new][there] <= elsewhere.threshold
    print(f"level 0.9: coverage {covered.mean():.4f} on {there.sum()} held-out of the other clinic")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records")
    main(parser.parse_args().quick)
