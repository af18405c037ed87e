"""Run the checked graph on blocks of records, and sum their clipped gradients.

The graph of one record is mapped over a block by ``vmap`` and traced again. Blocks have one size. Places without a
record hold a synthetic one, which counts as zero. Only this graph gets records: no code of the caller runs on them.

Theory: Torch modules: records cannot meet
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscp.data.sources import Block
from dpscp.privacy.random_streams import BlockStreams
from dpscp.torch.checks import RefusedError, bound_places, settle_memory
from dpscp.torch.draws import draw_numbers, synthetic_numbers
from dpscp.torch.forms import RecordForm
from dpscp.torch.gpu import capture, is_gpu, to_gpu
from dpscp.torch.layers import make_terms
from dpscp.torch.library import Tensor, make_fx, torch
from dpscp.torch.terms import MOST_BLOCKS, ClipRule, Term, linear
from dpscp.torch.trace import GradientGraph, ScoreGraph, shorten, synthetic_record
from dpscp.training.engine.threads import PerThread, one_blas_thread

Result = TypeVar("Result")
MOST_RECORDS = 2**30
_SEED = 13
# Bytes of a table that is kept on a GPU.
_MOST_KEPT = 2**32


class BlockGraph:
    """The graph of one record, mapped over a block of one size."""

    def __init__(self, graph: torch.fx.GraphModule, fixed: Sequence[Tensor], records: Sequence[Tensor]) -> None:
        """Map the graph; ``records``: a block of synthetic ones, with their draws."""
        self.device = fixed[0].device
        graph, records = _on_device(graph, self.device), [value.to(self.device) for value in records]
        places = (*[None] * len(fixed), *[0] * len(records))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of operations that it maps one record at a time
            mapped = torch.func.vmap(graph, in_dims=places)
            trace = make_fx(lambda *values: mapped(*values), tracing_mode="fake", _allow_non_fake_inputs=True)
            try:
                self._graph = trace(*fixed, *records)
            except Exception as error:  # on synthetic records
                raise RefusedError(f"torch cannot map the module over records: {shorten(error)}") from None
        if is_gpu(self.device):
            bound_places(self._graph)  # also those of operations that torch writes in other ones, such as nll_loss
        settle_memory(self._graph)
        _choose_products(self._graph)
        self._graph.graph.eliminate_dead_code()
        self._graph.recompile()
        self.synthetic = [value.clone(memory_format=_layout_of(value, graph)) for value in records]
        self.size = len(records[0])

    def run(self, fixed: Sequence[Tensor], records: Sequence[Tensor]) -> tuple[list[Tensor], Tensor | None]:
        """Return the results of some records, with padding, and which places failed (None: none).

        An operation may raise because of one record (``inv``, an index). Then records run one at a time, in their own
        places, and one that raises has zeros as results. No message of it reaches anybody.
        """
        count, block = len(records[0]), [value.clone() for value in self.synthetic]
        for place, values in zip(block, records, strict=True):
            place[:count] = values
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._attempt(fixed, block)
            return (found, None) if found is not None else self._run_singly(fixed, block, count)

    def _attempt(self, fixed: Sequence[Tensor], block: Sequence[Tensor]) -> list[Tensor] | None:
        try:
            return self.results(fixed, block)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    def results(self, fixed: Sequence[Tensor], block: Sequence[Tensor]) -> list[Tensor]:
        """Return the results of a whole block."""
        found = self._graph(*fixed, *block)
        return list(found) if isinstance(found, list | tuple) else [found]

    def _run_singly(self, fixed: Sequence[Tensor], block: Sequence[Tensor], count: int) -> tuple[list[Tensor], Tensor]:
        start = self._attempt(fixed, self.synthetic)
        if start is None:
            raise RuntimeError("the module fails on synthetic records")
        results = [torch.zeros_like(value, memory_format=torch.contiguous_format) for value in start]
        failed = torch.ones(self.size, dtype=torch.bool, device=self.device)
        for place in range(count):
            alone = [value.clone() for value in self.synthetic]
            for here, values in zip(alone, block, strict=True):
                here[place] = values[place]
            found = self._attempt(fixed, alone)
            if found is not None:
                failed[place] = False
                for result, value in zip(results, found, strict=True):
                    result[place] = value[place]
        return results, failed


def _choose_products(graph: torch.fx.GraphModule) -> None:
    """Replace matrix products of the graph by those of the faster library."""
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.mm.default:
            node.target = _product
        elif node.target is torch.ops.aten.addmm.default and not node.kwargs and node.args[0].meta["val"].ndim == 1:
            node.target = _product_and_bias


def _product(x: Tensor, weights: Tensor) -> Tensor:
    return linear(x, weights.T)


def _product_and_bias(bias: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    return linear(x, weights.T, bias)


def _layout_of(values: Tensor, graph: torch.fx.GraphModule) -> Any:
    """Return the memory format of images.

    Convolutions run faster with channels last, group normalization slower.
    """
    has_norm = any("group_norm" in str(node.target) for node in graph.graph.nodes)
    return torch.channels_last if values.ndim == 4 and not has_norm else torch.contiguous_format


def _on_device(graph: torch.fx.GraphModule, device: Any) -> torch.fx.GraphModule:
    """Return the graph, traced on the processor, with its constants and new tensors on a device."""
    if device.type == "cpu" and not is_gpu(device):
        return graph
    moved = copy.deepcopy(graph).to(device)
    for node in moved.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, lambda v: device if isinstance(v, torch.device) else v)
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
    bound_places(moved)
    return moved


# ---- scores


class Scorer:
    """The outputs of records, from a graph in evaluation mode."""

    def __init__(self, traced: ScoreGraph, fixed: Sequence[Tensor], size: int) -> None:
        self._form, self._fixed = traced.form, list(fixed)
        self._block = BlockGraph(traced.graph, self._fixed, traced.form.synthetic(size, _SEED))

    def __call__(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs (n, k) of rows (n, numbers); NaN for a record on which the module fails."""
        parts, size = [], self._block.size
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            (found,), failed = self._block.run(self._fixed, self._form.tensors(some))
            values = found[: len(some)].reshape(len(some), -1)
            if failed is not None:
                values = values.masked_fill(failed[: len(some), None], math.nan)
            parts.append(values.cpu().numpy())
        return np.concatenate(parts)


