"""Where the counts C(t) = #{scores <= t} come from.

A binary search over a public range asks for the count at one midpoint after the other. Reading the scores once for
each question is slow, so each source answers in its own way:

``ArrayCounts``    scores in memory: a few counting passes, then passes over the few scores left in the bracket;
``ChunkCounts``    scores that are read in chunks, again and again: many midpoints are answered in one reading;
``StreamCounts``   scores that can be read only once: one exact dyadic histogram of the whole range;
``DaskCounts``     a Dask array: partitions count, only counts travel;
anything else with ``size`` and ``counts_at(thresholds)``: another process, a database, a federation.

All counts are exact, ties and float32 included: intervals are closed on the right, midpoints come from the search's
own ``Halving``, and a threshold is rounded *down* to the scores' precision before it is compared (or both are
compared as float64, where that holds the scores exactly). A score that is not a number lies above every threshold:
refusing it would tell that one record made the score overflow.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_scores, real_number
from dpscp.quantile.loss_sums import LossSums

Edges = NDArray[np.float64]
Counts = NDArray[np.int64]

# Scores compared, or put into bins, at once: the block and what is computed from it stay in the cache.
_BLOCK = 1 << 16
# The bracket is copied out once it holds less than this share of the scores.
_EXTRACT_SHARE = 16
# Passes that may leave the bracket full before its ends are looked at.
_PATIENCE = 7
# Levels of the midpoint tree answered by one reading of a source: 2^11 - 1 thresholds. A search that chooses its own
# number of steps takes at most 22, so two readings are enough for it.
_LEVELS_A_READING = 11
# Cells of a table of thresholds, thresholds in one of them, and how few are not worth a table.
_MOST_CELLS, _MOST_IN_A_CELL, _FEWEST_IN_CELLS = 1 << 20, 4, 8
# Deepest histogram for a stream: 2^22 counters are 32 MB.
_STREAM_LEVELS = 22
# Within this part of the range around the point where it is fine, a fine grid is nearly even.
_KNEE, _NARROW = 1e-4, 1e-300


@runtime_checkable
class CountSource(Protocol):
    """Anything that knows how many scores there are and how many are at most each of some thresholds."""

    @property
    def size(self) -> int:
        """The number of scores."""
        ...

    def counts_at(self, thresholds: Edges) -> Any:
        """#{scores <= t} for each of the increasing ``thresholds``."""
        ...


@runtime_checkable
class DaskArray(Protocol):
    """What is used of a Dask array, so that it is known without importing dask."""

    ndim: int
    dtype: np.dtype[Any]
    dask: Any

    @property
    def size(self) -> float:
        """The number of scores; NaN where the chunks do not know their lengths."""
        ...

    def to_delayed(self) -> Any:
        """The chunks."""
        ...


class Counter(Protocol):
    """Answers the questions of one search."""

    @property
    def size(self) -> int:
        """The number of scores."""
        ...

    def count(self, left: float, right: float, steps_left: int) -> int | Fraction:
        """#{scores <= middle of the bracket}; ``steps_left`` questions, this one included, remain."""
        ...


