"""An engineer with a large Parquet file: plan, fit from the file within a budget, predict in blocks, watch progress."""

import logging
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import dpscp as dp
from dpscp.data.sources import scanner
from dpscp.training import DPSGD
from dpscp.training.preprocessing.target import ScaledTarget

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


def test_a_file_is_fitted_and_predicted_without_being_loaded(tmp_path, caplog, capsys):
    table, new = tmp_path / "records.parquet", tmp_path / "new.parquet"
    write_table(table, 20_000, 0)
    frame = write_table(new, 60_000, 1)
    planned = dp.plan(n=20_000, epsilon=1.0, delta=1e-6, alpha=0.1)
    assert any(row.guarantee == "split" for row in planned.rows)

    store = dp.BudgetStore.create(tmp_path / "study.budget", epsilon=1.1, delta=2e-6, dataset="costs")
    mechanism = ScaledTarget(DPSGD(loss="huber", steps=40, sampling_rate=0.1, learning_rate=0.5), (0.0, 100.0))
    options = {"epsilon": 1.0, "delta": 1e-6, "guarantee": "split", "accountant": "rdp"}
    reg = dp.PrivateConformalRegressor(mechanism, verbose=1, **options)
    with caplog.at_level(logging.INFO, "dpscp"):
        reg.fit(table, "cost", schema=SCHEMA, budget=store)
    stages = [record.message for record in caplog.records if record.name.startswith("dpscp")]
    assert any("train" in text for text in stages)
    assert any("search" in text for text in stages)
    assert capsys.readouterr().err  # progress
    assert reg.certificate_.is_certified
    assert 0 < store.remaining(2e-6) < 1.1
    with pytest.raises(dp.BudgetError):
        reg.fit(table, "cost", schema=SCHEMA, budget=store)

    reg = dp.PrivateConformalRegressor(mechanism, **options).fit(table, "cost", schema=SCHEMA)
    center, intervals = reg.predict_interval(new)
    inside = (intervals[:, 0, 0] <= frame["cost"]) & (frame["cost"] <= intervals[:, 1, 0])
    assert inside.mean() > 0.87  # 0.9 less four deviations of a threshold from about 2000 records
    reg.predict_file(new, tmp_path / "predicted.parquet")
    found = pq.read_table(tmp_path / "predicted.parquet").to_pandas()
    np.testing.assert_allclose(found["prediction"], center)
    np.testing.assert_allclose(found[["lower", "upper"]], intervals[:, :, 0])


def test_writing_predictions_takes_the_memory_of_blocks_not_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(scanner, "BLOCK_NUMBERS", 2**17)
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
