"""results/history.md: the defaults of each version that was measured, on the same splits and seeds.

``history.csv`` holds what was measured at the named commits. Today's columns are read from the tables of the studies.
"""

from itertools import groupby
from pathlib import Path

from experiments.runner import EPSILONS
from experiments.tables import SETS, Line, commits_of, find_row, grid, read_csv, wrapped

__all__ = ["HISTORY", "write_history"]

HISTORY = Path(__file__).parent / "history.csv"


def write_history(results: Path) -> bool:
    """Write the page if every data set has its table; say whether it did."""
    if not all((results / f"{name}.{ending}").exists() for name in SETS for ending in ("csv", "md")):
        return False
    past = read_csv(HISTORY)
    versions = list(dict.fromkeys(row["version"] for row in past))
    known = {(row["version"], row["study"], row["method"], float(row["epsilon"])): row for row in past}
    # a table that an earlier version left is no table of today
    made = {name: commits_of(results / f"{name}.md") for name in SETS}
    new = [name for name in SETS if not {row["commit"] for row in past} & set(made[name])]
    today = {name: read_csv(results / f"{name}.csv") for name in new}
    body = []
    changes: dict[str, list[float]] = {"default": [], "corrected": []}
    for name, title in SETS.items():
        for epsilon in EPSILONS:
            cells = [_shown(known[version, name, "default", epsilon]) for version in versions]
            body.append([title, f"{epsilon:g}", *cells, "-", "-"])
            if name not in new:
                continue
            for method, found in changes.items():
                first, now = known[versions[0], name, method, epsilon], find_row(today[name], method, epsilon)
                found.append(100 * (float(now["size"]) / float(first["size"]) - 1))
            body[-1][-2:] = [_shown(find_row(today[name], "default", epsilon)), f"{changes['default'][-1]:+.1f} %"]
    head = ["size (coverage)", "eps", *(version.removesuffix(".0") for version in versions), "today", "change"]
    told = [f"`{method}` {min(found):+.1f} to {max(found):+.1f} %" for method, found in changes.items() if found]
    blocks = [
        "# The defaults of each version",
        "The default estimator on the splits and seeds of the studies' pages. Target coverage 0.90, delta 1e-5. "
        f"Change: today's size against that of {versions[0].removesuffix('.0')}{'; over all rows ' if told else ''}"
        f"{'; '.join(told)}.",
        "\n".join(grid(head, body)),
        "\n".join([*_sources(past), f"- today: {_today(made, today)}"]),
        "A version is what the library called itself at the commit. Commit 0b4d6c8 is the last one that was measured "
        "before 0.3.0; 9c5a979 lies after 0.3.0. What changed is in the changelog.",
    ]
    (results / "history.md").write_text("\n\n".join(wrapped(block) for block in blocks) + "\n")
    return True


def _shown(row: Line) -> str:
    return f"{float(row['size']):.3f} ({float(row['coverage']):.3f})"


def _sources(past: list[Line]) -> list[str]:
    """For each version: which commit measured which tables, in how many trials."""
    lines = []
    for version, rows in groupby(past, key=lambda row: row["version"]):
        measured: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            measured.setdefault((row["commit"], row["trials"]), []).append(SETS[row["study"]].split(" (")[0])
        parts = (
            f"commit {commit}, {trials} trials ({'; '.join(dict.fromkeys(titles))})"
            for (commit, trials), titles in measured.items()
        )
        lines.append(f"- {version.removesuffix('.0')}: {', '.join(parts)}")
    return lines


def _today(made: dict[str, list[str]], tables: dict[str, list[Line]]) -> str:
    if not tables:
        return "not measured yet"
    commits = sorted({commit for name in tables for commit in made[name]})
    trials = sorted({int(find_row(rows, "default", e)["trials"]) for rows in tables.values() for e in EPSILONS})
    return f"commit {', '.join(commits)}, {' or '.join(map(str, trials))} trials, the tables of the studies' pages"
