"""An engineer with a large Parquet file: plan, fit from the file within a budget, predict in blocks, watch progress."""

import tracemalloc

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

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


def test_a_lake_is_checked_fitted_within_a_budget_and_predicted(tmp_path, monkeypatch, capsys):
    """A folder for each year, in several files: the engineer never makes one table of them."""
    monkeypatch.chdir(tmp_path)
    frame = write_table("whole.parquet", 1200, 3).assign(year=np.repeat([2023, 2024, 2025], 400))
    for year, part in frame.groupby("year"):
        (tmp_path / f"lake/year={year}").mkdir(parents=True)
        for number in range(2):
            own = part[200 * number : 200 * (number + 1)].drop(columns="year")
            own.to_parquet(f"lake/year={year}/{number}.parquet", row_group_size=70)
    year = {"type": "numeric", "bounds": [2020, 2030]}
    columns = {"x*": {"type": "numeric", "bounds": [-5, 5]}, "year": year}
    schema = dp.Schema.from_dict({**SCHEMA.to_dict(), "n_records": 1200, "columns": columns})
    assert not dp.check_table("lake", schema).problems
    store = dp.BudgetStore.create("study.budget", epsilon=4.0, delta=1e-4, dataset="lake")

    def fitted(table, **options):
        mechanism = DPSGD(loss="squared", steps=3)
        reg = dp.PrivateConformalRegressor(mechanism, epsilon=4.0, guarantee="split", accountant="rdp", **options)
        return reg.fit(table, "cost", schema=schema, budget=None if "random_state" in options else store)

    fitted("lake", verbose=1)
    shown = capsys.readouterr().err
    assert shown.startswith("dpscp: read the table\n")
    with pytest.raises(dp.BudgetError):
        fitted("lake")
    in_memory = fitted(frame, random_state=1)
    scan = pl.scan_parquet("lake", hive_partitioning=True)
    files = "read_parquet('lake/**/*.parquet', hive_partitioning = true, filename = true, file_row_number = true)"
    in_order = f"from {files} order by filename, file_row_number"  # DuckDB keeps no order of its own
    query = duckdb.sql(f"select * exclude (filename, file_row_number) {in_order}")
    parts = [f"lake/*={year}/*.parquet" for year in (2023, 2024, 2025)]
    for table in ("lake", f"{tmp_path.as_uri()}/lake/**/*.parquet", parts, scan, query):
        assert fitted(table, random_state=1).threshold_.tobytes() == in_memory.threshold_.tobytes()
    in_memory.predict_file("lake", "predicted.parquet")
    np.testing.assert_array_equal(pd.read_parquet("predicted.parquet")["prediction"], in_memory.predict(frame))

    drifted = frame[:5].drop(columns="year").astype({"x2": str})
    drifted.loc[3, "x2"] = "canary-4711"
    drifted.to_parquet("lake/year=2025/2.parquet")
    with pytest.raises(ValueError, match="column 'x2' is declared numeric") as refused:
        fitted("lake", random_state=1)
    assert "year=2025/2.parquet" in refused.value.__notes__[0]
    (problem,) = dp.check_table("lake", schema).problems
    assert problem.n_records == 1
    assert problem.place == "record 4 of 'lake/year=2025/2.parquet'"
    assert "canary" not in f"{problem}{refused.value}{refused.value.__notes__}"
