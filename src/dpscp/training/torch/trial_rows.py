"""Find synthetic rows that a torch module takes: their kinds and precision, and rows of different scales."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product, takewhile
from typing import Any

from dpscp.training.torch.comparison import MixingError
from dpscp.training.torch.layer_terms import UnsupportedLayerError
from dpscp.training.torch.modules import (
    ONE_LOSS_EACH,
    OwnMessageError,
    explain_failure,
    is_out_of_memory,
    load_torch,
    released_copy,
    rows_dtype,
)
from dpscp.training.torch.random_state import DrawError, draws_by_row
from dpscp.training.torch.synthetic_rows import (
    ANY,
    BITS,
    FEW_ROWS,
    MIXED_ROWS,
    PADDED,
    SCALES,
    TEXTS,
    UNIT,
    RowKind,
    SyntheticRecords,
    count_numbers,
)

# The dry run moves every trained parameter off its start: a gradient that is zero there hides what it is made of.
STEP = 0.05

Losses = Callable[[Any, Any], Any]
Targets = Callable[[int, Any], Any]


@dataclass(frozen=True)
class Rows:
    """A kind of synthetic rows, and the precision in which the module takes them.

    None: its own.
    """

    kind: RowKind
    dtype: Any = None


class FailureError(Exception):
    """The module fails on synthetic rows; the cause says how."""


@contextmanager
def separate_failures() -> Iterator[None]:
    """Turn errors of the module into `FailureError`; refusals and missing memory stay as they are."""
    try:
        yield
    except (UnsupportedLayerError, MixingError, DrawError):
        raise
    except OwnMessageError as error:
        raise MixingError(str(error)) from None
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise FailureError from error


class TrialRows:
    """A module with synthetic rows and targets that it accepts.

    Every call is made on a copy of its own.
    """

    precise: Rows
    own: Rows
    others: list[Rows]
    mixed: dict[Rows, list[int]]
    """Rows of different scales: the places of those that the module takes alone."""
    n_outputs: int

    def __init__(self, module: Any, input_shape: tuple[int, ...], target: Targets, losses: Losses, device: str) -> None:
        self.module, self.input_shape, self.target, self.losses = module, input_shape, target, losses
        self.device, self.mixed = device, {}

    def find_rows(self, n_outputs: int | None) -> None:
        """Find the precision and the kinds of rows with which the module runs.

        Float64 shows the weakest mixing. ``precise`` is the first kind whose rows the module tells apart; a module that
        rounds its rows to tokens takes other numbers too, and sees one token in all of them.
        """
        device, self.device = self.device, "cpu"  # on a GPU an index out of range ends the process
        usable, failure = self._usable_rows(n_outputs)
        self.device = device
        if not usable and device != "cpu":  # a module for this device alone
            usable, failure = self._usable_rows(n_outputs)
        if not usable:
            # the cause speaks of synthetic rows only
            raise ValueError(
                f"the module or its loss fails on synthetic rows of shape {tuple(self.input_shape)}: "
                f"{explain_failure(failure, self.module)}. No record was used. The first layer must accept the number "
                "of features, and the loss must accept the outputs"
            ) from failure
        self.precise = next((found for found in usable if self._tells_apart(found)), usable[0])
        self.others = [found for found in usable if found != self.precise]
        self.own = Rows(self.precise.kind)
        is_usable, failure = self._try_rows(self.own, n_outputs)
        if not is_usable:
            raise ValueError(
                f"the module fails on synthetic rows of {rows_dtype(self.module)}, the type that training uses. No "
                "record was used. Give module.float() or module.double(), or convert rows in forward"
            ) from failure

    def _usable_rows(self, n_outputs: int | None) -> tuple[list[Rows], Exception | None]:
        torch = load_torch()
        failure: Exception | None = None
        for dtype in (torch.float64, torch.float32):
            is_usable = dict[RowKind, bool]()
            for kind in (ANY, UNIT, BITS, PADDED):
                is_usable[kind], reason = self._try_rows(Rows(kind, dtype), n_outputs)
                failure = reason or failure
            # a module that takes any numbers knows no words: a few are enough
            words = self._most_words(dtype, n_outputs, TEXTS[: 3 if is_usable[ANY] else None])
            usable = [Rows(kind, dtype) for kind in (ANY, UNIT, *words, BITS, PADDED) if is_usable.get(kind, True)]
            if usable:
                return usable, failure
        return [], failure

    def _most_words(self, dtype: Any, n_outputs: int | None, texts: Sequence[RowKind]) -> list[RowKind]:
        """Return the texts of as many words as the module knows; nothing if it takes none."""
        return list(takewhile(lambda kind: self._try_rows(Rows(kind, dtype), n_outputs)[0], texts))[-1:]

    def _try_rows(self, found: Rows, n_outputs: int | None) -> tuple[bool, Exception | None]:
        """Apply the module once; return whether it takes these rows, and what went wrong.

        Sets the number of outputs.
        """
        torch = load_torch()
        module = self._copy(found)
        rows, goals = self._batch(found, FEW_ROWS)
        try:
            outputs = module(rows)
        except Exception as error:
            return False, error
        width = _check_outputs(outputs, n_outputs)
        self._refuse_lost_dimension(module, rows, tuple(outputs.shape[1:]), is_own=found.dtype is None)
        try:
            values = self.losses(outputs, goals)
            is_finite = bool(torch.isfinite(outputs).all() and torch.isfinite(values).all())
        except Exception as error:
            return False, error
        if values.shape != (FEW_ROWS,):
            raise ValueError(ONE_LOSS_EACH)
        self.n_outputs = width
        return is_finite, None

    def _refuse_lost_dimension(self, module: Any, rows: Any, form: tuple[int, ...], *, is_own: bool) -> None:
        """Refuse a module that fails for one record, or whose outputs for it have no dimension of records."""
        try:
            outputs = module(rows[:1].clone())
        except Exception as error:
            if not is_own:  # rows that the module was perhaps not made for
                return
            raise ValueError(
                f"the module runs on {FEW_ROWS} synthetic rows and fails on one alone: "
                f"{explain_failure(error, self.module)}. No record was used. Its result for a record must not need "
                "others: use GroupNorm in place of batch_norm, and take means and deviations over dim=1"
            ) from error
        if tuple(outputs.shape) != (1, *form):
            raise ValueError(
                f"for a batch of one record the module returns the shape {tuple(outputs.shape)}, not {(1, *form)}: a "
                "squeeze() without dim, or a reshape, drops the dimension of the records. Use squeeze(1) or flatten(1)"
            )

    def _tells_apart(self, found: Rows) -> bool:
        """Return whether rows of this kind have different outputs, at moved parameters."""
        module = self._copy(found).eval()
        move_parameters(module, STEP, seed=1)
        with load_torch().no_grad():
            try:
                outputs = module(self._batch(found, FEW_ROWS)[0])
            except Exception:  # a module for training only, which fails below
                return False
        return not bool((outputs == outputs[:1]).all())

    def find_scales(self, count: int) -> None:
        """Find rows of different scales, and rows with an outlier, that the module takes.

        They have its most precise type, and its own. Each row is tried alone: what fails only beside rows of another
        scale mixes them. On a processor, where no row ends the process.
        """
        kind = next(
            (kind for kind in (ANY, UNIT) if Rows(kind, self.precise.dtype) in (self.precise, *self.others)), None
        )
        if kind is None:
            return
        device, self.device = self.device, "cpu"
        kinds = replace(kind, scales=SCALES), replace(kind, has_outlier=True)
        for dtype, kind in product(dict.fromkeys((self.precise.dtype, rows_dtype(self.module))), kinds):
            found = Rows(kind, dtype)
            places = self._places_alone(found, min(MIXED_ROWS, count))
            if len(places) > 1:
                self.mixed[found] = places
        self.device = device

    def _places_alone(self, found: Rows, count: int) -> list[int]:
        """Return the rows whose outputs and losses are finite, each one alone."""
        module, batch, places = self.moved_copy(found), self._batch(found, count), list[int]()
        scored = copy.deepcopy(module).eval()
        for place in range(count):
            try:
                with load_torch().no_grad():
                    require_finite([scored(batch[0][[place]]), self.losses_of(module, batch, [place])])
            except Exception:  # a row that the module was not made for
                continue
            places.append(place)
        return places

    def losses_of(self, module: Any, batch: tuple[Any, Any], keys: Sequence[int]) -> Any:
        """Return the losses of these records of a batch, each one with its own draws."""
        rows, target = (values[list(keys)] for values in batch)
        with load_torch().no_grad(), draws_by_row(keys) if self.draws else nullcontext():
            return self.losses(module(rows), target)

    @cached_property
    def draws(self) -> bool:
        """Return whether the module draws random numbers in training mode."""
        return self._draws(self._copy(self.own).train(), self._batch(self.own, FEW_ROWS)[0])

    def moved_copy(self, found: Rows) -> Any:
        """Return a copy in this precision, off its start."""
        module = self._copy(found)
        self._move(module, Rows(self.precise.kind, found.dtype), seed=1)
        return module

    def mixed_batch(self, found: Rows) -> tuple[Any, Any]:
        """Return rows of different scales, and their targets."""
        places = self.mixed[found]
        rows, target = self._batch(found, max(places) + 1)
        return rows[places], target[places]

    def count_numbers(self) -> int:
        """Return how many numbers the innermost layers return for one record."""
        return count_numbers(self._copy(self.own), self._batch(self.own, FEW_ROWS)[0])

    def synthetic_records(self) -> SyntheticRecords:
        """Return synthetic records that the module takes, in its own precision."""
        dtype = rows_dtype(self.module)
        classification = not self.target(1, load_torch().float32).is_floating_point()
        return SyntheticRecords(self.input_shape, self.own.kind, classification, self.draws, self.device, dtype)

    def _copy(self, found: Rows) -> Any:
        copied = copy.deepcopy(self.module).to(self.device)
        return copied if found.dtype is None else copied.to(dtype=found.dtype)

    def _batch(self, found: Rows, count: int, seed: int = 0) -> tuple[Any, Any]:
        dtype = found.dtype or rows_dtype(self.module)
        rows = found.kind.rows(self.input_shape, count, seed)
        return rows.to(device=self.device, dtype=dtype), self.target(count, dtype).to(self.device)

    def _alone(self, plain: Any, rows: Any, target: Any, key: int, *, draws: bool) -> list[Any]:
        """Return the gradient of a record alone, by plain autograd."""
        torch = load_torch()
        with draws_by_row([key]) if draws else nullcontext():
            loss = self.losses(plain(rows[[key]]), target[[key]])[0]
            trained = [p for p in plain.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True)
        require_finite(gradient for gradient in found if gradient is not None)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]

    def _draws(self, module: Any, rows: Any) -> bool:
        mode = draws_by_row(range(len(rows)))
        with mode, load_torch().no_grad():
            module(rows.clone())
        return bool(mode.calls)

    def _move(self, module: Any, found: Rows, seed: int) -> None:
        torch, start = load_torch(), copy.deepcopy(module)
        move_parameters(module, STEP, seed)
        with torch.no_grad():
            if not torch.isfinite(copy.deepcopy(module)(self._batch(found, FEW_ROWS, seed)[0])).all():
                released_copy(module, start).train()


def move_parameters(module: Any, step: float, seed: int) -> None:
    """Add noise of this size to every trained parameter."""
    torch = load_torch()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=source, dtype=p.dtype, device="cpu").to(p.device), alpha=step)


def require_finite(values: Iterable[Any]) -> None:
    """Raise ArithmeticError unless all numbers are finite."""
    if not all(bool(load_torch().isfinite(value).all()) for value in values):
        raise ArithmeticError("the gradient of a record is not finite")


def _check_outputs(outputs: Any, n_outputs: int | None) -> int:
    torch = load_torch()
    if not isinstance(outputs, torch.Tensor):
        raise ValueError(
            f"module must return one tensor with one row per record, and it returns a {type(outputs).__name__}; "
            "return the logits, or the real outputs, alone"
        )
    if outputs.ndim == 0 or len(outputs) != FEW_ROWS:
        raise ValueError(
            f"module must return one tensor with one row per record; for {FEW_ROWS} records its output has the shape "
            f"{tuple(outputs.shape)}"
        )
    if n_outputs is None:
        return int(outputs[0].numel())
    if outputs.ndim != 2 or outputs.shape[1] != n_outputs:
        found = tuple(outputs.shape[1:])
        raise ValueError(
            f"module must have one output for each of the {n_outputs} classes, outputs of shape "
            f"(records, {n_outputs}); its outputs have the shape (records, {', '.join(map(str, found))})"
        )
    return n_outputs
