"""The wires of a fit: which records go where, which noise is drawn, and what of it the ledger holds.

The formulas have tests of their own. Here no formula is tested: spies look at what reaches a mechanism, a
score and the sampler, and at what an event *contains*. A total within the budget says little: a release that is missing
from the ledger makes it smaller.
"""

import math
import warnings
from collections import Counter

import numpy as np
import pytest

from dpscp import (
    BudgetStore,
    GuaranteeWarning,
    PrivateConformalClassifier,
    PrivateConformalRegressor,
    PrivateModel,
    RowNorm,
    calibrate,
)
from dpscp.guarantees import universal_alpha
from dpscp.paper import noisy_midpoint_quantile
from dpscp.privacy import (
    IntegerSource,
    Ledger,
    SecretSplitDpEvent,
    compose,
    dpsgd_event,
    epsilon_of,
    gaussian_event,
    random_streams,
)
from dpscp.privacy.accounting import tradeoff_of
from dpscp.privacy.events import DiscreteGaussianDpEvent, ParallelDpEvent, possible_histories
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.threshold import private_quantile, rank_sensitivity
from dpscp.threshold.search import SharedCounts
from dpscp.training import DPSGD, FunctionModel, Mechanism

DELTA = 1e-5
QUICK = DPSGD(steps=10, learning_rate=1.0)
FULL_DATA = ("universal", "corrected", "finite", "asymptotic")


def labeled(n=600, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 4))
    X[:, 0] += 3 * (y - 1)
    return X, y


def classifier(estimator=QUICK, **changes):
    options = {"epsilon": 4.0, "delta": DELTA, "classes": [0, 1, 2], "accountant": "rdp", "random_state": 0}
    return PrivateConformalClassifier(estimator, **options | changes)


def regressor(estimator, **changes):
    options = {"epsilon": 4.0, "delta": DELTA, "y_bounds": (-1, 1), "accountant": "rdp", "random_state": 0}
    return PrivateConformalRegressor(estimator, **options | changes)


@pytest.fixture
def drawn(everywhere):
    """Every use of the integer sampler: its scale and the values it gave."""
    honest, seen = random_streams.sample_discrete_gaussian, []

    def listening(sigma, size, source):
        values = honest(sigma, size, source)
        seen.append((sigma, tuple(int(value) for value in values)))
        return values

    everywhere("sample_discrete_gaussian", listening)
    return seen


class Spy(Mechanism):
    """A mechanism that keeps what it gets and whose model keeps the rows that it scores."""

    task = None

    def __init__(self, task="classification"):
        self.task = task
        self.rows = self.targets = self.n_records = self.seed = None
        self.scored_rows = []

    @property
    def event(self):
        return gaussian_event(5.0)

    def calibrated(self, epsilon, delta, *, accountant="pld"):  # noqa: ARG002
        return self

    def train_on(self, run):
        self.rows, self.targets = np.array(run.rows), np.array(run.targets)
        self.n_records, self.seed = run.n_records, run.random_state
        classes = (0, 1, 2) if self.task == "classification" else None

        def outputs(rows):
            self.scored_rows.append(np.array(rows))
            return np.tile(rows[:, :1] / 100, (1, 3)) * [1, 2, 3] if classes else rows[:, 0] / 100

        return run.result(FunctionModel(outputs, self.task, run.source.width, classes))


def ids(rows):
    return Counter(np.asarray(rows)[:, 0].tolist())


# ---- which records go where


@pytest.mark.parametrize("fraction", [0.3, 0.5])
def test_the_two_parts_share_no_record(fraction):
    X, y = labeled()
    spy = Spy()
    classifier(spy, guarantee="split", calibration_fraction=fraction).fit(X, y)
    trained, scored = ids(spy.rows), ids(np.concatenate(spy.scored_rows))
    assert not trained.keys() & scored.keys()
    assert trained + Counter(scored.keys()) == ids(X)  # each record in one of them
    assert set(scored.values()) <= {2}  # a model of the caller computes each row in two blockings
    # a record is held out with this probability; six standard deviations
    assert abs(len(scored) - fraction * len(X)) <= 6 * math.sqrt(fraction * (1 - fraction) * len(X))


