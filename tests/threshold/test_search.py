"""The private threshold: targets, sensitivities, refusals, and what it keeps to itself."""

import dataclasses
import math
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import dpscp
from dpscp import private_quantile
from dpscp.paper import noisy_midpoint_quantile
from dpscp.privacy import IntegerSource, lattice_noise
from dpscp.privacy.events import DiscreteGaussianDpEvent, possible_histories
from dpscp.threshold import (
    KnownSize,
    default_steps,
    graded_offset,
    rank_sensitivity,
    round_level,
    search,
    step_rises,
    union_noise_buffer,
)

pytestmark = pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning")

RANKS = ["centered", "linear", "ceil"]
SCORES = np.random.default_rng(0).uniform(size=400)


@pytest.fixture
def statistic():
    """Run a search and return what it compares: (scale, what is taken off the count, the bar), and the result."""

    def run(scores, **setting):
        views = []
        q = private_quantile(scores, score_range=(0, 1), observer=views.append, **setting)
        (view,) = views
        scale = view.scale
        return {"scale": scale, "removed": Fraction(view.base, scale), "needed": Fraction(view.bar, scale)}, q

    return run


def basic_event(q):
    ((event, count),) = possible_histories(q.event)[0].items()
    assert isinstance(event, DiscreteGaussianDpEvent)
    return event, count


class TestRankStatistic:
    @pytest.mark.parametrize("correction", ["minimax", "marginal", "union", "none"])
    @pytest.mark.parametrize("rank", RANKS)
    @pytest.mark.parametrize("alpha", [0.1, 0.5, 0.73, 0.123457])
    @pytest.mark.covering
    def test_sensitivity_by_brute_force(self, statistic, rank, alpha, correction):
        """Adding one score changes the integer statistic by at most the sensitivity in the event, and by no less."""
        setting = {
            "alpha": alpha,
            "rank": rank,
            "correction": correction,
            "count_noise": 3.0,
            "n_records": 12,
            "steps": 9,
        }
        largest = Fraction(0)
        for n in range(1, 25):
            before, q = statistic(np.zeros(n), **setting)
            after, q_after = statistic(np.zeros(n + 1), **setting)
            # the bar, the noise and the event are public constants: the same on both data sets
            assert (before["needed"], before["scale"]) == (after["needed"], after["scale"])
            assert dataclasses.replace(q_after, threshold=q.threshold) == q
            level = round_level(alpha)
            share = {"centered": Fraction(1, 2), "linear": 1 - level, "ceil": 1 - level}[rank]
            exact = math.ceil(share * (n + 1)) if rank == "ceil" else share * (n + 1)
            assert before["removed"] == exact  # nothing was rounded to the lattice
            for change_of_count in (0, 1):
                change = before["scale"] * (change_of_count - (after["removed"] - before["removed"]))
                largest = max(largest, abs(change))
        event, count = basic_event(q)
        assert largest == event.sensitivity
        assert count == 9
        assert Fraction(event.sensitivity, before["scale"]) == rank_sensitivity(rank, alpha)
        assert event.sigma / before["scale"] == q.count_noise >= 3.0

    @pytest.mark.parametrize("rank", RANKS)
    @pytest.mark.parametrize("n", [5, 20, 195, 2000])
    def test_bar_is_the_rank_target_when_n_is_nominal(self, statistic, rank, n):
        seen, q = statistic(np.zeros(n), alpha=0.1, rank=rank, count_noise=4.0, steps=10)
        bar = seen["needed"] + seen["removed"]
        least = 0.9 * (n + 1) + graded_offset(0.1, n, q.count_noise, 10)
        target = q.rank_target - q.count_noise * step_rises(10).mean()
        assert target - 1e-9 <= bar <= target + 1.01 / seen["scale"]  # the bar is an integer of the lattice
        # the rounding up of "ceil", and one lattice unit
        assert least <= target <= least + (1 if rank == "ceil" else 0) + 1.01 / seen["scale"]

    def test_linear_follows_the_true_number_by_itself(self, statistic):
        """With a nominal 100 but 250 scores the bar is the one for 250."""
        seen, q = statistic(np.zeros(250), alpha=0.1, rank="linear", count_noise=4.0, steps=10, n_records=100)
        bar = 0.9 * 251 + q.offset - q.count_noise * step_rises(10).mean()
        assert bar - 1e-9 <= seen["needed"] + seen["removed"] <= bar + 1.01 / seen["scale"]

    @pytest.mark.parametrize("rank", RANKS)
    @pytest.mark.parametrize("n", [13, 14, 195])
    def test_union_aims_at_an_integer_rank(self, statistic, rank, n):
        """tau's -1 is earned only where a count below the rank is at least 1 below it."""
        seen, _ = statistic(
            np.zeros(n), alpha=0.2, rank=rank, count_noise=0.5, steps=10, correction="union", failure_probability=0.1
        )
        bar = seen["needed"] + seen["removed"]
        conformal = math.ceil(Fraction(8, 10) * (n + 1))
        assert bar >= conformal + union_noise_buffer(0.5, 10, 0.1)
        assert bar <= conformal + union_noise_buffer(0.5, 10, 0.1) + 1.01

    def test_rank_buffer_counts_whole_ranks(self, statistic):
        bars = [
            float(statistic(np.zeros(50), alpha=0.1, count_noise=1.0, steps=5, rank_buffer=m)[0]["needed"])
            for m in (0, 10, 9.2)
        ]
        assert bars[1] - bars[0] == bars[2] - bars[0] == 10

    def test_default_failure_probability_is_one_over_nominal_n(self, statistic):
        _, q = statistic(np.zeros(50), alpha=0.1, count_noise=2.0, steps=5, correction="union", n_records=80)
        assert q.offset == pytest.approx(union_noise_buffer(q.count_noise, 5, 1 / 80), abs=1e-3)

    def test_the_least_size_sets_the_offset(self, statistic):
        loose = statistic(np.zeros(500), alpha=0.1, count_noise=10.0, steps=10, rank="linear")[1]
        small = statistic(np.zeros(500), alpha=0.1, count_noise=10.0, steps=10, rank="linear", size=KnownSize(500, 5))[
            1
        ]
        assert small.offset > loose.offset + 5


