"""Use a trained torch module as a model of this library.

It is called with NumPy arrays and saved without its code. A file holds the module's state dict as plain arrays, and the
module's outputs on synthetic rows. Loading needs a module of the same architecture. It must have the same names, shapes
and kinds of numbers, and give the same outputs.
"""

import copy
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count
from dpscp.data.sources import Block
from dpscp.training.engine.networks import softmax
from dpscp.training.labels import check_classes, encode_labels, real_targets
from dpscp.training.model import Model, saved_as
from dpscp.training.torch.dry_run import dry_run
from dpscp.training.torch.modules import (
    hold_in_evaluation,
    is_out_of_memory,
    load_torch,
    private_copy,
    refuse_unknown_arrays,
    refuse_unknown_buffers,
    rows_dtype,
    separate_copy,
    without_opacus_hooks,
)
from dpscp.training.torch.random_state import secret_draws
from dpscp.training.torch.synthetic_rows import rows_at_once, synthetic_rows

if TYPE_CHECKING:
    import torch

# Synthetic rows of several lengths: between them the layers leave the range where one activation looks like another.
_LENGTHS = (1.0, 1.0, 10.0, 10.0, 100.0, 100.0)
# Other processors round float32 sums differently, by far less than this; another activation gives other outputs.
_SAME_ANSWER = 1e-4
_LONGEST_RECORD = 2**24
# Numbers beyond this are cut. Numbers of a large array that are looked at together.
_LARGEST, _NUMBERS_AT_ONCE = 2.0**100, 2**20


@saved_as("torch")
@dataclass(frozen=True)
class TorchModel(Model):
    """A trained torch module behind the names of a Model.

    Inputs and outputs are NumPy arrays.

    ``module`` never sees a row: rows go through a copy that is deleted, so that nothing a forward pass leaves on
    its module is kept, pickled or saved. ``arrays`` holds the state dict. The module's code is not data: reading it
    back needs a module of the same architecture.

    Theory: section 1.7
    """

    module: "torch.nn.Module"
    input_shape: tuple[int, ...]
    classes: tuple[Any, ...] | None = None
    device: str = "cpu"

    @property
    def task(self) -> str:
        return "regression" if self.classes is None else "classification"

    @property
    def n_features(self) -> int:
        """Return the number of numbers in one record."""
        return math.prod(self.input_shape)

    def fresh_module(self) -> "torch.nn.Module":
        """Return a copy of the module, in evaluation mode."""
        return separate_copy(self.module).eval()

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Return logits (n, classes) or real outputs (n, k).

        Rows may be flat or of ``input_shape``.
        """
        torch = load_torch()
        rows = torch_rows(X, number_type(self.module))
        if rows.shape[1:] != self.input_shape:
            if math.prod(rows.shape[1:]) != self.n_features:
                raise ValueError(f"X must have {self.n_features} numbers per record, got {math.prod(rows.shape[1:])}")
            rows = rows.reshape(len(rows), *self.input_shape)
        module = self.fresh_module()
        hold_in_evaluation(module.modules())  # as in the dry run, even if forward calls train()
        dtype = rows_dtype(module)
        parts, failure = [], ""
        try:
            with torch.no_grad(), secret_draws(os.urandom), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's warnings print shapes, and with them numbers of records
                at_once = rows_at_once(module, self.input_shape, self.device)
                for start in range(0, max(1, len(rows)), at_once):
                    # a copy: a layer may change its input in place
                    chunk = torch.tensor(rows[start : start + at_once], dtype=dtype, device=self.device)
                    parts.append(module(chunk).cpu().numpy())
        except Exception as error:
            if is_out_of_memory(error):
                raise
            failure = type(error).__name__
        if failure:  # outside the handler: its words may carry values of the rows
            raise RuntimeError(
                f"the module failed on the rows ({failure}). The original message is hidden because it may contain "
                "values of the rows; reproduce the error with synthetic rows of the same kind"
            )
        values = np.concatenate(parts)
        return values[:, None] if values.ndim == 1 else values

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        if self.classes is None:
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        return softmax(self.outputs(X).astype(np.float64))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state dict as NumPy arrays.

        TypeError for a part of it that has no such form.
        """
        return _state_arrays(self.module)

    def config(self) -> dict[str, Any]:
        """Return the public constants and the outputs on synthetic rows, as JSON."""
        answers = _answers(self.module, self.input_shape)
        if all(answer is None for answer in answers):
            raise TypeError("this torch module gives no finite output on any synthetic rows, so it cannot be saved")
        classes = None if self.classes is None else list(self.classes)
        listed = [None if answer is None else answer.tolist() for answer in answers]
        return {"model": "torch", "input_shape": list(self.input_shape), "classes": classes, "answers": listed}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the saved model in a copy of ``config["module"]``.

        ValueError if that is missing, or another architecture.
        """
        if config.get("module") is None:
            raise ValueError(
                "the file contains the parameters of a torch module and not its code; give the architecture, "
                "dp.load(path, module=net)"
            )
        return cls.restore(config["module"], {"answers": None, **config}, arrays)

    @classmethod
    def restore(cls, module: "torch.nn.Module", config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Load the saved model into a copy of ``module``.

        ``module`` must have the saved architecture.

        Names, shapes and kinds of numbers are compared, and the outputs on synthetic rows, so that another activation
        or another order of layers is noticed too. ``config`` of earlier versions has no outputs to compare with.
        """
        torch = load_torch()
        check_choice("model", config["model"], ["torch"])
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        shape = tuple(check_count("input_shape", s) for s in config["input_shape"])
        if not shape or math.prod(shape) > _LONGEST_RECORD:
            raise ValueError(f"input_shape must be the shape of a record with at most {_LONGEST_RECORD} numbers")
        copied = copy.deepcopy(module)
        _require_same_state(_state_arrays(copied), arrays)
        copied.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
        if "answers" in config:
            _require_same_answers(copied, shape, config["answers"])
        classes = None if config["classes"] is None else check_classes(config["classes"], "cross_entropy")
        device = next((str(p.device) for p in copied.parameters()), "cpu")
        return cls(copied.eval(), shape, classes, device)


