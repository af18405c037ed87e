"""Ask for missing declarations on a terminal, and write each answer to the schema file at once.

Answers come from public knowledge. The questions propose no answers, because a proposal would come from the records.
"""

import csv
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dpscp._base.progress import pause_activity
from dpscp._base.suggestions import suggest
from dpscp.cli.files import CommandError
from dpscp.data.columns import TYPES
from dpscp.data.feature_bounds import PRIVATE
from dpscp.data.scales import LINEAR
from dpscp.data.schema import Column, Schema, SchemaError
from dpscp.report.page import write_atomically

Answer = TypeVar("Answer")
_YES, _NO = ("y", "yes"), ("n", "no")
_TASKS = {"classification": "one of a few labels", "regression": "a number"}
_TYPE_MEANINGS = {name: kind.meaning for name, kind in TYPES.items()}
# Smallest ratio of the upper bound to the lower one (or to 1) for the question about a logarithm.
_WIDE = 1_000
_BOUNDS = "public bounds of {} (low, high; empty: the fit finds bounds, for a part of the budget): "


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
    """Ask for everything that the schema lacks, show the answers, and write each one to the schema file.

    Parameters
    ----------
    schema : the declarations so far.
    path : the schema file to write after each answer.
    command : the command that continues, for the message after an interruption.
    names : the columns of the table.
    ask : prints a question and returns the answer.
    """
    wizard = _Wizard(schema, path, tuple(names), ask)
    backup = path.with_name(path.name + ".bak")
    if path.exists() and not backup.exists():  # writing the schema would remove comments of the user
        write_atomically(backup, path.read_bytes())
    kept = f"the answers so far are in {str(path)!r}. Continue with: {command}"
    _say(f"Some declarations are missing. The answers are written to {path}; the same command continues there.")
    _say("Answer from public knowledge (code books, units, physical limits), not from the records.")
    _say(f"Columns: {', '.join(names)}.")
    try:
        with pause_activity():
            wizard.run()
    except EOFError:
        raise CommandError(f"the declarations are not complete; {kept}") from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {kept}") from None
    return wizard.schema


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
            _say(self.schema.to_toml())
            name = self.ask("Is this correct? yes, or the name of the answer to change: ").strip()
            if name.lower() in _YES:
                return
            self._forget(name)
            self._ask_missing()

    def _ask_missing(self) -> None:
        if not self.schema.target:
            self._store(self._answer("column to predict: ", lambda text: self._use_column(text, target=text)))
        target = self.schema.target
        if not self.schema.task:  # the first question, so that a later run can see which questions were answered
            if self.schema.person is None and self.schema.rows_per_person is None:
                self._ask_persons()
            self._store(replace(self.schema, task=self._choose(f"what is {target}", _TASKS)))
        if self.schema.task == "classification" and self.schema.classes is None:
            question = f"all labels of {target}, separated by commas: "
            self._store(replace(self.schema, classes=self._answer(question, lambda text: parse_list(text, least=2))))
        if self.schema.task == "regression" and self.schema.bounds is None:
            parse = lambda text: replace(self.schema, bounds=self._read_bounds(text))  # noqa: E731
            self._store(self._answer(_BOUNDS.format(target), parse))
            scale = self._ask_scale(str(target), self.schema.bounds)
            self._store(replace(self.schema, scale=None if scale == LINEAR else scale))
        for column in self.schema.columns:
            is_open = column.lacks is not None or ("bounds" in column.kind.keys and column.bounds is None)
            if is_open and column.name not in (target, self.schema.person):
                self._replace_column(self._ask_column(column))
        if not self.schema.feature_names:
            _say("  every column is ignored; at least one must be used")
            self._replace_column(Column(self._answer("column to use: ", self._require_column)))
            self._ask_missing()

    def _store(self, schema: Schema) -> None:
        """Keep an answer and write it to the file."""
        self.schema = schema
        write_atomically(self.path, schema.to_toml().encode())

    def _replace_column(self, column: Column) -> None:
        columns = tuple(column if c.name == column.name else c for c in self.schema.columns)
        self._store(replace(self.schema, columns=columns))

    def _answer(self, question: str, parse: Callable[[str], Answer]) -> Answer:
        """Repeat a question until its answer is valid; other answers are not touched."""
        while True:
            try:
                return parse(self.ask(question).strip())
            except SchemaError as error:
                _say(f"  {error}")

    def _choose(self, question: str, choices: dict[str, str]) -> str:
        listed = ", ".join(f"{choice} ({meaning})" for choice, meaning in choices.items())
        return self._answer(f"{question}: {listed}? ", lambda text: parse_choice(text, choices))

    def _confirm(self, question: str) -> bool:
        return self._answer(f"{question} yes or no: ", lambda text: parse_choice(text, ("yes", "no"))) == "yes"

    def _require_column(self, name: str) -> str:
        if name not in self.names:
            raise SchemaError(f"the table has no column {name!r}{suggest(name, self.names)}")
        return name

    def _use_column(self, name: str, **declared: Any) -> Schema:
        """Return the schema with a declared column that is not a feature."""
        columns = tuple(c for c in self.schema.columns if c.name != self._require_column(name))
        return replace(self.schema, columns=columns, **declared)

    def _ask_persons(self) -> None:
        """Ask whether a person may have several rows, and for the public number of persons or records."""
        count = "public number of {} (empty: the number in the table is published): "
        if not self._confirm("Can one person have several rows in the table?"):
            size = self._answer(count.format("records"), parse_count_or_none)
            return self._store(replace(self.schema, n_records=size))
        person = self._answer("column with the id of the person: ", self._require_id)
        rows = self._answer("largest number of rows to use for one person, for example 3: ", parse_count)
        size = self._answer(count.format("persons"), parse_count_or_none)
        return self._store(self._use_column(person, person=person, rows_per_person=rows, n_persons=size))

    def _require_id(self, name: str) -> str:
        if name == self.schema.target:
            raise SchemaError("the target cannot be the id of the person")
        return self._require_column(name)

    def _read_bounds(self, text: str) -> Any:
        return parse_bounds(text, self.schema.csv.decimal)

    def _ask_scale(self, name: str, bounds: Any) -> str:
        """Ask whether the model should see the logarithm of a column with wide public bounds."""
        if bounds == PRIVATE or bounds[0] < 0 or bounds[1] < _WIDE * max(bounds[0], 1):
            return LINEAR
        question = f"  is {name} better compared by ratios than by differences, such as costs or durations?"
        return ("log" if bounds[0] > 0 else "log1p") if self._confirm(question) else LINEAR

    def _ask_column(self, column: Column) -> Column:
        name = column.name
        column = replace(column, type=column.type or self._choose(f"column {name}", _TYPE_MEANINGS))
        if "bounds" in column.kind.keys:
            read = parse_dates if column.type == "date" else self._read_bounds
            bounded = self._answer(f"  {_BOUNDS.format(name)}", lambda text: replace(column, bounds=read(text)))
            if column.type == "numeric":
                bounded = replace(bounded, scale=self._ask_scale(name, bounded.bounds))
            question = (
                f"  can {name} be missing? no (a missing value is an error), mark (adds a 0/1 feature), or a public "
                f"{'date' if column.type == 'date' else 'number'} to fill in: "
            )
            decimal, kind = self.schema.csv.decimal, column.type
            return self._answer(question, lambda text: replace(bounded, missing=parse_missing(text, kind, decimal)))
        if column.type == "categorical":
            labels = self._answer(f"  all values of {name}, separated by commas: ", parse_list)
            other = self._confirm(f"  can {name} be missing or have another value?")
            return replace(column, categories=labels, unknown="other" if other else "refuse")
        return column

    def _forget(self, name: str) -> None:
        """Remove an answer, so that its question is repeated."""
        schema = self.schema
        known = [column.name for column in schema.columns]
        if name in known:
            self._replace_column(Column(name))
        elif name == "persons":
            columns = (*schema.columns, *([] if schema.person is None else [Column(schema.person)]))
            schema = replace(schema, columns=columns, person=None, rows_per_person=None, n_persons=None)
            self._store(replace(schema, n_records=None, task=""))
        elif name in ("task", "target", "classes", "bounds", schema.target):
            self._store(replace(schema, task="", classes=None, bounds=None, scale=None))
        else:
            _say(f"  there is no {name!r}{suggest(name, ['persons', 'task', *known])}")


