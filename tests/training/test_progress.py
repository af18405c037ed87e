"""The progress line: nothing unless a person waits at a terminal."""

import io

import pytest

from dpscp.training.engine import progress as _progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances one second a look."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(_progress.time, "monotonic", lambda: float(next(ticks)))


def test_silent_without_a_terminal(clock, capsys):
    assert list(_progress.progress(iter(range(50)), 50, "work")) == list(range(50))
    assert capsys.readouterr() == ("", "")


def test_shows_and_clears_on_a_terminal(clock, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    assert list(_progress.progress(iter(range(10)), 10, "work")) == list(range(10))
    shown = screen.getvalue()
    assert "work [" in shown
    assert "10/10" in shown
    assert "1/10" not in shown.replace("10/10", "")  # the first second stays quiet
    assert shown.endswith("\r\033[K")


def test_short_work_stays_silent_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    list(_progress.progress(iter(range(10)), 10, "work"))
    assert screen.getvalue() == ""


def test_the_line_is_cleared_when_work_is_interrupted(clock, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)

    def interrupted():
        for item in _progress.progress(iter(range(100)), 100, "work"):
            if item == 9:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert screen.getvalue().endswith("\r\033[K")
