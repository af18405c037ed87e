"""A process group of torch: every process gets what one process with the same blocks gets, also an error."""

import io
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, DistributedSource, TableSource, distributed
from dpscp.training import DPSGD, TorchDPSGD
from dpscp.training.engine.loop import BatchGradient

torch = pytest.importorskip("torch")
N, CUT = 900, 300
CANARY = "canary-9182"


def made():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3))
    return X, np.where(X @ [1.0, -1.0, 0.5] > 0, "yes", "no")


def parts():
    X, y = made()
    return [(X[:CUT], y[:CUT]), (X[CUT:], y[CUT:])]


def in_one_process():
    """The blocks of both processes in one, cut where the processes are."""
    return ArraySource.of_blocks([Block(i, X, y) for i, (X, y) in enumerate(parts())])


def source(rank, size):
    """What the processes bring: each its part, or one process both."""
    return DistributedSource(*parts()[rank]) if size == 2 else DistributedSource(in_one_process())


def mechanisms():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return {
        "numpy": DPSGD(hidden=(4,), sampling_rate=0.3, steps=6, learning_rate=1.0, dtype="float64"),
        "torch": TorchDPSGD(net, sampling_rate=0.3, steps=6, learning_rate=1.0),
    }


def estimator(mechanism, **changes):
    options = {"guarantee": "split", "classes": ["no", "yes"], "n_records": N, "delta": 1e-5, "random_state": 4}
    return dp.PrivateConformalClassifier(mechanism, epsilon=4.0, feature_bounds=(-4, 4), **options | changes)


def released(model):
    arrays = {name: value.tobytes() for name, value in model.model_.arrays().items()}
    # but for the sentence that says where the records came from
    ledger, believed = replace(model.ledger_, assumptions=()), set(model.ledger_.assumptions)
    # in one order: that of a set differs between processes
    certificates = [
        c.to_dict() | {"assumptions": sorted({*c.assumptions} - believed, key=str)} for c in model.certificates_
    ]
    return arrays, model.threshold_.tobytes(), ledger.to_dict(), certificates


def store_of(rank, folder, name):
    return dp.BudgetStore.create(folder / name, 10.0, 1e-3, dataset="people") if rank == 0 else None


def error_of(work):
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which one, and its words, is compared)
        work()
    return caught.type.__name__, str(caught.value)


def one_draw_for_all(rank, size, folder):
    """System entropy: equal results can only come from one draw. The store is process 0's."""
    model = estimator(mechanisms()["numpy"], random_state=None)
    return released(model.fit(source(rank, size), budget=store_of(rank, folder, "spent")))


def without_an_estimator(rank, size, folder):
    records = source(rank, size)
    mechanism = replace(mechanisms()["torch"], noise_multiplier=1.0, classes=("no", "yes"))
    return records.lead(lambda: mechanism.train_source(records, random_state=1, n_records=N)).model.arrays()


def a_bad_label(rank, size, folder):
    X, y = parts()[rank]
    y = y.astype(object)
    y[-1] = CANARY if rank == size - 1 else "no"
    model = estimator(mechanisms()["numpy"], random_state=None)
    return error_of(lambda: model.fit(DistributedSource(X, y), budget=store_of(rank, folder, "unspent")))


def a_bad_shape(rank, size, folder):
    X, y = parts()[rank]
    return error_of(lambda: DistributedSource(X, y[1:] if rank == size - 1 else y))


def fails_in_the_last_block(block):
    if block.id == 1:
        raise FileNotFoundError("block 1")
    return 1


def a_bad_block(rank, size, folder):
    records = source(rank, size)
    return error_of(lambda: records.lead(lambda: records.sum(fails_in_the_last_block)))


def code_without_a_name(rank, size, folder):
    mechanism = replace(mechanisms()["torch"], loss=lambda z, _: z.sum(1) * 0.0, classes=("no", "yes"))
    model = estimator(mechanism, random_state=None)
    return error_of(lambda: model.fit(source(rank, size), budget=store_of(rank, folder, "unsent")))


SCHEMA = dp.Schema.from_dict(
    {
        "task": "classification",
        "target": "label",
        "classes": ["no", "yes"],
        "person": "who",
        "rows_per_person": 2,
        "n_persons": 200,
        "columns": {name: {"type": "numeric", "bounds": [-4, 4]} for name in "abc"},
    }
)


