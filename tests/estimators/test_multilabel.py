"""The multilabel classifier: heads within one budget, a secret split, and a mean loss that is bounded."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dpscp as dp
from dpscp.core.losses import Multilabel
from dpscp.privacy import SecretSplitDpEvent, compose, epsilon_of
from dpscp.privacy.events import DiscreteGaussianDpEvent, possible_histories
from dpscp.scores import class_costs, false_discoveries, missed_labels
from dpscp.training import DPSGD
from dpscp.training.mechanisms.one_vs_rest import OneVsRest

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
RNG, DELTA = np.random.default_rng, 1e-5
QUICK = DPSGD(steps=15, learning_rate=2.0)


def records(n, seed, n_labels=3):
    """Records with some true labels; those of a record depend on each other, and some have none."""
    rng = RNG(seed)
    X = rng.normal(size=(n, n_labels))
    truth = X + 0.7 * rng.normal(size=(n, 1)) + 0.7 * rng.normal(size=(n, n_labels)) > 0.4
    return X, truth.astype(int)


def multilabel(**options):
    given = {
        "estimator": QUICK,
        "epsilon": 4.0,
        "delta": DELTA,
        "feature_bounds": (-3, 3),
        "accountant": "rdp",
        "random_state": 0,
    }
    return dp.PrivateMultilabelClassifier(**given | options)


def missed_share(sets, truth):
    return ((truth == 1) & ~sets).sum(axis=1) / np.maximum(truth.sum(axis=1), 1)


# ---- losses


def test_losses_by_hand():
    doubt, truth = np.array([[0.1, 0.6, 0.3], [0.2, 0.2, 0.9]]), np.array([[1, 1, 0], [0, 0, 0]])
    assert missed_labels(doubt, truth)(0.55).tolist() == [0.5, 0.0]
    found = false_discoveries(1 - doubt, truth)
    assert found(0.5).tolist() == [0.5, 1.0]
    assert found(0.99).tolist() == [0.0, 0.0]
    cost = class_costs(doubt, [1, 2], [0.1, 0.4, 1.0])
    assert cost(0.5).tolist() == [0.4, 1.0]
    assert cost(0.7).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: missed_labels(np.zeros((2, 3)), np.zeros((2, 2))), "indicator for each record"),
        (lambda: missed_labels(np.zeros((2, 3)), np.full((2, 3), 2)), "0 or 1"),
        (lambda: class_costs(np.zeros((2, 3)), [0.0, 1.0], [1, 1, 1]), "one class index"),
        (lambda: class_costs(np.zeros((2, 3)), [0, 3], [1, 1, 1]), "class indices from 0"),
        (lambda: class_costs(np.zeros((2, 3)), [0, 1], [1, 2, 1]), "between 0 and 1"),
    ],
)
def test_wrong_losses_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_costs_of_classes_are_controlled(is_quick):
    """Costs differ: the mean cost is bounded, although one class is missed more often than the level."""
    rng, means = RNG(0), []
    for seed in range(12 if is_quick else 30):
        y = rng.choice(3, 600, p=[0.6, 0.3, 0.1])
        doubt = np.clip(rng.random((600, 3)) * (1 + (y[:, None] == 2)) / 2, 0, 1)
        options = {"alpha": 0.05, "threshold_range": (0, 1), "epsilon": 2.0, "delta": DELTA, "random_state": seed}
        found = dp.control_risk(class_costs(doubt, y, [0.1, 0.4, 1.0]), n_records=600, accountant="rdp", **options)
        new = rng.choice(3, 4_000, p=[0.6, 0.3, 0.1])
        doubt = np.clip(rng.random((4_000, 3)) * (1 + (new[:, None] == 2)) / 2, 0, 1)
        means.append(class_costs(doubt, new, [0.1, 0.4, 1.0])(found.threshold).mean())
    assert np.mean(means) <= 0.05 + 3 * np.std(means) / len(means) ** 0.5
    assert np.mean(means) > 0.02


# ---- the heads


def test_the_heads_together_stay_within_the_budget():
    heads = OneVsRest(QUICK, 4).calibrated(2.0, DELTA, accountant="rdp")
    assert OneVsRest(QUICK, 4).event is None
    assert heads.event == compose(*[heads.mechanism.event] * 4)
    assert 1.9 < epsilon_of(heads.event, DELTA, "rdp") <= 2.0
    with pytest.raises(dp.BudgetError):
        OneVsRest(QUICK, 4).calibrated(2.0, 1e-300, accountant="rdp")


# ---- the estimator


def test_the_mean_loss_of_new_records_is_bounded(is_quick):
    """40 studies, or 16, of 700 records: the mean of the missed share, at most the risk plus three standard errors."""
    means, sizes = [], []
    new, new_truth = records(5_000, 99)
    for seed in range(16 if is_quick else 40):
        fitted = multilabel(random_state=seed, n_records=700).fit(*records(700, seed))
        sets = fitted.predict_set(new)[1][:, :, 0]
        means.append(missed_share(sets, new_truth).mean())
        sizes.append(sets.sum(axis=1).mean())
    assert np.mean(means) <= 0.1 + 3 * np.std(means) / len(means) ** 0.5
    assert np.mean(means) > 0.05  # and not by full sets
    assert np.mean(sizes) < 2.7


def test_false_discoveries_are_bounded_by_their_running_maximum():
    means, sizes = [], []
    new, new_truth = records(4_000, 99)
    for seed in range(12):
        fitted = multilabel(loss="false_discoveries", risk=0.3, random_state=seed).fit(*records(1_500, seed))
        sets = fitted.predict_set(new)[1][:, :, 0]
        means.append(((sets & (new_truth == 0)).sum(axis=1) / np.maximum(sets.sum(axis=1), 1)).mean())
        sizes.append(sets.sum(axis=1).mean())
    assert fitted.certificate_.terms.running_maximum
    assert np.mean(means) <= 0.3 + 3 * np.std(means) / len(means) ** 0.5
    assert np.mean(sizes) > 0.3  # and not by empty sets


def test_ledger_and_certificate():
    fitted = multilabel(risk=[0.2, 0.1], classes=["a", "b", "c"], accountant="pld").fit(*records(1_500, 0))
    assert fitted.threshold_.shape == (2,)
    assert fitted.threshold_[0] <= fitted.threshold_[1]
    assert [c.risk for c in fitted.certificates_] == [0.2, 0.1]
    assert "mean loss of a new record is at most 20" in str(fitted.certificate_)
    (entry,) = fitted.ledger_.entries
    assert isinstance(entry.event, SecretSplitDpEvent)
    assert fitted.ledger_.epsilon(DELTA) <= 4.0
    assert not fitted.ledger_.is_private  # a seed
    assert fitted.ledger_.public_facts["labels"] == ("a", "b", "c")
    assert fitted.ledger_.taken_from_data == ("n_records",)
    # one training for each label, in the ledger of this release
    trained = dict(entry.stages)["training"]
    (history,) = possible_histories(trained)
    assert sum(n for event, n in history.items() if not isinstance(event, DiscreteGaussianDpEvent)) == 45
    declared = multilabel(n_records=1_500).fit(*records(1_500, 0))
    assert not declared.ledger_.taken_from_data


def test_records_train_or_calibrate_and_never_both(monkeypatch):
    seen = {}
    train, losses = OneVsRest.train_on, Multilabel.losses

    def spy_training(self, run):
        seen["trained"] = run.rows[:, 0].tolist()
        return train(self, run)

    def spy_losses(self, probabilities, truth):
        seen["calibrated"] = len(truth)
        return losses(self, probabilities, truth)

    monkeypatch.setattr(OneVsRest, "train_on", spy_training)
    monkeypatch.setattr(Multilabel, "losses", spy_losses)
    X, truth = records(1_000, 0)
    multilabel(calibration_fraction=0.3).fit(X, truth)
    assert len(set(seen["trained"])) + seen["calibrated"] == 1_000
    assert 200 < seen["calibrated"] < 400
    multilabel(guarantee="universal").fit(X, truth)
    assert len(seen["trained"]) == seen["calibrated"] == 1_000


def covers_each_group(fitted, is_first, sets, truth):
    missed = missed_share(sets, truth)
    return [missed[is_first == side].mean() for side in (False, True)]


def test_each_group_has_a_bound_of_its_own():
    X, truth = records(6_000, 0)
    new, new_truth = records(6_000, 1)
    groups = dp.Groups(lambda X: np.asarray(X)[:, 0] > 0, values=[False, True])
    found = []
    for seed in range(8):
        fitted = multilabel(groups=groups, random_state=seed).fit(X, truth)
        assert fitted.threshold_.shape == (2, 1)
        found.append(covers_each_group(fitted, new[:, 0] > 0, fitted.predict_set(new)[1][:, :, 0], new_truth))
    assert (np.mean(found, axis=0) <= 0.1 + 3 * np.std(found, axis=0) / 8**0.5 + 0.005).all()
    assert (np.mean(found, axis=0) > 0.05).all()
    persons = np.repeat(np.arange(2_000), 3)
    grouped = multilabel(groups=groups, rows_per_person=3, n_persons=2_000).fit(X, truth, persons=persons)
    assert grouped.threshold_.shape == (2, 1)
    assert grouped.certificate_.terms.is_grouped


def test_blocks_give_the_release_of_an_array():
    dask_array = pytest.importorskip("dask.array")
    X, truth = records(1_500, 0)
    options = {"classes": ["a", "b", "c"], "n_records": 1_500}
    whole = multilabel(**options).fit(X, truth)
    blocks = multilabel(**options).fit(dp.sources.ArraySource(X, truth, n_blocks=5))
    np.testing.assert_array_equal(whole.threshold_, blocks.threshold_)
    chunked = multilabel(**options).fit(*(dask_array.from_array(found, chunks=(500, 3)) for found in (X, truth)))
    np.testing.assert_array_equal(whole.threshold_, chunked.threshold_)
    np.testing.assert_allclose(whole.predict_proba(X), blocks.predict_proba(X), atol=1e-6)
    assert whole.ledger_ == blocks.ledger_
    with pytest.raises(ValueError, match="classes is required"):
        multilabel().fit(dp.sources.ArraySource(X, truth))


@pytest.mark.parametrize(
    ("normalized", "guarantee", "least"), [(False, "split", 0.07), (True, "split", 0.07), (True, "universal", 0.0)]
)
def test_another_population_is_bounded_too(normalized, guarantee, least):
    """A ratio with mean 1 weights the losses of all records, also of those that training has seen."""
    X, truth = records(8_000, 0)
    population = dp.Population(lambda X: 2.0 * (np.asarray(X)[:, 0] > 0), bound=2.0, normalized=normalized)
    fitted = multilabel(population=population, guarantee=guarantee).fit(X, truth)
    new, new_truth = records(8_000, 1)
    kept = new[:, 0] > 0
    missed = missed_share(fitted.predict_set(new)[1][:, :, 0], new_truth)[kept].mean()
    assert least < missed < 0.13
    assert fitted.certificate_.terms.ratio_bound == 2.0


@pytest.mark.parametrize("guarantee", ["stability", "corrected", "finite", "asymptotic"])
def test_a_guarantee_without_a_bound_on_losses_is_refused(guarantee):
    with pytest.raises(ValueError, match="'split' or 'universal'"):
        multilabel(guarantee=guarantee).fit(*records(300, 0))


def test_persons_are_protected_with_all_their_rows():
    X, truth = records(1_200, 0)
    persons = np.repeat(np.arange(400), 3)
    fitted = multilabel(rows_per_person=2, n_persons=400).fit(X, truth, persons=persons)
    assert fitted.ledger_.unit.by_person
    assert fitted.certificate_.terms["n_persons"] == 400
    assert "random record of a new person" in str(fitted.certificate_) or "person" in str(fitted.certificate_)
    without = multilabel(rows_per_person=2).fit(X, truth)
    assert without.ledger_.unit.group == 2
    assert without.ledger_.epsilon(DELTA, "rdp") <= 4.0


def test_a_file_holds_the_release(tmp_path):
    X, truth = records(900, 0)
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    fitted = clone(multilabel(classes=["a", "b", "c"])).fit(frame, truth)
    fitted.save(tmp_path / "m.dpscp")
    loaded = dp.load(tmp_path / "m.dpscp")
    assert isinstance(loaded, dp.PrivateMultilabelClassifier)
    for ours, theirs in zip(fitted.predict_set(frame), loaded.predict_set(frame), strict=True):
        assert np.array_equal(ours, theirs)
    assert tuple(loaded.classes_) == ("a", "b", "c")
    assert loaded.ledger_.to_json() == fitted.ledger_.to_json()
    assert loaded.certificate_ == fitted.certificate_
    assert np.array_equal(loaded.predict(frame), (loaded.predict_proba(frame) >= 0.5).astype(int))
    assert list(loaded.feature_names_in_) == ["u", "v", "w"]
    plain = multilabel().fit(X, truth)
    plain.save(tmp_path / "n.dpscp")
    assert np.array_equal(dp.load(tmp_path / "n.dpscp").threshold_, plain.threshold_)
    plain.threshold_ = np.array([np.nan])
    plain.save(tmp_path / "n.dpscp")
    with pytest.raises(ValueError, match="do not match"):
        dp.load(tmp_path / "n.dpscp")
    from dpscp.cli import main

    assert main(["statement", str(tmp_path / "m.dpscp")]) == 0


@pytest.mark.parametrize(
    ("options", "y", "match"),
    [
        ({"loss": "hamming"}, None, "loss"),
        ({"risk": 1.5}, None, "risk must lie"),
        ({"classes": ["a", "b"]}, None, "distinct names"),
        ({"classes": ["a", "b", "b"]}, None, "distinct names"),
        ({"calibration_fraction": 2.0}, None, "calibration_fraction"),
        ({}, np.zeros(300), "indicator array"),
        ({}, np.full((300, 3), 7), "0 and 1 only"),
        ({}, np.full((300, 3), np.nan), "0 and 1 only"),
        ({}, np.zeros((299, 3)), "same number"),
        ({}, [[1], [0, 1]], "indicator array"),
        ({"epsilon": -1.0}, None, "epsilon"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_spent(options, y, match, tmp_path):
    store = dp.BudgetStore.create(tmp_path / "study", 9.0, DELTA, dataset="synthetic")
    X, truth = records(300, 0)
    with pytest.raises((ValueError, dp.BudgetError), match=match):
        multilabel(random_state=None, **options).fit(X, truth if y is None else y, budget=store)
    assert not store.ledger().entries


def test_a_loaded_mechanism_is_not_replaced_by_the_recipe(tmp_path):
    X, Y = records(300, 0)
    store = dp.BudgetStore.create(tmp_path / "b", 8.0, 1e-4, dataset="d")
    own = multilabel()
    own.fit(X, Y).save(tmp_path / "own")
    loaded = dp.load(tmp_path / "own")
    loaded.random_state = None
    for again in (loaded, clone(loaded)):
        with pytest.raises(ValueError, match=r"set_params\(estimator=\.\.\.\)"):
            again.fit(X, Y, budget=store)
    assert not store.ledger().entries
    np.testing.assert_array_equal(loaded.predict(X), own.predict(X))  # a refused fit leaves the loaded one
    loaded.save(tmp_path / "again")
    with pytest.raises(ValueError, match="set it first"):
        dp.load(tmp_path / "again").fit(X, Y)
    assert dp.load(tmp_path / "own").set_params(estimator=None).fit(X, Y).estimator is None
    recipe = multilabel(estimator=None).fit(X, Y)
    recipe.save(tmp_path / "recipe")
    np.testing.assert_array_equal(dp.load(tmp_path / "recipe").fit(X, Y).predict_proba(X), recipe.predict_proba(X))


@pytest.fixture(scope="module")
def small_release():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return multilabel().fit(*records(300, 0))


@pytest.mark.parametrize(
    "use",
    [
        lambda m, X, y: dp.recalibrate(m, X, y, epsilon=1.0, delta=DELTA),
        lambda m, X, y: dp.evaluate(m, X, y, epsilon=1.0, delta=DELTA),
        lambda m, *_: dp.CoverageMonitor(m, epsilon=1.0, delta=DELTA, tolerated=0.2),
    ],
    ids=["recalibrate", "evaluate", "monitor"],
)
def test_what_needs_coverage_refuses_a_bound_on_another_loss(use, small_release):
    with pytest.raises(TypeError, match="got PrivateMultilabelClassifier, whose promise is about another loss"):
        use(small_release, *records(50, 1))


# ---- tables with a schema of several targets

SCHEMA = dp.Schema.from_dict(
    {
        "task": "multilabel",
        "targets": ["a", "b", "c"],
        "columns": {name: {"type": "numeric", "bounds": [-3, 3]} for name in ("u", "v", "w")},
    }
)


def table(n, seed=0):
    X, truth = records(n, seed)
    return pd.DataFrame(X, columns=["u", "v", "w"]).assign(**dict(zip("abc", truth.T, strict=True)))


def by_schema(**options):
    return multilabel(feature_bounds=None, n_records=None, **options)


def test_a_schema_declares_several_targets(tmp_path):
    """A frame, its values, a file and a file in blocks give one release; files and frames can be predicted."""
    frame = table(900)
    named = by_schema().fit(frame, ["a", "b", "c"], schema=SCHEMA)
    assert tuple(named.classes_) == named.ledger_.public_facts["labels"] == ("a", "b", "c")
    truth = frame[["a", "b", "c"]].to_numpy()
    frame.to_csv(tmp_path / "t.csv", index=False)
    values = by_schema().fit(frame[["u", "v", "w"]], truth, schema=SCHEMA)
    assert by_schema().fit(tmp_path / "t.csv", SCHEMA.target, schema=SCHEMA).threshold_ == named.threshold_
    assert values.threshold_ == named.threshold_
    assert dp.Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    assert dp.Schema.read(tmp_path / "s.toml") == SCHEMA
    named.save(tmp_path / "m.dpscp")
    loaded = dp.load(tmp_path / "m.dpscp")
    assert loaded.schema_ == SCHEMA
    np.testing.assert_array_equal(loaded.predict_set(tmp_path / "t.csv")[1], named.predict_set(frame)[1])
    loaded.predict_file(tmp_path / "t.csv", tmp_path / "out.csv")
    assert list(pd.read_csv(tmp_path / "out.csv")) == [
        f"{kind} {name}" for kind in ("prediction", "set") for name in "abc"
    ]


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (table(90).assign(b=2), "0 and 1 only"),
        (table(90).assign(b=1e300), "0 and 1 only"),  # and no warning of NumPy about the cast
        (table(90).assign(b=np.nan), "missing values"),
        (table(90).assign(b="yes"), "not a number"),
        (table(90).drop(columns="b"), "lacks column 'b', which target names"),
    ],
)
def test_wrong_target_columns_are_refused(frame, match):
    with pytest.raises(ValueError, match=match):
        by_schema().fit(frame, SCHEMA.target, schema=SCHEMA)


@pytest.mark.parametrize(("loss", "is_full"), [("missed_labels", True), ("false_discoveries", False)])
def test_a_row_that_does_not_fit_the_schema_gets_the_set_without_loss(loss, is_full):
    fitted = by_schema(loss=loss, risk=0.3).fit(table(900), SCHEMA.target, schema=SCHEMA)
    labels, sets = fitted.predict_set(table(5).assign(u=["?", 0.0, 0.0, 0.0, 0.0]))
    assert (sets[0] == is_full).all()
    assert labels[0].tolist() == [-1, -1, -1]
    assert (labels[1:] >= 0).all()
