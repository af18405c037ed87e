"""What the paper does not print, found by matching its tables: the optimiser, and what the runs of a trial share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import bloodmnist, housing, synthetic_scaling, tables
from experiments.faithful import (
    SHARES,
    Fold,
    evaluate,
    full_data_threshold,
    paper_rows,
    scores_of,
    spending_table,
    spent_on,
)
from experiments.paper_tables import printed
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "unprinted_settings"
OPTIMIZER_TRIALS = 3
BLOOD_SHARES = (0.3, 0.5)
SYNTHETIC_N = 10_000
METHODS = ("dp-scp-a", "dp-scp-f", "dp-split")
# The step size is printed for Housing and the synthetic task, for BloodMNIST nothing is.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD, momentum 0.9, step 1e-3": {"learning_rate": 1e-3, "momentum": 0.9},
    "SGD, step 1e-3": {"learning_rate": 1e-3, "momentum": 0.0},
    "Adam, step 1e-3": {"learning_rate": 1e-3, "momentum": 0.0, "optimizer": "adam"},
}
BLOOD_OPTIMIZERS = {
    **OPTIMIZERS,
    "SGD, step 1e-2": {"learning_rate": 1e-2, "momentum": 0.0},
    "SGD, momentum 0.9, step 1e-2": {"learning_rate": 1e-2, "momentum": 0.9},
}
STUDIES = {"housing": housing, "synthetic_scaling": synthetic_scaling, "bloodmnist": bloodmnist}
TITLES = {
    "housing": "Housing",
    "synthetic_scaling": f"Synthetic II, n = {SYNTHETIC_N:,}",
    "bloodmnist": "BloodMNIST, high-resolution features, relative to DP-SCP-A at epsilon 2 and p = 0.5",
}
SIZES = {"housing": housing.N, "synthetic_scaling": SYNTHETIC_N, "bloodmnist": bloodmnist.N}
START = "starting point"
# what the four training shares of a trial have in common
STARTS = {
    "shared": "one starting point for all runs of a trial",
    "own": "a starting point for each run",
    "fixed": "one starting point for all trials",
}
# at epsilon .5 the noise of training hides the difference
START_EPSILONS = (1.0, 2.0)


def tasks(options: Options) -> list[Task]:
    """Every optimiser on a few splits, both kinds of starting points on all of them."""
    out = []
    # a quick run leaves out the half that does not fit
    features = (False,) if options.quick else (False, True)
    for study, n in SIZES.items():
        shares = BLOOD_SHARES if study == "bloodmnist" else (0.5,)
        spending = spending_table(STUDIES[study].SETTINGS, n, shares)
        for trial in range(options.trials_of(quick=1, most=OPTIMIZER_TRIALS)):
            for optimizer in BLOOD_OPTIMIZERS if study == "bloodmnist" else OPTIMIZERS:
                for standardize in features if study == "bloodmnist" else (True,):
                    config = {"optimiser": optimizer, "standardise": standardize, "shares": list(shares)}
                    out.append(Task(NAME, study, trial, options.seed, {**config, "spending": spending}))
    spending = spending_table(housing.SETTINGS, housing.N, SHARES)
    starts = {"spending": spending, "settings": repr(housing.SETTINGS)}
    return out + [Task(NAME, START, trial, options.seed, starts) for trial in range(options.trials_of(quick=1))]


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    if task.kind == START:
        return _starting_points(task, data)
    fold, seed = _fold(task, data)
    settings = replace(STUDIES[task.kind].SETTINGS, **BLOOD_OPTIMIZERS[task.config["optimiser"]])
    rows = paper_rows(settings, fold, task.config["spending"], tuple(task.config["shares"]), seed)
    name = task.config["optimiser"]
    if task.kind == "bloodmnist":
        name += ", standardised" if task.config["standardise"] else ", raw features"
    return [{**row, "study": task.kind, "variant": name} for row in rows]


def _fold(task: Task, data: Path | None) -> tuple[Fold, int]:
    """The records of the study's own trial of this number."""
    if task.kind == "synthetic_scaling":
        return synthetic_scaling.fold_of(task.seed, task.trial, SYNTHETIC_N)
    if task.kind == "bloodmnist":
        fold, seed = bloodmnist.fold_of(task.seed, task.trial, "effnet_hr", data)
        return replace(fold, standardize_rows=task.config["standardise"]), seed
    return housing.fold_of(task.seed, task.trial, data)


