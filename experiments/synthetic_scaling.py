"""Experiment II: how sets shrink with the sample size, at three budgets.

The paper draws from one fixed pool whose seed is not printed, so the trials are spread over several pools. A pool
has one test part for all of its trials and sizes, which is how we read the paper.

Paper: Supplement S6.3 [app:exp2_n_scaling], tab:results_eps_0.5, tab:results_eps_1.0, tab:results_eps_2.0
"""

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from experiments import plots, tables
from experiments.faithful import Fold, PaperSettings, paper_rows, spending_table, standardized
from experiments.library import classification_rows
from experiments.paper_tables import PRINTED_TRIALS, printed
from experiments.runner import ALPHA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "synthetic_scaling"
SIZES = (10_000, 15_000, 20_000, 25_000, 30_000)
N_TEST = 2_000
POOLS = 15
N_CLASSES = 5
SETTINGS = PaperSettings(
    batch=32,
    epochs=50,
    hidden=(16, 16),
    loss="cross_entropy",
    n_classes=N_CLASSES,
    score_range=(0.0, 1.0),
    failure_probability=1e-7,
)
SHARES = (0.5,)
# the other rules are compared on the tables of other studies
METHODS = ("default", "split", "corrected")
PAPER_METHODS = ("dp-scp-f", "dp-scp-a", "dp-split")


def tasks(options: Options) -> list[Task]:
    """For each trial and size: the paper's rows and the library's."""
    out = []
    # a quick run looks at the two ends only
    sizes = (SIZES[0], SIZES[-1]) if options.quick else SIZES
    spending = {n: spending_table(SETTINGS, n, SHARES) for n in sizes}
    for trial in range(options.trials_of(quick=1)):
        for n in sizes:
            config = {"n": n, "pools": POOLS, "test": "one part of the pool", "methods": list(METHODS)}
            paper = {**config, "spending": spending[n], "settings": repr(SETTINGS)}
            out += [
                Task(NAME, "paper", trial, options.seed, paper),
                Task(NAME, "library", trial, options.seed, config),
            ]
    return out


