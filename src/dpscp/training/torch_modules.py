"""What a torch module must be so that clipping its per-record gradients bounds what one record can do.

Three things are checked. Every submodule, by kind: layers that mix records, or keep statistics of them, are
refused, or held in evaluation mode for good where they are frozen. The whole module, on made-up rows before any
record is used (``rehearse``): it must run, and the gradients that Opacus hands out must be those of each record
alone. And its state after training: no buffer and no frozen parameter may have changed.

The only file that imports torch, but for the source that uses its process groups; and only when it is asked to:
``pip install dpscp[torch]``.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result")
_EXTRA = "training a torch module needs torch and Opacus, which are an optional extra: pip install 'dpscp[torch]'"
_MADE_UP_ROWS = 4
# A rehearsal moves every trained parameter off its start: a gradient that is zero there hides what it is made of.
_MADE_UP_STEP = 0.05


def load_torch() -> Any:
    """The torch package; an ImportError that names the extra where it is missing."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return torch


def load_opacus() -> tuple[Any, Any]:
    """Opacus' GradSampleModule and ModuleValidator."""
    load_torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing Opacus warns about its own internals
            from opacus.grad_sample import GradSampleModule
            from opacus.validators import ModuleValidator
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return GradSampleModule, ModuleValidator


def comes_from_torch(value: Any) -> bool:
    """Whether an object's class is torch's or made from one of torch's; torch is not imported for that."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(value).__mro__)


# ---- kinds of layers


def private_copy(module: Any) -> Any:
    """A copy of the module in training mode, its frozen parts in evaluation mode for good; ValueError for a layer that
    mixes records.

    A part is frozen when it has parameters and none of them is trained. A normalisation layer without parameters is
    frozen when it lies in such a part, or is in evaluation mode.
    """
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    for path, part in module.named_modules():
        # asked of the kind: a lazy layer without a shape cannot be copied, let alone checked
        if isinstance(part, torch.nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            raise ValueError(f"{_place(path, part)} is lazy, without a shape: apply the module to a made-up row first")
    copied = copy.deepcopy(module)
    if not any(p.requires_grad for p in copied.parameters()):
        raise ValueError("module has no parameter that requires a gradient: there is nothing to train")
    frozen = _frozen_parts(copied)
    for path, part in copied.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and _keeps_or_uses_statistics(part):
            _refuse_statistics(path, part, part in frozen)
            frozen.add(part)
    for part in frozen:
        part.train(False)
        part.train = partial(_stays_in_evaluation, part)
    return copied.train()


def _stays_in_evaluation(part: Any, mode: bool = True) -> Any:  # noqa: ARG001 (the signature of Module.train)
    """Takes the place of a frozen part's ``train``."""
    return part


def _frozen_parts(module: Any) -> set[Any]:
    parts: set[Any] = set()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            parts.update(part.modules())
    return parts


def _keeps_or_uses_statistics(norm: Any) -> bool:
    """Whether a normalisation layer uses more of a batch than one record, or remembers it, in training mode."""
    instance = load_torch().nn.modules.instancenorm._InstanceNorm
    return not isinstance(norm, instance) or norm.running_mean is not None or norm.running_var is not None


def _refuse_statistics(path: str, norm: Any, frozen: bool) -> None:
    torch = load_torch()
    place = _place(path, norm)
    if isinstance(norm, torch.nn.modules.instancenorm._InstanceNorm):
        reason = "keeps running statistics of the records"
    else:
        reason = "mixes the records of a batch"
    instead = f"use {_replacement(norm)}"
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError(f"{place} {reason}, in evaluation mode too (it has no running statistics): {instead}")
    if any(p.requires_grad for p in norm.parameters()):
        raise ValueError(
            f"{place} {reason}: {instead}, or freeze it with requires_grad_(False), which keeps it in evaluation mode"
        )
    if norm.training and not frozen:
        raise ValueError(
            f"{place} {reason}, without a parameter to train: {instead}, or call eval() on it if its running "
            "statistics come from public data and shall stay as they are"
        )


