"""Define dense networks: outputs, losses and the released model.

A linear head has no hidden layers. How a matrix product rounds a record depends on the size of the block, the place in
it and the number of threads. A record's result must be a function of that record alone. Otherwise one more record would
change the results of all others, and near a jump or a threshold by more than any sensitivity states. `AlikeBlocks`
chooses sizes of blocks for which a product rounds a record in the same way in every place.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import Array
from dpscp._base.checks import check_choice
from dpscp.training.engine.rows import (
    CHUNK_NUMBERS,
    ROW_END,
    aligned_empty,
    check_rows,
    feature_rows,
    fill_features,
    is_small,
    require_finite,
)
from dpscp.training.engine.threads import blas_threads
from dpscp.training.model import InfluenceForm, Model, NoInfluenceFormError, saved_as, softmax

_SIZE_CHECK = Lock()  # several threads may check the same sizes
# Sizes of blocks are multiples of this, and so many records fill whole cache lines.
LANES = 16
MOST_ROWS = 8192


@lru_cache(maxsize=256)
def _known_sizes(_what: Hashable) -> tuple[dict[int, bool], list[Array]]:
    """Return which sizes round alike, and results of synthetic full blocks."""
    return {}, []


def whole_lanes(m: float) -> int:
    """Return the next number of records that fills whole cache lines."""
    return LANES * math.ceil(m / LANES)


@dataclass(frozen=True)
class Network:
    """The public shape of a dense network: widths, activation and bias.

    Widths are listed from input to output.
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
        """Return the public starting point, from PCG64(seed).

        Weights are uniform on +-scale / sqrt(fan-in).

        `scale=None` is 0 for a linear head (its loss is convex) and 1 for a network with hidden layers.
        """
        if scale is None:
            scale = 0.0 if len(self.widths) == 2 else 1.0
        stream = np.random.Generator(np.random.PCG64(seed))
        flat = stream.uniform(-1.0, 1.0, self.n_parameters)
        for layer, fan_in in zip(self.layers(flat), self.widths[:-1], strict=True):
            layer *= scale / math.sqrt(fan_in)
        return flat


class AlikeBlocks(ABC):
    """The layers of a network for certain block sizes.

    In these sizes, a record gets the same bits in every place. How a product rounds depends on sizes, places, alignment
    and threads, not on values. So a size is used only if synthetic records get the same bits in every place as in a
    block of `chunk`. A record's results are then a function of that record. If a full block fails in float32, blocks
    are float64. If it fails in both, records go one at a time (`chunk` is 1).
    """

    def __init__(self, network: Network, dtype: str, *what: Hashable) -> None:
        """Allocate memory, and check the largest block size.

        Each size is checked once in a process, for the shapes, the threads of the library and ``what``, which names
        everything else that matters.
        """
        self.network = network
        for self.dtype in (dtype, "float64"):
            self.parameters = aligned_empty((network.n_parameters,), self.dtype)
            self._layers = network.layers(self.parameters)
            self.chunk = whole_lanes(self._allocate())
            key = type(self), network, self.dtype, self.chunk, blas_threads(), AlikeBlocks._forward, *what
            self._alike, self._expected = _known_sizes(key)
            if self._rounds_alike(self.chunk):
                return
        self.chunk = 1  # one place rounds like itself, and `size` asks for no other

    @abstractmethod
    def _allocate(self) -> float:
        """Allocate memory, and return the largest number of records of a block.

        Both depend on the precision.
        """

    @abstractmethod
    def _synthetic_results(self, size: int) -> Iterator[Array]:
        """Put each synthetic record in every place of a block.

        Yields arrays (units, places).
        """

    def size(self, m: int) -> int:
        """Return the number of places, padding included, of a block for m records."""
        size = min(whole_lanes(m), self.chunk)
        return size if size == self.chunk or self._rounds_alike(size) else self.chunk

    def _rounds_alike(self, size: int) -> bool:
        if size not in self._alike:
            results = list(self._synthetic_results(size))
            with _SIZE_CHECK:
                if not self._expected:
                    self._expected.extend(result[:, :1].copy() for result in results)
            pairs = zip(results, self._expected, strict=True)
            self._alike[size] = all(bool((result == expected).all()) for result, expected in pairs)
        return self._alike[size]

    def _forward(self, layers: Sequence[Array], rows: Array, values: "LayerValues") -> None:
        """Compute the outputs of every layer from rows with their bias coordinate."""
        inputs: Array = rows.T
        for depth, (layer, out) in enumerate(zip(layers, values.outputs, strict=True)):
            np.dot(layer, inputs, out)
            if depth == len(values.hidden):
                return
            if self.network.activation == "relu":
                # a mask of ones where the value is positive: the sign bit of its negated bits, spread; faster than
                # np.maximum here and a comparison on the way back
                bits, slope = values.active_bits[depth], values.slopes[depth]
                np.negative(bits, out=slope)
                np.right_shift(slope, values.sign_shift, out=slope)
                np.bitwise_and(bits, slope, out=bits)
            else:
                np.tanh(out, out=out)
            inputs = values.hidden[depth]
            if self.network.intercept:
                inputs[-1].fill(1)


