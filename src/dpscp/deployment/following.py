"""Let thresholds follow new records, with a bound on the misses over time.

The bound holds for any sequence of records.

Theory: Result M
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count
from dpscp.privacy import IntegerSource, LatticeNoise

# Shares of the allowed error of a long-run bound for the released number of records and for the largest batch.
_SIZE_SHARE = 0.1
# The scale of thresholds that may be negative is linear up to this share of the range of the scores.
_KNEE = 0.01
_FOLLOWS = "its thresholds follow new records: CoverageMonitor.long_run() states what holds for any sequence of records"


@dataclass(frozen=True)
class NoisyPair:
    """Noisy numbers of covered and missed records, with their ``draws`` of noise."""

    covered: float
    missed: float
    draws: tuple[int, int]

    @property
    def size(self) -> float:
        """The noisy number of records."""
        return self.covered + self.missed

    @property
    def coverage(self) -> float:
        """The noisy share of covered records.

        NaN if the noisy number of records is not positive.
        """
        return min(1.0, max(0.0, self.covered / self.size)) if self.size > 0 else math.nan

    def balance(self, share: float) -> float:
        """Return the noisy value of misses - share * records."""
        return (1 - share) * self.missed - share * self.covered

    def spread(self, share: float) -> float:
        """Return the noise parameter of ``balance``, in units of one count's noise."""
        return math.hypot(share * math.sqrt(self.draws[0]), (1 - share) * math.sqrt(self.draws[1]))


