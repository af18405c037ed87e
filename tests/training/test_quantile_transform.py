"""The private quantile transform: counts that one record changes by one, their event, and the released functions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block
from dpscp.data.sources.places import UnitSource
from dpscp.privacy import IntegerSource, compose, epsilon_of, gaussian_event, lattice_noise
from dpscp.privacy.events import discrete_gaussian_event
from dpscp.privacy.units import Unit
from dpscp.training import (
    DPSGD,
    Preprocessed,
    PrivateStandardize,
    PublicBounds,
    QuantileTransform,
    TorchDPSGD,
)
from dpscp.training.preprocessing.quantiles import (
    CellLookup,
    lies_at_ends,
)
from dpscp.training.recipe import recipe

SGD = DPSGD(loss="squared", steps=5, learning_rate=0.1, noise_multiplier=1.0, hidden=(4,))
NO_NOISE = lattice_noise(1e-3)


def table(n=2000, seed=0):
    """A heavy-tailed column, an even one, one of two values and a constant."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [np.exp(rng.normal(size=n)), rng.uniform(0, 1, n), rng.integers(0, 2, n), np.full(n, 7.0)]
    ), rng.normal(size=n)


BOUNDS = ([0.0, 0.0, 0.0, 0.0], [20_000.0, 1.0, 1.0, 10.0])


def fitted(step, X, n=None, seed=0):
    counts = step.counts(Block(0, X, np.zeros(len(X))))
    return step.release(counts, n_records=n or len(X), source=IntegerSource(seed))[0]


@pytest.mark.parametrize("row", [[1e300, -1e300, 0.5, 7.0], [0.0, 1.0, 0.0, 10.0], [20_000.0, 0.0, 1.0, -0.0]])
def test_one_record_changes_one_count_of_each_level_by_one(row):
    X, _ = table(40)
    step = QuantileTransform(*BOUNDS, n_features=4, branching=(4, 8, 2))
    more = np.vstack([X, row])
    change = step.counts(Block(0, more, np.zeros(41))) - step.counts(Block(0, X, np.zeros(40)))
    assert change.shape == (4, 4 + 32 + 64)
    assert set(np.unique(change)) == {0, 1}
    for level in np.split(change, [4, 36], axis=1):
        assert_array_equal(level.sum(axis=1), 1)
    assert (change**2).sum() == step.n_releases


def test_the_event_is_that_of_every_count_a_record_changes(monkeypatch):
    step = QuantileTransform(*BOUNDS, n_features=4).with_noise(6.0)
    assert step.event == discrete_gaussian_event(step.noise.sigma, step.noise.scale, 4 * 3)
    # twelve counts with noise of sqrt(12) * 6 each are one Gaussian release of noise 6
    assert epsilon_of(step.event, 1e-5) == pytest.approx(epsilon_of(gaussian_event(6.0), 1e-5), rel=2e-3)
    assert step.noise.count_noise == pytest.approx(6 * math.sqrt(12), rel=3e-4)
    drawn, sample = [], type(step.noise).sample
    monkeypatch.setattr(
        type(step.noise),
        "sample",
        lambda noise, size, source: drawn.append((noise, size)) or sample(noise, size, source),
    )
    X, y = table(300)
    trained = Preprocessed((step,), SGD).train(X, y, random_state=0)
    assert drawn == [(step.noise, 4 * (8 + 64 + 512))]
    assert trained.event == compose(step.event, SGD.event)
    whole = Preprocessed((QuantileTransform(*BOUNDS, n_features=4),), SGD.with_noise(None)).calibrated(1.0, 1e-5)
    assert 0.98 < epsilon_of(whole.event, 1e-5) <= 1.0


def test_noise_that_is_not_set_is_refused_before_a_record_is_read():
    step = QuantileTransform(0, 1, n_features=1)
    assert step.event is None
    with pytest.raises(ValueError, match="noise is not set"):
        step.fit_source(None, n_records=5)
    for wrong in ((), (1, 8)):
        with pytest.raises(ValueError, match="branching"):
            QuantileTransform(0, 1, n_features=1, branching=wrong)
    with pytest.raises(ValueError, match="low < high"):
        QuantileTransform(1, 1, n_features=1)


