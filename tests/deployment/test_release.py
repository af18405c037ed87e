"""Every release has a ledger, a certificate, a statement and a report."""

import json
import warnings

import jsonschema
import numpy as np
import pytest

import dpscp as dp
from dpscp.deployment import statement_markdown, statement_schema


def scores():
    return dp.calibrate(
        np.linspace(0, 1, 2_000), epsilon=1.0, delta=1e-6, score_range=(0, 1), held_out=True, random_state=0
    )


def losses():
    u = np.random.default_rng(0).beta(2, 3, size=2_000)
    return dp.control_risk(
        lambda t: np.clip(1 - t / u, 0, 1), threshold_range=(0, 1), epsilon=1.0, delta=1e-6, random_state=0
    )


@pytest.fixture(params=[scores, losses], ids=["calibrate", "control_risk"])
def released(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return request.param()


def test_a_release_has_a_statement_of_the_schema(released):
    statement = json.loads(json.dumps(released.statement(), allow_nan=False))
    jsonschema.validate(statement, statement_schema())
    assert statement["release"]["task"] == released.kind
    assert statement["privacy"]["epsilon"] >= released.ledger.epsilon(1e-6)
    assert statement["privacy"]["budget"] == {"epsilon": 1.0, "delta": 1e-6}
    assert statement["coverage"][0]["promise"] == released.certificate.promise
    assert statement["coverage"][0]["proven"] == released.certificate.coverage
    assert statement["release"]["sha256"] == released.digest()
    assert not statement["is_private"]  # a seed
    assert released.digest() in statement_markdown(statement)


def test_a_release_has_a_page(released, tmp_path):
    released.report(tmp_path / "page.html", title="<b>scores</b>")
    page = (tmp_path / "page.html").read_text()
    assert "<b>scores" not in page
    assert released.digest() in page
    assert " of a new record: at " in page  # the proven line of the verdict


def test_calibrate_pays_from_a_store(tmp_path):
    store = dp.BudgetStore.create(tmp_path / "study", 2.0, 1e-6, dataset="synthetic")
    options = {"score_range": (0, 1), "held_out": True, "budget": store}
    found = dp.calibrate(np.linspace(0, 1, 2_000), epsilon=1.0, delta=1e-6, **options)
    assert store.ledger().event == found.ledger.event
    with pytest.raises(dp.BudgetError):
        dp.calibrate(np.linspace(0, 1, 2_000), epsilon=1.8, delta=1e-6, **options)
    with pytest.raises(ValueError, match="seed"):
        dp.calibrate(np.linspace(0, 1, 2_000), epsilon=0.1, delta=1e-6, random_state=0, **options)
    with pytest.raises(ValueError, match="persons=ids"):
        dp.calibrate(np.linspace(0, 1, 2_000), epsilon=0.1, delta=1e-6, rows_per_person=2, **options)
