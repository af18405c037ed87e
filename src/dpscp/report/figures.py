"""Draw the figures of the report with matplotlib, without pyplot or global state.

Colors come from ``PALETTE``. The HTML page replaces them by its variables, so that one figure is correct in the light
and the dark scheme.
"""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpscp.deployment.monitoring import CoverageMonitor

__all__ = ["bare_figure", "inline_svg", "monitor_figure", "name_axes", "put_legend"]

# name of the page's variable -> color in a separate figure
PALETTE: Mapping[str, str] = {
    "ink": "#1d2530",
    "muted": "#6b7482",
    "line": "#d3d8e0",
    "one": "#2b6cb0",
    "two": "#c05621",
    "three": "#2f855a",
    "four": "#805ad5",
    "five": "#b83280",
    "six": "#718096",
    "soft": "#cfe0f3",
}
_MOST_NAMES = 12
_NEEDS = "figures need matplotlib; install it with pip install 'dpscp[report]'"


def bare_figure(width: float = 4.6, height: float = 2.9, panels: int = 1) -> tuple["Figure", list["Axes"]]:
    """Create an empty figure in the style of the report, and its panels."""
    try:
        from matplotlib.figure import Figure
    except ImportError:  # pragma: no cover (the test environment has it)
        raise ImportError(_NEEDS) from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
    for axis in axes:
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        for side in ("left", "bottom"):
            axis.spines[side].set_color(PALETTE["muted"])
        axis.tick_params(colors=PALETTE["muted"], labelcolor=PALETTE["ink"], labelsize=8)
        axis.set_axisbelow(True)
    return figure, axes


def name_axes(axis: "Axes", x: str, y: str) -> None:
    """Label the axes in the style of the report."""
    axis.set_xlabel(x, color=PALETTE["ink"], fontsize=9)
    axis.set_ylabel(y, color=PALETTE["ink"], fontsize=9)


def put_legend(axis: "Axes", **options: Any) -> None:
    """Add a legend in the style of the report."""
    axis.legend(frameon=False, fontsize=8, labelcolor=PALETTE["ink"], **options)


def monitor_figure(monitor: "CoverageMonitor") -> "Figure":
    """Plot the evidence after each batch.

    With ``follow``, also plots the coverage of each batch and the thresholds in force.

    Parameters
    ----------
    monitor : CoverageMonitor with at least one batch

    Returns
    -------
    matplotlib.figure.Figure
    """
    evidence, limit = np.asarray(monitor.evidence), monitor.alarm_limit
    if not len(evidence):
        raise ValueError("the monitor has no batch yet; call update first")
    follows = monitor.follow is not None
    figure, axes = bare_figure(*((9.6, 3.2, 3) if follows else (6.4, 3.0, 1)))
    places = np.arange(len(evidence))
    mark: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": 4}
    axes[0].axhline(limit, color=PALETTE["two"], linestyle="--", linewidth=1, label="alarm")
    axes[0].plot(places, evidence, color=PALETTE["one"], **mark, label="evidence")
    first = np.flatnonzero(evidence >= limit)[:1]
    if len(first):
        axes[0].plot(first, evidence[first], "o", color=PALETTE["two"], markersize=8, zorder=3)
    if follows:
        coverage, target = np.array(monitor.released_coverage), monitor.estimator.certificate_.target
        thresholds = np.array([np.reshape(one, -1) for one in monitor.thresholds])[:-1]
        groups = ["coverage"] if coverage.shape[1] == 1 else list(map(str, monitor.estimator.group_values_))
        axes[1].axhline(target, color=PALETTE["muted"], linestyle="--", linewidth=1)
        for place, (group, color) in enumerate(zip(groups, cycle(("one", "two", "soft", "muted")), strict=False)):
            axes[1].plot(places, coverage[:, place], color=PALETTE[color], **mark, label=group)
            shown = np.where(np.isinf(thresholds[:, place]), np.nan, thresholds[:, place])
            axes[2].plot(places, shown, color=PALETTE[color], **mark)
    titles = ("log evidence of a change", "coverage in force, noisy", "threshold in force")
    for axis, title in zip(axes, titles, strict=False):
        _name_batches(axis, monitor.batches, title, _MOST_NAMES // (2 if follows else 1))
    for axis in axes[:2]:
        put_legend(axis, loc="lower left", ncols=2, bbox_to_anchor=(0, 1))
    return figure


def _name_batches(axis: "Axes", names: Sequence[str], label: str, most: int) -> None:
    """Label an axis of batches with some of their public names."""
    shown = np.unique(np.linspace(0, len(names) - 1, min(len(names), most)).astype(np.int64))
    axis.set_xticks(shown, [names[place].replace("$", r"\$") for place in shown], rotation=30, ha="right")
    name_axes(axis, "batch", label)


def inline_svg(figure: "Figure", name: str, label: str) -> str:
    """Convert a figure to SVG, with text as text and the page's color variables."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    head, body = text[: text.index(">")], text[text.index(">") :]
    head = re.sub(r'\s(?:xmlns(?::\w+)?|version|width|height)="[^"]*"', "", head)
    # remove metadata, the style sheet, which would affect the whole page, and ids, which repeat in every figure
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    text = head + re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", body)
    for variable, color in PALETTE.items():
        text = text.replace(color, f"var(--{variable})")
    escaped = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{escaped}"', 1)
