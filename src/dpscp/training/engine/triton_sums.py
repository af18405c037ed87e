"""`BlockSums` for CUDA as a few kernels: the tensor operations spend most of a short step on starting theirs.

Float32 rows turn into float64 inside the product, so that no float64 copy of a block is written. Triton comes with
torch's CUDA builds and with nothing else, so that this file is imported only on such a machine. Triton passes Python's
floats as float32: constants with more bits are in a tensor.
"""

import math
from typing import Any

import triton
import triton.language as tl

from dpscp.training.engine.block_sums import PRODUCT_ROWS, apply_layer
from dpscp.training.engine.gradients import LARGEST_SQUARES
from dpscp.training.torch.modules import load_torch

# Outputs and inputs of one tile of a product, for narrow and wide layers; its records; and the tiles that keep the
# multiprocessors of a card busy.
_NARROW, _WIDE, _ROWS, _BUSY = (16, 128), (64, 64), 16, 264
_RECORDS, _COLUMNS, _AT_ONCE = 8, 256, 1024
_GROUPS, _PLACES = 16, 128
_FORWARD_ROWS, _FORWARD_IN = 32, 64


@triton.jit
def _gather(taken, lengths, targets, weights, to_lengths, to_targets, to_weights, size, at_once: tl.constexpr):
    place = tl.program_id(0) * at_once + tl.arange(0, at_once)
    inside = place < size
    record = tl.load(taken + 1 + place, inside, 0)
    tl.store(to_lengths + place, tl.load(lengths + record, inside), inside)
    tl.store(to_targets + place, tl.load(targets + record, inside), inside)
    weight = tl.load(weights + record, inside & (place < tl.load(taken)), 0.0)
    tl.store(to_weights + place, weight, inside)


@triton.jit
def _squares(values, row, inside, width, columns: tl.constexpr, records: tl.constexpr):
    squares = tl.zeros([records], dtype=tl.float64)
    for start in range(0, width, columns):
        column = start + tl.arange(0, columns)
        held = inside[:, None] & (column < width)[None, :]
        part = tl.load(values + row.to(tl.int64)[:, None] * width + column[None, :], held, 0.0).to(tl.float64)
        squares += tl.sum(part * part, 1)
    return squares


