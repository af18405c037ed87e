"""Training of torch modules: the same descent as the NumPy engine, noise, batches, refusals."""

import copy
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dpscp.data.sources import ArraySource
from dpscp.privacy import dpsgd_event, non_private_event
from dpscp.torch import blocks, layers
from dpscp.torch.release import Release
from dpscp.torch.trainer import TorchDPSGD, TorchModel
from dpscp.training import Mechanism, Model
from dpscp.training.mechanisms.dpsgd import DPSGD

torch = pytest.importorskip("torch")


def generator(seed=0):
    return np.random.default_rng(seed)


def problem(n=80, d=4):
    X = generator(1).normal(size=(n, d)).astype(np.float32)
    return X, np.argmax(X[:, :3], axis=1)


def zero_head(d=4, k=3):
    head = torch.nn.Linear(d, k)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def flat(module):
    with torch.no_grad():
        return torch.cat([p.flatten() for p in module.parameters()]).numpy().copy()


def test_same_updates_as_the_numpy_engine():
    X, y = problem()
    constants = {"sampling_rate": 1.0, "steps": 15, "learning_rate": 0.5, "clip_norm": 0.4, "noise_multiplier": 0.0}
    torch_side = TorchDPSGD(zero_head(), classes=(0, 1, 2), physical_batch=7, **constants).train(X, y, n_records=100)
    numpy_side = DPSGD(classes=(0, 1, 2), dtype="float64", **constants).train(X, y, n_records=100)
    ours, theirs = torch_side.model.outputs(X), numpy_side.model.outputs(X)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert torch_side.event == non_private_event()


def test_every_record_is_clipped_and_the_normalizer_is_public():
    # one step from zero: removing a record changes the step by at most clip_norm / (sampling_rate * n_records)
    X, y = problem()
    X = X * 1e3
    mechanism = TorchDPSGD(
        zero_head(),
        sampling_rate=1.0,
        steps=1,
        learning_rate=1.0,
        clip_norm=0.5,
        noise_multiplier=0.0,
        classes=(0, 1, 2),
    )
    whole = flat(mechanism.train(X, y, n_records=40).model.module)
    moves = [
        np.linalg.norm(flat(mechanism.train(np.delete(X, i, 0), np.delete(y, i), n_records=40).model.module) - whole)
        for i in range(8)
    ]
    assert max(moves) <= 0.5 / 40 * (1 + 1e-5)
    assert max(moves) > 0.49 / 40


def test_the_noise_of_the_event_reaches_every_sum():
    """A loss without a slope leaves the noise alone: weights and biases move by its scale, each of them."""
    module = torch.nn.Linear(1, 20_000)
    mechanism = TorchDPSGD(
        module,
        lambda outputs, target: 0.0 * outputs.sum(1) * target,
        sampling_rate=0.5,
        steps=2,
        learning_rate=1.0,
        clip_norm=0.25,
        noise_multiplier=3.0,
    )
    trained = mechanism.train(np.ones((6, 1)), np.ones(6), random_state=0, n_records=8).model.module
    for before, after in zip(module.parameters(), trained.parameters(), strict=True):
        moved = (after - before).detach().numpy().astype(float).ravel() * (0.5 * 8) / (3.0 * 0.25)
        low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], moved.size)
        assert low < moved @ moved / 2 < high
    assert mechanism.event == dpsgd_event(3.0, 0.5, 2)


@pytest.mark.parametrize("physical_batch", [None, 8])
def test_one_record_moves_the_sum_of_all_layers_by_at_most_the_clip_norm(physical_batch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    constants = {"clip_norm": 0.1, "noise_multiplier": 0.0, "classes": (0, 1, 2), "physical_batch": physical_batch}
    mechanism = TorchDPSGD(module, "cross_entropy", 1.0, 1, 1.0, **constants)
    X, y = problem(12)
    whole, rest = (flat(mechanism.train(X[k:], y[k:], n_records=1).model.module) for k in (0, 1))
    change = np.linalg.norm(whole.astype(float) - rest)
    assert 0.09 < change <= 0.1 + 1e-5  # every gradient is longer than so small a norm: the bound is reached


@pytest.fixture
def targets_of_batches(monkeypatch):
    """The targets of every batch of records."""
    seen, true_sum = [], blocks.Engine.sum

    def listening(engine, block, batch, *rest):
        seen.append(block.targets[batch])
        return true_sum(engine, block, batch, *rest)

    monkeypatch.setattr(blocks.Engine, "sum", listening)
    return seen


def test_batches_are_sampled_at_the_rate_of_the_event(targets_of_batches):
    TorchDPSGD(
        torch.nn.Linear(1, 1), "squared", sampling_rate=0.4, steps=1, noise_multiplier=1.0, physical_batch=1000
    ).train(np.ones((1000, 1)), np.ones(1000), random_state=0, n_records=1000)
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], 1000, 0.4)
    assert len(targets_of_batches) == 1
    assert low <= len(targets_of_batches[0]) <= high


