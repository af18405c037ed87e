"""Find the values outside a function that its code names: globals, and attributes of modules.

Comprehensions, lambdas and inner functions have code of their own, inside that of the function. Attributes are followed
through modules only, and only if the code has their name, so the work is bounded by the names. Names that are computed
(``getattr``, ``globals()[...]``) are not found.
"""

import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Classes and functions of these packages store nothing of a call.
TRUSTED = frozenset({"torch", "numpy", "scipy", "sklearn", "opacus", "pandas", "dpscp", *sys.stdlib_module_names})
# In other packages than the caller's own, values of these kinds are followed, tensors, and what the caller defined.
_CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
# Folders of the standard library; in an archive it has that of ``os``.
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(os.__file__).parent)})


def is_trusted(module: str | None) -> bool:
    """Return whether a module belongs to a package that stores nothing of a call.

    A file of the caller's may have the name of a module of the standard library: its folder decides.
    """
    package = (module or "").partition(".")[0]
    return package in TRUSTED and not (package in sys.stdlib_module_names and _is_file_of_caller(package))


def _is_file_of_caller(package: str) -> bool:
    place = getattr(sys.modules.get(package), "__file__", None) or ""
    is_standard = place.startswith(_STANDARD) and not _INSTALLED & set(Path(place).parts)
    return place.endswith((".py", ".pyc")) and not is_standard


def used_values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals and module attributes that the code of a function names, with the step of the path to each."""
    names = tuple(dict.fromkeys(_names(function.__code__)))
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            yield f".global {name}", value
            if isinstance(value, types.ModuleType):
                yield from _of_module(f".global {name}", value, names)
            continue
        for module in _absolute_names(name, function.__globals__.get("__package__") or ""):
            if module in sys.modules and is_own(sys.modules[module]):  # imported inside the function
                yield f".import({module})", sys.modules[module]
                yield from _of_module(f".import({module})", sys.modules[module], names)


def _absolute_names(name: str, package: str) -> Iterator[str]:
    """Yield the modules that an import of this name may mean in a package: absolute, or relative to it or a parent.

    The name of ``from . import module`` is empty.
    """
    if name:
        yield name
    while package:
        yield f"{package}.{name}" if name else package
        package = package.rpartition(".")[0]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_module(path: str, module: types.ModuleType, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a module, and of modules in it, that have one of these names."""
    waiting, seen = [(path, module)], {id(module)}
    while waiting:
        path, module = waiting.pop()
        package = module.__name__.partition(".")[0]
        if package in sys.stdlib_module_names and is_trusted(package):
            continue
        for name in names:
            value = vars(module).get(name)
            if isinstance(value, types.ModuleType):
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting.append((f"{path}.{name}", value))
            elif name in vars(module) and (is_own(module) or _is_of_caller(value)):
                yield f"{path}.{name}", value


def is_own(module: types.ModuleType | None) -> bool:
    """Return whether a module is the caller's own: neither the standard library's nor in a folder of installed ones."""
    if module is None:  # code that was never imported
        return True
    place = getattr(module, "__file__", None)
    return not is_trusted(module.__name__) and not (place and _INSTALLED & set(Path(place).parts))


def _is_of_caller(value: Any) -> bool:
    """Return whether an attribute of an installed module may have been put there by the caller."""
    code = value if isinstance(value, type | types.FunctionType) else type(value)
    defined = sys.modules.get(code.__module__)
    return code in _CONTAINERS or code.__name__ == "Tensor" or (defined is not None and is_own(defined))
