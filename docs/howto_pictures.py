"""Draws the pictures of the how-to pages from synthetic records: ``python docs/howto_pictures.py``.

Every number is measured by the library on seeded synthetic records, over repeated studies.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

import dpscp as dp
from dpscp.report.figures import PALETTE, bare_figure, name_axes, put_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "img"
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "accountant": "rdp"}


def scores_of_groups(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of two overlapping groups each record is in, and a score that is larger in each of them."""
    member = rng.random((n, 2)) < [0.5, 0.3]
    return member, np.minimum(np.abs(rng.normal(size=n)) * (1 + member @ [0.5, 1.5]) / 16, 1.0)


def groups_figure() -> "Figure":
    """Coverage of overlapping groups, by one threshold for all and by the largest of a row's groups."""
    rng, one, each = np.random.default_rng(0), [], []
    for seed in range(200):
        member, scores = scores_of_groups(rng, 1000)
        new, new_scores = scores_of_groups(rng, 4000)
        options = {"score_range": (0, 1), "held_out": True, "n_records": 1000, "random_state": seed, **BUDGET}
        single = dp.calibrate(scores, **options).threshold
        sides = [np.where(column, "in", "out") for column in member.T]
        own = dp.calibrate(scores, groups=dp.Groups(sides, values=[["in", "out"]] * 2), **options).threshold
        largest = np.maximum(*(np.where(new[:, g], own[2 * g], own[2 * g + 1]) for g in range(2)))
        parts = [np.ones(4000, bool), new[:, 0], ~new[:, 0], new[:, 1], ~new[:, 1]]
        one.append([(new_scores <= single)[part].mean() for part in parts])
        each.append([(new_scores <= largest)[part].mean() for part in parts])
    figure, (axis,) = bare_figure(width=6.0)
    names = ["everybody", "women", "men", "old", "young"]
    for shift, color, found, label in ((-0.2, "six", one, "one threshold"), (0.2, "one", each, "overlapping groups")):
        axis.bar(np.arange(5) + shift, np.mean(found, axis=0), 0.38, color=PALETTE[color], label=label)
    axis.axhline(0.9, color=PALETTE["two"], linestyle="--", linewidth=1, label="promise")
    axis.set_xticks(range(5), names)
    axis.set_ylim(0.7, 1.0)
    name_axes(axis, "", "mean coverage of 200 studies")
    put_legend(axis, loc="lower left", ncols=3, bbox_to_anchor=(0, 1))
    return figure


def risk_figure() -> "Figure":
    """The mean loss of each of 300 releases, and their mean."""
    rng, means = np.random.default_rng(1), []
    for seed in range(300):
        truth = rng.random((2500, 6)) < 0.4
        doubt = np.where(truth, rng.beta(2, 5, (2500, 6)), rng.beta(5, 2, (2500, 6)))
        losses = dp.scores.missed_labels(doubt[:500], truth[:500])
        options = {"threshold_range": (0, 1), "n_records": 500, "random_state": seed, **BUDGET}
        found = dp.control_risk(losses, alpha=0.1, **options)
        means.append(dp.scores.missed_labels(doubt[500:], truth[500:])(found.threshold).mean())
    figure, (axis,) = bare_figure(width=6.0)
    axis.hist(means, bins=30, color=PALETTE["soft"])
    axis.axvline(0.1, color=PALETTE["two"], linestyle="--", label="bound on the mean, .1")
    axis.axvline(float(np.mean(means)), color=PALETTE["one"], label=f"mean of the releases, {np.mean(means):.4f}")
    name_axes(axis, "mean share of true labels that is missed", "releases")
    put_legend(axis, loc="upper left")
    return figure


