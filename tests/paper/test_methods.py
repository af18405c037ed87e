"""The methods of the paper against their definitions: closed forms against refitting, promises of the interface."""

import math

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

import dpscp
from dpscp.paper import DPSCP, CVPlus, DPSplit, FullConformal, JackknifePlus, NaiveFull, SplitConformal, system
from dpscp.paper.base import miscoverage_levels
from dpscp.privacy import Budget, Ledger, count_noise, epsilon_of
from dpscp.privacy.events import possible_histories
from dpscp.training import DPSGD, Mechanism

NON_PRIVATE = (SplitConformal, NaiveFull, JackknifePlus, CVPlus, FullConformal)
LEVELS = [0.5, 0.8, 0.93]


def regression(n=25, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) + 2.0
    return X, X @ rng.normal(size=d) + rng.normal(size=n) + 5.0


def classification(n=60, d=3, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    y[:classes] = np.arange(classes)
    return rng.normal(size=(n, d)) + y[:, None] * np.eye(classes, d)[y] * 1.5, y


def head(**options):
    return DPSGD(classes=(0, 1, 2), steps=20, learning_rate=1.0, **options)


def rank_of(level, n):
    """ceil(level (n + 1)) for levels written as decimals."""
    return math.ceil(round(level * (n + 1), 9))


# ---- definitions


def test_threshold_is_the_conformal_order_statistic_of_held_out_scores():
    X, y = regression(n=41)
    model = SplitConformal(Ridge(1.0), confidence_level=LEVELS, calibration_fraction=0.25, random_state=3).fit(X, y)
    order = np.random.RandomState(3).permutation(41)
    held_out, rest = order[:10], order[10:]
    scores = np.sort(np.abs(y[held_out] - Ridge(1.0).fit(X[rest], y[rest]).predict(X[held_out])))
    # ceil(0.93 * 11) = 11 lies beyond the ten scores
    assert_allclose(model.threshold_, [scores[5], scores[8], np.inf])
    y_hat, intervals = model.predict_interval(X[:4])
    assert_allclose(intervals[:, 1, 0] - y_hat, scores[5])
    assert np.isinf(intervals[..., 2]).all()


def test_jackknife_plus_follows_its_definition():
    X, y = regression()
    new = np.random.default_rng(1).normal(size=(6, 3))
    _, intervals = JackknifePlus(Ridge(2.0), confidence_level=LEVELS).fit(X, y).predict_interval(new)
    n = len(y)
    for j, x in enumerate(new):
        low, high = [], []
        for i in range(n):
            keep = np.arange(n) != i
            model = Ridge(2.0).fit(X[keep], y[keep])
            residual = abs(y[i] - model.predict(X[i : i + 1])[0])
            prediction = model.predict(x[None])[0]
            low.append(prediction - residual)
            high.append(prediction + residual)
        for level, interval in zip(LEVELS, intervals[j].T, strict=True):
            rank = rank_of(level, n)
            assert_allclose(interval, [np.sort(low)[n - rank], np.sort(high)[rank - 1]])


def test_cv_plus_follows_its_definition():
    X, y = regression(n=23)
    new = np.random.default_rng(1).normal(size=(5, 3))
    tree = DecisionTreeRegressor(max_depth=3, random_state=0)
    model = CVPlus(tree, confidence_level=[0.7, 0.9], n_folds=4, random_state=5).fit(X, y)
    fold = np.random.RandomState(5).permutation(np.arange(23) % 4)
    low, high = np.empty((5, 23)), np.empty((5, 23))
    for i in range(23):
        keep = fold != fold[i]
        fitted = clone(tree).fit(X[keep], y[keep])
        residual = abs(y[i] - fitted.predict(X[i : i + 1])[0])
        low[:, i], high[:, i] = fitted.predict(new) - residual, fitted.predict(new) + residual
    _, intervals = model.predict_interval(new)
    for level, ends in zip([0.7, 0.9], np.moveaxis(intervals, 2, 0), strict=True):
        rank = rank_of(level, 23)
        assert_allclose(ends[:, 0], np.sort(low, axis=1)[:, 23 - rank])
        assert_allclose(ends[:, 1], np.sort(high, axis=1)[:, rank - 1])


@pytest.mark.parametrize("folds", [5, None])
def test_cross_classification_follows_the_rank_form(folds):
    X, y = classification(n=40)
    new = classification(n=12, seed=7)[0]
    if folds is None:
        model, fold = JackknifePlus(GaussianNB(), confidence_level=[0.7, 0.9]), np.arange(40)
    else:
        model = CVPlus(GaussianNB(), confidence_level=[0.7, 0.9], n_folds=folds, random_state=2)
        fold = np.random.RandomState(2).permutation(np.arange(40) % folds)
    _, sets = model.fit(X, y).predict_set(new)
    below = np.zeros((12, 3), dtype=int)
    for i in range(40):
        fitted = GaussianNB().fit(X[fold != fold[i]], y[fold != fold[i]])
        own = 1 - fitted.predict_proba(X[i : i + 1])[0, y[i]]
        below += own < 1 - fitted.predict_proba(new)
    for k, level in enumerate([0.7, 0.9]):
        assert_array_equal(sets[..., k], below < level * 41)
    assert sets.any()
    assert not sets.all()


# ---- closed forms


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize(("n", "d", "ridge"), [(12, 3, 0.0), (15, 2, 1.3), (8, 12, 0.7)])
@pytest.mark.covering
def test_full_regression_equals_refitting_with_each_candidate(n, d, ridge, intercept):
    X, y = regression(n, d)
    rng = np.random.default_rng(5)
    new = np.vstack([X[:2], rng.normal(size=(3, d)), 40 * rng.normal(size=(4, d))])  # the last ones extrapolate far
    estimator = Ridge(ridge, fit_intercept=intercept) if ridge else LinearRegression(fit_intercept=intercept)
    y_hat, intervals = FullConformal(estimator, confidence_level=[0.6, 0.8]).fit(X, y).predict_interval(new)

    def below(x, candidate):
        grown, target = np.vstack([X, x]), np.append(y, candidate)
        residuals = np.abs(target - clone(estimator).fit(grown, target).predict(grown))
        return np.count_nonzero(residuals[:-1] < residuals[-1])

    for j, x in enumerate(new):
        for k, level in enumerate([0.6, 0.8]):
            low, high = intervals[j, :, k]
            width, rank = high - low, rank_of(level, n)
            assert low <= y_hat[j] <= high
            if np.isfinite(width):
                hair = 1e-6 * width
                assert below(x, low + hair) < rank <= below(x, low - hair)
                assert below(x, high - hair) < rank <= below(x, high + hair)
                outside = np.concatenate([low - width * np.array([0.1, 1, 10]), high + width * np.array([0.1, 1, 10])])
                assert all(below(x, candidate) >= rank for candidate in outside)
            else:
                far = 1e9 if np.isinf(high) else -1e9
                assert below(x, far) < rank


def test_full_classification_equals_refitting_with_each_label():
    X, y = classification(n=24)
    new = classification(n=6, seed=9)[0]
    _, sets = FullConformal(GaussianNB(), confidence_level=[0.6, 0.85]).fit(X, y).predict_set(new)
    for j, x in enumerate(new):
        for label in range(3):
            grown, target = np.vstack([X, x]), np.append(y, label)
            p = GaussianNB().fit(grown, target).predict_proba(grown)
            scores = 1 - p[np.arange(25), target]
            for k, level in enumerate([0.6, 0.85]):
                assert sets[j, label, k] == (scores[-1] <= np.sort(scores)[rank_of(level, 24) - 1])
    assert sets.any()
    assert not sets.all()


# ---- one interface


@pytest.mark.parametrize("method", NON_PRIVATE)
def test_shapes_names_and_ledger_of_the_non_private_baselines(method):
    X, y = classification(n=40)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    names = np.array(["low", "mid", "high"])
    model = method(GaussianNB(), confidence_level=[0.7, 0.9]).fit(frame, pd.Series(names[y]))
    labels, sets = model.predict_set(frame[:5])
    assert sets.shape == (5, 3, 2)
    assert sets.dtype == bool
    assert set(labels) <= set(names)
    assert model.classes_.tolist() == sorted(names)
    assert_array_equal(labels, model.predict(frame[:5]))
    assert not model.ledger_.is_private
    assert model.ledger_.non_private_stages == ("training", "calibration")
    assert all(method.__name__ in entry.note for entry in model.ledger_.entries)
    assert math.isinf(model.ledger_.epsilon(1e-5))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    with pytest.raises(TypeError, match="use predict_set"):
        model.predict_interval(frame)

    X, y = regression(40)
    model = method(LinearRegression(), confidence_level=[0.7, 0.9]).fit(X, y)
    y_hat, intervals = model.predict_interval(X)
    assert y_hat.shape == (40,)
    assert intervals.shape == (40, 2, 2)
    assert (intervals[:, 0] <= intervals[:, 1]).all()
    assert (intervals[:, 0, 1] <= intervals[:, 0, 0]).all()
    assert (intervals[:, 1, 0] <= intervals[:, 1, 1]).all()
    with pytest.raises(TypeError, match="use predict_interval"):
        model.predict_set(X)


# ---- the private one


@pytest.mark.parametrize("split", ["independent", "exact"])
@pytest.mark.parametrize(("epsilon", "levels", "accountant"), [(0.5, 0.9, "pld"), (2.0, [0.8, 0.9, 0.95], "rdp")])
@pytest.mark.covering
def test_dp_split_spends_the_budget_once_for_each_half(split, epsilon, levels, accountant):
    X, y = classification(n=1000)
    model = DPSplit(head(), epsilon=epsilon, delta=1e-6, confidence_level=levels, split=split, accountant=accountant)
    ledger = model.fit(X, y).ledger_
    assert ledger.is_private
    assert 0.95 * epsilon < ledger.epsilon(1e-6, accountant) <= epsilon
    mixed = split == "independent" and accountant == "pld"
    for _, part in ledger.entries[0].stages:
        assert 0.95 * epsilon < epsilon_of(part, 1e-6, accountant) <= (2 * epsilon if mixed else epsilon)
    (_, training), _ = ledger.entries[0].stages
    # a secret half may spend more than a record known to lie in it would be promised
    assert (epsilon_of(training, 1e-6, accountant) > 1.1 * epsilon) == mixed
    assert ledger.public_facts["n_records"] == 1000
    assert ledger.public_facts["n_records_training"] == 500
    assert ("blank" in ledger.entries[0].note) == (split == "exact")
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_dp_split_ledger_holds_every_level():
    X, y = classification(n=300)
    model = DPSplit(head(), epsilon=2.0, confidence_level=[0.6, 0.7, 0.8], steps=9, accountant="rdp").fit(X, y)
    _, (_, calibration) = model.ledger_.entries[0].stages
    (history,) = possible_histories(calibration)
    assert list(history.values()) == [3 * 9]
    one = count_noise(2.0, 1e-5, 9, accountant="rdp")
    ((event, _),) = history.items()
    assert event.sigma / event.sensitivity == pytest.approx(math.sqrt(3) * one, rel=0.02)


def test_dp_split_trains_and_calibrates_on_disjoint_halves():
    seen = []

    class Spy(DPSGD):
        def train_on(self, run):
            seen.append((np.array(run.rows), run.n_records))
            return super().train_on(run)

    X, y = classification(n=501)
    DPSplit(Spy(classes=(0, 1, 2), steps=5), split="exact").fit(X, y)
    rows, nominal = seen.pop()
    assert len(rows) == nominal == 250
    sizes = []
    for _ in range(6):
        DPSplit(Spy(classes=(0, 1, 2), steps=5), split="independent").fit(X, y)
        rows, nominal = seen.pop()
        assert nominal == 250
        sizes.append(len(rows))
        assert len(np.unique(np.vstack([rows, X]), axis=0)) == 501  # each row comes from the pool
    # 501 fair coins each: within five standard deviations of half, and not all the same (chance below 1e-6)
    assert all(abs(size - 250.5) < 5 * math.sqrt(501) / 2 for size in sizes)
    assert len(set(sizes)) > 1


def test_dp_split_scores_only_the_half_that_training_did_not_see(monkeypatch):
    X, y = classification(n=300)
    seen = {}
    original = dpscp.paper.system.noisy_midpoint_quantile
    monkeypatch.setattr(
        dpscp.paper.system,
        "noisy_midpoint_quantile",
        lambda scores, **options: seen.setdefault("scores", scores) is None or original(scores, **options),
    )
    model = DPSplit(head(), split="exact", random_state=0).fit(X, y)
    p = model._predictor.model.predict_proba(X)
    everyone = 1 - p[np.arange(300), y]
    generator = np.random.Generator(np.random.PCG64(int(np.random.SeedSequence(0).generate_state(3)[0])))
    _, calibrates = model._draw_parts(300, generator)
    assert_array_equal(np.sort(seen["scores"]), np.sort(everyone[calibrates]))


@pytest.mark.parametrize("split", ["exact", "independent"])
def test_dp_split_knows_the_nominal_size_of_its_calibration_half_only(monkeypatch, split):
    X, y = classification(n=301)
    found = []
    original = dpscp.paper.system.noisy_midpoint_quantile

    def search(scores, **options):
        found.append(original(scores, **options))
        return found[-1]

    monkeypatch.setattr(dpscp.paper.system, "noisy_midpoint_quantile", search)
    DPSplit(head(), split=split, n_records=300, random_state=0).fit(X, y)
    assert [q.n_records for q in found] == [150]


@pytest.mark.parametrize(("epsilon", "noise"), [(0.5, 39.98), (1.0, 21.08), (2.0, 10.92)])
def test_dp_scp_noise_is_the_papers(epsilon, noise):
    """Supplement S6: what p = 1/2 leaves for 20 counts after the training of BloodMNIST."""
    training = DPSGD(classes=tuple(range(8)), sampling_rate=1 / 428, steps=6420, clip_norm=1.0)
    model = DPSCP(training, epsilon=epsilon, accountant="rdp")
    model._alphas = miscoverage_levels(0.9)
    planned = model._plan_noise(Budget(epsilon, 1e-5), model._calibrate_training(Budget(epsilon, 1e-5), 13_671)[0])
    assert planned.count_noise == pytest.approx(noise, rel=0.01)


def test_dp_scp_trains_and_calibrates_on_all_records_within_one_budget(monkeypatch):
    X, y = classification(n=2000)
    seen, original = [], system.buffered_quantile
    monkeypatch.setattr(system, "buffered_quantile", lambda s, **given: seen.append((s, given)) or original(s, **given))
    model = DPSCP(head(), epsilon=2.0, delta=1e-6, confidence_level=[0.8, 0.9], random_state=0).fit(X, y)
    training, calibration = (entry.event for entry in model.ledger_.entries)
    assert epsilon_of(training, 1e-6) == pytest.approx(1.0, rel=0.01)
    assert 1.9 < model.ledger_.epsilon(1e-6) <= 2.0
    assert sum(possible_histories(calibration)[0].values()) == 2 * 20
    assert model.ledger_.public_facts["n_records_training"] == 2000
    assert model.ledger_.seeded
    assert Ledger.from_json(model.ledger_.to_json()) == model.ledger_
    for (scores, constants), alpha in zip(seen, (0.2, 0.1), strict=True):
        assert len(scores) == 2000
        assert constants["alpha"] == pytest.approx(alpha)
        assert (constants["rank_buffer"], constants["failure_probability"], constants["n_records"]) == (
            10,
            1 / 2000,
            2000,
        )
    plain = DPSCP(head(), epsilon=2.0, delta=1e-6, confidence_level=[0.8, 0.9], variant="A", random_state=0).fit(X, y)
    assert not {"rank_buffer", "failure_probability"} & set(seen[-1][1])
    assert (model.threshold_ > plain.threshold_).all()  # the same noise, and a rank that is higher by m_n + tau
    assert model.ledger_.entries[1].note.endswith("DP-SCP-F")


def test_a_label_outside_the_declared_classes_fits_as_badly_as_can_be():
    X, y = classification(n=400)
    mechanism = DPSGD(classes=("a", "b", "c"), steps=20, learning_rate=1.0, noise_multiplier=1.0)
    names = np.array(["a", "b", "c", "rare"])
    model = DPSplit(mechanism, random_state=0).fit(X, names[y])
    y[0] = 3
    assert model._scores(model._predictor, X[:2], names[y[:2]])[0] == 1.0
    assert model.predict_set(X)[1].shape == (400, 3, 1)
    assert set(model.predict(X)) <= {"a", "b", "c"}


# ---- bad input: what is wrong, and nothing from the data


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SplitConformal(Ridge(), calibration_fraction=1.0), "calibration_fraction"),
        (CVPlus(Ridge(), n_folds=1), "n_folds must be at least 2"),
        (CVPlus(Ridge(), n_folds=1000), "n_folds must not exceed"),
        (FullConformal(DecisionTreeRegressor()), "JackknifePlus and CVPlus take any"),
        (SplitConformal(LinearSVC()), "predict_proba"),
        (NaiveFull(DPSGD(loss="pinball", steps=3, noise_multiplier=0.0)), "one output"),
        (DPSplit(Ridge()), "use SplitConformal"),
        (DPSplit(head(), split="odd"), "split must be one of"),
        (DPSplit(head(), accountant="gdp"), "accountant must be one of"),
        (DPSplit(head(), steps=0), "steps must be at least 1"),
        (DPSplit(head(), n_records=1), "n_records must be at least 2"),
        (DPSplit(head(), epsilon=0.0), "epsilon must be greater than 0"),
        (DPSplit(head(), delta=1.0), "delta"),
        (DPSplit(head(), score_range=(1, 0)), "score_range"),
        (DPSCP(Ridge()), "use SplitConformal"),
        (DPSCP(head(), train_share=1.0), "train_share"),
        (DPSCP(head(), variant="B"), "variant must be one of"),
        (DPSCP(head(), rank_buffer=-1), "rank_buffer"),
        (DPSCP(head(), failure_probability=2.0), "failure_probability"),
    ],
)
def test_bad_parameters(model, message):
    X, y = classification()
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(X, y)


