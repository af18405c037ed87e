"""Write the interactive planner, a single HTML file with sliders.

It needs no server and loads no other file. The page computes the division of the budget itself and reads two tables:
the offset of the threshold search, computed here from the library's own formulas (seconds), and set sizes that ``python
-m experiments set_sizes`` measured.
"""

import csv
import json
import math
from functools import lru_cache
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscp._base.checks import last_where
from dpscp.core.plan import Plan
from dpscp.core.problem import Problem
from dpscp.core.tasks import OwnScores
from dpscp.guarantees import guarantee_of
from dpscp.privacy import Budget, Ledger
from dpscp.privacy.noise_search import GIVEN_UP, LARGEST_MIXED, OVERSHOOT, SIZE_OF_OVERSHOOT, TRAINING_GAIN
from dpscp.report.planning import SEARCH_MARGIN
from dpscp.training.recipe import LEAST_HELD_OUT, SEARCH_COST

if TYPE_CHECKING:
    from dpscp.report.planning import BudgetPlan

__all__ = ["nearest_set_size", "planner_page", "planner_tables"]

LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 0.98, 0.99)
# The signal of a search is (scores + 1) times mu. Offsets times mu depend on it alone, except for very weak signals,
# where only full sets keep a promise.
_LOG_SIGNALS = tuple(math.log(2) * k / 2 for k in range(48))
_TABLE_SCORES = 1_000
# Two points of the grid enclose each jump of the number of steps, so that nothing is interpolated across it.
_JUMP = 1e-6
# The number of classes that stands for intervals.
_REGRESSION = 1
_DEFAULTS = {"n": 10_000, "epsilon": 1.0}
_TITLES = {
    "adult": "Adult census, is the income above 50K?",
    "synthetic": "synthetic records of five classes",
    "bloodmnist": "BloodMNIST, eight kinds of blood cells",
}


def planner_page(plan: "BudgetPlan") -> str:
    """Return the planner as an HTML page whose sliders begin at the numbers of a plan.

    Parameters
    ----------
    plan : Plan
        A number that the plan solves for begins at 10,000 records or epsilon 1.

    Returns
    -------
    str
    """
    labels = plan.problem.task.classes
    folder = resources.files("dpscp.report")
    level = round(1 - plan.alpha, 12)
    start = {
        "n": plan.n or _DEFAULTS["n"],
        "epsilon": plan.epsilon or _DEFAULTS["epsilon"],
        "delta": plan.delta,
        "level": level,
        "classes": _REGRESSION if labels is None else len(labels),
        "rows": plan.problem.unit.rows_per_person or 1,
    }
    page = folder.joinpath("planner.html").read_text(encoding="utf-8")
    script = folder.joinpath("planner.js").read_text(encoding="utf-8")
    numbers = json.dumps({"tables": planner_tables(level), "start": start}, separators=(",", ":"))
    parts = {"/*NUMBERS*/": numbers, "/*PLANNER*/": script, "<!--PLAN-->": plan._repr_html_()}
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


@lru_cache(maxsize=4)
def planner_tables(level: float = 0.9) -> dict[str, Any]:
    """Return all numbers of the page as JSON values, at its levels and one more.

    Theory: Results E, F and G; The secret split
    """
    levels, grid = sorted({*LEVELS, level}), _signal_grid()
    search = {
        "log_signals": [round(x, 7) for x in grid],
        "inner_alphas": [float(_plan_search(level, grid[-1])[0].level) for level in levels],
        "offsets": [[offset_times_mu(level, x) for x in grid] for level in levels],
    }
    return {
        "levels": levels,
        "search": search,
        "tasks": _read_set_sizes(),
        "given_up": GIVEN_UP,
        "largest_mixed": LARGEST_MIXED,
        "least_held_out": LEAST_HELD_OUT,
        "margin": SEARCH_MARGIN,
        "overshoot": OVERSHOOT,
        "search_cost": SEARCH_COST,
        "size_of_overshoot": SIZE_OF_OVERSHOOT,
        "training_gain": TRAINING_GAIN,
    }


def offset_times_mu(level: float, log_signal: float) -> float:
    """Return the mean offset of a search in ranks, times its mu, to five digits."""
    aim, mu = _plan_search(level, log_signal)
    whole = aim.whole_offset(guarantee_of("split").rank_buffer, None, None, level)
    return float(f"{(float(whole) + aim.mean_rise) * mu:.5g}")


def _plan_search(level: float, log_signal: float) -> tuple[Any, float]:
    """Return the aim of a search over held-out scores, and its mu.

    The number of scores is released.
    """
    scores = max(_TABLE_SCORES, round(math.exp(log_signal)))
    mu = math.exp(log_signal) / (scores + 1)
    task, alphas = OwnScores((0.0, 1.0)), (round(1 - level, 12),)
    problem = Problem(task=task, budget=Budget(1.0, 1e-5), alphas=alphas, n_records=scores, guarantee="split")
    return Plan.outline(problem, Ledger()).planned_aim(0, mu), mu


def _signal_grid() -> list[float]:
    """Return the logarithms of the signals of the table.

    There are two points around each jump of the number of steps.
    """
    jumps = [_find_jump(left, right) for left, right in pairwise(_LOG_SIGNALS)]
    around = [x + side * _JUMP for x in jumps if x is not None for side in (-1, 1)]
    return sorted([*_LOG_SIGNALS, *around])


def _find_jump(left: float, right: float) -> float | None:
    """Return where the steps of a search change between two signals, or None."""

    def steps(log_signal: float) -> int:
        return int(_plan_search(LEVELS[0], log_signal)[0].steps)  # it is the same at all levels

    fewer = steps(left)
    if fewer == steps(right):
        return None
    return last_where(lambda x: steps(x) == fewer, left, right, within=_JUMP / 2)


def nearest_set_size(classes: int, n: int, epsilon: float, level: float) -> tuple[float, int, str]:
    """Return the measured mean set size of the nearest task.

    Also returns its number of classes and its name. Between measurements it is linear in log n, log epsilon and the
    level; outside, the nearest measurement counts.
    """
    task = min(_read_set_sizes(), key=lambda task: abs(math.log(task["classes"] / classes)))
    by_n = []
    for tables in task["size"]:
        by_epsilon = [np.interp(level, task["level"], sizes) for sizes in tables]
        by_n.append(np.interp(math.log(epsilon), np.log(task["epsilon"]), by_epsilon))
    return float(np.interp(math.log(n), np.log(task["n"]), by_n)), task["classes"], task["name"]


def _read_set_sizes() -> list[dict[str, Any]]:
    """Return the measured set sizes of each task as a table over n, epsilon and level."""
    text = resources.files("dpscp.report").joinpath("set_sizes.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    tasks = []
    for name in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == name]
        axes = {key: sorted({float(row[key]) for row in own}) for key in ("n", "epsilon", "level")}
        sizes = {tuple(float(row[key]) for key in axes): float(row["size"]) for row in own}
        table = [[[sizes[n, e, v] for v in axes["level"]] for e in axes["epsilon"]] for n in axes["n"]]
        tasks.append({"name": _TITLES[name], "classes": int(own[0]["classes"]), **axes, "size": table})
    return sorted(tasks, key=lambda task: task["classes"])
