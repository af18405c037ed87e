"""Fits on files and clusters: the same bits as on the same blocks in memory, the same words, the same ledger."""

import json
import os
import signal
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.schema import parse_schema
from dpscp.data.sources import ArraySource, Block, DaskSource
from dpscp.training import DPSGD

N, BLOCKS = 3000, 6
SIZE = N // BLOCKS
SCHEMA = parse_schema(
    """
task = "classification"
target = "label"
classes = ["no", "yes"]

[columns.a]
type = "numeric"
bounds = [-4, 4]

[columns.b]
type = "categorical"
categories = ["u", "v", "w"]
"""
)


def made(n: int = N) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=n), rng.choice(["u", "v", "w"], n)
    label = np.where(a + (b == "u") + 0.5 * rng.normal(size=n) > 0, "yes", "no")
    return pd.DataFrame({"a": a, "b": b, "label": label, "value": a + 0.3 * rng.normal(size=n)})


def classifier(dtype="float32", **changes):
    # random batches: what each block draws is part of the promise
    mechanism = DPSGD(sampling_rate=0.3, steps=12, learning_rate=1.0, dtype=dtype)
    options = {"estimator": mechanism, "epsilon": 2.0, "guarantee": "split", "n_records": N, "random_state": 3}
    return dp.PrivateConformalClassifier(**options | changes)


def in_memory(schema, frame) -> ArraySource:
    X, y = schema.matrix(frame), schema.targets(frame)
    parts = [slice(i * SIZE, (i + 1) * SIZE) for i in range(BLOCKS)]
    return ArraySource.of_blocks([Block(i, X[part], y[part]) for i, part in enumerate(parts)])


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def expected(frame, released):
    return released(classifier().fit(in_memory(SCHEMA, frame), schema=SCHEMA))


# ---- two processes; a limit of memory


def made_part(which: int, number: int):
    """Rows or targets of one block, made by whoever needs them."""
    part = made()[number * SIZE : (number + 1) * SIZE]
    return SCHEMA.matrix(part) if which == 0 else SCHEMA.targets(part)


@pytest.mark.slow
def test_two_processes_release_the_same_bits_also_when_one_is_killed(frame, expected, released):
    from distributed import Client, LocalCluster

    parts = [[dask.delayed(made_part)(which, i) for i in range(BLOCKS)] for which in (0, 1)]
    X = da.concatenate([da.from_delayed(p, (SIZE, 4), float) for p in parts[0]])
    y = da.concatenate([da.from_delayed(p, (SIZE,), "<U3") for p in parts[1]])
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert released(classifier().fit(DaskSource(X, y), schema=SCHEMA)) == expected
        exact = released(classifier("float64").fit(in_memory(SCHEMA, frame), schema=SCHEMA))
        assert released(classifier("float64").fit(DaskSource(X, y), schema=SCHEMA)) == exact
        moved = client.run(lambda dask_worker: sum(e["total"] for e in dask_worker.transfer_incoming_log))
        assert sum(moved.values()) < 0.2 * N * 4 * 8  # rows stay where they are
        victims = list(client.run(os.getpid).values())
        steps = []

        def watched(rounds, *given):
            for t in progress(rounds, *given):
                steps.append(t)
                if len(steps) == 4:
                    os.kill(victims[0], signal.SIGKILL)
                yield t

        from dpscp.training.mechanisms import dpsgd

        progress = dpsgd.progress
        dpsgd.progress = watched
        try:
            assert released(classifier("float64").fit(DaskSource(X, y), schema=SCHEMA)) == exact
        finally:
            dpsgd.progress = progress
        assert len(steps) == 12
        assert set(client.run(os.getpid).values()) != set(victims)


LIMITED = """
import resource, sys
import dpscp as dp, pandas, pyarrow.parquet, pyarrow.compute, randomgen
from dpscp.training import DPSGD
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
mechanism = DPSGD(sampling_rate=0.01, steps=5, learning_rate=1.0)
table = sys.argv[2] if sys.argv[2] == "t.parquet" else pandas.read_parquet("t.parquet")
clf = dp.PrivateConformalClassifier(mechanism, delta=1e-7)
clf.fit(table, "label", schema=dp.Schema.read("s.json")).save("m.dpscp")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_table_larger_than_the_address_space_is_fitted(tmp_path):
    """A code with a hundred values: a small file, and numbers that take more room than the process may have."""
    n, rng = 400_000, np.random.default_rng(0)
    codes = [f"c{i}" for i in range(100)]
    table = pd.DataFrame({"code": rng.choice(codes, n), "label": rng.choice(["no", "yes"], n)})
    table.to_parquet(tmp_path / "t.parquet", index=False)
    schema = {"task": "classification", "target": "label", "classes": ["no", "yes"], "n_records": n}
    schema["columns"] = {"code": {"type": "categorical", "categories": codes}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    room = 280 * 2**20  # with the modules that a fit imports
    assert room < n * len(codes) * 8
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(how: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(room), how]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = run("t.parquet")
    assert done.returncode == 0, done.stderr
    assert dp.load(tmp_path / "m.dpscp").n_features_in_ == 100
    assert "MemoryError" in run("in memory").stderr
