"""Import dp-accounting without the libraries that only its computations need.

``import dp_accounting`` imports ``scipy.signal`` and absl's logging, more than a tenth of a second.
Its modules bind both names and use them in functions only. Here they are bound to a module that imports the real one on
first use. Nothing of this stays outside dp-accounting: ``sys.modules`` and the two packages are as they would be.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class DeferredModule(ModuleType):
    """A module that is imported on the first use of one of its names."""

    def __getattr__(self, name: str) -> Any:
        # import_module holds the lock of the module: threads that use it at the same time get a complete one
        return getattr(import_module(self.__name__), name)


@contextmanager
def defer_import(package: str, name: str) -> Iterator[None]:
    """Let ``from package import name`` bind a deferred module, unless the real one was imported already."""
    names = vars(import_module(package))
    if f"{package}.{name}" in sys.modules:
        yield
        return
    deferred = DeferredModule(f"{package}.{name}")
    names[name] = deferred
    try:
        yield
    finally:
        if names[name] is deferred:  # an import of the real module would have replaced it
            del names[name]


def import_accounting() -> None:
    """Import dp-accounting; where it was imported already, nothing happens."""
    if "dp_accounting" in sys.modules:
        return
    with ExitStack() as deferred:
        deferred.enter_context(defer_import("scipy", "signal"))
        deferred.enter_context(defer_import("absl", "logging"))
        import_module("dp_accounting")


import_accounting()
