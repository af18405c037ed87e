"""Thresholds that follow: the bound holds for any sequence of records, the alarm and the state are as before."""

import json
import math
import warnings

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.deployment.following import FollowPlan, NoisyPair, long_run_bound, noisy_counts
from dpscp.deployment.monitoring import _checksum, _choose_bet, log_evidence
from dpscp.privacy import Budget, IntegerSource, sized_lattice_noise

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
ALPHA, BETA, END = 0.1, 0.05, 10.0


@pytest.fixture(scope="module")
def noise():
    return sized_lattice_noise(0.5, 1e-6, 1, (1.0,))[0][0]


def plan_of(step=1.0, first=1.645, batch=500):
    return FollowPlan(step, ALPHA, (math.log(first),), (0.0, END), 0.0, False, batch, 1)


def follow(plan, noise, batches, seed):
    """Run thresholds over batches of scores, functions of the threshold in force; return all that happened."""
    source, thresholds, pairs, exact, misses, sizes = IntegerSource(seed), [plan.first], [], [], 0, []
    for make in batches:
        now = thresholds[-1]
        scores = make(math.exp(now[0]))
        covered = np.column_stack([scores <= t for t in (*plan.in_force(plan.first), *plan.in_force(now))])
        counts = noisy_counts(plan.count(covered, None, now), noise, source)
        first, own = plan.read(counts, now)
        assert first.size == pytest.approx(own[0].size)
        missed = int((~covered[:, 1]).sum())
        exact.append(missed - ALPHA * len(scores))
        misses, sizes = misses + missed, [*sizes, len(scores)]
        pairs.append(own[0])
        thresholds.append(plan.next(now, own))
    return thresholds, pairs, exact, misses, sizes


def sequences(rng, kind, n_batches, size):
    """Batches of scores: even, harder, growing, and two that are chosen against the threshold in force."""
    if kind == "even":
        return [lambda _: np.abs(rng.normal(size=size))] * n_batches
    if kind == "harder":
        return [lambda _: 1.6 * np.abs(rng.normal(size=size))] * n_batches
    if kind == "growing":
        return [lambda _, t=t: (1 + t / 10) * np.abs(rng.normal(size=rng.integers(0, size))) for t in range(n_batches)]
    if kind == "just above":
        return [lambda t: np.full(size, min(t + 1e-9, END - 1e-9))] * n_batches
    return [lambda t: np.full(size if t < 2.5 else 0, END - 1e-9)] * n_batches  # waits until the threshold is low


@pytest.mark.parametrize("kind", ["even", "harder", "growing", "just above", "waiting"])
def test_the_bound_holds_for_any_sequence(noise, kind, is_quick):
    """Each run fails with probability at most beta over the noise; the identity of the proof holds on each path."""
    runs, n_batches = (40 if is_quick else 400), 24
    failed = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        plan = plan_of(step=float(rng.choice([0.2, 1.0, 5.0])), batch=100)
        made = sequences(rng, kind, n_batches, 100)
        thresholds, pairs, exact, misses, sizes = follow(plan, noise, made, seed)
        drawn = sum(pair.balance(ALPHA) for pair in pairs) - sum(exact)
        moved = (thresholds[-1][0] - plan.first[0]) / plan.gain
        assert sum(exact) == pytest.approx(moved - drawn, abs=1e-6)
        common = {"group": None, "beta": BETA, "delay": 0}
        bound = long_run_bound(plan, 0, pairs, noise, n_records=sum(sizes), largest_batch=100, **common)
        released = long_run_bound(plan, 0, pairs, noise, n_records=None, largest_batch=None, **common)
        failed += misses > ALPHA * sum(sizes) + bound.excess
        assert bound.rate == pytest.approx(min(1, ALPHA + bound.excess / max(1, sum(sizes))))
        assert released.n_records <= sum(sizes) + 1e-9 or released.n_records < 1.2 * sum(sizes)
    assert failed <= stats.binom.isf(1e-3, runs, BETA)