@pytest.mark.parametrize("n_cells", [2, 7, 64, 512, 30_000])
def test_the_lookup_finds_the_cell_that_a_search_finds(n_cells):
    lookup = CellLookup.of(n_cells)
    inner, rng = lookup.edges[1:-1], np.random.default_rng(0)
    beside = [np.nextafter(inner, np.float32(end)) for end in (-2, 2)]
    tiny = np.float32([0.0, -0.0, 1e-45, -1e-45, 0.5, -0.5, 1, -1])
    small = (rng.choice([-1, 1], 3000) * np.exp2(-rng.uniform(0, 40, 3000))).astype(np.float32)
    places = np.concatenate([inner, *beside, tiny, small, 1 - abs(small), abs(small) - 1])
    assert_array_equal(lookup.cells(places), np.searchsorted(inner, places, side="right"))
    assert n_cells != 512 or lookup.depth == 1
    assert 0 <= lookup.cells(np.float32([np.nan]))[0] < n_cells  # refused elsewhere


def test_without_noise_the_functions_are_those_of_the_counts():
    X, _ = table(3000)
    step = QuantileTransform(*BOUNDS, n_features=4, noise=NO_NOISE)
    rows = fitted(step, X)
    for knot, level in zip(step._edges[0, 1:-1], rows.levels[0, 1:-1], strict=True):
        assert level == pytest.approx(np.mean(X[:, 0] < knot), abs=1e-3)
    # the heavy tail gets a quantile; an even column, two values and a constant are told by the scaled column
    assert rows.columns == (0,)
    out = rows.apply(X)
    assert out.shape == (3000, 5)
    assert_allclose(out[:, 4].mean(), 0, atol=0.02)
    assert_allclose(out[:, 4].std(), 1, atol=0.02)
    assert_allclose(out[:, 1].std(), 1, atol=0.02)
    assert np.abs(out).max() <= 5


def test_a_person_counts_as_one_record():
    X, y = table(90)
    step = QuantileTransform(*BOUNDS, n_features=4).with_noise(2.0)

    def blocks(times):
        return [
            Block(i, np.repeat(X[p], times, axis=0), np.repeat(y[p], times), Persons(np.arange(46) * times, 3))
            for i, p in enumerate((slice(0, 45), slice(45, 90)))
        ]

    mechanism = Preprocessed((step,), SGD)
    assert mechanism.trains_persons
    assert mechanism.trains_sources
    found = [
        mechanism.train_source(
            UnitSource(ArraySource.of_blocks(blocks(times)), Unit(3, by_person=True)), random_state=1, n_records=90
        )
        for times in (1, 3)
    ]
    for name, value in found[0].model.transforms[0].arrays().items():
        assert_array_equal(found[1].model.transforms[0].arrays()[name], value)
    assert found[1].public_facts["n_persons"] == 90
    one = UnitSource(ArraySource.of_blocks(blocks(3)[:1]), Unit(3, by_person=True))
    assert mechanism.train_source(one, random_state=1, n_records=45).public_facts["n_persons"] == 45


@pytest.mark.parametrize("width", [4, 5])
def test_a_torch_module_behind_the_step_is_refused_before_a_record_is_counted(width, monkeypatch):
    torch = pytest.importorskip("torch")
    X, y = table(60)
    monkeypatch.setattr(QuantileTransform, "counts", lambda *_: pytest.fail("records were counted"))
    inner = TorchDPSGD(torch.nn.Linear(width, 1), loss="squared", steps=2, sampling_rate=0.5, learning_rate=0.1)
    open_steps = Preprocessed((QuantileTransform(*BOUNDS, n_features=4),), inner)
    with pytest.raises(ValueError, match="QuantileTransform changes the number of columns"):
        open_steps.check((4,))
    with pytest.raises(ValueError, match="QuantileTransform changes the number of columns"):
        dp.PrivateConformalRegressor(open_steps, y_bounds=(-5, 5), random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="QuantileTransform changes the number of columns"):
        open_steps.calibrated(1.0, 1e-5).train(X, y, random_state=0)


