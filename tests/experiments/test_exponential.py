"""The exponential mechanism's quantile: its law, its privacy on neighboring scores, its promise on hard scores."""

import math

import numpy as np
import pytest
from experiments.exponential import BoundedRangeDpEvent, exponential_quantile
from scipy import stats

from dpscp.privacy import delta_of

CHANCE = 1e-6


def probabilities(scores, bins, level, rate):
    """The law of the drawn end by definition, in floats: scores are rounded up to the ends of a grid on (0, 1)."""
    ends = np.arange(1, bins + 1) / bins
    rounded = np.sort(np.ceil(np.clip(scores, 1e-12, 1) * bins - 1e-9)) / bins
    below = np.searchsorted(rounded, ends - 1e-9)
    above = len(scores) - np.searchsorted(rounded, ends + 1e-9)
    cost = min(level, 1 - level) * np.maximum(below / level, above / (1 - level))
    weights = np.exp(-rate * (cost - cost.min()))
    return weights / weights.sum()


def agreement(drawn, expected):
    """The p-value of a chi-square test; cells of few expected draws, where it would not hold, join another."""
    rare = expected < 10
    cell = np.where(rare, np.flatnonzero(~rare)[np.argmin(expected[~rare])], np.arange(len(expected)))
    seen, wanted = (np.bincount(cell, counts, minlength=len(cell))[~rare] for counts in (drawn, expected))
    return stats.chisquare(seen, wanted).pvalue


def test_the_event_costs_no_more_than_the_best_two_point_case():
    for r in (0.01, 0.50003, 3.0):
        t = np.linspace(0, r, 4001)[:, None]
        share = np.expm1(t - r) / np.expm1(-r)  # of the larger of the two losses t and t - r
        epsilons = np.linspace(0, r, 7)
        worst = (share * np.maximum(-np.expm1(epsilons - t), 0)).max(axis=0)
        # loss ranges are rounded up to a bucket of 1e-4
        assert np.all(delta_of(BoundedRangeDpEvent(r), epsilons) >= worst - 1e-12)
        assert np.all(delta_of(BoundedRangeDpEvent(r), epsilons + 2e-4) <= worst + 1e-9)


@pytest.mark.parametrize("level", ["plain", "corrected"])
def test_ends_are_drawn_by_their_distance_from_the_quantile(level):
    rng = np.random.default_rng(1)
    scores = np.append(rng.uniform(size=60), [0.5] * 10)
    options = {"alpha": 0.4, "score_range": (0, 1), "rate": 0.3, "bins": 8, "level": level}
    found = [exponential_quantile(scores, **options) for _ in range(500)]
    law = probabilities(scores, 8, found[0].level, found[0].rate)
    drawn = np.bincount([round(q.threshold * 8) - 1 for q in found], minlength=8)
    assert agreement(drawn, 500 * law) > CHANCE


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
