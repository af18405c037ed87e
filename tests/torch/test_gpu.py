"""The way of a GPU: noise of ChaCha20, and sums of whole blocks. Without a GPU, the same code runs on the processor."""

import struct

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpscp.data.sources import ArraySource
from dpscp.torch import blocks, release, trainer
from dpscp.torch.gpu import draw_noise, keystream
from dpscp.training import TorchDPSGD

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def block_of(key, counter):
    words = keystream(torch.frombuffer(bytearray(key), dtype=torch.int32), torch.tensor([counter]))
    return struct.pack("<16I", *(int(word) & 0xFFFFFFFF for word in words)).hex()


@pytest.mark.parametrize(
    ("key", "counter", "start"),
    [  # RFC 8439, A.1: vectors 1, 2 and 4
        (bytes(32), 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
        (bytes(32), 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
        (b"\0\xff" + bytes(30), 2, "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"),
    ],
)
def test_the_keystream_is_that_of_chacha20(key, counter, start):
    assert block_of(key, counter).startswith(start)


def test_high_counters_have_blocks_of_their_own():
    found = {block_of(bytes(32), counter) for counter in (0, 1, 2**32, 2**32 + 1, 2**40)}
    assert len(found) == 5


def test_noise_is_normal_and_never_repeats():
    stream = draw_noise(b"\1" * 32, 300_007, 3.0, CPU)
    steps = np.stack([next(stream).numpy().copy() for _ in range(8)])  # six vectors are drawn at once
    assert steps.dtype == np.float64
    assert stats.kstest(steps.ravel() / 3, "norm").pvalue > 1e-5
    assert len(np.unique(steps)) == steps.size
    assert np.abs(np.corrcoef(steps) - np.eye(8)).max() < 5 / np.sqrt(300_007)
    other = next(draw_noise(b"\1" * 31 + b"\2", 300_007, 3.0, CPU)).numpy()
    assert abs(np.corrcoef(steps[0], other)[0, 1]) < 5 / np.sqrt(300_007)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the way of a GPU on the processor, with replays that are plain calls."""
    replays = []

    def capture(work):
        work()  # as the warm-up of a capture
        return lambda: replays.append(0) or work()

    for module in (blocks, release, trainer):
        monkeypatch.setattr(module, "is_gpu", lambda _: True)
    monkeypatch.setattr(blocks, "capture", capture)
    monkeypatch.setattr(blocks, "to_gpu", lambda values: values)
    return replays


def problem(n=90):
    X = np.random.default_rng(1).normal(size=(n, 1, 6, 6)).astype(np.float32)
    return X.reshape(n, 36), (X.mean(axis=(1, 2, 3)) > 0).astype(int)


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def trained(noise=0.0, source=None, **changed):
    constants = {"sampling_rate": 1.0, "steps": 6, "classes": (0, 1), "noise_multiplier": noise, "clip_norm": 0.1}
    constants |= {"input_shape": (1, 6, 6)}
    mechanism = TorchDPSGD(module(), **constants | changed)
    source = ArraySource(*problem()) if source is None else source
    found = mechanism.train_source(source, random_state=0, n_records=90).model.module
    return torch.cat([p.detach().flatten() for p in found.parameters()]).numpy()


@pytest.mark.parametrize("physical_batch", [None, pytest.param(16, marks=pytest.mark.slow)])
def test_sums_of_whole_blocks_are_those_of_the_processor(as_on_a_gpu, monkeypatch, physical_batch):
    sources = [ArraySource(*problem()), ArraySource(*problem(), n_blocks=3)]
    found = [trained(source=source, physical_batch=physical_batch) for source in sources]
    assert len(as_on_a_gpu) > 20  # replays
    monkeypatch.undo()
    for source, values in zip(sources, found, strict=True):
        np.testing.assert_allclose(values, trained(source=source, physical_batch=physical_batch), rtol=1e-4, atol=1e-6)


def test_places_without_a_record_and_records_that_are_not_finite_add_nothing(as_on_a_gpu, monkeypatch):
    """Also where the place held such a record before."""
    X, y = problem(40)
    X[7] = 3e38  # finite, and its gradient is not

    def sums():
        return trained(source=ArraySource(X, y), physical_batch=16)

    found = sums()
    assert np.isfinite(found).all()
    monkeypatch.undo()
    np.testing.assert_allclose(found, sums(), rtol=1e-4, atol=1e-6)


def test_the_noise_of_the_event_reaches_every_parameter(as_on_a_gpu):
    moved = trained(3.0, steps=1, learning_rate=1.0) - trained(0.0, steps=1, learning_rate=1.0)
    moved *= 90 / (3.0 * 0.1)
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], moved.size)
    assert low < moved @ moved < high
    assert as_on_a_gpu


class Lookup(nn.Module):
    """Numbers of the record are indices of a table, of the record and of the loss."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        place = (x * 2).long()
        return self.layer(self.table(place).mean(1) + x.gather(1, place) + x[:, place[0]] + x.take(place))


@pytest.fixture(params=["simulated", pytest.param("cuda", marks=needs_gpu)])
def device(request):
    """Return where records run: on a GPU, or by its code on the processor."""
    if request.param == "cuda":
        return "cuda"
    request.getfixturevalue("as_on_a_gpu")
    return "cpu"


def test_an_index_out_of_range_is_bounded(device, trace):
    """On a GPU it would end the process."""
    traced = trace(Lookup(), (4,), device=device)
    before = traced.gradients()[0]
    for place in (900.0, -900.0):
        inputs = [traced.inputs[0].clone()]
        inputs[0][2, 0] = place
        after, failed = traced.gradients(inputs)
        assert failed is None
        assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])


def test_a_class_out_of_range_is_bounded(device, trace):
    def loss(outputs, target):
        return torch.nn.functional.cross_entropy(outputs, (target * 2).long(), reduction="none")

    traced = trace(nn.Sequential(nn.Linear(4, 3)), (4,), loss, ((), "float32"), device=device)
    target = torch.tensor([0.0, 0.5, 900.0, 1.0])
    before, (after, failed) = traced.gradients(target=target.clamp(max=1))[0], traced.gradients(target=target)
    assert failed is None
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])


@needs_gpu
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), (1, 8, 8)),
        (nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, 2)), (5, 8)),
        (nn.Sequential(nn.Linear(700, 600), nn.Tanh(), nn.Linear(600, 2)), (700,)),
    ],
)
def test_records_do_not_meet_on_a_gpu(trace, layer, shape):
    assert trace(layer, shape, size=64, device="cuda").moved() == 0.0


@needs_gpu
def test_a_gpu_gives_the_same_model_as_the_processor():
    found = trained(device="cuda")
    np.testing.assert_allclose(found, trained(), rtol=1e-2, atol=1e-3)
