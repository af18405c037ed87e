"""Show the evidence of a monitor: a figure, and an HTML page for one file.

Everything shown is released: the noisy numbers of the batches, their public names and public constants.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpscp._base.format import format_epsilon, html_paragraph, html_table
from dpscp.report.figures import PALETTE, bare_figure, inline_svg, name_axes, put_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscp.deployment.monitoring import CoverageMonitor

# The colors of a figure, for the light and the dark scheme.
_DARK = {"ink": "#e6eaf0", "muted": "#a3adbb", "line": "#3a4350", "soft": "#24405f", "one": "#6aa9ea", "two": "#f0965a"}
_MOST_NAMES = 12


def evidence_figure(monitor: "CoverageMonitor") -> "Figure":
    """Plot the evidence after each batch, with the limit of the alarm.

    Parameters
    ----------
    monitor : CoverageMonitor with at least one batch

    Returns
    -------
    matplotlib.figure.Figure
    """
    evidence, names = np.asarray(monitor.evidence), monitor.batches
    if not len(evidence):
        raise ValueError("the monitor has no batch yet; call update first")
    figure, (axis,) = bare_figure(width=6.4, height=3.0)
    places = np.arange(len(evidence))
    axis.axhline(monitor.alarm_limit, color=PALETTE["two"], linestyle="--", linewidth=1, label="alarm")
    axis.plot(places, evidence, color=PALETTE["one"], linewidth=2, marker="o", markersize=4, label="evidence")
    first = np.flatnonzero(evidence >= monitor.alarm_limit)
    if len(first):
        axis.plot(places[first[:1]], evidence[first[:1]], "o", color=PALETTE["two"], markersize=8, zorder=3)
    shown = np.unique(np.linspace(0, len(names) - 1, min(len(names), _MOST_NAMES)).astype(np.int64))
    axis.set_xticks(shown, [names[place].replace("$", r"\$") for place in shown], rotation=30, ha="right")
    name_axes(axis, "batch", "log evidence of a change")
    put_legend(axis, loc="lower left", ncols=2, bbox_to_anchor=(0, 1))
    return figure


def monitor_page(monitor: "CoverageMonitor") -> str:
    """Return an HTML page with the state of a monitor: the verdict, the evidence and its numbers."""
    verdict = "Alarm: coverage fell below the tolerated level." if monitor.alarm else "No alarm."
    rows = [
        [name, f"{value:.2f}", "yes" if value >= monitor.alarm_limit else "no"]
        for name, value in zip(monitor.batches, monitor.evidence, strict=True)
    ]
    colors = ";".join(f"--{name}:{color}" for name, color in PALETTE.items())
    dark = ";".join(f"--{name}:{color}" for name, color in _DARK.items())
    style = (
        f":root{{color-scheme:light dark;{colors};--page:#fff}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark};--page:#12161c}}}}"
        "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:48rem;"
        "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}th,td{text-align:left;"
        "padding:.3rem 1rem .3rem 0;border-bottom:1px solid var(--line)}svg{width:100%;height:auto}"
    )
    body = [
        "<h1>Monitor of a release</h1>",
        html_paragraph(verdict),
        inline_svg(evidence_figure(monitor), "evidence", "Evidence of a change after each batch"),
        html_table(["batch", "log evidence", "at or above the alarm"], rows),
        *map(html_paragraph, _explain(monitor)),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>Monitor of a release</title><style>{style}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}{title}</head><body>{"".join(body)}</body></html>\n'


def _explain(monitor: Any) -> list[str]:
    """Return what the numbers mean and what they cost."""
    budget = monitor.budget
    return [
        f"The alarm is raised when the evidence reaches {monitor.alarm_limit:.2f}. If every record is missed with "
        f"probability at most {monitor.tolerated:.3g}, the probability that it is ever raised is at most "
        f"{monitor.level:g}, however often you look.",
        f"Each batch released one noisy number: epsilon {format_epsilon(budget.epsilon)} at delta {budget.delta:g} for "
        "each of its records, or persons. Persons of different batches pay for one batch each."
        + (" NOT private: the noise came from a seed." if monitor.is_seeded else ""),
        "After an alarm, find out what changed. Then calibrate again on new records: dpscp recalibrate.",
    ]
