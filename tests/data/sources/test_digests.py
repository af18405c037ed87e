"""Sources that are read several times hold the same records in the same order, or the fit is refused."""

import dask
import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.schema import parse_schema
from dpscp.data.sources import Block, RecordSource
from dpscp.data.sources.base import SameBlocks, digest
from dpscp.training import DPSGD

dd = pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")
N, KEY = 400, b"k" * 32
SCHEMA = parse_schema(
    '{"task": "classification", "target": "y", "classes": ["no", "yes"], "n_records": 400, '
    '"columns": {"a": {"type": "numeric", "bounds": [-4, 4]}}}'
)


def records():
    a = np.random.default_rng(0).normal(size=N)
    return pd.DataFrame({"a": a, "y": np.where(a > 0, "yes", "no")})


def shuffled(frame):
    return frame.sample(frac=1.0)  # without a seed: another order at each computation


def classifier(**changes):
    training = DPSGD(hidden=(), sampling_rate=1.0, steps=3, learning_rate=1.0, noise_multiplier=9.0)
    return dp.PrivateConformalClassifier(training, epsilon=4.0, guarantee="split", accountant="rdp", **changes)


def test_a_collection_that_shuffles_at_each_computation_is_refused():
    """Who is held out is drawn by place: with another order at each reading, records were trained on and held out."""
    frame = dd.from_pandas(records(), npartitions=2).map_partitions(shuffled)
    with pytest.raises(RuntimeError, match="in another order, than at its first reading"):
        classifier().fit(frame, "y", schema=SCHEMA)
    model = classifier().fit(frame.persist(), "y", schema=SCHEMA)
    assert model.ledger_.is_private


def test_an_array_with_other_content_at_each_computation_is_refused():
    @dask.delayed(pure=False)
    def drawn():
        return np.random.default_rng().normal(size=(N, 1))

    X = da.from_delayed(drawn(), (N, 1), float)
    y = da.from_array(np.arange(N) % 2, chunks=N)
    with pytest.raises(RuntimeError, match="other records"):
        classifier(classes=[0, 1], feature_bounds=(-4, 4), n_records=N).fit(X, y)


class Turning(RecordSource):
    """A source of the caller's that turns its rows around at each reading."""

    width = 1

    def __init__(self, X, y):
        self.X, self.y = X, y

    def read(self):
        self.X[:], self.y[:] = self.X[::-1].copy(), self.y[::-1].copy()
        yield Block(0, self.X, self.y)


def test_a_source_of_the_callers_own_is_compared_too():
    X, y = np.random.default_rng(0).normal(size=(N, 1)), np.arange(N) % 2
    with pytest.raises(RuntimeError, match="in another order"):
        classifier(classes=[0, 1], feature_bounds=(-4, 4), n_records=N).fit(Turning(X, y))


def test_a_digest_sees_rows_targets_persons_and_their_order():
    rows, names = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "a"], dtype=object)
    first = digest(Block(0, rows, names), KEY)
    assert digest(Block(0, rows.copy(order="F"), names.copy()), KEY) == first
    assert digest(Block(0, rows, names), b"o" * 32) != first
    others = [
        Block(0, rows[::-1], names),
        Block(0, rows, names[[1, 0, 2]]),
        Block(0, rows.astype("float32"), names),
        Block(0, rows.reshape(2, 3)[:, :2], names[:2]),
        Block(0, rows, names, persons=Persons(np.array([0, 2, 3]))),
        Block(0, rows[:0], names[:0]),
    ]
    found = {digest(block, KEY) for block in others}
    assert len(found | {first}) == len(others) + 1
    assert repr(KEY) not in repr(SameBlocks({0: first}, KEY, ""))
    assert repr(first) not in repr(SameBlocks({0: first}, KEY, ""))