def parse_choice(text: str, choices: Collection[str]) -> str:
    """Return the choice that begins with an answer."""
    matches = [choice for choice in choices if text and choice.startswith(text.lower())]
    if len(matches) != 1:
        raise SchemaError(f"enter one of {', '.join(choices)}")
    return matches[0]


def parse_count(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise SchemaError("enter a whole number above 0, without separators")
    return int(text)


def parse_count_or_none(text: str) -> int | None:
    """Read a whole number above 0, or nothing."""
    return parse_count(text) if text else None


def parse_list(text: str, least: int = 1) -> tuple[str, ...]:
    """Split an answer at commas; quotes protect a comma."""
    cells = next(csv.reader([text], skipinitialspace=True), [])
    found = tuple(cell.strip() for cell in cells if cell.strip())
    if len(found) < least:
        raise SchemaError("enter at least one value" if least == 1 else "enter at least two labels: no, yes")
    return found


def parse_bounds(text: str, decimal: str = ".") -> tuple[float, float] | str:
    """Read two numbers, low and high, with a decimal mark; an empty answer means private bounds."""
    written = text.replace(",", " " if decimal == "." else ".")
    try:
        low, high = (float(part) for part in written.replace(";", " ").replace(" to ", " ").split())
    except ValueError:
        if text:
            kind = "point, for example 0, 110" if decimal == "." else "comma, for example 0,5 to 110"
            raise SchemaError(f"enter two numbers with a decimal {kind}") from None
        return PRIVATE
    return low, high


def parse_dates(text: str) -> tuple[str, ...] | str:
    """Split two dates, low and high; an empty answer means private bounds."""
    return tuple(text.replace(",", " ").replace(";", " ").replace(" to ", " ").split()) or PRIVATE


def parse_missing(text: str, kind: str = "numeric", decimal: str = ".") -> str | float:
    """Read the treatment of missing values: an error, a separate feature, or a public value, which a column checks."""
    answer = text.lower()
    if answer in (*_NO, "m", "mark", "indicator"):
        return "refuse" if answer in _NO else "indicator"
    if kind == "date":
        return answer
    try:
        return float(answer.replace(decimal, "."))
    except ValueError:
        raise SchemaError("enter no, mark, or a number") from None