def test_blocks_draw_batches_of_their_own_in_every_step(targets_of_batches):
    mechanism = TorchDPSGD(
        torch.nn.Linear(1, 1), "squared", sampling_rate=0.3, steps=3, noise_multiplier=1.0, physical_batch=1000
    )
    blocks = ArraySource(np.ones((2000, 1)), np.arange(2000), n_blocks=2)
    mechanism.train_source(blocks, random_state=0, n_records=2000)
    drawn = [batch % 1000 for batch in targets_of_batches]
    assert len(drawn) == 6
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], 1000, 0.3)
    assert all(low <= len(batch) <= high for batch in drawn)
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], 1000, 0.3**2)
    pairs = [np.intersect1d(a, b).size for i, a in enumerate(drawn) for b in drawn[:i]]
    assert all(low <= both <= high for both in pairs)


def test_the_callers_module_is_never_changed_and_keeps_no_gradients():
    X, y = problem()
    module = zero_head()
    before = copy.deepcopy(module.state_dict())
    trained = TorchDPSGD(module, noise_multiplier=1.0, sampling_rate=0.2, steps=3, classes=(0, 1, 2)).train(
        X, y, random_state=0
    )
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in (*module.parameters(), *trained.model.module.parameters()))
    assert trained.is_seeded
    assert trained.public_facts["normalizer"] == pytest.approx(0.2 * 80)


def test_seeded_runs_repeat_and_fresh_ones_do_not():
    X, y = problem()
    mechanism = TorchDPSGD(zero_head(), noise_multiplier=1.0, sampling_rate=0.3, steps=4, classes=(0, 1, 2))
    a, b = (flat(mechanism.train(X, y, random_state=7).model.module) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    c, d = (flat(mechanism.train(X, y).model.module) for _ in range(2))
    assert not np.array_equal(c, d)


def test_convolutions_adam_and_custom_losses_train():
    r = generator(3)
    X = r.normal(size=(40, 1, 6, 6)).astype(np.float32)
    y = (X.mean(axis=(1, 2, 3)) > 0).astype(int)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.GroupNorm(1, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 2)
    )

    def loss(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    mechanism = TorchDPSGD(module, loss, 0.3, 5, 0.01, noise_multiplier=1.0, optimizer="adam", classes=(0, 1))
    assert isinstance(mechanism, Mechanism)
    model = mechanism.train(X, y, random_state=0).model
    assert isinstance(model, Model)
    assert model.n_features == 36
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-6)
    np.testing.assert_allclose(model.outputs(X.reshape(40, 36)), model.outputs(X), rtol=1e-6)
    saved, config = model.arrays(), json.loads(json.dumps(model.config()))
    again = TorchModel.from_parts({**config, "module": module}, saved)
    np.testing.assert_array_equal(again.outputs(X), model.outputs(X))
    with pytest.raises(ValueError, match="not its code"):
        TorchModel.from_parts(config, saved)
    with pytest.raises(ValueError, match="36 numbers per record, got 4"):
        model.outputs(np.zeros((2, 4)))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.BatchNorm2d(48),
        torch.nn.BatchNorm1d(3, affine=False),
        torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_is_refused_with_its_place_and_a_replacement_that_is_accepted(layer):
    with pytest.raises(ValueError, match=f"{type(layer).__name__} at 'body'.*: use ") as refused:
        TorchDPSGD(torch.nn.ModuleDict({"body": layer, "head": torch.nn.Linear(3, 2)}))
    advised = re.search(r"use (torch\.nn\.\w+\([^)]*\))", str(refused.value))
    instead = eval(advised[1], {"torch": torch})
    TorchDPSGD(torch.nn.ModuleDict({"body": instead, "head": torch.nn.Linear(3, 2)}))


