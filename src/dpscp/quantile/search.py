"""The private threshold: a binary search over a public range that asks noisy counts and errs upwards only.

All decisions are comparisons of integers: the rank statistic is scaled until it is an integer, and exact discrete
Gaussian noise is added to it. What is released is the threshold; counts and the true number of scores stay inside.
"""

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpscp._base.checks import check_count, check_nonnegative, check_positive, check_probability, check_range
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import IntegerSource, LatticeNoise, compose, lattice_noise
from dpscp.privacy.events import DpEvent
from dpscp.quantile.counts import EVEN, Counter, Halving, StreamCounts, as_counter
from dpscp.quantile.loss_sums import LossSums
from dpscp.quantile.minimax import worst_final_gap
from dpscp.quantile.observer import CountView, SearchObserver, SearchView
from dpscp.quantile.offsets import Aim, Correction, Rank, conformal_rank, round_level, search_level
from dpscp.quantile.single_release import CountedSize, KnownSize, NoisySize
from dpscp.quantile.size import ReleasedSize, release_size

__all__ = [
    "AskedCounts",
    "PrivateQuantile",
    "default_steps",
    "noisy_midpoint_quantile",
    "private_quantile",
]

# Scores may crowd: the grid's share of the error is planned for a density this many times the uniform one.
_CROWDING = 2.0
_FEWEST, _MOST = 6, 22
# Graded steps: halvings beyond those that leave one unit of a single count's noise in a cell, by exact recursion over
# all paths of the search, with a budget that the counts share and with one for each count.
_SHARED_HALVINGS, _OWN_HALVINGS = 1.0, 2.6
_STREAM_STEPS = 16


@dataclass(frozen=True)
class PrivateQuantile:
    """A released threshold and the public numbers it was made with; no count, no score, no exact n.

    ``offset`` and ``rank_target`` are means over the steps of the search, which aim ``step_rises`` above the last.
    """

    threshold: float
    rank_target: float
    count_noise: float
    steps: int
    event: DpEvent
    alpha: float
    score_range: tuple[float, float]
    n_records: int
    correction: Correction
    rank: Rank
    offset: float
    seeded: bool
    released_size: ReleasedSize | None = None
    fine_near: float | tuple[float, float] | None = None
    counted_size: CountedSize | None = None

    @property
    def aim(self) -> Aim:
        """Where the search aimed, in public numbers."""
        size = _size_known(self.n_records, self.released_size, self.counted_size)
        level = round_level(self.alpha)
        return Aim(level, Rank(self.rank), Correction(self.correction), size, self.count_noise, self.steps)

    @property
    def last_offset(self) -> float:
        """The offset of the last step."""
        return self.offset - self.aim.mean_rise

    @property
    def is_finite(self) -> bool:
        """Whether the search found a threshold below the end of its range."""
        return self.threshold < self.score_range[1]


class AskedCounts:
    """What searches of the same scores have asked for: give it to each of them, and no count is released twice.

    A noisy count of the centred statistic is the same question at every level, so a search that comes to a bracket
    takes the answer that is there. The brackets of one path differ and their noises are independent: each search alone
    has the law that it would have without the others, and its offset holds. At depth d (from 0) k paths meet at most
    min(2^d, k) different brackets, so all k searches together release at most the sum of their ``new_questions``.

    Theory: Result F; section 1.2
    """

    def __init__(self) -> None:
        self._noise: dict[tuple[int, float, float], int] = {}
        self._search: tuple[Any, ...] | None = None

    def require_alike(self, *search: Any) -> None:
        """Refuse a search whose noisy counts are other numbers than those of the searches before."""
        if self._search not in (None, search):
            raise ValueError("asked must come from searches of the same rank, noise, steps, score_range and fine_near")
        self._search = search

    def noise(self, step: int, left: float, right: float, fresh: int) -> int:
        """The noise on the count in the middle of a bracket: ``fresh`` where nobody asked for it before."""
        return self._noise.setdefault((step, left, right), fresh)

    @staticmethod
    def new_questions(place: int, steps: int) -> int:
        """How many counts the search at ``place`` (from 0) adds: one for each depth with more than ``place`` brackets.

        >>> [sum(AskedCounts.new_questions(j, 12) for j in range(k)) for k in (1, 2, 3, 10)]
        [12, 23, 33, 95]
        """
        return max(1, steps - place.bit_length())


