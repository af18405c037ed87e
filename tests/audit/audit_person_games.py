"""Attack the privacy of a person with several extreme rows, equal or different.

The claim is that of a single record, because the library weights rows or uses one random row of each person (Result H).
The games use the library's own code for choices and weights, so that an error in it disproves the claim.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from audit_games import SearchAttack, TrainingAttack
from numpy.typing import NDArray
from scipy import special

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_count
from dpscp.data.persons import Persons
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.threshold.search import SearchView

# Number of row choices that the attacker observes before the game.
_WATCHED = 400


@dataclass(frozen=True)
class PersonTrainingGame(TrainingAttack):
    """Attack DP-SGD; the neighbors differ by a person whose clipped gradients have the largest norm.

    The other persons have one row each, which adds nothing.

    Parameters
    ----------
    rows : number of rows of the person.
    alike : True: all rows are equal, which gives the largest sum; False: rows of all directions and both labels.
    """

    rows: int = 5
    alike: bool = True

    @property
    def name(self) -> str:
        return f"{self._training_name}, a person with {self.rows} rows ({'equal' if self.alike else 'different'})"

    def records(self, with_record: bool) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return the rows and labels, person by person."""
        angle = np.zeros(self.rows) if self.alike else np.linspace(0, 2 * math.pi, self.rows, endpoint=False)
        person = 100 * math.sqrt(2) * np.column_stack([np.cos(angle + math.pi / 4), np.sin(angle + math.pi / 4)])
        labels = np.zeros(self.rows, dtype=np.int64) if self.alike else np.arange(self.rows) % 2
        rows, zeros = np.zeros((self.n, 2)), np.zeros(self.n, dtype=np.int64)
        return (np.vstack([rows, person]), np.append(zeros, labels)) if with_record else (rows, zeros)

    def owners(self, with_record: bool) -> Persons:
        """Return the owners of the rows."""
        return _add_person(self.n, self.rows) if with_record else Persons(np.arange(self.n + 1), self.rows)


@dataclass(frozen=True)
class PersonSearchGame(SearchAttack):
    """Attack the private threshold search; the neighbors differ by a person with several scores.

    The attacker has observed which rows are chosen, and computes the exact log-likelihood ratio of all noisy counts
    over all choices.

    Parameters
    ----------
    unit : "run", because a person is in all counts of a search.
    rows : number of scores of the person.
    alike : True: all scores are at the end of the range, so that no count includes them; False: they are evenly spaced.
    groups : number of groups with separate searches that the scores belong to.
    """

    unit: str = "run"
    rows: int = 5
    alike: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("rows", self.rows)
        check_count("groups", self.groups)

    @property
    def name(self) -> str:
        kind = "equal" if self.alike else "different"
        return f"{self._search_name}, a person with {self.rows} {kind} scores in {self.groups} group(s)"

    def play(self, with_record: bool, runs: int) -> FloatArray:
        choices = Counter(self._choose_rows() for _ in range(_WATCHED))
        logs = np.log([times / _WATCHED for times in choices.values()])
        played = []
        for _ in range(runs):
            chosen = self._choose_rows() if with_record else ()
            views: list[SearchView] = []
            for group in range(self.groups):
                self._search(np.append(self._scores(False), self._select_scores(chosen, group)), views.append)
            ratios = [self._ratio(choice, views) for choice in choices]
            played.append(float(special.logsumexp(logs + np.array(ratios))))
        return np.array(played)

    def _choose_rows(self) -> tuple[int, ...]:
        """Return the rows of the person that the library uses."""
        persons = _add_person(self.n, self.rows)
        picked = persons.one_row_of_each(PlacedDraws.of(self.random_state).uniform(range(persons.count)))
        return tuple(int(row) - self.n for row in picked if row >= self.n)

    def _select_scores(self, chosen: tuple[int, ...], group: int) -> FloatArray:
        scores = np.full(self.rows, self.score) if self.alike else np.linspace(0.3, self.score, self.rows)
        return scores[[row for row in chosen if row % self.groups == group]]

    def _ratio(self, choice: tuple[int, ...], views: list[SearchView]) -> float:
        """Compute the log-likelihood ratio of all noisy counts: these rows against no person."""
        total = 0.0
        for group, view in enumerate(views):
            added = self._select_scores(choice, group)
            if not len(added):
                continue
            means = []
            for extra in (added[:0], added):
                reference = self._references(len(extra))
                brackets = [count.bracket for count in view.counts]
                counts = [self._exact_count(False, b) + int((extra <= view.halving.middle(*b)).sum()) for b in brackets]
                means.append(reference.scale * np.array(counts, dtype=float) - reference.base - reference.bar)
            margins = np.array([count.margin for count in view.counts], dtype=float)
            total += float(((margins - means[0]) ** 2 - (margins - means[1]) ** 2).sum())
        return total / (2 * self._deviation**2)

    def _references(self, extra: int) -> SearchView:
        """Return a search with this many additional scores, for its constants."""
        if extra not in self._known:
            seen: list[SearchView] = []
            self._search(np.append(self._scores(False), np.full(extra, self.score)), seen.append)
            self._known[extra] = seen[0]
        return self._known[extra]

    @cached_property
    def _known(self) -> dict[int, SearchView]:
        return {}

    @cached_property
    def _deviation(self) -> float:
        return self._sigma()


def _add_person(n: int, rows: int) -> Persons:
    """Create ``n`` persons with one row, and one person with several."""
    return Persons(np.append(np.arange(n + 1), n + rows), rows)
