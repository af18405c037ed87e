"""Overlapping groups: a row gets the largest threshold of its groups, and they are charged together."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dpscp as dp
from dpscp._base.assumptions import GROUP_FUNCTION
from dpscp.cli import main
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.tasks import OwnLosses
from dpscp.data.groups import Groups, largest_thresholds, places_of_matrix
from dpscp.data.schema import Schema
from dpscp.privacy import Budget, Ledger, compose, epsilon_of
from dpscp.privacy.events import DiscreteGaussianDpEvent, possible_histories
from dpscp.report import html_report
from dpscp.training import DPSGD

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")
RNG, DELTA = np.random.default_rng, 1e-5
QUICK = DPSGD(steps=10, learning_rate=1.0)


def sex(X):
    return np.where(np.asarray(X)[:, 0] > 0, "f", "m")


def age(X):
    return np.digitize(np.asarray(X)[:, 1], [-0.5, 0.5])


def both(X):
    """Women, the young and the old, as columns of a matrix."""
    X = np.asarray(X)
    return np.column_stack([X[:, 0] > 0, X[:, 1] < -0.5, X[:, 1] > 0.5])


SEVERAL = {"groups": Groups([sex, age], values=[["f", "m"], [0, 1, 2]])}
NAMES = ("sex=f", "sex=m", "age=0", "age=1", "age=2")
MATRIX = {"groups": Groups(both, values=["women", "young", "old"], per_record=2)}


def records(n=3_000, seed=0):
    rng = RNG(seed)
    X = rng.normal(size=(n, 3))
    return X, (X[:, 2] + 0.5 * (1 + (X[:, 0] > 0)) * rng.normal(size=n) > 0).astype(int)


def classifier(**options):
    given = {"epsilon": 4.0, "delta": DELTA, "classes": [0, 1], "guarantee": "universal", "accountant": "rdp"}
    return dp.PrivateConformalClassifier(QUICK, **given | {"random_state": 0} | options)


def calibrated(scores, **options):
    given = {"epsilon": 2.0, "delta": DELTA, "score_range": (0, 1), "held_out": True, "accountant": "rdp"}
    return dp.calibrate(scores, **given | {"random_state": 0} | options)


def count_noises(event):
    """How many noisy counts an event holds."""
    (history,) = possible_histories(event)
    return sum(n for basic, n in history.items() if isinstance(basic, DiscreteGaussianDpEvent))


# ---- what a group is


def test_a_row_gets_the_largest_threshold_of_its_groups_and_full_sets_without_one():
    thresholds = np.array([[0.1, 0.5], [0.3, 0.4], [0.2, np.inf]])
    found = largest_thresholds(np.array([[0, 1], [1, -1], [-1, -1], [2, 0]]), thresholds)
    assert found.tolist() == [[0.3, 0.5], [0.3, 0.4], [np.inf, np.inf], [0.2, np.inf]]
    assert largest_thresholds(np.array([2, -1]), thresholds).tolist() == [[0.2, np.inf], [np.inf, np.inf]]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: Groups([]), "at least one"),
        (lambda: [sex, age], "groups must be booleans if no values are declared"),
        (lambda: Groups([sex, age], values=[["f", "m"]]), "one list for each of the 2"),
        (lambda: Groups([sex, age], values=["fm", [0]]), "one list for each"),
        (lambda: Groups([sex, age], values=[["f", "f"], [0]]), "each group once"),
        (lambda: Groups([sex, "site"], values=[["f", "m"], None]), "'site' is a column, which needs a schema"),
        (lambda: Groups("site", values=["a"]), "remove its values"),
        (lambda: Groups([sex, age], values=[["f", "m"], [0, 1, 2]], per_record=2), "needs one function or array"),
        (lambda: Groups("site", per_record=2), "needs one function or array"),
        (lambda: Groups(both, per_record=1), "per_record needs values"),
        (lambda: Groups(both, values=[0, 1, 2], per_record=4), "at most the number of groups, 3"),
        (lambda: Groups(both, values=[0, 1], per_record=2), "boolean for each record"),
        (lambda: Groups(lambda X: both(X - np.mean(X)), values=[0, 1, 2], per_record=2), "that row alone"),
        (lambda: Groups(np.zeros(200, bool)), "arrays are for calibrate"),
    ],
)
def test_wrong_groups_are_refused_and_nothing_is_spent(wrong, match, tmp_path):
    store = dp.BudgetStore.create(tmp_path / "study", 9.0, DELTA, dataset="synthetic")
    with pytest.raises(ValueError, match=match):
        classifier(random_state=None, groups=wrong()).fit(*records(200), budget=store)
    assert not store.ledger().entries


# ---- what it costs


@pytest.mark.parametrize("per_record", [1, 2, 3])
def test_the_ledger_holds_the_searches_of_all_groups_of_a_record(per_record):
    """A record changes the counts of so many groups: what they release together must be within the budget."""
    rng = RNG(per_record)
    arrays = [rng.integers(0, 2, 600) for _ in range(per_record)]
    found = calibrated(rng.random(600), groups=Groups(arrays, values=[[0, 1]] * per_record))
    searches = found.quantiles
    assert len(searches) == len(found.threshold) == 2 * per_record
    # a record is in one group of each array: the groups at places 0, 2, 4, ...
    together = compose(*(q.event for q in searches[::2]))
    assert count_noises(found.ledger.event) == count_noises(together)
    assert epsilon_of(together, DELTA, "rdp") == pytest.approx(found.ledger.epsilon(DELTA, "rdp"), rel=1e-9)
    assert found.ledger.epsilon(DELTA, "rdp") <= 2.0


def test_more_groups_of_a_record_mean_more_noise_and_more_groups_alone_do_not():
    def noise(n_groups, per_record):
        groups = {"group_values": tuple(range(n_groups)), "groups_per_record": per_record}
        given = {"budget": Budget(1.0, DELTA), "guarantee": "split", "accountant": "rdp", "n_records": 4_000}
        problem = Problem(task=OwnLosses(most_steps=6), alphas=(0.1,), **given, **groups)
        return Plan.outline(problem, Ledger()).with_noise()

    one, four = noise(2, 1), noise(8, 4)
    assert noise(8, 1).noises == one.noises
    assert four.noises[0].count_noise == pytest.approx(2 * one.noises[0].count_noise, rel=0.02)
    assert four.size_noise.count_noise == pytest.approx(2 * one.size_noise.count_noise, rel=0.05)
    assert four.n_nominal == 2_000
    assert "8 groups, each record in at most 4" in four.ledger().entries[0].note


# ---- what it promises


def hard_scores(rng, n):
    """Scores of records in three overlapping groups; each makes scores larger, and more so together."""
    member = rng.random((n, 3)) < [0.5, 0.3, 0.2]
    return member, np.minimum(np.abs(rng.normal(size=n)) * (1 + member @ [0.5, 1.0, 2.0]) / 16, 1.0)


@pytest.mark.parametrize("form", [pytest.param("matrix", marks=pytest.mark.slow), "several"])
def test_each_group_is_covered_where_the_smallest_threshold_would_fail(form, is_quick):
    """60 studies, or 8: the mean coverage of each group, at least the level less three standard errors."""
    rng, largest, smallest = RNG(7), [], []
    for seed in range(8 if is_quick else 60):
        member, scores = hard_scores(rng, 500)
        new, new_scores = hard_scores(rng, 4_000)
        if form == "matrix":
            options = {"groups": Groups(member, values=["a", "b", "c"], per_record=3)}
            places = places_of_matrix(new, 3, 3, len(new))
        else:
            options = {"groups": Groups(list(member.T), values=[[True]] * 3)}
            places = np.where(new, [0, 1, 2], -1)
        found = calibrated(scores, n_records=500, random_state=seed, **options)
        inside = largest_thresholds(places, found.threshold[:, None])[:, 0]
        lowest = -largest_thresholds(places, -found.threshold[:, None])[:, 0]
        largest.append([(new_scores <= inside)[new[:, g]].mean() for g in range(3)])
        smallest.append([(new_scores <= lowest)[new[:, g]].mean() for g in range(3)])
    error = np.std(largest, axis=0) / math.sqrt(len(largest))
    assert (np.mean(largest, axis=0) >= 0.9 - 3 * error).all()
    assert np.mean(smallest, axis=0).min() < 0.87  # a row that got less than its group's threshold is missed


def test_records_beyond_the_maximum_count_in_no_group_and_are_covered_by_full_sets():
    """Their scores are the largest: counted, they would raise the thresholds; with finite sets they would be missed."""
    rng = RNG(0)
    member = np.zeros((4_000, 3), bool)
    member[np.arange(3_000), rng.integers(0, 3, 3_000)] = True
    member[3_000:] = True
    scores = np.where(member.all(axis=1), 0.95, rng.random(4_000) / 2)
    found = calibrated(scores, groups=Groups(member, values=[0, 1, 2], per_record=2))
    assert (found.threshold < 0.55).all()
    sets = largest_thresholds(places_of_matrix(member, 3, 2, 4_000), found.threshold[:, None])
    assert np.isinf(sets[3_000:]).all()
    assert np.isfinite(sets[:3_000]).all()


def test_persons_count_once_in_each_group_of_one_random_row():
    rng = RNG(1)
    persons, first = np.repeat(np.arange(500), 4), rng.integers(0, 2, 2_000)
    options = {"persons": persons, "rows_per_person": 4, "groups": [first == 1, first == 0]}
    found = calibrated(rng.random(2_000), n_persons=500, **options)
    sizes = found.ledger.public_facts["released_sizes"]
    assert sum(sizes) == pytest.approx(1_000, abs=150)  # each person is in two groups


def test_thinned_scores_keep_their_groups():
    rng = RNG(2)
    side = rng.integers(0, 2, 4_000)
    scores = np.where(side == 0, 0.1, 0.9) * rng.random(4_000)
    options = {"population": dp.Population(np.ones(4_000), bound=2.0), "groups": Groups(side, values=[0, 1])}
    found = calibrated(scores, **options)
    assert found.threshold[0] < 0.15 < found.threshold[1]
    assert sum(found.ledger.public_facts["released_sizes"]) == pytest.approx(2_000, abs=250)
    assert found.quantile is None
    with pytest.raises(ValueError, match="one-dimensional"):
        calibrated(scores.reshape(2, -1), groups=side == 1)


def test_losses_have_overlapping_groups_too():
    rng = RNG(3)
    member = rng.random((3_000, 2)) < 0.6
    need = rng.random(3_000) * np.where(member[:, 1], 1.0, 0.3)
    options = {"groups": Groups(member, values=["a", "b"], per_record=2)}
    found = dp.control_risk(
        lambda t: (need > t).astype(float),
        threshold_range=(0, 1),
        epsilon=4.0,
        delta=DELTA,
        accountant="rdp",
        random_state=0,
        **options,
    )
    assert found.threshold.shape == (2, 1)
    assert found.ledger.public_facts["groups_per_record"] == 2
    assert found.certificate.terms.groups_per_record == 2
    assert found.threshold[1, 0] > 0.85
    assert (need > found.threshold[0, 0])[member[:, 0]].mean() <= 0.12


# ---- the estimators


@pytest.mark.parametrize("options", [SEVERAL, MATRIX], ids=["several", "matrix"])
def test_a_classifier_with_overlapping_groups(options, tmp_path):
    X, y = records()
    fitted = clone(classifier(confidence_level=[0.8, 0.9], **options)).fit(X, y)
    names = NAMES if options is SEVERAL else ("women", "young", "old")
    assert fitted.group_values_ == names
    assert fitted.threshold_.shape == (len(names), 2)
    new, truth = records(4_000, seed=1)
    places = fitted.group_of(new, len(new))
    assert places.shape == (4_000, 2)
    _, sets = fitted.predict_set(new)
    scores = 1 - fitted.predict_proba(new)
    assert np.array_equal(sets, scores[:, :, None] <= largest_thresholds(places, fitted.threshold_)[:, None, :])
    if options is MATRIX:
        assert sets[(places < 0).all(axis=1)].all()  # in no group: full sets
    covered = sets[np.arange(4_000), truth, 1]
    for g in range(len(names)):
        assert covered[(places == g).any(axis=1)].mean() > 0.88
    assert fitted.ledger_.public_facts["groups_per_record"] == 2
    assert fitted.ledger_.public_facts["group_values"] == names
    assert GROUP_FUNCTION in fitted.ledger_.assumptions
    assert "largest threshold of its groups" in str(fitted.certificate_)
    fitted.save(tmp_path / "model.dpscp")
    loaded = dp.load(tmp_path / "model.dpscp")
    with pytest.raises(ValueError, match=r"call set_params\(groups="):
        loaded.predict_set(new)
    loaded.groups = options["groups"]
    assert np.array_equal(loaded.predict_set(new)[1], sets)
    assert json.dumps(fitted.statement()).count("groups_per_record")
    shown = html_report(fitted)
    assert all(f"group {name}" in shown or str(name) in shown for name in names)


def test_columns_of_a_schema_are_groups_and_come_back_from_a_file(tmp_path):
    rng = RNG(0)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], 2_000), "site": rng.choice(["a", "b", "c"], 2_000)})
    frame["x"] = rng.normal(size=2_000)
    frame["y"] = np.where(frame.x + 0.3 * rng.normal(size=2_000) > 0, "yes", "no")
    categorical = {n: {"type": "categorical", "categories": sorted(set(frame[n]))} for n in ("sex", "site")}
    schema = Schema.from_dict(
        {
            "task": "classification",
            "target": "y",
            "classes": ["no", "yes"],
            "columns": {**categorical, "x": {"type": "numeric", "bounds": [-4, 4]}},
        }
    )
    fitted = classifier(classes=None, groups=["sex", "site"]).fit(frame, "y", schema=schema)
    assert fitted.group_values_ == ("sex=f", "sex=m", "site=a", "site=b", "site=c")
    assert GROUP_FUNCTION not in fitted.ledger_.assumptions  # no function of the caller
    fitted.save(tmp_path / "model.dpscp")
    loaded = dp.load(tmp_path / "model.dpscp")
    assert np.array_equal(loaded.predict_set(frame)[1], fitted.predict_set(frame)[1])
    measured = dp.evaluate(loaded, frame, frame.y, epsilon=2.0, delta=DELTA, random_state=0)
    assert list(measured.by_group) == list(fitted.group_values_)
    by_site = dp.evaluate(loaded, frame, frame.y, epsilon=2.0, delta=DELTA, groups="site", random_state=0)
    assert list(by_site.by_group) == ["a", "b", "c"]


@pytest.mark.parametrize("options", [SEVERAL, MATRIX], ids=["several", "matrix"])
def test_an_evaluation_charges_the_groups_of_a_record(options):
    X, y = records(1_500)
    fitted = classifier().fit(X, y)
    measured = dp.evaluate(fitted, X, y, epsilon=3.0, delta=DELTA, random_state=0, **options)
    plain = dp.evaluate(fitted, X, y, epsilon=3.0, delta=DELTA, random_state=0)
    # one count more for each of the two groups of a record
    assert count_noises(measured.ledger.event) == count_noises(plain.ledger.event) + 2
    assert len(measured.by_group) == (5 if options is SEVERAL else 3)
    covered = fitted.predict_set(X)[1][np.arange(1_500), y, 0]
    inside = X[:, 0] > 0
    low, high = next(iter(measured.by_group.values())).interval
    assert low <= covered[inside].mean() <= high
    assert measured.ledger.epsilon(DELTA) <= 3.0
    with pytest.raises(TypeError, match="must be a function of X"):
        dp.evaluate(fitted, X, y, epsilon=1.0, delta=DELTA, groups=5)
    with pytest.raises(ValueError, match="no values are declared"):
        dp.evaluate(fitted, X, y, epsilon=1.0, delta=DELTA, groups=[sex])


def test_the_command_line_takes_several_columns(tmp_path, monkeypatch):
    rng = RNG(0)
    frame = pd.DataFrame({"sex": rng.choice(["f", "m"], 600), "site": rng.choice(["a", "b"], 600)})
    frame["y"] = np.where((frame.sex == "f") ^ (rng.random(600) < 0.2), "yes", "no")
    monkeypatch.chdir(tmp_path)
    frame.to_csv("t.csv", index=False)
    columns = {name: {"type": "categorical", "categories": sorted(set(frame[name]))} for name in ("sex", "site")}
    declared = {"task": "classification", "target": "y", "classes": ["no", "yes"], "n_records": 600}
    Path("t.toml").write_text(Schema.from_dict({**declared, "columns": columns}).to_toml())
    fit = ["fit", "t.csv", "--schema", "t.toml", "--groups", "sex", "--groups", "site", "-o", "m.dpscp", "--seed", "1"]
    assert main([*fit, "--epsilon", "8", "--confidence", "0.6"]) == 0
    assert dp.load("m.dpscp").group_values_ == ("sex=f", "sex=m", "site=a", "site=b")
    planned = dp.plan(8_000, 1.0, groups=Groups(both, values=range(4), per_record=2))
    assert planned.row("universal").count_noise > 1.2 * dp.plan(8_000, 1.0, groups=4).row("universal").count_noise
