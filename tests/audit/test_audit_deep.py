"""The deep audit: whole runs, all rank statistics, sampled training, neighbors around a batch, the pipeline."""

import pytest
from audit_games import PipelineGame, SearchGame, TrainingGame, audited_mechanism, make_game

import dpscp as dp

pytestmark = pytest.mark.slow


def told(result):
    print(f"\n{result}\n  share of the claim at delta 0.01: {result.share(0.01):.2f}")
    assert result.passed
    return result


@pytest.mark.parametrize("rank", ["centered", "linear", "ceil"])
@pytest.mark.parametrize("correction", ["marginal", "none"])
def test_every_count_of_the_search(rank, correction):
    assert (
        told(dp.audit(SearchGame(rank=rank, correction=correction), runs=160_000, confidence=0.95)).share(0.01) >= 0.8
    )


@pytest.mark.parametrize("score", [0.0, 0.5])
def test_a_record_anywhere_in_the_range(score):
    told(dp.audit(SearchGame(score=score), runs=60_000))


def test_whole_searches():
    told(dp.audit(SearchGame(unit="run"), runs=8000))


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_every_step_of_training(rate):
    noise = 1.0 if rate == 1 else 0.7
    result = told(dp.audit(TrainingGame(audited_mechanism(noise, 400, rate)), runs=200_000))
    assert result.share(0.01) >= 0.75  # about .80; the runs differ


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_whole_training_runs(rate):
    told(dp.audit(TrainingGame(audited_mechanism(1.0 if rate == 1 else 0.5, 4, rate), "run"), runs=6000))


@pytest.mark.parametrize("n", [3, 4, 7, 8, 127, 128, 8191, 8192])
def test_neighbors_on_both_sides_of_a_batch(n):
    """n and n + 1 lie on both sides of a multiple of the batch (a quarter of the records) or of the engine's chunk."""
    told(dp.audit(TrainingGame(audited_mechanism(0.5, 50, 0.25), n=n), runs=4000))
    told(dp.audit(TrainingGame(audited_mechanism(1.0, 50), n=n), runs=4000))


@pytest.mark.parametrize("guarantee", ["universal", "corrected", "finite", "asymptotic"])
def test_the_pipeline_with_everything_seen(guarantee):
    told(dp.audit(PipelineGame(guarantee), runs=1000))


@pytest.mark.parametrize("game", ["search", "training", "sampled training"])
def test_null_controls(game):
    result = told(dp.audit(make_game(game), runs=60_000, null=True))
    assert max(result.audited) == 0


def test_null_control_of_the_pipeline():
    assert max(told(dp.audit(PipelineGame(), runs=500, null=True)).audited) == 0
