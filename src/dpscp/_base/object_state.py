"""Digests of the state of a caller's object, one for each reachable value.

Code of the caller may store what passes through it, in an attribute, a list, a closure or a class. Digests before and
after a call on synthetic rows show this. A change of a copy disappears with the copy. This module does not import
torch.
"""

import contextlib
import contextvars
import copy
import functools
import hashlib
import pickle
import queue
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from dpscp._base.used_names import is_own, is_trusted, used_values

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), Enum, range, slice)
_CODE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, weakref.ref, property, staticmethod, classmethod)
_CACHED_FUNCTION = type(functools.lru_cache(lambda: None))
# Attributes that Opacus writes during a pass; ``gradient_rows`` empties them.
OPACUS_ATTRIBUTES = frozenset(
    {"grad_sample", "_forward_counter", "_current_grad_sample", "activations", "max_batch_len"}
)
# Objects of these packages change by themselves and contain no values of rows.
_RESTLESS = frozenset({"logging", "threading", "warnings"})
# Class attributes that Python writes itself, the last one when an object is copied.
_NAMES_OF_PYTHON = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__", "__slotnames__"}
)
_MOST_VALUES = 200_000
# From so many items on, numbers, texts and tuples of them have one digest, not a path each.
_MANY_ITEMS = 1_000
_COLLECTIONS = (Mapping, Sequence, set, frozenset, deque)
# Objects whose contents nobody can read without changing them.
_UNREADABLE = (
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    queue.SimpleQueue,
    contextvars.ContextVar,
)


_UNKNOWN, _TOO_MANY = "unknown contents", f"more than {_MOST_VALUES:,} values"


def copy_if_possible(value: Any) -> Any:
    """Return a deep copy of a caller's object, or the object if it has no copy.

    The records are passed to the copy. A method is copied with its object. A function and its closure are not copied.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, sessions and the like
        return value


@contextlib.contextmanager
def refuse_memory(name: str, value: Any) -> Iterator[None]:
    """Raise if calls inside the block change the caller's object ``name``.

    The message contains only paths that existed before: a new path, or a key of a dictionary, may come from a record.
    """
    before = state_digest(value)
    require_readable(name, before)
    yield
    paths = changed_paths(before, state_digest(value), known_only=True)
    if paths:
        raise ValueError(
            f"{name} stores something from the rows that it is called with ({', '.join(paths)}). Make it a function of "
            "its rows that changes neither itself nor its closure"
        )


def state_digest(root: Any, *, ignore: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return a digest of every value that is reachable from ``root``, by path.

    The walk follows attributes, slots, items, closures, defaults, bound objects, attributes of classes and their bases,
    and the globals and module attributes that functions outside well-known packages name (``used_values``). Other
    objects are digested by their pickle, if they have one.

    The numbers and texts of a large collection are one value. What cannot be compared, such as generators and values
    beyond the first 200,000, is marked: see `require_readable`.
    """
    seen: dict[int, str] = {}
    kept: list[Any] = []  # objects created during the walk stay alive, so that no id is used twice
    found: dict[str, str] = {}
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        if len(found) >= _MOST_VALUES:
            found[_TOO_MANY] = _UNKNOWN
            break
        path, value = waiting.popleft()
        if isinstance(value, _UNREADABLE):
            found[path] = f"{_UNKNOWN} {type(value).__name__}"
            continue
        if _is_atom(value):
            found[path] = f"{type(value).__name__} {value!r}"
            continue
        if id(value) in seen:
            found[path] = f"the object at {seen[id(value)]!r}"
            continue
        seen[id(value)] = path
        kept.append(value)
        children = [
            (name, child) for name, child in _children(value, skips_many=True) if name.lstrip(".") not in ignore
        ]
        found[path] = _own_digest(value, bool(children))
        waiting.extend((path + name, child) for name, child in children)
    return found


def require_readable(name: str, digest: Mapping[str, str]) -> None:
    """Refuse an object of the caller's whose digest does not show all that it keeps.

    For digests that were made before any record is used: the message has names of the object's parts.
    """
    if _TOO_MANY in digest:
        raise ValueError(
            f"{name} refers to {_TOO_MANY}, too many to compare before and after a call. Keep large collections as "
            "arrays, tensors, or lists and dictionaries of numbers and texts"
        )
    found = next((path for path, value in digest.items() if value.startswith(_UNKNOWN)), None)
    if found is not None:
        raise ValueError(
            f"{name} uses a {digest[found].rpartition(' ')[2]} ({found.lstrip('.')}), whose contents cannot be "
            "compared before and after a call, so that it may keep something of the records. Use a list, a dictionary "
            "or an attribute instead"
        )


def changed_paths(before: Mapping[str, str], after: Mapping[str, str], *, known_only: bool = False) -> tuple[str, ...]:
    """Return the paths whose values differ, appeared or vanished.

    A module that a function imported meanwhile did not change: it was not there to be compared with.

    With ``known_only``, a value that appeared is named by the nearest object that existed before. A new name or key may
    come from a record.
    """
    paths = [
        path
        for path in {**before, **after}
        if before.get(path) != after.get(path) and all(module in before for module in _imports(path))
    ]
    if known_only:
        paths = [next(p for p in _prefixes(path) if p in before) for path in paths]
    return tuple(dict.fromkeys(path.lstrip(".") or "the object itself" for path in paths))


def _imports(path: str) -> Iterator[str]:
    """Yield the paths of the modules on a path that functions import."""
    return (path[: found.end()] for found in re.finditer(r"\.import\([^)]*\)", path))


