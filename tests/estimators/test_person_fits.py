"""Fits on persons: promises in words, what stays private, what is refused; one row a person changes no number."""

import json
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp import PrivateConformalClassifier, PrivateConformalRegressor
from dpscp.data.sources.places import as_one_block
from dpscp.privacy import gaussian_event
from dpscp.report.page import html_report
from dpscp.training import DPSGD, Mechanism, ObjectivePerturbation

PERSON = "adding or removing one person with all their records"
RECORD = "a random record of a new person"
K = 3


def table(m=150, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(m), rng.integers(1, 8, m)))
    X = rng.normal(size=(len(ids), 3))
    return X, (X[:, 0] + 0.5 * rng.normal(size=len(ids)) > 0).astype(int), ids


def by_sign(X):
    return np.asarray(X)[:, 1] > 0


SMALL = DPSGD(steps=5, learning_rate=0.2, clip_norm=3.5, feature_bound=2.0)
COMMON = {"epsilon": 4.0, "confidence_level": 0.7, "accountant": "rdp", "random_state": 3}


def classifier(**changes):
    return PrivateConformalClassifier(SMALL, classes=[0, 1], **{**COMMON, **changes})


def regressor(**changes):
    mechanism = DPSGD(loss="huber", steps=5, learning_rate=0.5, feature_bound=2.0)
    return PrivateConformalRegressor(mechanism, y_bounds=(-4, 4), **{**COMMON, **changes})


