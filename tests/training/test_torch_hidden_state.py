"""State that a torch module keeps outside its own attributes is found on synthetic rows, before anything is spent.

Base classes, decisions about what is trained, imports inside a function, files with the name of a library, private
slots, and large or unreadable collections.
"""

from typing import ClassVar

import pytest

from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")
nn = torch.nn


def run_dry(module, loss="cross_entropy"):
    mechanism = OpacusTraining(module, loss, classes=(0, 1), sampling_rate=1.0, steps=2, noise_multiplier=1.0)
    return mechanism.run_dry((6,))


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
