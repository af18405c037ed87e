from pathlib import Path

import pytest
from experiments.progress import Bar, describe_plan, expected_minutes, minutes_of

from experiments import progress


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_piped_run_says_once_a_minute_where_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("toy", 4, 0) as bar:
        bar.advance()
        assert capsys.readouterr().err == ""
        clock.now = 90.0
        bar.advance()
        # two of four tasks in a minute and a half: as long again
        assert capsys.readouterr().err == "toy: 2/4, 1.5 min left\n"
        bar.advance()
    assert capsys.readouterr().err == ""
    with Bar("nothing", 0, 0) as bar:
        clock.now = 900.0
        bar.advance()
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Bar("toy", 3, 1) as bar:
        clock.now = 60.0
        bar.advance()
    shown = capsys.readouterr().err
    assert "[" + 20 * "#" + 10 * "." + "] 2/3, 1.0 min left" in shown
    assert shown.endswith("\n")


def test_expected_minutes_come_from_tasks_of_the_kind_or_from_the_page(tmp_path: Path) -> None:
    finished = [{"kind": "fit", "seconds": 60.0}, {"kind": "fit", "seconds": 120.0}]
    assert expected_minutes(["fit", "fit"], finished, None, 10) == 3.0
    assert expected_minutes(["fit", "other"], finished, 20.0, 10) == 3.5
    assert expected_minutes(["other"], finished, None, 10) is None
    assert expected_minutes([], [], None, 10) == 0
    page = tmp_path / "page.md"
    assert minutes_of(page) is None
    page.write_text("machine; 12.5 minutes of one core for all tasks")
    assert minutes_of(page) == 12.5
    page.write_text("nothing")
    assert minutes_of(page) is None


def test_the_plan_names_what_nobody_knows() -> None:
    assert describe_plan({"a": 10.0, "b": 30.0}, 2) == "about 20 minutes left with 2 processes"
    assert describe_plan({"a": 10.0, "b": None}, 1) == "about 10 minutes left with 1 process; of unknown length: b"
    assert describe_plan({"b": None}, 2) == "of unknown length: b"
