"""The report for a reader without statistics: one bar, flags, declarations, customary epsilons, examples, glossary."""

import html
import re

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.privacy import gaussian_event, gdp_mu
from dpscp.report import budget_bar, evaluate, html_report
from dpscp.report.examples import predict_examples
from dpscp.report.spending import DEPLOYMENTS, scale_place

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


def split_ledger(*shares: float) -> dp.Ledger:
    stages = {name: gaussian_event(2.0) for name in ("training", "calibration", "evaluation")[: len(shares) + 1]}
    return dp.Ledger().add_disjoint(stages, "", secret_part=shares)


def test_the_bar_of_a_secret_split_is_one_whole_divided_by_the_chances():
    ledger = split_ledger(0.2, 0.1)
    spent = ledger.epsilon(1e-5)
    bar = budget_bar(ledger, spent, 1e-5)
    assert [part.stage for part in bar] == ["training", "calibration", "evaluation"]
    assert [part.chance for part in bar] == pytest.approx([0.7, 0.2, 0.1])
    assert [part.width for part in bar] == pytest.approx([0.7, 0.2, 0.1])
    # with twice the budget, the same spending fills less than the bar
    share = (gdp_mu(spent, 1e-5) / gdp_mu(2 * spent, 1e-5)) ** 2
    assert sum(part.width for part in budget_bar(ledger, 2 * spent, 1e-5)) == pytest.approx(share)


def test_the_bar_of_stages_on_all_records_adds_up():
    ledger = dp.Ledger().add("bounds", gaussian_event(4.0)).add("training", gaussian_event(3.0))
    bar = budget_bar(ledger, ledger.epsilon(1e-5), 1e-5)
    assert [part.chance for part in bar] == [None, None]
    assert [part.width for part in bar] == pytest.approx([9 / 25, 16 / 25], abs=2e-3)
    disjoint = dp.Ledger().add_disjoint({"a": gaussian_event(2.0), "b": gaussian_event(2.5)}, "")
    widths = [part.width for part in budget_bar(disjoint, disjoint.epsilon(1e-5), 1e-5)]
    assert widths == pytest.approx([0.5, 0.5])
    assert budget_bar(dp.Ledger().add("leak", dp.privacy.non_private_event()), 1.0, 1e-5)[0].width == 1.0


def test_the_page_shows_one_bar_and_no_second_epsilon_before_the_technical_details(model, page):
    widths = [float(w) for w in re.findall(r"width: ([\d.]+)%", page.split('class="bar"')[1].split("</div>")[0])]
    drawn = budget_bar(model.ledger_, model.epsilon, model.delta)
    assert widths == pytest.approx([100 * part.width for part in drawn], abs=0.01)
    assert sum(widths) == pytest.approx(100, abs=1)
    first, technical = page.split('id="technical"')
    for mechanism in model.statement()["mechanisms"]:
        assert f'value="{mechanism["alone"]!r}"' in technical
        assert f'value="{mechanism["alone"]!r}"' not in first
    assert "Each record was used for one of these purposes only, drawn by a secret coin." in text_of(first)


def test_stages_on_all_records_and_plain_parts_are_explained(model):
    def told(ledger):
        return text_of(html_report(with_attributes(model, ledger_=ledger)))

    both = dp.Ledger().add("training", gaussian_event(2.0)).add("calibration", gaussian_event(4.0))
    assert "Each stage used all records." in told(both)
    parts = dp.Ledger().add_disjoint({"training": gaussian_event(2.0), "calibration": gaussian_event(4.0)}, "")
    assert "Each record is in one part only. The total is the larger cost, not the sum." in told(parts)
    assert "training: all records" in told(split_ledger(0.2).add("training", gaussian_event(9.0)))
    assert "No stage used the records." in told(dp.Ledger())


def test_a_stage_without_protection_promises_nothing_about_attackers(model):
    leaking = model.ledger_.add("scaler", dp.privacy.non_private_event())
    shown = text_of(html_report(with_attributes(model, ledger_=leaking)))
    assert "A stage used the records without protection" in shown
    assert not re.search("(holds|hold) for anybody", shown)


