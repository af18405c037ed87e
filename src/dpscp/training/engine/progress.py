"""Show a progress line for long work, on a terminal's standard error only."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_QUIET_SECONDS = 2.0
_REFRESH_SECONDS = 0.25
_WIDTH = 30


def progress(
    items: Iterable[Item], total: int, label: str, position: Callable[[], int] | None = None
) -> Iterator[Item]:
    """Pass the items through.

    Silent unless standard error is a terminal and two seconds have gone by.

    ``total`` is the number of items, or what ``position`` says at the end: where a file is read to, in bytes.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    start = time.monotonic()
    due = start + _QUIET_SECONDS
    shown = False
    try:
        for number, item in enumerate(items, start=1):
            yield item
            now = time.monotonic()
            if now >= due:
                done = max(1, min(total, number if position is None else position()))
                filled = _WIDTH * done // total
                left = (now - start) * (total - done) / done
                count = f"{done}/{total}" if position is None else f"{100 * done // total} %"
                bar = "#" * filled + "." * (_WIDTH - filled)
                sys.stderr.write(f"\r{label} [{bar}] {count}, {left:.0f} s left ")
                sys.stderr.flush()
                due, shown = now + _REFRESH_SECONDS, True
    finally:
        if shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