# ---- sums of clipped gradients


@dataclass(frozen=True)
class TorchRun:
    """The public constants of a run, and what records go through."""

    traced: GradientGraph
    fixed: tuple[Tensor, ...] = field(repr=False)
    """Parameters and buffers at the start."""
    places: tuple[int, ...]
    """Where the trained parameters are among these."""
    clip_norm: float
    steps: int
    at_once: int
    batch: float
    """The public expected number of records, or persons, of a batch."""
    most_records: float
    name: bytes
    """The name of the run, for what is kept between its steps."""

    def zeros(self) -> list[Tensor]:
        """Return the sum over no records: zeros."""
        device = self.fixed[0].device
        return [torch.zeros(shape, dtype=torch.float64, device=device) for _, shape in self.traced.trained]


@dataclass(frozen=True)
class BatchSum:
    """The sums of the clipped gradients of one block's batch, in clip norms.

    There is one array for each trained parameter, and the number of records.

    A function of the block and of these constants alone. ``shares`` says which persons of each block are in the batch.
    Draws of the module come from ``layers``, the same when a block is read again.

    Theory: Fact 6
    """

    run: TorchRun
    layers: BlockStreams
    step: int = 0
    parameters: tuple[Tensor, ...] = field(default=(), repr=False)
    """The trained parameters of this step."""
    shares: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def for_block(self, number: int) -> "BatchSum":
        """Return a copy with the persons of one block alone."""
        return replace(self, shares={number: self.shares[number]})

    def __call__(self, block: Block) -> "TensorSums":
        """Return the sums and the number of records."""
        return translate_memory_errors(lambda: self._summed(block))

    def _summed(self, block: Block) -> "TensorSums":
        run, last = self.run, self.step == self.run.steps - 1
        batch = block.owners.rows_of(self.shares[block.id])
        with ENGINES.of(run.name, partial(Engine, run), last=last) as engine:
            rng = self.layers.generator(block.id, self.step) if run.traced.draws else None
            totals = engine.sum(block, batch, self.parameters, rng)
        return TensorSums(totals, len(batch))


