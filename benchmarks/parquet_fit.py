"""What a default fit from a Parquet file costs, beside one scan of the file and a pipeline without privacy.

    python benchmarks/parquet_fit.py [--records 400000] [--columns 40] [--rounds 3]

Each run is a process of its own on one core, and the runs of a round follow one another. CPU time and memory are those
of the work, after imports. Medians over the rounds. `python benchmarks/peers.py parquet` writes them to the page.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE = 100_000


def write_table(path: Path, records: int, columns: int) -> None:
    """Write synthetic numbers, every fourth column log-normal, and a label of two classes."""
    rng, writer = np.random.default_rng(0), None
    weights = rng.normal(size=columns)
    for start in range(0, records, ROWS_AT_ONCE):
        X = rng.normal(size=(min(ROWS_AT_ONCE, records - start), columns))
        X[:, ::4] = np.exp(X[:, ::4])
        y = np.where(X @ weights + 3 * rng.normal(size=len(X)) > 0, "yes", "no")
        part = pa.table({**{f"x{i}": X[:, i] for i in range(columns)}, "y": y})
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
    if writer is not None:
        writer.close()


def scan(path: str, columns: int) -> None:
    """Read all numbers once, as float32 matrices."""
    for batch in pq.ParquetFile(path).iter_batches(1 << 16, use_threads=False):
        rows = np.empty((len(batch), columns), dtype=np.float32)
        for i in range(columns):
            rows[:, i] = batch.column(i).to_numpy(zero_copy_only=False)


def fit(path: str, columns: int) -> None:
    """Fit the default recipe with its default guarantee."""
    import dpscp as dp

    bounds = {f"x{i}": [0, 100] if i % 4 == 0 else [-10, 10] for i in range(columns)}
    schema = dp.Schema.from_dict(
        {
            "task": "classification",
            "target": "y",
            "classes": ["no", "yes"],
            "n_records": pq.read_metadata(path).num_rows,
            "columns": {name: {"type": "numeric", "bounds": own} for name, own in bounds.items()},
        }
    )
    dp.PrivateConformalClassifier(epsilon=1.0, delta=1e-7).fit(path, "y", schema=schema)


def pipeline(path: str, columns: int) -> None:
    """Fit scaled numbers and their quantiles by logistic regression, with split conformal sets, without privacy."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import QuantileTransformer, StandardScaler

    frame = pd.read_parquet(path)
    X, held_out, y, labels = train_test_split(frame.iloc[:, :columns], frame["y"], test_size=0.15, random_state=0)
    features = make_union(StandardScaler(), QuantileTransformer(random_state=0))
    model = make_pipeline(features, LogisticRegression()).fit(X, y)
    shares = model.predict_proba(held_out)[np.arange(len(labels)), np.searchsorted(model.classes_, labels)]
    np.quantile(1 - shares, 0.9)


WORK = {"one pyarrow scan to float32": scan, "default fit from Parquet": fit, "pandas + scikit-learn": pipeline}


def measure(name: str, path: str, columns: int) -> None:
    """Do one of the works and print its CPU seconds, its seconds, the bytes that its peak adds, and its readings."""
    import resource
    import time

    import pandas  # noqa: F401
    import sklearn.pipeline  # noqa: F401

    from dpscp.data.sources.files import TableFile

    readings, read = [], TableFile.batches

    def counted(file: TableFile, *how: Any) -> Any:
        readings.append(1)
        return read(file, *how)

    TableFile.batches = counted  # type: ignore[method-assign]
    first = Path(path).with_name("first.parquet")
    WORK[name](str(first), columns)  # imports and caches
    readings.clear()
    before, start, clock = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.monotonic()
    WORK[name](path, columns)
    seconds, elapsed = time.process_time() - start, time.monotonic() - clock
    extra = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    print(seconds, elapsed, extra, len(readings) or 1)


COLUMNS = ["", "CPU s", "clock s", "CPU us a record", "CPU, times the scan", "extra MB", "readings"]


def compare(records: int, columns: int, rounds: int, folder: Path) -> list[list[str]]:
    """Write the table, do every work in each round, and return a row of ``COLUMNS`` for each."""
    path = folder / "table.parquet"
    write_table(path, records, columns)
    write_table(folder / "first.parquet", 2000, columns)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    found: dict[str, list[list[float]]] = {name: [] for name in WORK}
    for _ in range(rounds):
        for name, values in found.items():
            command = [sys.executable, "-W", "ignore", __file__, "--do", name, "--path", str(path)]
            done = subprocess.run(
                [*command, "--columns", str(columns)], capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            values.append([float(word) for word in done.stdout.split()])
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    one_scan = medians["one pyarrow scan to float32"][0]
    return [
        [name, *(f"{number:.2f}" for number in (cpu, clock, 1e6 * cpu / records, cpu / one_scan)), *whole]
        for name, (cpu, clock, extra, readings) in medians.items()
        for whole in [(f"{extra / 1e6:.0f}", f"{readings:.0f}")]
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--do", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.do:
        measure(given.do, given.path, given.columns)
    else:
        with tempfile.TemporaryDirectory() as place:
            for line in [COLUMNS, *compare(given.records, given.columns, given.rounds, Path(place))]:
                print("".join(f"{cell:>{32 if place == 0 else 22}}" for place, cell in enumerate(line)))