@dataclass(frozen=True)
class Halving:
    """Where the middle of a bracket is: one formula for the search and for every counter, equal to the last bit.

    Halves are even in the value itself, or in a coordinate that is finest near one or two ``points`` (p, or p < q):

        sign(t - p) log(1 + |t - p| / knee)    or    log(t - p + knee) - log(q - t + knee).

    Any increasing public coordinate keeps every promise. These tell thresholds apart by ratios, so residuals in a range
    that is 100 times too wide, and probabilities of a model that is nearly sure, cost no more than others. Sums,
    products, quotients and roots only: these are rounded the same way for one number and for many.

    Theory: Result F
    """

    points: tuple[float, ...] = ()
    knee: float = 0.0

    @classmethod
    def fine(cls, near: float | tuple[float, float] | None, score_range: tuple[float, float]) -> "Halving":
        """Finest near a point of the range, or near both of its ends; even for None or where floats are too few."""
        low, high = score_range
        points = () if near is None else near if isinstance(near, tuple) else (real_number("fine_near", near),)
        if points != score_range and not (len(points) < 2 and all(low <= point <= high for point in points)):
            raise ValueError(
                f"fine_near must be a value within score_range ({low:g} to {high:g}), both of its ends, or None for "
                f"even cells; got {near}"
            )
        return cls(points, _KNEE * (high - low)) if points and high - low > _NARROW else EVEN

    def middle(self, left: Any, right: Any) -> Any:
        """The middle of a bracket, or of many."""
        if not self.points:
            return (left + right) / 2
        found = self._near_one(left, right) if len(self.points) == 1 else self._near_ends(left, right)
        return np.clip(found, left, right)

    def _near_one(self, left: Any, right: Any) -> Any:
        (point,), knee = self.points, self.knee
        a, b = np.abs(left - point) + knee, np.abs(right - point) + knee
        above, below = np.greater_equal(left, point), np.less_equal(right, point)
        # on one side the geometric mean of the distances; across, what is left of the longer side
        away = np.where(above | below, np.sqrt(a) * np.sqrt(b), knee * np.sqrt(np.maximum(a, b) / np.minimum(a, b)))
        return point + np.where(above | (~below & (b >= a)), 1.0, -1.0) * (away - knee)

    def _near_ends(self, left: Any, right: Any) -> Any:
        (low, high), knee = self.points, self.knee
        # the geometric mean of (t - low) / (high - t) at the two ends, and the t that has it
        odds = [np.sqrt((end - low + knee) / (high - end + knee)) for end in (left, right)]
        ratio = odds[0] * odds[1]
        return low + (high - low + knee) * (ratio / (1 + ratio)) - knee / (1 + ratio)


EVEN = Halving()


def as_counter(
    scores: Any, score_range: tuple[float, float], steps: int, *, allow_empty: bool = False, halving: Halving = EVEN
) -> Counter:
    """The counter for whatever the caller has: an array, chunks, a stream, a Dask array, or a count source.

    ``allow_empty`` is for parts of random size: refusing an empty one would tell that it is empty.
    """
    if isinstance(scores, LossSums):
        return scores
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return LookaheadCounter(scores, score_range, steps, allow_empty=allow_empty, halving=halving)
    if isinstance(scores, DaskArray):
        return LookaheadCounter(DaskCounts(scores), score_range, steps, halving=halving)
    if callable(scores):
        return LookaheadCounter(ChunkCounts(scores), score_range, steps, halving=halving)
    if isinstance(scores, Iterator):
        return StreamCounts(scores, score_range, steps, halving=halving)
    return ArrayCounts(scores, allow_empty=allow_empty, halving=halving)


def known_size(scores: Any) -> int | None:
    """The number of scores, where it can be known without reading them; None for chunks and streams."""
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return scores.size
    if isinstance(scores, DaskArray):
        return None if math.isnan(scores.size) else int(scores.size)
    if callable(scores) or isinstance(scores, Iterator):
        return None
    return check_scores(scores).size


def midpoint_tree(left: float, right: float, levels: int, halving: Halving = EVEN) -> Edges:
    """The 2^levels + 1 ends of all brackets that ``levels`` halvings can reach, in order.

    Computed by the search's own recursion and not by ``linspace``, which rounds differently.
    """
    edges = np.array([left, right])
    for _ in range(levels):
        finer = np.empty(2 * edges.size - 1)
        finer[0::2] = edges
        finer[1::2] = halving.middle(edges[:-1], edges[1:])
        edges = finer
    return edges


def round_down(threshold: float, dtype: np.dtype[Any]) -> Any:
    """The largest number of ``dtype`` that is at most ``threshold``: comparing with it counts the same scores.

    NumPy would round the threshold to nearest, which may lie above a score that is not counted, and would round large
    integer scores to the nearest float. Minus infinity where ``dtype`` has no number that small.
    """
    if np.issubdtype(dtype, np.integer) and math.isfinite(threshold):
        whole, limits = math.floor(threshold), np.iinfo(dtype)
        return dtype.type(min(whole, limits.max)) if whole >= limits.min else -math.inf
    if not np.issubdtype(dtype, np.floating) or dtype.itemsize >= 8:
        return threshold
    with np.errstate(over="ignore", under="ignore"):
        rounded = dtype.type(threshold)
        if float(rounded) > threshold:
            rounded = np.nextafter(rounded, dtype.type(-np.inf))
    return rounded