def test_only_the_named_columns_are_counted():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, 5000), np.exp(rng.normal(size=5000)), 10 * rng.uniform(size=5000)])
    step = QuantileTransform((0, 0, 0), (1, 1000, 10), 3, columns=(1, 2), others=2.0)
    assert step.n_releases == 6
    assert step.counts(Block(0, X, X[:, 0])).shape == (2, 8 + 64 + 512)
    rows = fitted(replace(step, noise=NO_NOISE), X)
    assert rows.columns == (1,)  # the quantile of an even column is a linear function of it
    found = rows.apply(X)
    assert_array_equal(found[:, 0], 2 * X[:, 0])
    assert_allclose(found[:, 1:3].std(axis=0), 1, atol=0.15)
    assert np.corrcoef(found[:, 3], X[:, 1].argsort().argsort())[0, 1] > 0.999
    for wrong in ((1, 1), (3,), (-1,)):
        with pytest.raises(ValueError, match="columns"):
            QuantileTransform(0, 1, 3, columns=wrong)


def planned_step(task, width, *, n=8000, indicators=(), bounds=None):
    """The first step of the recipe for a table of numbers in the last six columns and indicators before them."""
    low, high = np.r_[np.zeros(width - 6), np.full(6, -1.0)], np.r_[np.ones(width - 6), np.full(6, 50.0)]
    mechanism = recipe(
        task,
        n_records=n,
        n_features=width,
        classes=None if task == "regression" else (0, 1),
        epsilon=1.0,
        delta=1e-5,
        feature_bounds=bounds or (low, high),
        indicators=indicators,
    ).mechanism
    while not isinstance(mechanism, Preprocessed):
        mechanism = mechanism.mechanism
    (step,) = mechanism.steps[:1]
    return getattr(step, "quantiles", step)  # of many columns the relevance is found as well


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("width", [12, 40])
def test_indicators_beside_numbers_are_not_counted(task, width):
    declared = tuple(range(width - 6))
    step = planned_step(task, width, indicators=declared)
    assert isinstance(step, QuantileTransform)
    assert step.columns == tuple(range(width - 6, width))
    assert step.others == 1.0
    # columns from 0 to 1 may be anything
    assert planned_step(task, width, indicators=(0, 1)).columns == tuple(range(2, width))
    if task == "regression":
        unknown = planned_step(task, width)
        assert (type(unknown), unknown.columns) == (QuantileTransform, tuple(range(width)))
        assert planned_step(task, width, indicators=tuple(range(width))) == PublicBounds(-1.0, 1.0)
        assert planned_step(task, width, indicators=declared, n=1200).others == 2.0  # a weak signal
        assert isinstance(planned_step(task, width, indicators=declared, n=300), PrivateStandardize)
    elif width == 40:
        assert isinstance(planned_step(task, width, indicators=tuple(range(width))), PublicBounds)
        assert isinstance(planned_step(task, width, indicators=declared, n=300), PublicBounds)


def test_a_counted_column_at_its_two_ends_is_an_indicator():
    """Also where nobody declares it; numbers from 0 to 1 are scaled as numbers."""
    rng = np.random.default_rng(0)
    n = 4000
    X = np.column_stack([rng.uniform(size=n) < 0.3, np.exp(rng.normal(-5, 1, size=n)).clip(0, 1), np.zeros(n)])
    found = QuantileTransform(0, 1, 3, others=2.0).with_noise(5.0).fit(X, n_records=n, rng=rng)
    assert found.shift[[0, 2]].tolist() == [0, 0]
    assert found.scale[[0, 2]].tolist() == [0.5, 0.5]
    assert found.columns == (1,)
    wider = QuantileTransform(0, 1.5, 3).with_noise(5.0).fit(1.5 * X, n_records=n, rng=rng)
    assert np.all(wider.shift > 0)
    even = np.concatenate([np.full(8**i, 512 / 8**i) for i in (1, 2, 3)])
    assert not lies_at_ends(even, 1000.0, 512, (8, 8, 8))  # however large the noise may be


def test_parts_are_indicators_of_ranges_of_equal_shares():
    X, _ = table(4_000)
    step = QuantileTransform(*BOUNDS, n_features=4, parts=5).with_noise(0.01)
    rows = step.fit(X, n_records=len(X), rng=np.random.default_rng(0))
    found = rows.apply(X)
    k = len(rows.columns)
    assert k > 0
    assert found.shape == (len(X), rows.width) == (len(X), 4 + 6 * k)
    quantiles, own = found[:, 4 : 4 + k], found[:, 4 + k :].reshape(len(X), k, 5)
    assert_array_equal(own.sum(axis=2), 1)
    assert_array_equal(own.argmax(axis=2), np.clip((quantiles / math.sqrt(3) + 1) / 2 * 5, 0, 4).astype(int))
