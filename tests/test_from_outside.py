"""One of each kind made outside the package: guarantee, score, mechanism, model, step, source.

Nothing of the package is changed for them (the registries are put back after each test), and each is used
through the public estimators, ``calibrate`` and files. ``docs/maintainers.md`` has the same in words.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.sources import Block, RecordSource
from dpscp.guarantees import Guarantee, guarantee_of, register, universal_alpha
from dpscp.guarantees import registry as guarantees
from dpscp.privacy import (
    epsilon_of,
    gaussian_event,
)
from dpscp.scores import Pair
from dpscp.training import Mechanism, Model, model
from dpscp.training.base import array_source
from dpscp.training.preprocessing.steps import TRANSFORMS

DELTA = 1e-5


@pytest.fixture(autouse=True)
def registries():
    """What a test registers is gone after it."""
    tables = guarantees.GUARANTEES, model._SAVED, TRANSFORMS
    kept = [dict(table) for table in tables]
    yield
    for table, was in zip(tables, kept, strict=True):
        table.clear()
        table.update(was)


def records(n=2000):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


# ---- a guarantee


def careful_levels(asked):
    """Half a percent more than Result B asks for."""
    tradeoff = asked.spent.tradeoff_function("add")
    return tuple(universal_alpha(max(a - 0.005, 1e-6), tradeoff) for a in asked.alphas)


CAREFUL = Guarantee(
    name="careful", proof="Result B, at a level lower by .005", certified=True, inner_levels=careful_levels
)


def test_a_guarantee():
    scores = np.random.default_rng(0).uniform(size=20_000)
    spent = gaussian_event(8.0)

    def calibrated(guarantee):
        return dp.calibrate(
            scores, training=spent, epsilon=2, delta=DELTA, score_range=(0, 1), guarantee=guarantee, n_records=20_000
        )

    with pytest.raises(ValueError, match="guarantee must be one of"):
        calibrated("careful")
    assert register(CAREFUL) is guarantee_of("careful")
    found, usual = calibrated("careful"), calibrated("universal")
    assert found.certificate.is_certified
    assert CAREFUL.proof in str(found.certificate)
    assert found.certificate.terms["inner_level"] > usual.certificate.terms["inner_level"] + 0.004


# ---- a score


class Brier:
    """Squared distance of the probabilities from the label, halved: between 0 and 1."""

    natural = False

    def range(self, _n_classes):
        return 0.0, 1.0

    def of_labels(self, probabilities):
        squares = (probabilities**2).sum(axis=1, keepdims=True)
        return (squares - 2 * probabilities + 1) / 2


class Above:
    """How far a target lies above the forecast: intervals without a lower end."""

    natural = False
    outputs = 1

    def range(self, y_bounds):
        return y_bounds[0] - y_bounds[1], y_bounds[1] - y_bounds[0]

    def of_targets(self, targets, pair: Pair):
        return targets - pair.center

    def interval(self, pair: Pair, thresholds):
        upper = pair.center[:, None] + np.broadcast_to(thresholds, (len(pair.center), np.shape(thresholds)[-1]))
        return np.stack([np.full_like(upper, -np.inf), upper], axis=1)


def test_a_score_of_labels():
    X, y = records()
    clf = dp.PrivateConformalClassifier(epsilon=4.0, conformity_score=Brier(), guarantee="split", classes=[0, 1])
    sets = clf.fit(X, y).predict_set(X)[1][:, :, 0]
    scores = Brier().of_labels(clf.model_.predict_proba(X))
    np.testing.assert_array_equal(sets, scores <= clf.threshold_[0])
    assert 0 < sets.mean() < 1
    assert clf.certificate_.is_certified


def test_a_score_of_targets():
    X, _ = records()
    y = X[:, 0]
    reg = dp.PrivateConformalRegressor(
        epsilon=4.0, conformity_score=Above(), guarantee="split", y_bounds=(-4, 4), n_records=2000
    )
    predicted, intervals = reg.fit(X, y).predict_interval(X)
    assert np.isneginf(intervals[:, 0]).all()
    np.testing.assert_allclose(intervals[:, 1, 0], np.clip(predicted, -4, 4) + reg.threshold_[0], atol=1e-6)


# ---- a mechanism and its model


@dataclass(frozen=True)
class Directions(Model):
    """The logits of a row are its products with one direction for each class."""

    weights: np.ndarray
    classes: tuple
    task = "classification"

    @property
    def n_features(self):
        return self.weights.shape[0]

    def outputs(self, X):
        return np.asarray(X, float) @ self.weights

    def arrays(self):
        return {"weights": self.weights}

    def config(self):
        return {"model": "directions", "classes": list(self.classes)}

    @classmethod
    def from_parts(cls, config, arrays):
        return cls(arrays["weights"], tuple(config["classes"]))


@dataclass(frozen=True)
class NoisySums(Mechanism):
    """One noisy sum of rows of norm at most one for each class: a record changes one of them, by at most one."""

    classes: tuple | None = None
    noise_multiplier: float | None = None

    @property
    def event(self):
        return None if self.noise_multiplier is None else gaussian_event(self.noise_multiplier)

    def configured(self, needs):
        return replace(self, classes=needs.classes)

    def train_on(self, run):
        rows = run.rows / np.maximum(1.0, np.linalg.norm(run.rows, axis=1, keepdims=True))
        sums = np.column_stack([rows[run.targets == c].sum(axis=0) for c in self.classes])
        noisy = sums + run.generator().normal(0, self.noise_multiplier, sums.shape)
        facts = {"mechanism": "noisy sums", "classes_of_sums": len(self.classes)}
        return run.result(Directions(noisy * 10 / run.n_records, self.classes), facts)


def test_a_mechanism_and_its_model(tmp_path):
    X, y = records()
    clf = dp.PrivateConformalClassifier(
        NoisySums(), epsilon=4.0, guarantee="universal", classes=[0, 1], n_records=2000
    ).fit(X, y)
    labels, sets = clf.predict_set(X)
    assert (labels == y).mean() > 0.8
    assert clf.ledger_.epsilon(DELTA) <= 4
    assert epsilon_of(clf.ledger_.entries[0].event, DELTA) <= 4
    assert clf.ledger_.entries[0].note == "noisy sums"
    assert clf.ledger_.public_facts["classes_of_sums"] == 2  # what a mechanism declares public is listed
    assert clf.certificate_.is_certified
    path = tmp_path / "model.dpscp"
    with pytest.raises(TypeError, match="'directions' cannot be saved"):
        clf.save(path)
    dp.training.saved_as("directions")(Directions)
    clf.save(path)
    np.testing.assert_array_equal(dp.load(path).predict_set(X)[1], sets)
    model._SAVED.pop("directions")
    with pytest.raises(ValueError, match="model must be one of"):
        dp.load(path)


class Remembers(Model):
    """A model around another one, which remembers what it has seen."""

    def __init__(self, inner):
        self.inner, self.task, self.classes, self.n_features = inner, inner.task, inner.classes, inner.n_features
        self.seen = []

    def outputs(self, X):
        return self.inner.outputs(X)

    def predict_proba(self, X):
        self.seen.append(len(X))
        return self.inner.predict_proba(X)


class Overwrites(Remembers):
    """A model that writes into the rows that it gets."""

    def predict_proba(self, X):
        probabilities = self.inner.predict_proba(X)
        X[:] = 0
        return probabilities


class Mixes(Remembers):
    """A model whose probabilities depend on the other rows."""

    def predict_proba(self, X):
        return self.inner.predict_proba(X - X.mean(axis=0))


class RemembersHead(Remembers):
    """The same with the ability to say where its linear head is."""

    def influence_form(self):
        return self.inner.influence_form()


@dataclass(frozen=True)
class TrainedInside(dp.training.Around):
    """A mechanism around ``DPSGD`` that releases a model of its own."""

    kind: type
    mechanism: dp.training.DPSGD = field(default_factory=lambda: dp.training.DPSGD(steps=20))

    def train_on(self, run):
        trained = run.train_inner(self.mechanism, run.source)
        return run.result(self.kind(trained.model), trained.public_facts, trajectory=trained.trajectory)


@pytest.mark.parametrize(
    ("kind", "said"), [(Remembers, "no self-influence form"), (RemembersHead, "is removed to first")]
)
def test_a_model_with_an_influence_form(kind, said):
    X, y = records(500)
    options = {"epsilon": 4.0, "guarantee": "corrected", "classes": [0, 1], "n_records": 500, "random_state": 0}
    clf = dp.PrivateConformalClassifier(TrainedInside(kind), feature_bounds=dp.RowNorm(3.0), **options).fit(X, y)
    assert any(said in assumption.sentence for assumption in clf.certificate_.assumptions)
    plain = dp.PrivateConformalClassifier(dp.training.DPSGD(steps=20), feature_bounds=dp.RowNorm(3.0), **options)
    plain.fit(X, y)
    np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))
    if kind is RemembersHead:
        assert clf.threshold_.tolist() == plain.threshold_.tolist()


def test_a_model_gets_copies_of_the_records_that_score_or_evaluate_it():
    X, y = records(500)
    kept = X.copy()
    clf = dp.PrivateConformalClassifier(
        TrainedInside(Overwrites), evaluation_fraction=0.2, epsilon=4.0, classes=[0, 1], n_records=500
    ).fit(X, y)
    np.testing.assert_array_equal(X, kept)
    X = X + 0.01  # new records: those of the fit are refused
    kept = X.copy()
    dp.recalibrate(clf, X, y, epsilon=1.0, delta=DELTA)
    dp.evaluate(clf, X, y, epsilon=1.0, delta=DELTA)
    dp.CoverageMonitor(clf, epsilon=0.5, delta=DELTA).update(X, y)
    np.testing.assert_array_equal(X, kept)


def test_a_model_that_mixes_rows_is_refused():
    X, y = records(500)
    options = {"epsilon": 4.0, "classes": [0, 1], "n_records": 500}
    with pytest.raises(ValueError, match="estimator must compute the value of each row from that row alone"):
        dp.PrivateConformalClassifier(TrainedInside(Mixes), **options).fit(X, y)


def test_what_is_no_mechanism_is_refused_by_name():
    """A function, or a class that only has the right methods, is no mechanism; neither is the class itself."""
    X, y = records(100)

    class Similar:
        event = gaussian_event(4.0)

        def train(self, *records):
            raise AssertionError(f"{len(records)} records were used")

    for given, named in ((lambda rows: rows, "got function"), (Similar(), "got Similar"), (NoisySums, "the class")):
        clf = dp.PrivateConformalClassifier(given, epsilon=4.0, classes=[0, 1], n_records=100)
        with pytest.raises(TypeError, match=rf"dp\.training\.Mechanism.*{named}"):
            clf.fit(X, y)
    with pytest.raises(TypeError, match=r"must not define train or .*define train_on\(run\)"):
        type("Own", (Mechanism,), {"train": lambda *_: None})
    with pytest.raises(TypeError, match="has no field noise_multiplier"):
        type("Fixed", (Mechanism,), {"event": None, "train_on": None})().calibrated(1.0, DELTA)


# ---- a preprocessing step


@dataclass(frozen=True)
class Signs(dp.training.Transform):
    """The sign of each feature's distance from a released middle."""

    middle: np.ndarray
    kind = "signs"

    def apply(self, X):
        return np.sign(np.asarray(X, float) - self.middle)