def test_the_bound_of_a_long_run_is_the_sum_of_its_parts(noise):
    """Result M written out: three batches whose labels come one batch late, and sizes that were released."""
    plan = FollowPlan(1.0, ALPHA, (0.4,), (-END, END), 0.2, False, 500, 1)
    pairs = [NoisyPair(900.0, 100.0, (1, 1)), NoisyPair(600.0, 200.0, (2, 1)), NoisyPair(400.0, 50.0, (1, 2))]
    options = {"group": None, "beta": BETA, "delay": 1, "n_records": None, "largest_batch": None}
    found, unit = long_run_bound(plan, 0, pairs, noise, **options), noise.count_noise

    def reach(draws, probability):
        return unit * math.sqrt(2 * draws * math.log(1 / probability))

    # the past decides whether a batch has two or three counts: three are allowed for
    assert found.n_records == pytest.approx(2_250 - reach(9, 0.1 * BETA))
    tail = 0.1 * BETA / 3
    largest = max(1_000 + reach(3, tail), 1_800 + reach(6, tail), 1_250 + reach(6, tail))
    assert found.batch == pytest.approx((1 - ALPHA) * largest)
    assert found.start == pytest.approx((math.log1p(END / 0.2) - 0.4) / plan.gain)
    square = {draws: ALPHA**2 * draws[0] + (1 - ALPHA) ** 2 * draws[1] for draws in ((1, 1), (2, 1), (1, 2))}
    variance, log = unit**2 * sum(square.values()), math.log(1 / (0.8 * BETA))
    # Ville's inequality for one slope, which does not depend on what happened
    slope = math.sqrt(2 * log / (3 * unit**2 * math.sqrt(square[1, 1] * square[1, 2])))
    assert found.noise == pytest.approx(slope * variance / 2 + log / slope)
    grouped = FollowPlan(1.0, ALPHA, (0.4,), (-END, END), 0.2, True, 500, 1)
    same = long_run_bound(grouped, 0, pairs[:1], noise, **options)
    assert same.noise == pytest.approx(unit * math.sqrt(2 * square[1, 1] * log))
    assert same.n_records == pytest.approx(1_000 - reach(2, 0.1 * BETA))
    assert found.excess == pytest.approx(found.start + found.batch + found.noise)
    assert found.rate == pytest.approx(min(1.0, ALPHA + found.excess / found.n_records))


@pytest.mark.parametrize(("knee", "values"), [(0.0, (0.5, 1.0, 9.0)), (0.2, (-9.0, -0.1, 0.0, 3.0))])
def test_a_threshold_comes_back_from_its_scale(knee, values):
    plan = FollowPlan(1.0, ALPHA, (0.0,), (-END, END), knee, False, 500, 1)
    places = [math.log(v) if knee == 0 else math.copysign(math.log1p(abs(v) / knee), v) for v in values]
    np.testing.assert_allclose(plan.in_force(places), values, rtol=1e-12, atol=1e-12)
    assert plan.in_force([plan.end, plan.end + 700]).tolist() == [math.inf, math.inf]


@pytest.mark.parametrize(("step", "expected"), [(0.2, 0.847), (0.5, 0.883), (1.0, 0.896), (2.0, 0.900)])
def test_a_change_is_followed(noise, step, expected):
    """Residuals 60 % larger: a fixed threshold covers .696, over 60 batches at least the table of Result M."""
    rng = np.random.default_rng(1)
    covered, fixed = [], []
    for seed in range(6):
        made = sequences(rng, "harder", 60, 500)
        _, _, _, misses, sizes = follow(plan_of(step), noise, made, seed)
        covered.append(1 - misses / sum(sizes))
        fixed.append((made[0](0) <= 1.645).mean())
    assert expected - 0.01 <= np.mean(covered) <= 0.905
    assert np.mean(fixed) == pytest.approx(0.696, abs=0.03)


def test_both_thresholds_are_read_from_three_cells():
    """Noiseless counts give the misses by either threshold, whichever is larger."""
    covered = np.array([[1, 1]] * 50 + [[0, 1]] * 30 + [[0, 0]] * 20, dtype=bool)
    plan = plan_of()
    for flip, now in ((False, (2.0,)), (True, (0.1,))):
        seen = covered[:, ::-1] if flip else covered
        first, (own,) = plan.read(plan.count(seen, None, now), now)
        pairs = [(first.missed, first.covered), (own.missed, own.covered)]
        assert pairs == ([(20, 80), (50, 50)] if flip else [(50, 50), (20, 80)])
        assert sorted([first.draws, own.draws]) == [(1, 2), (2, 1)]
    (same,) = plan.read(plan.count(covered[:, [0, 0]], None, plan.first), plan.first)[1]
    assert (same.missed, same.covered, same.draws) == (50, 50, (1, 1))
    # the noise of M is .906 of that of one count where both thresholds agree
    assert same.spread(0.1) == pytest.approx(0.906, abs=5e-4)
    assert NoisyPair(0, 0, (2, 1)).spread(0.1) == pytest.approx(math.sqrt(2 * 0.01 + 0.81))


