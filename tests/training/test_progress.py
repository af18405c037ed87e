"""The progress line: nothing unless a person waits at a terminal."""

import io
import logging

import numpy as np
import pytest

from dpscp import PrivateConformalClassifier
from dpscp._base import progress as _progress
from dpscp.training import DPSGD


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


def test_a_verbose_fit_says_and_logs_its_stages_and_nothing_of_the_records(capsys, caplog):
    """Two tables of different records and sizes, the same declarations: the same words."""
    shown = []
    for seed, n in ((0, 400), (1, 380)):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(n, 2))
        estimator = PrivateConformalClassifier(
            DPSGD(steps=20), classes=[0, 1], n_records=400, evaluation_fraction=0.2, accountant="rdp", verbose=1
        )
        with caplog.at_level(logging.INFO, logger="dpscp"):
            estimator.set_params(epsilon=2.0).fit(X, (X[:, 0] > 0).astype(int))
        shown.append((capsys.readouterr().err, caplog.messages.copy()))
        caplog.clear()
    assert shown[0] == shown[1]
    text, logged = shown[0]
    assert "private training: 20/20" in text
    assert logged[0] == "train with guarantee 'split'"
    assert len(logged) == 3
    assert capsys.readouterr().out == ""
