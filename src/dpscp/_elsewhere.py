"""Names that a room answers for and another one holds, imported when they are asked for."""

from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

__all__ = ["held_by"]


def held_by(holder: str, names: Collection[str], asked: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: the module ``asked`` answers for ``names`` with what the module ``holder`` has."""

    def answer(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {asked!r} has no attribute {name!r}")
        return getattr(import_module(holder), name)

    return answer