def _ends(array: NDArray[Any]) -> tuple[Any, Any]:
    """The smallest and the largest score, exactly; one that is not a number counts as infinite."""
    smallest, largest = math.inf, -math.inf
    for i in range(0, array.size, _BLOCK):
        block = array[i : i + _BLOCK]
        low, high = block.min().item(), block.max().item()
        if math.isnan(high):
            low, high = np.fmin.reduce(block).item(), math.inf
            low = math.inf if math.isnan(low) else low
        smallest, largest = min(smallest, low), max(largest, high)
    return smallest, largest


class ArrayCounts:
    """Scores in memory (any float or integer dtype, any stride): count, then extract.

    Each pass halves the bracket; once it holds under 1/16 of the scores they are copied out, and the remaining
    questions are answered from the copy in the same way. Where ties keep a bracket full, questions beyond the scores in
    it are free. Extra memory: a few blocks and 1/16 of the scores.
    """

    def __init__(self, scores: Any, *, allow_empty: bool = False, halving: Halving = EVEN) -> None:
        self._scores, self._halving = check_scores(scores), halving
        self.size = int(self._scores.size) if allow_empty else _not_empty(int(self._scores.size))
        # scores left out of the working copy because they lie below every later question
        self._base = 0
        # the ends of the scores that can still be met, and the counts below and from them on
        self._smallest, self._largest = _ends(self._scores)
        self._outside = 0, self.size
        self._known: dict[float, int] = {}
        self._passes = 0

    def count(self, left: float, right: float, steps_left: int) -> int:
        """#{scores <= middle of the bracket}."""
        threshold = float(self._halving.middle(left, right))
        if self._smallest <= threshold < self._largest and steps_left > 1:
            self._narrow(left, right)
        if self._smallest <= threshold < self._largest:
            self._known[threshold] = self._base + self._pass(threshold)
        else:  # a wide public range, or a bracket of ties, costs no pass
            below, from_there = self._outside
            self._known[threshold] = below if threshold < self._smallest else from_there
        return self._known[threshold]

    def _pass(self, threshold: float) -> int:
        self._passes += 1
        bound, scores = round_down(threshold, self._scores.dtype), self._scores
        return sum(int(np.count_nonzero(scores[i : i + _BLOCK] <= bound)) for i in range(0, scores.size, _BLOCK))

    def _narrow(self, left: float, right: float) -> None:
        """Copy the bracket out if few scores are left in it; else, after some passes, look where its scores end."""
        below, up_to = self._known.get(left, 0), self._known.get(right, self.size)
        low, high = left if left in self._known else None, right if right in self._known else None
        if (up_to - below) * _EXTRACT_SHARE <= self._scores.size:
            kept = np.empty(up_to - below, dtype=self._scores.dtype)
            filled = 0
            for part in self._bracket(low, high):
                kept[filled : filled + part.size] = part
                filled += part.size
            self._scores, self._base, self._passes = kept, below, 0
        elif self._passes >= _PATIENCE:
            ends = [_ends(part) for part in self._bracket(low, high)]
            self._smallest, self._largest = min(e[0] for e in ends), max(e[1] for e in ends)
            self._outside, self._passes = (below, up_to), 0

    def _bracket(self, left: float | None, right: float | None) -> Iterator[NDArray[Any]]:
        """The scores of the bracket (left, right], block by block; None leaves that side open."""
        dtype = self._scores.dtype
        for i in range(0, self._scores.size, _BLOCK):
            block = self._scores[i : i + _BLOCK]
            inside = np.ones(block.size, dtype=bool)
            if left is not None:
                inside = ~(block <= round_down(left, dtype))  # not '>': what is no number lies above
            if right is not None:
                inside &= block <= round_down(right, dtype)
            yield block[inside]


