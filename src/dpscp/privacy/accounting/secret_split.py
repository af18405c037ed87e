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
from dpscp.privacy.accounting.pld import PLD
from dpscp.privacy.events import SecretSplitDpEvent

# Dots of a part's profile on each side of 0, and of the mixture's: at a thirtieth of a standard deviation of the loss
# epsilon is too large by 1e-4 to 5e-4 of itself, and never too small.
_DOTS = 256
# What lies beyond the last dot counts in full as delta. The smallest at which the part has an epsilon is taken.
_TAILS = (1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
_LARGEST_LOSS = 200.0


def secret_split_loss(event: SecretSplitDpEvent, bucket: float) -> Loss:
    """The loss of the mixture, in buckets of this width, rounded upwards.

    Theory: docs/guarantees.md, the secret split
    """
    return Loss(_mixed(event, "remove", bucket), _mixed(event, "add", bucket))


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
    width = bucket * max(1, math.ceil((finite.max() - finite.min()) / (2 * _DOTS * bucket)))
    low, high = math.floor(finite.min() / width), math.ceil(finite.max() / width) + 1
    # delta at each dot: what the losses above it bring, summed from the top
    place = np.clip(np.floor(losses / width) - low, -1, high - low).astype(np.intp) + 1
    above = [np.cumsum(np.bincount(place, weights, high - low + 2)[:0:-1])[::-1] for weights in (upper, lower)]
    deltas = beyond + above[0] - np.exp(np.arange(low, high + 1) * width) * above[1]
    masses, infinite = _connected(deltas, width)
    step = round(width / bucket)
    spread = np.zeros((high - low) * step + 1)
    spread[::step] = masses
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
    epsilons = (PLD.epsilon(event, tail) for tail in _TAILS)
    top = max(1e-3, next((e for e in epsilons if math.isfinite(e)), _LARGEST_LOSS))
    width = top / _DOTS
    dots = np.arange(_DOTS + 1) * width
    opposite: Direction = "add" if direction == "remove" else "remove"
    # the profile at negative epsilon follows from swapping the two laws
    negative = 1 - np.exp(-dots[1:]) * (1 - PLD.delta(event, dots[1:], opposite))
    masses, infinite = _connected(np.concatenate([negative[::-1], PLD.delta(event, dots, direction)]), width)
    losses = np.arange(-_DOTS, _DOTS + 1) * width
    if direction == "add":
        # the upper law is the one without the record; where its loss is infinite the record's law has nothing
        return _Ratios(np.append(np.exp(-losses), 0.0), np.append(masses, infinite), 0.0)
    without = masses * np.exp(-losses)
    return _Ratios(np.append(np.exp(losses), 0.0), np.append(without, max(0.0, 1 - without.sum())), infinite)


def _connected(deltas: Array, width: float) -> tuple[Array, float]:
    """The masses of losses at dots ``width`` apart, and of an infinite loss, whose profile connects these deltas.

    The connect-the-dots rule (Doroshenko et al. 2022): a profile is convex in e^epsilon, so the result dominates.
    """
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    falls = np.diff(deltas)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + falls[0] / math.expm1(width)
    masses[1:-1] = (falls[1:] - falls[:-1] * math.exp(width)) / math.expm1(width)
    masses[-1] = falls[-1] / math.expm1(-width)
    return np.maximum(masses, 0.0), float(deltas[-1])
