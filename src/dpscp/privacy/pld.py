"""Privacy loss distributions: tight up to discretization, always rounded up.

A composition of continuous Gaussians is not discretized: its cost is known exactly. Losses on a grid are composed as
arrays: dp-accounting does the same with dictionaries and Python loops over a hundred thousand losses, which were most
of the time of a small fit.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld import privacy_loss_mechanism as mechanism
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as Loss
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special

from dpscp._base.arrays import FloatArray
from dpscp.privacy.accounting import Accountant, Direction, History, Profile, gaussian_profile, register_accountant
from dpscp.privacy.events import (
    ApproximateDpEvent,
    DiscreteGaussianDpEvent,
    SecretSplitDpEvent,
    compose,
    possible_histories,
)
from dpscp.privacy.rdp import RDP
from dpscp.privacy.tradeoff import gdp_deltas

# Width of a privacy-loss bucket. A sampled step whose losses lie in few buckets gets narrower ones. Rounding then costs
# less than 2e-4 in epsilon on thousands of steps.
_BUCKETS = (1e-4, 5e-5, 2e-5)
# The most buckets of releases with little noise, whose range of losses is wide. Without sampled steps fewer are enough.
_MOST_BUCKETS, _ENOUGH_BUCKETS = 2_000_000, 200_000
# exp of a larger loss overflows: its bucket is charged at the upper end
_LARGEST_LOSS = 600.0
# Losses rarer than this are moved to infinity: they count in full as delta.
_TAIL = 1e-16
# The rounding error of a delta by 64-bit sums (once) and by Fourier transforms (for each release of a composition). A
# relative error of the transform is multiplied by the number of releases; measured: 2e-17 for each, tests/privacy.
_SUM_NOISE, _FOURIER_NOISE = 1e-15, 2.3e-16
# Grid of the profiles that replace parallel parts, and the mass beyond their ends. Both can only raise epsilon.
_PROFILE_STEP = 1e-3
_PROFILE_TAIL = 1e-14
# Points of a part's profile on each side of 0, denser near 0. The epsilon of a secret split becomes too large by about
# 1e-4 of itself, and never too small.
_DOTS = 256
_MOST_DOTS_OF_MIXTURE = 8192
# Losses of a part beyond this count as infinite: products of their ratios stay finite.
_LARGEST_PART_LOSS = 300.0
# Exponents of the Chernoff bound on the ends of a composition, as multiples of one over the number of losses.
_ORDERS = np.arange(1, 21)


def _profile(history: History) -> Profile:
    if all(type(event) is GaussianDpEvent for event in history):
        return gaussian_profile(math.sqrt(sum(n / event.noise_multiplier**2 for event, n in history.items())))
    return _profile_of_loss(_loss(tuple(history.items())), sum(history.values()))


def _profile_of_loss(loss: Loss, releases: int) -> Profile:
    """Return the cost of a loss, with the rounding error of its deltas added to each."""
    short = _SUM_NOISE + _FOURIER_NOISE * releases

    def sides(direction: Direction) -> list[PLDPmf]:
        # dp-accounting separates the two directions but has no public access to one of them
        if direction == "both":
            return [loss._pmf_remove] if loss._symmetric else [loss._pmf_remove, loss._pmf_add]
        return [loss._pmf_add if direction == "add" else loss._pmf_remove]

    def epsilon(delta: float) -> float:
        return max(_epsilon_of_pmf(side, delta - short) for side in sides("both")) if delta > short else math.inf

    def delta(epsilons: FloatArray, direction: Direction) -> FloatArray:
        worst = np.max([_deltas_of_pmf(side, epsilons) for side in sides(direction)], axis=0)
        return np.asarray(np.maximum(worst, 0.0) + short)

    return Profile(epsilon, delta)


def _deltas_of_pmf(pmf: PLDPmf, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sum over losses above epsilon of (1 - e^(epsilon - loss)) P(loss).

    The epsilons increase. dp-accounting loops over a million losses; two cumulative sums give the same result.
    """
    if not isinstance(pmf, DensePLDPmf) or epsilons[-1] > _LARGEST_LOSS:
        return np.array([float(pmf.get_delta_for_epsilon(float(e))) for e in epsilons])
    losses, mass, discounted = _tail_sums(pmf)
    above = np.searchsorted(losses, epsilons, side="right")
    return np.asarray(mass[above] - np.exp(epsilons) * discounted[above])