class TestRoundLevel:
    @pytest.mark.parametrize(
        ("alpha", "level"),
        [
            (0.1, "1/10"),
            (1 - 0.9, "1/10"),
            (1 - 0.95, "1/20"),
            (0.3, "3/10"),
            (0.1 + 0.2, "3/10"),
            (0.1234567, "123456/1000000"),
            (0.0999999999, "99999/1000000"),
            (0.5 - 1e-10, "499999/1000000"),
            (0.9999999, "999999/1000000"),
            (1e-6, "1/1000000"),
        ],
    )
    def test_rounds_down_but_knows_decimals(self, alpha, level):
        assert round_level(alpha) == Fraction(level)

    @settings(deadline=None)
    @given(st.floats(1e-6, 1 - 1e-6))
    def test_never_up(self, alpha):
        level = round_level(alpha)
        assert (level * 10**6).denominator == 1
        assert -Fraction(1, 2**52) <= Fraction(alpha) - level < Fraction(1, 10**6)

    def test_below_a_millionth(self):
        with pytest.raises(ValueError, match="alpha must be at least 1e-06"):
            round_level(9e-7)

    def test_result_says_the_level_used(self):
        assert private_quantile(SCORES, alpha=0.2500019, score_range=(0, 1), mu=2.0).alpha == 0.250001


class TestDefaults:
    def test_mu_sets_the_noise(self):
        for rank, sensitivity in (("centered", 0.5), ("linear", 0.9), ("ceil", 1.0)):
            q = private_quantile(SCORES, alpha=0.1, score_range=(0, 1), mu=0.5, steps=16, rank=rank)
            least = sensitivity * 4 / 0.5
            assert least <= q.count_noise <= 1.0003 * least

    @pytest.mark.parametrize("n", [10, 1000, 10**5, 10**8])
    def test_steps_balance_noise_and_grid(self, n):
        chosen = default_steps(n, unit_noise=3.0)
        assert 6 <= chosen <= 22
        assert default_steps(10 * n, unit_noise=3.0) >= chosen
        assert default_steps(n, unit_noise=30.0) <= chosen

    @pytest.mark.parametrize("near", [-0.1, 1.5, (0.2, 0.8), float("nan")])
    def test_where_the_grid_is_fine(self, near):
        with pytest.raises(ValueError, match="fine_near"):
            private_quantile(SCORES, alpha=0.1, score_range=(0, 1), mu=1.0, fine_near=near)

    def test_stream_of_unknown_length(self):
        q = private_quantile(iter([SCORES]), alpha=0.1, score_range=(0, 1), count_noise=2.0)
        assert q.steps == 16
        assert q.n_records == SCORES.size
        q = private_quantile(iter([SCORES]), alpha=0.1, score_range=(0, 1), mu=2.0, n_records=400)
        assert q.steps == default_steps(400, unit_noise=0.25, graded=True)


