"""A scikit-learn user with a frame and a Pipeline: from a leak that is named to a release that is private."""

import dataclasses
import re
import warnings
from pathlib import Path

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
from dpscp.data import used_records
from dpscp.training import DPSGD, PrivateStandardize, PrivateWhitening

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
    steps = [PrivateStandardize(0, 150), PrivateWhitening(4.0), DPSGD()]
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


@pytest.fixture(scope="module")
def fitted():
    frame = patients(1500, 2)[FEATURES[1:]]
    ill = np.where(frame["lab1"] > 68, "yes", "no")
    common = {"feature_bounds": (0, 150), "n_records": 1500, "confidence_level": [0.8, 0.9]}
    clf = dp.PrivateConformalClassifier(DPSGD(steps=20), epsilon=8.0, classes=["no", "yes"], **common)
    reg = dp.PrivateConformalRegressor(DPSGD(steps=20, loss="squared"), epsilon=8.0, y_bounds=(0, 150), **common)
    both = np.column_stack([frame["lab1"] > 68, frame["lab2"] > 68]).astype(int)
    several = dp.PrivateMultilabelClassifier(DPSGD(steps=20), epsilon=8.0, feature_bounds=(0, 150), n_records=1500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frame[::50], clf.fit(frame, ill), reg.fit(frame, frame["lab1"]), several.fit(frame, both)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_sets_and_intervals_as_a_frame(fitted, library):
    new, clf, reg, several = fitted
    labels, sets = clf.predict_set(new)
    centers, intervals = reg.predict_interval(new)
    found = several.predict_set(new)[1]
    for model in (clf, reg, several):
        model.set_output(transform=library)
    try:
        frame = clf.predict_set(new)
        assert list(frame.columns) == ["prediction", "set_80", "set_size_80", "set_90", "set_size_90"]
        assert list(frame["prediction"]) == list(labels)
        assert [tuple(one) for one in frame["set_90"]] == [tuple(clf.classes_[row]) for row in sets[:, :, 1]]
        assert list(frame["set_size_80"]) == list(sets[:, :, 0].sum(axis=1))
        wide = reg.predict_interval(new)
        assert list(wide.columns) == ["prediction", "lower_80", "upper_80", "lower_90", "upper_90"]
        assert np.array_equal(wide["upper_90"], intervals[:, 1, 1])
        assert np.array_equal(wide["prediction"], centers)
        assert np.array_equal(several.predict_set(new)["set 1"], found[:, 1, 0])
        assert list(several.predict_set(new).columns) == ["prediction 0", "prediction 1", "set 0", "set 1"]
        if library == "pandas":
            assert list(frame.index) == list(wide.index) == list(new.index)
            assert set(frame["set_80"].value_counts().index) <= {(), ("no",), ("yes",), ("no", "yes")}
        assert np.array_equal(clf.predict_answers(new)[1], sets)  # what this library computes with
        assert dp.evaluate(clf, new, labels, epsilon=8.0, delta=1e-6).set_size is not None
        assert clone(clf).set_output()._sklearn_output_config == {"transform": library}
        with pytest.raises(ValueError, match="transform"):
            clf.set_output(transform="arrow")
    finally:
        for model in (clf, reg, several):
            model.set_output(transform="default")
    assert np.array_equal(clf.predict_set(new)[1], sets)


def test_only_a_torch_fit_has_a_module(fitted):
    with pytest.raises(AttributeError, match="module_ needs a torch module"):
        _ = fitted[1].module_


def test_a_fit_gives_a_schema_its_task():
    frame = patients(1500, 2)[[*FEATURES[1:], "ill"]]
    by_estimator = dp.Schema.from_frame(frame, "ill", task=classifier())
    assert by_estimator.task == "classification"
    by_estimator = dataclasses.replace(by_estimator, classes=("no", "yes"))
    clf = classifier(DPSGD(steps=20), n_records=1500)
    assert clf.fit(frame, "ill", schema=dataclasses.replace(by_estimator, task="")).schema_.task == "classification"
    with pytest.raises(ValueError, match="PrivateConformalRegressor is for regression"):
        dp.PrivateConformalRegressor().fit(frame, "ill", schema=by_estimator)


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
    assert set(clf.predict_columns(new)["set"]) <= {(), ("no",), ("yes",), ("no", "yes")}
    odd = new.assign(ward=["elsewhere", *new["ward"][1:]])
    assert clf.predict_columns(odd)["set"][0] == ("no", "yes")
    assert list(clf.predict_columns(odd)["set"][1:]) == list(clf.predict_columns(new)["set"][1:])
    half = dp.Schema.from_dict(data | {"n_records": 1500})  # each of two folds trains on the other
    with pytest.warns(dp.GuaranteeWarning, match="inside a search or cross-validation"):
        scores = cross_val_score(classifier(DPSGD()), frame, frame["ill"], cv=2, params={"schema": half})
    assert (scores > 0.8).all()


def test_a_mapie_notebook_is_ported_line_by_line(capsys, monkeypatch):
    """The second example of docs/mapie.md runs against the installed MAPIE; both columns keep their promises."""
    pytest.importorskip("mapie")
    monkeypatch.setattr(used_records, "_USES", [])
    page = (Path(__file__).resolve().parents[2] / "docs" / "mapie.md").read_text()
    (block,) = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    found: dict = {}
    exec(compile(block, "mapie.md", "exec"), found)
    assert found["sets"].shape == found["private_sets"].shape == (3000, 4, 1)
    assert found["kept"].shape == found["private_kept"].shape == (3000, 4)
    assert len(capsys.readouterr().out.splitlines()) == 3
    truth = found["Y"][found["new"]] == 1
    for one in (found["kept"], found["private_kept"]):
        assert ((one & truth).sum(axis=1) / truth.sum(axis=1)).mean() > 0.88
    for one in (found["sets"], found["private_sets"]):
        assert dp.metrics.coverage(found["y"][found["new"]], one[:, :, 0]) > 0.87
