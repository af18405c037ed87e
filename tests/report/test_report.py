"""The report: every number on the page is the fitted object's, and the page stands alone."""

import math
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.report import evaluate, html_report
from dpscp.report.figures import PALETTE
from dpscp.report.verdict import ATTACKS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4000, 4))
LABELS = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.3 * RNG.normal(size=4000), [-0.5, 0.5])]
TARGETS = X[:, 0] + 0.3 * RNG.normal(size=4000)


class Numbers(HTMLParser):
    """Collects <data data-name value>text</data>, ids, and everything that could reach for the network."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []
        self._open: list[str] | None = None

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.append(given["id"])
        self.loads += [
            v
            for k, v in attributes
            if k in ("src", "href", "xlink:href", "srcset") and not v.startswith(("#", "data:"))
        ]
        if tag in ("script", "iframe", "img", "object", "embed"):
            self.loads.append(tag)
        if tag == "data":
            self._open = [given["data-name"], given["value"], ""]

    def handle_data(self, data):
        self.text.append(data)
        if self._open:
            self._open[2] += data

    def handle_endtag(self, tag):
        if tag == "data":
            self.found.append(tuple(self._open))
            self._open = None


def parsed(page: str) -> Numbers:
    reader = Numbers()
    reader.feed(page)
    return reader


def expected_numbers(model, evaluation) -> dict[str, float]:
    """The numbers a page must show, straight from the fitted object."""
    ledger, delta = model.ledger_, model.delta
    found = {"ledger.epsilon": ledger.epsilon(delta), "delta": delta, "budget.epsilon": model.epsilon}
    found["attack.1.blind"], found["mu"] = ATTACKS[1], model.statement()["privacy"]["mu"]
    found["nominal"] = ledger.public_facts["n_records"]
    found |= {f"group.{rows}.epsilon": ledger.epsilon(delta, rows=rows) for rows in (1, 2, 5, 10)}
    for i, x in enumerate(ATTACKS):
        found |= {f"attack.{i}.false_alarms": x, f"attack.{i}.missed": ledger.tradeoff(x)}
        found[f"attack.{i}.found"] = 1 - ledger.tradeoff(x)
    for i, mechanism in enumerate(model.statement()["mechanisms"]):
        found[f"mechanism.{i}.epsilon"] = mechanism["alone"]
    for i, c in enumerate(model.certificates_):
        found |= {f"certificate.{i}.target": c.target, f"certificate.{i}.coverage": c.coverage}
        numbers = {name: value for name, value in c.terms.items() if not isinstance(value, str)}
        found |= {f"certificate.{i}.terms.{name}": value for name, value in numbers.items()}
    found |= {f"threshold.{i}": t for i, t in enumerate(np.ravel(model.threshold_))}
    if evaluation is not None:
        found |= {f"evaluation.{name}": getattr(evaluation, name).estimate for name in ("full", "empty")}
    return found


def shown_number(text: str) -> tuple[float, float]:
    """A printed number and a unit of its last digit: what is promised is rounded to the safe side, not the nearest."""
    if text in ("yes", "no"):
        return float(text == "yes"), 0.0
    plain = text.replace(",", "")
    scale = 0.01 if plain.endswith("%") else 1.0
    plain = plain.rstrip("%")
    mantissa, _, exponent = plain.partition("e")
    decimals = len(mantissa.partition(".")[2])
    value = float(plain) * scale
    unit = 10.0 ** (int(exponent or 0) - decimals) * scale
    if "." not in mantissa and abs(value) >= 1000:  # four significant digits
        unit = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    return value, 1.0001 * unit


def fit(kind, confidence_level=0.9, **options):
    """Return the fit of these settings, made once: no test changes it."""
    return fit_once(kind, confidence_level, tuple(sorted(options.items())))


@cache
def fit_once(kind, level, options):
    shared = {"epsilon": 2.0, "delta": 1e-5, "random_state": 0, "n_records": 3000, "confidence_level": level}
    shared |= {"feature_bounds": (-4, 4), **dict(options)}
    if kind == "regression":
        return dp.PrivateConformalRegressor(y_bounds=(-5, 5), **shared).fit(X[:3000], TARGETS[:3000])
    return dp.PrivateConformalClassifier(classes=["a", "b", "c"], **shared).fit(X[:3000], LABELS[:3000])


CASES = {
    "split": lambda: (fit("classification", guarantee="split"), LABELS),
    "universal, two levels": lambda: (
        fit("classification", guarantee="universal", confidence_level=(0.8, 0.9)),
        LABELS,
    ),
    "stability": lambda: (fit("classification", guarantee="stability"), LABELS),
    "not proven": lambda: (fit("classification", guarantee="asymptotic"), LABELS),
    "groups": lambda: (fit("classification", guarantee="universal", groups="label", confidence_level=0.8), LABELS),
    "regression": lambda: (fit("regression"), TARGETS),
}


LONG = {"split", "not proven"}  # pages of both are in the tests below too


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES]
)
def case(request):
    model, truth = CASES[request.param]()
    evaluation = evaluate(model, X[3000:], truth[3000:])
    return model, evaluation, html_report(model, evaluation=evaluation, title="<b>& co</b>")


def test_every_number_is_the_fitted_objects(case):
    model, evaluation, text = case
    page = parsed(text)
    expected = expected_numbers(model, evaluation)
    assert page.found
    for name, value, text in page.found:
        wanted = expected[name]
        assert float({"True": 1, "False": 0}.get(value, value)) == pytest.approx(float(wanted), abs=1e-12), name
        if math.isfinite(wanted):
            number, tolerance = shown_number(text)
            assert abs(number - wanted) <= tolerance + 1e-12, (name, text, wanted)
    score = model.certificate_.terms.get("conformity_score")
    assert score is None or f">{score}<" in case[2]
    shown = {name for name, _, _ in page.found}
    optional = {n for n in expected if n.endswith(".single")}
    assert set(expected) - shown <= optional


def test_the_page_stands_alone_and_its_ids_are_unique(case):
    page, text = parsed(case[2]), case[2]
    assert page.loads == []
    assert "url(http" not in text
    assert "@import" not in text
    assert len(set(page.ids)) == len(page.ids)
    assert "<b>& co</b>" not in text
    for section in ("promises", "ledger", "attacker", "certificate0", "evaluation", "public", "limits", "versions"):
        assert section in page.ids
    assert not any(color in text.split("</style>")[1] for color in PALETTE.values())


def test_the_page_says_what_it_must(case):
    model, _, page = case
    text = " ".join(" ".join(parsed(page).text).split())
    assert "What this does not protect" in text
    assert "This evaluation is NOT private" in text
    assert "this run protects nobody" in text  # these fits are seeded
    assert "Internal edition: contains numbers computed without noise." in text
    for assumption in model.certificate_.assumptions:
        assert assumption.sentence in text
    assert "not proven for finite samples" in text or model.certificate_.is_certified


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_every_level_is_evaluated_on_its_own_sets(kind):
    model = fit(kind, guarantee="split", confidence_level=(0.5, 0.7, 0.9))
    if kind == "classification":
        sets, truth = model.predict_set(X[3000:])[1], LABELS[3000:]
        covered = sets[np.arange(1000), np.searchsorted(["a", "b", "c"], truth)]
        sizes = sets.sum(axis=1)
    else:
        intervals, truth = model.predict_interval(X[3000:])[1], TARGETS[3000:]
        covered = (intervals[:, 0] <= truth[:, None]) & (truth[:, None] <= intervals[:, 1])
        sizes = intervals[:, 1] - intervals[:, 0]
    assert len(set(covered.sum(axis=0))) == 3  # three levels that differ
    found = evaluate(model, X[3000:], truth)
    assert found.targets == (0.5, 0.7, 0.9)
    for place in range(3):
        assert found.coverages[place].estimate == pytest.approx(covered[:, place].mean())
        assert found.set_sizes[place].estimate == pytest.approx(sizes[:, place].mean())
        exact = stats.binomtest(int(covered[:, place].sum()), 1000).proportion_ci(0.95, "exact")
        assert found.coverages[place].interval == pytest.approx((exact.low, exact.high))
        error = stats.norm.ppf(0.975) * stats.sem(sizes[:, place], ddof=0)
        low, high = found.set_sizes[place].interval
        assert (high - low) / 2 == pytest.approx(error, rel=1e-3)
    page = " ".join(parsed(html_report(model, evaluation=found)).text)
    assert all(text in page for row in found.rows for text in row)


@pytest.fixture(scope="module")
def default_fit():
    model = dp.PrivateConformalClassifier(random_state=0, classes=["a", "b", "c"], n_records=3000)
    return model.fit(X[:3000], LABELS[:3000])


def test_the_head_says_what_was_declared_and_nothing_else(default_fit):
    model = default_fit
    bare = html_report(model)
    assert "<dt>Purpose</dt><dd>not declared</dd>" in bare
    assert 'id="study"' not in bare
    study = {"epsilon": 2.0, "delta": 1e-5, "spent": 1.23456, "left": 0.76544, "fits": 2}
    page = parsed(html_report(model, metadata={"purpose": "triage <b>", "data": "people 2025"}, study=study))
    text = " ".join("".join(page.text).split())
    assert not [words for words in ("triage <b>", "people 2025", model.digest()) if words not in text]
    shown = {name: words for name, _, words in page.found}
    # what is spent is rounded up, what is left down
    assert (shown["study.spent"], shown["study.left"], shown["study.fits"]) == ("1.235", "0.765", "2")


def test_labels_and_groups_are_counted_by_hand():
    def side(rows):
        return np.asarray(rows)[:, 1] > 0

    model = dp.PrivateConformalClassifier(
        random_state=0, classes=["a", "b", "c"], n_records=3000, groups=side, epsilon=3
    ).fit(X[:3000], LABELS[:3000])
    rows, truth = X[3000:], LABELS[3000:]
    found = evaluate(model, rows, truth)
    sets = model.predict_set(rows)[1][:, :, 0]
    inside = sets[np.arange(len(truth)), np.searchsorted(["a", "b", "c"], truth)]
    for parts, place in ((found.by_class, truth), (found.by_group, side(rows).astype(str))):
        assert sorted(map(str, parts)) == sorted(set(place.tolist()))
        for name, part in parts.items():
            chosen = place == str(name)
            assert part.estimate == pytest.approx(inside[chosen].mean())
            assert part.interval[0] <= part.estimate <= part.interval[1]
    assert found.accuracy.estimate == (model.predict(rows) == truth).mean()
    for name, share in found.class_shares.items():
        assert share.estimate == (truth == name).mean()


def test_persons_are_counted_and_their_rows_named(default_fit):
    persons = np.arange(1000) // 4
    found = evaluate(default_fit, X[3000:], LABELS[3000:], persons=persons)
    assert found.evaluated == "250 persons, one random record of each (1,000 rows)"
    page = " ".join(" ".join(parsed(html_report(default_fit, evaluation=found)).text).split())
    assert "250 persons, one random record of each (1,000 rows), with 95 % intervals" in page
    assert evaluate(default_fit, X[3000:], LABELS[3000:]).evaluated == "1,000 labeled records"
