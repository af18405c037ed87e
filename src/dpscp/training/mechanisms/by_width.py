"""Choose the hidden layers by the number of columns that private steps leave.

Theory: Fact 5
"""

from dataclasses import dataclass, replace

from dpscp.training.base import Around, Trained, TrainingRun
from dpscp.training.mechanisms.dpsgd import DPSGD

Layers = tuple[tuple[int, ...], str]
"""The widths of hidden layers, and their activation."""


@dataclass(frozen=True)
class LayersByWidth(Around):
    """Choose the hidden layers by the width of the rows.

    The width of a row after private steps is known only after their release. A choice by this width is post-processing.

    Privacy: ``event`` is that of the mechanism, and does not depend on its layers.

    Parameters
    ----------
    mechanism : DPSGD
        Its hidden layers are for rows that are wider than all of ``ladder``.
    ladder : tuple of (int, (tuple of int, activation))
        The largest width, and the hidden layers for rows up to it; narrow rows first.

    Theory: Fact 5
    """

    mechanism: DPSGD
    ladder: tuple[tuple[int, Layers], ...]

    def train_on(self, run: TrainingRun) -> Trained:
        narrow = (layers for widest, layers in self.ladder if run.source.width <= widest)
        hidden, activation = next(narrow, (self.mechanism.hidden, self.mechanism.activation))
        trained = run.train_inner(replace(self.mechanism, hidden=hidden, activation=activation), run.source)
        return replace(trained, found_privately={**trained.found_privately, "hidden": list(hidden)})
