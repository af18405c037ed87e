"""Take over a module that Opacus trained, and what its PrivacyEngine has spent."""

import copy
from collections.abc import Mapping
from typing import Any

from dpscp._base.assumptions import FIXED_NUMBER
from dpscp._base.checks import check_count
from dpscp.privacy import Ledger, Relation, dpsgd_event, non_private_event
from dpscp.torch.library import torch
from dpscp.torch.model import TorchModel, trace_score
from dpscp.training.engine.rows import check_classes


def ledger_of_engine(privacy_engine: Any) -> Ledger:
    """Return the ledger of an Opacus PrivacyEngine.

    One entry for each stretch of its accountant's history. Opacus divides sums by ``int(n * rate)`` and samples at a
    rate of one over the number of batches, so tables of n and of n + 1 records differ in the scale of their
    noise. At a fixed n both numbers are constants, and the accountant's history holds for each of two chained steps:
    the entries are about replacing one record.

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
        note = "Opacus, assuming Poisson sampling; noise from torch's generator"
        ledger = ledger.add("train", event, note, relation=Relation.REPLACE_ONE)
    return ledger.assume(FIXED_NUMBER)


def torch_model(
    module: Any,
    *,
    classes: tuple[Any, ...] | None = None,
    input_shape: tuple[Any, ...] | None = None,
    start_buffers: Mapping[str, Any] | None = None,
) -> TorchModel:
    """Wrap a copy of a trained module as a TorchModel; a wrapper of Opacus is removed.

    Refused like a module to be trained: what cannot be traced in evaluation mode, another number of outputs than
    classes. So is every buffer that ``start_buffers`` does not show to be that of before training.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    _refuse_unknown_buffers(getattr(module, "_module", module), start_buffers)
    plain = _plain_copy(module).eval()
    if input_shape is None:
        leading: Any = next((part for part in plain.modules() if not list(part.children())), None)
        if not isinstance(leading, torch.nn.Linear):
            raise ValueError("input_shape is needed, because the first layer of the module is not Linear")
        input_shape = (leading.in_features,)
    if all(isinstance(size, int) for size in input_shape):
        input_shape = tuple(check_count("input_shape", size) for size in input_shape)
    labels = None if classes is None else check_classes(classes, "cross_entropy")
    graph = trace_score(plain, input_shape)
    if labels is not None and graph.n_outputs != len(labels):
        raise ValueError(f"the module has {graph.n_outputs} outputs, one for each label; declare as many classes")
    return TorchModel(plain, input_shape, labels, graph)


def _plain_copy(module: Any) -> Any:
    """Return a copy of a module without the wrapper and the hooks of Opacus."""
    copied = copy.deepcopy(getattr(module, "_module", module))
    for part in copied.modules():
        for hooks in (part._forward_hooks, part._backward_hooks):
            for key, hook in list(hooks.items()):
                function = getattr(hook, "func", hook)
                if type(getattr(function, "__self__", None)).__module__.startswith("opacus."):
                    del hooks[key]
        for name in ("autograd_grad_sample_hooks", "ft_compute_sample_grad", "activations", "max_batch_len"):
            vars(part).pop(name, None)
    return copied


def _bits(value: Any) -> bytes:
    return bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _refuse_unknown_buffers(module: Any, start_buffers: Mapping[str, Any] | None) -> None:
    """Refuse buffers of a module trained elsewhere that training may have set.

    ``start_buffers`` shows which buffers did not change.
    """
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
        if before.shape != value.shape or before.dtype != value.dtype or _bits(before) != _bits(value):
            raise ValueError(
                f"the buffer {name!r} changed during training, so it contains statistics of the records that the "
                "engine did not account for; train with the layer in evaluation mode"
            )
