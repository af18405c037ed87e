"""Experiment I: two coupled trainings that differ by one record stay together while both stay far from the truth.

Sampling rate, step size and number of steps are not printed; the ones below are ours.

Paper: Supplement S6.3 [app:exp1_stability_optimality], fig:exp1
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dpscp import SeededWarning
from dpscp.paper import coupled_run
from dpscp.training import DPSGD
from experiments import plots, tables
from experiments.runner import DELTA, EPSILONS, Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "stability"
N, D = 1_000, 10
MECHANISM = DPSGD(
    classes=(0, 1),
    loss="logistic",
    sampling_rate=0.1,
    steps=200,
    learning_rate=0.1,
    clip_norm=2.0,
    feature_bound=5.0,
    fit_intercept=False,
    keep_trajectory=True,
)
EVERY = 2
GAP, ERROR = "stability-gap", "estimation-error"


def tasks(options: Options) -> list[Task]:
    """One coupled pair for each run and epsilon."""
    config = {"mechanism": repr(MECHANISM)}
    return [
        Task(NAME, "coupled", trial, options.seed, {**config, "epsilon": epsilon})
        for trial in range(options.trials)
        for epsilon in EPSILONS
    ]


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (made, not loaded)
    """Train on n records and on one more, with the same masks and noise."""
    seed = seed_of(task.seed, NAME, task.trial)
    rng = np.random.default_rng(seed)
    truth = np.array([(-1.0) ** j / (j + 1) for j in range(D)])
    X = rng.normal(size=(N + 1, D))
    y = (rng.uniform(size=N + 1) < 1 / (1 + np.exp(-X @ truth))).astype(int)
    epsilon = task.config["epsilon"]
    mechanism = MECHANISM.calibrated(epsilon, DELTA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)
        pair = coupled_run(mechanism, X[:N], y[:N], X[N], y[N], random_state=seed_of(seed, epsilon))
    assert pair.iterates is not None
    errors = np.linalg.norm(pair.iterates - truth, axis=1)
    bound = mechanism.stability(D, N, (0, 1))
    base = {"epsilon": epsilon, "train_share": None, "n": N, "train_epsilon": epsilon, "count_noise": None}
    rows = []
    for method, curve in ((GAP, pair.gaps), (ERROR, errors)):
        shown = [round(float(v), 6) for v in curve]
        rows.append({**base, "method": method, "coverage": None, "size": shown[-1], "curve": shown[::EVERY]})
    rows[0]["largest"] = float(pair.gaps.max())
    rows[0]["bound"] = None if bound is None else [bound.shift_bound, bound.delta_n]
    return rows


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV, page and the figure with bands."""
    rows = tables.rows_of(outcomes)
    summaries = tables.summarize(rows, NAME)
    tables.write_csv(options.results / f"{NAME}.csv", summaries)
    panels: dict[str, Any] = {}
    body = []
    for epsilon in EPSILONS:
        mine = [r for r in rows if r["epsilon"] == epsilon]
        gaps = [r for r in mine if r["method"] == GAP]
        curves = {m: np.array([r["curve"] for r in mine if r["method"] == m]) for m in (ERROR, GAP)}
        panels[f"epsilon {epsilon:g}"] = {"estimation error": curves[ERROR], "stability gap": curves[GAP]}
        bound = gaps[0]["bound"]
        body.append(
            [
                f"{epsilon:g}",
                f"{curves[ERROR][:, -1].mean():.3f} ({curves[ERROR][:, -1].std(ddof=1):.3f})" if len(gaps) > 1 else "-",
                f"{curves[GAP][:, -1].mean():.4f} ({curves[GAP][:, -1].std(ddof=1):.4f})" if len(gaps) > 1 else "-",
                f"{max(r['largest'] for r in gaps):.4f}",
                "-" if bound is None else f"{bound[0]:.4f}",
                str(len(gaps)),
            ]
        )
    plots.bands(
        options.results / f"{NAME}.png",
        "Experiment I: coupled private trainings (mean; band from the 10th to the 90th percentile)",
        panels,
        f"step / {EVERY}",
    )
    head = ["eps", "estimation error", "stability gap", "largest gap seen", "proven bound (Result C)", "runs"]
    tables.write_page(
        options.results / f"{NAME}.md",
        "Synthetic experiment I: stability against accuracy",
        header,
        [
            f"Logistic regression, n = {N}, d = {D}; Poisson batches of rate {MECHANISM.sampling_rate:g}, "
            f"{MECHANISM.steps} steps of size {MECHANISM.learning_rate:g}, clip {MECHANISM.clip_norm:g} (not printed "
            f"in the paper: our choice). The bound holds but for probability {MECHANISM.delta_n:g}. In the CSV the "
            "column `size` holds the value after the last step.",
            "\n".join(tables.grid(head, body)),
            "![stability](stability.png)",
        ],
    )


STUDY = Study(NAME, tasks, run, report)