def test_the_alarm_keeps_its_level_from_noisy_counts(is_quick):
    """The first threshold is judged, so the law without change is that of the fixed release."""
    bet, trials = _choose_bet(0.1, Budget(0.49, 1e-5), 500, 1), 200 if is_quick else 1_000
    rng, source = np.random.default_rng(0), IntegerSource(0)

    def alarms(rate):
        found = 0
        for _ in range(trials):
            drawn = np.array(bet.noise.sample(24 * 3, source)).reshape(24, 3) / bet.noise.scale
            misses = rng.binomial(500, rate, size=24)
            pairs = [NoisyPair(500 - m + a + b, m + c, (2, 1)) for m, (a, b, c) in zip(misses, drawn, strict=True)]
            found += max(log_evidence([bet.log_factor(pair) for pair in pairs])) >= -math.log(0.05)
        return found / trials

    assert alarms(0.1) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert alarms(0.15) > 0.95


def data(n, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, X.sum(axis=1) + (1 + shift) * 0.4 * rng.normal(size=n)


@pytest.fixture(scope="module")
def regressor():
    options = {"y_bounds": (-6, 6), "feature_bounds": (-1, 1), "n_records": 4_000, "conformity_score": "absolute"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dp.PrivateConformalRegressor(epsilon=2.0, delta=1e-6, random_state=0, **options).fit(*data(4_000))


def monitor(estimator, **options):
    return dp.CoverageMonitor(estimator, **{"epsilon": 0.5, "delta": 1e-6, "follow": 1.0, "random_state": 0} | options)


def test_a_monitor_follows_and_its_state_holds_released_numbers_only(regressor):
    X, y = data(500, 50, 1.0)
    found, before = monitor(regressor), dp.metrics.coverage(y, regressor.predict_interval(X)[1])[0]
    assert found.estimator is regressor
    for seed in range(8):
        step = found.update(*data(500, seed, 1.0))
        assert step.ledger.epsilon(1e-6) <= 0.5
        assert step.threshold == found.thresholds[-1] == found.estimator.threshold_[0]
    after = dp.metrics.coverage(y, found.estimator.predict_interval(X)[1])[0]
    assert before < 0.75 < 0.8 < after
    assert found.alarm
    assert found.estimator.certificate_.coverage == 0
    assert "follow new records" in str(found.estimator.certificate_)
    state = json.loads(found.to_json())
    assert set(state["batches"][3]) == {"name", "counts", "delay"}
    again = dp.CoverageMonitor.from_json(found.to_json(), regressor)
    assert again.to_json() == found.to_json()
    assert again.thresholds == found.thresholds
    assert again.evidence == found.evidence
    assert again.long_run() == found.long_run()
    text = str(found.long_run(beta=0.1))
    assert "For any sequence of records" in text
    assert "8 batches" in text
    for seed in range(8, 20):
        found.update(*data(500, seed, 1.0))
    declared = found.long_run(n_records=10_000, largest_batch=500)
    assert declared.rate < found.long_run().rate < 0.4


def test_a_rise_is_seen_although_the_thresholds_follow_it(regressor):
    """The alarm judges the first threshold. At the one in force the same batches would look as promised."""
    found = monitor(regressor, tolerated=0.11, epsilon=1.0)
    for seed in range(12):
        found.update(*data(500, seed, 0.08))
    assert found.alarm
    at_force = log_evidence([found._bet.log_factor(pairs[0]) for pairs in found._pairs])
    assert max(at_force) < found.alarm_limit
    assert 0.11 < found.smallest_rise < monitor(regressor, tolerated=0.11, epsilon=0.2).smallest_rise < 0.4


def test_nobody_and_late_labels_are_batches(regressor):
    found = monitor(regressor)
    X, y = data(500, 3)
    assert found.update(X[:0], y[:0]).n_batches == 1
    assert np.isfinite(found.thresholds[-1])
    found.update(X, y + 3)
    late = found.update(*data(500, 4), predicted_after=0)
    assert late.n_batches == 3
    assert json.loads(found.to_json())["batches"][2]["delay"] == 2
    # both thresholds are the first one there: a histogram of two cells
    assert [len(batch["counts"]) for batch in json.loads(found.to_json())["batches"]] == [2, 3, 2]
    wide, narrow = found.long_run().batch, (1 - ALPHA) * 500
    assert wide > 1.8 * narrow
    with pytest.raises(ValueError, match="from 0 to 3"):
        found.update(X, y, predicted_after=4)
    with pytest.raises(ValueError, match="create the monitor with follow"):
        monitor(regressor, follow=None).update(X, y, predicted_after=0)
    with pytest.raises(ValueError, match="create the monitor with follow"):
        monitor(regressor, follow=None).long_run()


def test_persons_and_a_store_pay_as_before(regressor, tmp_path):
    X, y = data(600, 5)
    found = monitor(regressor, random_state=None)
    store = dp.BudgetStore.create(tmp_path / "b", epsilon=1.0, delta=1e-5, dataset="new")
    step = found.update(X, y, np.repeat(np.arange(300), 2), budget=store)
    assert step.ledger.is_private
    assert "person" in step.ledger.neighbors
    assert 0.4 < store.spent() <= 0.56
    n_counts = sum(json.loads(found.to_json())["batches"][0]["counts"])
    assert n_counts == pytest.approx(300, abs=120)


@pytest.mark.parametrize("groups", ["label", dp.Groups(lambda rows: rows[:, 1] > 0, values=[False, True])])
def test_each_group_has_its_own_threshold_in_force(groups):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(6_000, 3))
    y = (X[:, 0] + 0.5 * rng.normal(size=6_000) > 0).astype(int)
    common = {"epsilon": 2.0, "delta": 1e-6, "classes": [0, 1], "feature_bounds": (-1, 1), "random_state": 0}
    clf = dp.PrivateConformalClassifier(**common, groups=groups, n_records=4_000).fit(X[:4_000], y[:4_000])
    found = monitor(clf, tolerated=0.2)
    member = y if isinstance(groups, str) else (X[:, 1] > 0).astype(int)
    wrong = np.where(member == 1, 1 - y, y)  # everything goes wrong in one group
    for start in (4_000, 4_500, 5_000):
        step = found.update(X[start : start + 500], wrong[start : start + 500])
    assert step.ledger.entries[0].event.count == 2
    assert step.threshold.shape == (2,)
    first = clf.threshold_[:, 0]
    if not isinstance(groups, str):  # with labels as groups, a wrong label is in the other group
        assert step.threshold[1] > first[1] + 0.05
        assert step.threshold[0] < first[0] + 0.05
    runs = found.long_run()
    assert [one.group for one in runs] == list(clf.group_values_)
    assert {one.beta for one in runs} == {0.025}
    again = dp.CoverageMonitor.from_json(found.to_json(), clf)
    assert again.to_json() == found.to_json()
    for value in (math.nan, math.inf):  # in the count of one group alone, which the evidence does not use
        state = json.loads(found.to_json())
        state.pop("checksum")
        state["batches"][-1]["counts"][-1] = value
        with pytest.raises(ValueError, match="damaged"):
            dp.CoverageMonitor.from_json(json.dumps({**state, "checksum": _checksum(state)}), clf)


@pytest.mark.parametrize("follow", [0, -1.0, math.inf, "1"])
def test_a_wrong_step_is_refused(regressor, follow):
    with pytest.raises(ValueError, match="follow must be a positive number"):
        monitor(regressor, follow=follow)


def test_several_levels_are_refused():
    X, y = data(2_000)
    options = {"y_bounds": (-6, 6), "feature_bounds": (-1, 1), "confidence_level": [0.8, 0.9], "random_state": 0}
    two = dp.PrivateConformalRegressor(epsilon=2.0, **options).fit(X, y)
    with pytest.raises(ValueError, match="a release of one level"):
        monitor(two, tolerated=0.3)
    assert dp.CoverageMonitor(two, epsilon=0.5, delta=1e-6, tolerated=0.3, random_state=0).follow is None


def test_a_changed_state_is_refused(regressor):
    found = monitor(regressor)
    found.update(*data(200, 1))
    found.update(*data(200, 2))
    state = json.loads(found.to_json())
    state.pop("checksum")
    state["batches"][1]["counts"] = state["batches"][1]["counts"][:2]
    with pytest.raises(ValueError, match="wrong number of counts"):
        dp.CoverageMonitor.from_json(json.dumps({**state, "checksum": _checksum(state)}), regressor)
