"""The two worked examples in which the noisy midpoint rule ends below the quantile, with the probability measured.

Paper: Supplement S5 [sec:quantile_discussion], Examples 1 and 2; Algorithm 4 [alg:noisy-midpoint]
"""

import warnings
from pathlib import Path

import numpy as np

import dpscp as dp
from dpscp.paper import noisy_midpoint_quantile
from experiments import tables
from experiments.runner import Header, Options, Outcome, Row, Study, Task, seed_of

NAME = "quantile_failures"
LEVEL = 0.2
STEPS = 10
BETA = 0.05
SEARCHES = 40
NOISES = (1.0, 2.0, 5.0)
# scores, range, and the order statistic that the threshold must reach
EXAMPLES = {
    "large tie jump": ([0] * 5 + [10] * 8 + [11], (0.0, 11.0), 10.0),
    "no ties": (list(range(1, 11)), (1.0, 10.0), 9.0),
    # the same shape with a hundred times the records: where noise is small against n the buffers stop costing much
    "large tie jump, 100 times the records": ([0] * 500 + [10] * 800 + [11] * 100, (0.0, 11.0), 10.0),
}
RULES = {
    "dp-split": "noisy midpoint (Algorithm 4)",
    "dp-scp-f": "right endpoint with the union buffer (Algorithm 2)",
    "split": "right endpoint with Result A's offset",
}


def tasks(options: Options) -> list[Task]:
    """Each trial repeats every search ``SEARCHES`` times."""
    config = {"searches": SEARCHES, "noises": list(NOISES), "steps": STEPS, "beta": BETA, "examples": list(EXAMPLES)}
    return [Task(NAME, "searches", trial, options.seed, config) for trial in range(options.trials)]


def run(task: Task, data: Path | None) -> list[Row]:  # noqa: ARG001 (made, not loaded)
    """How often the released threshold reaches the wanted order statistic."""
    rows = []
    for name, (scores, score_range, wanted) in EXAMPLES.items():
        for noise in NOISES:
            for method in RULES:
                seeds = range(SEARCHES)
                found = np.array(
                    [
                        _threshold(
                            method, scores, score_range, noise, seed_of(task.seed, task.trial, name, noise, method, i)
                        )
                        for i in seeds
                    ]
                )
                rows.append(
                    {
                        "method": method,
                        "epsilon": None,
                        "train_share": None,
                        "n": len(scores),
                        "coverage": float((found >= wanted).mean()),
                        "size": float(found.mean()),
                        "count_noise": noise,
                        "variant": f"{name}/{noise:g}",
                    }
                )
    return rows


def _threshold(method: str, scores: list[int], score_range: tuple[float, float], noise: float, seed: int) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.GuaranteeWarning)
        if method == "dp-split":
            found = noisy_midpoint_quantile(
                scores, alpha=LEVEL, score_range=score_range, count_noise=noise, steps=STEPS, random_state=seed
            )
        else:
            union = method == "dp-scp-f"
            found = dp.private_quantile(
                scores,
                alpha=LEVEL,
                score_range=score_range,
                count_noise=noise,
                steps=STEPS,
                rank="ceil" if union else "linear",
                correction="union" if union else "marginal",
                failure_probability=BETA if union else None,
                random_state=seed,
            )
    return found.threshold


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV and page; no picture, six numbers say it."""
    summaries = tables.summarize(tables.rows_of(outcomes), NAME)
    tables.write_csv(options.results / f"{NAME}.csv", summaries)
    head = ["example", "count noise", *(f"{text}: P(below), mean threshold" for text in RULES.values())]
    body = []
    for name in EXAMPLES:
        for noise in NOISES:
            cells = [name, f"{noise:g}"]
            for method in RULES:
                s = next(s for s in summaries if s.method == method and s.variant == f"{name}/{noise:g}")
                assert s.coverage is not None
                cells.append(f"{1 - s.coverage:.3f}, {s.size:.2f}")
            body.append(cells)
    total = SEARCHES * options.trials
    tables.write_page(
        options.results / f"{NAME}.md",
        "Where the noisy midpoint rule fails",
        header,
        [
            f"The two examples of Supplement S5 (alpha = {LEVEL:g}, {STEPS} halvings), and the first one with 100 "
            f"times the records; {total} searches each, so a probability has a standard error of at most "
            f"{0.5 / total**0.5:.3f}. `P(below)`: the threshold lies below the order statistic it should reach.",
            "\n".join(tables.grid(head, body)),
            f"The union buffer keeps its failure probability of {BETA:g}. Result A promises coverage on average and "
            "may fall below the order statistic more often. Both move towards the end of the range where so few "
            "records cannot outweigh the noise. With many records the midpoint rule still fails on the tie, "
            "however small the noise: the middle of its last bracket lies below the tie here, which leaves all tied "
            "scores out.",
            "In the CSV `coverage` is the probability of reaching the order statistic and `size` the mean threshold; "
            "rows of one method differ in n and in count_noise.",
        ],
    )


STUDY = Study(NAME, tasks, run, report)
