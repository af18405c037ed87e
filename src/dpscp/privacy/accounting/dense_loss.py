"""Privacy losses on a grid, as arrays: connect the dots and compose.

dp-accounting does the same with dictionaries and Python loops over a hundred thousand losses. A fit composes dozens of
them while it searches for its noise, so that these loops were most of the time of a small fit.
"""

import math

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Loss
from scipy import fft

from dpscp._base.arrays import FloatArray

# Exponents of the Chernoff bound on the ends of a composition, as multiples of one over the number of losses
_ORDERS = np.arange(1, 21)


def connect_dots(bucket: float, low: int, deltas: FloatArray) -> DensePLDPmf:
    """Return a loss on the grid whose profile connects these deltas.

    A profile is convex in e^epsilon, so the chords lie above it (Algorithm 1 of Doroshenko et al. 2022).

    Parameters
    ----------
    bucket : float
        Distance between the losses.
    low : int
        The first loss, in buckets.
    deltas : ndarray of shape (n,), n at least 2
        Delta at the losses ``low * bucket``, ``(low + 1) * bucket`` and so on.
    """
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    steps = np.diff(deltas)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + steps[0] / math.expm1(bucket)
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(bucket)) / math.expm1(bucket)
    masses[-1] = steps[-1] / math.expm1(-bucket)
    return DensePLDPmf(bucket, low, np.maximum(0.0, masses), float(deltas[-1]), True)


def compose(first: Loss, second: Loss, tail: float) -> Loss:
    """Return the loss of both releases; losses rarer than ``tail`` count as infinite."""
    remove = _compose_pmfs(first._pmf_remove, second._pmf_remove, tail)
    if first._symmetric and second._symmetric:
        return Loss(remove)
    return Loss(remove, _compose_pmfs(first._pmf_add, second._pmf_add, tail))


def self_compose(loss: Loss, count: int, tail: float) -> Loss:
    """Return the loss of ``count`` releases of one kind."""
    remove = _self_compose_pmf(loss._pmf_remove, count, tail)
    return Loss(remove) if loss._symmetric else Loss(remove, _self_compose_pmf(loss._pmf_add, count, tail))


def _compose_pmfs(first: PLDPmf, second: PLDPmf, tail: float) -> PLDPmf:
    if not (isinstance(first, DensePLDPmf) and isinstance(second, DensePLDPmf)):
        # few losses far apart: dp-accounting keeps them as a dictionary
        return Loss(first).compose(Loss(second), tail)._pmf_remove
    from scipy import signal  # a tenth of a second to import, and only two unlike losses need it

    masses = signal.fftconvolve(first._probs, second._probs)
    left = _prefix_below(masses, tail / 2)
    right = max(masses.size - _prefix_below(masses[::-1], tail / 2), left + 1)
    kept = masses[left:right]
    kept[0] += masses[:left].sum()
    infinite = first._infinity_mass + second._infinity_mass - first._infinity_mass * second._infinity_mass
    low = first._lower_loss + second._lower_loss + left
    return DensePLDPmf(first._discretization, low, kept, infinite + masses[right:].sum(), True)


def _prefix_below(masses: FloatArray, most: float) -> int:
    """Return the length of the prefix before the sum first exceeds ``most``; 0 if it never does."""
    return int(np.argmax(np.cumsum(masses) > most))


def _self_compose_pmf(pmf: PLDPmf, count: int, tail: float) -> PLDPmf:
    if not isinstance(pmf, DensePLDPmf):
        return Loss(pmf).self_compose(count, tail)._pmf_remove
    masses = pmf._probs
    low, high = _likely_range(masses, count, tail)
    size = fft.next_fast_len(max(high - low + 1, masses.size), real=True)
    # the transform wraps around: what is rarer than the tail falls onto other losses, and the tail counts as infinite
    composed = np.roll(fft.irfft(fft.rfft(masses, size) ** count, size), -low)[: high - low + 1]
    infinite = tail - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(pmf._discretization, pmf._lower_loss * count + low, composed, infinite, True)


def _likely_range(masses: FloatArray, count: int, tail: float) -> tuple[int, int]:
    """Return places outside of which at most ``tail`` of the composed mass lies, by Chernoff's bound."""
    last = masses.size - 1
    growth = np.exp(np.arange(masses.size) / masses.size)
    rising, falling = masses.copy(), masses.copy()
    low, high = 0, last * count
    for order in _ORDERS / masses.size:
        rising *= growth
        falling /= growth
        charge = math.log(2 / tail)
        high = min(high, math.ceil((count * math.log(rising.sum()) + charge) / order))
        low = max(low, math.floor(-(count * math.log(falling.sum()) + charge) / order))
    return low, high
