"""Run a torch module on synthetic rows before any record or budget is used.

The module must run, in its own precision too. It must change nothing in itself, in training and in evaluation mode. The
gradients that training will use, layer by layer or from Opacus, must be those that plain autograd finds for each record
alone, in batches of every size that training uses. So must the outputs in evaluation mode. Draws of the module's own
belong to the record (``draws_by_row``). All this is tried on several kinds of rows: any numbers, tokens, and rows that
end or start with zeros.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from dpscp._base.object_state import changed_paths, state_digest
from dpscp.training.torch.comparison import (
    Differences,
    MixingError,
    gradients_of,
    parts,
    require_own_sums,
    require_same,
    spread,
)
from dpscp.training.torch.layer_terms import (
    GradientPlan,
    LayerTerms,
    OpacusTerms,
    UnsupportedLayerError,
    make_terms,
)
from dpscp.training.torch.modules import (
    ONE_LOSS_EACH,
    OwnMessageError,
    explain_failure,
    is_out_of_memory,
    load_torch,
    refuse_changes,
    released_copy,
    require_gradients,
    rows_dtype,
    state_of,
)
from dpscp.training.torch.random_state import DrawError, draws_by_row
from dpscp.training.torch.synthetic_rows import (
    ANY,
    BITS,
    FEW_ROWS,
    PADDED,
    TEXTS,
    UNIT,
    RowKind,
    SyntheticRecords,
    count_numbers,
    rows_at_once,
)
from dpscp.training.torch.terms import Term

# Sizes of batches that are compared. Primes: a dimension of the module is rarely as long by accident.
_SIZES = (67, 23, 11)
# The same where the gradients of the first batch, or what the layers return for it, would be more than so many numbers.
_FEWER_SIZES, _MOST_HELD = ((13, 11, 7), (7, 5, 3)), 2**23
_SEEDS = (1, 2, 3)
# The dry run moves every trained parameter off its start: a gradient that is zero there hides what it is made of.
_STEP = 0.05
# Far from the start a layer that limits its own parameters does so.
_FAR = 30.0

Losses = Callable[[Any, Any], Any]
Targets = Callable[[int, Any], Any]
MostRows = Callable[[GradientPlan], int]


@contextmanager
def full_float32() -> Iterator[None]:
    """Compare gradients in full float32: with the shorter products of a GPU (TF32) equal ones differ by 1e-3."""
    backends = load_torch().backends
    libraries = backends.cudnn, backends.cuda.matmul
    before = [library.allow_tf32 for library in libraries]
    try:
        for library in libraries:
            library.allow_tf32 = False
        yield
    finally:
        for library, allowed in zip(libraries, before, strict=True):
            library.allow_tf32 = allowed


@dataclass(frozen=True)
class Tried:
    """What a dry run found: outputs of a record, how to compute gradients, and synthetic records that fit."""

    n_outputs: int
    plan: GradientPlan
    synthetic: SyntheticRecords


def dry_run(
    module: Any,
    input_shape: tuple[int, ...],
    target: Targets,
    losses: Losses,
    *,
    device: str,
    n_outputs: int | None = None,
    most_rows: MostRows = lambda _: _SIZES[0],
) -> Tried:
    """Try the module on synthetic rows; return what training needs to know of it.

    ``module`` is a ``private_copy``; ``target(count, dtype)`` gives synthetic targets; ``most_rows`` says how many rows
    training uses at once with a plan. ValueError for a module that fails, has another number of outputs than
    ``n_outputs``, changes anything in itself, mixes records in whatever way, or draws random numbers in evaluation
    mode.
    """
    torch = load_torch()
    require_gradients()
    forked = list(range(torch.cuda.device_count())) if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=forked), torch.enable_grad(), warnings.catch_warnings(), full_float32():
        warnings.simplefilter("ignore")  # torch and Opacus warn about their own names
        trial = _Trial(module, input_shape, target, losses, device)
        trial.find_rows(n_outputs)
        trial.check_state()
        trial.check_draws()
        plan = trial.choose_plan(most_rows)
        trial.check_outputs()
        return Tried(trial.n_outputs, plan, trial.synthetic_records())


@dataclass(frozen=True)
class _Rows:
    """A kind of synthetic rows, and the precision in which the module takes them.

    None: its own.
    """

    kind: RowKind
    dtype: Any = None


class _FailureError(Exception):
    """The module fails on synthetic rows; the cause says how."""


@contextmanager
def _separate_failures() -> Iterator[None]:
    """Turn errors of the module into `_FailureError`; refusals and missing memory stay as they are."""
    try:
        yield
    except (UnsupportedLayerError, MixingError, DrawError):
        raise
    except OwnMessageError as error:
        raise MixingError(str(error)) from None
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _FailureError from error


class _Trial:
    """A module with synthetic rows and targets that it accepts.

    Every call is made on a copy of its own.
    """

    precise: _Rows
    own: _Rows
    others: list[_Rows]
    n_outputs: int

    def __init__(self, module: Any, input_shape: tuple[int, ...], target: Targets, losses: Losses, device: str) -> None:
        self.module, self.input_shape, self.target, self.losses = module, input_shape, target, losses
        self.device = device

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of batches that are compared."""
        trained = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
        numbers = max(trained, self.count_numbers())
        choices = (_SIZES, *_FEWER_SIZES)
        return next((sizes for sizes in choices if sizes[0] * numbers <= _MOST_HELD), choices[-1])

    # ---- rows that the module takes

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
        self.own = _Rows(self.precise.kind)
        is_usable, failure = self._try_rows(self.own, n_outputs)
        if not is_usable:
            raise ValueError(
                f"the module fails on synthetic rows of {rows_dtype(self.module)}, the type that training uses. No "
                "record was used. Give module.float() or module.double(), or convert rows in forward"
            ) from failure

    def _usable_rows(self, n_outputs: int | None) -> tuple[list[_Rows], Exception | None]:
        torch = load_torch()
        failure: Exception | None = None
        for dtype in (torch.float64, torch.float32):
            is_usable = dict[RowKind, bool]()
            for kind in (ANY, UNIT, BITS, PADDED):
                is_usable[kind], reason = self._try_rows(_Rows(kind, dtype), n_outputs)
                failure = reason or failure
            # a module that takes any numbers knows no words: a few are enough
            words = self._most_words(dtype, n_outputs, TEXTS[: 3 if is_usable[ANY] else None])
            usable = [_Rows(kind, dtype) for kind in (ANY, UNIT, *words, BITS, PADDED) if is_usable.get(kind, True)]
            if usable:
                return usable, failure
        return [], failure

    def _most_words(self, dtype: Any, n_outputs: int | None, texts: Sequence[RowKind]) -> list[RowKind]:
        """Return the texts of as many words as the module knows; nothing if it takes none."""
        return list(takewhile(lambda kind: self._try_rows(_Rows(kind, dtype), n_outputs)[0], texts))[-1:]

    def _try_rows(self, found: _Rows, n_outputs: int | None) -> tuple[bool, Exception | None]:
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
        try:
            values = self.losses(outputs, goals)
            is_finite = bool(torch.isfinite(outputs).all() and torch.isfinite(values).all())
        except Exception as error:
            return False, error
        if values.shape != (FEW_ROWS,):
            raise ValueError(ONE_LOSS_EACH)
        self.n_outputs = width
        return is_finite, None

    def _tells_apart(self, found: _Rows) -> bool:
        """Return whether rows of this kind have different outputs, at moved parameters."""
        module = self._copy(found).eval()
        _move_parameters(module, _STEP, _SEEDS[0])
        with load_torch().no_grad():
            try:
                outputs = module(self._batch(found, FEW_ROWS)[0])
            except Exception:  # a module for training only, which fails below
                return False
        return not bool((outputs == outputs[:1]).all())

    def count_numbers(self) -> int:
        """Return how many numbers the innermost layers return for one record."""
        return count_numbers(self._copy(self.own), self._batch(self.own, FEW_ROWS)[0])

    def synthetic_records(self) -> SyntheticRecords:
        """Return synthetic records that the module takes, in its own precision."""
        dtype = rows_dtype(self.module)
        draws = self._draws(self._copy(self.own).train(), self._batch(self.own, FEW_ROWS)[0])
        classification = not self.target(1, load_torch().float32).is_floating_point()
        return SyntheticRecords(self.input_shape, self.own.kind, classification, draws, self.device, dtype)

    def _copy(self, found: _Rows) -> Any:
        copied = copy.deepcopy(self.module).to(self.device)
        return copied if found.dtype is None else copied.to(dtype=found.dtype)

    def _batch(self, found: _Rows, count: int, seed: int = 0) -> tuple[Any, Any]:
        dtype = found.dtype or rows_dtype(self.module)
        rows = found.kind.rows(self.input_shape, count, seed)
        return rows.to(device=self.device, dtype=dtype), self.target(count, dtype).to(self.device)

    # ---- state

    def check_state(self) -> None:
        """Refuse a module that changes anything in itself.

        The first look comes before the first call.
        """
        batches = [(self.own, FEW_ROWS, 0), (self.own, _SIZES[0], 1)]
        batches += [(_Rows(found.kind), FEW_ROWS, 0) for found in self.others]
        for training in (True, False):
            for step in (0.0, _FAR):
                module = self._copy(self.own).train(training)
                if step:
                    _move_parameters(module, step, seed=0)
                before, loss_before = state_of(module, trained=True), state_digest(self.losses)
                for found, count, seed in batches:
                    rows, goals = self._batch(found, count, seed)
                    try:
                        values = self.losses(module(rows), goals)
                        if training:
                            trained = [p for p in module.parameters() if p.requires_grad]
                            load_torch().autograd.grad(values.sum(), trained, allow_unused=True)
                        del values
                    except Exception:  # far from its start it may fail, which training would show
                        continue
                refuse_changes(changed_paths(before, state_of(module, trained=True)))
                refuse_changes(changed_paths(loss_before, state_digest(self.losses)))

    # ---- draws

    def check_draws(self) -> None:
        """Refuse draws that records share, and states of generators that are known or changed."""
        sizes = {self.own: self.sizes[:2]} | dict.fromkeys(self.others, self.sizes[1:2])
        for found, size in ((found, size) for found in sizes for size in sizes[found]):
            module, (rows, target) = self._copy(found).train(), self._batch(found, size)
            with suppress(_FailureError), _separate_failures(), load_torch().no_grad(), draws_by_row(range(size)):
                self.losses(module(rows), target)

    # ---- gradients

    def choose_plan(self, most_rows: MostRows) -> GradientPlan:
        """Return how the gradients are computed: layer by layer where that is right, else by Opacus.

        ValueError if neither returns the gradient of a record alone.
        """
        torch, numbers = load_torch(), self.count_numbers()
        images = len(self.input_shape) == 3 and any(isinstance(p, torch.nn.Conv2d) for p in self.module.modules())
        # on a processor pooling is several times as fast with channels last
        for channels_last in (True, False) if images and torch.device(self.device).type != "cuda" else (False,):
            plan = GradientPlan(by_layers=True, channels_last=channels_last, numbers=numbers)
            try:
                self.check_gradients(plan, most_rows(plan))
            except Exception as error:  # what is wrong shows below
                if is_out_of_memory(error):
                    raise
                continue
            return plan
        plan, failure = GradientPlan(numbers=numbers), None
        try:
            self.check_gradients(plan, most_rows(plan))
        except _FailureError as error:
            failure = error.__cause__
        if failure is not None:
            raise ValueError(
                "the module or its loss fails on a larger batch of synthetic rows: "
                f"{explain_failure(failure, self.module)}. No record was used"
            ) from failure
        return plan

    def check_gradients(self, plan: GradientPlan, most_rows: int) -> None:
        """Refuse the module if this plan returns anything but a record's gradient."""
        for seed in _SEEDS:
            self._check_rows(plan, self.precise, self.sizes, seed, in_full=seed == _SEEDS[0])
        for found in self.others:
            with suppress(_FailureError):  # rows that the module was not made for
                self._check_rows(plan, found, self.sizes[1:], _SEEDS[0])
        # mixing far apart in a batch shows here, whatever the size was above
        self._check_rows(plan, self.own, (most_rows, self.sizes[-1]), _SEEDS[0], in_full=True)

    @_separate_failures()
    def _check_rows(
        self, plan: GradientPlan, found: _Rows, sizes: tuple[int, ...], seed: int, *, in_full: bool = False
    ) -> None:
        """Compare gradients of rows, and in full also of equal rows, their norms and their sums."""
        plain = self._copy(found)
        self._move(plain, found, seed)
        computed = make_terms(plan, copy.deepcopy(plain))
        rows, target = self._batch(found, max(sizes), seed)
        part = self._compare(plan, plain, computed, (rows, target), sizes)
        if in_full:  # equal rows go the same way through layers that choose a way, and fill it
            equal = rows[:1].expand_as(rows).clone(), target[:1].expand_as(target).clone()
            self._compare(plan, plain, computed, equal, sizes)
            require_own_sums(part, computed.trained, sizes[-1])

    def _compare(
        self,
        plan: GradientPlan,
        plain: Any,
        computed: LayerTerms | OpacusTerms,
        batch: tuple[Any, Any],
        sizes: tuple[int, ...],
    ) -> list[Term]:
        """Compare each record's gradient with plain autograd and between batches; return the terms of the last one."""
        (rows, target), n, trained = batch, len(batch[0]), computed.trained
        draws, part = self._draws(plain, rows), list[Term]()
        differences = Differences([p.dtype for p in trained])
        whole = self._terms(plan, computed, batch, range(n) if draws else None)
        _require_finite(value for term in whole for value in term.tensors())
        for key in range(0, n, max(1, n // FEW_ROWS) | 1)[:FEW_ROWS]:  # every other one is odd
            alone = self._alone(plain, rows, target, key, draws=draws)
            differences.add([gradient[None] for gradient in alone], gradients_of(whole, trained, [key]))
        for size in sizes[1:]:
            # the last rows, in another order and between others: what runs out in a batch runs out for them
            keys = spread(n, min(size, n))
            part = self._terms(plan, computed, (rows[keys], target[keys]), keys if draws else None)
            for some in parts(len(keys), trained):
                differences.add(
                    gradients_of(part, trained, some), gradients_of(whole, trained, [keys[i] for i in some])
                )
        differences.refuse()
        return part

    def _terms(
        self, plan: GradientPlan, computed: LayerTerms | OpacusTerms, batch: tuple[Any, Any], keys: Sequence[int] | None
    ) -> list[Term]:
        """Return the terms of a batch; ``keys`` say which draws a row has, None: the module draws nothing."""
        rows, target = (values.clone() for values in batch)  # a layer may change its input in place
        if plan.channels_last:
            rows = rows.contiguous(memory_format=load_torch().channels_last)
        with nullcontext() if keys is None else draws_by_row(keys):
            return computed(self.losses, rows, target)

    def _alone(self, plain: Any, rows: Any, target: Any, key: int, *, draws: bool) -> list[Any]:
        """Return the gradient of a record alone, by plain autograd."""
        torch = load_torch()
        with draws_by_row([key]) if draws else nullcontext():
            loss = self.losses(plain(rows[[key]]), target[[key]])[0]
            trained = [p for p in plain.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True)
        _require_finite(gradient for gradient in found if gradient is not None)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]

    def _draws(self, module: Any, rows: Any) -> bool:
        mode = draws_by_row(range(len(rows)))
        with mode, load_torch().no_grad():
            module(rows.clone())
        return bool(mode.calls)

    def _move(self, module: Any, found: _Rows, seed: int) -> None:
        torch = load_torch()
        start = copy.deepcopy(module)
        _move_parameters(module, _STEP, seed)
        with torch.no_grad():
            if not torch.isfinite(copy.deepcopy(module)(self._batch(found, FEW_ROWS, seed)[0])).all():
                released_copy(module, start).train()

    # ---- outputs

    def check_outputs(self) -> None:
        """Refuse a module that mixes records or draws in evaluation mode.

        Records are scored in evaluation mode.
        """
        module = self._copy(self.own).eval()
        self._compare_outputs(module, self.own, rows_at_once(module, self.input_shape, self.device))
        for found in self.others:
            with suppress(_FailureError), _separate_failures():  # rows that the module was not made for
                self._compare_outputs(self._copy(found).eval(), found, self.sizes[1])

    def _compare_outputs(self, module: Any, found: _Rows, most: int) -> None:
        torch = load_torch()
        rows, _ = self._batch(found, most, _SEEDS[0])
        keys = spread(most, min(most, _SIZES[-1]))
        with torch.no_grad():
            whole, part = module(rows.clone()), module(rows[keys])
            if not bool(torch.isfinite(whole).all()):
                raise ValueError("the module has outputs that are not finite for synthetic rows in evaluation mode")
            if self._draws(module, rows[keys]):
                raise ValueError(
                    "the module draws random numbers in evaluation mode on synthetic rows, but a prediction must be a "
                    "function of its row; draw only where self.training is true"
                )
            single = torch.cat([module(rows[key : key + 1].clone()) for key in keys[:FEW_ROWS]])
        require_same(part, whole, keys)
        require_same(part[:FEW_ROWS], single)


def _move_parameters(module: Any, step: float, seed: int) -> None:
    torch = load_torch()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=source, dtype=p.dtype).to(p.device), alpha=step)


def _require_finite(values: Iterable[Any]) -> None:
    if not all(bool(load_torch().isfinite(value).all()) for value in values):
        raise ArithmeticError("the gradient of a record is not finite")


def _check_outputs(outputs: Any, n_outputs: int | None) -> int:
    torch = load_torch()
    if not isinstance(outputs, torch.Tensor) or outputs.ndim == 0 or len(outputs) != FEW_ROWS:
        raise ValueError("module must return one tensor with one row per record")
    if n_outputs is None:
        return int(outputs[0].numel())
    if outputs.ndim != 2 or outputs.shape[1] != n_outputs:
        found = tuple(outputs.shape[1:])
        raise ValueError(
            f"module must have one output for each of the {n_outputs} classes, outputs of shape "
            f"(records, {n_outputs}); its outputs have the shape (records, {', '.join(map(str, found))})"
        )
    return n_outputs
