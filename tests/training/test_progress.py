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


@pytest.mark.parametrize("level", [0, 1])
def test_a_process_without_standard_error_works(clock, monkeypatch, level):
    """As under pythonw: a fit must not end after it has reserved its budget."""
    monkeypatch.setattr("sys.stderr", None)
    with _progress.verbosity(level), _progress.show_activity("work"):
        _progress.announce("work")
        assert list(_progress.progress(iter(range(50)), 50, "work")) == list(range(50))


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
    assert logged[1:] == [
        "prepare the records for training",
        "score the records",
        "search the thresholds",
        "evaluate the release on the evaluation part",
    ]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("blocks", [3, 16])
def test_a_reading_is_shown_by_its_share_and_not_by_its_blocks(blocks, clock, capsys, monkeypatch):
    """Tables of other sizes, the same words: a share of the public number of records."""

    def read():
        done = 0
        _progress.announce("read the table")

        def items():
            nonlocal done
            for block in range(blocks):
                done = block + 1
                yield block

        return list(_progress.show_pass(items(), lambda: done / blocks, 2000))

    assert len(read()) == blocks
    assert capsys.readouterr().err == ""
    with _progress.verbosity(1):
        for _ in _progress.progress(range(1), 1, "steps"):
            read()  # inside other work that is shown
    assert capsys.readouterr().err.splitlines() == ["dpscp: read the table", "steps: 1/1"]
    monkeypatch.setattr(_progress, "_QUIET_SECONDS", 0.0)
    with _progress.verbosity(1):
        read()
    quarters = [f"read the table: {number} of 2,000 records" for number in ("500", "1,000", "1,500", "2,000")]
    assert capsys.readouterr().err.splitlines() == ["dpscp: read the table", *quarters]
    with _progress.verbosity(1, delay=1e9):
        read()
    assert capsys.readouterr().err == ""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    read()
    assert "read the table [" in screen.getvalue()
    assert "2,000 of 2,000 records" in screen.getvalue()