def _state_arrays(module: Any) -> dict[str, NDArray[Any]]:
    arrays = {}
    for name, value in module.state_dict().items():
        try:
            arrays[name] = value.detach().cpu().numpy()
        except (AttributeError, TypeError, RuntimeError):
            kind = value.dtype if isinstance(value, load_torch().Tensor) else type(value).__name__
            raise TypeError(
                f"{name!r} of the module's state dict is {kind} and not a plain array, so the model cannot be saved; "
                "use float32 parameters and no extra state"
            ) from None
    return arrays


def _require_same_state(own: Mapping[str, NDArray[Any]], saved: Mapping[str, NDArray[Any]]) -> None:
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved:
            raise ValueError(
                f"module has {name!r} in its state dict, and the file has not; give the saved architecture"
            )
        if name not in own:
            raise ValueError(
                f"the file has {name!r}, and the state dict of module has not; give the saved architecture"
            )
        if own[name].shape != saved[name].shape or own[name].dtype != saved[name].dtype:
            raise ValueError(
                f"{name!r} is {saved[name].dtype} of shape {saved[name].shape} in the file and {own[name].dtype} of "
                f"shape {own[name].shape} in module; give the saved architecture"
            )


def _answers(module: Any, input_shape: tuple[int, ...]) -> list[NDArray[np.float32] | None]:
    """Return the module's outputs on each kind of synthetic rows, on the CPU.

    None where that is no finite number.
    """
    torch = load_torch()
    on_cpu, dtype = copy.deepcopy(module).cpu(), rows_dtype(module)
    lengths = torch.tensor(_LENGTHS, device="cpu").reshape(-1, *(1 for _ in input_shape))
    answers: list[NDArray[np.float32] | None] = []
    on_cpu.eval()
    with torch.no_grad():
        for kind, rows in enumerate(synthetic_rows(input_shape, len(_LENGTHS))):
            given = rows.to(dtype) * lengths if kind == 0 else rows.to(dtype)
            try:
                outputs = on_cpu(given).reshape(len(_LENGTHS), -1).numpy()
            except Exception:  # rows that a module was not made for; all it can say is about synthetic rows
                answers.append(None)
                continue
            answers.append(outputs if np.isfinite(outputs).all() else None)
    return answers


