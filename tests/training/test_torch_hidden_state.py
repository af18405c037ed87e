"""State that a torch module keeps outside its own attributes is found on synthetic rows, before anything is spent.

Base classes, decisions about what is trained, imports inside a function, files with the name of a library, private
slots, and large or unreadable collections.
"""

import contextvars
import importlib
import queue
import sys
from typing import ClassVar

import pytest

from dpscp._base import object_state
from dpscp._base.object_state import changed_paths, state_digest
from dpscp._base.used_names import is_trusted
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
nn = torch.nn


def run_dry(module, loss="cross_entropy"):
    mechanism = OpacusTraining(module, loss, classes=(0, 1), sampling_rate=1.0, steps=2, noise_multiplier=1.0)
    return mechanism.check((6,))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)


# ---- state of a base class

KEPT = {"mean": None}


class KeepsInAList(Head):
    seen: ClassVar = []

    def forward(self, rows):
        self.seen.append(float(rows.sum()))
        return self.head(rows)


class KeepsInAGlobal(Head):
    def forward(self, rows):
        KEPT["mean"] = rows.detach().mean(0)
        return self.head(rows)


class Mixin:
    cache: ClassVar = {}

    def remember(self, rows):
        self.cache["rows"] = rows.detach()


class Remembers(Mixin, Head):
    def forward(self, rows):
        self.remember(rows)
        return self.head(rows)


class CountsLosses:
    total = 0.0

    def __call__(self, outputs, target):
        CountsLosses.total += float(outputs.sum())
        return nn.functional.cross_entropy(outputs, target, reduction="none")


class InheritsItsCount(CountsLosses):
    pass


def make_parametrized():
    """Return a module whose class torch made, with the caller's class as its base."""
    module = KeepsInAList()
    module.weight = nn.Parameter(torch.ones(6))
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Identity())
    return module


INHERITING = {
    "list of a base": (lambda: type("Net", (KeepsInAList,), {})(), "base KeepsInAList.seen"),
    "global of a base": (lambda: type("Net", (KeepsInAGlobal,), {})(), "base KeepsInAGlobal.forward.global KEPT"),
    "mixin": (Remembers, "base Mixin.cache"),
    "class that torch made": (make_parametrized, "base KeepsInAList.seen"),
}


@pytest.mark.parametrize("kind", INHERITING)
def test_state_that_a_base_class_keeps_is_refused(kind):
    module, path = INHERITING[kind]
    with pytest.raises(ValueError, match=rf"changed its own state in a forward pass \(.*{path}"):
        run_dry(module())


def test_state_on_the_base_class_of_a_loss_is_refused():
    with pytest.raises(ValueError, match=r"changed its own state .*base CountsLosses\.total"):
        run_dry(nn.Linear(6, 2), InheritsItsCount())


def test_state_of_a_hook_that_all_modules_call_is_refused():
    kept = {}
    hook = nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: kept.update(last=output))
    try:
        with pytest.raises(ValueError, match=r"changed its own state .*_global_forward_hooks"):
            run_dry(nn.Linear(6, 2))
    finally:
        hook.remove()


# ---- a module that was tried is tried again when other parameters are trained


class Standardizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, rows):
        return self.layer(rows - rows.mean(0) if self.training else rows)


def test_a_module_is_tried_again_after_more_of_it_is_trained():
    module = nn.Sequential(Standardizes(), nn.Linear(6, 2))
    module[0].requires_grad_(False)  # held in evaluation mode, in which rows stay apart
    run_dry(module)
    module[0].requires_grad_(True)
    with pytest.raises(ValueError, match="depends on the other records"):
        run_dry(module)


# ---- state that is the same before and after: the batches that are compared have different sizes

LAST = {"is_large": False}


class KeepsTheSize(Head):
    def forward(self, rows):
        LAST["is_large"] = len(rows) > 40
        return self.head(rows)


def test_a_module_that_keeps_the_size_of_its_last_batch_is_refused():
    for _ in range(2):
        with pytest.raises(ValueError, match=r"changed its own state .*LAST\['is_large'\]"):
            run_dry(KeepsTheSize())


