"""Check that clipping per-record gradients of a module bounds one record's effect.

Three things are checked. Every submodule, by kind: layers that mix records, keep statistics of them or rewrite their
parameters are refused, or held in evaluation mode for good where they are frozen. The whole module, on synthetic rows
before any record is used (``dry_run``). And its state after training: nothing in it may have changed.

The only file that imports torch, but for the source that uses its process groups; and only when it is needed:
``pip install dpscp[torch]``.
"""

import copy
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from dpscp._base.object_state import OPACUS_ATTRIBUTES, changed_paths, has_array, reachable, state_digest

Result = TypeVar("Result")
# Characters of an error on synthetic rows that are shown.
_LONGEST_WORDS = 200
_EXTRA = "training a torch module needs torch and Opacus; run: pip install 'dpscp[torch]'"


def load_torch() -> Any:
    """Import torch and return it.

    An ImportError that names the extra where it is missing.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    return torch


def load_opacus() -> tuple[Any, Any]:
    """Return Opacus' GradSampleModule and ModuleValidator."""
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
    """Return whether an object's class comes from torch.

    Torch is not imported for that.
    """
    return any(base.__module__.partition(".")[0] == "torch" for base in type(value).__mro__)


def rows_dtype(module: Any) -> Any:
    """Return the precision of the rows that a module takes: float64 if all its parameters are, else float32."""
    torch = load_torch()
    kinds = {p.dtype for p in module.parameters()}
    return torch.float64 if kinds == {torch.float64} else torch.float32


# ---- kinds of layers


def private_copy(module: Any) -> Any:
    """Return a copy in training mode whose frozen parts stay in evaluation mode.

    ValueError for a layer that mixes records.

    A part is frozen when it has parameters and none of them is trained. A normalization layer without parameters is
    frozen when it is in such a part, or is in evaluation mode.
    """
    torch = load_torch()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    for path, part in module.named_modules():
        # checked by kind: a lazy layer without a shape cannot be copied, let alone checked
        if isinstance(part, torch.jit.ScriptModule) or type(part).__module__.startswith("torch._dynamo"):
            raise ValueError(
                f"{_place(path, part)} was made by torch.compile or torch.jit, and its code cannot be checked; pass "
                "the plain module, and compile the trained one"
            )
        if isinstance(part, torch.nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            raise ValueError(
                f"{_place(path, part)} is lazy and has no shape; apply the module to a synthetic row first"
            )
        if isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) and part.max_norm is not None:
            raise ValueError(
                f"{_place(path, part)} has max_norm={part.max_norm:g} and so rewrites its parameters in forward "
                "without noise; leave max_norm out"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"the parameter {name!r} has a hook (register_hook), which copies of the module do not have, so it "
                "would do nothing; remove the hook, and apply a mask in forward"
            )
    copied = separate_copy(module)
    if not any(p.requires_grad for p in copied.parameters()):
        raise ValueError(
            "module has no parameter that requires a gradient, so there is nothing to train; call requires_grad_(True)"
        )
    frozen = _frozen_parts(copied)
    for path, part in copied.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and _keeps_or_uses_statistics(part):
            _refuse_statistics(path, part, part in frozen)
            frozen.add(part)
    hold_in_evaluation(frozen)
    return copied.train()


def hold_in_evaluation(parts: Iterable[Any]) -> None:
    """Put parts of a copy into evaluation mode for good: ``train`` has no effect on them, whoever calls it."""
    for part in parts:
        part.train(False)
        part.train = partial(_stays_in_evaluation, part)


def separate_copy(module: Any) -> Any:
    """Return a deep copy that shares no part, parameter or buffer with the module.

    ValueError where there is none.
    """
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        failure = type(error).__name__
    else:
        own = {id(part) for part in _parts_of(module)}
        if not any(id(part) in own for part in _parts_of(copied)):
            return copied
        failure = "the copy shares parts with the module"
    raise ValueError(
        f"module cannot be copied ({failure}), and training works on copies; remove tensors of earlier calls and any "
        "__deepcopy__ method from it. torch.nn.utils.weight_norm keeps such a tensor, "
        "torch.nn.utils.parametrizations.weight_norm does not"
    )


def _parts_of(module: Any) -> list[Any]:
    return [*module.modules(), *module.parameters(), *module.buffers()]


def _stays_in_evaluation(part: Any, mode: bool = True) -> Any:  # noqa: ARG001 (the signature of Module.train)
    """Replace ``train`` of a frozen part, which stays in evaluation mode."""
    return part


def _frozen_parts(module: Any) -> set[Any]:
    parts: set[Any] = set()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            parts.update(part.modules())
    return parts


