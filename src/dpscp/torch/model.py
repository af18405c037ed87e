"""Use a trained torch module as a model of this torch.

It is called with NumPy arrays and saved without its code. Outputs come from a graph of one record in evaluation mode,
mapped over blocks, as gradients do in training. A file holds the module's state dict as plain arrays, and outputs on
synthetic records. Loading needs a module of the same architecture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice
from dpscp.data.sources import Block
from dpscp.data.torch_records import read_shape
from dpscp.data.validation import count_numbers
from dpscp.torch.blocks import Scorer, check_ranges
from dpscp.torch.forms import RecordForm
from dpscp.torch.library import on_processor, torch
from dpscp.torch.modules import rows_dtype, separate_copy
from dpscp.torch.trace import ScoreGraph, shorten, trace_outputs
from dpscp.training.engine.rows import check_classes, encode_labels, real_targets
from dpscp.training.model import Model, saved_as

# Records of a block.
_AT_ONCE = 64
_ANSWERS, _SEED = 6, 21
# Other processors round float32 sums differently, by far less than this; another activation gives other outputs.
_SAME_ANSWER = 1e-4
# Numbers beyond this are cut. Numbers of a large array that are looked at together.
_LARGEST, _NUMBERS_AT_ONCE = 2.0**100, 2**20


@saved_as("torch")
@dataclass(frozen=True)
class TorchModel(Model):
    """A trained torch module as a Model.

    Inputs and outputs are NumPy arrays. ``module`` is the caller's module with the released parameters; it never sees a
    record. ``arrays`` holds its state dict. The module's code is not data: reading it back needs a module of the same
    architecture.

    Theory: Fact 7
    """

    module: "torch.nn.Module"
    input_shape: tuple[Any, ...]
    classes: tuple[Any, ...] | None = None
    graph: ScoreGraph | None = field(default=None, repr=False, compare=False)
    """The graph of the outputs of one record; None: it is traced when it is needed."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: graphs are traced again where they are needed."""
        return {"module": self.module, "input_shape": self.input_shape, "classes": self.classes, "graph": None}

    @property
    def task(self) -> str:
        return "regression" if self.classes is None else "classification"

    @property
    def n_features(self) -> int:
        """Return the number of numbers in one record."""
        return count_numbers(self.input_shape)

    @cached_property
    def _graph(self) -> ScoreGraph:
        return trace_score(self.module, self.input_shape) if self.graph is None else self.graph

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes) or real outputs (n, k).

        Rows may be flat or of ``input_shape``. A record on which the module fails has outputs NaN.
        """
        rows = torch_rows(X, rows_dtype(self.module))
        rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        if rows.shape[1] != self.n_features:
            raise ValueError(f"X must have {self.n_features} numbers per record, got {rows.shape[1]}")
        if not len(rows):
            return np.empty((0, self._graph.n_outputs), dtype=rows.dtype)
        with on_processor():
            return self._scorer(rows)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self._graph, self._fixed, _AT_ONCE)

    @property
    def _fixed(self) -> list[Any]:
        return [value.detach() for value in (*self.module.parameters(), *self.module.buffers())]

    def fresh_module(self) -> "torch.nn.Module":
        """Return a copy of the module, in evaluation mode."""
        return separate_copy(self.module).eval()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state dict as NumPy arrays.

        TypeError for a part of it that has no such form.
        """
        return _state_arrays(self.module)

    def config(self) -> dict[str, Any]:
        """Return the public constants and the outputs on synthetic records, as JSON."""
        self.arrays()  # refuses a state that is no plain array
        answers = self._answers()
        if not np.isfinite(answers).all():
            raise TypeError("this torch module gives no finite outputs on synthetic records, so it cannot be saved")
        classes = None if self.classes is None else list(self.classes)
        shape = [list(part) if isinstance(part, tuple) else part for part in self.input_shape]
        return {"model": "torch", "input_shape": shape, "classes": classes, "answers": answers.tolist()}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the saved model in a copy of ``config["module"]``.

        Names and shapes are compared, and the outputs on synthetic records, so that another activation or another
        order of layers is noticed too. ValueError if the module is missing or differs.
        """
        module = config.get("module")
        if module is None:
            raise ValueError(
                "the file contains the parameters of a torch module and not its code; give the architecture, "
                "dp.load(path, module=net)"
            )
        check_choice("model", config["model"], ["torch"])
        shape, copied = read_shape(config["input_shape"]), separate_copy(module)
        try:
            copied.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
        except RuntimeError as error:  # names and shapes
            raise ValueError(f"module has another architecture than the saved one: {shorten(error)}") from None
        classes = None if config["classes"] is None else check_classes(config["classes"], "cross_entropy")
        model = cls(copied.eval(), shape, classes)
        model._require_answers(config["answers"])
        return model

    @on_processor()
    def _answers(self) -> NDArray[Any]:
        """Return the outputs on synthetic records of several lengths.

        Between them the layers leave the range where one activation looks like another.
        """
        form, parts = self._graph.form, []
        for part, values in zip(form.inputs, form.synthetic(_ANSWERS, _SEED), strict=True):
            lengths = torch.logspace(0, 2, _ANSWERS).view(-1, *[1] * len(part.shape))
            numbers = (values - 0.5) * lengths if part.is_real else values
            parts.append(numbers.reshape(_ANSWERS, -1).numpy().astype(np.float64))
        return self.outputs(np.concatenate(parts, axis=1))

    def _require_answers(self, saved: Any) -> None:
        answers, expected = self._answers(), np.asarray(saved, dtype=np.float64)
        same = answers.shape == expected.shape and bool(
            (np.abs(answers - expected) <= _SAME_ANSWER * np.abs(expected).max(axis=1, keepdims=True)).all()
        )
        if not same:
            raise ValueError(
                "module accepts the saved parameters but gives other outputs on synthetic records, so its architecture "
                "differs (an activation, the order of layers, a constant); give the saved architecture"
            )


@on_processor()
def trace_score(module: Any, input_shape: Sequence[Any]) -> ScoreGraph:
    """Return the graph of a module's outputs for records of a shape.

    A module that looks up the numbers of its one input gets whole numbers.
    """
    form = RecordForm.of(input_shape, rows_dtype(module))
    try:
        return trace_outputs(separate_copy(module), form)
    except ValueError as error:
        if "scalar types: Long, Int" not in str(error) or form.inputs[0].name is not None:
            raise
    return trace_outputs(separate_copy(module), form.with_integers())


def _state_arrays(module: Any) -> dict[str, NDArray[Any]]:
    arrays = {}
    for name, value in module.state_dict().items():
        try:
            arrays[name] = value.detach().cpu().numpy()
        except (AttributeError, TypeError, RuntimeError):
            kind = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise TypeError(
                f"{name!r} of the module's state dict is {kind} and not a plain array, so the model cannot be saved; "
                "use float32 parameters and no extra state"
            ) from None
    return arrays


def torch_rows(X: ArrayLike, dtype: str = "float32") -> NDArray[Any]:
    """Return finite real records of any shape in this precision, without a copy where possible."""
    try:
        rows = np.asarray(X)
        rows = rows if np.can_cast(rows.dtype, dtype) else rows.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError("X must contain real numbers in equally shaped records") from None
    if rows.ndim < 2:
        raise ValueError(f"X must have at least two dimensions (records, features...), got {rows.ndim}")
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, math.prod(rows.shape[1:])))
    parts = [rows[start : start + at_once] for start in range(0, len(rows), at_once)]
    if not all(np.isfinite(part).all() for part in parts):
        raise ValueError("X must not hold NaN or infinity")
    if rows.dtype == dtype and rows.flags.writeable and all((np.abs(part) <= _LARGEST).all() for part in parts):
        return rows
    return cut_numbers(rows, dtype)


def cut_numbers(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a copy of finite numbers in this precision.

    Larger ones become 2**100, as in the NumPy engine: one record must not decide more.
    """
    return np.asarray(np.clip(values, -_LARGEST, _LARGEST), dtype=dtype)


@dataclass(frozen=True)
class TorchBlock:
    """Convert the rows and targets of a block for torch.

    ``classes`` None: real targets. They have the precision of the rows. ``sizes``: the inputs that are indices, see
    ``GradientGraph``.
    """

    form: RecordForm
    sizes: tuple[tuple[int, int], ...]
    classes: tuple[Any, ...] | None
    dtype: str

    def __call__(self, block: Block) -> Block:
        rows, targets = torch_rows(block.read(), self.dtype), block.targets
        rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        check_ranges(self.form, self.sizes, rows)
        if self.classes is None:
            targets = cut_numbers(real_targets(targets, "float64"), self.dtype)
        else:
            targets = encode_labels(targets, self.classes)
        return replace(block, rows=rows, targets=targets, chosen=None, steps=(), n_columns=None)
