"""Suggest the name that a misspelt one may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a question that names the closest of the public ``names``, if any.

    >>> suggest("epsilom", ["epsilon", "delta"]), suggest("x", ["epsilon"])
    (". Did you mean 'epsilon'?", '')
    """
    known = list(names)
    lower = {known_name.lower(): known_name for known_name in known}
    close = get_close_matches(name, known, 1) or [lower[n] for n in get_close_matches(name.lower(), lower, 1)]
    return f". Did you mean {close[0]!r}?" if close else ""
