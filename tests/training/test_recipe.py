import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpscp as dp
from dpscp.privacy import compose, dpsgd_event, epsilon_of, gaussian_event, gdp_mu
from dpscp.training import DPSGD, Preprocessed, PrivateRelevance
from dpscp.training.preprocessing.projections import PrivateWhitening
from dpscp.training.preprocessing.rescaled import PrivateTarget, ScaledTarget
from dpscp.training.recipe import calibration_fraction, recipe

GUARANTEES = ("universal", "corrected", "asymptotic", "finite", "stability", "split")
ROWS = (None, dp.RowNorm(3.0), (-1.0, 2.0), "standardized")


def engine(mechanism):
    while not isinstance(mechanism, DPSGD):
        mechanism = mechanism.mechanism
    return mechanism


def planned(task, n_records, n_features, **declared):
    return recipe(task, n_records=n_records, n_features=n_features, **{"epsilon": 1.0, "delta": 1e-5} | declared)


def steps_of(mechanism):
    while not isinstance(mechanism, Preprocessed):
        if isinstance(mechanism, DPSGD):
            return ()
        mechanism = mechanism.mechanism
    return mechanism.steps


# ---- the rule


@pytest.mark.parametrize(("n_classes", "finds_out"), [(2, True), (50, False)])
def test_columns_are_selected_where_every_class_has_signal(n_classes, finds_out):
    plan = planned("classification", 20_000, 20, classes=tuple(range(n_classes)), feature_bounds=(-10, 10))
    assert any(isinstance(step, PrivateRelevance) for step in steps_of(plan.mechanism)) == finds_out


def test_wide_rows_get_a_linear_head_behind_private_centering_and_whitening():
    plan = planned("classification", 13_671, 512)
    names = [type(s).__name__ for s in plan.mechanism.mechanism.steps]
    assert names == ["UnitNorm", "PrivateCentering", "UnitNorm", "PrivateWhitening"]
    assert engine(plan.mechanism).hidden == ()
    wider = planned("classification", 13_671, 4096)
    assert not any(isinstance(s, PrivateWhitening) for s in wider.mechanism.mechanism.steps)


def test_a_weak_signal_gets_a_linear_model():
    for task in ("classification", "regression"):
        plan = planned(task, 200, 8, epsilon=0.5, feature_bounds="standardized")
        assert engine(plan.mechanism).hidden == ()


@settings(deadline=None, max_examples=60)
@given(
    task=st.sampled_from(("classification", "regression")),
    n=st.integers(1, 50_000),
    d=st.integers(1, 3000),
    epsilon=st.floats(0.05, 8.0),
    guarantee=st.sampled_from(GUARANTEES),
    rows=st.sampled_from(ROWS),
)
def test_every_public_setting_gives_a_mechanism_within_its_budget(task, n, d, epsilon, guarantee, rows):
    plan = recipe(
        task,
        n_records=n,
        n_features=d,
        classes=(0, 1, 2) if task == "classification" else None,
        epsilon=epsilon,
        delta=1e-6,
        guarantee=guarantee,
        feature_bounds=rows,
        y_bounds=(-2.0, 5.0) if task == "regression" else None,
    )
    mechanism = plan.calibrated()
    assert epsilon_of(mechanism.event, 1e-6) <= plan.train_epsilon * (1 + 1e-9)
    assert plan.train_epsilon <= epsilon * (1 + 1e-9)
    inner = engine(mechanism)
    # the noise in a parameter stays of the order of one, whatever the budget
    step_sum = float(inner.learning_rates.sum()) / (1 - inner.momentum)
    noise = inner.noise_multiplier * inner.clip_norm * step_sum / math.sqrt(inner.steps) / plan.n_training
    assert noise <= 1.5
    assert (guarantee == "split") == (plan.calibration_fraction is not None)
    json.dumps(plan.public_facts())


def test_the_rule_follows_every_one_of_its_arguments():
    """Each declared number is found again in the mechanism, and the next one to it gives another mechanism."""
    declared = {"n_records": 5000, "n_features": 9, "epsilon": 1.0, "delta": 1e-6}

    def rule(**changes):
        bounds = {"feature_bounds": (-1.5, 2.5), "y_bounds": (-3.0, 7.0)}
        return recipe("regression", **declared | bounds | changes)

    target = rule().mechanism
    assert isinstance(target, PrivateTarget)
    assert target.y_bounds == (-3.0, 7.0)
    assert [(s.low, s.high) for s in steps_of(target)] == [(-1.5, 2.5)]
    stable = rule(guarantee="stability").mechanism
    assert [(s.low, s.high) for s in steps_of(stable)] == [(-1.5, 2.5)]
    assert engine(rule(quantiles=(0.1, 0.8)).mechanism).quantiles == (0.1, 0.8)
    assert engine(rule(quantiles=(0.1, 0.8)).mechanism).loss == "pinball"
    clipped = rule(feature_bounds=dp.RowNorm(3.5), guarantee="stability").mechanism
    assert [s.bound for s in steps_of(clipped)] == [3.5]
    labels = recipe("classification", n_records=5000, n_features=9, epsilon=1.0, delta=1e-6, classes=("b", "a"))
    assert engine(labels.mechanism).classes == ("b", "a")
    held_out = rule(held_out_fraction=0.4)
    assert (held_out.calibration_fraction, held_out.n_training) == (0.4, 3000)
    assert rule(guarantee="universal").n_training == 5000
    assert rule(train_epsilon=0.25, guarantee="universal").train_epsilon == 0.25
    # a smaller delta leaves less of mu: more is held out, and noise is fought with a smaller learning rate
    fractions = [calibration_fraction(2500, 1.0, delta) for delta in (1e-3, 1e-6)]
    assert fractions[0] < fractions[1]
    for name, larger in {"n_records": 50_000, "epsilon": 4.0, "delta": 1e-3}.items():
        assert engine(rule(**{name: larger}).mechanism).learning_rates.sum() > engine(target).learning_rates.sum()
    assert engine(rule(n_features=36).mechanism).feature_bound == pytest.approx(2 * engine(target).feature_bound)