def _prefixes(path: str) -> Iterator[str]:
    """Yield the path and all its prefixes, up to the root."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    yield ""


def has_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor."""
    return isinstance(value, np.ndarray) or _is_tensor(value)


def reachable(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield every object that is reachable from ``root``, once, with its path."""
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


def _children(value: Any, *, skips_many: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield what an object contains, with the step of the path to each.

    ``skips_many``: without the numbers and texts of a large collection, which `_digest_many` covers.
    """
    if isinstance(value, type):
        yield from _of_class(value)
        return
    for name, item in _items(value):
        if not (skips_many and isinstance(value, _COLLECTIONS) and len(value) >= _MANY_ITEMS and _is_flat(item)):
            yield name, item
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    if isinstance(value, _CODE) or type(value).__module__.partition(".")[0] in _RESTLESS:
        return
    yield from _attributes(_instance_attributes(value))
    if _is_tensor(value):
        yield from _of_tensor(value)
    if not all(is_trusted(kind.__module__) for kind in type(value).__mro__):
        yield ".__class__", type(value)


def _of_class(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class outside well-known packages, its bases, and its own class."""
    if not is_trusted(value.__module__):
        yield from _attributes(vars(value))
    for base in value.__mro__[1:]:
        if not is_trusted(base.__module__):
            yield f".base {base.__qualname__}", base
    if not is_trusted(type(value).__module__):
        yield ".__class__", type(value)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, or the parts of a wrapper."""
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
    elif isinstance(value, staticmethod | classmethod):
        yield ".__func__", value.__func__
    elif isinstance(value, property):
        yield from ((f".{name}", getattr(value, name)) for name in ("fget", "fset", "fdel"))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.CellType):
        with contextlib.suppress(ValueError):  # an empty cell
            yield "", value.cell_contents


def _attributes(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    # a module has dictionaries of parameters, buffers and submodules; their keys are attribute names
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
            is_private = name.startswith("__") and not name.endswith("__")  # Python writes the class into such names
            attribute = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            if hasattr(value, attribute):
                held[name] = getattr(value, attribute)
    return held


def _of_tensor(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a backward pass leaves on a tensor, and the functions that it calls."""
    if (value.is_leaf or value.retains_grad) and value.grad is not None:
        yield ".grad", value.grad
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(value, name, None):
            yield f".{name}", getattr(value, name)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f".<{name}>", cell
    yield from ((f".default[{place}]", item) for place, item in enumerate(function.__defaults__ or ()))
    yield from ((f".default[{name!r}]", item) for name, item in (function.__kwdefaults__ or {}).items())
    module = function.__globals__.get("__name__")  # not __module__, which functools.wraps copies from another function
    if not is_trusted(module):
        # an installed package has contexts of its own, and no reason to keep records in them
        skipped = () if is_own(sys.modules.get(module or "")) else _UNREADABLE
        yield from ((name, value) for name, value in used_values(function) if not isinstance(value, skipped))


def _own_digest(value: Any, has_children: bool) -> str:
    """Return a digest of an object without its contents."""
    kind = type(value).__qualname__
    if _is_tensor(value):
        # a parameter that is trained from now on is used in another way, and its layer leaves evaluation mode
        form = f"{value.dtype} {tuple(value.shape)} {value.device} {value.requires_grad}"
        return f"{kind} {form} {_tensor_digest(value)}"
    if isinstance(value, np.ndarray):
        content = b"" if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return f"{kind} {value.dtype} {value.shape} {_hash(content)}"
    if hasattr(value, "getstate"):  # random.Random
        return f"{kind} {_hash(repr(value.getstate()).encode())}"
    if kind == "Generator" and hasattr(value, "get_state"):
        return f"{kind} {_tensor_digest(value.get_state())}"
    if isinstance(value, bytearray | memoryview):
        return f"{kind} {_hash(bytes(value))}"
    if isinstance(value, _COLLECTIONS):
        return f"{kind} of {len(value)}{_digest_many(value)}"
    if isinstance(value, _CACHED_FUNCTION):
        found = value.cache_info()
        return f"{kind} {found.misses} {found.currsize}"
    if isinstance(value, types.FunctionType | type):
        return f"{kind} {value.__qualname__} {id(value)}"
    if has_children or isinstance(value, (*_CODE, types.MethodType, types.CellType)):
        return kind
    try:
        return f"{kind} {_hash(pickle.dumps(value))}"
    except Exception:  # for example an object of another language: its contents are not visible
        return kind


def _is_flat(value: Any) -> bool:
    """Return whether a value has no parts that could change, and a short text."""
    return _is_atom(value) or (type(value) is tuple and all(map(_is_atom, value)))


def _digest_many(value: Any) -> str:
    """Return a digest of the numbers and texts in a large collection, in their order; empty for a small one."""
    if len(value) < _MANY_ITEMS:
        return ""
    if isinstance(value, Mapping):
        pairs = list(value.items())
        texts = (repr([part if _is_flat(part) else None for part in pair]) for pair in pairs)
    else:
        texts = (repr(item) for item in list(value) if _is_flat(item))
    is_ordered = not isinstance(value, set | frozenset)
    return " " + _hash("\n".join(texts if is_ordered else sorted(texts)).encode("utf-8", "surrogatepass"))


def _tensor_digest(value: Any) -> str:
    if value.device.type == "meta":  # a shape without values
        return ""
    plain = value.detach().cpu().contiguous()
    try:
        return _hash(plain.reshape(-1).view(sys.modules["torch"].uint8).numpy().tobytes())
    except (RuntimeError, TypeError):  # a layout without contiguous bytes, for example a sparse one
        return _hash(repr(plain).encode())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
