"""Define dense networks: their rows, outputs, losses and the released model.

A linear head is a network without hidden layers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dpscp._base.arrays import Array
from dpscp._base.checks import check_choice
from dpscp.training.engine.padding import AlikeBlocks, aligned_empty, blas_threads, is_aligned
from dpscp.training.model import InfluenceForm, Model, NoInfluenceFormError, saved_as, softmax

# Rows are clipped this much below a feature bound, relatively: rounding cannot lift them above it.
ROW_SLACK = {"float32": 1e-6, "float64": 1e-13}
# Larger numbers in a row become this: far beyond any reasonable unit, far enough below the largest number of the type.
_END = {"float32": 2.0**100, "float64": 2.0**900}
# The largest number whose square is far from an overflow.
_MOST_SQUARED = {np.dtype("float32"): 2.0**60, np.dtype("float64"): 2.0**500}
# Rows handled at once: about this many numbers of input and activations, so that a chunk stays in cache.
CHUNK_NUMBERS = 1 << 18
MOST_ROWS = 8192
# For shorter rows the calls of a maximum cost more than the maximum.
_SHORT_ROW = 64
# Temporaries of so many numbers stay in the cache.
_NUMBERS_AT_ONCE = 1 << 16


def check_rows(X: ArrayLike, n_features: int | None = None, *, finite: bool = True) -> Array:
    """Return X as a two-dimensional array of real numbers, checked.

    Messages contain nothing of X.

    ``finite=False`` leaves the last check, the only one that reads every number, to the next reader of the rows.
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