# ---- what the coins of a split must not tell


class NoTask(Mechanism):
    """A mechanism of one's own that finds labels in what it is trained on."""

    def __init__(self, inner):
        self._inner = inner

    event = property(lambda self: self._inner.event)

    def calibrated(self, epsilon, delta, *, accountant="pld"):
        return NoTask(self._inner.calibrated(epsilon, delta, accountant=accountant))

    def train_on(self, run):
        return run.train_inner(self._inner, run.source)


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning", "ignore::dpscp.SeededWarning")
@pytest.mark.parametrize("kind", [DPSplit, DPSCP])
def test_labels_are_found_in_all_records_and_declared_found(kind):
    """A label of one record alone was listed only where its coin fell on training: ln 2 of epsilon."""
    X, y = classification(n=12)
    y[1:] = np.minimum(y[1:], 1)
    y[0] = 2
    for seed in range(6):
        options = {"epsilon": 0.5, "accountant": "rdp", "random_state": seed}
        model = kind(DPSGD(steps=2), **options).fit(X, y)
        assert_array_equal(model.classes_, [0, 1, 2])
        assert "classes" in model.ledger_.taken_from_data
        declared = kind(DPSGD(steps=2, classes=(0, 1, 2)), **options).fit(X, y)
        assert "classes" not in declared.ledger_.taken_from_data
        # an unknown label is refused whichever half it falls in
        with pytest.raises(ValueError, match="label"):
            kind(DPSGD(steps=2, classes=(0, 1)), **options).fit(X, y)
        with pytest.raises(ValueError, match="NoTask has no attribute classes"):
            kind(NoTask(DPSGD(steps=2)), **options).fit(X, y)


@pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning", "ignore::dpscp.SeededWarning")
def test_an_empty_half_is_no_error():
    for seed in range(10):
        model = DPSplit(DPSGD(steps=2), epsilon=0.5, accountant="rdp", random_state=seed).fit([[0.0], [1.0]], [0, 1])
        assert model.predict_set([[0.5]])[1].shape == (1, 2, 1)


SECRET = 8765.4321


@pytest.mark.parametrize("method", [*NON_PRIVATE, DPSplit])
def test_messages_about_records_carry_nothing_from_them(method):
    X, y = classification()
    estimator = head() if method is DPSplit else LogisticRegression()
    number = DPSGD(loss="squared", steps=3) if method is DPSplit else Ridge()
    extra = {"score_range": (0, 1)} if method is DPSplit else {}
    bad_rows, bad_text = X.copy(), X.astype(object)
    bad_rows[3, 1], bad_text[3, 1] = np.nan, f"secret {SECRET}"
    infinite, text = X[:, 0].copy(), X[:, 0].astype(object)
    infinite[2], text[2] = np.inf, f"secret {SECRET}"
    cases = [
        (estimator, bad_rows, y),
        (estimator, bad_text, y),
        (estimator, X[:, 0], y),
        (estimator, X, y[:-1]),
        (estimator, X, np.column_stack([y, y])),
        (estimator, X, [[0, 1], [SECRET]] * 30),
        (number, X, infinite),
        (number, X, text),
    ]
    if method is not DPSplit:
        cases.append((estimator, X, np.full(len(y), SECRET)))  # a single class
    for model, rows, target in cases:
        with pytest.raises((ValueError, TypeError)) as caught:
            method(model, **extra).fit(rows, target)
        assert str(SECRET) not in str(caught.value)
        assert "60" not in str(caught.value)
        assert "59" not in str(caught.value)
    fitted = method(estimator).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :2])
