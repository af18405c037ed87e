"""Control the random draws that layers of a torch module make (dropout).

While records are used, torch's generators run on secret states, and afterwards they continue from their old ones. In a
dry run each row has its own draws (``draws_by_row``): that is the coupling behind the privacy of such layers.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpscp.training.torch.modules import load_torch

# torch's generator on the CPU is a Mersenne twister: the place of its state in the bytes that torch returns.
_WORDS = slice(24, 24 + 624 * 8)
_LEFT = slice(8, 12)


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
    One over a tensor without such a dimension is shared by all rows, and must not depend on how many they are. The
    attribute ``calls`` of the context counts the operations.
    """
    return _by_row_class()(keys, seed)


def _by_row_class() -> Any:
    torch = load_torch()
    mode: Any = torch.utils._python_dispatch.TorchDispatchMode

    class _ByRow(mode):  # type: ignore[misc]  # torch may not be there
        def __init__(self, keys: Sequence[int], seed: int) -> None:
            super().__init__()
            self.keys, self.seed, self.calls = list(keys), seed, 0

        def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            draws = torch.Tag.nondeterministic_seeded in operation.tags and kwargs.get("generator") is None
            if not draws or _dropout_share(operation, args, kwargs) == 0:
                return operation(*args, **kwargs)
            self.calls += 1
            return _draw(self, operation, args, kwargs)

        def start(self, key: int) -> None:
            # torch.manual_seed takes a hundred times as long
            seed = zlib.crc32(f"{self.seed} {self.calls} {key}".encode())
            torch.default_generator.manual_seed(seed)
            for generator in torch.cuda.default_generators:
                generator.manual_seed(seed)

    return _ByRow


def _dropout_share(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an attention drops, of which torch says that it draws; None for other operations."""
    for place, argument in enumerate(operation._schema.arguments):
        if argument.name == "dropout_p":
            return args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
    return None


def _draw(rows: Any, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one random operation, row by row if it has a dimension of records."""
    torch, n = load_torch(), len(rows.keys)
    first = next((a for a in args if isinstance(a, torch.Tensor | list | tuple)), None)
    shape = tuple(first.shape) if isinstance(first, torch.Tensor) else tuple(first or ())
    dim = _record_dimension(shape, n)
    if dim is None:
        rows.start(-1)
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
