"""Lazy re-exports (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_exports(module_of: Mapping[str, str], package: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for ``package`` that imports names on first use.

    ``module_of`` maps each name to the module that defines it. Submodules are imported by their own names.
    """

    def get_attribute(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(module_of[name]), name)
        if "." in name or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return get_attribute
