"""The audit: its bounds are valid, it reaches the claim on honest code, and it catches every injected bug.

Noise comes from the operating system here (a seed would be one of the bugs), so a test that must see a violation gets
many times the runs it needs, and one that must not see any fails with probability below 1 - confidence.
"""

import math
from dataclasses import replace

import audit_games
import numpy as np
import pytest
from audit_games import PipelineGame, SearchGame, TrainingGame, audited_mechanism, make_game
from scipy import stats

import dpscp as dp
from dpscp.audit import Audit
from dpscp.audit.bounds import audited_epsilons
from dpscp.core.fit import release
from dpscp.core.problem import FitProblem
from dpscp.core.tasks import Regression
from dpscp.data.sources import ArraySource
from dpscp.privacy import gaussian_event, gdp_epsilon
from dpscp.privacy.random_streams import LatticeNoise
from dpscp.threshold.counts import ArrayCounts
from dpscp.training.engine import loop
from dpscp.training.engine.gradients import ClippedGradient
from dpscp.training.engine.noise import GridNoise


def told(result: Audit) -> Audit:
    print(f"\n{result}")
    return result


# ---- the bound itself


def test_bound_stays_below_the_true_epsilon_and_comes_close(is_quick):
    rng = np.random.default_rng(1)
    deltas, trials, above = (0.01, 0.1), 70 if is_quick else 200, 0
    true = np.array([gdp_epsilon(d, 1.0) for d in deltas])
    for _ in range(trials):
        found = audited_epsilons(rng.normal(size=2000), rng.normal(1.0, size=2000), deltas, confidence=0.9)
        above += bool((found > true).any())
    # at most one in ten may fail; the limit is the 1e-6 quantile of that many failures
    assert above <= stats.binom.isf(1e-6, trials, 0.1)
    many = audited_epsilons(rng.normal(size=400_000), rng.normal(1.0, size=400_000), deltas)
    assert (many > 0.85 * true).all()
    assert (many <= true).all()


def test_identical_worlds_give_zero():
    rng = np.random.default_rng(2)
    assert (audited_epsilons(rng.normal(size=20_000), rng.normal(size=20_000)) == 0).all()


def test_certain_proof_is_limited_by_the_number_of_runs():
    runs = 1000
    found = audited_epsilons(np.full(runs, -math.inf), np.full(runs, math.inf), [0.01])[0]
    assert 4 < found < math.log(runs)


