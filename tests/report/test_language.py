"""Reports and statements in German: every sentence of a release of each kind is in the table, and names stay."""

import html
import re
import warnings

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli.main import main
from dpscp.deployment import statement_markdown
from dpscp.report import evaluate, html_report
from dpscp.report.language import translate, translate_page

# Words without which no English sentence of a page does.
ENGLISH = re.compile(r"\b(the|of|is|are|and|not|for|that|which|with|from|each|your|this|For|one)\b")
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"delta": RNG.uniform(-1, 1, 1500), "who": np.arange(1500) // 2})
FRAME["coverage"] = np.where(FRAME.delta + 0.3 * RNG.normal(size=1500) > 0, "none", "full sets")


def words(page):
    """Return the texts of a page that are not names, code or sources."""
    page = re.sub(r'(?s)<style>.*?</style>|<pre>.*?</pre>|<(\w+)[^>]* translate="no">.*?</\1>', "", page)
    texts = re.split(r"</?(?!(?:a|b|data|i|small)\b)[a-z][^>]*>", page)
    return [html.unescape(re.sub("<[^>]*>", "", text)) for text in texts if "Quellen:" not in text]


def classifier(**options):
    schema = {"task": "classification", "target": "coverage", "classes": ["none", "full sets"]}
    schema["columns"] = {"delta": {"type": "numeric", "bounds": [-1, 1]}}
    person = {"person": "who", "rows_per_person": 2, "n_persons": 500} if options.pop("persons", False) else {}
    schema |= person or {"n_records": 1000}
    frame = FRAME if person else FRAME.drop(columns="who")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dp.PrivateConformalClassifier(**options)
        return model.fit(frame[:1000], "coverage", schema=dp.Schema.from_dict(schema))


def scores():
    spent = dp.privacy.dpsgd_event(noise_multiplier=40.0, sampling_rate=1.0, steps=50)
    rule = {"training": spent, "epsilon": 1.0, "delta": 1e-6, "score_range": (0, 1)}
    return dp.calibrate(RNG.beta(2, 5, 2000), alpha=0.1, **rule)


def losses():
    rule = {"threshold_range": (0, 1), "epsilon": 1.0, "delta": 1e-6, "n_records": 1000}
    return dp.control_risk(lambda t: np.full(1000, 1.0 - t), alpha=0.2, **rule)


def regressor():
    model = dp.PrivateConformalRegressor(y_bounds=(-2, 2), feature_bounds=(-1, 1), n_records=1000)
    return model.fit(FRAME[["delta"]].to_numpy()[:1000], FRAME.delta.to_numpy()[:1000])


RELEASES = {
    "weak": lambda: classifier(epsilon=50.0, delta=0.1, accountant="rdp"),
    "persons": lambda: classifier(persons=True, epsilon=2.0, evaluation_fraction=0.2),
    "classes": lambda: classifier(groups="label", epsilon=2.0),
    "universal": lambda: classifier(guarantee="universal", confidence_level=[0.8, 0.9]),
    "seeded": lambda: classifier(random_state=0),
    "regression": regressor,
    "scores": scores,
    "losses": losses,
}


@pytest.mark.parametrize("name", RELEASES)
def test_no_english_sentence_is_left(name):
    released = RELEASES[name]()
    english, page = html_report(released), html_report(released, language="de")
    assert '<html lang="de">' in page
    assert [text for text in words(page) if ENGLISH.search(text)] == []
    assert any(ENGLISH.search(text) for text in words(english))
    assert re.findall("<data [^>]*>", page) == re.findall("<data [^>]*>", english)  # every number, in the same order
    lines = statement_markdown(released.statement(), "de").splitlines()
    assert [line for line in lines if ENGLISH.search(line)] == []


def test_the_internal_edition_and_names_of_the_user():
    """Classes and columns may have names that are words of the table."""
    model = classifier(epsilon=2.0)
    page = html_report(model, evaluation=evaluate(model, FRAME[1000:], FRAME.coverage[1000:]), language="de")
    assert "Interne Fassung: enthält Zahlen, die ohne Rauschen berechnet wurden." in page
    assert '<th scope="row">Überdeckung, Klasse none</th>' in page
    assert '<th scope="row">Überdeckung, Klasse full sets</th>' in page
    assert '<td translate="no">coverage' in page
    assert [text for text in words(page) if ENGLISH.search(text)] == []
    titled = html_report(model, title="Coverage", metadata={"purpose": "coverage"}, language="de")
    assert '<h1 translate="no">Coverage</h1>' in titled
    assert '<dd translate="no">coverage</dd>' in titled
    assert translate("Not for class none: 3 of 100.", "de") == "Nicht für die Klasse none: 3 von 100."


def test_numbers_are_written_as_in_the_language():
    """In German texts, 15,000 would read as fifteen and 1.000 as a thousand. Versions, JSON and values stay."""
    page = (
        '<p>Delta 1e-06, n = 15,000. <data value="1.25">1,234.5</data></p><dd translate="no">1.5</dd><p>numpy 2.4.6</p>'
    )
    found = translate_page(page, "de")
    assert found == page.replace("15,000", "15.000").replace(">1,234.5", ">1.234,5")
    card = statement_markdown(classifier(epsilon=2.0).statement(), "de")
    assert "für n = 1.000" in card or "bei n = 1.000" in card
    assert re.search(r"mindestens 90,0%", card)
    assert not re.search(r" \d+\.\d+%", card)
    assert f"dpscp {dp.__version__} |" in card


def test_what_the_table_lacks_stays():
    assert translate("A sentence of somebody else.", "de") == "A sentence of somebody else."
    assert translate_page("<p>Glossary</p>", "en") == "<p>Glossary</p>"
    with pytest.raises(ValueError, match="language must be one of 'en', 'de'"):
        html_report(scores(), language="fr")


def test_the_command_line_writes_german(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    classifier(epsilon=2.0).save("m.dpscp")
    assert main(["report", "m.dpscp", "-o", "bericht.html", "--language", "de"]) == 0
    assert "Was dies nicht schützt" in (tmp_path / "bericht.html").read_text()
    capsys.readouterr()
    assert main(["statement", "m.dpscp", "--language", "de"]) == 0
    assert capsys.readouterr().out.startswith("# Erklärung zum Schutz der Daten")
    assert main(["statement", "m.dpscp", "--model-card", "--language", "de"]) == 0
    assert "# Ein Modell zur Klassifikation mit Vorhersagemengen zum Niveau 0,9\n" in capsys.readouterr().out
    assert main(["statement", "m.dpscp", "--registry", "--language", "de"]) == 1
    assert "English only" in capsys.readouterr().err
