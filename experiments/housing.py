"""California Housing: the main table, the three sweeps of p, and the library's own methods on the same splits.

Paper: tab:housing_main, tab:housing_eps_0p5, tab:housing_eps_1p0, tab:housing_eps_2p0
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.threshold import union_noise_buffer
from experiments import data as loaders
from experiments import plots, tables
from experiments.faithful import SHARES, Fold, PaperSettings, non_private_rows, paper_rows, spending_table, standardized
from experiments.library import METHODS, regression_rows, standardized_recipe
from experiments.paper_tables import PRINTED_TRIALS, printed
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "housing"
N, N_TEST = 16_512, 4_128
# The range of the search is not printed; ten standard deviations of the target hold every residual.
SETTINGS = PaperSettings(
    batch=128,
    epochs=50,
    hidden=(32, 16),
    loss="squared",
    n_classes=None,
    score_range=(0.0, 10.0),
    failure_probability=1e-7,
)
# Two other readings of the buffer of DP-SCP-F, run on the same models: which one prints the paper's widths?
VARIANTS = {
    "beta = 1/n": replace(SETTINGS, failure_probability=None),
    "beta = 1/n, K = 30": replace(SETTINGS, failure_probability=None, search_steps=30),
}
# What can be said without the records: units and geography of the census variables, and the cap of the target.
FEATURE_BOUNDS = (
    np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 32.0, -125.0]),
    np.array([15.0, 52.0, 20.0, 5.0, 10_000.0, 10.0, 42.0, -114.0]),
)
TARGET_BOUNDS = (0.0, 5.0)
# Nothing taken from the records: the score that the library chooses, and intervals of one width beside it.
PRIVATE = {"auto": "public bounds", "absolute": "public bounds, intervals of one width"}


def tasks(options: Options) -> list[Task]:
    """For each trial: all of the paper's rows, the non-private rows, and the library's methods at each epsilon."""
    spending = spending_table(SETTINGS, N, SHARES, other=30)
    out = []
    for trial in range(options.trials_of(quick=2)):
        paper = {"spending": spending, "settings": repr(SETTINGS), "variants": repr(VARIANTS)}
        out.append(Task(NAME, "paper", trial, options.seed, paper))
        out.append(Task(NAME, "non-private", trial, options.seed, {"settings": repr(SETTINGS)}))
        out += [Task(NAME, "library", trial, options.seed, {"epsilon": epsilon}) for epsilon in EPSILONS]
    return out


def fold_of(seed: int, trial: int, data: Path | None) -> tuple[Fold, int]:
    """The records of one trial, and its seed."""
    table = loaders.housing(data)
    own = seed_of(seed, NAME, trial)
    order = np.random.default_rng(own).permutation(len(table.X))
    pool, test = order[:N], order[N:]
    parts = (table.X[pool], table.y[pool], table.X[test], table.y[test])
    return Fold(*parts, standardize_rows=True, standardize_targets=True), own


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    fold, seed = fold_of(task.seed, task.trial, data)
    X, y, X_test, y_test = fold.X, fold.y, fold.X_test, fold.y_test
    if task.kind == "paper":
        return list(paper_rows(SETTINGS, fold, task.config["spending"], SHARES, seed, VARIANTS))
    if task.kind == "non-private":
        return list(non_private_rows(SETTINGS, fold, seed))
    epsilon = task.config["epsilon"]
    rows, rows_test = standardized(X, X_test)
    targets, targets_test = standardized(y, y_test)
    mean, scale = y.mean(), float(y.std())
    bounds = tuple(float((end - mean) / scale) for end in TARGET_BOUNDS)
    own = seed_of(seed, "library", epsilon)
    out = list(
        regression_rows(
            rows,
            targets,
            rows_test,
            targets_test,
            epsilon=epsilon,
            methods=METHODS,
            y_bounds=(bounds[0], bounds[1]),
            scale=scale,
            seed=own,
            estimator_for=standardized_recipe("regression", rows, epsilon),
        )
    )
    for score in PRIVATE:
        private = regression_rows(
            X,
            y,
            X_test,
            y_test,
            epsilon=epsilon,
            methods=("default",),
            y_bounds=TARGET_BOUNDS,
            scale=1.0,
            seed=own,
            feature_bounds=FEATURE_BOUNDS,
            conformity_score=score,
        )
        out += [{**row, "variant": PRIVATE[score]} for row in private]
    return out


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and pictures."""
    rows = tables.rows_of(outcomes)
    summaries = tables.summarize(rows, NAME)
    main = [s for s in summaries if not s.variant]
    tables.write_csv(options.results / f"{NAME}.csv", main)
    plots.coverage_against_size(
        options.results / f"{NAME}.png", f"California Housing, {main[0].trials} trials", main, "mean width ($100,000)"
    )
    plots.share_sweep(options.results / f"{NAME}_sweep.png", "California Housing", main, "mean width ($100,000)")
    tables.write_page(
        options.results / f"{NAME}.md",
        "California Housing",
        header,
        [
            "Pool 16,512, test 4,128, redrawn in every trial; target coverage 0.90, delta 1e-5. Widths in $100,000. "
            "Features and target are standardised with the pool's own statistics, the paper's protocol, which a real "
            "release may not use.",
            "## Paper, ours (paper-faithful), ours (the library)",
            "\n".join(tables.side_by_side(main, NAME, tuple(tables.NAMES), EPSILONS)),
            '`default` is guarantee="auto" with the recipe\'s dense net under the same standardisation; `split` is the '
            "same fit wherever `default` chose it.\n\n![coverage against width](housing.png)",
            "## Every printed row",
            "\n".join(tables.against_paper(main, "width", informative=False)),
            "![sweep of p](housing_sweep.png)",
            "## The buffer of DP-SCP-F",
            "The paper does not print beta. The same trained models, searched with three readings of its buffer:",
            "\n".join(_buffers(summaries)),
            implied_buffer([r for r in rows if r["method"] in ("dp-scp-f", "dp-scp-a")]),
            "## The default with nothing taken from the records",
            "Public bounds for every feature and for the target, standardisation paid from the budget. The first row "
            "of each epsilon is what a user gets who decides nothing (a quantile pair from these numbers on), the "
            'second has `conformity_score="absolute"`, the score of the tables above:',
            "\n".join(_private(summaries)),
        ],
    )


