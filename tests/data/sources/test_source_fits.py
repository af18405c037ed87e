"""Fits of records in blocks: those of an array in memory, draw by draw, and refused in time."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.core.fit import _part
from dpscp.data.schema import parse_schema
from dpscp.data.sources import ArraySource, Block, DaskSource, TableSource, added
from dpscp.data.sources.places import Places, places_of, take_census
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.training import DPSGD, OutputPerturbation, Preprocessed, PrivateStandardize, TorchDPSGD
from dpscp.training.engine.loop import Descent, poisson_batches

N, WIDTH = 900, 3


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N, WIDTH))
    return X, np.where(X[:, 0] + 0.2 * rng.normal(size=N) > 0, "yes", "no")


def classifier(**options):
    given = {"epsilon": 4.0, "classes": ["no", "yes"], "feature_bounds": (-2.0, 2.0), "n_records": N, "random_state": 3}
    return dp.PrivateConformalClassifier(**{"estimator": DPSGD(steps=20), **given, **options})


def regressor(**options):
    given = {"epsilon": 4.0, "y_bounds": (-2, 2), "feature_bounds": (-2.0, 2.0), "n_records": N, "random_state": 3}
    return dp.PrivateConformalRegressor(**{**given, **options})


class ReadTwice(ArraySource):
    """A cluster that loses every block once: what was computed is thrown away and computed again."""

    def map(self, function, *, keep=False):
        mapped = super().map(function, keep=keep)
        again = ReadTwice.of_blocks(mapped._blocks)
        again._functions = mapped._functions
        return again

    def sum(self, function):
        super().sum(function)
        return super().sum(function)


def assert_same(first, second):
    assert first.threshold_.tolist() == second.threshold_.tolist()
    for name, values in first.model_.arrays().items():
        np.testing.assert_array_equal(values, second.model_.arrays()[name])
    # but for the sentence that says where the records came from
    assert replace(first.ledger_, assumptions=()) == replace(second.ledger_, assumptions=())
    believed = {*first.ledger_.assumptions, *second.ledger_.assumptions}
    for one, other in zip(first.certificates_, second.certificates_, strict=True):
        assert set(one.assumptions) ^ set(other.assumptions) <= believed
        assert replace(one, assumptions=()) == replace(other, assumptions=())


def cut(X, y, kind, folder):
    """The same rows from elsewhere, in uneven pieces."""
    if kind == "blocks":
        return ArraySource(X, y, n_blocks=5)
    if kind == "dask":
        da = pytest.importorskip("dask.array")
        sizes = (1, 500, 0, 250, len(X) - 751)
        return DaskSource(da.from_array(X, chunks=(sizes, WIDTH)), da.from_array(y, chunks=(sizes,)))
    pd = pytest.importorskip("pandas")
    names = [f"x{i}" for i in range(WIDTH)]
    pd.DataFrame(X, columns=names).assign(y=y).to_parquet(folder / "t.parquet", index=False)
    target = {"task": "regression", "target": "y", "bounds": [-2, 2]}
    if y.dtype.kind == "U":
        target = {"task": "classification", "target": "y", "classes": ["no", "yes"]}
    columns = {name: {"type": "numeric", "bounds": [-2, 2]} for name in names}
    return TableSource(folder / "t.parquet", parse_schema(json.dumps({**target, "columns": columns})), block_rows=211)


def by_sign(rows):
    return rows[:, 1] > 0


SAMPLED = {"sampling_rate": 0.2, "steps": 25, "hidden": (4,), "noise_multiplier": 4.0}


@pytest.mark.parametrize("guarantee", ["split", pytest.param("universal", marks=pytest.mark.slow), "corrected"])
def test_every_source_gives_the_fit_of_an_array(table, guarantee, tmp_path):
    """Draws belong to the places of records: sums differ in their last bits, which the release grid absorbs."""
    X, y = table
    grouped = {"guarantee": guarantee, "groups": by_sign}
    labels = {**grouped, "estimator": DPSGD(**SAMPLED)}
    standardized = Preprocessed((PrivateStandardize(-2.0, 2.0, 20.0),), DPSGD(**SAMPLED, loss="squared"))
    targets = {**grouped, "estimator": standardized, "feature_bounds": None}
    for make, options, truth in ((classifier, labels, y), (regressor, targets, X[:, 0])):
        fit = make(**options).fit(X, truth)
        for kind in ("blocks", "dask", "parquet"):
            assert_same(fit, make(**options).fit(cut(X, truth, kind, tmp_path)))


@pytest.mark.parametrize("make", [classifier, regressor])
def test_the_recipe_gives_the_fit_of_an_array(table, make, tmp_path):
    """The library's own model, with its private preprocessing."""
    X, y = table
    truth = y if make is classifier else X[:, 0]
    fit = make(estimator=None, guarantee="split").fit(X, truth)
    assert_same(fit, make(estimator=None, guarantee="split").fit(cut(X, truth, "blocks", tmp_path)))
    assert (fit.predict(X) == y).mean() > 0.7 if make is classifier else np.abs(fit.predict(X) - truth).mean() < 0.5


