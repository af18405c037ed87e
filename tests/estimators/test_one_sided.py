"""Intervals with one end: the whole miscoverage is spent there, and every later step knows them."""

import json
import math
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.scores import INTERVAL_SCORES, Pair

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
COMMON = {"y_bounds": (-8, 8), "feature_bounds": (-1, 1), "random_state": 0}


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 4))
    return X, X.sum(axis=1) + (0.5 + (X[:, 0] > 0)) * rng.normal(size=n)


def fit(n=3_000, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.PrivateConformalRegressor(epsilon=2.0, **COMMON | options).fit(*data(n))


@pytest.fixture(scope="module")
def upper():
    return fit(side="upper")


@pytest.mark.parametrize("name", [name for name in INTERVAL_SCORES if name.endswith(("_upper", "_lower"))])
def test_an_interval_holds_the_targets_whose_score_is_at_most_the_threshold(name):
    score, rng = INTERVAL_SCORES[name], np.random.default_rng(0)
    y, ends = rng.normal(size=500).round(1), np.sort(rng.normal(size=(500, score.outputs)).round(1), axis=1)
    pair = Pair.of(ends, (-9.0, 9.0))
    scores = score.of_targets(y, pair)
    for threshold in (-0.7, 0.0, 0.3, math.inf):
        low, high = score.interval(pair, np.array([threshold]))[:, :, 0].T
        np.testing.assert_array_equal((low <= y) & (y <= high), scores <= threshold)
        assert np.isinf(low if name.endswith("upper") else high).all()
    low, high = score.range(pair.y_bounds)
    assert ((scores >= low) & (scores <= high)).all()


@pytest.mark.parametrize("side", ["upper", "lower"])
@pytest.mark.parametrize("options", [{}, {"conformity_score": "absolute"}, {"guarantee": "universal"}])
@pytest.mark.covering
def test_the_open_side_costs_nothing(side, options, upper):
    X, y = data(20_000, 1)
    fitted = upper if side == "upper" and not options else fit(side=side, **options)
    intervals = fitted.predict_interval(X)[1]
    assert np.isinf(intervals[:, int(side == "lower")]).all()
    assert np.isfinite(intervals[:, int(side == "upper")]).all()
    assert fitted.conformity_score_.endswith(side)
    covered = dp.metrics.coverage(y, intervals)[0]
    assert 0.88 < covered < 0.97
    both = dp.PrivateConformalRegressor(epsilon=2.0, **COMMON | options).fit(*data(3_000)).predict_interval(X)[1]
    place, sign = int(side == "upper"), 1 if side == "upper" else -1
    assert (sign * intervals[:, place, 0]).mean() < (sign * both[:, place, 0]).mean()


def test_coverage_is_proven_and_kept(is_quick):
    """Mean over fits within three standard errors of at least the level."""
    X, y = data(10_000, 5)
    covered = []
    for seed in range(12 if is_quick else 40):
        model = dp.PrivateConformalRegressor(
            epsilon=2.0, estimator=dp.training.DPSGD(loss="squared", steps=20), **COMMON
        )
        model.set_params(side="upper", random_state=seed).fit(*data(1_500, 100 + seed))
        covered.append(dp.metrics.coverage(y, model.predict_interval(X)[1])[0])
    assert model.certificate_.coverage == pytest.approx(0.9)
    assert np.mean(covered) >= 0.9 - 3 * np.std(covered) / math.sqrt(len(covered))


def test_files_evaluation_monitor_and_report_know_it(upper, tmp_path):
    X, y = data(2_000, 2)
    upper.save(tmp_path / "m")
    again = dp.load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict_interval(X)[1], upper.predict_interval(X)[1])
    found = dp.evaluate(again, X, y, epsilon=1.0, delta=1e-6, random_state=0)
    low, high = found.coverage.interval
    assert low < 0.9 < high + 0.03
    # the size of a set is measured from the other end of the bounds
    width = (upper.predict_interval(X)[1][:, 1, 0] + 8).mean()
    assert found.set_size.estimate == pytest.approx(width, abs=1.0)
    step = dp.CoverageMonitor(upper, epsilon=1.0, delta=1e-6, follow=1.0, random_state=0).update(X, y)
    assert not step.alarm
    upper.report(tmp_path / "r.html", X, y)
    assert "_upper" in (tmp_path / "r.html").read_text()
    assert "_upper" in json.dumps(upper.statement())


def test_quantiles_keep_the_promise_of_each_level_and_never_cross(tmp_path):
    X, y = data(20_000, 4)
    for side in ("upper", "lower"):
        model = fit(side=side, confidence_level=[0.9, 0.5, 0.8])
        model.save(tmp_path / side)
        quantiles = dp.load(tmp_path / side).predict_quantiles(X)
        inside = y[:, None] <= quantiles if side == "upper" else y[:, None] >= quantiles
        assert [certificate.target for certificate in model.certificates_] == [0.9, 0.5, 0.8]
        assert (inside.mean(axis=0) > np.array([0.9, 0.5, 0.8]) - 0.03).all()
        assert model.ledger_.epsilon(1e-5) <= 2.0
        # thresholds that noise has put in the wrong order
        model.threshold_ = model.threshold_[[1, 0, 2]]
        steps = np.diff(model.predict_quantiles(X)[:, [1, 2, 0]], axis=1)
        assert ((steps >= 0) if side == "upper" else (steps <= 0)).all()
    X, Y = X[:3_000], np.column_stack([y, -y])[:3_000]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        several = dp.PrivateConformalRegressor(epsilon=4.0, side="upper", **COMMON).fit(X, Y)
    assert several.predict_quantiles(X[:5]).shape == (5, 2, 1)
    with pytest.raises(ValueError, match="predict_quantiles needs a fit with side"):
        fit().predict_quantiles(X)


@pytest.mark.parametrize("score", ["normalized", INTERVAL_SCORES["absolute"]])
def test_a_score_without_sides_is_refused(score):
    with pytest.raises(ValueError, match="side='upper' needs conformity_score='absolute', 'cqr' or 'auto'"):
        fit(side="upper", conformity_score=score)


def test_another_side_is_refused():
    with pytest.raises(ValueError, match="side must be one of"):
        fit(side="left")
    with pytest.raises(ValueError, match="side='lower' needs"):
        fit(side="lower", conformity_score="cqr_upper")
