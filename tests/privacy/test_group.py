"""Group privacy: the promise to someone with several records, against exact mechanisms that add them all at once."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpscp.privacy import (
    Ledger,
    approximate_dp_event,
    compose,
    discrete_gaussian_event,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    gdp_epsilon,
    lattice_noise,
    non_private_event,
    parallel,
)
from dpscp.privacy.accounting import _proven_pairs, group_epsilon
from dpscp.privacy.pld import PLD

DELTA = 1e-5


def ledger_of(*events):
    ledger = Ledger()
    for event in events:
        ledger = ledger.add("stage", event)
    return ledger


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 50])
def test_gaussian_noise_costs_k_times_mu_exactly(rows):
    ledger = ledger_of(gaussian_event(10.0, 4), gaussian_event(40.0))
    mu = math.sqrt(4 / 100 + 1 / 1600)
    assert ledger.epsilon(DELTA, rows=rows) == pytest.approx(gdp_epsilon(DELTA, rows * mu), rel=1e-12)
    # the worst way to spread records over two parts is to have all of them in the costlier one
    split = ledger_of(parallel(gaussian_event(5.0), gaussian_event(20.0)))
    assert split.epsilon(DELTA, rows=rows) == pytest.approx(gdp_epsilon(DELTA, rows / 5), rel=1e-12)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_one_row_is_the_usual_number_and_more_rows_cost_more(accountant):
    ledger = ledger_of(
        dpsgd_event(2.0, 0.02, 200), parallel(lattice_noise(30.0, 0.5).event(12), dpsgd_event(3.0, 0.05, 20))
    )
    costs = [ledger.epsilon(DELTA, accountant, rows=k) for k in (1, 2, 5, 10, 30)]
    assert costs[0] == ledger.epsilon(DELTA, accountant)
    assert all(k * costs[0] < cost for k, cost in zip((2, 5, 10, 30), costs[1:], strict=True))
    assert np.all(np.diff(costs) > 0)
    assert costs[-1] < math.inf


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_integer_noise_against_the_mechanism_with_k_times_the_sensitivity(rows):
    """k records move the count by k: that mechanism's exact cost is a floor, and the bound is close to it."""
    event = discrete_gaussian_event(40, 2, 9)
    exact = epsilon_of(discrete_gaussian_event(40, 2 * rows, 9), DELTA)
    assert exact * (1 - 1e-4) <= ledger_of(event).epsilon(DELTA, rows=rows) <= exact * 1.002


@pytest.mark.parametrize(("rows", "noise", "rate", "steps"), [(2, 2.0, 0.3, 2), (4, 3.0, 0.05, 40)])
def test_sampled_noise_against_the_mechanism_that_samples_each_of_the_records(rows, noise, rate, steps):
    """Each of the k records is in the batch by its own coin: a mixture of Gaussians, exact in both directions."""
    inside = np.arange(rows + 1)
    one = pld.from_mixture_gaussian_mechanism(
        noise, inside.astype(float), stats.binom.pmf(inside, rows, rate), value_discretization_interval=1e-2
    )
    exact = one.self_compose(steps).get_epsilon_for_delta(DELTA)
    # theirs rounds up too, in buckets of 1e-2
    assert exact * 0.99 <= ledger_of(dpsgd_event(noise, rate, steps)).epsilon(DELTA, rows=rows) <= exact * 1.25


def test_records_in_several_parts_are_covered_however_they_are_spread():
    first, second, rows = (30, 2), (50, 3), 5
    promised = ledger_of(parallel(discrete_gaussian_event(*first), discrete_gaussian_event(*second))).epsilon(
        DELTA, rows=rows
    )
    for in_first in range(rows + 1):
        moved = [
            discrete_gaussian_event(sigma, count * sensitivity)
            for (sigma, sensitivity), count in ((first, in_first), (second, rows - in_first))
            if count
        ]
        assert epsilon_of(compose(*moved), DELTA) <= promised * (1 + 1e-4)


def test_a_chain_through_both_parts_can_cost_more_than_chains_within_one():
    """The worst history is taken for each record, not once for all: an (epsilon, 0) step multiplies another's delta."""
    first, second = approximate_dp_event(0.9), approximate_dp_event(0.05, 0.005)
    delta = 0.0105
    apart = [ledger_of(e).epsilon(delta, rows=2) for e in (first, second)]
    assert max(apart) < 2
    assert ledger_of(parallel(first, second)).epsilon(delta, rows=2) > 2