def populations_figure() -> "Figure":
    """Coverage of a shifted population, with and without its likelihood ratio."""
    rng, powers, rows = np.random.default_rng(2), (1, 2, 3, 4, 6), {"with the ratio": [], "without": []}
    for power in powers:
        found = {name: [] for name in rows}
        for seed in range(60):
            x, new = rng.random(2000), rng.random(4000) ** (1 / power)
            scores, new_scores = (np.abs(rng.normal(size=len(v))) * (1 + 3 * v) / 20 for v in (x, new))
            options = {"score_range": (0, 1), "held_out": True, "n_records": 2000, "random_state": seed, **BUDGET}
            ratio = {"population": dp.Population(power * x ** (power - 1), bound=float(power))}
            for name, more in (("with the ratio", ratio), ("without", {})):
                found[name].append((new_scores <= dp.calibrate(scores, **options, **more).threshold).mean())
        for name, values in found.items():
            rows[name].append(np.mean(values))
    figure, (axis,) = bare_figure(width=6.0)
    axis.axhline(0.9, color=PALETTE["two"], linestyle="--", linewidth=1, label="promise")
    for color, (name, values) in zip(("one", "six"), rows.items(), strict=True):
        axis.plot(powers, values, color=PALETTE[color], marker="o", label=name)
    name_axes(axis, "bound W of the likelihood ratio (1: the same population)", "mean coverage of 60 studies")
    put_legend(axis, loc="lower left")
    return figure


def monitoring_figure() -> "Figure":
    """The evidence of a monitor over twelve months; the labels change from the ninth month on."""

    def draw(n: int, seed: int, flipped: float) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(n, 3))
        y = (X[:, 0] + 0.4 * rng.normal(size=n) > 0).astype(int)
        return X, np.where(rng.random(n) < flipped, 1 - y, y)

    options = {"epsilon": 1.0, "delta": 1e-6, "classes": [0, 1], "feature_bounds": (-1, 1), "n_records": 6000}
    clf = dp.PrivateConformalClassifier(random_state=0, **options).fit(*draw(6000, 0, 0.0))
    monitor = dp.CoverageMonitor(clf, epsilon=0.5, delta=1e-6, random_state=0)
    for month in range(1, 13):
        monitor.update(*draw(500, 100 + month, 0.0 if month < 9 else 0.2), batch=f"2026-{month:02d}")
    return monitor.plot()


def in_service_figure() -> "Figure":
    """The steps of a release in service, and who pays for each."""
    steps = (
        ("release", "the persons of the table,\nonce", "one"),
        ("serve", "nobody", "six"),
        ("collect", "nobody yet:\nrecords wait in a file", "six"),
        ("watch", "the persons\nof each period", "two"),
        ("follow", "nothing more:\nthe same counts", "six"),
        ("recalibrate", "the persons of the\nnew records", "two"),
        ("retire", "nothing:\nthe cost stays", "six"),
    )
    figure, (axis,) = bare_figure(width=8.4, height=2.0)
    axis.axis("off")
    axis.set_xlim(-0.6, len(steps) - 0.4)
    axis.set_ylim(-1.3, 1.2)
    for place, (name, payer, color) in enumerate(steps):
        frame = {"boxstyle": "round,pad=0.5", "facecolor": PALETTE[color], "edgecolor": "none"}
        axis.text(place, 0.1, name, ha="center", va="center", color="white", fontsize=9, bbox=frame)
        axis.text(place, -0.5, payer, ha="center", va="top", fontsize=7, color=PALETTE["ink"])
        if place:
            arrow = {"arrowstyle": "->", "color": PALETTE["muted"]}
            axis.annotate("", (place - 0.4, 0.1), (place - 0.6, 0.1), arrowprops=arrow)
    # each period: collect, watch, follow, serve
    back = {"arrowstyle": "->", "color": PALETTE["muted"], "connectionstyle": "arc3,rad=0.35"}
    axis.annotate("", (1, 0.45), (4, 0.45), arrowprops=back)
    axis.text(2.5, 1.1, "every period", ha="center", va="center", fontsize=7, color=PALETTE["muted"])
    return figure


def main() -> None:
    """One file for each picture."""
    warnings.simplefilter("ignore")  # seeds are used on purpose here
    figures = {
        "groups": groups_figure,
        "risk": risk_figure,
        "other_populations": populations_figure,
        "monitoring": monitoring_figure,
        "in_service": in_service_figure,
    }
    for name, draw in figures.items():
        figure = draw()
        figure.set_facecolor("white")
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
