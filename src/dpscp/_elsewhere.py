"""Names that a room answers for and another one holds, imported when they are asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["held_by"]


def held_by(holder_of: Mapping[str, str], asked: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: the module ``asked`` answers for each name with what its holder has.

    A name whose holder is the module of that name below ``asked`` is that module.
    """

    def answer(name: str) -> Any:
        if name not in holder_of:
            raise AttributeError(f"module {asked!r} has no attribute {name!r}")
        holder = import_module(holder_of[name])
        return holder if holder.__name__ == f"{asked}.{name}" else getattr(holder, name)

    return answer
