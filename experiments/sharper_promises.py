"""Two questions about promises: what a ratio with mean 1 saves, and what a random start of the search could save.

    python -m experiments sharper_promises

*Populations.* Residuals grow by a factor of 4 with x, and the density of the new population is 4 x^3. Records are
dropped by secret coins, or a miss counts w / W (``normalized=True``).

*Random start.* The value of the game of Result F if the searched interval is twice as long and begins at a public
random point. A climb over staircases bounds it from below. Nothing in the library uses a random start.

Theory: Results F and K
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

import dpscp as dp
from dpscp.threshold import worst_final_gap
from experiments import tables
from experiments.runner import ALPHA, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "sharper_promises"
SIZES, BOUND, END = (200, 500, 1_000), 4.0, 30.0
HALVINGS, PLATEAUS, TRIES, CLIMBS = 9, 16, 2_500, 6
# far beyond the noise: the gaps of full sets and of no set
FULL, NONE = -30.0, 60.0
Array = NDArray[np.float64]


def tasks(options: Options) -> list[Task]:
    """One table of each size a trial, and a few climbs."""
    releases = [Task(NAME, "populations", trial, options.seed, {}) for trial in range(options.trials)]
    return releases + [Task(NAME, "climb", t, options.seed, {}) for t in range(min(CLIMBS, options.trials))]


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (made, not loaded)
    """Return the releases of a trial, or the value that one climb found."""
    rng = np.random.default_rng(seed_of(task.seed, NAME, task.kind, task.trial))
    if task.kind == "populations":
        return [_release(rng, n, normalized) for n in SIZES for normalized in (False, True)]
    starts = {"aligned": np.array([2 ** (HALVINGS - 1)]), "random": np.arange(1, 2 ** (HALVINGS - 1) + 1)}
    return [{"method": name, "value": climb(rng, starts[name])} for name in starts]


def _scores(x: Array, rng: np.random.Generator) -> Array:
    return np.asarray(np.abs(rng.normal(size=len(x))) * (1 + 3 * x))


def _release(rng: np.random.Generator, n: int, normalized: bool) -> Row:
    x, new = rng.random(n), rng.random(20_000) ** (1 / BOUND)
    other = dp.Population(BOUND * x**3, bound=BOUND, normalized=normalized)
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "score_range": (0, END), "fine_near": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded, and full sets
        found = dp.calibrate(
            _scores(x, rng), population=other, held_out=True, random_state=int(rng.integers(2**31)), **given
        )
    covered = float((_scores(new, rng) <= found.threshold).mean())
    method = "weighted" if normalized else "dropped"
    return {"method": method, "n": n, "coverage": covered, "threshold": min(found.threshold, END)}


def value(gaps: Array, starts: NDArray[np.int64]) -> float:
    """Return the mean final gap of searches of twice the range, for one staircase and all starts."""
    cells = len(gaps) + 1
    padded = np.concatenate([np.full(cells, NONE), gaps, np.full(cells + 1, FULL)])
    places = starts[:, None] - 1 + np.arange(2 * cells + 1)
    seen = padded[np.clip(places, 0, len(padded) - 1)]
    accepted, found, width = special.ndtr(-seen), seen[:, 1:], 1
    while found.shape[1] > 1:
        chance = accepted[:, width :: 2 * width][:, : found.shape[1] // 2]
        found = chance * found[:, 0::2] + (1 - chance) * found[:, 1::2]
        width *= 2
    return float(found.mean())


def climb(rng: np.random.Generator, starts: NDArray[np.int64]) -> float:
    """Return the largest mean final gap that a random climb over staircases finds.

    It compares staircases on some of the starts, and returns the mean of the best one over all of them.
    """
    cells, step, best = 2 ** (HALVINGS - 1), 1.0, -np.inf
    some = starts[:: max(1, len(starts) // 64)]
    ends, heights = rng.uniform(1, cells, PLATEAUS + 1), 1.5 * rng.normal(size=PLATEAUS)
    for tried in range(TRIES):
        moved = ends + 0.2 * cells * step * rng.normal(size=ends.size) * (rng.random(ends.size) < 0.4)
        moved = np.clip(moved, 0.5, cells)
        other = heights + step * rng.normal(size=PLATEAUS) * (rng.random(PLATEAUS) < 0.5)
        found = value(_staircase(moved, other, cells), some)
        if found > best:
            best, ends, heights = found, moved, other
        elif tried % 50 == 49:
            step = max(0.03, 0.93 * step)
    return value(_staircase(ends, heights, cells), starts)


def _staircase(ends: Array, heights: Array, cells: int) -> Array:
    levels = np.concatenate([[NONE], np.sort(heights)[::-1], [FULL]])
    return np.asarray(levels[np.searchsorted(np.sort(ends), np.arange(1, cells))])


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """Write the page."""
    rows = tables.rows_of(outcomes)
    body = []
    for n in SIZES:
        for method in ("dropped", "weighted"):
            mine = [row for row in rows if row.get("n") == n and row["method"] == method]
            full = np.mean([row["threshold"] == END for row in mine])
            covered = np.array([row["coverage"] for row in mine])
            error = covered.std() / max(1, len(mine)) ** 0.5
            mean = np.mean([row["threshold"] for row in mine])
            body.append([f"{n:,}", method, f"{full:.2f}", f"{mean:.2f}", f"{covered.mean():.4f}", f"{error:.4f}"])
    found = {m: max(row["value"] for row in rows if row["method"] == m) for m in ("aligned", "random")}
    tables.write_page(
        options.results / f"{NAME}.md",
        "Sharper promises",
        header,
        [
            f"Another population with W = {BOUND:g} at epsilon 1, delta 1e-6 and a public number of records, target "
            f"coverage {1 - ALPHA:g}; full sets count as a threshold of {END:g}.",
            "\n".join(tables.grid(["records", "others are", "full sets", "mean threshold", "coverage", "s.e."], body)),
            f"The largest mean final gap, in units of the noise, that {CLIMBS} climbs over staircases of {PLATEAUS} "
            f"plateaus found with {HALVINGS} halvings of equal noise: {found['aligned']:.2f} where the grid is aligned "
            f"with the range (the game's value is {float(worst_final_gap(FULL, HALVINGS)):.2f}), {found['random']:.2f} "
            "with a random start of an interval twice as long. A climb bounds the value from below only.",
        ],
    )


STUDY = Study(NAME, tasks, run, report)