@pytest.mark.parametrize("guarantee", FULL_DATA)
def test_without_a_held_out_part_every_record_trains_and_is_scored(guarantee):
    X, y = labeled()
    spy = Spy()
    classifier(spy, guarantee=guarantee).fit(X, y)
    assert ids(spy.rows) == ids(X)
    assert set(ids(np.concatenate(spy.scored_rows))) == set(ids(X))


def test_each_group_counts_its_own_records_only():
    """Two groups whose scores are all .1 and all .9: a threshold that saw the others would lie between."""
    X = np.repeat([[0.1, 0.0], [0.9, 0.0]], 1500, axis=0)
    model = PrivateModel.from_outputs(
        lambda rows: rows[:, 0], spent=gaussian_event(50.0), task="regression", n_features=2
    )
    fitted = regressor(model, guarantee="universal", groups=lambda X: np.asarray(X)[:, 0] > 0.5).fit(
        X, np.zeros(len(X))
    )
    assert fitted.threshold_[0, 0] < 0.2
    assert fitted.threshold_[1, 0] > 0.85


def test_a_mechanism_sees_clipped_targets_and_the_public_number_of_records():
    X = labeled(200)[0]
    y = np.zeros(200)
    y[:6] = [-5, -1.5, -1, 1, 1.5, 5]
    spy = Spy("regression")
    regressor(spy, guarantee="asymptotic", n_records=777).fit(X, y)
    np.testing.assert_array_equal(spy.targets, np.clip(y, -1, 1))
    assert spy.n_records == 777
    regressor(spy, guarantee="split", n_records=777, calibration_fraction=0.4).fit(X, y)
    assert spy.n_records == round(0.6 * 777)


def test_declared_bounds_reach_an_own_mechanism():
    X, y = labeled()
    spy = Spy()
    classifier(spy, guarantee="asymptotic", feature_bounds=(-2, 2)).fit(X, y)
    np.testing.assert_allclose(spy.rows, np.clip(X, -2, 2) / 2)
    classifier(spy, guarantee="asymptotic", feature_bounds=RowNorm(1.5)).fit(X, y)
    lengths = np.linalg.norm(X, axis=1)
    np.testing.assert_allclose(np.linalg.norm(spy.rows, axis=1), np.minimum(lengths, 1.5))


def test_predictions_stay_in_the_declared_range_and_thresholds_are_fine_where_scores_crowd():
    X, y = labeled()
    model = PrivateModel.from_outputs(
        lambda rows: 100 * rows[:, 0], spent=gaussian_event(50.0), task="regression", n_features=4
    )
    fitted = regressor(model, guarantee="universal").fit(X, y - 1.0)
    assert np.abs(fitted.predict(X)).max() == 1
    # residuals of a good model are small, its probabilities near 0 and 1: there the grid is finest
    assert fitted.ledger_.public_facts["fine_near"] == 0
    assert classifier(Spy(), guarantee="asymptotic").fit(X, y).ledger_.public_facts["fine_near"] == (0, 1)


# ---- which noise is drawn


@pytest.mark.parametrize("rank", ["centered", "linear", "ceil", "midpoint"])
def test_the_noise_that_is_drawn_is_the_noise_of_the_event(drawn, rank):
    """A scale two percent too small is out of a fast statistical test's sight, and not out of a spy's."""
    scores, common = np.linspace(0, 1, 500), {"alpha": 0.1, "score_range": (0, 1), "count_noise": 17.3, "steps": 9}
    if rank == "midpoint":
        found, sensitivity = noisy_midpoint_quantile(scores, **common), 1.0
    else:
        found, sensitivity = private_quantile(scores, rank=rank, **common), float(rank_sensitivity(rank, 0.1))
    ((event, count),) = possible_histories(found.event)[0].items()
    assert [(sigma, len(values)) for sigma, values in drawn] == [(event.sigma, 9)]
    assert count == 9
    assert found.count_noise >= 17.3
    assert event.sigma / event.sensitivity == pytest.approx(found.count_noise / sensitivity, rel=1e-12)


