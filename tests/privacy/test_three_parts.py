"""Three parts by one secret coin cost what the mixture of three costs: against integrals and sums over outcomes."""

import itertools
import math

import numpy as np
import pytest

from dpscp.privacy import (
    Ledger,
    approximate_dp_event,
    compose,
    delta_of,
    epsilon_of,
    gaussian_event,
    secret_split,
    sized_lattice_noise,
)
from dpscp.privacy.events import parallel_parts, secret_parts


def randomized_response(epsilon):
    likely = math.exp(epsilon) / (1 + math.exp(epsilon))
    return np.array([likely, 1 - likely]), np.array([1 - likely, likely])


def laws_of_three(costs, shares):
    """The laws with and without the record of (training, calibration, evaluation), each turned by those before it."""
    pairs = [randomized_response(cost) for cost in costs]
    rest = 1 - sum(shares)
    found = []
    for t, k, e in itertools.product((0, 1), repeat=3):
        seen = (t, k ^ t, e ^ k ^ t)  # later parts turn their answers by what earlier ones said
        without = [pair[1][place] for pair, place in zip(pairs, seen, strict=True)]
        ratios = [pair[0][place] / pair[1][place] for pair, place in zip(pairs, seen, strict=True)]
        base = math.prod(without)
        found.append((base * np.dot((rest, *shares), ratios), base))
    with_record, without = zip(*found, strict=True)
    return np.array(with_record), np.array(without)


@pytest.mark.parametrize("shares", [(0.2, 0.1), (0.125, 0.3)])
def test_the_mixture_of_three_is_that_of_all_outcomes(shares):
    costs = (1.0, 2.0, 1.5)
    events = [approximate_dp_event(cost) for cost in costs]
    event = secret_parts(events[0], *zip(events[1:], shares, strict=True))
    with_record, without = laws_of_three(costs, shares)
    for epsilon in (0.0, 0.3, 0.7):
        for direction, upper, lower in (("remove", with_record, without), ("add", without, with_record)):
            exact = np.maximum(upper - math.exp(epsilon) * lower, 0).sum()
            assert exact - 1e-12 <= delta_of(event, epsilon, direction=direction) <= exact + 2e-3


def test_three_gaussian_parts_cost_their_integral():
    mus, shares = (0.5, 0.9, 0.7), (0.15, 0.1)
    events = [gaussian_event(1 / mu) for mu in mus]
    event = secret_parts(events[0], *zip(events[1:], shares, strict=True))
    z = np.linspace(-8, 8, 161)
    mass = np.exp(-(z**2) / 2)
    mass /= mass.sum()
    first, second, third = (np.exp(mu * z - mu**2 / 2) for mu in mus)
    ratio = 0.75 * first[:, None, None] + 0.15 * second[None, :, None] + 0.1 * third
    weights = mass[:, None, None] * mass[None, :, None] * mass
    for epsilon in (0.2, 0.6):
        exact = float((weights * np.maximum(ratio - math.exp(epsilon), 0)).sum())
        assert exact * (1 - 1e-4) <= delta_of(event, epsilon, direction="remove") <= exact * 1.005 + 1e-5


def test_three_parts_are_at_most_the_mean_of_two_and_the_order_does_not_matter():
    training, search, measure = gaussian_event(1.2), gaussian_event(0.8), gaussian_event(1.0)
    event = secret_parts(training, (search, 0.15), (measure, 0.1))
    assert parallel_parts(event) == (training, search, measure)
    other = secret_split(secret_split(training, measure, 0.1 / 0.85), search, 0.15)
    epsilons = np.array([0.2, 0.5, 1.0])
    three = delta_of(event, epsilons)
    two = 0.6 * delta_of(secret_split(training, search, 0.25), epsilons)
    two += 0.4 * delta_of(secret_split(training, measure, 0.25), epsilons)
    assert (three <= two * (1 + 1e-3)).all()
    np.testing.assert_allclose(delta_of(other, epsilons), three, rtol=5e-3)


def test_noise_beside_a_third_part_fits_the_budget_and_the_ledger_shows_it():
    training, measure = gaussian_event(4.0), gaussian_event(2.2)
    (noise,), _ = sized_lattice_noise(1.0, 1e-6, 8, (0.5,), training, "pld", 0.0, 0.15, (measure, 0.1))
    (alone,), _ = sized_lattice_noise(1.0, 1e-6, 8, (0.5,), training, "pld", 0.0, 0.25)
    stages = {"training": training, "calibration": noise.event(8), "evaluation": measure}
    ledger = Ledger().add_disjoint(stages, secret_part=(0.15, 0.1))
    assert 0.99 < ledger.epsilon(1e-6) <= 1.0
    assert [name for name, _ in ledger.entries[0].stages] == list(stages)
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert noise.count_noise < alone.count_noise * 1.5
    # an accountant that cannot mix counts the worst of the three
    worst = max(epsilon_of(compose(event), 1e-6, "rdp") for event in stages.values())
    assert ledger.epsilon(1e-6, "rdp") == pytest.approx(worst)
