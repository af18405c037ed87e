"""Draw Gaussian noise on the device, from a cryptographic stream.

torch's own generators (Mersenne twister on the CPU, Philox on CUDA) are not cryptographic: their output reveals their
state. AES noise from the CPU would be safe, but for a wide network drawing and moving it takes many times as long as
the step. So ChaCha20 is computed here as operations on whole tensors, on any device of torch.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpscp.training.torch.device import has_triton
from dpscp.training.torch.modules import load_torch

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_DOUBLE_ROUNDS = 10
# Numbers drawn at once: a draw is some seven hundred small operations, however many numbers it gives. A run starts with
# few and doubles them, so that a short one draws few unused numbers.
_FIRST, _AT_ONCE = 1 << 14, 1 << 22
_NORMALS_PER_BLOCK = 8
_SEEDED = 8  # the stream of a seed that is drawn here, see `dpscp.privacy.random_streams`


def chacha20_words(key: Sequence[int], first: int, count: int, device: Any) -> Any:
    """Return the words of ``count`` ChaCha20 blocks from block ``first`` on.

    The result is int32 of shape (16, count).

    The variant of Bernstein with a counter of 64 bits; the other 64 are zero. One kernel where torch has brought
    Triton; elsewhere seven hundred operations on tensors, whose words are the same.
    """
    if has_triton(device):
        from dpscp.training.torch.triton_chacha import fill_words

        torch = load_torch()
        words = torch.empty((16, count), dtype=torch.int32, device=device)
        fill_words(words.view(torch.uint32), _start_words(key, device), first, count)
        return words
    return _words(key, first, count, device)


def _start_words(key: Sequence[int], device: Any) -> Any:
    """Return the constants and the key, as a kernel reads them."""
    torch = load_torch()
    words = [_signed(word) for word in (*_CONSTANTS, *key)]
    return torch.tensor(words, dtype=torch.int32, device=device).view(torch.uint32)


def _words(key: Sequence[int], first: int, count: int, device: Any) -> Any:
    torch = load_torch()
    numbers = torch.arange(first, first + count, dtype=torch.int64, device=device)
    start = torch.zeros((16, count), dtype=torch.int32, device=device)
    for row, word in enumerate((*_CONSTANTS, *key)):
        start[row] = _signed(word)
    start[12] = (numbers & 0xFFFFFFFF).to(torch.int32)
    start[13] = (numbers >> 32).to(torch.int32)
    a, b, c, d = start.clone().view(4, 4, count)
    for _ in range(_DOUBLE_ROUNDS):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        # the same again along the diagonals
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        a, b, c, d = _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)


def _quarter_rounds(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Compute four quarter rounds side by side; sums wrap around in 32 bits."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(words: Any, bits: int) -> Any:
    # a shift to the right of a signed number fills up with its sign
    return (words << bits) | ((words >> (32 - bits)) & ((1 << bits) - 1))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


class DeviceNoise:
    """Standard normal vectors on a device, times ``scale``, in float64.

    Box and Muller's transform of 64 random bits for the length and 64 for the angle: no length above 9.4 occurs, which
    a Gaussian exceeds with probability 2**-64. ``random_state=None`` takes the key from the operating system.
    """

    def __init__(self, random_state: int | None, size: int, device: Any, scale: float = 1.0) -> None:
        material = os.urandom(32)
        if random_state is not None:  # `secure_generator` has warned about the seed
            material = np.random.SeedSequence([random_state, _SEEDED]).generate_state(8).tobytes()
        self._key = [int(word) for word in np.frombuffer(material, dtype="<u4")]
        self._size, self._device, self._scale = size, device, scale
        self._kernel = _NormalsKernel(self._key, device, scale) if has_triton(device) else None
        self._vectors: Any = ()
        self._at_once, self._used, self._next = _FIRST, 0, 0

    def next(self) -> Any:
        """Return the next vector."""
        if self._used == len(self._vectors):
            count = max(1, self._at_once // self._size)
            blocks = math.ceil(count * self._size / _NORMALS_PER_BLOCK)
            self._vectors = self._draw(blocks)[: count * self._size].view(count, self._size)
            self._next += blocks
            self._at_once = min(_AT_ONCE, 2 * self._at_once)
            self._used = 0
        self._used += 1
        return self._vectors[self._used - 1]

    def _draw(self, blocks: int) -> Any:
        """Return the normal numbers of the next blocks of the stream."""
        if self._kernel is not None:
            return self._kernel(self._next, blocks)
        return box_muller(chacha20_words(self._key, self._next, blocks, self._device)).mul_(self._scale)


class _NormalsKernel:
    """The same numbers from one kernel, up to the last bits of its logarithm and cosine."""

    def __init__(self, key: Sequence[int], device: Any, scale: float) -> None:
        torch = load_torch()
        self._start = _start_words(key, device)  # once: a copy to the card waits for its work
        constants = [2.0**32, 2.0**-64, 2 * math.pi * 2.0**-64, scale]
        self._constants = torch.tensor(constants, dtype=torch.float64, device=device)

    def __call__(self, first: int, blocks: int) -> Any:
        """Return eight normal numbers for each block from ``first`` on."""
        from dpscp.training.torch.triton_chacha import fill_normals

        normals = self._constants.new_empty(_NORMALS_PER_BLOCK * blocks)
        fill_normals(normals, self._start, self._constants, first, blocks)
        return normals


def box_muller(words: Any) -> Any:
    """Return independent standard normal numbers, eight from each block of words."""
    torch = load_torch()
    halves = (words.to(torch.int64) & 0xFFFFFFFF).double().view(4, 4, -1)
    length = (halves[0] * 2.0**32 + halves[1] + 0.5) * 2.0**-64
    angle = (halves[2] * 2.0**32 + halves[3]) * (2 * math.pi * 2.0**-64)
    length = length.log_().mul_(-2).sqrt_()
    return torch.cat([length * angle.cos(), length * angle.sin()]).view(-1)
