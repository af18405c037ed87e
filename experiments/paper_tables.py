"""The numbers that the paper prints, for comparison only: every mean and standard deviation of its result tables.

``paper_tables.csv`` holds tab:bloodmnist_main and tab:blood_results_eps_*, tab:housing_main and tab:housing_eps_*, and
tab:results_eps_* (synthetic); the main tables are the p = 0.5 rows of the others.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["PRINTED_TRIALS", "Printed", "printed"]

PRINTED_TRIALS = 30
Key = tuple[str, str, float | None, float | None, int]


@dataclass(frozen=True)
class Printed:
    """One printed row; None where the paper prints nothing."""

    coverage: float
    coverage_sd: float
    size: float
    size_sd: float
    informativeness: float | None
    informativeness_sd: float | None
    train_epsilon: float | None
    count_noise: float | None


@cache
def _rows() -> dict[Key, Printed]:
    def number(text: str) -> float | None:
        return float(text) if text else None

    rows: dict[Key, Printed] = {}
    with (Path(__file__).parent / "paper_tables.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["study"], row["method"], number(row["epsilon"]), number(row["train_share"]), int(row["n"]))
            means = (float(row[c]) for c in ("coverage", "coverage_sd", "size", "size_sd"))
            rest = ("informativeness", "informativeness_sd", "train_epsilon", "count_noise")
            rows[key] = Printed(*means, *(number(row[c]) for c in rest))
    return rows


def printed(study: str, method: str, epsilon: float | None, train_share: float | None, n: int) -> Printed | None:
    """What the paper prints for one row of one study, or None.

    >>> printed("housing", "dp-scp-f", 0.5, 0.5, 16512).size
    2.306
    """
    return _rows().get((study, method, epsilon, train_share, n))