@dataclass(frozen=True)
class AboveMean(dp.training.SummedStep):
    """A record changes the sum of its cut features by at most sqrt(features) in norm."""

    noise_multiplier: float | None = None
    stage = "mean of the features"

    def part_moments(self, rows, weights):
        rows = np.clip(rows, -1, 1)
        return weights @ rows

    def release(self, total, *, n_records, rng):
        noise = self.noise_multiplier * np.sqrt(len(total)) * rng.normal(size=len(total))
        return Signs((total + noise) / n_records)


@dataclass(frozen=True)
class Doubled(dp.training.PublicStep):
    """Each row twice: of the records only their width is used."""

    def width_after(self, width):
        return 2 * width

    def transform_of(self, width):
        return Twice(width)


@dataclass(frozen=True)
class Twice(dp.training.Transform):
    """A transform with a width of its own; files do not hold it, because it has no kind."""

    before: int

    @property
    def width(self):
        return 2 * self.before

    def apply(self, X):
        return np.hstack([X, X]).astype(float)


@dataclass(frozen=True)
class Halved(dp.training.PublicStep, dp.training.Transform):
    """A public step that is its own transform."""

    kind = "halved"

    def apply(self, X):
        return np.asarray(X, float) / 2


def test_a_preprocessing_step(tmp_path):
    X, y = records()
    mechanism = [AboveMean(), dp.training.DPSGD(steps=20)]
    clf = dp.PrivateConformalClassifier(
        mechanism, epsilon=4.0, guarantee="universal", classes=[0, 1], n_records=2000, random_state=0
    ).fit(X, y)
    assert (clf.predict(X) == y).mean() > 0.8
    assert [entry.stage for entry in clf.ledger_.entries] == ["mean of the features", "training", "calibration"]
    assert 3.9 < clf.ledger_.epsilon(DELTA) <= 4
    path = tmp_path / "model.dpscp"
    clf.save(path)
    np.testing.assert_array_equal(dp.load(path).predict_set(X)[1], clf.predict_set(X)[1])
    with pytest.raises(ValueError, match="another class already saves its transforms as 'signs'"):
        type("Other", (dp.training.Transform,), {"kind": "signs"})


