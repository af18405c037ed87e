"""What Adult and Bank Marketing share: the paper's methods with its Housing settings, and the library's own.

Features are bounded by public facts (data.py), so the library runs as a user would run it, with ``feature_bounds``. The
paper's methods get the paper's protocol: standardisation with the pool's own statistics.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments import plots, tables
from experiments.data import Table
from experiments.faithful import Fold, PaperSettings, spending_table
from experiments.library import classification_task
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

__all__ = ["SETTINGS", "fold_of", "make_study", "run_table"]

SETTINGS = PaperSettings(
    batch=128, epochs=15, hidden=(32, 16), loss="cross_entropy", n_classes=2, score_range=(0.0, 1.0)
)
SHARES = (0.5,)


def make_study(name: str, title: str, n: int, n_test: int, run: Callable[[Task, Path | None], list[Row]]) -> Study:
    """The study of one table: ``n`` records in the pool and ``n_test`` in the test part, redrawn in every trial."""

    def tasks(options: Options) -> list[Task]:
        spending = spending_table(SETTINGS, n, SHARES)
        out = []
        sizes = {"n": n, "n_test": n_test}
        for trial in range(options.trials_of(quick=1)):
            settings = {**sizes, "settings": repr(SETTINGS)}
            out.append(Task(name, "paper", trial, options.seed, {**settings, "spending": spending}))
            out.append(Task(name, "non-private", trial, options.seed, settings))
            out += [Task(name, "library", trial, options.seed, {**sizes, "epsilon": e}) for e in EPSILONS]
        return out

    def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
        summaries = tables.summarize(tables.rows_of(outcomes), name)
        tables.write_csv(options.results / f"{name}.csv", summaries)
        plots.coverage_against_size(
            options.results / f"{name}.png", f"{title}, {summaries[0].trials} trials", summaries, "mean set size"
        )
        tables.write_page(
            options.results / f"{name}.md",
            title,
            header,
            [
                f"Not in the paper. Pool {n:,}, test {n_test:,}, redrawn in every trial; two classes, target coverage "
                "0.90, delta 1e-5. The paper's methods use its Housing settings (batch 128, momentum 0.9, step 1e-3, "
                f"{SETTINGS.epochs} epochs, non-private standardisation); the library knows public bounds of the "
                "features only.",
                "\n".join(tables.side_by_side(summaries, "", tuple(tables.NAMES), EPSILONS)),
                f"![coverage against size]({name}.png)",
            ],
        )

    return Study(name, tasks, run, report)


def run_table(task: Task, table: Table) -> list[Row]:
    """One task on a loaded table."""
    fold, seed = fold_of(task.study, task.seed, task.trial, table, task.config["n"], task.config["n_test"])
    return classification_task(task, fold, seed, SETTINGS, SHARES, feature_bounds=table.declared_bounds)


def fold_of(study: str, seed: int, trial: int, table: Table, n: int, n_test: int) -> tuple[Fold, int]:
    """The records of one trial of a study, and its seed."""
    own = seed_of(seed, study, trial)
    order = np.random.default_rng(own).permutation(len(table.X))
    pool, test = order[:n], order[n : n + n_test]
    parts = (table.X[pool], table.y[pool], table.X[test], table.y[test])
    return Fold(*parts, standardize_rows=True, standardize_targets=False), own