def default_steps(n_records: int, *, unit_noise: float, shared_budget: bool = True, graded: bool = False) -> int:
    """How many halvings balance the noise they cost against the width of the last bracket, from public numbers.

    ``unit_noise`` is the noise of a single count; with ``shared_budget`` N counts need sqrt(N) times as much each.
    ``graded``: for the steps of ``correction="minimax"``, which need fewer: those with the smallest mean overshoot on
    scores that are even over a part of the range.
    """
    if graded:
        more = _SHARED_HALVINGS if shared_budget else _OWN_HALVINGS
        return min(max(round(math.log2(n_records / unit_noise) + more), _FEWEST), _MOST)

    def overshoot(steps: int) -> float:
        noise = unit_noise * (math.sqrt(steps) if shared_budget else 1.0)
        return noise * float(worst_final_gap(-math.inf, steps)) + _CROWDING * n_records / 2.0**steps

    return min(range(_FEWEST, _MOST + 1), key=overshoot)


def private_quantile(  # noqa: PLR0913 (public: one argument a choice)
    scores: Any,
    *,
    alpha: float,
    score_range: tuple[float, float],
    mu: float | None = None,
    count_noise: float | LatticeNoise | None = None,
    steps: int | None = None,
    correction: str = "minimax",
    rank: str = "centred",
    rank_buffer: float = 0,
    failure_probability: float | None = None,
    n_records: int | None = None,
    n_min: float | None = None,
    size_noise: float | LatticeNoise | None = None,
    released_size: ReleasedSize | None = None,
    counted_size: CountedSize | None = None,
    release_confidence: float | None = None,
    asked: AskedCounts | None = None,
    fine_near: float | tuple[float, float] | None = None,
    random_state: int | None = None,
    observer: SearchObserver | None = None,
) -> PrivateQuantile:
    """A private threshold above the 1 - alpha quantile of ``scores``, with noise that errs upwards only.

    Promise (``correction="minimax"``, with the smallest offsets that keep it, or ``"marginal"``, with a larger one): if
    the scores and one more are exchangeable and the number of scores is at least ``n_min``, the one more is at most
    ``threshold`` (or the threshold is the end of the range, which means "no finite threshold") with probability at
    least 1 - alpha over data and noise. Ties are allowed. ``"union"`` is the paper's buffer: with probability
    1 - ``failure_probability`` (default 1 / n_records) the threshold is at least the wanted order statistic.
    ``"none"`` promises nothing.

    Privacy: ``event`` for adding or removing one score; give ``mu`` (the noise is then sensitivity * sqrt(steps) / mu)
    or ``count_noise``, the standard deviation of the noise on each count, or the ``LatticeNoise`` itself as it was
    accounted for.

    Parameters
    ----------
    scores : array, Dask array, iterator of chunks (read once), function returning chunks anew, or a ``CountSource``.
        Values outside ``score_range`` are clipped without a word: saying how many would leak. NaN counts as its end.
    rank : ``"centred"`` (sensitivity 1/2; exact when n = n_records), ``"linear"`` (follows the true n by itself),
        ``"ceil"`` (the paper's, sensitivity 1).
    n_records : the public nominal number of scores; None declares the number found as public.
    n_min : a public lower bound on the number of scores, for parts of random size (which may then be empty); None
        means ``n_records``.
    size_noise : the number of scores is private: release it once with integer noise of this standard deviation, and
        aim at the rank that follows from it. The promise then holds for every number of scores, none included,
        whatever ``n_records`` says (it is a plan only). Needs ``rank="centred"`` and ``correction="minimax"``.
    released_size : the ``released_size`` of an earlier search of the same scores, to be used again at no cost.
    counted_size : the scores are a part that secret coins drew, each record with the same probability, from a table
        whose number of records is public: ``CountedSize(n_records, part)``. No size is released; the promise is an
        average over the coins too. Needs ``rank="centred"`` and ``correction="minimax"``.
    release_confidence : aim so high that, with this probability over scores and noise, this one threshold lies at or
        above the 1 - alpha quantile of the scores' law, beside the average. For independent scores whose number is
        public (n_records), released, or drawn from a counted table.
    asked : shared by several searches of the same scores, see ``AskedCounts``; ``event`` is still that of this search
        alone. Needs ``rank="centred"``.
    fine_near : a public value near which thresholds are told apart most finely: the further away, the wider the cells
        of the grid, so that a ``score_range`` that is far too wide costs little. 0 suits residuals; both ends of the
        range, (low, high), suit probabilities. None: even cells.
    random_state : None draws from the operating system; an integer is for tests, warns, and is not private.
    observer : for tests and audits: called with a ``SearchView``, exact counts included. What it hears is not private.

    >>> import numpy as np
    >>> q = private_quantile(np.linspace(0, 1, 10_001), alpha=0.1, score_range=(0, 1), mu=1.0, random_state=0)
    >>> 0.9 < q.threshold < 0.91
    True

    Paper: Algorithm 2 [alg:dp_binary_search], Lemma 1 [lem:one_sided_qhat], Lemma 2 [lemma:search_privacy];
    Theory: Results A, F, G and I
    """
    span = check_range("score_range", score_range)
    halving = Halving.fine(fine_near, span)
    kind, statistic_kind = Correction.parse(correction), Rank.parse(rank)
    is_released = _check_sizes(size_noise, released_size, counted_size)
    level = search_level(alpha, size_is_released=is_released)
    _check_numbers(rank_buffer, failure_probability, n_records, n_min, steps)
    plan = _NoisePlan.of(mu, count_noise, statistic_kind.sensitivity(level), graded=kind.is_graded)
    n_records = n_records or (None if counted_size is None else max(1, round(counted_size.planned)))
    stream_steps = steps or plan.stream_steps(n_records)
    may_be_empty = is_released or counted_size is not None or n_min is not None
    counter = as_counter(scores, span, stream_steps, allow_empty=may_be_empty, halving=halving)
    source, bought = IntegerSource(random_state), None
    if size_noise is not None:
        released_size = bought = release_size(counter.size, size_noise, source)
    nominal = n_records or max(1, counter.size if released_size is None else round(released_size.value))
    steps = steps or (stream_steps if isinstance(counter, StreamCounts) else plan.default_steps(nominal))
    noise, size = plan.noise_for(counter, steps), _size_known(nominal, released_size, counted_size)
    aim = Aim(level, statistic_kind, kind, size, noise.count_noise, steps, Fraction(1, noise.scale), n_min)
    offset = aim.whole_offset(rank_buffer, failure_probability, release_confidence, 1 - alpha)
    statistic = _Statistic.of(aim, offset, noise, counter.size)
    asked = AskedCounts() if asked is None else _for_this_search(asked, aim.rank, noise, steps, span, halving)
    threshold, seen = _right_endpoint_search(counter, span, statistic, noise.sample(steps, source), halving, asked)
    if observer is not None:
        observer(statistic.view(span, seen, bought, halving))
    return _warn_of_full_sets(
        PrivateQuantile(
            threshold=threshold,
            event=noise.event(steps) if bought is None else compose(bought.event, noise.event(steps)),
            score_range=span,
            n_records=nominal,
            seeded=random_state is not None,
            released_size=released_size,
            fine_near=fine_near,
            counted_size=counted_size,
            **aim.public_numbers(offset),
        )
    )


