"""The caller's own loss, and what it uses, are the same after a fit as before it, whatever the records are."""

import numpy as np
import pytest

from dpscp import PrivateConformalClassifier
from dpscp._base.object_state import reachable, state_digest
from dpscp.training.torch.trainer import OpacusTraining

torch = pytest.importorskip("torch")
layers = pytest.importorskip("opacus.layers")
grad_sample = pytest.importorskip("opacus.grad_sample")
nn = torch.nn
functional = nn.functional

pytestmark = pytest.mark.filterwarnings("ignore::dpscp.GuaranteeWarning")


class Series(nn.Module):
    """A recurrent layer: Opacus computes its gradients."""

    def __init__(self):
        super().__init__()
        self.series, self.head = layers.DPLSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, rows):
        return self.head(self.series(rows)[0][:, -1])


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


# the ways in which gradients are computed: by Opacus, as integers, layer by layer
WAYS = {"recurrent": (Series, {}), "exact sums": (dense, {"physical_batch": 8}), "layers": (dense, {})}


class Tempered(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self, module):
        super().__init__()
        self.factors, self.module = nn.Parameter(torch.ones(2)), [module]

    def forward(self, outputs, target):
        return functional.cross_entropy(outputs * self.factors, target, reduction="none")


def penalize(module):
    def loss(outputs, target):
        penalty = sum(p.square().sum() for p in module.parameters())
        return functional.cross_entropy(outputs, target, reduction="none") + 1e-3 * penalty

    return loss


def compare_with(module):
    """A second net sees the outputs, and both nets are reached by gradients."""
    teacher = nn.Linear(2, 2)

    def loss(outputs, target):
        scale = sum(p.sum() for p in module.parameters()).tanh()
        return functional.cross_entropy(teacher(outputs) * (1 + 0.1 * scale), target, reduction="none")

    return loss


LOSSES = {"own parameter": Tempered, "penalty on the caller's net": penalize, "second net": compare_with}


def records(n=41):
    return np.random.default_rng(3).normal(size=(n, 2, 3)), np.arange(n) % 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LOSSES)
def test_nothing_of_a_record_stays_on_the_callers_objects(kind, way):
    build, settings = WAYS[way]
    X, y = records()
    found = []
    for first in (0, 1):
        torch.manual_seed(0)
        module = build()
        loss = LOSSES[kind](module)
        before = state_digest((module, loss))
        mechanism = OpacusTraining(
            module, loss, sampling_rate=1.0, steps=1, classes=(0, 1), noise_multiplier=1.0, **settings
        )
        mechanism.train(X[first:], y[first:], n_records=41)
        assert state_digest((module, loss)) == before
        assert all(p.grad is None for p in module.parameters())
        found.append({path: held for path, held in reachable((module, loss)) if torch.is_tensor(held)})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][path], found[1][path]) for path in found[0])


def test_a_whole_fit_leaves_no_gradient_on_a_loss():
    X, y = records(200)
    module = Series()
    loss = Tempered(module)
    mechanism = OpacusTraining(module, loss, sampling_rate=0.5, steps=2, classes=(0, 1))
    PrivateConformalClassifier(mechanism, epsilon=3.0, delta=1e-3, classes=[0, 1], n_records=200).fit(X, y)
    assert loss.factors.grad is None
    assert all(p.grad is None and not hasattr(p, "grad_sample") for p in module.parameters())


def large(outputs):
    """Whether rows are unlike the synthetic ones: what follows is hidden from the dry run."""
    return bool((outputs.detach().abs() > 1e12).any())


def keeping_in_an_attribute():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, outputs, target):
            if large(outputs):
                self.seen += float(outputs.sum())
            return functional.cross_entropy(outputs, target, reduction="none")

    return Loss()


def keeping_in_a_closure():
    seen = []

    def loss(outputs, target):
        if large(outputs):
            seen.append(len(outputs))
        return functional.cross_entropy(outputs, target, reduction="none")

    return loss


def keeping_in_a_gradient():
    factor = nn.Parameter(torch.ones(()))

    def loss(outputs, target):
        losses = functional.cross_entropy(outputs, target, reduction="none")
        if large(outputs):
            (losses.detach().sum() * factor).backward()
        return losses

    return loss


MEMORIES = {"buffer": keeping_in_an_attribute, "closure": keeping_in_a_closure, "gradient": keeping_in_a_gradient}


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_loss_whose_memory_starts_on_the_records_is_refused(kind):
    X, y = records()
    loss = MEMORIES[kind]()
    mechanism = OpacusTraining(
        dense(), loss, sampling_rate=1.0, steps=1, classes=(0, 1), noise_multiplier=1.0, learning_rate=1e-3
    )
    mechanism.check((2, 3))
    with pytest.raises(ValueError, match=r"loss changed its own state .*<loss>"):
        mechanism.train(1e15 * X, y)
    if kind == "buffer":  # the records went through a copy
        assert not loss.seen


def test_a_loss_that_changed_since_its_dry_run_is_tried_again():
    loss = nn.CrossEntropyLoss(reduction="none")
    mechanism = OpacusTraining(nn.Linear(6, 2), loss, classes=(0, 1), noise_multiplier=1.0)
    mechanism.check((6,))
    loss.reduction = "mean"
    with pytest.raises(ValueError, match="loss must return one number per record"):
        mechanism.check((6,))


def hooked_each_time():
    factor = nn.Parameter(torch.ones(()))

    def loss(outputs, target):
        factor.register_hook(lambda gradient: gradient)
        return functional.cross_entropy(outputs, target, reduction="none")

    return loss


def retaining():
    root = nn.Parameter(torch.ones(2))
    factors = root * 2
    factors.retain_grad()

    def loss(outputs, target):
        losses = functional.cross_entropy(outputs * factors, target, reduction="none")
        torch.autograd.backward(losses.sum(), inputs=[factors], retain_graph=True)
        return losses

    return loss


def wrapped_by_opacus():
    """Opacus' hooks on the caller's second net hold gradients of single records."""
    teacher = grad_sample.GradSampleModule(nn.Linear(2, 2))

    def loss(outputs, target):
        return functional.cross_entropy(teacher(outputs), target, reduction="none")

    return loss


TRACES = {
    "hook": (hooked_each_time, "_backward_hooks"),
    "retained": (retaining, r"factors>\.grad"),
    "Opacus": (wrapped_by_opacus, "grad_sample"),
}


@pytest.mark.parametrize("kind", TRACES)
def test_traces_of_a_backward_pass_are_refused_on_synthetic_rows(kind):
    build, path = TRACES[kind]
    with pytest.raises(ValueError, match=rf"changed its own state .*{path}"):
        OpacusTraining(dense(), build(), classes=(0, 1), noise_multiplier=1.0).check((2, 3))


def test_attributes_named_like_those_of_opacus_are_looked_at():
    class Keeping(nn.Linear):
        def forward(self, rows):
            self.activations = rows.detach()
            return super().forward(rows)

    with pytest.raises(ValueError, match=r"changed its own state .*activations"):
        OpacusTraining(Keeping(6, 2), classes=(0, 1), noise_multiplier=1.0).check((6,))
