"""Sum clipped gradients of dense networks without single-record gradients.

The gradient of one record in a dense layer is the outer product of the layer's input a (with its bias coordinate) and
the backpropagated error d, so its squared norm is |a|^2 |d|^2 (the ghost norm). Clipping needs these norms only: the
sum of clipped gradients is one matrix product a layer with rescaled errors.

Arrays inside are (units, records): reductions over a few units then run along contiguous records. Whatever a step needs
again and again (views, transposed views, constants as arrays) is made once: a step of a small network is mostly calls.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from dpscp._base.arrays import Array
from dpscp.training.engine.networks import CHUNK_NUMBERS, MOST_ROWS, Loss, Network
from dpscp.training.engine.padding import (
    AlikeBlocks,
    KnownSizes,
    SecondThread,
    aligned_empty,
    blas_threads,
    whole_lanes,
)

# The clipped sum's sensitivity is at most clip_norm * (1 + CLIP_SLACK) in floating point: the noise is scaled for it.
# Proven for batches of at most MOST_RECORDS: see `ClippedGradient`.
CLIP_SLACK = 1e-4
MOST_RECORDS = 1 << 25
SMALLEST_CLIP_NORM = 1e-30
# Sums of squares beyond this belong to records that count as zero: below it no square that matters underflows.
LARGEST_SQUARES = 2.0**500
# Networks whose layers are not wider than that, with a clip norm of at least this, take norms in their own precision.
_WIDEST_SHORT, _SMALLEST_SHORT_CLIP = 1 << 12, 2.0**-10
# A record with a sum of squares beyond this gets its norms in float64.
_LARGEST_SHORT = 2.0**60
# Products added up before they go into the total: two levels keep the chain of additions short.
_PRODUCTS_PER_PART = 1 << 12
# Numbers of a slice of rows that is turned into float64 for the product: it stays in cache. Where the product is large
# itself, as long slices as memory allows: each one's result is added to the sum.
_SLICE_NUMBERS, _LONG_SLICE_NUMBERS = 1 << 16, 1 << 21
_LARGE_PRODUCT = 1 << 15
# A block of fewer records pays more for the product's result, as long as the parameters, than for the records.
_FEWEST_ROWS = 512
# The same for networks with float32 norms, and where more bring nothing. Not a power of two: rows of units that lie as
# many bytes apart push each other out of the cache.
_FEWEST_SHORT_ROWS, _MOST_SHORT_ROWS = 528, 992
# A first layer with so many times more units than inputs: clipping factors go to its inputs, which are fewer numbers.
_MANY_UNITS = 4
# From this many inputs on BLAS is about twice as fast with the rows on the left.
_WIDE_INPUT = 64
# OpenBLAS has kernels for products of few numbers and little work that need no copy: two to three times as fast.
_SMALL_PRODUCT, _SMALL_WORK = 1 << 10, 900_000
_FEWEST_SMALL_ROWS, _FEWEST_ADDED_ROWS = 32, 64


class ClippedGradient:
    """Sum gradients clipped to `clip_norm` over records, by ghost norms.

    Errors and layer inputs are computed in `dtype`, in blocks of sizes whose products round alike in every place (see
    `block`). Where float32 products round by the place in every size, as those of OpenBLAS for AVX2 do, all of it is
    float64. Clipping factors and sums are float64. So are norms, except in the layers of a float32 network: their sums
    of squares are float32, and the limit is lower by what these may lose. With a `second` thread the layers' products
    are shared with it. Each product is computed by one thread, so the rounding is the same.

    Privacy: a record adds its clipped gradient times its weight, which is at most one; the weights of a person's
    records add up to one. Adding or removing a person changes the sum of at most MOST_RECORDS records by at most
    clip_norm * (1 + CLIP_SLACK), rounding included. The proof is in `docs/floating_point.md`. A record whose gradient
    is not finite (an overflow at extreme parameters) adds zero.

    Theory: Fact 6
    """

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str, batch: float = math.inf) -> None:
        """Allocate memory; `batch` is the public expected number of records.

        Blocks need not be much larger than that.
        """
        self.network, self.loss = network, loss
        self.second: SecondThread | None = None
        self.limit = np.array(clip_norm, dtype=np.float64)
        self._allocate(dtype, batch)
        self._needs_float64 = self.chunk == 1 and dtype == "float32"
        if self._needs_float64:
            self._allocate("float64", batch)
        self._wide_rows = aligned_empty((self.chunk * self._needs_float64, network.shapes[0][1]), "float64")
        self._wide_layers = (
            network.layers(aligned_empty((network.n_parameters,), "float64")) if self._needs_float64 else []
        )

    def _allocate(self, dtype: str, batch: float) -> None:
        """Allocate the memory of blocks in this precision, and find the sizes that round alike in it."""
        self.dtype, network, clip_norm = dtype, self.network, float(self.limit)
        outs = [out for out, _ in network.shapes]
        hidden = [into for _, into in network.shapes[1:]]
        inputs = network.shapes[0][1]
        widest, units = max(outs + hidden), sum(outs + hidden)
        # not for a head: its clip norm may be the largest norm that there is, and must then not act
        short_network = len(outs) > 1 and widest <= _WIDEST_SHORT
        self._short = dtype == "float32" and short_network and clip_norm >= _SMALLEST_SHORT_CLIP
        self._lowered = self.limit / (1 + (widest + 4) * 2.0**-24) if self._short else self.limit
        most = max(_FEWEST_ROWS, min(MOST_ROWS, CHUNK_NUMBERS // (inputs + 4 * units)))
        if self._short:  # fewer numbers a record are float64
            most = max(most, _FEWEST_SHORT_ROWS, min(_MOST_SHORT_ROWS, CHUNK_NUMBERS // (inputs + 2 * units)))
        self.chunk = whole_lanes(min(most, batch + 3 * math.sqrt(batch) + 1))
        # Indicator rows: one product sums the squares of every layer at once.
        squares = "float32" if self._short else "float64"
        self._error_layer = np.repeat(np.eye(len(outs), dtype=squares), outs, axis=1)
        self._hidden_layer = np.repeat(np.eye(len(hidden), dtype=squares), hidden, axis=1)
        self._each_layer = np.ones(len(outs))
        self._buffers = _Buffers(network, self.chunk, dtype, squares)
        self.total, self._extra = np.empty(network.n_parameters), np.empty(network.n_parameters)
        self._total_layers, self._extra_layers = network.layers(self.total), network.layers(self._extra)
        self._parts: Array | None = None
        self._products = 0
        self._slice = aligned_empty((min(self.chunk, max(16, _LONG_SLICE_NUMBERS // inputs)), inputs), "float64")
        self._slice_product = np.empty(network.shapes[0])
        large = outs[0] * inputs >= _LARGE_PRODUCT
        self._slice_rows = len(self._slice) if large else max(16, _SLICE_NUMBERS // inputs)
        self._scale_rows = outs[0] >= _MANY_UNITS * inputs
        self._rows_left = inputs >= _WIDE_INPUT
        small = min(_SMALL_PRODUCT // outs[0], _SMALL_WORK // (outs[0] * inputs))
        self._rows_at_once = small - small % 16 if small >= _FEWEST_SMALL_ROWS else self.chunk
        small = _SMALL_WORK // (outs[0] * inputs)
        self._rows_a_product = small if small >= _FEWEST_ADDED_ROWS else self.chunk
        by_slices = self._short and self._scale_rows
        self._slice_errors = aligned_empty((outs[0] * min(self.chunk, self._rows_a_product) * by_slices,), "float64")
        self._relu = network.activation == "relu"
        self._sign_shift = np.array(8 * np.dtype(dtype).itemsize - 1, dtype=f"int{8 * np.dtype(dtype).itemsize}")
        self._layers: Sequence[Array] = ()
        self._back: list[Array] = []
        what = network, self.loss, clip_norm, dtype, self.chunk, blas_threads(), type(self)._backward
        known_sizes = _known_sizes(*what)
        self._blocks = AlikeBlocks(self.chunk, self._synthetic_results, known_sizes)
        self.chunk = self._blocks.chunk

    def block(self, m: int) -> int:
        """Return the number of places of a block for m records.

        The rows that `errors` and `add` take, padding included.
        """
        return self._blocks.size(m)

    def _synthetic_results(self, size: int) -> Iterator[Array]:
        """Yield errors and inputs of synthetic records in every place of a block."""
        network, one = self.network, Network((self.network.shapes[0][1], 1), intercept=False)
        flat = aligned_empty((network.n_parameters,), self.dtype)
        flat[:] = network.initial(0, 1.0)
        rows = aligned_empty((size, network.shapes[0][1]), self.dtype)
        target = np.zeros(size, dtype=int) if self.loss.name == "cross_entropy" else np.full(size, 0.5)
        long = np.full(size, 16 * self.limit**2)  # rows said to be so long that clipping acts
        # the own loss may round as well; the squared one hides no bit of an output
        for i, loss in enumerate((self.loss, *[Loss("squared")] * (1 + 12 // network.widths[-1]))):
            rows[:] = one.initial(1 + i, math.sqrt(rows.shape[1]))  # uniform on -1 to 1
            if network.intercept:
                rows[:, -1] = 1
            with np.errstate(all="ignore"):
                v = self._backward(loss, network.layers(flat), rows, target)
                self._clip(v, long, np.ones(size))
                self._scale_errors(v)
            yield v.wide.copy()

    def errors(
        self, layers: Sequence[Array], rows: Array, squared_norms: Array, target: Array, weights: Array
    ) -> tuple[list[Array], list[Array]]:
        """Return each layer's clipped weighted errors and the later layers' inputs.

        Float64. One weight for each record that counts; the errors of the rows behind them, the padding, become zero.
        """
        layers, rows = self._in_own_precision(layers, rows)
        v = self._backward(self.loss, layers, rows, target)
        self._clip(v, squared_norms, weights)
        self._scale_errors(v)
        return v.wide_errors, v.wide_inputs

    def _in_own_precision(self, layers: Sequence[Array], rows: Array) -> tuple[Sequence[Array], Array]:
        """Return layers and rows as they are, or in float64 where float32 products round by the place."""
        if not self._needs_float64:
            return layers, rows
        for wide, layer in zip(self._wide_layers, layers, strict=True):
            np.copyto(wide, layer)
        wide_rows = self._wide_rows[: len(rows)]
        np.copyto(wide_rows, rows)
        return self._wide_layers, wide_rows

    def _backward(self, loss: Loss, layers: Sequence[Array], rows: Array, target: Array) -> "_Views":
        v = self._buffers.views(len(rows))
        if layers is not self._layers:
            self._layers = layers
            self._back = [layer[:, : layer.shape[1] - self.network.intercept].T for layer in layers]
        last = len(layers) - 1
        inputs: Array = rows.T
        for depth, layer in enumerate(layers):
            out = v.outputs[depth]
            if depth == 0 and self._rows_left:
                self._rows_times(layer.T, rows, v.product)
                np.copyto(out, v.product_across)
            else:
                layer.dot(inputs, out)
            if depth < last:
                if self._relu:
                    # All ones where the value is positive: the sign bit of minus its bits, spread. Faster than
                    # comparing and multiplying, here and again on the way back.
                    bits, slope = v.active_bits[depth], v.slope_bits[depth]
                    np.negative(bits, out=slope)
                    np.right_shift(slope, self._sign_shift, out=slope)
                    np.bitwise_and(bits, slope, out=bits)
                else:
                    np.tanh(out, out=out)
                inputs = v.hidden[depth]
                if v.bias:
                    v.bias[depth].fill(1)
        loss.error(v.errors[last], target, v.columns)
        for depth in range(last - 1, -1, -1):
            self._back[depth + 1].dot(v.errors[depth + 1], v.errors[depth])
            if self._relu:
                np.bitwise_and(v.error_bits[depth], v.slope_bits[depth], out=v.error_bits[depth])
            else:
                slope = v.slope[depth]
                np.multiply(v.outputs[depth], v.outputs[depth], out=slope)
                np.subtract(1, slope, out=slope)
                np.multiply(v.errors[depth], slope, out=v.errors[depth])
        if not self._short and v.wide is not v.every:
            np.copyto(v.wide, v.every)
        return v

    def _rows_times(self, weights: Array, rows: Array, out: Array) -> None:
        for start in range(0, len(rows), self._rows_at_once):
            few = slice(start, start + self._rows_at_once)
            rows[few].dot(weights, out[few])

    def _clip(self, v: "_Views", squared_norms: Array, weights: Array) -> None:
        """Compute each record's clipping factor times its weight, 0 for padding."""
        values = v.every if self._short else v.wide
        np.multiply(values, values, out=v.squares)
        self._error_layer.dot(v.error_squares, v.error_sums)
        if v.hidden:
            self._hidden_layer.dot(v.hidden_squares, v.later_sums)
        if self._short:
            np.copyto(v.error_norms, v.error_sums)
            np.copyto(v.later_norms, v.later_sums)
        np.copyto(v.row_norms, squared_norms)
        # One look at all: if a single one were as large as allowed this would be. A NaN is not below anything.
        if not v.flat_norms.dot(v.flat_norms) < (_LARGEST_SHORT if self._short else LARGEST_SQUARES) ** 2 / 2:
            self._look_closer(v)
        np.multiply(v.error_norms, v.input_norms, out=v.error_norms)
        factors = v.factors
        self._each_layer.dot(v.error_norms, factors)
        np.sqrt(factors, out=factors)
        np.maximum(factors, self._lowered, out=factors)
        np.divide(self._lowered, factors, out=factors)
        factors[: len(weights)] *= weights
        factors[len(weights) :] = 0

    def _look_closer(self, v: "_Views") -> None:
        """Compute large norms in float64; set records beyond any norm to zero."""
        if self._short:
            far = ~np.all(v.both_norms < _LARGEST_SHORT, axis=0)
            starts = np.cumsum([0, *[len(layer) for layer in (*v.errors, *v.hidden)][:-1]])
            norms = np.add.reduceat(np.square(v.every, dtype=np.float64), starts, axis=0)
            n_layers = len(v.errors)
            v.error_norms[:, far], v.later_norms[:, far] = norms[:n_layers, far], norms[n_layers:, far]
        broken = ~np.all(v.both_norms < LARGEST_SQUARES, axis=0)
        v.wide[:, broken] = 0
        v.every[:, broken] = 0
        v.both_norms[:, broken] = 0

    def _scale_errors(self, v: "_Views") -> None:
        """Convert errors and inputs to float64 and multiply errors by factors."""
        if self._short:
            np.copyto(v.wide, v.every)
        np.multiply(v.wide_error, v.factors, out=v.wide_error)

    def add(
        self,
        layers: Sequence[Array],
        rows: Array,
        squared_norms: Array,
        target: Array,
        weights: Array,
        *,
        first: bool,
        cached: bool = True,
    ) -> None:
        """Start or continue a sum with the clipped gradients of a block.

        The gradients are weighted; see `errors`.

        `cached` is False for rows of a large table that are not in the cache.
        """
        layers, rows = self._in_own_precision(layers, rows)
        inputs = rows
        if rows.dtype != np.float64 and len(rows) <= (self._slice_rows if cached else len(self._slice)):
            # first of all: a plain copy reads memory faster than a product does, which then finds the rows in cache
            inputs = self._slice[: len(rows)]
            inputs[...] = rows
        v = self._backward(self.loss, layers, rows, target)
        self._clip(v, squared_norms, weights)
        errors, hidden = v.wide_errors, v.wide_inputs
        if self._scale_rows and inputs is not rows:
            inputs *= v.factors_down
            if self._short:  # the first layer's errors turn into float64 a slice at a time
                errors = [v.errors[0], *errors[1:]]
                np.copyto(v.later_wide, v.later_every)
            np.multiply(v.later_error, v.factors, out=v.later_error)
        else:
            self._scale_errors(v)
        if first:
            self._parts, self._products = None, 0
        elif self._products == _PRODUCTS_PER_PART:
            self._parts = self.total.copy() if self._parts is None else self._parts + self.total
            self.total.fill(0)
            self._products = 0
        self._products += 1
        into = self._total_layers if first else self._extra_layers
        if self.second is None:
            self._first_product(errors[0], inputs, len(weights), into[0])
            for depth, later in enumerate(hidden, start=1):
                errors[depth].dot(later.T, into[depth])
        else:
            jobs: list[Callable[[], object]] = [partial(self._first_product, errors[0], inputs, len(weights), into[0])]
            jobs += [partial(np.dot, errors[i], a.T, out=into[i]) for i, a in enumerate(hidden, start=1)]
            self.second.share(jobs)
        if not first:
            self.total += self._extra

    def _first_product(self, errors: Array, rows: Array, m: int, into: Array) -> None:
        """Compute the first layer's part of the sum.

        What is not yet float64 is turned into it a slice at a time.
        """
        wide = rows.dtype == np.float64
        most = self._rows_a_product if wide else min(len(self._slice), self._slice_rows)
        # padding adds nothing, and wide rows are worth leaving out; a short product costs nearly as much as a long one
        step = math.ceil(m / math.ceil(m / most)) if m else 1
        for start in range(0, m, step):
            part, few = rows[start : min(m, start + step)], errors[:, start : min(m, start + step)]
            if not wide:
                np.copyto(self._slice[: len(part)], part)
                part = self._slice[: len(part)]
            if few.dtype != np.float64:
                slice_errors = self._slice_errors[: few.size].reshape(few.shape)
                np.copyto(slice_errors, few)
                few = slice_errors
            if start:
                into += few.dot(part, self._slice_product)
            else:
                few.dot(part, into)

    def result(self) -> Array:
        """Return the sum since the last `first`; overwritten by the next one."""
        if self._parts is not None:
            self.total += self._parts
            self._parts = None
        return self.total


