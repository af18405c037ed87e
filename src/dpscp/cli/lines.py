"""Write promises, verdicts and evaluations as lines for a terminal."""

import sys
from pathlib import Path
from typing import Any

from dpscp._base.format import at_least, at_most, format_epsilon, format_level, format_number, format_rate
from dpscp._base.progress import clear_activity
from dpscp.report.numbers import WHY_BELOW


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on standard error."""
    clear_activity()
    print(f"dpscp: warning: {' '.join(str(message).split())}", file=sys.stderr)


def promise_lines(summary: dict[str, Any]) -> list[str]:
    """Write both promises, and the evaluation if there is one."""
    lines = [
        f"privacy:  epsilon {format_epsilon(summary['epsilon'])} at delta {summary['delta']:g} "
        f"(budget {format_number(summary['budget_epsilon'])}), for {summary['neighbors']}"
        + "".join(f"; NOT private: {reason}" for reason in summary["not_private_because"])
    ]
    evaluation = summary.get("evaluation")
    for place, certificate in enumerate(summary["certificates"]):
        text = f"coverage: at least {at_least(certificate['coverage'])} proven (target "
        text += f"{format_level(certificate['target'])}, guarantee {summary['guarantee']})"
        if evaluation:
            level = evaluation["levels"][place]
            unit = "labels in a set" if summary["task"] == "classification" else "wide on average"
            kind = "held-out" if evaluation["held_out"] else "labeled"
            text += f"; {format_rate(level['coverage'])} of {evaluation['n']:,} {kind} records, "
            text += f"{level['mean_size']:.3g} {unit}"
        average = f"for {certificate['covered']}, {certificate['on_average']}"
        lines += [text, f"          {average}; {certificate['one_release']}"]
    lines += useless_lines(summary.get("not_useful_because"))
    if summary.get("nominal_size"):
        lines.append(_size_line(**summary["nominal_size"]))
    if evaluation:
        if evaluation["reference"] is not None:
            other = evaluation["reference"]
            lines.append(
                f"compare:  {format_rate(other['coverage'])} and {other['mean_size']:.3g} on average with a "
                f"non-private model ({other['method']})"
            )
        lines += _below_promise_lines(summary)
        lines.append(_evaluation_line(evaluation["held_out"]))
    return lines


def _size_line(count: int, noun: str, is_declared: bool) -> str:
    text = (
        "declared" if is_declared else f"counted in the table; this number is published, declare n_{noun} to avoid it"
    )
    return f"{noun + ':':<9} {count:,} ({text})"


def useless_lines(reason: str | None) -> list[str]:
    """Write the verdict on a promise that is of no use; no line without a reason."""
    return [] if reason is None else [_highlight(f"verdict:  NOT USEFUL. {reason}")]


def _below_promise_lines(summary: dict[str, Any]) -> list[str]:
    """Write a line for each level that the evaluation shows to be below its promise."""
    return [
        _highlight(
            f"verdict:  BELOW THE PROMISE of {at_least(certificate['coverage'])}. The evaluation shows coverage of at "
            f"most {at_most(level['interval'][1])} (95 % interval). Do not rely on these sets before you know the "
            f"reason: {WHY_BELOW}"
        )
        for certificate, level in zip(summary["certificates"], summary["evaluation"]["levels"], strict=True)
        if level["below_promise"]
    ]


def _highlight(text: str) -> str:
    """Print a line in red on a terminal."""
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


def _evaluation_line(held_out: bool) -> str:
    text = "NOT private: the evaluation is computed without noise; publish it only if these records may be published"
    if not held_out:
        text += ". The fit may have used these records; if it did, the evaluation says nothing about new records"
    return f"checked:  {text}"


def report_line(path: Path | None) -> list[str]:
    """Write where the report is; no line without one."""
    return [] if path is None else [f"report:   {path.absolute()}"]
