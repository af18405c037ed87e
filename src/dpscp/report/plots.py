"""Pictures of sets and intervals on records that somebody looks at; they show what they are given, in the clear.

Each function returns a matplotlib figure (no pyplot, no global state); needs the extra ``dpscp[report]``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp import metrics
from dpscp._base.checks import check_count
from dpscp.report.figures import PALETTE, bare_figure, name_axes, put_legend
from dpscp.report.numbers import clopper_pearson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_sets(
    sets: ArrayLike, classes: Sequence[Any], *, y: ArrayLike | None = None, probabilities: ArrayLike | None = None
) -> "Figure":
    """One row for each record, one column for each label: labels in the set are filled; a ring marks the true label.

    ``sets``: bool (n, n_classes), one level (``predict_set(X)[1][:, :, 0]``), few records. ``probabilities`` of the
    same shape make unlikely labels paler.
    """
    array = np.asarray(sets)
    if array.ndim != 2 or array.dtype != np.bool_ or array.shape[1] != len(classes):
        raise ValueError("sets must be bool (n, n_classes), one level: give predict_set(X)[1][:, :, level]")
    n = len(array)
    shade = np.ones(array.shape) if probabilities is None else 0.25 + 0.75 * np.asarray(probabilities)
    figure, (axis,) = bare_figure(width=1.4 + 0.45 * len(classes), height=1.0 + 0.24 * n)
    rows, columns = np.nonzero(array)
    axis.scatter(columns, rows, s=90, marker="s", color=PALETTE["one"], alpha=shade[array])
    if y is not None:
        places = [list(classes).index(label) for label in np.asarray(y).tolist()]
        axis.scatter(places, np.arange(n), s=150, facecolors="none", edgecolors=PALETTE["two"], label="truth")
        put_legend(axis, loc="lower left", bbox_to_anchor=(0, 1))
    axis.set_xticks(range(len(classes)), [str(label) for label in classes], rotation=30, ha="right")
    axis.set_yticks(range(n), [str(place + 1) for place in range(n)])
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylim=(n - 0.4, -0.6))
    name_axes(axis, "label", "record")
    return figure


def plot_intervals(y: ArrayLike, intervals: ArrayLike, *, most: int = 200) -> "Figure":
    """Intervals (n, 2) in the order of their middles, and the truth: red where it lies outside.

    At most ``most`` records are drawn, evenly spread over that order.
    """
    array, truth = np.asarray(intervals, dtype=np.float64), np.asarray(y, dtype=np.float64)
    inside = metrics.covered(truth, array)
    if array.ndim != 2:
        raise ValueError("plot_intervals takes one level at a time: give intervals[:, :, level]")
    order = np.argsort(array.mean(axis=1), kind="stable")
    shown = order[np.unique(np.linspace(0, len(order) - 1, check_count("most", most)).astype(np.int64))]
    places = np.arange(len(shown))
    figure, (axis,) = bare_figure(width=7.0, height=3.4)
    axis.vlines(places, array[shown, 0], array[shown, 1], color=PALETTE["soft"], linewidth=2)
    for colour, kept, label in (("three", inside[shown], "inside"), ("two", ~inside[shown], "outside")):
        axis.scatter(places[kept], truth[shown][kept], s=8, color=PALETTE[colour], label=label, zorder=3)
    put_legend(axis, loc="upper left")
    axis.set_xticks([])
    name_axes(axis, "records, by the middle of the interval", "target")
    return figure


def plot_calibration(y: ArrayLike, sets: ArrayLike, levels: Sequence[float], *, classes: Any = None) -> "Figure":
    """What was covered on labelled records against what was asked for, with 95 % intervals; one point a level.

    ``sets`` as ``predict_set`` and ``predict_interval`` give them for several levels.
    """
    covered = metrics.covered(y, sets, classes=classes)
    if covered.ndim != 2 or covered.shape[1] != len(levels):
        raise ValueError("sets must hold one level for each of levels: fit with confidence_level=[...]")
    n, hits = len(covered), covered.sum(axis=0)
    ends = np.array([clopper_pearson(int(h), n) for h in hits])
    figure, (axis,) = bare_figure()
    low = min(min(levels), float(ends.min())) - 0.02
    axis.plot([low, 1], [low, 1], color=PALETTE["muted"], linestyle="--", linewidth=1, label="as asked for")
    axis.vlines(levels, ends[:, 0], ends[:, 1], color=PALETTE["one"])
    axis.scatter(levels, hits / n, color=PALETTE["one"], s=24, label="covered, 95 % interval", zorder=3)
    put_legend(axis, loc="upper left")
    name_axes(axis, "asked for", "covered")
    return figure
