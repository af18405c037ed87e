"""Result F: the game solved on the safe side, against the theory's numbers and an independent, coarser solution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from dpscp.threshold import (
    graded_offset,
    marginal_offset,
    minimax_offset,
    step_rises,
    worst_final_gap,
)
from dpscp.threshold.minimax import gap_grid, solve_game, worst_excess

# smallest offset in units of the noise: (steps, A) -> c, exact recursion to three digits
EXACT = {
    8: {5: 0.592, 20: 0.579, 50: 0.576, 200: 0.573},
    10: {5: 0.734, 20: 0.723, 50: 0.721, 200: 0.719},
    12: {5: 0.845, 20: 0.836, 50: 0.834, 200: 0.833},
    20: {5: 1.135, 20: 1.130, 50: 1.129, 200: 1.128},
}
# one-dimensional form (a little looser) where A is small
LOOSER = {8: {0.1: 1.54, 0.5: 0.99, 1: 0.83}, 12: {0.1: 1.71, 0.5: 1.20, 1: 1.07}}


def offset(steps, room):
    return minimax_offset(0.1, 10 * room - 1, 1.0, steps)


@pytest.mark.parametrize("steps", EXACT)
def test_the_known_offsets(steps):
    for room, exact in EXACT[steps].items():
        assert exact - 0.0005 <= offset(steps, room) <= exact + 0.0055


@pytest.mark.parametrize("steps", LOOSER)
def test_small_samples(steps):
    for room, looser in LOOSER[steps].items():
        assert offset(steps, room) <= looser + 0.005
        assert offset(steps, room) < marginal_offset(10 * room - 1, 0.1, 1.0, steps)


def lower_bound(gaps, rises):
    """The adversary restricted to the grid, each probability as it is: written out again, a bound from below."""
    value = np.tile(gaps[:, None], gaps.size)
    for rise in reversed(rises):
        accept = special.ndtr(-gaps - rise)
        later = value.copy()
        for left in range(gaps.size):
            for right in range(left, gaps.size):
                g = np.arange(left, right + 1)
                later[left, right] = np.max(accept[g] * value[g, right] + (1 - accept[g]) * value[left, g])
        value = later
    return value[:, -1]


def test_the_shipped_table_lies_between_two_other_solutions():
    coarse = np.concatenate([[-20.0, -5.0], np.arange(-3, 4.01, 0.25), [7.0]])
    gaps = gap_grid(1 / 16)
    for graded in (False, True):
        rises = step_rises(12) if graded else np.zeros(12)
        above = solve_game(gaps, [special.ndtr(-gaps - rise) for rise in rises])
        for steps in (1, 2, 5, 12):
            assert np.all(gaps + worst_excess(gaps, steps, graded=graded) <= above[steps - 1] + 1e-6)
            if steps < 12:
                below = lower_bound(coarse, rises[12 - steps :])
                shipped = coarse + worst_excess(coarse, steps, graded=graded)
                assert np.all(shipped >= below - 1e-12)
                assert np.all(shipped[2:-1] <= below[2:-1] + 0.03)


def test_a_game_on_two_gaps_by_hand():
    """An acceptance at gap 1, as likely as at gap 0, ends there; a rejection leaves the game at gap 0."""
    first, second = solve_game(np.array([0.0, 1.0]), [np.array([0.7, 0.2]), np.array([0.4, 0.1])])
    assert first == pytest.approx([0.4, 1.0], abs=1e-8)
    assert second == pytest.approx([0.7 + 0.3 * 0.4, 1.0], abs=1e-8)


@pytest.mark.slow
def test_the_shipped_table_is_what_the_generator_makes(tmp_path):
    from importlib import resources

    from dpscp.threshold.minimax import write_table

    write_table(tmp_path / "again.npz")
    file = resources.files("dpscp.threshold").joinpath("minimax_table.npz")
    with np.load(tmp_path / "again.npz") as again, file.open("rb") as opened, np.load(opened) as shipped:
        np.testing.assert_array_equal(again["gaps"], shipped["gaps"])
        for name in ("excess", "graded"):
            np.testing.assert_allclose(again[name], shipped[name], rtol=1e-6)


def test_one_step_by_hand():
    """One step: V(l) = l + max Q(g)(g - l)."""
    start = np.linspace(-3, 6, 100)
    g = np.linspace(-30, 9, 40_001)
    exact = start + np.max(special.ndtr(-g) * np.maximum(g - start[:, None], 0), axis=1)
    assert np.all(worst_final_gap(start, 1) >= exact - 1e-12)
    # the spacing of the grid of gaps and, where V bends, of the table
    assert np.all(worst_final_gap(start, 1) <= exact + 1 / 64)


@pytest.mark.parametrize("steps", [1, 3, 12, 22, 32, 40])
def test_monotone_and_never_faster_than_its_argument(steps):
    start = np.concatenate([[-1e6, -5000], np.linspace(-300, -10, 50), np.linspace(-10, 9, 4000), [20.0, 60.0]])
    value = worst_final_gap(start, steps)
    rise = np.diff(value)
    assert np.all(rise >= -1e-12)
    assert np.all(rise <= np.diff(start) + 1e-12)
    assert np.all(value >= start)


def test_beyond_the_grid_the_excess_is_below_one_overshoot_for_each_step():
    """Far above the target a step adds E[(Z - l)+] at most, of which the game takes its best part."""
    for start in (7.5, 9.0):
        g = start + np.linspace(0, 2, 2001)
        one = np.max(special.ndtr(-g) * (g - start))
        most = stats.norm.pdf(start) - start * special.ndtr(-start)
        for steps in (1, 4):
            found = worst_excess(start, steps)
            assert one < found
            assert steps * most <= found <= 1.1 * steps * most


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 35), st.floats(0.001, 0.9), st.floats(0, 1e6), st.floats(0.01, 1e4))
def test_the_offset_is_valid_and_monotone(steps, alpha, n_min, noise):
    c = minimax_offset(alpha, n_min, noise, steps)
    room = alpha * (n_min + 1)
    # what makes it valid, in ranks
    if room / noise > 1e-6 and steps <= 32:  # beyond, Result A itself, to which the rows are an upper bound
        assert noise * worst_final_gap((c - room) / noise, steps) <= c + 1e-9 * noise
    assert c <= marginal_offset(n_min, alpha, noise, steps) * (1 + 1e-9) + noise / 16
    assert minimax_offset(alpha, 2 * n_min + 1, noise, steps) <= c
    assert minimax_offset(alpha, n_min, noise, steps + 1) >= c - 1e-6 * noise


class TestGradedSteps:
    def test_the_last_of_many_steps_needs_nearly_no_offset(self):
        """What the rise was chosen for; with few scores the last step needs one."""
        for steps in (6, 12, 22, 32):
            offsets = [graded_offset(0.1, 10 * room - 1, 1.0, steps) for room in (200, 5, 1, 0.1)]
            assert -0.1 <= offsets[0] <= 0.02
            assert offsets == sorted(offsets)
            assert offsets[-1] > 1

    @pytest.mark.parametrize("steps", [1, 7, 12, 32])
    def test_one_offset_for_all_steps_is_never_smaller_than_the_last_and_never_larger_than_the_first(self, steps):
        for room in (0.1, 1, 20):
            last, alike = graded_offset(0.1, 10 * room - 1, 1.0, steps), offset(steps, room)
            assert last <= alike <= last + step_rises(steps)[0]

    def test_beyond_the_table_the_steps_are_alike(self):
        assert not step_rises(33).any()
        assert graded_offset(0.1, 99, 1.0, 33) == minimax_offset(0.1, 99, 1.0, 33)

    def test_no_noise_needs_no_offset(self):
        assert graded_offset(0.1, 99, 0.0, 8) == 0


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"n_min": -1}, {"count_noise": -1.0}, {"steps": 0}])
def test_bad_numbers(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        minimax_offset(**{"alpha": 0.1, "n_min": 5, "count_noise": 1.0, "steps": 5} | bad)