def _require_finite(rows: Array) -> None:
    """Refuse NaN and infinity; a finite sum shows at once that there are none, only an overflow needs a closer look."""
    if rows.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return
    step = max(1, CHUNK_NUMBERS // rows.shape[1])  # temporaries stay small
    if not all(np.isfinite(rows[start : start + step]).all() for start in range(0, len(rows), step)):
        raise ValueError("X must not hold NaN or infinity")


def _is_small(rows: Array, end: float) -> bool:
    """Return whether one sum of squares shows that every number is finite and at most `end`.

    Faster than a check and a clip, which change nothing then. Half of `end` is compared, since the sum is rounded.
    """
    most = _MOST_SQUARED.get(rows.dtype)
    if most is None or not rows.flags.c_contiguous:
        return False
    numbers = rows.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(numbers @ numbers <= min(end / 2, most) ** 2)


def squared_norms(rows: Array) -> Array:
    """Return the squared norm of every row in float64.

    A row's result has the same bits wherever the row stands.
    """
    return inner_products(rows, rows)


def inner_products(rows: Array, others: Array) -> Array:
    """Return the inner product of every row with the row beside it.

    Results are float64, with the same bits wherever the two rows stand.
    """
    n, d = rows.shape
    out, step = np.empty(n), max(1, CHUNK_NUMBERS // d)
    for start in range(0, n, step):
        part = slice(start, start + step)
        left = _whole_lines(rows[part])
        right = left if others is rows else _whole_lines(others[part])
        with np.errstate(over="ignore"):
            np.einsum("ij,ij->i", left, right, out=out[part])
    return out


def _whole_lines(rows: Array) -> Array:
    """Return the rows in float64, each of whole cache lines.

    Each is summed in the same way.
    """
    n, d = rows.shape
    if d % 8 == 0 and rows.dtype == np.float64 and rows.flags.c_contiguous and is_aligned(rows, 1):
        return rows
    lines = aligned_empty((n, 8 * math.ceil(d / 8)), "float64")
    lines[:, :d], lines[:, d:] = rows, 0
    return lines


def largest_entries(rows: Array) -> Array:
    """Return the largest absolute value of each row.

    Short rows are put across first, which runs along many at once.
    """
    if rows.shape[1] < _SHORT_ROW:
        return np.asarray(np.maximum.reduce(np.abs(rows.T, order="C"), axis=0))
    return np.asarray(np.maximum.reduce(np.abs(rows), axis=1))


def feature_rows(rows: Array, *, feature_bound: float | None, intercept: bool, dtype: str) -> Array:
    """Return rows as the engine reads them.

    Finite, clipped to `feature_bound`, with the bias coordinate 1 appended.

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
    """Write finite rows into `out` as `feature_rows` does, without the bias."""
    n, d = rows.shape
    if feature_bound is None:
        _cast(rows, out, _END[str(out.dtype)])
        return
    # the second term is what a sum of d squares may lose
    limit = feature_bound * (1 - ROW_SLACK[str(out.dtype)] - d * 2.0**-53)
    step = max(1, CHUNK_NUMBERS // d)
    for start in range(0, n, step):
        part = slice(start, start + step)
        np.copyto(out[part], scaled_rows(rows[part], limit, unit=False), casting="same_kind")


def scaled_rows(rows: NDArray[Any], bound: float, *, unit: bool) -> NDArray[np.float64]:
    """Return a float64 copy with every row scaled or shortened to ``bound``.

    No row is longer than ``bound`` after rounding.

    Rows are divided by their largest entry first, so that squares neither overflow nor underflow. A row's
    result has the same bits wherever the row stands.
    """
    out = aligned_empty(rows.shape, "float64")
    _cast(rows, out, float(np.finfo(np.float64).max))
    step = max(1, _NUMBERS_AT_ONCE // rows.shape[1])
    for start in range(0, len(out), step):
        part = out[start : start + step]
        largest = largest_entries(part)[:, None]
        part /= np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt(squared_norms(part))[:, None]
        target = np.full_like(lengths, bound)
        if not unit:
            with np.errstate(over="ignore"):
                np.minimum(target, lengths * largest, out=target)
        # slightly inside the ball: the promise "norm at most bound" must survive rounding
        np.divide(target * (1 - 1e-15 * (4 + rows.shape[1])), lengths, out=target, where=lengths > 0)
        part *= target
    return out


def _cast(values: Array, into: Array, end: float) -> None:
    """Copy finite numbers; a larger one than `end` becomes that."""
    if values.dtype.kind == "f" and float(np.finfo(values.dtype).max) > end:
        np.clip(values, -end, end, out=into, casting="same_kind")
    else:
        np.copyto(into, values, casting="unsafe")


@dataclass(frozen=True)
class Network:
    """The public shape of a dense network.

    Layer widths from input to output, activation, bias or not.
    """

    widths: tuple[int, ...]
    activation: str = "relu"
    intercept: bool = True

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Return (out, in) of every layer; the last input is the bias coordinate."""
        return tuple((b, a + self.intercept) for a, b in zip(self.widths[:-1], self.widths[1:], strict=True))

    @cached_property
    def n_parameters(self) -> int:
        """Return the length of the flat parameter vector."""
        return sum(a * b for a, b in self.shapes)

    def layers(self, flat: Array) -> list[Array]:
        """Return views of a flat parameter vector, one (out, in) matrix per layer."""
        views, start = [], 0
        for out, into in self.shapes:
            views.append(flat[start : start + out * into].reshape(out, into))
            start += out * into
        return views

    def initial(self, seed: int, scale: float | None) -> Array:
        """Return the public starting point.

        Uniform on +-scale/sqrt(fan-in) from PCG64(seed); zero for scale 0.

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
        """Fill the values of every layer, (records, units), from values[0].

        The last are the outputs.
        """
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
    """A network's outputs, a row's the same bits whatever the other rows are.

    A function of row and parameters.

    Rows go through the layers in padded, aligned blocks of sizes that round alike in every place (see `AlikeBlocks`).
    Where no size does so in float32, the layers are computed in float64, and the outputs rounded.

    Theory: Result B
    """

    def __init__(self, network: Network, parameters: Array) -> None:
        self._network, self._out_dtype = network, parameters.dtype
        self._allocate(parameters, str(parameters.dtype))
        if self._blocks.chunk == 1 and self._dtype == "float32":
            self._allocate(parameters, "float64")

    def _allocate(self, parameters: Array, dtype: str) -> None:
        flat = aligned_empty(parameters.shape, dtype)
        flat[:] = parameters
        self._layers, self._dtype = self._network.layers(flat), dtype
        most = max(128, min(MOST_ROWS, CHUNK_NUMBERS // sum(self._network.widths)))
        what = self._network, dtype, most, blas_threads(), type(self._network).forward
        self._blocks = AlikeBlocks(what, most, self._synthetic_results)

    def _synthetic_results(self, size: int) -> Iterator[Array]:
        """Yield outputs and probabilities of synthetic records in every place of a block."""
        network = self._network
        flat = aligned_empty((network.n_parameters,), self._dtype)
        flat[:] = network.initial(0, 1.0)
        values = self._layer_values(size)
        for i in range(1 + 12 // network.widths[-1]):
            values[0][:] = synthetic_rows(1 + i, network.widths[0])
            z = network.forward(network.layers(flat), values)
            yield z.T.copy()
            yield softmax(with_zero_column(z)).T

    def _layer_values(self, size: int) -> list[Array]:
        return [aligned_empty((size, width), self._dtype) for width in self._network.widths]

    def parts(self, n: int, fill: Callable[[slice, Array], None]) -> Iterator[tuple[slice, Array]]:
        """Yield the n rows block by block.

        Which rows, and the outputs (places, units) with padding behind those rows.

        `fill(part, into)` writes these rows, without bias coordinate, into a block. Outputs last until the next block.
        """
        values: list[Array] = []
        for start in range(0, n, self._blocks.chunk):
            part = slice(start, min(n, start + self._blocks.chunk))
            m = part.stop - start
            size = self._blocks.size(m)
            if not values or len(values[0]) != size:
                values = self._layer_values(size)
            fill(part, values[0][:m])
            values[0][m:] = values[0][0]  # padding overflows and warns only where a row does
            yield part, self._network.forward(self._layers, values)

    def __call__(self, rows: Array) -> Array:
        """Return the outputs (records, units) of finished rows."""
        out = np.empty((len(rows), self._network.widths[-1]), dtype=self._out_dtype)
        for part, z in self.parts(len(rows), lambda which, into: np.copyto(into, rows[which])):
            out[part] = z[: part.stop - part.start]
        return out


def synthetic_rows(seed: int, width: int) -> Array:
    """Return a row of numbers uniform on -1 to 1."""
    return np.random.Generator(np.random.PCG64(seed)).uniform(-1.0, 1.0, width)


def with_zero_column(z: Array) -> Array:
    """Return the logits 0 and z of the two classes of a logistic model."""
    return np.concatenate([np.zeros_like(z), z], axis=1)


_TWO_CLASSES = np.array([[0], [1]])


@dataclass(frozen=True)
class Loss:
    """A record's loss as a function of the outputs.

    The name, and the constants it needs.

    cross_entropy: softmax over the outputs; logistic: sigmoid of one output, labels 0 and 1; squared: (z -
    y)^2 (no factor 1/2); huber: (z - y)^2 / 2 up to `huber_delta`, then linear; pinball: one output for each
    of `quantiles`, summed.
    """

    name: str
    quantiles: tuple[float, ...] = ()
    huber_delta: float = 1.0

    def error(self, z: Array, target: Array, columns: Array) -> None:
        """Overwrite the outputs z with the derivative of each record's loss.

        z is contiguous, of shape (units, records).
        """
        if self.name == "cross_entropy":
            two = len(z) == 2  # put together at once: half the time
            z -= np.maximum(*z) if two else np.maximum.reduce(z, axis=0)
            np.exp(z, out=z)
            z /= np.add(*z) if two else np.add.reduce(z, axis=0)
            if two:
                np.subtract(z, np.equal(_TWO_CLASSES, target), out=z)
            else:
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


@saved_as("dense")
@dataclass(frozen=True)
class DenseModel(Model):
    """A trained dense network or linear head: parameters and public constants only.

    `outputs` gives logits for classification (for the logistic loss the columns 0 and z) and real outputs for
    regression. Rows are clipped to `feature_bound` here as in training.

    Parameters
    ----------
    network : Network
    loss : Loss
    parameters : array of shape (n_parameters,)
    classes : tuple or None
        The public labels in the order of the outputs; None for regression.
    feature_bound : float or None

    Paper: [alg:dp-sgd]
    """

    network: Network
    loss: Loss
    parameters: Array
    classes: tuple[Any, ...] | None = None
    feature_bound: float | None = None

    is_row_wise: ClassVar[bool] = True
    checks_rows: ClassVar[bool] = True

    @property
    def task(self) -> str:
        return "classification" if self.loss.name in ("cross_entropy", "logistic") else "regression"

    @property
    def n_features(self) -> int:
        """Return the width of a row."""
        return self.network.widths[0]

    @property
    def layers(self) -> list[Array]:
        """Return one (out, in) matrix for each layer, the bias in its last column."""
        return self.network.layers(self.parameters)

    def rows(self, X: ArrayLike) -> Array:
        """Return checked rows with the bound applied and the bias coordinate appended."""
        return feature_rows(
            check_rows(X, self.n_features, finite=False),
            feature_bound=self.feature_bound,
            intercept=self.network.intercept,
            dtype=str(self.parameters.dtype),
        )

    def outputs(self, X: ArrayLike) -> Array:
        """Return logits (n, classes), or real outputs (n, 1), or (n, quantiles).

        A row's are a function of that row.
        """
        return self._in_parts(X, lambda z: z)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return class probabilities (n, classes); a row's are a function of that row."""
        if self.task != "classification":
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        return self._in_parts(X, softmax)

    def _in_parts(self, X: ArrayLike, finish: Callable[[Array], Array]) -> Array:
        rows = check_rows(X, self.n_features, finite=False)  # each part is checked while it is in cache
        pair = self.loss.name == "logistic"
        out = np.empty((len(rows), self.network.widths[-1] + pair), dtype=self.parameters.dtype)

        def fill(part: slice, into: Array) -> None:
            if self.feature_bound is None and _is_small(rows[part], _END[str(into.dtype)]):
                np.copyto(into, rows[part], casting="same_kind")
                return
            _require_finite(rows[part])
            fill_features(rows[part], self.feature_bound, into)

        for part, z in RowOutputs(self.network, self.parameters).parts(len(rows), fill):
            out[part] = finish(with_zero_column(z) if pair else z)[: part.stop - part.start]
        return out

    def influence_form(self) -> InfluenceForm:
        if len(self.network.widths) > 2:
            raise NoInfluenceFormError(
                "the self-influence correction works for linear heads only; this model has hidden layers"
            )
        return InfluenceForm(self)

    def with_output_scale(self, scale: float, shift: ArrayLike) -> Self:
        if not self.network.intercept or self.loss.name == "logistic":
            raise TypeError("the mechanism must release a DenseModel with an intercept and one output for each class")
        parameters = np.array(self.parameters)
        last = self.network.layers(parameters)[-1]
        last *= scale
        last[:, -1] += shift
        return replace(self, parameters=parameters)

    def arrays(self) -> dict[str, Array]:
        return {"parameters": self.parameters}

    def config(self) -> dict[str, Any]:
        return {
            "model": "dense",
            "widths": list(self.network.widths),
            "activation": self.network.activation,
            "intercept": self.network.intercept,
            "loss": self.loss.name,
            "quantiles": list(self.loss.quantiles),
            "huber_delta": self.loss.huber_delta,
            "classes": None if self.classes is None else list(self.classes),
            "feature_bound": self.feature_bound,
        }

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, Array]) -> Self:
        check_choice("model", config["model"], ["dense"])
        network = Network(tuple(config["widths"]), config["activation"], bool(config["intercept"]))
        parameters = np.asarray(arrays["parameters"])
        if parameters.shape != (network.n_parameters,):
            raise ValueError(f"parameters must have length {network.n_parameters} for widths {network.widths}")
        classes = None if config["classes"] is None else tuple(config["classes"])
        loss = Loss(config["loss"], tuple(config["quantiles"]), config["huber_delta"])
        return cls(network, loss, parameters, classes, config["feature_bound"])
