"""Parts that secret coins draw from a counted table: the law of their size replaces a released size."""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpscp import private_quantile
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.tasks import OwnLosses, OwnScores
from dpscp.privacy import Budget, Ledger, gaussian_event
from dpscp.threshold import (
    CountedSize,
    KnownSize,
    counted_offset,
    graded_offset,
    release_miss_bound,
    release_offset,
    sized_offset,
    step_rises,
)
from dpscp.threshold.minimax import worst_excess

pytestmark = pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning")


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.5, 0.7])
@pytest.mark.parametrize(("n", "part"), [(1, 0.5), (60, 0.5), (300, 0.2), (5000, 0.05)])
def test_the_offset_is_the_smallest_that_the_sum_allows(alpha, n, part):
    noise, steps = 3.0, 7
    size = CountedSize(n, part)
    c = counted_offset(alpha, size, noise, steps, graded=True)
    k = np.arange(n + 1)

    def miss(offset):
        start = (offset + (0.5 - alpha) * (part * n - k) - alpha * (k + 1)) / noise
        return stats.binom(n, part).pmf(k) @ np.minimum(1, noise * worst_excess(start, steps, graded=True) / (k + 1))

    assert miss(c) <= alpha < miss(c - 2e-3 * max(noise, abs(c)))


def test_a_part_of_everything_is_a_known_number():
    c = counted_offset(0.1, CountedSize(200, 1.0), 4.0, 8, graded=True)
    assert c == pytest.approx(graded_offset(0.1, 200, 4.0, 8), abs=0.02 * 4)


def test_offsets_below_zero_are_used_everywhere():
    """Six steps that rise by .175 of the noise leave the adversary so little that the last may aim below the rank."""
    assert graded_offset(0.1, 10_000, 10.0, 6) == pytest.approx(-0.99, abs=0.01)
    assert sized_offset(0.1, 10_000, 10.0, 10.0, 6, graded=True) == pytest.approx(-0.97, abs=0.01)
    assert counted_offset(0.1, CountedSize(2000, 0.5), 4.0, 6, graded=True) < -0.5
    assert release_offset(0.3, KnownSize(1000), level=0.9, alpha=0.1, count_noise=1.0, steps=6) < -4


def test_the_numbers_of_the_note():
    """Mean aim above the rank at epsilon .5 with half held out, by a released size and by the law of the coins."""
    for n, mu, steps, released, counted in ((150, 0.220, 6, 7.4, 2.9), (300, 0.208, 7, 4.7, 3.4)):
        noise, rise = 0.5 * math.sqrt(steps) / mu, float(step_rises(steps).mean())
        found = counted_offset(0.1, CountedSize(n, 0.5), noise, steps, graded=True) + noise * rise
        assert found == pytest.approx(counted, abs=0.06)
        noisier, size_noise = noise / math.sqrt(0.88), 1 / (mu * math.sqrt(0.12))
        sizes = n / 2 + size_noise * special.ndtri((np.arange(40) + 0.5) / 40)
        mean = np.mean([sized_offset(0.0999, s, size_noise, noisier, steps, graded=True) for s in sizes])
        assert mean + noisier * rise == pytest.approx(released, abs=0.15)


@pytest.mark.parametrize("graded", [False, True])
def test_what_one_release_covers_is_the_sum_over_sizes(graded):
    """Result I: P(B + M >= target) added up over the law of the part, written out."""
    alpha, n, part, noise, steps, offset, level = 0.1, 80, 0.5, 3.0, 6, 2.0, 0.85
    rises = step_rises(steps) if graded else np.zeros(steps)
    total = 0.0
    for k, mass in enumerate(stats.binom(n, part).pmf(np.arange(n + 1))):
        below = np.arange(k + 1)
        needed = 0.5 * (k + 1) + 0.4 * (part * n + 1) + offset - below
        tails = 1 - np.prod([stats.norm.cdf(needed / noise + rise) for rise in rises], axis=0)
        total += mass * (stats.binom(k, level).pmf(below) @ tails)
    arguments = {"alpha": alpha, "offset": offset, "count_noise": noise, "steps": steps, "graded": graded}
    assert total <= release_miss_bound(level, CountedSize(n, part), **arguments) <= total + 5e-3


def test_a_release_of_a_drawn_part_covers_as_often_as_it_says():
    """An atom just below the level is the worst law: over coins, scores and noise, the bound is met and sharp."""
    size, noise, steps, rng = CountedSize(80, 0.5), 2.0, 6, np.random.default_rng(3)
    trials, missed = 200, 0
    for seed in rng.integers(2**31, size=trials).tolist():
        scores = (rng.uniform(size=rng.binomial(80, 0.5)) < 0.8999) * 0.25
        q = private_quantile(
            np.where(scores > 0, scores, 0.9),
            alpha=0.1,
            score_range=(0, 1),
            count_noise=noise,
            steps=steps,
            size=size,
            release_confidence=0.8,
            random_state=seed,
        )
        missed += q.threshold < 0.9
    assert stats.binom(trials, 0.08).ppf(0.001) <= missed <= stats.binom(trials, 0.2).ppf(0.999)


def outlined(guarantee, alphas, spent, n, *, epsilon=1.0, part=1.0, mu=None, **more):
    """The plan of a search of scores, without its noise."""
    given = {"task": OwnScores(), "budget": Budget(epsilon, 1e-5), "alphas": alphas, "n_records": n}
    return Plan.outline(Problem(guarantee=guarantee, **given | more), spent, part=part, mu=mu)


def test_the_choice_is_by_public_numbers_and_small_parts_take_the_law():
    def chosen(n, part, mu, **more):
        return outlined("split", (0.1,), Ledger(), n, part=part, mu=mu, n_found=True, **more)

    assert chosen(150, 0.5, 0.22).counted_size == CountedSize(150, 0.5)
    assert chosen(300, 0.5, 0.208).counted_size == CountedSize(300, 0.5)
    large = chosen(16_000, 0.125, 0.32)
    assert large.has_released_size
    assert large.counted_size is None
    # a declared number and groups have no such law
    assert chosen(300, 0.5, 0.208, group_values=(0, 1)).has_released_size
    declared = outlined("split", (0.1,), Ledger(), 150, part=0.5, mu=0.22)
    assert declared.has_released_size
    assert declared.counted_size is None


def test_the_share_of_the_size_goes_to_the_counts():
    spent, task = Ledger().add("training", gaussian_event(10.0)), OwnLosses(1, most_steps=6)
    released, counted = (
        outlined("split", (0.1,), spent, 150, epsilon=0.5, part=0.5, mu=mu, n_found=True, task=task).with_noise()
        for mu in (None, 0.22)
    )
    assert released.size_noise is not None
    assert counted.size_noise is None
    assert counted.noises[0].count_noise / released.noises[0].count_noise == pytest.approx(math.sqrt(0.88), rel=2e-3)
    assert "number of scores" not in str(counted.ledger())


@pytest.mark.parametrize(
    "more",
    [{"rank": "linear"}, {"correction": "marginal"}, {"size_noise": 2.0}],
)
def test_what_does_not_go_together_is_refused(more):
    with pytest.raises(ValueError, match=r"CountedSize|size_noise"):
        private_quantile(np.zeros(9), alpha=0.1, score_range=(0, 1), count_noise=1.0, size=CountedSize(20, 0.5), **more)


@pytest.mark.parametrize(("n", "part"), [(0, 0.5), (10, 0.0), (10, 1.5), (2.5, 0.5)])
def test_wrong_numbers_are_refused(n, part):
    with pytest.raises((TypeError, ValueError), match=r"n_records|part"):
        CountedSize(n, part)