@lru_cache(maxsize=2)
def pool(number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """One fixed pool; ``number`` is make_classification's seed."""
    X, y = make_classification(
        n_samples=max(SIZES) + N_TEST,
        n_features=10,
        n_informative=10,
        n_redundant=0,
        n_classes=N_CLASSES,
        class_sep=0.6,
        flip_y=0.01,
        random_state=number,
    )
    return X, y


def fold_of(seed: int, trial: int, n: int) -> tuple[Fold, int]:
    """The records of one trial, and its seed."""
    X, y = pool(trial % POOLS)
    own = seed_of(seed, NAME, trial, n)
    # make_classification has shuffled the records already
    test = np.arange(N_TEST)
    chosen = N_TEST + np.random.default_rng(own).permutation(len(X) - N_TEST)[:n]
    return Fold(X[chosen], y[chosen], X[test], y[test], standardize_rows=True, standardize_targets=False), own


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (made, not loaded)
    """One task."""
    fold, seed = fold_of(task.seed, task.trial, task.config["n"])
    if task.kind == "paper":
        rows = list(paper_rows(SETTINGS, fold, task.config["spending"], SHARES, seed))
    else:
        rows = []
        train, held = standardized(fold.X, fold.X_test)
        for epsilon in EPSILONS:
            own = seed_of(seed, "library", epsilon)
            rows += classification_rows(
                train,
                fold.y,
                held,
                fold.y_test,
                epsilon=epsilon,
                methods=METHODS,
                n_classes=N_CLASSES,
                seed=own,
                # standardized rows of ten features: five standard deviations hold nearly all of them
                feature_bounds=(-5.0, 5.0),
            )
    return [{**row, "pool": task.trial % POOLS} for row in rows]


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and pictures."""
    rows = tables.rows_of(outcomes)
    summaries = tables.summarize(rows, NAME)
    tables.write_csv(options.results / f"{NAME}.csv", summaries)
    # `split` is the default here
    methods = (*PAPER_METHODS, "default", "corrected")
    panels: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    for epsilon in EPSILONS:
        name = f"epsilon {epsilon:g}"
        panels[name], dotted[name] = {}, {}
        for method in methods:
            line = [s for s in summaries if s.method == method and s.epsilon == epsilon]
            if line:
                errors = [2 * (s.size_sd or 0) / np.sqrt(s.trials) for s in line]
                panels[name][method] = ([s.n for s in line], [s.size for s in line], errors)
            known = [s for s in line if s.paper is not None]
            if known:
                dotted[name][method] = ([s.n for s in known], [s.paper.size for s in known if s.paper])
    plots.lines(
        options.results / f"{NAME}.png",
        "Experiment II: set size against n (dotted: printed in the paper, one pool of unknown seed)",
        panels,
        x_name="records",
        y_name="mean set size",
        dotted=dotted,
    )
    tables.write_page(
        options.results / f"{NAME}.md",
        "Synthetic experiment II: scaling with the sample size",
        header,
        [
            f"Pools: make_classification with seeds 0 to {POOLS - 1}, the trials spread over them (the paper has one "
            "pool, whose seed is not printed). A pool keeps its test part for all trials and sizes, which is how we "
            "read the paper. `size range` is the smallest and largest mean over the trials of one pool.",
            _inside(summaries, rows),
            "![scaling](synthetic_scaling.png)",
            "## Size at 30,000 over size at 10,000",
            "\n".join(_ratios(summaries)),
            "## Every printed row",
            "\n".join(_printed(summaries, rows)),
            "## Why the printed coverages lie above ours",
            _fixed_test_part(rows),
            *(
                f"## n = {n:,}: paper, ours (paper-faithful), ours (the library)\n\n"
                + "\n".join(
                    tables.side_by_side([s for s in summaries if s.n == n], NAME, tuple(tables.NAMES), EPSILONS)
                )
                for n in dict.fromkeys(s.n for s in summaries)
            ),
        ],
    )


def pool_means(rows: list[Row], what: str, wanted: Callable[[Row], bool]) -> list[float]:
    """The mean of a column in each pool, over the rows that are wanted."""
    pools: dict[int, list[float]] = {}
    for row in rows:
        if wanted(row):
            pools.setdefault(row["pool"], []).append(row[what])
    return [float(np.mean(v)) for v in pools.values()]


def _pool_range(rows: list[Row], s: tables.Summary) -> tuple[float, float]:
    means = pool_means(rows, "size", lambda r: (r["method"], r["epsilon"], r["n"]) == (s.method, s.epsilon, s.n))
    return min(means), max(means)


def _inside(summaries: list[tables.Summary], rows: list[Row]) -> str:
    known = [s for s in summaries if s.paper is not None]
    ranges = [_pool_range(rows, s) for s in known]
    inside = sum(low <= s.paper.size <= high for s, (low, high) in zip(known, ranges, strict=True) if s.paper)
    return f"**{inside} of the {len(known)} printed sizes lie inside the range of the pools.**"


def _fixed_test_part(rows: list[Row]) -> str:
    """Is the printed level of coverage what the luck of one test part of 2,000 records does?"""
    body = []
    for method in PAPER_METHODS:
        share = None if method == "dp-split" else SHARES[0]
        cells = [p for n in SIZES for e in EPSILONS if (p := printed(NAME, method, e, share, n)) is not None]
        level = float(np.mean([p.coverage for p in cells]))
        means = pool_means(rows, "coverage", lambda r, m=method: r["method"] == m)
        middle, spread = float(np.mean(means)), float(np.std(means, ddof=1)) if len(means) > 1 else math.nan
        numbers = [f"{level:.4f}", f"{middle:.4f}", f"{min(means):.4f} to {max(means):.4f}", f"{level - middle:+.4f}"]
        body.append([tables.NAMES[method], *numbers, f"{(level - middle) / spread:+.1f}"])
    head = ["method", "paper", "ours", "range over pools", "difference", "in standard deviations over pools"]
    fresh = math.sqrt(ALPHA * (1 - ALPHA) / N_TEST / PRINTED_TRIALS)
    return (
        "Mean coverage over all sizes and budgets. With a fresh test part in every trial such a mean would have a "
        f"standard error of at most {fresh:.4f}, and the paper's would be far too high for all methods. One test part "
        "for all cells keeps its luck in all of them, about the same for every method:\n\n"
        + "\n".join(tables.grid(head, body))
    )


def _ratios(summaries: list[tables.Summary]) -> list[str]:
    body = []
    for epsilon in EPSILONS:
        for method in PAPER_METHODS:
            ends = [
                next(s for s in summaries if (s.method, s.epsilon, s.n) == (method, epsilon, n))
                for n in (SIZES[0], SIZES[-1])
            ]
            assert all(s.paper is not None for s in ends)
            ours = ends[1].size / ends[0].size
            paper = ends[1].paper.size / ends[0].paper.size
            body.append(
                [
                    tables.NAMES[method],
                    f"{epsilon:g}",
                    f"{paper:.3f}",
                    f"{ours:.3f}",
                    f"{100 * (ours / paper - 1):+.1f}",
                ]
            )
    return tables.grid(["method", "eps", "paper", "ours", "diff %"], body)


def _printed(summaries: list[tables.Summary], rows: list[Row]) -> list[str]:
    head = [
        "n",
        "method",
        "eps",
        "coverage: paper",
        "ours",
        "size: paper",
        "ours",
        "diff %",
        "diff / se",
        "singletons: paper",
        "ours",
        "size range over pools",
        "paper inside",
    ]
    body = []
    for s in (s for s in summaries if s.paper is not None):
        assert s.paper is not None
        low, high = _pool_range(rows, s)
        body.append(
            [
                str(s.n),
                tables.NAMES[s.method],
                f"{s.epsilon:g}",
                tables.number(s.paper.coverage, s.paper.coverage_sd),
                tables.number(s.coverage, s.coverage_sd),
                tables.number(s.paper.size, s.paper.size_sd),
                tables.number(s.size, s.size_sd),
                f"{100 * (s.size / s.paper.size - 1):+.1f}",
                tables.signed(tables.standard_errors(s.size, s.size_sd, s.trials, s.paper.size, s.paper.size_sd)),
                tables.number(s.paper.informativeness, s.paper.informativeness_sd),
                tables.number(s.informativeness, s.informativeness_sd),
                f"{low:.2f} to {high:.2f}",
                "yes" if low <= s.paper.size <= high else "no",
            ]
        )
    return tables.grid(head, body)


STUDY = Study(NAME, tasks, run, report)
