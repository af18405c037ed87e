"""Train any torch module privately, on graphs in which records cannot meet.

One synthetic record is traced through the caller's module and loss (``trace``), the graph is checked (``checks``) and
mapped over blocks of records (``blocks``). Its results give the terms of each parameter (``layers``), whose clipped
sums are float64 (``terms``). The sampling rate, the number of steps and the normalizer are public constants. Batches,
noise and the numbers that layers draw (dropout) come from ``dpscp.privacy``, noisy sums are rounded to the public grid,
and an empty batch takes a noisy step like any other.

Floating point. A record moves the computed sum by at most clip_norm * (1 + CLIP_SLACK); see docs/floating_point.md.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count, check_nonnegative, check_positive
from dpscp._base.progress import announce, progress
from dpscp.data.persons import Persons
from dpscp.data.sources import RecordSource
from dpscp.data.sources.places import UnitSource, blocks_in_memory, places_of
from dpscp.data.validation import count_numbers
from dpscp.privacy import secure_generator
from dpscp.privacy.random_streams import LAYERS, BlockStreams, secure_bytes
from dpscp.torch import settings
from dpscp.torch.blocks import ENGINES, MOST_RECORDS, BatchSum, Engine, TorchRun, translate_memory_errors
from dpscp.torch.compare import compare_with_autograd
from dpscp.torch.gpu import is_gpu
from dpscp.torch.library import on_processor, torch
from dpscp.torch.model import TorchBlock, TorchModel, torch_rows, trace_score
from dpscp.torch.modules import released_module, require_gradients, rows_dtype, separate_copy, training_copy
from dpscp.torch.release import Release, draw_ahead
from dpscp.torch.terms import MOST_BLOCKS
from dpscp.torch.trace import GradientGraph, ScoreGraph, trace_gradients
from dpscp.torch.updates import Updates, record_losses, set_gradients
from dpscp.training.base import (
    Checked,
    GaussianSums,
    Needs,
    Trained,
    TrainingRun,
    one_block,
    require_noise,
)
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.loop import poisson_batches
from dpscp.training.engine.rows import check_classes, observed_source_labels

__all__ = ["TorchDPSGD", "TorchModel"]

# Records that go through the graph at once, at most; what it returns for them, so many numbers, stays in cache.
_AT_ONCE, _FEWEST_AT_ONCE, _CACHED_NUMBERS = 320, 32, 2**22
# Standard deviations of the size of a batch that blocks allow for: more is more padding, less one more block. On a GPU
# padding is multiplied too, and a batch is one block.
_SPREAD, _SPREAD_ON_GPU = 1.5, 2.5
# What the graph returns for a block, at most so many numbers: a bound of its memory.
_MOST_HELD, _MOST_HELD_ON_GPU = 2**24, 2**29
# A batch of so many records more than four times the expected number does not occur (probability below exp(-4000)).
_MORE_RECORDS = 2**12


@dataclass(frozen=True)
class TorchDPSGD(GaussianSums):
    """Train any torch module by DP-SGD.

    The weights of the module when the mechanism is made are the starting point; they must not come from the private
    records. The module is copied, and the caller's module is never changed.

    Privacy: one run releases ``steps`` noisy sums of gradients clipped to ``clip_norm``, over Poisson batches of rate
    ``sampling_rate``; ``event`` is these Gaussian releases. The unit is one record, or one person; a sum has
    sensitivity ``clip_norm``. Sums are divided by the public sampling_rate * n_records.

    No code of the module or the loss runs on a record. One synthetic record is traced, and records go through the
    graph, in which they cannot meet (``docs/torch_isolation.md``).

    Assumes: PyTorch traces its own operations faithfully and maps them over records by rules that keep these apart. A
    record's rounding does not depend on its place in a block. Constants of the module and the loss are public.

    Parameters
    ----------
    module : torch.nn.Module
        From a batch of inputs to logits (n, classes) or real outputs (n, k), or to an object with ``logits``.
    loss : "cross_entropy", "squared", "huber" or callable
        "squared" is (z - y)^2. A callable (outputs, targets) returns one loss per record; a loss of torch needs
        ``reduction="none"``.
    sampling_rate : float in (0, 1]
        The probability with which one record enters a batch.
    steps : int
    learning_rate : float
    clip_norm : float
        The largest norm of one record's gradient.
    noise_multiplier : float or None
        Noise scale over ``clip_norm``; None: call ``calibrated`` first.
    momentum : float in [0, 1)
        For ``optimizer="sgd"`` alone.
    optimizer : "sgd", "adam" or callable
        Of torch.optim; post-processing. A callable is called with the parameters and ``lr=learning_rate`` and returns a
        torch optimizer: ``torch.optim.AdamW``, or ``functools.partial(torch.optim.AdamW, weight_decay=0.01)``.
    classes : tuple or None
        The public labels in the order of the module's outputs; None declares the labels in y public. An estimator has
        its own list, which must be the same.
    device : str or None
        Where the module runs, such as "cuda"; None: where its parameters are. Batches and noise are always drawn by
        this package; docs/gpu.md says where.
    physical_batch : int or None
        The most records that go through the module at once; fewer where their gradients would need much memory. A
        smaller number needs less memory and changes the last bits of a sum. None: as many as are fast on the device.
    input_shape : tuple or None
        The shape of one record, where X holds records as flat rows; None: the shape in X. For several inputs: (name,
        shape, "real", "integer" or "boolean") of each one.
    scheduler : callable or None
        Called with the optimizer and the number of steps, returns a learning-rate scheduler of torch:
        ``torch.optim.lr_scheduler.CosineAnnealingLR``. It makes one step after each step of training, not after each
        epoch.
    epochs : float or None
        Instead of ``steps``: epochs / sampling_rate steps, rounded up.
    batch_size : int or None
        Instead of ``sampling_rate``: the expected size of a batch, batch_size / n_records. Batches are Poisson samples,
        so their sizes differ.
    n_records : int or None
        Set by ``with_records``: the public nominal number of records behind ``batch_size``.

    Raises: ValueError, before any record is used, for a module that cannot be traced or does not pass the checks. The
    message names the layer and the remedy.

    Paper: Algorithm 3 [alg:dp-sgd], with the fixed normalizer of Theory: Fact 6
    """

    module: "torch.nn.Module"
    loss: str | Callable[..., Any] = "cross_entropy"
    sampling_rate: float = settings.DefaultNumber(0.01)
    steps: int = settings.DefaultCount(1000)
    learning_rate: float = 0.1
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    momentum: float = 0.0
    optimizer: str | Callable[..., Any] = "sgd"
    classes: tuple[Any, ...] | None = None
    device: str | None = None
    physical_batch: int | None = None
    input_shape: tuple[Any, ...] | None = None
    scheduler: Callable[..., Any] | None = None
    epochs: float | None = None
    batch_size: int | None = None
    n_records: int | None = None
    _traced: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.loss):
            check_choice("loss", self.loss, settings.LOSSES)
        settings.check_optimizer(self.optimizer, check_nonnegative("momentum", self.momentum), self.scheduler)
        rate = settings.choose_rate(self.sampling_rate, self.batch_size, self.n_records)
        object.__setattr__(self, "sampling_rate", rate)
        object.__setattr__(
            self, "steps", settings.choose_steps(self.steps, self.epochs, rate if self._knows_steps else None)
        )
        check_positive("learning_rate", self.learning_rate)
        if self.physical_batch is not None:
            check_count("physical_batch", self.physical_batch)
        check_positive("clip_norm", self.clip_norm)
        if self.noise_multiplier is not None:
            check_nonnegative("noise_multiplier", self.noise_multiplier)
        if self.input_shape is not None:
            object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, "cross_entropy"))
            if self.loss in ("squared", "huber"):
                raise ValueError(
                    f"loss={self.loss!r} is for regression; leave classes out, or use loss='cross_entropy'"
                )
        training_copy(self.module)  # refuses layers by their kind

    @property
    def _knows_steps(self) -> bool:
        return self.batch_size is None or self.n_records is not None

    @property
    def task(self) -> str:
        """Return "classification" or "regression"; a callable loss with declared classes is for classification."""
        return "classification" if self.loss == "cross_entropy" or self.classes is not None else "regression"

    @property
    def trains_persons(self) -> bool:
        return True

    @property
    def trains_sources(self) -> bool:
        return True

    @property
    def releases(self) -> tuple[float, int]:
        """Return the sampling rate and the number of steps."""
        if not self._knows_steps:
            raise ValueError(
                "batch_size needs the public number of records: call with_records(n_records), or give sampling_rate"
            )
        return float(self.sampling_rate), int(self.steps)

    def with_records(self, n_records: int) -> Self:
        """Return a copy whose ``batch_size`` and ``epochs`` are translated for so many records.

        The sampling rate is batch_size / n_records, at most one.
        """
        return self if self._knows_steps else replace(self, n_records=check_count("n_records", n_records))

    def configured(self, needs: Needs) -> Self:
        """Return a copy for these classes, this shape of a record and this number of records."""
        settings.check_labels(self.classes, needs.labels)
        own = self if needs.n_records is None else self.with_records(needs.n_records)
        return replace(own, classes=needs.classes, input_shape=needs.input_shape or self.input_shape)

    @on_processor()
    def check(self, input_shape: tuple[Any, ...]) -> Checked:
        """Trace the module and the loss on synthetic records of this shape.

        ValueError for what cannot be traced or does not pass the checks, for another number of outputs than
        ``classes``, and for an optimizer or scheduler that fails.
        """
        shape = self._shape(input_shape)
        if self.device is not None:
            _check_device(self.device)
        self._updates.dry_run([p for p in self.module.parameters() if p.requires_grad])
        traced = _trace(self, shape, 0 if self.classes is None else len(self.classes))
        self._traced["last"] = shape, self.classes, traced
        return Checked(traced.scores.n_outputs, traced.gradients.looks_up)

    def _shape(self, found: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape of one record as the module sees it."""
        if self.input_shape is None:
            return found
        own, given = map(count_numbers, (self.input_shape, found))
        if own != given:
            raise ValueError(f"X must have {own} numbers per record for input_shape={self.input_shape}, got {given}")
        return self.input_shape

    def source_of_arrays(self, X: ArrayLike, y: ArrayLike, persons: Persons | None) -> UnitSource:
        """Return records of any shape in memory as a source of one block of rows."""
        rows = torch_rows(X, rows_dtype(self.module))
        return one_block(rows, np.asarray(y), persons)

    @on_processor()
    def train_on(self, run: TrainingRun) -> Trained:
        """Train a copy of the parameters.

        What comes back from a block is the float64 sum of its clipped gradients; the proof of its rounding does not
        depend on how records are divided into blocks and processes. Numbers that layers draw follow a secret key, block
        and step.
        """
        setup = self._prepare(run.source, run.n_records)
        announce("private training")
        steps = self._descend(setup, run.random_state)
        ENGINES.put(setup.engine.run.name, setup.engine)
        for _ in progress(steps, self.steps, "private training"):
            pass
        shape, classes, trained = setup.shape, setup.classes, zip(setup.names, setup.trained, strict=True)
        released = {name: parameter.detach() for name, parameter in trained}
        facts: dict[str, object] = {
            "training_steps": int(self.steps),
            "sampling_rate": float(self.sampling_rate),
            "learning_rate": float(self.learning_rate),
            "clip_norm": self.clip_norm,
            "noise_multiplier": require_noise(self.noise_multiplier),
            "input_shape": shape,
            "normalizer": self.sampling_rate * run.n_records,
        }
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                facts[name] = getattr(self, name)
        if classes is not None:
            facts["classes"] = classes
        model = TorchModel(released_module(self.module, released), shape, classes, setup.scores)
        return run.result(model, facts, taken_from_data=setup.taken_from_data)

    def _prepare(self, source: RecordSource, n_records: int) -> "_Setup":
        """Convert the records, and map the graph over blocks."""
        shape, classes, from_data = self._describe(source)
        traced = self._take_traced(shape, classes)
        labels = classes if self.task == "classification" else None
        block = TorchBlock(traced.gradients.form, traced.gradients.sizes, labels, rows_dtype(self.module))
        state = released_module(self.module, {})
        state = state if self.device is None else state.to(self.device)
        public = self._public_run(self.sampling_rate * n_records, traced, state)
        announce("mapping the module over blocks of records")
        engine = translate_memory_errors(lambda: Engine(public))
        named = {name: p for name, p in state.named_parameters() if p.requires_grad}
        trained = list(named.values())
        compare_with_autograd(engine, training_copy(self.module).to(trained[0].device), self._losses, trained)
        announce("prepare the records for training")
        ready = source.map(block, keep=True)
        return _Setup(ready, engine, tuple(named), trained, shape, classes, tuple(from_data), traced.scores)

    def _describe(self, source: RecordSource) -> tuple[tuple[Any, ...], tuple[Any, ...] | None, list[str]]:
        """Return the shape of a record, the classes, and what of it was taken from the records."""
        here = blocks_in_memory(source)
        shape = self._shape(here[0].rows.shape[1:] if here and here[0].n_columns is None else (source.width,))
        if self.task == "classification" and self.classes is None:
            return shape, check_classes(observed_source_labels(source), "cross_entropy"), ["classes"]
        return shape, self.classes, []

    def _take_traced(self, shape: tuple[Any, ...], classes: tuple[Any, ...] | None) -> "_Traced":
        """Return the graphs that ``check`` made just before, or make them."""
        known = self._traced.pop("last", None)
        if known is not None and known[0] == shape and (known[1] is None or known[1] == classes):
            found: _Traced = known[2]
            found.require_outputs(classes)
            return found
        return _trace(self, shape, 0 if classes is None else len(classes))

    def _public_run(self, batch: float, traced: "_Traced", state: Any) -> TorchRun:
        """Return the constants of a run; ``batch`` is the public expected number of records."""
        most_records, numbers = 4 * batch + _MORE_RECORDS, traced.gradients.numbers
        needed = math.ceil(most_records / MOST_BLOCKS)
        on_gpu = is_gpu(next(state.parameters()).device)
        most = min(_AT_ONCE, max(_FEWEST_AT_ONCE, _CACHED_NUMBERS // numbers, needed), _MOST_HELD // numbers)
        most = _MOST_HELD_ON_GPU // numbers if on_gpu else most
        most = max(1, most if self.physical_batch is None else min(most, self.physical_batch))
        # most batches fill a whole number of blocks, with little padding
        usual = batch + (_SPREAD_ON_GPU if on_gpu else _SPREAD) * math.sqrt(batch) + 1
        most = math.ceil(usual / math.ceil(usual / most))
        names = [name for name, _ in state.named_parameters()]
        return TorchRun(
            traced.gradients,
            tuple(value.detach().clone() for value in (*state.parameters(), *state.buffers())),
            tuple(names.index(name) for name, _ in traced.gradients.trained),
            self.clip_norm,
            int(self.steps),
            most,
            batch,
            most_records,
            secure_bytes()(16),
        )

    def _descend(self, setup: "_Setup", random_state: int | None) -> Iterator[int]:
        """Train the parameters in place, one step for each yield."""
        source, run, trained = setup.source, setup.engine.run, setup.trained
        rng = secure_generator(random_state)
        optimizer, scheduler = self._updates.start(trained)
        # in clip norms; the slack is for the rounding of gradients and sums
        noise = require_noise(self.noise_multiplier) * (1 + CLIP_SLACK)
        release = Release(noise, rng, [tuple(p.shape) for p in trained], setup.engine.device)
        gradient, places = BatchSum(run, BlockStreams.of(random_state, LAYERS)), places_of(source)
        draws = ((drawn, release.draw()) for drawn in self._batches(places.count, rng))
        with draw_ahead(draws, 0 if is_gpu(setup.engine.device) else sum(p.numel() for p in trained)) as steps:
            for step, (drawn, own_noise) in enumerate(steps):
                if len(drawn) > run.most_records:
                    raise ValueError(
                        "a batch is more than four times as large as the nominal number of records says, and the "
                        "rounding of its sum is not bounded; set n_records (n_persons) to a number near the true one"
                    )
                now = tuple(p.detach() for p in trained)
                found = source.sum(replace(gradient, step=step, parameters=now, shares=places.shares(drawn)))
                if found.size > MOST_RECORDS:
                    raise ValueError(
                        f"a batch has more than {MOST_RECORDS} records, and the rounding of their sum is not bounded; "
                        "lower sampling_rate"
                    )
                set_gradients(trained, release(list(found.sums), own_noise, self.clip_norm / run.batch))
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                yield step

    def _batches(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Draw the persons of each step, out of n."""
        if self.sampling_rate == 1:
            return repeat(np.arange(n), self.steps)
        return islice(poisson_batches(rng, n, self.sampling_rate), self.steps)

    @property
    def _losses(self) -> Callable[..., Any]:
        return partial(record_losses, self.loss)

    @property
    def _updates(self) -> Updates:
        return Updates(self.optimizer, float(self.learning_rate), self.momentum, self.scheduler, int(self.steps))


def _check_device(name: str) -> None:
    """Refuse a device that is unavailable."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}); leave it out to train on the CPU") from None


@dataclass(frozen=True)
class _Setup:
    """What a run needs before its first step."""

    source: RecordSource
    engine: Engine
    names: tuple[str, ...]
    trained: list[Any]
    shape: tuple[Any, ...]
    classes: tuple[Any, ...] | None
    taken_from_data: tuple[str, ...]
    scores: ScoreGraph


@dataclass(frozen=True)
class _Traced:
    """The graphs of one module and loss."""

    gradients: GradientGraph
    scores: ScoreGraph

    def require_outputs(self, classes: tuple[Any, ...] | None) -> None:
        """Refuse another number of outputs than of classes."""
        if classes is not None and self.scores.n_outputs != len(classes):
            raise ValueError(
                f"the module must have one output for each of the {len(classes)} classes, but it has "
                f"{self.scores.n_outputs} outputs for a record; change its last layer"
            )


def _trace(mechanism: TorchDPSGD, shape: tuple[Any, ...], n_classes: int) -> _Traced:
    """Return the graphs of a mechanism for records of a shape."""
    require_gradients()
    module = mechanism.module
    announce("tracing the module on a synthetic record")
    scores = trace_score(separate_copy(module).cpu(), shape)
    is_label = mechanism.task == "classification"
    target = ((), "int64") if is_label else ((), rows_dtype(module))
    gradients = trace_gradients(training_copy(module).cpu(), mechanism._losses, scores.form, target)
    traced = _Traced(gradients, scores)
    traced.require_outputs(tuple(range(n_classes)) if n_classes else None)
    return traced
