"""Exact counts C(t) = #{scores <= t} from any source of scores.

A binary search needs the count at one midpoint after the other. Reading all scores for each count is slow, so each
source has its own method:

``ArrayCounts``    scores in memory: a few counting passes, then passes over the few scores left in the bracket;
``ChunkCounts``    scores that can be read in chunks repeatedly: one reading counts at many midpoints;
``StreamCounts``   scores that can be read only once: one exact dyadic histogram of the whole range;
``DaskCounts``     a Dask array: partitions count, and only counts are transferred;
any object with ``size`` and ``counts_at(thresholds)``: another process, a database, a federation.

All counts are exact, with ties and float32 too: intervals are closed on the right, midpoints come from the ``Halving``
of the search, and a threshold is rounded *down* to the precision of the scores before the comparison (or both are
compared as float64, if that is exact). NaN lies above every threshold: an error would reveal that some record's score
overflowed.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_scores, real_number
from dpscp.threshold.loss_sums import LossSums

Edges = NDArray[np.float64]
Counts = NDArray[np.int64]

# Scores per block: the block and its results stay in the processor cache.
_BLOCK = 1 << 16
# The bracket is copied out once it holds less than this share of the scores.
_EXTRACT_SHARE = 16
# Passes without a smaller bracket before the ends of its scores are computed.
_PATIENCE = 7
# Levels of the midpoint tree in one reading of a source: 2^11 - 1 thresholds. The default number of steps is at most
# 22, so two readings are enough for it.
_LEVELS_A_READING = 11
# Limits of a table of thresholds: its cells, thresholds in one cell, and the smallest number worth a table.
_MOST_CELLS, _MOST_IN_A_CELL, _FEWEST_IN_CELLS = 1 << 20, 4, 8
# Deepest histogram for a stream: 2^22 counters are 32 MB.
_STREAM_LEVELS = 22
# A fine grid is nearly even within this part of the range around its finest point.
_KNEE, _NARROW = 1e-4, 1e-300


@runtime_checkable
class CountSource(Protocol):
    """Any object that counts scores: its size, and counts at thresholds."""

    @property
    def size(self) -> int:
        """The number of scores."""

    def counts_at(self, thresholds: Edges) -> Any:
        """Return #{scores <= t} for each of the increasing ``thresholds``.

        Parameters
        ----------
        thresholds : ndarray of float, shape (k,)

        Returns
        -------
        array of int, shape (k,)
        """
        ...


@runtime_checkable
class DaskArray(Protocol):
    """The part of a Dask array that is used, so that dask is not imported."""

    ndim: int
    dtype: np.dtype[Any]
    dask: Any

    @property
    def size(self) -> float:
        """The number of scores; NaN if the lengths of the chunks are unknown."""

    def to_delayed(self) -> Any:
        """Return the chunks."""


class Counter(Protocol):
    """Counts for one search."""

    @property
    def size(self) -> int:
        """The number of scores."""

    def count(self, left: float, right: float, steps_left: int) -> int | Fraction:
        """Return #{scores <= middle}; ``steps_left`` counts, this one included, remain."""


@dataclass(frozen=True)
class Halving:
    """The middle of a bracket: one formula for the search and every counter.

    All of them get the same float. Halves are even in the value itself, or in a coordinate that is finest near one or
    two ``points`` (p, or p < q):

        sign(t - p) log(1 + |t - p| / knee)    or    log(t - p + knee) - log(q - t + knee).

    Any increasing public coordinate keeps every promise. These coordinates separate thresholds by ratios. So residuals
    in a range that is 100 times too wide, and probabilities of a nearly certain model, cost no more than others. Only
    sums, products, quotients and roots are used: they are rounded the same way for one number and for arrays.

    Theory: Result F
    """

    points: tuple[float, ...] = ()
    knee: float = 0.0

    @classmethod
    def fine(cls, near: float | tuple[float, float] | None, score_range: tuple[float, float]) -> "Halving":
        """Return halves that are finest near a point, or near both ends, of the range.

        They are even for None, and if the range has too few floats.
        """
        low, high = score_range
        points = () if near is None else near if isinstance(near, tuple) else (real_number("fine_near", near),)
        if points != score_range and not (len(points) < 2 and all(low <= point <= high for point in points)):
            raise ValueError(
                f"fine_near must be a value in score_range ({low:g} to {high:g}), both of its ends, or None for even "
                f"cells; got {near}"
            )
        return cls(points, _KNEE * (high - low)) if points and high - low > _NARROW else EVEN

    def middle(self, left: Any, right: Any) -> Any:
        """Return the middle of a bracket, or of many."""
        if not self.points:
            return (left + right) / 2
        found = self._near_one(left, right) if len(self.points) == 1 else self._near_ends(left, right)
        return np.clip(found, left, right)

    def _near_one(self, left: Any, right: Any) -> Any:
        (point,), knee = self.points, self.knee
        a, b = np.abs(left - point) + knee, np.abs(right - point) + knee
        above, below = np.greater_equal(left, point), np.less_equal(right, point)
        # on one side: the geometric mean of the distances; across the point: the rest of the longer side
        away = np.where(above | below, np.sqrt(a) * np.sqrt(b), knee * np.sqrt(np.maximum(a, b) / np.minimum(a, b)))
        return point + np.where(above | (~below & (b >= a)), 1.0, -1.0) * (away - knee)

    def _near_ends(self, left: Any, right: Any) -> Any:
        (low, high), knee = self.points, self.knee
        # the geometric mean of (t - low) / (high - t) at the two ends, and the t that has it
        odds = [np.sqrt((end - low + knee) / (high - end + knee)) for end in (left, right)]
        ratio = odds[0] * odds[1]
        return low + (high - low + knee) * (ratio / (1 + ratio)) - knee / (1 + ratio)


