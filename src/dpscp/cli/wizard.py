"""Ask for missing declarations on a terminal, and write each answer to the schema file at once.

Answers come from public knowledge. Nothing is proposed, because a proposal would come from the records.
"""

import csv
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from dpscp._base.progress import pause_activity
from dpscp._base.suggestions import suggest
from dpscp.cli.errors import CommandError
from dpscp.data.feature_bounds import PRIVATE
from dpscp.data.schema import Column, Schema, SchemaError
from dpscp.report.page import write_atomically

Answer = TypeVar("Answer")
_YES, _NO = ("y", "yes"), ("n", "no")


class InterruptedWizard(KeyboardInterrupt):
    """Ctrl-C during the questions; the text says where the answers are."""


def is_interactive() -> bool:
    """Whether input and error output are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_answer(question: str) -> str:
    """Ask on standard error and read one line of standard input."""
    print(question, end="", file=sys.stderr, flush=True)
    return input()


def ask_declarations(
    schema: Schema, path: Path, command: str, names: Collection[str], ask: Callable[[str], str] = read_answer
) -> Schema:
    """Ask for everything that the schema lacks, show the answers, and write the schema as it grows.

    Parameters
    ----------
    schema : what is declared already.
    path : the schema file to write after each answer.
    command : the command that continues, for the message after an interruption.
    names : the columns of the table.
    ask : prints a question and returns the answer.
    """
    wizard = _Wizard(schema, path, tuple(names), ask)
    backup = path.with_name(path.name + ".bak")
    if path.exists() and not backup.exists():  # comments of the user would be lost
        write_atomically(backup, path.read_bytes())
    with pause_activity(), _keep_answers(path, command):
        _say(f"Some declarations are missing. The answers are written to {path}; the same command continues there.")
        _say("Answer from public knowledge (code books, units, physical limits), not from the records.")
        wizard.run()
    return wizard.schema


@contextmanager
def _keep_answers(path: Path, command: str) -> Iterator[None]:
    """Say where the answers are when the questions end early."""
    kept = f"the answers so far are in {str(path)!r}. Continue with: {command}"
    try:
        yield
    except EOFError:
        raise CommandError(f"the declarations are not complete; {kept}") from None
    except KeyboardInterrupt:
        raise InterruptedWizard(f"interrupted; {kept}") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass
class _Wizard:
    schema: Schema
    path: Path
    names: tuple[str, ...]
    ask: Callable[[str], str]

    def run(self) -> None:
        """Ask all questions, then show the answers until they are confirmed."""
        self._ask_missing()
        while True:
            for line in describe_schema(self.schema):
                _say(line)
            answer = self.ask("Is this right? yes, or the name of what to answer again: ").strip()
            if answer.lower() in _YES:
                return
            self._forget(answer)
            self._ask_missing()

    def _ask_missing(self) -> None:
        if not self.schema.target:
            self._store(self._until_valid(self._ask_target))
        if not self.schema.task:  # the first question after the target, so that a later run knows which answers exist
            if self.schema.person is None and self.schema.rows_per_person is None:
                self._store(self._until_valid(self._ask_persons))
            self._store(self._until_valid(self._ask_task))
        if self.schema.task == "classification" and self.schema.classes is None:
            self._store(self._until_valid(self._ask_classes))
        if self.schema.task == "regression" and self.schema.bounds is None:
            self._store(self._until_valid(self._ask_target_bounds))
        for column in self.schema.columns:
            is_open = column.lacks is not None or (column.type == "numeric" and column.bounds is None)
            if is_open and column.name not in (self.schema.target, self.schema.person):
                self._replace_column(self._until_valid(partial(self._ask_column, column)))
        if not self.schema.feature_names:
            _say("  every column is ignored; at least one must be used")
            self._forget(self._until_valid(lambda: self._ask_name("column to use: ")))
            self._ask_missing()

    def _store(self, schema: Schema) -> None:
        """Keep an answer and write it to the file."""
        self.schema = schema
        write_atomically(self.path, schema.to_toml().encode())

    def _replace_column(self, column: Column) -> None:
        self._store(
            replace(self.schema, columns=tuple(column if c.name == column.name else c for c in self.schema.columns))
        )

    def _until_valid(self, question: Callable[[], Answer]) -> Answer:
        """Repeat a question until its answer is valid; other answers are not touched."""
        while True:
            try:
                return question()
            except SchemaError as error:
                _say(f"  {error}")

    def _forget(self, name: str) -> None:
        """Remove an answer, so that its question comes again."""
        schema = self.schema
        known = [column.name for column in schema.columns]
        if name in known:
            self._replace_column(Column(name))
        elif name == "persons":
            columns = (*schema.columns, *([] if schema.person is None else [Column(schema.person)]))
            schema = replace(schema, columns=columns, person=None, rows_per_person=None, n_persons=None)
            self._store(replace(schema, n_records=None, task=""))
        elif name in ("task", "target", "classes", "bounds", schema.target):
            self._store(replace(schema, task="", classes=None, bounds=None))
        else:
            _say(f"  there is no {name!r}{suggest(name, ['persons', 'task', *known])}")

    def _ask_name(self, question: str) -> str:
        name = self.ask(question).strip()
        if name not in self.names:
            raise SchemaError(f"the table has no column {name!r}{suggest(name, self.names)}")
        return name

    def _ask_target(self) -> Schema:
        target = self._ask_name("column to predict: ")
        return replace(self.schema, target=target, columns=tuple(c for c in self.schema.columns if c.name != target))

    def _ask_persons(self) -> Schema:
        """Ask whether a person may have several rows, and for the public number of persons or records."""
        if not self._ask_yes_no("Can one person have several rows in the table?"):
            return self._with_count("n_records", "records", {})
        person = self._ask_name("column with the id of the person: ")
        if person == self.schema.target:
            raise SchemaError("the target cannot be the id of the person")
        rows = self._ask_whole_number("largest number of rows that are used of one person, for example 3: ")
        return self._with_count("n_persons", "persons", {"person": person, "rows_per_person": rows})

    def _with_count(self, key: str, noun: str, declared: dict[str, object]) -> Schema:
        question = f"public number of {noun} (empty: the number in the table is published): "
        count = self._until_valid(lambda: self._ask_whole_number(question, optional=True))
        person = declared.get("person")
        columns = {name: column for name, column in self.schema.to_dict()["columns"].items() if name != person}
        return Schema.from_dict({**self.schema.to_dict(), "columns": columns, **declared, key: count})

    def _ask_task(self) -> Schema:
        text = f"what is {self.schema.target}"
        kind = self._ask_choice(text, {"classification": "one of a few labels", "regression": "a number"})
        return replace(self.schema, task=kind)

    def _ask_classes(self) -> Schema:
        labels = parse_list(self.ask(f"all labels of {self.schema.target}, separated by commas: "))
        if len(labels) < 2:
            raise SchemaError("enter at least two labels, for example: no, yes")
        return replace(self.schema, classes=labels)

    def _ask_target_bounds(self) -> Schema:
        return replace(self.schema, bounds=self._ask_bounds(self.schema.target))

    def _ask_bounds(self, name: str, indent: str = "") -> tuple[float, float] | str:
        """Ask for public bounds; an empty answer lets the fit find them."""
        text = self.ask(
            f"{indent}public bounds of {name} (low, high; empty: the fit finds some, for a part of the budget): "
        )
        return parse_bounds(text) if text.strip() else PRIVATE

    def _ask_column(self, column: Column) -> Column:
        kinds = {"numeric": "numbers", "categorical": "one of a few values", "ignore": "not used"}
        kind = column.type or self._ask_choice(f"column {column.name}", kinds)
        if kind == "numeric":
            return self._until_valid(lambda: self._ask_numeric(replace(column, type=kind)))
        if kind == "categorical":
            return self._until_valid(lambda: self._ask_categorical(replace(column, type=kind)))
        return replace(column, type=kind)

    def _ask_numeric(self, column: Column) -> Column:
        column = replace(column, bounds=self._ask_bounds(column.name, "  "))
        question = (
            f"  can {column.name} be missing? no (a missing value is an error), mark (adds a 0/1 feature), or a public "
            "number to fill in: "
        )
        return self._until_valid(lambda: replace(column, missing=_parse_missing(self.ask(question))))

    def _ask_categorical(self, column: Column) -> Column:
        labels = parse_list(self.ask(f"  all values of {column.name}, separated by commas: "))
        if not labels:
            raise SchemaError("enter at least one value")
        column = replace(column, categories=labels)
        other = self._ask_yes_no(f"  can {column.name} be missing or have another value?")
        return replace(column, unknown="other" if other else "refuse")

    def _ask_choice(self, name: str, choices: dict[str, str]) -> str:
        listed = ", ".join(f"{choice} ({meaning})" for choice, meaning in choices.items())

        def choose() -> str:
            answer = self.ask(f"{name}: {listed}? ").strip().lower()
            matches = [choice for choice in choices if answer and choice.startswith(answer)]
            if len(matches) != 1:
                raise SchemaError(f"enter one of {', '.join(choices)}")
            return matches[0]

        return self._until_valid(choose)

    def _ask_yes_no(self, question: str) -> bool:
        def decide() -> bool:
            answer = self.ask(f"{question} yes or no: ").strip().lower()
            if answer not in (*_YES, *_NO):
                raise SchemaError("enter yes or no")
            return answer in _YES

        return self._until_valid(decide)

    def _ask_whole_number(self, question: str, *, optional: bool = False) -> int | None:
        text = self.ask(question).strip()
        if optional and not text:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise SchemaError("enter a whole number above 0, without separators")
        return int(text)


def describe_schema(schema: Schema) -> list[str]:
    """Write the declarations as lines for a terminal."""
    labels = ", ".join(schema.classes or ()) if schema.task == "classification" else _range_text(schema.bounds)
    lines = [f"  {schema.target}: {schema.task}, {labels}", f"  persons: {_describe_persons(schema)}"]
    for column in schema.columns:
        if column.name in (schema.target, schema.person):
            continue
        text = column.type
        if column.type == "numeric":
            text += f", {_range_text(column.bounds)}; missing: {_describe_missing(column)}"
        elif column.type == "categorical":
            other = "an error" if column.unknown == "refuse" else "allowed"
            text += f", {', '.join(column.categories or ())}; another value is {other}"
        lines.append(f"  {column.name}: {text}")
    return lines


def _range_text(bounds: tuple[float, float] | str | None) -> str:
    return f"{bounds[0]:g} to {bounds[1]:g}" if isinstance(bounds, tuple) else "bounds found by the fit"


def _describe_persons(schema: Schema) -> str:
    if schema.person is None:
        count = schema.n_records
        text = "one row each" if schema.rows_per_person is None else f"at most {schema.rows_per_person} rows each"
    else:
        count = schema.n_persons
        text = f"ids in {schema.person}, at most {schema.rows_per_person} rows of each are used"
    return f"{text}; {'the number in the table is published' if count is None else f'{count:,} declared'}"


def _describe_missing(column: Column) -> str:
    words = {"refuse": "an error", "indicator": "marked by a 0/1 feature"}
    return words[column.missing] if isinstance(column.missing, str) else f"filled with {column.missing:g}"


def parse_list(text: str) -> tuple[str, ...]:
    """Split an answer at commas; quotes protect a comma."""
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return tuple(cell.strip() for cell in cells if cell.strip())


def parse_bounds(text: str) -> tuple[float, float]:
    """Read two numbers, low and high."""
    try:
        low, high = (float(part) for part in text.replace(",", " ").replace(";", " ").replace(" to ", " ").split())
    except ValueError:
        raise SchemaError("enter two numbers with a decimal point, for example 0, 110") from None
    return low, high


def _parse_missing(text: str) -> str | float:
    answer = text.strip().lower()
    if answer in _NO:
        return "refuse"
    if answer in ("m", "mark", "indicator"):
        return "indicator"
    try:
        return float(answer)
    except ValueError:
        raise SchemaError("enter no, mark, or a number") from None
