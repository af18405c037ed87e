"""Adult (UCI): is a person's income above $50,000?"""

from pathlib import Path

from experiments import data as loaders
from experiments.runner import Row, Task
from experiments.tabular import make_study, run_table

NAME = "adult"


def run(task: Task, data: Path | None) -> list[Row]:
    """One task."""
    return run_table(task, loaders.adult(data))


STUDY = make_study(NAME, "Adult", 20_000, 10_000, run)
