"""Show the progress of long work: a line on a terminal, or with ``verbose`` always and in more words.

Everything that is shown or logged is public before the work begins: names of stages, numbers of steps, the time.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
_QUIET_SECONDS = 2.0
_FIRST_SECONDS, _REDRAW_SECONDS = 1.0, 0.5
_REFRESH_SECONDS = 0.25
_WIDTH = 30
# Lines that a verbose run writes for one stage.
_LINES = 10
_log = logging.getLogger("dpscp")
_verbose: ContextVar[int] = ContextVar("dpscp_verbose", default=0)


class _ActivityLine:
    """A line on a terminal that shows the stage and the seconds, while no bar is drawn."""

    def __init__(self) -> None:
        self.stage, self.is_paused, self.is_shown, self.last_bar = "", False, False, 0.0
        self.lock = threading.RLock()

    def run(self, done: threading.Event) -> None:
        """Draw the line twice a second until ``done``."""
        start = time.monotonic()
        while not done.wait(_REDRAW_SECONDS):
            with self.lock:
                now = time.monotonic()
                if not self.is_paused and now - start >= _FIRST_SECONDS and now - self.last_bar > _FIRST_SECONDS:
                    _write(f"\r\033[K{self.stage} ... {now - start:.0f} s ")
                    self.is_shown = True

    def clear(self) -> None:
        """Remove the line."""
        with self.lock:
            if self.is_shown:
                _write("\r\033[K")
            self.is_shown = False


_activity = _ActivityLine()


@contextmanager
def show_activity(stage: str) -> Iterator[None]:
    """Show within two seconds, on a terminal, that work goes on."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    _activity.stage = stage
    thread = threading.Thread(target=_activity.run, args=(done,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        _activity.clear()


@contextmanager
def pause_activity() -> Iterator[None]:
    """Draw no line inside: a person types, or another process writes."""
    with _activity.lock:
        _activity.clear()
        _activity.is_paused = True
    try:
        yield
    finally:
        _activity.is_paused = False


def clear_activity() -> None:
    """Remove the line before other text is printed."""
    _activity.clear()


@contextmanager
def verbosity(verbose: int) -> Iterator[None]:
    """Show the progress of all work inside; 0 leaves it to ``progress``."""
    token = _verbose.set(verbose)
    try:
        yield
    finally:
        _verbose.reset(token)


def announce(stage: str) -> None:
    """Log that a stage begins, and say so where the run is verbose."""
    _log.info(stage)
    _activity.stage = stage
    if _verbose.get():
        _write(f"dpscp: {stage}\n")


def progress(
    items: Iterable[Item],
    total: int,
    label: str,
    position: Callable[[], int] | None = None,
    note: Callable[[int], str] | None = None,
) -> Iterator[Item]:
    """Pass the items through.

    Inside ``verbosity`` ten lines are written, with what ``note`` says of the number of items. Otherwise a bar is drawn
    if standard error is a terminal and two seconds have gone by.

    ``total`` is the number of items, or what ``position`` says at the end: where a file is read to, in bytes.
    """
    if _verbose.get() and position is None:
        for number, item in enumerate(items, start=1):
            yield item
            if _LINES * number // total > _LINES * (number - 1) // total:
                spent = "" if note is None else f", {note(number)}"
                _write(f"{label}: {number}/{total}{spent}\n")
        return
    if not sys.stderr.isatty():
        yield from items
        return
    start = time.monotonic()
    due, is_shown = start + _QUIET_SECONDS, False
    try:
        for number, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            if now >= due:
                done = max(1, min(total, number if position is None else position()))
                filled = _WIDTH * done // total
                left = (now - start) * (total - done) / done
                count = f"{done}/{total}" if position is None else f"{100 * done // total} %"
                with _activity.lock:
                    _activity.clear()
                    _write(f"\r{label} [{'#' * filled}{'.' * (_WIDTH - filled)}] {count}, {left:.0f} s left ")
                    _activity.last_bar = now
                due, is_shown = now + _REFRESH_SECONDS, True
    finally:
        if is_shown:
            _write("\r\033[K")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
