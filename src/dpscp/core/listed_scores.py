"""Likelihood ratios and groups of a caller's scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.core.release import Counted
from dpscp.data.groups import RecordGroups, read_groups
from dpscp.data.populations import keep_by_ratio, read_population
from dpscp.privacy import Ledger, secure_generator
from dpscp.privacy.random_streams import THINNING, stream_seed


@dataclass(frozen=True)
class ListedScores:
    """Scores in memory, with the likelihood ratio of each, by which secret coins keep it, and its groups.

    Theory: Result K
    """

    scores: Any
    ratios: NDArray[np.float64] | None
    ratio_bound: float | None
    groups: RecordGroups | None

    @classmethod
    def of(cls, scores: Any, population: Any, groups: Any) -> "ListedScores":
        """Return what the caller declares of each score; ``ValueError`` if it does not fit the scores."""
        declared, grouping = read_population(population), read_groups(groups)
        if declared is None and grouping is None:
            return cls(scores, None, None, None)
        if np.ndim(scores) != 1:
            raise ValueError("with population or groups, scores must be a one-dimensional array")
        n = len(np.asarray(scores))
        found = None if grouping is None else grouping.of_records(n)
        if declared is None:
            return cls(scores, None, None, found)
        return cls(scores, declared.of_records(n), declared.bound, found)

    def take(self, places: NDArray[np.int64]) -> "ListedScores":
        """Return the same for some of the scores."""
        ratios = None if self.ratios is None else self.ratios[places]
        groups = None if self.groups is None else self.groups.take(places)
        return ListedScores(np.asarray(self.scores)[places], ratios, self.ratio_bound, groups)

    def counted(self, spent: Ledger, random_state: int | None) -> Counted:
        """Return what counts; ``spent`` is the cost of training."""
        if self.groups is None:
            return Counted(self.by_group(random_state), spent, threshold_at=lambda values: float(values[0, 0]))
        counts = self.by_group(random_state)
        return Counted(counts, spent, facts=self.groups.facts, threshold_at=lambda values: values[:, 0])

    def by_group(self, random_state: int | None) -> list[Any]:
        """Return the kept scores of each group, or of all records without groups."""
        kept: NDArray[np.bool_] | None = None
        if self.ratios is not None and self.ratio_bound is not None:
            coins = secure_generator(stream_seed(random_state, THINNING)).random(len(self.ratios))
            kept = keep_by_ratio(self.ratios, self.ratio_bound, coins)
        if self.groups is None:
            return [self.scores if kept is None else np.asarray(self.scores)[kept]]
        scores = np.asarray(self.scores)
        return [scores[member if kept is None else member & kept] for member in self.groups.members]
