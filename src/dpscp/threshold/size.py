"""The released size: a noisy number of scores, released once.

With it the search can use the cheaper rank statistic. The centered statistic C - (n + 1)/2 has sensitivity 1/2 but
needs n. The linear one needs no n and has sensitivity max(alpha, 1 - alpha). If n is private, release n~ = n + Y with
integer noise, and compare the centered statistic with (1/2 - alpha)(n~ + 1) + c(n~). Relative to the true target the
offset is then c(n~) + (1/2 - alpha) Y. With V_N of Result F the miss rate given Y = y is at most

    alpha + W(c(n + y) + (1/2 - alpha) y) noise / (n + 1),    W(c) = V_N(c - A) - c in units of the noise.

V is flat on the left and has slope one on the right. So the noise of the size costs coverage if n is small, and c at n~
or at a lower confidence value of n is not valid. The rule: c~(n) solves E[W(c~ + (1/2 - alpha) Y)] <= 0 at a level
lower by ``tail``, and c(n~) = c~(n~ - reach) with P(Y > reach) <= tail. If Y <= reach, this is at least c~(n), because
c~ does not rise with n, and W falls in c. Otherwise a miss costs at most 1, with probability tail.

Theory: Result G
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from scipy import special

from dpscp._base.checks import check_nonnegative, check_positive, check_probability
from dpscp.privacy import IntegerSource, LatticeNoise
from dpscp.threshold.minimax import worst_excess
from dpscp.threshold.single_release import NoisySize

# The part of alpha that is charged for a released size that is far too large.
_TAIL, _TAIL_SHARE = 1e-4, 0.01
# Lower ends of buckets of a standard normal. V(l) - l does not rise, so each bucket is charged at its lower end. The
# mass below the first end is 1e-33, which changes no float.
_ENDS = np.linspace(-12.0, 6.0, 1801)
_MASSES = np.diff(special.ndtr(_ENDS), append=1.0)


@dataclass(frozen=True)
class ReleasedSize:
    """A released noisy number of scores; it is public.

    Attributes
    ----------
    value : Fraction
        A multiple of 1 / scale.
    noise : LatticeNoise
    """

    value: Fraction
    noise: LatticeNoise

    @property
    def event(self) -> DpEvent:
        """The event of the release."""
        return self.noise.event(1)

    @property
    def size_noise(self) -> float:
        """The standard deviation of its noise."""
        return self.noise.count_noise

    def as_noisy_size(self) -> NoisySize:
        """Return what is known about the true number."""
        return NoisySize(self.value, self.size_noise, 1 / self.noise.scale)


def release_size(size: int, size_noise: float | LatticeNoise, source: IntegerSource) -> ReleasedSize:
    """Release ``size`` with integer noise of standard deviation ``size_noise``.

    Privacy: one record changes the size by 1; ``ReleasedSize.event`` is the cost.

    Theory: Result G
    """
    if not isinstance(size_noise, LatticeNoise):
        check_positive("size_noise", size_noise)
    noise = LatticeNoise.of(size_noise, Fraction(1))
    (drawn,) = noise.sample(1, source)
    return ReleasedSize(size + Fraction(drawn, noise.scale), noise)


def size_tail(alpha: float) -> float:
    """Return the part of ``alpha`` that a released size costs.

    Parameters
    ----------
    alpha : float

    Returns
    -------
    float

    Theory: Result G
    """
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
    """Return c(n~), the offset of a search that aims by a released size n~.

    The miss rate is then at most alpha plus ``size_tail`` for every true n, conditionally on n.

    Parameters
    ----------
    alpha : float
        The level of the search, already lower by ``size_tail``.
    released : float
        n~.
    size_noise, count_noise : float
    steps : int
    size_unit : float
        The lattice spacing of the size's noise. In law, integer noise is at most normal noise moved by one unit.
    graded : bool
        Return the offset of the last step; earlier steps aim higher by ``step_rises``, as in ``private_quantile``.

    Returns
    -------
    float
        In ranks.

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
def _smallest_offset(surplus: float, spread: float, steps: int, graded: bool) -> float:
    """Return the smallest c with E[V(c - surplus + spread * normal)] <= c.

    It is at most 1e-5 too large and never too small. The normal has mean zero, so this is E[V(l) - l] <= surplus:
    numbers of similar size are never subtracted.
    """
    starts = spread * _ENDS

    def holds(c: float) -> bool:
        return float(_MASSES @ worst_excess(c - surplus + starts, steps, graded=graded)) <= surplus

    good, bad = 1.0, 0.0
    while not holds(good):
        good *= 2
    while holds(bad):
        good, bad = bad, 2 * bad - 1
    while good - bad > 1e-5 * max(1.0, abs(good)):
        middle = (good + bad) / 2
        bad, good = (bad, middle) if holds(middle) else (middle, good)
    return good
