"""How far a run is, and how long the rest will take."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Bar", "describe_plan", "expected_minutes", "minutes_of"]

# how often a run whose output is no terminal says where it is
QUIET_SECONDS = 60.0


class Bar:
    """A progress bar on standard error; a line a minute where that is not a terminal."""

    def __init__(self, name: str, total: int, done: int) -> None:
        self.name, self.total, self.done = name, total, done
        self.first, self.started = done, time.monotonic()
        self.is_terminal, self.last_shown = sys.stderr.isatty(), self.started

    def __enter__(self) -> "Bar":
        self._show()
        return self

    def advance(self) -> None:
        """One more task is finished."""
        self.done += 1
        self._show()

    def _show(self) -> None:
        if not self.total:
            return
        now = time.monotonic()
        fresh = self.done - self.first
        left = f", {(now - self.started) / fresh * (self.total - self.done) / 60:.1f} min left" if fresh else ""
        if self.is_terminal:
            filled = 30 * self.done // self.total
            drawn = f"\r{self.name:18s} [{'#' * filled}{'.' * (30 - filled)}] {self.done}/{self.total}{left}   "
            print(drawn, end="", file=sys.stderr, flush=True)
        elif now - self.last_shown >= QUIET_SECONDS:
            self.last_shown = now
            print(f"{self.name}: {self.done}/{self.total}{left}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self.is_terminal:
            print(file=sys.stderr)


def minutes_of(page: Path) -> float | None:
    """Minutes of one core that a page of results says its tasks took; None where there is no such page."""
    found = re.search(r"([\d.]+)\s+minutes\s+of\s+one\s+core", page.read_text()) if page.exists() else None
    return None if found is None else float(found.group(1))


def expected_minutes(
    waiting: Sequence[str], finished: Sequence[Mapping[str, Any]], page_minutes: float | None, page_tasks: int
) -> float | None:
    """Minutes of one core for tasks of the ``waiting`` kinds.

    A task takes as long as the finished ones of its kind, of any version; where there are none, as long as a task of
    the committed page. None: nobody knows.
    """
    known: dict[str, list[float]] = {}
    for record in finished:
        known.setdefault(record["kind"], []).append(record["seconds"])
    means = {kind: sum(seconds) / len(seconds) for kind, seconds in known.items()}
    usual = None if page_minutes is None else 60 * page_minutes / page_tasks
    seconds = [means.get(kind, usual) for kind in waiting]
    return None if None in seconds else sum(s for s in seconds if s is not None) / 60


def describe_plan(minutes: Mapping[str, float | None], workers: int) -> str:
    """Describe what is left: the whole time by the clock, and the studies of unknown length."""
    known = [m for m in minutes.values() if m is not None]
    unknown = [name for name, m in minutes.items() if m is None]
    left = [f"about {sum(known) / workers:.0f} minutes left with {workers} process{'es' if workers > 1 else ''}"]
    return "; ".join((left if known else []) + ([f"of unknown length: {', '.join(unknown)}"] if unknown else []))
