"""Result A by simulation: the marginal correction covers at 1 - alpha for any exchangeable scores.

Each trial draws scores, runs the real search on them (with exact noise from a pool drawn in bulk) and takes the exact
probability that one more score of the same law is covered: a number in [0, 1] with mean c, whose variance is
at most c (1 - c). So the mean of T trials lies below c - 4 sqrt(c (1 - c) / T) with probability below 1e-4.
"""

import itertools
import math
from functools import lru_cache

import numpy as np
import pytest
from scipy import special, stats

from dpscp import private_quantile
from dpscp.threshold import KnownSize, offsets

pytestmark = pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning")

ALPHA = 0.1
RANKS = ("centered", "linear", "ceil")
SIZES = (5, 20, 200, 2000)
# the noise is a tenth of the records, at least 1: large enough that dropping the correction shows
STEPS = 12


class Law:
    """A law of scores on [0, 1] with a known distribution function."""

    def __init__(self, name, atoms=None, masses=None):
        self.name, self.atoms = name, atoms
        self.masses = None if masses is None else np.asarray(masses) / np.sum(masses)

    def draw(self, rng, n):
        return rng.uniform(size=n) if self.atoms is None else rng.choice(self.atoms, size=n, p=self.masses)

    def covered(self, threshold):
        """P(score <= threshold); the end of the range means that everything is covered."""
        if threshold >= 1:
            return 1.0
        return threshold if self.atoms is None else float(self.masses[self.atoms <= threshold].sum())


def staircase(n, noise):
    """Mass at the points that a search going right meets one after the other, its counts just below the bar.

    Every one of the N comparisons is then close, so the largest of N noises really decides.
    """
    atoms = np.concatenate([[0.0], 1 - 0.5 ** np.arange(1, STEPS + 1), [1.0]])
    first = max(0.3, 1 - ALPHA - 1.5 * noise / n)
    masses = np.concatenate([[first], np.full(STEPS, max(1 - first - ALPHA / 2, 0.01) / STEPS), [ALPHA / 2]])
    return Law("staircase", atoms, masses)


def laws(n, noise):
    """The score laws to try at this sample size; the two-atom one has its mass where a false acceptance costs most."""
    return {
        "uniform": Law("uniform"),
        "tied": Law("tied", np.array([0.0, 0.25, 0.5, 0.75, 0.875, 1.0]), [4, 3, 2, 2, 1, 1]),
        "two atoms": Law("two atoms", np.array([0.0, 1.0]), two_atom_masses(n, noise)),
        "staircase": staircase(n, noise),
    }


def two_atom_masses(n, noise, offset=0.0):
    """The masses at which a search aiming ``offset`` above the rank misses most: accepting loses the upper atom."""
    lower = np.linspace(0.2, 0.99, 80)[:, None]
    counts = np.arange(n + 1)
    accepted = 1 - special.ndtr(((1 - ALPHA) * (n + 1) + offset - counts) / noise) ** STEPS
    miss = (1 - lower[:, 0]) * (stats.binom.pmf(counts, n, lower) @ accepted)
    worst = float(lower[np.argmax(miss), 0])
    return [worst, 1 - worst]


def noise_for(n):
    return max(1.0, n / 10)


@pytest.fixture
def simulate(monkeypatch, fast_noise):
    """Mean coverage of the real search over many trials."""
    rng = np.random.default_rng(7)
    monkeypatch.setattr(offsets, "marginal_offset", lru_cache(offsets.marginal_offset))

    def run(law, n, *, trials, noise=None, correction="marginal", **setting):
        covered = [
            law.covered(
                private_quantile(
                    law.draw(rng, n),
                    alpha=ALPHA,
                    score_range=(0, 1),
                    count_noise=noise or noise_for(n),
                    steps=STEPS,
                    correction=correction,
                    **setting,
                ).threshold
            )
            for _ in range(trials)
        ]
        return float(np.mean(covered))

    return run


def tolerance(trials):
    return 4 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["uniform", "tied", "two atoms", "staircase"])
@pytest.mark.parametrize("n", SIZES)
def test_marginal_correction_covers(simulate, n, name, is_quick):
    """All ranks take turns in a quick run; a long one has every rank, and other noises."""
    trials = 400 if is_quick else 4_000
    ranks = [RANKS[(SIZES.index(n) + len(name)) % 3]] if is_quick else RANKS
    for rank, relative in itertools.product(ranks, (1.0,) if is_quick else (0.3, 1.0, 3.0)):
        noise = relative * noise_for(n)
        law = laws(n, noise)[name]
        assert simulate(law, n, trials=trials, rank=rank, noise=noise) >= 1 - ALPHA - tolerance(trials)


@pytest.mark.parametrize("n", [5, 8, 20, 60])
def test_a_lower_bound_on_n_is_valid_for_every_larger_n(simulate, n, is_quick):
    """One offset, for at least 5 scores, serves parts of every size through the linear statistic."""
    trials = 400 if is_quick else 1200
    law = Law("two atoms", np.array([0.0, 1.0]), two_atom_masses(n, 10.0))
    coverage = simulate(law, n, trials=trials, rank="linear", noise=10.0, size=KnownSize(60, 5))
    assert coverage >= 1 - ALPHA - tolerance(trials)


def test_without_the_lower_bound_small_parts_under_cover(simulate):
    """The same check fails when the offset is computed for n = 10^6 but the part holds 5."""
    trials = 1200
    law = Law("two atoms", np.array([0.0, 1.0]), [0.5, 0.5])
    coverage = simulate(law, 5, trials=trials, rank="linear", noise=10.0, n_records=10**6)
    assert coverage < 1 - ALPHA - tolerance(trials)


class TestTheCheckHasPower:
    """Break the code on purpose: the check above must then fail."""

    @pytest.mark.parametrize(("n", "name"), [(20, "two atoms"), (2000, "two atoms"), (200, "staircase")])
    def test_dropped_correction(self, simulate, monkeypatch, n, name):
        trials = 1200
        monkeypatch.setattr(offsets, "marginal_offset", lambda *_: 0.0)
        noise = n / 4
        law = laws(n, noise)[name]
        assert simulate(law, n, trials=trials, noise=noise) < 1 - ALPHA - tolerance(trials)
