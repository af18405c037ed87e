"""Control the random draws that layers of a torch module make (dropout).

While records are used, torch's generators run on secret states, and afterwards they continue from their old ones. In a
dry run each row has its own draws (``draws_by_row``): that is the coupling behind the privacy of such layers. Draws
that several records share, and draws from other generators than torch's own, are refused there.
"""

import pickle
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpscp.training.torch.modules import load_torch

# torch's generator on the CPU is a Mersenne twister: the place of its state in the bytes that torch returns.
_WORDS = slice(24, 24 + 624 * 8)
_LEFT = slice(8, 12)
# Not a number that somebody else takes.
_OWN_SEED = 0x9E3779B9


class DrawError(ValueError):
    """The module draws random numbers in a way that the privacy of a step does not cover."""


@contextmanager
def secret_draws(random_bytes: Callable[[int], bytes]) -> Iterator[None]:
    """Run torch's generators on states made of these bytes, then restore them.

    This covers the CPU and every CUDA device.

    ``torch.manual_seed`` would not do: on the CPU it uses 32 bits of its seed. All 19,968 bits of the state are set.
    """
    torch = load_torch()
    # a device that was never used has no state to keep; asking for one would start it
    on_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if on_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.set_rng_state(_cpu_state(random_bytes(624 * 4)))
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(int.from_bytes(random_bytes(8), "little", signed=True))
        yield


def _cpu_state(content: bytes) -> Any:
    torch = load_torch()
    state = torch.Generator().manual_seed(0).get_state().numpy().copy()
    state[_WORDS].view(np.uint64)[:] = np.frombuffer(content, dtype="<u4")
    state[_LEFT].view(np.int32)[:] = 1  # the next draw makes new words of these
    return torch.from_numpy(state)


def draws_by_row(keys: Sequence[int], seed: int = 0) -> Any:
    """Return a context in which every row of a batch has its own draws.

    Those of its key, whatever the others are.

    A random operation over a tensor with the records in its first dimension, or in another one, is made row by row.
    The attribute ``calls`` of the context counts the operations.

    Raises: DrawError for a draw that several records share, for another generator than torch's own, and where code in
    the context sets the state of that one.
    """
    return _by_row_class()(keys, seed)


def _by_row_class() -> Any:
    torch = load_torch()
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode

    class _ByRow(mode):  # type: ignore[misc]  # torch may not be there
        def __init__(self, keys: Sequence[int], seed: int) -> None:
            super().__init__()
            self.keys, self.seed, self.calls = list(keys), seed, 0

        def __enter__(self) -> Any:
            self.start(-1)  # other states than those that code in the context set before
            self.states = _torch_states()
            return super().__enter__()

        def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
            result = super().__exit__(kind, error, trace)
            if kind is None:
                self.require_own_states()
            return result

        def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            draws = torch.Tag.nondeterministic_seeded in operation.tags
            if not draws or _is_switched_off(operation, args, kwargs):
                return operation(*args, **kwargs)
            _refuse_generator(kwargs.get("generator"))
            self.require_own_states()
            self.calls += 1
            result = _draw(self, operation, args, kwargs)
            self.states = _torch_states()
            return result

        def require_own_states(self) -> None:
            """Refuse a state that was set since the last draw: draws from it would not be secret."""
            if _torch_states() != self.states:
                raise DrawError(
                    "the module or its loss sets the state of torch's random generator (torch.manual_seed, "
                    "torch.set_rng_state, torch.random.fork_rng, or torch.utils.checkpoint around a dropout), and so "
                    "its draws are not secret. Remove this from forward and from the loss"
                )

        def start(self, key: int) -> None:
            # torch.manual_seed takes a hundred times as long
            seed = zlib.crc32(f"{self.seed} {self.calls} {key}".encode())
            torch.default_generator.manual_seed(seed)
            for generator in torch.cuda.default_generators:
                generator.manual_seed(seed)

    return _ByRow


def _torch_states() -> list[bytes]:
    torch = load_torch()
    generators = (torch.default_generator, *torch.cuda.default_generators)
    return [generator.get_state().numpy().tobytes() for generator in generators]


@contextmanager
def refuse_other_generators() -> Iterator[None]:
    """Refuse draws from the generators of Python and NumPy.

    They start from states that nobody else sets, and are restored. Those of NumPy are the old ones: the caller's code
    may use them.
    """
    before = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    random.seed(_OWN_SEED)
    np.random.seed(_OWN_SEED)  # noqa: NPY002
    started = _other_states()
    try:
        yield
        is_used = _other_states() != started
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
    if is_used:
        raise DrawError(
            "the module or its loss draws random numbers from Python's random or from numpy.random, whose states are "
            "not secret. Draw with torch, one number or more for each record: torch.rand(len(rows), 1)"
        )


def _other_states() -> tuple[Any, bytes]:
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002


def _refuse_generator(generator: Any) -> None:
    torch = load_torch()
    own = (torch.default_generator, *torch.cuda.default_generators)
    if generator is not None and not any(generator is known for known in own):
        raise DrawError(
            "the module or its loss draws random numbers from a torch.Generator of its own, whose state is not secret. "
            "Leave out generator=, or draw constants once in __init__ and register them as a buffer"
        )


def _is_switched_off(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an operation of which torch says that it draws does not: it drops nothing, or does not train."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name in ("dropout_p", "dropout", "training", "train"):
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            if value == 0:  # None means training
                return True
    return False


def _draw(rows: Any, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one random operation row by row; DrawError if it has no dimension of records."""
    torch, n = load_torch(), len(rows.keys)
    first = next((a for a in args if isinstance(a, torch.Tensor | list | tuple)), None)
    shape = tuple(first.shape) if isinstance(first, torch.Tensor) else tuple(first or ())
    dim = _record_dimension(shape, n)
    if dim is None and n > 1:
        raise DrawError(
            f"the module or its loss draws random numbers of shape {shape} that all records of a batch share "
            "(stochastic depth for a whole batch, a coin for each batch, a random order of the records). Records that "
            "share a draw are not private apart from each other. Draw for each record: torch.rand(len(rows), 1)"
        )
    if dim is None:  # one record
        rows.start(rows.keys[0])
        return operation(*args, **kwargs)
    width = shape[dim] // n

    def part(value: Any, row: int) -> Any:
        if isinstance(value, torch.Tensor) and tuple(value.shape) == shape:
            return value.narrow(dim, row * width, width)
        if isinstance(value, list | tuple) and tuple(value) == shape:
            return [*shape[:dim], width, *shape[dim + 1 :]]
        return value

    results = []
    for row, key in enumerate(rows.keys):
        rows.start(key)
        results.append(operation(*(part(a, row) for a in args), **{k: part(v, row) for k, v in kwargs.items()}))
    if operation._schema.is_mutable and isinstance(first, torch.Tensor) and operation.__name__.split(".")[0][-1] == "_":
        return first  # written in place, part by part
    if isinstance(results[0], tuple):
        return tuple(torch.cat(parts, dim) for parts in zip(*results, strict=True))
    return torch.cat(results, dim)


def _record_dimension(shape: tuple[int, ...], n: int) -> int | None:
    """Return the dimension of the records.

    Of size n, the first before others, or a first one of several rows a record.
    """
    places = [dim for dim, size in enumerate(shape) if size == n]
    if places and (places[0] == 0 or len(places) == 1):
        return places[0]
    return 0 if shape and shape[0] > n and shape[0] % n == 0 else None
