"""Dense networks (a linear head is one without hidden layers): forward, backward and clipped gradient sums.

The gradient of one record in a dense layer is the outer product of the layer's input a (with its bias
coordinate) and the backpropagated error d, so its squared norm is |a|^2 |d|^2 (the ghost norm). Clipping
needs these norms only: the sum of clipped gradients is one matrix product a layer with rescaled errors, and
no per-record gradient ever exists.

Arrays inside are (units, records): reductions over a few units then run along contiguous records.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpscp._checks import check_choice
from dpscp.training.blocks import AlikeBlocks, aligned_empty, blas_threads, whole_lanes
from dpscp.training.mechanism import saved_as

__all__ = [
    "ClippedGradient",
    "DenseModel",
    "Loss",
    "Network",
    "RowOutputs",
    "check_rows",
    "feature_rows",
    "fill_features",
    "softmax",
]

Array = NDArray[Any]

# The clipped sum's sensitivity is at most clip_norm * (1 + CLIP_SLACK) in floating point: the noise is scaled for it.
# Proven for batches of at most MOST_RECORDS: see `ClippedGradient`.
CLIP_SLACK = 1e-4
MOST_RECORDS = 1 << 25
SMALLEST_CLIP_NORM = 1e-30
# Rows are clipped this much below a feature bound, relatively: rounding cannot lift them above it.
ROW_SLACK = {"float32": 1e-6, "float64": 1e-13}
# Larger numbers in a row become this: far beyond any reasonable unit, far enough below the largest number of the type.
_END = {"float32": 2.0**100, "float64": 2.0**900}
# Sums of squares beyond this belong to records that count as zero: below it no square that matters underflows.
_LARGEST_SQUARES = 2.0**500
# Products added up before they go into the total: two levels keep the chain of additions short.
_PRODUCTS_PER_PART = 1 << 12
# Numbers of a slice of rows that is turned into float64 for the product: it stays in cache.
_SLICE_NUMBERS = 1 << 17
# Rows handled at once: about this many numbers of input and activations, so that a chunk stays in cache.
CHUNK_NUMBERS = 1 << 18
_MOST_ROWS = 8192


def check_rows(X: ArrayLike, n_features: int | None = None, *, finite: bool = True) -> Array:
    """A two-dimensional array of finite real numbers, of the given width; messages carry nothing from it.

    ``finite=False`` leaves the last check, the only one that reads every number, to whoever reads the rows next.
    """
    if sparse.issparse(X):
        raise TypeError("X must be a dense array; convert sparse rows before training or prediction")
    try:
        rows = np.asarray(X)
        rows = rows if rows.dtype.kind in "fiubc" else rows.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("X must hold real numbers in equally long rows") from None
    if rows.dtype.kind == "c":
        raise TypeError("X must hold real numbers, not complex ones")
    if rows.ndim != 2:
        raise ValueError(f"X must be two-dimensional (records, features), got {rows.ndim} dimension(s)")
    if n_features is not None and rows.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {rows.shape[1]} features")
    if rows.shape[1] == 0:
        raise ValueError("X must have at least one feature, got 0 feature(s)")
    if finite:
        _require_finite(rows)
    return rows


def row_width(X: ArrayLike) -> int:
    """How many features the rows have; not a number of them is read."""
    return int(check_rows(X, finite=False).shape[1])


def _require_finite(rows: Array) -> None:
    if rows.dtype.kind == "f" and not _finite(rows):
        raise ValueError("X must not hold NaN or infinity")


def _finite(rows: Array) -> bool:
    """Whether every number is finite: a finite sum says so at once, and only an overflow needs a closer look."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(rows.sum())) or all(np.isfinite(part).all() for part in _parts(rows))