def persons_in_files(rank, size, folder):
    """Rows of one person may be in both processes, so the source is refused in all."""
    X, y = parts()[rank]
    frame = pd.DataFrame(X, columns=list("abc")).assign(who=np.arange(len(y)) // 2, label=y)
    frame.to_parquet(folder / f"{rank}.parquet", index=False)
    table = TableSource(folder / f"{rank}.parquet", SCHEMA) if rank == size - 1 else ArraySource(X, y)
    return error_of(lambda: DistributedSource(table))


def on_its_own(rank, size, folder):
    return error_of(lambda: source(rank, size).sum(len))


FITS = {name: lambda rank, size, _, name=name: released(estimator(mechanisms()[name]).fit(source(rank, size)))
        for name in ("numpy", "torch")}  # fmt: skip
WORK = FITS | {
    work.__name__: work
    for work in (
        one_draw_for_all,
        without_an_estimator,
        a_bad_label,
        a_bad_shape,
        a_bad_block,
        code_without_a_name,
        persons_in_files,
        on_its_own,
    )
}


def process(rank, size, folder):
    """What one process of a group finds."""
    group = torch.distributed
    group.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    try:
        return {name: work(rank, size, folder) for name, work in WORK.items()}
    finally:
        group.destroy_process_group()


def check(found, folder):
    kind, words = found["persons_in_files"]
    assert kind == "ValueError"
    assert "has no person ids" in words
    for name in ("numpy", "torch"):
        assert found[name] == released(estimator(mechanisms()[name]).fit(in_one_process()))
    mechanism = replace(mechanisms()["torch"], noise_multiplier=1.0, classes=("no", "yes"))
    alone = mechanism.train_source(in_one_process(), random_state=1, n_records=N).model.arrays()
    assert all((found["without_an_estimator"][name] == value).all() for name, value in alone.items())
    for name, spent in (("spent", True), ("unspent", False), ("unsent", False)):
        assert bool(dp.BudgetStore.open(folder / name, dataset="people").ledger().entries) == spent
    X, y = made()
    y[-1] = CANARY
    kind, words = found["a_bad_label"]
    with pytest.raises(ValueError, match="classes") as alone:
        estimator(mechanisms()["numpy"]).fit(X, y)
    assert (kind, words) == (alone.type.__name__, str(alone.value))
    assert "y must have one target" in found["a_bad_shape"][1]
    assert found["a_bad_block"] == ("FileNotFoundError", "block 1")
    assert "cannot be sent to other processes" in found["code_without_a_name"][1]
    assert "call one of them in every process" in found["on_its_own"][1]


@pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
def test_a_group_of_one_gives_what_the_same_blocks_give(tmp_path):
    check(process(0, 1, tmp_path), tmp_path)


def test_without_a_group_there_is_no_source():
    with pytest.raises(RuntimeError, match="init_process_group"):
        DistributedSource(*made())


@pytest.fixture
def group_of_one(tmp_path):
    group = torch.distributed
    group.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield group
    group.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_persons_need_another_source():
    """Rows of one person may be in several processes."""
    X, y = parts()[0]
    with pytest.raises(ValueError, match="several processes"):
        DistributedSource(ArraySource.of_blocks([Block(0, X, y, Persons.single(len(X)))]))
    with pytest.raises(ValueError, match="the source has no ids"):
        dp.PrivateConformalClassifier(DPSGD(), epsilon=4.0).fit(DistributedSource(X, y), schema=SCHEMA)


def test_beside_nccl_messages_go_through_gloo(group_of_one, monkeypatch):
    """A group of nccl moves what lies on a GPU; totals are the processor's, and added there in the same order."""
    asked, used = [], []
    new_group, gathered = group_of_one.new_group, group_of_one.all_gather_object
    monkeypatch.setattr(group_of_one, "new_group", lambda **k: asked.append(k) or new_group(**k))
    monkeypatch.setattr(
        group_of_one, "all_gather_object", lambda *a, group: used.append(group) or gathered(*a, group=group)
    )
    X, y = made()
    for backend, groups in (("gloo", []), ("nccl", [{"backend": "gloo"}])):
        monkeypatch.setattr(group_of_one, "get_backend", lambda backend=backend: backend)
        records = DistributedSource(X, y, n_blocks=3)
        assert asked == groups
        assert (records.lead(lambda records=records: records.sum(len))) == N
        assert {one is None for one in used} == {backend == "gloo"}
        used.clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="nccl needs a GPU")
