"""The ledger: immutable, readable back, refusing what is damaged, and naming what is not private."""

import copy
import dataclasses
import json
import math
import pickle
import re

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dpscp import Budget, BudgetError, Ledger
from dpscp._base.format import format_epsilon
from dpscp.privacy import (
    RECORDS,
    Entry,
    Unit,
    approximate_dp_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    non_private_event,
    parallel,
)
from dpscp.privacy.events import ParallelDpEvent

PROPERTY = settings(deadline=None, derandomize=True, max_examples=60)
DELTA = 1e-5

positive = st.floats(0.01, 1e6, allow_nan=False)
leaves = st.one_of(
    positive.map(gaussian_event),
    st.builds(discrete_gaussian_event, st.integers(1, 10**9), st.integers(1, 10**4)),
    st.builds(approximate_dp_event, st.floats(0, 50), st.floats(0, 0.99)),
    st.builds(dpsgd_event, positive, st.floats(1e-6, 1), st.integers(1, 10**6)),
    st.just(NoOpDpEvent()),
    st.just(non_private_event()),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda es: compose(*es)),
        st.lists(inner, max_size=3).map(lambda es: parallel(*es)),
        st.builds(SelfComposedDpEvent, inner, st.integers(1, 1000)),
    ),
    max_leaves=6,
)
facts = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=2),
        max_leaves=4,
    ),
    max_size=3,
)
row_units = st.builds(Unit, st.integers(1, 9))
ledgers = st.builds(
    Ledger,
    st.lists(
        st.builds(Entry, st.text(max_size=8), events, st.text(max_size=8), unit=st.just(RECORDS) | row_units),
        max_size=3,
    ).map(tuple),
    facts,
    st.booleans(),
)


def example_ledger():
    return (
        Ledger()
        .declare(n_records=1000, classes=["a", "b"])
        .add("train", dpsgd_event(2.0, 0.01, 100), note="linear head")
        .add(
            "calibrate", parallel(discrete_gaussian_event(400, 3, 20), compose(gaussian_event(9.0), gaussian_event(7)))
        )
    )


# ---- immutability


def test_adding_returns_a_new_ledger():
    empty = Ledger()
    one = empty.add("train", gaussian_event(2.0), note="n")
    assert empty.entries == ()
    assert one.entries == (Entry("train", gaussian_event(2.0), "n"),)
    assert one.declare(n_records=5).public_facts == {"n_records": 5}
    assert one.public_facts == {}
    assert one.mark_seeded().seeded
    assert not one.seeded


def test_nothing_in_a_ledger_can_be_changed():
    ledger = example_ledger()
    spent = ledger.epsilon(DELTA)
    for change in (
        lambda: setattr(ledger, "seeded", False),
        lambda: setattr(ledger.entries[0], "stage", "x"),
        lambda: setattr(ledger.entries[0].event, "count", 1),
    ):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            change()
    with pytest.raises(TypeError):
        ledger.public_facts["n_records"] = 7
    with pytest.raises(AttributeError):
        ledger.public_facts["classes"].append("c")
    with pytest.raises(AttributeError):
        ledger.event.events.clear()
    assert ledger.epsilon(DELTA) == spent


def test_the_callers_objects_are_not_shared():
    listed = ComposedDpEvent([gaussian_event(1.0), ComposedDpEvent([gaussian_event(3.0)])])
    classes = ["a", "b"]
    ledger = Ledger().add("train", listed).declare(classes=classes)
    spent = ledger.epsilon(DELTA)
    listed.events.clear()
    classes.append("c")
    assert ledger.epsilon(DELTA) == spent > 0
    assert ledger.public_facts["classes"] == ("a", "b")


def test_copies_and_pickles():
    ledger = example_ledger().mark_seeded()
    for again in (copy.deepcopy(ledger), copy.copy(ledger), pickle.loads(pickle.dumps(ledger))):
        assert again == ledger
        assert again.epsilon(DELTA) == ledger.epsilon(DELTA)
        with pytest.raises(TypeError):
            again.public_facts["n_records"] = 7


# ---- what it costs


def test_bad_entries():
    with pytest.raises(TypeError, match="DpEvent"):
        Ledger().add("train", None)
    with pytest.raises(TypeError):
        Ledger().declare(rows=np.zeros(3))