@lru_cache(maxsize=256)
def _known_sizes(*what: object) -> KnownSizes:  # noqa: ARG001
    """Return the checked block sizes for such a network, library and code.

    Each is checked once in a process.
    """
    return {}, []


class _Buffers:
    """The memory of `ClippedGradient`, and its views for one number of records."""

    def __init__(self, network: Network, chunk: int, dtype: str, squares: str) -> None:
        self.network = network
        outs, inputs = sum(out for out, _ in network.shapes), sum(into for _, into in network.shapes[1:])
        heights = {
            "every": (outs + inputs, dtype),
            "slopes": (inputs, dtype),
            "product": (network.shapes[0][0], dtype),
            "wide": (outs + inputs, "float64"),
            "squares": (outs + inputs, squares),
            "sums": (2 * len(network.shapes), squares),
            "both_norms": (2 * len(network.shapes), "float64"),
            "factors": (1, "float64"),
        }
        if dtype == "float64":
            del heights["wide"]
        del heights["sums" if squares == "float64" else "squares"]
        self._memory = {name: (height, aligned_empty((height * chunk,), of)) for name, (height, of) in heights.items()}
        self._columns = np.arange(chunk)
        self._views: dict[int, _Views] = {}

    def views(self, m: int) -> "_Views":
        """Return the views for m records, contiguous, cut by layer."""
        if m not in self._views:
            arrays = {name: memory[: height * m].reshape(height, m) for name, (height, memory) in self._memory.items()}
            arrays.setdefault("wide", arrays["every"])
            arrays.setdefault("sums", arrays["both_norms"])
            if "squares" not in arrays:  # they are used up before the later layers become wide: fewer numbers in cache
                wide = arrays["wide"]
                arrays["squares"] = wide.reshape(-1).view("float32")[wide.size :].reshape(wide.shape)
            self._views[m] = _Views.cut(self.network, arrays, self._columns[:m])
        return self._views[m]


