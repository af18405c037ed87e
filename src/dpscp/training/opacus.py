"""Private training of any torch module, with per-record gradients by Opacus. The only file that imports torch.

What Opacus does here: it checks the module (``ModuleValidator``) and computes per-record gradients
(``GradSampleModule``). What it does not do: Opacus' DataLoader derives its sampling rate and its normaliser
from the data, ``int(n / len(loader))``, and its noise comes from torch's generators (Mersenne twister on
the CPU, Philox on CUDA), which are not cryptographic; its ``secure_mode`` needs a package that cannot be
had. So the sampling rate, the number of steps and the normaliser are public constants here, batches and
noise come from ``dpscp.privacy.secure_generator``, noisy sums are rounded to the public grid, and an empty
batch takes a noisy step like any other. torch's own generator is still used by layers that draw for
themselves (dropout), which privacy does not depend on.

torch and Opacus are imported when a mechanism is made, not when this module is: ``pip install dpscp[torch]``.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import ArrayLike, NDArray

from dpscp._checks import check_choice, check_count, check_fraction, check_nonnegative, check_positive
from dpscp.privacy import Ledger, dpsgd_event, noise_multiplier, non_private_event, secure_generator
from dpscp.training.descent import poisson_batches
from dpscp.training.labels import check_classes, encode_labels, found_labels, real_targets
from dpscp.training.mechanism import Needs, Trained, paid_event, set_noise
from dpscp.training.private_model import softmax
from dpscp.training.release import gaussian_release, warn_large_delta

if TYPE_CHECKING:
    import torch

__all__ = ["OpacusTraining", "TorchModel", "ledger_of_engine", "torch_model"]

LOSSES = ("cross_entropy", "squared", "huber")
_EXTRA = "training a torch module needs torch and Opacus, which are an optional extra: pip install 'dpscp[torch]'"
_ROWS_PER_FORWARD = 4096


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return torch


def _opacus() -> tuple[Any, Any]:
    _torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing Opacus warns about its own internals
            from opacus.grad_sample import GradSampleModule
            from opacus.validators import ModuleValidator
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return GradSampleModule, ModuleValidator


@dataclass(frozen=True)
class OpacusTraining:
    """DP-SGD for any torch module whose layers treat records separately.

    One run releases ``steps`` noisy sums of gradients clipped to ``clip_norm``, over Poisson batches of
    rate ``sampling_rate``; the sums are divided by the public sampling_rate * n_records. ``event`` says
    exactly that. The module's weights when the mechanism is made are the starting point and must not come
    from the private records. It is copied; the caller's module is never changed.

    Parameters ---------- module : a torch.nn.Module from a batch of inputs to logits (n, classes) or real
    outputs (n, k). loss : "cross_entropy", "squared" (z - y)^2, "huber", or a callable (outputs, targets)
    -> one loss a record. sampling_rate, steps, clip_norm, noise_multiplier : the private part;
    noise_multiplier=None: call ``calibrated``. learning_rate, momentum, optimizer : "sgd" or "adam" of
    torch.optim; post-processing. classes : public labels in the order of the module's outputs; None
    declares the labels found in y public. device : where the module runs, "cpu" or "cuda"; batches and
    noise are always drawn by this package. physical_batch : records whose gradients are held at once;
    memory only, the result is the same.

    A module that mixes records without a layer Opacus knows (a hand-written batch mean) cannot be detected.

    Paper: Algorithm 3 [alg:dp-sgd], with the fixed normaliser of Theory: section 1.6
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

    def __post_init__(self) -> None:
        torch = _torch()
        _, validator = _opacus()
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(self.module).__name__}")
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
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, "cross_entropy"))
        module = copy.deepcopy(self.module).train()
        reasons = validator.validate(module, strict=False)
        if reasons:
            raise ValueError("Opacus refuses this module: " + "; ".join(str(reason) for reason in reasons))
        if not any(p.requires_grad for p in module.parameters()):
            raise ValueError("module has no parameter that requires a gradient: there is nothing to train")

    @property
    def task(self) -> str:
        """Either "classification" or "regression": cross_entropy, or a callable loss with declared classes."""
        return "classification" if self.loss == "cross_entropy" or self.classes is not None else "regression"

    @property
    def event(self) -> DpEvent | None:
        """What one run costs, from public constants only; None while the noise is not set."""
        if self.noise_multiplier is None:
            return None
        noise = float(self.noise_multiplier)
        return dpsgd_event(noise, self.sampling_rate, self.steps) if noise else non_private_event()

    def with_noise(self, noise_multiplier: float) -> Self:
        """A copy with this noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def configured(self, needs: Needs) -> Self:
        """A copy for these classes."""
        return replace(self, classes=needs.classes)

    def calibrated(self, epsilon: float, delta: float, *, accountant: str = "pld") -> Self:
        """A copy with the smallest noise multiplier that keeps one run within (epsilon, delta)."""
        noise = noise_multiplier(epsilon, delta, self.sampling_rate, self.steps, accountant=accountant)
        return replace(self, noise_multiplier=noise, budget=(float(epsilon), float(delta)))

    def train(
        self, X: ArrayLike, y: ArrayLike, *, random_state: int | None = None, n_records: int | None = None
    ) -> Trained:
        """Train a copy of the module privately; the cost is ``event``, whatever the records are."""
        event, torch = paid_event(self), _torch()
        rows = _inputs(X)
        n = check_count("n_records", len(rows) if n_records is None else n_records)
        warn_large_delta(self.budget, n)
        from_data = ["n_records"] if n_records is None else []
        classes = self.classes
        if self.task == "classification":
            if classes is None:
                classes = check_classes(found_labels(y), "cross_entropy")
                from_data.append("classes")
            target = torch.from_numpy(encode_labels(y, classes))
        else:
            target = torch.from_numpy(real_targets(y, "float32"))
        if len(target) != len(rows):
            raise ValueError("X and y must hold the same number of records")
        device = torch.device(self.device)
        rng = secure_generator(random_state)
        trained = self._descend(torch.from_numpy(rows), target, device, self.sampling_rate * n, rng)
        facts: dict[str, object] = {
            "mechanism": type(self).__name__,
            "training_steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "learning_rate": self.learning_rate,
            "clip_norm": self.clip_norm,
            "noise_multiplier": set_noise(self.noise_multiplier),
            "n_records": n,
            "input_shape": rows.shape[1:],
            "normaliser": self.sampling_rate * n,
            "taken_from_data": tuple(from_data),
        }
        if classes is not None:
            facts["classes"] = classes
        if random_state is not None:
            facts["seeded"] = True
        return Trained(TorchModel(trained, rows.shape[1:], classes, self.device), event, None, facts)

    def _descend(
        self, rows: Any, target: Any, device: Any, normaliser: float, rng: np.random.Generator
    ) -> "torch.nn.Module":
        torch = _torch()
        grad_sample_module, _ = _opacus()
        inner = copy.deepcopy(self.module).to(device).train()
        # loss_reduction="sum": gradients of the summed loss are the records' own gradients, unscaled
        module = grad_sample_module(inner, loss_reduction="sum")
        trainable = [p for p in module.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(trainable, lr=self.learning_rate)
        else:
            optimizer = torch.optim.SGD(trainable, lr=self.learning_rate, momentum=self.momentum)
        noise = set_noise(self.noise_multiplier) * self.clip_norm
        for batch in self._batches(len(rows), rng):
            sums = [torch.zeros_like(p) for p in trainable]
            for start in range(0, len(batch), self.physical_batch):
                part = torch.from_numpy(batch[start : start + self.physical_batch])
                self._add_clipped(module, trainable, rows[part].to(device), target[part].to(device), sums)
            for parameter, total in zip(trainable, sums, strict=True):
                exact = total.detach().cpu().numpy()
                released = gaussian_release(exact, noise, rng) if noise else exact
                gradient = torch.from_numpy(np.asarray(released / normaliser))
                parameter.grad = gradient.to(device=parameter.device, dtype=parameter.dtype)
            optimizer.step()
        module.remove_hooks()
        for parameter in inner.parameters():
            parameter.grad = None
            parameter.grad_sample = None
        return inner.eval()

    def _batches(self, n: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        if self.sampling_rate == 1:
            for _ in range(self.steps):
                yield np.arange(n)
            return
        source = poisson_batches(rng, n, self.sampling_rate)
        for _ in range(self.steps):
            yield next(source)

    def _add_clipped(self, module: Any, trainable: list[Any], rows: Any, target: Any, sums: list[Any]) -> None:
        """Add the clipped gradients of these records to ``sums``; each contributes at most clip_norm."""
        torch = _torch()
        losses = self._losses(module(rows), target)
        if losses.shape != (len(rows),):
            raise ValueError("loss must return one number a record")
        module.zero_grad(set_to_none=True)
        for parameter in trainable:
            parameter.grad_sample = None
        with warnings.catch_warnings():
            # torch says this of Opacus' own hooks on the first layer; nothing in it concerns a caller
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            losses.sum().backward()
        with torch.no_grad():
            samples = [p.grad_sample for p in trainable]
            squares = [s.flatten(1).double().square().sum(1) for s in samples if s is not None]
            norms = torch.stack(squares).sum(0).sqrt()
            # a hair below the bound, so that rounding of the float32 sum cannot lift a record above it; a record whose
            # gradient is not finite contributes nothing
            factors = (self.clip_norm * (1 - 1e-6) / norms.clamp(min=1e-12)).clamp(max=1.0)
            finite = torch.isfinite(norms)
            factors = torch.where(finite, factors, torch.zeros_like(factors))
            for total, sample in zip(sums, samples, strict=True):
                if sample is not None:
                    kept = sample if bool(finite.all()) else torch.nan_to_num(sample, 0.0, 0.0, 0.0)
                    total += torch.einsum("i,i...->...", factors.to(sample.dtype), kept)

    def _losses(self, outputs: Any, target: Any) -> Any:
        if callable(self.loss):
            return self.loss(outputs, target)
        functional = _torch().nn.functional
        if self.loss == "cross_entropy":
            if outputs.ndim != 2:
                raise ValueError("cross_entropy needs module outputs of shape (records, classes)")
            return functional.cross_entropy(outputs, target, reduction="none")
        column = outputs if outputs.ndim == 1 else outputs.flatten(1)
        target = target if column.ndim == 1 else target[:, None].expand_as(column)
        name = functional.mse_loss if self.loss == "squared" else functional.huber_loss
        losses = name(column, target, reduction="none")
        return losses if losses.ndim == 1 else losses.sum(1)


@dataclass(frozen=True)
class TorchModel:
    """A trained torch module behind the names of a Model; inputs and outputs are NumPy arrays.

    ``arrays`` holds the state dict. The module's code is not data: ``restore`` needs a module of the same
    shape.

    Theory: section 1.7
    """

    module: "torch.nn.Module"
    input_shape: tuple[int, ...]
    classes: tuple[Any, ...] | None = None
    device: str = "cpu"

    @property
    def task(self) -> str:
        """Either "classification" or "regression"."""
        return "regression" if self.classes is None else "classification"

    @property
    def n_features(self) -> int:
        """Numbers in one record."""
        return math.prod(self.input_shape)

    def outputs(self, X: ArrayLike) -> NDArray[Any]:
        """Logits (n, classes) or real outputs (n, k); rows may be flat or of ``input_shape``."""
        torch = _torch()
        rows = _inputs(X)
        if rows.shape[1:] != self.input_shape:
            if math.prod(rows.shape[1:]) != self.n_features:
                raise ValueError(f"X must have {self.n_features} numbers a record, got {math.prod(rows.shape[1:])}")
            rows = rows.reshape(len(rows), *self.input_shape)
        module = self.module.eval()
        parts = []
        with torch.no_grad():
            for start in range(0, max(1, len(rows)), _ROWS_PER_FORWARD):
                chunk = torch.from_numpy(rows[start : start + _ROWS_PER_FORWARD]).to(self.device)
                parts.append(module(chunk).cpu().numpy())
        values = np.concatenate(parts)
        return values[:, None] if values.ndim == 1 else values

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        """Class probabilities; TypeError for regression."""
        if self.classes is None:
            raise TypeError("predict_proba needs a classification model; this one was trained for regression")
        return softmax(self.outputs(X))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state dict as NumPy arrays."""
        return {name: value.detach().cpu().numpy() for name, value in self.module.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """The public constants as JSON values."""
        classes = None if self.classes is None else list(self.classes)
        return {"model": "torch", "input_shape": list(self.input_shape), "classes": classes}

    @classmethod
    def from_parts(cls, config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:  # noqa: ARG003
        """Refused: a module cannot be rebuilt without its code; use ``restore``."""
        raise TypeError("a torch module cannot be rebuilt without its code: use TorchModel.restore(module, ...)")

    @classmethod
    def restore(cls, module: "torch.nn.Module", config: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The saved model in a copy of ``module``, which must have the same parameters."""
        check_choice("model", config["model"], ["torch"])
        copied = copy.deepcopy(module)
        torch = _torch()
        copied.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})
        classes = None if config["classes"] is None else tuple(config["classes"])
        return cls(copied.eval(), tuple(config["input_shape"]), classes)


def torch_model(
    module: Any,
    *,
    classes: tuple[Any, ...] | None = None,
    input_shape: tuple[int, ...] | None = None,
    device: str = "cpu",
) -> TorchModel:
    """A TorchModel around a copy of a trained module (unwrapped if Opacus wrapped it)."""
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    inner = getattr(module, "_module", module)
    plain = copy.deepcopy(inner).to(device).eval()
    if input_shape is None:
        leading: Any = next((m for m in plain.modules() if not list(m.children())), None)
        if not isinstance(leading, torch.nn.Linear):
            raise ValueError("input_shape is needed: the first layer of the module is not Linear")
        input_shape = (leading.in_features,)
    labels = None if classes is None else check_classes(classes, "cross_entropy")
    return TorchModel(plain, tuple(check_count("input_shape", s) for s in input_shape), labels, device)


def ledger_of_engine(privacy_engine: Any) -> Ledger:
    """The ledger of an Opacus PrivacyEngine: one entry for each stretch of its accountant's history.

    Paper: Supplement S6.1 [supp:privacy_accounting]
    """
    accountant = getattr(privacy_engine, "accountant", None)
    history = getattr(accountant, "history", None)
    if history is None:
        raise TypeError("privacy_engine must be an Opacus PrivacyEngine: it has no accountant with a history")
    if not history:
        raise ValueError("privacy_engine has recorded no step: the module was not trained with it")
    ledger = Ledger()
    for noise, rate, steps in history:
        event = dpsgd_event(float(noise), float(rate), int(steps)) if noise > 0 else non_private_event()
        ledger = ledger.add("train", event, "Opacus, assuming Poisson sampling; noise from torch's generator")
    return ledger.declare(opacus_normaliser="Opacus divides by a number of records taken from the data")


def _inputs(X: ArrayLike) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            rows = np.array(X, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError("X must hold real numbers in equally shaped records") from None
    if rows.ndim < 2:
        raise ValueError(f"X must have at least two dimensions (records, features...), got {rows.ndim}")
    if not np.isfinite(rows).all():
        raise ValueError("X must not hold NaN, infinity, or numbers too large for float32")
    return rows
