"""Blocks are read lazily and without copies, sums do not depend on who computes them, and a person stays together."""

import pickle

import numpy as np
import pytest

from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, RecordSource, added


def doubled(rows):
    return 2.0 * rows


def doubled_rows(block):
    return block.with_steps(doubled)


def column_sums(block):
    return np.sum([rows.sum(axis=0) for _, rows in block.parts(2)], axis=0), len(block)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return rng.integers(-9, 9, size=(23, 3)).astype(float), rng.integers(0, 2, 23)


@pytest.mark.parametrize("n_blocks", [1, 2, 7, 23, 30])
def test_sums_over_any_number_of_blocks(table, n_blocks):
    X, y = table
    source = ArraySource(X, y, n_blocks=n_blocks)
    assert isinstance(source, RecordSource)
    assert source.width == 3
    assert [block.id for block in source.blocks] == list(range(n_blocks))
    total, count = source.map(doubled_rows).sum(column_sums)
    assert total.tolist() == (2 * X).sum(axis=0).tolist()
    assert count == 23
    assert source.sum(lambda block: (block.id + 1) * len(block)) >= count  # ids count the blocks


def test_a_memmap_is_not_read_into_memory(tmp_path, table):
    X, y = table
    np.save(tmp_path / "x.npy", X)
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    ArraySource(rows, y, n_blocks=2).sum(lambda block: isinstance(block.rows, np.memmap) or pytest.fail("not mapped"))


def test_a_part_is_remembered_and_read_with_its_steps(table):
    X, y = table
    drawn = np.arange(23) % 3 == 1
    part = Block(0, X, y, groups=np.arange(23)).with_steps(doubled).part(drawn)
    assert part.rows is X
    assert part.groups.tolist() == np.flatnonzero(drawn).tolist()
    np.testing.assert_array_equal(part.read(), 2 * X[drawn])
    np.testing.assert_array_equal(part.part(np.arange(len(part)) > 4).read(1, 2), 2 * X[[19]])
    assert pickle.loads(pickle.dumps(part)).read(2, 3).tolist() == part.read(2, 3).tolist()
    assert part.owners.count == len(part)


@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_parts_hold_whole_persons(table, most):
    X, y = table
    offsets = np.array([0, 1, 4, 5, 10, 12, 13, 20, 23])
    block = Block(0, X, y, persons=Persons(offsets, 7))
    parts = list(block.parts(most))
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), X)
    assert {part.start for part, _ in parts} | {23} <= set(offsets.tolist())
    assert all(len(rows) <= max(most, 7) for _, rows in parts)
    drawn = block.part(np.arange(8) == 3)
    assert drawn.owners.weights.tolist() == [0.2] * 5
    assert drawn.owners.count == 1


def test_sums_of_tuples_by_pairs():
    """The rounding of a sum by pairs does not grow with the number of values, and nothing but the order decides it."""
    values = [1e16, *[1.0] * 63]
    assert added(values) == 1e16 + 62  # one by one, each 1 would be lost
    total, count = added((np.array([v]), 1) for v in values)
    assert (total.tolist(), count) == ([1e16 + 62], 64)
    for n in range(1, 12):
        assert added(range(n)) == n * (n - 1) // 2
    with pytest.raises(ValueError, match="at least one block"):
        added([])


def test_what_is_no_table_is_refused(table):
    X, y = table
    for rows, targets, match in (
        (X[0], y, "two-dimensional"),
        (X.astype(str), y, "real numbers"),
        (X, y[1:], "y must"),
    ):
        with pytest.raises(ValueError, match=match):
            ArraySource(rows, targets)
    with pytest.raises(ValueError, match="n_blocks"):
        ArraySource(X, y, n_blocks=0)