class LayerValues:
    """Memory of a forward pass: the outputs of all layers, (units, records).

    It has views of this memory, one for each layer.

    ``hidden`` are the inputs of the later layers, each with its bias coordinate, ``last`` the outputs of the last one.
    """

    def __init__(self, network: Network, hidden: Sequence[Array], last: Array) -> None:
        self.hidden = hidden
        self.outputs = [*(inputs[: len(inputs) - network.intercept] for inputs in hidden), last]
        integer = f"int{8 * last.itemsize}"
        self.active_bits = [active.view(integer) for active in self.outputs[:-1]]
        self.slopes = [np.empty_like(bits) for bits in self.active_bits]
        self.sign_shift = np.array(8 * last.itemsize - 1, dtype=integer)


class RowOutputs(AlikeBlocks):
    """The outputs of a network; those of a row do not depend on other rows.

    They have the same bits whatever the other rows are. Several threads may use it at once. Where the layers are
    float64 instead of float32, the outputs are rounded.

    Theory: Result B
    """

    def __init__(self, network: Network, parameters: Array) -> None:
        self._out_dtype = parameters.dtype
        super().__init__(network, str(parameters.dtype))
        self.parameters[:] = parameters

    def _allocate(self) -> float:
        return max(128, min(MOST_ROWS, CHUNK_NUMBERS // sum(self.network.widths)))

    def _synthetic_results(self, size: int) -> Iterator[Array]:
        """Yield outputs and probabilities of synthetic records in every place of a block."""
        network = self.network
        flat = aligned_empty((network.n_parameters,), self.dtype)
        flat[:] = network.initial(0, 1.0)
        layers, (rows, values) = network.layers(flat), self._memory(size)
        for i in range(1 + 12 // network.widths[-1]):
            rows[:, : network.widths[0]] = synthetic_rows(1 + i, network.widths[0])
            self._forward(layers, rows, values)
            z = values.outputs[-1]
            yield z.copy()
            yield softmax(with_zero_column(z.T)).T

    def _memory(self, size: int) -> tuple[Array, LayerValues]:
        """Return memory for rows with bias coordinate and for layer values."""
        network = self.network
        (_, width), *later = network.shapes
        rows = aligned_empty((size, width), self.dtype)
        rows[:, network.widths[0] :] = 1
        values = [aligned_empty((n, size), self.dtype) for n in (*(n for _, n in later), network.widths[-1])]
        return rows, LayerValues(network, values[:-1], values[-1])

    def parts(self, n: int, fill: Callable[[slice, Array], None]) -> Iterator[tuple[slice, Array]]:
        """Yield each block's slice and its outputs (places, units).

        The outputs have padding after the places of the slice.

        `fill(part, into)` writes these rows, without bias coordinate, into a block. The next block overwrites outputs.
        """
        rows = np.empty((0, 0))
        for start in range(0, n, self.chunk):
            part = slice(start, min(n, start + self.chunk))
            m = part.stop - start
            size = self.size(m)
            if len(rows) != size:
                rows, values = self._memory(size)
            fill(part, rows[:m, : self.network.widths[0]])
            rows[m:] = rows[0]  # padding then overflows only if a row does
            self._forward(self._layers, rows, values)
            yield part, values.outputs[-1].T

    def __call__(self, rows: Array) -> Array:
        """Return the outputs (records, units) of finished rows."""
        out = np.empty((len(rows), self.network.widths[-1]), dtype=self._out_dtype)
        for part, z in self.parts(len(rows), lambda which, into: np.copyto(into, rows[which])):
            out[part] = z[: part.stop - part.start]
        return out


def synthetic_rows(seed: int, width: int) -> Array:
    """Return a row of numbers uniform on -1 to 1."""
    return np.random.Generator(np.random.PCG64(seed)).uniform(-1.0, 1.0, width)


def with_zero_column(z: Array) -> Array:
    """Return the logits 0 and z of the two classes of a logistic model."""
    return np.concatenate([np.zeros_like(z), z], axis=1)


@dataclass(frozen=True)
class Loss:
    """A record's loss as a function of the outputs: its name and constants.

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
        """Return logits (n, classes), or real outputs (n, 1) or (n, quantiles).

        Each row of the result is a function of its row.
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
            if self.feature_bound is None and is_small(rows[part], ROW_END[str(into.dtype)]):
                np.copyto(into, rows[part], casting="same_kind")
                return
            require_finite(rows[part])
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
