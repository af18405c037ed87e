"""Private evaluation: intervals hold with the noise, the ledger pays, bad input costs nothing."""

import json
import warnings

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core.evaluation import _probability_at_most, _probability_below, rate_interval, size_reach
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
    assert _probability_below(bound, n, p, noise) < exact


def test_with_hardly_any_noise_half_of_the_observed_count_counts():
    """Noise breaks the tie at the observed count: P(M < m) + P(M = m) / 2 is inverted."""
    noise, tail = LatticeNoise(10**6, 2_000, 10**6), 0.9 * 0.05 / 2
    low, high = rate_interval(30, 300, noise, 0.95)
    middle = float(discrete_gaussian_cdf(0, noise.sigma))

    def at_most(p):
        return stats.binom.cdf(29, 300, p) + middle * stats.binom.pmf(30, 300, p)

    assert at_most(high) == pytest.approx(tail, rel=1e-3)
    assert 1 - at_most(low) == pytest.approx(tail, rel=1e-2)


def test_the_reach_of_a_noisy_size_is_a_quantile():
    (noise,), _ = sized_lattice_noise(0.5, 1e-5, 3, (1.0,))
    reach = size_reach(noise, 1e-3)
    outside = 2 * float(discrete_gaussian_cdf(-round(reach * noise.scale) - 1, noise.sigma))
    assert 0.98e-3 < outside <= 1e-3


def covered_share(n, p, epsilon, trials, seed):
    (noise,), _ = sized_lattice_noise(epsilon, 1e-5, 5, (1.0,))
    rng, source = RNG(seed), IntegerSource(seed)
    drawn = np.array(noise.sample(2 * trials, source)).reshape(-1, 2) / noise.scale
    inside = 0
    for count_noise, size_noise in drawn:
        low, high = rate_interval(rng.binomial(n, p) + count_noise, n + size_noise, noise, 0.9)
        inside += low <= p <= high
    return inside / trials


@pytest.mark.parametrize(("n", "p", "epsilon"), [(50, 0.1, 0.5), (400, 0.1, 2.0), (400, 0.02, 0.5)])
def test_intervals_hold_with_the_noise(n, p, epsilon, is_quick):
    trials = 60 if is_quick else 150
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.SeededWarning)
        share = covered_share(n, p, epsilon, trials=trials, seed=3)
    assert share >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / trials)


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 200, 1_000, 5_000])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_intervals_hold_over_the_range(n, epsilon):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.SeededWarning)
        for p in (0.01, 0.1, 0.5):
            assert covered_share(n, p, epsilon, trials=400, seed=n) >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / 400)


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
    # size; two levels of coverage and of size; errors; records and hits by class
    assert plain.ledger.entries[0].event.count == 1 + 2 + 2 + 1 + 2
    assert 0.49 < plain.ledger.epsilon(1e-6) <= 0.5
    assert not plain.ledger.is_private
    with_groups = evaluate(
        classifier, X, y, epsilon=0.5, groups=dp.Groups(lambda rows: rows[:, 1] > 0, values=[True, False])
    )
    assert with_groups.ledger.entries[0].event.count == 10
    assert with_groups.ledger.epsilon(1e-6) <= 0.5
    assert dp.evaluate(classifier, X, y, epsilon=0.5, delta=1e-6).ledger.is_private


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