class LookaheadCounter:
    """Answers a search from a source where every reading is dear: each reading settles the next eleven steps.

    The first look is taken before the size is asked for, so that a source can find both in one reading.
    """

    def __init__(
        self,
        source: CountSource,
        score_range: tuple[float, float],
        steps: int,
        *,
        allow_empty: bool = False,
        halving: Halving = EVEN,
    ) -> None:
        self._source, self._halving = source, halving
        looked = self._look(*score_range, steps)
        self.size = check_count("scores.size", source.size, minimum=0 if allow_empty else 1)
        self._known = self._checked(*looked)

    def count(self, left: float, right: float, steps_left: int) -> int:
        """#{scores <= middle of the bracket}."""
        threshold = float(self._halving.middle(left, right))
        if threshold not in self._known:
            self._known = self._checked(*self._look(left, right, steps_left))
        return self._known[threshold]

    def _look(self, left: float, right: float, steps: int) -> tuple[Edges, Any]:
        inner = np.unique(midpoint_tree(left, right, min(steps, _LEVELS_A_READING), self._halving)[1:-1])
        return inner, np.asarray(self._source.counts_at(inner))

    def _checked(self, thresholds: Edges, counts: Any) -> dict[float, int]:
        if counts.shape != thresholds.shape or not np.issubdtype(counts.dtype, np.integer):
            raise TypeError("counts_at must return one integer for each threshold")
        if np.any(np.diff(counts) < 0) or counts[0] < 0 or counts[-1] > self.size:
            raise ValueError("counts_at must return non-decreasing counts between 0 and size")
        return dict(zip(thresholds.tolist(), counts.tolist(), strict=True))


class ChunkCounts:
    """Scores read in chunks as often as needed: ``open_chunks()`` returns a fresh iterator of flat arrays."""

    def __init__(self, open_chunks: Callable[[], Iterable[Any]]) -> None:
        self._open = open_chunks
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first reading, whatever it was for."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return _not_empty(self._size or 0)

    def counts_at(self, thresholds: Edges) -> Counts:
        """#{scores <= t} for each threshold, in one reading."""
        histogram = Histogram(thresholds)
        for chunk in self._open():
            histogram.add(check_scores(chunk))
        if self._size is None:
            self._size = histogram.size
        return histogram.counts()


def _not_empty(size: int) -> int:
    if size == 0:
        raise ValueError("scores are empty: at least one is needed")
    return size


class Bins:
    """The bins (-inf, t_0], (t_0, t_1], ..., (t_last, inf] of increasing thresholds, found by a guess.

    Thresholds of a search are (nearly) evenly spaced, so one product tells a score's bin or the one before it, and one
    comparison with the bin's exact end which. That this is so for every score follows from the thresholds alone: the
    guess never falls as the score grows (subtraction, product and rounding are monotone), so it is within one in a
    whole bin if it is at the bin's two ends. Where it is not, thresholds may crowd at their ends (``Cells``); and where
    nothing is known about them (a range a few floats wide) scores are looked up.
    """

    def __init__(self, thresholds: Edges) -> None:
        self._thresholds = thresholds
        self._ends = np.append(thresholds, np.inf)
        self._origin, self._rate = 0.0, 0.0
        self._guessing = thresholds.size > 1 and self._can_guess()
        self._cells = None if self._guessing else Cells.of_thresholds(thresholds)

    def _can_guess(self) -> bool:
        with np.errstate(all="ignore"):
            width = (self._thresholds[-1] - self._thresholds[0]) / (self._thresholds.size - 1)
            # half a bin to the left: roundings at the ends cannot make the guess too small or too large
            self._origin, self._rate = float(self._thresholds[0] - width / 2), float(1 / width)
        if not (math.isfinite(self._origin) and math.isfinite(self._rate) and self._rate > 0):
            return False
        bins = np.arange(self._thresholds.size)
        just_above = np.nextafter(self._thresholds, np.inf)
        return bool(np.all(self._guess(self._thresholds) <= bins) and np.all(self._guess(just_above) >= bins))

    def _guess(self, scores: Edges) -> NDArray[np.intp]:
        """The bin or the one before it; the last one for what is no number."""
        with np.errstate(over="ignore"):
            guess = scores - self._origin
            guess *= self._rate
        np.fmin(guess, self._thresholds.size, out=guess)
        np.maximum(guess, 0, out=guess)
        return guess.astype(np.intp)

    def of(self, scores: Edges) -> NDArray[np.intp]:
        """The bin of each score, in any order of the scores."""
        if self._cells is not None:
            scores = np.fmin(scores, self._cells.beyond)  # also what is no number
            bins = self._cells.first[self._cells.of(scores)]
            for _ in range(self._cells.most):
                bins += scores > self._ends[bins]
            return bins
        if not self._guessing:
            return np.searchsorted(self._thresholds, np.sort(scores), side="left")
        bins = self._guess(scores)
        bins += scores > self._ends[bins]
        return bins


