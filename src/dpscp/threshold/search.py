"""The private threshold: a binary search over a public range by noisy counts.

It errs upwards only. All decisions compare integers: the rank statistic is scaled to an integer, and exact discrete
Gaussian noise is added. Only the threshold is released, not the counts and not the true number of scores.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from dp_accounting.dp_event import DpEvent

from dpscp._base.checks import check_count, check_nonnegative, check_positive, check_probability, check_range
from dpscp.exceptions import GuaranteeWarning
from dpscp.privacy import IntegerSource, LatticeNoise, compose, lattice_noise
from dpscp.threshold.counts import EVEN, Counter, Halving, LossSums, as_counter
from dpscp.threshold.minimax import worst_final_gap
from dpscp.threshold.offsets import Aim, Correction, Rank, search_level
from dpscp.threshold.sizes import KnownSize, NoisySize, Size, release_size

__all__ = ["PrivateQuantile", "SharedCounts", "default_steps", "private_quantile"]

# Scores may be dense: the error of the grid is planned for this multiple of the uniform density.
_CROWDING = 2.0
_FEWEST, _MOST = 6, 22
# Graded steps: halvings beyond those that leave one unit of a single count's noise in a cell, if the counts share a
# budget and if each has its own. From an exact recursion over all paths of the search.
_SHARED_HALVINGS, _OWN_HALVINGS = 1.0, 2.6
_STREAM_STEPS = 16


@dataclass(frozen=True)
class PrivateQuantile:
    """A released threshold and its public numbers; no count, no score, no exact n.

    Attributes
    ----------
    threshold : float
    aim : Aim
        Where the search aimed, in public numbers.
    rank_target : float
        The mean over the steps of the rank that the search aims at; the steps aim ``step_rises`` above the last.
    offset : float
        The mean over the steps of the offset, in ranks.
    event : DpEvent
    score_range : tuple of float
    n_records : int
        The nominal number of scores.
    seeded : bool
        Whether a seed was used; then the result is not private.
    """

    threshold: float
    aim: Aim
    rank_target: float
    offset: float
    event: DpEvent
    score_range: tuple[float, float]
    n_records: int
    seeded: bool

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise on each count."""
        return self.aim.count_noise

    @property
    def steps(self) -> int:
        """The number of halvings."""
        return self.aim.steps

    @property
    def alpha(self) -> float:
        """The miscoverage that the search used, rounded down."""
        return float(self.aim.level)

    @property
    def is_finite(self) -> bool:
        """Whether the search found a threshold below the end of its range."""
        return self.threshold < self.score_range[1]


class CountView(NamedTuple):
    """What an observer sees of one count: bracket, exact count and noisy margin.

    The count is that at the middle of the bracket. The margin is relative to the acceptance level of the last step.
    """

    bracket: tuple[float, float]
    exact: int | Fraction
    margin: int


@dataclass(frozen=True)
class SearchView:
    """What an observer sees of one search.

    The search compared scale * count - base + noise with bar. For tests and audits only. No ledger pays for the exact
    counts: they are not private and must not be released. The number of scores enters ``base`` only. A step accepts if
    its margin reaches its ``rises``. ``halving`` gives the middle of a bracket. ``new_size`` is the size that the
    search released, if any.
    """

    score_range: tuple[float, float]
    scale: int
    base: int
    bar: int
    counts: tuple[CountView, ...]
    new_size: Size | None = None
    rises: tuple[int, ...] = ()
    halving: Halving = EVEN


SearchObserver = Callable[[SearchView], None]


