"""Torch modules: the same descent as the NumPy engine, Opacus' refusals, and models that Opacus trained."""

import copy
import json
import math
import re
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from dpscp._base.assumptions import FIXED_NUMBER
from dpscp.data.sources import ArraySource
from dpscp.privacy import Ledger, Relation, dpsgd_event, epsilon_of, gaussian_event, non_private_event
from dpscp.training import Mechanism, Model
from dpscp.training.mechanisms.dpsgd import DPSGD
from dpscp.training.private_model import FunctionModel, PrivateModel
from dpscp.training.torch import batch_sums
from dpscp.training.torch.release import make_release
from dpscp.training.torch.trainer import OpacusTraining, TorchModel, ledger_of_engine, torch_model

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")


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
    torch_side = OpacusTraining(zero_head(), classes=(0, 1, 2), physical_batch=7, **constants).train(
        X, y, n_records=100
    )
    numpy_side = DPSGD(classes=(0, 1, 2), dtype="float64", **constants).train(X, y, n_records=100)
    ours, theirs = torch_side.model.outputs(X), numpy_side.model.outputs(X)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert torch_side.event == non_private_event()


def test_hidden_layers_and_squared_loss_agree_with_the_numpy_engine():
    X, _ = problem()
    y = X[:, 0] * 2 - X[:, 1]
    engine = DPSGD(
        hidden=(6,),
        loss="squared",
        sampling_rate=1.0,
        steps=10,
        learning_rate=0.2,
        clip_norm=1.0,
        noise_multiplier=0.0,
        momentum=0.9,
        dtype="float64",
    )
    network = engine.network(4)
    start = network.layers(network.initial(0, None))
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
    with torch.no_grad():
        for layer, matrix in zip((module[0], module[2]), start, strict=True):
            layer.weight.copy_(torch.from_numpy(matrix[:, :-1]))
            layer.bias.copy_(torch.from_numpy(matrix[:, -1]))
    ours = OpacusTraining(module, "squared", 1.0, 10, 0.2, clip_norm=1.0, noise_multiplier=0.0, momentum=0.9).train(
        X, y
    )
    theirs = engine.train(X, y).model.outputs(X)
    assert np.abs(ours.model.outputs(X) - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_every_record_is_clipped_and_the_normalizer_is_public():
    # one step from zero: removing a record changes the step by at most clip_norm / (sampling_rate * n_records)
    X, y = problem()
    X = X * 1e3
    mechanism = OpacusTraining(
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
        for i in range(20)
    ]
    assert max(moves) <= 0.5 / 40 * (1 + 1e-5)
    assert max(moves) > 0.49 / 40


def test_the_noise_of_the_event_reaches_every_sum():
    """A loss without a slope leaves the noise alone: weights and biases move by its scale, each of them."""
    module = torch.nn.Linear(1, 20_000)
    mechanism = OpacusTraining(
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


@pytest.mark.parametrize("physical_batch", [None, 8])  # float64 sums, integers
def test_one_record_moves_the_sum_of_all_layers_by_at_most_the_clip_norm(physical_batch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    constants = {"clip_norm": 0.1, "noise_multiplier": 0.0, "classes": (0, 1, 2), "physical_batch": physical_batch}
    mechanism = OpacusTraining(module, "cross_entropy", 1.0, 1, 1.0, **constants)
    X, y = problem(12)
    whole, rest = (flat(mechanism.train(X[k:], y[k:], n_records=1).model.module) for k in (0, 1))
    change = np.linalg.norm(whole.astype(float) - rest)
    assert 0.09 < change <= 0.1 + 1e-5  # every gradient is longer than so small a norm: the bound is reached


@pytest.fixture
def targets_of_batches(monkeypatch):
    """The targets of every batch of records; the dry run has functions of its own."""
    seen, true_sum = [], batch_sums.Engine.sum

    def listening(engine, block, batch):
        seen.append(block.targets[batch])
        return true_sum(engine, block, batch)

    monkeypatch.setattr(batch_sums.Engine, "sum", listening)
    return seen


def test_batches_are_sampled_at_the_rate_of_the_event(targets_of_batches):
    OpacusTraining(
        torch.nn.Linear(1, 1), "squared", sampling_rate=0.4, steps=1, noise_multiplier=1.0, physical_batch=1000
    ).train(np.ones((1000, 1)), np.ones(1000), random_state=0, n_records=1000)
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], 1000, 0.4)
    assert len(targets_of_batches) == 1
    assert low <= len(targets_of_batches[0]) <= high


def test_blocks_draw_batches_of_their_own_in_every_step(targets_of_batches):
    mechanism = OpacusTraining(
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


def test_empty_batches_take_noisy_steps_of_the_declared_scale():
    # a rate so small that no batch ever holds a record: the parameters are a random walk of pure noise
    X, y = problem(n=3)
    rate, steps, clip, noise, lr, n = 1e-12, 12, 0.5, 3.0, 0.1, 50
    mechanism = OpacusTraining(
        zero_head(),
        sampling_rate=rate,
        steps=steps,
        learning_rate=lr,
        clip_norm=clip,
        noise_multiplier=noise,
        classes=(0, 1, 2),
    )
    walks = np.concatenate([flat(mechanism.train(X, y, random_state=s, n_records=n).model.module) for s in range(25)])
    std = lr * noise * clip / (rate * n) * math.sqrt(steps)
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], walks.size)
    assert low < np.sum((walks / std) ** 2) < high