@pytest.mark.parametrize("seed", [None, 0])
def test_each_search_draws_its_own_noise(drawn, seed):
    """Groups cost the worst of them and not the sum because their noises are independent."""
    classifier(guarantee="universal", groups="label", confidence_level=[0.7, 0.8], random_state=seed).fit(*labeled())
    values = [v for _, v in drawn]
    assert len(values) >= 3 * 2
    assert len(set(values)) == len(values)


def test_training_assignment_and_search_are_seeded_apart(everywhere, monkeypatch):
    """One seed for two of them would make a record's part, or the search's noise, follow the noise of training."""
    used = {"split": [], "search": []}

    coins = PlacedDraws.of

    def drawn(random_state):
        used["split"].append(random_state)
        return coins(random_state)

    class Source(IntegerSource):
        def __init__(self, random_state=None):
            used["search"].append(random_state)
            super().__init__(random_state)

    monkeypatch.setattr(PlacedDraws, "of", drawn)
    everywhere("IntegerSource", Source)
    spy = Spy()
    classifier(spy, guarantee="split", confidence_level=[0.6, 0.7], random_state=5).fit(*labeled())
    seeds = [spy.seed, *used["split"], *used["search"]]
    assert len(seeds) >= 4
    assert None not in seeds
    assert len(set(seeds)) == len(seeds)
    assert spy.seed != 5


def test_each_level_has_the_noise_of_its_own_sensitivity():
    """Levels share the budget equally: the same ratio of noise to sensitivity, whatever the level."""
    model = classifier(guarantee="asymptotic", groups="label", confidence_level=[0.6, 0.7, 0.9])
    # the paper's variants search groups by the linear statistic, whose sensitivity is the level
    with pytest.warns(GuaranteeWarning, match="is not proven for finite samples"):
        model.fit(*labeled())
    events = [e for h in possible_histories(model.ledger_.event) for e in h if isinstance(e, DiscreteGaussianDpEvent)]
    assert len(events) >= 2  # two levels may come to the same lattice
    ratios = [e.sigma / e.sensitivity for e in events]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)


# ---- what the ledger holds


@pytest.fixture
def count_searched(monkeypatch):
    """How many counts the searches of a fit released; one that served several levels counts once."""
    made = []

    class Spied(SharedCounts):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr("dpscp.core.release.SharedCounts", Spied)
    return lambda: sum(len(one.noise) for one in made)


def test_a_split_ledger_holds_every_level(drawn, count_searched):
    model = classifier(guarantee="split", confidence_level=[0.6, 0.7, 0.9]).fit(*labeled())
    (entry,) = model.ledger_.entries
    assert isinstance(entry.event, ParallelDpEvent)  # this accountant cannot mix
    (_, training), (_, calibration) = entry.stages
    assert training == QUICK.calibrated(4.0, DELTA, accountant="rdp").event
    (history,) = possible_histories(calibration)
    held = Counter()
    for event, count in history.items():
        held[event.sigma] += count
    steps = model.ledger_.public_facts["search_steps"]
    assert sorted(held.values()) == [1, 3 * steps - 3]  # the size; a count is paid for once, whichever levels it serves
    assert {sigma for sigma, _ in drawn} == set(held)
    assert steps < count_searched() <= 3 * steps - 3
    for part in (training, calibration):  # each may spend the whole budget, and does
        assert 0.99 * 4.0 <= epsilon_of(part, DELTA, "rdp") <= 4.0