class TestThreshold:
    @pytest.mark.parametrize("rank", RANKS)
    def test_all_equal_scores(self, rank):
        q = private_quantile(np.full(500, 0.25), alpha=0.1, score_range=(0, 1), count_noise=0.5, steps=20, rank=rank)
        assert q.threshold == 0.25  # a midpoint that ties with every score is accepted

    def test_all_at_the_end_of_the_range_has_no_finite_threshold(self):
        with pytest.warns(dpscp.GuaranteeWarning, match="no finite threshold"):
            q = private_quantile(np.ones(500), alpha=0.1, score_range=(0, 1), count_noise=0.5, steps=20)
        assert q.threshold == 1.0
        assert not q.is_finite

    def test_more_noise_or_a_smaller_level_never_lowers_the_target(self):
        def target(**changes):
            setting = {"alpha": 0.1, "score_range": (0, 1), "count_noise": 5.0, "steps": 10} | changes
            return private_quantile(SCORES, **setting).rank_target

        assert target(count_noise=6.0) > target() > target(steps=5)
        assert target(alpha=0.05) > target()
        assert target(correction="union") > target() > target(correction="none")

    def test_seed_repeats_and_is_told(self):
        with pytest.warns(dpscp.SeededWarning, match="NOT private"):
            one = private_quantile(SCORES, alpha=0.1, score_range=(0, 1), mu=1.0, random_state=7)
        two = private_quantile(SCORES, alpha=0.1, score_range=(0, 1), mu=1.0, random_state=7)
        assert one == two
        assert one.seeded
        assert not private_quantile(SCORES, alpha=0.1, score_range=(0, 1), mu=1.0).seeded

    def test_result_holds_public_numbers_only(self):
        """With a nominal n, nothing but the threshold depends on the data."""
        setting = {"alpha": 0.1, "score_range": (0, 1), "mu": 1.0, "n_records": 400, "random_state": 0}
        one = private_quantile(SCORES, **setting)
        two = private_quantile(SCORES[:-1] ** 3, **setting)
        assert one.threshold != two.threshold
        assert dataclasses.replace(one, threshold=0.0) == dataclasses.replace(two, threshold=0.0)
        for value in dataclasses.asdict(one).values():
            assert np.size(value) <= 2


GOOD = {"alpha": 0.1, "score_range": (0, 1), "count_noise": 1.0}
# a number that must not turn up in any message
CANARY = 0.7391824655


class TestRefusals:
    @pytest.fixture(autouse=True)
    def no_noise(self, monkeypatch):
        """Any draw is a failure: refusals come first."""

        def forbidden(self, *arguments):
            raise AssertionError("noise was drawn before the input was refused")

        monkeypatch.setattr(IntegerSource, "below", forbidden)

    @pytest.mark.parametrize(
        ("scores", "error"),
        [
            (np.array([]), ValueError),
            ([], ValueError),
            (np.full((2, 3), CANARY), ValueError),
            (np.float64(CANARY), ValueError),
            (np.array([True, False]), TypeError),
            (np.array([str(CANARY)]), TypeError),
            (["a", CANARY], TypeError),
            (np.array([CANARY, None]), TypeError),
            (np.array([CANARY + 1j]), TypeError),
            (None, TypeError),
        ],
    )
    def test_scores(self, scores, error):
        with pytest.raises(error) as caught:
            private_quantile(scores, **GOOD)
        assert "scores" in str(caught.value)
        assert str(CANARY)[:6] not in str(caught.value)

    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"score_range": (1, 0)}, "score_range"),
            ({"score_range": (-1.7e308, 1.7e308)}, "score_range"),
            ({"alpha": 0.0}, "alpha"),
            ({"count_noise": 0.0}, "count_noise"),
            ({"count_noise": None, "mu": 0.0}, "mu"),
            ({"count_noise": None}, "exactly one of mu"),
            ({"mu": 1.0}, "exactly one of mu"),
            ({"steps": 0}, "steps"),
            ({"correction": "bonferroni"}, "correction"),
            ({"rank": "median"}, "rank"),
            ({"rank_buffer": -1}, "rank_buffer"),
            ({"failure_probability": 0.0}, "failure_probability"),
            ({"n_records": 0}, "n_records"),
            ({"random_state": -1}, "random_state"),
        ],
    )
    def test_parameters(self, changes, name):
        with pytest.raises((ValueError, TypeError), match=name):
            private_quantile(np.full(20, CANARY), **GOOD | changes)


