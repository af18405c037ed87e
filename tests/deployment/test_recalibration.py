"""New thresholds for a released model, from records that training did not use."""

import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp._base.assumptions import OTHER_PERSONS
from dpscp.guarantees.registry import SPLIT
from dpscp.privacy.events import ParallelDpEvent
from dpscp.training import DPSGD

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
RNG, DELTA = np.random.default_rng, 1e-5
QUICK = DPSGD(steps=15, learning_rate=2.0)


def records(n, seed, flipped=0.0):
    rng = RNG(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)
    return X, np.where(rng.random(n) < flipped, 1 - y, y)


def by_sign(X):
    return (np.asarray(X)[:, 1] > 0).astype(int)


def fit(**options):
    given = {"epsilon": 4.0, "delta": DELTA, "classes": [0, 1], "guarantee": "universal", "accountant": "rdp"}
    return dp.PrivateConformalClassifier(QUICK, **given | {"random_state": 0} | options).fit(*records(2_000, 0))


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(confidence_level=[0.8, 0.9])


def renewed(model, data, **options):
    return dp.recalibrate(model, *data, **{"epsilon": 2.0, "delta": DELTA, "random_state": 0} | options)


def coverage(model, X, y, level=-1):
    return model.predict_set(X)[1][np.arange(len(y)), y, level].mean()


def test_coverage_returns_after_a_change(fitted, is_quick):
    """40 batches of 400 records, or 16: the mean coverage of the changed population, less three errors."""
    new = records(5_000, 999, flipped=0.25)
    assert coverage(fitted, *new) < 0.85  # the old thresholds fail
    found = [
        coverage(renewed(fitted, records(400, 50 + seed, flipped=0.25), n_records=400, random_state=seed), *new)
        for seed in range(16 if is_quick else 40)
    ]
    assert np.mean(found) >= 0.9 - 3 * np.std(found) / len(found) ** 0.5
    assert np.mean(found) < 0.99


def test_the_new_release_has_its_own_promises(fitted, tmp_path):
    new = renewed(fitted, records(800, 1))
    assert [c.target for c in new.certificates_] == [0.8, 0.9]
    assert all(c.guarantee == SPLIT.name for c in new.certificates_)
    assert new.certificate_.is_certified
    assert new.certificate_.terms["n_records"] == 800
    assert new.model_ is fitted.model_
    assert fitted.certificate_.guarantee == "universal"  # the old one is untouched
    (entry,) = new.ledger_.entries
    assert isinstance(entry.event, ParallelDpEvent)
    assert [stage for stage, _ in entry.stages] == ["fit", "new thresholds"]
    assert entry.components == (("model", "calibration", "calibration"), ())  # one for each level
    events = [event for _, event in entry.components_of(0)]
    assert events == [one.event for one in fitted.ledger_.entries]
    assert OTHER_PERSONS in new.ledger_.assumptions
    # parallel composition: the more expensive of the two
    assert new.ledger_.epsilon(DELTA) == pytest.approx(fitted.ledger_.epsilon(DELTA), rel=1e-6)
    dear = renewed(fitted, records(800, 1), epsilon=6.0)
    assert 5.5 < dear.ledger_.epsilon(DELTA) <= 6.0
    assert dear.epsilon == 6.0
    new.save(tmp_path / "new.dpscp")
    loaded = dp.load(tmp_path / "new.dpscp")
    X, _ = records(100, 2)
    assert np.array_equal(loaded.predict_set(X)[1], new.predict_set(X)[1])
    assert loaded.ledger_.to_json() == new.ledger_.to_json()
    again = renewed(new, records(800, 3))
    assert len(again.ledger_.entries) == 1
    assert again.statement()["privacy"]["epsilon"] <= 4.01
    monitor = dp.CoverageMonitor(fitted, epsilon=0.5, delta=DELTA, tolerated=0.2)
    with pytest.raises(ValueError, match="another model"):
        dp.CoverageMonitor.from_json(monitor.to_json(), new)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": "label"},
        {"groups": dp.Groups(by_sign, values=[0, 1])},
        {"groups": dp.Groups([by_sign, lambda X: by_sign(-np.asarray(X))], values=[[0, 1], [0, 1]])},
    ],
    ids=["label", "function", "overlapping"],
)
def test_groups_have_new_thresholds_each(options):
    model = fit(**options)
    X, y = records(3_000, 5)
    groups = y if options["groups"] == "label" else by_sign(X)
    y = np.where((groups == 1) & (RNG(0).random(3_000) < 0.3), 1 - y, y) if options["groups"] != "label" else y
    new = renewed(model, (X, y))
    assert new.threshold_.shape == model.threshold_.shape
    assert not np.array_equal(new.threshold_, model.threshold_)
    sets = new.predict_set(X)[1][np.arange(3_000), y, 0]
    assert min(sets[groups == g].mean() for g in (0, 1)) > 0.87
    if callable(options["groups"]):
        assert new.threshold_[1, 0] > new.threshold_[0, 0]