@pytest.mark.parametrize("guarantee", FULL_DATA)
def test_records_used_twice_count_twice(drawn, count_searched, guarantee):
    model = classifier(guarantee=guarantee, confidence_level=[0.7, 0.8]).fit(*labeled())
    (history,) = possible_histories(model.ledger_.event)  # no disjoint parts: nothing was held out
    (steps,) = (count for event, count in history.items() if not isinstance(event, DiscreteGaussianDpEvent))
    assert steps == QUICK.steps
    searched = sum(count for event, count in history.items() if isinstance(event, DiscreteGaussianDpEvent))
    if count_searched():
        assert count_searched() <= searched == 2 * model.ledger_.public_facts["search_steps"] - 1
    else:  # a statistic that differs from level to level
        assert searched == sum(len(values) for _, values in drawn)
    assert 0.99 * 4.0 <= model.ledger_.epsilon(DELTA, "rdp") <= 4.0


def test_the_ledger_of_a_recipe_holds_all_its_releases():
    """The target's scale, counts of three columns at three levels, every step: each release has its entry."""
    X = np.random.default_rng(0).uniform(-1, 1, size=(800, 3))
    model = regressor(None, guarantee="universal", feature_bounds=(-1, 1)).fit(X, X[:, 0])
    found = {entry.stage: possible_histories(entry.event) for entry in model.ledger_.entries[:-1]}
    assert list(found) == ["scale of the target", "quantiles of the features", "training"]
    counts = [sum(history.values()) for (history,) in found.values()]
    assert counts == [1, 9, model.ledger_.public_facts["training_steps"]]


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_every_public_choice_reaches_the_ledger(accountant):
    X, y = labeled()
    choices = {"accountant": accountant, "delta": 1e-7, "train_share": 0.3, "feature_bounds": (-5.0, 6.5)}
    model = classifier(guarantee="universal", **choices).fit(X, y)
    assert 0.99 * 4.0 <= model.ledger_.epsilon(1e-7, accountant) <= 4.0
    assert 0.97 * 1.2 <= Ledger(model.ledger_.entries[:-1]).epsilon(1e-7, accountant) <= 1.2
    assert model.ledger_.public_facts["feature_bounds"] == (-5.0, 6.5)
    held_out = classifier(guarantee="split", calibration_fraction=0.35, accountant=accountant).fit(X, y)
    assert held_out.ledger_.public_facts["calibration_fraction"] == 0.35
    if accountant == "pld":
        assert held_out.ledger_.event.fraction == 0.35
    assert 0.99 * 4.0 <= held_out.ledger_.epsilon(DELTA, accountant) <= 4.0
    for _, part in held_out.ledger_.entries[0].stages:
        assert (epsilon_of(part, DELTA, accountant) > 4.0) == (accountant == "pld")


def test_the_score_range_is_public():
    X, y = labeled()
    assert classifier(guarantee="universal").fit(X, y).ledger_.public_facts["score_range"] == (0.0, 1.0)
    reg = regressor(Spy("regression"), guarantee="asymptotic", y_bounds=(-3, 5)).fit(X, y)
    assert reg.ledger_.public_facts["score_range"] == (0.0, 8.0)


def test_a_seeded_fit_that_never_searches_is_still_marked():
    with pytest.warns(GuaranteeWarning, match="VACUOUS"):
        model = classifier(guarantee="universal", confidence_level=1 - 1e-7).fit(*labeled())
    assert len(model.ledger_.entries) == 1  # no score was counted
    assert model.ledger_.seeded


def test_a_split_that_never_searches_spends_within_the_budget():
    with pytest.warns(GuaranteeWarning, match="VACUOUS"):
        model = classifier(guarantee="split", confidence_level=1 - 1e-7, accountant="pld").fit(*labeled())
    (entry,) = model.ledger_.entries
    assert isinstance(entry.event, SecretSplitDpEvent)
    assert entry.event.held_out == compose()  # no score was counted
    assert epsilon_of(entry.event.training, DELTA) > 4.0 >= model.ledger_.epsilon(DELTA)


# ---- what the certificate holds