def advice(module: Any) -> str:
    """Which trained layers Opacus cannot take, each with the one to put in its place; empty where none is known.

    ``private_copy`` has looked at normalisation layers already.
    """
    norm = load_torch().nn.modules.batchnorm._NormBase
    found = [
        (path, part, _replacement(part))
        for path, part in module.named_modules()
        if not isinstance(part, norm) and any(p.requires_grad for p in part.parameters())
    ]
    return "; ".join(f"{_place(path, part)}: use {layer}" for path, part, layer in found if layer)


def _replacement(part: Any) -> str:
    """The layer to use instead, written out as ``ModuleValidator.fix`` would put it in place; empty where none is."""
    nn = load_torch().nn
    kind = type(part).__name__
    if isinstance(part, nn.modules.instancenorm._InstanceNorm):
        return f"torch.nn.{kind}({part.num_features}, affine={part.affine}, track_running_stats=False)"
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        groups, affine = math.gcd(32, part.num_features), "" if part.affine else ", affine=False"
        return (
            f"torch.nn.GroupNorm({groups}, {part.num_features}{affine}), as "
            "opacus.validators.ModuleValidator.fix(module) does"
        )
    if isinstance(part, nn.LSTM | nn.GRU):
        return f"opacus.layers.DP{kind}({part.input_size}, {part.hidden_size}, {part.num_layers}, batch_first=True)"
    if isinstance(part, nn.MultiheadAttention):
        return f"opacus.layers.DPMultiheadAttention({part.embed_dim}, {part.num_heads}, batch_first=True)"
    return ""


def _place(path: str, part: Any) -> str:
    return f"{type(part).__name__} at {path!r}" if path else f"the module itself ({type(part).__name__})"


# ---- state that is not trained


def state_of(module: Any, *, trained: bool = False) -> dict[str, Any]:
    """The bits of every buffer and every frozen parameter, copied; of the trained parameters too where asked for."""
    return {name: bits.clone() for name, bits in _state_bits(module, trained).items()}


def _state_bits(module: Any, trained: bool) -> dict[str, Any]:
    kept = dict(module.named_buffers())
    kept |= {name: p for name, p in module.named_parameters() if trained or not p.requires_grad}
    return {name: _bits(value) for name, value in kept.items()}


def _bits(value: Any) -> Any:
    return value.detach().contiguous().reshape(-1).view(load_torch().uint8)


def check_unchanged(before: Mapping[str, Any], module: Any, *, trained: bool = False) -> None:
    """Refuse a module whose ``state_of`` is not what it was."""
    equal, after = load_torch().equal, _state_bits(module, trained)
    same = {name for name in before.keys() & after.keys() if equal(before[name], after[name])}
    changed = sorted((before.keys() | after.keys()) - same)
    if changed:
        raise ValueError(
            f"the module changed its own state while it was applied ({', '.join(changed)}), and such state would be "
            "released without noise: keep the layer frozen and in evaluation mode, or take the update out of forward"
        )


def released_copy(start: Any, trained: Any) -> Any:
    """The starting module with the trained parameters and nothing else of what training left behind."""
    parameters = dict(trained.named_parameters())
    with load_torch().no_grad():
        for name, parameter in start.named_parameters():
            parameter.copy_(parameters[name])
    return start.eval()