EVEN = Halving()


def as_counter(scores: Any, score_range: tuple[float, float], steps: int, *, halving: Halving = EVEN) -> Counter:
    """Return the counter for an array, chunks, a stream, a Dask array or a source.

    No scores are valid: an error would reveal that the only one is missing.
    """
    if isinstance(scores, LossSums):
        return scores
    if isinstance(scores, np.ndarray):  # first: a protocol takes longer to compare with than an array to count
        return ArrayCounts(scores, halving=halving)
    if isinstance(scores, CountSource):
        return LookaheadCounter(scores, score_range, steps, halving=halving)
    if isinstance(scores, DaskArray):
        return LookaheadCounter(DaskCounts(scores), score_range, steps, halving=halving)
    if callable(scores):
        return LookaheadCounter(ChunkCounts(scores), score_range, steps, halving=halving)
    if isinstance(scores, Iterator):
        return StreamCounts(scores, score_range, steps, halving=halving)
    return ArrayCounts(scores, halving=halving)


def known_size(scores: Any) -> int | None:
    """Return the number of scores if it is known without reading them, or None."""
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return scores.size
    if isinstance(scores, DaskArray):
        return None if math.isnan(scores.size) else int(scores.size)
    if callable(scores) or isinstance(scores, Iterator):
        return None
    return check_scores(scores).size


def midpoint_tree(left: float, right: float, levels: int, halving: Halving = EVEN) -> Edges:
    """Return the 2^levels + 1 ends of all brackets of ``levels`` halvings, sorted.

    They come from the recursion of the search, because ``linspace`` rounds differently.
    """
    edges = np.array([left, right])
    for _ in range(levels):
        finer = np.empty(2 * edges.size - 1)
        finer[0::2] = edges
        finer[1::2] = halving.middle(edges[:-1], edges[1:])
        edges = finer
    return edges


def round_down(threshold: float, dtype: np.dtype[Any]) -> Any:
    """Return the largest number of ``dtype`` that is at most ``threshold``.

    Comparing with it counts the same scores. NumPy would round the threshold to the nearest number, which may lie above
    a score that is not counted. It would also round large integer scores to floats. The result is minus infinity if
    ``dtype`` has no number that small.
    """
    if dtype.kind in "iu" and math.isfinite(threshold):
        whole, limits = math.floor(threshold), np.iinfo(dtype)
        return dtype.type(min(whole, limits.max)) if whole >= limits.min else -math.inf
    if dtype.kind != "f" or dtype.itemsize >= 8:
        return threshold
    with np.errstate(over="ignore", under="ignore"):
        rounded = dtype.type(threshold)
        if float(rounded) > threshold:
            rounded = np.nextafter(rounded, dtype.type(-np.inf))
    return rounded


