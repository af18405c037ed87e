"""Games about persons: the worlds differ by one person with several extreme rows, all alike or all different.

Claims are those of a single record: that is what weights and one random record a person must keep (Result H). How the
code chooses and weighs rows is taken from the code itself, so that a mistake there shows as a broken claim.
"""

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpscp._base.checks import check_count
from dpscp.audit.games import SearchGame, TrainingGame
from dpscp.data.persons import Persons
from dpscp.quantile.observer import SearchView

Array = NDArray[np.float64]
# How often the attacker watches the choice of rows before the game.
_WATCHED = 400


@dataclass(frozen=True)
class PersonTrainingGame(TrainingGame):
    """DP-SGD against a person with ``rows`` rows whose clipped gradients are as long as they can be.

    ``alike``: all rows are the same, which adds up to the most; otherwise they point in all directions, with both
    labels. The other persons have one row each, which adds nothing.
    """

    rows: int = 5
    alike: bool = True

    @property
    def name(self) -> str:
        return f"{super().name}, a person with {self.rows} rows {'alike' if self.alike else 'of all kinds'}"

    def records(self, with_record: bool) -> tuple[Array, NDArray[np.int64]]:
        """The rows and labels of one world, person by person."""
        turn = np.zeros(self.rows) if self.alike else np.linspace(0, 2 * math.pi, self.rows, endpoint=False)
        person = 100 * math.sqrt(2) * np.column_stack([np.cos(turn + math.pi / 4), np.sin(turn + math.pi / 4)])
        labels = np.zeros(self.rows, dtype=np.int64) if self.alike else np.arange(self.rows) % 2
        rows, zeros = np.zeros((self.n, 2)), np.zeros(self.n, dtype=np.int64)
        return (np.vstack([rows, person]), np.append(zeros, labels)) if with_record else (rows, zeros)

    def owners(self, with_record: bool) -> Persons:
        """Whose rows these are."""
        return _with_one_more(self.n, self.rows) if with_record else Persons(np.arange(self.n + 1), self.rows)


@dataclass(frozen=True)
class PersonSearchGame(SearchGame):
    """The private threshold against a person with ``rows`` scores, spread over ``groups`` groups with searches of their
    own.

    ``alike``: all scores lie at the end of the range, so that no count holds them; otherwise they are spread over the
    range. The attacker has watched which rows are chosen, and computes the exact log-likelihood ratio of all noisy
    counts over all choices.
    """

    unit: str = "run"
    rows: int = 5
    alike: bool = True
    groups: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.knowledge != "white-box" or self.unit != "run":
            raise ValueError("the game of a person's scores is white-box, on whole runs: leave knowledge and unit out")
        check_count("rows", self.rows)
        check_count("groups", self.groups)

    @property
    def name(self) -> str:
        kind = "alike" if self.alike else "of all kinds"
        return f"{super().name}, a person with {self.rows} scores {kind} in {self.groups} group(s)"

    def play(self, with_record: bool, runs: int) -> Array:
        watched = Counter(self._chosen() for _ in range(_WATCHED))
        logs = np.log([times / _WATCHED for times in watched.values()])
        played = []
        for _ in range(runs):
            chosen = self._chosen() if with_record else ()
            views: list[SearchView] = []
            for group in range(self.groups):
                self._search(np.append(self._scores(False), self._added(chosen, group)), views.append)
            ratios = [self._ratio(choice, views) for choice in watched]
            played.append(float(special.logsumexp(logs + np.array(ratios))))
        return np.array(played)

    def _chosen(self) -> tuple[int, ...]:
        """Which of the person's rows the library scores."""
        picked = _with_one_more(self.n, self.rows).one_row_each(self.random_state)
        return tuple(int(row) - self.n for row in picked if row >= self.n)

    def _added(self, chosen: tuple[int, ...], group: int) -> Array:
        scores = np.full(self.rows, self.score) if self.alike else np.linspace(0.3, self.score, self.rows)
        return scores[[row for row in chosen if row % self.groups == group]]

    def _ratio(self, choice: tuple[int, ...], views: list[SearchView]) -> float:
        """log P(noisy counts of all groups | these rows) - log P(the same | nobody)."""
        total = 0.0
        for group, view in enumerate(views):
            added = self._added(choice, group)
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
        """A search with so many scores more: its constants, which follow the number of scores."""
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


def _with_one_more(n: int, rows: int) -> Persons:
    """``n`` persons of one row, then one of several."""
    return Persons(np.append(np.arange(n + 1), n + rows), rows)
