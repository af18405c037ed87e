"""Exact integer noise for private statistics.

* ``sample_discrete_gaussian``: the algorithm of Canonne, Kamath and Steinke (2020). Every decision compares integers
  drawn from operating-system entropy. No floating-point number takes part.
* ``LatticeNoise``: integer noise for a statistic of rational sensitivity. The object that the accountant charged is the
  one that is sampled from. It is passed on and never built a second time.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from dp_accounting.dp_event import DpEvent

from dpscp._base.checks import check_count, check_positive
from dpscp.privacy.events import discrete_gaussian_event
from dpscp.privacy.random_streams import secure_bytes

# At this scale, rounding the noise scale up to an integer costs less than 0.03 %.
_LATTICE_SCALE = 4096
# Bytes that are drawn at once: a draw of noise needs a few hundred, a few at a time.
_BYTES_AT_ONCE = 2048


class IntegerSource:
    """Uniform integers from operating-system entropy, or from a seed (not private).

    Parameters
    ----------
    random_state : int, optional
        A seed for tests; warns.
    """

    def __init__(self, random_state: int | None = None) -> None:
        self._bytes = secure_bytes(random_state)
        self._drawn, self._used = b"", 0

    def below(self, bound: int) -> int:
        """Return an integer that is exactly uniform on 0 .. bound - 1, by rejection."""
        bits = (bound - 1).bit_length()
        width, mask = (bits + 7) // 8, (1 << bits) - 1
        while True:
            start = self._used
            if start + width > len(self._drawn):
                self._drawn, start = self._bytes(max(width, _BYTES_AT_ONCE)), 0
            self._used = start + width  # each byte is used once
            value = int.from_bytes(self._drawn[start : start + width], "little") & mask
            if value < bound:
                return value

    def bernoulli_exp(self, numerator: int, denominator: int) -> bool:
        """Return a Bernoulli(exp(-numerator / denominator)) draw (von Neumann)."""
        # a Bernoulli(exp(-k)) draw is true if k draws of Bernoulli(exp(-1)) are true
        while numerator > denominator:
            if not self.bernoulli_exp(1, 1):
                return False
            numerator -= denominator
        # draw Bernoulli(g / k) for k = 1, 2, ... until one fails: true if that k is odd
        k = 1
        while self.below(k * denominator) < numerator:
            k += 1
        return k % 2 == 1


def sample_discrete_gaussian(sigma: int, size: int, source: IntegerSource) -> list[int]:
    """Return exact draws of the discrete Gaussian.

    P(x) is proportional to exp(-x^2 / (2 sigma^2)) on the integers. Only arithmetic of Python integers is used.

    Parameters
    ----------
    sigma : int
        The noise scale.
    size : int
    source : IntegerSource

    Returns
    -------
    list of int

    Paper: Canonne, Kamath and Steinke (2020), The Discrete Gaussian for Differential Privacy
    """
    sigma = check_count("sigma", sigma)
    t, drawn = sigma + 1, list[int]()
    while len(drawn) < size:
        candidate = _discrete_laplace(t, source)
        if source.bernoulli_exp((abs(candidate) * t - sigma * sigma) ** 2, 2 * (sigma * t) ** 2):
            drawn.append(candidate)
    return drawn


def _discrete_laplace(t: int, source: IntegerSource) -> int:
    """Return an exact draw with P(x) proportional to exp(-|x| / t)."""
    while True:
        magnitude = source.below(t)
        if not source.bernoulli_exp(magnitude, t):
            continue
        while source.bernoulli_exp(1, 1):
            magnitude += t
        is_negative = source.below(2) == 1
        # zero would be drawn twice as often, once for each sign: reject one of them
        if magnitude or not is_negative:
            return -magnitude if is_negative else magnitude


@dataclass(frozen=True)
class LatticeNoise:
    """Integer noise for a statistic of rational sensitivity.

    Multiply the statistic by ``scale`` and add the noise.

    Attributes
    ----------
    scale : int
    sigma : int
        The noise scale on the integers. It is never below the requested one.
    sensitivity : int
        The sensitivity of the scaled statistic.

    Privacy: ``event(count)`` for ``count`` releases.
    """

    scale: int
    sigma: int
    sensitivity: int

    @classmethod
    def of(cls, count_noise: "float | LatticeNoise", sensitivity: Fraction) -> "LatticeNoise":
        """Return a ``LatticeNoise`` as it is, or make one of this standard deviation."""
        if not isinstance(count_noise, LatticeNoise):
            return lattice_noise(count_noise, sensitivity)
        if count_noise.scale * sensitivity != count_noise.sensitivity:
            made_for = Fraction(count_noise.sensitivity, count_noise.scale)
            raise ValueError(
                f"count_noise was made for a statistic of sensitivity {made_for}, this one has {sensitivity}; "
                "call lattice_noise(count_noise, sensitivity) for this statistic"
            )
        return count_noise

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise, in units of the statistic."""
        return self.sigma / self.scale

    def event(self, count: int) -> DpEvent:
        """Return the event of ``count`` releases."""
        return discrete_gaussian_event(self.sigma, self.sensitivity, count)

    def sample(self, size: int, source: IntegerSource) -> list[int]:
        """Return ``size`` draws, in units of 1 / scale."""
        return sample_discrete_gaussian(self.sigma, size, source)


def lattice_noise(count_noise: float, sensitivity: float | Fraction = 1, multiple: int = 1) -> LatticeNoise:
    """Return integer noise of standard deviation ``count_noise``.

    Parameters
    ----------
    count_noise : float
        It is rounded up by less than 0.03 %.
    sensitivity : float or Fraction
    multiple : int
        The scale is a multiple of it: a statistic in units of 1 / ``multiple`` is an integer on this lattice.

    Returns
    -------
    LatticeNoise

    >>> noise = lattice_noise(40, Fraction(1, 2))
    >>> noise.sensitivity / noise.scale, noise.count_noise
    (0.5, 40.0)
    """
    count_noise = check_positive("count_noise", count_noise)
    exact = sensitivity_fraction(sensitivity)
    base = math.lcm(exact.denominator, multiple)
    refine = max(1, math.ceil(Fraction(_LATTICE_SCALE) / (Fraction(count_noise) * base)))
    scale = base * refine
    sigma = math.ceil(Fraction(count_noise) * scale)
    return LatticeNoise(scale, sigma, int(exact * scale))


def sensitivity_fraction(sensitivity: float | Fraction) -> Fraction:
    """Return the sensitivity as a fraction; floats are rounded up to 1e-6."""
    check_positive("sensitivity", sensitivity)
    if isinstance(sensitivity, Fraction):
        return sensitivity
    return Fraction(max(1, math.ceil(Fraction(sensitivity).limit_denominator(10**9) * 10**6)), 10**6)
