"""Draws the pictures of the README and of the site: ``python docs/pictures.py [concepts] [sizes] [gallery] [report]``.

Nothing in them is computed from confidential records: concepts come from public numbers, sizes from the tables in
results/, the gallery from what the scripts printed (docs/outputs.py), the report from the demo's public records.
``report`` needs Chromium.
"""

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

import dpscp as dp
from dpscp.report.figures import PALETTE, bare_figure, name_axes, put_legend
from dpscp.report.planning import BudgetPlan, plan_row, with_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "img"
INK = {"light": "#1d2530", "dark": "#d9dee7"}
MUTED = {"light": "#6b7482", "dark": "#9aa4b2"}
GROUND = {"light": "white", "dark": "#1e2129"}
OURS, PAPER, PLAIN = "#3f7fd0", "#d9772b", "#8a94a3"
STUDIES = {
    "housing": "California Housing\n(interval width)",
    "bloodmnist": "BloodMNIST\n(labels in a set)",
    "adult": "Adult\n(labels in a set)",
    "bank": "Bank Marketing\n(labels in a set)",
}
EPSILONS = (0.5, 1.0, 2.0)
# A line of a script: "NAME: level 0.9: coverage 0.91 on 400 held-out, 1.2 labels of 4", or the same with a risk.
_RESULT = re.compile(
    r"^(?P<name>.*?)(?P<kind>level|risk) (?P<target>[\d.]+): "
    r"(?:coverage|mean loss) (?P<seen>[\d.]+) on \d+ held-out(?P<rest>.*)$"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")


def _describe(figure: "Figure") -> str:
    """List the words and numbers that a picture shows; where they stand depends on the fonts of a machine."""
    found = []
    for axis in figure.axes:
        found += [axis.get_title(), axis.get_xlabel(), axis.get_ylabel(), *axis.get_legend_handles_labels()[1]]
        found += [text.get_text() for text in axis.texts]
        places = [line.get_xydata() for line in axis.lines] + [bar.get_bbox().get_points() for bar in axis.patches]
        for drawn in axis.collections:
            points = drawn.get_offsets()
            places.append(points if len(points) > 1 else drawn.get_paths()[0].vertices)
        found += [str((np.round(points, 5) + 0.0).tolist()) for points in places]
    return "\n".join(found)


def _save(figure: "Figure", path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None, "Description": _describe(figure)})


def draw_plan(plan: BudgetPlan) -> "Figure":
    """Draw the overshoot of two guarantees against epsilon and against n."""
    figure, axes = bare_figure(width=9.2, height=3.2, panels=2)
    grids = {"epsilon": np.geomspace(0.05, 10, 24), "n": np.geomspace(300, 1e6, 24).round()}
    for axis, (name, grid), other in zip(axes, grids.items(), ("n = 10,000", "epsilon = 1"), strict=True):
        for guarantee, color in (("universal", "one"), ("split", "two")):
            rows = [plan_row(guarantee, with_value(plan.problem, name, x), bare=True) for x in grid]
            shown = [100 * row.overshoot if row.useful else np.nan for row in rows]
            axis.plot(grid, shown, color=PALETTE[color], linewidth=1.8, label=guarantee)
        axis.set_xscale("log")
        axis.set_ylim(0, 10)
        axis.grid(color=PALETTE["line"], linewidth=0.6)
        name_axes(axis, f"{name} ({other})", "expected overshoot, %")
    put_legend(axes[0], loc="upper left")
    return figure


def draw_tradeoff(ledger: dp.Ledger) -> "Figure":
    """Draw the attacker's smallest miss rate at every false-alarm rate."""
    figure, (axis,) = bare_figure()
    x = np.linspace(0, 1, 201)
    f = ledger.tradeoff(x)
    axis.fill_between(x, f, 1 - x, color=PALETTE["soft"], linewidth=0)
    axis.plot(x, 1 - x, color=PALETTE["muted"], linestyle="--", linewidth=1, label="random guessing")
    axis.plot(x, f, color=PALETTE["one"], linewidth=2, label="best attacker")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    name_axes(axis, "false alarms", "missed members (at least)")
    put_legend(axis, loc="upper right")
    return figure


def draw_concepts() -> None:
    """Draw the pictures of how_it_works.md from public numbers."""
    mu = dp.privacy.gdp_mu(1.0, 1e-6)
    ledger = dp.Ledger().add("release", dp.privacy.gaussian_event(1 / mu))
    plan = dp.plan(n=10_000, epsilon=1.0)
    figures = {
        "tradeoff": draw_tradeoff(ledger),
        "plan": draw_plan(plan),
    }
    for name, figure in figures.items():
        figure.set_facecolor("white")
        _save(figure, FOLDER / "figures" / f"{name}.svg")


