"""Describe a fitted model as JSON values and as lines for a terminal."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpscp._base.format import at_least, at_most, format_epsilon, format_level, format_number, format_rate
from dpscp._base.progress import clear_activity
from dpscp.data.table_check import NOT_PRIVATE
from dpscp.guarantees import Certificate
from dpscp.report.numbers import WHY_BELOW, Evaluation, explain_useless_promise, nominal_size


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line on standard error."""
    show_line("warning", str(message))


def show_hints(hints: Iterable[str]) -> None:
    """Print hints for the curator on standard error, marked as not private. They go nowhere else."""
    for hint in hints:
        show_line("hint", f"{hint} ({NOT_PRIVATE})")


def show_line(kind: str, text: str) -> None:
    """Print one line on standard error."""
    clear_activity()
    print(f"dpscp: {kind}: {' '.join(text.split())}", file=sys.stderr)


def summarize_fit(estimator: Any, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """Convert the promises of a fitted model, and its evaluation, to JSON values."""
    delta = float(estimator.delta)
    useless, ledger = explain_useless_promise(estimator), estimator.ledger_
    summary: dict[str, Any] = {
        "task": estimator.task_.name,
        "guarantee": estimator.certificate_.guarantee,
        "epsilon": ledger.epsilon(delta, estimator.accountant),
        "delta": delta,
        "budget_epsilon": float(estimator.epsilon),
        "neighbors": ledger.neighbors,
        "unit": ledger.unit.to_dict(),
        "is_private": ledger.is_private,
        "not_private_because": list(ledger.not_private_because),
        "thresholds": [None if np.isinf(t) else float(t) for t in np.ravel(estimator.threshold_)],
        "certificates": [certificate_as_json(c) for c in estimator.certificates_],
        "is_useful": useless is None,
        "not_useful_because": useless,
        "nominal_size": nominal_size(estimator),
        "public_facts": ledger.to_dict()["public_facts"],
    }
    return summary if evaluation is None else summary | {"evaluation": evaluation.to_dict()}


def certificate_as_json(certificate: Certificate) -> dict[str, Any]:
    """Convert a certificate to JSON values, with its statements in words."""
    return {
        **certificate.to_dict(),
        "is_vacuous": certificate.is_vacuous,
        "covered": certificate.unit.covered,
        "on_average": certificate.on_average,
        "one_release": certificate.one_release,
    }


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
            unit = "wide on average" if summary["task"] == "regression" else "labels in a set"
            text += f"; {format_rate(level['coverage'])} of {evaluation['n']:,} labeled records, "
            text += f"{level['mean_size']:.3g} {unit}"
        lines += [text, f"          for {certificate['covered']}, {certificate['on_average']}"]
        lines[-1] += f"; {certificate['one_release']}"
    lines += useless_lines(summary.get("not_useful_because"))
    if summary.get("nominal_size"):
        size = summary["nominal_size"]
        source = f"counted in the table; this number is published, declare n_{size['noun']} to avoid it"
        source = "declared" if size["is_declared"] else source
        lines.append(f"{size['noun'] + ':':<9} {size['count']:,} ({source})")
    return lines + (_evaluation_lines(summary, evaluation) if evaluation else [])


def useless_lines(reason: str | None) -> list[str]:
    """Write the verdict on a promise that is of no use; no line without a reason."""
    return [] if reason is None else [_highlight(f"verdict:  NOT USEFUL. {reason}")]


def _evaluation_lines(summary: dict[str, Any], evaluation: dict[str, Any]) -> list[str]:
    """Write what the evaluation is compared with, and a line for each level that it shows to be below its promise."""
    other = evaluation["reference"]
    lines = other and [
        f"compare:  {format_rate(other['coverage'])} and {other['mean_size']:.3g} on average with a "
        f"non-private model ({other['method']})"
    ]
    below = [
        _highlight(
            f"verdict:  BELOW THE PROMISE of {at_least(certificate['coverage'])}. The evaluation shows coverage of at "
            f"most {at_most(level['interval'][1])} (95 % interval). Do not rely on these sets before you know the "
            f"reason: {WHY_BELOW}"
        )
        for certificate, level in zip(summary["certificates"], evaluation["levels"], strict=True)
        if level["below_promise"]
    ]
    text = "NOT private: the evaluation is computed without noise; publish it only if these records may be published. "
    return [*(lines or []), *below, f"checked:  {text}It says nothing about new records if the fit used these"]


def _highlight(text: str) -> str:
    """Print a line in red on a terminal."""
    return f"\033[31m{text}\033[0m" if sys.stdout.isatty() else text


def report_line(path: Path | None) -> list[str]:
    """Write where the report is; no line without one."""
    return [] if path is None else [f"report:   {path.absolute()}"]