def test_the_callers_module_is_never_changed_and_keeps_no_gradients():
    X, y = problem()
    module = zero_head()
    before = copy.deepcopy(module.state_dict())
    trained = OpacusTraining(module, noise_multiplier=1.0, sampling_rate=0.2, steps=3, classes=(0, 1, 2)).train(
        X, y, random_state=0
    )
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert not hasattr(module.weight, "grad_sample")
    assert all(getattr(p, "grad_sample", None) is None for p in trained.model.module.parameters())
    assert trained.is_seeded
    assert trained.public_facts["normalizer"] == pytest.approx(0.2 * 80)


def at_work():
    """What this thread holds of a run."""
    return vars(batch_sums._ENGINES._here)


def on_records(then):
    """A loss that does something of its own where an engine is at work: on records, not in the rehearsal."""

    def loss(outputs, target):
        if at_work():
            then(at_work()["made"])
        return torch.nn.functional.cross_entropy(outputs, target, reduction="none")

    return loss


FULL = {"noise_multiplier": 1.0, "sampling_rate": 1.0, "classes": (0, 1, 2)}


@pytest.mark.parametrize("physical_batch", [9, 40])  # integers, float64 sums by layers
def test_gradients_of_records_go_with_their_batch_and_the_engine_with_the_last_step(physical_batch):
    seen = []
    loss = on_records(lambda engine: seen.extend((p.grad, getattr(p, "grad_sample", None)) for p in engine.trained))
    mechanism = OpacusTraining(zero_head(), loss, steps=3, physical_batch=physical_batch, **FULL)
    with pytest.raises(ValueError, match="loss changed its own state"):  # after the last step
        mechanism.train(*problem(), random_state=0)
    assert seen
    assert set(seen) == {(None, None)}
    assert not at_work()


def no_room(_):
    raise torch.cuda.OutOfMemoryError("tried to allocate 7919 bytes")


@pytest.mark.parametrize("where", ["module", "clipping", "processor"])
def test_where_there_is_no_room_nothing_of_a_batch_is_told_or_kept(monkeypatch, where):
    if where == "clipping":
        monkeypatch.setattr(batch_sums, "add_clipped", lambda samples, *_: no_room(samples))
    then = {"module": no_room, "clipping": id, "processor": lambda _: torch.empty(7919 * 10**12)}[where]
    with pytest.raises(MemoryError, match=r"physical_batch=9 .*smaller") as told:
        OpacusTraining(zero_head(), on_records(then), steps=2, physical_batch=9, **FULL).train(*problem())
    assert "7919" not in str(told.value)
    assert told.value.__context__ is None
    assert not at_work()


def test_seeded_runs_repeat_and_fresh_ones_do_not():
    X, y = problem()
    mechanism = OpacusTraining(zero_head(), noise_multiplier=1.0, sampling_rate=0.3, steps=4, classes=(0, 1, 2))
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

    mechanism = OpacusTraining(
        module,
        loss,
        0.3,
        5,
        0.01,
        noise_multiplier=1.0,
        optimizer="adam",
        classes=(0, 1),
    )
    assert isinstance(mechanism, Mechanism)
    model = mechanism.train(X, y, random_state=0).model
    assert isinstance(model, Model)
    assert model.n_features == 36
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(40), abs=1e-6)
    np.testing.assert_allclose(model.outputs(X.reshape(40, 36)), model.outputs(X), rtol=1e-6)
    saved, config = model.arrays(), json.loads(json.dumps(model.config()))
    again = TorchModel.restore(module, config, saved)
    np.testing.assert_array_equal(again.outputs(X), model.outputs(X))
    with pytest.raises(ValueError, match="not its code"):
        TorchModel.from_parts(config, saved)
    with pytest.raises(ValueError, match="36 numbers per record, got 4"):
        model.outputs(np.zeros((2, 4)))


