"""A secret split costs what the mixture of its two parts costs: against exact sums over all outcomes."""

import itertools
import math

import numpy as np
import pytest

from dpscp.exceptions import BudgetError
from dpscp.privacy import (
    Ledger,
    approximate_dp_event,
    compose,
    delta_of,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    gdp_mu,
    non_private_event,
    parallel,
    secret_shares,
    secret_split,
    sized_lattice_noise,
)
from dpscp.privacy.events import disclose_parts, event_from_dict, event_to_dict
from dpscp.privacy.noise_search import spare_mu, split_budget

DIRECTIONS = ("remove", "add")


def randomized_response(epsilon):
    """The laws of one noisy bit (with the record, without it), the worst (epsilon, 0)-DP pair."""
    likely = math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.array([likely, 1 - likely]), np.array([1 - likely, likely])


def split_laws(train_epsilon, search_epsilon, fraction):
    """The laws of (training, search) with and without the record; the search turns its answer by what training said."""
    with_t, without_t = randomized_response(train_epsilon)
    with_k, without_k = randomized_response(search_epsilon)
    joined = {
        (t, k): (
            (1 - fraction) * with_t[t] * without_k[k ^ t] + fraction * without_t[t] * with_k[k ^ t],
            without_t[t] * without_k[k ^ t],
        )
        for t, k in itertools.product((0, 1), repeat=2)
    }
    with_record, without = zip(*joined.values(), strict=True)
    return np.array(with_record), np.array(without)


def hockey_stick(upper, lower, epsilon):
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum())


@pytest.mark.parametrize(("train", "search", "fraction"), [(1.0, 2.0, 0.2), (0.5, 0.5, 0.5), (2.0, 0.7, 0.05)])
def test_the_cost_is_that_of_all_outcomes_summed(train, search, fraction):
    event = secret_split(approximate_dp_event(train), approximate_dp_event(search), fraction)
    with_record, without = split_laws(train, search, fraction)
    epsilons = np.linspace(0, max(train, search), 23)
    for direction, (upper, lower) in zip(DIRECTIONS, ((with_record, without), (without, with_record)), strict=True):
        exact = np.array([hockey_stick(upper, lower, e) for e in epsilons])
        claimed = delta_of(event, epsilons, direction=direction)
        assert np.all(claimed >= exact - 1e-12), direction
        # two losses lie between dots of the profile, so some delta is lost: less than one distance of dots
        assert np.all(claimed <= exact + 0.01), direction


def test_two_splits_compose():
    train, search, fraction = 0.8, 1.5, 0.3
    event = secret_split(approximate_dp_event(train), approximate_dp_event(search), fraction)
    with_record, without = split_laws(train, search, fraction)
    upper, lower = np.outer(with_record, with_record).ravel(), np.outer(without, without).ravel()
    epsilons = np.linspace(0, 2, 11)
    exact = np.array([hockey_stick(upper, lower, e) for e in epsilons])
    claimed = delta_of(compose(event, event), epsilons, direction="remove")
    assert np.all(claimed >= exact - 1e-12)
    assert np.all(claimed <= exact + 0.02)


def gaussian_deltas(mu_training, mu_search, fraction, epsilon):
    """By a plain sum over a fine square of both normal variables."""
    z = np.linspace(-9, 9, 1501)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    ratio = [np.exp(mu * z - mu**2 / 2) for mu in (mu_training, mu_search)]
    mixed = (1 - fraction) * ratio[0][:, None] + fraction * ratio[1]
    payoff = np.maximum(mixed - math.exp(epsilon), 0), np.maximum(1 - math.exp(epsilon) * mixed, 0)
    return [float(weights @ p @ weights) for p in payoff]


@pytest.mark.parametrize(("epsilon", "fraction", "more"), [(0.5, 0.125, 2.0), (2.0, 0.3, 1.2)])
def test_gaussian_parts_cost_their_integral(epsilon, fraction, more):
    mu = gdp_mu(epsilon, 1e-5)
    event = secret_split(gaussian_event(1 / (1.05 * mu)), gaussian_event(1 / (more * mu)), fraction)
    for at in (0.3 * epsilon, epsilon):
        for direction, exact in zip(DIRECTIONS, gaussian_deltas(1.05 * mu, more * mu, fraction, at), strict=True):
            claimed = delta_of(event, at, direction=direction)
            assert exact * (1 - 1e-6) <= claimed <= exact * 1.02, (direction, at)