def test_persons_count_once():
    ids = np.repeat(np.arange(500), 4)
    options = {"epsilon": 4.0, "classes": [0, 1], "guarantee": "universal", "accountant": "rdp", "random_state": 0}
    model = dp.PrivateConformalClassifier(QUICK, rows_per_person=4, n_persons=500, **options)
    model.fit(*records(2_000, 0), persons=ids)
    new = renewed(model, records(2_000, 6), persons=ids, n_records=500)
    assert new.certificate_.terms["n_persons"] == 500
    assert new.ledger_.public_facts["new_released_sizes"][0] == pytest.approx(500, abs=60)
    with pytest.raises(ValueError, match="refused if it had none"):
        renewed(model, records(2_000, 6))


def test_found_classes_stay_uncertified_and_few_records_warn():
    model = dp.PrivateConformalClassifier(QUICK, epsilon=4.0, guarantee="universal", accountant="rdp", random_state=0)
    model.fit(*records(2_000, 0))
    assert not renewed(model, records(500, 1)).certificate_.classes_declared
    with pytest.warns(dp.GuaranteeWarning):
        renewed(fit(), records(5, 1), n_records=5)


def test_wrong_input_is_refused_and_nothing_is_spent(fitted, tmp_path):
    store = dp.BudgetStore.create(tmp_path / "batch", 3.0, DELTA, dataset="batch 1")
    X, y = records(300, 1)
    wrong = [
        (X[:0], y[:0], {}, "n_records must be at least 1"),
        (*records(300, 0), {}, "records that the fit of this release used"),
        (X, y + 5, {}, "not in classes"),
        (X[:, :2], y, {}, "features"),
        (X, y[:10], {}, "same number"),
        (X, y, {"n_records": 0}, "n_records"),
        (X, y, {"epsilon": -1.0}, "epsilon"),
        (X, y, {"random_state": 0}, "seed"),
        (X, y, {"persons": np.arange(300)}, "persons"),
    ]
    for rows, labels, options, match in wrong:
        with pytest.raises(ValueError, match=match):
            dp.recalibrate(fitted, rows, labels, **{"epsilon": 1.0, "delta": DELTA, "budget": store} | options)
    with pytest.raises(dp.NotFittedError):
        dp.recalibrate(dp.PrivateConformalClassifier(), X, y, epsilon=1.0, delta=DELTA, budget=store)
    assert not store.ledger().entries
    new = dp.recalibrate(fitted, X, y, epsilon=1.0, delta=DELTA, budget=store)
    assert 0.9 < store.ledger().epsilon(DELTA, "rdp") <= 1.0
    assert not new.ledger_.is_private  # the fit had a seed


# ---- what the release shows of the new records


def test_a_counted_number_of_new_records_is_listed_as_taken_from_them(fitted):
    counted = renewed(fitted, records(777, 1)).ledger_
    assert counted.public_facts["new_n_records"] == 777
    assert "new_n_records" in counted.taken_from_data
    declared = renewed(fitted, records(777, 1), n_records=800)
    assert declared.ledger_.public_facts["new_n_records"] == 800
    assert declared.ledger_.taken_from_data == fitted.ledger_.taken_from_data
    assert "777" not in declared.ledger_.to_json() + str(declared.certificate_.to_dict())


def test_overlapping_groups_of_one_record_are_charged_together_again():
    """Three boolean groups and 300 records: each record is charged for three sizes and three searches."""
    functions = [lambda X, column=column: np.asarray(X)[:, column] > 0 for column in range(3)]
    new = renewed(fit(groups=functions), records(300, 1), n_records=300)
    (entry,) = new.ledger_.entries
    sizes, counts = entry.event.events[1].events
    assert sizes.count == 3
    assert counts.count % 3 == 0
