"""The unit of privacy is a type: facts change no promise, unlike units do not add up, and every print says the same."""

import json
import math
import pickle
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import dpscp as dp
from dpscp._base.format import format_epsilon
from dpscp.cli.lines import describe
from dpscp.data.persons import keep_rows
from dpscp.privacy import (
    RECORDS,
    Unit,
    count_noise,
    dpsgd_event,
    gaussian_event,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    secret_split,
)
from dpscp.torch.opacus import ledger_of_engine
from dpscp.training import DPSGD, OutputPerturbation

DELTA, MU, K = 1e-5, 0.3, 5
UNITS = {"record": RECORDS, "ids": Unit(K, by_person=True), "no ids": Unit(K)}
WORDS = {
    "record": "adding or removing one record",
    "ids": "adding or removing one person with all their records",
    "no ids": f"adding or removing one person with all their records, at most {K}",
}


def spent(unit=RECORDS, mu=MU, **facts):
    return dp.Ledger().add("training", gaussian_event(1 / mu), unit=unit).declare(**facts)


def rows_of(name):
    return K if name == "no ids" else 1


# ---- numbers and words follow from the unit alone


@pytest.mark.parametrize("name", UNITS)
def test_every_number_is_that_of_the_unit(name):
    ledger, mu = spent(UNITS[name]), rows_of(name) * MU
    assert ledger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, mu), rel=1e-12)
    assert gdp_delta(1.0, mu) * (1 - 1e-9) <= ledger.delta(1.0) <= gdp_delta(1.0, mu) * (1 + 2e-6)
    np.testing.assert_allclose(ledger.delta([0.5, 2.0]), [gdp_delta(e, mu) for e in (0.5, 2.0)], rtol=2e-6)
    np.testing.assert_allclose(ledger.tradeoff([0.01, 0.3]), gaussian_tradeoff(mu)(np.array([0.01, 0.3])), rtol=1e-12)
    assert ledger.neighbors == ledger.neighbors == WORDS[name]
    assert ledger.rows == rows_of(name)
    assert ledger.unit == UNITS[name]


FACTS = [
    {"n_persons": 100},
    {"rows_per_person": 7},
    {"n_persons": 100, "rows_per_person": 7},
    {"n_records": 9, "unit": "person", "rows": 1},
]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: "+".join(facts))
@pytest.mark.parametrize("name", UNITS)
def test_no_public_fact_changes_a_number_or_a_word(name, facts):
    ledger = spent(UNITS[name])
    declared = ledger.declare(**facts)
    assert declared.epsilon(DELTA) == ledger.epsilon(DELTA)
    assert declared.delta(1.0) == ledger.delta(1.0)
    assert declared.tradeoff(0.05) == ledger.tradeoff(0.05)
    assert (declared.neighbors, declared.unit, str(declared)) == (ledger.neighbors, ledger.unit, str(ledger))
    assert declared.summary(DELTA).splitlines()[:4] == ledger.summary(DELTA).splitlines()[:4]
    again = dp.Ledger.from_json(declared.to_json())
    assert (again.epsilon(DELTA), again.unit) == (ledger.epsilon(DELTA), ledger.unit)


def test_delta_for_several_rows_is_an_upper_bound_that_agrees_with_epsilon():
    ledger = dp.Ledger().add("a", dpsgd_event(2.0, 0.1, 20), unit=Unit(3))
    delta = ledger.delta(2.0)
    assert delta > 3 * dp.Ledger().add("a", dpsgd_event(2.0, 0.1, 20)).delta(2.0)
    assert ledger.epsilon(delta) <= 2.0 < ledger.epsilon(delta * (1 - 1e-5))
    assert ledger.add("b", dp.privacy.non_private_event()).delta(2.0) == 1.0


# ---- which units add up


def test_rows_add_up_to_the_largest_bound():
    """What one row meets composes; the chain of the composition covers the largest number of rows."""
    both = math.hypot(MU, 0.4)
    mixed = spent().add("more", gaussian_event(1 / 0.4), unit=Unit(3))
    assert mixed.unit == Unit(3)
    assert mixed.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, 3 * both), rel=1e-9)
    larger = mixed.then(spent(Unit(K), 1e-6))
    assert larger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, K * both), rel=1e-6)
    assert [entry.unit for entry in larger.entries] == [RECORDS, Unit(3), Unit(K)]
    back = larger.convert_unit(RECORDS)
    assert back.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, both), rel=1e-9)
    assert back.convert_unit(Unit(2)).neighbors.endswith("at most 2")