def refuse_unknown_buffers(module: Any, start_buffers: Mapping[str, Any] | None) -> None:
    """Refuse buffers of a module trained elsewhere unless they are shown to be those of before training."""
    torch = load_torch()
    for name, value in module.named_buffers():
        remedy = (
            "take start_buffers={name: value.clone() for name, value in module.named_buffers()} before training, and "
            "pass it here"
        )
        if start_buffers is None or not isinstance(start_buffers.get(name), torch.Tensor):
            raise ValueError(f"nothing shows that the buffer {name!r} does not come from the records: {remedy}")
        before = start_buffers[name]
        if before.data_ptr() == value.data_ptr() and value.numel():
            raise ValueError(f"start_buffers[{name!r}] is the module's own memory, not a copy: {remedy}")
        alike = before.shape == value.shape and before.dtype == value.dtype and before.device == value.device
        if not alike or not torch.equal(_bits(before), _bits(value)):
            raise ValueError(
                f"the buffer {name!r} changed during training: it holds statistics of the records that the engine's "
                "account does not cover; train with the layer in evaluation mode"
            )


def without_opacus_hooks(module: Any) -> Any:
    """A copy of a module that an Opacus wrapper held, without what the wrapper hung on it."""
    copied = copy.deepcopy(module)
    for part in copied.modules():
        for hooks in (part._forward_hooks, part._backward_hooks):
            for key, hook in list(hooks.items()):
                function = hook.func if isinstance(hook, partial) else hook
                if type(getattr(function, "__self__", None)).__module__.startswith("opacus."):
                    del hooks[key]
        for name in ("autograd_grad_sample_hooks", "ft_compute_sample_grad", "activations", "max_batch_len"):
            vars(part).pop(name, None)
    return copied


# ---- per-record gradients


