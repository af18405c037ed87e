"""The studies of the recipe on tables: what is varied, what is measured, and what the pages say."""

from pathlib import Path

import numpy as np
import pytest
from experiments.runner import Header, Options, Outcome, Task
from scipy.special import softmax

import dpscp as dp
from experiments import range_ends, table_recipe

HEADER = Header("x", 0, "c", "d", "m", 0.0)


def test_the_slope_and_the_errors_are_those_of_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    for n_classes in (2, 4):
        logits = rng.normal(size=(20_000, n_classes)) * 1.5
        y = (softmax(logits, axis=1).cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
        right = table_recipe.calibration(softmax(logits, axis=1), y)
        twice = table_recipe.calibration(softmax(2 * logits, axis=1), y)
        # the standard error of a slope is about 1 / sqrt(.3 n)
        assert right["slope"] == pytest.approx(1.0, abs=0.06)
        assert twice["slope"] == pytest.approx(0.5, abs=0.03)
        assert right["log_loss"] < twice["log_loss"]
        assert right["calibration_error"] < 0.02 < twice["calibration_error"]


@pytest.mark.parametrize("name", ["numbers, n = 200", "3 classes, n = 200"])
def test_the_grid_and_the_default_are_planned_alike(name: str) -> None:
    """Without a change the grid trains the default model, bit for bit."""
    case = range_ends.CASES[name]
    X, y = case.draw(np.random.default_rng(0), case.n)
    kind = dp.PrivateConformalClassifier if "classes" in case.declared else dp.PrivateConformalRegressor
    settings = {"epsilon": 2.0, "delta": 1e-5, "random_state": 0, **case.declared}
    unchanged = settings | range_ends.changed_settings(case, X.shape[1], 2.0, {})
    default, own = (kind(**chosen).fit(X, y) for chosen in (settings, unchanged))
    np.testing.assert_array_equal(own.model_.outputs(X), default.model_.outputs(X))


def ends_of(sizes: dict[str, tuple[float, ...]]) -> list[Outcome]:
    return [
        Outcome(
            Task("range_ends", "50 classes", trial, 0),
            [{"epsilon": 1.0, "grid": choice, "size": size, "released_size": 3.0, "coverage": 0.9}],
            1.0,
            "c",
        )
        for choice, of_trials in sizes.items()
        for trial, size in enumerate(of_trials)
    ]


def test_the_page_of_the_ends_shows_how_far_the_default_is_behind(tmp_path: Path) -> None:
    """Differences of .1, .2 and .3 at a mean of 2: 10 %, and 5 / sqrt(3) % as standard error."""
    sizes = {"": (2.1, 2.2, 2.3, 9.0), "linear": (2.0, 2.0, 2.0), "rate x 2": (3.0, 3.0, 3.0)}
    range_ends.report(ends_of(sizes), HEADER, Options(results=tmp_path))
    page = (tmp_path / "range_ends.md").read_text()
    assert "| 50 classes | 1 | 3 | 2.2 (0.900) | 2 | linear | 10.0 % (2.9), behind |" in page
    assert "1 of 1 rows" in page
    assert len((tmp_path / "range_ends.csv").read_text().splitlines()) == 4
    range_ends.report(ends_of({name: found[:1] for name, found in sizes.items()}), HEADER, Options(results=tmp_path))
    page = (tmp_path / "range_ends.md").read_text()
    assert "| 50 classes | 1 | 1 | 2.1 (0.900) | 2 | linear | 5.0 % |" in page
    assert "0 of 1 rows" in page


@pytest.mark.parametrize(
    ("default", "printed", "is_defect"),
    [
        ((2.05, 2.05, 2.06), "2.7 % (0.2)", False),  # too small a gap
        ((2.0, 2.0, 2.6), "10.0 % (10.0)", False),  # within two standard errors
        ((2.1, 2.1, 2.1), "5.0 %, behind", True),
        ((1.9, 1.9, 1.9), "0.0 %", False),  # the default is the best
        ((np.inf, 2.0, 2.0), "0.0 %", False),  # intervals without end are compared with nothing
    ],
)
def test_a_gap_is_a_defect_beyond_three_percent_and_two_errors(default, printed, is_defect) -> None:
    gap = range_ends.Gap.of({"": np.array(default), "linear": np.full(3, 2.0)})
    assert str(gap) == printed
    assert gap.is_defect == is_defect


class Released:
    threshold_ = np.array([0.5])

    def predict_proba(self, X):
        return X


def test_sizes_at_the_exact_threshold() -> None:
    y = np.linspace(-1, 1, 201)
    wide = np.tile([-0.5, 0.5], (201, 1))  # a prediction of 0 and a threshold of .5: the exact one is .9
    size = range_ends.exact_size(Released(), y, y, wide, is_log=False)
    assert size == pytest.approx(1.8, abs=0.02)
    assert range_ends.exact_size(Released(), y, y, wide, is_log=True) == 1.0
    assert range_ends.exact_size(Released(), y, y, np.inf * wide, is_log=False) == np.inf
    p = np.column_stack([np.linspace(0, 1, 101), np.linspace(1, 0, 101)])
    sets = np.ones((101, 2), dtype=bool)
    assert range_ends.exact_size(Released(), p, np.zeros(101, dtype=int), sets, is_log=False) == pytest.approx(
        1.8, abs=0.02
    )