@dataclass(frozen=True)
class FollowPlan:
    """The public constants of thresholds that follow.

    A threshold moves on its own scale, on which it reaches distant public bounds in few steps:
    log(threshold) where thresholds are positive, else sign(threshold) log(1 + abs(threshold) / knee).

    Attributes
    ----------
    step : float
        The size of a step, in units of the first threshold.
    alpha : float
        The target miscoverage.
    first : (n_groups,)
        The first thresholds, on the scale.
    score_range : (low, high)
        At ``high`` a set contains everything.
    knee : float
        Zero for the logarithm.
    is_grouped : bool
    expected_batch : float
        The expected number of records in a batch, of one group.
    n_counts : int
        The number of counts that one record changes, each by one.

    Theory: Result M
    """

    step: float
    alpha: float
    first: tuple[float, ...]
    score_range: tuple[float, float]
    knee: float
    is_grouped: bool
    expected_batch: float
    n_counts: int

    @classmethod
    def of(cls, estimator: Any, step: float, expected_batch: int) -> "FollowPlan":
        """Return the plan for a release; refuse one with several levels."""
        if not (isinstance(step, int | float) and 0 < step < math.inf):
            raise ValueError(f"follow must be a positive number, the size of a step, got {step!r}; 1.0 is a good start")
        if len(estimator.certificates_) > 1:
            raise ValueError(
                "follow needs a release of one level; fit with one confidence_level, or follow each level by itself"
            )
        low, high = estimator._task().score_range
        values = np.minimum(np.reshape(estimator.threshold_, -1), high)
        knee = 0.0 if low >= 0 and (values > 0).all() else _KNEE * (high - low)
        first = tuple(_to_scale(values, knee).tolist())
        grouped, groups = estimator.group_values_ is not None, estimator.declared_groups()
        n_counts = 1 + (grouped if groups is None else groups.per_record)
        alpha = 1 - estimator.certificate_.target
        return cls(float(step), alpha, first, (low, high), knee, grouped, expected_batch / len(first), n_counts)

    @property
    def end(self) -> float:
        """The end of the range, on the scale."""
        return float(_to_scale(np.array(self.score_range[1]), self.knee))

    @property
    def gain(self) -> float:
        """The distance by which one miss moves a threshold, on the scale."""
        return self.step / self.expected_batch

    def in_force(self, places: Sequence[float]) -> NDArray[np.float64]:
        """Return the thresholds of sets.

        At the end of the range they are infinite, and sets contain everything.
        """
        found = np.array(places, dtype=float)
        values = np.minimum(found, self.end)
        back = np.sign(values) * self.knee * np.expm1(np.abs(values)) if self.knee else np.exp(values)
        return np.where(found >= self.end, np.inf, back)

    def release(self, estimator: Any, thresholds: Sequence[float], *, is_first: bool) -> Any:
        """Return the estimator with these thresholds.

        Its first promise holds for the first thresholds only.
        """
        if is_first:
            return estimator
        new, values = copy.copy(estimator), self.in_force(thresholds)
        new.threshold_ = values[:, None] if self.is_grouped else values
        new.certificates_ = tuple(c.voided(_FOLLOWS) for c in estimator.certificates_)
        new.certificate_, new.evaluation_ = new.certificates_[0], None
        return new

    def both(self, estimator: Any, thresholds: Sequence[float]) -> Any:
        """Return an estimator with two levels: the first thresholds and those in force."""
        new = copy.copy(estimator)
        values = np.column_stack([self.in_force(self.first), self.in_force(thresholds)])
        new.threshold_ = values if self.is_grouped else values[0]
        return new

    def count(
        self, covered: NDArray[np.bool_], groups: NDArray[np.int64] | None, thresholds: Sequence[float]
    ) -> NDArray[np.int64]:
        """Return the exact, private counts of a batch.

        A record changes ``n_counts`` of them by one.

        ``covered`` is (n, 2), by the first thresholds and by those in force. Without groups these are the records in
        the cells below both thresholds, between them and above both. With groups they are the covered and the missed
        records by the first thresholds, and by those in force within each group.
        """
        first, force = covered.T
        if groups is None:
            cells = np.bincount(covered.sum(axis=1), minlength=3)[::-1]
            return np.asarray(cells if thresholds[0] != self.first[0] else cells[[0, 2]])
        each = groups if groups.ndim == 2 else groups[:, None]
        missed = np.broadcast_to(~force[:, None], each.shape)
        places = (2 * each + missed)[each >= 0]
        return np.concatenate([[first.sum(), (~first).sum()], np.bincount(places, minlength=2 * len(self.first))])

    def read(self, counts: Sequence[float], thresholds: Sequence[float]) -> tuple[NoisyPair, list[NoisyPair]]:
        """Return the pair by the first thresholds, and each group's in force.

        The latter is the pair by the thresholds in force.
        """
        if self.is_grouped:
            pairs = [NoisyPair(counts[k], counts[k + 1], (1, 1)) for k in range(0, len(counts), 2)]
            return pairs[0], pairs[1:]
        if len(counts) == 2:
            pair = NoisyPair(counts[0], counts[1], (1, 1))
            return pair, [pair]
        below, between, above = counts
        high = NoisyPair(below + between, above, (2, 1))  # by the larger of the two thresholds
        low = NoisyPair(below, between + above, (1, 2))
        return (low, [high]) if thresholds[0] > self.first[0] else (high, [low])

    @property
    def possible_draws(self) -> tuple[tuple[int, int], ...]:
        """The possible numbers of draws in a pair by the thresholds in force.

        The past decides which one applies.
        """
        return ((1, 1),) if self.is_grouped else ((1, 1), (2, 1), (1, 2))

    def n_cells(self, thresholds: Sequence[float]) -> int:
        """Return how many counts a batch releases under these thresholds."""
        return 2 + 2 * len(self.first) if self.is_grouped else 2 + (thresholds[0] != self.first[0])

    def next(self, thresholds: Sequence[float], pairs: Sequence[NoisyPair]) -> tuple[float, ...]:
        """Return the thresholds after a batch, each moved by its excess misses.

        The excess is over the promised share.
        """
        return tuple(old + self.gain * pair.balance(self.alpha) for old, pair in zip(thresholds, pairs, strict=True))


def _to_scale(thresholds: NDArray[np.float64], knee: float) -> NDArray[np.float64]:
    return np.asarray(np.sign(thresholds) * np.log1p(np.abs(thresholds) / knee) if knee else np.log(thresholds))


def noisy_counts(exact: NDArray[np.int64], noise: LatticeNoise, source: IntegerSource) -> tuple[float, ...]:
    """Return counts with a draw of the noise on each."""
    drawn = noise.sample(len(exact), source)
    return tuple(float(count + one / noise.scale) for count, one in zip(exact.tolist(), drawn, strict=True))


