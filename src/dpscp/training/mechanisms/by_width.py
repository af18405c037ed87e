"""Choose the hidden layers by the number of columns that private steps leave, after their release.

Theory: Fact 5
"""

from dataclasses import dataclass, replace

from dpscp._base.checks import check_count
from dpscp.training.base import Around, Trained, TrainingRun
from dpscp.training.mechanisms.dpsgd import DPSGD


@dataclass(frozen=True)
class LayersByWidth(Around):
    """Train with other hidden layers where rows are narrow.

    The width of a row behind private steps is known only after their release. What is chosen by it is post-processing.

    Privacy: ``event`` is that of the mechanism, whose layers do not change it.

    Parameters
    ----------
    mechanism : DPSGD
    widest : int
        Rows of at most so many numbers are narrow.
    narrow : tuple of int
        The hidden layers for narrow rows; for others those of the mechanism.

    Theory: Fact 5
    """

    mechanism: DPSGD
    widest: int
    narrow: tuple[int, ...]

    def __post_init__(self) -> None:
        check_count("widest", self.widest)

    def train_on(self, run: TrainingRun) -> Trained:
        is_narrow = run.source.width <= self.widest
        engine = replace(self.mechanism, hidden=self.narrow) if is_narrow else self.mechanism
        return run.train_inner(engine, run.source)
