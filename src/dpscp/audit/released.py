"""Search a released object for numbers of a record."""

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.arrays import FloatArray

_CLOSE = 1e-6


def find_traces(released: Any, numbers: ArrayLike) -> tuple[str, ...]:
    """Find where a released object contains any of these numbers.

    The search covers attributes and items, the pickle of the object, and the file that its ``save`` writes, as float32
    and as float64. What code keeps elsewhere, such as in a closure, is not searched.

    Parameters
    ----------
    released : any object, for example a fitted estimator.
    numbers : array of numbers that occur nowhere else, for example the features of an unusual record.

    Returns
    -------
    tuple of paths

    >>> find_traces({"model": np.zeros(3), "seen": [1.0, 1234.5678]}, [1234.5678])
    ("['seen'][1]", 'pickle')
    """
    targets = np.unique(np.asarray(numbers, dtype=np.float64))
    paths = [path.lstrip(".") for path, value in _values(released) if _contains(value, targets)]
    return (*paths, *(name for name, content in _serialize(released) if _has_bytes(content, targets)))


def _values(released: Any) -> Iterator[tuple[str, Any]]:
    """Yield every object that attributes and items reach, with its path."""
    waiting, kept = [("", released)], {}
    while waiting:
        path, value = waiting.pop()
        if id(value) in kept or isinstance(value, type | str | bytes):
            continue
        kept[id(value)] = value  # alive, so that no other object gets its id
        yield path, value
        if isinstance(value, Mapping):
            waiting += [(f"{path}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        waiting += [(f"{path}.{name}", item) for name, item in getattr(value, "__dict__", {}).items()]


def _contains(value: Any, targets: FloatArray) -> bool:
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray | int | float) or isinstance(value, bool):
        return False
    held = np.asarray(value)
    if held.dtype.kind not in "fiu":
        return False
    held = held.astype(np.float64).ravel()
    return any(bool((np.abs(held - number) <= _CLOSE * abs(number)).any()) for number in targets)


def _serialize(released: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the object as bytes: its pickle, and the file that it saves."""
    try:
        yield "pickle", pickle.dumps(released)
    except Exception:  # not every object can be pickled
        yield "pickle", b""
    if hasattr(released, "save"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "released")
            released.save(path)
            yield "file", path.read_bytes()


def _has_bytes(content: bytes, numbers: Iterable[float]) -> bool:
    kinds = ("<f4", "<f8", ">f8")  # a pickle stores a single number in big-endian order
    return any(np.asarray(number, dtype=kind).tobytes() in content for number in numbers for kind in kinds)