def test_accuracy_is_counted_by_hand(model, evaluation, page):
    right = model.predict(FRAME[1500:]) == FRAME.visits[1500:].to_numpy()
    assert evaluation.accuracy.estimate == pytest.approx(right.mean())
    assert evaluation.mean_absolute_error is None
    assert ">accuracy<" in page.split("This evaluation is NOT private")[1]
    X, y = FRAME[["age"]].to_numpy(), FRAME.age.to_numpy() / 100
    regressor = dp.PrivateConformalRegressor(
        y_bounds=(0, 1), feature_bounds=(0, 100), n_records=1500, random_state=0, conformity_score="absolute"
    ).fit(X[:1500], y[:1500])
    found = evaluate(regressor, X[1500:], y[1500:])
    assert found.accuracy is None
    assert found.mean_absolute_error.estimate == pytest.approx(np.abs(regressor.predict(X[1500:]) - y[1500:]).mean())
    assert predict_examples(regressor) == ()  # columns without names tell a reader nothing


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


def test_a_schema_carries_metadata_through_files(model, tmp_path):
    schema = dp.Schema.from_dict(SCHEMA)
    assert dp.Schema.from_dict(schema.to_dict()) == schema
    (tmp_path / "people.toml").write_text(schema.to_toml())
    assert dp.Schema.read(tmp_path / "people.toml").metadata == SCHEMA["metadata"]
    model.save(tmp_path / "model.dpscp")
    assert "City clinic" in html_report(dp.load(tmp_path / "model.dpscp"))
    assert "# [metadata]" in dp.Schema.from_dict({k: v for k, v in SCHEMA.items() if k != "metadata"}).to_toml()
    assert hash(schema) == hash(schema)
    for wrong, words in ((["x"], "a table of texts"), ({"contact": 5}, "must be a text"), ({"a": "b"}, "unknown key")):
        with pytest.raises(ValueError, match=words):
            dp.Schema.from_dict({**SCHEMA, "metadata": wrong})


def test_published_epsilons_are_sorted_sourced_and_placed(model, page):
    assert [d.epsilon for d in DEPLOYMENTS] == sorted(d.epsilon for d in DEPLOYMENTS)
    assert all(d.source and d.unit and d.epsilon > 0 for d in DEPLOYMENTS)
    assert [scale_place(e) for e in (0.01, 0.1, 100, 1e5, np.inf)] == [0, 0, 1, 1, 1]
    assert scale_place(np.sqrt(0.1 * 100)) == pytest.approx(0.5)
    scale = page.split('class="scale"')[1].split("</section>")[0]
    shown = [float(value) for value in re.findall(r'class="n[^"]*">([\d.]+)<', scale)]
    assert shown == sorted(shown)
    assert len(shown) == len(DEPLOYMENTS) + 1
    spent = model.ledger_.epsilon(model.delta)
    assert min(abs(value - spent) for value in shown) <= 1e-3
    assert all(d.source in text_of(scale) for d in DEPLOYMENTS)


def test_examples_are_synthetic_rows_inside_the_declared_ranges(model):
    found = predict_examples(model)
    assert found == predict_examples(model)  # nothing is drawn
    for example in found:
        assert set(example.values) == {"age", "region"}  # ignored columns and the target are left out
        assert 0 <= float(example.values["age"]) <= 100
        assert example.values["region"] in ("north", "south")
        frame = pd.DataFrame({"age": [float(example.values["age"])], "region": [example.values["region"]]})
        assert list(example.answers) == ["prediction", "set", "set_size"]
        assert model.predict(frame)[0] == example.answers["prediction"]
        assert set(example.answers["set"].split(", ")) <= {"none", "some", "empty"}
    assert len({tuple(e.answers.values()) for e in found}) > 1
    assert text_of(html_report(model)).count("prediction: ") == len(found)
