"""Names that a room answers for and another one holds, imported when they are asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_exports(holder_of: Mapping[str, str], asked: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: the module ``asked`` answers for each name with what its holder has.

    A room or a file below it answers to its own name.
    """

    def answer(name: str) -> Any:
        if name in holder_of:
            return getattr(import_module(holder_of[name]), name)
        if "." in name or find_spec(f"{asked}.{name}") is None:
            raise AttributeError(f"module {asked!r} has no attribute {name!r}")
        return import_module(f"{asked}.{name}")

    return answer
