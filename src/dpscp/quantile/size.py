"""The released size: a noisy number of scores, bought once, so that the search can use the cheap rank statistic.

The centred statistic C - (n + 1)/2 has sensitivity 1/2 but needs to know n; the linear one follows n by itself and has
sensitivity max(alpha, 1 - alpha). Where n is private, release n~ = n + Y with integer noise and search with the
centred statistic against (1/2 - alpha)(n~ + 1) + c(n~). Relative to the true target the offset is then
c(n~) + (1/2 - alpha) Y, and with V_N of Result F the miss rate given Y = y is at most

    alpha + W(c(n + y) + (1/2 - alpha) y) noise / (n + 1),    W(c) = V_N(c - A) - c in units of the noise.

V is flat on the left and of slope one on the right, so the noise of the size costs coverage where n is small: taking
c at n~, or at a lower confidence value of n, is not valid. The rule here is: c~(n) solves E[W(c~ + (1/2 - alpha) Y)] <=
0 at a level lower by ``tail``, and c(n~) = c~(n~ - reach) with P(Y > reach) <= tail. When Y <= reach this is at least
c~(n), because c~ does not rise with n, and W falls in c; otherwise a miss costs at most 1, with probability tail.

Theory: Result G
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy import special

from dpscp._base.checks import check_nonnegative, check_positive, check_probability
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.privacy.events import DpEvent
from dpscp.quantile.minimax import worst_excess
from dpscp.quantile.single_release import NoisySize

# Charged to alpha for a size that came out far too large.
_TAIL, _TAIL_SHARE = 1e-4, 0.01
# Lower ends of buckets of a standard normal: V(l) - l does not rise, so each bucket is charged at its lower end. Below
# the first lies a mass of 1e-33, which changes no float.
_ENDS = np.linspace(-12.0, 6.0, 1801)
_MASSES = np.diff(special.ndtr(_ENDS), append=1.0)


@dataclass(frozen=True)
class ReleasedSize:
    """A noisy number of scores: public from now on. ``value`` is a multiple of 1 / scale."""

    value: Fraction
    noise: LatticeNoise

    @property
    def event(self) -> DpEvent:
        """What the release cost."""
        return self.noise.event(1)

    @property
    def size_noise(self) -> float:
        """The standard deviation of its noise."""
        return self.noise.count_noise

    def known(self) -> NoisySize:
        """What it says about the true number."""
        return NoisySize(self.value, self.size_noise, 1 / self.noise.scale)


def release_size(size: int, size_noise: float | LatticeNoise, source: IntegerSource) -> ReleasedSize:
    """``size`` with integer noise of standard deviation ``size_noise``; one record changes it by 1.

    Theory: Result G
    """
    if not isinstance(size_noise, LatticeNoise):
        check_positive("size_noise", size_noise)
    noise = LatticeNoise.of(size_noise, Fraction(1))
    (drawn,) = noise.sample(1, source)
    return ReleasedSize(size + Fraction(drawn, noise.scale), noise)


def size_tail(alpha: float) -> float:
    """What a released size costs of the level ``alpha``: the charge for a size that came out far too large."""
    return min(_TAIL, _TAIL_SHARE * check_probability("alpha", alpha))


def sized_offset(
    alpha: float,
    released: float,
    size_noise: float,
    count_noise: float,
    steps: int,
    *,
    size_unit: float = 0.0,
    graded: bool = False,
) -> float:
    """c(n~), in ranks: the offset of a search whose target rank was computed from a released size n~.

    ``alpha`` is the level of the search, already lower by ``size_tail``. With this offset the miss rate is at most
    alpha plus that tail for every true n, conditionally on n. ``size_unit`` is the lattice spacing of the size's noise:
    integer noise is at most a normal one moved by one unit, in law. ``graded``: the offset of the last step, where
    earlier ones aim higher by ``step_rises``, as ``private_quantile`` does.

    Theory: Result G
    """
    alpha = check_probability("alpha", alpha)
    size_noise, count_noise = check_nonnegative("size_noise", size_noise), check_positive("count_noise", count_noise)
    reach = size_noise * float(-special.ndtri(size_tail(alpha))) + size_unit
    least = max(0.0, released - reach)
    swing = abs(0.5 - alpha)
    offset = _smallest_offset(alpha * (least + 1) / count_noise, swing * size_noise / count_noise, steps, graded)
    return offset * count_noise + swing * size_unit


@lru_cache(maxsize=1024)
def _smallest_offset(room: float, spread: float, steps: int, graded: bool) -> float:
    """The smallest c with E[V(c - room + spread * normal)] <= c, to 1e-5 and never below.

    The normal has mean zero, so this is E[V(l) - l] <= room: nothing is subtracted from numbers of like size.
    """
    starts = spread * _ENDS

    def holds(c: float) -> bool:
        return float(_MASSES @ worst_excess(c - room + starts, steps, graded=graded)) <= room

    good, bad = 1.0, 0.0
    while not holds(good):
        good *= 2
    while holds(bad):
        good, bad = bad, 2 * bad - 1
    while good - bad > 1e-5 * max(1.0, abs(good)):
        middle = (good + bad) / 2
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good
