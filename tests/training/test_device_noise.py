"""Noise from ChaCha20, computed on a device of torch; without a GPU on torch's own processor device."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpscp.training.torch import device_noise
from dpscp.training.torch.device_noise import DeviceNoise, chacha20_words

torch = pytest.importorskip("torch")
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_repeats_the_noise_and_the_key_of_the_system_does_not(device):
    first, again, fresh, other = (DeviceNoise(seed, 8, device).next() for seed in (5, 5, None, None))
    assert torch.equal(first, again)
    assert (fresh != other).all()


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


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a CUDA device")
def test_the_noise_kernel_draws_the_numbers_of_the_tensor_operations():
    key = list(range(8))
    expected = device_noise.box_muller(device_noise._words(key, 2**32 - 5, 3_000, "cuda")) * 2.5
    found = device_noise._NormalsKernel(key, "cuda", 2.5)(2**32 - 5, 3_000)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
