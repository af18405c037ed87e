"""Attack a whole fit with a secret held-out part.

The attacker knows all other records, and sees the noisy gradient sums, the released size and the noisy counts. The
assignment to the held-out part is secret, so the likelihood is a mixture over the part of the record and over the
number of other records that are held out.
"""

import math
from dataclasses import dataclass

import numpy as np
from audit_games import PipelineAttack, TrainingGame, TrainingRatio, count_noise_scale
from numpy.typing import NDArray
from scipy import special, stats

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_choice, check_count
from dpscp.core.fit import Fit
from dpscp.threshold.search import SearchView
from dpscp.training.engine.loop import StepView


@dataclass(frozen=True)
class SplitGame(PipelineAttack):
    """Attack ``release`` with ``guarantee="split"``, on the neighbors of ``TrainingGame``.

    The statistic is the exact log-likelihood ratio of noisy gradient sums, size and counts. An error in either part, or
    a record in both parts, disproves the claim.

    Parameters
    ----------
    guarantee : "split".
    epsilon : as for the estimators.
    noise_multiplier : constant of training.
    others : number of other records. It is small, because the secret parts of others hide the record, and no claim
        relies on that.
    """

    guarantee: str = "split"
    epsilon: float = 4.0
    noise_multiplier: float = 1.2
    others: int = 1

    def __post_init__(self) -> None:
        check_choice("guarantee", self.guarantee, ("split",))
        check_count("others", self.others)

    @property
    def _records(self) -> TrainingGame:
        return TrainingGame(n=self.others)

    def play(self, with_record: bool, runs: int) -> FloatArray:
        rows, labels = self._records.records(True)
        training = TrainingRatio(self._mechanism(), rows, labels, self.n)
        training.learn_constants(lambda world: self._observe_release(world)[1])
        return np.array([self._split_ratio(with_record, training) for _ in range(runs)])

    def _split_ratio(self, with_record: bool, training: TrainingRatio) -> float:
        """Compute the log-likelihood ratio of everything observed in one release."""
        released, steps, (search,) = self._observe_release(with_record)
        fraction = float(released.ledger.public_facts["calibration_fraction"])
        others = np.arange(self.others + 1)
        drawn = stats.binom(self.others, fraction).logpmf(others)
        without = special.logsumexp(drawn + self._log_likelihood(released, search, others, 0))
        held_out = special.logsumexp(drawn + self._log_likelihood(released, search, others, 1))
        trained = without + _total(training, steps)
        return float(np.logaddexp(math.log1p(-fraction) + trained, math.log(fraction) + held_out) - without)

    def _log_likelihood(self, released: Fit, search: SearchView, others: NDArray[np.int64], own: int) -> FloatArray:
        """Compute the log-likelihood of size and counts for each number of other held-out records."""
        rows, labels = self._records.records(True)
        scores = 1 - released.model.predict_proba(rows)[np.arange(len(rows)), labels]
        counted = others + own
        size = search.new_size
        if size is None:
            raise ValueError("the game needs a search that releases the number of its scores")
        likelihood = -((float(size.released) - counted) ** 2) / (2 * size.size_noise**2)
        _, (_, held_out) = released.ledger.entries[0].stages
        sigma = count_noise_scale(held_out)
        for step in search.counts:
            middle = search.halving.middle(*step.bracket)
            below = others * (scores[0] <= middle) + own * (scores[-1] <= middle)
            # the statistic of the search is the count less half of the number of scores and one
            mean = search.scale * (below - (counted + 1) / 2) - search.bar
            likelihood -= (step.margin - mean) ** 2 / (2 * sigma**2)
        return np.asarray(likelihood, dtype=np.float64)


def _total(training: TrainingRatio, steps: list[StepView]) -> float:
    return sum(training(view) for view in steps)
