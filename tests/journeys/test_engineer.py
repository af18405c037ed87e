"""An engineer with a large Parquet file: plan, fit from the file within a budget, predict in blocks, watch progress."""

import tracemalloc

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import dpscp as dp
from dpscp.data.sources import tables
from dpscp.training import DPSGD

SCHEMA = dp.Schema.from_dict(
    {
        "task": "regression",
        "target": "cost",
        "bounds": [0, 100],
        "n_records": 20_000,
        "columns": {f"x{i}": {"type": "numeric", "bounds": [-5, 5]} for i in range(4)},
    }
)


def write_table(path, n, seed):
    """Write the rows in many row groups, as a cluster does."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(4)])
    frame["cost"] = 50 + 8 * X[:, 0] + 4 * X[:, 1] + 3 * rng.normal(size=n)
    frame.to_parquet(path, row_group_size=5_000)
    return frame


def test_writing_predictions_takes_the_memory_of_blocks_not_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_NUMBERS", 2**17)
    rng = np.random.default_rng(0)
    y = rng.uniform(40, 60, 500)
    mechanism = DPSGD(loss="squared", steps=3)
    schema = dp.Schema.from_dict(SCHEMA.to_dict() | {"n_records": 500})
    frame = pd.DataFrame(rng.normal(size=(500, 4)), columns=[f"x{i}" for i in range(4)]).assign(cost=y)
    reg = dp.PrivateConformalRegressor(mechanism, epsilon=8.0, guarantee="split", accountant="rdp")
    reg.fit(frame, "cost", schema=schema)
    peaks = []
    for n in (70_000, 280_000):
        write_table(tmp_path / "new.parquet", n, 1)
        tracemalloc.start()
        reg.predict_file(tmp_path / "new.parquet", tmp_path / "out.parquet")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert pq.read_metadata(tmp_path / "out.parquet").num_rows == n
    assert peaks[1] < 1.5 * peaks[0]
