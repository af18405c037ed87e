"""What a search shows an observer: public constants, noisy and exact counts.

For tests and audits only. No ledger pays for the exact counts: they are not private and must not be released.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from dpscp.threshold.counts import EVEN, Halving
from dpscp.threshold.size import ReleasedSize


class CountView(NamedTuple):
    """One count: its bracket, the exact count at the middle, and the noisy margin.

    The margin is relative to the acceptance level of the last step.
    """

    bracket: tuple[float, float]
    exact: int | Fraction
    margin: int


@dataclass(frozen=True)
class SearchView:
    """One search: scale * count - base + noise was compared with bar.

    The number of scores enters ``base`` only. A step accepts if its margin reaches its ``rises``. ``halving`` gives the
    middle of a bracket. ``bought_size`` is the size that the search released, if any.
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