def test_the_mixture_costs_less_than_the_worse_part_and_other_accountants_count_that():
    training, search = gaussian_event(4.0), discrete_gaussian_event(30, 10, 2)
    event = secret_split(training, search, 0.2)
    parts = parallel(training, search)
    assert epsilon_of(event, 1e-5) < 0.97 * epsilon_of(parts, 1e-5)
    assert disclose_parts(compose(event, training)) == compose(parts, training)
    assert epsilon_of(event, 1e-5, "rdp") == epsilon_of(parts, 1e-5, "rdp")
    # a group of records may lie in both parts: the chain of steps holds for every spread
    assert epsilon_of(event, 1e-5, rows=2) > epsilon_of(event, 1e-5)


def test_sampled_training_counts_as_well():
    training = dpsgd_event(1.2, 0.01, 300)
    event = secret_split(training, compose(), 0.25)
    alone, hidden = epsilon_of(training, 1e-5), epsilon_of(event, 1e-5)
    # what sampling with rate 1 - f at one point of the profile proves
    assert hidden <= math.log1p(0.75 * math.expm1(epsilon_of(training, 1e-5 / 0.75))) * 1.001
    assert hidden < alone


def test_sampled_training_costs_what_its_outcomes_sum_to():
    """One sampled step has two different directions; a fine sum over its outputs knows both."""
    rate, noise, search, fraction = 0.3, 0.8, 1.0, 0.25
    x = np.linspace(-9, 10, 20_001)
    # the output in units of the noise, without the record and, where it was sampled, shifted by its gradient
    plain, shifted = (np.exp(-((x - shift) ** 2) / 2) for shift in (0, 1 / noise))
    without_t = plain / plain.sum()
    with_t = (1 - rate) * without_t + rate * shifted / shifted.sum()
    with_k, without_k = randomized_response(search)
    without = np.outer(without_t, without_k).ravel()
    with_record = ((1 - fraction) * np.outer(with_t, without_k) + fraction * np.outer(without_t, with_k)).ravel()
    event = secret_split(dpsgd_event(noise, rate, 1), approximate_dp_event(search), fraction)
    for direction, pair in zip(DIRECTIONS, ((with_record, without), (without, with_record)), strict=True):
        for epsilon in (0.0, 0.1, 0.25):
            exact = hockey_stick(*pair, epsilon)
            assert exact - 1e-6 <= delta_of(event, epsilon, direction=direction) <= exact + 2e-3, (direction, epsilon)


def test_what_only_the_record_makes_possible_counts():
    """Training that names the record with probability .01, a search that does with .02."""
    event = secret_split(approximate_dp_event(0.5, 0.01), approximate_dp_event(0.5, 0.02), 0.25)
    named = 0.75 * 0.01 + 0.25 * 0.02
    assert named <= delta_of(event, 1.0, direction="remove") <= named + 1e-6


def test_a_part_without_privacy_or_with_parts_of_its_own():
    assert epsilon_of(secret_split(non_private_event(), gaussian_event(3.0), 0.5), 1e-5) == math.inf
    weak, strong, search = gaussian_event(2.0), gaussian_event(5.0), gaussian_event(4.0)
    nested = secret_split(parallel(weak, strong), search, 0.25)
    assert epsilon_of(nested, 1e-5) == epsilon_of(secret_split(weak, search, 0.25), 1e-5)
    with pytest.raises(ValueError, match="fraction"):
        secret_split(weak, search, 1.0)


def test_files_keep_it_and_refuse_others():
    event = secret_split(dpsgd_event(2.0, 0.1, 5), discrete_gaussian_event(7, 2, 3), 0.125)
    ledger = Ledger().add_disjoint({"training": event.training, "calibration": event.held_out}, secret_part=0.125)
    assert Ledger.from_json(ledger.to_json()).event == event == event_from_dict(event_to_dict(event))
    assert [name for name, _ in ledger.entries[0].stages] == ["training", "calibration"]
    for wrong in ({"fraction": 2}, {"fraction": None}, {"training": []}, {"more": 1}):
        with pytest.raises(ValueError, match=r"fraction|event"):
            event_from_dict(event_to_dict(event) | wrong)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("fraction", [0.05, 0.125, 0.5])
