"""The four lines about a release: each bad case is named in every output, and nothing bad is called good."""

import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.cli.main import main
from dpscp.core.evaluation import PrivateEstimate, PrivateEvaluation
from dpscp.deployment import judge, model_card, statement_markdown
from dpscp.report import evaluate, html_report
from dpscp.report.verdict import Grade


def people(n, seed, *, kind="plain"):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.uniform(-1, 1, n), "b": rng.uniform(-1, 1, n)})
    frame["y"] = np.where(frame.a + 0.2 * rng.normal(size=n) > 0, "yes", "no")
    if kind == "noise":
        frame["y"] = rng.choice(["no", "yes", "rare"], n)
    if kind == "rare":  # a twelfth of the records, in the middle of the others
        frame.loc[rng.random(n) < 1 / 12, "y"] = "rare"
    return frame


CASES = {
    "epsilon 50": ({"epsilon": 50.0, "accountant": "rdp"}, "plain", "privacy", (Grade.WEAK,), "is above 10"),
    "delta 0.1": ({"delta": 0.1}, "plain", "privacy", (Grade.WEAK,), "would permit publishing one random record"),
    "noise": ({}, "noise", "usefulness", (Grade.NOT_SHOWN, Grade.NOT_USEFUL), "does not show that the sets are better"),
    "rare": ({}, "rare", "served_worse", (Grade.SOMEBODY,), "Not for class rare: "),
}


def fit(frame, n=2000, **options):
    columns = {name: {"type": "numeric", "bounds": [-1, 1]} for name in "ab"}
    schema = {"task": "classification", "target": "y", "classes": ["no", "yes", "rare"], "n_records": n}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        model = dp.PrivateConformalClassifier(**options)
        return model.fit(frame, "y", schema=dp.Schema.from_dict({**schema, "columns": columns}))


@pytest.fixture(scope="module", params=CASES)
def case(request):
    options, kind, name, grades, words = CASES[request.param]
    model = fit(people(2000, 0, kind=kind), **options)
    return model, people(1500, 1, kind=kind), name, grades, words


def test_each_bad_case_is_named_in_every_output(case, tmp_path, monkeypatch, capsys):
    model, new, name, grades, words = case
    exact = evaluate(model, new[["a", "b"]], new["y"])
    verdict = judge(model, exact)
    assert (getattr(verdict, name).grade, getattr(verdict, name).grade.tone) != (Grade.USEFUL, "good")
    assert getattr(verdict, name).grade in grades
    page = html_report(model, evaluation=exact)
    monkeypatch.chdir(tmp_path)
    model.save("m.dpscp")
    new.to_csv("new.csv", index=False)
    assert main(["report", "m.dpscp", "--evaluate", "new.csv"]) == 0
    shown = capsys.readouterr().out
    outputs = [page, (tmp_path / "report.html").read_text(), shown, verdict.html_card(), str(verdict)]
    assert [words in " ".join(text.split()) for text in outputs] == [True] * 5
    # without labeled records, the lines about privacy are the same, and those about usefulness say that nobody knows
    statement = model.statement()
    public = [html_report(model), model._repr_html_(), statement_markdown(statement), model_card(statement)]
    found = words if name == "privacy" else "not measured"
    assert [found in text for text in public] == [True] * 4
    assert main(["predict", "m.dpscp", "new.csv", "-o", "predicted.csv"]) == 0
    assert (words in " ".join(capsys.readouterr().out.split())) == (name == "privacy")
    assert model.statement()["verdict"][name]["grade"] == (grades[0] if name == "privacy" else "not measured")


def test_a_rare_class_is_lifted_by_its_own_threshold():
    """A twelfth of the records: uncovered by one threshold for all, and covered with one for each class."""
    records, new = people(2000, 0, kind="rare"), people(1500, 1, kind="rare")
    one, each = fit(records), fit(records, groups="label", epsilon=2.0)
    line = judge(one, evaluate(one, new[["a", "b"]], new["y"])).served_worse
    assert line.grade is Grade.SOMEBODY
    assert re.match("Not for class rare: [0-3]?[0-9] of 100.", line.reason)
    line = judge(each, evaluate(each, new[["a", "b"]], new["y"])).served_worse
    assert "Not for class rare" not in line.reason
    assert "Under 10 %" not in line.reason
    assert "holds for each class" in judge(each).served_worse.reason
    assert "Coverage of a new record in each class: at least 90.0%" in judge(each).proven.reason
    assert "For a new record in each group, the prediction set contains" in str(each.certificate_)


