import math

import pytest

from experiments import tables


def _rows(sizes: list[float], **changes: object) -> list[dict[str, object]]:
    base = {"method": "dp-scp-a", "epsilon": 0.5, "train_share": 0.5, "n": 16_512, "coverage": 0.9, "count_noise": 39.9}
    return [{**base, "size": size, **changes} for size in sizes]


def test_summary_is_mean_and_sample_sd_beside_the_printed_row() -> None:
    (s,) = tables.summarize(_rows([2.0, 2.2, 2.4]), "housing")
    assert s.size == pytest.approx(2.2)
    assert s.size_sd == pytest.approx(0.2)
    assert (s.trials, s.informativeness) == (3, None)
    assert s.paper is not None
    assert s.paper.size == 2.119


def test_rows_of_different_configurations_stay_apart() -> None:
    rows = (
        _rows([1.0, 2.0]) + _rows([3.0], epsilon=1.0) + _rows([4.0], variant="other") + _rows([5.0], train_share=None)
    )
    assert [s.trials for s in tables.summarize(rows, "housing")] == [2, 1, 1, 1]
    assert [s.paper is None for s in tables.summarize(rows, "housing")] == [False, False, True, True]


def test_one_infinite_interval_makes_the_mean_infinite() -> None:
    (s,) = tables.summarize(_rows([2.0, math.inf]), "housing")
    assert s.size == math.inf
    assert s.size_sd is None


def test_difference_in_standard_errors() -> None:
    # two means of 30 with sd .3 each: se = .3 sqrt(2/30); rounding adds a hair
    found = tables.standard_errors(1.1, 0.3, 30, 1.0, 0.3)
    assert found == pytest.approx(0.1 / (0.3 * math.sqrt(2 / 30)), rel=1e-4)
    assert tables.standard_errors(1.1, None, 1, 1.0, 0.3) is None