def _epsilon_of_pmf(pmf: PLDPmf, delta: float) -> float:
    """Return the smallest epsilon >= 0 with at most this delta, by the same sums.

    It is infinite if there is none.
    """
    dense = isinstance(pmf, DensePLDPmf) and (pmf._lower_loss + pmf.size) * pmf._discretization < _LARGEST_LOSS
    if not dense or pmf._infinity_mass > delta:
        return float(pmf.get_epsilon_for_delta(delta))
    losses, mass, discounted = _tail_sums(pmf)
    # epsilon lies at or below the first loss whose delta is small enough, and above the previous loss
    first = int(np.argmax(np.append(mass[1:] - np.exp(losses) * discounted[1:] <= delta, True)))
    if mass[first] <= discounted[first] + delta:
        return 0.0
    return float(np.log((mass[first] - delta) / discounted[first]))


# a caller needs the deltas and the epsilon of one loss, in several calls
@lru_cache(maxsize=4)
def _tail_sums(pmf: DensePLDPmf) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the losses >= 0, and the sums of P and e^-loss P from each loss on."""
    first = max(0, -pmf._lower_loss)
    losses = (np.arange(first, pmf.size) + pmf._lower_loss) * pmf._discretization
    masses = pmf._probs[first:]
    sums = (np.append(np.cumsum(m[::-1])[::-1], 0.0) for m in (masses, masses * np.exp(-losses)))
    mass, discounted = sums
    return losses, mass + pmf._infinity_mass, discounted


@lru_cache(maxsize=64)
def _loss(history: tuple[tuple[DpEvent, int], ...]) -> Loss:
    """Return the privacy loss distribution of a history.

    Continuous Gaussians are merged into one.
    """
    bucket = min(_bucket_for(e) for e, _ in history)
    mu_squared = sum(n / e.noise_multiplier**2 for e, n in history if isinstance(e, GaussianDpEvent))
    lattice = sum(n * (e.sensitivity / e.sigma) ** 2 for e, n in history if isinstance(e, DiscreteGaussianDpEvent))
    # a release with very little noise has a wide range of losses: the usual buckets would not fit in memory
    is_sampled = any(isinstance(e, PoissonSampledDpEvent) for e, _ in history)
    bucket = max(bucket, 18 * math.sqrt(mu_squared + lattice) / (_MOST_BUCKETS if is_sampled else _ENOUGH_BUCKETS))
    parts = [_basic_loss(e, n, bucket) for e, n in history if not isinstance(e, GaussianDpEvent)]
    if mu_squared > 0:
        parts.append(_basic_loss(GaussianDpEvent(1 / math.sqrt(mu_squared)), 1, bucket))
    return reduce(_compose_two, parts)


def _connect_dots(bucket: float, low: int, deltas: FloatArray) -> DensePLDPmf:
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


def _on_sides(compute: Callable[..., PLDPmf], *losses: Loss) -> Loss:
    """Return the loss whose two directions are computed from those of ``losses``."""
    remove = compute(*(loss._pmf_remove for loss in losses))
    if all(loss._symmetric for loss in losses):
        return Loss(remove)
    return Loss(remove, compute(*(loss._pmf_add for loss in losses)))


def _compose_two(first: Loss, second: Loss) -> Loss:
    """Return the loss of both releases; losses rarer than the tail count as infinite."""
    return _on_sides(_compose_pmfs, first, second)


def _self_compose(loss: Loss, count: int) -> Loss:
    """Return the loss of ``count`` releases of one kind."""
    return _on_sides(partial(_self_compose_pmf, count=count), loss)


def _compose_pmfs(first: PLDPmf, second: PLDPmf) -> PLDPmf:
    if not (isinstance(first, DensePLDPmf) and isinstance(second, DensePLDPmf)):
        # few losses far apart: dp-accounting keeps them as a dictionary
        return Loss(first).compose(Loss(second), _TAIL)._pmf_remove
    from scipy import signal  # a tenth of a second to import, and only two unlike losses need it

    masses = signal.fftconvolve(first._probs, second._probs)
    left = _prefix_below(masses, _TAIL / 2)
    right = max(masses.size - _prefix_below(masses[::-1], _TAIL / 2), left + 1)
    kept = masses[left:right]
    kept[0] += masses[:left].sum()
    infinite = first._infinity_mass + second._infinity_mass - first._infinity_mass * second._infinity_mass
    low = first._lower_loss + second._lower_loss + left
    return DensePLDPmf(first._discretization, low, kept, infinite + masses[right:].sum(), True)


def _prefix_below(masses: FloatArray, most: float) -> int:
    """Return how many masses come before their sum exceeds ``most``, or 0."""
    return int(np.argmax(np.cumsum(masses) > most))


def _self_compose_pmf(pmf: PLDPmf, count: int) -> PLDPmf:
    if not isinstance(pmf, DensePLDPmf):
        return Loss(pmf).self_compose(count, _TAIL)._pmf_remove
    masses = pmf._probs
    low, high = _likely_range(masses, count)
    size = fft.next_fast_len(max(high - low + 1, masses.size), real=True)
    # the transform wraps around: what is rarer than the tail falls onto other losses, and the tail counts as infinite
    composed = np.roll(fft.irfft(fft.rfft(masses, size) ** count, size), -low)[: high - low + 1]
    infinite = _TAIL - math.expm1(count * math.log1p(-pmf._infinity_mass))
    return DensePLDPmf(pmf._discretization, pmf._lower_loss * count + low, composed, infinite, True)


def _likely_range(masses: FloatArray, count: int) -> tuple[int, int]:
    """Return places outside of which at most a mass of ``_TAIL`` lies (Chernoff)."""
    last = masses.size - 1
    growth = np.exp(np.arange(masses.size) / masses.size)
    rising, falling = masses.copy(), masses.copy()
    low, high = 0, last * count
    for order in _ORDERS / masses.size:
        rising *= growth
        falling /= growth
        charge = math.log(2 / _TAIL)
        high = min(high, math.ceil((count * math.log(rising.sum()) + charge) / order))
        low = max(low, math.floor(-(count * math.log(falling.sum()) + charge) / order))
    return low, high


def _bucket_for(event: DpEvent) -> float:
    if not isinstance(event, PoissonSampledDpEvent):
        return _BUCKETS[0]
    spread = event.sampling_probability / event.event.noise_multiplier
    return next((width for width in _BUCKETS if spread >= 16 * width), _BUCKETS[-1])


@lru_cache(maxsize=64)
def _basic_loss(event: DpEvent, count: int, bucket: float) -> Loss:
    one = _LOSSES[type(event)](event, bucket)
    return _self_compose(one, count) if count > 1 else one


def _gaussian_loss(event: GaussianDpEvent, bucket: float) -> Loss:
    """Return the loss of one Gaussian release, from its exact profile."""
    bounds = mechanism.GaussianPrivacyLoss(event.noise_multiplier).connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / bucket), math.ceil(bounds.epsilon_upper / bucket)
    epsilons = np.arange(low, high + 1) * bucket
    return Loss(_connect_dots(bucket, low, gdp_deltas(epsilons, 1 / event.noise_multiplier)))


def _sampled_gaussian_loss(event: PoissonSampledDpEvent, bucket: float) -> Loss:
    """Return the loss of one Poisson-sampled Gaussian release, by connect-the-dots.

    dp-accounting inverts the loss at a hundred thousand points, each by a Python call. The inverse has a formula.
    """
    sigma, q = event.event.noise_multiplier, event.sampling_probability
    sides = []
    for adjacency, sign in ((mechanism.AdjacencyType.REMOVE, 1), (mechanism.AdjacencyType.ADD, -1)):
        law = mechanism.GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=adjacency)
        bounds = law.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / bucket), math.ceil(bounds.epsilon_upper / bucket)
        epsilons = np.arange(low, high + 1) * bucket
        # the output whose loss is epsilon; infinite for losses that sampling excludes
        signed = sign * epsilons
        with np.errstate(divide="ignore"):
            unsampled = np.log1p(np.maximum(np.expm1(np.minimum(signed, 50.0)) / q, -1.0))
        unsampled = np.where(signed > 50.0, signed - math.log(q), unsampled)
        outputs = -sign * (0.5 + sigma**2 * unsampled)
        deltas = law.mu_upper_cdf(outputs) - np.exp(epsilons + law.mu_lower_log_cdf(outputs))
        sides.append(_connect_dots(bucket, low, deltas))
    return Loss(*sides)


def _discrete_gaussian_loss(event: DiscreteGaussianDpEvent, bucket: float) -> Loss:
    """Return the loss of statistic + discrete Gaussian, in buckets rounded up.

    The loss (D^2 - 2 x D) / (2 sigma^2) falls with the output x, so the outputs of one bucket are consecutive integers.
    Its probabilities p (without the record's shift) and q (with it) are differences of the distribution function. The
    mass of each bucket moves to its two ends such that p and q are kept. This connect-the-dots rule can only raise
    delta.
    """
    sigma, sensitivity = event.sigma, event.sensitivity
    reach = sensitivity / sigma
    # the mass beyond nine standard deviations is below 1e-18: it counts as delta or is rounded up
    low = math.floor((reach**2 / 2 - 9 * reach) / bucket)
    high = math.ceil((reach**2 / 2 + 9 * reach) / bucket)
    edges = np.arange(low, high + 1) * bucket
    # the smallest output whose loss is at most the edge
    first = np.ceil(sensitivity / 2 - edges * sigma / reach)
    below = discrete_gaussian_cdf(first - 1, sigma)
    below_shifted = discrete_gaussian_cdf(first - 1 - sensitivity, sigma)
    p, q = below[:-1] - below[1:], below_shifted[:-1] - below_shifted[1:]
    upper = np.clip((p - q * np.exp(np.minimum(edges[:-1], _LARGEST_LOSS))) / -math.expm1(-bucket), 0.0, p)
    upper[edges[:-1] > _LARGEST_LOSS] = p[edges[:-1] > _LARGEST_LOSS]
    masses = np.zeros(edges.size)
    masses[1:] += upper
    masses[:-1] += p - upper
    masses[0] += 1 - below[0]
    pmf = DensePLDPmf(bucket, low, masses, float(below[-1]), True)
    return Loss(pmf)


def discrete_gaussian_cdf(x: ArrayLike, sigma: float) -> NDArray[np.float64]:
    """Return P(X <= x) of the discrete Gaussian, to float precision.

    Direct summation for small scales. For large scales the Euler-Maclaurin formula about x + 1/2, whose next term is
    below 1e-20.

    Parameters
    ----------
    x : float or array
    sigma : float

    Returns
    -------
    ndarray of the shape of ``x``
    """
    points = np.floor(np.asarray(x, dtype=float))
    if sigma < 1000:
        reach = math.ceil(40 * sigma) + 1
        weights = np.exp(-np.square(np.arange(-reach, reach + 1) / sigma) / 2)
        below = np.concatenate([[0.0], np.cumsum(weights)]) / weights.sum()
        index = np.clip(points + reach + 1, 0, below.size - 1).astype(int)
        return np.asarray(np.minimum(below[index], 1.0))
    z = (points + 0.5) / sigma
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    # no power above 2: NumPy computes those by the slow function for any exponent
    value = special.ndtr(z) + density * z * (1 / (24 * sigma**2) + 7 * (3 - z**2) / (5760 * sigma**4))
    return np.asarray(np.clip(value, 0.0, 1.0))


def _bound(events: Sequence[DpEvent]) -> Profile:
    """Return an upper bound in time linear in the number of events.

    A record lies in one part of each parallel event. Each such event is replaced by the pair of distributions whose
    privacy profile is the maximum over the parts. It dominates every part, and domination survives composition.
    """
    parallel = Counter(e for e in events if len(possible_histories(e)) > 1)
    plain = [e for e in events if e not in parallel]
    losses = [_self_compose(_dominating_loss(event), count) for event, count in parallel.items()]
    if plain:
        losses.append(_dominating_loss(compose(*plain)))
    return _profile_of_loss(reduce(_compose_two, losses), sum(parallel.values()) + 1)


def largest_loss(event: DpEvent, most: float) -> float:
    """Return the loss, at most ``most``, above which almost no finite mass lies."""
    floor = PLD.delta(event, most)
    return min(most, PLD.epsilon(event, 1.001 * floor + _PROFILE_TAIL)) if floor < 0.9 else most


@lru_cache(maxsize=256)
def _dominating_loss(event: DpEvent) -> Loss:
    """Return a loss distribution that dominates the event in both directions."""
    top = max(1.0, largest_loss(event, 200.0))
    size = math.ceil(top / _PROFILE_STEP)
    epsilons = np.asarray(np.arange(-size, size + 1) * _PROFILE_STEP)
    return Loss(_connect_dots(_PROFILE_STEP, -size, PLD.signed_delta(event, epsilons)))


def _secret_split_loss(event: SecretSplitDpEvent, bucket: float) -> Loss:
    """Return the loss of training and search on secret parts, rounded up.

    Let P be the law of (training, search) without the record. With it, the law is (1 - f) T' x K + f T x K', where a
    prime marks the part that contains the record. This is a mixture, and the more expensive part alone is an upper
    bound. Each part is dominated by a pair of discrete laws (connect-the-dots on its privacy profile). The mixture of
    the pairs dominates the mixture of the parts.

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


def _mixture_pmf(event: SecretSplitDpEvent, direction: Direction, bucket: float) -> PLDPmf:
    training, training_masses, training_beyond = _ratios(event.training, direction)
    held_out, held_out_masses, held_out_beyond = _ratios(event.held_out, direction)
    f = event.fraction
    # the density of the law with the record relative to the law without, and its probability without
    ratios = ((1 - f) * training[:, None] + f * held_out).ravel()
    without = np.outer(training_masses, held_out_masses).ravel()
    with_record = without * ratios
    beyond = (1 - f) * training_beyond + f * held_out_beyond
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
    mean = (1 - f) * PLD.signed_delta(event.training, epsilons, direction) + f * PLD.signed_delta(
        event.held_out, epsilons, direction
    )
    masses, infinite = _connect_ratios(
        _lower_convex_hull(np.minimum(beyond + above[0] - dots * above[1], mean), dots), dots
    )
    spread = np.zeros((high - low) * step + 1)
    spread[::step] = dots * masses[1:]
    return DensePLDPmf(bucket, low * step, spread, infinite, True)


@lru_cache(maxsize=64)
def _ratios(event: DpEvent, direction: Direction) -> tuple[FloatArray, FloatArray, float]:
    """Return the discrete pair of laws that dominates the event in one direction.

    Returns ratios, masses and mass beyond. The ratios are densities of the law with the record relative to the law
    without, and the masses belong to the law without. The mass beyond is that of the law with the record where the
    other law has none.
    """
    # the mass beyond the last point counts in full as delta
    top = max(1e-3, largest_loss(event, _LARGEST_PART_LOSS))
    dots = top * np.sinh(3 * np.linspace(0, 1, _DOTS + 1)) / math.sinh(3)
    epsilons = np.concatenate([-dots[:0:-1], dots])
    ratios = np.exp(epsilons)
    masses, infinite = _connect_ratios(PLD.signed_delta(event, epsilons, direction), ratios)
    if direction == "remove":
        return np.append(0.0, ratios), masses, infinite
    # the upper law is the one without the record; where its loss is infinite, the law with the record has no mass
    return np.append(0.0, 1 / ratios), np.append(infinite, ratios * masses[1:]), 0.0


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


def _connect_ratios(deltas: FloatArray, ratios: FloatArray) -> tuple[FloatArray, float]:
    """Return the lower law of a discrete pair whose profile connects the deltas.

    The result has the masses at ratio 0 and at each of ``ratios``, and the mass of the upper law where the lower one
    has none. A profile is convex in the ratio e^epsilon, so the pair dominates (connect-the-dots, Doroshenko et al.
    2022).
    """
    deltas = np.append(1.0, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0)))
    slopes = np.diff(deltas) / np.diff(ratios, prepend=0.0)
    return np.maximum(np.diff(slopes, prepend=-1.0, append=0.0), 0.0), float(deltas[-1])


_LOSSES: dict[type[DpEvent], Callable[[Any, float], Loss]] = {
    GaussianDpEvent: _gaussian_loss,
    PoissonSampledDpEvent: _sampled_gaussian_loss,
    ApproximateDpEvent: lambda event, bucket: pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(event.epsilon, event.delta), value_discretization_interval=bucket
    ),
    DiscreteGaussianDpEvent: _discrete_gaussian_loss,
    SecretSplitDpEvent: _secret_split_loss,
}


def register_loss(kind: type[DpEvent], loss: Callable[[Any, float], Loss]) -> None:
    """Register ``loss(event, bucket)`` as the privacy loss of a kind of event.

    Parameters
    ----------
    kind : type
    loss : callable
        Return the loss in buckets of this width, rounded up.
    """
    if _LOSSES.setdefault(kind, loss) is not loss:
        raise ValueError(f"{kind.__name__} already has a privacy loss distribution; it cannot be replaced")


PLD = Accountant("pld", _LOSSES, _profile, _bound, tail=RDP)

for _accountant in (PLD, RDP):
    register_accountant(_accountant)
