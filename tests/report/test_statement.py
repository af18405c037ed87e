"""The privacy statement: its schema, its numbers against independent formulas, and that no record reaches it."""

import json

import jsonschema
import numpy as np
import pytest

import dpscp as dp
from dpscp.cli import main
from dpscp.deployment import statement_markdown, statement_schema
from dpscp.privacy import gaussian_event, secret_split
from dpscp.privacy.accounting import as_accountant, delta_of


def data(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, (X[:, 0] + 0.2 * rng.normal(size=n) > 0).astype(int)


@pytest.fixture(scope="module")
def classifier():
    X, y = data(2_000, 0)
    return dp.PrivateConformalClassifier(
        epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(-1, 1), n_records=2_000
    ).fit(X, y)


@pytest.fixture(scope="module")
def regressor():
    X, _ = data(1_500, 1)
    return dp.PrivateConformalRegressor(
        epsilon=2.0, y_bounds="private", feature_bounds=(-1, 1), confidence_level=[0.8, 0.9], guarantee="universal"
    ).fit(X, X[:, 0])


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_a_statement_follows_its_schema(name, request):
    """The schema itself is valid, a statement follows it, and a broken one does not."""
    schema = statement_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    statement = json.loads(json.dumps(request.getfixturevalue(name).statement(), allow_nan=False))
    assert not list(validator.iter_errors(statement))
    for broken in ({**statement, "more": 1}, {k: v for k, v in statement.items() if k != "privacy"}):
        assert list(validator.iter_errors(broken))


def test_its_numbers_are_those_of_the_ledger_rounded_up(classifier):
    statement, ledger = classifier.statement(), classifier.ledger_
    spent = ledger.epsilon(1e-6)
    assert spent <= statement["privacy"]["epsilon"] <= spent + 1e-3
    assert statement["privacy"]["delta"] == 1e-6
    assert statement["is_private"]
    parts = {m["stage"]: m["part_of_records"] for m in statement["mechanisms"]}
    assert list(parts) == [
        "training: quantiles of the features",
        "training: model",
        "training: recalibration",
        "calibration",
    ]
    assert parts["training: model"] + parts["calibration"] == pytest.approx(1)
    assert parts["calibration"] == ledger.public_facts["calibration_fraction"]


def test_it_says_who_made_a_fact_public(classifier, regressor):
    declared = {fact["name"]: fact["source"] for fact in classifier.statement()["public"]}
    assert (
        declared["n_records"] == declared["classes"] == declared["feature_bounds"] == "declared, or set by the library"
    )
    assert declared["released_sizes"] == "released with noise"
    found = {fact["name"]: fact["source"] for fact in regressor.statement()["public"]}
    assert (found["n_records"], found["y_bounds"]) == ("counted", "released with noise")


def test_labels_that_were_found_are_named_so():
    X, y = data(800, 2)
    with pytest.warns(dp.GuaranteeWarning):
        statement = dp.PrivateConformalClassifier(feature_bounds=(-1, 1), random_state=0).fit(X, y).statement()
    assert {f["name"]: f["source"] for f in statement["public"]}["classes"] == "found in the records"
    assert not statement["is_private"]
    assert statement["not_private_because"] == ["the noise came from a seed"]
    assert "**NOT private**" in statement_markdown(statement)


def test_a_loaded_model_makes_the_same_statement(classifier, tmp_path):
    classifier.save(tmp_path / "m.dpscp")
    assert dp.load(tmp_path / "m.dpscp").statement() == classifier.statement()


def test_replacing_bounds_both_orders_of_an_asymmetric_release():
    """Randomized response by coins: removing and adding cost different amounts, and either may come first."""
    event, accountant = secret_split(gaussian_event(0.8), gaussian_event(1.5), 0.3), as_accountant("pld")
    epsilon = accountant.replacement_epsilon(event, 1e-4)
    x = np.geomspace(1e-9, 1, 400)
    grid = np.linspace(0, 14, 700)

    def power(rates, direction):
        deltas = delta_of(event, grid, direction=direction)
        return np.minimum(1, (deltas + np.exp(grid) * rates[:, None]).min(axis=1))

    for first, second in (("add", "remove"), ("remove", "add")):
        worst = (power(power(x, first), second) - np.exp(epsilon) * x).max()
        assert worst <= 1e-4 * (1 + 1e-6)
    # the chains of one direction alone are what a person with two records meets
    assert epsilon >= accountant.epsilon(event, 1e-4, 2) - 1e-9


def test_the_command(classifier, tmp_path, capsys):
    model = tmp_path / "m.dpscp"
    classifier.save(model)
    assert main(["statement", str(model)]) == 0
    assert json.loads(capsys.readouterr().out) == classifier.statement()
    store = tmp_path / "study.budget"
    dp.BudgetStore.create(store, epsilon=3.0, delta=1e-6, dataset="clinic")
    target = tmp_path / "privacy.md"
    assert main(["statement", str(model), "--markdown", "-o", str(target), "--budget", str(store)]) == 0
    assert "of 3 at delta 1e-06, in 0 fits" in target.read_text()
    assert main(["statement", str(model), "-o", str(model)]) == 1
