"""The library's own methods with the defaults of version 0.3, beside those of the first run: the same splits and seeds.

The paper's rows of the same studies take most of their time and do not depend on defaults, so they are left out here.
"""

import csv
from importlib import import_module
from pathlib import Path

from experiments import tables
from experiments.runner import EPSILONS, Header, Options, Outcome, Row, Study, Task

NAME = "defaults"
EARLIER = Path(__file__).parent / "earlier.csv"
TITLES = {
    "housing": "California Housing (width)",
    "bloodmnist": "BloodMNIST, high-resolution features",
    "bloodmnist_vgg16": "BloodMNIST, VGG features",
    "adult": "Adult",
    "bank": "Bank Marketing",
}
SHOWN = ("default", "universal", "corrected")


def tasks(options: Options) -> list[Task]:
    """The tasks of the library's rows, one trial of everything after the other."""
    found = [t for name in ("bloodmnist", "housing", "adult", "bank") for t in _study(name).tasks(options)]
    return sorted((t for t in found if t.kind == "library"), key=lambda t: t.trial)


def run(task: Task, data: Path | None) -> list[Row]:
    """One task of the study that it belongs to."""
    return _study(task.study).run(task, data)


def report(outcomes: list[Outcome], header: Header, options: Options) -> None:
    """CSV and page."""
    rows = [{"study": _table_of(o.task), "trial": o.task.trial, **row} for o in outcomes for row in o.rows]
    with EARLIER.open(newline="") as file:
        earlier = {(r["study"], r["method"], float(r["epsilon"])): r for r in csv.DictReader(file)}
    found, body = [], []
    for study, title in TITLES.items():
        summaries = tables.summarise([r for r in rows if r["study"] == study], study)
        found += [(study, s) for s in summaries if s.method in (*SHOWN, "split", "stability")]
        for epsilon in EPSILONS:
            cells = []
            for method in SHOWN:
                now = next(s for s in summaries if (s.method, s.epsilon, s.variant) == (method, epsilon, ""))
                cells.append(_shown(now.size, now.coverage))
                then = earlier.get((study, method, epsilon))
                if then is not None and now.size is not None:
                    cells[-1:] = [
                        _shown(float(then["size"]), float(then["coverage"])),
                        cells[-1],
                        f"{100 * (now.size / float(then['size']) - 1):+.1f} %",
                    ]
            body.append([title, f"{epsilon:g}", *cells])
    options.results.mkdir(parents=True, exist_ok=True)
    with (options.results / f"{NAME}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["study", "variant", "method", "epsilon", "coverage", "coverage_sd", "size", "size_sd", "trials"]
        )
        for study, s in found:
            numbers = [s.coverage, s.coverage_sd, s.size, s.size_sd]
            shown = ["" if v is None else f"{v:.6g}" for v in numbers]
            writer.writerow([study, s.variant, s.method, f"{s.epsilon:g}", *shown, s.trials])
    head = ["size (coverage)", "eps", "default, 0.1", "default", "change", "universal"]
    head += ["corrected, 0.1", "corrected", "change"]
    bounds = [s for study, s in found if study == "housing" and s.variant]
    tables.write_page(
        options.results / f"{NAME}.md",
        "The library's rows with the defaults of version 0.3",
        header,
        [
            f"{max(s.trials for _, s in found)} trials on the splits and seeds of the studies' own pages; the columns "
            "`0.1` are the 30 trials of those pages, which were made with version 0.1 where they say so. Target "
            "coverage 0.90, delta 1e-5. Housing as there: standardised with the pool's own statistics (not private), "
            "intervals of one width.",
            "\n".join(tables.grid(head, body)),
            "## Housing with nothing taken from the records",
            "Public bounds, standardisation paid from the budget. Without a word the library takes a quantile pair "
            "here; `intervals of one width` is the score of the table above:",
            "\n".join(
                tables.grid(
                    ["eps", "", "coverage", "width", "trials"],
                    [
                        [f"{s.epsilon:g}", s.variant, tables.number(s.coverage, s.coverage_sd),
                         tables.number(s.size, s.size_sd), str(s.trials)]
                        for s in sorted(bounds, key=lambda s: s.epsilon or 0.0)
                    ],
                )
            ),
        ],
    )  # fmt: skip


def _study(name: str) -> Study:
    study: Study = import_module(f"experiments.{name}").STUDY
    return study


def _table_of(task: Task) -> str:
    return "bloodmnist_vgg16" if task.config.get("features") == "vgg16" else task.study


def _shown(size: float | None, coverage: float | None) -> str:
    return f"{tables.number(size)} ({tables.number(coverage)})"


STUDY = Study(NAME, tasks, run, report)
