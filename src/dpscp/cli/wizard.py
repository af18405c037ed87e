"""Ask for missing declarations on a terminal."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dpscp.data.schema import Column, Schema, SchemaError

Declared = TypeVar("Declared", Column, Schema)


def is_interactive() -> bool:
    """Whether input and error output are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def complete_schema(schema: Schema, ask: Callable[[str], str]) -> Schema:
    """Ask for everything that the schema lacks.

    No answer is proposed: answers come from public knowledge, never from the records.
    """
    if not schema.target:
        target = ask("target column: ").strip()
        schema = replace(schema, target=target, columns=tuple(c for c in schema.columns if c.name != target))
    if not schema.task:
        schema = _ask_until_valid(
            lambda: _replace_keys(schema, task=_ask_choice(ask, "task", ("classification", "regression")))
        )
    if schema.task == "classification" and schema.classes is None:
        schema = _ask_until_valid(
            lambda: _replace_keys(
                schema, classes=_parse_list(ask(f"classes of {schema.target}, separated by commas: "))
            )
        )
    if schema.task == "regression" and schema.bounds is None:
        schema = _ask_until_valid(
            lambda: _replace_keys(schema, bounds=_parse_bounds(ask(f"public bounds of {schema.target} (low, high): ")))
        )
    columns = tuple(column if column.lacks is None else _ask_column(column, ask) for column in schema.columns)
    return replace(schema, columns=columns)


def _ask_column(column: Column, ask: Callable[[str], str]) -> Column:
    name = column.name
    kind = column.type or _ask_choice(ask, name, ("numeric", "categorical", "ignore"))

    def answer() -> Column:
        declared = {**column.to_dict(), "type": kind}
        if kind == "numeric":
            declared["bounds"] = _parse_bounds(ask(f"public bounds of {name} (low, high): "))
        elif kind == "categorical":
            declared["categories"] = _parse_list(ask(f"categories of {name}, separated by commas: "))
        return Column.from_dict(name, declared)

    return _ask_until_valid(answer)


def _replace_keys(schema: Schema, **changes: object) -> Schema:
    return Schema.from_dict({**schema.to_dict(), **changes})


def _ask_until_valid(answer: Callable[[], Declared]) -> Declared:
    """Repeat the question until the answer is valid."""
    while True:
        try:
            return answer()
        except SchemaError as error:
            print(f"  {error}", file=sys.stderr)


def _ask_choice(ask: Callable[[str], str], name: str, choices: tuple[str, ...]) -> str:
    while True:
        answer = ask(f"{name}: {', '.join(choices)}? ").strip().lower()
        matches = [choice for choice in choices if answer and choice.startswith(answer)]
        if len(matches) == 1:
            return matches[0]


def _parse_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _parse_bounds(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SchemaError("enter two numbers, for example 0, 110") from None
