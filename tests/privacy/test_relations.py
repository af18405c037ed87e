"""A step that is private for replacing one record never becomes a promise for adding or removing one."""

import json
import math

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.guarantees import universal_alpha
from dpscp.privacy import (
    Entry,
    Relation,
    Unit,
    as_accountant,
    as_event,
    dpsgd_event,
    gaussian_event,
    gdp_epsilon,
)

REPLACE = Relation.REPLACE_ONE
DELTA = 1e-5


def trained(mu=0.5, **options):
    return dp.Ledger().add("training", gaussian_event(1 / mu), relation=REPLACE, **options)


def test_a_replacement_costs_two_steps_exactly_for_gaussian_noise():
    ledger = trained(0.5).add("calibration", gaussian_event(2.0))
    both = math.sqrt(0.5**2 + 0.5**2)
    assert ledger.relation is REPLACE
    assert ledger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, 2 * both), rel=1e-4)
    assert ledger.epsilon(DELTA) == as_accountant("pld").replacement_epsilon(ledger.event, DELTA)
    plain = dp.Ledger().add("training", gaussian_event(2.0)).add("calibration", gaussian_event(2.0))
    assert plain.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, both), rel=1e-4)
    assert ledger.epsilon(DELTA) == as_accountant("pld").replacement_epsilon(plain.event, DELTA)
    assert ledger.delta(ledger.epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-3)
    x = np.linspace(0.01, 0.99, 9)
    expected = stats.norm.cdf(stats.norm.ppf(1 - x) - 2 * both)
    np.testing.assert_allclose(ledger.tradeoff(x), expected, atol=1e-6)
    for direction in ("add", "remove", "both"):
        np.testing.assert_allclose(ledger.tradeoff_function(direction)(x), expected, atol=1e-6)


def test_several_records_of_a_person_are_all_replaced():
    ledger = trained(0.2, unit=Unit(3))
    assert ledger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, 2 * 3 * 0.2), rel=1e-4)
    assert trained(0.2).epsilon(DELTA, rows=3) == pytest.approx(gdp_epsilon(DELTA, 2 * 3 * 0.2), rel=1e-4)
    x = np.linspace(0.05, 0.95, 5)
    np.testing.assert_allclose(ledger.tradeoff(x), stats.norm.cdf(stats.norm.ppf(1 - x) - 1.2), atol=1e-6)


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (trained(), "replacing one record by another"),
        (trained(unit=Unit(2, by_person=True)), "replacing one person with all their records by another"),
        (trained(unit=Unit(2)), "replacing one person with all their records by another"),
        (dp.Ledger().add("training", gaussian_event(1.0)), "adding or removing one record"),
    ],
)
def test_the_relation_is_said_wherever_the_promise_is(ledger, words):
    assert ledger.neighbors.startswith(words)
    for text in (str(ledger), ledger.summary(DELTA), ledger._repr_html_()):
        assert words in text


def test_one_entry_makes_the_whole_ledger_about_a_replacement_and_nothing_undoes_it():
    plain = dp.Ledger().add("bounds", gaussian_event(5.0))
    assert plain.relation is Relation.ADD_OR_REMOVE
    for joined in (plain.then(trained()), trained().then(plain), trained().add("search", gaussian_event(3.0))):
        assert joined.relation is REPLACE
        assert joined.convert_unit(Unit(2)).relation is REPLACE
        again = dp.Ledger.from_json(joined.to_json())
        assert again == joined
        assert again.relation is REPLACE
    written = trained().to_dict()
    for damage in ("add", None, 1):
        written["entries"][0]["relation"] = damage
        with pytest.raises(ValueError, match="ledger"):
            dp.Ledger.from_dict(json.loads(json.dumps(written)))
    with pytest.raises(ValueError, match="Relation"):
        Entry("training", gaussian_event(1.0), relation="none")


def test_what_is_about_adding_or_removing_refuses_a_replacement(tmp_path):
    store = dp.BudgetStore.create(tmp_path / "store", 50.0, 1e-5, dataset="x")
    with pytest.raises(ValueError, match="replacing one"):
        store.reserve(trained())
    with pytest.raises(ValueError, match="replacing one"):
        as_event(trained())
    assert not store.ledger().entries


SCORES = np.random.default_rng(0).uniform(size=4000)
SETTINGS = {"epsilon": 2.0, "delta": DELTA, "score_range": (0, 1), "random_state": 0, "n_records": 4000}


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_calibration_after_a_replacement_stays_in_the_budget_and_says_so(accountant):
    event = dpsgd_event(8.0, 0.05, 200)
    ledger = dp.Ledger().add("training", event, relation=REPLACE)
    with pytest.warns(dp.GuaranteeWarning, match="replacing one record only"):
        found = dp.calibrate(SCORES, training=ledger, accountant=accountant, **SETTINGS)
    assert found.ledger.relation is REPLACE
    assert found.ledger.epsilon(DELTA, accountant) <= 2.0
    assert found.certificate.terms.relation is REPLACE
    assert dp.Certificate.from_dict(json.loads(json.dumps(found.certificate.to_dict()))) == found.certificate
    # Result B: the curve of a replacement is two chained steps, so more is calibrated for than after one
    once = dp.calibrate(SCORES, training=event, accountant=accountant, **SETTINGS)
    assert found.certificate.coverage == once.certificate.coverage == 0.9
    plain = dp.Ledger().add("training", event)
    extra = [  # what the size that is released costs, the same for both
        c.certificate.terms.inner_level - (1 - universal_alpha(0.1, spent.tradeoff_function("add")))
        for c, spent in ((found, ledger), (once, plain))
    ]
    assert 0 <= extra[0] == pytest.approx(extra[1], abs=2e-6)
    assert found.certificate.terms.inner_level > once.certificate.terms.inner_level
    assert found.quantile.count_noise > once.quantile.count_noise
    assert once.certificate.terms.relation is Relation.ADD_OR_REMOVE


def test_an_engine_of_another_package_states_its_relation(tmp_path):
    model = dp.PrivateModel.from_outputs(
        lambda X: np.column_stack([-X[:, 0], X[:, 0]]),
        spent=gaussian_event(20.0),
        task="classification",
        n_features=2,
        classes=(0, 1),
        relation=REPLACE,
    )
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2))
    y = (X[:, 0] > 0).astype(int)
    clf = dp.PrivateConformalClassifier(model, epsilon=2.0, guarantee="universal", n_records=1500, random_state=0)
    with pytest.warns(dp.GuaranteeWarning, match="replacing one record only"):
        clf.fit(X, y)
    assert clf.ledger_.relation is REPLACE
    assert clf.ledger_.epsilon(1e-5) <= 2.0
    assert clf.certificate_.terms.relation is REPLACE
    statement = clf.statement()["privacy"]
    assert statement["neighbor_relation"]["relation"] == "replace one unit"
    assert statement["neighbor_relation"]["words"].startswith("replacing one record")
    assert statement["epsilon"] == statement["replace_one"]["epsilon"]
    store = dp.BudgetStore.create(tmp_path / "store", 9.0, 1e-5, dataset="x")
    with pytest.raises(ValueError, match="budget store"), pytest.warns(dp.GuaranteeWarning, match="replacing one"):
        clf.set_params(random_state=None).fit(X, y, budget=store)
    assert not store.ledger().entries
    with pytest.raises(ValueError, match="relation needs an event"):
        dp.PrivateModel.from_outputs(lambda X: X, spent=trained(), task="regression", n_features=1, relation=REPLACE)
