"""Exact counts C(t) = #{scores <= t} from any source of scores.

A binary search needs the count at one midpoint after the other. Reading all scores for each count is slow, so each
source has its own method:

``ArrayCounts``       scores in memory: a few counting passes, then lookups in the sorted scores of the bracket;
``LookaheadCounter``  scores that are read in parts (chunks, a Dask array, a ``CountSource``): one reading counts at all
                      midpoints of the next 11 steps; a stream is read once, at all midpoints of the search;
``LossSums``          sums of losses in the place of counts.

All counts are exact, with ties and float32 too: intervals are closed on the right, midpoints come from the ``Halving``
of the search, and a threshold is rounded *down* to the precision of the scores before the comparison (or both are
compared as float64, if that is exact). NaN lies above every threshold: an error would reveal that some record's score
overflowed.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_count, check_scores, real_number

Edges = NDArray[np.float64]
Counts = NDArray[np.int64]
# From increasing thresholds to the count at each of them and, found by the same reading, the number of scores.
Reading = Callable[[Edges], tuple[Any, int]]

# Scores per block: the block and its results stay in the processor cache.
_BLOCK = 1 << 16
# The scores of a bracket are sorted once it holds less than this share of all, or after so many passes.
_EXTRACT_SHARE, _PATIENCE = 16, 7
# Levels of the midpoint tree in one reading of a source: 2^11 - 1 thresholds. The default number of steps is at most
# 22, so two readings are enough for it.
_LEVELS_A_READING = 11
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


def is_dask_array(scores: Any) -> bool:
    """Return whether scores are a Dask array; dask is not imported."""
    return all(hasattr(scores, name) for name in ("ndim", "dtype", "dask", "size", "to_delayed"))


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


def as_counter(scores: Any, score_range: tuple[float, float], steps: int, *, halving: Halving = EVEN) -> "Counter":
    """Return the counter for scores of any kind, or for sums of losses.

    No scores are valid: an error would reveal that the only one is missing.
    """
    if isinstance(scores, LossSums):
        return scores
    # arrays first: a protocol takes longer to compare with than an array to count
    read = None if isinstance(scores, np.ndarray) else _reading(scores)
    if read is None:
        return ArrayCounts(scores, halving=halving)
    levels = _LEVELS_A_READING
    if isinstance(scores, Iterator):
        if steps > _STREAM_LEVELS:
            raise ValueError(
                f"steps must be at most {_STREAM_LEVELS} for scores that can be read only once, got {steps}; "
                "pass a function that returns a new iterator of chunks, or use fewer steps"
            )
        levels = steps
    return LookaheadCounter(read, score_range, steps, levels=levels, halving=halving)


def _reading(scores: Any) -> Reading | None:
    """Return how scores that are not in memory are read; None for an array."""
    if isinstance(scores, CountSource):
        return lambda thresholds: (scores.counts_at(thresholds), scores.size)
    if is_dask_array(scores):
        return _dask_reading(scores)
    if isinstance(scores, Iterator):
        return lambda thresholds: count_chunks(scores, thresholds)
    return (lambda thresholds: count_chunks(scores(), thresholds)) if callable(scores) else None


def known_size(scores: Any) -> int | None:
    """Return the number of scores if it is known without reading them, or None."""
    if isinstance(scores, CountSource) and not isinstance(scores, np.ndarray):
        return scores.size
    if is_dask_array(scores):
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


class ArrayCounts:
    """Scores in memory (any float or integer dtype, any stride).

    The first counts are passes over all scores. Once the bracket contains under 1/16 of them, its scores are copied and
    sorted, and each further count is a lookup. If ties or a wide range keep the bracket full, that happens after seven
    passes.
    """

    def __init__(self, scores: Any, *, halving: Halving = EVEN) -> None:
        self._scores, self._halving = check_scores(scores), halving
        self.size = int(self._scores.size)
        self._known: dict[float, int] = {}
        self._is_sorted = False
        # scores that are not in the sorted copy because they lie below every later threshold
        self._base = 0

    def count(self, left: float, right: float, steps_left: int) -> int:
        """Return #{scores <= middle}; ``steps_left`` counts remain, this one included."""
        threshold = float(self._halving.middle(left, right))
        held = self._known.get(right, self.size) - self._known.get(left, 0)
        is_small = held * _EXTRACT_SHARE <= self.size or len(self._known) >= _PATIENCE
        if is_small and steps_left > 1 and not self._is_sorted:
            self._base, self._is_sorted = self._known.get(left, 0), True
            self._scores = np.sort(np.concatenate(list(self._bracket(left, right))))
        scores, bound = self._scores, round_down(threshold, self._scores.dtype)
        if self._is_sorted:
            found = self._base + int(np.searchsorted(scores, bound, side="right"))
        else:
            found = sum(int(np.count_nonzero(scores[i : i + _BLOCK] <= bound)) for i in range(0, self.size, _BLOCK))
        self._known[threshold] = found
        return found

    def _bracket(self, left: float, right: float) -> Iterator[NDArray[Any]]:
        """Yield the scores of (left, right] by blocks; the range has open ends."""
        dtype = self._scores.dtype
        yield self._scores[:0]
        for i in range(0, self.size, _BLOCK):
            block = self._scores[i : i + _BLOCK]
            inside = block <= round_down(right, dtype) if right in self._known else np.ones(block.size, dtype=bool)
            if left in self._known:
                inside &= ~(block <= round_down(left, dtype))  # not '>': NaN lies above
            yield block[inside]


