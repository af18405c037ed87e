"""What a search can tell an observer: its public constants, and every noisy count with the exact one behind it.

For tests and audits only. An observer hears exact counts, which no ledger pays for: what it hears is not private and
must not be released.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from dpscp.quantile.counts import EVEN, Halving
from dpscp.quantile.size import ReleasedSize


class CountView(NamedTuple):
    """One question: its bracket, the exact count at the middle, and the noisy margin over the last step's bar."""

    bracket: tuple[float, float]
    exact: int | Fraction
    margin: int


@dataclass(frozen=True)
class SearchView:
    """One search: scale * count - base + noise was compared with bar; ``bought_size`` is the size it released, if any.

    The number of scores enters ``base`` only. A step accepts when its margin reaches its ``rises``; ``halving`` says
    where a bracket's middle is.
    """

    score_range: tuple[float, float]
    scale: int
    base: int
    bar: int
    counts: tuple[CountView, ...]
    bought_size: ReleasedSize | None = None
    rises: tuple[int, ...] = ()
    halving: Halving = EVEN


SearchObserver = Callable[[SearchView], None]
