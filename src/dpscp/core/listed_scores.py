"""Likelihood ratios and groups of a caller's scores."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.data.groups import RecordGroups, read_groups
from dpscp.data.populations import keep_by_ratio, read_population
from dpscp.privacy import secure_generator
from dpscp.privacy.random_streams import THINNING, stream_seed


@dataclass(frozen=True)
class ListedScores:
    """What is known of each score in memory: its likelihood ratio, by which secret coins keep it, and its groups.

    Theory: Result K
    """

    ratios: NDArray[np.float64] | None
    ratio_bound: float | None
    groups: RecordGroups | None

    @classmethod
    def of(cls, scores: Any, population: Any, groups: Any) -> "ListedScores":
        """Return what the caller declares of each score; ``ValueError`` if it does not fit the scores."""
        declared, grouping = read_population(population), read_groups(groups)
        if declared is None and grouping is None:
            return cls(None, None, None)
        if np.ndim(scores) != 1:
            raise ValueError("with population or groups, scores must be a one-dimensional array")
        n = len(np.asarray(scores))
        found = None if grouping is None else grouping.of_records(n)
        return cls(None, None, found) if declared is None else cls(declared.of_records(n), declared.bound, found)

    @property
    def n_groups(self) -> int | None:
        """The number of groups; None without groups."""
        return None if self.groups is None else len(self.groups.names)

    @property
    def groups_per_record(self) -> int:
        """How many groups one score may be in."""
        return 1 if self.groups is None else self.groups.per_record

    def take(self, places: NDArray[np.int64]) -> "ListedScores":
        """Return the same for some of the scores."""
        ratios = None if self.ratios is None else self.ratios[places]
        return replace(self, ratios=ratios, groups=None if self.groups is None else self.groups.take(places))

    def scores_by_group(self, scores: Any, random_state: int | None) -> list[Any]:
        """Return the kept scores of each group, or of all records without groups."""
        kept: NDArray[np.bool_] | None = None
        if self.ratios is not None and self.ratio_bound is not None:
            coins = secure_generator(stream_seed(random_state, THINNING)).random(len(self.ratios))
            kept = keep_by_ratio(self.ratios, self.ratio_bound, coins)
        if self.groups is None:
            return [scores if kept is None else np.asarray(scores)[kept]]
        return [np.asarray(scores)[member if kept is None else member & kept] for member in self.groups.members]