def _starting_points(task: Task, data: Path | None) -> list[Row]:
    """DP-SCP-A on Housing for the four shares, with each kind of starting point."""
    settings = housing.SETTINGS
    fold, seed = housing.fold_of(task.seed, task.trial, data)
    everyone = np.arange(len(fold.X))
    (X, y, _, _, X_test, y_test), scale = fold.parts(everyone, everyone)
    rows = []
    for epsilon in START_EPSILONS:
        for share in SHARES:
            spent = spent_on(task.config["spending"], epsilon, share, settings.search_steps)
            own = seed_of(seed, epsilon, share)
            for variant, start in {"shared": seed, "own": own, "fixed": task.seed}.items():
                model = settings.train(X, y, spent.noise_multiplier, own, start)
                threshold = full_data_threshold("dp-scp-a", scores_of(model, X, y), settings, spent.count_noise, own)
                base = {"method": "dp-scp-a", "epsilon": epsilon, "train_share": share, "n": len(X)}
                found = evaluate(model, threshold, X_test, y_test, scale)
                rows.append({**base, "study": START, "variant": variant, **found})
    return rows


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """One page; its tables are small enough to do without CSV files."""
    rows = tables.rows_of(outcomes)
    blocks = [
        "The paper's methods with other settings on the same splits as the main tables. `rms` is the root mean square "
        "difference from the printed sizes, over all rows shown and DP-SCP-F's. The first line of each table is what "
        "the main tables use.",
        Path(__file__).with_suffix(".md").read_text().strip(),
    ]
    for study, title in TITLES.items():
        mine = [r for r in rows if r["study"] == study]
        blocks += [f"## {title}", "\n".join(_optimizers(mine, study))]
        if study == "bloodmnist":
            blocks.append(
                "The features are not the paper's, so sizes are compared after division by that of DP-SCP-A at epsilon "
                "2 and p = 0.5, the paper's by its own."
            )
    starts = [r for r in rows if r["study"] == START]
    blocks += [
        "## One starting point, or one for each run",
        "Mean widths of DP-SCP-A on Housing, same splits and same noise. What the runs share would show in two places: "
        "how much the means for the four p differ, and how much the trials do. The main tables use the first.",
        "\n".join(_start_table(starts)),
    ]
    tables.write_page(options.results / f"{NAME}.md", "Settings that the paper does not print", header, blocks)


def relative_sizes(sizes: Mapping[tuple[str, float, float | None], float], study: str) -> dict[Any, float]:
    """Sizes as they are compared: on other features than the paper's only their pattern can agree."""
    unit = sizes["dp-scp-a", 2.0, 0.5] if study == "bloodmnist" else 1.0
    return {key: size / unit for key, size in sizes.items()}


def _optimizers(rows: Sequence[Row], study: str) -> list[str]:
    shares = BLOOD_SHARES if study == "bloodmnist" else (0.5,)
    keys = [(m, e, p) for m in METHODS for e in EPSILONS for p in (shares if m != "dp-split" else (None,))]
    paper = {}
    for method, epsilon, share in keys:
        row = printed(study, method, epsilon, share, SIZES[study])
        assert row is not None
        paper[method, epsilon, share] = row.size
    paper = relative_sizes(paper, study)
    shown = [k for k in keys if k[0] != "dp-scp-f"]
    head = ["setting", *(_label(*k, many=len(shares) > 1) for k in shown), "rms %"]
    body = [["printed in the paper", *(f"{paper[k]:.3f}" for k in shown), "-"]]
    for name in dict.fromkeys(r["variant"] for r in rows):
        means = {
            (s.method, s.epsilon, s.train_share): s.size
            for s in tables.summarize([r for r in rows if r["variant"] == name], study)
        }
        ours = relative_sizes(means, study)
        error = np.sqrt(np.mean([(ours[k] / paper[k] - 1) ** 2 for k in keys]))
        body.append([name, *(f"{ours[k]:.3f}" for k in shown), f"{100 * error:.1f}"])
    return tables.grid(head, body)


def _label(method: str, epsilon: float, share: float | None, *, many: bool) -> str:
    return f"{tables.NAMES[method]}, eps {epsilon:g}" + (f", p {share:g}" if many and share is not None else "")


def _start_table(rows: Sequence[Row]) -> list[str]:
    head = ["", "eps", *(f"p = {p:g}" for p in SHARES), "largest - smallest", "sd over trials", "trials"]
    body = []
    for epsilon in START_EPSILONS:
        paper = [printed("housing", "dp-scp-a", epsilon, p, housing.N) for p in SHARES]
        known = [p.size for p in paper if p is not None]
        spread = np.mean([p.size_sd for p in paper if p is not None])
        body.append(["printed in the paper", f"{epsilon:g}", *_means(known), f"{spread:.3f}", "30"])
        for variant, name in STARTS.items():
            mine = [r for r in rows if (r["variant"], r["epsilon"]) == (variant, epsilon)]
            sizes = [[r["size"] for r in mine if r["train_share"] == p] for p in SHARES]
            means = [float(np.mean(s)) for s in sizes]
            sd = f"{np.mean([np.std(s, ddof=1) for s in sizes]):.3f}" if len(sizes[0]) > 1 else "-"
            body.append([name, f"{epsilon:g}", *_means(means), sd, str(len(sizes[0]))])
    return tables.grid(head, body)


def _means(values: Sequence[float]) -> list[str]:
    return [*(f"{v:.3f}" for v in values), f"{max(values) - min(values):.3f}"]


STUDY = Study(NAME, tasks, run, report)
