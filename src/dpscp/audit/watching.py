"""What a white-box attacker sees: the noisy counts and noisy gradients of the real code, while it runs.

The code under test is not copied: for the length of a game two of its internal functions are wrapped, and everything
they do, with whatever bug it has, is done by them. Not for use in several threads at once.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.quantile import ReleasedSize, search
from dpscp.quantile.counts import Counter
from dpscp.quantile.released_size import release_size
from dpscp.training.descent import Descent

__all__ = ["SearchView", "StepView", "replaced", "watched_search", "watched_size", "watched_steps"]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` inside the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True)
class SearchView:
    """One search: its public constants, and for each count its bracket and the noisy margin that decided."""

    score_range: tuple[float, float]
    scale: int
    base: int
    bar: int
    brackets: tuple[tuple[float, float], ...]
    counts: tuple[int, ...]
    margins: NDArray[np.float64]

    @property
    def constants(self) -> tuple[Any, ...]:
        """What must not depend on the records; the number of records enters ``base`` only."""
        return self.score_range, self.scale, len(self.margins)


class _Listening:
    """A counter that keeps what it was asked and what it answered."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.size = counter.size
        self.asked: list[tuple[float, float]] = []
        self.answers: list[int] = []

    def count(self, left: float, right: float, steps_left: int) -> int:
        answer = self._counter.count(left, right, steps_left)
        self.asked.append((left, right))
        self.answers.append(answer)
        return answer


@contextmanager
def watched_search(heard: Callable[[SearchView], None]) -> Iterator[None]:
    """Calls ``heard`` with every private search that runs inside the block."""
    original = search._right_endpoint_search

    def watching(
        counter: Counter,
        score_range: tuple[float, float],
        scale: int,
        removed: Fraction | int,
        needed: Fraction,
        draws: list[int],
    ) -> float:
        listening = _Listening(counter)
        threshold = original(listening, score_range, scale, removed, needed, draws)
        base, bar = int(scale * removed), math.ceil(scale * needed)
        # a count at the very end of the range is not asked for: such a step tells no more than its noise
        noise = np.array(draws[: len(listening.answers)], dtype=np.float64)
        margins = scale * np.array(listening.answers, dtype=np.float64) - base - bar + noise
        asked, answers = tuple(listening.asked), tuple(listening.answers)
        heard(SearchView(score_range, scale, base, bar, asked, answers, margins))
        return threshold

    with replaced(search, "_right_endpoint_search", watching):
        yield


@contextmanager
def watched_size(heard: Callable[[ReleasedSize], None]) -> Iterator[None]:
    """Calls ``heard`` with every noisy number of scores that is released inside the block."""

    def watching(size: int, size_noise: float | LatticeNoise, source: IntegerSource) -> ReleasedSize:
        released = release_size(size, size_noise, source)
        heard(released)
        return released

    with replaced(search, "release_size", watching):
        yield


@dataclass(frozen=True)
class StepView:
    """One step of training: the parameters before it, the noisy clipped sum that was used, its public constants."""

    parameters: NDArray[Any]
    noisy_sum: NDArray[np.float64]
    constants: tuple[float, ...]


@contextmanager
def watched_steps(heard: Callable[[StepView], None]) -> Iterator[None]:
    """Calls ``heard`` with every noisy gradient step that runs inside the block."""
    original = Descent._update

    def watching(self: Descent, gradient: NDArray[np.float64]) -> None:
        rate = float(self.rule.learning_rates[self.step_count])
        constants = (self.normaliser, self.grid, rate)
        heard(StepView(self._fast.copy(), gradient * self.normaliser, constants))
        original(self, gradient)

    with replaced(Descent, "_update", watching):
        yield
