"""Coverage, efficiency and informativeness, exactly as the paper defines them, on examples worked by hand."""

import numpy as np
import pytest

from dpscp import metrics

MASKS = np.array([[True, False, False], [True, True, False], [False, False, False], [True, True, True]])
LABELS = np.array([0, 2, 1, 2])
INTERVALS = np.array([[0.0, 1.0], [2.0, 2.5], [5.0, 4.0], [-np.inf, np.inf]])


def test_label_sets():
    assert metrics.coverage(LABELS, MASKS) == 0.5
    assert metrics.efficiency(MASKS) == 1.5
    assert metrics.informativeness(MASKS) == 0.25
    assert isinstance(metrics.coverage(LABELS, MASKS), float)


def test_intervals():
    assert metrics.coverage([1.0, 2.6, 4.5, 9.0], INTERVALS) == 0.5  # the end counts, an empty interval holds nothing
    assert metrics.efficiency(INTERVALS[:3]) == pytest.approx(0.5)
    assert metrics.efficiency(INTERVALS) == np.inf
    with pytest.raises(ValueError, match="label sets"):
        metrics.informativeness(INTERVALS)


def test_named_classes():
    names = np.array(["cat", "ant", "bee"])  # not sorted
    assert metrics.coverage(["cat", "bee", "ant", "bee"], MASKS, classes=names) == 0.5
    assert metrics.coverage(np.array([30, 20, 10, 20]), MASKS, classes=[30, 10, 20]) == 0.5