def test_each_certificate_holds_its_own_numbers():
    model = classifier(guarantee="split", confidence_level=[0.6, 0.9]).fit(*labeled())
    low, high = (c.terms for c in model.certificates_)
    assert low["inner_level"] == pytest.approx(0.6, abs=2e-4)
    assert high["inner_level"] == pytest.approx(0.9, abs=2e-4)
    assert high["rank_target"] > low["rank_target"]
    assert high["released_size"] == low["released_size"]  # one release for all levels


def test_groups_are_corrected_for_any_size():
    """A group may hold any number of records, none included: each releases its size, whatever is known of the whole."""
    model = classifier(guarantee="universal", groups="label", n_records=None).fit(*labeled(3000))
    assert model.certificate_.terms["size_noise"] > 0
    assert len(model.ledger_.public_facts["released_sizes"]) == len(model.group_values_)


def test_the_inner_level_uses_the_direction_of_result_b():
    sampled = dpsgd_event(0.8, 0.05, 40)
    scores = np.random.default_rng(0).uniform(size=4000)
    found = calibrate(scores, training=sampled, epsilon=8.0, delta=DELTA, score_range=(0, 1), accountant="rdp")
    levels = {d: universal_alpha(0.1, tradeoff_of(sampled, direction=d)) for d in ("add", "remove")}
    assert abs(levels["add"] - levels["remove"]) > 1e-4  # the two differ here
    assert found.quantile.alpha == pytest.approx(levels["add"], abs=2e-6)


# ---- what the correction changes


def test_corrected_scores_are_the_ones_that_count(everywhere):
    """Corrected outputs that give every record's own label a fifth: no score may count as less than .8."""
    X, y = labeled()
    sharp = DPSGD(steps=20, learning_rate=5.0)
    options = {"guarantee": "corrected", "epsilon": 20.0, "confidence_level": 0.7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)  # nothing is proven at such an epsilon
        plain = classifier(sharp, **options).fit(X, y).threshold_[0]

        def pulled_down(model, trajectory, rows, labels, **_):
            logits = np.full((len(rows), 3), math.log(0.4))
            logits[np.arange(len(rows)), np.asarray(labels)] = math.log(0.2)
            return logits

        everywhere("corrected_outputs", pulled_down)
        corrected = classifier(sharp, **options).fit(X, y).threshold_[0]
    assert plain < 0.7
    assert corrected >= 0.8


def test_corrected_residuals_are_the_ones_that_count(everywhere):
    X = np.random.default_rng(0).uniform(-1, 1, size=(600, 2))
    y = X[:, 0] / 2
    mechanism = DPSGD(loss="huber", steps=30, learning_rate=1.0)
    options = {"guarantee": "corrected", "epsilon": 20.0, "confidence_level": 0.7, "feature_bounds": RowNorm(2.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        plain = regressor(mechanism, **options).fit(X, y).threshold_[0]
        everywhere("corrected_outputs", lambda *given, **_: np.asarray(given[3])[:, None] + 0.6)
        corrected = regressor(mechanism, **options).fit(X, y).threshold_[0]
    assert plain < 0.5
    assert corrected >= 0.6


STABLE = DPSGD(steps=10, learning_rate=0.1, clip_norm=2.0, feature_bound=1.0)


@pytest.mark.parametrize("groups", [None, "label"])
@pytest.mark.parametrize("levels", [0.8, [0.7, 0.9]], ids=["one level", "two levels"])
@pytest.mark.parametrize("guarantee", ["universal", "stability", "split", "corrected", "finite", "asymptotic"])
@pytest.mark.covering
def test_what_is_reserved_is_what_is_spent(guarantee, levels, groups, tmp_path):
    X, y = labeled()
    store = BudgetStore.create(tmp_path / "study", 5.0, DELTA, dataset="made up")
    model = classifier(STABLE, guarantee=guarantee, confidence_level=levels, groups=groups, random_state=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        planned = []
        reserve = store.reserve
        store.reserve = lambda ledger, note: planned.append(ledger) or reserve(ledger, note=note)
        model.fit(X, y, budget=store)
    assert planned[0].event == model.ledger_.event
