"""Score the records of a source and count the scores.

Scores are computed block by block and stay with their blocks: only counts leave many blocks.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import Array
from dpscp._base.assumptions import Assumption
from dpscp.core.tasks import Scored, correction_notes
from dpscp.data.groups import is_member
from dpscp.data.sources import Block, RecordSource
from dpscp.data.validation import suppress_float_warnings
from dpscp.threshold.counts import look_at
from dpscp.training.base import Trained
from dpscp.training.preprocessing.preprocess import unwrap_model
from dpscp.training.private_model import model_for_records


@dataclass(frozen=True)
class Scoring:
    """Score each record from that record, its person and the trained model.

    ``corrected`` removes the influence of the record's person, if a form is known.

    Theory: Results B, D and H
    """

    task: Scored
    trained: Trained
    corrected: bool

    def __call__(self, block: Block) -> Block:
        """Replace the targets of a block by its scores, and drop its rows."""
        return replace(block, rows=np.empty((len(block), 0)), targets=self.scores(block), chosen=None, steps=())

    def scores(self, block: Block) -> Array:
        """Return the score of every record."""
        # a model of the caller's own sees its rows at once, as it does in prediction
        own = not self.trained.model.is_row_wise
        model, steps = unwrap_model(self.trained.model)
        trained, block = replace(self.trained, model=model_for_records(model)), block.with_steps(*steps)
        found = [np.empty(0)]
        with suppress_float_warnings():
            for part, rows in block.parts(max(1, len(block)) if own else None):
                persons = None if block.persons is None else block.persons.between(part.start, part.stop)
                found.append(
                    self.task.scores(trained, rows, block.targets[part], corrected=self.corrected, persons=persons)
                )
        return np.concatenate(found[1:] or found)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of the correction."""
        return correction_notes(self.trained) if self.corrected else ()


@dataclass(frozen=True)
class _Look:
    """Count the scores of a block (of one group), and those at most each threshold."""

    thresholds: NDArray[np.float64]
    group: int | None

    def __call__(self, block: Block) -> tuple[int, NDArray[np.int64]]:
        scores = block.targets
        if self.group is not None and block.groups is not None:
            scores = block.targets[is_member(block.groups, self.group)]
        return look_at(scores, self.thresholds)


class BlockCounts:
    """Count scores that stay in the blocks of a source."""

    def __init__(self, scored: RecordSource, group: int | None = None) -> None:
        self._scored, self._group = scored, group
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first reading."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return self._size or 0

    def counts_at(self, thresholds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the number of scores at most each threshold, in one reading."""
        self._size, counts = self._scored.sum(_Look(thresholds, self._group))
        return counts