def test_persons_with_ids_add_up_whatever_their_caps():
    ledger = spent(Unit(2, by_person=True)).then(spent(Unit(4, by_person=True), 0.4))
    assert ledger.unit == Unit(4, by_person=True)
    assert ledger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, math.hypot(MU, 0.4)), rel=1e-9)
    assert ledger.convert_unit(Unit(9, by_person=True)) == ledger


@pytest.mark.parametrize("other", [RECORDS, Unit(3)], ids=["record", "no ids"])
def test_rows_and_persons_with_ids_do_not_add_up(other):
    event = gaussian_event(2.0)
    persons, rows = spent(Unit(3, by_person=True)), spent(other)
    written = persons.to_dict()
    written["entries"] += rows.to_dict()["entries"]
    for attempt in (
        lambda: persons.then(rows),
        lambda: rows.then(persons),
        lambda: persons.add("more", event, unit=other),
        lambda: rows.add("more", event, unit=Unit(3, by_person=True)),
        lambda: persons.add_disjoint({"a": event, "b": gaussian_event(3.0)}, unit=other),
        lambda: dp.Ledger(persons.entries + rows.entries),
        lambda: dp.Ledger.from_dict(written),
        lambda: persons.convert_unit(other),
        lambda: rows.convert_unit(Unit(3, by_person=True)),
    ):
        with pytest.raises(ValueError, match="cannot be added up"):
            attempt()


def test_a_store_does_not_add_up_rows_and_persons(tmp_path):
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=9.0, delta=DELTA, dataset="d")
    store.reserve(spent())
    before = store.spent()
    with pytest.raises(ValueError, match="cannot be added up"):
        store.reserve(spent(Unit(3, by_person=True)))
    assert store.spent() == before
    with pytest.raises(ValueError, match="several records at once"):
        store.reserve(spent(Unit(3)))
    assert store.spent() == before


def test_noise_is_not_solved_for_one_row_of_several():
    with pytest.raises(ValueError, match="at most 5 records"):
        count_noise(1.0, DELTA, steps=3, training=spent(Unit(K)))


# ---- training about persons, followed by a search over rows


def table():
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(150), rng.integers(1, 6, 150))
    X = rng.normal(size=(len(ids), 3))
    return X, (X[:, 0] > 0).astype(int), ids


def trained_by_person():
    X, y, ids = table()
    kept, persons = keep_rows(ids, n_rows=len(ids), rows_per_person=3, random_state=0)
    return X[kept], y[kept], persons


MECHANISMS = {
    "dpsgd": DPSGD(steps=2, noise_multiplier=9.0, hidden=(), classes=(0, 1)),
    "output": OutputPerturbation(loss="logistic", noise_multiplier=9.0, classes=(0, 1), regularization=1.0),
}
CALIBRATED = {"epsilon": 9.0, "delta": DELTA, "score_range": (0, 1), "random_state": 0}


@pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_model_trained_on_persons_is_not_calibrated_on_rows(name):
    X, y, persons = trained_by_person()
    trained = MECHANISMS[name].train(X, y, random_state=0, persons=persons)
    model = dp.PrivateModel.from_trained(trained)
    assert model.ledger.unit == Unit(3, by_person=True)
    scores = np.linspace(0, 1, 400)
    for more in ({}, {"rows_per_person": K}, {"held_out": True}):
        with pytest.raises(ValueError, match="protects persons with ids, but the calibration protects one record"):
            dp.calibrate(scores, training=model.ledger, **CALIBRATED, **more)
    for more in ({}, {"rows_per_person": K}, {"guarantee": "split"}):
        fit = dp.PrivateConformalClassifier(model, classes=[0, 1], epsilon=9.0, delta=DELTA, random_state=0, **more)
        with pytest.raises(ValueError, match="protects persons with ids, but the calibration protects one record"):
            fit.fit(X, y)
    rows = dp.PrivateModel.from_trained(MECHANISMS[name].train(X, y, random_state=0))
    assert rows.ledger.unit == RECORDS


