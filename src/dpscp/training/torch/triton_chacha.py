"""ChaCha20 for CUDA as one kernel: the same words as `chacha20_words`, a hundred times faster.

Triton comes with torch's CUDA builds and with nothing else, so that this file is imported only on such a machine.
"""

from typing import Any

import triton
import triton.language as tl

from dpscp.training.torch.modules import load_torch

_AT_ONCE = 256


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _words_of(start, place, first, at_once: tl.constexpr):
    number = place.to(tl.int64) + first
    nothing = tl.zeros([at_once], dtype=tl.uint32)
    s0 = nothing + tl.load(start + 0)
    s1 = nothing + tl.load(start + 1)
    s2 = nothing + tl.load(start + 2)
    s3 = nothing + tl.load(start + 3)
    s4 = nothing + tl.load(start + 4)
    s5 = nothing + tl.load(start + 5)
    s6 = nothing + tl.load(start + 6)
    s7 = nothing + tl.load(start + 7)
    s8 = nothing + tl.load(start + 8)
    s9 = nothing + tl.load(start + 9)
    s10 = nothing + tl.load(start + 10)
    s11 = nothing + tl.load(start + 11)
    s12 = (number & 0xFFFFFFFF).to(tl.uint32)
    s13 = (number >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, nothing, nothing
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        x0 + s0, x1 + s1, x2 + s2, x3 + s3, x4 + s4, x5 + s5, x6 + s6, x7 + s7,
        x8 + s8, x9 + s9, x10 + s10, x11 + s11, x12 + s12, x13 + s13, x14, x15,
    )  # fmt: skip


@triton.jit
def _blocks(out, start, first, count, at_once: tl.constexpr):
    place = tl.program_id(0) * at_once + tl.arange(0, at_once)
    inside = place < count
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _words_of(start, place, first, at_once)
    tl.store(out + 0 * count + place, x0, inside)
    tl.store(out + 1 * count + place, x1, inside)
    tl.store(out + 2 * count + place, x2, inside)
    tl.store(out + 3 * count + place, x3, inside)
    tl.store(out + 4 * count + place, x4, inside)
    tl.store(out + 5 * count + place, x5, inside)
    tl.store(out + 6 * count + place, x6, inside)
    tl.store(out + 7 * count + place, x7, inside)
    tl.store(out + 8 * count + place, x8, inside)
    tl.store(out + 9 * count + place, x9, inside)
    tl.store(out + 10 * count + place, x10, inside)
    tl.store(out + 11 * count + place, x11, inside)
    tl.store(out + 12 * count + place, x12, inside)
    tl.store(out + 13 * count + place, x13, inside)
    tl.store(out + 14 * count + place, x14, inside)
    tl.store(out + 15 * count + place, x15, inside)


@triton.jit
def _pair(out, place, count, inside, high, low, turn, rest, constants, k: tl.constexpr):
    length = (high.to(tl.float64) * tl.load(constants) + low.to(tl.float64) + 0.5) * tl.load(constants + 1)
    angle = (turn.to(tl.float64) * tl.load(constants) + rest.to(tl.float64)) * tl.load(constants + 2)
    length = tl.sqrt(tl.log(length) * -2.0) * tl.load(constants + 3)
    tl.store(out + k * count + place, length * tl.cos(angle), inside)
    tl.store(out + (4 + k) * count + place, length * tl.sin(angle), inside)


@triton.jit
def _normals(out, start, constants, first, count, at_once: tl.constexpr):
    place = tl.program_id(0) * at_once + tl.arange(0, at_once)
    inside = place < count
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15 = _words_of(start, place, first, at_once)
    _pair(out, place, count, inside, x0, x4, x8, x12, constants, 0)
    _pair(out, place, count, inside, x1, x5, x9, x13, constants, 1)
    _pair(out, place, count, inside, x2, x6, x10, x14, constants, 2)
    _pair(out, place, count, inside, x3, x7, x11, x15, constants, 3)


def fill_words(out: Any, start: Any, first: int, count: int) -> None:
    """Fill ``out``, (16, count), as `chacha20_words`.

    ``start`` holds the constants and the key. uint32, on CUDA.
    """
    with load_torch().cuda.device(out.device):  # Triton starts kernels on the current one
        _blocks[(triton.cdiv(count, _AT_ONCE),)](out, start, first, count, _AT_ONCE)


def fill_normals(out: Any, start: Any, constants: Any, first: int, count: int) -> None:
    """Fill ``out``, (8 * count,) in float64, with the numbers that `cuda_noise.box_muller` makes of these words.

    ``constants`` are 2**32, 2**-64, 2 pi 2**-64 and the scale: Triton would pass them as float32.
    """
    with load_torch().cuda.device(out.device):
        _normals[(triton.cdiv(count, _AT_ONCE),)](out, start, constants, first, count, _AT_ONCE)