@dataclass(frozen=True)
class Cells:
    """Cells with few thresholds each, where thresholds crowd at one end or at both: equal steps of a distance's bits.

    The bits of a positive float grow with it, about as its logarithm. A score's cell follows from its distance to the
    nearer end of the thresholds and never falls as the score grows (subtraction and rounding are monotone), so those of
    lower cells (``first`` counts them) lie below the score, and only the up to ``most`` in its own are compared.
    """

    ends: tuple[float, float]
    knees: tuple[float, float]
    shift: int
    first: NDArray[np.intp]
    most: int

    @classmethod
    def of_thresholds(cls, thresholds: Edges) -> "Cells | None":
        """None where there are too many cells for a table, or thresholds in one of them."""
        if thresholds.size < _FEWEST_IN_CELLS or not np.isfinite(thresholds[[0, -1]]).all():
            return None
        low, second, before, high = thresholds[[0, 1, -2, -1]].tolist()  # Python's floats overflow without a warning
        ends, knees = (low, high), (second - low, high - before)
        if not (min(knees) > 0 and math.isfinite(ends[1] - ends[0] + max(knees))):
            return None
        empty = cls(ends, knees, 55 - int(thresholds.size).bit_length(), np.empty(0, dtype=np.intp), 0)
        cells = empty.of(thresholds)
        if cells[-1] > _MOST_CELLS or (most := int(np.bincount(cells).max())) > _MOST_IN_A_CELL:
            return None
        return replace(empty, first=np.searchsorted(cells, np.arange(cells[-1] + 1)), most=most)

    @property
    def beyond(self) -> float:
        """A score above all thresholds."""
        return math.nextafter(self.ends[1], math.inf)

    def of(self, scores: Edges) -> NDArray[np.int64]:
        """The cell of each score; those beyond the ends are in the outermost ones."""
        (low, high), (inner, outer) = self.ends, self.knees
        inside = np.clip(scores, low, high)
        middle = np.array([low / 2 + high / 2])
        bits = [
            ((distance + knee).view(np.int64) >> self.shift)
            for distance, knee in ((inside - low, inner), (middle - low, inner), (high - inside, outer))
        ]
        least = np.array([inner]).view(np.int64) >> self.shift
        most = (high - middle + outer).view(np.int64) >> self.shift
        return np.asarray(np.where(inside <= middle, bits[0], bits[1] + 1 + most - bits[2]) - least)


