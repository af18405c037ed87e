"""Run a torch module on synthetic rows before any record or budget is used.

The module must run, in its own precision too. It must change nothing in itself, in training and in evaluation mode. The
gradients that training will use, layer by layer or from Opacus, must be those that plain autograd finds for each record
alone, in batches of every size that training uses. So must the outputs in evaluation mode. Draws of the module's own
belong to the record (``draws_by_row``). All this is tried on several kinds of rows: any numbers, tokens, and rows that
end or start with zeros.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpscp._base.object_state import changed_paths, require_readable, state_digest
from dpscp.training.torch.comparison import (
    MIXES,
    Differences,
    MixingError,
    gradients_of,
    parts,
    require_own_sums,
    require_same,
    spread,
)
from dpscp.training.torch.layer_terms import GradientPlan, LayerTerms, OpacusTerms, make_terms
from dpscp.training.torch.modules import (
    explain_failure,
    is_out_of_memory,
    load_torch,
    refuse_changes,
    require_gradients,
    rows_dtype,
    state_of,
)
from dpscp.training.torch.random_state import draws_by_row, refuse_other_generators
from dpscp.training.torch.synthetic_rows import FEW_ROWS, SyntheticRecords, rows_at_once
from dpscp.training.torch.terms import Term
from dpscp.training.torch.trial_rows import (
    FailureError,
    Losses,
    Rows,
    Targets,
    TrialRows,
    move_parameters,
    require_finite,
    separate_failures,
)

# Sizes of batches that are compared. Primes: a dimension of the module is rarely as long by accident.
_SIZES = (67, 23, 11)
# The same where the gradients of the first batch, or what the layers return for it, would be more than so many numbers.
_FEWER_SIZES, _MOST_HELD = ((13, 11, 7), (7, 5, 3)), 2**23
_SEEDS = (1, 2, 3)
# Far from the start a layer that limits its own parameters does so.
_FAR = 30.0

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
        trial.find_scales(trial.sizes[0])
        trial.check_state()
        trial.check_draws()
        plan = trial.choose_plan(most_rows)
        trial.check_outputs()
        return Tried(trial.n_outputs, plan, trial.synthetic_records())


class _Trial(TrialRows):
    """The checks of a module on synthetic rows and targets that it accepts."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of batches that are compared."""
        trained = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
        numbers = max(trained, self.count_numbers())
        choices = (_SIZES, *_FEWER_SIZES)
        return next((sizes for sizes in choices if sizes[0] * numbers <= _MOST_HELD), choices[-1])

    # ---- state

    def check_state(self) -> None:
        """Refuse a module that changes anything in itself.

        The first look comes before the first call.
        """
        batches = [self._batch(self.own, FEW_ROWS), self._batch(self.own, self.sizes[0], 1)]
        batches += [self.mixed_batch(found) for found in self.mixed if found.dtype == rows_dtype(self.module)]
        batches += [self._batch(Rows(found.kind), FEW_ROWS) for found in self.others]
        for training in (True, False):
            for step in (0.0, _FAR):
                module = self._copy(self.own).train(training)
                if step:
                    move_parameters(module, step, seed=0)
                before, loss_before = state_of(module, trained=True), state_digest(self.losses)
                require_readable("the module", before)
                require_readable("the loss", loss_before)
                for number, (rows, goals) in enumerate(batches):
                    # far from its start it may fail, which training would show
                    with suppress(Exception):
                        values = self.losses(module(rows.clone()), goals)
                        if training:
                            trained = [p for p in module.parameters() if p.requires_grad]
                            load_torch().autograd.grad(values.sum(), trained, allow_unused=True)
                        del values
                    # also after two batches of different sizes: the last may have the size of one before all
                    if number < 2 or number == len(batches) - 1:
                        refuse_changes(changed_paths(before, state_of(module, trained=True)))
                        refuse_changes(changed_paths(loss_before, state_digest(self.losses)))

    # ---- draws

    def check_draws(self) -> None:
        """Refuse draws that records share, and states of generators that are known or changed."""
        torch, sizes = load_torch(), {self.own: self.sizes[:2]} | dict.fromkeys(self.others, self.sizes[1:2])
        for found, size in [(found, size) for found, some in sizes.items() for size in some]:
            module, (rows, target) = self._copy(found).train(), self._batch(found, size)
            own_draws = draws_by_row(range(size))
            with suppress(FailureError), separate_failures(), refuse_other_generators(), torch.no_grad(), own_draws:
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
        except FailureError as error:
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
            with suppress(FailureError):  # rows that the module was not made for
                self._check_rows(plan, found, self.sizes[1:], _SEEDS[0])
        self._check_scales(plan)
        # mixing far apart in a batch shows here, whatever the size was above
        self._check_rows(plan, self.own, (most_rows, self.sizes[-1]), _SEEDS[0], in_full=True)

    def _check_scales(self, plan: GradientPlan) -> None:
        """Refuse the module if rows of other scales change the gradient of a row, or make it fail."""
        for found in self.mixed:
            plain, batch = self.moved_copy(found), self.mixed_batch(found)
            try:
                with separate_failures():
                    if found.dtype == self.precise.dtype:
                        self._compare_scales(plan, plain, batch)
                    else:  # what is too large or too small for the module's own type shows in the losses
                        keys = range(len(batch[0]))
                        alone = load_torch().cat([self.losses_of(plain, batch, [key]) for key in keys])
                        require_same(self.losses_of(plain, batch, keys), alone, by_row=True)
            except FailureError:
                raise MixingError(MIXES) from None

    def _compare_scales(self, plan: GradientPlan, plain: Any, batch: tuple[Any, Any]) -> None:
        """Compare gradients in a batch of different scales with those of plain autograd for each record alone."""
        computed, alone = make_terms(plan, copy.deepcopy(plain)), dict[int, list[Any]]()
        for key in range(len(batch[0])):
            with suppress(ArithmeticError):  # finite outputs may have infinite gradients
                alone[key] = self._alone(plain, *batch, key, draws=self.draws)
        keys, trained = list(alone), computed.trained
        rows, target = (values[keys] for values in batch)
        terms = self._terms(plan, computed, (rows, target), keys if self.draws else None)
        differences = Differences([p.dtype for p in trained], by_row=True)
        for place, gradients in enumerate(alone.values()):
            differences.add(gradients_of(terms, trained, [place]), [g[None] for g in gradients])
        differences.refuse()

    @separate_failures()
    def _check_rows(
        self, plan: GradientPlan, found: Rows, sizes: tuple[int, ...], seed: int, *, in_full: bool = False
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
        is_precise = self.precise.dtype == load_torch().float32
        differences = Differences([p.dtype for p in trained], is_precise=is_precise)
        whole = self._terms(plan, computed, batch, range(n) if draws else None)
        require_finite(value for term in whole for value in term.tensors())
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

    # ---- outputs

    def check_outputs(self) -> None:
        """Refuse a module that mixes records or draws in evaluation mode.

        Records are scored in evaluation mode.
        """
        module = self._copy(self.own).eval()
        self._compare_outputs(module, self.own, rows_at_once(module, self.input_shape, self.device))
        for found in self.others:
            with suppress(FailureError), separate_failures():  # rows that the module was not made for
                self._compare_outputs(self._copy(found).eval(), found, self.sizes[1])
        for found in self.mixed:
            module, (rows, _) = self.moved_copy(found).eval(), self.mixed_batch(found)
            with load_torch().no_grad():
                single = load_torch().cat([module(row[None].clone()) for row in rows])
                require_same(module(rows.clone()), single, by_row=True)

    def _compare_outputs(self, module: Any, found: Rows, most: int) -> None:
        torch = load_torch()
        rows, _ = self._batch(found, most, _SEEDS[0])
        keys = spread(most, min(most, _SIZES[-1]))
        with torch.no_grad(), refuse_other_generators():
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
