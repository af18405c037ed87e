"""A process group of torch: every process gets what one process with the same blocks gets, also an error."""

import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpscp as dp
from dpscp.sources import ArraySource, Block, DistributedSource, distributed
from dpscp.training import DPSGD, OpacusTraining

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
        "torch": OpacusTraining(net, sampling_rate=0.3, steps=6, learning_rate=1.0),
    }


def estimator(mechanism, **changes):
    options = {"guarantee": "split", "classes": ["no", "yes"], "n_records": N, "delta": 1e-5, "random_state": 4}
    return dp.PrivateConformalClassifier(mechanism, epsilon=4.0, feature_bounds=(-4, 4), **options | changes)


def released(model):
    arrays = {name: value.tobytes() for name, value in model.model_.arrays().items()}
    return arrays, model.threshold_.tobytes(), model.ledger_.to_json(), [c.to_dict() for c in model.certificates_]


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
    assert "one target for each row" in found["a_bad_shape"][1]
    assert found["a_bad_block"] == ("FileNotFoundError", "block 1")
    assert "cannot travel between processes" in found["code_without_a_name"][1]
    assert "called in every process" in found["on_its_own"][1]


@pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
def test_a_group_of_one_gives_what_the_same_blocks_give(tmp_path):
    check(process(0, 1, tmp_path), tmp_path)


def test_without_a_group_there_is_no_source():
    with pytest.raises(RuntimeError, match="init_process_group"):
        DistributedSource(*made())


@pytest.fixture
def alone(monkeypatch):
    """A source of process 1 behind a process with two blocks; nothing is sent, what would be is noted."""
    group, said = torch.distributed, []
    monkeypatch.setattr(group, "is_initialized", lambda: True)
    monkeypatch.setattr(group, "get_rank", lambda: 1)
    monkeypatch.setattr(group, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed._Group, "from_all", lambda _, here: [(3, 2), here])
    monkeypatch.setattr(distributed._Group, "_to_all", lambda _, final=None: said.append(final) or said[0])
    return DistributedSource(*made(), n_blocks=2), said


def test_blocks_are_numbered_after_those_of_the_processes_before(alone):
    assert alone[0]._group.kept[0].sum(lambda block: [block.id]) == [2, 3]


def test_an_error_of_process_0_is_one_of_all(alone, monkeypatch):
    group, said = alone[0]._group, alone[1]
    monkeypatch.setattr(group, "rank", 0)
    with pytest.raises(FileNotFoundError, match="block 1"):
        group.lead(lambda: fails_in_the_last_block(Block(1, np.zeros((0, 1)), np.zeros(0))))
    monkeypatch.setattr(group, "rank", 1)
    monkeypatch.setattr(distributed._Group, "_to_all", lambda _: (b"", said[0]))
    with pytest.raises(FileNotFoundError, match="block 1"):
        group.lead(lambda: None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::dpscp.exceptions.SeededWarning")
def test_two_processes_find_the_bits_of_one_and_the_same_errors(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)], env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        for rank in (0, 1)
    ]
    assert [one.wait(timeout=120) for one in started] == [0, 0]
    first, second = (pickle.loads((tmp_path / f"found{rank}").read_bytes()) for rank in (0, 1))
    for name in WORK:
        assert pickle.dumps(first[name]) == pickle.dumps(second[name]), name
    check(first, tmp_path)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    (folder / f"found{rank}").write_bytes(pickle.dumps(process(rank, 2, folder)))
