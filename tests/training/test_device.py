"""Training on a device of torch's: the same sums as on the processor, the same bound on a record, noise from ChaCha20.

Without a GPU torch's own processor device runs the same code.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dpscp as dp
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block
from dpscp.data.sources.places import UnitSource
from dpscp.training.engine import batching as feeding
from dpscp.training.engine import cuda as engine
from dpscp.training.engine import cuda_noise as device_noise
from dpscp.training.engine.batching import EngineBlockBuilder
from dpscp.training.engine.block_sums import TensorSums, choose_sums
from dpscp.training.engine.cuda import DeviceBatchSums, DeviceRecords
from dpscp.training.engine.cuda_noise import DeviceNoise, chacha20_words
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.networks import Loss, Network
from dpscp.training.mechanisms.dpsgd import DPSGD

torch = pytest.importorskip("torch")
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


def problem(n=1_500, d=6):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int), X @ np.arange(d)


MECHANISMS = {
    "head": {"classes": (0, 1)},
    "tanh": {"classes": (0, 1), "hidden": (16, 8), "activation": "tanh"},
    "logistic": {"classes": (0, 1), "loss": "logistic", "radius": 0.3},
    "huber": {"loss": "huber", "hidden": (32, 16), "schedule": "linear"},
    "adam": {"loss": "squared", "optimizer": "adam", "learning_rate": 0.01},
    "pinball": {"loss": "pinball", "hidden": (8,), "momentum": 0.9, "averaging": "tail"},
    "float64": {"classes": (0, 1), "hidden": (8,), "fit_intercept": False, "dtype": "float64"},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.covering
def test_without_noise_it_is_the_run_of_the_processor(name, device):
    X, labels, target = problem()
    constants = {"steps": 12, "noise_multiplier": 0.0, "feature_bound": 3.0, **MECHANISMS[name]}
    y = labels if "classes" in constants else target
    for rate in (1.0, 0.1):
        own = DPSGD(sampling_rate=rate, **constants).train(X, y, random_state=1)
        there = DPSGD(sampling_rate=rate, device=device, **constants).train(X, y, random_state=1)
        np.testing.assert_allclose(there.model.parameters, own.model.parameters, atol=3e-6)
        assert there.event == own.event
        assert there.public_facts == {**own.public_facts, "device": device}


@pytest.mark.parametrize("device", DEVICES)
def test_noise_of_a_step_is_that_of_the_event(device):
    X, y, _ = problem()
    heard = []
    mechanism = DPSGD(
        classes=(0, 1), hidden=(400,), steps=2, sampling_rate=0.5, noise_multiplier=3.0, clip_norm=0.7, device=device
    )
    mechanism.train(np.zeros_like(X), y, random_state=0, observer=heard.append)
    grid = heard[0].constants[1]
    sums = np.concatenate([step.noisy_sum for step in heard])
    np.testing.assert_allclose(sums / grid, np.rint(sums / grid), atol=1e-6)
    hidden_layer = np.concatenate([step.noisy_sum[: 400 * 7].reshape(400, 7)[:, :6].ravel() for step in heard])
    # rows of zeros have no gradient there: what is left is noise
    assert stats.kstest(hidden_layer / (3.0 * 0.7), "norm").pvalue > 1e-4
    first, second = np.split(hidden_layer, 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(first.size)


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_repeat_and_the_systems_entropy_does_not(device):
    X, y, _ = problem(300)
    mechanism = DPSGD(classes=(0, 1), steps=3, sampling_rate=0.5, noise_multiplier=1.0, device=device)
    first, again = (mechanism.train(X, y, random_state=5).model.parameters for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (mechanism.train(X, y).model.parameters != mechanism.train(X, y).model.parameters).all()
    # batches differ too: the key of the noise on its own
    fresh = [DeviceNoise(None, 8, device).next() for _ in range(2)]
    assert (fresh[0] != fresh[1]).all()


def clipped_sum(records, network, device, batch, scale):
    block = DeviceRecords.of(records, network, torch.device(device))
    sums = engine._DeviceSums(network, Loss("cross_entropy"), block, 1.0, "float32", len(records))
    sums.parameters.copy_(torch.from_numpy(network.initial(3, scale)))
    sums.clipped(batch)
    return sums.total.cpu().numpy().copy()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("large", [1.0, 1e30])
def test_one_record_moves_the_sum_by_at_most_its_clip_norm(large, device, monkeypatch):
    """Also in front of all others, in full and sampled batches, and where the gradients of others overflow."""
    monkeypatch.setattr(engine, "_MOST_ROWS", 128)  # several blocks
    network, wild = Network((6, 9, 3), "relu"), 1.0 if large == 1 else 1e12
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(size=(1, 6)) * large, rng.normal(size=(700, 6))])
    rows[5] *= large
    ready = EngineBlockBuilder("cross_entropy", (0, 1, 2), None, True, "float32")
    labels = rng.integers(0, 3, len(rows))

    for batches in ((None, None), (np.arange(701), np.arange(700))):
        with_it = clipped_sum(ready(Block(0, rows, labels)), network, device, batches[0], wild)
        without = clipped_sum(ready(Block(0, rows[1:], labels[1:])), network, device, batches[1], wild)
        assert np.isfinite(with_it).all()
        assert np.linalg.norm(with_it - without) <= 1 + CLIP_SLACK
        if large == 1:
            assert np.linalg.norm(with_it - without) > 0.1


def test_persons_are_weighted():
    X, y, _ = problem(60)
    persons = Persons(np.arange(0, 61, 2), 2)
    constants = {"classes": (0, 1), "steps": 5, "noise_multiplier": 0.0, "sampling_rate": 0.5}
    own, there = (
        DPSGD(**constants, device=device).train(X, y, persons=persons, random_state=0) for device in (None, "cpu")
    )
    np.testing.assert_allclose(there.model.parameters, own.model.parameters, atol=1e-6)


def test_a_device_that_rounds_by_place_is_refused(monkeypatch):
    X, y, _ = problem(100)
    exact = engine._DeviceSums._errors

    def by_place(self, loss, block):
        errors, inputs, factors = exact(self, loss, block)
        factors[-1] *= 1 + 2.0**-50
        return errors, inputs, factors

    monkeypatch.setattr(engine._DeviceSums, "_errors", by_place)
    with pytest.raises(ValueError, match="another place of a batch"):
        DPSGD(classes=(0, 1), steps=1, noise_multiplier=1.0, device="cpu").train(X, y)


def test_a_device_without_float64_products_is_refused(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda into, a, b: into.add_((a.float() @ b.float()).double()))
    with pytest.raises(ValueError, match="does not multiply in float64"):
        engine._require_float64(torch.device("cpu"))


@pytest.mark.parametrize("name", ["cuda:77", "nonsense"])
def test_a_device_that_is_not_there_is_refused(name):
    X, y, _ = problem(50)
    with pytest.raises(ValueError, match="cannot be used"):
        DPSGD(classes=(0, 1), steps=1, noise_multiplier=1.0, device=name).train(X, y)


def test_blocks_that_would_need_too_many_additions_are_refused(monkeypatch):
    X, y, _ = problem(50)
    monkeypatch.setattr(engine, "_MOST_BLOCKS", 2)
    monkeypatch.setattr(engine, "_MOST_ROWS", 16)
    with pytest.raises(ValueError, match="32 records"):
        DPSGD(classes=(0, 1), steps=1, noise_multiplier=1.0, device="cpu").train(X, y)


# ---- noise


@pytest.mark.parametrize("device", DEVICES)
def test_chacha20_gives_the_block_of_the_standard(device):
    """RFC 8439, section 2.3.2: its nonce begins in the upper half of our counter."""
    key = [int.from_bytes(bytes(range(4 * i, 4 * i + 4)), "little") for i in range(8)]
    words = chacha20_words(key, 1, 1, device).cpu().numpy()[:, 0]
    # the same cipher by Python's integers, checked against the vector below
    assert [int(word) & 0xFFFFFFFF for word in words] == plain_chacha20([*key, 1, 0, 0, 0])
    standard = plain_chacha20([*key, 1, 0x09000000, 0x4A000000, 0])
    assert standard[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    assert standard[-4:] == [0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2]


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_of_the_stream_are_counted_beyond_32_bits(device):
    key = list(range(8))
    words = chacha20_words(key, 2**32 - 1, 3, device).cpu().numpy()
    for i, number in enumerate(range(2**32 - 1, 2**32 + 2)):
        expected = plain_chacha20([*key, number & 0xFFFFFFFF, number >> 32, 0, 0])
        assert [int(word) & 0xFFFFFFFF for word in words[:, i]] == expected


def plain_chacha20(rest):
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *rest]
    x = list(start)

    def turned(value, bits):
        return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF

    for _ in range(10):
        for a, b, c, d in [(i, 4 + i, 8 + i, 12 + i) for i in range(4)] + [
            (i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4) for i in range(4)
        ]:
            for first, second, third, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[first] = (x[first] + x[second]) & 0xFFFFFFFF
                x[third] = turned(x[third] ^ x[first], bits)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
def test_noise_is_standard_normal_and_never_repeats(device):
    noise = DeviceNoise(7, 5_000, device, scale=2.0)
    vectors = np.stack([noise.next().cpu().numpy() for _ in range(20)])
    assert stats.kstest(vectors.ravel() / 2, "norm").pvalue > 1e-4
    correlations = np.corrcoef(vectors)[np.triu_indices(20, 1)]
    assert np.abs(correlations).max() < 5.5 / math.sqrt(5_000)
    # the two numbers of a pair, half a vector of blocks apart, are independent too, in length as well
    assert abs(np.corrcoef(vectors[0, :2_000] ** 2, vectors[0, -2_000:] ** 2)[0, 1]) < 5.5 / math.sqrt(2_000)
    assert len(np.unique(vectors)) == vectors.size


def test_extreme_words_give_finite_noise():
    words = torch.tensor([[0, -1]] * 16, dtype=torch.int32)
    normals = device_noise.box_muller(words)
    assert torch.isfinite(normals).all()
    assert 9 < float(normals.abs().max()) < float(Fraction(95, 10))


def test_where_the_device_has_no_room_nothing_is_counted(monkeypatch):
    X, y, _ = problem(50)

    def no_room(*_):
        raise torch.cuda.OutOfMemoryError("of 7919 bytes 50 records are in use")

    for place in ("rows_of", "of"):  # while the records are copied, and later
        with monkeypatch.context() as patch:
            patch.setattr(*((Persons, "rows_of") if place == "rows_of" else (DeviceRecords, "of")), no_room)
            with pytest.raises(MemoryError, match=r"device='cpu' has too little memory .*\(device=None\)$") as told:
                DPSGD(classes=(0, 1), steps=1, sampling_rate=0.5, noise_multiplier=1.0, device="cpu").train(X, y)
        assert told.value.__context__ is None


class OtherThread(ArraySource):
    """Blocks on which another thread than the one that leads the run works."""

    pool = ThreadPoolExecutor(1)

    def map(self, function, *, keep=False):  # noqa: ARG002
        return OtherThread.of_blocks(super().map(function, keep=True).blocks)

    @classmethod
    def of_blocks(cls, blocks):
        source = cls.__new__(cls)
        source._blocks, source._functions = list(blocks), ()
        return source

    def sum(self, function):
        return self.pool.submit(super().sum, function).result()


def test_the_memory_of_sums_over_blocks_goes_with_the_last_step(monkeypatch):
    X, y, _ = problem(60)
    source = OtherThread.of_blocks([Block(i, X[i::2], y[i::2]) for i in range(2)])
    constants = {"classes": (0, 1), "steps": 3, "sampling_rate": 0.5, "noise_multiplier": 1.0}
    seen, honest = [], feeding.BatchGradient.__call__

    def watched(*given):
        total = honest(*given)
        seen.append(len(vars(feeding._SUMS._here)))
        return total

    monkeypatch.setattr(feeding.BatchGradient, "__call__", watched)
    DPSGD(**constants).train_source(source, n_records=60)
    assert seen == [2, 2, 2, 2, 0, 0]  # what it is for and what it is, in all steps but the last
    monkeypatch.setattr(feeding.BatchSums, "clipped", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        DPSGD(**constants).train_source(source, n_records=60)
    assert not OtherThread.pool.submit(lambda: vars(feeding._SUMS._here)).result()


# ---- through the estimators


@pytest.mark.parametrize("device", DEVICES)
def test_a_classifier_trains_its_recipe_there(device):
    X, y, _ = problem(1_500)
    clf = dp.PrivateConformalClassifier(epsilon=4.0, classes=[0, 1], n_records=1_500, random_state=0, device=device)
    sets = clf.fit(X, y).predict_set(X)[1]
    assert clf.ledger_.public_facts["device"] == device
    assert clf.ledger_.epsilon(1e-5) <= 4
    assert sets[np.arange(len(y)), y, 0].mean() > 0.85  # 0.9 within six standard errors
    assert sets[:, :, 0].sum(1).mean() < 1.3


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_regressor_trains_its_recipe_there(device):
    X, _, target = problem(1_500)
    bounds = {"y_bounds": (-30, 30), "feature_bounds": (-4, 4)}
    reg = dp.PrivateConformalRegressor(epsilon=4.0, n_records=1_500, random_state=0, device=device, **bounds)
    assert np.ptp(reg.fit(X, target).predict_interval(X)[1][:, :, 0], axis=1).mean() < 30


def test_a_torch_module_goes_there_too_and_other_mechanisms_say_it_themselves(monkeypatch):
    opacus = pytest.importorskip("dpscp.training.torch.trainer")
    X, y, _ = problem(200)
    public = {"epsilon": 4.0, "classes": [0, 1], "n_records": 200, "device": "cpu"}
    with pytest.raises(ValueError, match=r"DPSGD\(device=\.\.\.\)"):
        dp.PrivateConformalClassifier(DPSGD(steps=1), **public).fit(X, y)
    with pytest.raises(ValueError, match="cannot be used"):
        dp.PrivateConformalClassifier(torch.nn.Linear(6, 2), **{**public, "device": "cuda:77"}).fit(X, y)

    def dry_run(*_, device, **__):
        raise LookupError(f"tried on {device}")

    monkeypatch.setattr(opacus, "dry_run", dry_run)
    with pytest.raises(LookupError, match="tried on cpu:0"):
        dp.PrivateConformalClassifier(torch.nn.Linear(6, 2), **{**public, "device": "cpu:0"}).fit(X, y)


# ---- records in blocks, which visit the device


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_blocks_that_visit_take_the_steps_of_the_processor(rate, device, monkeypatch):
    """Noise and batches are those of the processor, so the whole run is, also with persons and several visits."""
    monkeypatch.setattr(engine, "_MOST_ROWS", 64)
    X, labels, target = problem(600)
    owners = Persons(np.arange(0, 301, 3), 3)
    for name, y in (("tanh", labels), ("huber", target), ("float64", labels)):
        blocks = [Block(i, X[i * 300 : i * 300 + 300], y[i * 300 : i * 300 + 300], owners) for i in range(2)]
        source = UnitSource(ArraySource.of_blocks([*blocks, Block(2, X[:0], y[:0])]), owners.unit)
        constants = {"steps": 6, "noise_multiplier": 0.5, "sampling_rate": rate, **MECHANISMS[name]}
        own, there = (
            DPSGD(**constants, device=where).train_source(source, random_state=1, n_records=200)
            for where in (None, device)
        )
        np.testing.assert_allclose(there.model.parameters, own.model.parameters, atol=3e-6)
        assert there.event == own.event
        assert there.public_facts == {**own.public_facts, "device": device}


@pytest.mark.parametrize("device", DEVICES)
def test_a_visit_adds_up_to_the_same_bits_as_records_that_live_there(device, monkeypatch):
    """So one record moves the sum as little; padding and the batch before it leave nothing behind."""
    monkeypatch.setattr(engine, "_MOST_ROWS", 128)
    network, X = Network((6, 9, 3), "relu"), problem(700)[0]
    ready = EngineBlockBuilder("cross_entropy", (0, 1, 2), None, True, "float32")
    records = ready(Block(0, X, np.resize([0, 1, 2], 700)))
    visiting = DeviceBatchSums(network, Loss("cross_entropy"), 1.0, "float32", 700, device)
    start = network.initial(3, 1.0).astype(np.float32)
    for batch in (None, np.arange(3, 300), np.arange(0), np.arange(700)[::2]):
        own = clipped_sum(records, network, device, batch, 1.0)
        there = visiting.clipped(np.broadcast_to(start, start.shape), records, batch)  # read-only, as from a cluster
        np.testing.assert_array_equal(there, own)
    monkeypatch.setattr(engine, "_MOST_BLOCKS", 5)
    with pytest.raises(ValueError, match="640 records"):
        visiting.clipped(start, records, None)


def test_a_file_visits_and_a_missing_device_spends_nothing(tmp_path):
    X, y, _ = problem(600)
    pd.DataFrame(X, columns=list("abcdef")).assign(y=y).to_parquet(tmp_path / "table.parquet")
    columns = {name: {"type": "numeric", "bounds": [-4, 4]} for name in "abcdef"}
    declared = {"task": "classification", "target": "y", "classes": [0, 1], "n_records": 600, "columns": columns}
    schema = dp.Schema.from_dict(declared)
    clf = dp.PrivateConformalClassifier(epsilon=8.0, guarantee="split", random_state=0, device="cpu")
    clf.fit(tmp_path / "table.parquet", "y", schema=schema)
    assert clf.ledger_.public_facts["device"] == "cpu"
    assert np.mean(clf.predict(X).astype(int) == y) > 0.8
    store = dp.BudgetStore.create(tmp_path / "store", 10.0, 1e-3, dataset="people")
    blocks = ArraySource(X, y, n_blocks=2)
    public = {"epsilon": 1.0, "classes": [0, 1], "n_records": 600}
    own = dp.PrivateConformalClassifier(DPSGD(steps=1, device="cuda:77"), **public)
    for estimator in (dp.PrivateConformalClassifier(device="cuda:77", **public), own):
        with pytest.raises(ValueError, match=r"device='cuda:77' cannot be used.*leave it out"):
            estimator.fit(blocks, budget=store)
    assert not store.ledger().entries


# ---- kernels of Triton


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a CUDA device")
@pytest.mark.parametrize(("size", "dtype"), [(80, "float32"), (1024, "float64"), (4096, "float32")])
@pytest.mark.parametrize("intercept", [True, False])
def test_kernels_compute_what_tensor_operations_do(size, dtype, intercept):
    given = {"dtype": getattr(torch, dtype), "device": "cuda"}
    errors = [torch.randn(size, units, **given) for units in (40, 3)]
    inputs = [torch.randn(size, units, **given) for units in (150, 40)]
    errors[0][3, 2], inputs[1][7, 3], errors[1][9, 0] = math.inf, math.nan, 1e30
    lengths = inputs[0].double().square().sum(1) + intercept
    weights = torch.rand(size, dtype=torch.float64, device="cuda")
    tensors, kernels = TensorSums(1.3, intercept=intercept), choose_sums("cuda", 1.3, intercept=intercept)
    assert not isinstance(kernels, TensorSums)
    factors = tensors.clip(errors, inputs, lengths, weights)
    torch.testing.assert_close(kernels.clip(errors, inputs, lengths, weights), factors, rtol=1e-12, atol=0)
    assert (factors == 0).sum() == 2
    for error, values in zip(errors, inputs, strict=True):
        totals = [factors.new_ones((error.shape[1], values.shape[1] + intercept)) for _ in range(2)]
        for sums, total in zip((tensors, kernels), totals, strict=True):
            sums.add_product(total, error, values, factors)
        torch.testing.assert_close(*totals, rtol=1e-12, atol=1e-11)
    for units in (3, 40):
        layer = torch.randn(units, 150 + intercept, **given)
        torch.testing.assert_close(*(sums.apply(layer, inputs[0]) for sums in (tensors, kernels)), rtol=1e-4, atol=1e-4)
    taken = torch.tensor([5, *range(0, 64, 4)], device="cuda")
    columns = (inputs[0], lengths, torch.arange(size, device="cuda"), weights)
    for found, expected in zip(kernels.gather(columns, taken), tensors.gather(columns, taken), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a CUDA device")
def test_the_noise_kernel_draws_the_numbers_of_the_tensor_operations():
    key = list(range(8))
    expected = device_noise.box_muller(device_noise._words(key, 2**32 - 5, 3_000, "cuda")) * 2.5
    found = device_noise._NormalsKernel(key, "cuda", 2.5)(2**32 - 5, 3_000)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
