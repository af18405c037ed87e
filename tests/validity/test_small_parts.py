"""Whole `split` fits of small counted tables: coverage on tied scores, and the numbers that are printed."""

import math
import warnings

import numpy as np
import pytest
from scipy import special, stats

import dpscp as dp
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.release import Counted, release_counts
from dpscp.core.tasks import OwnScores
from dpscp.privacy import Budget, Ledger, compose, gaussian_event, secret_split
from dpscp.privacy.events import possible_histories
from dpscp.threshold import CountedSize, release_level, step_rises
from dpscp.threshold.minimax import worst_excess

LEVEL = 0.9
SIZES = (60, 150, 300)
pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning", "ignore::dpscp.SeededWarning")


def tolerance(coverages):
    """Four standard errors of the mean of what single releases cover."""
    return 4 * np.std(coverages) / math.sqrt(len(coverages))


@pytest.mark.parametrize("n", SIZES)
def test_parts_of_tied_scores_keep_the_level(n):
    """Coins, scores on three atoms, searches: the mean over all of them, where a release covers .5, .84 or all."""
    spent = Ledger().add("training", gaussian_event(8.0))
    given = {"task": OwnScores(), "budget": Budget(1.0, 1e-5), "n_records": n, "n_found": True, "accountant": "rdp"}
    problem = Problem(alphas=(1 - LEVEL,), guarantee="split", **given)
    plan = Plan.outline(problem, spent, part=0.5, mu=0.378).with_noise()
    assert plan.counted_size is not None
    rng, law, covered = np.random.default_rng(n), np.array([0.5, 0.34, 0.16]), []
    for seed in rng.integers(2**31, size=100).tolist():
        scores = rng.choice([0.2, 0.4, 0.8], p=law, size=rng.binomial(n, 0.5))
        counted = Counted([scores], spent)
        found = release_counts(plan, lambda counted=counted: counted, random_state=seed).threshold[0, 0]
        covered.append(law[np.array([0.2, 0.4, 0.8]) <= found].sum())
    assert np.mean(covered) >= LEVEL - tolerance(covered)
    assert np.mean(np.isclose(covered, 0.84)) > 0.02  # some releases do fall below the level


ROWS = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
RATES = np.array([0.05, 0.3, 0.6, 0.97])  # of label 1, by row


def drawn(rng, n):
    rows = rng.integers(4, size=n)
    return ROWS[rows], (rng.uniform(size=n) < RATES[rows]).astype(int)


def fitted(n, seed=0, epsilon=1.0, persons=None, **more):
    X, y = drawn(np.random.default_rng(seed), n)
    model = dp.PrivateConformalClassifier(
        epsilon=epsilon,
        delta=1e-5,
        guarantee="split",
        classes=[0, 1],
        feature_bounds=dp.RowNorm(1.5),
        random_state=seed,
    )
    return model.set_params(**more).fit(X, y, persons=persons)


def true_coverage(model):
    """The share of new records that the sets hold: rows are alike, so it is a sum over four of them."""
    sets = model.predict_set(ROWS)[1][:, :, 0]
    return float(np.mean(sets[:, 0] * (1 - RATES) + sets[:, 1] * RATES))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("n", SIZES)
def test_whole_fits_keep_the_level(n, epsilon):
    covered = [true_coverage(fitted(n, seed, epsilon)) for seed in range(200)]
    assert np.mean(covered) >= LEVEL - tolerance(covered)


@pytest.fixture(scope="module")
def small():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted(150)