def test_a_group_of_nccl_sums_what_lies_with_the_processor(tmp_path):
    group = torch.distributed
    group.init_process_group("nccl", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        records = DistributedSource(*made(), n_blocks=3)
        assert records.lead(lambda: records.sum(len)) == N
    finally:
        group.destroy_process_group()


GONE = "another process of the group has ended or does not answer"


def check_half_a_fit(model, folder):
    """What was reserved is charged, and there is no model: neither in the estimator nor in a file."""
    assert not hasattr(model, "model_")
    assert not hasattr(model, "threshold_")
    assert dp.BudgetStore.open(folder / "store", dataset="people").ledger().entries
    assert {path.name.partition(".")[0].partition("-")[0] for path in folder.iterdir()} <= {"store", "meeting"}


def killed_in_the_middle(rank, dies, folder, timeout=60):
    """One process ends at its third step, as by the system; what the other one hears, and how soon."""
    group, taken, calls = torch.distributed, BatchGradient.__call__, []

    def step(self, block):
        calls.append(block.id)
        if calls.count(block.id) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken(self, block)

    if rank == dies:
        BatchGradient.__call__ = step
    limit = timedelta(seconds=timeout)
    meeting = f"file://{folder}/meeting"
    group.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=limit)
    model, records = short(), DistributedSource(*parts()[rank])
    start = time.monotonic()
    heard = error_of(lambda: model.fit(records, budget=store_of(rank, folder, "store")))
    in_time = time.monotonic() - start < timeout
    check_half_a_fit(model, folder)
    group.destroy_process_group()
    return heard, in_time


def short():
    return estimator(DPSGD(steps=6, noise_multiplier=4.0), accountant="rdp", random_state=None)


def test_a_process_that_is_gone_ends_the_fit_and_what_was_reserved_is_charged(group_of_one, monkeypatch, tmp_path):
    """As one that is killed, without the time to start some."""
    gathered, asked = group_of_one.gather_object, []

    def lost(*given, **options):
        asked.append(given)
        if len(asked) == 6:
            raise RuntimeError("Connection closed by peer [127.0.0.1]:4242")
        gathered(*given, **options)

    model = short()
    monkeypatch.setattr(group_of_one, "gather_object", lost)
    with pytest.raises(RuntimeError, match=GONE):
        model.fit(DistributedSource(*made()), budget=store_of(0, tmp_path, "store"))
    check_half_a_fit(model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_killed_process_ends_the_fit_of_the_other(dies, tmp_path):
    started = start(tmp_path, dies)
    ended = [one.wait(timeout=120) for one in started]
    assert ended == [-signal.SIGKILL if rank == dies else 0 for rank in (0, 1)]
    (kind, words), in_time = pickle.loads((tmp_path / f"found{1 - dies}").read_bytes())
    assert kind == "RuntimeError"
    assert GONE in words
    assert in_time
    assert dp.BudgetStore.open(tmp_path / "store", dataset="people").ledger().entries


def start(folder, *more):
    """Two processes of this file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    given = [str(folder), *map(str, more)]
    return [subprocess.Popen([sys.executable, __file__, str(rank), *given], env=environment) for rank in (0, 1)]


@pytest.fixture
def alone(monkeypatch):
    """A source of process 1 behind a process with two blocks; nothing is sent, what would be is noted."""
    group, said = torch.distributed, []
    monkeypatch.setattr(group, "is_initialized", lambda: True)
    monkeypatch.setattr(group, "get_rank", lambda: 1)
    monkeypatch.setattr(group, "get_world_size", lambda: 2)
    monkeypatch.setattr(group, "get_backend", lambda: "gloo")
    monkeypatch.setattr(distributed._Group, "gather_all", lambda _, here: [(3, 2), here])
    monkeypatch.setattr(distributed._Group, "_broadcast", lambda _, final=None: said.append(final) or said[0])
    return DistributedSource(*made(), n_blocks=2), said


def test_blocks_are_numbered_after_those_of_the_processes_before(alone):
    assert alone[0]._group.kept[0].sum(lambda block: [block.id]) == [2, 3]


def test_an_error_of_process_0_is_one_of_all(alone, monkeypatch):
    group, said = alone[0]._group, alone[1]
    monkeypatch.setattr(group, "rank", 0)
    with pytest.raises(FileNotFoundError, match="block 1"):
        group.lead(lambda: fails_in_the_last_block(Block(1, np.zeros((0, 1)), np.zeros(0))))
    monkeypatch.setattr(group, "rank", 1)
    monkeypatch.setattr(distributed._Group, "_broadcast", lambda _: (b"", said[0]))
    with pytest.raises(FileNotFoundError, match="block 1"):
        group.lead(lambda: None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
def test_two_processes_find_the_bits_of_one_and_the_same_errors(tmp_path):
    assert [one.wait(timeout=400) for one in start(tmp_path)] == [0, 0]
    first, second = (pickle.loads((tmp_path / f"found{rank}").read_bytes()) for rank in (0, 1))
    for name in WORK:
        assert bits_of(first[name]) == bits_of(second[name]), name
    check(first, tmp_path)


def bits_of(value):
    """Pickle every value in full: which equal objects are one object differs between processes."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.fast = True
    pickler.dump(value)
    return buffer.getvalue()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    found = killed_in_the_middle(rank, int(sys.argv[3]), folder) if sys.argv[3:] else process(rank, 2, folder)
    (folder / f"found{rank}").write_bytes(pickle.dumps(found))
    os._exit(0)  # all is written; now and then a thread of a C++ library aborts a process that ends by itself