def test_torch_modules_give_the_fit_of_an_array(table, tmp_path):
    """Their sums are integers: exact in whatever blocks."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    X, y = table
    module = TorchDPSGD(torch.nn.Linear(WIDTH, 2), "cross_entropy", 0.2, 10, 0.5, noise_multiplier=4.0)
    options = {"estimator": module, "guarantee": "split", "feature_bounds": None}
    fit = classifier(**options).fit(X, y)
    assert_same(fit, classifier(**options).fit(cut(X, y, "blocks", tmp_path)))
    with pytest.importorskip("dask").config.set(scheduler="synchronous"):  # torch's warnings are for one thread
        assert_same(fit, classifier(**options).fit(cut(X, y, "dask", tmp_path)))


def test_a_block_that_is_lost_draws_the_same_again(table):
    """Held-out records and batches by block: the same for a seed, others for another, and nothing more is spent."""
    X, y = table
    options = {"guarantee": "split", "estimator": DPSGD(steps=30, sampling_rate=0.2)}
    fit = classifier(**options).fit(ArraySource(X, y, n_blocks=5))
    assert_same(fit, classifier(**options).fit(ReadTwice(X, y, n_blocks=5)))
    other = classifier(**options, random_state=4).fit(ArraySource(X, y, n_blocks=5))
    assert other.predict_proba(X).tolist() != fit.predict_proba(X).tolist()
    assert (fit.predict(X) == y).mean() > 0.7
    assert fit.ledger_.event == classifier(**options).fit(X, y).ledger_.event


def layout(sizes):
    """Places of blocks of so many records."""
    blocks = (Block(i, np.zeros((size, 1)), np.zeros(size)) for i, size in enumerate(sizes))
    return Places.of(added(map(take_census, blocks)))


def test_shares_of_blocks_are_the_batch():
    sizes, batches = [50, 0, 1, 149, 100], poisson_batches(np.random.default_rng(5), 300, 0.3)
    for _, drawn in zip(range(40), batches, strict=False):
        shares = layout(sizes).shares(drawn)
        assert all(((share >= 0) & (share < size)).all() for share, size in zip(shares.values(), sizes, strict=True))
        assert np.concatenate([share + sum(sizes[:i]) for i, share in shares.items()]).tolist() == drawn.tolist()


def test_every_step_of_a_fit_draws_its_own_batch(table, monkeypatch):
    """A batch that came back at another step would not be paid for: sampling counts as fresh at each step."""
    drawn, honest = [], Places.shares
    monkeypatch.setattr(Places, "shares", lambda places, batch: drawn.append(tuple(batch)) or honest(places, batch))
    sampled = DPSGD(steps=7, sampling_rate=0.5)
    classifier(estimator=sampled, guarantee="universal").fit(ArraySource(*table, n_blocks=3))
    assert len(set(drawn)) == len(drawn) == 7


@pytest.mark.parametrize("seed", [None, 6])
def test_held_out_records_of_blocks_are_a_coin_each(seed):
    coins = PlacedDraws.of(seed)
    blocks = [Block(i, np.zeros((500, 1)), np.arange(500)) for i in range(6)]
    places, faces = layout([500] * 6), ((0.0, 0.3), (0.3, 1.0))
    held, rest = ([_part(coins, places, *face, block).targets for block in blocks] for face in faces)
    for here, there in zip(held, rest, strict=True):
        assert sorted([*here, *there]) == list(range(500))
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], 3000, 0.3)
    assert low <= sum(map(len, held)) <= high
    assert len({tuple(part) for part in held}) == 6
    # the coins are those of one block of all
    one = Block(0, np.zeros((3000, 1)), np.tile(np.arange(500), 6))
    assert _part(coins, layout([3000]), 0.0, 0.3, one).targets.tolist() == np.concatenate(held).tolist()


class Without(PlacedDraws):
    """The draws of a table in which the one at ``PLACE`` is missing: all others keep theirs."""

    def uniform(self, places):
        given = np.asarray(places, dtype=np.int64)
        return super().uniform(given + (given >= PLACE))


PLACE = 333


@pytest.mark.parametrize("n_blocks", [1, 4])
def test_one_more_record_changes_its_own_share_alone(table, n_blocks):
    """The coupling of the proofs: the newcomer's draws are inserted at its place, in whatever blocks the two lie."""
    X, y = table
    with_one, without = (ArraySource(X, y, n_blocks=n_blocks), ArraySource(np.delete(X, PLACE, 0), np.delete(y, PLACE)))
    fraction, rate = 0.3, 0.4
    held = []
    for source, coins in ((with_one, PlacedDraws(8)), (without, Without(8))):
        part = source.map(partial(_part, coins, places_of(source), 0.0, fraction))
        held.append(np.concatenate([block.read() for block in part.blocks]))
    newcomer = PlacedDraws(8).uniform(range(PLACE, PLACE + 1)) < fraction
    others = held[0][(held[0] != X[PLACE]).any(axis=1)]
    assert others.tolist() == held[1].tolist()
    assert len(held[0]) - len(held[1]) == newcomer.sum()

    mechanism = DPSGD(classes=("no", "yes"), sampling_rate=rate, steps=9, clip_norm=0.1, noise_multiplier=1.0)
    descents = []
    for source in (with_one, without):
        setup = mechanism.prepare_source(source, N)
        descents.append(Descent(setup))
    batches = poisson_batches(np.random.default_rng(1), N, rate)
    moved = []
    for _ in range(9):
        batch = next(batches)
        rest = batch[batch != PLACE]
        sums = [descents[0].clipped_sum(batch), descents[1].clipped_sum(rest - (rest > PLACE))]
        change = np.linalg.norm(sums[0] - sums[1])
        assert change == pytest.approx(0.1 if PLACE in batch else 0.0, abs=1e-6)
        moved.append(change > 0.05)
    assert 0 < sum(moved) < 9