@dataclass(frozen=True)
class TensorSums:
    """Sums of gradients, one tensor for each parameter, and the number of records."""

    sums: Sequence[Any]
    size: int

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields; other processes may have other devices."""
        return {"sums": [total.cpu() for total in self.sums], "size": self.size}

    def __add__(self, other: "TensorSums") -> "TensorSums":
        return TensorSums([a + b for a, b in zip(self.sums, other.sums, strict=True)], self.size + other.size)


class Engine:
    """The graph of a block, and the rule by which gradients are clipped."""

    def __init__(self, run: TorchRun) -> None:
        self.run, traced = run, run.traced
        form, size = traced.form, run.at_once
        record = synthetic_record(form, traced.target, _SEED)
        target = record[-1].expand(size, *record[-1].shape)
        examples = [
            *form.synthetic(size, _SEED),
            target,
            *synthetic_numbers(traced.draws, size, _SEED),
        ]
        self._block = BlockGraph(traced.graph, run.fixed, examples)
        self._rule = ClipRule(run.clip_norm, run.most_records, size)
        self._table: tuple[Any, list[Tensor] | None] = None, None
        captured = CapturedSum(run, self._block, self._rule) if is_gpu(self.device) else None
        self._captured = None if captured is None or captured.replay is None else captured

    @property
    def device(self) -> Any:
        """Return where the module runs."""
        return self._block.device

    def terms(self, parameters: Sequence[Tensor], records: Sequence[Tensor]) -> tuple[list[Term], Tensor | None]:
        """Return the terms of a block of records, and which places failed."""
        fixed = list(self.run.fixed)
        for place, value in zip(self.run.places, parameters, strict=True):
            fixed[place] = value
        results, failed = self._block.run(fixed, records)
        count = len(records[0])  # padding has no terms
        with torch.no_grad():
            return list(make_terms(self.run.traced, [value[:count] for value in results]).values()), failed

    def sum(
        self, block: Block, batch: NDArray[np.int64], parameters: Sequence[Tensor], rng: np.random.Generator | None
    ) -> list[Tensor]:
        """Return the sums over these records of the block, float64, in clip norms; ``rng``: of the module's draws."""
        size, traced = self._block.size, self.run.traced
        if len(batch) > size * MOST_BLOCKS:
            raise ValueError(
                f"a batch has more than {MOST_BLOCKS} blocks of physical_batch records, the most for which the "
                "rounding of a sum is bounded; lower sampling_rate, or give a larger physical_batch"
            )
        # where torch has one thread, NumPy's products have one too
        with torch.no_grad(), one_blas_thread() if torch.get_num_threads() == 1 else nullcontext():
            totals = [] if self._captured is None else self._captured.start(parameters)
            for start in range(0, len(batch), size):
                part = batch[start : start + size]
                records = self._take(block, part)
                records += [] if rng is None else draw_numbers(traced.draws, len(part), rng)
                weights = None if block.persons is None else torch.from_numpy(block.persons.weights[part])
                if self._captured is not None:
                    self._captured.add(records, weights)
                    continue
                terms, _ = self.terms(parameters, records)
                factors, counted = self._rule.factors(terms, None if weights is None else weights.to(self.device))
                more = weighted_sums(terms, factors, None if bool(counted.all()) else counted)
                totals = [a.add_(b) for a, b in zip(totals, more, strict=True)] if totals else more
        return (totals or self.run.zeros()) if self._captured is None else [total.clone() for total in totals]

    def _take(self, block: Block, part: NDArray[np.int64]) -> list[Tensor]:
        """Return the records of a batch; a table that is the same in two steps stays on the GPU."""
        form, (rows, held) = self.run.traced.form, self._table
        if rows is not block.rows:
            self._table = block.rows, None
        elif held is None and is_gpu(self.device) and block.rows.nbytes <= _MOST_KEPT:
            held = [v.to(self.device) for v in (*form.tensors(block.rows), torch.from_numpy(block.targets))]
            self._table = rows, held
        if rows is not block.rows or held is None:
            return [
                *form.tensors(np.take(block.rows, part, axis=0)), torch.from_numpy(np.take(block.targets, part))
            ]  # fmt: skip
        index = to_gpu(torch.from_numpy(part))
        return [value.index_select(0, index) for value in held]


