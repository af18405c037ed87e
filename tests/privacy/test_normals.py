"""Normal numbers in bulk: the law of the whole, of what lies beside the rectangles and of the tail; the stream."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dpscp.privacy import secure_generator as make_generator
from dpscp.training.engine import noise as normals
from dpscp.training.engine.noise import NormalNumbers

# One false alarm in a million for each test of a right sampler; all but one are seeded anyway.
ALARM = 1e-6


def drawn(size, seed=0, scale=1.0):
    out = np.empty(size)
    NormalNumbers(np.random.Generator(np.random.PCG64(seed)), scale).fill(out)
    return out


def assert_follows(numbers, cdf):
    """The bound of Dvoretzky, Kiefer, Wolfowitz and Massart, for every n."""
    numbers, n = np.sort(numbers), len(numbers)
    steps = np.arange(n + 1) / n
    found = cdf(numbers)
    distance = max(np.max(steps[1:] - found), np.max(found - steps[:-1]))
    assert distance < math.sqrt(math.log(2 / ALARM) / (2 * n))


def test_the_law_is_normal(is_quick):
    numbers = drawn(300_000 if is_quick else 20_000_000)
    n, wide = len(numbers), stats.norm.isf(ALARM / 2)
    assert_follows(numbers, ndtr)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(numbers**power) - mean) < wide * math.sqrt(variance / n)
    cells = 200
    observed = np.bincount((ndtr(numbers) * cells).astype(int).clip(0, cells - 1), minlength=cells)
    assert np.sum((observed - n / cells) ** 2 / (n / cells)) < stats.chi2.isf(ALARM, cells - 1)
    for far in (3.0, 4.0, normals._cover().widths[0], 4.5, 5.0):
        low, high = stats.binom.ppf([ALARM / 2, 1 - ALARM / 2], n, 2 * ndtr(-far))
        assert low <= np.count_nonzero(np.abs(numbers) > far) <= high


def test_numbers_are_independent():
    numbers = drawn(400_000, seed=1)
    bound = stats.norm.isf(ALARM / 2) / math.sqrt(len(numbers))
    for lag in (1, 2, normals._AT_ONCE):
        for values in (numbers, np.sign(numbers), np.abs(numbers), numbers**2):
            assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < bound
    assert abs(np.corrcoef(np.sign(numbers), np.abs(numbers))[0, 1]) < bound
    assert len(np.unique(numbers)) == len(numbers)


def test_rectangles_pieces_and_tail_are_the_curve():
    """The parts of the table hold the area under the curve, and shapes around pieces hold the pieces."""
    cover, half = normals._cover(), math.sqrt(math.pi / 2)
    area = normals._EXCESS * half / normals._PARTS
    np.testing.assert_allclose(np.cumsum(area / cover.widths), cover.floor, rtol=1e-12)
    assert (cover.floor <= np.exp(-0.5 * cover.widths**2) * (1 + 1e-12)).all()
    assert (np.diff(cover.widths) < 0).all()
    assert (np.diff(cover.ends) > 0).all()
    assert cover.ends[-1] < 1
    under = np.sqrt(2 * np.pi) * (ndtr(cover.widths) - ndtr(cover.inner))
    pieces = under - cover.floor * (cover.widths - cover.inner)
    tail = math.sqrt(2 * np.pi) * ndtr(-cover.widths[0])
    np.testing.assert_allclose(normals._RECTANGLES * area + pieces.sum() + tail, half, rtol=1e-12)
    shapes = np.diff(cover.ends, prepend=0.0) * area * (normals._PARTS - normals._RECTANGLES)
    assert (shapes[:-1] > pieces).all()
    assert shapes[-1] > tail


def test_what_is_no_rectangle_has_the_law_of_the_rest():
    """Pieces and tail by their areas, and whole normal numbers for the points that were rejected."""
    cover, half = normals._cover(), math.sqrt(math.pi / 2)
    area = normals._EXCESS * half / normals._PARTS
    sampler = NormalNumbers(np.random.Generator(np.random.PCG64(2)), 3.0)
    found = sampler._draw_rest(200_000) / 3.0

    def cdf(sizes):
        # the rest of the area below each size: all of it less the rectangles, which are uniform up to their widths
        covered = np.array([np.minimum(size / cover.widths, 1.0).sum() for size in grid]) * area
        left = half * (2 * ndtr(grid) - 1) - covered
        everything = area * (normals._PARTS - normals._RECTANGLES)
        again = 1 - left[-1] / everything
        return np.interp(sizes, grid, left / everything + again * (2 * ndtr(grid) - 1))

    grid = np.append(np.linspace(0, 5, 4_000), 40.0)
    assert_follows(found, cdf)


def test_fewer_numbers_are_those_of_the_ziggurat():
    """A seed of a small network keeps its noise."""
    few = normals._AT_ONCE - 1
    expected = np.random.Generator(np.random.PCG64(3)).standard_normal(few)
    np.testing.assert_array_equal(drawn(few, seed=3, scale=2.0**20), expected * 2.0**20)


@pytest.mark.parametrize("size", [normals._AT_ONCE, 3 * normals._AT_ONCE + 5])
def test_a_seed_and_a_scale_give_the_same_numbers_again(size):
    plain = drawn(size, seed=4)
    np.testing.assert_array_equal(plain, drawn(size, seed=4))
    np.testing.assert_allclose(drawn(size, seed=4, scale=2.5), 2.5 * plain, rtol=1e-15)
    np.testing.assert_array_equal(drawn(size, seed=4, scale=2.0**20), 2.0**20 * plain)


def test_numbers_come_from_the_cryptographic_stream():
    generator = make_generator()
    state = generator.bit_generator.state
    out, again = np.empty(2 * normals._AT_ONCE), np.empty(2 * normals._AT_ONCE)
    NormalNumbers(generator).fill(out)
    generator.bit_generator.state = state
    NormalNumbers(generator).fill(again)
    np.testing.assert_array_equal(out, again)
    assert_follows(out, ndtr)
