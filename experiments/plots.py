"""The pictures: coverage against size, the sweep of p, the scaling with n, and curves with bands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from experiments.tables import NAMES, Summary

__all__ = ["bands", "coverage_against_size", "lines", "share_sweep"]

COLORS = {
    "dp-scp-f": "#1f77b4",
    "dp-scp-a": "#6baed6",
    "dp-split": "#7f7f7f",
    "naive-full": "#bcbd22",
    "split-cp": "#8c6d31",
    "universal": "#9467bd",
    "stability": "#e377c2",
    "split": "#2ca02c",
    "corrected": "#ff7f0e",
    "default": "#d62728",
}
# readable on white paper and on a dark screen: the background of a picture is transparent
INK = "#777777"
_STYLE = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "legend.edgecolor": INK,
}
mpl.rcParams.update(_STYLE)
MARKS = {0.25: "P", 0.5: "o", 1.0: "s", 2.0: "^", 4.0: "D", 8.0: "v", None: "*"}
TARGET = 0.9


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def coverage_against_size(path: Path, title: str, summaries: Sequence[Summary], size_name: str) -> None:
    """One point for each method and epsilon; hollow points are the paper's printed means."""
    figure, axes = plt.subplots(figsize=(7.5, 4.8))
    seen: set[str] = set()
    shown = [s for s in summaries if not s.variant and s.size is not None and np.isfinite(s.size)]
    shown = [s for s in shown if s.method not in ("dp-scp-f", "dp-scp-a") or s.train_share == 0.5]
    # where the default chose the split, the two are one point
    taken = {(s.epsilon, s.size) for s in shown if s.method == "default"}
    for s in shown:
        if s.method == "split" and (s.epsilon, s.size) in taken:
            continue
        color, mark = COLORS[s.method], MARKS.get(s.epsilon, "o")
        label = NAMES[s.method] if s.method not in seen else None
        seen.add(s.method)
        axes.errorbar(
            s.size,
            s.coverage,
            xerr=_error(s.size_sd, s.trials),
            yerr=_error(s.coverage_sd, s.trials),
            fmt=mark,
            color=color,
            label=label,
            ms=7,
        )
        if s.paper is not None:
            axes.plot(s.paper.size, s.paper.coverage, mark, mec=color, mfc="none", ms=11)
    axes.axhline(TARGET, color=INK, lw=0.8, ls="--")
    axes.set_xlabel(size_name)
    axes.set_ylabel("coverage")
    key = "circle, square, triangle: epsilon .5, 1, 2; star: not private; hollow: printed in the paper"
    # the legend beside the axes takes room: a long title is broken
    axes.set_title(f"{fill(title, 85)}\n{key}", fontsize=9)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    _save(figure, path)


def _error(sd: float | None, trials: int) -> float:
    return 0.0 if sd is None else 2 * sd / np.sqrt(trials)


def share_sweep(path: Path, title: str, summaries: Sequence[Summary], size_name: str) -> None:
    """Size of DP-SCP-F and DP-SCP-A against the training share p; dotted lines are the paper's."""
    epsilons = sorted({s.epsilon for s in summaries if s.epsilon is not None})
    figure, panels = plt.subplots(1, len(epsilons), figsize=(9.5, 3.4), sharey=True, squeeze=False)
    for axes, epsilon in zip(panels[0], epsilons, strict=True):
        for method in ("dp-scp-f", "dp-scp-a"):
            line = [s for s in summaries if s.method == method and s.epsilon == epsilon and not s.variant]
            shares = [s.train_share for s in line]
            axes.errorbar(
                shares,
                [s.size for s in line],
                yerr=[_error(s.size_sd, s.trials) for s in line],
                color=COLORS[method],
                marker="o",
                label=NAMES[method],
            )
            known = [s for s in line if s.paper is not None]
            axes.plot(
                [s.train_share for s in known],
                [s.paper.size for s in known if s.paper],
                ":",
                marker="o",
                mfc="none",
                color=COLORS[method],
            )
        for s in summaries:
            if s.method == "dp-split" and s.epsilon == epsilon and not s.variant:
                axes.axhline(s.size, color=COLORS["dp-split"], label=NAMES["dp-split"])
                if s.paper:
                    axes.axhline(s.paper.size, color=COLORS["dp-split"], ls=":")
        axes.set_title(f"epsilon {epsilon:g}")
        axes.set_xlabel("training share p")
    panels[0][0].set_ylabel(size_name)
    panels[0][-1].legend(fontsize=8, loc="upper right")
    figure.suptitle(f"{title} (dotted: printed in the paper)", fontsize=10)
    _save(figure, path)


def lines(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float] | None]]],
    *,
    x_name: str,
    y_name: str,
    log_x: bool = False,
    target: float | None = None,
    dotted: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]] | None = None,
) -> None:
    """Panels of labelled curves (x, y, error); ``dotted`` are reference curves in the same colours."""
    figure, axes_row = plt.subplots(1, len(panels), figsize=(10.5, 3.8), sharey=True, squeeze=False)
    for axes, (name, curves) in zip(axes_row[0], panels.items(), strict=True):
        for label, (x, y, error) in curves.items():
            axes.errorbar(x, y, yerr=error, marker="o", ms=4, color=COLORS.get(label), label=NAMES.get(label, label))
        for label, (x, y) in (dotted or {}).get(name, {}).items():
            axes.plot(x, y, ":", marker="o", mfc="none", color=COLORS.get(label))
        if target is not None:
            axes.axhline(target, color=INK, lw=0.8, ls="--")
        if log_x:
            axes.set_xscale("log", base=2)
            ticks = sorted({v for x, _, _ in curves.values() for v in x})
            axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.set_title(name, fontsize=8)
        axes.set_xlabel(x_name)
    axes_row[0][0].set_ylabel(y_name)
    axes_row[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle(title, fontsize=10)
    _save(figure, path)


def bands(path: Path, title: str, panels: Mapping[str, Mapping[str, NDArray[np.float64]]], x_name: str) -> None:
    """Panels of mean curves over runs (runs, steps) with a band from the 10th to the 90th percentile."""
    figure, axes_row = plt.subplots(1, len(panels), figsize=(9.5, 3.4), sharey=True, squeeze=False)
    for axes, (name, curves) in zip(axes_row[0], panels.items(), strict=True):
        for label, runs in curves.items():
            steps = np.arange(runs.shape[1])
            low, high = np.percentile(runs, [10, 90], axis=0)
            (line,) = axes.plot(steps, runs.mean(axis=0), label=label)
            axes.fill_between(steps, low, high, alpha=0.25, color=line.get_color())
        axes.set_title(name)
        axes.set_xlabel(x_name)
    axes_row[0][0].legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    _save(figure, path)