class SharedCounts:
    """Noisy counts that several searches of the same scores share.

    Pass one object to all searches, and no count is released twice. A noisy count of the centered statistic is the same
    at every level, so a search that reaches a bracket uses the existing count. The brackets of one path differ and
    their noises are independent. So each search alone has its usual law, and its offset is valid. At depth d (from 0),
    k paths reach at most min(2^d, k) different brackets. So all k searches together release at most the sum of their
    ``new_questions``.

    Theory: Result F; Fact 2
    """

    def __init__(self) -> None:
        self.noise: dict[tuple[int, float, float], int] = {}
        self._search: tuple[Any, ...] | None = None

    def require_alike(self, rank: Rank, *search: Any) -> None:
        """Raise if the noisy counts of this search differ from those of earlier ones."""
        search = (rank, *search)
        if self._search is not None and not rank.is_same_at_all_levels:
            raise ValueError(
                f"`shared_counts` needs rank='centered', got '{rank}': other statistics differ between levels"
            )
        if self._search not in (None, search):
            raise ValueError(
                "`shared_counts` must come from searches with the same rank, noise, steps, score_range and fine_near"
            )
        self._search = search

    @staticmethod
    def new_questions(place: int, steps: int) -> int:
        """Return how many counts the search at ``place`` (from 0) adds.

        It adds one for each depth with more than ``place`` brackets.

        >>> [sum(SharedCounts.new_questions(j, 12) for j in range(k)) for k in (1, 2, 3, 10)]
        [12, 23, 33, 95]
        """
        return max(1, steps - place.bit_length())


