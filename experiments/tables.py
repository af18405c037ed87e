"""From rows to files: the CSV with fixed columns, and Markdown tables beside the paper's numbers."""

import csv
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.paper_tables import PRINTED_TRIALS, Printed, printed
from experiments.runner import Header, Outcome

__all__ = [
    "COLUMNS",
    "NAMES",
    "SETS",
    "Line",
    "Summary",
    "against_paper",
    "commits_of",
    "find_row",
    "grid",
    "machines_of",
    "number",
    "read_csv",
    "rows_of",
    "side_by_side",
    "signed",
    "standard_errors",
    "summarize",
    "wrapped",
    "write_csv",
    "write_page",
]

COLUMNS = (
    "method",
    "epsilon",
    "train_share",
    "n",
    "coverage",
    "coverage_sd",
    "size",
    "size_sd",
    "informativeness",
    "informativeness_sd",
    "train_epsilon",
    "count_noise",
    "trials",
    "paper_coverage",
    "paper_size",
    "paper_informativeness",
)
Row = dict[str, Any]
# a row of a table that was read from its file
Line = dict[str, str]
# the data sets with a page of their own: study and title
SETS = {
    "housing": "California Housing (width)",
    "bloodmnist": "BloodMNIST, high-resolution features (size)",
    "bloodmnist_vgg16": "BloodMNIST, VGG features (size)",
    "adult": "Adult (size)",
    "bank": "Bank Marketing (size)",
}
NAMES = {
    "dp-scp-f": "DP-SCP-F",
    "dp-scp-a": "DP-SCP-A",
    "dp-split": "DP-Split",
    "naive-full": "Naive Full (not private)",
    "split-cp": "Split CP (not private)",
    "universal": "universal (certified)",
    "stability": "stability (certified)",
    "split": "split (certified)",
    "corrected": "corrected (asymptotic)",
    "default": "default (certified)",
}


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over the trials of one configuration."""

    method: str
    epsilon: float | None
    train_share: float | None
    n: int | None
    coverage: float | None
    coverage_sd: float | None
    size: float | None
    size_sd: float | None
    informativeness: float | None
    informativeness_sd: float | None
    train_epsilon: float | None
    count_noise: float | None
    trials: int
    paper: Printed | None = None
    variant: str = ""


def rows_of(outcomes: Iterable[Outcome]) -> list[Row]:
    """All rows, each with its trial."""
    return [{"trial": o.task.trial, **row} for o in outcomes for row in o.rows]


def summarize(rows: Iterable[Row], study: str) -> list[Summary]:
    """One summary for each (variant, method, epsilon, share, n), in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        share = row.get("train_share")
        share = None if share is None else round(share, 6)
        key = (row.get("variant", ""), row["method"], row["epsilon"], share, row["n"])
        groups.setdefault(key, []).append(row)
    out = []
    for (variant, method, epsilon, share, n), members in groups.items():
        numbers: dict[str, Any] = {}
        for name in ("coverage", "size", "informativeness"):
            numbers[name], numbers[f"{name}_sd"] = _mean_sd([m.get(name) for m in members])
        for name in ("train_epsilon", "count_noise"):
            numbers[name], _ = _mean_sd([m.get(name) for m in members])
        paper = None if variant or n is None else printed(study, method, epsilon, share, n)
        out.append(Summary(method, epsilon, share, n, **numbers, trials=len(members), paper=paper, variant=variant))
    return out


def _mean_sd(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = np.array([v for v in values if v is not None], dtype=float)
    if not known.size:
        return None, None
    if np.isinf(known).any():
        return math.inf, None
    return float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else None


def write_csv(path: Path, summaries: Iterable[Summary]) -> None:
    """The table of one study with the fixed columns; an empty cell where a column does not apply."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for s in summaries:
            paper = [None] * 3 if s.paper is None else [s.paper.coverage, s.paper.size, s.paper.informativeness]
            values = [*(getattr(s, name) for name in COLUMNS[:13]), *paper]
            writer.writerow([_cell(name, v) for name, v in zip(COLUMNS, values, strict=True)])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name in ("n", "trials"):
        return str(int(value))
    return format(value, ".6g")


def read_csv(path: Path) -> list[Line]:
    """The rows of a table as text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def find_row(
    rows: Sequence[Line], method: str, epsilon: float | None, share: str = "0.5", n: int | None = None
) -> Line:
    """The row of a method at a budget; the paper's methods are taken at one training share."""
    wanted = "" if epsilon is None else f"{epsilon:g}"
    for row in rows:
        if row["method"] != method or row["epsilon"] != wanted or (n is not None and row["n"] != str(n)):
            continue
        if method not in ("dp-scp-f", "dp-scp-a") or row["train_share"] in (share, ""):
            return row
    raise KeyError(f"{method} at {epsilon} is not in the table")


def commits_of(page: Path) -> list[str]:
    """The commits that the head of a page names."""
    found = re.search(r"^- commit (.+?), dpscp", page.read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1).replace(" (the run was resumed)", "").split(", ")


def machines_of(page: Path) -> list[str]:
    """The machines that the head of a page names."""
    found = re.search(r"^- machine: (.+?);", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return " ".join(found.group(1).split()).split(" and ")


def wrapped(block: str) -> str:
    """Wrap the long lines of prose; tables and pictures stay as they are."""
    return "\n".join(
        textwrap.fill(
            line, 118, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False, break_long_words=False
        )
        if len(line) > 120 and not line.startswith(("|", "!"))
        else line
        for line in block.split("\n")
    )


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(r) + " |" for r in body)]


