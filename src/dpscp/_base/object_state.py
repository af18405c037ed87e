"""What an object of the caller holds: a digest of every value that can be reached from it, by path.

Code of the caller may keep what passes through it, in an attribute, a list, a closure or a class. Two digests, before
and after a call on synthetic rows, show that. What a call leaves on a throwaway copy is gone with the copy.
torch is not imported for any of this.
"""

import contextlib
import copy
import functools
import hashlib
import pickle
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), Enum, range, slice)
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, weakref.ref, property, staticmethod, classmethod)
# Classes of these packages, and their functions, keep nothing of a call.
_TRUSTED = frozenset({"torch", "numpy", "scipy", "sklearn", "opacus", "pandas", "dpscp", *sys.stdlib_module_names})
# What Opacus writes on parameters and layers while it works; ``gradient_rows`` empties it.
_OPACUS = frozenset({"grad_sample", "_forward_counter", "_current_grad_sample", "activations", "max_batch_len"})
# Objects of these packages change by themselves, and hold no values of rows.
_RESTLESS = frozenset({"logging", "threading", "warnings"})
# Attributes of classes that Python writes itself, the last one when an object is copied.
_NAMES_OF_PYTHON = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "__slotnames__"}
)
_MOST_VALUES = 200_000


def copy_if_possible(value: Any) -> Any:
    """A deep copy of an object of the caller, to meet records in its place; the object itself where it has none.

    A method goes with a copy of its object. A function is not copied, and neither is what it closes over.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, sessions and the like
        return value


def can_be_copied(value: Any) -> bool:
    """Whether an object of the caller can be deep-copied; a function counts, though its closure is not copied."""
    try:
        copy.deepcopy(value)
    except Exception:
        return False
    return True


@contextlib.contextmanager
def refuse_memory(name: str, value: Any) -> Iterator[None]:
    """Refuse an object of the caller, called ``name``, that is another one after the calls made inside.

    Only paths of before are given: a new one, or a key of a dictionary, may come from a record.
    """
    before = state_digest(value)
    yield
    paths = changed_paths(before, state_digest(value), known_only=True)
    if paths:
        raise ValueError(
            f"{name} keeps something of the rows that it is called with ({', '.join(paths)}): it must be a function of "
            "its rows that changes nothing, neither in itself nor in what it closes over"
        )


def state_digest(root: Any, *, ignore: frozenset[str] = _OPACUS) -> dict[str, str]:
    """A digest of every value that can be reached from ``root``, by its path.

    Followed: attributes, slots, items, closures, defaults, bound objects, the attributes of classes and the globals
    that functions outside well-known packages use. Other objects are digested as their pickle where they
    have one. The walk ends after 200,000 values.
    """
    seen: dict[int, str] = {}
    kept: list[Any] = []  # objects made during the walk stay alive, so that no identity is used twice
    found: dict[str, str] = {}
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting and len(found) < _MOST_VALUES:
        path, value = waiting.popleft()
        if _is_atom(value):
            found[path] = f"{type(value).__name__} {value!r}"
            continue
        if id(value) in seen:
            found[path] = f"the object at {seen[id(value)]!r}"
            continue
        seen[id(value)] = path
        kept.append(value)
        children = [(name, child) for name, child in _children(value) if name.lstrip(".") not in ignore]
        found[path] = _own_digest(value, bool(children))
        waiting.extend((path + name, child) for name, child in children)
    return found


def changed_paths(before: Mapping[str, str], after: Mapping[str, str], *, known_only: bool = False) -> tuple[str, ...]:
    """The paths whose values differ, appeared or vanished, as a reader would write them.

    ``known_only`` names, for a value that appeared, the nearest object of before that holds it: a new name, or the key
    of a new item, may come from a record.
    """
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    if known_only:
        paths = [next(p for p in _prefixes(path) if p in before) for path in paths]
    return tuple(dict.fromkeys(path.lstrip(".") or "the object itself" for path in paths))


def _prefixes(path: str) -> Iterator[str]:
    """The path, what holds it, and so on up to the root."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    yield ""


