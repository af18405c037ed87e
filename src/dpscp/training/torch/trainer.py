"""Train any torch module privately, with per-record gradients by Opacus.

What Opacus does here: it checks the module (``ModuleValidator``) and computes per-record gradients
(``GradSampleModule``). What it does not do: Opacus' DataLoader derives its sampling rate and its normalizer
from the data, ``int(n / len(loader))``, and its noise comes from torch's generators (Mersenne twister on
the CPU, Philox on CUDA), which are not cryptographic; its ``secure_mode`` needs a package that cannot be
had. So the sampling rate, the number of steps and the normalizer are public constants here, batches and
noise come from ``dpscp.privacy.secure_generator`` (on a GPU noise comes from ``DeviceNoise``), noisy sums are
rounded to the public grid, and an empty batch takes a noisy step like any other. Layers that draw for themselves
(dropout) use torch's generators, on a secret state of each step (``secret_draws``; proof in docs/guarantees.md).

Floating point. A clipped gradient is cut towards zero to a public grid of clip_norm / 2**32, so its norm never
grows, and the integers are added exactly, in whatever order and parts: a record moves the sum by at most clip_norm.
What is left (torch may compute another record's last bits differently in another batch) is in docs/floating_point.md.

torch and Opacus are imported when a mechanism is made, not when this module is: ``pip install dpscp[torch]``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_choice, check_count, check_fraction, check_nonnegative, check_positive
from dpscp._base.progress import progress
from dpscp.data.persons import Persons
from dpscp.data.sources import ArraySource, Block, RecordSource
from dpscp.data.sources.places import UnitSource, blocks_in_memory, places_of
from dpscp.privacy import Ledger, dpsgd_event, non_private_event, secure_generator
from dpscp.privacy.random_streams import LAYERS, BlockStreams, secure_bytes
from dpscp.training.engine.batching import PerThread, nominal_count, observed_source_labels
from dpscp.training.engine.cuda_noise import DeviceNoise
from dpscp.training.engine.gaussian_release import gaussian_release, warn_large_delta
from dpscp.training.engine.gradients import CLIP_SLACK
from dpscp.training.engine.loop import GRID, poisson_batches
from dpscp.training.labels import check_classes, encode_labels, real_targets
from dpscp.training.mechanism import DryRun, GaussianSums, Needs, Trained, paid_event, require_noise
from dpscp.training.torch.dry_run import dry_run
from dpscp.training.torch.model import TorchModel, as_float32, torch_model, torch_rows
from dpscp.training.torch.modules import (
    check_unchanged,
    gradient_rows,
    load_opacus,
    load_torch,
    private_copy,
    refuse_changes,
    released_copy,
    state_of,
    suggest_layers,
    translate_memory_errors,
)
from dpscp.training.torch.random_state import secret_draws

if TYPE_CHECKING:
    import torch

__all__ = ["OpacusTraining", "TorchModel", "ledger_of_engine", "torch_model"]

LOSSES = ("cross_entropy", "squared", "huber")
# Clipped gradients are integers in units of clip_norm / _UNITS; sums of _MOST_RECORDS of them fit in 64 bits.
_UNITS = 2**32
_MOST_RECORDS = 2**30
# The last dry run of each module that passed: what it looked at, its loss, and the number of outputs.
_DRY_RUNS: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Any, int]] = WeakKeyDictionary()


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
        "squared" is (z - y)^2. A callable (outputs, targets) returns one loss per record.
    sampling_rate : float in (0, 1]
        The probability with which one record enters a batch.
    steps : int
    learning_rate : float
    clip_norm : float
        The largest norm of one record's gradient.
    noise_multiplier : float or None
        Noise scale over ``clip_norm``; None: call ``calibrated`` first.
    momentum : float in [0, 1)
    optimizer : "sgd" or "adam"
        Of torch.optim; post-processing.
    classes : tuple or None
        The public labels in the order of the module's outputs; None declares the labels in y public.
    device : str
        Where the module runs, "cpu" or "cuda". Batches and noise are always drawn by this package.
    physical_batch : int
        Records whose gradients are held at once. It changes the memory only, not the result.
    budget : (epsilon, delta) or None
        Set by ``calibrated``: the budget of the noise.
    input_shape : tuple of int or None
        The shape of one record, where X holds records as flat rows; None: the shape in X.

    Raises: ValueError, before any record is used, for layers that mix records or keep statistics of them, unless they
    are frozen and in evaluation mode, where they stay. A dry run on synthetic rows also refuses a module or loss whose
    gradient of a record is not that of the record alone, that changes anything in itself (parameters, buffers, Python
    attributes), that draws random numbers in evaluation mode, or whose number of outputs is not that of classes.
    ValueError after training if anything in the module differs from its start. Training uses copies: the released
    module is the starting one with the trained parameters.

    Paper: Algorithm 3 [alg:dp-sgd], with the fixed normalizer of Theory: section 1.6
    """

    module: "torch.nn.Module"
    loss: str | Callable[..., Any] = "cross_entropy"
    sampling_rate: float = 0.01
    steps: int = 1000
    learning_rate: float = 0.1
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    momentum: float = 0.0
    optimizer: str = "sgd"
    classes: tuple[Any, ...] | None = None
    device: str = "cpu"
    physical_batch: int = 256
    budget: tuple[float, float] | None = None
    input_shape: tuple[int, ...] | None = None

    trains_persons: ClassVar[bool] = True
    trains_sources: ClassVar[bool] = True

    def __post_init__(self) -> None:
        grad_sample_module, validator = load_opacus()
        module = private_copy(self.module)
        if not callable(self.loss):
            check_choice("loss", self.loss, LOSSES)
        check_fraction("sampling_rate", self.sampling_rate)
        check_count("steps", self.steps)
        check_count("physical_batch", self.physical_batch)
        for name in ("learning_rate", "clip_norm"):
            check_positive(name, getattr(self, name))
        if self.noise_multiplier is not None:
            check_nonnegative("noise_multiplier", self.noise_multiplier)
        if not 0 <= check_nonnegative("momentum", self.momentum) < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum:g}")
        check_choice("optimizer", self.optimizer, ("sgd", "adam"))
        if self.input_shape is not None:
            object.__setattr__(self, "input_shape", tuple(check_count("input_shape", s) for s in self.input_shape))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, "cross_entropy"))
            if self.loss in ("squared", "huber"):
                raise ValueError(
                    f"loss={self.loss!r} is for regression; leave classes out, or use loss='cross_entropy'"
                )
        reasons = [*validator.validate(module, strict=False), *grad_sample_module.validate(module, strict=False)]
        if reasons:
            text = suggest_layers(module) or "; ".join(str(reason) for reason in reasons)
            raise ValueError(f"Opacus refuses this module: {text}")

    @property
    def task(self) -> str:
        """Return "classification" or "regression".

        Cross_entropy, or a callable loss with declared classes.
        """
        return "classification" if self.loss == "cross_entropy" or self.classes is not None else "regression"

    @property
    def releases(self) -> tuple[float, int]:
        """Return the sampling rate and the number of steps."""
        return self.sampling_rate, self.steps

    def configured(self, needs: Needs) -> Self:
        """Return a copy for these classes and this shape of a record."""
        return replace(self, classes=needs.classes, input_shape=needs.input_shape or self.input_shape)

    def run_dry(self, input_shape: tuple[int, ...]) -> DryRun:
        """Run the module on synthetic records of this shape.

        ValueError for a module that fails, mixes records, changes its own state, or has another number of outputs than
        ``classes``. ``train`` does this first; an estimator does it before it reserves any budget.
        """
        return DryRun(self.task, self._run_dry(self._shape(input_shape), self.classes))

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

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        random_state: int | None = None,
        n_records: int | None = None,
        persons: Persons | None = None,
    ) -> Trained:
        """Train a copy of the module privately.

        The cost is ``event``, whatever the records are.
        """
        rows = torch_rows(X)
        block = Block(0, rows.reshape(len(rows), *self._shape(rows.shape[1:])), np.asarray(y), persons)
        Persons.of_rows(persons, len(rows))
        if len(block) != len(rows):
            raise ValueError("X and y must hold the same number of records")
        source = UnitSource(ArraySource.of_blocks([block]), block.owners.unit)
        return self.train_source(source, random_state=random_state, n_records=n_records)

    def train_source(
        self, source: RecordSource, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train on the records of a source; see ``train``.

        What comes back from a block is the sum of its clipped gradients in integers, so that the total, and with it the
        proof, does not depend on how records are divided into blocks and processes. The modules of all processes start
        from this one's; draws of the module's own (dropout) follow a secret key, block and step.
        """
        event, here = paid_event(self), blocks_in_memory(source)
        shape = self._shape(here[0].rows.shape[1:] if here else (source.width,))
        n, unit = nominal_count(source, n_records)
        warn_large_delta(self.budget, n)
        from_data = [unit.count_name] if n_records is None else []
        classes = self.classes
        if self.task == "classification" and classes is None:
            classes = check_classes(observed_source_labels(source), "cross_entropy")
            from_data.append("classes")
        self._run_dry(shape, classes)
        rng = secure_generator(random_state)
        ready = source.map(_TorchBlock(shape, classes if self.task == "classification" else None), keep=True)
        trained = self._descend(ready, self.sampling_rate * n, rng, random_state)
        facts: dict[str, object] = {
            "mechanism": type(self).__name__,
            "training_steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "learning_rate": self.learning_rate,
            "clip_norm": self.clip_norm,
            "noise_multiplier": require_noise(self.noise_multiplier),
            **unit.facts(n),
            "input_shape": shape,
            "normaliser": self.sampling_rate * n,
            "taken_from_data": tuple(from_data),
        }
        if classes is not None:
            facts["classes"] = classes
        if random_state is not None:
            facts["seeded"] = True
        return Trained(TorchModel(trained, shape, classes, self.device), event, None, facts, unit=unit)

    def _run_dry(self, input_shape: tuple[int, ...], classes: tuple[Any, ...] | None) -> int:
        torch = load_torch()

        def target(count: int, dtype: Any) -> Any:
            numbers = torch.arange(count)
            # before the labels are known there is at least a first one
            return numbers.to(dtype) if self.task == "regression" else numbers % len(classes or (0,))

        tried = state_of(self.module, trained=True), input_shape, classes, self.device, self.physical_batch
        loss, found = self.loss, _DRY_RUNS.get(self.module)
        if found is not None and found[0] == tried and found[1] is loss:
            return found[2]
        module = private_copy(self.module)
        n_outputs = translate_memory_errors(
            lambda: dry_run(
                module,
                input_shape,
                target,
                self._losses,
                device=self.device,
                n_outputs=None if classes is None else len(classes),
                most_rows=self.physical_batch,
            ),
            self._memory_error_text,
        )
        _DRY_RUNS[self.module] = tried, loss, n_outputs
        return n_outputs

    @property
    def _memory_error_text(self) -> str:
        return (
            f"device={self.device!r} has too little memory for the gradients of physical_batch={self.physical_batch} "
            "records at once; give a smaller physical_batch, which does not change the result"
        )

    def _descend(
        self,
        source: RecordSource,
        normaliser: float,
        rng: np.random.Generator,
        random_state: int | None,
    ) -> "torch.nn.Module":
        torch = load_torch()
        device = torch.device(self.device)
        module = private_copy(self.module).to(device)  # the parameters between steps; records never go through it
        trainable = [p for p in module.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(trainable, lr=self.learning_rate)
        else:
            optimizer = torch.optim.SGD(trainable, lr=self.learning_rate, momentum=self.momentum)
        # in clip norms; the slack is for torch, which may round a record's gradient differently in another batch
        noise = require_noise(self.noise_multiplier) * (1 + CLIP_SLACK)
        noisy = _make_release(device, noise, rng, random_state, sum(p.numel() for p in trainable))
        layers = BlockStreams.of(random_state, LAYERS)
        gradient, places = _BatchSum(replace(self, module=module), layers, secure_bytes()(16)), places_of(source)
        for step, drawn in enumerate(progress(self.batches(places.count, rng), self.steps, "private training")):
            found = source.sum(replace(gradient, step=step, shares=places.shares(drawn)))
            if found.size > _MOST_RECORDS:
                raise ValueError(
                    f"a batch has more than {_MOST_RECORDS} records, and their sum may not fit in 64 bits; lower "
                    "sampling_rate"
                )
            exact = [total.to(device).double() / _UNITS for total in found.sums]  # in clip norms
            for parameter, released in zip(trainable, noisy(exact) if noise else exact, strict=True):
                parameter.grad = (released * (self.clip_norm / normaliser)).to(parameter.dtype)
            optimizer.step()
        return released_copy(private_copy(self.module).to(device), module)

    def batches(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Return the drawn persons of each step, out of n."""
        if self.sampling_rate == 1:
            return repeat(np.arange(n), self.steps)
        return islice(poisson_batches(rng, n, self.sampling_rate), self.steps)

    def _losses(self, outputs: Any, target: Any) -> Any:
        if callable(self.loss):
            return self.loss(outputs, target)
        functional = load_torch().nn.functional
        if self.loss == "cross_entropy":
            if outputs.ndim != 2:
                raise ValueError("cross_entropy needs module outputs of shape (records, classes)")
            return functional.cross_entropy(outputs, target, reduction="none")
        column = outputs if outputs.ndim == 1 else outputs.flatten(1)
        target = target if column.ndim == 1 else target[:, None].expand_as(column)
        name = functional.mse_loss if self.loss == "squared" else functional.huber_loss
        losses = name(column, target, reduction="none")
        return losses if losses.ndim == 1 else losses.sum(1)


def _make_release(
    device: Any, noise: float, rng: np.random.Generator, random_state: int | None, size: int
) -> Callable[[list[Any]], list[Any]]:
    """Return a function that adds noise to sums and rounds them to the grid.

    The noise has this standard deviation; sums have ``size`` numbers in all and stay on the device.
    """
    torch = load_torch()
    if device.type == "cpu":
        return lambda sums: [torch.from_numpy(gaussian_release(total.numpy(), noise, rng)) for total in sums]
    stream, spacing = DeviceNoise(random_state, size, device, 1 / GRID), GRID * noise

    def released(sums: list[Any]) -> list[Any]:
        drawn = stream.next().split([total.numel() for total in sums])
        return [
            (total * (1 / spacing) + part.view_as(total)).round_().mul_(spacing)
            for total, part in zip(sums, drawn, strict=True)
        ]

    return released


@dataclass(frozen=True)
class _TorchBlock:
    """A block with its rows and targets as torch takes them.

    ``classes`` None: real targets.
    """

    shape: tuple[int, ...]
    classes: tuple[Any, ...] | None

    def __call__(self, block: Block) -> Block:
        rows, targets = torch_rows(block.read()), block.targets
        if self.classes is None:
            targets = as_float32(real_targets(targets, "float64"))
        else:
            targets = encode_labels(targets, self.classes)
        return replace(block, rows=rows.reshape(len(rows), *self.shape), targets=targets, chosen=None, steps=())


@dataclass(frozen=True)
class _BatchSum:
    """The integer sums of the clipped gradients of one block's batch.

    There is one array for each parameter, and the number of records.

    A function of the block and of these constants alone. ``mechanism`` holds the module at its current parameters;
    ``run`` is the name of the run, for what is kept between its steps. ``shares`` says which persons of each block are
    in the batch. Layers that draw for themselves draw from ``layers``, the same when a block is read again.

    Theory: section 1.6
    """

    mechanism: OpacusTraining
    layers: BlockStreams
    run: bytes
    step: int = 0
    shares: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def for_block(self, number: int) -> "_BatchSum":
        """Return the same with the share of one block alone."""
        return replace(self, shares={number: self.shares[number]})

    def __call__(self, block: Block) -> "_TensorSums":
        """Return the sums where they were computed, and the number of records."""
        return translate_memory_errors(lambda: self._summed(block), self.mechanism._memory_error_text)

    def _summed(self, block: Block) -> "_TensorSums":
        torch, mechanism = load_torch(), self.mechanism
        device, last = torch.device(mechanism.device), self.step == mechanism.steps - 1
        batch = block.owners.rows_of(self.shares[block.id])
        rows, target = torch.from_numpy(block.rows), torch.from_numpy(block.targets)
        weights = None if block.weights is None else torch.tensor(block.weights, device=device)
        layers = self.layers.generator(block.id, self.step)
        with _ENGINES.of(self.run, partial(_Engine, mechanism), last=last) as engine, secret_draws(layers.bytes):
            engine.start_from(mechanism.module)
            sums = [torch.zeros(p.shape, dtype=torch.int64, device=p.device) for p in engine.trained]
            for begin in range(0, len(batch), mechanism.physical_batch):
                part = torch.from_numpy(batch[begin : begin + mechanism.physical_batch])
                samples = gradient_rows(
                    engine.module, mechanism._losses, rows[part].to(device), target[part].to(device)
                )
                add_clipped(samples, mechanism.clip_norm, sums, None if weights is None else weights[part])
            engine.check(mechanism.module, last=last)
        return _TensorSums(sums, len(batch))


@dataclass(frozen=True)
class _TensorSums:
    """Hold sums, one tensor per parameter, and the number of records.

    They stay on their device until they are pickled.
    """

    sums: Sequence[Any]
    size: int

    def __add__(self, other: "_TensorSums") -> "_TensorSums":
        added = [a + b.to(a.device) for a, b in zip(self.sums, other.sums, strict=True)]
        return _TensorSums(added, self.size + other.size)

    def __reduce__(self) -> Any:
        return _arrived, ([total.cpu().numpy() for total in self.sums], self.size)


def _arrived(sums: Sequence[NDArray[np.int64]], size: int) -> _TensorSums:
    return _TensorSums([load_torch().from_numpy(np.array(total)) for total in sums], size)


class _Engine:
    """A module with Opacus' hooks, and digests of what must not change in it."""

    def __init__(self, mechanism: OpacusTraining) -> None:
        grad_sample_module, _ = load_opacus()
        self.inner = private_copy(mechanism.module).to(mechanism.device)
        # loss_reduction="sum": gradients of the summed loss are the records' own gradients, unscaled
        self.module = grad_sample_module(self.inner, loss_reduction="sum")
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self.start = state_of(self.inner)
        self._versions = self._found_versions()

    def start_from(self, module: "torch.nn.Module") -> None:
        """Copy the parameters of this module and switch to training mode."""
        released_copy(self.inner, module)
        self.inner.train()

    def check(self, module: "torch.nn.Module", *, last: bool) -> None:
        """Refuse a module that changed its own state.

        All of it after the last step and where torch saw a change.

        The trained parameters must be those of ``module`` in every step. The bits of a frozen backbone are too many to
        look at in every step.
        """
        equal, kept = load_torch().equal, dict(module.named_parameters())
        moved = [name for name, p in self.inner.named_parameters() if p.requires_grad and not equal(p, kept[name])]
        refuse_changes(tuple(moved))
        if last or self._found_versions() != self._versions:
            check_unchanged(self.start, self.inner)

    def _found_versions(self) -> list[tuple[int, int]]:
        kept = [*self.inner.buffers(), *(p for p in self.inner.parameters() if not p.requires_grad)]
        return [(id(value), value._version) for value in kept]


_ENGINES: PerThread[_Engine] = PerThread()


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
        used = [(s.flatten(1).float().double(), total) for s, total in zip(samples, sums, strict=True) if s is not None]
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


def ledger_of_engine(privacy_engine: Any) -> Ledger:
    """Return the ledger of an Opacus PrivacyEngine.

    One entry for each stretch of its accountant's history.

    Paper: Supplement S6.1 [supp:privacy_accounting]
    """
    accountant = getattr(privacy_engine, "accountant", None)
    history = getattr(accountant, "history", None)
    if history is None:
        raise TypeError("privacy_engine must be an Opacus PrivacyEngine; this object has no accountant with a history")
    if not history:
        raise ValueError("privacy_engine has recorded no step; pass the engine that trained the module")
    ledger = Ledger()
    for noise, rate, steps in history:
        event = dpsgd_event(float(noise), float(rate), int(steps)) if noise > 0 else non_private_event()
        ledger = ledger.add("train", event, "Opacus, assuming Poisson sampling; noise from torch's generator")
    return ledger.declare(opacus_normaliser="Opacus divides by a number of records taken from the data")
