"""Tests of leaving out the columns that tell nothing."""

import math

import numpy as np
import pytest

import dpscp as dp
from dpscp.privacy import IntegerSource, epsilon_of, gaussian_event, gdp_mu
from dpscp.report.statement import privacy_statement
from dpscp.training import DPSGD, Preprocessed, PrivateRelevance, QuantileTransform
from dpscp.training.base import array_source
from dpscp.training.mechanisms.one_vs_rest import OneVsRest
from dpscp.training.preprocessing import relevance
from dpscp.training.preprocessing.relevance import relevance_sums

D = 12
RNG = np.random.default_rng


def step(noise=0.5, **options):
    return PrivateRelevance(QuantileTransform(-1.0, 1.0, D), **options).with_noise(noise)


def fitted(y_of, n=6_000, columns=(), **options):
    rng = RNG(3)
    X = rng.uniform(-1, 1, size=(n, D))
    y = y_of(X) + 0.3 * rng.normal(size=n)
    quantiles = QuantileTransform(-1.0, 1.0, D, columns=columns)
    made = PrivateRelevance(quantiles, **options).with_noise(0.5)
    return made.fit_source(array_source(X, (y - y.mean()) / y.std()), n_records=n, rng=RNG(4), random_state=5)


@pytest.mark.parametrize("classes", [None, (0, 1, 2)])
def test_one_record_adds_at_most_the_sensitivity(monkeypatch, classes):
    """One record, or one person, moves the sums by no more than what the noise is a multiple of."""
    noises = []
    monkeypatch.setattr(
        relevance, "gaussian_release", lambda total, noise, *_: noises.append(noise) or np.zeros_like(total)
    )
    rng = RNG(0)
    X, y = rng.normal(size=(500, D)), rng.normal(size=500) if classes is None else rng.integers(3, size=500)
    step(2.0, classes=classes).fit_source(array_source(X, y), n_records=500, rng=rng, random_state=1)
    quantiles = step(2.0).quantiles
    counts = array_source(X, y).sum(quantiles.counts)
    _, rows = quantiles.release(counts, n_records=500, source=IntegerSource(1))
    sensitivity = noises[0] / step(2.0).noise_multiplier
    hardest = np.concatenate([rng.choice([-1.0, 0.0, 1.0], size=(3_000, D)), rng.uniform(-1, 1, size=(3_000, D))])
    targets = np.repeat([9.0, -9.0, 0.7, np.inf, np.nan, 1e300] if classes is None else [0, 1, 2, 0, 1, 2], 1_000)
    vectors = [relevance_sums(hardest[[i]], np.ones(1), targets[[i]], rows, classes) for i in range(6_000)]
    lengths = np.linalg.norm(np.reshape(vectors, (6_000, -1)), axis=1)
    assert 0.999 * sensitivity / 1.0001 < lengths.max() <= sensitivity
    # a person's weights add up to one: the sum over their rows is no longer than one record's
    labels = np.full(7, 5.0) if classes is None else np.arange(7) % 3
    person = relevance_sums(np.ones((7, D)), np.full(7, 1 / 7), labels, rows, classes)
    assert np.linalg.norm(person) <= sensitivity


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_counts_and_statistics_are_both_paid(share):
    """Together they cost what one Gaussian release with the noise of the step costs."""
    paid, whole = step(2.0, share=share).event, gaussian_event(2.0)
    assert epsilon_of(paid, 1e-6) == pytest.approx(epsilon_of(whole, 1e-6), rel=2e-3)


def test_columns_that_matter_are_kept():
    """Lines, bends and products are seen; columns that tell nothing are left out with their quantiles."""
    rows = fitted(lambda X: X[:, 3] + 1.5 * X[:, 5] ** 2 + 2 * X[:, 7] * X[:, 9])
    assert rows.features == (3, 5, 7, 9)
    assert set(rows.columns) <= {3, 5, 7, 9}
    assert rows.apply(np.zeros((2, D))).shape == (2, rows.width)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_columns_that_matter_to_classes_are_kept(n_classes):
    """A class of few records counts too; columns that tell nothing of any class are left out."""
    rng = RNG(6)
    X = rng.uniform(-1, 1, size=(8_000, D))
    scores = X[:, 3] + 1.5 * X[:, 5] ** 2 + 2 * X[:, 7] * X[:, 9] + 0.3 * rng.normal(size=len(X))
    y = np.digitize(scores, np.quantile(scores, [0.6, 0.9][: n_classes - 1]))
    quantiles = QuantileTransform(-1.0, 1.0, D)
    made = PrivateRelevance(quantiles, classes=tuple(range(n_classes))).with_noise(0.5)
    rows = made.fit_source(array_source(X, y), n_records=len(X), rng=RNG(4), random_state=5)
    assert rows.features == (3, 5, 7, 9)


