"""Describe a release as JSON values and as lines for a terminal.

Both come from its verdict and its statement.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpscp._base.progress import clear_activity
from dpscp.data.table_check import NOT_PRIVATE
from dpscp.report.numbers import nominal_size
from dpscp.report.verdict import Line, Verdict, judge

_WIDTH = max(len(name) for name in ("privacy strength:", "who is served worse:")) + 1


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on standard error."""
    show_line("warning", str(message))


def show_hints(hints: Iterable[str]) -> None:
    """Print hints for the curator on standard error only, marked as not private."""
    for hint in hints:
        show_line("hint", f"{hint} ({NOT_PRIVATE})")


def show_line(kind: str, text: str) -> None:
    """Print one line on standard error."""
    clear_activity()
    print(f"dpscp: {kind}: {' '.join(text.split())}", file=sys.stderr)


def describe(
    released: Any,
    evaluation: Any = None,
    *,
    study: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return verdict, statement and evaluation as JSON values, and as lines."""
    verdict, release = judge(released, evaluation), released.as_release()
    lines = [text for line in verdict.lines for text in verdict_lines(line)]
    if (size := nominal_size(release)) is not None:
        source = f"counted in the table; this number is published, declare n_{size['noun']} to avoid it"
        lines.append(_named(size["noun"], f"{size['count']:,} ({'declared' if size['is_declared'] else source})"))
    values = {"verdict": verdict.to_dict(), "statement": released.statement(study=study, metadata=metadata)}
    if evaluation is not None:
        values["evaluation"] = evaluation.to_dict()
        lines += str(evaluation).splitlines()
    return values, lines


def brief(verdict: Verdict) -> list[str]:
    """Return the bad lines of a verdict, which every user of the sets must know."""
    return [text for line in verdict.lines if line.grade.tone == "bad" for text in verdict_lines(line)]


def verdict_lines(line: Line) -> list[str]:
    """Return a verdict line as texts, one for each sentence; red if bad.

    Color is used on a terminal only.
    """
    is_bad = line.grade.tone == "bad"
    first = _named(line.title, f"{line.grade.upper() if is_bad else line.grade}.")
    return [_highlight(first) if is_bad else first, *(" " * _WIDTH + sentence for sentence in line.sentences)]


def _named(name: str, text: str) -> str:
    return f"{name + ':':<{_WIDTH}}{text}"


def _highlight(text: str) -> str:
    """Print a line in red on a terminal."""
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


def report_line(path: Path | None) -> list[str]:
    """Write where the report is; no line without one."""
    return [] if path is None else [_named("report", str(path.absolute()))]


def model_line(path: Path) -> str:
    """Write where the model is."""
    return _named("model", str(path))