def _ends(array: NDArray[Any]) -> tuple[Any, Any]:
    """Return the smallest and the largest score, exactly; NaN counts as infinite."""
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
    """Scores in memory (any float or integer dtype, any stride).

    Each pass halves the bracket. Once it contains under 1/16 of the scores, they are copied, and the remaining counts
    use the copy in the same way. If ties keep a bracket full, counts outside its scores need no pass. Extra memory: a
    few blocks and 1/16 of the scores.
    """

    def __init__(self, scores: Any, *, halving: Halving = EVEN) -> None:
        self._scores, self._halving = check_scores(scores), halving
        self.size = int(self._scores.size)
        # scores that are not in the working copy because they lie below every later threshold
        self._base = 0
        # the ends of the scores in the bracket, and the counts below and above them
        self._smallest, self._largest = _ends(self._scores)
        self._outside = 0, self.size
        self._known: dict[float, int] = {}
        self._passes = 0

    def count(self, left: float, right: float, steps_left: int) -> int:
        """Return #{scores <= middle of the bracket}."""
        threshold = float(self._halving.middle(left, right))
        if self._smallest <= threshold < self._largest and steps_left > 1:
            self._narrow(left, right)
        if self._smallest <= threshold < self._largest:
            self._known[threshold] = self._base + self._pass(threshold)
        else:  # no pass is needed in a wide public range or in a bracket of ties
            below, from_there = self._outside
            self._known[threshold] = below if threshold < self._smallest else from_there
        return self._known[threshold]

    def _pass(self, threshold: float) -> int:
        self._passes += 1
        bound, scores = round_down(threshold, self._scores.dtype), self._scores
        return sum(int(np.count_nonzero(scores[i : i + _BLOCK] <= bound)) for i in range(0, scores.size, _BLOCK))

    def _narrow(self, left: float, right: float) -> None:
        """Copy a bracket with few scores; otherwise, after some passes, find its ends."""
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
        """Yield the scores of (left, right] by blocks; None leaves that side open."""
        dtype = self._scores.dtype
        for i in range(0, self._scores.size, _BLOCK):
            block = self._scores[i : i + _BLOCK]
            inside = np.ones(block.size, dtype=bool) if right is None else block <= round_down(right, dtype)
            if left is not None:
                inside &= ~(block <= round_down(left, dtype))  # not '>': NaN lies above
            yield block[inside.nonzero()[0]]  # few of many: faster than by the mask


class LookaheadCounter:
    """Counts from a source that is expensive to read: 11 steps per reading.

    The first counts are taken before the size is needed, so that a source can find both in one reading.
    """

    def __init__(
        self,
        source: CountSource,
        score_range: tuple[float, float],
        steps: int,
        *,
        halving: Halving = EVEN,
    ) -> None:
        self._source, self._halving = source, halving
        looked = self._look(*score_range, steps)
        self.size = check_count("scores.size", source.size, minimum=0)
        self._known = self._check_counts(*looked)

    def count(self, left: float, right: float, steps_left: int) -> int:
        """Return #{scores <= middle of the bracket}."""
        threshold = float(self._halving.middle(left, right))
        if threshold not in self._known:
            self._known = self._check_counts(*self._look(left, right, steps_left))
        return self._known[threshold]

    def _look(self, left: float, right: float, steps: int) -> tuple[Edges, Any]:
        inner = np.unique(midpoint_tree(left, right, min(steps, _LEVELS_A_READING), self._halving)[1:-1])
        return inner, np.asarray(self._source.counts_at(inner))

    def _check_counts(self, thresholds: Edges, counts: Any) -> dict[float, int]:
        if counts.shape != thresholds.shape or not np.issubdtype(counts.dtype, np.integer):
            raise TypeError("counts_at must return one integer for each threshold")
        if np.any(np.diff(counts) < 0) or counts[0] < 0 or counts[-1] > self.size:
            raise ValueError("counts_at must return non-decreasing counts between 0 and size")
        return dict(zip(thresholds.tolist(), counts.tolist(), strict=True))


class ChunkCounts:
    """Scores that can be read repeatedly in chunks.

    ``open_chunks()`` returns a new iterator of one-dimensional arrays.
    """

    def __init__(self, open_chunks: Callable[[], Iterable[Any]]) -> None:
        self._open = open_chunks
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first reading."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return self._size or 0

    def counts_at(self, thresholds: Edges) -> Counts:
        """Return #{scores <= t} for each threshold, in one reading."""
        histogram = Histogram(thresholds)
        for chunk in self._open():
            histogram.add(check_scores(chunk))
        if self._size is None:
            self._size = histogram.size
        return histogram.counts()


