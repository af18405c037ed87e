"""Dense networks (a linear head is one without hidden layers): forward, backward and clipped gradient sums.

The gradient of one record in a dense layer is the outer product of the layer's input a (with its bias
coordinate) and the backpropagated error d, so its squared norm is |a|^2 |d|^2 (the ghost norm). Clipping
needs these norms only: the sum of clipped gradients is one matrix product a layer with rescaled errors, and
no per-record gradient ever exists.

Arrays inside are (units, records): reductions over a few units then run along contiguous records.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._checks import check_choice

__all__ = ["ClippedGradient", "DenseModel", "Loss", "Network", "check_rows", "feature_rows"]

Array = NDArray[Any]

# Ghost norms carry rounding errors of a few units in the last place: the noise is scaled for this much more than
# clip_norm, relatively, and rows are clipped this much below a feature bound.
CLIP_SLACK = {"float32": 1e-6, "float64": 1e-13}
# Rows handled at once: about this many numbers of input and activations, so that a chunk stays in cache.
CHUNK_NUMBERS = 1 << 18


def check_rows(X: ArrayLike, n_features: int | None = None, *, finite: bool = True) -> Array:
    """A two-dimensional array of finite real numbers, of the given width; messages carry nothing from it.

    ``finite=False`` leaves the last check to somebody who reads the rows in parts.
    """
    if hasattr(X, "toarray"):
        raise TypeError("X must be a dense array; convert sparse rows before training or prediction")
    try:
        rows = np.asarray(X)
        if rows.dtype.kind not in "fiub":
            if rows.dtype.kind == "c":
                raise TypeError("X must hold real numbers, not complex ones")
            rows = rows.astype(np.float64)
    except (TypeError, ValueError) as error:
        if str(error).startswith("X must"):
            raise
        raise ValueError("X must hold real numbers in equally long rows") from None
    if rows.ndim != 2:
        raise ValueError(f"X must be two-dimensional (records, features), got {rows.ndim} dimension(s)")
    if n_features is not None and rows.shape[1] != n_features:
        raise ValueError(f"X must have {n_features} features, got {rows.shape[1]} features")
    if rows.shape[1] == 0:
        raise ValueError("X must have at least one feature, got 0 feature(s)")
    if finite and rows.dtype.kind == "f" and not _finite(rows):
        raise ValueError("X must not hold NaN or infinity")
    return rows


def _finite(rows: Array) -> bool:
    """Whether every number is finite: a finite sum says so at once, and only an overflow needs a closer look."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(rows.sum())) or all(np.isfinite(part).all() for part in _parts(rows))