def _keeps_or_uses_statistics(norm: Any) -> bool:
    """Return whether a normalization layer uses or stores batch statistics.

    This concerns training mode.
    """
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
        raise ValueError(f"{place} {reason}, also in evaluation mode (it has no running statistics): {instead}")
    if any(p.requires_grad for p in norm.parameters()):
        raise ValueError(
            f"{place} {reason}: {instead}, or freeze it with requires_grad_(False), which keeps it in evaluation mode"
        )
    if norm.training and not frozen:
        raise ValueError(
            f"{place} {reason} and has no parameter to train: {instead}, or call eval() on it if its running "
            "statistics come from public data and should not change"
        )


def has_recurrent_layers(module: Any) -> bool:
    """Return whether a module trains one of torch's recurrent layers, whose gradients Opacus cannot compute."""
    parts = (part for part in module.modules() if isinstance(part, load_torch().nn.RNNBase))
    return any(p.requires_grad for part in parts for p in part.parameters())


def suggest_layers(module: Any) -> str:
    """Return replacements for trained layers that Opacus cannot handle.

    The text is empty where none is known.

    ``private_copy`` has looked at normalization layers already.
    """
    norm = load_torch().nn.modules.batchnorm._NormBase
    found = [
        (path, part, _replacement(part))
        for path, part in module.named_modules()
        if not isinstance(part, norm) and any(p.requires_grad for p in part.parameters())
    ]
    return "; ".join(f"{_place(path, part)}: use {layer}" for path, part, layer in found if layer)


def suggest_own_layers(module: Any, *, beside: str) -> str:
    """Return which trained parameters need a layer of their own.

    Opacus runs the layer that has them once more, with all that is inside. ``beside``: "buffers" or "layers".
    """
    found = [
        (path, part, [name for name, p in part.named_parameters(recurse=False) if p.requires_grad])
        for path, part in module.named_modules()
        if next(part.buffers() if beside == "buffers" else part.children(), None) is not None
    ]
    return "; ".join(
        f"{_place(path, part)} has parameters of its own ({', '.join(names)}) beside {beside}: move each one into a "
        "torch.nn.Module that has nothing else, such as one whose forward returns rows + self.position"
        for path, part, names in found
        if names
    )


def _replacement(part: Any) -> str:
    """Return the layer to use instead, as code; empty where none is known.

    It is the one of ``ModuleValidator.fix``.
    """
    nn = load_torch().nn
    kind = type(part).__name__
    if isinstance(part, nn.modules.instancenorm._InstanceNorm):
        return f"torch.nn.{kind}({part.num_features}, affine={part.affine}, track_running_stats=False)"
    if isinstance(part, nn.BatchNorm1d):  # of flat rows: one feature in a group would become zero
        return f"torch.nn.GroupNorm(1, {part.num_features}{'' if part.affine else ', affine=False'})"
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        groups, affine = math.gcd(32, part.num_features), "" if part.affine else ", affine=False"
        return (
            f"torch.nn.GroupNorm({groups}, {part.num_features}{affine}), as "
            "opacus.validators.ModuleValidator.fix(module) does"
        )
    if isinstance(part, nn.RNNBase):
        usual = {"bias": True, "dropout": 0.0, "bidirectional": False, "proj_size": 0, "nonlinearity": "tanh"}
        options = {name: getattr(part, name, value) for name, value in usual.items()}
        more = "".join(f", {name}={value!r}" for name, value in options.items() if value != usual[name])
        sizes = f"{part.input_size}, {part.hidden_size}, {part.num_layers}"
        return f"opacus.layers.DP{kind}({sizes}, batch_first=True{more})"
    if isinstance(part, nn.EmbeddingBag):
        return (
            f"torch.nn.Embedding({part.num_embeddings}, {part.embedding_dim}) and the {part.mode} of its vectors over "
            "the words of a record"
        )
    if nn.utils.parametrize.is_parametrized(part) and next(part.buffers(), None) is not None:
        return f"torch.nn.{type(part).__mro__[1].__name__} without a parametrization that has buffers (spectral_norm)"
    if isinstance(part, nn.MultiheadAttention):
        return f"opacus.layers.DPMultiheadAttention({part.embed_dim}, {part.num_heads}, batch_first=True)"
    return ""


def _place(path: str, part: Any) -> str:
    return f"{type(part).__name__} at {path!r}" if path else f"the module itself ({type(part).__name__})"


# ---- state that is not trained


# Where torch keeps the hooks of `register_module_forward_hook` and its like.
_SHARED_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)