def test_draws_belong_to_places_whoever_makes_them():
    for draws in (PlacedDraws(3), PlacedDraws(key=2**100 + 1)):
        everyone = draws.uniform(range(200_000))
        assert (draws.uniform(range(70_001, 70_010)) == everyone[70_001:70_010]).all()
        some = np.flatnonzero(np.random.default_rng(0).random(200_000) < 1e-3)
        assert (draws.uniform(some) == everyone[some]).all()
        assert draws.uniform(some[:0]).tolist() == []
        far = draws.uniform(range(2**40, 2**40 + 6))
        assert (draws.uniform(range(2**40 + 2, 2**40 + 4)) == far[2:4]).all()
        assert not np.isin(far, everyone).any()
        assert repr(draws) == "PlacedDraws()"


@pytest.mark.parametrize("bad", ["row", "target", "label"])
def test_a_bad_record_in_a_late_block_is_refused_as_in_memory_before_anything_is_spent(table, bad, tmp_path):
    X, y = (part.copy() for part in table)
    estimator = classifier(random_state=None)
    if bad == "row":
        X[570, 1] = np.nan
    elif bad == "label":
        y[570] = "may"
    else:
        y, estimator = X[:, 0].copy(), regressor(random_state=None)
        y[570] = np.inf
    store = dp.BudgetStore.create(tmp_path / "store", 9.0, 1e-5, dataset="x")
    told = []
    for records in ((X, y), (ArraySource(X, y, n_blocks=100),)):
        with pytest.raises(ValueError, match=r"NaN or infinity|not in classes") as refused:
            estimator.fit(*records, budget=store)
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert not store.ledger().entries


def test_what_blocks_cannot_do_is_refused(table, tmp_path):
    X, y = table
    source = ArraySource(X, y, n_blocks=3)
    store = dp.BudgetStore.create(tmp_path / "store", 9.0, 1e-5, dataset="x")
    for options, more, error, match in (
        ({}, {"y": y}, ValueError, "remove y"),
        ({"rows_per_person": 2, "n_records": None}, {"persons": y}, ValueError, "several blocks"),
        ({"classes": None}, {}, ValueError, "classes is required"),
        ({"groups": len}, {}, ValueError, "groups must be booleans"),
    ):
        with pytest.raises(error, match=match):
            classifier(random_state=None, **options).fit(source, **{"y": None, **more}, budget=store)
    assert not store.ledger().entries
    with pytest.raises(ValueError, match="at least one record"):
        classifier(n_records=None).fit(ArraySource(X[:0], y[:0], n_blocks=2))


def test_what_knows_arrays_only_gets_those_of_this_process(table, tmp_path):
    X, y = table
    options = {"estimator": OutputPerturbation(loss="logistic", feature_bound=2.0)}
    fit = classifier(**options).fit(X, y)
    for n_blocks in (1, 4):
        assert_same(fit, classifier(**options).fit(ArraySource(X, y, n_blocks=n_blocks)))
    store = dp.BudgetStore.create(tmp_path / "store", 9.0, 1e-5, dataset="x")
    with pytest.raises(TypeError, match="needs all records in one array"):
        classifier(random_state=None, **options).fit(cut(X, y, "parquet", tmp_path), budget=store)
    assert not store.ledger().entries


def test_the_number_that_is_found_in_blocks_is_declared(table):
    X, y = table
    ledger = classifier(n_records=None).fit(ArraySource(X, y, n_blocks=3)).ledger_
    assert ledger.public_facts["n_records"] == N
    assert "n_records" in ledger.taken_from_data


def test_chunks_that_are_no_source_are_refused():
    da = pytest.importorskip("dask.array")
    X, y = da.ones((10, 2), chunks=5), da.ones(10, chunks=(3, 3, 4))
    assert DaskSource(X, y).sum(len) == 10
    with pytest.raises(ValueError, match="same chunks"):
        DaskSource(X, da.ones(9, chunks=3))
    with pytest.raises(ValueError, match="2 dimensions"):
        DaskSource(y, y)
    with pytest.raises(ValueError, match="real numbers"):
        DaskSource(X.astype(str), y).sum(len)