def _buffers(summaries: list[tables.Summary]) -> list[str]:
    """DP-SCP-F under the three readings, beside the printed numbers."""
    names = {"": "K = 20, beta = 1e-7", **{name: name for name in VARIANTS}}
    head = [
        "eps",
        "p",
        "paper: coverage",
        "width",
        *(f"{n}: {w}" for n in names.values() for w in ("coverage", "width")),
    ]
    body = []
    for base in (s for s in summaries if s.method == "dp-scp-f" and not s.variant):
        assert base.paper is not None
        cells = [f"{base.epsilon:g}", f"{base.train_share:g}", f"{base.paper.coverage:.3f}", f"{base.paper.size:.3f}"]
        for name in names:
            key = ("dp-scp-f", base.epsilon, base.train_share, name)
            same = next(s for s in summaries if (s.method, s.epsilon, s.train_share, s.variant) == key)
            cells += [tables.number(same.coverage), tables.number(same.size)]
        body.append(cells)
    return tables.grid(head, body)


def implied_buffer(rows: Sequence[Row]) -> str:
    """Which buffer the printed gaps between the widths of DP-SCP-F and DP-SCP-A ask for, in units of the count noise.

    Both rules search the same scores of the same model, so their gap is nearly free of the noise of training. It is
    linear in the buffer; two readings with 20 counts span the line, and weighted least squares over the twelve printed
    gaps finds the place of the paper on it. A gap's variance is that of our trials, for the paper's mean and for ours,
    and the rounding of the two printed widths.
    """
    cells = [(epsilon, share) for epsilon in EPSILONS for share in SHARES]
    widths: dict[tuple[Any, ...], list[float]] = {}
    noise: dict[tuple[Any, ...], float] = {}
    for row in rows:
        key = (row["method"], row["epsilon"], row["train_share"], row["variant"])
        widths.setdefault(key, []).append(row["size"])
        noise[key] = row["count_noise"]

    def gaps(cell: tuple[float, float], variant: str) -> NDArray[np.float64]:
        return np.subtract(*(widths[method, *cell, variant] for method in ("dp-scp-f", "dp-scp-a")))

    slope, height, variance = np.empty((3, len(cells)))
    for i, cell in enumerate(cells):
        wide, narrow = gaps(cell, ""), gaps(cell, "beta = 1/n")
        finite, plain = (printed(NAME, method, *cell, N).size for method in ("dp-scp-f", "dp-scp-a"))
        slope[i], height[i] = wide.mean() - narrow.mean(), finite - plain - narrow.mean()
        each = (wide.var(ddof=1) + narrow.var(ddof=1)) / 2 if len(wide) > 1 else np.nan
        variance[i] = each / PRINTED_TRIALS + each / len(wide) + 2 * 0.0005**2 / 3
    place = float((slope * height / variance).sum() / (slope**2 / variance).sum())
    misfit = float(((height - place * slope) ** 2 / variance).sum())
    multiples = {
        # the buffer is a multiple of the noise, less one
        name: 1 + union_noise_buffer(1.0, used.search_steps, used.failure_probability or 1 / N)
        for name, used in {"": SETTINGS, **VARIANTS}.items()
    }
    step = multiples[""] - multiples["beta = 1/n"]
    found = multiples["beta = 1/n"] + place * step
    more = "beta = 1/n, K = 30"
    louder = np.mean([noise["dp-scp-f", *cell, more] / noise["dp-scp-f", *cell, ""] for cell in cells])
    readings = {
        "beta = 1e-7": multiples[""],
        "beta = 1/n": multiples["beta = 1/n"],
        "beta = 1/n with 30 counts and their larger noise": multiples[more] * louder,
    }
    error = step / float(np.sqrt((slope**2 / variance).sum()))
    near = [name for name, value in readings.items() if abs(value - found) <= 2 * error]
    return (
        "How large is the printed buffer? DP-SCP-F and DP-SCP-A search the same scores, so the gap between their "
        f"widths shows it. Weighted least squares over the twelve printed gaps gives {found:.2f} times the count noise "
        f"of 20 counts (standard error {error:.2f}; chi-square {misfit:.1f} with {len(cells) - 1} degrees of freedom). "
        "The readings: "
        + ", ".join(f"{value:.2f} for {name}" for name, value in readings.items())
        + f". Within two standard errors: {'; '.join(near) or 'none'}."
    )


def _private(summaries: list[tables.Summary]) -> list[str]:
    body = [
        [
            f"{s.epsilon:g}",
            s.variant,
            tables.number(s.coverage, s.coverage_sd),
            tables.number(s.size, s.size_sd),
            str(s.trials),
        ]
        for s in sorted(summaries, key=lambda s: s.epsilon or 0.0)
        if s.variant in PRIVATE.values()
    ]
    return tables.grid(["eps", "", "coverage", "width", "trials"], body)


STUDY = Study(NAME, tasks, run, report)
