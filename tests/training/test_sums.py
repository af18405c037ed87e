"""The sums behind Gaussian releases: one record changes them by its bound and SUM_SLACK more, rounding included."""

import math

import numpy as np
import pytest

from dpscp.data.sources import ArraySource, Block
from dpscp.privacy import secure_generator
from dpscp.training import DPSGD, Preprocessed, PrivateCentering, PrivateStandardize, SufficientStatistics
from dpscp.training.engine import noise as release_module
from dpscp.training.engine.noise import SUM_SLACK, gaussian_release, sum_in_parts, sum_slack
from dpscp.training.preprocessing.projections import PrivateWhitening
from dpscp.training.preprocessing.rescaled import PrivateTarget
from dpscp.training.preprocessing.steps import MOMENT_SENSITIVITY

# (low + high) / 2 is no number here: rounding leaves the unit range
FAR = (1e16, 1e16 + 2)


def test_a_term_goes_through_few_additions():
    """The proof counts 1024 additions in a part and 28 between parts."""
    sizes = []

    def part_sum(rows, weights):
        sizes.append(len(rows))
        return weights @ rows

    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(100_001, 2)), rng.uniform(size=100_001)
    total = sum_in_parts(part_sum, rows, weights)
    assert sum(sizes) == 100_001
    assert max(sizes) <= 1024
    assert min(sizes) > 512
    exact = [math.fsum(weights * column) for column in rows.T]
    assert np.linalg.norm(total - exact) <= 1100 * 2.0**-53 * np.linalg.norm(np.abs(rows).sum(axis=0))
    assert 2 * 1100 * 2.0**-53 * release_module._MOST_RECORDS < 0.7 * SUM_SLACK


def test_more_records_than_the_proof_holds_for_are_refused(monkeypatch):
    monkeypatch.setattr(release_module, "_MOST_RECORDS", 5)
    with pytest.raises(ValueError, match="more than 5 records, the most for which the rounding of a sum is bounded"):
        sum_in_parts(np.sum, np.ones(6))


def test_more_nominal_records_get_more_noise_and_a_source_far_beyond_them_is_refused(monkeypatch, everywhere):
    """Rounding, 2 D u N, stays below two thirds of the slack for up to four times the nominal number."""
    for n in (1, 2**26, 2**26 + 1, 10**9, 10**11):
        most = max(release_module._MOST_RECORDS, 4 * n)
        assert 2 * 1100 * 2.0**-53 * most < 0.7 * sum_slack(n)
        # the grid is coarser than the floats of such a sum, whatever the noise multiplier
        drawn = gaussian_release(np.zeros(99), 1.0, np.random.default_rng(0), n)
        spacing = np.gcd.reduce((drawn * 2**30).astype(np.int64)) / 2**30
        assert np.spacing(float(most)) * 8 <= spacing <= 2.0**-8
    assert sum_slack(2**26) == SUM_SLACK
    noises = []

    def listening(exact, noise_std, *rest):
        noises.append(noise_std)
        return gaussian_release(exact, noise_std, *rest)

    everywhere("gaussian_release", listening)
    monkeypatch.setattr(release_module, "_MOST_RECORDS", 40)
    blocks = ArraySource(np.zeros((81, 2)), np.zeros(81), n_blocks=3)
    inner = DPSGD(loss="huber", noise_multiplier=1.0, steps=1, sampling_rate=1.0)
    steps = (PrivateStandardize(-1, 1, 1.0), PrivateCentering(2.0, 1.0), PrivateWhitening(2.0, 1.0))
    for mechanism in (Preprocessed(steps, inner), PrivateTarget(inner, (-1, 1), noise_multiplier=1.0)):
        with pytest.raises(ValueError, match="more than 4 times the declared number, 20"):
            mechanism.train_source(blocks, n_records=20)
        mechanism.train_source(blocks, n_records=21)
    slack = 1 + SUM_SLACK * 2.1
    assert noises == pytest.approx([math.sqrt(2.5) * slack, 2 * slack, slack, MOMENT_SENSITIVITY * slack], rel=1e-12)


@pytest.mark.parametrize("value", FAR)
def test_bounds_far_from_zero_and_close_together_keep_the_sensitivity(value):
    X = np.full((1, 2), value)
    step = PrivateStandardize(*FAR)
    assert np.linalg.norm(step.part_moments(X, np.ones(1))) <= step.sensitivity(2)
    target = PrivateTarget(DPSGD(loss="huber"), FAR)
    assert np.linalg.norm(target.moments(Block(0, X, np.array([value])))) <= MOMENT_SENSITIVITY
    statistics = SufficientStatistics(1.0, FAR)
    gram, cross = statistics.moments(np.ones((1, 2)), [value], np.ones(1))
    row, target = statistics.bounds
    assert np.linalg.norm(gram) <= row**2
    assert np.linalg.norm(cross) <= row * target


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivateCentering(2.0, noise_multiplier=3.0),
        PrivateStandardize(-1, 1, noise_multiplier=3.0),
        PrivateWhitening(2.0, noise_multiplier=3.0),
        PrivateTarget(DPSGD(loss="huber", noise_multiplier=1.0, steps=1), (-1, 1), noise_multiplier=3.0),
        SufficientStatistics(2.0, (-1, 1), noise_multiplier=3.0),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_the_noise_covers_the_sums_that_are_released(mechanism, everywhere):
    """In units of the noise a neighbor moves what is released by at most 1 / (noise_multiplier * (1 + SUM_SLACK))."""
    seen = []

    def listening(exact, noise_std, *rest):
        seen.append(np.ravel(exact) / noise_std)
        return gaussian_release(exact, noise_std, *rest)

    everywhere("gaussian_release", listening)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 4))
    # one record of the largest size: in front it shifts every part of the sum
    longest = np.full((1, 4), 10.0)
    for rows in (X, np.concatenate([longest, X])):
        if isinstance(mechanism, PrivateTarget | SufficientStatistics):
            mechanism.train(rows, rows[:, 0], n_records=3000)
        else:
            mechanism.fit(rows, n_records=3000, rng=secure_generator())
    half = len(seen) // 2
    moved = np.linalg.norm(np.concatenate(seen[half:]) - np.concatenate(seen[:half]))
    assert moved <= (1 + 1e-9) / (3.0 * (1 + SUM_SLACK))
    assert moved >= 0.99 / 3.0 / (1.1 if isinstance(mechanism, SufficientStatistics) else 1)
