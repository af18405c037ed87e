"""Copy the caller's module, and refuse layers by their kind before they are traced."""

import copy
import math
from collections.abc import Mapping
from typing import Any

from dpscp.torch.checks import RefusedError, is_plain
from dpscp.torch.library import torch

_nn = torch.nn
_norms = _nn.modules.batchnorm._NormBase
_instance_norms = _nn.modules.instancenorm._InstanceNorm


def rows_dtype(module: Any) -> str:
    """Return the precision of the rows that a module takes: float64 if all its parameters are, else float32."""
    return "float64" if {p.dtype for p in module.parameters()} == {torch.float64} else "float32"


def training_copy(module: Any) -> Any:
    """Return a copy in training mode whose frozen parts stay in evaluation mode.

    RefusedError for a layer that mixes records or changes its own state.

    A part is frozen when it has parameters and none of them is trained. A normalization layer without parameters is
    frozen when it is in such a part, or is in evaluation mode.
    """
    copied = separate_copy(module)
    if not any(p.requires_grad for p in copied.parameters()):
        raise RefusedError(
            "module has no parameter that requires a gradient, so there is nothing to train; call requires_grad_(True)"
        )
    frozen = _frozen_parts(copied)
    for path, part in copied.named_modules():
        if isinstance(part, _norms) and _uses_statistics(part):
            _refuse_statistics(path, part, part in frozen)
            frozen.add(part)
        if part not in frozen:
            _refuse_spectral_norm(path, part)
    copied.train()
    for part in frozen:
        part.training = False
    return copied


def separate_copy(module: Any) -> Any:
    """Return a deep copy that shares no part, parameter or buffer with the module."""
    if not isinstance(module, _nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    for path, part in module.named_modules():
        # checked by kind: a lazy layer without a shape cannot be copied
        if isinstance(part, torch.jit.ScriptModule) or type(part).__module__.startswith("torch._dynamo"):
            raise RefusedError(
                f"{_place(path, part)} was made by torch.compile or torch.jit and cannot be traced; pass the plain "
                "module, and compile the trained one"
            )
        if isinstance(part, _nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            raise RefusedError(
                f"{_place(path, part)} is lazy and has no shape; apply the module to a synthetic row first"
            )
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if not is_plain(value):
            raise RefusedError(
                f"{name!r} is a {type(value).__name__}, whose code could see records; use a dense tensor of torch"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise RefusedError(
                f"the parameter {name!r} has a hook (register_hook), which copies of the module do not have, so it "
                "would do nothing; remove the hook, and apply a mask in forward"
            )
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        failure = type(error).__name__
    else:
        own = {id(part) for part in _parts_of(module)}
        if not any(id(part) in own for part in _parts_of(copied)):
            return copied
        failure = "the copy shares parts with the module"
    raise RefusedError(
        f"module cannot be copied ({failure}), and training works on copies; remove tensors of earlier calls and any "
        "__deepcopy__ method from it. torch.nn.utils.weight_norm keeps such a tensor, "
        "torch.nn.utils.parametrizations.weight_norm does not"
    )


def released_module(start: Any, trained: Mapping[str, Any]) -> Any:
    """Return a copy of the caller's module in evaluation mode, with these trained parameters and nothing else."""
    released = separate_copy(start)
    with torch.no_grad():
        for name, parameter in released.named_parameters():
            if name in trained:
                parameter.copy_(trained[name])
    return released.eval()


def _parts_of(module: Any) -> list[Any]:
    return [*module.modules(), *module.parameters(), *module.buffers()]


def _frozen_parts(module: Any) -> set[Any]:
    parts: set[Any] = set()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            parts.update(part.modules())
    return parts


def _uses_statistics(norm: Any) -> bool:
    """Return whether a normalization layer uses or stores statistics of a batch in training mode."""
    return not isinstance(norm, _instance_norms) or norm.running_mean is not None


def _refuse_statistics(path: str, norm: Any, frozen: bool) -> None:
    """Refuse a layer with statistics of a batch, unless it keeps those that it has."""
    is_trained = any(p.requires_grad for p in norm.parameters())
    if norm.running_mean is None or is_trained or (norm.training and not frozen):
        raise RefusedError(
            f"{_place(path, norm)} mixes the records of a batch or keeps their statistics: use {_replacement(norm)}. "
            "If it has running statistics of public data, freeze it: requires_grad_(False) and eval()"
        )


def _replacement(norm: Any) -> str:
    """Return the layer to use in place of a normalization layer, as code."""
    if isinstance(norm, _instance_norms):
        return f"torch.nn.{type(norm).__name__}({norm.num_features}, affine={norm.affine}, track_running_stats=False)"
    # of flat rows: one feature in a group would become zero
    groups = 1 if isinstance(norm, _nn.BatchNorm1d) else math.gcd(32, norm.num_features)
    plain = f"torch.nn.GroupNorm({groups}, {norm.num_features}{'' if norm.affine else ', affine=False'})"
    activation = getattr(norm, "act", None)
    if isinstance(activation, _nn.Module) and not isinstance(activation, _nn.Identity):  # those of timm have one
        return f"torch.nn.Sequential({plain}, torch.nn.{type(activation).__name__}()), because it has an activation"
    return plain


def _refuse_spectral_norm(path: str, part: Any) -> None:
    kinds = [type(own).__name__ for own in vars(part).get("_forward_pre_hooks", {}).values()]
    if type(part).__name__ == "_SpectralNorm" or "SpectralNorm" in kinds:
        raise RefusedError(
            f"spectral_norm at {path!r} advances vectors of its own at every call, and the number of calls depends on "
            "the records; leave it out, or freeze the layer"
        )


def _place(path: str, part: Any) -> str:
    return f"{type(part).__name__} at {path!r}" if path else f"the module itself ({type(part).__name__})"


def require_gradients() -> None:
    """Refuse inference mode and autocast, which change gradients or their precision."""
    if torch.is_inference_mode_enabled():
        raise ValueError("training a torch module needs gradients; call fit outside torch.inference_mode()")
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise ValueError("a torch module is trained in its own precision; call fit outside torch.autocast()")