def read_sizes(path: Path, **wanted: str) -> list[float]:
    """Sizes in a table at the three epsilons, or at every epsilon if the method has none."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())]
    plain = [float(row["size"]) for row in rows if not row["epsilon"]]
    by_epsilon = {float(row["epsilon"]): float(row["size"]) for row in rows if row["epsilon"]}
    return plain * len(EPSILONS) if plain else [by_epsilon[epsilon] for epsilon in EPSILONS]


def _draw_study(axis: "Axes", study: str, scheme: str) -> None:
    measured = ROOT / "results" / f"{study}.csv"
    series = (
        (read_sizes(measured, method="dp-scp-f", train_share="0.5"), PAPER, "s-", "the paper's DP-SCP-F"),
        (read_sizes(measured, method="default"), OURS, "o-", "dpscp, certified"),
        (read_sizes(measured, method="split-cp"), PLAIN, "--", "not private (split conformal, the paper's model)"),
    )
    places = range(len(EPSILONS))
    for sizes, color, style, label in series:
        axis.plot(places, sizes, style, color=color, label=label, linewidth=1.8, markersize=5)
    axis.set_title(STUDIES[study], fontsize=9, color=INK[scheme])
    axis.set_xticks(places, [f"{epsilon:g}" for epsilon in EPSILONS])
    axis.set_xlim(-0.25, len(EPSILONS) - 0.75)
    axis.set_xlabel("epsilon", fontsize=9, color=INK[scheme])
    axis.tick_params(colors=MUTED[scheme], labelcolor=INK[scheme])
    for side in ("left", "bottom"):
        axis.spines[side].set_color(MUTED[scheme])


def draw_sizes() -> None:
    """Draw certified set sizes against epsilon, beside the paper's method and a method without privacy."""
    for scheme in INK:
        figure, axes = bare_figure(10.4, 3.0, len(STUDIES))
        figure.set_facecolor(GROUND[scheme])
        for axis, study in zip(axes, STUDIES, strict=True):
            axis.set_facecolor(GROUND[scheme])
            _draw_study(axis, study, scheme)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9, labelcolor=INK[scheme]
        )
        _save(figure, FOLDER / f"sizes_{scheme}.svg")


def read_results(text: str) -> Iterator[tuple[str, float, float, str]]:
    """Yield name, promised share, observed share and size of each result that a script printed."""
    for line in text.splitlines():
        if match := _RESULT.match(line):
            target, seen = float(match["target"]), float(match["seen"])
            if match["kind"] == "risk":
                target, seen = 1 - target, 1 - seen
            yield match["name"].strip(" :;,"), target, seen, match["rest"].strip(" ,")


def _draw_dots(axis: "Axes", top: float, rows: int, seen: float) -> None:
    """Draw a hundred records: filled where the answer was in the set, open where it was not."""
    places = [(number % (100 // rows), top + number // (100 // rows)) for number in range(100)]
    right = round(100 * seen)
    axis.scatter(*zip(*places[:right], strict=True), s=46 if rows == 5 else 26, color=OURS, linewidths=0)
    if right < 100:
        axis.scatter(*zip(*places[right:], strict=True), s=34 if rows == 5 else 18, facecolors="none", edgecolors=PAPER)


def _draw_bars(axis: "Axes", results: list[tuple[str, float, float, str]]) -> None:
    """Draw one bar for each result, with a mark at the promised share."""
    for place, (name, target, seen, _) in enumerate(results):
        axis.barh(place, 1, color="#8a94a340", height=0.8)
        axis.barh(place, seen, color=OURS, height=0.8)
        axis.plot([target, target], [place - 0.4, place + 0.4], color=PAPER, linewidth=3)
        words = re.sub(r" \(.*\)|: .*", "", name)
        axis.text(0.03, place, words, color="white", fontsize=11 if len(results) < 5 else 8.5, va="center")
    axis.set_xlim(0, 1)
    axis.set_ylim(len(results) - 0.5, -0.5)


def draw_gallery() -> None:
    """Draw a thumbnail for each script: the observed share of right answers, beside the promised one."""
    for path in sorted((ROOT / "docs" / "outputs").glob("*.txt")):
        results = list(read_results(path.read_text()))
        figure, (axis,) = bare_figure(4.0, 2.5)
        figure.set_facecolor("none")
        axis.set_axis_off()
        if len(results) > 2:
            _draw_bars(axis, results)
        else:
            rows = 5 if len(results) == 1 else 4
            for place, (name, target, seen, size) in enumerate(results):
                top = place * (rows + 3.2)
                words = f"{name}: " if name else ""
                axis.text(-0.4, top - 1.1, f"{words}{seen:.1%} right, promised {target:.0%}", color=OURS, fontsize=11)
                axis.text(-0.4, top + rows, size, color=PLAIN, fontsize=10, va="center")
                _draw_dots(axis, top, rows, seen)
            height = len(results) * (rows + 3.2)
            axis.set_xlim(-0.8, 100 / rows - 0.2)
            axis.set_ylim(height - 2, -2)
        _save(figure, FOLDER / "gallery" / f"{path.stem}.svg")


def photograph_report() -> None:
    """Photograph the first screen of the demo's report in both schemes."""
    browser = next(found for name in BROWSERS if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "demo"
        subprocess.run([sys.executable, "-m", "dpscp", "demo", "--folder", str(folder)], check=True)
        (page,) = folder.glob("*.html")
        for scheme, more in (("light", ()), ("dark", ("--force-dark-mode",))):
            picture = FOLDER / f"report_{scheme}.png"
            place = (f"--user-data-dir={scratch}/{scheme}", "--window-size=1000,1140", f"--screenshot={picture}")
            subprocess.run([browser, *QUIET, *more, *place, page.as_uri()], check=True, capture_output=True)


PARTS: dict[str, Callable[[], None]] = {
    "concepts": draw_concepts,
    "sizes": draw_sizes,
    "gallery": draw_gallery,
    "report": photograph_report,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