def _require_same_answers(module: Any, input_shape: tuple[int, ...], saved: Any) -> None:
    expected = [None if answer is None else np.asarray(answer, dtype=np.float64) for answer in saved]
    for answer, wanted in zip(_answers(module, input_shape), expected, strict=True):
        same = (answer is None) == (wanted is None)
        if answer is not None and wanted is not None:
            same = answer.shape == wanted.shape and bool(
                (np.abs(answer - wanted) <= _SAME_ANSWER * np.abs(wanted).max(axis=1, keepdims=True)).all()
            )
        if not same:
            raise ValueError(
                "module accepts the saved parameters but gives other outputs on synthetic rows, so its architecture "
                "differs (an activation, the order of layers, a constant); give the saved architecture"
            )


def torch_model(
    module: Any,
    *,
    classes: tuple[Any, ...] | None = None,
    input_shape: tuple[int, ...] | None = None,
    device: str = "cpu",
    start_buffers: Mapping[str, Any] | None = None,
) -> TorchModel:
    """Wrap a copy of a trained module as a TorchModel.

    A wrapper of Opacus is removed.

    Refused like a module to be trained: layers that mix records, folded tokens, another number of outputs than
    classes; an array in an attribute; every buffer that ``start_buffers`` does not show to be that of before training.
    """
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    inner = getattr(module, "_module", module)
    refuse_unknown_buffers(inner, start_buffers)
    released = without_opacus_hooks(inner)
    plain = private_copy(released)
    refuse_unknown_arrays(plain)
    if input_shape is None:
        leading: Any = next((m for m in plain.modules() if not list(m.children())), None)
        if not isinstance(leading, torch.nn.Linear):
            raise ValueError("input_shape is needed, because the first layer of the module is not Linear")
        input_shape = (leading.in_features,)
    shape = tuple(check_count("input_shape", s) for s in input_shape)
    labels = None if classes is None else check_classes(classes, "cross_entropy")
    dry_run(
        plain,
        shape,
        lambda count, _: torch.zeros(count, device="cpu"),
        lambda outputs, _: outputs.flatten(1).square().sum(1) if outputs.ndim > 1 else outputs.square(),
        device=device,
        n_outputs=None if labels is None else len(labels),
    )
    return TorchModel(released.to(device).eval(), shape, labels, device)


def number_type(module: Any) -> str:
    """Return NumPy's name of the precision in which a module takes rows and real targets."""
    return str(rows_dtype(module)).removeprefix("torch.")


def torch_rows(X: ArrayLike, dtype: str = "float32") -> NDArray[Any]:
    """Return finite real records of any shape in this precision; the array itself where it has that already."""
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
    """A block with its rows and targets as torch takes them.

    ``classes`` None: real targets. They have the precision of the rows, as in the dry run.
    """

    shape: tuple[int, ...]
    classes: tuple[Any, ...] | None
    dtype: str

    def __call__(self, block: Block) -> Block:
        rows, targets = torch_rows(block.read(), self.dtype), block.targets
        if self.classes is None:
            targets = cut_numbers(real_targets(targets, "float64"), self.dtype)
        else:
            targets = encode_labels(targets, self.classes)
        return replace(block, rows=rows.reshape(len(rows), *self.shape), targets=targets, chosen=None, steps=())