# ---- what is imported, or has the name of a library

STORING = """
from torch import nn
SEEN = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, rows):
        {import_line}
        SEEN.append(rows.detach())
        return self.head(rows)
"""


def import_file(name, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    for known in [known for known in sys.modules if known.partition(".")[0] == name.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, known)
    module = importlib.import_module(name)
    for part in (name, name.partition(".")[0]):  # gone after the test
        monkeypatch.setitem(sys.modules, part, sys.modules[part])
    return module


@pytest.mark.parametrize("name", ["profile", "code"])
def test_a_file_of_the_caller_with_the_name_of_a_standard_module_is_not_trusted(name, tmp_path, monkeypatch):
    (tmp_path / f"{name}.py").write_text(STORING.format(import_line=""))
    module = import_file(name, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"changed its own state .*SEEN"):
        run_dry(module.Net())


@pytest.mark.parametrize("line", ["from .state import SEEN", "from . import state; SEEN = state.SEEN"])
def test_a_relative_import_inside_forward_is_followed(line, tmp_path, monkeypatch):
    package = tmp_path / "callers_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "state.py").write_text("SEEN = []")
    (package / "net.py").write_text(STORING.format(import_line=line))
    module = import_file("callers_package.net", tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"changed its own state .*state.*SEEN"):
        run_dry(module.Net())


def test_modules_of_the_standard_library_are_trusted_by_their_folder():
    assert all(map(is_trusted, ("json", "os", "collections.abc", "_thread", "torch.nn", "math")))


# ---- private slots, large collections, and what cannot be read


class Slotted:
    __slots__ = ("__mean",)

    def __init__(self):
        self.__mean = 0.0

    def update(self, rows):
        self.__mean += float(rows.mean())


class KeepsBeside(Head):
    """Keeps something by a function of an object beside the module."""

    def __init__(self, kept, keep):
        super().__init__()
        self.kept, self.keep = kept, keep

    def forward(self, rows):
        self.keep(rows)
        return self.head(rows)


def test_private_slots_are_compared():
    kept = Slotted()
    with pytest.raises(ValueError, match=r"changed its own state .*__mean"):
        run_dry(KeepsBeside(kept, kept.update))


@pytest.mark.parametrize("make", [dict, list])
def test_state_beside_a_large_vocabulary_is_compared(make, monkeypatch):
    monkeypatch.setattr(object_state, "_MOST_VALUES", 3_000)
    words = [f"word {number}" for number in range(10_000)]
    vocabulary = words if make is list else dict.fromkeys(words, 0)
    seen = []
    with pytest.raises(ValueError, match=r"changed its own state .*seen"):
        run_dry(KeepsBeside(vocabulary, lambda rows: seen.append(len(rows))))


def test_a_change_inside_a_large_collection_is_found():
    for large, change in (
        (list(range(5000)), lambda values: values.__setitem__(7, -1)),
        (dict.fromkeys(range(5000), 0), lambda values: values.__setitem__(7, -1)),
        (set(range(5000)), lambda values: values.remove(7) or values.add(-7)),
        ([[0] for _ in range(5000)], lambda values: values[7].append(1)),
    ):
        before = state_digest(large)
        assert state_digest(large) == before
        change(large)
        assert changed_paths(before, state_digest(large))


def count_forever():
    total = 0.0
    while True:
        total += yield total


UNREADABLE = {
    "generator": lambda: (lambda values: (next(values), values)[1])(count_forever()),
    "queue": queue.SimpleQueue,
    "context": lambda: contextvars.ContextVar("of the caller"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_contents_that_cannot_be_read_are_refused(kind):
    kept = UNREADABLE[kind]()

    def keep(rows):
        return kept, rows

    with pytest.raises(ValueError, match=rf"the module uses a {type(kept).__name__} .*contents cannot be compared"):
        run_dry(KeepsBeside(None, keep))


def test_too_many_values_are_refused(monkeypatch):
    monkeypatch.setattr(object_state, "_MOST_VALUES", 2_000)
    with pytest.raises(ValueError, match="the module refers to more than 200,000 values"):
        run_dry(KeepsBeside([[number] for number in range(2_000)], len))