def fitted(estimator, X, y, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        return estimator.fit(X, y, **more)


SETTINGS = {
    "universal": {"guarantee": "universal"},
    "split": {"guarantee": "split"},
    "corrected": {"guarantee": "corrected"},
    "stability": {"guarantee": "stability"},
    "groups": {"guarantee": "split", "groups": by_sign},
    "sampled": {"estimator": DPSGD(steps=5, sampling_rate=0.3, hidden=(4,)), "guarantee": "universal"},
    "recipe": {"estimator": None, "guarantee": "auto"},
}


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.covering
def test_one_row_a_person_equals_the_row_level_fit_number_for_number(make, name):
    X, y, _ = table()
    settings = dict(SETTINGS[name])
    estimator = make(**{k: v for k, v in settings.items() if k != "estimator"})
    if "estimator" in settings:
        if make is regressor and name == "sampled":
            settings["estimator"] = DPSGD(steps=5, sampling_rate=0.3, hidden=(4,), loss="huber")
        estimator.set_params(estimator=settings["estimator"])
    rows = fitted(estimator, X, y)
    model, threshold = rows.model_.arrays(), rows.threshold_
    same = fitted(estimator.set_params(rows_per_person=K), X, y, persons=[f"id {i}" for i in range(len(X))])
    for part, values in same.model_.arrays().items():
        np.testing.assert_array_equal(values, model[part])
    np.testing.assert_array_equal(same.threshold_, threshold)


def test_the_promise_is_said_in_persons_everywhere():
    X, y, ids = table()
    model = fitted(classifier(guarantee="split", rows_per_person=K, n_persons=140), X, y, persons=ids)
    page = " ".join(html_report(model).split())
    assert model.ledger_.neighbors == PERSON
    assert PERSON in model.ledger_.summary(1e-5)
    assert PERSON in page
    for text in (str(model.certificate_), page):
        assert RECORD in text
        assert "on average over repeated studies" in text
    assert "of new records" not in page
    assert "several records is protected less" not in page
    facts = model.ledger_.public_facts
    assert (facts["n_persons"], facts["rows_per_person"]) == (140, K)
    assert "n_records" not in facts
    assert any("persons are exchangeable" in a.sentence for a in model.certificate_.assumptions)
    assert model.ledger_.epsilon(1e-5, "rdp") <= 4.0


def test_sizes_and_numbers_of_persons_stay_private(tmp_path):
    """Two tables with other persons, sizes and kept rows leave no other number than noise does."""
    declared = []
    for m, longest in ((150, 8), (163, 50)):
        rng = np.random.default_rng(1)
        ids = np.repeat(np.arange(m), rng.integers(1, longest, m))
        X = rng.normal(size=(len(ids), 3))
        y = (X[:, 0] > 0).astype(int)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = classifier(guarantee="universal", rows_per_person=K, n_persons=155).fit(X, y, persons=ids)
        model.save(tmp_path / "model.dpscp")
        kept = np.minimum(np.bincount(ids), K).sum()
        secrets = {str(m), str(len(ids)), str(kept)}
        facts = {**model.ledger_.public_facts, **model.certificate_.terms}
        for name in ("released_sizes", "released_size", "rank_target", "noise_offset"):
            facts.pop(name)  # the noisy number of scores, paid for, and what follows from it
        words = [json.dumps(facts, default=str), *(str(w.message) for w in told if w.category is dp.SeededWarning)]
        digits = set("".join(c if c.isdigit() else " " for c in " ".join(words)).split())
        assert not digits & secrets
        declared.append(facts)
        assert not any(isinstance(v, np.ndarray) and len(v) in (m, len(ids), kept) for v in vars(model).values())
    assert declared[0] == declared[1]


def test_split_parts_and_groups_draw_persons(everywhere, monkeypatch):
    """No person has rows on both sides, each is scored once, and groups share no person."""
    X, y, ids = table()
    X[:, 2] = ids / 1000  # rows carry their person
    seen = {}
    import dpscp.core.fit as release

    def train(mechanism, source, **more):
        block = as_one_block(source)
        seen.setdefault("trained", block.read()[:, 2])  # of the outer mechanism
        seen.setdefault("persons", block.persons)
        return original(mechanism, source, **more)

    def count_scores(*scoring):
        counted = count(*scoring)
        seen["scored"] = sum(counts.size for counts in counted.counts)
        return counted

    original, count = Mechanism.train_source, release._count_scores
    monkeypatch.setattr(Mechanism, "train_source", train)
    everywhere("_count_scores", count_scores)
    fitted(classifier(guarantee="split", rows_per_person=K, groups=by_sign), X, y, persons=ids)
    trained = np.unique(np.round(1000 * seen["trained"]).astype(int))
    assert seen["scored"] == 150 - len(trained)
    sizes = np.minimum(np.bincount(ids), K)[trained]
    assert len(seen["trained"]) == sizes.sum()
    assert sorted(seen["persons"].sizes) == sorted(sizes)
    assert 0.5 < seen["persons"].count / 150 < 0.9


def test_corrected_scores_remove_the_whole_person(everywhere):
    from dpscp.core import tasks

    X, y, ids = table()
    seen = {}
    original = tasks.corrected_outputs

    def outputs(*records, persons=None, **more):
        seen.setdefault("persons", persons)
        return original(*records, persons=persons, **more)

    everywhere("corrected_outputs", outputs)
    fitted(classifier(guarantee="corrected", rows_per_person=K), X, y, persons=ids)
    assert seen["persons"].sizes.max() == K


def test_sampled_training_without_ids_stays_within_the_budget():
    """Sampled steps cost k rows more than k times their Gaussian-DP level: the planned ledger finds it out."""
    X, y, _ = table()
    sampled = DPSGD(steps=4, sampling_rate=0.2, hidden=())
    model = fitted(
        classifier(rows_per_person=4, guarantee="universal", accountant="pld").set_params(estimator=sampled), X, y
    )
    assert model.ledger_.epsilon(model.delta) <= 4.0


BAD = {
    "no cap": ({}, {"persons": "ids"}, ValueError, "rows_per_person is required"),
    "cap below 1": ({"rows_per_person": 0}, {"persons": "ids"}, ValueError, "rows_per_person"),
    "n_records": ({"rows_per_person": 2, "n_records": 5}, {"persons": "ids"}, ValueError, "pass n_persons"),
    "n_persons without ids": ({"rows_per_person": 2, "n_persons": 5}, {}, ValueError, "needs persons"),
    "too few ids": ({"rows_per_person": 2}, {"persons": "short"}, ValueError, "their lengths differ"),
    "a missing id": ({"rows_per_person": 2}, {"persons": "missing"}, ValueError, "missing id"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_persons_are_refused_before_a_record_is_used(name, everywhere):
    X, y, ids = table()
    settings, more, error, match = BAD[name]
    given = {"ids": ids, "short": ids[:-1], "missing": [None, *ids[1:]]}
    more = {key: given[value] for key, value in more.items()}

    def untouched(*_, **__):
        raise AssertionError("the release was started")

    everywhere("release", untouched)
    with pytest.raises(error, match=match) as caught:
        classifier(**settings).fit(X, y, **more)
    assert str(len(X)) not in str(caught.value)


def test_what_cannot_train_on_persons_is_refused():
    X, y, ids = table()
    with pytest.raises(TypeError, match="cannot train on persons"):
        classifier(rows_per_person=2).set_params(estimator=ObjectivePerturbation()).fit(X, y, persons=ids)
    elsewhere = fitted(classifier(), X, y)
    model = dp.PrivateModel(elsewhere.model_, elsewhere.ledger_)
    with pytest.raises(ValueError, match="training protects records"):
        classifier(rows_per_person=2, guarantee="split").set_params(estimator=model).fit(X, y, persons=ids)


# ---- without ids


def test_without_ids_every_row_pays_for_the_group():
    X, y, _ = table()
    model = fitted(classifier(rows_per_person=K, guarantee="universal", accountant="pld"), X, y)
    alone = fitted(classifier(guarantee="universal", accountant="pld"), X, y)
    delta = model.delta
    assert model.ledger_.rows == K
    assert 3.9 < model.ledger_.epsilon(delta) <= 4.0  # per person, as everywhere
    assert model.ledger_.epsilon(delta, rows=1) < 0.4 * alone.ledger_.epsilon(delta)
    noises = [m.ledger_.public_facts["noise_multiplier"] for m in (model, alone)]
    assert noises[0] / noises[1] == pytest.approx(K, rel=0.15)
    assert model.ledger_.tradeoff(0.05) == pytest.approx(alone.ledger_.tradeoff(0.05), abs=0.03)
    assert f"{PERSON}, at most {K}" in model.ledger_.summary(delta)
    assert "coverage is per record, not per person" in str(model.certificate_)
    assert RECORD not in str(model.certificate_)
    page = html_report(model)
    assert f"more than {K} records" in page
    assert "several records is protected less" not in page


def test_without_ids_a_budget_store_is_refused(tmp_path):
    """It adds up events of single rows: what a person with k of them has spent would look smaller than it is."""
    X, y, ids = table()
    dp.BudgetStore.create(tmp_path / "b", epsilon=9.0, delta=1e-5, dataset="d")
    store = dp.BudgetStore.open(tmp_path / "b", dataset="d")
    model = classifier(rows_per_person=K, random_state=None)
    with pytest.raises(ValueError, match="single records"):
        model.fit(X, y, budget=store)
    assert store.spent() == 0
    fitted(model, X, y, persons=ids, budget=store)
    assert 0 < store.spent() <= 4.0


# ---- own scores


def test_calibrate_counts_one_random_record_of_each_person():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(2000), rng.integers(1, 10, 2000))
    # persons with many rows have small scores: rows and persons have other quantiles
    sizes = np.bincount(ids)[ids]
    scores = rng.uniform(size=len(ids)) / sizes
    settings = {"epsilon": 5, "delta": 1e-5, "score_range": (0, 1), "held_out": True, "random_state": 0}
    found = dp.calibrate(scores, persons=ids, rows_per_person=4, **settings)
    weights = 1 / sizes
    covered = (weights * (scores <= found.threshold)).sum() / weights.sum()
    rows = dp.calibrate(scores, **settings)
    assert abs(covered - 0.9) < 0.03
    assert (weights * (scores <= rows.threshold)).sum() / weights.sum() < 0.8
    assert RECORD in str(found.certificate)
    assert found.ledger.neighbors == PERSON


def test_calibrate_asks_for_training_per_person():
    scores, settings = np.linspace(0, 1, 500), {"epsilon": 1, "delta": 1e-5, "score_range": (0, 1)}
    ids = np.repeat(np.arange(250), 2)
    spent = dp.Ledger().add("training", gaussian_event(20.0))
    with pytest.raises(ValueError, match="training protects records"):
        dp.calibrate(scores, training=spent, persons=ids, rows_per_person=2, **settings)
    told = spent.declare(n_persons=250, rows_per_person=2)  # a public fact says nothing about who is protected
    with pytest.raises(ValueError, match="training protects records"):
        dp.calibrate(scores, training=told, persons=ids, rows_per_person=2, **settings)
    by_person = dp.Ledger().add("training", gaussian_event(20.0), unit=dp.privacy.Unit(2, by_person=True))
    found = dp.calibrate(scores, training=by_person, persons=ids, rows_per_person=2, **settings)
    assert found.ledger.epsilon(1e-5) <= 1
    grouped = dp.calibrate(scores, training=spent, rows_per_person=2, **settings)
    assert grouped.ledger.epsilon(1e-5) <= 1
    assert grouped.ledger.epsilon(1e-5, rows=1) < 0.6