def _check_numbers(
    rank_buffer: float, failure_probability: float | None, n_records: int | None, n_min: float | None, steps: int | None
) -> None:
    check_nonnegative("rank_buffer", rank_buffer)
    if failure_probability is not None:
        check_probability("failure_probability", failure_probability)
    if n_records is not None:
        check_count("n_records", n_records)
    if n_min is not None:
        check_nonnegative("n_min", n_min)
    if steps is not None:
        check_count("steps", steps)


def _check_sizes(
    size_noise: float | LatticeNoise | None, released_size: ReleasedSize | None, counted_size: CountedSize | None
) -> bool:
    """Return whether a size is released; more than one way to treat a private number of scores is refused."""
    is_released = size_noise is not None or released_size is not None
    if size_noise is not None and released_size is not None:
        raise ValueError("give size_noise (release the size) or released_size (use one again), not both")
    if counted_size is not None and is_released:
        raise ValueError("give counted_size or a released size, not both: the law of the coins replaces the release")
    return is_released


def _size_known(
    nominal: int, released_size: ReleasedSize | None, counted_size: CountedSize | None
) -> KnownSize | NoisySize | CountedSize:
    """Return what a search knows about the number of its scores."""
    if counted_size is not None:
        return counted_size
    return KnownSize(nominal) if released_size is None else released_size.known()