class Histogram:
    """How many scores lie in each bin of some increasing thresholds; scores come in parts of any real dtype."""

    def __init__(self, thresholds: Edges) -> None:
        self.size = 0
        self._thresholds = thresholds
        self._bins = Bins(thresholds)
        self._in_dtype: dict[np.dtype[Any], NDArray[Any]] = {}
        self._totals = np.zeros(thresholds.size + 1, dtype=np.int64)
        # bins wait here until there are enough of them to make a pass over all totals worth it
        self._waiting = np.empty(max(_BLOCK, self._totals.size), dtype=np.intp)
        self._n_waiting = 0

    def add(self, scores: NDArray[Any]) -> None:
        """Count these scores too."""
        self.size += scores.size
        if not self._thresholds.size:
            return
        fits = scores.dtype.itemsize < 8 or (scores.dtype.kind == "f" and scores.dtype.itemsize == 8)
        for i in range(0, scores.size, _BLOCK):
            block = scores[i : i + _BLOCK]
            if fits:
                self._add_doubles(block.astype(np.float64, copy=False))
            else:
                self._add_sorted(np.sort(block))

    def counts(self) -> Counts:
        """#{scores <= t} for each threshold."""
        self._flush()
        return np.cumsum(self._totals)[:-1]

    def _add_doubles(self, block: Edges) -> None:
        below, up_to_last = block <= self._thresholds[0], block <= self._thresholds[-1]
        n_below, n_up_to_last = int(np.count_nonzero(below)), int(np.count_nonzero(up_to_last))
        if 2 * (n_up_to_last - n_below) > block.size:
            self._wait(self._bins.of(block))
            return
        # few lie between the thresholds: only they have to be looked at, and those above the last count nowhere
        self._totals[0] += n_below
        self._wait(self._bins.of(block[up_to_last & ~below]))

    def _add_sorted(self, block: NDArray[Any]) -> None:
        """64-bit integers and long doubles do not fit into a float64: the thresholds are rounded down to them."""
        bounds = self._rounded(block.dtype)
        self._wait(self._totals.size - 1 - bounds.size + np.searchsorted(bounds, block, side="left"))

    def _rounded(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The thresholds in ``dtype``, without those that are below its smallest number: no score is so small."""
        if dtype not in self._in_dtype:
            rounded = [round_down(t, dtype) for t in self._thresholds.tolist()]
            self._in_dtype[dtype] = np.array(rounded[rounded.count(-math.inf) :], dtype=dtype)
        return self._in_dtype[dtype]

    def _wait(self, bins: NDArray[np.intp]) -> None:
        if self._n_waiting + bins.size > self._waiting.size:
            self._flush()
        self._waiting[self._n_waiting : self._n_waiting + bins.size] = bins
        self._n_waiting += bins.size

    def _flush(self) -> None:
        self._totals += np.bincount(self._waiting[: self._n_waiting], minlength=self._totals.size)
        self._n_waiting = 0


class StreamCounts:
    """Scores that can be read only once: an exact histogram over every bracket the search can reach.

    Bins are closed on the right and their ends are the search's own midpoints, so every later count is a partial sum.
    """

    def __init__(
        self, chunks: Iterator[Any], score_range: tuple[float, float], steps: int, *, halving: Halving = EVEN
    ) -> None:
        if steps > _STREAM_LEVELS:
            raise ValueError(
                f"steps must be at most {_STREAM_LEVELS} for scores that can be read only once, got {steps}; "
                "pass a function that returns the chunks anew, or fewer steps"
            )
        self._halving = halving
        self._edges = midpoint_tree(*score_range, steps, halving)[1:-1]
        histogram = Histogram(self._edges)
        for chunk in chunks:
            histogram.add(check_scores(chunk))
        self.size = _not_empty(histogram.size)
        self._counts = histogram.counts()

    def count(self, left: float, right: float, steps_left: int) -> int:  # noqa: ARG002 (the interface's question)
        """#{scores <= middle of the bracket}."""
        # equal midpoints (a range too narrow for its steps) all count alike: the last one sees every bin up to it
        index = int(np.searchsorted(self._edges, self._halving.middle(left, right), side="right")) - 1
        return int(self._counts[index])


class DaskCounts:
    """A Dask array of scores: the partitions count where they are, and only sums of counts come back."""

    def __init__(self, array: DaskArray) -> None:
        if array.ndim != 1:
            raise ValueError(f"scores must be one-dimensional, got {array.ndim} dimensions")
        check_scores(np.empty(0, dtype=array.dtype))
        self._parts = list(array.to_delayed().ravel())
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first round, whatever it was for."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return _not_empty(self._size or 0)

    def counts_at(self, thresholds: Edges) -> Counts:
        """#{scores <= t} for each threshold, in one round."""
        import dask

        looks = dask.compute(*(dask.delayed(look_at)(part, thresholds) for part in self._parts))
        if self._size is None:
            self._size = sum(size for size, _ in looks)
        return np.asarray(np.sum([counts for _, counts in looks], axis=0, dtype=np.int64))


def look_at(part: NDArray[Any], thresholds: Edges) -> tuple[int, Counts]:
    """What travels from a partition: its size and its counts."""
    histogram = Histogram(thresholds)
    histogram.add(part)
    return histogram.size, histogram.counts()
