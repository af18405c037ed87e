"""Where the counts C(t) = #{scores <= t} come from.

A binary search over a public range asks for the count at one midpoint after the other. Reading the scores once for
each question is slow, so each source answers in its own way:

``ArrayCounts``    scores in memory: a few counting passes, then passes over the few scores left in the bracket;
``ChunkCounts``    scores that are read in chunks, again and again: many midpoints are answered in one reading;
``StreamCounts``   scores that can be read only once: one exact dyadic histogram of the whole range;
``DaskCounts``     a Dask array: partitions count, only counts travel;
anything else with ``size`` and ``counts_at(thresholds)``: another process, a database, a federation.

All counts are exact, ties and float32 included: intervals are closed on the right, midpoints come from the search's
own (left + right) / 2, and a threshold is rounded *down* to the scores' precision before it is compared. A score that
is not a number lies above every threshold: refusing it would tell that one record made the score overflow.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._checks import check_count, check_scores

__all__ = [
    "ArrayCounts",
    "ChunkCounts",
    "CountSource",
    "Counter",
    "DaskCounts",
    "StreamCounts",
    "as_counter",
    "known_size",
]

Edges = NDArray[np.float64]
Counts = NDArray[np.int64]

# Scores compared at once: the block and its comparison mask stay in the cache.
_BLOCK = 1 << 16
# The bracket is copied out once it holds less than this share of the scores.
_EXTRACT_SHARE = 16
# Passes that may leave the bracket full before its ends are looked at.
_PATIENCE = 7
# Levels of the midpoint tree answered by one reading of a source: 2^10 - 1 thresholds.
_LEVELS_A_READING = 10
# Deepest histogram for a stream: 2^22 counters are 32 MB.
_STREAM_LEVELS = 22


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

    size: int

    def count(self, left: float, right: float, steps_left: int) -> int:
        """#{scores <= (left + right) / 2}; ``steps_left`` questions, this one included, remain."""
        ...


def as_counter(scores: Any, score_range: tuple[float, float], steps: int, *, allow_empty: bool = False) -> Counter:
    """The counter for whatever the caller has: an array, chunks, a stream, a Dask array, or a count source.

    ``allow_empty`` is for parts of random size: refusing an empty one would tell that it is empty.
    """
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return LookaheadCounter(scores)
    if isinstance(scores, DaskArray):
        return LookaheadCounter(DaskCounts(scores))
    if callable(scores):
        return LookaheadCounter(ChunkCounts(scores))
    if isinstance(scores, Iterator):
        return StreamCounts(scores, score_range, steps)
    return ArrayCounts(scores, allow_empty=allow_empty)


def known_size(scores: Any) -> int | None:
    """The number of scores, where it can be known without reading them; None for chunks and streams."""
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return scores.size
    if isinstance(scores, DaskArray):
        return None if math.isnan(scores.size) else int(scores.size)
    if callable(scores) or isinstance(scores, Iterator):
        return None
    return check_scores(scores).size


def midpoint_tree(left: float, right: float, levels: int) -> Edges:
    """The 2^levels + 1 ends of all brackets that ``levels`` halvings can reach, in order.

    Computed by the search's own recursion and not by ``linspace``, which rounds differently.
    """
    edges = np.array([left, right])
    for _ in range(levels):
        finer = np.empty(2 * edges.size - 1)
        finer[0::2] = edges
        finer[1::2] = midpoint(edges[:-1], edges[1:])
        edges = finer
    return edges


def midpoint(left: Any, right: Any) -> Any:
    """The middle of a bracket: one formula for the search and for every counter, so that they agree to the last bit."""
    return (left + right) / 2


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

    def __init__(self, scores: Any, *, allow_empty: bool = False) -> None:
        self._scores = check_scores(scores)
        if self._scores.size == 0 and not allow_empty:
            raise ValueError("scores are empty: at least one is needed")
        self.size = int(self._scores.size)
        # scores left out of the working copy because they lie below every later question
        self._base = 0
        # the ends of the scores that can still be met, and the counts below and from them on
        self._smallest, self._largest = _ends(self._scores)
        self._outside = 0, self.size
        self._known: dict[float, int] = {}
        self._passes = 0

    def count(self, left: float, right: float, steps_left: int) -> int:
        """#{scores <= (left + right) / 2}."""
        threshold = midpoint(left, right)
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
    """Answers a search from a source where every reading is dear: each reading settles the next ten steps."""

    def __init__(self, source: CountSource) -> None:
        self._source = source
        self.size = check_count("scores.size", source.size)
        self._known: dict[float, int] = {}

    def count(self, left: float, right: float, steps_left: int) -> int:
        """#{scores <= (left + right) / 2}."""
        threshold = float(midpoint(left, right))
        if threshold not in self._known:
            inner = np.unique(midpoint_tree(left, right, min(steps_left, _LEVELS_A_READING))[1:-1])
            counts = np.asarray(self._source.counts_at(inner))
            if counts.shape != inner.shape or not np.issubdtype(counts.dtype, np.integer):
                raise TypeError("counts_at must return one integer for each threshold")
            if np.any(np.diff(counts) < 0) or counts[0] < 0 or counts[-1] > self.size:
                raise ValueError("counts_at must return non-decreasing counts between 0 and size")
            self._known = dict(zip(inner.tolist(), counts.tolist(), strict=True))
        return self._known[threshold]