def test_what_opacus_trained_on_rows_is_not_calibrated_on_persons():
    engine = SimpleNamespace(accountant=SimpleNamespace(history=[(9.0, 0.1, 5)]))
    ledger, ids = ledger_of_engine(engine), np.repeat(np.arange(200), 2)
    assert ledger.unit == RECORDS
    with pytest.raises(ValueError, match="protects records, but the calibration protects one person"):
        dp.calibrate(np.linspace(0, 1, 400), training=ledger, persons=ids, rows_per_person=2, **CALIBRATED)


def test_a_ledger_about_several_rows_is_not_used_for_fewer():
    scores, training = np.linspace(0, 1, 400), spent(Unit(K), 0.05)
    for more in ({}, {"rows_per_person": K - 1}):
        with pytest.raises(ValueError, match="pass rows_per_person=5 or more"):
            dp.calibrate(scores, training=training, **CALIBRATED, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = dp.calibrate(scores, training=training, **CALIBRATED, rows_per_person=K + 1)
    assert found.ledger.unit == Unit(K + 1)
    assert found.ledger.epsilon(DELTA) <= 9.0


# ---- every print says it


@pytest.fixture(scope="module")
def model():
    X, y, _ = table()
    fit = dp.PrivateConformalClassifier(
        OutputPerturbation(loss="logistic"), classes=[0, 1], epsilon=4.0, delta=DELTA, guarantee="universal"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit.set_params(random_state=0, confidence_level=0.7).fit(X, y)


@pytest.mark.parametrize("name", UNITS)
def test_every_printed_promise_is_that_of_the_unit(model, name):
    pytest.importorskip("jinja2")
    from dpscp.report import html_report

    ledger, rows = spent(UNITS[name]).add("calibration", gaussian_event(1 / 0.4), unit=UNITS[name]), rows_of(name)
    total = gdp_epsilon(DELTA, rows * math.hypot(MU, 0.4))
    alone = [format_epsilon(gdp_epsilon(DELTA, rows * mu)) for mu in (MU, 0.4)]
    printed, words = format_epsilon(total), WORDS[name]
    for lines in (str(ledger).splitlines(), ledger.summary(DELTA).splitlines()):
        assert [re.split(r"\s{2,}", line)[1] for line in lines[2:5]] == [*alone, printed]
        assert lines[4].endswith(f"for {words}")
    cells = re.findall("<td>([^<]*)</td>", ledger._repr_html_())
    assert cells[1::3] == [*alone, printed]
    assert cells[-1] == f"for {words}"
    fitted = dp.PrivateConformalClassifier(**model.get_params(deep=False))
    vars(fitted).update(vars(model) | {"ledger_": ledger})
    values, lines = describe(fitted)
    told = json.loads(json.dumps(values["statement"]["privacy"]))
    assert f"{told['epsilon']:.3f}" == printed
    assert told["neighbor_relation"]["words"] == words
    assert told["unit"]["kind"] == UNITS[name].kind
    assert f"epsilon {printed} at delta 1e-05, for {words}" in "\n".join(lines)
    page = " ".join(html_report(fitted).split())
    shown = dict(re.findall('data-name="([^"]*)" value="([^"]*)"', page))
    assert float(shown["ledger.epsilon"]) == pytest.approx(total, rel=1e-12)
    assert float(shown["attack.1.found"]) == pytest.approx(1 - gaussian_tradeoff(rows * math.hypot(MU, 0.4))(0.05))
    assert f"The promise is for {words}." in page
    assert f"<dt>Protected</dt><dd>each {'record' if name == 'record' else 'person'}" in page


# ---- files


@pytest.mark.parametrize("name", UNITS)
def test_units_survive_files_and_pickles(name):
    ledger = spent(UNITS[name]).add("b", secret_split(gaussian_event(3.0), gaussian_event(2.0), 0.3), unit=UNITS[name])
    assert dp.Ledger.from_json(ledger.to_json()) == ledger
    assert pickle.loads(pickle.dumps(ledger)) == ledger
    assert Unit.from_dict(UNITS[name].to_dict()) == UNITS[name]


@pytest.mark.parametrize(
    "wrong", [None, "record", {}, 3, {"kind": "person with ids"}, {"kind": [], "rows_per_person": 1}]
)
def test_what_is_no_unit_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        Unit.from_dict(wrong)
    with pytest.raises(TypeError, match="unit must be a unit of privacy"):
        dp.Ledger().add("a", gaussian_event(1.0), unit=wrong)