def gradient_rows(module: Any, losses: Callable[[Any, Any], Any], rows: Any, target: Any) -> list[Any]:
    """One (records, *shape) gradient for every trained parameter of a GradSampleModule; None for an unused one.

    ValueError unless each has exactly one row a record: clipping rows that are not records bounds nothing. An error
    inside the module is told without its message, which may carry counts and values; where there is no room, torch's
    goes to `with_room`. No gradient stays behind in the module.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    failure = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings print shapes, and with them the size of a batch
        try:
            values = losses(module(rows), target)
            one_loss_a_record = values.shape == (len(rows),)
            if one_loss_a_record:
                values.sum().backward()
        except Exception as error:
            if out_of_memory(error):
                raise
            failure = type(error).__name__
    samples = [p.grad_sample for p in trained]
    for parameter in trained:  # Opacus would keep the records' gradients as long as the module lives
        parameter.grad = parameter.grad_sample = None
    if failure:
        raise RuntimeError(
            f"the module or its loss failed on the records ({failure}); the message is withheld because it may carry "
            "something of them: try made-up records of the same kind"
        )
    if not one_loss_a_record:
        raise ValueError("loss must return one number a record")
    for parameter, sample in zip(trained, samples, strict=True):
        if sample is not None and (isinstance(sample, list) or sample.shape != (len(rows), *parameter.shape)):
            raise ValueError(
                "a per-record gradient does not have exactly one row a record: some layer sees another number of rows "
                "than there are records (tokens folded into the batch, for instance); keep records in the first "
                "dimension through every layer with parameters: Linear, DPLSTM and DPMultiheadAttention take "
                "(records, tokens, features)"
            )
    return samples


def out_of_memory(error: Exception) -> bool:
    """Whether there was no room."""
    short = isinstance(error, MemoryError | load_torch().cuda.OutOfMemoryError)
    return short or "can't allocate memory" in str(error)  # a plain RuntimeError, on the processor


def with_room(work: Callable[[], Result], remedy: str) -> Result:
    """What the work gives; where there is no room for it, MemoryError with our words.

    Those of torch and NumPy count bytes, and so the records of a batch, or all of them.
    """
    try:
        return work()
    except Exception as error:
        if not out_of_memory(error):
            raise
    raise MemoryError(remedy)  # outside the handler: nothing leads from here to the other words


# ---- the rehearsal


def rehearse(
    module: Any,
    input_shape: tuple[int, ...],
    target: Callable[[int, Any], Any],
    losses: Callable[[Any, Any], Any],
    *,
    device: str,
    n_outputs: int | None = None,
) -> int:
    """Run the module on made-up rows and compare every record's gradient with the one plain autograd finds for that
    record alone; the number of outputs a record.

    ``module`` is a ``private_copy``, ``target(count, dtype)`` makes up targets. Refused: a module that fails, that has
    another number of outputs than ``n_outputs``, that mixes records, in whatever way, or whose state changes. Layers of
    torch's own dropout are switched off; a module that draws its own random numbers is compared with the same draws in
    training mode, and record by record in evaluation mode.
    """
    torch = load_torch()
    forked = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=forked), torch.enable_grad():
        stage = _Stage.found(module, input_shape, target, losses, device, n_outputs)
        stage.compare()
        return stage.n_outputs


class _Stage:
    """A copy of the module with made-up rows and targets that it accepts."""

    def __init__(self, module: Any, rows: Any, target: Any, losses: Callable[[Any, Any], Any], n_outputs: int) -> None:
        self.module, self.rows, self.target, self.losses, self.n_outputs = module, rows, target, losses, n_outputs

    @classmethod
    def found(
        cls,
        module: Any,
        input_shape: tuple[int, ...],
        target: Callable[[int, Any], Any],
        losses: Callable[[Any, Any], Any],
        device: str,
        n_outputs: int | None,
    ) -> "_Stage":
        """The first precision and kind of rows with which the module runs: float64 shows the weakest mixing."""
        torch = load_torch()
        failure: Exception | None = None
        for dtype in (torch.float64, torch.float32):
            trial = copy.deepcopy(module).to(device=device, dtype=dtype)
            _switch_off_dropout(trial)
            goals = target(_MADE_UP_ROWS, dtype).to(device)
            for rows in made_up_rows(input_shape):
                rows = rows.to(device=device, dtype=dtype)
                try:
                    outputs = trial(rows)
                except Exception as error:
                    failure = error
                    continue
                width = _check_outputs(outputs, n_outputs)
                try:
                    values = losses(outputs, goals)
                    usable = bool(torch.isfinite(outputs).all() and torch.isfinite(values).all())
                except Exception as error:
                    failure = error
                    continue
                if values.shape != (_MADE_UP_ROWS,):
                    raise ValueError("loss must return one number a record")
                if usable:
                    return cls(trial, rows, goals, losses, width)
        # the cause speaks of made-up rows only
        raise ValueError(
            f"the module or its loss fails on made-up rows of shape {tuple(input_shape)}, before any record was used: "
            "its first layer must fit the number of features, its outputs the loss"
        ) from failure

    def compare(self) -> None:
        """Refuse the module if what Opacus calls the gradient of a record is anything else."""
        torch = load_torch()
        self._move_parameters()
        before = state_of(self.module, trained=True)
        draws = not torch.equal(self._outputs(0), self._outputs(1))
        plain = copy.deepcopy(self.module)
        wrapper, _ = load_opacus()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Opacus warns about torch's names for its hooks
            wrapped = wrapper(self.module, loss_reduction="sum")
        torch.manual_seed(0)
        found = gradient_rows(wrapped, self.losses, self.rows, self.target)
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        samples = [
            torch.zeros_like(p).expand(len(self.rows), *p.shape) if s is None else s
            for p, s in zip(trained, found, strict=True)
        ]
        if draws:
            _require_same(samples, [self._within(plain, self.rows, self.target, i) for i in range(len(self.rows))])
            _require_same(samples, [self._among_others(plain, i) for i in range(len(self.rows))])
            plain.eval()
            in_batch = [self._within(plain, self.rows, self.target, i) for i in range(len(self.rows))]
            samples = [torch.stack(one) for one in zip(*in_batch, strict=True)]
        _require_same(samples, [self._alone(plain, i) for i in range(len(self.rows))])
        for used in (self.module, plain):
            check_unchanged(before, used, trained=True)

    def _move_parameters(self) -> None:
        torch = load_torch()
        trained = [p for p in self.module.parameters() if p.requires_grad]
        start = [p.detach().clone() for p in trained]
        source = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in trained:
                p.add_(torch.randn(p.shape, generator=source, dtype=p.dtype).to(p.device), alpha=_MADE_UP_STEP)
            if not torch.isfinite(self._outputs(0)).all():
                for p, value in zip(trained, start, strict=True):
                    p.copy_(value)

    def _outputs(self, seed: int) -> Any:
        torch = load_torch()
        torch.manual_seed(seed)
        with torch.no_grad():
            return self.module(self.rows)

    def _within(self, plain: Any, rows: Any, target: Any, record: int) -> list[Any]:
        """The gradient of one record's loss in this batch, by plain autograd."""
        torch = load_torch()
        torch.manual_seed(0)
        loss = self.losses(plain(rows), target)[record]
        trained = [p for p in plain.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]

    def _among_others(self, plain: Any, record: int) -> list[Any]:
        rows, target = self.rows.flip(0), self.target.flip(0)
        rows[record], target[record] = self.rows[record], self.target[record]
        return self._within(plain, rows, target, record)

    def _alone(self, plain: Any, record: int) -> list[Any]:
        one = slice(record, record + 1)
        return self._within(plain, self.rows[one], self.target[one], 0)


