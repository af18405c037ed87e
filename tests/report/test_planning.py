"""A plan says what a fit will do, before any record is read."""

import json
import math

import numpy as np
import pytest

import dpscp as dp
from dpscp.report.planning import PLANNED
from dpscp.threshold.sizes import size_tail

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 5))
Y = (X[:, 0] + 0.5 * RNG.normal(size=3000) > 0).astype(int)


@pytest.fixture(scope="module")
def small():
    return dp.plan(n=3000, epsilon=1.0, delta=1e-6, n_features=5)


@pytest.mark.parametrize("guarantee", ["universal", "split", "stability"])
def test_the_plan_is_what_the_fit_does(small, guarantee):
    clf = dp.PrivateConformalClassifier(
        epsilon=1.0, delta=1e-6, guarantee=guarantee, classes=[0, 1], n_records=3000, random_state=0
    ).fit(X, Y)
    row, terms = small.row(guarantee), clf.certificate_.terms
    assert row.steps == terms["steps"]
    assert row.count_noise == pytest.approx(terms["count_noise"], rel=2e-3)
    assert row.inner_level == pytest.approx(terms["inner_level"], abs=1e-4)
    assert row.rank_offset == pytest.approx(terms["noise_offset"], rel=5e-3, abs=1)
    assert row.value_buffer == pytest.approx(terms.get("value_buffer", 0.0), rel=1e-2)


def test_the_plan_names_what_auto_takes(small):
    clf = dp.PrivateConformalClassifier(epsilon=1.0, delta=1e-6, classes=[0, 1], n_records=3000, random_state=0)
    assert small.automatic == clf.fit(X, Y).certificate_.guarantee
    assert dp.plan(n=200, epsilon=0.1).automatic == "universal"


@pytest.mark.parametrize("guarantee", ["universal", "split", "corrected", "finite"])
def test_smallest_n_is_where_sets_stop_being_full(small, guarantee):
    smallest = small.row(guarantee).smallest_n
    # a few more than the smallest: where one more halving begins to pay its noise comes first
    assert dp.plan(n=round(1.1 * smallest) + 2, epsilon=1.0, delta=1e-6).row(guarantee).useful
    assert not dp.plan(n=round(0.97 * smallest) - 2, epsilon=1.0, delta=1e-6).row(guarantee).useful


@pytest.mark.parametrize(("given", "solved"), [({"epsilon": 1.0}, "n"), ({"n": 10_000}, "epsilon")])
def test_solving_for_the_other_number(given, solved):
    asked = dp.plan(**given, overshoot=0.01)
    assert asked.solved_for == solved
    needed = asked.needed[PLANNED.index("split")]
    factor = 0.97
    enough = dp.plan(**given, **{solved: math.ceil(needed) if solved == "n" else needed}).row("split")
    short = dp.plan(**given, **{solved: math.floor(factor * needed) if solved == "n" else factor * needed}).row("split")
    assert enough.overshoot <= 0.01 < short.overshoot


def test_best_train_share_is_what_the_estimators_take():
    plan = dp.plan(n=3000, epsilon=1.0, delta=1e-6, train_share="auto")
    clf = dp.PrivateConformalClassifier(
        epsilon=1.0, delta=1e-6, guarantee="universal", classes=[0, 1], train_share="auto", random_state=0
    ).fit(X, Y)
    assert plan.row("universal").train_share == pytest.approx(clf.ledger_.public_facts["train_share"])


def test_table_and_json(small):
    text = str(small)
    assert all(g in text for g in PLANNED)
    assert f"{small.automatic} *" in text
    data = json.loads(json.dumps(small.to_dict()))
    assert [row["guarantee"] for row in data["rows"]] == list(PLANNED)
    assert "full sets" in str(dp.plan(n=60, epsilon=0.1))


def test_regression():
    plan = dp.plan(n=5000, epsilon=1.0, classes=None, y_bounds=(0, 10))
    assert plan.task == "regression"
    row = plan.row("stability")
    assert row.value_buffer > 0
    # what the search aims at above the target, in parts of the records, and the buffer in parts of the range
    aimed = row.inner_level + size_tail(1 - row.inner_level) + row.rank_offset / 5001
    assert row.overshoot == pytest.approx(aimed + row.value_buffer / 10 - 0.9, rel=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"n": 100},
        {"epsilon": 1.0},
        {"n": 0, "epsilon": 1.0},
        {"n": 10, "epsilon": -1.0},
        {"n": 10, "epsilon": 1.0, "overshoot": 0.01},
        {"overshoot": 0.01},
        {"n": 10, "epsilon": 1.0, "classes": 1},
        {"n": 10, "epsilon": 1.0, "alpha": 1.5},
    ],
)
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(ValueError, match=r"n|epsilon|classes|alpha"):
        dp.plan(**wrong)