def number(mean: float | None, sd: float | None = None, digits: int = 3) -> str:
    """``mean (sd)``, or a dash."""
    if mean is None:
        return "-"
    if math.isinf(mean):
        return "infinite"
    return f"{mean:.{digits}f}" + ("" if sd is None else f" ({sd:.{digits}f})")


def standard_errors(mean: float | None, sd: float | None, trials: int, other: float, other_sd: float) -> float | None:
    """The difference of two means in units of its standard error (the paper's mean is over 30 trials)."""
    if mean is None or sd is None or trials < 2:
        return None
    # the paper rounds to three digits: half a unit of that is part of its uncertainty
    error = math.sqrt(sd**2 / trials + other_sd**2 / PRINTED_TRIALS + 0.0005**2 / 3)
    return (mean - other) / error


def against_paper(
    summaries: Sequence[Summary], size_name: str, *, accounting: bool = False, informative: bool = True
) -> list[str]:
    """Paper and ours (paper-faithful) side by side, with differences in combined standard errors."""
    head = [
        "method",
        "eps",
        "p",
        "coverage: paper",
        "ours",
        "diff / se",
        f"{size_name}: paper",
        "ours",
        "diff %",
        "diff / se",
    ]
    if informative:
        head += ["singletons: paper", "ours"]
    if accounting:
        head += ["train eps: paper", "ours", "count noise: paper", "ours"]
    body = []
    for s in (s for s in summaries if s.paper is not None):
        paper = s.paper
        assert paper is not None
        assert s.size is not None
        cells = [
            NAMES[s.method],
            "-" if s.epsilon is None else f"{s.epsilon:g}",
            "-" if s.train_share is None else f"{s.train_share:g}",
            number(paper.coverage, paper.coverage_sd),
            number(s.coverage, s.coverage_sd),
            signed(standard_errors(s.coverage, s.coverage_sd, s.trials, paper.coverage, paper.coverage_sd)),
            number(paper.size, paper.size_sd),
            number(s.size, s.size_sd),
            f"{100 * (s.size / paper.size - 1):+.1f}",
            signed(standard_errors(s.size, s.size_sd, s.trials, paper.size, paper.size_sd)),
        ]
        if informative:
            cells += [
                number(paper.informativeness, paper.informativeness_sd),
                number(s.informativeness, s.informativeness_sd),
            ]
        if accounting:
            cells += [number(paper.train_epsilon), number(s.train_epsilon)]
            cells += [number(paper.count_noise, digits=2), number(s.count_noise, digits=2)]
        body.append(cells)
    return grid(head, body)


def signed(value: float | None) -> str:
    """A difference with its sign, or a dash."""
    return "-" if value is None else f"{value:+.1f}"


def side_by_side(
    summaries: Sequence[Summary], study: str, methods: Sequence[str], epsilons: Sequence[float]
) -> list[str]:
    """One row a method: coverage and size at every epsilon; paper, paper-faithful and the library's own methods."""
    head = ["method", *(f"eps {e:g}: {what}" for e in epsilons for what in ("coverage", "size"))]

    def find(method: str, epsilon: float) -> Summary | None:
        shares = (None, 0.5)
        same = [s for s in summaries if s.method == method and s.epsilon in (epsilon, None) and not s.variant]
        if method in ("dp-scp-f", "dp-scp-a"):
            same = [s for s in same if s.train_share in shares]
        return same[0] if same else None

    body = []
    for method in methods:
        found = [find(method, e) for e in epsilons]
        if any(s is not None and s.paper is not None for s in found):
            cells = [f"{NAMES[method]}, paper"]
            for s in found:
                known = s is not None and s.paper is not None
                cells += [number(s.paper.coverage), number(s.paper.size)] if known else ["-", "-"]
            body.append(cells)
        cells = [NAMES[method] + (", ours" if study else "")]
        for s in found:
            cells += ["-", "-"] if s is None else [number(s.coverage, s.coverage_sd), number(s.size, s.size_sd)]
        if any(s is not None for s in found):
            body.append(cells)
    return grid(head, body)


def write_page(path: Path, title: str, header: Header, blocks: Iterable[str | Callable[[], str]]) -> None:
    """A Markdown page: title, where it comes from, then the blocks, with long lines of prose wrapped."""
    text = [f"# {title}", "", wrapped("\n".join(header.lines())), ""]
    for block in blocks:
        text += [wrapped(block if isinstance(block, str) else block()), ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text).rstrip() + "\n")
