"""Every number of a promise against a formula written here a second time, and every printed promise read back."""

import html
import math
import re
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import optimize, stats

import dpscp as dp
from dpscp._base.assumptions import FIXED_GROUPS
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import (
    stability_dpsgd_fixed_normalizer,
    stability_summary,
)
from dpscp.privacy import dpsgd_event, gaussian_event
from dpscp.threshold import sized_offset, step_rises
from dpscp.training import DPSGD, ObjectivePerturbation, OutputPerturbation

DELTA = 1e-5
ROWS = 3
TRAINING_MU = 0.15


def gdp_epsilon(mu, delta):
    """The epsilon of a Gaussian mechanism of parameter mu, from the formula of its privacy profile."""

    def excess(epsilon):
        high, low = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return stats.norm.cdf(high) - math.exp(epsilon + stats.norm.logcdf(low)) - delta

    return optimize.brentq(excess, 0.0, 60.0, xtol=1e-10)


def quiet(call, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*arguments, **options)


# ---- persons without ids: k rows at once


@pytest.fixture(scope="module")
def group():
    """Scores of persons with up to three rows each, and nobody knows which."""
    spent = gaussian_event(1 / TRAINING_MU)
    scores = np.random.default_rng(0).uniform(size=2000)
    return dp.calibrate(
        scores, training=spent, epsilon=3.2, delta=DELTA, score_range=(0, 1), rows_per_person=ROWS, random_state=0
    )


@pytest.fixture(scope="module")
def group_epsilon(group):
    """The exact value for continuous noise: k times the mu of training and counts together."""
    terms = group.certificate.terms
    # the centered rank statistic changes by 1/2 where the number of scores is public
    counts = 0.5 * math.sqrt(terms["steps"]) / terms["count_noise"]
    mu = math.hypot(TRAINING_MU, counts)
    assert gdp_epsilon(mu, DELTA) < 0.4 * gdp_epsilon(ROWS * mu, DELTA)  # one row is another promise
    return gdp_epsilon(ROWS * mu, DELTA)


def test_the_epsilon_of_k_rows_is_the_groups(group, group_epsilon):
    found = group.ledger.epsilon(DELTA)
    # an upper bound; the noise is drawn on integers and the chain is rounded up
    assert group_epsilon - 1e-3 <= found <= 1.01 * group_epsilon
    assert found <= 3.2


def test_the_tradeoff_of_k_rows_is_the_groups(group, group_epsilon):
    mu = optimize.brentq(lambda m: gdp_epsilon(m, DELTA) - group_epsilon, 0.01, 5)
    for alarm in (0.05, 0.3):
        exact = stats.norm.cdf(stats.norm.isf(alarm) - mu)
        assert exact - 0.02 <= group.ledger.tradeoff(alarm) <= exact + 1e-6


# ---- what one release covers


def worst_release_level(n_released, size_noise, *, alpha, count_noise, steps, unit=0.0, confidence=0.95):
    """Result I by direct sums: B binomial, the largest of the noisy counts less its rise, the noise Y of the size.

    The level is 1 - alpha - q w(n + Y). The largest q that any number of scores within reach needs is that of all.
    """
    tail = 1 - confidence
    reach = size_noise * stats.norm.isf(0.02 * tail / 2) + unit
    offset = sized_offset(alpha, n_released + 2 * reach, size_noise, count_noise, steps, graded=True)
    rises, swing = step_rises(steps), 0.5 - alpha
    normal, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def level(m, q):
        m = np.maximum(m, 1.0)
        spread = np.sqrt(alpha * (1 - alpha) / m + (count_noise**2 + (swing * size_noise) ** 2) / m**2)
        return np.clip(1 - alpha - q * spread, 0.0, 1.0)

    def miss(q, n):
        counts = np.arange(n + 1)
        needed = (1 - alpha) * (n + 1) + offset - swing * unit - counts[:, None] + swing * size_noise * normal
        some = 1 - np.exp(sum(stats.norm.logcdf(needed / count_noise + rise) for rise in rises))
        mass = stats.binom.pmf(counts[:, None], n, level(n + size_noise * normal, q))
        return (mass * some).sum(axis=0) @ weights + 0.02 * tail

    low, high = max(1, math.ceil(n_released - reach)), math.floor(n_released + reach)
    sizes = np.unique(np.linspace(low, high, 5).round())
    q = max(optimize.brentq(lambda q, n=int(n): miss(q, n) - tail, -9, 30) for n in sizes)
    return float(level(n_released, q))