@dataclass(frozen=True, slots=True)
class _Views:
    """The buffers of `ClippedGradient` cut for one number of records.

    The lists are views, one a layer.
    """

    every: Array
    """Errors and layer inputs as they are computed."""
    wide: Array
    """The same in float64."""
    wide_error: Array
    later_error: Array
    later_every: Array
    later_wide: Array
    squares: Array
    error_squares: Array
    hidden_squares: Array
    error_sums: Array
    later_sums: Array
    both_norms: Array
    flat_norms: Array
    error_norms: Array
    input_norms: Array
    row_norms: Array
    later_norms: Array
    factors: Array
    factors_down: Array
    product: Array
    product_across: Array
    columns: Array
    errors: list[Array]
    hidden: list[Array]
    """Inputs of the later layers, the bias coordinate last."""
    bias: list[Array]
    outputs: list[Array]
    """Where each layer's product goes: among the next layer's inputs, and the last one among the errors."""
    wide_errors: list[Array]
    wide_inputs: list[Array]
    slope: list[Array]
    error_bits: list[Array]
    active_bits: list[Array]
    slope_bits: list[Array]

    @classmethod
    def cut(cls, network: Network, arrays: dict[str, Array], columns: Array) -> "_Views":
        outs = [out for out, _ in network.shapes]
        inputs = [into for _, into in network.shapes[1:]]
        every, wide, squares, norms = (arrays[name] for name in ("every", "wide", "squares", "both_norms"))
        errors, hidden = _split(every, outs), _split(every[sum(outs) :], inputs)
        active = [h[: len(h) - network.intercept] for h in hidden]
        slope = [s[: len(s) - network.intercept] for s in _split(arrays["slopes"], inputs)]
        product = arrays["product"].reshape(len(columns), -1)
        integer = f"int{8 * every.itemsize}"
        return cls(
            every=every,
            wide=wide,
            wide_error=wide[: sum(outs)],
            later_error=wide[outs[0] : sum(outs)],
            later_every=every[outs[0] :],
            later_wide=wide[outs[0] :],
            squares=squares,
            error_squares=squares[: sum(outs)],
            hidden_squares=squares[sum(outs) :],
            error_sums=arrays["sums"][: len(outs)],
            later_sums=arrays["sums"][len(outs) + 1 :],
            both_norms=norms,
            flat_norms=norms.reshape(-1),
            error_norms=norms[: len(outs)],
            input_norms=norms[len(outs) :],
            row_norms=norms[len(outs)],
            later_norms=norms[len(outs) + 1 :],
            factors=arrays["factors"][0],
            factors_down=arrays["factors"].T,
            product=product,
            product_across=product.T,
            columns=columns,
            errors=errors,
            hidden=hidden,
            bias=[h[-1] for h in hidden] if network.intercept else [],
            outputs=[*active, errors[-1]],
            wide_errors=_split(wide, outs),
            wide_inputs=_split(wide[sum(outs) :], inputs),
            slope=slope,
            error_bits=[a.view(integer) for a in errors],
            active_bits=[a.view(integer) for a in active],
            slope_bits=[a.view(integer) for a in slope],
        )


def _split(array: Array, lengths: Sequence[int]) -> list[Array]:
    ends = np.cumsum(lengths, dtype=int)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]
