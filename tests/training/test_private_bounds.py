"""Bounds found privately: an exact grid, noise that is accounted for, sets that are valid outside of the bounds."""

import warnings

import numpy as np
import pytest

import dpscp as dp
from dpscp.audit.model_game import ModelGame
from dpscp.data.feature_bounds import stated_bounds
from dpscp.data.persons import Persons
from dpscp.data.sources import Block
from dpscp.exceptions import HintWarning
from dpscp.privacy import IntegerSource, epsilon_of, gdp_mu, lattice_noise
from dpscp.training import DPSGD, PrivateBounds
from dpscp.training.preprocessing.private_bounds import _CELLS, _edges, grid_cells

TRAINING_FREE = DPSGD(steps=5, loss="squared")
TRAINING = TRAINING_FREE.with_noise(3.0)


def records(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 100, n), rng.normal(-3000, 100, n), np.zeros(n)])
    return X, X[:, 0] + rng.normal(size=n)


def test_every_float_lies_in_its_cell():
    rng = np.random.default_rng(0)
    sizes = np.concatenate([2.0 ** np.arange(-32, 64), 2.0 ** rng.uniform(-32, 63.9, 2000)])
    values = np.concatenate([sizes, -sizes, np.nextafter(sizes, 0)[1:96], [0.0, -0.0, 1e-12, -1e-12, 5e-324]])
    low, high = _edges(grid_cells(values))
    assert (low <= values).all()
    assert (values <= high).all()
    assert np.all((np.abs(values) < 2.0**-32) == ((low < 0) & (high > 0)))
    np.testing.assert_array_equal(grid_cells([1e300, -1e300]), [_CELLS - 1, 0])
    # a power of two begins its cell: no two cells share a number
    assert grid_cells(4.0) == grid_cells(np.nextafter(8.0, 0)) == grid_cells(8.0) - 1


def test_one_record_changes_one_count_of_each_column_by_one():
    X, y = records(50)
    bounds = PrivateBounds(TRAINING, 3, target=True)
    change = bounds.counts(Block(0, X, y)) - bounds.counts(Block(0, X[1:], y[1:]))
    assert change.shape == (4, _CELLS)
    np.testing.assert_array_equal(change.sum(axis=1), 1)
    assert set(np.unique(change)) == {0, 1}


def test_the_event_is_that_of_the_noise_that_is_drawn(monkeypatch):
    """As many releases of sensitivity one as there are columns, with the very noise object that is sampled."""
    bounds = PrivateBounds(TRAINING_FREE, 3, target=True).calibrated(1.0, 1e-5)
    assert epsilon_of(bounds.event, 1e-5) <= 1.0
    assert bounds.own_parts[0][1] == bounds.noise.event(4)
    assert 4 / bounds.noise.count_noise**2 == pytest.approx(bounds.share * gdp_mu(1.0, 1e-5) ** 2, rel=0.02)
    assert bounds.noise.sensitivity == bounds.noise.scale
    drawn = []
    sample = type(bounds.noise).sample

    def spy(noise, size, source):
        drawn.append((noise, size))
        return sample(noise, size, source)

    monkeypatch.setattr(type(bounds.noise), "sample", spy)
    trained = bounds.train(*records(200), random_state=1)
    assert drawn == [(bounds.noise, 4 * _CELLS)]
    assert trained.stages == (bounds.own_parts[0], ("training", bounds.mechanism.event))
    assert trained.event == bounds.event
    assert trained.stability is None
    with pytest.raises(ValueError, match="is not set"):
        PrivateBounds(TRAINING, 3).train(*records(20))


@pytest.mark.filterwarnings("ignore::dpscp.SeededWarning")
def test_bounds_that_are_a_guess_get_a_hint():
    """The hint follows from the noisy counts, so it costs nothing."""
    counts = np.zeros((3, _CELLS), dtype=np.int64)
    counts[1, 100] = 10_000
    bounds = PrivateBounds(TRAINING, 2, target=True, noise=lattice_noise(50.0))
    with pytest.warns(HintWarning, match=r"values of feature 0, the target, .* guess.* Declare public bounds"):
        bounds.release(counts, IntegerSource(0))
    counts[:, 100] = 10_000
    with warnings.catch_warnings():
        warnings.simplefilter("error", HintWarning)
        bounds.release(counts, IntegerSource(0))
    many = PrivateBounds(TRAINING, 12, noise=lattice_noise(50.0))
    with pytest.warns(HintWarning, match=r"feature \d+ and \d more"):
        many.release(np.zeros((12, _CELLS), dtype=np.int64), IntegerSource(0))


