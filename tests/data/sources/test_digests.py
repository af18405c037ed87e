"""Sources that are read several times hold the same records in the same order, or the fit is refused."""

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.schema import parse_schema
from dpscp.data.sources import Block, RecordSource
from dpscp.training import DPSGD

dd = pytest.importorskip("dask.dataframe")
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
