"""The game of a whole fit with a held-out part: everything that is released, and no coin of anybody.

The attacker knows all other records and sees the noisy gradient sums, the released size and the noisy counts. A record
is held out by a coin that nobody sees, so the likelihood of what was seen is a mixture over the coin of the record and
over the number of others that were held out.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from dpscp._base.checks import check_choice, check_count
from dpscp.audit.games import PipelineGame, TrainingGame, TrainingRatio
from dpscp.pipeline.release import Release
from dpscp.privacy.events import DiscreteGaussianDpEvent, possible_histories
from dpscp.quantile.observer import SearchView
from dpscp.training.engine.loop import StepView

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SplitGame(PipelineGame):
    """The ``release`` behind every estimator with ``guarantee="split"``, on the neighbors of ``TrainingGame``.

    The statistic is the exact log-likelihood ratio of the released parameters (by their noisy sums), size and counts.
    An error in either part, or one that lets a record into both, breaks the claim. There are few ``others``: what is
    not known about their coins hides the record, and no claim relies on that.
    """

    guarantee: str = "split"
    epsilon: float = 4.0
    noise_multiplier: float = 1.2
    others: int = 1

    def __post_init__(self) -> None:
        if self.knowledge != "white-box":
            raise ValueError(
                "the split game is white-box; PipelineGame('black-box', 'split') sees only what is released"
            )
        check_choice("guarantee", self.guarantee, ("split",))
        check_count("others", self.others)

    @property
    def _records(self) -> TrainingGame:
        return TrainingGame(n=self.others)

    def play(self, with_record: bool, runs: int) -> Array:
        rows, labels = self._records.records(True)
        training = TrainingRatio(self._mechanism(), rows, labels, self.n)
        training.learn_constants(lambda world: self._heard(world)[1])
        return np.array([self._split_ratio(with_record, training) for _ in range(runs)])

    def _split_ratio(self, with_record: bool, training: TrainingRatio) -> float:
        """Return log P(everything seen | with) - log P(everything seen | without), of one release."""
        released, steps, (search,) = self._heard(with_record)
        fraction = float(released.ledger.public_facts["calibration_fraction"])
        others = np.arange(self.others + 1)
        drawn = stats.binom(self.others, fraction).logpmf(others)
        without = special.logsumexp(drawn + self._log_likelihood(released, search, others, 0))
        held_out = special.logsumexp(drawn + self._log_likelihood(released, search, others, 1))
        trained = without + _total(training, steps)
        return float(np.logaddexp(math.log1p(-fraction) + trained, math.log(fraction) + held_out) - without)

    def _log_likelihood(self, released: Release, search: SearchView, others: NDArray[np.int64], own: int) -> Array:
        """Return the log-likelihood of size and counts for each number of others, with the record or without it."""
        rows, labels = self._records.records(True)
        scores = 1 - released.model.predict_proba(rows)[np.arange(len(rows)), labels]
        counted = others + own
        size = search.bought_size
        if size is None:
            raise ValueError("the game needs a search that releases the number of its scores")
        found = -((float(size.value) - counted) ** 2) / (2 * size.size_noise**2)
        sigma = self._sigma(released)
        for question in search.counts:
            middle = search.halving.middle(*question.bracket)
            below = others * (scores[0] <= middle) + own * (scores[-1] <= middle)
            # the statistic of the search is the count less half of the number of scores and one
            mean = search.scale * (below - (counted + 1) / 2) - search.bar
            found -= (question.margin - mean) ** 2 / (2 * sigma**2)
        return np.asarray(found, dtype=np.float64)

    @staticmethod
    def _sigma(released: Release) -> float:
        _, (_, held_out) = released.ledger.entries[0].stages
        (history,) = possible_histories(held_out)
        # the counts of the search are many, the release of the size is one
        counts = {e: k for e, k in history.items() if isinstance(e, DiscreteGaussianDpEvent)}
        return float(max(counts, key=lambda e: counts[e]).sigma)


def _total(training: TrainingRatio, steps: list[StepView]) -> float:
    return sum(training(view) for view in steps)
