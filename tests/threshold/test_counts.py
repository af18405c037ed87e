"""Counts are exact, from every source: the search takes the same path as a naive one in rational arithmetic."""

import math
from bisect import bisect_right
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpscp import private_quantile
from dpscp._base.checks import SMALLEST_NORMAL
from dpscp.privacy import IntegerSource, lattice_noise
from dpscp.threshold import CountSource, KnownSize, graded_offset, rank_sensitivity, round_level, step_rises
from dpscp.threshold import counts as room
from dpscp.threshold.counts import (
    EVEN,
    ArrayCounts,
    Halving,
    as_counter,
    count_chunks,
    midpoint_tree,
    round_down,
)

pytestmark = pytest.mark.filterwarnings("ignore:no finite threshold:dpscp.GuaranteeWarning")

RANGES = [
    (0.0, 1.0),
    (-1.0, 3.0),
    (0.1, 0.7),
    (0.0, 40 * SMALLEST_NORMAL),
    (SMALLEST_NORMAL, 3 * SMALLEST_NORMAL),
    (1.0, 1.0 + 2.0**-50),
    (-8e307, 8e307),
    (0.0, 1e300),
    (-7.0, 2.0**40),
    (2.0**53 - 8, 2.0**53 + 56),
    (-300.0, 300.0),
]
DTYPES = [np.float16, np.float32, np.float64, np.longdouble, np.int8, np.int32, np.int64, np.uint64, ">f8"]


def exact(score):
    """A score as the rational number it is; one that is not a number lies above all."""
    if np.issubdtype(np.asarray(score).dtype, np.integer):
        return Fraction(int(score))
    if not np.isfinite(score):
        return -math.inf if score < 0 else math.inf
    return Fraction(*score.as_integer_ratio())


def fine_point(score_range, where):
    """A point of the range, or None for an even grid."""
    low, high = score_range
    if where in (None, "ends"):
        return score_range if where else None
    return min(max(low * (1 - where) + high * where, low), high)


def naive_threshold(scores, *, alpha, score_range, count_noise, steps, rank, random_state, fine_near):
    """Algorithm 2 with Result F's targets, one full exact count for each step."""
    level, n = round_level(alpha), len(scores)
    noise = lattice_noise(count_noise, rank_sensitivity(rank, alpha))
    draws = noise.sample(steps, IntegerSource(random_state))
    target = (1 - level) * (n + 1)
    if rank == "ceil":
        target = Fraction(math.ceil(target))
    target += Fraction(graded_offset(float(level), n, noise.count_noise, steps)) + Fraction(1, noise.scale)
    left, right = low, high = score_range
    clipped = [min(max(exact(s), Fraction(low)), Fraction(high)) for s in scores]
    halving = Halving.fine(fine_near, score_range)
    for draw, rise in zip(draws, step_rises(steps).tolist(), strict=True):
        middle = float(halving.middle(left, right))
        count = sum(s <= Fraction(middle) for s in clipped)
        if count + Fraction(draw - math.ceil(noise.sigma * rise), noise.scale) >= target:
            right = middle
        else:
            left = middle
    return right


def awkward_scores(rng, dtype, score_range, size):
    """Scores on, just below and just above the search's own midpoints, tied, at the ends, outside, and in between."""
    dtype = np.dtype(dtype)
    low, high = score_range
    points = np.concatenate([midpoint_tree(low, high, 6, h) for h in (EVEN, Halving.fine(low, score_range))])
    if rng.uniform() < 0.3:
        points = points[rng.integers(points.size, size=1)]  # all (nearly) equal
    wide = np.concatenate([points, rng.uniform(0, 1, 40) * (high - low) + low, [low, high]])
    values = wide[rng.integers(wide.size, size=size)]
    with np.errstate(all="ignore"):
        if np.issubdtype(dtype, np.integer):
            limits = np.iinfo(dtype)
            whole = np.array([min(max(round(v), int(limits.min)), int(limits.max)) for v in values], dtype=dtype)
            step = rng.integers(-1, 2, size=size)
            safe = (whole > limits.min) & (whole < limits.max)
            return np.where(safe, whole + step.astype(dtype), whole).astype(dtype)
        if dtype.itemsize < 8:
            biggest = np.finfo(dtype).max
            values = np.clip(values, -float(biggest), float(biggest))
        rounded = values.astype(dtype)
        for toward in (-np.inf, np.inf):
            moved = rng.uniform(size=size) < 0.25
            rounded[moved] = np.nextafter(rounded[moved], dtype.type(toward))
        rounded[~np.isfinite(rounded)] = 0
        if rng.uniform() < 0.3:  # what an overflow leaves behind
            strange = rng.uniform(size=size) < 0.2
            rounded[strange] = rng.choice([np.nan, np.inf, -np.inf], size=int(strange.sum()))
        return rounded