def test_batch_norm_with_an_activation_names_both():
    """As in timm, whose BatchNormAct2d is a BatchNorm2d."""
    layer = torch.nn.BatchNorm2d(8)
    layer.act = torch.nn.SiLU()
    with pytest.raises(ValueError, match=r"Sequential\(torch\.nn\.GroupNorm\(8, 8\), torch\.nn\.SiLU\(\)\)"):
        TorchDPSGD(torch.nn.Sequential(layer, torch.nn.Linear(3, 2)))


@pytest.mark.parametrize("wrap", ["spectral_norm", "parametrizations.spectral_norm"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_spectral_norm_is_refused_by_name_unless_frozen(wrap):
    apply = torch.nn.utils.spectral_norm if wrap == "spectral_norm" else torch.nn.utils.parametrizations.spectral_norm
    layer = apply(torch.nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"spectral_norm at '0.* depends on the records"):
        TorchDPSGD(torch.nn.Sequential(layer, torch.nn.Linear(4, 2)))
    layer.requires_grad_(False)
    X, y = problem()
    TorchDPSGD(torch.nn.Sequential(layer, zero_head()), noise_multiplier=1.0, steps=1, classes=(0, 1, 2)).train(X, y)


def test_without_the_extra_the_message_names_it():
    code = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError(name)

sys.meta_path.insert(0, Missing())
import dpscp
try:
    dpscp.training.TorchDPSGD
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'dpscp[torch]'" in said


def test_bad_input_is_named_without_data():
    X, y = problem()
    ready = TorchDPSGD(zero_head(), noise_multiplier=1.0, sampling_rate=0.5, steps=1, classes=(0, 1, 2))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        TorchDPSGD("module")
    with pytest.raises(ValueError, match="requires a gradient"):
        TorchDPSGD(torch.nn.ReLU())
    with pytest.raises(ValueError, match="NaN"):
        ready.train(X * np.nan, y)
    with pytest.raises(ValueError, match="equally shaped"):
        ready.train([["a"]], y)
    with pytest.raises(ValueError, match="two dimensions"):
        ready.train(X[0], y)
    with pytest.raises(ValueError, match="not in classes"):
        ready.train(X, y + 50)
    with pytest.raises(ValueError, match="same number of records"):
        ready.train(X, y[:-1])
    full = {"noise_multiplier": 1.0, "sampling_rate": 1.0, "steps": 1}
    found = TorchDPSGD(zero_head(), **full).train(X, y)
    assert found.taken_from_data == ("n_records", "classes")


@pytest.mark.parametrize("numbers", [50, 20_000])
def test_parameters_have_noise_of_their_own(numbers):
    """And so have the steps, also where two of them are in use at once; whatever the layout of a sum."""
    release = Release(3.0, generator(), ((numbers, 2), (2 * numbers,)), torch.device("cpu"))
    steps = [release.draw(), release.draw()]
    found = []
    for drawn in steps:
        sums = [torch.zeros(2, numbers, dtype=torch.float64).T, torch.zeros(2 * numbers, dtype=torch.float64)]
        found.extend(total.reshape(-1).numpy() for total in release(sums, drawn))
    assert len({tuple(values) for values in found}) == 4
    for i, first in enumerate(found):
        for second in found[:i]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(2 * numbers)


def test_a_sum_is_rounded_with_its_noise():
    total, noise = np.random.default_rng(0).normal(size=70_000), np.arange(70_000) % 7.0 - 3
    release = Release(2.0**14, generator(), (total.shape,), torch.device("cpu"))
    (released,) = release([torch.from_numpy(total.copy())], torch.from_numpy(noise), 2.0)
    np.testing.assert_array_equal(released.numpy(), np.rint(64 * total + noise) / 32)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_terms_that_are_not_gradients_are_refused_before_any_step(monkeypatch, drop):
    """A rule of a layer that is wrong by a factor, with and without draws of the module."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(drop), torch.nn.Linear(8, 3))
    mechanism = TorchDPSGD(module, noise_multiplier=1.0, steps=1, classes=(0, 1, 2))
    mechanism.train(*problem())
    rule = layers._linear
    monkeypatch.setitem(layers._RULES, "linear", lambda call, shapes, x, e: rule(call, shapes, x, e * 1.01))
    with pytest.raises(ValueError, match=r"the gradient of '.*' is not what autograd computes"):
        mechanism.train(*problem())