def test_noise_reaches_the_counts():
    """The released bounds follow the noisy counts: with much noise a cell without records wins now and then."""
    bounds = PrivateBounds(TRAINING, 1, noise=lattice_noise(50.0))
    counts = np.zeros((1, _CELLS), dtype=np.int64)
    ends = {tuple(map(float, np.ravel(bounds.release(counts, IntegerSource(None))))) for _ in range(20)}
    assert len(ends) > 10


def found_ends(counts, noise=10.0, **options):
    """The bounds of one column with these records in its cells, without noise where it says so."""
    given = np.zeros((1, _CELLS), dtype=np.int64)
    for number, count in counts.items():
        given[0, grid_cells(number)] += count
    bounds = PrivateBounds(TRAINING, noise=lattice_noise(noise), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(bounds.noise), "sample", lambda _, size, __: [0] * size)
        return tuple(float(end[0]) for end in bounds.release(given, IntegerSource(0)))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({3.0: 900, 5.0: 300}, (2, 8)),
        ({3.0: 900, 5.0: 300, 2.0**58: 55}, (2, 8)),  # so many that noise passes for them now and then
        ({3.0: 900, 5.0: 300, -1e9: 130}, (2, 8)),
        ({3.0: 900, 5.0: 300, -1e9: 400}, (-(2.0**30), 8)),  # no small share
        ({3.0: 900, 5.0: 300, 100.0: 130}, (2, 128)),  # not so far
        ({3.0: 300, 20.0: 200, 600.0: 90, 1e4: 70}, (2, 2.0**14)),  # a heavy tail
        ({0.0: 900, 1000.0: 100}, (-(2.0**-32), 1024)),  # many zeros
        ({0.0: 900, 3.0: 500, -1e9: 60}, (-(2.0**-32), 4)),
    ],
)
def test_a_few_numbers_far_outside_do_not_stretch_a_feature(counts, expected):
    assert found_ends(counts, n_features=1) == expected


def test_a_target_keeps_all_but_what_noise_may_have_made():
    assert found_ends({3.0: 900, 1e6: 100}, target=True) == (2, 2.0**20)
    assert found_ends({3.0: 900, 1e6: 55}, target=True) == (2, 4)


def test_persons_count_once():
    """One random row of each: three rows of one person are one count in each column."""
    X, y = records(300)
    persons = Persons(np.concatenate([[0], np.arange(3, 301)]), rows_per_person=3)
    seen = []
    bounds = PrivateBounds(TRAINING, 3, target=True, noise=lattice_noise(5.0))
    release = PrivateBounds.release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateBounds, "release", lambda self, *given: seen.append(given[0]) or release(self, *given))
        bounds.train(X, y, persons=persons, random_state=0)
    np.testing.assert_array_equal(seen[0].sum(axis=1), persons.count)


@pytest.fixture(scope="module")
def fitted():
    X, y = records()
    model = dp.PrivateConformalRegressor(
        epsilon=4.0, y_bounds="private", feature_bounds="private", guarantee="universal",
        conformity_score="absolute", random_state=0,
    )  # fmt: skip
    return model.fit(X, y)


def test_bounds_are_an_entry_of_the_ledger_and_count_as_training(fitted):
    stages = ["bounds", "scale of the target", "quantiles of the features", "training", "calibration"]
    assert [entry.stage for entry in fitted.ledger_.entries] == stages
    assert 0.99 * 4 <= fitted.ledger_.epsilon(1e-5) <= 4.0
    facts = fitted.ledger_.public_facts
    assert fitted.ledger_.found_privately == ("feature_bounds", "y_bounds")
    assert facts["y_bounds"] == fitted.y_bounds_
    assert facts["score_range"] == (0.0, fitted.y_bounds_[1] - fitted.y_bounds_[0])
    spent = dp.Ledger(fitted.ledger_.entries[:-1])
    inner = dp.guarantees.universal_alpha(0.1, spent.tradeoff_function("add"))
    assert facts["inner_levels"][0] == pytest.approx(1 - inner, abs=2e-6)


