"""The exponential mechanism's quantile: its law, its privacy on neighboring scores, its promise on hard scores."""

import math

import numpy as np
import pytest
from experiments.exponential import BoundedRangeDpEvent

from dpscp.privacy import delta_of


def probabilities(scores, bins, level, rate):
    """The law of the drawn end by definition, in floats: scores are rounded up to the ends of a grid on (0, 1)."""
    ends = np.arange(1, bins + 1) / bins
    rounded = np.sort(np.ceil(np.clip(scores, 1e-12, 1) * bins - 1e-9)) / bins
    below = np.searchsorted(rounded, ends - 1e-9)
    above = len(scores) - np.searchsorted(rounded, ends + 1e-9)
    cost = min(level, 1 - level) * np.maximum(below / level, above / (1 - level))
    weights = np.exp(-rate * (cost - cost.min()))
    return weights / weights.sum()


def test_the_event_costs_no_more_than_the_best_two_point_case():
    for r in (0.01, 0.50003, 3.0):
        t = np.linspace(0, r, 4001)[:, None]
        share = np.expm1(t - r) / np.expm1(-r)  # of the larger of the two losses t and t - r
        epsilons = np.linspace(0, r, 7)
        worst = (share * np.maximum(-np.expm1(epsilons - t), 0)).max(axis=0)
        # loss ranges are rounded up to a bucket of 1e-4
        assert np.all(delta_of(BoundedRangeDpEvent(r), epsilons) >= worst - 1e-12)
        assert np.all(delta_of(BoundedRangeDpEvent(r), epsilons + 2e-4) <= worst + 1e-9)


@pytest.mark.parametrize("level", [0.3, 0.5, 0.9, 0.99])
def test_one_record_costs_what_the_event_says(level):
    rng = np.random.default_rng(2)
    rate, bins, widest = 0.7, 12, 0.0
    epsilons = np.array([0.0, 0.1, 0.3, 0.5, 0.69])
    proven = delta_of(BoundedRangeDpEvent(rate), epsilons)
    for n in (1, 5, 40):
        scores = rng.uniform(size=n) ** rng.uniform(0.2, 3)
        without = probabilities(scores, bins, level, rate)
        for added in (0.01, 0.2, 0.55, 0.99):
            with_it = probabilities(np.append(scores, added), bins, level, rate)
            change = np.log(with_it / without)
            widest = max(widest, np.ptp(change))
            for p, q in ((with_it, without), (without, with_it)):
                measured = [np.maximum(p - math.exp(e) * q, 0).sum() for e in epsilons]
                assert (measured <= proven + 1e-12).all()
    assert 0.4 * rate < widest <= rate + 1e-9  # half the sensitivity bound's 2 * rate, and no slack factor of two left