def has_array(value: Any) -> bool:
    """Whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or _is_tensor(value)


def reachable(root: Any) -> Iterator[tuple[str, Any]]:
    """Every object that can be reached from ``root``, once, with its path."""
    seen: set[int] = set()
    kept: list[Any] = []
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        path, value = waiting.popleft()
        if _is_atom(value):
            yield path, value
        elif id(value) not in seen:
            seen.add(id(value))
            kept.append(value)
            yield path, value
            waiting.extend((path + name, child) for name, child in _children(value))


def _is_atom(value: Any) -> bool:
    return isinstance(value, _ATOMS) or (
        type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device")
    )


def _is_tensor(value: Any) -> bool:
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with the step of the path that leads to it."""
    if isinstance(value, type):
        if not _is_trusted(value.__module__):
            yield from _attributes(vars(value))
        return
    yield from _items(value)
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    if isinstance(value, _CODE) or type(value).__module__.partition(".")[0] in _RESTLESS:
        return
    yield from _attributes(_instance_attributes(value))
    if _is_tensor(value) and value.is_leaf and value.grad is not None:
        yield ".grad", value.grad
    if not _is_trusted(type(value).__module__):
        yield ".__class__", type(value)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container, and the parts of what wraps another object."""
    if isinstance(value, Mapping):
        for position, (key, item) in enumerate(list(value.items())):
            yield (f"[{key!r}]" if _is_atom(key) else f"[key {position}]"), item
            if not _is_atom(key):
                yield f".keys[{position}]", key
    elif isinstance(value, np.ndarray):
        objects = value.ravel().tolist() if value.dtype.hasobject else []
        yield from ((f"[{place}]", item) for place, item in enumerate(objects))
    elif isinstance(value, Sequence | deque | set | frozenset):
        listed = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
        yield from ((f"[{place}]", item) for place, item in enumerate(listed))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # an empty cell
            yield "", value.cell_contents


def _attributes(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    # parameters, buffers and submodules lie in dictionaries of a module; their names are those of its attributes
    for name, item in list(held.items()):
        if name in ("_parameters", "_buffers", "_modules") and isinstance(item, Mapping):
            yield from ((f".{inner}", part) for inner, part in item.items())
        elif name not in _NAMES_OF_PYTHON:
            yield f".{name}", item


def _instance_attributes(value: Any) -> dict[str, Any]:
    held = dict(getattr(value, "__dict__", None) or {})
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                held[name] = getattr(value, name)
    return held


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f".<{name}>", cell
    yield from ((f".default[{place}]", item) for place, item in enumerate(function.__defaults__ or ()))
    yield from ((f".default[{name!r}]", item) for name, item in (function.__kwdefaults__ or {}).items())
    if _is_trusted(function.__module__):
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f".global {name}", function.__globals__[name]


def _is_trusted(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _TRUSTED


def _own_digest(value: Any, has_children: bool) -> str:
    """What an object is, without what it holds."""
    kind = type(value).__qualname__
    if _is_tensor(value):
        return f"{kind} {value.dtype} {tuple(value.shape)} {value.device} {_tensor_digest(value)}"
    if isinstance(value, np.ndarray):
        content = b"" if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return f"{kind} {value.dtype} {value.shape} {_hash(content)}"
    if hasattr(value, "getstate"):  # a generator of Python's own
        return f"{kind} {_hash(repr(value.getstate()).encode())}"
    if kind == "Generator" and hasattr(value, "get_state"):
        return f"{kind} {_tensor_digest(value.get_state())}"
    if isinstance(value, bytearray | memoryview):
        return f"{kind} {_hash(bytes(value))}"
    if isinstance(value, Mapping | Sequence | set | frozenset | deque):
        return f"{kind} of {len(value)}"
    if isinstance(value, types.FunctionType | type):
        return f"{kind} {value.__qualname__} {id(value)}"
    if has_children or isinstance(value, (*_CODE, types.MethodType, types.CellType)):
        return kind
    try:
        return f"{kind} {_hash(pickle.dumps(value))}"
    except Exception:  # an object of another language, say: what it holds cannot be seen
        return kind


def _tensor_digest(value: Any) -> str:
    if value.device.type == "meta":  # a shape without numbers
        return ""
    plain = value.detach().cpu().contiguous()
    try:
        return _hash(plain.reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes())
    except (RuntimeError, TypeError):  # a layout without bytes of its own, such as a sparse one
        return _hash(repr(plain).encode())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
