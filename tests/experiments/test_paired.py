"""Paired comparisons of two runs, and of the default with its variants."""

from pathlib import Path

import pytest

from experiments import paired


def test_only_a_clear_loss_of_more_than_a_percent_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {("t", "", 1.0): {0: 10.0, 1: 20.0, 2: 30.0}, ("only old", "", 1.0): {0: 1.0}}
    new = {
        ("t", "", 1.0): {2: 30.9, 1: 20.9, 0: 10.9, 3: 99.0},  # every pair is .9 wider, which is 4.5 % of the mean
        ("t", "without", 1.0): {0: 10.9, 1: 20.0, 2: 31.8},
    }
    (found,) = paired.compare_runs(old, new).values()
    assert (found.percent, found.error, found.pairs) == pytest.approx((4.5, 0.0, 3))
    assert found.is_worse
    (against,) = paired.compare_choices(new).values()
    assert against.percent == pytest.approx(0.0)
    assert not against.is_worse
    assert not paired.Difference.of({0: 1.0}, {0: 2.0}).is_worse  # one pair says nothing
    assert not paired.Difference(1.4, 0.3, 5).is_worse
    for name, trials in (("old.csv", old), ("new.csv", new)):
        paired.write_trials(tmp_path / name, trials)
    assert paired.read_trials(tmp_path / "new.csv") == new
    paired.main([str(tmp_path / "old.csv"), str(tmp_path / "new.csv")])
    assert "1 of 1 rows are worse" in capsys.readouterr().out