def _parts(rows: Array) -> Iterator[Array]:
    """The rows in cache-sized pieces, so that temporaries stay small."""
    step = max(1, CHUNK_NUMBERS // rows.shape[1])
    return (rows[start : start + step] for start in range(0, len(rows), step))


def feature_rows(rows: Array, *, feature_bound: float | None, intercept: bool, dtype: str) -> Array:
    """Rows as the engine reads them: finite, clipped to `feature_bound`, with the bias coordinate 1 appended.

    A row longer than the bound is scaled onto it, a function of that row alone. The bound does not count the
    bias coordinate.
    """
    n, d = rows.shape
    out = np.empty((n, d + intercept), dtype=dtype)
    with np.errstate(over="ignore"):
        out[:, :d] = rows
    if intercept:
        out[:, d] = 1.0
    if not _finite(out):
        check_rows(rows)
        raise ValueError(f"X holds numbers too large for {dtype}; use dtype='float64' or rescale by public constants")
    if feature_bound is not None:
        limit, tiny = feature_bound * (1 - CLIP_SLACK[dtype]), np.finfo(dtype).tiny
        for part in _parts(out):
            features = part[:, :d]
            # Divided by the largest entry first, so that squaring neither overflows nor underflows.
            largest = np.maximum(np.abs(features).max(axis=1, keepdims=True), tiny).astype(np.float64)
            norms = largest * np.sqrt(np.square(features / largest).sum(axis=1, keepdims=True))
            features *= np.minimum(1.0, limit / np.maximum(norms, tiny))
    return out


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

    def forward(self, layers: Sequence[Array], rows: Array, *, with_bias: bool = True) -> Array:
        """Outputs (records, units) on rows made by `feature_rows`, with their bias coordinate or without."""
        hidden = rows
        for depth, layer in enumerate(layers):
            if self.intercept and (depth or not with_bias):
                values = hidden @ layer[:, :-1].T
                values += layer[:, -1]
            else:
                values = hidden @ layer.T
            if depth == len(layers) - 1:
                return values
            hidden = np.maximum(values, 0, out=values) if self.activation == "relu" else np.tanh(values, out=values)
        raise AssertionError("a network has at least one layer")


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
    """The sum over records of gradients clipped to `clip_norm`, by ghost norms; the sum is left in `total`.

    Adding or removing one record changes the sum by at most clip_norm in exact arithmetic. A record whose
    gradient is not finite (an overflow at wild parameters) contributes zero, so it cannot do more either.

    Theory: section 1.6
    """

    def __init__(self, network: Network, loss: Loss, clip_norm: float, dtype: str) -> None:
        self.network, self.loss = network, loss
        self.limit = clip_norm
        outs = [out for out, _ in network.shapes]
        hidden = [into for _, into in network.shapes[1:]]
        width = network.shapes[0][1] + 2 * (sum(outs) + sum(hidden))
        self.chunk = max(128, min(8192, CHUNK_NUMBERS // width))
        # Indicator rows: one product sums the squares of every layer at once.
        self._error_layer = np.repeat(np.eye(len(outs), dtype=dtype), outs, axis=1)
        self._hidden_layer = np.repeat(np.eye(len(hidden), dtype=dtype), hidden, axis=1)
        sizes = (sum(outs), sum(hidden), sum(outs), sum(hidden), len(outs), len(outs), outs[0])
        self._buffers = [np.empty(size * self.chunk, dtype=dtype) for size in sizes]
        self._columns = np.arange(self.chunk)
        self.total = np.empty(network.n_parameters, dtype=dtype)
        self._extra = np.empty(network.n_parameters, dtype=dtype)
        self._total_layers, self._extra_layers = network.layers(self.total), network.layers(self._extra)
        self._views: dict[int, _Views] = {}
        self._wide = network.shapes[0][1] >= 64

    def _for_records(self, m: int) -> "_Views":
        """Views of the buffers for m records, contiguous, cut by layer."""
        if m not in self._views:
            if len(self._views) > 512:
                self._views.clear()
            full = [b[: (b.size // self.chunk) * m].reshape(-1, m) for b in self._buffers[:-1]]
            product = self._buffers[-1][: self.network.shapes[0][0] * m].reshape(m, -1)
            self._views[m] = _Views.cut(self.network, full, product, self._columns[:m])
        return self._views[m]

    def errors(
        self, layers: Sequence[Array], rows: Array, squared_norms: Array, target: Array
    ) -> tuple[list[Array], list[Array]]:
        """For one chunk: every layer's errors, scaled by the clipping factors, and the later layers' inputs."""
        v = self._for_records(len(rows))
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
        self.loss.error(v.errors[last], target, v.columns)
        for depth in range(last - 1, -1, -1):
            np.dot(layers[depth + 1][:, : len(v.active[depth])].T, v.errors[depth + 1], out=v.errors[depth])
            if relu:
                np.bitwise_and(v.error_bits[depth], v.slope_bits[depth], out=v.error_bits[depth])
            else:
                slope = v.slope[depth]
                np.multiply(v.active[depth], v.active[depth], out=slope)
                np.subtract(1, slope, out=slope)
                np.multiply(v.errors[depth], slope, out=v.errors[depth])
        self._clip(v, squared_norms)
        return v.errors, v.hidden

    def _clip(self, v: "_Views", squared_norms: Array) -> None:
        np.multiply(v.every_error, v.every_error, out=v.error_squares)
        np.dot(self._error_layer, v.error_squares, out=v.error_norms)
        if v.hidden:
            np.multiply(v.every_hidden, v.every_hidden, out=v.hidden_squares)
            np.dot(self._hidden_layer, v.hidden_squares, out=v.input_norms[1:])
        v.input_norms[0] = squared_norms
        np.multiply(v.error_norms, v.input_norms, out=v.error_norms)
        norms = np.add.reduce(v.error_norms, axis=0)
        if not math.isfinite(norms.dot(norms)):
            broken = ~np.isfinite(norms)
            v.every_error[:, broken] = 0
            v.every_hidden[:, broken] = 0
            norms[broken] = 0
        np.sqrt(norms, out=norms)
        np.maximum(norms, self.limit, out=norms)
        np.divide(self.limit, norms, out=norms)
        np.multiply(v.every_error, norms, out=v.every_error)

    def add(self, layers: Sequence[Array], rows: Array, squared_norms: Array, target: Array, *, first: bool) -> None:
        """Set (first) or increase `total` by the clipped gradient sum of one chunk of at most `chunk` records."""
        errors, hidden = self.errors(layers, rows, squared_norms, target)
        into = self._total_layers if first else self._extra_layers
        np.dot(errors[0], rows, out=into[0])
        for depth, inputs in enumerate(hidden, start=1):
            np.dot(errors[depth], inputs.T, out=into[depth])
        if not first:
            self.total += self._extra


@dataclass(frozen=True, slots=True)
class _Views:
    """The buffers of `ClippedGradient` cut for one number of records; the lists are views, one a layer."""

    every_error: Array
    every_hidden: Array
    error_squares: Array
    hidden_squares: Array
    error_norms: Array
    input_norms: Array
    product: Array
    columns: Array
    errors: list[Array]
    hidden: list[Array]
    active: list[Array]
    slope: list[Array]
    error_bits: list[Array]
    active_bits: list[Array]
    slope_bits: list[Array]
    sign_shift: Array

    @classmethod
    def cut(cls, network: Network, full: list[Array], product: Array, columns: Array) -> "_Views":
        errors = _split(full[0], [out for out, _ in network.shapes])
        inputs = [into for _, into in network.shapes[1:]]
        hidden = _split(full[1], inputs)
        active = [h[: len(h) - network.intercept] for h in hidden]
        # The slopes are done with before the squares of the hidden values are needed: they share memory.
        slope = [s[: len(s) - network.intercept] for s in _split(full[3], inputs)]
        integer = f"int{8 * full[0].itemsize}"
        every_error, every_hidden, error_squares, hidden_squares, error_norms, input_norms = full
        return cls(
            every_error=every_error,
            every_hidden=every_hidden,
            error_squares=error_squares,
            hidden_squares=hidden_squares,
            error_norms=error_norms,
            input_norms=input_norms,
            product=product,
            columns=columns,
            errors=errors,
            hidden=hidden,
            active=active,
            slope=slope,
            error_bits=[a.view(integer) for a in errors],
            active_bits=[a.view(integer) for a in active],
            slope_bits=[a.view(integer) for a in slope],
            sign_shift=np.array(8 * full[0].itemsize - 1, dtype=integer),
        )


def _split(array: Array, lengths: Sequence[int]) -> list[Array]:
    ends = np.cumsum(lengths, dtype=int)
    return [array[end - length : end] for end, length in zip(ends, lengths, strict=True)]


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
        return self._features(check_rows(X, self.n_features), intercept=self.network.intercept)

    def _features(self, rows: Array, *, intercept: bool = False) -> Array:
        return feature_rows(
            rows, feature_bound=self.feature_bound, intercept=intercept, dtype=str(self.parameters.dtype)
        )

    def outputs(self, X: ArrayLike) -> Array:
        """Logits (n, classes), or real outputs (n, 1), or (n, quantiles)."""
        rows = check_rows(X, self.n_features, finite=False)  # each part is checked while it is in cache
        step = max(1, CHUNK_NUMBERS // (sum(self.network.widths) + 1))
        z = np.empty((len(rows), self.network.widths[-1]), dtype=self.parameters.dtype)
        for start in range(0, len(rows), step):
            features = self._features(rows[start : start + step])
            z[start : start + step] = self.network.forward(self.layers, features, with_bias=False)
        return np.concatenate([np.zeros_like(z), z], axis=1) if self.loss.name == "logistic" else z

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (n, classes)."""
        if self.task != "classification":
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        z = self.outputs(X)
        z = np.exp(z - z.max(axis=1, keepdims=True))
        probabilities: Array = z / z.sum(axis=1, keepdims=True)
        return probabilities

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
