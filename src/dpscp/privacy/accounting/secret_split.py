"""The privacy loss of a secret split: training and search on two random parts, and nobody learns which a record met.

Let P be the law of (training, search) without the record. With it, the law is (1 - f) T' x K + f T x K', where a prime
marks the part that the record fell in: a mixture, of which the worse part alone is an upper bound. Each part is
dominated by a pair of discrete laws (its privacy profile, dots connected), and the mixture of the pairs dominates the
mixture of the parts: docs/guarantees.md, the secret split.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Loss

from dpscp.privacy.accounting.base import Array, Direction
from dpscp.privacy.accounting.pld import PLD, largest_loss
from dpscp.privacy.events import SecretSplitDpEvent

# Dots of a part's profile on each side of 0, denser around it: epsilon is too large by about 1e-4 of itself, and never
# too small.
_DOTS = 256
_MOST_DOTS_OF_MIXTURE = 8192
# exp of a larger loss overflows
_LARGEST_LOSS = 300.0


def secret_split_loss(event: SecretSplitDpEvent, bucket: float) -> Loss:
    """The loss of the mixture, in buckets of this width, rounded upwards.

    Theory: docs/guarantees.md, the secret split
    """
    event = _regrouped(event)
    return Loss(_mixed(event, "remove", bucket), _mixed(event, "add", bucket))


def _regrouped(event: SecretSplitDpEvent) -> SecretSplitDpEvent:
    """The same mixture of three parts with the last one beside the first.

    A mixture has no order. While noise of the second part is solved for, the pair of the other two is computed once.
    """
    inner = event.held_out
    if not isinstance(inner, SecretSplitDpEvent):
        return event
    second, third = event.fraction * (1 - inner.fraction), event.fraction * inner.fraction
    others = SecretSplitDpEvent(event.training, inner.held_out, third / (1 - second))
    return SecretSplitDpEvent(others, inner.training, second)


def _mixed(event: SecretSplitDpEvent, direction: Direction, bucket: float) -> pld_pmf.PLDPmf:
    training, held_out = (_ratios(part, direction) for part in (event.training, event.held_out))
    f = event.fraction
    # the density of the law with the record against the law without, and how likely it is without
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
    # delta at each dot: what the losses above it bring, summed from the top
    place = np.clip(np.floor(losses / width) - low, -1, high - low).astype(np.intp) + 1
    above = [np.cumsum(np.bincount(place, weights, high - low + 2)[:0:-1])[::-1] for weights in (upper, lower)]
    epsilons = np.arange(low, high + 1) * width
    dots = np.exp(epsilons)
    # the divergence of a mixture is at most the mean of the divergences, also where the parts' dots lie too far apart
    mean = (1 - f) * _profile(event.training, epsilons, direction) + f * _profile(event.held_out, epsilons, direction)
    masses, infinite = _connected(_convex(np.minimum(beyond + above[0] - dots * above[1], mean), dots), dots)
    spread = np.zeros((high - low) * step + 1)
    spread[::step] = dots * masses[1:]
    return pld_pmf.DensePLDPmf(bucket, low * step, spread, infinite, True)


@dataclass(frozen=True, eq=False)
class _Ratios:
    """A discrete pair of laws that dominates a part: the density with the record against the law without it.

    ``masses`` are those of the law without; ``beyond`` is what the law with the record has where the other has nothing.
    """

    ratios: Array
    masses: Array
    beyond: float


@lru_cache(maxsize=64)
def _ratios(event: DpEvent, direction: Direction) -> _Ratios:
    """The pair that dominates the event in one direction, by connecting the dots of its profile."""
    # what lies beyond the last dot counts in full as delta
    top = max(1e-3, largest_loss(event, _LARGEST_LOSS))
    dots = top * np.sinh(3 * np.linspace(0, 1, _DOTS + 1)) / math.sinh(3)
    epsilons = np.concatenate([-dots[:0:-1], dots])
    ratios = np.exp(epsilons)
    masses, infinite = _connected(_profile(event, epsilons, direction), ratios)
    if direction == "remove":
        return _Ratios(np.append(0.0, ratios), masses, infinite)
    # the upper law is the one without the record; where its loss is infinite the record's law has nothing
    return _Ratios(np.append(0.0, 1 / ratios), np.append(infinite, ratios * masses[1:]), 0.0)


def _profile(event: DpEvent, epsilons: Array, direction: Direction) -> Array:
    """The delta of an event in one direction at each of the increasing ``epsilons``, which may be negative."""
    opposite: Direction = "add" if direction == "remove" else "remove"
    negative, rest = epsilons[epsilons < 0], epsilons[epsilons >= 0]
    # the profile at negative epsilon follows from swapping the two laws
    swapped = 1 - np.exp(negative) * (1 - PLD.delta(event, -negative, opposite))
    return np.concatenate([swapped, PLD.delta(event, rest, direction)])


def _convex(deltas: Array, ratios: Array) -> Array:
    """The largest convex function of the ratio below these dots: a profile is convex, so it lies below that too."""
    kept = np.arange(deltas.size)
    while True:
        slopes = np.diff(deltas[kept]) / np.diff(ratios[kept])
        is_above = np.append(np.insert(slopes[1:] < slopes[:-1], 0, False), False)
        if not is_above.any():
            return np.interp(ratios, ratios[kept], deltas[kept])
        kept = kept[~is_above]


def _connected(deltas: Array, ratios: Array) -> tuple[Array, float]:
    """The law below in a discrete pair whose profile connects the deltas at these density ratios.

    Its masses at ratio 0 and at each of ``ratios``, and what the law above has where this one has nothing. A profile is
    convex in the ratio e^epsilon, so the pair dominates (connect-the-dots, Doroshenko et al. 2022).
    """
    deltas = np.append(1.0, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0)))
    slopes = np.diff(deltas) / np.diff(ratios, prepend=0.0)
    return np.maximum(np.diff(slopes, prepend=-1.0, append=0.0), 0.0), float(deltas[-1])