@pytest.mark.parametrize("n", [100, 400])
def test_the_level_of_a_single_release_is_result_i_at_the_farthest_size(n):
    scores = np.random.default_rng(2).uniform(size=n)
    options = {"epsilon": 1.0, "delta": DELTA, "score_range": (0, 1), "held_out": True, "random_state": 3}
    found = quiet(dp.calibrate, scores, n_records=n, **options)
    terms = found.certificate.terms
    search = {"alpha": 1 - terms["inner_level"], "count_noise": terms["count_noise"], "steps": terms["steps"]}
    exact = worst_release_level(terms["released_size"], terms["size_noise"], **search)
    assert exact - 4e-3 <= terms["release_level"] <= exact + 2e-4
    assert terms["release_confidence"] == 0.95
    (text,) = re.findall(r"cover at least ([\d.]+)%", found.certificate.one_release)
    assert 0 <= 100 * terms["release_level"] - float(text) < 0.1
    assert found.certificate.one_release in str(found.certificate)


# ---- inner levels


def test_the_inner_levels_are_those_of_gaussian_training():
    mu, alphas = 0.2, (0.1, 0.3)
    X = np.random.default_rng(4).uniform(-1, 1, size=(400, 2))
    mechanism = DPSGD(classes=(0, 1), steps=4, noise_multiplier=2 / mu, sampling_rate=1.0)
    model = dp.PrivateConformalClassifier(
        mechanism, epsilon=2, delta=DELTA, guarantee="universal", classes=[0, 1], n_records=400, random_state=0,
        confidence_level=[1 - a for a in alphas],
    )  # fmt: skip
    quiet(model.fit, X, (X[:, 0] > 0).astype(int))
    # four steps of noise 2 / mu are one Gaussian of mu; f(a) = Phi(Phi^-1(1 - a) - mu) must be the target
    exact = {1 - a: stats.norm.cdf(stats.norm.isf(a) + mu) for a in alphas}
    facts, certificates = model.ledger_.public_facts, model.certificates_
    assert sorted(facts["inner_levels"]) == pytest.approx(sorted(exact.values()), abs=3e-4)
    assert len(set(facts["inner_levels"])) == 2
    for certificate in certificates:
        assert certificate.terms["inner_level"] == pytest.approx(exact[round(certificate.target, 6)], abs=3e-4)
        assert certificate.terms["inner_level"] in facts["inner_levels"]
        assert certificate.coverage == pytest.approx(certificate.target, abs=1e-12)


# ---- contents of certificates


def test_groups_have_their_assumption_and_no_rank_of_the_whole():
    rng = np.random.default_rng(5)
    X = rng.uniform(-1, 1, size=(300, 2))
    y = (X[:, 0] > 0).astype(int)
    common = {"epsilon": 2, "classes": [0, 1], "n_records": 300, "feature_bounds": (-1, 1), "random_state": 0}
    whole = quiet(dp.PrivateConformalClassifier(**common, guarantee="split").fit, X, y).certificate_
    groups = quiet(dp.PrivateConformalClassifier(**common, guarantee="split", groups="label").fit, X, y).certificate_
    (added,) = set(groups.assumptions) - set(whole.assumptions)
    assert added == FIXED_GROUPS
    assert added.sentence in str(groups)
    assert added.sentence in html.unescape(groups._repr_html_())
    assert {"smallest_group", "smallest_group_calibration"} <= set(groups.terms)
    assert not {"noise_offset", "rank_target", "released_size"} & set(groups.terms)
    assert str(groups.terms["smallest_group"]) in groups.advice


def test_full_sets_come_with_a_warning_and_the_number_of_records_that_ends_them():
    options = {"epsilon": 0.3, "delta": DELTA, "score_range": (0, 1), "held_out": True}
    with pytest.warns(GuaranteeWarning, match="VACUOUS"):
        found = dp.calibrate(np.linspace(0, 1, 30), n_records=30, **options)
    smallest = found.certificate.terms["smallest_n"]
    assert found.certificate.is_vacuous
    assert f"at least {smallest} at this noise" in found.certificate.advice
    assert found.certificate.advice in str(found.certificate)
    assert found.certificate.advice in html.unescape(found.certificate._repr_html_())
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuaranteeWarning)
        enough = dp.calibrate(np.linspace(0, 1, 40 * smallest), n_records=40 * smallest, **options).certificate
    assert (enough.is_vacuous, enough.advice) == (False, "")