def test_calibrated_meets_the_budget():
    mechanism = OpacusTraining(zero_head(), sampling_rate=0.05, steps=50)
    assert mechanism.event is None
    done = mechanism.calibrated(1.0, 1e-5, accountant="rdp")
    assert done.event == dpsgd_event(done.noise_multiplier, 0.05, 50)
    assert 0.99 < epsilon_of(done.event, 1e-5, "rdp") <= 1.0


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.BatchNorm2d(48),
        torch.nn.BatchNorm1d(3, affine=False),
        torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        torch.nn.LSTM(4, 3, 2),
        torch.nn.GRU(4, 3),
        torch.nn.MultiheadAttention(4, 2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_is_refused_with_its_place_and_a_replacement_that_is_accepted(layer):
    # normalization is checked here and not by Opacus, which looks at exact types of trained layers only
    with pytest.raises(ValueError, match=f"{type(layer).__name__} at 'body'.*: use ") as refused:
        OpacusTraining(torch.nn.ModuleDict({"body": layer, "head": torch.nn.Linear(3, 2)}))
    advised = re.search(r"use ((?:torch\.nn|opacus\.layers)\.\w+\([^)]*\))", str(refused.value))
    instead = eval(advised[1], {"torch": torch, "opacus": opacus})
    OpacusTraining(torch.nn.ModuleDict({"body": instead, "head": torch.nn.Linear(3, 2)}))


def test_without_the_extra_the_message_names_it(monkeypatch):
    head = zero_head()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"dpscp\[torch\]"):
        OpacusTraining(head)


def test_without_opacus_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.grad_sample", None)
    with pytest.raises(ImportError, match=r"dpscp\[torch\]"):
        OpacusTraining(zero_head())


def test_bad_input_is_named_without_data():
    X, y = problem()
    ready = OpacusTraining(zero_head(), noise_multiplier=1.0, sampling_rate=0.5, steps=1, classes=(0, 1, 2))
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        OpacusTraining("module")
    with pytest.raises(ValueError, match="requires a gradient"):
        OpacusTraining(torch.nn.ReLU())
    with pytest.raises(ValueError, match="momentum"):
        OpacusTraining(zero_head(), momentum=1.0)
    with pytest.raises(ValueError, match="loss must be one of"):
        OpacusTraining(zero_head(), "hinge")
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
    with pytest.raises(ValueError, match="one number per record"):
        OpacusTraining(zero_head(), lambda outputs, _: outputs.sum(), **full).train(X, y)
    found = OpacusTraining(zero_head(), **full).train(X, y)
    assert found.taken_from_data == ("n_records", "classes")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_model_as_the_cpu():
    X, y = problem()
    constants = {"noise_multiplier": 0.0, "sampling_rate": 0.5, "steps": 10, "classes": (0, 1, 2)}
    cpu = OpacusTraining(zero_head(), **constants).train(X, y, random_state=0).model
    gpu = OpacusTraining(zero_head(), device="cuda", **constants).train(X, y, random_state=0).model
    np.testing.assert_allclose(gpu.outputs(X), cpu.outputs(X), atol=1e-3)


@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_noise_has_the_standard_deviation_of_the_event(device):
    shapes = (100, 200), (20_000,)
    release = make_release(torch.device(device), 3.0, generator(), 0, shapes)
    sums = [torch.full(shape, 5.0, dtype=torch.float64, device=device) for shape in shapes]
    released = np.concatenate([total.cpu().numpy().ravel() for total in release(sums, release.draw())])
    assert abs(released.mean() - 5) < 5 * 3 / 200
    assert abs(released.std() / 3 - 1) < 5 / math.sqrt(2 * released.size)
    np.testing.assert_array_equal(released, np.rint(released / (3 * 2.0**-20)) * (3 * 2.0**-20))


@pytest.mark.parametrize("numbers", [50, 20_000])
def test_parameters_have_noise_of_their_own(numbers):
    """And so have the steps, also where two of them are in use at once; whatever the layout of a sum."""
    release = make_release(torch.device("cpu"), 3.0, generator(), 0, ((numbers, 2), (2 * numbers,)))
    steps = [release.draw(), release.draw()]
    found = []
    for drawn in steps:
        sums = [torch.zeros(2, numbers, dtype=torch.float64).T, torch.zeros(2 * numbers, dtype=torch.float64)]
        found.extend(total.reshape(-1).numpy() for total in release(sums, drawn))
    assert len({tuple(values) for values in found}) == 4
    for i, first in enumerate(found):
        for second in found[:i]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(2 * numbers)