def _for_this_search(
    asked: AskedCounts, rank: Rank, noise: LatticeNoise, steps: int, score_range: tuple[float, float], halving: Halving
) -> AskedCounts:
    """``asked``, if its counts are those of this search."""
    if not rank.is_same_at_all_levels:
        raise ValueError(f"asked needs rank='centred', got '{rank}': other statistics differ from level to level")
    asked.require_alike(noise, steps, score_range, halving)
    return asked


@dataclass(frozen=True)
class _Statistic:
    """scale * (C - removed) + noise is compared with scale * needed, and with ``rises`` more at earlier steps.

    ``scale * removed`` is an integer.
    """

    scale: int
    removed: Fraction
    needed: Fraction
    rises: tuple[int, ...]

    @classmethod
    def of(cls, aim: Aim, offset: Fraction, noise: LatticeNoise, size: int) -> "_Statistic":
        """Return what is taken off each count and the bar; ``size`` is the true number of scores."""
        removed = aim.rank.removed(aim.level, size)
        return cls(noise.scale, removed, aim.needed(offset), aim.lattice_rises(noise.sigma))

    @property
    def base(self) -> int:
        return int(self.scale * self.removed)

    @property
    def bar(self) -> int:
        return math.ceil(self.scale * self.needed)

    def view(
        self, score_range: tuple[float, float], seen: list[CountView], bought: ReleasedSize | None, halving: Halving
    ) -> SearchView:
        return SearchView(score_range, self.scale, self.base, self.bar, tuple(seen), bought, self.rises, halving)


def _right_endpoint_search(
    counter: Counter,
    score_range: tuple[float, float],
    statistic: _Statistic,
    draws: list[int],
    halving: Halving,
    asked: AskedCounts,
) -> tuple[float, list[CountView]]:
    """Halve the range; move the right end only where the noisy statistic reaches its bar: integers are compared.

    Returns the right end that is left, and each count that was asked for.
    """
    left, right = score_range
    seen: list[CountView] = []
    scale, base, bar = statistic.scale, statistic.base, statistic.bar
    for step, (noise, rise) in enumerate(zip(draws, statistic.rises, strict=True)):
        middle = float(halving.middle(left, right))
        # scores are clipped into the range: at its end all of them count
        at_the_end = middle >= score_range[1]
        count = counter.size if at_the_end else counter.count(left, right, len(draws) - step)
        margin = int(scale * count) - base + asked.noise(step, left, right, noise) - bar
        # a count at the very end of the range is not asked for: such a step tells no more than its noise
        if not at_the_end:
            seen.append(CountView((left, right), count, margin))
        if margin >= rise:
            right = middle
        else:
            left = middle
    return float(right), seen