def test_the_smallest_useful_number_is_the_first_whose_rank_is_among_the_scores():
    found = quiet(
        dp.calibrate,
        np.linspace(0, 1, 500),
        training=dpsgd_event(40.0, 1.0, 50),
        epsilon=1,
        delta=DELTA,
        score_range=(0, 1),
        random_state=0,
    )
    terms = found.certificate.terms
    level, offset = terms["inner_level"], terms["noise_offset"]
    n = terms["smallest_n"]
    assert level * (n + 1) + offset <= n < level * n + offset + 1
    assert terms["rank_target"] == pytest.approx(level * 501 + offset, abs=1e-3)


def test_guarantees_without_a_proof_tell_what_privacy_alone_proves():
    mu = 0.3
    scores = np.random.default_rng(6).uniform(size=2000)
    options = {"training": gaussian_event(1 / mu), "epsilon": 2, "delta": DELTA, "score_range": (0, 1)}
    found = dp.calibrate(scores, guarantee="finite", **options).certificate
    miss = found.terms["ideal_miss_bound"]
    exact = stats.norm.cdf(stats.norm.isf(miss) - mu)
    assert found.coverage == pytest.approx(exact, abs=2e-4)
    assert found.coverage <= exact + 1e-9
    assert "The target 90% is not proven for finite samples" in str(found)


# ---- stability bounds: every term by itself


def test_the_shift_of_a_summary_is_the_formula():
    common = {"summary_bound": 1.5, "lipschitz": 3.0, "n_records": 8}
    assert stability_summary(**common).shift_bound == pytest.approx(3 * 1.5 / 8, rel=1e-12)
    moving = stability_summary(**common, noise_std=0.3, n_parameters=2, delta_n=0.01)
    exact = 3 * (2 * 1.5 / 9 + 0.3 * stats.chi(2).isf(0.01) / (8 * 9))
    assert moving.shift_bound == pytest.approx(exact, rel=1e-12)
    assert moving.delta_n == 0.01
    usual = stability_summary(**common, noise_std=0.3, n_parameters=2)
    assert usual.shift_bound == pytest.approx(3 * (2 * 1.5 / 9 + 0.3 * stats.chi(2).isf(1e-3) / (8 * 9)), rel=1e-12)
    assert usual.delta_n == 1e-3


def test_the_shift_of_sampled_batches_is_a_binomial_quantile():
    # without curvature every draw of the record counts the same: the number of draws is binomial
    options = {"clip_norm": 1.0, "learning_rate": 0.5, "steps": 40, "sampling_rate": 0.1, "smoothness": 0.0}
    bound = stability_dpsgd_fixed_normalizer(**options, n_records=100, delta_n=0.01)
    draws = stats.binom(40, 0.1).isf(0.01)
    assert bound.shift_bound == pytest.approx(0.5 * draws / 10, rel=1e-9)
    assert stats.binom(40, 0.1).sf(draws) <= bound.delta_n <= 0.01


@pytest.mark.parametrize("mechanism", [partial(OutputPerturbation, loss="logistic"), ObjectivePerturbation])
def test_a_trained_model_pays_for_its_solver(monkeypatch, mechanism):
    share = 0.05
    monkeypatch.setattr("dpscp.training.mechanisms.perturbation.SOLVER_SHARE", share)
    X = np.random.default_rng(7).uniform(-1, 1, size=(40, 2))
    made = mechanism(noise_multiplier=2.0, classes=(0, 1))
    trained = made.train(X, (X[:, 0] > 0).astype(int), n_records=40, random_state=0)
    strength = made.strength(40, 2)
    # rows of norm 1 with their bias coordinate, logistic loss: slope 1; the noise is rounded to a grid far below this
    exact = math.sqrt(2.0) * (1 + 2 * share) / strength
    assert trained.stability.shift_bound == pytest.approx(exact, rel=1e-4)