class Bins:
    """The bins (-inf, t_0], (t_0, t_1], ..., (t_last, inf] of thresholds.

    Thresholds of a search are nearly evenly spaced. So one product gives the bin of a score or the one before it, and
    one comparison with the exact end of the bin decides. That this holds for every score follows from the thresholds
    alone. The guess never falls as the score grows (subtraction, product and rounding are monotone), so it is within
    one in a whole bin if it is at the two ends of the bin. Otherwise ``Cells`` handles thresholds that are dense at
    their ends. If neither applies (a range a few floats wide), scores are searched.
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
        """Return the bin or the one before it; the last bin for NaN."""
        with np.errstate(over="ignore"):
            guess = scores - self._origin
            guess *= self._rate
        np.fmin(guess, self._thresholds.size, out=guess)
        np.maximum(guess, 0, out=guess)
        return guess.astype(np.intp)

    def of(self, scores: Edges) -> NDArray[np.intp]:
        """Return the bin of each score, in any order of the scores."""
        if self._cells is not None:
            scores = np.fmin(scores, self._cells.beyond)  # NaN too
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
    """Cells with few thresholds each, for thresholds that are dense at the ends.

    Cells are equal steps of the bits of a distance. The bits of a positive float grow about as its logarithm. The cell
    of a score follows from its distance to the nearer end of the thresholds. It never falls as the score grows
    (subtraction and rounding are monotone). So thresholds of lower cells (``first`` counts them) lie below the score,
    and only the up to ``most`` thresholds in its own cell are compared.
    """

    ends: tuple[float, float]
    knees: tuple[float, float]
    shift: int
    first: NDArray[np.intp]
    most: int

    @classmethod
    def of_thresholds(cls, thresholds: Edges) -> "Cells | None":
        """Return the cells, or None if there are too many for a table."""
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
        """Return the cell of each score; those beyond the ends are in the outermost."""
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
    """Counts of scores in the bins of increasing thresholds, for any real dtype."""

    def __init__(self, thresholds: Edges) -> None:
        self.size = 0
        self._thresholds = thresholds
        self._bins = Bins(thresholds)
        self._in_dtype: dict[np.dtype[Any], NDArray[Any]] = {}
        self._totals = np.zeros(thresholds.size + 1, dtype=np.int64)
        # bins are collected here, because each update passes over all totals
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
        """Return #{scores <= t} for each threshold."""
        self._flush()
        return np.cumsum(self._totals)[:-1]

    def _add_doubles(self, block: Edges) -> None:
        below, up_to_last = block <= self._thresholds[0], block <= self._thresholds[-1]
        n_below, n_up_to_last = int(np.count_nonzero(below)), int(np.count_nonzero(up_to_last))
        if 2 * (n_up_to_last - n_below) > block.size:
            self._wait(self._bins.of(block))
            return
        # few scores lie between the thresholds: only they need bins, and those above the last are not counted
        self._totals[0] += n_below
        self._wait(self._bins.of(block[up_to_last & ~below]))

    def _add_sorted(self, block: NDArray[Any]) -> None:
        """Count scores that do not fit into a float64; thresholds are rounded down."""
        bounds = self._thresholds_in(block.dtype)
        self._wait(self._totals.size - 1 - bounds.size + np.searchsorted(bounds, block, side="left"))

    def _thresholds_in(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the thresholds in ``dtype``, without those below its smallest number."""
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
    """Scores that can be read only once: an exact histogram of all brackets.

    Bins are closed on the right and their ends are the midpoints of the search, so every later count is a partial sum.
    """

    def __init__(
        self, chunks: Iterator[Any], score_range: tuple[float, float], steps: int, *, halving: Halving = EVEN
    ) -> None:
        if steps > _STREAM_LEVELS:
            raise ValueError(
                f"steps must be at most {_STREAM_LEVELS} for scores that can be read only once, got {steps}; "
                "pass a function that returns a new iterator of chunks, or use fewer steps"
            )
        self._halving = halving
        self._edges = midpoint_tree(*score_range, steps, halving)[1:-1]
        histogram = Histogram(self._edges)
        for chunk in chunks:
            histogram.add(check_scores(chunk))
        self.size = histogram.size
        self._counts = histogram.counts()

    def count(self, left: float, right: float, steps_left: int) -> int:  # noqa: ARG002 (part of the interface)
        """Return #{scores <= middle of the bracket}."""
        # equal midpoints (a range too narrow for its steps) have equal counts: the last one includes all bins
        index = int(np.searchsorted(self._edges, self._halving.middle(left, right), side="right")) - 1
        return int(self._counts[index])


class DaskCounts:
    """A Dask array of scores: partitions count, and only sums are returned."""

    def __init__(self, array: DaskArray) -> None:
        if array.ndim != 1:
            raise ValueError(f"scores must be one-dimensional, got {array.ndim} dimensions")
        check_scores(np.empty(0, dtype=array.dtype))
        self._parts = list(array.to_delayed().ravel())
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from the first computation."""
        if self._size is None:
            self.counts_at(np.empty(0))
        return self._size or 0

    def counts_at(self, thresholds: Edges) -> Counts:
        """Return #{scores <= t} for each threshold, in one computation."""
        import dask

        looks = dask.compute(*(dask.delayed(look_at)(part, thresholds) for part in self._parts))
        if self._size is None:
            self._size = sum(size for size, _ in looks)
        return np.asarray(np.sum([counts for _, counts in looks], axis=0, dtype=np.int64))


def look_at(part: NDArray[Any], thresholds: Edges) -> tuple[int, Counts]:
    """Return the size and the counts of one partition."""
    histogram = Histogram(thresholds)
    histogram.add(part)
    return histogram.size, histogram.counts()