@dataclass(frozen=True)
class _NoisePlan:
    """The noise a caller asked for: a GDP level to be shared by all counts, or a fixed noise for each."""

    mu: float | None
    count_noise: LatticeNoise | None
    sensitivity: Fraction
    graded: bool

    @classmethod
    def of(
        cls, mu: float | None, count_noise: float | LatticeNoise | None, sensitivity: Fraction, *, graded: bool
    ) -> "_NoisePlan":
        if (mu is None) == (count_noise is None):
            raise ValueError("give exactly one of mu (the GDP level of the whole search) and count_noise")
        if mu is not None:
            return cls(check_positive("mu", mu), None, sensitivity, graded)
        return cls(None, LatticeNoise.of(count_noise or 0.0, sensitivity), sensitivity, graded)

    def noise_for(self, counter: Counter, steps: int) -> LatticeNoise:
        """Return the noise on each count; its lattice must hold the counts."""
        noise = self.noise(steps)
        if isinstance(counter, LossSums):
            counter.require_lattice(noise.scale, steps)
        return noise

    def noise(self, steps: int) -> LatticeNoise:
        if self.count_noise is not None:
            return self.count_noise
        return lattice_noise(float(self.sensitivity) * math.sqrt(steps) / (self.mu or 0.0), self.sensitivity)

    def stream_steps(self, n_records: int | None) -> int:
        """Return the steps of a stream: it is read while its histogram is made, before its length is known."""
        return self.default_steps(n_records) if n_records else _STREAM_STEPS

    def default_steps(self, n_records: int) -> int:
        own = self.count_noise
        unit = own.count_noise if own is not None else float(self.sensitivity) / (self.mu or 0.0)
        return default_steps(n_records, unit_noise=unit, shared_budget=own is None, graded=self.graded)


def _warn_of_full_sets(result: PrivateQuantile) -> PrivateQuantile:
    """Return ``result``, with a warning to the caller of the search where it ended at the end of its range."""
    if not result.is_finite:
        warnings.warn(_end_of_range_message(result), GuaranteeWarning, stacklevel=3)
    return result


def _end_of_range_message(result: PrivateQuantile) -> str:
    """Public numbers and the released value only."""
    return (
        f"no finite threshold: the search ended at the end of its range ({result.score_range[1]:g}), so prediction "
        f"sets are full. It aims at rank {result.rank_target:.0f} of nominally {result.n_records} scores with noise "
        f"{result.count_noise:.3g} on each count; more records, a larger budget, a larger alpha or a wider range "
        "would help"
    )


def noisy_midpoint_quantile(
    scores: Any,
    *,
    alpha: float,
    score_range: tuple[float, float],
    count_noise: float | LatticeNoise,
    steps: int = 20,
    precision: float | None = None,
    n_records: int | None = None,
    random_state: int | None = None,
) -> PrivateQuantile:
    """The midpoint rule of earlier work, kept as a baseline: it can under-cover, by design of the rule.

    Both ends move on noisy evidence, the left one by ``precision`` (default: the range over 2^steps) beyond the
    midpoint, and the midpoint is returned. Privacy is the same as for ``private_quantile(rank="ceil")``: the true
    number of scores enters the noisy counts only, and the result carries ``n_records``, the public nominal number, and
    the rank that follows from it; None declares the number found as public.

    Paper: Algorithm 4 [alg:noisy-midpoint]
    """
    low, high = check_range("score_range", score_range)
    level = round_level(alpha)
    steps = check_count("steps", steps)
    if n_records is not None:
        check_count("n_records", n_records)
    jump = check_positive("precision", precision) if precision is not None else (high - low) / 2.0**steps
    noise = LatticeNoise.of(count_noise, Fraction(1))
    # with a public nominal number the true one is secret, and refusing none would tell it
    counter = as_counter(scores, (low, high), steps, allow_empty=n_records is not None)
    if isinstance(counter, StreamCounts):
        raise TypeError("noisy_midpoint_quantile needs scores that can be read again; pass an array")
    nominal = n_records or counter.size
    rank = conformal_rank(level, counter.size)
    left, right = low, high
    for drawn in noise.sample(steps, IntegerSource(random_state)):
        middle = EVEN.middle(left, right)
        # the left end leaves the grid of midpoints, so each question is asked on its own
        count = counter.size if middle >= high else counter.count(left, right, 1)
        if noise.scale * (count - rank) + drawn < 0:
            left = middle + jump
        else:
            right = middle
    return PrivateQuantile(
        threshold=float(EVEN.middle(left, right)),
        rank_target=float(conformal_rank(level, nominal)),
        count_noise=noise.count_noise,
        steps=steps,
        event=noise.event(steps),
        alpha=float(level),
        score_range=(low, high),
        n_records=nominal,
        correction=Correction.NONE,
        rank=Rank.CEIL,
        offset=0.0,
        seeded=random_state is not None,
    )