class LookaheadCounter:
    """Count scores that are expensive to read, for several steps in one reading.

    Parameters
    ----------
    read : function of increasing thresholds that returns the counts and the number of scores
    score_range : tuple of float
    steps : int
    levels : int
        The steps of one reading.
    halving : Halving
    """

    def __init__(
        self, read: Reading, score_range: tuple[float, float], steps: int, *, levels: int, halving: Halving = EVEN
    ) -> None:
        self._read, self._levels, self._halving = read, levels, halving
        self._look(*score_range, steps)

    def count(self, left: float, right: float, steps_left: int) -> int:
        """Return #{scores <= middle}; ``steps_left`` counts remain, this one included."""
        threshold = float(self._halving.middle(left, right))
        place = np.searchsorted(self._edges, threshold)
        if place == self._edges.size or self._edges[place] != threshold:
            self._look(left, right, steps_left)
            place = np.searchsorted(self._edges, threshold)
        return int(self._counts[place])

    def _look(self, left: float, right: float, steps: int) -> None:
        """Count at all midpoints of the next steps."""
        self._edges = np.unique(midpoint_tree(left, right, min(steps, self._levels), self._halving)[1:-1])
        found, size = self._read(self._edges)
        self.size, counts = check_count("scores.size", size, minimum=0), np.asarray(found)
        if counts.shape != self._edges.shape or not np.issubdtype(counts.dtype, np.integer):
            raise TypeError("counts_at must return one integer for each threshold")
        if np.any(np.diff(counts) < 0) or counts[0] < 0 or counts[-1] > self.size:
            raise ValueError("counts_at must return non-decreasing counts between 0 and size")
        self._counts = counts


@dataclass(frozen=True)
class LossSums:
    """Sums of dithered losses at public thresholds, in the place of counts of scores.

    C(t) = sum over records of one minus the loss, at thresholds with places 0 .. m - 1, in exact multiples. ``sums[j]``
    is ``resolution`` times C at place j, an integer that never falls with j. Places from m on mean "no finite
    threshold", where no record has a loss. A search of ``k`` halvings of ``place_range`` asks for whole places only.

    Theory: Result J
    """

    size: int
    resolution: int
    sums: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """The number of halvings that tell all places apart."""
        return len(self.sums).bit_length()

    @property
    def place_range(self) -> tuple[float, float]:
        """The public range of a search: each midpoint of its halvings is a whole number."""
        return -1.0, float(2**self.steps - 1)

    def count(self, left: float, right: float, steps_left: int) -> Fraction:  # noqa: ARG002 (part of the interface)
        """Return C at the middle of the bracket."""
        place = int((left + right) // 2)
        return Fraction(int(self.sums[place]), self.resolution) if place < len(self.sums) else Fraction(self.size)

    def require_lattice(self, scale: int, steps: int) -> None:
        """Reject noise on a lattice without these sums, and steps between the places."""
        if scale % self.resolution:
            raise ValueError(
                f"the scale of the noise must be a multiple of resolution={self.resolution}, got {scale}: make it with "
                "lattice_noise(..., multiple=resolution)"
            )
        if steps > self.steps:
            raise ValueError(f"steps must be at most {self.steps} for {len(self.sums)} thresholds, got {steps}")


Counter = ArrayCounts | LookaheadCounter | LossSums


def count_chunks(chunks: Iterable[Any], thresholds: Edges) -> tuple[Counts, int]:
    """Count the scores at most each threshold, and all scores, in one reading.

    Parameters
    ----------
    chunks : iterable of arrays of shape (n,), of any real dtype
    thresholds : array of shape (k,)
        Increasing.

    Returns
    -------
    counts : int array of shape (k,)
    size : int
    """
    size, counts = 0, np.zeros(thresholds.size, dtype=np.int64)
    bins = np.zeros(thresholds.size + 1, dtype=np.int64)
    in_dtype: dict[np.dtype[Any], NDArray[Any]] = {}
    for chunk in chunks:
        scores = check_scores(chunk)
        size += scores.size
        dtype = scores.dtype
        is_exact = dtype.itemsize < 8 or (dtype.kind == "f" and dtype.itemsize == 8)
        if not is_exact and dtype not in in_dtype:
            rounded = [round_down(t, dtype) for t in thresholds.tolist()]
            in_dtype[dtype] = np.array(rounded[rounded.count(-math.inf) :], dtype=dtype)
        edges = thresholds if is_exact else in_dtype[dtype]
        first = thresholds.size - edges.size  # no score of this dtype is at most a threshold before it
        for i in range(0, scores.size if edges.size else 0, _BLOCK):
            block = np.sort(scores[i : i + _BLOCK])
            block = block.astype(np.float64, copy=False) if is_exact else block
            if edges.size <= block.size:
                counts[first:] += np.searchsorted(block, edges, side="right")
            else:
                np.add.at(bins, first + np.searchsorted(edges, block, side="left"), 1)
    return counts + np.cumsum(bins)[:-1], size


def _dask_reading(array: Any) -> Reading:
    """Return the reading of a Dask array, whose partitions return sums only."""
    if array.ndim != 1:
        raise ValueError(f"scores must be one-dimensional, got {array.ndim} dimensions")
    check_scores(np.empty(0, dtype=array.dtype))
    parts = list(array.to_delayed().ravel())

    def read(thresholds: Edges) -> tuple[Counts, int]:
        import dask

        found = dask.compute(*(dask.delayed(count_chunks)([part], thresholds) for part in parts))
        return np.asarray(np.sum([counts for counts, _ in found], axis=0)), sum(size for _, size in found)

    return read