# ---- models that somebody already trained


def opacus_trained(accountant, module=None):
    X, y = problem()
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    module = module or zero_head()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant=accountant)
        private, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=20),
            noise_multiplier=2.0,
            max_grad_norm=1.0,
        )
        for _ in range(3):
            for rows, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(private(rows), labels).backward()
                optimizer.step()
    return private, engine, X


@pytest.mark.parametrize("accountant", ["rdp", "prv", "gdp"])
def test_from_opacus_keeps_the_ledger(accountant):
    private, engine, X = opacus_trained(accountant)
    model = PrivateModel.from_opacus(private, engine, classes=("a", "b", "c"))
    assert model.event == dpsgd_event(2.0, 0.25, 12)
    if accountant == "rdp":
        theirs = engine.get_epsilon(1e-5)
        # theirs is that of one step of a replacement, which ours chains twice
        assert epsilon_of(model.event, 1e-5, "rdp") == pytest.approx(theirs, rel=1e-3)
        assert 2 * theirs < model.ledger.epsilon(1e-5, accountant="rdp") < 3 * theirs
        assert model.ledger.epsilon(1e-5) == Ledger().add("t", model.event).replacement_epsilon(1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(model.outputs(X), private(torch.from_numpy(X)).numpy(), rtol=1e-6)
    assert model.classes == ("a", "b", "c")
    assert model.task == "classification"
    assert model.n_features == 4
    assert model.predict_proba(X).shape == (80, 3)
    assert model.ledger.relation is Relation.REPLACE_ONE
    assert FIXED_NUMBER in model.ledger.assumptions


def test_every_stretch_of_an_opacus_history_is_in_the_ledger():
    """Noise or rate that changed on the way starts a new stretch of the engine's record."""
    engine = SimpleNamespace(accountant=SimpleNamespace(history=[(2.0, 0.25, 12), (3.0, 0.5, 7), (0.0, 0.5, 1)]))
    events = [entry.event for entry in ledger_of_engine(engine).entries]
    assert events == [dpsgd_event(2.0, 0.25, 12), dpsgd_event(3.0, 0.5, 7), non_private_event()]


def test_from_opacus_refuses_an_engine_without_history():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import PrivacyEngine

        engine = PrivacyEngine(accountant="rdp")
    with pytest.raises(ValueError, match="recorded no step"):
        ledger_of_engine(engine)
    with pytest.raises(TypeError, match="PrivacyEngine"):
        PrivateModel.from_opacus(zero_head(), object())
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        torch_model("module")
    with pytest.raises(ValueError, match="input_shape is needed"):
        torch_model(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)))
    regression = torch_model(zero_head(4, 1))
    assert regression.task == "regression"
    with pytest.raises(TypeError, match="classification"):
        regression.predict_proba(np.zeros((1, 4)))
    engine.accountant.history = [(0.0, 0.1, 5)]
    assert not ledger_of_engine(engine).is_private


def test_private_model_wraps_functions_and_trained_mechanisms():
    X, y = problem()
    wrapped = PrivateModel.from_outputs(
        lambda rows: rows[:, :3], spent=gaussian_event(2.0), task="classification", n_features=4, classes=(0, 1, 2)
    )
    assert wrapped.event == gaussian_event(2.0)
    assert wrapped.predict_proba(X).shape == (80, 3)
    with_ledger = PrivateModel.from_outputs(
        lambda rows: rows[:, 0], spent=Ledger().add("a", gaussian_event(1.0)), task="regression", n_features=4
    )
    assert with_ledger.outputs(X).shape == (80, 1)
    with pytest.raises(TypeError, match="classification"):
        with_ledger.predict_proba(X)
    trained = DPSGD(classes=(0, 1, 2), steps=2, noise_multiplier=1.0).train(X, y, random_state=0)
    ours = PrivateModel.from_trained(trained)
    assert ours.event == trained.event
    assert not ours.ledger.is_private  # seeded
    with pytest.raises(ValueError, match="one row per record"):
        FunctionModel(lambda rows: rows[:1], "regression", 4).outputs(X)
    with pytest.raises(ValueError, match="classes must be given"):
        FunctionModel(lambda rows: rows, "classification", 4)
    for refused in (wrapped.model.arrays, wrapped.model.config, lambda: FunctionModel.from_parts({}, {})):
        with pytest.raises(TypeError, match="cannot be"):
            refused()
    with pytest.raises(TypeError, match="ledger must be a Ledger"):
        PrivateModel(trained.model, None)
    with pytest.raises(TypeError, match="model must be"):
        PrivateModel(object(), Ledger())
