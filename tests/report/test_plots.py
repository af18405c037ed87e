"""Pictures for people who know MAPIE: what is drawn is what was given."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from dpscp.report import plot_intervals, plot_sets
from dpscp.report.figures import PALETTE


def test_sets_are_drawn_where_they_are():
    sets = np.array([[True, False, True], [False, True, False]])
    filled, truth = plot_sets(sets, ["a", "b", "c"], y=["c", "a"]).axes[0].collections
    assert filled.get_offsets().tolist() == [[0, 0], [2, 0], [1, 1]]
    assert truth.get_offsets().tolist() == [[2, 0], [0, 1]]
    with pytest.raises(ValueError, match="one level"):
        plot_sets(sets[:, :, None], ["a", "b", "c"])


def test_what_lies_outside_is_red():
    intervals = np.array([[0.0, 1.0], [5.0, 6.0], [2.0, 3.0]])
    lines, inside, outside = plot_intervals([0.5, 7.0, 2.5], intervals).axes[0].collections
    assert len(lines.get_segments()) == 3
    # in the order of the middles
    assert inside.get_offsets().tolist() == [[0, 0.5], [1, 2.5]]
    assert outside.get_offsets().tolist() == [[2, 7.0]]
    assert tuple(outside.get_facecolor()[0]) == to_rgba(PALETTE["two"])
    assert (
        len(plot_intervals(np.zeros(900), np.tile([0.0, 1.0], (900, 1))).axes[0].collections[0].get_segments()) == 200
    )
