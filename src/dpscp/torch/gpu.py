"""Run the sum of a block as one CUDA graph, and draw noise on the device.

Only the checked graph, the terms and the sums are captured, on synthetic records. A replay reads buffers of fixed size
and writes to memory of the capture alone.

Noise: the words of ChaCha20 (RFC 8439) under a secret key of 256 bits, at counters that are used once. Each normal
number is the inverse of the normal distribution at a uniform number of its own 96 bits.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from dpscp.torch.library import Tensor, torch

# "expand 32-byte k"
_START = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_DRAWN_AT_ONCE = 1 << 21


def is_gpu(device: Any) -> bool:
    """Return whether blocks are captured and noise is drawn on this device."""
    return bool(device.type == "cuda")


def to_gpu(values: Tensor) -> Tensor:
    """Copy a tensor to the GPU without waiting."""
    return values.pin_memory().to("cuda", non_blocking=True)


def capture(work: Callable[[], None]) -> Callable[[], None] | None:
    """Return a function that repeats the work on the GPU, or None where it cannot be captured.

    The work is done three times here.
    """
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:  # an operation that waits for the device, such as inv
        torch.cuda.synchronize()
        return None
    replay: Callable[[], None] = graph.replay
    return replay


def keystream(key: Tensor, counters: Tensor) -> list[Tensor]:
    """Return the sixteen words of each block of ChaCha20.

    ``key``: eight words. ``counters``: the numbers of the blocks, 64 bits. Words are int32 with their bits.
    """
    low, high = counters.to(torch.int32), (counters >> 32).to(torch.int32)
    zero = torch.zeros_like(low)
    start = [*(torch.full_like(low, word) for word in _START), *(zero + word for word in key.unbind())]
    start += [low, high, zero, zero]
    words, two_rounds = list(start), _compiled_rounds() if is_gpu(counters.device) else _two_rounds
    for _ in range(10):
        words = two_rounds(words)
    return [word + first for word, first in zip(words, start, strict=True)]


def _two_rounds(words: list[Tensor]) -> list[Tensor]:
    words = list(words)
    for a, b, c, d in _QUARTERS:
        for i, j, k, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            words[i] = words[i] + words[j]
            mixed = words[k] ^ words[i]
            words[k] = (mixed << bits) | ((mixed >> (32 - bits)) & ((1 << bits) - 1))
    return words


@cache
def _compiled_rounds() -> Callable[[list[Tensor]], list[Tensor]]:
    """Return two rounds of ChaCha20, as one kernel where torch has a compiler."""
    compiled: Callable[[list[Tensor]], list[Tensor]] = torch.compile(_two_rounds, dynamic=True)
    try:
        compiled([torch.arange(start, start + 64, dtype=torch.int32, device="cuda") for start in range(16)])
    except Exception:  # without a compiler
        return _two_rounds
    return compiled


def normal_numbers(key: Tensor, counters: Tensor) -> Tensor:
    """Return five standard normal numbers of each block, float64, (5, blocks).

    The first bit of three words is the sign; the others are a uniform number below a half.
    """
    words = keystream(key, counters)
    first, *rest = (torch.stack(words[place:15:3]) for place in range(3))
    second, third = ((word.to(torch.int64) & 0xFFFFFFFF).double() for word in rest)
    uniform = (((third + 0.5) * 2.0**-32 + second) * 2.0**-32 + (first & 0x7FFFFFFF).double()) * 2.0**-32
    return torch.special.ndtri(uniform) * torch.where(first < 0, 1.0, -1.0)


def draw_noise(key: bytes, size: int, scale: float, device: Any) -> Iterator[Tensor]:
    """Yield normal vectors of this size and standard deviation; no two keys may be equal.

    A vector is overwritten when a later one is drawn.
    """
    words = torch.frombuffer(bytearray(key), dtype=torch.int32).to(device)
    rows = max(1, _DRAWN_AT_ONCE // size)
    parts = math.ceil(rows * size / _DRAWN_AT_ONCE)
    blocks = math.ceil(rows * size / parts / 5)
    counters = torch.arange(blocks, dtype=torch.int64, device=device)
    numbers = torch.empty(parts, blocks * 5, dtype=torch.float64, device=device)

    def draw() -> None:
        for part in numbers:
            part.copy_(normal_numbers(words, counters).mul_(scale).view(-1))
            counters.add_(blocks)

    again = (capture(draw) if is_gpu(device) else None) or draw
    while True:
        again()
        yield from numbers.view(-1)[: rows * size].view(rows, size)