def test_the_half_that_chose_a_threshold_proves_nothing():
    """The first half tells the worlds apart for certain, the second not at all: no bound follows from that."""
    runs = 1000
    with_record = np.concatenate([np.ones(runs // 2), np.zeros(runs // 2)])
    assert (audited_epsilons(np.zeros(runs), with_record) == 0).all()


def test_the_bound_is_the_two_clopper_pearson_rates_at_their_share_of_the_confidence():
    half, hits, alarms, deltas, confidence = 500, 400, 100, (0.01, 0.1, 0.3), 0.9
    with_record, without = np.zeros(half), np.zeros(half)
    with_record[:hits], without[:alarms] = 1.0, 1.0
    found = audited_epsilons(np.tile(without, 2), np.tile(with_record, 2), deltas, confidence)
    # two rates, two directions, three deltas: any of them may fail
    share = (1 - confidence) / (2 * 2 * len(deltas))

    def bound(more, less, delta):
        lowest = stats.binomtest(more, half).proportion_ci(1 - 2 * share, "exact").low
        highest = stats.binomtest(less, half).proportion_ci(1 - 2 * share, "exact").high
        return math.log((lowest - delta) / highest)

    expected = [max(bound(hits, alarms, d), bound(half - alarms, half - hits, d)) for d in deltas]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


class Coin:
    """A game of somebody's own: a unit shift in normal noise."""

    name, knowledge, claim = "coin", "white-box", gaussian_event(1.0)

    def play(self, with_record, runs):
        return np.random.default_rng(int(with_record)).normal(float(with_record), size=runs)


def test_each_delta_has_its_own_claim():
    result = dp.audit(Coin(), runs=2000, deltas=(0.01, 0.1, 0.3), confidence=0.95)
    assert result.claimed == pytest.approx([gdp_epsilon(d, 1.0) for d in (0.01, 0.1, 0.3)])
    assert result.confidence == 0.95
    assert (np.diff(result.audited) < 0).all()
    assert 0 < result.audited[0] < result.claimed[0]
    assert dp.audit(Coin(), runs=2000, null=True).audited == (0.0,) * 5


def test_both_directions_are_tried():
    rng = np.random.default_rng(3)
    # without the record the statistic is sometimes -1, with it never: only the reverse direction shows it
    without = -(rng.random(20_000) < 0.2).astype(float)
    assert audited_epsilons(without, np.zeros(20_000), [0.01])[0] > 3


def test_several_features_are_joined():
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(20_000, 1))
    without = np.hstack([noise + 0.05 * rng.normal(size=(20_000, 1)), noise])
    other = np.hstack([noise + 0.1 + 0.05 * rng.normal(size=(20_000, 1)), noise])
    assert audited_epsilons(without, other, [0.1])[0] > 2 * audited_epsilons(without[:, 0], other[:, 0], [0.1])[0] + 1


def test_result_can_be_read_printed_and_drawn(tmp_path):
    result = Audit("search", "white-box", 10, 0.99, (0.01, 0.1), (2.0, 1.0), (2.5, 0.5))
    assert not result.passed
    assert "BROKEN" in str(result)
    assert "DISPROVED" in str(result)
    assert result.share(0.01) == 1.25
    assert result.to_dict()["passed"] is False
    assert Audit("search", "white-box", 10, 0.99, (0.01,), (2.0,), (0.1,), null=True).passed is False
    assert Audit("search", "white-box", 10, 0.99, (0.4,), (0.0,), (0.0,)).share(0.4) == 0
    pytest.importorskip("matplotlib")
    result.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 1000


def test_arguments_are_checked():
    with pytest.raises(TypeError, match=r"needs a fitted .* got str"):
        dp.audit("search")
    with pytest.raises(ValueError, match="runs must be at least 4"):
        dp.audit(SearchGame(), runs=1)
    with pytest.raises(ValueError, match="at least 2 runs"):
        audited_epsilons([1.0], [1.0])
    with pytest.raises(ValueError, match="fit_intercept=False"):
        TrainingGame(dp.training.DPSGD(classes=(0, 1), noise_multiplier=1.0))
    with pytest.raises(ValueError, match="got 'split'"):
        PipelineGame("split")


# ---- what the real code tells an observer


def test_a_search_tells_the_counts_that_decided_and_finds_what_it_finds_unwatched():
    scores, seen = np.random.default_rng(6).uniform(size=200), []
    setting = {"alpha": 0.1, "score_range": (0, 1), "count_noise": 3.0, "steps": 9, "random_state": 1}
    watched = dp.private_quantile(scores, size_noise=4.0, observer=seen.append, **setting)
    assert watched == dp.private_quantile(scores, size_noise=4.0, **setting)
    (view,) = seen
    assert view.new_size == watched.aim.size
    left, right = view.score_range
    for told, rise in zip(view.counts, view.rises, strict=True):
        middle = (left + right) / 2
        assert told.bracket == (left, right)
        assert told.exact == np.count_nonzero(scores <= middle)
        left, right = (left, middle) if told.margin >= rise else (middle, right)
    assert (len(view.counts), right) == (9, watched.threshold)
    # the margins less the exact statistic are noise of the scale of the event
    noise = [t.margin - (view.scale * t.exact - view.base - view.bar) for t in view.counts]
    assert 0 < np.std(noise) < 3 * view.scale * watched.count_noise


def test_training_tells_the_sums_that_made_its_parameters():
    mechanism, seen = audited_mechanism(2.0, 6, 0.5), []
    rows, labels = TrainingGame().records(True)
    watched = mechanism.train(rows, labels, random_state=3, observer=seen.append).model
    np.testing.assert_array_equal(watched.parameters, mechanism.train(rows, labels, random_state=3).model.parameters)
    assert len(seen) == mechanism.steps
    at = seen[0].parameters.copy()
    for view in seen:
        np.testing.assert_allclose(view.parameters, at, rtol=1e-12)
        normalizer, grid, rate = view.constants
        np.testing.assert_allclose(view.noisy_sum / grid, np.rint(view.noisy_sum / grid), rtol=1e-9)
        at -= rate * view.noisy_sum / normalizer
    np.testing.assert_allclose(watched.parameters, at, rtol=1e-12)


def test_a_release_tells_of_training_and_search():
    game = PipelineGame(random_state=4)
    released, steps, searches = game._observe_release(True)
    unwatched = game._release(True)
    np.testing.assert_array_equal(released.threshold, unwatched.threshold)
    assert released.ledger == unwatched.ledger
    assert (len(steps), len(searches)) == (game.steps, 1)
    assert len(searches[0].counts) == released.ledger.public_facts["search_steps"]


def test_an_observer_needs_training_that_shows_its_steps():
    statistics = dp.training.SufficientStatistics(1.0, (-1, 1))
    problem = FitProblem(task=Regression((-1, 1)), budget=dp.Budget(9.0, 1e-5), alphas=(0.1,), n_records=99)
    problem = replace(problem, estimator=statistics, guarantee="universal", n_features=1)
    with pytest.raises(TypeError, match="not SufficientStatistics"):
        release(problem, ArraySource(np.ones((1, 1)), [0]), observer=print)


# ---- honest code: the quick audit


# simulated with exact Gaussians: 0.745 on average with standard deviation 0.049, and 0.893 with 0.023
@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("runs", "share"), [pytest.param(15_000, 0.5, id="quick"), pytest.param(120_000, 0.8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("game", ["search", "training"])
def test_audit_reaches_its_share_of_the_claim_and_never_exceeds_it(game, runs, share):
    result = told(dp.audit(make_game(game), runs=runs, confidence=0.95))
    assert result.passed
    assert result.share(0.01) >= share


@pytest.mark.no_cover
def test_quick_audit_of_sampled_training():
    result = told(dp.audit(make_game("sampled training"), runs=8000))
    assert result.passed
    # 7,153 simulated audits: 0.62 on average with standard deviation 0.07, never below 0.19
    assert result.share(0.05) > 0.1


@pytest.mark.parametrize("game", ["search", "training"])
def test_null_control_gives_zero(game, is_quick):
    result = told(dp.audit(make_game(game), runs=2000 if is_quick else 6000, null=True))
    assert result.passed
    assert result.audited == (0.0,) * len(result.deltas)


def test_quick_audit_of_the_pipeline():
    assert told(dp.audit(make_game("pipeline"), runs=24)).passed


# ---- injected bugs: each must be caught


def caught(game, runs, deltas=(0.01, 0.1)):
    result = told(dp.audit(game, runs=runs, deltas=deltas))
    return not result.passed


def test_catches_count_noise_halved(monkeypatch):
    honest = LatticeNoise.sample
    monkeypatch.setattr(LatticeNoise, "sample", lambda self, size, source: [z // 2 for z in honest(self, size, source)])
    assert caught(SearchGame(), 6000)


@pytest.mark.no_cover
def test_catches_gradient_noise_times_0_8(monkeypatch):
    honest = GridNoise.next
    monkeypatch.setattr(GridNoise, "next", lambda self: 0.8 * honest(self))
    # 1.23 times the claim in simulated audits, with standard deviation 0.05
    assert caught(TrainingGame(), 14_000)


def test_catches_count_sensitivity_2(monkeypatch):
    honest = ArrayCounts.__init__

    def twice(self, scores, **kwargs):
        # each record counted for itself and for its household
        honest(self, np.repeat(scores, 2), **kwargs)

    monkeypatch.setattr(ArrayCounts, "__init__", twice)
    assert caught(SearchGame(), 6000)


@pytest.mark.slow
def test_catches_shuffling_instead_of_poisson_sampling(monkeypatch):
    def shuffled(rng, n, sampling_rate):
        size = max(1, round(n * sampling_rate))
        while True:
            order = rng.permutation(n)
            for start in range(0, n, size):
                yield order[start : start + size]

    monkeypatch.setattr(loop, "poisson_batches", shuffled)
    # one epoch of four batches of four; at large delta Poisson sampling may leave the record out, shuffling cannot
    game = TrainingGame(audited_mechanism(0.4, 4, 0.25), unit="run", n=15)
    assert caught(game, 3000, deltas=(0.45,))


def unclipped(_self, views, _squared_norms, weights):
    # every record by its weight alone; what is left unset is whatever memory held
    views.factors[:] = 0
    views.factors[: len(weights)] = weights


def test_catches_clipping_switched_off(monkeypatch):
    monkeypatch.setattr(ClippedGradient, "_clip", unclipped)
    assert caught(TrainingGame(), 2000)


def test_catches_a_normalizer_that_depends_on_n(monkeypatch):
    monkeypatch.setattr(
        loop.Setup, "normalizer", property(lambda self: self.mechanism.sampling_rate * self.places.count)
    )
    assert caught(TrainingGame(), 2000)


def with_data(change):
    honest = audit_games.private_quantile
    return lambda scores, **public: honest(scores, **{**public, **change(scores)})


def test_catches_a_correction_computed_from_the_data(monkeypatch):
    monkeypatch.setattr(audit_games, "private_quantile", with_data(lambda scores: {"n_records": len(scores)}))
    assert caught(SearchGame(correction="marginal"), 6000)


def test_catches_a_score_range_from_the_data(monkeypatch):
    monkeypatch.setattr(
        audit_games, "private_quantile", with_data(lambda scores: {"score_range": (scores.min(), scores.max())})
    )
    assert caught(SearchGame(), 2000)


@pytest.mark.parametrize(
    "game",
    [
        SearchGame(unit="run", random_state=5),
        TrainingGame(audited_mechanism(2.0, 4), unit="run", random_state=5),
    ],
)
def test_catches_a_seed_reused(game):
    assert caught(game, 200)
