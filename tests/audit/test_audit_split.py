"""The game of a whole fit with a held-out part: its likelihood ratio is exact, and errors of either part are caught."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from audit_split_game import SplitGame
from scipy.special import expit

import dpscp as dp
import dpscp.core.fit as releases
from dpscp.privacy import LatticeNoise


@dataclass(frozen=True)
class Seeded(SplitGame):
    """The game with a seed of its own for each release, so that a test does not depend on chance."""

    seeds: Iterator[int] = field(default_factory=itertools.count)

    def _release(self, with_record, observer=None):
        options = {"epsilon": self.epsilon, "noise_multiplier": self.noise_multiplier}
        return SplitGame(random_state=next(self.seeds), **options)._release(with_record, observer)


def scores(game, runs):
    """Two normal deviates of a score test that these are log-likelihood ratios: of their level and of their slope."""
    without, with_record = game.play(False, runs), game.play(True, runs)
    ratios = np.clip(np.concatenate([without, with_record]), -30, 30)
    truth, chance = np.repeat([0.0, 1.0], runs), expit(ratios)
    weights = np.array([np.ones_like(ratios), ratios])
    return weights @ (truth - chance) / np.sqrt(weights**2 @ (chance * (1 - chance)))


@pytest.fixture
def in_both_parts(monkeypatch):
    monkeypatch.setattr(releases, "_parts", lambda records, *_: (records, records, None))


@pytest.fixture
def half_the_noise(monkeypatch):
    honest = LatticeNoise.sample
    monkeypatch.setattr(LatticeNoise, "sample", lambda self, size, source: [z // 2 for z in honest(self, size, source)])


def test_the_ratios_of_an_honest_fit_are_likelihood_ratios():
    assert np.abs(scores(Seeded(), 40)).max() < 3


def test_catches_a_record_that_is_in_both_parts(in_both_parts):
    assert scores(Seeded(epsilon=7.0, noise_multiplier=1.0), 60)[0] < -3


def test_the_game_has_a_name_and_its_conditions():
    assert dp.audit(SplitGame(), runs=6).passed
    with pytest.raises(ValueError, match="guarantee"):
        SplitGame(guarantee="universal")


@pytest.mark.slow
def test_deep_audit_of_an_honest_fit():
    result = dp.audit(SplitGame(), runs=1500)
    print(result)
    assert result.passed
    assert result.share(0.2) > 0.3
    assert np.abs(scores(SplitGame(), 600)).max() < 4.5


@pytest.mark.slow
def test_null_control():
    assert max(dp.audit(SplitGame(), runs=400, null=True).audited) == 0


@pytest.mark.slow
def test_deep_audit_catches_a_record_that_is_in_both_parts(in_both_parts):
    result = dp.audit(SplitGame(), runs=700, deltas=(0.5, 0.6))
    assert not result.passed


@pytest.mark.slow
def test_deep_audit_catches_half_of_the_noise(half_the_noise):
    assert scores(SplitGame(), 800)[1] > 4