def test_groups_are_compared_with_what_one_release_of_them_reaches():
    """A constant answer has each label as often as its class is covered."""
    each = fit(people(2000, 0, kind="rare"), groups="label", epsilon=2.0)
    reached = each.certificate_.terms.release_level
    assert reached < 0.9

    def measured(rate, size):
        named = dict.fromkeys("abc", PrivateEstimate(rate, (rate - 0.01, rate + 0.01)))
        sizes, covered = PrivateEstimate(size, (size - 0.1, size + 0.1)), PrivateEstimate(0.9, (0.88, 0.92))
        ledger = each.ledger_
        return PrivateEvaluation((covered,), (sizes,), None, None, named, {}, {}, covered, (0.9,), 0.95, ledger, 1e-5)

    assert judge(each, measured(reached, 2.0)).served_worse.grade is Grade.NOBODY
    assert judge(each, measured(reached - 0.02, 2.0)).served_worse.grade is Grade.SOMEBODY
    assert judge(each, measured(0.9, 2.5)).usefulness.grade is Grade.USEFUL
    assert judge(each, measured(0.9, 2.6)).usefulness.grade is Grade.NOT_SHOWN
    assert "would need 2.7." in judge(each, measured(0.9, 2.6)).usefulness.reason


def test_a_good_release_is_called_useful_and_strong():
    model, new = fit(people(2000, 0)), people(1500, 1)
    verdict = judge(model, evaluate(model, new[["a", "b"]], new["y"]))
    assert [line.grade for line in verdict.lines[1:3]] == [Grade.STRONG, Grade.USEFUL]
    assert verdict.is_internal
    assert "without noise" in verdict.usefulness.reason
    assert not judge(model).is_internal
    assert "without noise" not in str(judge(model))


def test_a_private_evaluation_judges_without_exact_numbers():
    model, new = fit(people(2000, 0)), people(3000, 1)
    measured = dp.evaluate(model, new[["a", "b"]], new["y"], epsilon=3.0, delta=1e-6)
    verdict = judge(model, measured)
    assert verdict.usefulness.grade is Grade.USEFUL
    assert not verdict.is_internal
    page = html_report(model, evaluation=measured)
    assert "Public edition" in page
    assert "Private evaluation of this release" in page
    assert sum(rate.estimate for rate in measured.class_shares.values()) == pytest.approx(1, abs=0.05)


def test_a_promise_that_an_evaluation_contradicts():
    model, new = fit(people(2000, 0)), people(1500, 1)
    turned = new["y"].map({"yes": "no", "no": "yes"})
    line = judge(model, evaluate(model, new[["a", "b"]], turned)).proven
    assert (line.grade, line.grade.tone) == (Grade.CONTRADICTED, "bad")
    assert "below the promise of at least 90.0%" in line.reason
    low = PrivateEstimate(0.5, (0.4, 0.6))
    level = model.certificate_.terms.release_level
    assert level < 0.9
    for high, grade in ((level - 1e-6, Grade.CONTRADICTED), (level + 1e-6, Grade.PROVEN)):
        rate = PrivateEstimate(0.8, (0.7, high))
        reached = PrivateEvaluation((rate,), (low,), low, None, {}, {}, {}, low, (0.9,), 0.95, model.ledger_, 1e-5)
        assert judge(model, reached).proven.grade is grade
    named = {"no": low, "yes": low, "rare": low}
    ledger = model.ledger_
    measured = PrivateEvaluation((low,), (low,), low, None, named, {}, named, low, (0.9,), 0.95, ledger, 1e-5)
    assert judge(model, measured).proven.grade is Grade.CONTRADICTED
    assert "not private" not in judge(model, measured).served_worse.reason


def test_runs_without_privacy_protect_nobody():
    seeded = fit(people(2000, 0), random_state=0)
    assert judge(seeded).privacy.grade is Grade.NONE
    assert judge(seeded).proven.grade is Grade.TESTS_ONLY
    leaking = fit(people(2000, 0))
    leaking.ledger_ = leaking.ledger_.add("scaler", dp.privacy.non_private_event())
    assert [line.grade for line in judge(leaking).lines[:2]] == [Grade.NOTHING, Grade.NONE]
    assert "may find everybody" in judge(leaking).privacy.reason


def test_full_sets_are_not_useful():
    small = fit(people(30, 0), n=30, epsilon=0.1)
    assert judge(small).usefulness.grade is Grade.NOT_USEFUL
    assert "sets contain nearly every answer" in judge(small).usefulness.reason


def test_every_kind_of_release_is_judged():
    u = np.random.default_rng(0).beta(2, 3, size=2_000)
    options = {"epsilon": 1.0, "delta": 1e-6, "n_records": 2_000}
    scores = dp.calibrate(u, score_range=(0, 1), held_out=True, **options)
    losses = dp.control_risk(lambda t: np.clip(1 - t / u, 0, 1), threshold_range=(0, 1), **options)
    for released, words in (
        (scores, "Coverage of a new record: at least 90.0%"),
        (losses, "Mean loss of a new record"),
    ):
        verdict = judge(released)
        assert words in verdict.proven.reason
        assert verdict.privacy.grade is Grade.STRONG
        assert verdict.html_card() in released._repr_html_()
        assert repr(released).endswith(str(verdict))
        assert "this threshold is of use" in verdict.usefulness.reason
        assert json.loads(json.dumps(released.statement()))["verdict"] == verdict.to_dict()
