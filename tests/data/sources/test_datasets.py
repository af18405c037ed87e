"""A data set of torch is read item by item in blocks, and a fit on it is that on the same records in memory."""

from typing import Any

import numpy as np
import pytest

import dpscp as dp
from dpscp._base.assumptions import OWN_DATASET
from dpscp.data.sources import DatasetSource, RecordSource
from dpscp.data.sources.tables import ReadSource

torch = pytest.importorskip("torch")
data: Any = torch.utils.data

pytestmark = [
    pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*non-full backward hook.*"),
]


class Items(data.Dataset):
    """Records that exist only when they are read; ``read`` lists the indices."""

    def __init__(self, rows, targets, change=None):
        self.rows, self.targets, self.read, self.change = rows, targets, [], change

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, place):
        self.read.append(place)
        row = torch.from_numpy(self.rows[place])
        return (row if self.change is None else self.change(row)), int(self.targets[place])


def records(shape, n=600):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    X = rng.normal(size=(n, *shape)).astype(np.float32) + y.reshape(-1, *[1] * len(shape)).astype(np.float32)
    return np.clip(X, -3, 3), y


def fitted(mechanism, *given, **options):
    options = {"epsilon": 4.0, "classes": [0, 1], "n_records": 600, "random_state": 3, "guarantee": "split", **options}
    return dp.PrivateConformalClassifier(mechanism, feature_bounds=(-3, 3), **options).fit(*given)


def sets(model, X):
    return [list(labels) for labels in model.predict_set(X)[1]]


def test_a_fit_on_items_is_that_on_the_same_rows_in_memory():
    X, y = records((3,))
    mechanism = dp.training.DPSGD(sampling_rate=0.2, steps=30, learning_rate=1.0)
    source = dp.sources.DatasetSource(Items(X, y), block_rows=170)
    found, expected = fitted(mechanism, source), fitted(mechanism, X, y)
    assert found.threshold_ == expected.threshold_
    assert sets(found, X) == sets(expected, X)
    assert OWN_DATASET in found.ledger_.assumptions


def test_items_are_read_in_order_and_one_block_at_a_time():
    items = Items(*records((2, 3), n=10))
    source = DatasetSource(items, block_rows=4)
    assert isinstance(source, RecordSource)
    assert (source.width, source.input_shape) == (6, (2, 3))
    items.read.clear()
    reached = []
    source.map(lambda block: block).sum(lambda block: reached.append((block.id, len(block), len(items.read))) or 0)
    assert reached == [(0, 4, 4), (1, 4, 8), (2, 2, 10)]
    assert items.read == list(range(10))
    assert isinstance(source.map(lambda block: block, keep=True), ReadSource)
    assert source.sum(len) == DatasetSource(items).sum(len) == 10


def test_items_that_change_are_refused_before_a_fit():
    X, y = records((3,))
    for change in (lambda row: row + 0.01 * torch.rand(3), lambda row: row.flip(0) if torch.rand(1) < 0.5 else row):
        with pytest.raises(ValueError, match="an item of the Items changed when it was read again") as refused:
            DatasetSource(Items(X, y, change=change))
        assert "move it into the module" in str(refused.value)
    missing = Items(X, y, change=lambda row: row * torch.nan)
    assert DatasetSource(missing).width == 3  # the same at every reading; the fit says what is wrong
    with pytest.raises(ValueError, match="NaN or infinity"):
        fitted(dp.training.DPSGD(sampling_rate=0.2, steps=3), DatasetSource(missing))


def test_items_that_change_later_are_refused_with_what_to_do():
    X, y = records((3,))
    items = Items(X, y)
    source = DatasetSource(items, block_rows=200)
    items.change = lambda row: row + 1e-3 * len(items.read)
    with pytest.raises(RuntimeError, match=r"other records.*Items must be the same at every reading. Turn off random"):
        fitted(dp.training.DPSGD(sampling_rate=0.2, steps=3), source)


def test_what_is_no_data_set_of_pairs_is_refused_without_its_numbers():
    X, y = records((3,), n=5)

    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter([])

    for given in (data.DataLoader(Items(X, y)), Stream(), 5):
        with pytest.raises(TypeError, match="len\\(\\) and items"):
            DatasetSource(given)
    with pytest.raises(ValueError, match="0 sample"):
        DatasetSource(Items(X[:0], y[:0]))
    with pytest.raises(ValueError, match="block_rows"):
        DatasetSource(Items(X, y), block_rows=0)
    pair = (np.ones(3), 4711)
    ragged = [np.ones(3), [1, [4711, 2]]]
    for item in (np.ones(3), pair[:1], (*pair, 1), ("4711", 0), (4711.0, 0), (np.ones(3), [4711, 1]), ragged):
        with pytest.raises(ValueError, match="a pair \\(input, target\\)") as told:
            DatasetSource([item])
        assert "4711" not in str(told.value)
    with pytest.raises(ValueError, match="in one shape"):
        DatasetSource([pair, (np.ones(4711), 0)]).sum(len)
