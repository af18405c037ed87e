"""Sum clipped gradients of dense networks without single-record gradients.

The gradient of one record in a dense layer is the outer product of the layer's input a (with its bias coordinate) and
the backpropagated error d, so its squared norm is |a|^2 |d|^2 (the ghost norm). Clipping needs these norms only: the
sum of clipped gradients is one matrix product a layer with rescaled errors.

Arrays inside are (units, records), so that reductions over a few units run along contiguous records. Views, transposed
views and constants are made once, because a step of a small network takes most of its time in calls.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp.training.engine.networks import (
    MOST_ROWS,
    AlikeBlocks,
    LayerValues,
    Loss,
    Network,
    synthetic_rows,
    whole_lanes,
)
from dpscp.training.engine.rows import CHUNK_NUMBERS, EngineBlock, aligned_empty, is_aligned, restore_rows
from dpscp.training.engine.threads import SecondThread

# The clipped sum's sensitivity is at most clip_norm * (1 + CLIP_SLACK) in floating point: the noise is scaled for it.
# Proven for batches of at most MOST_RECORDS: see `ClippedGradient`.
CLIP_SLACK = 1e-4
MOST_RECORDS = 1 << 25
SMALLEST_CLIP_NORM = 1e-30
# A record whose sum of squares exceeds this counts as zero, so that no square that matters underflows.
LARGEST_SQUARES = 2.0**500
# Products that are summed before the sum is added to the total: two levels limit the additions of one term.
_PRODUCTS_PER_PART = 1 << 12
# In a smaller block most time goes into the result of the product, which is as long as the parameters.
_FEWEST_ROWS = 512
# Numbers of the rows that are turned into float64 for one product: they stay in cache.
_WIDE_NUMBERS = 1 << 16
# OpenBLAS has kernels for small products that copy nothing: two to three times as fast. In multiplications, and rows.
_SMALL_WORK, _FEWEST_ADDED_ROWS = 900_000, 64


class ClippedGradient(AlikeBlocks):
    """Sum gradients clipped to `clip_norm` over records, by ghost norms.

    Gradients are taken at `parameters`, memory that the caller changes in place. Errors and layer inputs are computed
    in `dtype`, in blocks of sizes whose products round alike in every place (`AlikeBlocks`). Where float32 products
    round by the place in every size, as those of OpenBLAS for AVX2 do, all of it is float64. Clipping factors and sums
    are float64, and so are norms. With a `second` thread the layers' products are shared with it. Each product is
    computed by one thread, so the rounding is the same.

    Privacy: a record adds its clipped gradient times its weight, which is at most one; the weights of a person's
    records add up to one. Adding or removing a person changes the sum of at most MOST_RECORDS records by at most
    clip_norm * (1 + CLIP_SLACK), rounding included. The proof is in `docs/floating_point.md`. A record whose gradient
    is not finite (an overflow at extreme parameters) adds zero.

    Theory: Fact 6
    """

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str, batch: float = math.inf) -> None:
        """Allocate memory for blocks of about `batch` records.

        This is their public expected number.
        """
        self.loss, self._batch = loss, batch
        self.second: SecondThread | None = None
        self.thread = threading.get_ident()
        self._limit = np.array(clip_norm, dtype=np.float64)
        self._target_dtype = np.dtype(np.int64 if loss.name == "cross_entropy" else dtype)
        super().__init__(network, dtype, loss, clip_norm, type(self)._backward)

    def _allocate(self) -> float:
        """Allocate the memory of blocks in this precision."""
        network, dtype, batch = self.network, self.dtype, self._batch
        self._outs, self._ins = zip(*network.shapes, strict=True)
        (first, *_), (inputs, *hidden) = self._outs, self._ins
        units = sum((*self._outs, *hidden))
        most = max(_FEWEST_ROWS, min(MOST_ROWS, CHUNK_NUMBERS // (inputs + 4 * units)))
        self.chunk = whole_lanes(min(most, batch + 3 * math.sqrt(batch) + 1))
        small = _SMALL_WORK // (first * inputs)
        self._rows_a_product = small if small >= _FEWEST_ADDED_ROWS else self.chunk
        self._allocate_views(units)
        # padding is made of zeros or of earlier records: its results are never read
        self._rows = aligned_empty((self.chunk, inputs), dtype)
        self._rows.fill(0)
        self._norms, self._target = np.zeros(self.chunk), np.zeros(self.chunk, dtype=self._target_dtype)
        self._columns = np.arange(self.chunk)
        self._back = [layer[:, : layer.shape[1] - network.intercept].T for layer in self._layers]
        self._total, self._extra = np.empty(network.n_parameters), np.empty(network.n_parameters)
        self._total_layers, self._extra_layers = network.layers(self._total), network.layers(self._extra)
        self._parts: Array | None = None
        self._products = 0
        rows_at_once = min(self.chunk, max(16, _WIDE_NUMBERS // inputs))
        self._wide_rows = aligned_empty((rows_at_once, inputs), "float64")
        self._part_product = np.empty(network.shapes[0])
        return self.chunk

    def _allocate_views(self, units: int) -> None:
        """Allocate memory that is divided again for each number of records.

        Also allocates the constants that reduce it.
        """
        # rows of zeros and ones: one product sums the squares of every layer
        n, hidden = len(self._outs), self._ins[1:]
        self._error_layer = np.repeat(np.eye(n), self._outs, axis=1)
        self._hidden_layer = np.repeat(np.eye(n - 1), hidden, axis=1)
        self._each_layer = np.ones(n)
        self._views: dict[int, _Views] = {}
        heights = {"every": (units, self.dtype), "wide": (units, "float64")}
        heights |= {"squares": (units, "float64"), "factors": (1, "float64"), "norms": (2 * n, "float64")}
        self._memory = {name: (h, aligned_empty((h * self.chunk,), dtype)) for name, (h, dtype) in heights.items()}
        if self.dtype == "float64":
            self._memory["wide"] = self._memory["every"]

    def _synthetic_results(self, size: int) -> Iterator[Array]:
        """Yield errors and inputs of synthetic records in every place of a block."""
        kept, self.parameters[:] = self.parameters.copy(), self.network.initial(0, 1.0)
        rows = aligned_empty((size, self._ins[0]), self.dtype)
        target = np.zeros(size, dtype=int) if self.loss.name == "cross_entropy" else np.full(size, 0.5)
        long = np.full(size, 16 * self._limit**2)  # squared norms for which clipping acts
        # the loss may round by place as well; the squared loss hides no bit of an output
        for i, loss in enumerate((self.loss, *[Loss("squared")] * (1 + 12 // self._outs[-1]))):
            rows[:] = synthetic_rows(1 + i, self._ins[0])
            rows[:, self.network.widths[0] :] = 1
            with np.errstate(all="ignore"):
                v = self._backward(loss, rows, target)
                self._clip(v, long, np.ones(size))
                v.wide_error *= v.factors
            yield v.wide.copy()
        self.parameters[:] = kept

    def errors(self, records: EngineBlock, start: int) -> Array:
        """Return the first layer's clipped weighted errors of a chunk of records.

        They have the shape (units, records), in float64.
        """
        part = slice(start, min(len(records), start + self.chunk))
        rows, squared_norms, target, weights = self._read(records, part, aligned=self._has_aligned(records))
        v = self._backward(self.loss, rows, target)
        self._clip(v, squared_norms, weights)
        v.wide_error *= v.factors
        return v.wide_errors[0][:, : len(weights)]

    def sum(self, records: EngineBlock, persons: NDArray[np.int64] | None) -> tuple[Array, int]:
        """Return the weighted sum over the batch, and its number of records.

        The next call overwrites the sum. None stands for all persons.
        """
        batch = None if persons is None else records.owners.rows_of(persons)
        size = len(records) if batch is None else len(batch)
        check_batch(size)
        aligned = batch is None and self._has_aligned(records)
        self._parts, self._products = None, 0
        for start in range(0, size, self.chunk):
            part = slice(start, min(size, start + self.chunk))
            block = self._read(records, part if batch is None else batch[part], aligned=aligned)
            self._add(*block, first=start == 0)
        if not size:
            self._total.fill(0)
        if self._parts is not None:
            self._total += self._parts
        return self._total, size

    def _has_aligned(self, records: EngineBlock) -> bool:
        """Return whether full blocks of these rows can be read where they are."""
        return records.rows.dtype == self._rows.dtype and is_aligned(records.rows, self.chunk)

    def _read(
        self, records: EngineBlock, where: slice | NDArray[np.int64], *, aligned: bool
    ) -> tuple[Array, Array, Array, Array]:
        """Return padded rows, squared norms, targets and weights of these records."""
        if isinstance(where, slice):
            m, weights = where.stop - where.start, records.owners.weights[where]
            if aligned and m == self.size(m):
                return records.rows[where], records.squared_norms[where], records.targets[where], weights
        else:
            m, weights = len(where), records.owners.weights_of(where)
        size = self.size(m)
        if records.scales is None:
            _copy_records(records.rows, where, self._rows[:m])
        else:
            restore_rows(records.rows[where], records.scales[where], self._rows[:m])
        _copy_records(records.squared_norms, where, self._norms[:m])
        _copy_records(records.targets, where, self._target[:m])
        return self._rows[:size], self._norms[:size], self._target[:size], weights

    def _backward(self, loss: Loss, rows: Array, target: Array) -> "_Views":
        """Compute the errors of all layers, and the inputs of the later layers.

        The errors take the place of the outputs.
        """
        m, last = len(rows), len(self._layers) - 1
        if m not in self._views:
            self._views[m] = _Views(
                self.network, {n: array[: h * m].reshape(h, m) for n, (h, array) in self._memory.items()}
            )
        v = self._views[m]
        self._forward(self._layers, rows, v)
        loss.error(v.errors[last], target, self._columns[:m])
        for depth in range(last - 1, -1, -1):
            self._back[depth + 1].dot(v.errors[depth + 1], v.errors[depth])
            if self.network.activation == "relu":
                np.bitwise_and(v.error_bits[depth], v.slopes[depth], out=v.error_bits[depth])
            else:
                np.multiply(v.errors[depth], 1 - v.outputs[depth] ** 2, out=v.errors[depth])
        if self.dtype == "float32":
            np.copyto(v.wide, v.every)
        return v

    def _clip(self, v: "_Views", squared_norms: Array, weights: Array) -> None:
        """Compute each record's clipping factor times its weight, 0 for padding."""
        np.multiply(v.wide, v.wide, out=v.squares)
        self._error_layer.dot(v.error_squares, v.error_norms)
        if v.hidden:
            self._hidden_layer.dot(v.hidden_squares, v.later_norms)
        np.copyto(v.row_norms, squared_norms)
        # one comparison for all: if one norm were beyond the limit, this sum would be; NaN compares as False
        if not v.flat_norms.dot(v.flat_norms) < LARGEST_SQUARES**2 / 2:
            self._clear_extreme_records(v)
        np.multiply(v.error_norms, v.input_norms, out=v.error_norms)
        factors = v.factors
        self._each_layer.dot(v.error_norms, factors)
        np.sqrt(factors, out=factors)
        np.maximum(factors, self._limit, out=factors)
        np.divide(self._limit, factors, out=factors)
        factors[: len(weights)] *= weights
        factors[len(weights) :] = 0

    def _clear_extreme_records(self, v: "_Views") -> None:
        """Set records beyond any norm to zero."""
        broken = ~np.all(v.norms < LARGEST_SQUARES, axis=0)
        for values in (v.wide, v.every, v.norms):
            values[:, broken] = 0

    def _add(self, rows: Array, squared_norms: Array, target: Array, weights: Array, *, first: bool) -> None:
        """Start or continue a sum with the clipped weighted gradients of a block.

        One weight for each record that counts; the errors of the rows behind them, the padding, become zero.
        """
        v = self._backward(self.loss, rows, target)
        self._clip(v, squared_norms, weights)
        v.wide_error *= v.factors
        if self._products == _PRODUCTS_PER_PART:
            self._parts = self._total.copy() if self._parts is None else self._parts + self._total
            self._total.fill(0)
            self._products = 0
        self._products += 1
        into = self._total_layers if first else self._extra_layers
        jobs: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
            (self._first_product, (v.wide_errors[0], rows, len(weights), into[0])),
            *[(v.wide_errors[i].dot, (a.T, into[i])) for i, a in enumerate(v.wide_inputs, start=1)],
        ]
        if self.second is None:
            for work, given in jobs:
                work(*given)
        else:
            self.second.share([partial(work, *given) for work, given in jobs])
        if not first:
            self._total += self._extra

    def _first_product(self, errors: Array, rows: Array, m: int, into: Array) -> None:
        """Compute the first layer's part of the sum in float64.

        It is computed in parts of equal length.
        """
        is_wide = rows.dtype == np.float64
        most = self._rows_a_product if is_wide else min(self._rows_a_product, len(self._wide_rows))
        # equal parts, because a short product takes nearly as long as a long one; padding is left out
        step = math.ceil(m / math.ceil(m / most))
        for start in range(0, m, step):
            part, few = rows[start : min(m, start + step)], errors[:, start : min(m, start + step)]
            if not is_wide:
                np.copyto(self._wide_rows[: len(part)], part)
                part = self._wide_rows[: len(part)]
            if start:
                into += few.dot(part, self._part_product)
            else:
                few.dot(part, into)


