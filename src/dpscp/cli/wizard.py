"""Asking for missing declarations, on a terminal only."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dpscp.data.schema import Column, Schema, SchemaError

Declared = TypeVar("Declared", Column, Schema)


def can_ask() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def complete(schema: Schema, ask: Callable[[str], str]) -> Schema:
    """The schema with everything it lacks asked for; answers come from public knowledge, so nothing is proposed."""
    if not schema.target:
        target = ask("target column: ").strip()
        schema = replace(schema, target=target, columns=tuple(c for c in schema.columns if c.name != target))
    if not schema.task:
        schema = _again(lambda: _with(schema, task=_choice(ask, "task", ("classification", "regression"))))
    if schema.task == "classification" and schema.classes is None:
        schema = _again(lambda: _with(schema, classes=_list(ask(f"classes of {schema.target}, separated by commas: "))))
    if schema.task == "regression" and schema.bounds is None:
        schema = _again(lambda: _with(schema, bounds=_pair(ask(f"public bounds of {schema.target} (low, high): "))))
    columns = tuple(column if column.lacks is None else _column(column, ask) for column in schema.columns)
    return replace(schema, columns=columns)


def _column(column: Column, ask: Callable[[str], str]) -> Column:
    name = column.name
    kind = column.type or _choice(ask, name, ("numeric", "categorical", "ignore"))

    def answer() -> Column:
        found = {**column.to_dict(), "type": kind}
        if kind == "numeric":
            found["bounds"] = _pair(ask(f"public bounds of {name} (low, high): "))
        elif kind == "categorical":
            found["categories"] = _list(ask(f"categories of {name}, separated by commas: "))
        return Column.from_dict(name, found)

    return _again(answer)


def _with(schema: Schema, **changes: object) -> Schema:
    return Schema.from_dict({**schema.to_dict(), **changes})


def _again(answer: Callable[[], Declared]) -> Declared:
    """Ask until the answer is a valid declaration."""
    while True:
        try:
            return answer()
        except SchemaError as error:
            print(f"  {error}", file=sys.stderr)


def _choice(ask: Callable[[str], str], name: str, choices: tuple[str, ...]) -> str:
    while True:
        answer = ask(f"{name}: {', '.join(choices)}? ").strip().lower()
        found = [choice for choice in choices if answer and choice.startswith(answer)]
        if len(found) == 1:
            return found[0]


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pair(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SchemaError("give two numbers, such as 0, 110") from None