def pairs_of(first, second):
    """Every pair (epsilon, delta) with first(A) <= e^epsilon second(A) + delta, at the losses where delta bends."""
    with np.errstate(divide="ignore"):
        losses = np.log(first) - np.log(second)
    epsilons = np.unique(np.concatenate([losses[np.isfinite(losses)], np.linspace(-3, 3, 61)]))
    return epsilons, np.array([np.maximum(first - np.exp(e) * second, 0).sum() for e in epsilons])


def exact_epsilon(first, second, delta):
    epsilons = np.linspace(0, 12, 120_001)
    deltas = np.maximum(first - np.exp(epsilons)[:, None] * second, 0).sum(axis=1)
    enough = np.flatnonzero(deltas <= delta)
    return epsilons[enough[0]] if enough.size else math.inf


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.data())
def test_chain_bounds_every_small_mechanism(data):
    """Laws P_0, ..., P_k on a few outputs, any at all: what holds for neighbors, chained, holds for the two ends."""
    size, rows = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 4))
    masses = st.lists(st.integers(1, 30), min_size=size, max_size=size)
    laws = [np.array(data.draw(masses), float) for _ in range(rows + 1)]
    laws = [law / law.sum() for law in laws]
    delta = data.draw(st.sampled_from([1e-6, 0.01, 0.1]))
    for order in (laws, laws[::-1]):
        steps = [pairs_of(a, b) for a, b in itertools.pairwise(order)]
        epsilons = np.unique(np.concatenate([e for e, _ in steps]))
        # what is known of a step is the worst of all steps
        deltas = np.max(
            [[np.maximum(a - np.exp(e) * b, 0).sum() for e in epsilons] for a, b in itertools.pairwise(order)],
            axis=0,
        )
        assert group_epsilon(epsilons, deltas, delta, rows) >= exact_epsilon(order[0], order[-1], delta) - 1e-4


@pytest.mark.parametrize("delta", [1e-9, 1e-3, 0.05])
def test_chain_is_exact_for_the_clipped_geometric_mechanism(delta):
    """A count with geometric noise, clipped to 0 .. k: its neighbors are the hardest of all pure epsilon steps."""
    epsilon, rows = 0.4, 3
    a = math.exp(-epsilon)
    law = np.array([1 / (1 + a), *(a**j * (1 - a) / (1 + a) for j in range(1, rows)), a**rows / (1 + a)])
    promised = group_epsilon(np.array([epsilon, -epsilon]), np.array([0.0, 1 - a]), delta, rows)
    exact = exact_epsilon(law, law[::-1], delta)
    assert exact - 1e-4 <= promised <= exact + 1e-4


def test_both_directions_count():
    event = dpsgd_event(1.5, 0.1, 2)
    chains = [group_epsilon(*_proven_pairs(PLD, event, direction, 1e-30), DELTA, 3) for direction in ("add", "remove")]
    assert abs(chains[0] - chains[1]) > 0.1
    assert ledger_of(event).epsilon(DELTA, rows=3) == pytest.approx(max(chains), rel=1e-3)


def test_the_delta_of_a_step_is_chained_with_it():
    """Three rows at (epsilon, r) reach r (1 + e^epsilon + e^2epsilon), and below that delta nothing is proven."""
    step = approximate_dp_event(0.5, 1e-4)
    reached = 1e-4 * sum(math.exp(k * 0.5) for k in range(3))
    assert PLD.epsilon(step, 0.98 * reached, rows=3) == math.inf
    assert PLD.epsilon(step, 1.02 * reached, rows=3) < math.inf


def test_what_cannot_be_promised():
    assert ledger_of(non_private_event()).epsilon(DELTA, rows=3) == math.inf
    assert ledger_of().epsilon(DELTA, rows=3) == 0
    # ten steps multiply a delta of 1e-7 beyond 1e-5
    weak = ledger_of(approximate_dp_event(0.5, 1e-7))
    assert weak.epsilon(DELTA, rows=2) == pytest.approx(1.0, abs=0.01)
    assert weak.epsilon(DELTA, rows=10) == math.inf
    for bad in (0, -1, 1.5, True, "2"):
        with pytest.raises((ValueError, TypeError), match="rows must be"):
            weak.epsilon(DELTA, rows=bad)
