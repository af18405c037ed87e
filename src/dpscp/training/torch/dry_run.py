"""Run a torch module on synthetic rows before any record or budget is used.

The module must run, in its own precision too. It must change nothing in itself, in training and in evaluation mode. The
gradients from Opacus must be those of each record alone, in batches of every size that training uses; so must the
outputs in evaluation mode. Draws of the module's own belong to the record (``draws_by_row``).
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpscp._base.object_state import changed_paths, state_digest
from dpscp.training.torch.layer_terms import GradientPlan, LayerTerms, Term, UnsupportedLayerError
from dpscp.training.torch.modules import (
    ONE_LOSS_EACH,
    gradient_rows,
    is_out_of_memory,
    load_opacus,
    load_torch,
    refuse_changes,
    released_copy,
    rows_dtype,
    state_of,
)
from dpscp.training.torch.random_state import draws_by_row

_FEW_ROWS = 4
# Sizes of batches that are compared. Primes: a dimension of the module is rarely as long by accident.
_SIZES = (67, 23, 11)
# The same where the gradients of the first batch, or what the layers return for it, would be more than so many numbers.
_FEWER_SIZES, _MOST_HELD = ((13, 11, 7), (7, 5, 3)), 2**23
_SEEDS = (1, 2, 3)
# The dry run moves every trained parameter off its start: a gradient that is zero there hides what it is made of.
_STEP = 0.05
# Far from the start a layer that limits its own parameters does so.
_FAR = 30.0
# Rows that go through a module at once without gradients, at most; their numbers; and what the layers return for them,
# on a processor. A GPU needs many rows to be busy.
_MOST_ROWS, _MOST_NUMBERS, _MOST_RETURNED = 4096, 2**18, 2**23
_FEWEST_ROWS = 64
# Numbers that are compared at once.
_COMPARED_NUMBERS = 2**18

Losses = Callable[[Any, Any], Any]
Targets = Callable[[int, Any], Any]
MostRows = Callable[[int], int]


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


def rows_at_once(module: Any, input_shape: tuple[int, ...], device: str) -> int:
    """Return how many rows go through a module at once without gradients.

    From synthetic rows alone: on a processor by the numbers that the layers return, for the first kind of rows that the
    module takes.
    """
    most = min(_MOST_ROWS, _MOST_NUMBERS // math.prod(input_shape))
    if load_torch().device(device).type == "cpu":  # on a GPU rows of the wrong kind end the process
        most = min(most, _MOST_RETURNED // _numbers_per_row(module, input_shape))
    return max(_FEWEST_ROWS, most)


def _numbers_per_row(module: Any, input_shape: tuple[int, ...]) -> int:
    for rows in synthetic_rows(input_shape):
        try:
            return count_numbers(module, rows.to(rows_dtype(module)))
        except Exception:  # rows that the module was not made for; all it can say is about synthetic rows
            continue
    return _MOST_RETURNED


def count_numbers(module: Any, rows: Any) -> int:
    """Return how many numbers the innermost layers of a module return for one of these rows, itself included."""
    torch, found = load_torch(), [math.prod(rows.shape[1:])]

    def listen(_layer: Any, _inputs: Any, output: Any) -> None:
        values = output if isinstance(output, tuple) else (output,)
        found.extend(value.numel() // len(rows) for value in values if isinstance(value, torch.Tensor))

    hooks = [part.register_forward_hook(listen) for part in module.modules() if not list(part.children())]
    try:
        with torch.no_grad():
            module(rows)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


def dry_run(
    module: Any,
    input_shape: tuple[int, ...],
    target: Targets,
    losses: Losses,
    *,
    device: str,
    n_outputs: int | None = None,
    most_rows: MostRows = lambda _: _SIZES[0],
) -> int:
    """Try the module on synthetic rows; return the number of outputs per record.

    ``module`` is a ``private_copy``; ``target(count, dtype)`` gives synthetic targets; ``most_rows`` says how many rows
    training uses at once, from the numbers that the layers return for one record. ValueError for a module that fails,
    has another number of outputs than ``n_outputs``, changes anything in itself, mixes records in whatever way, or
    draws random numbers in evaluation mode.
    """
    torch = load_torch()
    forked = list(range(torch.cuda.device_count())) if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=forked), torch.enable_grad(), warnings.catch_warnings(), full_float32():
        warnings.simplefilter("ignore")  # torch and Opacus warn about their own names
        trial = _Trial(module, input_shape, target, losses, device)
        precise = trial.find_rows(n_outputs)
        trial.check_state()
        trial.check_gradients(precise, trial.sizes, _SEEDS)
        # mixing far apart in a batch shows here, whatever the size was above
        trial.check_gradients(trial.own, (most_rows(trial.count_numbers()), trial.sizes[-1]), _SEEDS[:1])
        trial.check_outputs()
        return trial.n_outputs


@dataclass(frozen=True)
class SyntheticRecords:
    """Synthetic records of a kind that a module takes, with targets."""

    input_shape: tuple[int, ...]
    kind: int
    classification: bool
    draws: bool
    """Whether the module draws random numbers for them."""
    device: str
    dtype: Any

    def one_record(self, size: int, seed: int) -> tuple[Any, Any]:
        """Return a block in which every place has the same record."""
        torch = load_torch()
        row = list(synthetic_rows(self.input_shape, 1, seed))[self.kind]
        rows = row.to(device=self.device, dtype=self.dtype).expand(size, *self.input_shape)
        zeros = torch.zeros(size, dtype=torch.int64 if self.classification else self.dtype)
        target = zeros if self.classification else zeros + 0.5
        return rows.clone(memory_format=torch.contiguous_format), target.to(self.device)


def outputs_are_probabilities(module: Any, synthetic: SyntheticRecords) -> bool:
    """Return whether the outputs for synthetic rows are positive and add up to one."""
    torch = load_torch()
    copied = copy.deepcopy(module).to(synthetic.device).eval()
    with torch.no_grad():
        outputs = torch.cat([copied(synthetic.one_record(2, seed)[0]) for seed in _SEEDS])
    several = outputs.ndim == 2 and outputs.shape[1] > 1
    return several and bool((outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < 1e-4).all())


def choose_gradients(
    module: Any, input_shape: tuple[int, ...], target: Targets, losses: Losses, *, device: str, most_rows: MostRows
) -> tuple[GradientPlan, SyntheticRecords]:
    """Return how the gradients of this module are computed, and synthetic records that it takes.

    Layer by layer where that gives the norms and sums of Opacus' gradients, in batches of ``most_rows`` rows too (see
    `dry_run`).
    """
    torch = load_torch()
    classification = not target(1, torch.float32).is_floating_point()
    dtype = rows_dtype(module)
    on_cuda = torch.device(device).type == "cuda"
    forked = list(range(torch.cuda.device_count())) if on_cuda else []
    with torch.random.fork_rng(devices=forked), torch.enable_grad(), warnings.catch_warnings(), full_float32():
        warnings.simplefilter("ignore")
        trial = _Trial(module, input_shape, target, losses, device)
        try:
            precise = trial.find_rows(None)
        except ValueError:
            return GradientPlan(), SyntheticRecords(input_shape, 0, classification, True, device, dtype)
        rows, _ = trial._batch(trial.own, _FEW_ROWS)
        draws = trial._draws(trial._copy(trial.own).train(), rows)
        synthetic = SyntheticRecords(input_shape, trial.own.kind, classification, draws, device, dtype)
        images = len(input_shape) == 3 and any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
        numbers = trial.count_numbers()
        # on a processor pooling is several times as fast with channels last
        for channels_last in (True, False) if images and not on_cuda else (False,):
            if trial.layers_agree(precise, most_rows(numbers), channels_last=channels_last):
                return GradientPlan(True, channels_last, numbers), synthetic
        return GradientPlan(numbers=numbers), synthetic


@dataclass(frozen=True)
class _Rows:
    """A kind of synthetic rows, and the precision in which the module takes them.

    None: its own.
    """

    kind: int
    dtype: Any = None


class _Trial:
    """A module with synthetic rows and targets that it accepts.

    Every call is made on a copy of its own.
    """

    own: _Rows
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

    def find_rows(self, n_outputs: int | None) -> _Rows:
        """Return the first precision and kind of rows with which the module runs.

        Float64 shows the weakest mixing.
        """
        device, self.device = self.device, "cpu"  # on a GPU an index out of range ends the process
        fitting, failure = self._first_usable(n_outputs)
        self.device = device
        if fitting is None and device != "cpu":  # a module for this device alone
            fitting, failure = self._first_usable(n_outputs)
        if fitting is None:
            # the cause speaks of synthetic rows only
            raise ValueError(
                f"the module or its loss fails on synthetic rows of shape {tuple(self.input_shape)}. No record was "
                "used. The first layer must accept the number of features, and the loss must accept the outputs"
            ) from failure
        self.own = _Rows(fitting.kind)
        failure = self._try_rows(self.own, n_outputs)
        if not self._is_usable:
            raise ValueError(
                f"the module fails on synthetic rows of {rows_dtype(self.module)}, the type that training uses. No "
                "record was used. Give module.float() or module.double(), or convert rows in forward"
            ) from failure
        return fitting

    def _first_usable(self, n_outputs: int | None) -> tuple[_Rows | None, Exception | None]:
        torch = load_torch()
        failure: Exception | None = None
        fitting = None
        for dtype in (torch.float64, torch.float32):
            for kind in range(3):
                found = _Rows(kind, dtype)
                failure = self._try_rows(found, n_outputs) or failure
                fitting = fitting or (found if self._is_usable else None)
            if fitting:
                break
        return fitting, failure

    def _try_rows(self, found: _Rows, n_outputs: int | None) -> Exception | None:
        """Apply the module once.

        Sets ``_is_usable`` and the number of outputs, and returns what went wrong.
        """
        torch = load_torch()
        self._is_usable = False
        module = self._copy(found)
        rows, goals = self._batch(found, _FEW_ROWS)
        try:
            outputs = module(rows)
        except Exception as error:
            return error
        width = _check_outputs(outputs, n_outputs)
        try:
            values = self.losses(outputs, goals)
            finite = bool(torch.isfinite(outputs).all() and torch.isfinite(values).all())
        except Exception as error:
            return error
        if values.shape != (_FEW_ROWS,):
            raise ValueError(ONE_LOSS_EACH)
        self._is_usable, self.n_outputs = finite, width
        return None

    def count_numbers(self) -> int:
        """Return how many numbers the innermost layers return for one record."""
        return count_numbers(self._copy(self.own), self._batch(self.own, _FEW_ROWS)[0])

    def _copy(self, found: _Rows) -> Any:
        copied = copy.deepcopy(self.module).to(self.device)
        return copied if found.dtype is None else copied.to(dtype=found.dtype)

    def _batch(self, found: _Rows, count: int, seed: int = 0) -> tuple[Any, Any]:
        dtype = found.dtype or rows_dtype(self.module)
        rows = next(r for kind, r in enumerate(synthetic_rows(self.input_shape, count, seed)) if kind == found.kind)
        return rows.to(device=self.device, dtype=dtype), self.target(count, dtype).to(self.device)

    # ---- state

    def check_state(self) -> None:
        """Refuse a module that changes anything in itself.

        The first look comes before the first call.
        """
        for training in (True, False):
            for step in (0.0, _FAR):
                module = self._copy(self.own).train(training)
                if step:
                    _move_parameters(module, step, seed=0)
                before, loss_before = state_of(module, trained=True), state_digest(self.losses)
                for count, seed in ((_FEW_ROWS, 0), (_SIZES[0], 1)):
                    rows, goals = self._batch(self.own, count, seed)
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

    # ---- gradients

    def check_gradients(self, found: _Rows, sizes: tuple[int, ...], seeds: tuple[int, ...]) -> None:
        """Refuse the module if Opacus returns anything but a record's gradient."""
        wrapper, _ = load_opacus()
        for seed in seeds:
            plain = self._copy(found)
            self._move(plain, found, seed)
            wrapped = wrapper(copy.deepcopy(plain), loss_reduction="sum")
            for alike in (False, True) if seed == _SEEDS[0] else (False,):
                rows, target = self._batch(found, max(sizes), seed)
                if alike:  # equal rows go the same way through layers that choose a way, and fill it
                    rows, target = rows[:1].expand_as(rows).clone(), target[:1].expand_as(target).clone()
                self._compare(plain, wrapped, rows, target, sizes)

    def _compare(self, plain: Any, wrapped: Any, rows: Any, target: Any, sizes: tuple[int, ...]) -> None:
        """Compare each record's gradient between batches and with plain autograd."""
        n = len(rows)
        whole = self._samples(wrapped, rows, target, range(n))
        for size in sizes[1:]:
            # the last rows, in another order and between others: what runs out in a batch runs out for them
            keys = [n - 1 - (7 * i) % n for i in range(min(size, n))]
            _require_same(self._samples(wrapped, rows[keys], target[keys], keys), whole, keys)
        keys = list(range(0, n, max(1, n // _FEW_ROWS)))[:_FEW_ROWS]
        alone = [w.new_empty(len(keys), *w.shape[1:]) for w in whole]
        for place, key in enumerate(keys):
            for rows_alone, gradient in zip(alone, self._alone(plain, rows, target, key), strict=True):
                rows_alone[place] = gradient
        _require_same(alone, whole, keys)

    def _samples(self, wrapped: Any, rows: Any, target: Any, keys: Any) -> list[Any]:
        torch = load_torch()
        failure = None
        try:
            with draws_by_row(list(keys)):
                found = gradient_rows(wrapped, self.losses, rows, target)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            failure = error
        if failure is not None:
            raise ValueError(
                "the module or its loss fails on a larger batch of synthetic rows. No record was used"
            ) from failure
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        return [
            torch.zeros_like(p).expand(len(rows), *p.shape) if sample is None else sample
            for p, sample in zip(trained, found, strict=True)
        ]

    def _alone(self, plain: Any, rows: Any, target: Any, key: int) -> list[Any]:
        """Return the gradient of a record alone, by plain autograd.

        Beside a few other rows where the module draws.

        With one row, a draw that all rows share looks like a row's own draw.
        """
        torch = load_torch()
        others = _SIZES[-1] - 1 if self._draws(plain, rows) else 0
        keys = [key, *((key + 1 + i) % len(rows) for i in range(others))]
        with draws_by_row(keys):
            loss = self.losses(plain(rows[keys]), target[keys])[0]
            trained = [p for p in plain.parameters() if p.requires_grad]
            found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]

    def _draws(self, module: Any, rows: Any) -> bool:
        mode = draws_by_row(range(len(rows)))
        with mode, load_torch().no_grad():
            module(rows)
        return bool(mode.calls)

    def _move(self, module: Any, found: _Rows, seed: int) -> None:
        torch = load_torch()
        start = copy.deepcopy(module)
        _move_parameters(module, _STEP, seed)
        with torch.no_grad():
            if not torch.isfinite(copy.deepcopy(module)(self._batch(found, _FEW_ROWS, seed)[0])).all():
                released_copy(module, start).train()

    # ---- gradients layer by layer

    def layers_agree(self, precise: _Rows, most_rows: int, *, channels_last: bool) -> bool:
        """Return whether the layers' terms are those of the gradients from Opacus."""
        try:
            for found in (precise, self.own):
                self._compare_terms(found, channels_last)
            self._compare_sizes(most_rows, channels_last)
        except (UnsupportedLayerError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            return False
        return True

    def _compare_terms(self, found: _Rows, channels_last: bool) -> None:
        """Compare norms and weighted sums with those of single gradients."""
        torch, n, (wrapper, _) = load_torch(), self.sizes[-1], load_opacus()
        plain = self._copy(found)
        self._move(plain, found, _SEEDS[0])
        rows, target = self._batch(found, n, _SEEDS[0])
        layers = LayerTerms(_laid_out(copy.deepcopy(plain), channels_last))
        samples = self._samples(wrapper(plain, loss_reduction="sum"), rows, target, range(n))
        terms = self._terms(layers, rows, target, range(n), channels_last)
        with torch.no_grad():
            norms = sum((term.squared_norms() for term in terms), torch.zeros(n, device=self.device).double())
            lengths = (torch.linalg.vector_norm(s.flatten(1), dim=1, dtype=torch.float64) for s in samples)
            expected = sum(length.square() for length in lengths)
            _require_same([norms.to(rows.dtype)], [expected.to(rows.dtype)])
            for shift in (1, 2, 3):  # unequal weights, in three orders
                weights = (1 + torch.arange(n, device=self.device).double() * shift % n) / n
                totals = {id(p): torch.zeros(p.shape, dtype=torch.float64, device=self.device) for p in layers.trained}
                for term in terms:
                    totals[id(term.parameter)] += term.weighted_sum(weights, None)
                wanted = [torch.einsum("i,i...->...", weights, sample.double()) for sample in samples]
                _require_same([t.to(rows.dtype) for t in totals.values()], [w.to(rows.dtype) for w in wanted])

    def _compare_sizes(self, most_rows: int, channels_last: bool) -> None:
        """Compare what a record contributes in a batch of ``most_rows`` and in a small one."""
        plain = self._copy(self.own)
        self._move(plain, self.own, _SEEDS[0])
        layers = LayerTerms(_laid_out(plain, channels_last))
        rows, target = self._batch(self.own, most_rows, _SEEDS[0])
        keys = [most_rows - 1 - (7 * i) % most_rows for i in range(min(_SIZES[-1], most_rows))]
        whole = self._terms(layers, rows, target, range(most_rows), channels_last)
        part = self._terms(layers, rows[keys], target[keys], keys, channels_last)
        for one, other in zip(whole, part, strict=True):
            _require_same(list(other.tensors()), list(one.tensors()), keys)

    def _terms(self, layers: LayerTerms, rows: Any, target: Any, keys: Any, channels_last: bool) -> list[Term]:
        with draws_by_row(list(keys)):
            return layers(self.losses, _laid_out(rows, channels_last), target)

    # ---- outputs

    def check_outputs(self) -> None:
        """Refuse a module that mixes records or draws in evaluation mode.

        Records are scored in evaluation mode.
        """
        torch = load_torch()
        module = self._copy(self.own).eval()
        most = rows_at_once(module, self.input_shape, self.device)
        rows, _ = self._batch(self.own, most, _SEEDS[0])
        keys = [most - 1 - (7 * i) % most for i in range(_SIZES[-1])]
        with torch.no_grad():
            whole, part = module(rows), module(rows[keys])
            if self._draws(module, rows[keys]):
                raise ValueError(
                    "the module draws random numbers in evaluation mode on synthetic rows, but a prediction must be a "
                    "function of its row; draw only where self.training is true"
                )
            single = torch.cat([module(rows[key : key + 1]) for key in keys[:_FEW_ROWS]])
        _require_same([part], [whole], keys)
        _require_same([part[:_FEW_ROWS]], [single])


def _laid_out(values: Any, channels_last: bool) -> Any:
    """Return a module or rows in the layout of the plan."""
    return values.to(memory_format=load_torch().channels_last) if channels_last else values


def _move_parameters(module: Any, step: float, seed: int) -> None:
    torch = load_torch()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=source, dtype=p.dtype).to(p.device), alpha=step)


def _check_outputs(outputs: Any, n_outputs: int | None) -> int:
    torch = load_torch()
    if not isinstance(outputs, torch.Tensor) or outputs.ndim == 0 or len(outputs) != _FEW_ROWS:
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


def synthetic_rows(input_shape: tuple[int, ...], count: int = _FEW_ROWS, seed: int = 0) -> Iterator[Any]:
    """Yield synthetic rows: any numbers, numbers in (0, 1), and token ids.

    The same ones wherever they are made.
    """
    torch = load_torch()
    shape = (count, *input_shape)
    # SplitMix64 of 1, 2, ...: torch's generators may change from version to version
    first = 1 + seed * 2**40
    bits = np.arange(first, first + math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    unit = (((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53).reshape(shape)
    yield torch.from_numpy((unit - 0.5) * math.sqrt(12))
    yield torch.from_numpy(unit)
    tokens = (unit > 0.5).astype(np.float64)
    tokens.reshape(count, -1)[:, 0] = np.arange(count) % 2  # at least two rows differ
    yield torch.from_numpy(tokens)


def _require_same(samples: list[Any], expected: list[Any], keys: list[int] | None = None) -> None:
    """Refuse unless every gradient, or output, is the expected one, up to rounding.

    ``keys``: the rows of ``expected`` that the samples are. Some rows are compared at a time, since the gradients of
    all of them may be most of the memory.
    """
    torch = load_torch()
    lengths = [max((float(e.abs().max()) for e in _some_rows(wanted, keys)), default=0.0) for wanted in expected]
    for sample, wanted, length in zip(samples, expected, lengths, strict=True):
        # the second term: a gradient that is zero but for rounding has no relative precision
        relative, absolute = (1e-7, 1e-11) if wanted.dtype == torch.float64 else (1e-3, 1e-5)
        allowed = relative * length + absolute * max(lengths)
        pairs = zip(_some_rows(sample), _some_rows(wanted, keys), strict=True)
        if not all(bool(((one - other).abs() <= allowed).all()) for one, other in pairs):
            raise ValueError(
                "on synthetic rows the gradient of a record depends on the other records, or is not the gradient of "
                "its own loss. A layer or the loss mixes records (attention or means over the first dimension, "
                "batch_first=False, division by the batch size) or uses parameters of another layer. Compute the "
                "loss of each record from that record alone"
            )


def _some_rows(values: Any, keys: list[int] | None = None) -> Iterator[Any]:
    """Yield the rows (None: all) a few at a time; nothing of values without a number."""
    values = load_torch().atleast_1d(values)
    if not values.numel():
        return
    step = max(1, _COMPARED_NUMBERS // values[0].numel())
    for start in range(0, len(values) if keys is None else len(keys), step):
        yield values[start : start + step] if keys is None else values[keys[start : start + step]]