class ChunkCounts:
    """Scores read in chunks as often as needed: ``open_chunks()`` returns a fresh iterator of flat arrays."""

    def __init__(self, open_chunks: Callable[[], Iterable[Any]]) -> None:
        self._open = open_chunks
        self._size: int | None = None

    @property
    def size(self) -> int:
        """The number of scores, from one reading that also checks them."""
        if self._size is None:
            total = sum(check_scores(chunk).size for chunk in self._open())
            if total == 0:
                raise ValueError("scores are empty: at least one is needed")
            self._size = total
        return self._size

    def counts_at(self, thresholds: Edges) -> Counts:
        """#{scores <= t} for each threshold, in one reading."""
        total = np.zeros(thresholds.size, dtype=np.int64)
        for chunk in self._open():
            total += count_at_most(check_scores(chunk), thresholds)
        return total


def count_at_most(scores: NDArray[Any], thresholds: Edges) -> Counts:
    """#{scores <= t} for increasing thresholds: one sort of the scores between them, then binary searches."""
    counts = np.zeros(thresholds.size, dtype=np.int64)
    bounds, first = thresholds, 0
    if scores.dtype != np.float64:
        rounded = [round_down(t, scores.dtype) for t in thresholds.tolist()]
        first = rounded.count(-math.inf)  # no score is so small
        bounds = np.array(rounded[first:], dtype=scores.dtype)
    if bounds.size:
        above = ~(scores <= bounds[0])  # not '>': what is no number lies above
        between = np.sort(scores[above & (scores <= bounds[-1])])
        counts[first:] = scores.size - np.count_nonzero(above) + np.searchsorted(between, bounds, side="right")
    return counts


class StreamCounts:
    """Scores that can be read only once: an exact histogram over every bracket the search can reach.

    Bins are closed on the right and their ends are the search's own midpoints, so every later count is a partial sum.
    """

    def __init__(self, chunks: Iterator[Any], score_range: tuple[float, float], steps: int) -> None:
        if steps > _STREAM_LEVELS:
            raise ValueError(
                f"steps must be at most {_STREAM_LEVELS} for scores that can be read only once, got {steps}; "
                "pass a function that returns the chunks anew, or fewer steps"
            )
        self._edges = midpoint_tree(*score_range, steps)[1:-1]
        histogram = np.zeros(self._edges.size + 1, dtype=np.int64)
        self.size = 0
        for chunk in chunks:
            array = check_scores(chunk)
            histogram += self._bin_counts(array)
            self.size += array.size
        if self.size == 0:
            raise ValueError("scores are empty: at least one is needed")
        self._counts = np.cumsum(histogram)

    def _bin_counts(self, scores: NDArray[Any]) -> Counts:
        if scores.dtype.itemsize < 8 or scores.dtype == np.float64:
            bins = np.searchsorted(self._edges, np.sort(scores).astype(np.float64), side="left")
            return np.bincount(bins, minlength=self._edges.size + 1)
        # 64-bit integers and long doubles do not fit into a float64: the edges are rounded down to them instead
        return np.diff(count_at_most(scores, self._edges), prepend=0, append=scores.size)

    def count(self, left: float, right: float, steps_left: int) -> int:  # noqa: ARG002 (the interface's question)
        """#{scores <= (left + right) / 2}."""
        # equal midpoints (a range too narrow for its steps) all count alike: the last one sees every bin up to it
        index = int(np.searchsorted(self._edges, midpoint(left, right), side="right")) - 1
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
        """The number of scores, from one round."""
        if self._size is None:
            self._size = int(sum(self._map(np.size)))
            if self._size == 0:
                raise ValueError("scores are empty: at least one is needed")
        return self._size

    def counts_at(self, thresholds: Edges) -> Counts:
        """#{scores <= t} for each threshold, in one round."""
        return np.asarray(np.sum(self._map(count_at_most, thresholds), axis=0, dtype=np.int64))

    def _map(self, function: Callable[..., Any], *extra: Any) -> list[Any]:
        import dask

        return list(dask.compute(*(dask.delayed(function)(part, *extra) for part in self._parts)))
