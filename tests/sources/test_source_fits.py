"""Fits of records in blocks: as in memory where nothing is drawn by block, repeatable where it is, refused in time."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import dpscp as dp
from dpscp.data.sources import ArraySource, Block
from dpscp.pipeline.release import _Part
from dpscp.privacy.random_streams import BATCHES, BlockStreams
from dpscp.training import DPSGD, OutputPerturbation
from dpscp.training.engine.batching import BatchGradient
from dpscp.training.engine.loop import Records
from dpscp.training.engine.networks import Loss, Network

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
    assert first.ledger_.declare(assumed=()) == second.ledger_.declare(assumed=())
    believed = {*first.ledger_.assumptions, *second.ledger_.assumptions}
    for one, other in zip(first.certificates_, second.certificates_, strict=True):
        assert set(one.assumptions) ^ set(other.assumptions) <= believed
        assert replace(one, assumptions=()) == replace(other, assumptions=())


@pytest.mark.parametrize("guarantee", ["split", "corrected"])
def test_one_block_is_an_array_in_memory(table, guarantee):
    X, y = table
    options = {"guarantee": guarantee, "groups": "label", "estimator": DPSGD(steps=20, sampling_rate=0.2)}
    assert_same(classifier(**options).fit(X, y), classifier(**options).fit(ArraySource(X, y)))


@pytest.mark.parametrize("guarantee", ["universal", "corrected"])
def test_blocks_change_nothing_where_nothing_is_drawn_by_block(table, guarantee):
    """Sums differ in their last bits, which the release grid absorbs; counts are exact."""
    X, y = table
    options = {"guarantee": guarantee, "groups": lambda rows: rows[:, 1] > 0, "group_values": [False, True]}
    fit = classifier(**options).fit(X, y)
    for n_blocks in (2, 7):
        assert_same(fit, classifier(**options).fit(ArraySource(X, y, n_blocks=n_blocks)))


def test_private_steps_and_targets_in_blocks(table):
    X, _ = table
    fit = regressor(guarantee="universal").fit(X, X[:, 0])
    assert_same(fit, regressor(guarantee="universal").fit(ArraySource(X, X[:, 0], n_blocks=4)))
    assert np.abs(fit.predict(X) - X[:, 0]).mean() < np.abs(X[:, 0]).mean()


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


def counted_batches(rate, steps, blocks, size):
    """How often each record of each block was in a batch: every gradient of this loss is its row, 1 or clipped to 1."""
    network, loss = Network((size, 1), intercept=False), Loss("huber", huber_delta=1e-3)
    streams = BlockStreams.of(5, BATCHES)
    drawn = np.zeros((steps, blocks, size))
    for step in range(steps):
        for i in range(blocks):
            rows = np.eye(size)
            block = Records.build(rows, np.full(size, -9.0), block_id=i)
            gradient = BatchGradient(network, loss, 1.0, rate * size, rate, streams, np.zeros(size), step)
            total, count = gradient(block)
            drawn[step, i] = total > 0
            assert count == drawn[step, i].sum()
    return drawn


def test_batches_of_blocks_are_poisson_and_independent():
    rate, steps, blocks, size = 0.3, 40, 6, 50
    drawn = counted_batches(rate, steps, blocks, size)
    n = drawn.size
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], n, rate)
    assert low <= drawn.sum() <= high
    # two blocks in one step, and one block in two steps, agree on a record as often as strangers do
    same = rate**2 + (1 - rate) ** 2
    for pairs in (drawn[:, :-1] == drawn[:, 1:], drawn[:-1] == drawn[1:]):
        low, high = stats.binom.ppf([1e-6, 1 - 1e-6], pairs.size // 2, same)
        assert low <= pairs.ravel()[::2].sum() <= high


def test_every_step_of_a_fit_draws_its_own_batch_of_every_block(table, monkeypatch):
    """A batch that came back at another step would not be paid for: sampling counts as fresh at each step."""
    asked, honest = [], BlockStreams.generator

    def spy(streams, block, step=0):
        asked.append((streams.key, block, step))
        return honest(streams, block, step)

    monkeypatch.setattr(BlockStreams, "generator", spy)
    sampled = DPSGD(steps=7, sampling_rate=0.5)
    classifier(estimator=sampled, guarantee="universal").fit(ArraySource(*table, n_blocks=3))
    assert sorted(asked) == [(asked[0][0], block, step) for block in range(3) for step in range(7)]


def test_held_out_records_of_blocks_are_a_coin_each():
    streams = BlockStreams.of(6, BATCHES)
    blocks = [Block(i, np.zeros((500, 1)), np.arange(500)) for i in range(6)]
    faces = ((0.0, 0.3), (0.3, 1.0))
    held, rest = ([_Part(streams, *face)(block).targets for block in blocks] for face in faces)
    for here, there in zip(held, rest, strict=True):
        assert sorted([*here, *there]) == list(range(500))
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], 3000, 0.3)
    assert low <= sum(map(len, held)) <= high
    assert len({tuple(part) for part in held}) == 6


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
        ({}, {"y": y}, ValueError, "y must be left out"),
        ({"rows_per_person": 2, "n_records": None}, {"persons": y}, ValueError, "several blocks"),
        ({"classes": None}, {}, ValueError, "classes=.* is needed"),
        ({"groups": len}, {}, ValueError, "group_values"),
        ({"estimator": OutputPerturbation()}, {}, TypeError, "needs all records in one array"),
    ):
        with pytest.raises(error, match=match):
            classifier(random_state=None, **options).fit(source, **{"y": None, **more}, budget=store)
    assert not store.ledger().entries
    with pytest.raises(ValueError, match="at least one record"):
        classifier().fit(ArraySource(X[:0], y[:0], n_blocks=2))
    one = classifier(estimator=OutputPerturbation("logistic", feature_bound=2.0)).fit(ArraySource(X, y))
    assert_same(one, classifier(estimator=OutputPerturbation("logistic", feature_bound=2.0)).fit(X, y))


def test_the_number_that_is_found_in_blocks_is_declared(table):
    X, y = table
    facts = classifier(n_records=None).fit(ArraySource(X, y, n_blocks=3)).ledger_.public_facts
    assert facts["n_records"] == N
    assert "n_records" in facts["taken_from_data"]