def test_train_share_is_given_in_squared_gaussian_dp():
    declared = {"delta": 1e-6, "guarantee": "asymptotic"}
    plan = planned("regression", 5000, 5, feature_bounds="standardized", **declared)
    spent = gdp_mu(plan.train_epsilon, 1e-6)
    assert spent**2 == pytest.approx(plan.train_share * gdp_mu(1.0, 1e-6) ** 2, rel=1e-6)
    given_budget = planned("regression", 5000, 5, train_epsilon=0.3, **declared)
    assert given_budget.train_epsilon == 0.3
    assert given_budget.train_share == pytest.approx((gdp_mu(0.3, 1e-6) / gdp_mu(1.0, 1e-6)) ** 2)


def test_calibration_fraction_grows_where_noise_would_hide_the_part():
    fractions = [calibration_fraction(n, 1.0, 1e-5) for n in (100, 2000, 100_000)]
    assert fractions[0] == 0.5
    assert 0.125 < fractions[1] < 0.5
    assert fractions[2] == 0.125


def test_stability_recipe_has_a_bound_and_a_useful_buffer():
    plan = planned("classification", 13_671, 64, classes=tuple(range(8)), epsilon=2.0, guarantee="stability")
    inner = engine(plan.calibrated())
    bound = inner.stability(64, 13_671, inner.classes)
    assert bound is not None
    assert bound.delta_n == 0.0
    assert 2 * bound.score_lipschitz * bound.shift_bound <= 0.065
    assert all(step.is_public for step in steps_of(plan.mechanism))


def test_stability_recipe_for_regression_has_a_bound():
    bounds = {"feature_bounds": (0.0, 1.0), "y_bounds": (0.0, 1.0)}
    plan = planned("regression", 5000, 6, delta=1e-6, guarantee="stability", **bounds)
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(5000, 6))
    trained = ScaledTarget(plan.calibrated(), (0.0, 1.0)).train(X, X[:, 0], random_state=0, n_records=5000)
    assert trained.stability is not None
    # the buffer in units of the target, whose range is 1
    assert 2 * trained.stability.score_lipschitz * trained.stability.shift_bound <= 0.051


def test_corrected_keeps_the_trajectory_of_a_linear_head():
    plan = planned("classification", 13_671, 512, epsilon=2.0, guarantee="corrected")
    inner = engine(plan.mechanism)
    assert inner.keep_trajectory
    # a record's own pull on its logits stays small enough to be put back
    assert inner.clip_norm * inner.learning_rates.sum() / (1 - inner.momentum) / 13_671 <= 0.1501


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "ranking"}, "task must be one of"),
        ({"guarantee": "auto"}, "guarantee must be one of"),
        ({"feature_bounds": "raw"}, "feature_bounds must be"),
        ({"n_records": 0}, "n_records"),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        planned(**{"task": "regression", "n_records": 100, "n_features": 3} | change)


# ---- private whitening


def test_whitening_without_noise_is_refused():
    assert PrivateWhitening().event is None
    with pytest.raises(ValueError, match="noise_multiplier is not set"):
        PrivateWhitening().fit(np.ones((3, 2)), n_records=3, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="ridge"):
        PrivateWhitening(ridge=0.0)


# ---- private target


def inner_net():
    return DPSGD(hidden=(8,), loss="huber", steps=40, learning_rate=0.5, sampling_rate=1.0)


def test_what_is_paid_is_what_was_stated_before_training():
    class SaysMore(DPSGD):
        def train_on(self, run):
            return replace(super().train_on(run), event=dpsgd_event(0.5, 1.0, 7))

    X = np.random.default_rng(0).normal(size=(20, 2))
    inner = SaysMore(loss="huber", steps=2, noise_multiplier=1.0)
    mechanism = PrivateTarget(inner, (0, 1), noise_multiplier=3.0)
    trained = mechanism.train(X, X[:, 0], random_state=0, n_records=20)
    assert trained.event == mechanism.event == compose(gaussian_event(3.0), inner.event)
    assert inner.train(X, X[:, 0], random_state=0, n_records=20).event == inner.event


def test_private_target_refuses_what_it_cannot_fold():
    X = np.zeros((20, 2))
    classifier = PrivateTarget(DPSGD(classes=(0, 1), steps=2, noise_multiplier=1.0), (0, 1), noise_multiplier=1.0)
    with pytest.raises((TypeError, ValueError)):
        classifier.train(X, np.zeros(20), random_state=0, n_records=20)
    with pytest.raises(ValueError, match="noise_multiplier is not set"):
        PrivateTarget(inner_net(), (0, 1)).train(X, np.zeros(20))
    with pytest.raises(ValueError, match="y_bounds"):
        PrivateTarget(inner_net(), (1, 1))
