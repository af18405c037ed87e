"""Private evaluation: intervals hold with the noise, the ledger pays, bad input costs nothing."""

import json
import warnings

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core.evaluation import (
    OutcomeCounts,
    _probability_at_most,
    size_reach,
)
from dpscp.privacy import IntegerSource, LatticeNoise, sized_lattice_noise
from dpscp.privacy.pld import discrete_gaussian_cdf

RNG = np.random.default_rng


def data(n, seed=0):
    rng = RNG(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0, "yes", "no")


@pytest.fixture(scope="module")
def classifier():
    X, y = data(4_000)
    model = dp.PrivateConformalClassifier(
        epsilon=1.0,
        delta=1e-6,
        confidence_level=[0.9, 0.8],
        classes=["no", "yes"],
        feature_bounds=(-1, 1),
        n_records=4_000,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


@pytest.fixture(scope="module")
def regressor():
    rng = RNG(1)
    X = rng.uniform(-1, 1, size=(4_000, 3))
    y = X.sum(axis=1) + 0.3 * rng.normal(size=4_000)
    model = dp.PrivateConformalRegressor(
        epsilon=1.0, delta=1e-6, y_bounds=(-5, 5), feature_bounds=(-1, 1), n_records=4_000, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def evaluate(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.SeededWarning)
        return dp.evaluate(*args, **{"epsilon": 1.0, "delta": 1e-6, "random_state": 0} | kwargs)


def test_the_law_of_a_noisy_count_is_the_exact_sum():
    (noise,), _ = sized_lattice_noise(1.0, 1e-5, 3, (1.0,))
    n, p, bound = 12, 0.3, 4 + 1 / noise.scale
    exact = sum(
        stats.binom.pmf(k, n, p) * float(discrete_gaussian_cdf(round((bound - k) * noise.scale), noise.sigma))
        for k in range(n + 1)
    )
    assert _probability_at_most(bound, n, p, noise) == pytest.approx(exact, rel=1e-12)
    assert _probability_at_most(bound, n, p, noise, strictly=True) < exact


@pytest.mark.parametrize("draws", [1, 6])
def test_the_reach_of_a_noisy_size_is_a_quantile(draws):
    (noise,), _ = sized_lattice_noise(0.5, 1e-5, 3, (1.0,))
    reach = size_reach(noise, 1e-3, draws)
    outside = 2 * float(discrete_gaussian_cdf(-round(reach * noise.scale) - 1, noise.sigma * np.sqrt(draws)))
    assert 0.98e-3 < outside <= 1e-3


def test_a_sum_of_draws_is_a_discrete_gaussian():
    sigma = 3
    one = np.diff(discrete_gaussian_cdf(np.arange(-60, 60), sigma))
    both = np.convolve(one, one)
    np.testing.assert_allclose(
        np.cumsum(both), discrete_gaussian_cdf(np.arange(-118, 119), sigma * np.sqrt(2)), atol=1e-12
    )


def test_both_counts_of_a_pair_have_noise_of_their_own():
    (noise,), _ = sized_lattice_noise(1.0, 1e-5, 3, (1.0,))
    counts = OutcomeCounts(np.zeros((2_000, 2)), np.zeros((0, 2)), np.zeros((0, 2)))
    missed, covered = counts.with_noise(noise, IntegerSource(0)).totals.T
    # four standard errors of the correlation of independent draws
    assert abs(np.corrcoef(missed, covered)[0, 1]) < 4 / np.sqrt(len(missed))


def interval_of(missed, covered, noise, public_size):
    """The interval of the missed rate from noisy counts; those of a class alone, or of all records."""
    pair = np.array([[missed, covered]], dtype=float)
    counts = OutcomeCounts(np.repeat(pair, 3, axis=0), pair, np.zeros((0, 2)))
    found = counts.evaluation(
        noise,
        targets=(0.9,),
        classes=["one"],
        group_values=(),
        limit=1.0,
        confidence=0.9,
        ledger=dp.Ledger(),
        delta=1e-6,
        public_size=public_size,
    )
    return (found.by_class["one"] if public_size is None else found.coverage).complement().interval


@pytest.mark.parametrize("chance", [None, 1.0, 0.5])
def test_intervals_hold_exactly(chance, is_quick):
    """The probability that the interval holds p, summed over all counts and both draws of the noise."""
    n, sigma, reach = (3, 1, 3) if is_quick else (14, 3, 12)
    noise = LatticeNoise(1, sigma, 1)
    draws = np.arange(-reach, reach + 1)
    law = np.diff(discrete_gaussian_cdf(np.arange(-reach - 1, reach + 1), sigma))
    public_size = None if chance is None else (n, chance)
    others = range(-reach, n + reach + 1) if chance is None else [0]
    found = {
        (missed, other): interval_of(missed, other, noise, public_size)
        for missed in range(-reach, n + reach + 1)
        for other in others
    }
    for p in np.linspace(0.0, 1.0, 41):
        counts = stats.binom.pmf(np.arange(n + 1), n, (chance or 1.0) * p)
        inside = 0.0
        for missed, weight in enumerate(counts):
            for first, first_law in zip(draws, law, strict=True):
                if chance is None:
                    ends = [found[missed + first, n - missed + second] for second in draws]
                    share = law @ [low <= p <= high for low, high in ends]
                else:
                    low, high = found[missed + first, 0]
                    share = float(low <= p <= high)
                inside += weight * first_law * share
        assert inside >= 0.9 * law.sum() ** 2


def test_every_number_is_near_the_one_without_privacy(classifier):
    X, y = data(6_000, seed=5)
    labels, sets = classifier.predict_set(X)
    found = evaluate(
        classifier,
        X,
        y,
        epsilon=4.0,
        groups=dp.Groups(lambda rows: np.where(rows[:, 1] > 0, "a", "b"), values=["a", "b"]),
    )
    for place, (coverage, size) in enumerate(zip(found.coverages, found.set_sizes, strict=True)):
        truth = dp.metrics.coverage(y, sets, classes=classifier.classes_)[place]
        assert coverage.estimate == pytest.approx(truth, abs=0.02)
        assert size.estimate == pytest.approx(sets[:, :, place].sum(axis=1).mean(), abs=0.06)
    assert found.accuracy.estimate == pytest.approx((labels == y).mean(), abs=0.02)
    assert found.mean_absolute_error is None
    assert set(found.by_class) == {"no", "yes"}
    assert set(found.by_group) == {"a", "b"}
    sides = np.where(X[:, 1] > 0, "a", "b")
    inside = dp.metrics.coverage_by_group(y, sets[:, :, 0], sides, classes=classifier.classes_)
    for name, value in found.by_group.items():
        assert value.estimate == pytest.approx(inside[name], abs=0.03)
    for value in (*found.coverages, *found.set_sizes, found.accuracy, *found.by_class.values(), found.n_records):
        low, high = value.interval
        assert low < value.estimate < high
    assert found.n_records.estimate == pytest.approx(6_000, abs=20)


def test_a_regressor_has_widths_and_errors_in_target_units(regressor):
    rng = RNG(7)
    X = rng.uniform(-1, 1, size=(5_000, 3))
    y = X.sum(axis=1) + 0.3 * rng.normal(size=5_000)
    predicted, intervals = regressor.predict_interval(X)
    found = evaluate(regressor, X, y, epsilon=4.0)
    assert found.accuracy is None
    assert not found.by_class
    # a share of the range, rounded at random: standard error 10 * sqrt(p (1 - p) / n)
    width = (intervals[:, 1, 0] - intervals[:, 0, 0]).mean()
    assert found.set_size.estimate == pytest.approx(width, abs=4 * 10 * np.sqrt(0.1 * 0.9 / 5_000) + 0.05)
    assert found.mean_absolute_error.estimate == pytest.approx(np.abs(y - predicted).mean(), abs=0.15)


def test_the_ledger_pays_for_every_sum(classifier):
    X, y = data(500, seed=6)
    plain = evaluate(classifier, X, y, epsilon=0.5)
    # two levels of coverage and of size; errors; the class
    assert plain.ledger.entries[0].event.count == 2 + 2 + 1 + 1
    assert 0.49 < plain.ledger.epsilon(1e-6) <= 0.5
    assert not plain.ledger.is_private
    with_groups = evaluate(
        classifier, X, y, epsilon=0.5, groups=dp.Groups(lambda rows: rows[:, 1] > 0, values=[True, False])
    )
    assert with_groups.ledger.entries[0].event.count == 7
    assert with_groups.ledger.epsilon(1e-6) <= 0.5
    assert dp.evaluate(classifier, X, y, epsilon=0.5, delta=1e-6).ledger.is_private


def test_a_public_size_makes_intervals_narrower(classifier):
    X, y = data(500, seed=6)
    private, public = evaluate(classifier, X, y), evaluate(classifier, X, y, size_is_public=True)
    assert np.ptp(public.coverage.interval) < np.ptp(private.coverage.interval)
    assert public.by_class == private.by_class  # their sizes stay private
    assert public.ledger.public_facts == {"n_evaluated": 500}
    assert not private.ledger.public_facts


def test_a_person_counts_once(classifier):
    X, y = data(900, seed=8)
    ids = np.repeat(np.arange(90), 10)
    found = evaluate(classifier, X, y, epsilon=8.0, persons=ids)
    assert found.n_records.estimate == pytest.approx(90, abs=6)


def test_a_store_pays_and_a_bad_record_costs_nothing(classifier, tmp_path):
    X, y = data(300, seed=9)
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=1.0, delta=1e-6, dataset="new")
    with pytest.raises(ValueError, match="label that is not in classes"):
        dp.evaluate(classifier, X, np.where(y == "yes", "maybe", y), epsilon=0.5, delta=1e-6, budget=store)
    with pytest.raises(ValueError, match="seed"):
        evaluate(classifier, X, y, epsilon=0.5, budget=store)
    with pytest.raises(ValueError, match="no values are declared"):
        dp.evaluate(classifier, X, y, epsilon=0.5, delta=1e-6, budget=store, groups=lambda rows: rows[:, 0])
    assert len(store.lines()) == 1
    found = dp.evaluate(classifier, X, y, epsilon=0.5, delta=1e-6, budget=store)
    assert found.ledger.epsilon(1e-6) <= store.spent() <= 1.1 * found.ledger.epsilon(1e-6)  # the filter's slack
    with pytest.raises(dp.BudgetError):
        dp.evaluate(classifier, X, y, epsilon=0.9, delta=1e-6, budget=store)


def test_what_is_shown_reads_back(classifier):
    X, y = data(2_000, seed=10)
    found = evaluate(classifier, X, y)
    text = str(found)
    assert "coverage (target 90.0%)" in text
    assert f"{found.coverage.estimate:.1%}" in text
    assert "NOT private" in text
    assert "<table" in found._repr_html_()
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["coverage"][0]["estimate"] == found.coverage.estimate
    assert plain["by_class"]["yes"]["interval"] == list(found.by_class["yes"].interval)


def test_a_rate_without_an_estimate_is_shown_in_words(classifier):
    """Noise may say that there are no records; the interval then holds every rate."""
    X, y = data(0)
    shown = [str(evaluate(classifier, X, y, epsilon=0.2, random_state=seed)) for seed in range(8)]
    assert any("not known" in text for text in shown)
    assert not any("nan" in text for text in shown)
