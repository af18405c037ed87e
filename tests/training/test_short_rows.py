"""Rows of large tables in 16 bits a number: half the memory, functions of one row each, and the same training."""

from dataclasses import replace

import numpy as np
import pytest

from dpscp.data.persons import keep_rows
from dpscp.data.sources.places import blocks_in_memory
from dpscp.training import DPSGD
from dpscp.training.engine import rows as rows_module
from dpscp.training.engine.rows import is_large_table, restore_rows, shorten_rows, squared_norms

HEAD = DPSGD(
    classes=(0, 1, 2), sampling_rate=0.3, steps=40, noise_multiplier=1.0, feature_bound=2.0, clip_norm=0.5
)  # fmt: skip


def engine_block(setup):
    (block,) = blocks_in_memory(setup.source)
    return block


@pytest.fixture
def every_table_is_large(monkeypatch):
    monkeypatch.setattr(rows_module, "_LARGE_TABLE", 1)


def records(n=600, width=7, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, width)) * np.logspace(-1, 1, n)[:, None]
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def engine_rows(block):
    """What the engine multiplies."""
    out = np.zeros((len(block), block.rows.shape[1] + 1), dtype=np.float32)
    restore_rows(block.rows, block.scales, out)
    return out


@pytest.mark.parametrize("width", [3, 40, 513])
def test_a_row_keeps_15_bits_and_never_becomes_longer(width):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(300, width)) * 10.0 ** rng.integers(-20, 20, (300, 1))).astype(np.float32)
    rows[0], rows[1], rows[2] = 0, 1e-38, 2.0**100
    integers, out = np.empty(rows.shape, dtype=np.int16), np.empty((300, width + 1), dtype=np.float32)
    scales = shorten_rows(rows, integers)
    restore_rows(integers, scales, out)
    assert (out[:, -1] == 1).all()
    assert (out[:2, :-1] == 0).all()  # nothing there, or too small to have a scale
    found, largest = out[:, :-1].astype(float), np.abs(rows).max(axis=1, keepdims=True).astype(float)
    # cut towards zero, up to two float32 roundings
    assert (np.abs(found) <= np.abs(rows.astype(float)) * (1 + 2.0**-22)).all()
    assert (np.sign(found) * np.sign(rows) >= 0).all()
    assert (np.abs(found - rows)[2:] <= largest[2:] * (1.001 / 32767)).all()


def test_a_row_is_shortened_whatever_stands_beside_it():
    rows = records(200, 33)[0].astype(np.float32)
    integers, alone = np.empty(rows.shape, dtype=np.int16), np.empty((1, 33), dtype=np.int16)
    scales = shorten_rows(rows, integers)
    for i in range(len(rows)):
        assert shorten_rows(rows[i : i + 1], alone) == scales[i]
        assert (alone[0] == integers[i]).all()


def test_only_large_tables_are_kept_short():
    assert not is_large_table(32_767, 512)
    assert is_large_table(32_768, 512)
    X, y = records()
    assert engine_block(HEAD.prepare(X, y)).scales is None
    # by the nominal number, whatever the records are
    assert engine_block(HEAD.prepare(X, y, n_records=10**7)).scales is not None
    assert engine_block(HEAD.prepare(X[:0], y[:0], n_records=10**7)).scales is not None
    assert engine_block(HEAD.prepare(X, y, n_records=10**6)).scales is None


def test_persons_count_with_all_their_rows():
    X, y = records()
    kept, persons = keep_rows(np.arange(len(X)) // 3, n_rows=len(X), rows_per_person=3, random_state=0)
    assert engine_block(HEAD.prepare(X[kept], y[kept], n_records=10**6, persons=persons)).scales is not None


@pytest.mark.parametrize("changes", [{"feature_bound": None}, {"dtype": "float64"}, {"sampling_rate": 1.0}])
def test_rows_stay_as_they_are_where_16_bits_cost_more_than_memory(changes, every_table_is_large):
    X, y = records()
    assert engine_block(HEAD.prepare(X, y)).scales is not None
    assert engine_block(replace(HEAD, **changes).prepare(X, y)).scales is None


def test_norms_are_those_of_the_rows_that_are_multiplied(every_table_is_large):
    X, y = records(1500, 40)
    for mechanism in (HEAD, replace(HEAD, fit_intercept=False)):
        block = engine_block(mechanism.prepare(X, y))
        assert block.rows.dtype == np.int16
        rows = engine_rows(block)[:, : None if mechanism.fit_intercept else -1]
        assert (block.squared_norms == squared_norms(rows)).all()
        bias = float(mechanism.fit_intercept)
        assert block.squared_norms.max() <= HEAD.feature_bound**2 + bias  # Result C needs it
        assert block.squared_norms.max() > 0.99 * HEAD.feature_bound**2 + bias


@pytest.mark.parametrize("hidden", [(), (16,)])
def test_training_on_short_rows_is_training_on_these_numbers(hidden, monkeypatch):
    X, y = records()
    mechanism = replace(HEAD, hidden=hidden)
    whole = mechanism.train(X, y, random_state=0)
    monkeypatch.setattr(rows_module, "_LARGE_TABLE", 1)
    block = engine_block(mechanism.prepare(X, y))
    short = mechanism.train(X, y, random_state=0)
    monkeypatch.undo()
    # the same numbers in float32: the same bits
    again = mechanism.train(engine_rows(block)[:, :-1], y, random_state=0)
    assert (short.model.parameters == again.model.parameters).all()
    assert not (short.model.parameters == whole.model.parameters).all()
    scale = np.abs(whole.model.parameters).max()
    assert np.abs(short.model.parameters - whole.model.parameters).max() < 0.01 * scale


def test_a_block_prints_nothing_of_its_records(every_table_is_large):
    X, y = records(3)
    block = engine_block(HEAD.prepare(X, y, n_records=3))
    assert "scales" not in repr(block)
    assert "norms" not in repr(block)