def state_of(module: Any, *, trained: bool = False, has_opacus_hooks: bool = False) -> dict[str, str]:
    """Return a digest of all that a module holds, Python attributes included, and of hooks that all modules call.

    Trained parameters are included only if ``trained`` is true. What Opacus' hooks write is left out.
    """
    digest = state_digest(module, ignore=OPACUS_ATTRIBUTES if has_opacus_hooks else frozenset())
    if not trained:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                digest.pop(f".{name}", None)
    shared = load_torch().nn.modules.module
    for name in _SHARED_HOOKS:
        hooks = list(getattr(shared, name).values())
        digest |= {f".{name}{path}": found for path, found in state_digest(hooks).items()} if hooks else {}
    return digest


def check_unchanged(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Refuse a module, or a loss, whose digest has changed.

    Only names of the start are given: a new name, or a key of a dictionary, may come from a record.
    """
    refuse_changes(changed_paths(before, after, known_only=True))


def refuse_changes(paths: tuple[str, ...]) -> None:
    """Refuse a module, or a loss, whose values at these paths changed."""
    if paths and all(
        path.endswith(".max_batch_len") for path in paths
    ):  # Opacus sorts the gradients of such records by length
        raise ValueError(
            "a recurrent layer of Opacus gets a PackedSequence, for which it has no gradients of single records. Give "
            "it padded rows (records, words, features), and take the outputs at the last word of each record"
        )
    if paths:
        raise ValueError(
            f"the module or its loss changed its own state in a forward pass ({', '.join(paths)}), and such state may "
            "contain data of the records. Keep layers with statistics frozen and in evaluation mode, and remove every "
            "update of parameters, buffers and attributes from forward, from hooks and from the loss. For a cache "
            "that the first call fills, call the module on a synthetic row before fit"
        )


def _bits(value: Any) -> Any:
    return value.detach().contiguous().reshape(-1).view(load_torch().uint8)


def released_copy(start: Any, trained: Any) -> Any:
    """Copy the trained parameters into the starting module and return it.

    Nothing else of training is kept.
    """
    parameters = dict(trained.named_parameters())
    with load_torch().no_grad():
        for name, parameter in start.named_parameters():
            parameter.copy_(parameters[name])
    return start.eval()


def refuse_unknown_buffers(module: Any, start_buffers: Mapping[str, Any] | None) -> None:
    """Refuse buffers of a module trained elsewhere that training may have set.

    ``start_buffers`` shows which buffers did not change.
    """
    torch = load_torch()
    remedy = (
        "make start_buffers={name: value.clone() for name, value in module.named_buffers()} before training, and "
        "pass it here"
    )
    for name, value in module.named_buffers():
        if start_buffers is None or not isinstance(start_buffers.get(name), torch.Tensor):
            raise ValueError(f"the buffer {name!r} may come from the records: {remedy}")
        before = start_buffers[name]
        if before.data_ptr() == value.data_ptr() and value.numel():
            raise ValueError(f"start_buffers[{name!r}] is the module's own memory, not a copy: {remedy}")
        alike = before.shape == value.shape and before.dtype == value.dtype and before.device == value.device
        if not alike or not torch.equal(_bits(before), _bits(value)):
            raise ValueError(
                f"the buffer {name!r} changed during training, so it contains statistics of the records that the "
                "engine did not account for; train with the layer in evaluation mode"
            )


def refuse_unknown_arrays(module: Any) -> None:
    """Refuse arrays in attributes of a module trained elsewhere.

    Parameters and buffers are allowed.
    """
    declared = {id(value) for value in (*module.parameters(), *module.buffers())}
    for path, held in reachable(module):
        if has_array(held) and id(held) not in declared:
            raise ValueError(
                f"{path.lstrip('.')!r}, an array in an attribute of the module, may come from the records; register "
                "it as a buffer before training (register_buffer), or delete it"
            )


def without_opacus_hooks(module: Any) -> Any:
    """Return a copy of a module without the hooks of an Opacus wrapper."""
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


ONE_LOSS_EACH = (
    "loss must return one number per record, in the shape (records,). Pass reduction='none' to a loss of torch. For "
    "one output, compare outputs[:, 0] with the targets, because outputs have the shape (records, 1)"
)


def compute_out_of_place(module: Any) -> Any:
    """Return the module with torch's own activations and dropouts set to inplace=False.

    Opacus' hooks refuse changes in place. Nothing else changes, unless the module uses the input of such a layer again;
    then the dry run finds other gradients than those of the caller's module.
    """
    for part in module.modules():
        if getattr(part, "inplace", False) is True and type(part).__module__.startswith("torch.nn.modules."):
            part.inplace = False
    return module


def explain_failure(error: BaseException | None, module: Any) -> str:
    """Return the words of an error on synthetic rows, and what may help; never used for errors on records."""
    if error is None:
        return "its outputs or losses are not finite"
    words = " ".join(str(error).split())
    words = f"{words[:_LONGEST_WORDS]} ..." if len(words) > _LONGEST_WORDS else words.rstrip(".")
    text = f"{type(error).__name__}: {words}".rstrip(": ")
    remedies = [suggest_layers(module)]
    if "inplace" in words and "BackwardHook" in words:
        remedies.append("Opacus allows no change in place in this module: write x = x + y, not x += y")
    if "vmap" in words:
        remedies.append(suggest_own_layers(module, beside="layers"))
    return "; ".join([text, *filter(None, remedies)])


class OwnMessageError(Exception):
    """An error whose message is written by this package and contains nothing of a record."""


def hide_messages(work: Callable[[], Result]) -> Result:
    """Run the module on records; raise its errors without their messages, which may contain counts and values.

    Errors of memory go to `translate_memory_errors`. An `OwnMessageError` becomes a ValueError.
    """
    failure, own = "", ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings print shapes, and with them the size of a batch
        try:
            return work()
        except OwnMessageError as error:
            own = str(error)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            failure = type(error).__name__
    if own:
        raise ValueError(own)
    raise RuntimeError(
        f"the module or its loss failed on the records ({failure}). The original message is hidden because it may "
        "contain values of the records; reproduce the error with synthetic records of the same kind"
    )


def summed_losses(losses: Callable[[Any, Any], Any], outputs: Any, target: Any) -> Any:
    """Return the sum of the losses, one for each record."""
    values = losses(outputs, target)
    if values.shape != (len(target),):
        raise OwnMessageError(ONE_LOSS_EACH)
    return values.sum()


def gradient_rows(module: Any, losses: Callable[[Any, Any], Any], rows: Any, target: Any) -> list[Any]:
    """Return the per-record gradient of each trained parameter.

    Each has the shape (records, *shape); None for an unused parameter. No gradient remains in the module, nor on
    anything that the loss uses: only gradients of the trained parameters are computed.

    Raises: OwnMessageError unless each has exactly one row per record, because clipping other rows bounds nothing.
    Other errors may contain values of the records: see `hide_messages`.
    """
    names, trained = zip(*((name, p) for name, p in module.named_parameters() if p.requires_grad), strict=True)
    torch = load_torch()
    try:
        with torch.enable_grad():
            torch.autograd.grad(summed_losses(losses, module(rows), target), trained, allow_unused=True)
        samples = [p.grad_sample for p in trained]
    finally:
        for parameter in trained:  # Opacus would keep the records' gradients as long as the module lives
            parameter.grad_sample = None
    for name, parameter, sample in zip(names, trained, samples, strict=True):
        if sample is not None and (isinstance(sample, list) or sample.shape != (len(rows), *parameter.shape)):
            raise OwnMessageError(
                f"the per-record gradient of {name.removeprefix('_module.')!r} does not have exactly one row per "
                "record. Its layer gets another number of rows than there are records: tokens that are folded into the "
                "batch, or positions that all records share. Keep records in the first dimension in every layer with "
                "parameters. Linear, DPLSTM and DPMultiheadAttention accept (records, tokens, features); an Embedding "
                "of positions takes positions.expand(len(rows), -1)"
            )
    _empty_padding(module, dict(zip(map(id, trained), samples, strict=True)))
    return samples


def _empty_padding(module: Any, samples: Mapping[int, Any]) -> None:
    """Set the gradients of padding words to zero, as torch does; Opacus adds them up like those of other words."""
    uses = Counter(id(p) for part in module.modules() for p in part._parameters.values() if p is not None)
    for part in module.modules():
        is_padded = isinstance(part, load_torch().nn.Embedding) and part.padding_idx is not None
        # a table that another layer uses has gradients there too, which the dry run compares
        if is_padded and uses[id(part.weight)] == 1 and samples.get(id(part.weight)) is not None:
            samples[id(part.weight)][:, part.padding_idx] = 0


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is due to missing memory."""
    short = isinstance(error, MemoryError | load_torch().cuda.OutOfMemoryError)
    return short or "can't allocate memory" in str(error)  # a plain RuntimeError, on the processor


def require_gradients() -> None:
    """Refuse modes of torch in which gradients, or their precision, are not those of the module."""
    torch = load_torch()
    if torch.is_inference_mode_enabled():
        raise ValueError("training a torch module needs gradients; call fit outside torch.inference_mode()")
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise ValueError("a torch module is trained in its own precision; call fit outside torch.autocast()")


def translate_memory_errors(work: Callable[[], Result], remedy: str) -> Result:
    """Run the work; where memory is missing, raise MemoryError with ``remedy``.

    The messages of torch and NumPy contain numbers of bytes, and so the number of records in a batch or in all.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    raise MemoryError(remedy)  # outside the handler: nothing leads from here to the other words