@pytest.mark.parametrize(
    "y_of",
    [
        lambda X: X @ np.r_[1.0, np.full(D - 1, 0.21)],  # eleven weak columns together
        lambda X: 0.2 * X[:, 0],  # hardly anything is explained
    ],
)
def test_all_columns_are_kept_where_leaving_out_could_lose_much(y_of):
    assert fitted(y_of, least=9.0).width >= D


def test_the_shares_of_the_budget_add_up():
    """Counts and statistics together cost what the step was given."""
    made = Preprocessed((PrivateRelevance(QuantileTransform(-1.0, 1.0, D), share=0.25),), DPSGD(loss="huber"), 0.2)
    mu = gdp_mu(1.0, 1e-5)
    (found,) = made.with_shares(mu).steps
    assert 1 / found.noise_multiplier == pytest.approx(math.sqrt(0.25 * 0.2) * mu)
    assert found.quantiles.n_releases / found.quantiles.noise.count_noise**2 == pytest.approx(
        0.75 * 0.2 * mu**2, rel=1e-3
    )
    assert PrivateRelevance(QuantileTransform(-1.0, 1.0, D)).event is None


def test_a_wide_regression_finds_its_columns_and_says_which(tmp_path):
    """The recipe leaves columns out, intervals are narrower for it, and ledger and file keep them."""
    rng = RNG(1)
    X = rng.uniform(size=(9_000, 24))
    y = 4 * np.sin(3 * X[:, 2]) + 2 * X[:, 20] + 0.3 * rng.normal(size=len(X))
    widths = []
    for n_columns in (24, 9):  # a table of nine columns has no relevance released
        order = [2, 20, *(i for i in range(24) if i not in (2, 20))][:n_columns]
        reg = dp.PrivateConformalRegressor(epsilon=1.0, feature_bounds=(0, 1), y_bounds=(-2, 8), random_state=0)
        reg.fit(X[:6_000, order], y[:6_000])
        widths.append(dp.metrics.efficiency(reg.predict_interval(X[6_000:, order])[1][:, :, 0]))
        used = reg.ledger_.public_facts.get("features_used")
        if n_columns == 9:
            assert used is None
        else:
            assert {0, 1} <= set(used)
            assert len(used) < 6
            reg.save(tmp_path / "model.dpscp")
            np.testing.assert_array_equal(
                dp.load(tmp_path / "model.dpscp").predict(X[:50, order]), reg.predict(X[:50, order])
            )
            assert "features_used" in reg.ledger_.found_privately
    assert widths[0] < 1.05 * widths[1]


def test_the_statement_names_the_columns_that_a_model_uses():
    pandas = pytest.importorskip("pandas")
    rng = RNG(1)
    X = rng.uniform(size=(6_000, D))
    y = 4 * X[:, 2] + 2 * X[:, 7] + 0.3 * rng.normal(size=len(X))
    frame = pandas.DataFrame(X, columns=[f"column {i}" for i in range(D)])
    reg = dp.PrivateConformalRegressor(epsilon=2.0, feature_bounds=(0, 1), y_bounds=(-2, 8), random_state=0)
    reg.fit(frame, y)
    assert reg.ledger_.public_facts["features_used"] == (2, 7)
    facts = {fact["name"]: fact["value"] for fact in privacy_statement(reg)["public"]}
    assert facts["features_used"] == ["column 2", "column 7"]


def test_each_of_several_targets_has_columns_of_its_own():
    """One target leaves columns out and the other needs all of them: both say so, in this order."""
    rng = RNG(7)
    X = rng.uniform(-1, 1, size=(6_000, D))
    y = np.column_stack([X[:, 3], X @ np.r_[1.0, np.full(D - 1, 0.21)]]) + 0.1 * rng.normal(size=(6_000, 2))
    y /= y.std(axis=0)
    one = Preprocessed((step(least=9.0),), DPSGD(loss="huber", steps=3, noise_multiplier=1.0))
    for order in ([0, 1], [1, 0]):
        trained = OneVsRest(one, 2).train(X, y[:, order], n_records=6_000, random_state=0)
        used = np.array([(3,), None], dtype=object)[order]
        assert trained.public_facts["features_used"] == trained.found_privately["features_used"] == tuple(used)