class TestNoisyMidpoint:
    def test_the_result_carries_public_numbers_only(self):
        setting = {"alpha": 0.1, "score_range": (0, 1), "count_noise": 4.0, "steps": 12, "random_state": 3}
        true = noisy_midpoint_quantile(SCORES, **setting)
        assert true.n_records == len(SCORES)  # None: the number found is declared public
        for scores in (SCORES, SCORES[:-7]):
            q = noisy_midpoint_quantile(scores, n_records=500, **setting)
            assert (q.n_records, q.rank_target) == (500, math.ceil(0.9 * 501))
        # the search itself follows the true number, through noisy counts
        assert noisy_midpoint_quantile(SCORES, n_records=500, **setting).threshold == true.threshold

    def test_costs_what_the_ceil_search_costs(self):
        midpoint = noisy_midpoint_quantile(SCORES, alpha=0.1, score_range=(0, 1), count_noise=4.0, steps=12)
        endpoint = private_quantile(SCORES, alpha=0.1, score_range=(0, 1), count_noise=4.0, steps=12, rank="ceil")
        assert midpoint.event == endpoint.event


def test_a_noise_made_for_another_statistic_is_refused():
    noise = lattice_noise(5.0, Fraction(1, 2))
    scores = np.linspace(0, 1, 101)
    exact = private_quantile(scores, alpha=0.1, score_range=(0, 1), count_noise=noise, steps=8, random_state=1)
    assert exact.event == noise.event(8)
    with pytest.raises(ValueError, match=r"count_noise was made for a statistic of sensitivity 1/2, this one has 9/10"):
        private_quantile(scores, alpha=0.1, score_range=(0, 1), count_noise=noise, rank="linear", random_state=1)


class TestSharedCounts:
    SETTING = MappingProxyType({"score_range": (0, 1), "steps": 9})

    def search(self, alphas, noise=30.0):
        shared = search.SharedCounts()
        setting = {**self.SETTING, "count_noise": lattice_noise(noise, Fraction(1, 2)), "shared_counts": shared}
        return [private_quantile(SCORES, alpha=a, **setting).threshold for a in alphas], len(shared.noise)

    # paths that part as early as paths can use up all that was paid for; those of high levels stay together for long
    @pytest.mark.parametrize(
        ("alphas", "all_used"),
        [((0.1,), True), ((0.8, 0.3), True), ((0.8, 0.6, 0.3), True), ((0.2, 0.1, 0.05), False)],
    )
    def test_no_more_counts_are_released_than_were_paid_for(self, alphas, all_used):
        paid = sum(search.SharedCounts.new_questions(place, 9) for place in range(len(alphas)))
        assert paid == sum(min(2**depth, len(alphas)) for depth in range(9))
        assert self.search(alphas, noise=500.0)[1] <= paid
        quiet = self.search(alphas, noise=0.01)[1]
        assert quiet <= paid
        assert (quiet == paid) == all_used

    def test_thresholds_are_nested_by_themselves(self):
        alphas = (0.3, 0.2, 0.1, 0.05)
        assert all(np.all(np.diff(self.search(alphas, noise=40.0)[0]) >= 0) for _ in range(20))
        setting = {**self.SETTING, "count_noise": 40.0}
        alone = [[private_quantile(SCORES, alpha=a, **setting).threshold for a in alphas] for _ in range(20)]
        assert not all(np.all(np.diff(found) >= 0) for found in alone)

    def test_each_search_has_the_law_that_it_has_alone(self):
        together = [self.search((0.3, 0.2))[0][1] for _ in range(80)]
        alone = [private_quantile(SCORES, alpha=0.2, count_noise=30.0, **self.SETTING).threshold for _ in range(80)]
        assert stats.ks_2samp(together, alone).pvalue > 1e-6

    def test_other_questions_are_refused(self):
        setting = {"alpha": 0.1, "shared_counts": search.SharedCounts(), "count_noise": 5.0, **self.SETTING}
        private_quantile(SCORES, **setting)
        for other in ({"count_noise": 6.0}, {"steps": 8}, {"score_range": (0, 2)}, {"fine_near": 0.0}):
            with pytest.raises(ValueError, match="same rank, noise, steps, score_range"):
                private_quantile(SCORES, **{**setting, **other})
        with pytest.raises(ValueError, match="`shared_counts` needs rank='centered'"):
            private_quantile(SCORES, **setting, rank="linear")
