"""Bank Marketing (UCI): does a client subscribe after the call?"""

from pathlib import Path

from experiments import data as loaders
from experiments.runner import Row, Task
from experiments.tabular import make_study, run_table

NAME = "bank"


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    return run_table(task, loaders.bank(data))


STUDY = make_study(NAME, "Bank Marketing", 20_000, 10_000, run)