def test_the_plan_holds_what_is_spent(tmp_path):
    """What is reserved before a record is used is what the run commits."""
    store = dp.BudgetStore.create(tmp_path / "b", 8.0, 1e-5, dataset="d")
    model = dp.PrivateConformalRegressor(TRAINING_FREE, epsilon=1.0, guarantee="universal", y_bounds="private")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*records(200), budget=store)
    reserved, committed = (dp.Ledger.from_json(line.content) for line in store.lines()[1:])
    assert [e.stage for e in reserved.entries] == ["bounds", "training", "calibration"]
    assert reserved.event == committed.event


@pytest.mark.parametrize("guarantee", ["universal", "split"])
def test_targets_outside_the_found_bounds_are_covered_at_the_promised_rate(guarantee, is_quick):
    """A third of the targets lie far outside: rare enough in each cell to be missed, and still covered."""
    covered = []
    for seed in range(6 if is_quick else 12):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 1, (900, 2))
        far = 2.0 ** rng.uniform(-30, 60, 900) * rng.choice([-1, 1], 900)
        y = np.where(rng.random(900) < 1 / 3, far, 5 + X[:, 0])
        model = dp.PrivateConformalRegressor(
            DPSGD(steps=5, loss="squared", learning_rate=0.1), epsilon=4.0, y_bounds="private",
            feature_bounds=(0, 1), guarantee=guarantee, random_state=seed,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # full sets are the only valid answer, and said to be
            model.fit(X[:600], y[:600])
        covered += [dp.metrics.coverage(y[600:], model.predict_interval(X[600:])[1][:, :, 0])]
    assert np.mean(covered) >= 0.9 - 4 * np.std(covered, ddof=1) / len(covered) ** 0.5


def test_what_cannot_be_is_refused(fitted):
    X, y = records(100)
    for settings in ({"y_bounds": "private"}, {"y_bounds": (0, 100), "feature_bounds": "private"}):
        with pytest.raises(ValueError, match=r"would depend on the records.*Pass public bounds"):
            dp.PrivateConformalRegressor(guarantee="stability", **settings).fit(X, y)
        model = dp.PrivateModel(fitted.model_, fitted.ledger_)
        with pytest.raises(ValueError, match="need training in this fit"):
            dp.PrivateConformalRegressor(model, **settings).fit(X, y)
    with pytest.raises(ValueError, match=r"y_bounds would depend on .*None or 'private'.*bounds for y_bounds, or"):
        dp.PrivateConformalRegressor(guarantee="stability", feature_bounds=(-1, 1)).fit(X, y)
    with pytest.raises(ValueError, match="Pass public bounds for feature_bounds and y_bounds"):
        dp.PrivateConformalRegressor(guarantee="stability", feature_bounds="private").fit(X, y)
    with pytest.raises(ValueError, match=r"feature_bounds must be \(low, high\) or 'private'"):
        dp.PrivateConformalRegressor(y_bounds=(0, 1), feature_bounds="privat").fit(X, y)
    with pytest.raises(ValueError, match=r"y_bounds must be \(low, high\) or 'private'"):
        dp.PrivateConformalRegressor(y_bounds="auto").fit(X, y)
    with pytest.raises(ValueError, match="here the range is found privately"):
        dp.PrivateConformalRegressor(y_bounds="private", clip_to_bounds=True).fit(X, y)
    with pytest.raises(ValueError, match="needs a feature or a target"):
        PrivateBounds(TRAINING)


def test_rows_of_another_width_are_refused_before_anything_is_spent(tmp_path):
    X, y = records(100)
    store = dp.BudgetStore.create(tmp_path / "b", 3.0, 1e-4, dataset="d")
    quantiles = dp.training.QuantileTransform(-4000, 4000, 3)
    for own, said in (
        (PrivateBounds(TRAINING_FREE, 4), "for rows of 4 features, but X has 3"),
        (PrivateBounds(TRAINING_FREE, 5, columns=(4,)), "for rows of 5 features, but X has 3"),
        (
            [quantiles, PrivateBounds(TRAINING_FREE, 3)],
            "number of columns that QuantileTransform adds .* put PrivateBounds",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            dp.PrivateConformalRegressor(own, epsilon=1.0, y_bounds=(0, 100)).fit(X, y, budget=store)
    assert len(store.lines()) == 1
    with pytest.raises(ValueError, match="for rows of 2 features"):
        PrivateBounds(TRAINING, 2, noise=lattice_noise(5.0)).train(X, y)
    with pytest.raises(ValueError, match="one scale for each of 3 features"):
        PrivateBounds(TRAINING, 3, feature_scales=("log",))


def test_bounds_of_some_features_are_stated_as_such():
    """A caller's own step may find bounds of some features; nothing is stated about the others."""
    X, y = records()
    own = PrivateBounds(TRAINING_FREE, 3, columns=(1,))
    model = dp.PrivateConformalRegressor(own, epsilon=4.0, y_bounds=(0, 100), random_state=0).fit(X, y)
    facts = model.ledger_.public_facts
    assert facts["feature_bounds"] == ((None, -4096.0, None), (None, -2048.0, None))
    low, high = stated_bounds(facts, 3)
    assert (low.tolist(), high.tolist()) == ([-1, -4096, -1], [1, -2048, 1])
    assert [end.tolist() for end in stated_bounds({"feature_bounds": [0, 5]}, 2)] == [[0, 0], [5, 5]]
    assert dp.Ledger.from_json(model.ledger_.to_json()) == model.ledger_
    audited = ModelGame(model, n=20)
    assert audited._records[0][-1].tolist() == [1, -2048, 1]


# ---- hints


def hints(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HintWarning)
        fit()
    return [str(w.message) for w in caught]


def test_a_table_without_bounds_finds_them_where_records_and_budget_suffice():
    X, y = records(1000)
    settings = {"classes": [0, 1], "epsilon": 2.0, "random_state": 0}
    found = dp.PrivateConformalClassifier(**settings)
    assert hints(lambda: found.fit(X, y > 50)) == []
    assert tuple(found.ledger_.found_privately) == ("feature_bounds",)
    assert found.ledger_.epsilon(found.delta) <= 2.0
    declared = dp.PrivateConformalClassifier(feature_bounds="private", **settings)
    declared.fit(X, y > 50)
    np.testing.assert_array_equal(found.predict_proba(X), declared.predict_proba(X))
    # training that must not depend on the records keeps public constants
    stable = dp.PrivateConformalClassifier(guarantee="stability", **settings)
    (said,) = hints(lambda: stable.fit(X, y > 50))
    assert "Pass public bounds" in said
    assert "'private'" not in said  # that guarantee refuses it


def test_a_found_range_that_misses_the_targets_names_the_remedy():
    """Every target lies in a cell of its own, so none stands out and noise decides."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(600, 2)), 2.0 ** rng.uniform(-30, 60, 600) * rng.choice([-1, 1], 600)
    model = dp.PrivateConformalRegressor(epsilon=2.0, feature_bounds=(0, 1), random_state=0)
    with pytest.warns(dp.GuaranteeWarning, match=r"found privately.*pass a public y_bounds=\(low, high\)"):
        model.fit(X, y)
    assert np.isinf(model.threshold_).all()
    declared = dp.PrivateConformalRegressor(epsilon=2.0, feature_bounds=(0, 1), y_bounds=(0, 1), random_state=0)
    with pytest.warns(dp.GuaranteeWarning, match="at the end of the score range") as caught:
        declared.fit(X, y)
    assert "found privately" not in str(caught[0].message)


def test_a_range_that_is_far_wider_than_the_target_gets_a_hint():
    X, y = records(2000)
    messages = {}
    for high in (200, 1e5):
        settings = {"y_bounds": (-10, high), "feature_bounds": (-4000, 4000), "random_state": 0}
        model = dp.PrivateConformalRegressor(epsilon=8.0, **settings)
        messages[high] = hints(lambda model=model: model.fit(X, y))
    assert messages[200] == []
    (said,) = messages[1e5]
    assert said.startswith("y_bounds is so wide")
    assert "Pass a tighter range" in said
