"""Compare the terms of synthetic records with autograd, once, before any record is used.

It notices a parameter whose uses were not all seen. This is about the meaning of training, not about privacy: what is
clipped and added is one and the same.

Theory: Torch modules: records cannot meet
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dpscp.torch.blocks import Engine
from dpscp.torch.checks import RefusedError
from dpscp.torch.draws import draws_nothing, find_rule, synthetic_numbers
from dpscp.torch.gpu import is_gpu
from dpscp.torch.library import Tensor, torch
from dpscp.torch.trace import Losses, plain_operations, synthetic_record

# A GPU may multiply with 10 bits (TF32).
_TOLERANCE, _TOLERANCE_ON_GPU, _SEEDS = 1e-3, 5e-2, (31, 32)


class _UnknownDrawError(Exception):
    """An operation that draws and has no rule; a graph draws in another way."""


class _SameDraws(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is not read by the type checker
    """Pass these numbers to the operations that draw, in order."""

    def __init__(self, numbers: Iterator[Tensor]) -> None:
        super().__init__()
        self._numbers = numbers

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in operation.tags or draws_nothing(operation, args, kwargs):
            return operation(*args, **kwargs)
        if (rule := find_rule(operation)) is None:
            raise _UnknownDrawError
        named = {name: value for name, value in kwargs.items() if name == "dtype"}
        found = rule[0](next(self._numbers)[0], *args, **named)
        return args[0].copy_(found) if operation._schema.is_mutable else found


def compare_with_autograd(engine: Engine, module: Any, losses: Losses, parameters: Sequence[Tensor]) -> None:
    """Refuse a module whose terms are not its gradients; ``module`` is a copy in training mode.

    Records without a finite gradient are not compared.
    """
    traced, trained = engine.run.traced, [p for p in module.parameters() if p.requires_grad]
    seeds = _SEEDS[: engine.run.at_once]
    singles = [synthetic_record(traced.form, traced.target, seed) for seed in seeds]
    records = [torch.stack(values) for values in zip(*singles, strict=True)]
    draws = synthetic_numbers(traced.draws, len(seeds), seeds[0])
    terms, failed = engine.terms(parameters, [*records, *draws])
    if failed is not None:
        raise RefusedError("the module fails on synthetic records in a block")
    device = parameters[0].device
    for place, seed in enumerate(seeds):
        *inputs, target = (value[place : place + 1].to(device) for value in records)
        args, named = traced.form.arguments(inputs)
        own = [numbers[place : place + 1].to(device) for numbers in draws]
        try:
            with plain_operations(seed), torch.enable_grad(), _SameDraws(iter(own)):
                outputs = module(*args, **named)
                loss = losses(getattr(outputs, "logits", outputs), target).sum()
                gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        except _UnknownDrawError:
            return
        _compare(traced.trained, terms, gradients, place)


def _compare(trained: Sequence[tuple[str, Any]], terms: Sequence[Any], gradients: Sequence[Any], place: int) -> None:
    known = [torch.zeros(shape) if g is None else g for (_, shape), g in zip(trained, gradients, strict=True)]
    length = torch.stack([g.double().norm().cpu() for g in known]).norm()
    if not bool(torch.isfinite(length)):
        return
    tolerance = _TOLERANCE_ON_GPU if any(is_gpu(g.device) for g in known) else _TOLERANCE
    for (name, _), term, gradient in zip(trained, terms, known, strict=True):
        own = term.single_gradients()[place].double().cpu()
        if float((own - gradient.double().cpu()).norm()) > tolerance * float(length) + 1e-12:
            raise RefusedError(
                f"the gradient of {name!r} is not what autograd computes on a synthetic record; call each layer with "
                "trained parameters by its forward, and use its parameters nowhere else"
            )
