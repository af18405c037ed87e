"""What a fit costs where the records do not fit into memory, or lie on several machines.

    python benchmarks/scale.py file [--records 10000000]      # 'dpscp fit' on Parquet under a limit below the data
    python benchmarks/scale.py constants [--runs 3]           # of the cost model, into scale.json and the page
    python benchmarks/scale.py page                           # the tables of docs/large_data.md from scale.json
    python benchmarks/scale.py group                          # a round of two processes of torch.distributed
    python benchmarks/scale.py cluster [--records 10000000]   # two processes against the prediction from the constants

Times are CPU seconds (of all processes together), so that other work on the machine changes them little. Records are
made up: 20 features, two classes; on the cluster every block is made by the worker that holds it.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from dpscp.training.recipe import LARGEST_BATCH

HERE = Path(__file__).resolve().parent
FOUND, PAGE = HERE / "scale.json", HERE.parent / "docs" / "large_data.md"
N_FEATURES, BLOCK, ROWS_OF_A_PERSON = 20, 1 << 17, 4
SCHEMA = {
    "task": "classification",
    "target": "label",
    "classes": ["0", "1"],
    "columns": {f"x{i}": {"type": "numeric", "bounds": [-4, 4]} for i in range(N_FEATURES)},
}


def made_rows(number: int, size: int = BLOCK) -> tuple[Any, Any]:
    """The records of one block, the same each time."""
    rng = np.random.default_rng(number)
    X = rng.normal(size=(size, N_FEATURES))
    return X, (X[:, 0] + X[:, 1] + rng.normal(size=size) > 0).astype(np.int64)


def block_sizes(n: int) -> list[int]:
    return [min(BLOCK, n - start) for start in range(0, n, BLOCK)]


def write_parquet(path: Path, n: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for number, size in enumerate(block_sizes(n)):
        X, y = made_rows(number, size)
        who = np.random.default_rng([number, 1]).integers(0, max(1, n // ROWS_OF_A_PERSON), size)
        columns = {f"x{i}": X[:, i] for i in range(N_FEATURES)} | {"label": y.astype(str), "who": who}
        batch = pa.record_batch(columns)
        writer = writer or pq.ParquetWriter(path, batch.schema)
        writer.write_batch(batch)
    assert writer is not None
    writer.close()


# ---- a file under a limit

LIMITED = """
import resource, sys
from dpscp.cli import main
import dpscp.cli.commands, pandas, pyarrow.parquet, pyarrow.compute, randomgen
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
room = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
code = main(sys.argv[2:])
own = resource.getrusage(resource.RUSAGE_SELF)
print("measured", code, own.ru_utime + own.ru_stime, own.ru_maxrss * 1024 - before, used)
"""


def fit_under_limit(n: int, room: int, folder: Path) -> None:
    """Fit on a Parquet file with so many bytes of address space beside what the libraries take."""
    path, schema = folder / "people.parquet", folder / "schema.json"
    write_parquet(path, n)
    schema.write_text(json.dumps(SCHEMA))
    size = path.stat().st_size
    matrix = n * N_FEATURES * 8
    print(f"{n:,} records x {N_FEATURES}: file {size / 1e6:,.0f} MB, as a float64 matrix {matrix / 1e6:,.0f} MB")
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(room)]
    command += ["fit", str(path), "--schema", str(schema), "-o", str(folder / "model.dpscp"), "--delta", "1e-8"]
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    print(done.stdout.split("measured")[0].strip())
    code, seconds, peak, used = map(float, done.stdout.split("measured")[1].split())
    print(f"exit code {code:.0f}; address space: {room / 1e6:,.0f} MB beside {used / 1e6:,.0f} MB of the libraries'")
    print(f"CPU {seconds:,.0f} s, peak resident memory {peak / 1e6:,.0f} MB above the libraries'")


# ---- constants of the cost model


def cpu_of(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


class Timed:
    """A source that counts CPU seconds, rounds and bytes of every sum, by what the sum is for.

    ``most``: the rounds of one kind that are computed; later ones get the last answer, since a step costs what a step
    costs. None: all of them.
    """

    def __init__(self, source: Any, log: dict[str, list[float]], most: int | None = None) -> None:
        self._source, self._log, self._most = source, log, most
        self._last: Any = None

    @property
    def width(self) -> int:
        return int(self._source.width)

    @property
    def whole(self) -> None:
        return

    def map(self, function: Any, *, keep: bool = False) -> "Timed":
        found: list[Any] = []
        seconds = cpu_of(lambda: found.append(self._source.map(function, keep=keep)))
        self._note(f"keep {_name(function)}", seconds, 0) if keep else None
        return Timed(found[0], self._log, self._most)

    def sum(self, function: Any) -> Any:
        if self._most is not None and self._log.get(_name(function), [0])[0] >= self._most:
            return self._last
        found: list[Any] = []
        seconds = cpu_of(lambda: found.append(self._source.sum(function)))
        self._note(_name(function), seconds, len(pickle.dumps(function, 5)) + len(pickle.dumps(found[0], 5)))
        self._last = found[0]
        return found[0]

    def _note(self, name: str, seconds: float, size: float) -> None:
        times, total, largest = self._log.get(name, [0, 0.0, 0.0])
        self._log[name] = [times + 1, total + seconds, max(largest, size)]


def _name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a partial
    return getattr(function, "__name__", type(function).__name__).strip("_")


def print_log(log: dict[str, list[float]], n: int, blocks: int) -> None:
    print(f"{'work':24s}{'rounds':>8s}{'CPU s a round':>16s}{'ns a record':>14s}{'bytes a block':>16s}")
    for name, (times, seconds, size) in log.items():
        print(f"{name:24s}{times:8.0f}{seconds / times:16.4f}{1e9 * seconds / times / n:14.1f}{size:16,.0f}")
    print(f"{blocks} blocks")


# what each kind of work is called in the docs, and in the log of a fit
WORK = {
    "checks": "FirstLook",
    "moments": "sum_and_count",
    "preparing": "keep build_engine_block",
    "scoring": "keep Scoring",
}
STEPS, BATCH, LARGEST_BLOCK, KEPT_BYTES = 1500, LARGEST_BATCH, 3 * 10**7, 84


def one_fit(source: Any, classes: list[Any], n: int) -> dict[str, float]:
    """CPU microseconds of each kind of work in a fit of the recipe, by record or by record of a batch."""
    import dpscp as dp

    log: dict[str, list[float]] = {}
    public = {"classes": classes, "feature_bounds": (-4, 4), "n_records": n}
    clf = dp.PrivateConformalClassifier(epsilon=1.0, delta=1e-9, guarantee="split", **public)
    clf.fit(Timed(source, log, most=50))
    each = {name: 1e6 * log[work][1] / log[work][0] / n for name, work in WORK.items()}
    times, seconds, _ = log["BatchGradient"]
    each["gradient"] = 1e6 * seconds / times / clf.ledger_.public_facts["normalizer"]
    times, seconds, _ = log["Look"]
    return each | {"look": 1e6 * seconds / times / n}


def constants(n: int, runs: int, folder: Path) -> None:
    """CPU time of each kind of work, from fits on a Parquet file and on blocks in memory that take turns; medians."""
    import peers
    from dpscp.data.schema import Schema
    from dpscp.data.sources import ArraySource, Block, TableSource

    path, schema = folder / "people.parquet", Schema.from_dict(SCHEMA)
    write_parquet(path, n)
    blocks = [Block(i, *made_rows(i, size)) for i, size in enumerate(block_sizes(n))]
    persons = Schema.from_dict({**SCHEMA, "person": "who", "rows_per_person": 3, "n_persons": n // ROWS_OF_A_PERSON})
    few = [Block(0, *made_rows(0, 20_000))]
    one_fit(ArraySource.of_blocks([*few, Block(1, *made_rows(1, 100))]), [0, 1], 20_000)  # what is loaded once
    found: dict[str, list[dict[str, float]]] = {"parquet": [], "memory": []}
    for _ in range(runs):
        together = cpu_of(lambda: TableSource(path, persons, scratch=folder).sum(len))
        in_file = one_fit(TableSource(path, schema, scratch=folder), list(schema.classes or ()), n)
        found["parquet"].append(in_file | {"persons": 1e6 * together / n})
        found["memory"].append(one_fit(ArraySource.of_blocks(blocks), [0, 1], n))
    told = json.loads(FOUND.read_text())
    for place, taken in found.items():
        told[place] = {name: float(f"{statistics.median(one[name] for one in taken):.2g}") for name in taken[0]}
    told["measured"] = (
        f"{date.today().isoformat()}, commit {peers.commit()}, {peers.machine()}; {n:,} records, "
        f"{peers.circumstances(runs)}"
    )
    FOUND.write_text(json.dumps(told, indent=1) + "\n")
    write_page()


# ---- the page: what the constants say about tables that were not run


def duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def volume(size: float) -> str:
    return "0" if not size else f"{size / 1e9:.1f} GB" if size < 1e9 else f"{size / 1e9:,.0f} GB"


def predicted(n: int, workers: int, told: dict[str, Any]) -> list[str]:
    """A row of the table: blocks, seconds, bytes; one worker is a machine without a cluster."""
    blocks = max(workers, -(-n // LARGEST_BLOCK)) if workers > 1 else -(-n // LARGEST_BLOCK)
    reading = n * sum(told["parquet"][name] for name in WORK) * 1e-6 / workers
    steps = STEPS * (BATCH * told["memory"]["gradient"] * 1e-6 + blocks * told["block_ms"] * 1e-3) / workers
    alone = workers == 1
    driver = 0.0 if alone else STEPS * (told["round_ms"] + blocks * told["driver_ms"]) * 1e-3
    moved = 0.0 if alone else (STEPS + 8) * blocks * told["round_kb"] * 1e3
    times = [duration(t) for t in (reading, steps, driver, reading + steps + driver)]
    return [f"10^{len(str(n)) - 1}", str(workers), str(blocks), *times, volume(moved), volume(n * KEPT_BYTES / workers)]


def tables(told: dict[str, Any]) -> str:
    """The constants and what they predict, as they stand on the page."""
    each = told["parquet"]
    parts = ", ".join(f"{name} {each[name]:.2g}" for name in WORK)
    step = 1e-3 * BATCH * told["memory"]["gradient"]
    group, how = told["group_ms"], "`scale.py constants`"
    rows = [
        ["constant", "measured", "how"],
        ["reading, Parquet", f"{sum(each[name] for name in WORK):.2g} µs a record: {parts}", how],
        ["reading, memory", f"{sum(told['memory'][name] for name in WORK):.2g} µs a record", "the same"],
        ["gradient", f"{told['memory']['gradient']:.2g} µs a record of the batch: {step:.0f} ms a step", "the same"],
        ["counting", f"{1e3 * told['memory']['look']:.2g} ns a score and look; 3 looks", "the same"],
        ["bringing persons together", f"{each['persons']:.2g} µs a record, once, Parquet", "the same"],
        ["block", f"{told['block_ms']:g} ms a block and step: drawing its batch, mapping its file", told["block_how"]],
        ["round, driver", f"{told['round_ms']:g} ms a round and {told['driver_ms']:g} ms a block: Dask's graph, "
         "scheduler and pickling, in the driver's process", told["round_how"]],
        ["bytes", f"{told['round_kb']:g} kB a block and round, both ways; none between workers", told["round_how"]],
        ["round, `torch.distributed`", f"{group[0]:g} ms a round of two processes, and {group[1]:g} ms for each 10^6 "
         "parameters, in process 0", told["group_how"]],
    ]  # fmt: skip
    heads = ["records", "workers", "blocks", "reading", "steps", "driver", "together"]
    table = [[*heads, "bytes moved", "kept by each worker"]]
    table += [predicted(10**power, workers, told) for power in (8, 9, 10) for workers in (1, 10, 100)]

    def drawn(lines: list[list[str]]) -> str:
        head, *body = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([head, "|" + "---|" * len(lines[0]), *body])

    words = (
        f"Measured {told['measured']}.",
        "The driver limits a cluster. So use blocks as large as the memory of the workers allows (at most 2^25 "
        f"records). The table predicts the time of {STEPS:,} steps on Parquet, with blocks of up to 3 * 10^7 records. "
        f"Workers keep {KEPT_BYTES} bytes a record (a single machine keeps them in its scratch file):",
    )
    return "\n\n".join([drawn(rows), *(textwrap.fill(paragraph, 118) for paragraph in words), drawn(table)])


FROM, TO = "<!-- from scale.py page -->\n\n", "\n\n<!-- to here -->"


def write_page() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(FROM)
    _, _, after = rest.partition(TO)
    PAGE.write_text(before + FROM + tables(json.loads(FOUND.read_text())) + TO + after)


# ---- two processes


class Sent:
    """As much as a step sends and gets back, and no work."""

    def __init__(self, size: int) -> None:
        self.parameters = np.zeros(size, dtype=np.float32)

    def __call__(self, _: Any) -> Any:
        return self.parameters


def rounds_of_a_group(rank: int, folder: str) -> None:
    import torch

    from dpscp.data.sources import DistributedSource

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    source = DistributedSource(np.zeros((1, 1)), np.zeros(1))
    for size in (3_000, 1_000_000):

        def several(function: Sent = Sent(size)) -> None:  # noqa: B008 (one for all rounds)
            for _ in range(50):
                source.sum(function)

        seconds = source.lead(lambda work=several: cpu_of(work))
        if rank == 0:
            print(f"{size:,} parameters: {1e3 * seconds / 50:.1f} ms of process 0 a round, two processes")
    torch.distributed.destroy_process_group()


def group(folder: Path) -> None:
    """The cost of a round of torch.distributed."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=rounds_of_a_group, args=(rank, str(folder))) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def counted_bytes() -> Any:
    """Count what this process writes to its connections from now on; asked again, the count."""
    from distributed.comm import tcp

    if not hasattr(tcp.TCP, "counted"):
        tcp.TCP.counted = 0
        plain_write = tcp.TCP.write

        async def write(self: Any, *given: Any, **named: Any) -> Any:
            size = await plain_write(self, *given, **named)
            tcp.TCP.counted += size
            return size

        tcp.TCP.write = write
    return tcp.TCP.counted