class Elsewhere:
    """Somebody else's counts: a database, another process."""

    def __init__(self, scores):
        self._values = sorted(exact(s) for s in scores)
        self.questions = 0

    @property
    def size(self):
        return len(self._values)

    def counts_at(self, thresholds):
        self.questions += 1
        return np.array([sum(v <= Fraction(t) for v in self._values) for t in thresholds.tolist()])


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    score_range=st.sampled_from(RANGES),
    size=st.integers(1, 300),
    path=st.lists(st.booleans(), min_size=1, max_size=12),
    fine=st.sampled_from([None, 0.0, 0.3, 1.0, "ends"]),
)
@example(1, np.int64, (2.0**53 - 8, 2.0**53 + 56), 100, [False] * 3, None)
@example(2, np.uint64, (2.0**53 - 8, 2.0**53 + 56), 100, [True] * 3, 0.0)
@example(3, np.longdouble, (0.0, 1.0), 100, [True, False], 0.3)
@example(4, np.float32, (0.1, 0.7), 300, [True, False] * 4, "ends")
def test_every_count_is_exact(seed, dtype, score_range, size, path, fine):
    """Along any path of the search, whatever the noise makes it do, on even and on fine grids."""
    halving = Halving.fine(fine_point(score_range, fine), score_range)
    scores = awkward_scores(np.random.default_rng(seed), dtype, score_range, size)
    values = [exact(s) for s in scores]
    parts = np.array_split(scores, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_BLOCK", 7)
        patch.setattr(room, "_LEVELS_A_READING", 4)
        patch.setattr(room, "_PATIENCE", 2)
        sources = [scores, lambda: parts, iter(parts), Elsewhere(scores)]
        counters = [as_counter(source, score_range, len(path), halving=halving) for source in sources]
        left, right = score_range
        for step, go_left in enumerate(path):
            middle = float(halving.middle(left, right))
            assert left <= middle <= right
            expected = sum(v <= Fraction(middle) for v in values)
            assert [c.count(left, right, len(path) - step) for c in counters] == [expected] * len(counters)
            left, right = (left, middle) if go_left else (middle, right)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    score_range=st.sampled_from(RANGES),
    size=st.integers(1, 150),
    steps=st.integers(1, 13),
    rank=st.sampled_from(["centered", "linear", "ceil"]),
    alpha=st.sampled_from([0.1, 0.25, 0.5, 0.8]),
    stride=st.sampled_from([1, 2, -1, -3]),
    fine=st.sampled_from([None, 0.0, 0.3, "ends"]),
)
def test_every_source_walks_the_naive_path(seed, dtype, score_range, size, steps, rank, alpha, stride, fine):
    rng = np.random.default_rng(seed)
    scores = awkward_scores(rng, dtype, score_range, size)
    spread = np.zeros(abs(stride) * size, dtype=scores.dtype)[::stride]
    spread[:] = scores
    setting = {"alpha": alpha, "score_range": score_range, "count_noise": 0.3, "steps": steps, "rank": rank}
    setting["fine_near"] = fine_point(score_range, fine)
    expected = naive_threshold(scores, **setting, random_state=seed)

    def chunks():
        return (part for part in np.array_split(spread, 3))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_BLOCK", 7)
        patch.setattr(room, "_LEVELS_A_READING", 4)
        patch.setattr(room, "_PATIENCE", 2)
        found = {
            "array": private_quantile(spread, **setting, random_state=seed),
            "chunks": private_quantile(chunks, **setting, random_state=seed),
            "stream": private_quantile(chunks(), **setting, random_state=seed),
            "other": private_quantile(Elsewhere(scores), **setting, random_state=seed),
        }
    assert {name: q.threshold for name, q in found.items()} == dict.fromkeys(found, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dask_counts_like_an_array(dtype):
    dask = pytest.importorskip("dask")
    da = pytest.importorskip("dask.array")
    rng = np.random.default_rng(3)
    scores = awkward_scores(rng, dtype, (0.1, 0.7), 900)
    setting = {"alpha": 0.2, "score_range": (0.1, 0.7), "count_noise": 2.0, "steps": 20, "random_state": 4}
    with dask.config.set(scheduler="synchronous"):
        found = private_quantile(da.from_array(scores, chunks=100), **setting)
        with pytest.raises(ValueError, match="one-dimensional"):
            private_quantile(da.ones((3, 3)), **setting)
        with pytest.raises(TypeError, match="real numbers"):
            private_quantile(da.ones(3, dtype=bool), **setting)
        with pytest.raises(ValueError, match="empty"):
            private_quantile(da.ones(0), **setting)
    assert found.threshold == private_quantile(scores, **setting).threshold


def adversarial_thresholds(rng, score_range, levels):
    """A search's own midpoints, some of them moved by a few floats or by most of a bin, repeated, or crowded."""
    low, high = score_range
    near = [None, low, high, score_range][rng.integers(4)]
    thresholds = midpoint_tree(low, high, levels, Halving.fine(near, score_range))[1:-1]
    kind = rng.integers(5)
    if kind == 1:
        for _ in range(int(rng.integers(1, 4))):
            thresholds = np.nextafter(thresholds, rng.choice([-np.inf, np.inf], size=thresholds.size))
    elif kind == 2:
        width = (score_range[1] - score_range[0]) / 2**levels
        thresholds = thresholds + rng.uniform(-0.9, 0.9, thresholds.size) * width
    elif kind == 3:
        thresholds = thresholds[np.sort(rng.integers(thresholds.size, size=thresholds.size))]
    elif kind == 4:
        thresholds = np.concatenate([thresholds[:1], np.geomspace(1e-300, 1e300, 40)])
    return np.sort(thresholds)


@pytest.mark.parametrize("near", [-1.0, 0.5, 3.0, (-1.0, 3.0)])
def test_the_middle_of_a_bracket_is_that_of_the_coordinate(near):
    halving = Halving.fine(near, (-1.0, 3.0))
    left, right = np.sort(np.random.default_rng(0).uniform(-1, 3, size=(2, 500)), axis=0)

    def coordinate(t):
        if isinstance(near, tuple):
            return np.log(t - near[0] + halving.knee) - np.log(near[1] - t + halving.knee)
        return np.sign(t - near) * np.log1p(np.abs(t - near) / halving.knee)

    expected = (coordinate(left) + coordinate(right)) / 2
    np.testing.assert_allclose(coordinate(halving.middle(left, right)), expected, atol=1e-6)


@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    score_range=st.sampled_from(RANGES),
    size=st.integers(0, 120),
    levels=st.integers(1, 7),
    block=st.sampled_from([1, 7, 64, 1 << 16]),
)
@example(seed=12903, dtype=np.float16, score_range=(-8e307, 8e307), size=32, levels=6, block=1)  # widths overflow
def test_chunks_are_counted_like_a_naive_count(seed, dtype, score_range, size, levels, block):
    """Whatever the thresholds are like, and whether there are more of them than scores in a block or fewer."""
    rng = np.random.default_rng(seed)
    scores = awkward_scores(rng, dtype, score_range, size)
    thresholds = adversarial_thresholds(rng, score_range, levels)
    near = np.nextafter(thresholds, rng.choice([-np.inf, 0.0, np.inf], size=thresholds.size))
    parts = [scores[::2], scores[1::2], thresholds, near, np.array([np.nan, np.inf, -np.inf])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_BLOCK", block)
        counts, total = count_chunks(parts, thresholds)
    values = sorted(exact(s) for part in parts for s in part)
    assert total == len(values)
    assert counts.tolist() == [bisect_right(values, Fraction(t)) for t in thresholds.tolist()]


def test_count_source_is_asked_eleven_steps_at_a_time():
    source = Elsewhere(np.random.default_rng(0).uniform(size=50))
    assert isinstance(source, CountSource)
    private_quantile(source, alpha=0.1, score_range=(0, 1), count_noise=1.0, steps=22, random_state=0)
    assert source.questions == 2


class TestRoundDown:
    @settings(deadline=None)
    @given(
        st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([np.float16, np.float32, np.int8, np.uint64])
    )
    def test_is_the_largest_number_at_most(self, threshold, dtype):
        dtype = np.dtype(dtype)
        rounded = round_down(threshold, dtype)
        if np.isneginf(rounded):
            limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(dtype)
            assert threshold < float(limits.min)
            return
        assert exact(rounded) <= Fraction(threshold)
        if np.issubdtype(dtype, np.integer):
            assert rounded == np.iinfo(dtype).max or int(rounded) + 1 > threshold
        else:
            with np.errstate(over="ignore"):
                following = np.nextafter(rounded, dtype.type(np.inf))
            assert np.isinf(following) or Fraction(float(following)) > Fraction(threshold)


def test_an_empty_part_of_random_size_is_no_error():
    assert ArrayCounts(np.empty(0)).count(0.0, 1.0, 5) == 0
    q = private_quantile(
        np.empty(0), alpha=0.1, score_range=(0, 1), count_noise=1.0, size=KnownSize(50, 0), rank="linear"
    )
    assert q.n_records == 50


class TestBadSources:
    def test_stream_with_too_many_steps(self):
        with pytest.raises(ValueError, match=r"steps must be at most 22 .* got 23"):
            as_counter(iter([np.ones(3)]), (0.0, 1.0), 23)

    @pytest.mark.parametrize("kind", ["stream", "chunks"])
    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            (np.ones((2, 2)), ValueError),
            (np.array([True]), TypeError),
            (np.array(["7"]), TypeError),
            (np.array([1j]), TypeError),
        ],
    )
    def test_bad_chunks(self, kind, bad, error):
        source = iter([np.ones(2), bad]) if kind == "stream" else lambda: [np.ones(2), bad]
        with pytest.raises(error):
            private_quantile(source, alpha=0.1, score_range=(0, 1), count_noise=1.0)

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (lambda t: np.full(t.size, 0.5), TypeError),
            (lambda t: np.zeros(t.size + 1, dtype=int), TypeError),
            (lambda t: np.arange(t.size)[::-1], ValueError),
            (lambda t: np.full(t.size, 11), ValueError),
            (lambda t: np.full(t.size, -1), ValueError),
        ],
    )
    def test_impossible_counts_of_a_source(self, answer, error):
        class Liar:
            size = 10

            def counts_at(self, thresholds):
                return answer(thresholds)

        with pytest.raises(error, match="counts_at must return"):
            private_quantile(Liar(), alpha=0.1, score_range=(0, 1), count_noise=1.0)