def test_the_certificate_prints_what_an_independent_sum_gives(small):
    """Smallest c with sum_k Bin(k) min(1, noise (V - l)/(k + 1)) <= alpha, and what one release covers."""
    terms, part = small.certificate_.terms, small.ledger_.public_facts["calibration_fraction"]
    noise, steps = terms["count_noise"], terms["steps"]
    size, last = CountedSize(150, part), terms["noise_offset"] - noise * float(step_rises(steps).mean())
    assert miss_bound(last, 150, part, noise, steps) <= 0.1 < miss_bound(last - 0.01 * noise, 150, part, noise, steps)
    assert terms["rank_target"] == pytest.approx(0.9 * (150 * part + 1) + terms["noise_offset"])
    assert terms["inner_level"] == pytest.approx(0.9, abs=1e-9)  # nothing is charged for a size
    search = {"alpha": 0.1, "count_noise": noise, "steps": steps, "graded": True}
    assert terms["release_level"] == release_level(0.95, size, offset=last - 1e-3 * noise, **search)
    # the bound written out: at that level one release in twenty falls below, and hardly fewer
    falls = one_release_falls_below(terms["release_level"], 150, part, last, noise, steps)
    assert 0.04 < falls <= 0.05
    assert "released_size" not in terms
    assert "size_noise" not in terms


def miss_bound(offset, n, part, noise, steps, alpha=0.1):
    k = np.arange(n + 1)
    start = (offset + (0.5 - alpha) * (part * n - k) - alpha * (k + 1)) / noise
    misses = noise * worst_excess(start, steps, graded=True) / (k + 1)
    return stats.binom(n, part).pmf(k) @ np.minimum(1, misses)


def one_release_falls_below(level, n, part, offset, noise, steps):
    k, rises = np.arange(n + 1), step_rises(steps)
    total = 0.0
    for size, mass in zip(k, stats.binom(n, part).pmf(k), strict=True):
        below = np.arange(size + 1)
        needed = (0.5 * (size + 1) + 0.4 * (part * n + 1) + offset - below) / noise
        tail = 1 - np.prod([special.ndtr(needed + rise) for rise in rises], axis=0)
        total += mass * (stats.binom(size, level).pmf(below) @ tail)
    return total


def test_the_ledger_holds_the_counts_and_nothing_else(small):
    """Training and counts, mixed by the coin: no release of a size, and the whole budget is used."""
    (entry,) = small.ledger_.entries
    training, calibration = entry.event.training, entry.event.held_out
    ((event, count),) = possible_histories(calibration)[0].items()
    assert count == small.certificate_.terms["steps"]
    assert event.sigma / event.sensitivity * 0.5 == pytest.approx(small.certificate_.terms["count_noise"])
    part = small.ledger_.public_facts["calibration_fraction"]
    again = Ledger().add("both", secret_split(training, compose(calibration), part))
    assert small.ledger_.epsilon(1e-5) == pytest.approx(again.epsilon(1e-5), rel=1e-6)
    assert 0.97 < small.ledger_.epsilon(1e-5) <= 1.0
    assert "released_sizes" not in small.ledger_.public_facts
    assert "the number of scores once" not in str(small.ledger_)


def test_where_a_size_is_released_still():
    declared = fitted(150, n_records=150)
    assert "released_size" in declared.certificate_.terms
    by_label = fitted(150, groups="label")
    assert len(by_label.ledger_.public_facts["released_sizes"]) == 2


def test_persons_who_were_counted():
    model = fitted(300, persons=np.repeat(np.arange(150), 2), rows_per_person=2)
    terms, part = model.certificate_.terms, model.ledger_.public_facts["calibration_fraction"]
    assert terms["rank_target"] == pytest.approx(0.9 * (150 * part + 1) + terms["noise_offset"])
    assert "released_size" not in terms
    assert "each person was held out by an independent coin" in str(model.certificate_)


def test_a_plan_of_a_counted_table_is_what_its_fit_does(small):
    row = dp.plan(n=150, epsilon=1.0, n_features=2, counted=True).row("split")
    terms = small.certificate_.terms
    assert row.steps == terms["steps"]
    assert row.count_noise == pytest.approx(terms["count_noise"], rel=5e-3)
    assert row.rank_offset == pytest.approx(terms["noise_offset"], abs=0.05)
    assert row.release_level == pytest.approx(terms["release_level"], abs=2e-3)
    assert row.smallest_n < dp.plan(n=150, epsilon=1.0, n_features=2).row("split").smallest_n
