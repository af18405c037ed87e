"""The quantile of earlier work by the exponential mechanism, as a rival.

One value is drawn from a public grid of ``bins`` cells. Scores are rounded up to the upper end of their cell. An end e
is drawn with probability proportional to exp(-rate u(e)), where u(e) = min(q, 1 - q) max(#{s < e} / q,
#{s > e} / (1 - q)) is smallest at the quantile of level q.

*Privacy.* An added record raises u(e) by an amount between 0 and 1 and never lowers it. So the log-weights of two
neighbors differ by amounts within ``rate`` of each other. The loss range is ``rate``, half of what the sensitivity
alone gives. *Sampling* is exact: ends are proposed uniformly and accepted with probability exp(-rate (u - smallest u)),
by comparing integers from operating-system entropy. The run time depends on the scores; the promise does not cover the
time of a calibration.

*Level.* An end whose u lies more than t above the smallest has probability at most exp(-rate t). The smallest u is at
most min(q, 1 - q) n. So for q >= 1/2, with probability 1 - b over the draw, #{s <= e} >= q n - log(bins / b) / rate. If
that is at least (n + 1)(1 - alpha) / (1 - b), one more exchangeable score is at most e with probability 1 - alpha.
Every b is valid, and the best one follows from public numbers.

Paper: Angelopoulos, Bates, Zrnic and Jordan (2022), Private Prediction Sets, with half its accounting
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count, check_positive, check_range, check_scores
from dpscp.privacy import (
    Accountant,
    Budget,
    IntegerSource,
    Ledger,
    as_event,
    compose,
    register_event,
    register_loss,
    secret_split,
    smallest_noise,
)
from dpscp.threshold.offsets import round_level

LEVELS = ("corrected", "plain")
# Rates and levels are multiples of this, so that all weights are integers.
_UNIT = 2**20
# Candidate failure probabilities b, as shares of alpha: each is valid, and the optimum is flat.
_SHARES = np.geomspace(1e-9, 0.5, 400)
# The cost of a fine grid is only logarithmic in the number of cells.
_MOST_BINS = 2**16


@attr.frozen
class BoundedRangeDpEvent(DpEvent):
    """A mechanism whose privacy losses lie within an interval of length ``loss_range``.

    An exponential mechanism with weights exp(-rate u(e)) has loss range rate * r, if one record changes u by amounts
    within r of each other over all e.
    """

    loss_range: float


def _bounded_range_loss(event: BoundedRangeDpEvent, bucket: float) -> PrivacyLossDistribution:
    """Return the loss of a pair that dominates every mechanism of loss range r.

    The losses of such a mechanism lie in [t - r, t] for some t between 0 and r. Its worst case has these two losses
    only, t with probability (1 - e^(t-r)) / (1 - e^-r) because probabilities sum to one. Its delta at e is that times 1
    - e^(e-t), which is largest at t = (e + r) / 2. So none exceeds (1 - e^((e-r)/2))^2 / (1 - e^-r) for -r <= e <= r.
    This is the profile of a pair whose loss has density e^((e-r)/2) / (2 - 2 e^-r). Domination survives composition,
    for any t of each mechanism (Dong, Durfee and Rogers 2020). The mass of a bucket moves to its two ends such that
    both laws are kept.
    """
    size = math.ceil(event.loss_range / bucket)
    reach = size * bucket
    weight = np.exp((np.arange(-size, size) * bucket - reach) / 2) / -math.expm1(-reach)
    upper = weight * 4 * math.sinh(bucket / 4) ** 2 / -math.expm1(-bucket)
    masses = np.zeros(2 * size + 1)
    masses[1:] += upper
    masses[:-1] += weight * math.expm1(bucket / 2) - upper
    return PrivacyLossDistribution(DensePLDPmf(bucket, -size, masses, 0.0, True))


register_event("bounded_range", BoundedRangeDpEvent)
register_loss(BoundedRangeDpEvent, _bounded_range_loss)


@dataclass(frozen=True)
class ExponentialQuantile:
    """A released threshold and its public numbers; no count, no score, no exact n.

    Attributes
    ----------
    threshold : float
    level : float
        The quantile level of the draw.
    rate : float
        The loss range.
    bins : int
    event : DpEvent
    alpha : float
    score_range : tuple of float
    n_records : int
        The nominal number of scores.
    seeded : bool
        Whether a seed was used; then the result is not private.
    """

    threshold: float
    level: float
    rate: float
    bins: int
    event: DpEvent
    alpha: float
    score_range: tuple[float, float]
    n_records: int
    seeded: bool

    @property
    def is_finite(self) -> bool:
        """Whether the threshold lies below the end of its range."""
        return self.threshold < self.score_range[1]


def default_bins(n_records: int, rate: float) -> int:
    """Return the number of cells that balances its cost against their width.

    The cost is log(bins) / rate ranks for their number and n / bins ranks for their width.
    """
    return max(16, min(_MOST_BINS, math.ceil(2 * n_records * rate)))


def exponential_quantile(
    scores: Any,
    *,
    alpha: float,
    score_range: tuple[float, float],
    rate: float,
    bins: int | None = None,
    level: str = "corrected",
    n_records: int | None = None,
    n_min: int | None = None,
    random_state: int | None = None,
) -> ExponentialQuantile:
    """Return a private threshold near the 1 - alpha quantile of ``scores``.

    With ``level="corrected"``, one more score is at most ``threshold`` with probability at least 1 - alpha. A threshold
    at the end of the range means "no finite threshold".

    Parameters
    ----------
    scores : array, shape (n,)
        Values outside ``score_range`` are clipped without a warning. NaN counts as the end of the range.
    alpha : float
    score_range : tuple of float
        The public (low, high).
    rate : float
        The loss range of the draw.
    bins : int, optional
        The number of grid cells.
    level : {"corrected", "plain"}
        ``"plain"`` aims at (1 - alpha)(n + 1) / n, which proves less.
    n_records : int, optional
        The public number of scores. None declares the exact number public.
    n_min : int, optional
        A lower bound on the number of scores. Default: ``n_records``.
    random_state : int, optional
        A seed for tests; warns, and the result is not private.

    Returns
    -------
    ExponentialQuantile

    Privacy: ``event``, a loss range of ``rate`` (rounded down).

    Assumes: the scores and one more are exchangeable, and there are at least ``n_min`` of them.

    >>> q = exponential_quantile(np.linspace(0, 1, 10_001), alpha=0.1, score_range=(0, 1), rate=1.0, random_state=0)
    >>> 0.9 < q.threshold < 0.91
    True

    Paper: Angelopoulos, Bates, Zrnic and Jordan (2022), Private Prediction Sets
    """
    low, high = check_range("score_range", score_range)
    check_choice("level", level, LEVELS)
    miss = float(round_level(alpha))
    values = check_scores(scores)
    nominal = check_count("n_records", values.size if n_records is None else n_records)
    least = nominal if n_min is None else check_count("n_min", n_min)
    whole_rate = math.floor(check_positive("rate", rate) * _UNIT)
    if whole_rate == 0:
        raise ValueError(f"rate must be at least {1 / _UNIT:g}, got {rate:g}: raise the budget")
    rate = whole_rate / _UNIT
    bins = default_bins(nominal, rate) if bins is None else check_count("bins", bins)
    aim = (1 - miss) * (least + 1) / least if level == "plain" else _level_needed(miss, least, bins, rate)
    whole_level = math.ceil(Fraction(aim) * _UNIT)
    threshold = high
    if whole_level < _UNIT:  # otherwise only the end of the range keeps the promise, for any scores
        ends = np.linspace(low, high, bins + 1)[1:]
        below = _counts_at(values, ends)
        costs = np.maximum(np.append(0, below[:-1]) * (_UNIT - whole_level), (values.size - below) * whole_level)
        unit = _UNIT * max(whole_level, _UNIT - whole_level)
        threshold = float(ends[_draw(costs.astype(object) * whole_rate, unit, IntegerSource(random_state))])
    return ExponentialQuantile(
        threshold=threshold,
        level=whole_level / _UNIT,
        rate=rate,
        bins=bins,
        event=BoundedRangeDpEvent(rate),
        alpha=miss,
        score_range=(low, high),
        n_records=nominal,
        seeded=random_state is not None,
    )


def _level_needed(alpha: float, n: int, bins: int, rate: float) -> float:
    """Return the smallest level with miss rate at most ``alpha`` for all sizes >= n."""
    failures = alpha * _SHARES
    ranks = (n + 1) * (1 - alpha) / (1 - failures) + np.log(bins / failures) / rate
    return max(0.5, float(np.min(ranks)) / n)


def _counts_at(values: NDArray[Any], ends: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return #{scores <= end} for each end; all scores are at most the last one."""
    counts = np.searchsorted(np.sort(values), ends, side="right")
    counts[-1] = values.size
    return counts