def test_empty_ledger_spends_nothing():
    ledger = Ledger()
    assert ledger.is_private
    assert ledger.non_private_stages == ()
    for accountant in ("pld", "rdp"):
        assert ledger.epsilon(DELTA, accountant) == 0
        assert ledger.delta(0.0, accountant) == 0
    np.testing.assert_allclose(ledger.tradeoff(np.array([0.0, 0.3, 1.0])), [1.0, 0.7, 0.0])


def test_entries_compose():
    ledger = Ledger().add("a", gaussian_event(3.0)).add("b", gaussian_event(4.0))
    assert ledger.epsilon(DELTA) == pytest.approx(gdp_epsilon(DELTA, 5 / 12), rel=1e-12)
    assert Ledger().add("a", ledger.event).epsilon(DELTA) == ledger.epsilon(DELTA)


def test_then_joins_two_ledgers():
    first = Ledger().add("a", gaussian_event(3.0)).declare(n_records=10)
    second = Ledger().add("b", gaussian_event(4.0)).declare(classes=["x"]).mark_seeded()
    joined = first.then(second)
    assert [e.stage for e in joined.entries] == ["a", "b"]
    assert joined.public_facts == {"n_records": 10, "classes": ("x",)}
    assert joined.seeded
    assert not joined.is_private


# ---- what is not private


def test_a_step_without_privacy_is_named():
    ledger = example_ledger().add("standardize", non_private_event()).add("again", parallel(non_private_event()))
    assert ledger.epsilon(DELTA) == math.inf
    assert ledger.delta(5.0) == 1
    assert ledger.tradeoff(0.1) == 0
    assert not ledger.is_private
    assert ledger.non_private_stages == ("standardize", "again")
    text = ledger.summary(DELTA)
    assert "NOT private: the step 'standardize' has no privacy\nNOT private: the step 'again'" in text
    assert len(ledger.not_private_because) == 2
    assert not example_ledger().not_private_because
    with pytest.raises(BudgetError, match=r"inf \(not private: standardize, again\)"):
        Budget(1.0, DELTA).require(ledger)


def test_summary_is_for_a_person():
    ledger = example_ledger()
    text = ledger.summary(DELTA)
    alone = epsilon_of(ledger.entries[0].event, DELTA)
    assert "epsilon alone at delta 1e-05" in text
    assert re.search(f"train +{format_epsilon(alone)} +linear head", text)
    assert re.search(f"total +{format_epsilon(ledger.epsilon(DELTA))} +for adding or removing one record", text)
    assert "n_records = 1000" in text
    assert "NOT private" not in text


# ---- budgets


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1)]
)
def test_bad_budget(epsilon, delta):
    with pytest.raises(ValueError, match="must"):
        Budget(epsilon, delta)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_budget_is_not_exceeded_by_a_hair(accountant):
    ledger = Ledger().add("train", gaussian_event(4.0))
    spent = ledger.epsilon(1e-5, accountant)
    assert spent == epsilon_of(gaussian_event(4.0), 1e-5, accountant)
    Budget(spent, 1e-5).require(ledger, accountant)
    tight = Budget(spent * 0.999, 1e-5)
    said = f"spends epsilon = {format_epsilon(spent)} at delta = 1e-05, which is over the budget of epsilon = "
    with pytest.raises(BudgetError, match=f"{re.escape(said)}{tight.epsilon:g};"):
        tight.require(ledger, accountant)


# ---- JSON


@PROPERTY
@given(ledgers)
def test_json_round_trip(ledger):
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert again.to_json() == ledger.to_json()


def test_an_event_without_json_form_is_refused():
    with pytest.raises(ValueError, match="DiscreteLaplaceDpEvent has no JSON form"):
        Ledger().add("a", DiscreteLaplaceDpEvent(1.0, 1)).to_json()


@PROPERTY
@given(st.text() | st.binary() | st.none() | st.integers())
def test_any_text_is_a_ledger_or_a_value_error(text):
    with pytest.raises(ValueError, match="not a ledger"):
        Ledger.from_json(text)