@triton.jit
def _add_norms(  # noqa: PLR0913 (a kernel takes pointers and sizes)
    norms, errors, values, lengths, weights, constants, size, n_out, n_in,
    first: tl.constexpr, last: tl.constexpr, columns: tl.constexpr, records: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * records + tl.arange(0, records)
    inside = row < size
    limit = tl.load(constants)
    largest = tl.load(constants + 1)
    square = _squares(errors, row, inside, n_out, columns, records)
    if first:
        length = tl.load(lengths + row, inside, 0.0)
        total = tl.zeros([records], dtype=tl.float64)
    else:
        length = _squares(values, row, inside, n_in, columns, records) + tl.load(constants + 2)
        total = tl.load(norms + row, inside, 0.0)
    # below zero: not counted. A number that is not finite is not below anything
    counted = (square < largest) & (length < largest) & (total >= 0)
    total = tl.where(counted, total + square * length, -1.0)
    if last:
        norm = tl.maximum(tl.sqrt(tl.where(counted, total, 0.0)), limit)
        total = tl.where(counted, limit / norm * tl.load(weights + row, inside, 0.0), 0.0)
    tl.store(norms + row, total, inside)


@triton.jit
def _multiply(  # noqa: PLR0913 (the same)
    out, errors, values, factors, size, rows, n_out, n_in, width,
    grouped: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2)
    unit = tl.program_id(0) * tile_out + tl.arange(0, tile_out)
    column = tl.program_id(1) * tile_in + tl.arange(0, tile_in)
    total = tl.zeros([tile_out, tile_in], dtype=tl.float64)
    for start in range(0, rows, tile_rows):
        row = group * rows + start + tl.arange(0, tile_rows)
        inside = row < size
        # nothing that is loaded decides what else is loaded: loads of the next tile start early
        factor = tl.load(factors + row, inside, 0.0)
        error = tl.load(errors + row[None, :] * n_out + unit[:, None], inside[None, :] & (unit < n_out)[:, None], 0.0)
        value = tl.load(values + row[:, None] * n_in + column[None, :], inside[:, None] & (column < n_in)[None, :], 0.0)
        counted = factor != 0
        clipped = tl.where(counted[None, :], error.to(tl.float64) * factor[None, :], 0.0)
        wide = tl.where(counted[:, None], value.to(tl.float64), 0.0)
        wide = tl.where((column == n_in)[None, :], 1.0, wide)  # the bias
        total = tl.dot(clipped, wide, total, out_dtype=tl.float64)
    place = unit[:, None] * width + column[None, :]
    held = (unit < n_out)[:, None] & (column < width)[None, :]
    if grouped:
        tl.store(out + group.to(tl.int64) * n_out * width + place, total, held)
    else:
        tl.store(out + place, tl.load(out + place, held, 0.0) + total, held)


@triton.jit
def _add_groups(out, parts, groups, numbers, some: tl.constexpr, at_once: tl.constexpr):
    place = tl.program_id(0) * at_once + tl.arange(0, at_once)
    held = place < numbers
    total = tl.load(out + place, held, 0.0)
    for start in range(0, groups, some):
        group = start + tl.arange(0, some)
        part = parts + group.to(tl.int64)[:, None] * numbers + place[None, :]
        total += tl.sum(tl.load(part, (group < groups)[:, None] & held[None, :], 0.0), 0)
    tl.store(out + place, total, held)


@triton.jit
def _apply_narrow(  # noqa: PLR0913 (the same)
    out, values, weights, size, n_out, n_in, width,
    intercept: tl.constexpr, tile_rows: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    unit = tl.arange(0, tile_out)
    inside, held = row < size, unit < n_out
    # the tensor cores multiply float64 faster than others multiply float32
    total = tl.zeros([tile_rows, tile_out], dtype=tl.float64)
    for start in range(0, n_in, tile_in):
        column = start + tl.arange(0, tile_in)
        known = column < n_in
        value = tl.load(values + row[:, None] * n_in + column[None, :], inside[:, None] & known[None, :], 0.0)
        weight = tl.load(weights + unit[None, :] * width + column[:, None], held[None, :] & known[:, None], 0.0)
        total = tl.dot(value.to(tl.float64), weight.to(tl.float64), total, out_dtype=tl.float64)
    if intercept:
        total += tl.load(weights + unit * width + n_in, held, 0.0).to(tl.float64)[None, :]
    outputs = total.to(out.dtype.element_ty)
    tl.store(out + row[:, None] * n_out + unit[None, :], outputs, inside[:, None] & held[None, :])


class TritonSums:
    """`BlockSums` on a CUDA device.

    Theory: section 1.6
    """

    def __init__(self, clip_norm: float, device: Any, *, intercept: bool) -> None:
        torch = load_torch()
        self._intercept = intercept
        self._constants = torch.tensor(
            [clip_norm, LARGEST_SQUARES, float(intercept)], dtype=torch.float64, device=device
        )

    def gather(self, columns: tuple[Any, ...], taken: Any) -> tuple[Any, ...]:
        """Return rows, squared norms, targets and weights of these records; see `BlockSums`."""
        size = len(taken) - 1
        found = [values.new_empty(size) for values in columns[1:]]
        with load_torch().cuda.device(taken.device):  # Triton starts kernels on the current one
            _gather[(triton.cdiv(size, _AT_ONCE),)](taken, *columns[1:], *found, size, _AT_ONCE)
        return columns[0].index_select(0, taken[1:]), *found

    def apply(self, layer: Any, values: Any) -> Any:
        """Return a layer's outputs before its activation; see `BlockSums`."""
        (n_out, width), size = layer.shape, len(values)
        if n_out > _NARROW[0]:
            return apply_layer(layer, values, intercept=self._intercept)
        outputs = values.new_empty((size, n_out))
        with load_torch().cuda.device(values.device):
            _apply_narrow[(triton.cdiv(size, _FORWARD_ROWS),)](
                outputs, values.contiguous(), layer, size, n_out, values.shape[1], width,
                self._intercept, _FORWARD_ROWS, _NARROW[0], _FORWARD_IN,
            )  # fmt: skip
        return outputs

    def clip(self, errors: list[Any], inputs: list[Any], lengths: Any, weights: Any) -> Any:
        """Return each record's weight times its clipping factor; see `BlockSums`."""
        size = len(weights)
        norms = self._constants.new_empty(size)
        with load_torch().cuda.device(norms.device):
            for layer, (error, values) in enumerate(zip(errors, inputs, strict=True)):
                _add_norms[(triton.cdiv(size, _RECORDS),)](
                    norms, error.contiguous(), values.contiguous(), lengths, weights, self._constants, size,
                    error.shape[1], values.shape[1], layer == 0, layer == len(errors) - 1, _COLUMNS, _RECORDS,
                )  # fmt: skip
        return norms

    def add_product(self, total: Any, errors: Any, values: Any, factors: Any) -> None:
        """Add the products of errors and (values, 1), times the factors; see `BlockSums`."""
        size, (n_out, width), n_in = len(errors), total.shape, values.shape[1]
        if size * max(n_out, width) >= 1 << 31:
            raise ValueError("a layer is too wide for 32-bit places of a block; train on the CPU (device=None)")
        tile_out, tile_in = _WIDE if n_out >= _WIDE[0] else _NARROW
        tiles = triton.cdiv(n_out, tile_out) * triton.cdiv(width, tile_in)
        groups = max(math.ceil(size / PRODUCT_ROWS), min(math.ceil(_BUSY / tiles), math.ceil(size / _ROWS)))
        rows = _ROWS * math.ceil(size / groups / _ROWS)
        groups = math.ceil(size / rows)
        out = total if groups == 1 else total.new_empty((groups, n_out, width))
        with load_torch().cuda.device(total.device):
            _multiply[(triton.cdiv(n_out, tile_out), triton.cdiv(width, tile_in), groups)](
                out, errors.contiguous(), values.contiguous(), factors, size, rows, n_out, n_in, width,
                groups > 1, tile_out, tile_in, _ROWS,
            )  # fmt: skip
            if groups > 1:
                numbers = n_out * width
                _add_groups[(triton.cdiv(numbers, _PLACES),)](total, out, groups, numbers, _GROUPS, _PLACES)
