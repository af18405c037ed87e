"""Turn the random draws of a graph into arguments, and draw them secretly.

A node that draws becomes a function of numbers that the caller of the graph passes: uniform on [0, 1), or normal. So
the graph has no randomness of its own, the generators of torch are not used, and each record has numbers of its own.

Theory: Torch modules: records cannot meet
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscp.torch.library import Tensor, torch

_SWITCHES = ("dropout_p", "dropout", "training", "train")


@dataclass(frozen=True)
class Draw:
    """The numbers that one node of a graph draws for one record."""

    shape: tuple[int, ...]
    is_normal: bool
    dtype: str


def draw_numbers(draws: Sequence[Draw], count: int, rng: np.random.Generator) -> list[Tensor]:
    """Draw the numbers of ``count`` records, records first."""
    found = []
    for draw in draws:
        make: Any = rng.standard_normal if draw.is_normal else rng.random
        found.append(torch.from_numpy(make((count, *draw.shape), draw.dtype)))
    return found


def synthetic_numbers(draws: Sequence[Draw], count: int, seed: int) -> list[Tensor]:
    """Return numbers in [0, 1) for synthetic records."""
    drawn = torch.Generator().manual_seed(seed)
    return [torch.rand((count, *d.shape), generator=drawn, dtype=getattr(torch, d.dtype)) for d in draws]


def draws_nothing(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation that torch marks as random draws nothing: it drops nothing, or does not train."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name in _SWITCHES:
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            if value == 0:  # None means training
                return True
    return False


def find_rule(operation: Any) -> "tuple[Callable[..., Any], bool, bool] | None":
    """Return the function that replaces an operation, whether its numbers are normal, and whether they are float64.

    None for an operation without a rule.
    """
    name = operation._schema.name.partition("::")[2]
    rule = _RULES.get(f"{name}.{operation._overloadname}", _RULES.get(name))
    return None if rule is None else (rule, name in _NORMAL, rule is _integers)


# ---- what replaces a draw: functions of the numbers and of the arguments of the operation


def _native_dropout(u: Tensor, x: Tensor, p: float, train: bool | None = None) -> tuple[Tensor, Tensor]:
    kept = u < (1 - p if train is not False else 1.0)  # as bernoulli, which torch uses on a processor
    return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def _bernoulli(u: Tensor, p: Tensor) -> Tensor:
    return (u < p).to(p.dtype)


def _bernoulli_p(u: Tensor, x: Tensor, p: Any = 0.5) -> Tensor:
    return (u < p).to(x.dtype)


def _numbers(u: Tensor, first: Any, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return u.to(dtype or (first.dtype if isinstance(first, torch.Tensor) else torch.get_default_dtype()))


def _uniform(u: Tensor, x: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return (u * (high - low) + low).to(x.dtype)


def _normal_like(z: Tensor, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return (z * std + mean).to(x.dtype)


def _normal(z: Tensor, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> Tensor:
    return z * std + mean


def _integers(u: Tensor, first: Any, *sizes: Any, dtype: Any = None, **__: Any) -> Tensor:
    """Whole numbers below the last bound: (high, size), (low, high, size), (like, high) or (like, low, high)."""
    is_like = isinstance(first, torch.Tensor)
    bounds = [value for value in ((*sizes,) if is_like else (first, *sizes)) if isinstance(value, int)]
    low, high = (0, *bounds)[-2:]
    return (
        (u * (high - low))
        .floor()
        .clamp(max=high - low - 1)
        .add(low)
        .to(dtype or (first.dtype if is_like else torch.int64))
    )


def _exponential(u: Tensor, x: Tensor, rate: float = 1.0) -> Tensor:
    return (-torch.log1p(-u) / rate).to(x.dtype)


_RULES: dict[str, Callable[..., Any]] = {
    "native_dropout": _native_dropout,
    "bernoulli": _bernoulli,
    "bernoulli.p": _bernoulli_p,
    "bernoulli.Tensor": _bernoulli_p,
    "rand": _numbers,
    "rand_like": _numbers,
    "uniform": _uniform,
    "randn": _numbers,
    "randn_like": _numbers,
    "normal": _normal,
    "normal_functional": _normal_like,
    "randint": _integers,
    "randint_like": _integers,
    "exponential": _exponential,
    # in place, as eager code draws; a graph has none of these
    "bernoulli_": _bernoulli_p,
    "uniform_": _uniform,
    "normal_": _normal_like,
    "exponential_": _exponential,
}
_NORMAL = ("randn", "randn_like", "normal", "normal_functional", "normal_")
