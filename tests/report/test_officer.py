"""The report for a reader without statistics: stages, flags, declarations."""

import html
import re

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.report import evaluate, html_report

SCHEMA = {
    "task": "classification",
    "target": "visits",
    "classes": ["none", "some"],
    "n_records": 1500,
    "metadata": {"responsible": "City clinic", "contact": "privacy@example.org"},
    "columns": {
        "age": {"type": "numeric", "bounds": [0, 100]},
        "region": {"type": "categorical", "categories": ["north", "south"]},
        "note": {"type": "ignore"},
    },
}
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"age": RNG.uniform(0, 100, 2500), "region": RNG.choice(["north", "south"], 2500)})
FRAME["visits"] = np.where(FRAME.age + RNG.normal(scale=12, size=2500) > 70, "some", "none")


@pytest.fixture(scope="module")
def model():
    fitted = dp.PrivateConformalClassifier(epsilon=2.0, random_state=0)
    return fitted.fit(FRAME[:1500], "visits", schema=dp.Schema.from_dict(SCHEMA))


@pytest.fixture(scope="module")
def evaluation(model):
    return evaluate(model, FRAME[1500:], FRAME.visits[1500:])


@pytest.fixture(scope="module")
def page(model, evaluation):
    return html_report(model, evaluation=evaluation)


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page.split("</style>")[-1])).split())


def with_attributes(model, **attributes):
    other = dp.PrivateConformalClassifier(**model.get_params(deep=False))
    vars(other).update(vars(model) | attributes)
    return other


def test_no_second_epsilon_stands_before_the_technical_details(model, page):
    first, technical = page.split('id="technical"')
    for mechanism in model.statement()["mechanisms"]:
        assert f'value="{mechanism["alone"]!r}"' in technical
        assert f'value="{mechanism["alone"]!r}"' not in first
    assert "Each record was used for one of these purposes only, drawn by a secret coin." in text_of(first)


def test_a_stage_without_protection_promises_nothing_about_attackers(model):
    leaking = model.ledger_.add("scaler", dp.privacy.non_private_event())
    shown = text_of(html_report(with_attributes(model, ledger_=leaking)))
    assert "A stage used the records without protection" in shown
    assert not re.search("(holds|hold) for anybody", shown)


def test_declarations_come_from_the_caller_then_from_the_schema(model, tmp_path):
    assert "City clinic" in html_report(model)
    path = tmp_path / "report.html"
    model.report(path, metadata={"responsible": "Dr. <Who>", "legal_basis": "consent", "purpose": "triage"})
    page = path.read_text()
    shown = dict(re.findall("<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>", page))
    assert shown["Responsible"] == "Dr. &lt;Who&gt;"
    assert (shown["Purpose"], shown["Legal basis"], shown["Contact"]) == ("triage", "consent", "privacy@example.org")
    assert "City clinic" not in page.split('id="statement"')[0]
    with pytest.raises(ValueError, match="metadata has an unknown key 'owner'"):
        model.report(path, metadata={"owner": "x"})
