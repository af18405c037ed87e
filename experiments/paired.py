"""Compare two runs of a study, or the default with its variants, by paired trials on the same splits.

    python -m experiments.paired OLD.csv results/table_recipe_trials.csv
    python -m experiments.paired results/table_recipe_trials.csv

The studies `table_recipe` and `range_ends` write these files of trials. With two files the first one is the earlier
run, such as `git show HEAD~1:results/table_recipe_trials.csv`. With one file the default is compared with every other
choice. A row is worse where the mean of the paired differences is more than 1 % plus two standard errors.
"""

import argparse
import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments import tables

# percent
LARGEST_LOSS = 1.0
# (case, choice, epsilon)
Key = tuple[str, str, float]
Trials = dict[Key, dict[int, float]]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences in percent of the old mean, its standard error, and the number of pairs."""

    percent: float
    error: float
    pairs: int

    @classmethod
    def of(cls, old: dict[int, float], new: dict[int, float]) -> "Difference":
        """Compare the trials that both have."""
        shared = sorted(old.keys() & new.keys())
        before, after = (np.array([sizes[trial] for trial in shared]) for sizes in (old, new))
        differences = 100 * (after - before) / before.mean()
        error = float(differences.std(ddof=1) / math.sqrt(len(shared))) if len(shared) > 1 else math.inf
        return cls(float(differences.mean()), error, len(shared))

    @property
    def is_worse(self) -> bool:
        """More than 1 % plus two standard errors."""
        return self.percent > LARGEST_LOSS + 2 * self.error

    def __str__(self) -> str:
        return f"{self.percent:+.1f} ({self.error:.1f}){', worse' if self.is_worse else ''}"


def write_trials(path: Path, trials: Trials) -> None:
    """Write one line for each trial."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "choice", "epsilon", "trial", "size"])
        for (case, choice, epsilon), sizes in trials.items():
            writer.writerows([case, choice, f"{epsilon:g}", trial, f"{size:.6g}"] for trial, size in sizes.items())


def read_trials(path: Path) -> Trials:
    """Read what `write_trials` wrote."""
    trials: Trials = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            key = line["case"], line["choice"], float(line["epsilon"])
            trials.setdefault(key, {})[int(line["trial"])] = float(line["size"])
    return trials


def compare_runs(old: Trials, new: Trials) -> dict[Key, Difference]:
    """Return how much larger the sizes of the default are than in an earlier run."""
    keys = [key for key in new if key[1] == "" and old.get(key, {}).keys() & new[key].keys()]
    return {key: Difference.of(old[key], new[key]) for key in keys}


def compare_choices(trials: Trials) -> dict[Key, Difference]:
    """Return how much larger the sizes of the default are than those of every other choice."""
    return {key: Difference.of(sizes, trials[key[0], "", key[2]]) for key, sizes in trials.items() if key[1]}


def describe(differences: dict[Key, Difference]) -> str:
    """Return a table of all rows, and how many are worse."""
    body = [
        [case, choice or "earlier run", f"{epsilon:g}", str(found.pairs), str(found)]
        for (case, choice, epsilon), found in differences.items()
    ]
    grid = tables.grid(["case", "against", "eps", "pairs", "default larger by, % (standard error)"], body)
    n_worse = sum(found.is_worse for found in differences.values())
    return "\n".join([*grid, "", f"{n_worse} of {len(body)} rows are worse by more than 1 % plus two standard errors."])


def main(arguments: Iterable[str] | None = None) -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=Path, nargs="+", help="one or two files of trials, the earlier run first")
    paths = parser.parse_args(None if arguments is None else list(arguments)).trials
    if len(paths) > 2:
        parser.error("pass one or two files of trials")
    found = [read_trials(path) for path in paths]
    print(describe(compare_choices(found[0]) if len(found) == 1 else compare_runs(*found)))


if __name__ == "__main__":
    main()