@pytest.mark.parametrize("labels", [[3, 2, 1, 2], [3.0, 2.0, 1.0, 2.0], ["3", "2", "1", "2"], [3, "2", 1.0, " 2"]])
def test_labels_of_a_frame_are_compared_as_its_schema_writes_them(labels):
    """A fit from a frame has texts as classes, whatever type the target column has."""
    y, classes = np.array(labels, dtype=object if len({*map(type, labels)}) > 1 else None), np.array(["1", "2", "3"])
    expected = metrics.coverage([2, 1, 0, 1], MASKS)
    assert metrics.coverage(y, MASKS, classes=classes) == expected
    assert metrics.coverage_by_size(y, MASKS, classes=classes) == metrics.coverage_by_size([2, 1, 0, 1], MASKS)
    p = np.array([[0.2, 0.3, 0.5], [0.1, 0.6, 0.3], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    assert metrics.expected_calibration_error(y, p, classes=classes) == (
        metrics.expected_calibration_error([2, 1, 0, 1], p)
    )
    with pytest.raises(ValueError, match="not among the classes"):
        metrics.coverage(np.array([3, 2, 1, 4]), MASKS, classes=classes)
    truth = np.array([True, False, True, False])
    assert metrics.covered(truth, MASKS[:, :2], classes=["False", "True"]).tolist() == (
        metrics.covered(truth.astype(int), MASKS[:, :2]).tolist()
    )


def test_levels_axis():
    masks = np.stack([MASKS, np.ones_like(MASKS), np.zeros_like(MASKS)], axis=2)
    assert metrics.coverage(LABELS, masks).tolist() == [0.5, 1.0, 0.0]
    assert metrics.efficiency(masks).tolist() == [1.5, 3.0, 0.0]
    assert metrics.informativeness(masks).tolist() == [0.25, 0.0, 0.0]
    intervals = np.stack([INTERVALS[:3], INTERVALS[:3] + np.array([0, 4])], axis=2)
    assert metrics.coverage([1.0, 2.6, 4.5], intervals).tolist() == pytest.approx([1 / 3, 2 / 3])
    assert metrics.efficiency(intervals).tolist() == pytest.approx([0.5, (5 + 4.5 + 3) / 3])


@pytest.mark.parametrize(
    "groups",
    [
        np.array(["a", "b", "a", "b"]),
        np.array(["a", "b", "a", "b"], dtype=object),  # as a pandas column
        ["a", "b", "a", "b"],
    ],
)
def test_groups(groups):
    assert metrics.coverage_by_group(LABELS, MASKS, groups) == {"a": 0.5, "b": 0.5}
    by_level = metrics.coverage_by_group(LABELS, np.stack([MASKS, ~MASKS], axis=2), groups)
    assert by_level["a"].tolist() == [0.5, 0.5]
    numbered = metrics.coverage_by_group([1.0, 2.6, 4.5, 9.0], INTERVALS, [1, 1, 2, 3])
    assert numbered == {1: 0.5, 2: 0.0, 3: 1.0}
    assert all(type(key) is int for key in numbered)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.coverage([0], MASKS), "one value for each row"),
        (lambda: metrics.coverage(LABELS, MASKS, classes=["a"]), "one label for each column"),
        (lambda: metrics.expected_calibration_error([0], [[0.5, 0.5]], classes=[0, 1, 2]), "one label for each column"),
        (lambda: metrics.expected_calibration_error(["a"], [[1, 0]], classes=["a", "a"]), "distinct"),
        (lambda: metrics.coverage([0.0, 1.0, 2.0, 2.0], MASKS), "class indices"),
        (lambda: metrics.coverage([0, 1, 2, 3], MASKS), "not among the classes"),
        (lambda: metrics.coverage([0, 1, 2, -1], MASKS), "not among the classes"),
        (lambda: metrics.coverage(["cat"] * 3 + ["emu"], MASKS, classes=["ant", "bee", "cat"]), "not among"),
        (lambda: metrics.coverage(LABELS, MASKS.astype(int)), "label sets must be bool"),
        (lambda: metrics.efficiency(np.empty((0, 2))), "n > 0"),
        (lambda: metrics.efficiency(np.ones(3)), "shape"),
        (lambda: metrics.coverage_by_group(LABELS, MASKS, [1, 2]), "one value for each set"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "emu" not in str(caught.value)


def test_coverage_by_size_and_the_worst_of_it():
    assert metrics.coverage_by_size(LABELS, MASKS) == {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    assert metrics.size_stratified_coverage(LABELS, MASKS) == 0.0
    y, sets = np.zeros(6, dtype=int), np.array([[True, False]] * 2 + [[False, True]] + [[True, True]] * 3)
    assert metrics.coverage_by_size(y, sets) == {1: pytest.approx(2 / 3), 2: 1.0}
    both = np.stack([sets, np.ones_like(sets)], axis=2)
    assert metrics.size_stratified_coverage(y, both) == pytest.approx([2 / 3, 1.0])
    with pytest.raises(ValueError, match="one level"):
        metrics.coverage_by_size(y, both)


def test_interval_widths_are_put_into_bins():
    widths = np.array([1.0, 1.0, 2.0, 2.0, 3.0, np.inf])
    intervals = np.stack([np.zeros(6), widths], axis=1)
    y = np.array([0.5, 5.0, 1.0, 1.0, 9.0, 1.0])
    expected = {(1.0, 1.0): 0.5, (2.0, 2.0): 1.0, (3.0, np.inf): 0.5}
    assert metrics.coverage_by_size(y, intervals) == expected
    assert metrics.size_stratified_coverage(y, intervals) == 0.5
    assert metrics.coverage_by_size(y, intervals, bins=1) == {(1.0, np.inf): pytest.approx(4 / 6)}
    assert len(metrics.coverage_by_size(y, np.zeros((6, 2)), bins=4)) == 1
    with pytest.raises(ValueError, match="bins"):
        metrics.coverage_by_size(y, intervals, bins=0)


def test_winkler_score():
    intervals = np.array([[0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    y = [1.0, 3.0, -2.0]  # inside, 1 above, 2 below
    assert metrics.winkler_score(y, intervals, confidence_level=0.9) == pytest.approx((2 + (2 + 20) + (2 + 40)) / 3)
    levels = np.stack([intervals, intervals], axis=2)
    found = metrics.winkler_score(y, levels, confidence_level=[0.9, 0.5])
    assert found == pytest.approx([22.0, (2 + (2 + 4) + (2 + 8)) / 3])
    assert metrics.winkler_score(y[:1], [[-np.inf, np.inf]], confidence_level=0.9) == np.inf
    for wrong, level in ((levels, 0.9), (intervals, [0.9, 0.8]), (intervals, 1.0), (MASKS[:3], 0.9)):
        with pytest.raises(ValueError, match=r"confidence_level|intervals"):
            metrics.winkler_score(y, wrong, confidence_level=level)


def test_calibration_of_probabilities_by_hand():
    p = np.array([[0.9, 0.1], [0.95, 0.05], [0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    y = [0, 1, 1, 0, 0]
    assert metrics.expected_calibration_error(y, p, bins=10) == pytest.approx((0.5 + 0.2 + 0.95 * 3 - 2) / 5)
    names = ["no", "yes"]
    assert metrics.expected_calibration_error([names[i] for i in y], p, bins=10, classes=names) == (
        metrics.expected_calibration_error(y, p, bins=10)
    )
    for wrong in (p[:, 0], p[:0], 2 * p, p - 1, np.full((5, 2), np.nan)):
        with pytest.raises(ValueError, match="probabilities"):
            metrics.expected_calibration_error(y, wrong)
    with pytest.raises(ValueError, match="bins"):
        metrics.expected_calibration_error(y, p, bins=0)