def default_steps(n_records: int, *, unit_noise: float, shared_budget: bool = True, graded: bool = False) -> int:
    """Return the number of halvings that balances noise against bracket width.

    Parameters
    ----------
    n_records : int
        The public number of scores.
    unit_noise : float
        The noise of a single count.
    shared_budget : bool
        N counts share a budget and need sqrt(N) times as much noise each.
    graded : bool
        For the steps of ``correction="minimax"``: fewer steps, with the smallest mean overshoot on scores that are even
        over a part of the range.

    Returns
    -------
    int
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
    rank: str = "centered",
    rank_buffer: float = 0,
    failure_probability: float | None = None,
    n_records: int | None = None,
    size: Size | None = None,
    size_noise: float | LatticeNoise | None = None,
    release_confidence: float | None = None,
    shared_counts: SharedCounts | None = None,
    fine_near: float | tuple[float, float] | None = None,
    random_state: int | None = None,
    observer: SearchObserver | None = None,
) -> PrivateQuantile:
    """Return a private threshold above the 1 - alpha quantile of ``scores``.

    With ``correction="minimax"`` or ``"marginal"``, one more score is at most ``threshold`` with probability at least 1
    - alpha over data and noise. Ties are allowed. A threshold at the end of the range means "no finite threshold".

    Parameters
    ----------
    scores : array, Dask array, iterator of chunks, function that returns chunks, or ``CountSource``
        An iterator is read once. Values outside ``score_range`` are clipped without a warning, because their number is
        private. NaN counts as the end of the range.
    alpha : float
    score_range : tuple of float
        The public (low, high).
    mu : float, optional
        The GDP level of the whole search; the noise is then sensitivity * sqrt(steps) / mu. Pass this or
        ``count_noise``.
    count_noise : float or LatticeNoise, optional
        The standard deviation of the noise on each count, or the noise that the accountant charged.
    steps : int, optional
    correction : {"minimax", "marginal", "union", "none"}
        ``"minimax"`` has the smallest valid offsets, ``"marginal"`` a larger one. ``"union"`` is the buffer of the
        paper: with probability 1 - ``failure_probability`` the threshold is at least the wanted order statistic.
        ``"none"`` promises nothing.
    rank : {"centered", "linear", "ceil"}
        ``"centered"`` has sensitivity 1/2 and is exact if n = n_records. ``"linear"`` needs no n. ``"ceil"`` is that of
        the paper, with sensitivity 1.
    rank_buffer : float
        Ranks that are added to the offset, rounded up.
    failure_probability : float, optional
        Default: 1 / n_records.
    n_records : int, optional
        The public number of scores. None declares the exact number public.
    size : KnownSize, NoisySize or CountedSize, optional
        What is known about the number of scores; default ``KnownSize(n_records)``. A ``NoisySize`` is that of an
        earlier search of the same scores, at no cost. With a ``CountedSize`` the scores are a secret random part of a
        table, no size is released, and the promise is an average over the assignment too. These two need
        ``rank="centered"`` and ``correction="minimax"``, and ``n_records`` is then only a plan.
    size_noise : float or LatticeNoise, optional
        The number of scores is private: release it once with integer noise of this standard deviation, as a
        ``NoisySize``.
    release_confidence : float, optional
        With this probability over scores and noise, this one threshold is at least the 1 - alpha quantile of the
        scores' law. Needs independent scores whose number is public, released or drawn from a counted table.
    shared_counts : SharedCounts, optional
        Shared by several searches of the same scores; ``event`` is that of this search alone. Needs
        ``rank="centered"``.
    fine_near : float or tuple of float, optional
        A public value near which the grid is finest, so that a ``score_range`` that is far too wide costs little. 0
        suits residuals; both ends of the range, (low, high), suit probabilities. Default: even cells.
    random_state : int, optional
        A seed for tests; warns, and the result is not private.
    observer : callable, optional
        For tests and audits: called with a ``SearchView``, which contains exact counts and is not private.

    Returns
    -------
    PrivateQuantile

    Privacy: ``event``, for adding or removing one score.

    Assumes: the scores and one more are exchangeable, and a ``KnownSize`` is true.

    >>> import numpy as np
    >>> q = private_quantile(np.linspace(0, 1, 10_001), alpha=0.1, score_range=(0, 1), mu=1.0, random_state=0)
    >>> 0.9 < q.threshold < 0.91
    True

    Paper: Algorithm 2 [alg:dp_binary_search], Lemma 1 [lem:one_sided_qhat], Lemma 2 [lemma:search_privacy];
    Theory: Results A, F, G and I
    """
    span = check_range("score_range", score_range)
    halving = Halving.fine(fine_near, span)
    kind, statistic = Correction(correction), Rank(rank)
    if size is not None and size_noise is not None:
        raise ValueError("pass size_noise (to release a size) or size (a known one), not both")
    is_released = size_noise is not None or isinstance(size, NoisySize)
    level = search_level(alpha, size_is_released=is_released)
    _check_numbers(failure_probability, n_records=n_records, steps=steps)
    given, unit_noise = _unit_noise(mu, count_noise, statistic.sensitivity(level))
    planned_steps = partial(default_steps, unit_noise=unit_noise, shared_budget=given is None, graded=kind.is_graded)
    n_records = n_records or (None if size is None else max(1, round(size.nominal_size)))
    first_steps = steps or (planned_steps(n_records) if n_records else _STREAM_STEPS)  # before a stream is read
    counter = as_counter(scores, span, first_steps, halving=halving)
    require_counted(counter, is_private=n_records is not None or is_released)
    source, size_event = IntegerSource(random_state), None
    if size_noise is not None:
        size, size_event = release_size(counter.size, size_noise, source)
    nominal = n_records or max(1, counter.size if size is None else round(size.nominal_size))
    size = size or KnownSize(nominal)
    steps = steps or (first_steps if isinstance(scores, Iterator) else planned_steps(nominal))
    noise = given or lattice_noise(unit_noise * math.sqrt(steps), statistic.sensitivity(level))
    aim = Aim(level, statistic, kind, size, noise.count_noise, steps)
    rank_buffer = check_nonnegative("rank_buffer", rank_buffer)
    offset = aim.whole_offset(rank_buffer, failure_probability, release_confidence, 1 - alpha)
    if kind is not Correction.NONE:
        offset += Fraction(1, noise.scale)  # one unit of the lattice covers the difference to normal noise
    threshold, view = _halve_range(counter, span, halving, aim, offset, noise, source, shared_counts or SharedCounts())
    if observer is not None:
        observer(replace(view, new_size=None if size_event is None else size))
    event = noise.event(steps) if size_event is None else compose(size_event, noise.event(steps))
    mean = offset + Fraction(aim.mean_rise)
    found = PrivateQuantile(
        threshold, aim, float(aim.wanted_rank + mean), float(mean), event, span, nominal, random_state is not None
    )
    _warn_if_full(found)
    return found


def _warn_if_full(found: PrivateQuantile) -> None:
    """Warn if a search stopped at the end of its range, in public numbers only."""
    if not found.is_finite:
        warnings.warn(
            f"no finite threshold: the search stopped at the end of its range ({found.score_range[1]:g}), so "
            f"prediction sets contain every answer. It aims at rank {found.rank_target:.0f} of nominally "
            f"{found.n_records} scores, with noise {found.count_noise:.3g} on each count. Use more records, a larger "
            "budget, a larger alpha or a wider range",
            GuaranteeWarning,
            stacklevel=3,
        )


def _check_numbers(failure_probability: float | None, **counts: int | None) -> None:
    for name, number in counts.items():
        if number is not None:
            check_count(name, number)
    if failure_probability is not None:
        check_probability("failure_probability", failure_probability)


def _unit_noise(
    mu: float | None, count_noise: float | LatticeNoise | None, sensitivity: Fraction
) -> tuple[LatticeNoise | None, float]:
    """Return the noise of each count if it was given, and that of a single count."""
    if count_noise is not None and mu is None:
        given = LatticeNoise.of(count_noise, sensitivity)
        return given, given.count_noise
    if mu is None or count_noise is not None:
        raise ValueError("pass exactly one of mu (the GDP level of the whole search) and count_noise")
    return None, float(sensitivity) / check_positive("mu", mu)


def require_counted(counter: Counter, *, is_private: bool) -> None:
    """Reject an empty set of scores, unless their number is declared or private."""
    if not is_private and counter.size == 0:
        raise ValueError("scores are empty: pass at least one score, or declare n_records")


def _halve_range(
    counter: Counter,
    score_range: tuple[float, float],
    halving: Halving,
    aim: Aim,
    offset: Fraction,
    noise: LatticeNoise,
    source: IntegerSource,
    shared_counts: SharedCounts,
) -> tuple[float, SearchView]:
    """Halve the range; move the right end if the noisy statistic is large enough.

    All comparisons are between integers. Returns the final right end, and what an observer sees.
    """
    if isinstance(counter, LossSums):
        counter.require_lattice(noise.scale, aim.steps)
    shared_counts.require_alike(aim.rank, noise, aim.steps, score_range, halving)
    left, right = score_range
    draws = noise.sample(aim.steps, source)
    seen: list[CountView] = []
    nominal = aim.rank.subtracted_rank(aim.level, Fraction(aim.size.nominal_size))
    scale, base = noise.scale, int(noise.scale * aim.rank.subtracted_rank(aim.level, counter.size))
    bar = math.ceil(scale * (aim.wanted_rank - nominal + offset))
    rises = tuple(math.ceil(noise.sigma * rise) for rise in aim.rises.tolist())
    for step, (draw, rise) in enumerate(zip(draws, rises, strict=True)):
        middle = float(halving.middle(left, right))
        # scores are clipped into the range: at its end all of them count
        at_the_end = middle >= score_range[1]
        count = counter.size if at_the_end else counter.count(left, right, len(draws) - step)
        margin = int(scale * count) - base + shared_counts.noise.setdefault((step, left, right), draw) - bar
        # no count is needed at the end of the range: the step depends on its noise only
        if not at_the_end:
            seen.append(CountView((left, right), count, margin))
        if margin >= rise:
            right = middle
        else:
            left = middle
    return float(right), SearchView(score_range, scale, base, bar, tuple(seen), None, rises, halving)