@pytest.mark.covering
def test_planned_shares_fit_the_budget(epsilon, fraction):
    """The plan is no proof, but the accountant must find room for nearly all of it."""
    train_epsilon, held_out_mu = split_budget(epsilon, 1e-5, fraction, 5_000)
    training = gaussian_event(1 / gdp_mu(train_epsilon, 1e-5))
    event = secret_split(training, gaussian_event(1 / (0.98 * held_out_mu)), fraction)
    assert 0.95 * epsilon <= epsilon_of(event, 1e-5) <= epsilon
    assert spare_mu(epsilon, 1e-5, train_epsilon, fraction) == pytest.approx(held_out_mu, rel=0.01)


def test_solved_noise_spends_the_budget_and_no_more():
    training = gaussian_event(1 / (1.05 * gdp_mu(1.0, 1e-5)))
    noises, size = sized_lattice_noise(1.0, 1e-5, 9, (0.5,), training, size_share=0.12, secret_part=0.2)
    event = secret_split(training, compose(size.event(1), noises[0].event(9)), 0.2)
    assert 0.998 <= epsilon_of(event, 1e-5) <= 1.0
    with pytest.raises(BudgetError, match="nothing is left"):
        sized_lattice_noise(1.0, 1e-5, 9, (0.5,), gaussian_event(1 / (1.2 * gdp_mu(1.0, 1e-5))), secret_part=0.2)


def test_an_accountant_that_cannot_mix_gives_each_part_the_budget():
    """Training's own cost must not stop the search for the other part's noise."""
    training = gaussian_event(18.0)
    (beside,), _ = sized_lattice_noise(1.0, 1e-5, 9, (0.5,), training, "rdp", secret_part=0.2)
    (alone,), _ = sized_lattice_noise(1.0, 1e-5, 9, (0.5,), None, "rdp")
    assert beside.count_noise == pytest.approx(alone.count_noise, rel=3e-3)
    assert secret_shares(1.0, 1e-5, 0.2, 5_000, "rdp") == (1.0, gdp_mu(1.0, 1e-5))
    assert secret_shares(40.0, 1e-5, 0.2, 5_000)[0] == 40.0
    assert secret_shares(1.0, 1e-5, 0.2, 5_000)[0] > 1.0


@pytest.mark.parametrize("fraction", [0.125, 0.5])
def test_a_part_with_a_large_delta_of_its_own_costs_at_most_the_worse_part(fraction):
    """.660 where .500 is proven: its dots were spread up to a loss of 300."""
    part, other, delta = approximate_dp_event(0.5, 1e-6), gaussian_event(20.0), 1e-5
    cost = epsilon_of(secret_split(part, other, fraction), delta)
    assert cost <= max(epsilon_of(part, delta), epsilon_of(other, delta)) == pytest.approx(0.5, abs=1e-4)
    # a mixture with no release at all is exact: an (epsilon, delta)-DP step on a Poisson sample
    rate = 1 - fraction
    alone = epsilon_of(secret_split(part, compose(), fraction), 1.01e-6 * rate)
    assert alone == pytest.approx(math.log1p(rate * math.expm1(0.5)), rel=1e-3)


@pytest.mark.parametrize(("mu", "fraction"), [(5.0, 0.99), (10.0, 0.5)])
def test_two_equal_parts_never_cost_more_than_one_of_them(mu, fraction):
    """35.24 for 33.10 where the dots of the parts lie far apart."""
    part = gaussian_event(1 / mu)
    assert epsilon_of(secret_split(part, part, fraction), 1e-5) <= gdp_epsilon(1e-5, mu) * (1 + 1e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-5, 1e-5), (1e-6, 1e-5), (1e-3, 1e-2), (1.0, 0.9)])
def test_a_budget_near_its_delta_is_shared_in_positive_parts(epsilon, delta):
    train_epsilon, held_out_mu = split_budget(epsilon, delta, 0.125, 1000)
    assert 0 < train_epsilon <= 1.2 * epsilon
    assert held_out_mu > 0
