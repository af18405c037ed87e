"""Sum the clipped gradients of a batch of records with a torch module.

A batch goes through the module in padded blocks, of sizes in which synthetic records get the same bits in every place
(`AlikeBlocks`). So a record's gradient and its clipping factor are functions of that record, and float64 sums of them
have a proven rounding (docs/floating_point.md). Where a module rounds a record by its place in every size, clipped
gradients become integers (`add_clipped`), whose sum is exact.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.object_state import state_digest
from dpscp.data.sources import Block
from dpscp.privacy.random_streams import BlockStreams
from dpscp.training.engine.batching import PerThread
from dpscp.training.engine.gradients import SMALLEST_CLIP_NORM
from dpscp.training.engine.padding import LANES, AlikeBlocks, one_blas_thread, whole_lanes
from dpscp.training.torch.device import Upload, record_graph
from dpscp.training.torch.layer_terms import GradientPlan, OpacusTerms, make_terms
from dpscp.training.torch.modules import (
    check_unchanged,
    hide_messages,
    load_torch,
    private_copy,
    refuse_changes,
    state_of,
    translate_memory_errors,
)
from dpscp.training.torch.random_state import draws_by_row, secret_draws
from dpscp.training.torch.synthetic_rows import SyntheticRecords
from dpscp.training.torch.terms import MOST_BLOCKS, ClipRule, Term, flat_rows, single_gradients

# Clipped gradients are integers in units of clip_norm / _UNITS; sums of MOST_RECORDS of them fit in 64 bits.
_UNITS = 2**32
MOST_RECORDS = 2**30
_SYNTHETIC_SEEDS = (11, 12)
_SMALLEST_BLOCK = LANES
# Numbers of single gradients that become integers at once.
_MOST_HELD = 2**22
# Sizes of blocks, about.
_SIZES = 32

Losses = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class TorchRun:
    """The public constants of a run, and the module at its current parameters."""

    module: Any
    losses: Losses
    clip_norm: float
    device: str
    steps: int
    at_once: int
    batch: float
    """The public expected number of records, or persons, of a batch."""
    most_records: float
    plan: GradientPlan
    synthetic: SyntheticRecords
    memory_error: str
    name: bytes
    """The name of the run, for what is kept between its steps."""


@dataclass(frozen=True)
class BatchSum:
    """The sums of the clipped gradients of one block's batch, in clip norms.

    There is one array for each parameter, and the number of records.

    A function of the block and of these constants alone. ``shares`` says which persons of each block are in the batch.
    Layers that draw for themselves draw from ``layers``, the same when a block is read again.

    Theory: section 1.6
    """

    run: TorchRun
    layers: BlockStreams
    step: int = 0
    shares: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def for_block(self, number: int) -> "BatchSum":
        """Return the same with the share of one block alone."""
        return replace(self, shares={number: self.shares[number]})

    def __call__(self, block: Block) -> "TensorSums":
        """Return the sums where they were computed, and the number of records."""
        return translate_memory_errors(lambda: self._summed(block), self.run.memory_error)

    def _summed(self, block: Block) -> "TensorSums":
        run, last = self.run, self.step == self.run.steps - 1
        batch = block.owners.rows_of(self.shares[block.id])
        layers = self.layers.generator(block.id, self.step)
        with _ENGINES.of(run.name, partial(Engine, run), last=last) as engine, engine.draws(layers.bytes):
            engine.start_from(run.module)
            totals = engine.sum(block, batch)
            engine.check(run.module, last=last)
        return TensorSums(totals, len(batch))


@dataclass(frozen=True)
class TensorSums:
    """Hold sums, one tensor per parameter, and the number of records.

    They stay on their device until they are pickled.
    """

    sums: Sequence[Any]
    size: int

    def __add__(self, other: "TensorSums") -> "TensorSums":
        added = [a + b.to(a.device) for a, b in zip(self.sums, other.sums, strict=True)]
        return TensorSums(added, self.size + other.size)

    def __reduce__(self) -> Any:
        return _arrived, ([total.cpu().numpy() for total in self.sums], self.size)


def _arrived(sums: Sequence[NDArray[Any]], size: int) -> TensorSums:
    return TensorSums([load_torch().from_numpy(np.array(total)) for total in sums], size)


class Engine:
    """A copy of the module that records go through, and digests of what must not change in it."""

    def __init__(self, run: TorchRun) -> None:
        self.run, self.device = run, load_torch().device(run.device)
        self.inner = self._copy_of(run.module)
        self.terms = make_terms(run.plan, self.inner)
        self.trained = self.terms.trained
        self._started: list[int] = []
        self._on_gpu: _GpuBlocks | None = None
        with load_torch().no_grad(), _deterministic():
            self.blocks: AlikeBlocks | None = self._alike_blocks()
        self.start = self._state()
        self._versions = self._found_versions()

    def _copy_of(self, module: Any) -> Any:
        return private_copy(module).to(self.device)

    # ---- state

    def start_from(self, module: Any) -> None:
        """Copy the parameters of this module and switch to training mode."""
        torch = load_torch()
        with torch.no_grad():
            torch._foreach_copy_(self.trained, [p for p in module.parameters() if p.requires_grad])
        self._started = [p._version for p in self.trained]
        self.inner.train()

    def check(self, module: Any, *, last: bool) -> None:
        """Refuse a module or a loss that changed its own state.

        All of it after the last step and where torch saw a change.

        The trained parameters must be those of ``module`` in every step; on a GPU, which would have to wait for the
        comparison, after the last one and where torch saw a change. The bits of a frozen backbone are too many to look
        at in every step.
        """
        seen = [p._version for p in self.trained] != self._started or self._found_versions() != self._versions
        if last or seen or self.device.type == "cpu":
            equal, kept = load_torch().equal, dict(module.named_parameters())
            moved = [name for name, p in self.inner.named_parameters() if p.requires_grad and not equal(p, kept[name])]
            refuse_changes(tuple(moved))
        if last or seen:
            check_unchanged(self.start, self._state())

    def _state(self) -> dict[str, str]:
        """Return digests of the module and of the loss."""
        module = state_of(self.inner, has_opacus_hooks=isinstance(self.terms, OpacusTerms))
        return module | {f".<loss>{path}": digest for path, digest in state_digest(self.run.losses).items()}

    def _found_versions(self) -> list[tuple[int, int]]:
        kept = [*self.inner.buffers(), *(p for p in self.inner.parameters() if not p.requires_grad)]
        return [(id(value), value._version) for value in kept]

    def draws(self, random_bytes: Callable[[int], bytes]) -> AbstractContextManager[None]:
        """Return a context with secret states of torch's generators; a recorded pass uses none."""
        is_recorded = self._on_gpu is not None and self._on_gpu.is_recorded
        return nullcontext() if is_recorded else secret_draws(random_bytes)

    # ---- sums

    def sum(self, block: Block, batch: NDArray[np.int64]) -> list[Any]:
        """Return the sums over these records of the block, float64, in clip norms."""
        torch = load_torch()
        weights = None if block.weights is None else torch.tensor(block.weights, device="cpu")
        if self.blocks is None:
            return self._sum_exactly(block, batch, weights)
        chunk = self.blocks.chunk
        if len(batch) > chunk * MOST_BLOCKS:
            raise ValueError(
                f"a batch has more than {MOST_BLOCKS} blocks of physical_batch records, the most for which the "
                "rounding of a sum is bounded; lower sampling_rate, or give a larger physical_batch"
            )
        parts = [batch[begin : begin + chunk] for begin in range(0, len(batch), chunk)]
        with torch.no_grad(), _deterministic():
            if self.device.type == "cpu":
                # where torch has one thread, NumPy's products have one too
                with one_blas_thread() if torch.get_num_threads() == 1 else nullcontext():
                    return self._sum_parts(self.blocks, block, parts, weights)
            if self._on_gpu is None:
                self._on_gpu = _GpuBlocks(self, chunk)
            return self._on_gpu.sum(block, parts, weights)

    def _sum_parts(self, blocks: AlikeBlocks, block: Block, parts: Sequence[Any], weights: Any) -> list[Any]:
        totals: list[Any] = [None] * len(self.trained)
        for part in parts:
            # few sizes: each one is checked before it is used
            size = blocks.size(min(blocks.chunk, self._grain * math.ceil(len(part) / self._grain)))
            rows, target = self._gather(block, np.concatenate([part, np.repeat(part[:1], size - len(part))]))
            terms = self.terms_of(rows, target)
            if not terms:
                continue
            factors, finite = self.rule.factors(terms, None)
            factors, finite = factors[: len(part)], finite[: len(part)]
            if weights is not None:
                factors = factors * weights[part].to(factors.device)
            self.add(terms, totals, factors, None if bool(finite.all()) else finite)
        float64 = load_torch().float64
        return [
            load_torch().zeros(p.shape, dtype=float64, device=p.device) if total is None else total
            for p, total in zip(self.trained, totals, strict=True)
        ]

    def add(self, terms: Sequence[Term], totals: list[Any], factors: Any, counted: Any) -> None:
        """Add the first records' terms times their factors; the other records are padding.

        The first sum takes the place of a total that is None.
        """
        place = {id(parameter): number for number, parameter in enumerate(self.trained)}
        for term in terms:
            number, more = place[id(term.parameter)], term.weighted_sum(factors, counted)
            totals[number] = more if totals[number] is None else totals[number].add_(more)

    def terms_of(self, rows: Any, target: Any) -> list[Term]:
        """Return the terms of records; errors tell nothing of them."""
        return hide_messages(lambda: self.terms(self.run.losses, rows, target))

    def _sum_exactly(self, block: Block, batch: NDArray[np.int64], weights: Any) -> list[Any]:
        torch, at_once = load_torch(), self.run.at_once
        sums = [torch.zeros(p.shape, dtype=torch.int64, device=p.device) for p in self.trained]
        held = max(1, _MOST_HELD // sum(p.numel() for p in self.trained))
        for begin in range(0, len(batch), at_once):
            part = batch[begin : begin + at_once]
            terms = self.terms_of(*self._gather(block, part))
            for start in range(0, len(part), held):
                here = slice(start, start + held if start + held < len(part) else None)
                once = None if weights is None else weights[part[here]].to(self.device)
                add_clipped(single_gradients(terms, self.trained, here), self.run.clip_norm, sums, once)
        return [total.double() / _UNITS for total in sums]

    def _gather(self, block: Block, index: NDArray[np.int64]) -> tuple[Any, Any]:
        # taken by NumPy: the blocks of a scratch file cannot be written to, and torch warns of such arrays
        rows, target = (
            load_torch().from_numpy(np.take(values, index, axis=0)).to(self.device)
            for values in (block.rows, block.targets)
        )
        return self._laid_out(rows.to(self.run.synthetic.dtype)), target

    def _laid_out(self, rows: Any) -> Any:
        return rows.contiguous(memory_format=load_torch().channels_last) if self.run.plan.channels_last else rows

    # ---- blocks in which a record has the same bits in every place

    def _alike_blocks(self) -> AlikeBlocks | None:
        """Return blocks of the largest size that works; None: sums are exact instead."""
        run, size = self.run, self.run.at_once
        while size >= _SMALLEST_BLOCK and run.clip_norm >= SMALLEST_CLIP_NORM:
            self.rule = ClipRule(run.clip_norm, run.most_records, whole_lanes(size))
            terms = self._synthetic_terms(1, _SYNTHETIC_SEEDS[0])
            if terms and self.rule.cancellation(terms) < 1:
                break
            blocks = AlikeBlocks(size, self._synthetic_results)
            if blocks.chunk > 1:
                self._grain = whole_lanes(blocks.chunk / _SIZES)
                return blocks
            size //= 2
        return None

    def _synthetic_results(self, size: int) -> Iterable[NDArray[Any]]:
        """Yield what a synthetic record gets in every place of a block, (numbers, places)."""
        for seed in _SYNTHETIC_SEEDS:
            terms = self._synthetic_terms(size, seed)
            factors = [self.rule.factors(terms, None)[0]] if terms else []
            for values in (*factors, *(v for term in terms for v in term.tensors())):
                yield values.reshape(size, -1).cpu().numpy().T

    def _synthetic_terms(self, size: int, seed: int) -> list[Term]:
        torch = load_torch()
        devices = [self.device] if self.device.type == "cuda" else []
        rows, target = self.run.synthetic.one_record(size, seed)
        with torch.random.fork_rng(devices=devices), draws_by_row([0] * size):
            return self.terms_of(self._laid_out(rows), target)


class _GpuBlocks:
    """Sums on a GPU: blocks of one size, padded, and recorded once where the module allows it.

    Starting the kernels of a small module takes longer than running them. A module that draws, or whose forward pass
    waits for the device, is not recorded.
    """

    def __init__(self, engine: Engine, size: int) -> None:
        torch, run = load_torch(), engine.run
        self._engine, self._size = engine, size
        self._rows, self._target = run.synthetic.one_record(size, _SYNTHETIC_SEEDS[0])
        self._once = torch.zeros(size, dtype=torch.float64, device=engine.device)
        self._taken = torch.zeros(size, dtype=torch.int64, device=engine.device)
        self._weights, self._places = Upload(self._once), Upload(self._taken)
        self._flat = torch.zeros(sum(p.numel() for p in engine.trained), dtype=torch.float64, device=engine.device)
        self._totals = self._shaped(self._flat)
        self._resident: dict[int, tuple[Any, Any, bool]] = {}
        self.is_recorded = False
        self._work = self._add_block if run.synthetic.draws else self._recorded()

    def _recorded(self) -> Callable[[], object]:
        try:
            work = record_graph(self._add_block, self._engine.device)
        except Exception:  # a pass that cannot be recorded; its words speak of synthetic records
            load_torch().cuda.synchronize(self._engine.device)
            return self._add_block
        self.is_recorded = work != self._add_block
        return work

    def _add_block(self) -> None:
        engine = self._engine
        terms = engine.terms_of(self._rows, self._target)
        if terms:
            factors, finite = engine.rule.factors(terms, self._once)
            engine.add(terms, self._totals, factors, finite)

    def sum(self, block: Block, parts: Sequence[NDArray[np.int64]], weights: Any) -> list[Any]:
        """Return the sums over these parts of a batch."""
        self._flat.zero_()
        values = self._values(block)
        for part in parts:
            self._weights.next[: len(part)] = 1.0 if weights is None else weights.numpy()[part]
            self._weights.next[len(part) :] = 0.0
            self._weights.send()
            self._gather(values, part)
            self._work()
        return self._shaped(self._flat.clone())

    def _gather(self, values: tuple[Any, Any, bool], part: NDArray[np.int64]) -> None:
        """Make these records the next block; padding repeats the first one."""
        torch, (*columns, is_resident) = load_torch(), values
        if is_resident:
            self._places.next[: len(part)], self._places.next[len(part) :] = part, part[0]
            self._places.send()
            for there, into in zip(columns, (self._rows, self._target), strict=True):
                torch.index_select(there, 0, self._taken, out=into)
            return
        places = torch.from_numpy(np.concatenate([part, np.repeat(part[:1], self._size - len(part))]))
        for here, into in zip(columns, (self._rows, self._target), strict=True):
            into.copy_(here.index_select(0, places))

    def _shaped(self, flat: Any) -> list[Any]:
        trained = self._engine.trained
        parts = flat.split([p.numel() for p in trained])
        return [part.view(p.shape) for part, p in zip(parts, trained, strict=True)]

    def _values(self, block: Block) -> tuple[Any, Any, bool]:
        """Return the records, and whether they are on the device.

        They are if they take at most a quarter of its free memory.
        """
        if block.id not in self._resident:
            device, from_numpy = self._engine.device, load_torch().from_numpy
            values = (v if v.flags.writeable else np.array(v) for v in (block.rows, block.targets))
            rows, target = map(from_numpy, values)
            rows = rows.to(self._rows.dtype)
            if 4 * block.rows.nbytes > _free_memory(device):
                return rows, target, False  # not kept: a file may have more blocks than memory
            self._resident[block.id] = rows.to(device), target.to(device), True
        return self._resident[block.id]


def _free_memory(device: Any) -> float:
    return float(load_torch().cuda.mem_get_info(device)[0]) if device.type == "cuda" else math.inf


@contextmanager
def _deterministic() -> Iterator[None]:
    """Let convolutions on a GPU add in the same order every time."""
    library = load_torch().backends.cudnn
    before, library.deterministic = library.deterministic, True
    try:
        yield
    finally:
        library.deterministic = before


def add_clipped(samples: Sequence[Any], clip_norm: float, sums: Sequence[Any], weights: Any = None) -> None:
    """Add clipped per-record gradients to integer ``sums``.

    Gradients are clipped to ``clip_norm``; the unit is clip_norm / 2**32.

    Each record adds a vector of Euclidean norm at most clip_norm times its weight (None: one), and a person, whose
    weights add up to one, a vector of norm at most clip_norm, exactly: squares of float32 numbers cannot under- or
    overflow in float64, the limit lies below clip_norm by more than the rounding of norm and product, and the integer
    part is never longer. A record whose gradient is not finite adds nothing. ``samples``: one (records, ...) tensor a
    parameter; None for a parameter without a gradient.

    Theory: section 1.6
    """
    torch = load_torch()
    with torch.no_grad():
        used = [(flat_rows(s).float().double(), total) for s, total in zip(samples, sums, strict=True) if s is not None]
        if not used:
            return
        length = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(r, dim=1) for r, _ in used]), dim=0)
        # d squares are added with a relative error below d * 2**-53, in whatever order
        slack = (sum(rows.shape[1] for rows, _ in used) + 64) * 2.0**-52
        # no float32 vector but zero is shorter than 1e-60, whatever the clip norm
        factors = _UNITS * (1 - slack) / length.clamp(min=max(clip_norm, 1e-60))
        if weights is not None:
            factors = factors * weights
        finite = torch.isfinite(length)
        all_finite = bool(finite.all())
        if not all_finite:
            factors = torch.where(finite, factors, 0.0)
        for rows, total in used:
            if not all_finite:
                torch.nan_to_num_(rows, 0.0, 0.0, 0.0)
            # the cast to integers cuts towards zero
            total += rows.mul_(factors[:, None]).to(torch.int64).sum(0).view_as(total)


_ENGINES: PerThread[Engine] = PerThread()