def test_a_public_step_costs_nothing_and_may_change_the_width():
    X, y = records(300)
    inner = dp.training.DPSGD(steps=5, classes=(0, 1), noise_multiplier=2.0)
    mechanism = dp.training.Preprocessed((Doubled(), Halved()), inner)
    assert mechanism.stages == inner.stages
    trained = mechanism.train(X, y, n_records=300, random_state=0)
    assert trained.model.inner.n_features == 4
    assert trained.event == inner.event


def test_a_step_on_persons_takes_their_weights():
    """With every row twice, a person's weights add up to one: the same release as with single rows."""
    X, _ = records(200)
    step = AboveMean(noise_multiplier=1e-9)
    persons = Persons(np.arange(201) * 2, 2)
    twice = array_source(np.repeat(X, 2, axis=0), np.zeros(400), persons)
    rng = np.random.default_rng(0)
    middles = [step.fit_source(s, n_records=200, rng=rng).middle for s in (array_source(X, np.zeros(200)), twice)]
    np.testing.assert_allclose(*middles, atol=1e-6)


# ---- a record source


class Rows(RecordSource):
    """Records that somebody else reads, a few hundred at a time."""

    def __init__(self, read, width):
        self.read, self.width = read, width


def test_a_record_source():
    """A fit gives what it gives in memory: the release grid absorbs the order of sums."""
    X, y = records(1000)

    def read():
        return (Block(i, X[start : start + 300], y[start : start + 300]) for i, start in enumerate(range(0, 1000, 300)))

    options = {"epsilon": 4.0, "classes": [0, 1], "guarantee": "split", "n_records": 1000, "random_state": 0}
    here = dp.PrivateConformalClassifier(**options).fit(X, y)
    there = dp.PrivateConformalClassifier(**options).fit(Rows(read, 2))
    np.testing.assert_array_equal(there.predict_proba(X), here.predict_proba(X))
    assert there.threshold_.tolist() == here.threshold_.tolist()
    assert replace(there.ledger_, assumptions=()) == replace(here.ledger_, assumptions=())
    assert len(there.ledger_.assumptions) == 1  # that the source holds each record once is believed
