"""``evaluation_fraction``: a third secret part measures the fit, within its budget and with intervals that hold."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core.evaluation import (
    CountOutcomes,
    OutcomeCounts,
    labeled_outcomes,
)
from dpscp.core.fit import _parts
from dpscp.core.fit_plan import FitPlan, Parts
from dpscp.core.plan import EvaluationPlan
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Classification
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block
from dpscp.data.sources.places import Places, take_census
from dpscp.privacy import Budget, Ledger, SecretSplitDpEvent, lattice_noise, secure_generator
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.report import html_report
from dpscp.training import DPSGD

QUICK = DPSGD(steps=10, learning_rate=1.0)


def data(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)


def by_sign(X):
    return (np.asarray(X)[:, 1] > 0).astype(int)


def classifier(estimator=QUICK, **changes):
    options = {"epsilon": 1.0, "delta": 1e-6, "classes": [0, 1], "feature_bounds": (-1, 1), "accountant": "rdp"}
    return dp.PrivateConformalClassifier(
        estimator, **options | {"evaluation_fraction": 0.2, "random_state": 0} | changes
    )


@pytest.mark.parametrize("n_blocks", [1, 4])
@pytest.mark.parametrize("with_persons", [False, True])
def test_three_parts_share_no_person_and_have_their_shares(n_blocks, with_persons):
    n, f, g = 4_000, 0.2, 0.1
    given = {"task": Classification((0, 1)), "budget": Budget(1.0, 1e-6), "guarantee": "split"}
    problem = FitProblem(alphas=(0.1,), n_records=n, **given)
    evaluation = EvaluationPlan(g, lattice_noise(1.0, Fraction(1)), 4)
    plan = FitPlan.outline(problem, Ledger(), part=f, parts=Parts(0.5, 0.5, None, f, g), evaluation=evaluation)
    ids = np.arange(2 * n if with_persons else n, dtype=float)[:, None]
    blocks = []
    for number, rows in enumerate(np.array_split(ids, n_blocks)):
        persons = Persons(np.arange(0, len(rows) + 1, 2)) if with_persons else None
        blocks.append(Block(number, rows, np.zeros(len(rows), dtype=np.int64), persons))
    source = ArraySource.of_blocks(blocks)
    found = [_ids(part, n_blocks) for part in _parts(source, plan, 5)]
    if with_persons:  # both rows of a person lie in one part
        found = [sorted({int(i) // 2 for i in part}) if len(part) % 2 == 0 else None for part in found]
    assert sorted(i for part in found for i in part) == list(range(n))
    for part, share in zip(found, (1 - f - g, f, g), strict=True):
        assert abs(len(part) - share * n) <= 6 * math.sqrt(share * (1 - share) * n)


def _ids(part, n_blocks):
    found = []

    def look(block):
        found.extend(block.read()[:, 0].astype(int).tolist())
        return 0

    part.sum(look)
    return sorted(found)


def test_the_whole_fit_stays_within_the_budget_and_the_ledger_shows_three_parts():
    X, y = data(3_000, 1)
    fitted = classifier(accountant="pld", n_records=3_000).fit(X, y)
    assert 0.99 < fitted.ledger_.epsilon(1e-6) <= 1.0
    (entry,) = fitted.ledger_.entries
    assert [name for name, _ in entry.stages] == ["training", "calibration", "evaluation"]
    assert isinstance(entry.event, SecretSplitDpEvent)
    fraction = fitted.ledger_.public_facts["calibration_fraction"]
    assert entry.event.fraction == pytest.approx(fraction + 0.2)
    assert entry.event.held_out.fraction == pytest.approx(0.2 / (fraction + 0.2))
    measured = entry.event.held_out.held_out
    assert (measured.count, measured.event.sensitivity > 0) == (4, True)
    assert fitted.evaluation_.ledger is fitted.ledger_
    statement = fitted.statement()
    assert {m["stage"]: m["part_of_records"] for m in statement["mechanisms"]}["evaluation"] == pytest.approx(0.2)
    page = html_report(fitted)
    assert 'id="private-check"' in page
    assert "Evaluation on data outside the promise" not in page
    assert statement["evaluation"]["coverage"][0]["estimate"] == fitted.evaluation_.coverage.estimate


def test_an_accountant_that_cannot_mix_counts_the_worst_of_three_parts(tmp_path):
    X, y = data(3_000, 1)
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=1.0, delta=1e-6, dataset="d")
    fitted = classifier(random_state=None).fit(X, y, budget=dp.BudgetStore.open(tmp_path / "b", dataset="d"))
    (entry,) = fitted.ledger_.entries
    assert len(entry.stages) == 3
    assert fitted.ledger_.epsilon(1e-6, "rdp") <= 1.0
    assert store.ledger().entries[0].event == entry.event


def test_intervals_hold_what_fresh_records_show(is_quick):
    X_new, y_new = data(20_000, 99)
    missed = []
    for seed in range(10 if is_quick else 25):
        fitted = classifier(random_state=seed).fit(*data(1_500, 200 + seed))
        labels, sets = fitted.predict_set(X_new)
        found = fitted.evaluation_
        truth = sets[np.arange(len(y_new)), y_new, 0].mean(), (labels == y_new).mean(), sets.sum(axis=1).mean()
        for value, estimate in zip(truth, (found.coverage, found.accuracy, found.set_size), strict=True):
            low, high = estimate.interval
            missed.append(not low - 0.005 <= value <= high + 0.005)  # fresh records have an error of their own
    # each holds with probability .95; a binomial bound at one in two thousand
    assert np.sum(missed) <= stats.binom.isf(5e-4, len(missed), 0.05)


@pytest.mark.parametrize("options", [{}, {"groups": "label"}, {"groups": dp.Groups(by_sign, values=[0, 1])}])
def test_a_fit_counts_what_its_predictions_do(options):
    X, y = data(1_200, 3)
    fitted = classifier(confidence_level=[0.8, 0.9], **options).fit(X, y)
    grouped = fitted.group_values_ is not None
    groups = {None: None, "label": y}.get(options.get("groups"), by_sign(X))
    by_label = options.get("groups") == "label"
    thresholds = fitted.threshold_ if grouped else fitted.threshold_[None, :]
    block = Block(0, X, y, groups=groups)
    draws, places = PlacedDraws.of(0), Places.of(take_census(block))
    count = CountOutcomes(fitted._task(), fitted.model_, thresholds, 2 if grouped else 0, by_label, draws, places)
    found = OutcomeCounts(*count(block))
    outcomes = labeled_outcomes(fitted, X, y, groups=fitted.declared_groups())
    expected = OutcomeCounts.of(
        outcomes, 2, 2 if grouped and not by_label else 0, secure_generator(None).random((1_200, 3))
    )
    np.testing.assert_array_equal(found.totals.sum(axis=1), 1_200)
    # missed at both levels, errors
    np.testing.assert_array_equal(found.totals[[0, 1, 4]], expected.totals[[0, 1, 4]])
    np.testing.assert_array_equal(found.classes, expected.classes)
    np.testing.assert_array_equal(found.groups, expected.groups)
    assert found.totals[2, 0] == pytest.approx(outcomes.sizes[:, 0].sum(), abs=6 * math.sqrt(1_200) / 2)


def test_intervals_of_regression_are_counted_too():
    X, _ = data(1_200, 4)
    y = X[:, 0] + 0.1 * X[:, 1]
    fitted = dp.PrivateConformalRegressor(
        epsilon=2.0, y_bounds=(-2, 2), feature_bounds=(-1, 1), evaluation_fraction=0.3, accountant="rdp", random_state=0
    ).fit(X, y)
    block = Block(0, X, y)
    draws, places = PlacedDraws.of(0), Places.of(take_census(block))
    count = CountOutcomes(fitted._task(), fitted.model_, fitted.threshold_[None, :], 0, False, draws, places)
    found, outcomes = OutcomeCounts(*count(block)), labeled_outcomes(fitted, X, y)
    assert found.totals[0].tolist() == [1_200 - outcomes.covered.sum(), outcomes.covered.sum()]
    assert fitted.evaluation_.mean_absolute_error.interval[0] >= 0


def test_records_that_a_likelihood_ratio_rejects_are_not_counted():
    X, y = data(3_000, 10)
    fitted = classifier(population=dp.Population(lambda rows: np.where(rows[:, 1] > 0, 2.0, 0.0), bound=2.0)).fit(X, y)
    groups = np.where(X[:, 1] > 0, 0, -1)
    block = Block(0, X, y, groups=groups)
    draws, places = PlacedDraws.of(0), Places.of(take_census(block))
    count = CountOutcomes(fitted._task(), fitted.model_, fitted.threshold_[None, :], 0, False, draws, places, True)
    found, kept = OutcomeCounts(*count(block)), groups == 0
    outcomes = labeled_outcomes(fitted, X[kept], y[kept])
    assert found.totals[0].tolist() == [(~outcomes.covered).sum(), outcomes.covered.sum()]
    low, high = fitted.evaluation_.n_records.interval
    spread = 6 * math.sqrt(3_000 * 0.09)
    assert low - spread <= 0.2 * 1_500 <= high + spread
    assert "declared population" in fitted.statement()["coverage"][0]["about"]


def test_a_person_is_counted_once():
    X, y = data(600, 5)
    ids = np.repeat(np.arange(200), 3)
    fitted = classifier(rows_per_person=3, n_persons=200, evaluation_fraction=0.4, epsilon=8.0).fit(X, y, persons=ids)
    low, high = fitted.evaluation_.n_records.interval
    assert low <= 80 + 6 * math.sqrt(200 * 0.24)
    assert high < 0.4 * 600
    assert fitted.ledger_.unit.by_person


def test_a_source_in_blocks_is_measured(tmp_path):
    X, y = data(2_000, 6)
    fitted = classifier(None, n_records=2_000).fit(ArraySource(X, y, n_blocks=3))
    low, high = fitted.evaluation_.n_records.interval
    spread = 6 * math.sqrt(2_000 * 0.16)
    assert low - spread <= 400 <= high + spread
    fitted.save(tmp_path / "m")
    loaded = dp.load(tmp_path / "m")
    assert loaded.evaluation_ == fitted.evaluation_
    assert loaded.statement() == fitted.statement()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guarantee": "universal"}, "evaluation_fraction needs guarantee='split'"),
        ({"evaluation_fraction": 1.5}, "evaluation_fraction must"),
        ({"evaluation_fraction": 0.6, "calibration_fraction": 0.5}, "must leave records for training"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_spent(changes, message, tmp_path):
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=1.0, delta=1e-6, dataset="d")
    with pytest.raises(ValueError, match=message):
        classifier(random_state=None, **changes).fit(
            *data(300, 8), budget=dp.BudgetStore.open(tmp_path / "b", dataset="d")
        )
    assert not store.ledger().entries
