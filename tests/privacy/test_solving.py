"""Noise that fits a budget: never above it, hardly below it, and refused when it cannot be met."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpscp import BudgetError, Ledger
from dpscp._base.format import format_epsilon
from dpscp.privacy import (
    as_event,
    compose,
    count_noise,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_mu,
    lattice_noise,
    noise_multiplier,
    non_private_event,
    sized_lattice_noise,
    smallest_noise,
)
from dpscp.privacy.random_streams import sensitivity_fraction

PROPERTY = settings(deadline=None, derandomize=True, max_examples=8)
DELTA = 1e-5

budgets = st.tuples(st.floats(0.1, 4.0), st.sampled_from([1e-3, 1e-5, 1e-7, 1e-9]))
# a single sampled step with little noise takes dp-accounting seconds
small_budgets = st.tuples(st.floats(0.1, 2.0), st.sampled_from([1e-5, 1e-7]))
sensitivities = st.sampled_from([0.5, 0.9, 1.0, 0.999999]) | st.floats(0.01, 3.0)


@PROPERTY
@given(budgets, st.integers(1, 40), sensitivities)
def test_count_noise_keeps_the_budget_and_uses_it(budget, steps, sensitivity):
    epsilon, delta = budget
    noise = count_noise(epsilon, delta, steps, sensitivity=sensitivity)
    # the search makes its own lattice from the returned number: the release is what must be in the budget
    spent = epsilon_of(lattice_noise(noise, sensitivity_fraction(sensitivity)).event(steps), delta)
    assert 0.995 * epsilon <= spent <= epsilon


@PROPERTY
@given(budgets, st.integers(1, 30), st.floats(0.05, 0.9), st.sampled_from(["pld", "rdp"]))
def test_count_noise_after_training_keeps_the_budget_and_uses_it(budget, steps, share, accountant):
    epsilon, delta = budget
    training = gaussian_event(1 / gdp_mu(share * epsilon, delta))
    spent = Ledger().add("train", training)
    if spent.epsilon(delta, accountant) >= epsilon:
        with pytest.raises(BudgetError):
            count_noise(epsilon, delta, steps, spent, 0.5, accountant)
        return
    noise = count_noise(epsilon, delta, steps, spent, 0.5, accountant)
    whole = spent.add("search", lattice_noise(noise, Fraction(1, 2)).event(steps))
    assert whole.epsilon(delta, accountant) <= epsilon
    if epsilon >= 0.5:  # Rényi bounds on Opacus' orders jump near their floor
        assert whole.epsilon(delta, accountant) >= 0.995 * epsilon


@pytest.mark.no_cover
@settings(PROPERTY, max_examples=5)
@given(small_budgets, st.sampled_from([1.0, 0.3, 0.05, 0.01]), st.integers(10, 400), st.sampled_from(["pld", "rdp"]))
def test_noise_multiplier_keeps_the_budget_and_uses_it(budget, sampling_rate, steps, accountant):
    epsilon, delta = budget
    if accountant == "rdp":  # Rényi bounds on Opacus' orders do not reach below this for small delta
        epsilon += 0.5
    noise = noise_multiplier(epsilon, delta, sampling_rate, steps, accountant)
    assert epsilon_of(dpsgd_event(noise, sampling_rate, steps), delta, accountant) <= epsilon
    # a little less noise is over the budget: the noise was the smallest
    assert epsilon_of(dpsgd_event(noise * 0.995, sampling_rate, steps), delta, accountant) > 0.995 * epsilon


@PROPERTY
@given(budgets, st.integers(1, 25), st.lists(sensitivities, min_size=1, max_size=3))
def test_shared_noise_keeps_the_budget_and_shares_it(budget, steps, several):
    epsilon, delta = budget
    lattices, size = sized_lattice_noise(epsilon, delta, steps, several)
    assert size is None
    assert 0.995 * epsilon <= epsilon_of(compose(*(n.event(steps) for n in lattices)), delta) <= epsilon
    ratios = [n.sigma / n.sensitivity for n in lattices]
    assert max(ratios) <= 1.0005 * min(ratios)


def test_gaussian_noise_is_the_closed_form():
    noise = smallest_noise(lambda ratio: gaussian_event(ratio, 20), 1.0, DELTA)
    assert noise == pytest.approx(math.sqrt(20) / gdp_mu(1.0, DELTA), rel=3e-4)
    assert epsilon_of(gaussian_event(noise, 20), DELTA) <= 1.0


def test_training_as_event_ledger_or_nothing():
    event = dpsgd_event(2.0, 0.02, 100)
    ledger = Ledger().add("train", event)
    assert as_event(ledger) == event == as_event(event)
    assert count_noise(1.0, DELTA, 10, event) == count_noise(1.0, DELTA, 10, ledger)
    assert count_noise(1.0, DELTA, 10, event) > count_noise(1.0, DELTA, 10) == count_noise(1.0, DELTA, 10, Ledger())
    with pytest.raises(TypeError, match="DpEvent"):
        count_noise(1.0, DELTA, 10, "training")


def test_training_over_the_budget_names_both_numbers():
    training = gaussian_event(1.0)
    spent = epsilon_of(training, DELTA)
    with pytest.raises(BudgetError) as caught:
        count_noise(0.5, DELTA, 20, training)
    assert format_epsilon(spent) in str(caught.value)
    assert "epsilon = 0.5" in str(caught.value)
    with pytest.raises(BudgetError, match="nothing is left"):
        count_noise(spent, DELTA, 20, training)


def test_training_without_privacy_cannot_be_repaired():
    with pytest.raises(BudgetError, match="not private"):
        count_noise(5.0, DELTA, 20, non_private_event())


def test_a_budget_that_no_noise_meets():
    fixed = gaussian_event(1.0)
    with pytest.raises(BudgetError, match="no amount of noise"):
        smallest_noise(lambda noise: compose(fixed, gaussian_event(noise)), 0.5, DELTA)


@pytest.mark.parametrize("guess", [10.0, 16.9, 17.4, 40.0])
def test_a_search_by_noise_ends_close_above_the_smallest(guess):
    smallest = 1 / math.sqrt(gdp_mu(1.0, DELTA) ** 2 - 1 / 4.2**2)
    costs = {
        smallest: lambda noise: compose(gaussian_event(4.2), gaussian_event(noise)),
        17.3: lambda noise: gaussian_event(1.0 if noise < 17.3 else 1e9),
    }
    for expected, event_at in costs.items():
        noise = smallest_noise(event_at, 1.0, DELTA, guess=guess, flat=True)
        assert 1 - 1e-6 <= noise / expected <= 1.002


def test_search_survives_an_infinite_cost_inside_its_bracket():
    noise = smallest_noise(lambda s: non_private_event() if s < 2.05 else gaussian_event(3 * s), 1.0, DELTA, guess=3.0)
    assert noise == pytest.approx(2.05, rel=1e-3)
    assert noise >= 2.05


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
def test_bad_numbers_are_named(bad):
    right = {"epsilon": 1.0, "delta": DELTA, "steps": 20}
    for solve, own in ((count_noise, {"sensitivity": 1.0}), (noise_multiplier, {"sampling_rate": 0.1})):
        for name in ("epsilon", "delta", *own):
            with pytest.raises(ValueError, match=f"{name} must"):
                solve(**right | own | {name: bad})
        with pytest.raises(ValueError, match="steps must be at least 1"):
            solve(**right | own | {"steps": 0})
