"""BloodMNIST: the main table, the three sweeps of p with their accounting columns, and the library's own methods.

The paper's features are those of an ImageNet ResNet-18; here the methods are compared on two other frozen networks.

Paper: tab:bloodmnist_main, tab:blood_results_eps_0p5, tab:blood_results_eps_1p0, tab:blood_results_eps_2p0
"""

from pathlib import Path

import numpy as np

from experiments import data as loaders
from experiments import plots, tables
from experiments.faithful import SHARES, Fold, PaperSettings, spending_table
from experiments.library import classification_task
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "bloodmnist"
N = 13_671
N_CLASSES = 8
SETTINGS = PaperSettings(
    batch=32, epochs=15, hidden=(), loss="cross_entropy", n_classes=N_CLASSES, score_range=(0.0, 1.0)
)
# High resolution first: a plain head on it comes near the paper's non-private level. The second has the middle p only.
BACKBONES = {"effnet_hr": SHARES, "vgg16": (0.5,)}
FEATURES = {
    "effnet_hr": "EfficientNet-Lite0 features of the 224-pixel images (512 numbers, fixed random projection)",
    "vgg16": "VGG-16 conv4_3 features of the 28-pixel images (512 numbers)",
}
FILES = {"effnet_hr": NAME, "vgg16": f"{NAME}_vgg16"}


def tasks(options: Options) -> list[Task]:
    """For each trial and feature set: the paper's rows, the non-private rows, the library's methods at each epsilon."""
    spending = spending_table(SETTINGS, N, SHARES)
    out = []
    for trial in range(options.trials_of(quick=1)):
        for backbone, shares in BACKBONES.items():
            common = {"features": backbone}
            paper = {**common, "spending": spending, "shares": list(shares), "settings": repr(SETTINGS)}
            out.append(Task(NAME, "paper", trial, options.seed, paper))
            out.append(Task(NAME, "non-private", trial, options.seed, {**common, "settings": repr(SETTINGS)}))
            out += [Task(NAME, "library", trial, options.seed, {**common, "epsilon": e}) for e in EPSILONS]
    return out


def fold_of(seed: int, trial: int, features: str, data: Path | None) -> tuple[Fold, int]:
    """The records of one trial, and its seed."""
    table = loaders.blood_features(data, features)
    own = seed_of(seed, NAME, trial)
    order = np.random.default_rng(own).permutation(len(table.X))
    pool, test = order[:N], order[N:]
    parts = (table.X[pool], table.y[pool], table.X[test], table.y[test])
    return Fold(*parts, standardize_rows=False, standardize_targets=False), own


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    fold, seed = fold_of(task.seed, task.trial, task.config["features"], data)
    return classification_task(task, fold, seed, SETTINGS, BACKBONES[task.config["features"]])


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and pictures for each feature set."""
    for backbone, stem in FILES.items():
        mine = [o for o in outcomes if o.task.config["features"] == backbone]
        summaries = tables.summarize(tables.rows_of(mine), NAME)
        tables.write_csv(options.results / f"{stem}.csv", summaries)
        title = f"BloodMNIST, {FEATURES[backbone]}"
        plots.coverage_against_size(
            options.results / f"{stem}.png", f"{title}, {summaries[0].trials} trials", summaries, "mean set size"
        )
        blocks = [
            f"**Features: {FEATURES[backbone]}, not the paper's ImageNet ResNet-18**, whose weights were not at hand: "
            "sizes are not comparable with the printed ones, the ordering of the methods and the accounting columns "
            "are. Pool 13,671, test 3,421, redrawn in every trial; target coverage 0.90, delta 1e-5.",
            "## Paper, ours (paper-faithful), ours (the library)",
            "\n".join(tables.side_by_side(summaries, NAME, tuple(tables.NAMES), EPSILONS)),
            f"![coverage against size]({stem}.png)",
            "## Every printed row, with the accounting columns",
            "\n".join(tables.against_paper(summaries, "size", accounting=True)),
        ]
        if len(BACKBONES[backbone]) > 1:
            plots.share_sweep(options.results / f"{stem}_sweep.png", title, summaries, "mean set size")
            blocks.append(f"![sweep of p]({stem}_sweep.png)")
        tables.write_page(options.results / f"{stem}.md", title, header, blocks)


STUDY = Study(NAME, tasks, run, report)
