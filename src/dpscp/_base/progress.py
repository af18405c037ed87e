"""Show the progress of long work in a line; with ``verbose``, in more words.

Without ``verbose``, it is shown on a terminal only.

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
# Lines that a verbose run writes for a stage of steps, and for a reading of the records.
_LINES, _QUARTERS = 10, 4
_log = logging.getLogger("dpscp")
_verbose: ContextVar[int] = ContextVar("dpscp_verbose", default=0)
# When lines may be written from, and whether work inside other work that shows itself is going on.
_start: ContextVar[float] = ContextVar("dpscp_start", default=0.0)
_is_inside: ContextVar[bool] = ContextVar("dpscp_inside", default=False)


class _ActivityLine:
    """A terminal line with the stage and the seconds, while no bar is drawn."""

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
    if sys.stderr is None or not sys.stderr.isatty():  # a service may have none
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
def verbosity(verbose: int, delay: float = 0.0) -> Iterator[None]:
    """Show the progress of all work inside in lines, after ``delay`` seconds.

    A ``delay`` of 0 changes nothing.
    """
    before = _verbose.set(verbose or _verbose.get()), _start.set(time.monotonic() + delay if verbose else _start.get())
    try:
        yield
    finally:
        _verbose.reset(before[0])
        _start.reset(before[1])


def announce(stage: str) -> None:
    """Log that a stage begins, and say so where the run is verbose."""
    _log.info(stage)
    _activity.stage = stage
    if _writes_lines():
        _write(f"dpscp: {stage}\n")


def _writes_lines() -> bool:
    return _verbose.get() > 0 and time.monotonic() >= _start.get()


def progress(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    """Pass the items through, and show their number.

    Inside ``verbosity`` ten lines are written. Otherwise a bar is drawn if standard error is a terminal and two seconds
    have gone by. Work inside this work shows nothing.
    """

    def text(number: int, _share: float) -> str:
        return f"{number}/{total}"

    return _show(items, label, lambda number: number / total, text, lines=min(_LINES, total))


def show_pass(items: Iterable[Item], share: Callable[[], float], records: int | None = None) -> Iterator[Item]:
    """Yield the items of one reading, and show which ``share`` of them was read.

    The share is shown with the name of the stage, and of the public number of ``records`` where there is one: a number
    of blocks would reveal that of the records. So a fast reading writes no line, and a slow one writes four.
    """

    def text(_number: int, done: float) -> str:
        return f"{done:.0%}" if records is None else f"{round(done * records):,} of {records:,} records"

    label = _activity.stage or "reading"
    return _show(items, label, lambda _: min(1.0, share()), text, lines=_QUARTERS, quiet=_QUIET_SECONDS)


def _show(
    items: Iterable[Item],
    label: str,
    share: Callable[[int], float],
    text: Callable[[int, float], str],
    *,
    lines: int,
    quiet: float = 0.0,
) -> Iterator[Item]:
    """Yield the items; write lines (verbose) or draw a bar.

    A verbose run writes ``lines`` lines, after ``quiet`` seconds.
    """
    is_verbose = _verbose.get() > 0
    # a service may have no standard error
    if _is_inside.get() or not (is_verbose or (sys.stderr is not None and sys.stderr.isatty())):
        yield from items
        return
    start, shown = time.monotonic(), 0
    due = start + (quiet if is_verbose else _QUIET_SECONDS)
    _is_inside.set(True)
    try:
        for number, item in enumerate(items, start=1):
            yield item
            done, now = share(number), time.monotonic()
            while is_verbose and shown < int(lines * done + 1e-9):
                shown += 1
                if now >= due and _writes_lines():
                    _write(f"{label}: {text(number, shown / lines)}\n")
            if not is_verbose and now >= due:
                left = (now - start) * (1 - done) / max(done, 1e-9)
                bar = "#" * int(_WIDTH * done)
                with _activity.lock:
                    _activity.clear()
                    _write(f"\r{label} [{bar:.<{_WIDTH}}] {text(number, done)}, {left:.0f} s left ")
                    _activity.last_bar = now
                due, shown = now + _REFRESH_SECONDS, shown + 1
    finally:
        _is_inside.set(False)
        if shown and not is_verbose:
            _write("\r\033[K")


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
