"""The paper's accounting to the printed digit: Rényi DP on Opacus' orders, and Opacus' own search for the noise.

Opacus halves an interval for the noise multiplier and stops as soon as the spent epsilon is within 0.01 of the target,
so training spends a little less than its share: the paper prints that number, and the count noise follows from it.

Paper: Supplement S6.1 [supp:privacy_accounting]
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from dpscp import privacy
from experiments.runner import DELTA

__all__ = ["Spending", "count_noise_after", "opacus_noise_multiplier", "paper_spending"]

TOLERANCE = 0.01


@dataclass(frozen=True)
class Spending:
    """The noise of the two stages and what training spends."""

    noise_multiplier: float
    train_epsilon: float
    count_noise: float


@lru_cache(maxsize=1024)
def opacus_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> tuple[float, float]:
    """The noise multiplier that Opacus' ``get_noise_multiplier`` finds with its RDP accountant, and its epsilon.

    The same bracket (10, doubled until it suffices), the same halving, the same stopping rule.
    """

    def cost(noise: float) -> float:
        return privacy.epsilon_of(privacy.dpsgd_event(noise, sampling_rate, steps), delta, "rdp")

    low, high, spent = 0.0, 10.0, math.inf
    while spent > epsilon:
        high *= 2
        spent = cost(high)
    while epsilon - spent > TOLERANCE:
        middle = (low + high) / 2
        trial = cost(middle)
        if trial < epsilon:
            high, spent = middle, trial
        else:
            low = middle
    return high, spent


@lru_cache(maxsize=1024)
def count_noise_after(epsilon: float, delta: float, steps: int, training: tuple[float, float, int] | None) -> float:
    """The smallest noise on each of ``steps`` counts of sensitivity 1 that keeps the budget, to a millionth.

    ``training`` is (noise multiplier, sampling rate, steps) of what was spent before on the same records.
    """
    spent = () if training is None else (privacy.dpsgd_event(*training),)

    def fits(noise: float) -> bool:
        both = privacy.compose(*spent, privacy.gaussian_event(noise, steps))
        return privacy.epsilon_of(both, delta, "rdp") <= epsilon

    high = 1.0
    while not fits(high):
        high *= 2
    low = high / 2
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def paper_spending(
    epsilon: float, train_share: float | None, sampling_rate: float, training_steps: int, search_steps: int = 20
) -> Spending:
    """Both noises of one configuration; ``train_share=None`` is DP-Split, where each half has the whole budget.

    >>> spending = paper_spending(0.5, 0.5, 1 / 428, 6420)
    >>> f"{spending.noise_multiplier} {spending.train_epsilon:.3f} {spending.count_noise:.2f}"
    '2.890625 0.245 39.98'
    """
    share = 1.0 if train_share is None else train_share
    noise, spent = opacus_noise_multiplier(share * epsilon, DELTA, sampling_rate, training_steps)
    before = None if train_share is None else (noise, sampling_rate, training_steps)
    return Spending(noise, spent, count_noise_after(epsilon, DELTA, search_steps, before))
