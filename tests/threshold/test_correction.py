"""The noise corrections: numbers of the theory, and the discrete law they are used with."""

import math

import numpy as np
import pytest
from scipy import special, stats

from dpscp.privacy import lattice_noise
from dpscp.threshold import (
    expected_maximum,
    marginal_offset,
    marginal_rank_target,
    rank_sensitivity,
    union_noise_buffer,
)


def miss_rate(n, target):
    """The miss rate of 10 steps with noise 10 that accept above ``target``, by quadrature of Result A."""
    grid = np.linspace(-10, 10, 400_001)
    law = np.diff(special.ndtr(grid) ** 10)
    largest = 10.0 * (grid[1:] + grid[:-1]) / 2
    return 1 - np.sum(law * np.clip(target - largest, 0, n + 1)) / (n + 1)


def law_of_maximum(sigma, steps):
    """Values and probabilities of the largest of ``steps`` discrete Gaussians of integer scale ``sigma``."""
    reach = 13 * sigma
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-np.square(values / sigma) / 2)
    below = np.cumsum(weights) / weights.sum()
    return values, np.diff(below**steps, prepend=0.0)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (10, 1.5388), (20, 1.8675)])
def test_expected_maximum(steps, expected):
    assert expected_maximum(steps) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("rank", ["centered", "linear", "ceil"])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5])
@pytest.mark.covering
def test_one_lattice_unit_covers_the_discreteness(rank, alpha):
    """E[min(c - max Z, alpha (n_min + 1))] >= 0 for the integer noise that is really drawn, at c plus one unit."""
    for count_noise in (0.3, 10.0, 400.0):
        noise = lattice_noise(count_noise, rank_sensitivity(rank, alpha))
        for steps in (1, 10, 20):
            values, weights = law_of_maximum(noise.sigma, steps)
            for n_min in (0, 5, 20, 200, 10**5):
                c = marginal_offset(n_min, alpha, noise.count_noise, steps)
                c_units, cap = c * noise.scale + 1, alpha * (n_min + 1) * noise.scale
                assert np.sum(weights * np.minimum(c_units - values, cap)) >= 0
                # and c is the smallest: a hundredth of the noise less is not enough
                assert np.sum(weights * np.minimum(c_units - values - noise.sigma / 100, cap)) < 0


def test_the_discrete_tail_is_covered_by_one_unit():
    """P(Z >= x + one unit) <= P(normal >= x): what the union bound needs."""
    sigma = 4096
    values = np.arange(-8 * sigma, 8 * sigma)
    weights = np.exp(-np.square(np.arange(-13 * sigma, 13 * sigma + 1) / sigma) / 2)
    upper = np.cumsum(weights[::-1])[::-1] / weights.sum()
    at_least = upper[values + 1 + 13 * sigma]  # P(Z >= v + 1)
    assert np.all(at_least <= special.ndtr(-values / sigma) * (1 + 1e-12))  # the sum's own rounding
    # half a unit would do, none would not
    assert np.any(upper[values + 13 * sigma] > special.ndtr(-values / sigma) * (1 + 1e-12))


class TestMarginalOffset:
    def test_large_samples(self):
        assert marginal_offset(10**7, 0.1, 40.0, 20) == pytest.approx(40 * 1.86748, abs=1e-3)
        n = 13671
        target = marginal_rank_target(n, 0.1, 40.0, 20)
        assert (target - 0.9 * (n + 1)) / 40 == pytest.approx(1.867, abs=1e-3)

    @pytest.mark.parametrize("n_min", [0, 5, 20, 200])
    def test_solves_its_equation(self, n_min):
        alpha, noise, steps = 0.1, 10.0, 10
        c = marginal_offset(n_min, alpha, noise, steps)
        grid = np.linspace(-10, 10, 400_001)
        law = np.diff(special.ndtr(grid) ** steps)
        middle = (grid[1:] + grid[:-1]) / 2
        value = np.sum(law * np.minimum(c - noise * middle, alpha * (n_min + 1)))
        assert value == pytest.approx(0.0, abs=1e-5 * noise)

    def test_smaller_parts_need_more(self):
        offsets = [marginal_offset(n, 0.1, 10.0, 10) for n in (0, 5, 20, 200, 2000, 10**6)]
        assert offsets == sorted(offsets, reverse=True)
        assert offsets[0] > 1.5 * offsets[-1]

    def test_the_naive_offset_would_break_small_groups(self):
        """The first-order offset proves nothing at n = 5 and 20; the n_min form keeps alpha there."""
        naive = 10 * expected_maximum(10)
        assert min(miss_rate(n, 0.9 * (n + 1) + naive) for n in (5, 20)) > 0.15
        assert max(miss_rate(n, marginal_rank_target(n, 0.1, 10.0, 10)) for n in (5, 20)) <= 0.1 + 1e-6

    def test_no_noise_needs_no_offset(self):
        assert marginal_offset(5, 0.1, 0.0, 10) == 0
        assert marginal_rank_target(9, 0.1, 0.0, 10) == pytest.approx(9.0)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ((-1, 0.1, 1.0, 5), "n_min"),
            ((5, 0.0, 1.0, 5), "alpha"),
            ((5, 1.0, 1.0, 5), "alpha"),
            ((5, 0.1, -1.0, 5), "count_noise"),
            ((5, 0.1, 1.0, 0), "steps"),
        ],
    )
    def test_bad_numbers(self, arguments, name):
        with pytest.raises(ValueError, match=name):
            marginal_offset(*arguments)


class TestUnionBuffer:
    def test_is_the_papers_tau(self):
        n = 13671
        assert union_noise_buffer(40.0, 20, 1 / n) == pytest.approx(40 * stats.norm.isf(1 / n / 20) - 1)
        assert (union_noise_buffer(40.0, 20, 1 / n) + 1) / 40 == pytest.approx(4.48, abs=0.01)