def weighted_sums(terms: Sequence[Term], factors: Tensor, counted: Tensor | None) -> list[Tensor]:
    """Return the sums of the records' terms times their factors; those of a record that failed are zeros."""
    return [term.weighted_sum(factors, counted) for term in terms]


class CapturedSum:
    """The sum of a block with all its places, in memory of its own, as one CUDA graph.

    ``replay`` is None where torch cannot capture it.
    """

    def __init__(self, run: TorchRun, block: BlockGraph, rule: ClipRule) -> None:
        self._run, self._graph, self._rule = run, block, rule
        self._fixed = [value.clone() for value in run.fixed]
        self._records = [value.clone() for value in block.synthetic]
        self._weights = torch.zeros(block.size, dtype=torch.float64, device=block.device)
        self._totals = run.zeros()
        with torch.no_grad():
            self.replay = capture(self._add)

    def start(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Start a sum at these parameters; return the tensors that will hold it."""
        torch._foreach_copy_([self._fixed[place] for place in self._run.places], list(parameters))
        torch._foreach_zero_(self._totals)
        return self._totals

    def add(self, records: Sequence[Tensor], weights: Tensor | None) -> None:
        """Add the terms of at most a block of records."""
        count = len(records[0])
        for held, values, synthetic in zip(self._records, records, self._graph.synthetic, strict=True):
            held[:count].copy_(values)
            held[count:].copy_(synthetic[count:])
        self._weights[:count] = 1.0 if weights is None else weights.to(self._weights.device)
        self._weights[count:] = 0
        assert self.replay is not None
        self.replay()

    def _add(self) -> None:
        results = self._graph.results(self._fixed, self._records)
        terms = list(make_terms(self._run.traced, results).values())
        factors, counted = self._rule.factors(terms, self._weights)
        torch._foreach_add_(self._totals, weighted_sums(terms, factors, counted & (self._weights > 0)))


ENGINES: PerThread[Engine] = PerThread()


# ---- memory


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is due to missing memory."""
    short = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
    return short or "can't allocate memory" in str(error)  # a plain RuntimeError, on the processor


def translate_memory_errors(work: Callable[[], Result]) -> Result:
    """Run the work; where memory is missing, raise MemoryError with a remedy.

    The messages of torch and NumPy contain numbers of bytes, and so the number of records in a batch or in all.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    # outside the handler: nothing leads from here to the other words
    raise MemoryError("too little memory for the gradients of a block of records; give a smaller physical_batch")


def check_ranges(form: RecordForm, sizes: Sequence[tuple[int, int]], rows: NDArray[Any]) -> None:
    """Refuse rows with indices outside the public size of their table."""
    starts = np.cumsum([0, *(part.numbers for part in form.inputs)])
    for place, size in sizes:
        values = rows[:, starts[place] : starts[place + 1]]
        if not (np.all(values >= 0) and np.all(values < size) and np.all(values == np.floor(values))):
            name = form.inputs[place].name or "X"
            raise ValueError(f"{name} must hold indices of an embedding, whole numbers from 0 to {size - 1}")
