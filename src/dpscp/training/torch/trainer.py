"""Train any torch module privately.

Gradients are clipped layer by layer where the module allows it (``layer_terms``), and otherwise record by record with
Opacus' hooks. What Opacus does besides: it checks the module (``ModuleValidator``). What it does not do: Opacus'
DataLoader derives its sampling rate and its normalizer from the data, ``int(n / len(loader))``, and its noise comes
from torch's generators (Mersenne twister on the CPU, Philox on CUDA), which are not cryptographic; its ``secure_mode``
needs a package that cannot be had. So the sampling rate, the number of steps and the normalizer are public constants
here, batches and noise come from ``dpscp.privacy.secure_generator`` (on a GPU noise comes from ``DeviceNoise``), noisy
sums are rounded to the public grid, and an empty batch takes a noisy step like any other. Layers that draw for
themselves (dropout) use torch's generators, on a secret state of each step (``secret_draws``; proof in
docs/guarantees.md).

Floating point. A record moves the computed sum by at most clip_norm * (1 + CLIP_SLACK); see docs/floating_point.md.

torch and Opacus are imported when a mechanism is made, not when this module is: ``pip install dpscp[torch]``.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count, check_nonnegative, check_positive
from dpscp._base.object_state import copy_if_possible, state_digest
from dpscp._base.progress import progress
from dpscp.data.persons import Persons
from dpscp.data.sources import RecordSource
from dpscp.data.sources.places import UnitSource, blocks_in_memory, places_of
from dpscp.privacy import dpsgd_event, secure_generator
from dpscp.privacy.random_streams import LAYERS, BlockStreams, secure_bytes
from dpscp.training.base import Checked, GaussianSums, Needs, Trained, TrainingRun, one_block, require_noise
from dpscp.training.engine.batching import observed_source_labels
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.loop import poisson_batches
from dpscp.training.engine.padding import LANES, whole_lanes
from dpscp.training.labels import check_classes
from dpscp.training.spending import describe_spending
from dpscp.training.torch.batch_sums import MOST_RECORDS, BatchSum, TorchRun
from dpscp.training.torch.device import check_device
from dpscp.training.torch.dry_run import dry_run
from dpscp.training.torch.engine_ledger import ledger_of_engine
from dpscp.training.torch.layer_terms import GradientPlan
from dpscp.training.torch.model import TorchBlock, TorchModel, number_type, torch_model, torch_rows
from dpscp.training.torch.modules import (
    has_recurrent_layers,
    load_opacus,
    load_torch,
    private_copy,
    released_copy,
    require_gradients,
    separate_copy,
    state_of,
    suggest_layers,
    suggest_own_layers,
    translate_memory_errors,
)
from dpscp.training.torch.release import draw_ahead, make_release
from dpscp.training.torch.settings import (
    DefaultCount,
    DefaultNumber,
    check_labels,
    check_loss,
    check_optimizer,
    check_scheduler,
    choose_learning_rate,
    choose_rate,
    choose_steps,
)
from dpscp.training.torch.terms import MOST_BLOCKS
from dpscp.training.torch.tried import TriedModule
from dpscp.training.torch.updates import RecordLosses, Updates, set_gradients

if TYPE_CHECKING:
    import torch

__all__ = ["OpacusTraining", "TorchModel", "ledger_of_engine", "torch_model"]

# Records that go through the module at once, at most: on a GPU they keep it busy. On a processor what the layers return
# for them, so many numbers, stays in cache.
_AT_ONCE = {"cpu": 320, "cuda": 2048}
_CACHED_NUMBERS, _FEWEST_AT_ONCE = 2**21, 32
# What the layers return for the records of a large ``physical_batch``, at most so many numbers.
_MOST_KEPT = 2**25
# A batch of so many records more than four times the expected number does not occur (probability below exp(-4000)).
_MORE_RECORDS = 2**12
# Numbers of the single gradients that Opacus holds at once, and for the blocks of a very large batch.
_MOST_HELD, _MOST_EVER_HELD = {"cpu": 2**24, "cuda": 2**29}, 2**27
# The last dry run of each module that passed: what it looked at, its loss, and what was found.
_DRY_RUNS: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Any, TriedModule]] = WeakKeyDictionary()


@dataclass(frozen=True)
class OpacusTraining(GaussianSums):
    """Train any torch module whose layers treat records separately, by DP-SGD.

    The weights of the module when the mechanism is made are the starting point; they must not come from the private
    records. The module is copied, and the caller's module is never changed.

    Privacy: one run releases ``steps`` noisy sums of gradients clipped to ``clip_norm``, over Poisson batches of rate
    ``sampling_rate``; ``event`` is these Gaussian releases. The unit is one record, or one person; a sum has
    sensitivity ``clip_norm``. Sums are divided by the public sampling_rate * n_records.

    Assumes: module and loss treat real rows like synthetic ones; state outside the module is not seen.

    Parameters
    ----------
    module : torch.nn.Module
        From a batch of inputs to logits (n, classes) or real outputs (n, k).
    loss : "cross_entropy", "squared", "huber" or callable
        "squared" is (z - y)^2. A callable (outputs, targets) returns one loss per record; a loss of torch needs
        ``reduction="none"``.
    sampling_rate : float in (0, 1]
        The probability with which one record enters a batch.
    steps : int
    learning_rate : float
        Not beside the ``lr`` of a ``functools.partial``, which is used where it is given.
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
    device : str
        Where the module runs, "cpu" or "cuda". Batches and noise are always drawn by this package.
    physical_batch : int or None
        The most records that go through the module at once; fewer where their gradients would need much memory. A
        smaller number needs less memory and changes the last bits of a sum. None: as many as are fast on the device.
    input_shape : tuple of int or None
        The shape of one record, where X holds records as flat rows; None: the shape in X.
    scheduler : callable or None
        Called with the optimizer, returns a learning-rate scheduler of torch. It makes one step after each step of
        training, not after each epoch. A function with a parameter ``steps`` also gets the number of steps:
        ``lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)``.
    epochs : float or None
        Instead of ``steps``: epochs / sampling_rate steps, rounded up.
    batch_size : int or None
        Instead of ``sampling_rate``: the expected size of a batch, batch_size / n_records. Batches are Poisson samples,
        so their sizes differ.
    n_records : int or None
        Set by ``with_records``: the public nominal number of records behind ``batch_size``.

    Raises: ValueError, before any record is used, for layers that mix records or keep statistics of them, unless they
    are frozen and in evaluation mode, where they stay. A dry run on synthetic rows also refuses a module or loss whose
    gradient of a record is not that of the record alone, that changes anything in itself (parameters, buffers, Python
    attributes), that draws random numbers in evaluation mode, or whose number of outputs is not that of classes. It
    makes two steps of the optimizer and all steps of the schedule, and refuses what fails.
    ValueError after training if anything in module or loss differs from its start. Training uses copies: the released
    module is the starting one with the trained parameters.

    Paper: Algorithm 3 [alg:dp-sgd], with the fixed normalizer of Theory: section 1.6
    """

    module: "torch.nn.Module"
    loss: str | Callable[..., Any] = "cross_entropy"
    sampling_rate: float = DefaultNumber(0.01)
    steps: int = DefaultCount(1000)
    learning_rate: float = DefaultNumber(0.1)
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    momentum: float = 0.0
    optimizer: str | Callable[..., Any] = "sgd"
    classes: tuple[Any, ...] | None = None
    device: str = "cpu"
    physical_batch: int | None = None
    input_shape: tuple[int, ...] | None = None
    scheduler: Callable[..., Any] | None = None
    epochs: float | None = None
    batch_size: int | None = None
    n_records: int | None = None

    trains_persons: ClassVar[bool] = True
    trains_sources: ClassVar[bool] = True

    def __post_init__(self) -> None:
        grad_sample_module, validator = load_opacus()
        module = private_copy(self.module)
        self._check_choices()
        if self.physical_batch is not None:
            check_count("physical_batch", self.physical_batch)
        check_positive("clip_norm", self.clip_norm)
        if self.noise_multiplier is not None:
            check_nonnegative("noise_multiplier", self.noise_multiplier)
        if self.input_shape is not None:
            object.__setattr__(self, "input_shape", tuple(check_count("input_shape", s) for s in self.input_shape))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, "cross_entropy"))
            if self.loss in ("squared", "huber"):
                raise ValueError(
                    f"loss={self.loss!r} is for regression; leave classes out, or use loss='cross_entropy'"
                )
        reasons = [*validator.validate(module, strict=False), *grad_sample_module.validate(module, strict=False)]
        if reasons or has_recurrent_layers(module):
            text = suggest_layers(module) or suggest_own_layers(module, beside="buffers")
            text = text or "; ".join(str(reason) for reason in reasons)
            raise ValueError(f"Opacus refuses this module: {text}")

    def _check_choices(self) -> None:
        """Refuse arguments that contradict each other, and set those that follow from others."""
        check_loss(self.loss)
        check_optimizer(self.optimizer, check_nonnegative("momentum", self.momentum))
        check_scheduler(self.scheduler)
        rate = choose_rate(self.sampling_rate, self.batch_size, self.n_records)
        object.__setattr__(self, "sampling_rate", rate)
        object.__setattr__(self, "steps", choose_steps(self.steps, self.epochs, rate if self._knows_steps else None))
        object.__setattr__(self, "learning_rate", choose_learning_rate(self.learning_rate, self.optimizer))

    @property
    def _knows_steps(self) -> bool:
        return self.batch_size is None or self.n_records is not None

    @property
    def task(self) -> str:
        """Return "classification" or "regression".

        Cross_entropy, or a callable loss with declared classes.
        """
        return "classification" if self.loss == "cross_entropy" or self.classes is not None else "regression"

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
        check_labels(self.classes, needs.labels)
        own = self if needs.n_records is None else self.with_records(needs.n_records)
        return replace(own, classes=needs.classes, input_shape=needs.input_shape or self.input_shape)

    def check(self, input_shape: tuple[int, ...]) -> Checked:
        """Run the module on synthetic records of this shape.

        ValueError for a module that fails, mixes records, changes its own state, or has another number of outputs than
        ``classes``, and for an optimizer or scheduler that fails. ``train`` does this first; an estimator does it
        before it reserves any budget.
        """
        tried = self._try(self._shape(input_shape), self.classes)
        tried.hint_at_softmax(self.loss)
        return Checked(self.task, tried.n_outputs, tried.looks_up_rows)

    def _shape(self, found: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one record as the module sees it."""
        if self.input_shape is None:
            return found
        if math.prod(found) != math.prod(self.input_shape):
            raise ValueError(
                f"X must have {math.prod(self.input_shape)} numbers per record for input_shape={self.input_shape}, got "
                f"{math.prod(found)}"
            )
        return self.input_shape

    def source_of_arrays(self, X: ArrayLike, y: ArrayLike, persons: Persons | None) -> UnitSource:
        rows = torch_rows(X, number_type(self.module))
        return one_block(rows.reshape(len(rows), *self._shape(rows.shape[1:])), np.asarray(y), persons)

    def train_on(self, run: TrainingRun) -> Trained:
        """Train a copy of the module.

        What comes back from a block is the float64 sum of its clipped gradients; the proof of its rounding does not
        depend on how records are divided into blocks and processes. The modules of all processes start from this
        one's; draws of the module's own (dropout) follow a secret key, block and step.
        """
        setup = self._prepare(run.source, run.random_state, run.n_records)
        for _ in progress(self._descend(setup), self.steps, "private training", note=self._spent):
            pass
        trained = released_copy(separate_copy(self.module).to(self.device), setup.run.module)
        shape, classes = setup.shape, setup.classes
        facts: dict[str, object] = {
            "training_steps": int(self.steps),
            "sampling_rate": float(self.sampling_rate),
            "learning_rate": float(self.learning_rate),
            "clip_norm": self.clip_norm,
            "noise_multiplier": require_noise(self.noise_multiplier),
            "input_shape": shape,
            "normalizer": self.sampling_rate * setup.n,
        }
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                facts[name] = getattr(self, name)
        if classes is not None:
            facts["classes"] = classes
        model = TorchModel(trained, shape, classes, self.device)
        return run.result(model, facts, taken_from_data=tuple(setup.from_data))

    def _prepare(self, source: RecordSource, random_state: int | None, n_records: int) -> "_Setup":
        """Check the module, and convert the records."""
        here = blocks_in_memory(source)
        shape = self._shape(here[0].rows.shape[1:] if here else (source.width,))
        n, from_data = n_records, list[str]()
        classes = self.classes
        if self.task == "classification" and classes is None:
            classes = check_classes(observed_source_labels(source), "cross_entropy")
            from_data.append("classes")
        tried = self._try(shape, classes)
        rng = secure_generator(random_state)
        labels = classes if self.task == "classification" else None
        ready = source.map(TorchBlock(shape, labels, number_type(self.module)), keep=True)
        run = self._public_run(self.sampling_rate * n, tried)
        return _Setup(ready, run, rng, random_state, n, shape, classes, from_data)

    def _try(self, input_shape: tuple[int, ...], classes: tuple[Any, ...] | None) -> TriedModule:
        """Run device, optimizer, scheduler and module on synthetic numbers."""
        check_device(self.device)
        self._updates.run_dry([p for p in self.module.parameters() if p.requires_grad], self.device)
        return self._run_dry(input_shape, classes)

    def _run_dry(self, input_shape: tuple[int, ...], classes: tuple[Any, ...] | None) -> TriedModule:
        torch = load_torch()

        def target(count: int, dtype: Any) -> Any:
            numbers = torch.arange(count, device="cpu")
            # before the labels are known there is at least a first one
            return numbers.to(dtype) if self.task == "regression" else numbers % len(classes or (0,))

        require_gradients()
        state = state_of(self.module, trained=True), state_digest(self.loss)
        tried = state, input_shape, classes, self.device, self.physical_batch
        loss, found = self.loss, _DRY_RUNS.get(self.module)
        if found is not None and found[0] == tried and found[1] is loss:
            return found[2]
        module = private_copy(self.module)

        def run() -> TriedModule:
            found = dry_run(
                module,
                input_shape,
                target,
                self._losses,
                device=self.device,
                n_outputs=None if classes is None else len(classes),
                most_rows=self._at_once,
            )
            return TriedModule.of(module, input_shape, found)

        result = translate_memory_errors(run, self._memory_error_text)
        _DRY_RUNS[self.module] = tried, loss, result
        return result

    def _at_once(self, plan: GradientPlan, most_records: float = 0.0) -> int:
        """Return the most records that go through the module at once.

        Small blocks are for the cache. A batch of ``most_records`` has MOST_BLOCKS at most, so it may need larger ones.
        """
        kind = load_torch().device(self.device).type
        most, needed = _AT_ONCE.get(kind, _AT_ONCE["cpu"]), math.ceil(most_records / MOST_BLOCKS)
        if self.physical_batch is not None:
            kept = max(most, _MOST_KEPT // plan.numbers) if kind == "cpu" else self.physical_batch
            most = min(self.physical_batch, kept)
        elif kind == "cpu":
            cached = _CACHED_NUMBERS // plan.numbers // LANES * LANES
            most = min(most, max(_FEWEST_AT_ONCE, cached, needed))
        if not plan.by_layers:
            numbers = sum(p.numel() for p in self.module.parameters() if p.requires_grad)
            held = _MOST_HELD.get(kind, _MOST_HELD["cpu"]) // numbers
            most = min(most, max(LANES, held, min(needed, _MOST_EVER_HELD // numbers)))
        return most

    @property
    def _memory_error_text(self) -> str:
        return (
            f"device={self.device!r} has too little memory for the gradients of physical_batch={self.physical_batch} "
            "records at once; give a smaller physical_batch"
        )

    def _public_run(self, batch: float, tried: TriedModule) -> TorchRun:
        """Return the constants of a run; ``batch`` is the public expected number of records."""
        most_records = 4 * batch + _MORE_RECORDS
        most = min(self._at_once(tried.plan, most_records), whole_lanes(batch + 3 * math.sqrt(batch) + 1))
        most = most if most < LANES else most // LANES * LANES
        return TorchRun(
            # the parameters between steps; records never go through it
            module=private_copy(self.module).to(self.device),
            losses=self._losses,
            clip_norm=self.clip_norm,
            device=self.device,
            steps=self.steps,
            at_once=most,
            batch=batch,
            most_records=most_records,
            plan=tried.plan,
            synthetic=tried.synthetic,
            memory_error=self._memory_error_text,
            name=secure_bytes()(16),
        )

    def _descend(self, setup: "_Setup") -> Iterator[int]:
        """Take the steps, one for each yield; the parameters of the run's module move."""
        torch, source, run, rng = load_torch(), setup.source, setup.run, setup.rng
        device = torch.device(self.device)
        trainable = [p for p in run.module.parameters() if p.requires_grad]
        optimizer, scheduler = self._updates.start(trainable)
        # in clip norms; the slack is for the rounding of gradients and sums
        noise = require_noise(self.noise_multiplier) * (1 + CLIP_SLACK)
        release = make_release(device, noise, rng, setup.random_state, [tuple(p.shape) for p in trainable])
        gradient, places = BatchSum(run, BlockStreams.of(setup.random_state, LAYERS)), places_of(source)
        draws = ((drawn, release.draw()) for drawn in self.batches(places.count, rng))
        with draw_ahead(draws, device, sum(p.numel() for p in trainable)) as steps:
            for step, (drawn, own_noise) in enumerate(steps):
                if len(drawn) > run.most_records:
                    raise ValueError(
                        "a batch is more than four times as large as the nominal number of records says, and the "
                        "rounding of its sum is not bounded; set n_records (n_persons) to a number near the true one"
                    )
                found = source.sum(replace(gradient, step=step, shares=places.shares(drawn)))
                if found.size > MOST_RECORDS:
                    raise ValueError(
                        f"a batch has more than {MOST_RECORDS} records, and the rounding of their sum is not bounded; "
                        "lower sampling_rate"
                    )
                sums = [total.to(device) for total in found.sums]  # in clip norms
                set_gradients(trainable, release(sums, own_noise), self.clip_norm / run.batch)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                yield step

    def _spent(self, steps: int) -> str:
        """Return what so many steps cost, from public numbers."""
        noise = require_noise(self.noise_multiplier)
        if not noise:
            return "not private"
        event = dpsgd_event(noise, float(self.sampling_rate), steps)
        return describe_spending(event, 1e-5)

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Return the drawn persons of each step, out of n."""
        if self.sampling_rate == 1:
            return repeat(np.arange(n), self.steps)
        return islice(poisson_batches(rng, n, self.sampling_rate), self.steps)

    @property
    def _losses(self) -> RecordLosses:
        return RecordLosses(copy_if_possible(self.loss))  # records never go through the caller's own loss

    @property
    def _updates(self) -> Updates:
        steps = int(self.steps) if self._knows_steps else None
        return Updates(self.optimizer, float(self.learning_rate), self.momentum, self.scheduler, steps)


@dataclass(frozen=True)
class _Setup:
    """A run before its first step."""

    source: RecordSource
    run: TorchRun
    rng: np.random.Generator
    random_state: int | None
    n: int
    shape: tuple[int, ...]
    classes: tuple[Any, ...] | None
    from_data: list[str]