def _check_outputs(outputs: Any, n_outputs: int | None) -> int:
    torch = load_torch()
    if not isinstance(outputs, torch.Tensor) or outputs.ndim == 0 or len(outputs) != _MADE_UP_ROWS:
        raise ValueError("module must return one tensor with one row a record")
    if n_outputs is None:
        return int(outputs[0].numel())
    if outputs.ndim != 2 or outputs.shape[1] != n_outputs:
        found = tuple(outputs.shape[1:])
        raise ValueError(
            f"module must have one output for each of the {n_outputs} classes, outputs of shape "
            f"(records, {n_outputs}); its outputs have the shape (records, {', '.join(map(str, found))})"
        )
    return n_outputs


def made_up_rows(input_shape: tuple[int, ...], count: int = _MADE_UP_ROWS) -> Iterator[Any]:
    """Rows for modules of any numbers, of numbers in (0, 1), and of token ids; the same ones wherever they are made."""
    torch = load_torch()
    shape = (count, *input_shape)
    # SplitMix64 of 1, 2, ...: torch's generators may change from version to version
    bits = np.arange(1, 1 + math.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    unit = (((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53).reshape(shape)
    yield torch.from_numpy((unit - 0.5) * math.sqrt(12))
    yield torch.from_numpy(unit)
    tokens = (unit > 0.5).astype(np.float64)
    tokens.reshape(count, -1)[:, 0] = np.arange(count) % 2  # at least two rows differ
    yield torch.from_numpy(tokens)


def _switch_off_dropout(module: Any) -> None:
    nn = load_torch().nn
    own = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    for part in module.modules():
        if type(part) in own:  # not a subclass, which may do anything
            part.eval()


def _require_same(samples: list[Any], references: list[list[Any]]) -> None:
    """Refuse unless row i of every gradient is the reference of record i, up to rounding."""
    torch = load_torch()
    expected = [torch.stack(one) for one in zip(*references, strict=True)]
    largest = max((float(e.abs().max()) for e in expected if e.numel()), default=0.0)
    for sample, wanted in zip(samples, expected, strict=True):
        # the second term: a gradient that is zero but for rounding has no relative precision
        relative, absolute = (1e-7, 1e-11) if wanted.dtype == torch.float64 else (1e-3, 1e-5)
        allowed = relative * float(wanted.abs().max()) + absolute * largest if wanted.numel() else 0.0
        if not bool(((sample - wanted).abs() <= allowed).all()):
            raise ValueError(
                "on made-up rows the gradient of a record depends on the other records, or is not the gradient of its "
                "own loss: some layer or the loss mixes records (attention or means over the first dimension, "
                "batch_first=False, division by the batch size), or uses parameters of another layer; treat each "
                "record separately"
            )
