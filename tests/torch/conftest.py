"""Run a module's graph on blocks of synthetic records."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from dpscp.torch.blocks import Engine, TorchRun
from dpscp.torch.draws import draw_numbers
from dpscp.torch.forms import Input, RecordForm
from dpscp.torch.modules import training_copy
from dpscp.torch.trace import trace_gradients

LABEL, NUMBER = ((), "int64"), ((), "float32")


def cross_entropy(outputs, target):
    return nn.functional.cross_entropy(outputs, target, reduction="none")


@dataclass
class Traced:
    """A traced module with a block of synthetic records."""

    module: nn.Module
    loss: object
    engine: Engine
    inputs: list
    target: torch.Tensor
    draws: list

    @property
    def graph(self):
        return self.engine.run.traced

    @property
    def parameters(self):
        return [self.engine.run.fixed[place] for place in self.engine.run.places]

    def terms(self, inputs=None, target=None):
        records = [*(inputs or self.inputs), self.target if target is None else target, *self.draws]
        return self.engine.terms(self.parameters, records)

    def gradients(self, inputs=None, target=None):
        terms, failed = self.terms(inputs, target)
        found = [term.single_gradients().double().reshape(len(self.target), -1) for term in terms]
        return torch.cat(found, 1), failed

    def moved(self, place=1):
        """Change one record out of all proportion, and return by how much the terms of the others move."""
        changed = [value.clone() for value in self.inputs]
        for value in changed:
            value[place] = 1 - value[place] if value.dtype == torch.int64 else value[place] * 1e4 + 777
        target = self.target.clone()
        target[place] = 1 - target[place]
        before, after = self.gradients()[0], self.gradients(changed, target)[0]
        others = [number for number in range(len(self.target)) if number != place]
        assert not torch.equal(before[place], after[place])
        return float((before[others] - after[others]).abs().max())

    def errors(self):
        """Return the relative errors of single gradients and norms against autograd, for each record."""
        gradients, terms = self.gradients()[0], self.terms()[0]
        norms = sum(term.squared_norms() for term in terms).sqrt()
        module, found = training_copy(self.module), []
        for record in range(len(self.target)):
            args, named = self.graph.form.arguments([value[record : record + 1] for value in self.inputs])
            outputs = module(*args, **named)
            losses = self.loss(getattr(outputs, "logits", outputs), self.target[record : record + 1])
            trained = [p for p in module.parameters() if p.requires_grad]
            expected = torch.cat([g.flatten().double() for g in torch.autograd.grad(losses.sum(), trained)])
            found.append(float((gradients[record] - expected).norm() / expected.norm()))
            found.append(float((norms[record] - expected.norm()).abs() / expected.norm()))
        return found


def form_of(shape, whole=False):
    return RecordForm((Input(None, shape, "int64"),)) if whole else RecordForm.of(shape, "float32")


@pytest.fixture(scope="session")
def trace():
    """Return the function that traces a module for records of a shape, and maps it over a block."""
    return trace_module


def trace_module(module, shape, loss=cross_entropy, target=LABEL, *, size=4, whole=False, device="cpu"):
    torch.manual_seed(1)
    form = shape if isinstance(shape, RecordForm) else form_of(shape, whole)
    found = trace_gradients(training_copy(module), loss, form, target)
    copied = copy.deepcopy(module)
    names = [name for name, _ in copied.named_parameters()]
    fixed = tuple(value.detach().to(device) for value in (*copied.parameters(), *copied.buffers()))
    places = tuple(names.index(name) for name, _ in found.trained)
    engine = Engine(TorchRun(found, fixed, places, 1.0, 1, size, size, 100.0, b"test"))
    labels = (torch.arange(size) % 2).to(getattr(torch, target[1]))
    draws = draw_numbers(found.draws, size, np.random.default_rng(3))
    labels = labels.view(-1, *[1] * len(target[0])).expand(size, *target[0])
    return Traced(module, loss, engine, form.synthetic(size, 5), labels, draws)
