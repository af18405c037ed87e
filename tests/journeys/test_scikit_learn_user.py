"""A scikit-learn user with a frame and a Pipeline: from a leak that is named to a release that is private."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import dpscp as dp
from dpscp.training import DPSGD, PrivatePCA, PrivateStandardize

FEATURES = [f"lab{i}" for i in range(6)]


def patients(n, seed):
    rng = np.random.default_rng(seed)
    ill = rng.integers(0, 2, n)
    labs = rng.normal(size=(n, 6)) * 10 + 60 + 15 * ill[:, None]
    frame = pd.DataFrame(labs, columns=FEATURES)
    frame["ward"], frame["ill"] = rng.choice(["a", "b"], n), np.where(ill, "yes", "no")
    frame.loc[rng.random(n) < 0.03, "lab0"] = np.nan
    return frame


def classifier(estimator=None, **options):
    return dp.PrivateConformalClassifier(estimator, epsilon=2.0, delta=1e-6, accountant="rdp", **options)


def test_the_pipeline_of_every_day_is_named_and_a_private_one_replaces_it(tmp_path):
    frame, new = patients(3000, 0), patients(1000, 1)
    clf = classifier(DPSGD(), classes=["no", "yes"], n_records=3000)

    # what everybody writes first
    with pytest.warns(dp.GuaranteeWarning, match="SimpleImputer, StandardScaler, PCA in a Pipeline") as seen:
        pipe = make_pipeline(SimpleImputer(), StandardScaler(), PCA(4), clf).fit(frame[FEATURES], frame["ill"])
    assert "estimator=[dp.training.PrivateStandardize" in str(seen[0].message)
    assert not pipe[-1].ledger_.is_private
    assert not pipe[-1].certificate_.is_certified

    # the same steps, paid for
    steps = [PrivateStandardize(0, 150), PrivatePCA(4, bound=4.0), DPSGD()]
    full = frame[FEATURES].fillna(60.0)  # a public value
    private = classifier(steps, classes=["no", "yes"], n_records=3000).fit(full, frame["ill"])
    assert private.ledger_.is_private
    assert private.ledger_.epsilon(1e-6, "rdp") <= 2.0
    assert private.certificate_.is_certified
    labels, sets = private.predict_set(new[FEATURES].fillna(60.0))
    assert dp.metrics.coverage(new["ill"], sets[:, :, 0], classes=private.classes_) > 0.85
    assert (labels == new["ill"]).mean() > 0.85
    private.save(tmp_path / "model")
    assert dp.load(tmp_path / "model").ledger_.is_private

    # steps that learn nothing may stay
    center = make_pipeline(FunctionTransformer(lambda rows: (rows - 60) / 30), clone(clf))
    center.fit(full, frame["ill"])
    assert center[-1].ledger_.is_private
    assert dp.predict_set(center, full[:5])[1].shape == (5, 2, 1)


def test_a_frame_with_a_schema_needs_no_pipeline():
    frame, new = patients(3000, 0), patients(400, 1)
    template = dp.Schema.from_frame(frame, "ill", task="classification")
    assert len(template.lacks) == 2  # classes and categories, from public knowledge; a fit finds bounds
    data = template.to_dict() | {"classes": ["no", "yes"], "n_records": 3000}
    for name in FEATURES:
        data["columns"][name] |= {"bounds": [0, 150], "missing": "indicator"}
    data["columns"]["ward"] |= {"categories": ["a", "b"]}
    schema = dp.Schema.from_dict(data)
    clf = classifier(DPSGD()).fit(frame, "ill", schema=schema)
    assert clf.score(new, "ill") > 0.85
    assert clf.score(new, "ill") == clf.score(new, new["ill"])
    assert set(map(tuple, clf.predict_labels(new))) <= {(), ("no",), ("yes",), ("no", "yes")}
    odd = new.assign(ward=["elsewhere", *new["ward"][1:]])
    assert clf.predict_labels(odd)[0] == ["no", "yes"]
    assert clf.predict_labels(odd)[1:] == clf.predict_labels(new)[1:]
    half = dp.Schema.from_dict(data | {"n_records": 1500})  # each of two folds trains on the other
    with pytest.warns(dp.GuaranteeWarning, match="inside a search or cross-validation"):
        scores = cross_val_score(classifier(DPSGD()), frame, frame["ill"], cv=2, params={"schema": half})
    assert (scores > 0.8).all()
