"""Plot prediction sets and intervals of given records; the plots are not private.

Each function returns a matplotlib figure, without pyplot or global state. Needs the extra ``dpscp[report]``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp import metrics
from dpscp._base.checks import check_count
from dpscp.report.figures import PALETTE, bare_figure, name_axes, put_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_sets(
    sets: ArrayLike, classes: Sequence[Any], *, y: ArrayLike | None = None, probabilities: ArrayLike | None = None
) -> "Figure":
    """Plot the labels in each set: one row for each record, one column for each label.

    Parameters
    ----------
    sets : bool (n, n_classes), the sets of one level, ``predict_set(X)[1][:, :, level]``.
    classes : the n_classes labels.
    y : (n,) true labels, marked by rings.
    probabilities : (n, n_classes); unlikely labels become paler.

    Returns
    -------
    matplotlib.figure.Figure
    """
    array = np.asarray(sets)
    if array.ndim != 2 or array.dtype != np.bool_ or array.shape[1] != len(classes):
        raise ValueError("sets must be bool (n, n_classes) of one level: use predict_set(X)[1][:, :, level]")
    n = len(array)
    shade = np.ones(array.shape) if probabilities is None else 0.25 + 0.75 * np.asarray(probabilities)
    figure, (axis,) = bare_figure(width=1.4 + 0.45 * len(classes), height=1.0 + 0.24 * n)
    rows, columns = np.nonzero(array)
    axis.scatter(columns, rows, s=90, marker="s", color=PALETTE["one"], alpha=shade[array])
    if y is not None:
        places = [list(classes).index(label) for label in np.asarray(y).tolist()]
        axis.scatter(places, np.arange(n), s=150, facecolors="none", edgecolors=PALETTE["two"], label="true label")
        put_legend(axis, loc="lower left", bbox_to_anchor=(0, 1))
    axis.set_xticks(range(len(classes)), [str(label) for label in classes], rotation=30, ha="right")
    axis.set_yticks(range(n), [str(place + 1) for place in range(n)])
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylim=(n - 0.4, -0.6))
    name_axes(axis, "label", "record")
    return figure


def plot_intervals(y: ArrayLike, intervals: ArrayLike, *, most: int = 200) -> "Figure":
    """Plot intervals, sorted by their centers, with the true values inside and outside.

    Parameters
    ----------
    y : (n,) true values.
    intervals : (n, 2), the intervals of one level.
    most : largest number of records in the plot; they are evenly spaced in the order.

    Returns
    -------
    matplotlib.figure.Figure
    """
    array, truth = np.array(intervals, dtype=np.float64), np.asarray(y, dtype=np.float64)
    inside = metrics.covered(truth, array)
    known = np.concatenate([array[np.isfinite(array)], truth])
    array = np.clip(array, min(known, default=0.0), max(known, default=0.0))  # ends at infinity leave the plot
    if array.ndim != 2:
        raise ValueError("intervals must be (n, 2) of one level: use intervals[:, :, level]")
    order = np.argsort(array.mean(axis=1), kind="stable")
    drawn = order[np.unique(np.linspace(0, len(order) - 1, check_count("most", most)).astype(np.int64))]
    places = np.arange(len(drawn))
    figure, (axis,) = bare_figure(width=7.0, height=3.4)
    axis.vlines(places, array[drawn, 0], array[drawn, 1], color=PALETTE["soft"], linewidth=2)
    for color, rows, label in (("three", inside[drawn], "inside"), ("two", ~inside[drawn], "outside")):
        axis.scatter(places[rows], truth[drawn][rows], s=8, color=PALETTE[color], label=label, zorder=3)
    put_legend(axis, loc="upper left")
    axis.set_xticks([])
    name_axes(axis, "records, sorted by the center of the interval", "target")
    return figure