def paths_of(value, path=()):
    """Every place in nested JSON."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths_of(child, (*path, key))


def with_damage(value, path, damage):
    value = copy.deepcopy(value)
    if not path:
        return damage
    place = value
    for key in path[:-1]:
        place = place[key]
    if damage is DROP:
        del place[path[-1]]
    else:
        place[path[-1]] = damage
    return value


DROP = object()
WHOLE = json.loads(
    Ledger()
    .add("a", dpsgd_event(2.0, 0.5, 3))
    .add("b", parallel(discrete_gaussian_event(4, 1, 2), compose(approximate_dp_event(1.0, 0.1), gaussian_event(2.0))))
    .add("c", non_private_event())
    .declare(n=3)
    .to_json()
)
DAMAGES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    10**400,
    math.nan,
    math.inf,
    "",
    "x",
    [],
    {},
    [[]],
    {"type": "gaussian"},
    DROP,
]


@pytest.mark.parametrize("path", [p for p in paths_of(WHOLE) if p], ids=lambda p: "/".join(map(str, p)))
def test_damage_anywhere_gives_a_value_error_or_an_honest_ledger(path):
    for damage in DAMAGES:
        text = json.dumps(with_damage(WHOLE, path, damage))
        try:
            ledger = Ledger.from_json(text)
        except ValueError:
            continue
        # what is accepted must be exactly what the text says: nothing dropped, nothing converted
        kept, written = json.loads(ledger.to_json()), json.loads(text)
        assert kept == written or json.dumps(kept) == json.dumps(written)  # NaN is not equal to itself
        assert 0 <= ledger.epsilon(DELTA) <= math.inf


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        (("entries", 0, "event", "count"), 0),
        (("entries", 0, "event", "count"), 3.0),
        (("entries", 0, "event", "event", "sampling_rate"), 0),
        (("entries", 0, "event", "event", "sampling_rate"), 1.5),
        (("entries", 0, "event", "event", "event", "noise_multiplier"), math.nan),
        (("entries", 1, "event", "type"), "serial"),
        (("entries", 2, "event", "noise_multiplier"), 1.0),
        (("entries", 2, "stage"), 3),
        (("entries", 2, "note"), None),
        (("public_facts",), [["a", 1]]),
        (("version",), 2),
        (("version",), 4),
        (("assumptions",), [{"code": "no such code"}]),
        (("assumptions",), [{"code": "overlapping_groups", "values": {"2": 2}}]),
        (("assumptions",), [{"code": "enforced_norm", "values": ["x"]}]),
        (("found_privately",), [1]),
        (("entries", 0, "unit"), {"kind": "person with ids", "rows_per_person": 0}),
        (("entries", 0, "unit"), {"kind": "record", "rows_per_person": 3}),
    ],
    ids=str,
)
def test_these_damages_are_refused(path, damage):
    with pytest.raises(ValueError, match="ledger"):
        Ledger.from_json(json.dumps(with_damage(WHOLE, path, damage)))


DISJOINT = Ledger().add_disjoint(
    {"training": dpsgd_event(2.0, 0.5, 3), "calibration": discrete_gaussian_event(4, 1, 2)}
)


def test_disjoint_stages_keep_their_names():
    entry = DISJOINT.entries[0]
    assert entry.stage == "training | calibration"
    assert entry.parts == ("training", "calibration")
    assert [name for name, _ in entry.stages] == ["training", "calibration"]
    assert DISJOINT.event == parallel(*(event for _, event in entry.stages))
    assert Ledger.from_json(DISJOINT.to_json()) == DISJOINT
    assert Ledger.from_dict(DISJOINT.to_dict()) == DISJOINT
    same = Ledger().add_disjoint({"a": dpsgd_event(2.0, 0.5, 3), "b": dpsgd_event(2.0, 0.5, 3)}).entries[0]
    assert same.stages == (("a | b", dpsgd_event(2.0, 0.5, 3)),)


@pytest.mark.parametrize("parts", ["ab", ["a"], ["a", 1], None, {}, ["a", "b", "c"]])
def test_names_that_do_not_fit_the_parts_are_refused(parts):
    with pytest.raises(ValueError, match="ledger"):
        Ledger.from_json(json.dumps(with_damage(DISJOINT.to_dict(), ("entries", 0, "parts"), parts)))


def named_ledger(secret_part=None, **names):
    """Training that consists of bounds, which are two events themselves, and a model."""
    bounds = compose(gaussian_event(9.0), gaussian_event(8.0))
    stages = {"training": compose(bounds, dpsgd_event(2.0, 0.5, 3)), "calibration": discrete_gaussian_event(4, 1, 2)}
    return Ledger().add_disjoint(stages, "note", secret_part=secret_part, components=names or None)


@pytest.mark.parametrize("secret_part", [None, 0.2])
def test_what_a_part_consists_of_has_names_and_changes_no_number(secret_part):
    ledger, bare = named_ledger(secret_part, training=("bounds", "model")), named_ledger(secret_part)
    (entry,) = ledger.entries
    names, events = zip(*entry.components_of(0), strict=True)
    assert names == ("training: bounds", "training: model")
    assert compose(*events) == entry.stages[0][1]
    assert entry.components_of(1) == entry.stages[1:]
    assert ledger.event == bare.event
    assert ledger.epsilon(DELTA) == bare.epsilon(DELTA)
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert pickle.loads(pickle.dumps(ledger)) == copy.deepcopy(ledger) == ledger
    for shown in (str(ledger), ledger.summary(DELTA), ledger._repr_html_()):
        assert shown.count("training: bounds") == shown.count("training: model") == 1
        assert "one noisy sum (noise scale: 9 times one record); one noisy sum (noise scale: 8" in shown
    # a ledger without names does not write any
    assert "components" not in bare.to_json()
    assert bare.entries[0].components_of(0) == bare.entries[0].stages[:1]
    assert "training: " not in str(bare)


@pytest.mark.parametrize("names", ["ab", [["a", "b"]], [["a"], []], [["a", 1], []], None, {}, [["a", "b"], [], []]])
def test_names_that_do_not_fit_the_components_are_refused(names):
    written = named_ledger(training=("bounds", "model")).to_dict()
    with pytest.raises(ValueError, match="ledger"):
        Ledger.from_json(json.dumps(with_damage(written, ("entries", 0, "components"), names)))


def test_deep_nesting_is_refused():
    text = WHOLE | {"entries": [{"stage": "a", "note": "", "event": "@"}]}
    nested = '{"type": "repeated", "count": 1, "event": ' * 5000 + '{"type": "no_op"}' + "}" * 5000
    with pytest.raises(ValueError, match="ledger"):
        Ledger.from_json(json.dumps(text).replace('"@"', nested))


# ---- helpers that make events


def test_bad_event_numbers():
    for bad in (-1.0, math.nan, math.inf):
        for name, make in (
            ("noise_multiplier", gaussian_event),
            ("noise_multiplier", lambda v: dpsgd_event(v, 0.1, 3)),
            ("sampling_rate", lambda v: dpsgd_event(1.0, v, 3)),
            ("epsilon", approximate_dp_event),
        ):
            with pytest.raises(ValueError, match=f"{name} must"):
                make(bad)
    for bad in (0, -3, 2.0, True, "2", None, 10**400):
        for make in (lambda v: gaussian_event(1.0, v), lambda v: dpsgd_event(1.0, 0.1, v), discrete_gaussian_event):
            with pytest.raises((ValueError, TypeError), match="must be"):
                make(bad)


def test_events_are_what_they_say():
    assert dpsgd_event(2.0, 0.1, 5) == SelfComposedDpEvent(PoissonSampledDpEvent(0.1, gaussian_event(2.0)), 5)
    assert dpsgd_event(2.0, 1, 5) == SelfComposedDpEvent(gaussian_event(2.0), 5)
    assert compose(gaussian_event(2.0)) == gaussian_event(2.0)
    assert compose() == parallel() == NoOpDpEvent()
    assert isinstance(parallel(gaussian_event(1.0), gaussian_event(2.0)), ParallelDpEvent)
    with pytest.raises(ValueError, match="delta must be below 1"):
        approximate_dp_event(1.0, 1.0)


def test_a_ledger_is_printed_at_the_delta_of_its_fit():
    ledger = Ledger().add("train", gaussian_event(4.0))
    assert ledger.show_at(1e-5) is ledger
    assert "alone at delta 1e-05" in str(ledger)
    shown = Ledger.from_json(ledger.show_at(1e-7).to_json())
    assert shown.public_facts["delta"] == 1e-7
    assert "alone at delta 1e-07" in str(shown)
    assert format_epsilon(ledger.epsilon(1e-7)) in str(shown)
    assert "at delta 1e-07" in shown._repr_html_()
    # a fact is for display and may be anything
    assert all("at delta 1e-05" in str(ledger.declare(delta=other)) for other in ("small", 0.0, 1.5, None))