def _parts(rows: Array) -> Iterator[Array]:
    """The rows in cache-sized pieces, so that temporaries stay small."""
    step = max(1, CHUNK_NUMBERS // rows.shape[1])
    return (rows[start : start + step] for start in range(0, len(rows), step))


def squared_norms(rows: Array) -> Array:
    """The squared norm of every row in float64, the same bits wherever the row stands."""
    return inner_products(rows, rows)


def inner_products(rows: Array, others: Array) -> Array:
    """The inner product of every row with the row beside it, in float64, the same bits wherever the two stand."""
    n, d = rows.shape
    out, step = np.empty(n), max(1, CHUNK_NUMBERS // d)
    # rows of whole cache lines: each is summed in the same way
    left = aligned_empty((min(step, n), 8 * math.ceil(d / 8)), "float64")
    right = left if others is rows else aligned_empty(left.shape, "float64")
    left.fill(0)
    right.fill(0)
    for start in range(0, n, step):
        m = min(step, n - start)
        left[:m, :d] = rows[start : start + m]
        if right is not left:
            right[:m, :d] = others[start : start + m]
        with np.errstate(over="ignore"):
            np.einsum("ij,ij->i", left[:m], right[:m], out=out[start : start + m])
    return out


def feature_rows(rows: Array, *, feature_bound: float | None, intercept: bool, dtype: str) -> Array:
    """Rows as the engine reads them: finite, clipped to `feature_bound`, with the bias coordinate 1 appended.

    A row longer than the bound is scaled onto it before it is cast, a function of that row alone. The bound does not
    count the bias coordinate. Numbers beyond `_END` become that, so that outputs hardly ever overflow.
    """
    _require_finite(rows)
    n, d = rows.shape
    out = aligned_empty((n, d + intercept), dtype)
    if intercept:
        out[:, d] = 1.0
    fill_features(rows, feature_bound, out[:, :d])
    return out


def fill_features(rows: Array, feature_bound: float | None, out: Array) -> None:
    """Write rows that are known to be finite as `feature_rows` gives them, without the bias coordinate, into `out`."""
    n, d = rows.shape
    if feature_bound is None:
        _cast(rows, out)
        return
    # the second term is what a sum of d squares may lose
    limit, tiny = feature_bound * (1 - ROW_SLACK[str(out.dtype)] - d * 2.0**-53), np.finfo(out.dtype).tiny
    step = max(1, CHUNK_NUMBERS // d)
    for start in range(0, n, step):
        part = rows[start : start + step]
        features = np.empty(part.shape)
        _cast(part, features)
        # Divided by the largest entry first, so that squaring neither overflows nor underflows.
        largest = np.maximum(np.abs(features).max(axis=1), tiny)
        norms = np.sqrt(squared_norms(features / largest[:, None]))
        features *= np.minimum(1.0, limit / largest / np.maximum(norms, tiny))[:, None]
        _cast(features, out[start : start + step])


def _cast(values: Array, into: Array) -> None:
    """Copy finite numbers; a larger one than `_END` becomes that."""
    end = _END[str(into.dtype)]
    if values.dtype.kind == "f" and float(np.finfo(values.dtype).max) > end:
        np.clip(values, -end, end, out=into, casting="same_kind")
    else:
        np.copyto(into, values, casting="unsafe")


@dataclass(frozen=True)
class Network:
    """The public shape of a dense network: layer widths from input to output, activation, bias or not."""

    widths: tuple[int, ...]
    activation: str = "relu"
    intercept: bool = True

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(out, in) of every layer; the last input is the bias coordinate."""
        return tuple((b, a + self.intercept) for a, b in zip(self.widths[:-1], self.widths[1:], strict=True))

    @cached_property
    def n_parameters(self) -> int:
        """Length of the flat parameter vector."""
        return sum(a * b for a, b in self.shapes)

    def layers(self, flat: Array) -> list[Array]:
        """Views of a flat parameter vector, one (out, in) matrix a layer."""
        views, start = [], 0
        for out, into in self.shapes:
            views.append(flat[start : start + out * into].reshape(out, into))
            start += out * into
        return views

    def initial(self, seed: int, scale: float | None) -> Array:
        """The public starting point: uniform on +-scale/sqrt(fan-in) from PCG64(seed); zero for scale 0.

        `scale=None` is 0 for a linear head (its loss is convex) and 1 for a network with hidden layers.
        """
        if scale is None:
            scale = 0.0 if len(self.widths) == 2 else 1.0
        stream = np.random.Generator(np.random.PCG64(seed))
        flat = stream.uniform(-1.0, 1.0, self.n_parameters)
        for layer, fan_in in zip(self.layers(flat), self.widths[:-1], strict=True):
            layer *= scale / math.sqrt(fan_in)
        return flat

    def forward(self, layers: Sequence[Array], values: Sequence[Array]) -> Array:
        """Fill the values of every layer, (records, units), from values[0]; the last are the outputs."""
        for depth, layer in enumerate(layers):
            out = values[depth + 1]
            np.matmul(values[depth], (layer[:, :-1] if self.intercept else layer).T, out=out)
            if self.intercept:
                out += layer[:, -1]
            if depth < len(layers) - 1:
                if self.activation == "relu":
                    np.maximum(out, 0, out=out)
                else:
                    np.tanh(out, out=out)
        return values[-1]


class RowOutputs:
    """A network's outputs, a row's the same bits whatever the other rows are: a function of row and parameters.

    Rows go through the layers in padded, aligned blocks of sizes that round alike in every place (see `AlikeBlocks`).

    Theory: section 4 (a score may depend on its record, the model and independent noise only)
    """

    def __init__(self, network: Network, parameters: Array) -> None:
        dtype = str(parameters.dtype)
        self._network, self._blocks = network, _output_blocks(network, dtype, blas_threads())
        flat = aligned_empty(parameters.shape, dtype)
        flat[:] = parameters
        self._layers, self._dtype = network.layers(flat), dtype

    def parts(self, n: int, fill: Callable[[slice, Array], None]) -> Iterator[tuple[slice, Array]]:
        """The n rows block by block: which rows, and the outputs (places, units) with padding behind those rows.

        `fill(part, into)` writes these rows, without bias coordinate, into a block. Outputs last until the next block.
        """
        values: list[Array] = []
        for start in range(0, n, self._blocks.chunk):
            part = slice(start, min(n, start + self._blocks.chunk))
            m = part.stop - start
            size = self._blocks.size(m)
            if not values or len(values[0]) != size:
                values = _layer_values(self._network, size, self._dtype)
            fill(part, values[0][:m])
            values[0][m:] = values[0][0]  # padding overflows and warns only where a row does
            yield part, self._network.forward(self._layers, values)

    def __call__(self, rows: Array) -> Array:
        """The outputs (records, units) of finished rows."""
        out = np.empty((len(rows), self._network.widths[-1]), dtype=self._dtype)
        for part, z in self.parts(len(rows), lambda which, into: np.copyto(into, rows[which])):
            out[part] = z[: part.stop - part.start]
        return out


def _layer_values(network: Network, size: int, dtype: str) -> list[Array]:
    return [aligned_empty((size, width), dtype) for width in network.widths]


@lru_cache(maxsize=256)
def _output_blocks(network: Network, dtype: str, threads: tuple[int, ...]) -> AlikeBlocks:  # noqa: ARG001
    """The blocks of `RowOutputs`: checked once for a shape of network and a number of threads."""
    one = Network((network.widths[0], 1), intercept=False)

    def made_up_results(size: int) -> Iterator[Array]:
        flat = aligned_empty((network.n_parameters,), dtype)
        flat[:] = network.initial(0, 1.0)
        values = _layer_values(network, size, dtype)
        for i in range(1 + 12 // network.widths[-1]):
            values[0][:] = one.initial(1 + i, math.sqrt(network.widths[0]))  # uniform on -1 to 1
            z = network.forward(network.layers(flat), values)
            yield z.T.copy()
            yield softmax(with_zero_column(z)).T

    return AlikeBlocks(max(128, min(_MOST_ROWS, CHUNK_NUMBERS // sum(network.widths))), made_up_results)


def with_zero_column(z: Array) -> Array:
    """The logits 0 and z of the two classes of a logistic model."""
    return np.concatenate([np.zeros_like(z), z], axis=1)


def softmax(z: Array) -> Array:
    """Row-wise softmax that cannot overflow, in the precision of the logits.

    Classes are added one after the other for all rows at once: a row's sum is its own, whatever the layout of z.
    """
    columns = aligned_empty(z.T.shape, str(z.dtype))
    columns[:] = z.T
    columns -= np.maximum.reduce(columns, axis=0)
    np.exp(columns, out=columns)
    columns /= np.add.reduce(columns, axis=0)
    return columns.T


@dataclass(frozen=True)
class Loss:
    """A record's loss as a function of the outputs: the name, and the constants it needs.

    cross_entropy: softmax over the outputs; logistic: sigmoid of one output, labels 0 and 1; squared: (z -
    y)^2 (no factor 1/2); huber: (z - y)^2 / 2 up to `huber_delta`, then linear; pinball: one output for each
    of `quantiles`, summed.
    """

    name: str
    quantiles: tuple[float, ...] = ()
    huber_delta: float = 1.0

    def error(self, z: Array, target: Array, columns: Array) -> None:
        """Overwrite the outputs z (units, records; contiguous) with the derivative of each record's loss."""
        if self.name == "cross_entropy":
            z -= np.maximum.reduce(z, axis=0)
            np.exp(z, out=z)
            z /= np.add.reduce(z, axis=0)
            flat, position = z.reshape(-1), target * len(columns)
            position += columns
            flat[position] -= 1
        elif self.name == "logistic":
            # tanh form of the sigmoid: it cannot overflow
            z *= 0.5
            np.tanh(z, out=z)
            z += 1
            z *= 0.5
            z -= target
        elif self.name == "squared":
            z -= target
            z *= 2
        elif self.name == "huber":
            z -= target
            np.clip(z, -self.huber_delta, self.huber_delta, out=z)
        else:
            np.greater(z, target, out=z, casting="unsafe")
            z -= np.asarray(self.quantiles, dtype=z.dtype)[:, None]


class ClippedGradient:
    """The weighted sum over records of gradients clipped to `clip_norm`, by ghost norms.

    A record adds its clipped gradient times its weight, which is at most one: the weights of a person's records add up
    to one. Adding or removing a person changes the sum of at most MOST_RECORDS records by at most clip_norm *
    (1 + CLIP_SLACK), rounding included; `docs/decisions.md` has the proof. A record whose gradient is not finite (an
    overflow at wild parameters) contributes zero, so it cannot do more either.

    Errors and layer inputs are computed in `dtype`, in blocks of sizes whose products round alike in every place
    (see `block`). Norms, clipping factors and sums are float64.

    Theory: section 1.6
    """

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str, batch: float = math.inf) -> None:
        """`batch` is the public expected number of records: blocks need not be much larger."""
        self.network, self.loss, self.dtype = network, loss, dtype
        self.limit = clip_norm
        outs = [out for out, _ in network.shapes]
        hidden = [into for _, into in network.shapes[1:]]
        inputs = network.shapes[0][1]
        most = max(128, min(_MOST_ROWS, CHUNK_NUMBERS // (inputs + 2 * (sum(outs) + sum(hidden)))))
        self.chunk = whole_lanes(min(most, batch + 3 * math.sqrt(batch) + 1))
        # Indicator rows: one product sums the squares of every layer at once.
        self._error_layer = np.repeat(np.eye(len(outs)), outs, axis=1)
        self._hidden_layer = np.repeat(np.eye(len(hidden)), hidden, axis=1)
        self._buffers = _Buffers(network, self.chunk, dtype)
        self.total, self._extra = np.empty(network.n_parameters), np.empty(network.n_parameters)
        self._total_layers, self._extra_layers = network.layers(self.total), network.layers(self._extra)
        self._parts: Array | None = None
        self._products = 0
        self._slice = aligned_empty((min(self.chunk, max(16, _SLICE_NUMBERS // inputs)), inputs), "float64")
        self._slice_product = np.empty(network.shapes[0])
        self._wide = inputs >= 64
        self._blocks = AlikeBlocks(self.chunk, self._made_up_results)
        self.chunk = self._blocks.chunk

    def block(self, m: int) -> int:
        """The number of places of a block for m records: the rows that `errors` and `add` take, padding included."""
        return self._blocks.size(m)

    def _made_up_results(self, size: int) -> Iterator[Array]:
        """Errors and inputs of made-up records, each in every place of a block: enough to see any other rounding."""
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
            yield v.wide.copy()

    def errors(
        self, layers: Sequence[Array], rows: Array, squared_norms: Array, target: Array, weights: Array
    ) -> tuple[list[Array], list[Array]]:
        """For one block: every layer's errors, times clipping factors and weights, and the later layers' inputs.

        Float64. One weight for each record that counts; the errors of the rows behind them, the padding, become zero.
        """
        v = self._backward(self.loss, layers, rows, target)
        self._clip(v, squared_norms, weights)
        return v.wide_errors, v.wide_inputs

    def _backward(self, loss: Loss, layers: Sequence[Array], rows: Array, target: Array) -> "_Views":
        v = self._buffers.views(len(rows))
        last, relu, intercept = len(layers) - 1, self.network.activation == "relu", self.network.intercept
        inputs: Array = rows.T
        for depth, layer in enumerate(layers):
            out = v.errors[last] if depth == last else v.active[depth]
            if depth == 0 and self._wide:
                # BLAS is about twice as fast in this order when the input is wide.
                np.dot(rows, layer.T, out=v.product)
                np.copyto(out, v.product.T)
            else:
                np.dot(layer, inputs, out=out)
            if depth < last:
                if relu:
                    # All ones where the value is positive: the sign bit of minus its bits, spread. Faster than
                    # comparing and multiplying, here and again on the way back.
                    bits, slope = v.active_bits[depth], v.slope_bits[depth]
                    np.negative(bits, out=slope)
                    np.right_shift(slope, v.sign_shift, out=slope)
                    np.bitwise_and(bits, slope, out=bits)
                else:
                    np.tanh(out, out=out)
                inputs = v.hidden[depth]
                if intercept:
                    inputs[-1] = 1
        loss.error(v.errors[last], target, v.columns)
        for depth in range(last - 1, -1, -1):
            np.dot(layers[depth + 1][:, : len(v.active[depth])].T, v.errors[depth + 1], out=v.errors[depth])
            if relu:
                np.bitwise_and(v.error_bits[depth], v.slope_bits[depth], out=v.error_bits[depth])
            else:
                slope = v.slope[depth]
                np.multiply(v.active[depth], v.active[depth], out=slope)
                np.subtract(1, slope, out=slope)
                np.multiply(v.errors[depth], slope, out=v.errors[depth])
        if v.wide is not v.every:
            np.copyto(v.wide, v.every)
        return v

    def _clip(self, v: "_Views", squared_norms: Array, weights: Array) -> None:
        np.multiply(v.wide, v.wide, out=v.squares)
        np.dot(self._error_layer, v.error_squares, out=v.error_norms)
        if v.hidden:
            np.dot(self._hidden_layer, v.hidden_squares, out=v.input_norms[1:])
        v.input_norms[0] = squared_norms
        # a NaN is not below anything
        if not np.maximum.reduce(v.both_norms, axis=None) < _LARGEST_SQUARES:
            broken = ~np.all(v.both_norms < _LARGEST_SQUARES, axis=0)
            v.wide[:, broken] = 0
            v.both_norms[:, broken] = 0
        np.multiply(v.error_norms, v.input_norms, out=v.error_norms)
        factors = np.add.reduce(v.error_norms, axis=0)
        np.sqrt(factors, out=factors)
        np.maximum(factors, self.limit, out=factors)
        np.divide(self.limit, factors, out=factors)
        factors[: len(weights)] *= weights
        factors[len(weights) :] = 0
        np.multiply(v.wide_error, factors, out=v.wide_error)

    def add(
        self, layers: Sequence[Array], rows: Array, squared_norms: Array, target: Array, weights: Array, *, first: bool
    ) -> None:
        """Start a sum (first) or increase it by the weighted clipped gradients of a block; see `errors`."""
        errors, hidden = self.errors(layers, rows, squared_norms, target, weights)
        if first:
            self._parts, self._products = None, 0
        elif self._products == _PRODUCTS_PER_PART:
            self._parts = self.total.copy() if self._parts is None else self._parts + self.total
            self.total.fill(0)
            self._products = 0
        self._products += 1
        into = self._total_layers if first else self._extra_layers
        slices = math.ceil(len(rows) / len(self._slice))
        if slices > 1:
            rows = rows[: len(weights)]  # padding adds nothing, and wide rows are worth leaving out
        step = math.ceil(len(rows) / slices)  # equal ones: a short product costs nearly as much as a long one
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            if part.dtype != self._slice.dtype:
                part = self._slice[: len(part)]
                np.copyto(part, rows[start : start + step])
            if start:
                into[0] += np.dot(errors[0][:, start : start + len(part)], part, out=self._slice_product)
            else:
                np.dot(errors[0][:, : len(part)], part, out=into[0])
        for depth, inputs in enumerate(hidden, start=1):
            np.dot(errors[depth], inputs.T, out=into[depth])
        if not first:
            self.total += self._extra

    def result(self) -> Array:
        """The sum since the last `first`; overwritten by the next one."""
        if self._parts is not None:
            self.total += self._parts
            self._parts = None
        return self.total


class _Buffers:
    """The memory of `ClippedGradient`, and its views for one number of records."""

    def __init__(self, network: Network, chunk: int, dtype: str) -> None:
        self.network = network
        outs, inputs = sum(out for out, _ in network.shapes), sum(into for _, into in network.shapes[1:])
        heights = {
            "every": (outs + inputs, dtype),
            "slopes": (inputs, dtype),
            "product": (network.shapes[0][0], dtype),
            "wide": (outs + inputs, "float64"),
            "squares": (outs + inputs, "float64"),
            "both_norms": (2 * len(network.shapes), "float64"),
        }
        if dtype == "float64":
            del heights["wide"]
        self._memory = {name: (height, aligned_empty((height * chunk,), of)) for name, (height, of) in heights.items()}
        self._columns = np.arange(chunk)
        self._views: dict[int, _Views] = {}

    def views(self, m: int) -> "_Views":
        """The views for m records, contiguous, cut by layer."""
        if m not in self._views:
            arrays = {name: memory[: height * m].reshape(height, m) for name, (height, memory) in self._memory.items()}
            arrays.setdefault("wide", arrays["every"])
            self._views[m] = _Views.cut(self.network, arrays, self._columns[:m])
        return self._views[m]


@dataclass(frozen=True, slots=True)
class _Views:
    """The buffers of `ClippedGradient` cut for one number of records; the lists are views, one a layer."""

    every: Array
    """Errors and layer inputs as they are computed."""
    wide: Array
    """The same in float64."""
    wide_error: Array
    squares: Array
    error_squares: Array
    hidden_squares: Array
    both_norms: Array
    error_norms: Array
    input_norms: Array
    product: Array
    columns: Array
    errors: list[Array]
    hidden: list[Array]
    wide_errors: list[Array]
    wide_inputs: list[Array]
    active: list[Array]
    slope: list[Array]
    error_bits: list[Array]
    active_bits: list[Array]
    slope_bits: list[Array]
    sign_shift: Array

    @classmethod
    def cut(cls, network: Network, arrays: dict[str, Array], columns: Array) -> "_Views":
        outs = [out for out, _ in network.shapes]
        inputs = [into for _, into in network.shapes[1:]]
        every, wide, squares, norms = (arrays[name] for name in ("every", "wide", "squares", "both_norms"))
        errors, hidden = _split(every, outs), _split(every[sum(outs) :], inputs)
        active = [h[: len(h) - network.intercept] for h in hidden]
        slope = [s[: len(s) - network.intercept] for s in _split(arrays["slopes"], inputs)]
        bits = 8 * every.itemsize
        integer = f"int{bits}"
        return cls(
            every=every,
            wide=wide,
            wide_error=wide[: sum(outs)],
            squares=squares,
            error_squares=squares[: sum(outs)],
            hidden_squares=squares[sum(outs) :],
            both_norms=norms,
            error_norms=norms[: len(outs)],
            input_norms=norms[len(outs) :],
            product=arrays["product"].reshape(len(columns), -1),
            columns=columns,
            errors=errors,
            hidden=hidden,
            wide_errors=_split(wide, outs),
            wide_inputs=_split(wide[sum(outs) :], inputs),
            active=active,
            slope=slope,
            error_bits=[a.view(integer) for a in errors],
            active_bits=[a.view(integer) for a in active],
            slope_bits=[a.view(integer) for a in slope],
            sign_shift=np.array(bits - 1, dtype=integer),
        )


def _split(array: Array, lengths: Sequence[int]) -> list[Array]:
    ends = np.cumsum(lengths, dtype=int)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


@saved_as("dense")
@dataclass(frozen=True)
class DenseModel:
    """A trained dense network or linear head: parameters and public constants only.

    `outputs` gives logits for classification (for the logistic loss the columns 0 and z) and real outputs for
    regression. Rows are clipped to `feature_bound` here as in training.

    Paper: [alg:dp-sgd]
    """

    network: Network
    loss: Loss
    parameters: Array
    classes: tuple[Any, ...] | None = None
    feature_bound: float | None = None

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""
        return "classification" if self.loss.name in ("cross_entropy", "logistic") else "regression"

    @property
    def n_features(self) -> int:
        """Width of a row."""
        return self.network.widths[0]

    @property
    def layers(self) -> list[Array]:
        """One (out, in) matrix a layer, the bias in its last column."""
        return self.network.layers(self.parameters)

    def rows(self, X: ArrayLike) -> Array:
        """Checked rows with the bound applied and the bias coordinate appended."""
        return feature_rows(
            check_rows(X, self.n_features, finite=False),
            feature_bound=self.feature_bound,
            intercept=self.network.intercept,
            dtype=str(self.parameters.dtype),
        )

    def outputs(self, X: ArrayLike) -> Array:
        """Logits (n, classes), or real outputs (n, 1), or (n, quantiles); a row's are a function of that row."""
        return self._in_parts(X, lambda z: z)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (n, classes); a row's are a function of that row."""
        if self.task != "classification":
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        return self._in_parts(X, softmax)

    def _in_parts(self, X: ArrayLike, finish: Callable[[Array], Array]) -> Array:
        rows = check_rows(X, self.n_features, finite=False)  # each part is checked while it is in cache
        pair = self.loss.name == "logistic"
        out = np.empty((len(rows), self.network.widths[-1] + pair), dtype=self.parameters.dtype)

        def fill(part: slice, into: Array) -> None:
            _require_finite(rows[part])
            fill_features(rows[part], self.feature_bound, into)

        for part, z in RowOutputs(self.network, self.parameters).parts(len(rows), fill):
            out[part] = finish(with_zero_column(z) if pair else z)[: part.stop - part.start]
        return out

    def arrays(self) -> dict[str, Array]:
        """The parameters, for saving."""
        return {"parameters": self.parameters}

    def config(self) -> dict[str, Any]:
        """The public constants as JSON values."""
        return {
            "model": "dense",
            "widths": list(self.network.widths),
            "activation": self.network.activation,
            "intercept": self.network.intercept,
            "loss": self.loss.name,
            "quantiles": list(self.loss.quantiles),
            "huber_delta": self.loss.huber_delta,
            "classes": None
            if self.classes is None
            else [c.item() if isinstance(c, np.generic) else c for c in self.classes],
            "feature_bound": self.feature_bound,
        }

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        """Rebuild the model that `config` and `arrays` came from."""
        check_choice("model", config["model"], ["dense"])
        network = Network(tuple(config["widths"]), config["activation"], bool(config["intercept"]))
        parameters = np.asarray(arrays["parameters"])
        if parameters.shape != (network.n_parameters,):
            raise ValueError(f"parameters must have length {network.n_parameters} for widths {network.widths}")
        classes = None if config["classes"] is None else tuple(config["classes"])
        loss = Loss(config["loss"], tuple(config["quantiles"]), config["huber_delta"])
        return cls(network, loss, parameters, classes, config["feature_bound"])