@dataclass(frozen=True)
class LongRun:
    """The promise of thresholds that follow, for any sequence of records.

    It is about the batches so far. With probability at least ``1 - beta`` over the noise, at most ``rate`` of the
    records were missed, whatever the records are, also if somebody chose them looking at past thresholds. ``str()``
    returns a paragraph.

    Attributes
    ----------
    group : name of the group; None for all records.
    alpha : the target miscoverage.
    n_batches : number of batches.
    n_records : a declared or released lower bound on the number of records.
    largest_batch : a declared or released upper bound on the number of records in a batch.
    start : records that are missed while the threshold rises from the first one to the end of its range.
    batch : records of one batch that are missed before the threshold moves.
    noise : records that the noise may cost.
    beta : probability over the noise that the bound fails.

    Theory: Result M
    """

    group: Any
    alpha: float
    n_batches: int
    n_records: float
    largest_batch: float
    start: float
    batch: float
    noise: float
    beta: float

    @property
    def excess(self) -> float:
        """Records that may be missed beyond the promised share."""
        return self.start + self.batch + self.noise

    @property
    def rate(self) -> float:
        """The proven bound on the share of missed records; 1 if nothing is proven."""
        return min(1.0, self.alpha + self.excess / self.n_records) if self.n_records > 0 else 1.0

    def __str__(self) -> str:
        whose = "" if self.group is None else f" of group {self.group}"
        return (
            f"For any sequence of records: with probability at least {1 - self.beta:g} over the noise, at most "
            f"{self.rate:.1%} of the records{whose} in {self.n_batches} batches were missed. That is {self.alpha:.1%} "
            f"and an excess of {self.excess:.0f} records (start {self.start:.0f}, one batch {self.batch:.0f}, noise "
            f"{self.noise:.0f}) among at least {self.n_records:.0f}. It is an average over time, not over studies."
        )


def long_run_bound(
    plan: FollowPlan,
    place: int,
    pairs: Sequence[NoisyPair],
    noise: LatticeNoise,
    *,
    group: Any,
    beta: float,
    delay: int,
    n_records: int | None,
    largest_batch: int | None,
) -> LongRun:
    """Return the bound for one group from the pairs of its batches.

    Sizes are released unless they are declared.

    ``delay`` is the largest number of batches between prediction and label.

    Theory: Result M
    """
    unit, n_batches = noise.count_noise, len(pairs)
    released = (n_records is None) + (largest_batch is None)
    left = beta * (1 - _SIZE_SHARE * released)
    most_draws = max(map(sum, plan.possible_draws))

    def reach(batches: int, probability: float) -> float:
        # a sum of discrete Gaussians has the tails of its parameter at most; the past decides how many are summed
        return unit * math.sqrt(2 * most_draws * batches * math.log(1 / probability))

    if n_records is None:
        n_low = max(0.0, sum(pair.size for pair in pairs) - reach(n_batches, _SIZE_SHARE * beta))
    else:
        n_low = float(check_count("n_records", n_records))
    if largest_batch is None:
        windows = [pairs[max(0, end - delay) : end + 1] for end in range(n_batches)]
        tail = _SIZE_SHARE * beta / max(1, n_batches)
        sizes = [sum(p.size for p in window) + reach(len(window), tail) for window in windows]
        n_most = max(0.0, *sizes) if sizes else 0.0
    else:
        n_most = float(check_count("largest_batch", largest_batch)) * (delay + 1)
    # The variance depends on the past, so the bound is the line that is sharpest at a variance fixed in advance.
    spreads = [NoisyPair(0, 0, draws).spread(plan.alpha) for draws in plan.possible_draws]
    fixed = max(1, n_batches) * min(spreads) * max(spreads)
    variance = sum(pair.spread(plan.alpha) ** 2 for pair in pairs)
    drift = unit * math.sqrt(2 * fixed * math.log(1 / left)) * (1 + variance / fixed) / 2
    start = max(0.0, plan.end - plan.first[place]) / plan.gain
    batch = (1 - plan.alpha) * n_most
    return LongRun(group, plan.alpha, n_batches, n_low, n_most, start, batch, drift, beta)