def check_batch(size: int) -> None:
    """Refuse a batch for which the rounding of the sum is not bounded."""
    if size > MOST_RECORDS:
        raise ValueError(
            f"a batch has more than {MOST_RECORDS} records, the most for which the rounding of a sum is bounded; "
            "lower sampling_rate"
        )


def _copy_records(values: Array, where: slice | NDArray[np.int64], out: Array) -> None:
    if isinstance(where, slice) or values.dtype != out.dtype:
        out[...] = values[where]
    else:  # mode="clip" writes straight into `out`; every index is valid by construction
        values.take(where, axis=0, out=out, mode="clip")


class _Views(LayerValues):
    """The memory of `ClippedGradient`, divided for one number of records.

    The lists are views, one for each layer.
    """

    def __init__(self, network: Network, arrays: dict[str, Array]) -> None:
        outs, inputs = [out for out, _ in network.shapes], [into for _, into in network.shapes[1:]]
        n, units = len(outs), sum(outs)
        # errors and layer inputs as they are computed, and the same in float64
        self.every, self.wide = arrays["every"], arrays["wide"]
        self.wide_error = self.wide[:units]
        self.squares = arrays["squares"]
        self.error_squares, self.hidden_squares = self.squares[:units], self.squares[units:]
        self.norms, self.flat_norms = arrays["norms"], arrays["norms"].reshape(-1)
        self.error_norms, self.input_norms = self.norms[:n], self.norms[n:]
        self.row_norms, self.later_norms = self.norms[n], self.norms[n + 1 :]
        self.factors = arrays["factors"][0]
        self.errors = _split(self.every, outs)
        super().__init__(network, _split(self.every[units:], inputs), self.errors[-1])
        self.wide_errors, self.wide_inputs = _split(self.wide, outs), _split(self.wide[units:], inputs)
        self.error_bits = [a.view(f"int{8 * a.itemsize}") for a in self.errors]


def _split(array: Array, lengths: Sequence[int]) -> list[Array]:
    ends = np.cumsum(lengths, dtype=int)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]