def _draw(costs: NDArray[Any], unit: int, source: IntegerSource) -> int:
    """Draw an index with probability proportional to exp(-costs / unit), exactly.

    ``costs`` are Python integers.
    """
    costs = costs - costs.min()
    while True:
        proposed = source.below(len(costs))
        if source.bernoulli_exp(int(costs[proposed]), unit):
            return proposed


def exponential_rate(
    budget: Budget,
    spent: DpEvent | Ledger | None,
    levels: int,
    accountant: str | Accountant = "pld",
    secret_part: float | None = None,
) -> float:
    """Return the largest rate of the exponential mechanism that fits the budget.

    Parameters
    ----------
    budget : Budget
        The budget of training and calibration together.
    spent : event or Ledger, optional
        What training spends.
    levels : int
        The number of draws, one for each level.
    accountant : str or Accountant
    secret_part : float, optional
        The share of the records that calibrate, where a secret split assigns them and ``spent`` is about the others.
    """
    before = as_event(spent)

    def event_at(noise: float) -> DpEvent:
        draws = SelfComposedDpEvent(BoundedRangeDpEvent(1 / noise), levels)
        return compose(before, draws) if secret_part is None else secret_split(before, draws, secret_part)

    guess, flat = levels / budget.epsilon, secret_part is not None
    return 1 / smallest_noise(event_at, budget.epsilon, budget.delta, accountant=accountant, guess=guess, flat=flat)