def received_from_workers(dask_worker: Any) -> float:
    return float(sum(entry["total"] for entry in dask_worker.transfer_incoming_log))


def cluster(n: int, workers: int, steps: int) -> None:
    """A fit on blocks that the workers make themselves; prints the cost of each kind of work and all bytes moved.

    The net and the batch of the recipe, and so many steps: the cost of a step does not depend on their number.
    """
    import dask.array as da
    from distributed import Client, LocalCluster

    import dpscp as dp
    from dpscp.data.sources import DaskSource

    sizes = block_sizes(n)
    chunks = (tuple(sizes), (N_FEATURES,))

    def part(which: int, block_id: tuple[int, ...]) -> Any:
        return made_rows(block_id[0], sizes[block_id[0]])[which]

    X = da.map_blocks(lambda block_id=None: part(0, block_id), chunks=chunks, dtype=float, meta=np.empty((0, 0)))
    y = da.map_blocks(
        lambda block_id=None: part(1, block_id), chunks=chunks[:1], dtype=int, meta=np.empty(0, dtype=int)
    )
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None) as machines,
        Client(machines) as client,
    ):
        client.run(lambda: __import__("dpscp"))
        counted_bytes()
        client.run(counted_bytes)
        client.run(lambda: time.process_time())
        before, start, wall = sum(client.run(time.process_time).values()), time.process_time(), time.perf_counter()
        sent, told = counted_bytes(), sum(client.run(counted_bytes).values())
        log: dict[str, list[float]] = {}
        net = dp.training.DPSGD(hidden=(128,), sampling_rate=min(1.0, 62_500 / n), steps=steps, momentum=0.9)
        public = {"classes": [0, 1], "feature_bounds": (-4, 4), "n_records": n}
        clf = dp.PrivateConformalClassifier(net, epsilon=1.0, delta=1e-9, guarantee="split", **public)
        clf.fit(Timed(DaskSource(X, y), log))
        there = sum(client.run(time.process_time).values()) - before
        print(f"{n:,} records in {len(sizes)} blocks on {workers} processes: {there:,.0f} CPU s there, ", end="")
        print(f"{time.process_time() - start:,.0f} CPU s here, {time.perf_counter() - wall:,.0f} s of wall time")
        out, back = counted_bytes() - sent, sum(client.run(counted_bytes).values()) - told
        moved = sum(client.run(received_from_workers).values())
        rounds = sum(times for times, _, _ in log.values())
        each = (out + back) / rounds / len(sizes) / 1e3
        print(f"bytes written: {out / 1e6:,.1f} MB by driver and scheduler, {back / 1e6:,.1f} MB by the workers,")
        print(f"of these {moved / 1e6:,.3f} MB from worker to worker; the rows are {n * N_FEATURES * 8 / 1e6:,.0f} MB")
        print(f"{rounds:.0f} rounds, {each:,.1f} kB a block and round")
        print_log(log, n, len(sizes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("file", "constants", "page", "group", "cluster"))
    parser.add_argument("--runs", type=int, default=3, help="of the fits whose constants are taken")
    parser.add_argument("--records", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of the fit on a cluster (the recipe takes 1500)")
    parser.add_argument("--room", type=int, default=600, help="megabytes of address space beside the libraries")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        if given.what == "file":
            fit_under_limit(given.records or 10**7, given.room * 10**6, Path(place))
        elif given.what == "constants":
            constants(given.records or 10**6, given.runs, Path(place))
        elif given.what == "page":
            write_page()
        elif given.what == "group":
            group(Path(place))
        else:
            cluster(given.records or 10**7, given.workers, given.steps)
