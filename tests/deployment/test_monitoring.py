"""The monitor: false alarms are rare for ever, a rise is seen soon, the state holds released numbers only."""

import copy
import dataclasses
import json
import math
import re
import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.deployment.following import NoisyPair
from dpscp.deployment.monitoring import _checksum, _choose_bet, log_evidence
from dpscp.privacy import Budget, IntegerSource
from dpscp.privacy.random_streams import sample_discrete_gaussian
from dpscp.report.page import monitor_page

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
RNG = np.random.default_rng


def data(n, seed=0):
    rng = RNG(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, (X[:, 0] + 0.5 * rng.normal(size=n) > 0).astype(int)


@pytest.fixture(scope="module")
def classifier():
    X, y = data(4_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.PrivateConformalClassifier(
            epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(-1, 1), n_records=4_000, random_state=0
        ).fit(X, y)


def monitor(classifier, **kwargs):
    return dp.CoverageMonitor(classifier, **{"epsilon": 0.5, "delta": 1e-6, "random_state": 0} | kwargs)


def first_alarms(bet, miss_rate, *, n=500, batches=24, trials=400, level=0.05, seed=0):
    """The batch of the first alarm in each of many runs, infinity for none."""
    rng = RNG(seed)
    noise = np.array(bet.noise.sample(2 * trials * batches, IntegerSource(seed))).reshape(2, trials, batches)
    misses = rng.binomial(n, miss_rate, size=(trials, batches))
    # of the two counts of each batch
    balance = (1 - bet.share) * (misses + noise[0] / bet.noise.scale)
    balance -= bet.share * (n - misses + noise[1] / bet.noise.scale)
    factors = bet.log_factor(NoisyPair(0, 0, (1, 1))) + bet.eta * balance
    alarms = np.array([log_evidence(run) for run in factors]) >= -math.log(level)
    return np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1.0, math.inf)


@pytest.mark.parametrize("draws", [(1, 1), (2, 1)])
def test_a_factor_is_the_formula(draws):
    """Misses less a share of the records; the noise of the sum of two counts is that of both."""
    bet = _choose_bet(0.1, Budget(0.49, 1e-5), 500)
    unit = bet.eta * bet.noise.sigma / bet.noise.scale
    noise = unit * math.sqrt(draws[0] * bet.share**2 + draws[1] * (1 - bet.share) ** 2)
    expected = bet.eta * (60 - bet.share * (60 + 440)) - noise**2 / 2
    assert bet.log_factor(NoisyPair(440, 60, draws)) == pytest.approx(expected, rel=1e-12)


def test_a_seed_repeats_which_row_of_a_person_counts(classifier):
    """Of two rows of each person one is labeled wrong, so another choice would give another number of misses."""
    X, y = data(2_000, 5)
    y[::2] = 1 - y[::2]
    states = [monitor(classifier, tolerated=0.2) for _ in range(2)]
    for state in states:
        state.update(X, y, np.arange(2_000) // 2)
    assert states[0].to_json() == states[1].to_json()


@pytest.mark.parametrize("tolerated", [0.02, 0.1, 0.4])
def test_a_records_factor_has_a_mean_of_at_most_one(tolerated):
    bet = _choose_bet(tolerated, Budget(0.5, 1e-5), 500)
    mean = math.exp(-bet.eta * bet.share) * (1 + tolerated * math.expm1(bet.eta))
    assert 1 - 1e-9 < mean <= 1
    assert bet.noise.sensitivity == bet.noise.scale  # a record changes one count by one


def test_the_noise_is_paid_by_its_parameter():
    """E[exp(Z)] <= exp(s^2 / 2) on the lattice, by the exact sum over the two counts."""
    bet, mean = _choose_bet(0.1, Budget(2.0, 1e-5), 500), 1.0
    sigma = bet.noise.sigma
    points = np.arange(-12 * sigma, 12 * sigma + 1)
    weights = np.exp(-((points / sigma) ** 2) / 2)
    for share in (bet.share, 1 - bet.share):
        mean *= float((weights * np.exp(bet.eta * share / bet.noise.scale * points)).sum() / weights.sum())
    assert mean * math.exp(bet.log_factor(NoisyPair(0, 0, (1, 1)))) <= 1 + 1e-9
    drawn = np.array(sample_discrete_gaussian(sigma, 2_000, IntegerSource(0)))
    assert drawn.std() == pytest.approx(sigma, rel=4 / math.sqrt(2 * 2_000))


def test_evidence_is_the_mixture_over_the_first_changed_batch():
    factors = [0.3, -1.2, 2.0, 0.7]
    stakes = [0.5, 0.25, 1 / 12, 1 / 24]
    for t in range(1, 5):
        products = [math.exp(sum(factors[j:t])) for j in range(t)]
        expected = sum(w * p for w, p in zip(stakes, products, strict=False)) + 1 - sum(stakes[:t])
        assert log_evidence(factors[:t])[-1] == pytest.approx(math.log(expected), rel=1e-12)


def test_a_change_after_a_long_quiet_time_is_seen_within_six_batches():
    """A plain product would have fallen by more than a hundred by then."""
    bet = _choose_bet(0.1, Budget(0.49, 1e-5), 500)
    assert np.median(first_alarms(bet, np.repeat([0.07, 0.15], [60, 6]), batches=66, trials=200)) <= 66


def test_false_alarms_are_rare_and_a_rise_is_seen():
    bet = _choose_bet(0.1, Budget(0.49, 1e-5), 500)
    false = np.isfinite(first_alarms(bet, 0.1)).mean()
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.median(first_alarms(bet, 0.12)) <= 8
    assert np.median(first_alarms(bet, 0.15)) <= 2
    assert np.median(first_alarms(bet, 0.20)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("tolerated", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 0.49, 2.0])
def test_false_alarms_over_the_range(tolerated, epsilon):
    for n in (20, 500, 3_000):
        bet = _choose_bet(tolerated, Budget(epsilon, 1e-5), 500)
        false = np.isfinite(first_alarms(bet, tolerated, n=n, batches=60, trials=2_000, seed=n)).mean()
        assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2_000)


@pytest.mark.parametrize(("tolerated", "n"), [(0.1, 500), (0.1, 100), (0.02, 2_000)])
def test_the_smallest_rise_is_seen_in_time(tolerated, n):
    bet = _choose_bet(tolerated, Budget(0.5, 1e-5), n)
    rise = bet.smallest_rate(n, -math.log(0.05), 12, 0.9)
    assert tolerated < rise < 3 * tolerated
    seen = np.isfinite(first_alarms(bet, rise, n=n, batches=12)).mean()
    assert seen >= 0.9 - 3 * math.sqrt(0.09 / 400)
    smaller = tolerated + 0.5 * (rise - tolerated)
    assert np.isfinite(first_alarms(bet, smaller, n=n, batches=12)).mean() < 0.9
    assert bet.smallest_rate(1, -math.log(1e-9), 1, 0.9) is None


def test_the_default_tolerates_what_the_release_was_promised_with(classifier):
    found = monitor(classifier)
    assert found.tolerated == pytest.approx(1 - classifier.certificate_.terms["release_level"])
    few = copy.copy(classifier)
    terms = dataclasses.replace(few.certificate_.terms, release_level=0.81)
    few.certificate_ = dataclasses.replace(few.certificate_, terms=terms)
    assert monitor(few).tolerated == pytest.approx(0.15)  # a rate of .19 would see no rise
    X, y = data(500, seed=1)
    universal = dp.PrivateConformalClassifier(
        epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(-1, 1), guarantee="universal", random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universal.fit(X, y)
    with pytest.raises(ValueError, match="tolerated must be set"):
        monitor(universal)


def test_an_alarm_and_the_state_in_between(classifier):
    first = monitor(classifier)
    step = first.update(*data(500, seed=2), batch="2026-10")
    assert (step.n_batches, step.alarm) == (1, False)
    assert step.ledger.epsilon(1e-6) <= 0.5
    again = dp.CoverageMonitor.from_json(first.to_json(), classifier)
    assert again.evidence == first.evidence
    assert again.to_json() == first.to_json()
    X, y = data(500, seed=3)
    step = again.update(X, 1 - y, batch="2026-11")
    assert step.alarm
    step = again.update(*data(500, seed=4), batch="2026-12")
    assert step.alarm, "an alarm stays"
    with pytest.raises(ValueError, match="counted before"):
        again.update(*data(500, seed=4), batch="2026-11")


def test_the_state_holds_released_numbers_only(classifier):
    found = monitor(classifier, random_state=None)
    X, y = data(137, seed=5)
    found.update(X, y)
    state = json.loads(found.to_json())
    assert set(state) == {
        *("format", "version", "model", "epsilon", "delta", "tolerated", "level", "expected_batch", "follow"),
        *("seed", "batches", "checksum"),
    }
    assert [set(batch) for batch in state["batches"]] == [{"name", "counts", "delay"}]
    # as a number of its own: the digits of a noisy one may hold it by chance
    assert re.search(r"(?<![\d.])137(\.0)?(?![\d.])", json.dumps({**state, "model": ""})) is None


def test_the_state_of_another_model_and_damaged_states_are_refused(classifier):
    text = monitor(classifier).to_json()
    X, y = data(600, seed=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = dp.PrivateConformalClassifier(
            epsilon=1.0, delta=1e-6, classes=[0, 1], feature_bounds=(-1, 1), random_state=1
        ).fit(X, y)
    with pytest.raises(ValueError, match="another model"):
        dp.CoverageMonitor.from_json(text, other)
    state = json.loads(text)
    twice = [{"name": "2026-01", "counts": [450.0, 50.0], "delay": 0}] * 2
    damages = {"batches": [{}], "epsilon": -9.0, "level": 5, "tolerated": "x"}
    for damaged in (*({**state, name: value} for name, value in damages.items()), {**state, "batches": twice}):
        damaged.pop("checksum")
        damaged["checksum"] = _checksum(damaged)
        with pytest.raises(ValueError, match="damaged"):
            dp.CoverageMonitor.from_json(json.dumps(damaged), classifier)
    for change in ({"level": 0.5}, {"seed": None}, {"tolerated": 0.3}, {"batches": twice[:1]}, {"checksum": None}):
        with pytest.raises(ValueError, match="was changed"):
            dp.CoverageMonitor.from_json(json.dumps({**state, **change}), classifier)
    for text in ("", "[]", '{"format": "other"}', json.dumps({**state, "version": 9})):
        with pytest.raises(ValueError, match="not the state of a monitor"):
            dp.CoverageMonitor.from_json(text, classifier)


def test_five_equal_rows_of_a_person_count_once(classifier):
    X, y = data(40, seed=8)
    many = np.repeat(X, 5, axis=0), np.repeat(y, 5), np.repeat(np.arange(40), 5)
    once, five = monitor(classifier, epsilon=4.0), monitor(classifier, epsilon=4.0)
    assert once.update(X, y).log_evidence == pytest.approx(five.update(*many).log_evidence)


def test_a_plot_and_a_page_show_released_numbers(classifier):
    watched = monitor(classifier, level=0.05)
    with pytest.raises(ValueError, match="no batch yet"):
        watched.plot()
    for month in range(20):
        X, y = data(400, seed=month)
        watched.update(X, y if month < 10 else 1 - y, batch=f"2026-{month} <b> $")
    figure = watched.plot()
    (axis,) = figure.axes
    drawn = [line for line in axis.lines if len(line.get_xdata()) == 20]
    assert np.array_equal(drawn[0].get_ydata(), watched.evidence)
    assert len(axis.get_xticklabels()) == 12
    first = next(k for k, value in enumerate(watched.evidence) if value >= watched.alarm_limit)
    assert [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 1] == [first]
    page = monitor_page(watched)
    assert "Alarm: coverage fell" in page
    assert "NOT private" in page
    assert "<b>" not in page
    assert "prefers-color-scheme:dark" in page
    assert page.count("<tr>") == 21
    quiet = monitor(classifier, random_state=None)
    quiet.update(*data(200))
    assert "NOT private" not in monitor_page(quiet)
