"""The privacy loss of a secret split: training and search on secret parts.

Let P be the law of (training, search) without the record. With it, the law is (1 - f) T' x K + f T x K', where a prime
marks the part that contains the record. This is a mixture, and the more expensive part alone is an upper bound. Each
part is dominated by a pair of discrete laws (connect-the-dots on its privacy profile). The mixture of the pairs
dominates the mixture of the parts.

Theory: The secret split
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Loss

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting.base import Direction
from dpscp.privacy.accounting.pld import PLD, largest_loss
from dpscp.privacy.events import SecretSplitDpEvent

# Points of a part's profile on each side of 0, denser near 0. Epsilon is too large by about 1e-4 of itself, and never
# too small.
_DOTS = 256
_MOST_DOTS_OF_MIXTURE = 8192
# exp of a larger loss overflows
_LARGEST_LOSS = 300.0


def secret_split_loss(event: SecretSplitDpEvent, bucket: float) -> Loss:
    """Return the loss of the mixture, in buckets of this width, rounded up.

    Theory: The secret split
    """
    event = _regroup(event)
    return Loss(_mixture_pmf(event, "remove", bucket), _mixture_pmf(event, "add", bucket))


def _regroup(event: SecretSplitDpEvent) -> SecretSplitDpEvent:
    """Return the same mixture of three parts with the last part joined to the first.

    A mixture has no order. While the noise of the second part is searched for, the other two are computed once.
    """
    inner = event.held_out
    if not isinstance(inner, SecretSplitDpEvent):
        return event
    second, third = event.fraction * (1 - inner.fraction), event.fraction * inner.fraction
    others = SecretSplitDpEvent(event.training, inner.held_out, third / (1 - second))
    return SecretSplitDpEvent(others, inner.training, second)


def _mixture_pmf(event: SecretSplitDpEvent, direction: Direction, bucket: float) -> pld_pmf.PLDPmf:
    training, held_out = (_ratios(part, direction) for part in (event.training, event.held_out))
    f = event.fraction
    # the density of the law with the record relative to the law without, and its probability without
    ratios = ((1 - f) * training.ratios[:, None] + f * held_out.ratios).ravel()
    without = np.outer(training.masses, held_out.masses).ravel()
    with_record = without * ratios
    beyond = (1 - f) * training.beyond + f * held_out.beyond
    with np.errstate(divide="ignore"):
        losses = np.log(ratios)
    if direction == "add":
        losses, upper, lower = -losses, without, with_record
    else:
        upper, lower = with_record, without
    finite = losses[np.isfinite(losses)]
    step = math.ceil((finite.max() - finite.min()) / (_MOST_DOTS_OF_MIXTURE * bucket))
    width = bucket * step
    low, high = math.floor(finite.min() / width), math.ceil(finite.max() / width) + 1
    # delta at each point: the contribution of the losses above it
    place = np.clip(np.floor(losses / width) - low, -1, high - low).astype(np.intp) + 1
    above = [np.cumsum(np.bincount(place, weights, high - low + 2)[:0:-1])[::-1] for weights in (upper, lower)]
    epsilons = np.arange(low, high + 1) * width
    dots = np.exp(epsilons)
    # the divergence of a mixture is at most the mean of the divergences: tighter where the points are too far apart
    mean = (1 - f) * _profile(event.training, epsilons, direction) + f * _profile(event.held_out, epsilons, direction)
    masses, infinite = _connect_dots(
        _lower_convex_hull(np.minimum(beyond + above[0] - dots * above[1], mean), dots), dots
    )
    spread = np.zeros((high - low) * step + 1)
    spread[::step] = dots * masses[1:]
    return pld_pmf.DensePLDPmf(bucket, low * step, spread, infinite, True)


@dataclass(frozen=True, eq=False)
class _Ratios:
    """A discrete pair of laws that dominates a part.

    ``ratios`` are densities of the law with the record relative to the law without. ``masses`` belong to the law
    without. ``beyond`` is the mass of the law with the record where the other law has none.
    """

    ratios: FloatArray
    masses: FloatArray
    beyond: float


@lru_cache(maxsize=64)
def _ratios(event: DpEvent, direction: Direction) -> _Ratios:
    """Return the pair that dominates the event in one direction."""
    # the mass beyond the last point counts in full as delta
    top = max(1e-3, largest_loss(event, _LARGEST_LOSS))
    dots = top * np.sinh(3 * np.linspace(0, 1, _DOTS + 1)) / math.sinh(3)
    epsilons = np.concatenate([-dots[:0:-1], dots])
    ratios = np.exp(epsilons)
    masses, infinite = _connect_dots(_profile(event, epsilons, direction), ratios)
    if direction == "remove":
        return _Ratios(np.append(0.0, ratios), masses, infinite)
    # the upper law is the one without the record; where its loss is infinite, the law with the record has no mass
    return _Ratios(np.append(0.0, 1 / ratios), np.append(infinite, ratios * masses[1:]), 0.0)


def _profile(event: DpEvent, epsilons: FloatArray, direction: Direction) -> FloatArray:
    """Return delta of an event in one direction at increasing ``epsilons``.

    The epsilons may be negative.
    """
    opposite: Direction = "add" if direction == "remove" else "remove"
    negative, rest = epsilons[epsilons < 0], epsilons[epsilons >= 0]
    # exchanging the two laws gives the profile at negative epsilon
    swapped = 1 - np.exp(negative) * (1 - PLD.delta(event, -negative, opposite))
    return np.concatenate([swapped, PLD.delta(event, rest, direction)])


def _lower_convex_hull(deltas: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return the largest convex function of the ratio below these points.

    The profile is convex, so it lies below this function too.
    """
    hull, places = deltas, ratios
    while True:
        slopes = (hull[1:] - hull[:-1]) / (places[1:] - places[:-1])
        is_kept = np.ones(hull.size, dtype=bool)
        is_kept[1:-1] = ~(slopes[1:] < slopes[:-1])
        if is_kept.all():
            return np.interp(ratios, places, hull)
        hull, places = hull[is_kept], places[is_kept]


def _connect_dots(deltas: FloatArray, ratios: FloatArray) -> tuple[FloatArray, float]:
    """Return the lower law of a discrete pair whose profile connects the deltas.

    The result has the masses at ratio 0 and at each of ``ratios``, and the mass of the upper law where the lower one
    has none. A profile is convex in the ratio e^epsilon, so the pair dominates (connect-the-dots, Doroshenko et al.
    2022).
    """
    deltas = np.append(1.0, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0)))
    slopes = np.diff(deltas) / np.diff(ratios, prepend=0.0)
    return np.maximum(np.diff(slopes, prepend=-1.0, append=0.0), 0.0), float(deltas[-1])
