"""What events cost: epsilon, delta and trade-off functions of a composition.

Three accountants:

``pld``  privacy loss distributions, tight up to the discretisation and always rounded against us (the default);
``rdp``  Rényi DP on Opacus' order grid, the paper's own accounting;
``gdp``  exact Gaussian DP, for compositions of continuous Gaussian releases only.

Under ``pld`` a composition of continuous Gaussians is not discretised at all: its cost is known exactly.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
)
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpscp._checks import check_choice, check_probability, real_number
from dpscp.privacy.events import (
    ApproximateDpEvent,
    DiscreteGaussianDpEvent,
    frozen_event,
    possible_histories,
    require_event,
)
from dpscp.privacy.tradeoff import (
    Tradeoff,
    epsilon_delta_tradeoff,
    gaussian_tradeoff,
    gdp_delta,
    gdp_epsilon,
    perfect_privacy,
    tradeoff_from_profile,
)

__all__ = [
    "ACCOUNTANTS",
    "OPACUS_ORDERS",
    "Direction",
    "delta_of",
    "discrete_gaussian_cdf",
    "epsilon_of",
    "is_private",
    "tradeoff_of",
]

ACCOUNTANTS = ("pld", "rdp", "gdp")
OPACUS_ORDERS = tuple([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))

Direction = Literal["both", "add", "remove"]
"""Which of the two neighbours is the null: ``add`` bounds M(D) by M(D plus one record), as Result B needs."""

# Width of a privacy-loss bucket. A sampled step whose losses spread over few buckets gets narrower ones: rounding then
# costs less than 2e-4 in epsilon on thousands of steps.
_BUCKETS = (1e-4, 5e-5, 2e-5)
_MOST_BUCKETS = 2_000_000
# exp of a larger loss overflows: its bucket is charged at the upper end
_LARGEST_LOSS = 600.0
# Losses rarer than this are moved to infinity: they count in full as delta.
_TAIL = 1e-16

History = Mapping[DpEvent, int]


def is_private(event: DpEvent) -> bool:
    """Whether no part of the event is without privacy."""
    return not any(isinstance(e, NonPrivateDpEvent) for h in possible_histories(event) for e in h)


def epsilon_of(event: DpEvent, delta: float, accountant: str = "pld") -> float:
    """The smallest epsilon that ``accountant`` proves at ``delta``; infinite if a step is not private."""
    check_choice("accountant", accountant, ACCOUNTANTS)
    return _known_epsilon(frozen_event(require_event(event)), check_probability("delta", delta), accountant)


@lru_cache(maxsize=512)
def _known_epsilon(event: DpEvent, delta: float, accountant: str) -> float:
    """A fit asks for the same total several times: for the budget, the ledger and the certificate."""
    if not is_private(event):
        return math.inf
    return max(_epsilon(history, delta, accountant) for history in possible_histories(event))


def delta_of(event: DpEvent, epsilon: ArrayLike, accountant: str = "pld", direction: Direction = "both") -> Any:
    """The smallest delta that ``accountant`` proves at each ``epsilon`` >= 0; 1 if a step is not private."""
    check_choice("accountant", accountant, ACCOUNTANTS)
    check_choice("direction", direction, ("both", "add", "remove"))
    epsilons = np.asarray(epsilon, dtype=float)
    if np.any(~(epsilons >= 0)):
        raise ValueError("epsilon must be at least 0")
    if is_private(event):
        # dp-accounting asks for increasing epsilons
        flat, back = np.unique(epsilons.ravel(), return_inverse=True)
        worst = np.max([_delta(h, flat, accountant, direction) for h in possible_histories(event)], axis=0)
        deltas = np.clip(worst, 0.0, 1.0)[back].reshape(epsilons.shape)
    else:
        deltas = np.ones_like(epsilons)
    return float(deltas) if epsilons.ndim == 0 else deltas


def tradeoff_of(event: DpEvent, accountant: str = "pld", direction: Direction = "both") -> Tradeoff:
    """The trade-off function of the event, a lower bound that is exact for continuous Gaussian noise.

    ``direction="add"`` gives the curve that Result B needs, tighter under subsampling.
    """
    histories = possible_histories(event)
    if not is_private(event):
        return epsilon_delta_tradeoff(0.0, 1.0)
    if all(_gaussian_mu(h) is not None for h in histories) and accountant != "rdp":
        mu = max(_gaussian_mu(h) or 0.0 for h in histories)
        return gaussian_tradeoff(mu) if mu > 0 else perfect_privacy()
    top = 1.0
    while delta_of(event, top, accountant) > 1e-12 and top < 200:
        top *= 2
    # dense where coverage levels live (small epsilon), coarse where f is nearly 0 or 1
    epsilons = np.unique(np.concatenate([np.linspace(0, min(top, 8), 3001), np.geomspace(1e-3, top, 200)]))
    deltas = delta_of(event, epsilons, accountant, direction)
    if direction == "both":
        return tradeoff_from_profile(epsilons, deltas)
    # the other direction's pairs are this one's at negative epsilon: Q <= e^eps P + delta, solved for P's miss rate
    opposite = delta_of(event, epsilons, accountant, "remove" if direction == "add" else "add")
    return tradeoff_from_profile(
        np.concatenate([epsilons, -epsilons]),
        np.concatenate([deltas, 1 - np.exp(-epsilons) * (1 - opposite)]),
        symmetric=False,
    )


# ---- one history: the basic events that one record met


def _gaussian_mu(history: History) -> float | None:
    """The mu of a history made of continuous Gaussian releases alone, else None."""
    total = 0.0
    for event, count in history.items():
        if not isinstance(event, GaussianDpEvent):
            return None
        total += count / event.noise_multiplier**2
    return math.sqrt(total)


def _require_mu(history: History) -> float:
    mu = _gaussian_mu(history)
    if mu is None:
        kinds = sorted({type(e).__name__ for e in history if not isinstance(e, GaussianDpEvent)})
        raise ValueError(f"accountant='gdp' is exact for continuous Gaussian noise only, not for {', '.join(kinds)}")
    return mu


def _epsilon(history: History, delta: float, accountant: str) -> float:
    if accountant == "rdp":
        return float(_rdp(history).get_epsilon(delta)) if history else 0.0
    mu = _require_mu(history) if accountant == "gdp" else _gaussian_mu(history)
    if mu is not None:
        return gdp_epsilon(delta, mu) if mu > 0 else 0.0
    return float(_loss(tuple(history.items())).get_epsilon_for_delta(delta))


def _delta(history: History, epsilons: NDArray[np.float64], accountant: str, direction: Direction) -> Any:
    if not history:
        return np.zeros_like(epsilons)
    if accountant == "rdp":
        rdp = _rdp(history)
        return np.array([min(1.0, rdp.get_delta(real_number("epsilon", e))) for e in epsilons])
    mu = _require_mu(history) if accountant == "gdp" else _gaussian_mu(history)
    if mu is not None:
        return np.array([gdp_delta(e, mu) for e in epsilons])
    loss = _loss(tuple(history.items()))
    # dp-accounting keeps the two directions apart but has no public way to ask for one of them
    sides = {"add": [loss._pmf_add], "remove": [loss._pmf_remove]}.get(direction)
    if sides is None:
        sides = [loss._pmf_remove] if loss._symmetric else [loss._pmf_remove, loss._pmf_add]
    return np.max([_deltas_of_pmf(side, epsilons) for side in sides], axis=0)


def _deltas_of_pmf(pmf: pld_pmf.PLDPmf, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """delta = sum over losses above epsilon of (1 - e^(epsilon - loss)) P(loss), for increasing epsilons.

    dp-accounting walks through a million losses one by one; two running sums from the top give the same.
    """
    if not isinstance(pmf, pld_pmf.DensePLDPmf) or epsilons[-1] > _LARGEST_LOSS:
        return np.array([float(pmf.get_delta_for_epsilon(float(e))) for e in epsilons])
    first = max(0, -pmf._lower_loss)  # epsilons are at least 0, and so are the losses that count
    losses = (np.arange(first, pmf.size) + pmf._lower_loss) * pmf._discretization
    above = np.searchsorted(losses, epsilons, side="right")
    mass = np.append(np.cumsum(pmf._probs[first:][::-1])[::-1], 0.0)[above]
    discounted = np.append(np.cumsum((pmf._probs[first:] * np.exp(-losses))[::-1])[::-1], 0.0)[above]
    return np.asarray(pmf._infinity_mass + mass - np.exp(epsilons) * discounted)


def _rdp(history: History) -> RdpAccountant:
    accountant = RdpAccountant(OPACUS_ORDERS)
    for event, count in history.items():
        if isinstance(event, DiscreteGaussianDpEvent):
            # rho-zCDP with the rho of the continuous Gaussian: the Rényi divergences are bounded by the same line
            event = GaussianDpEvent(event.sigma / event.sensitivity)
        if not isinstance(event, GaussianDpEvent | PoissonSampledDpEvent | LaplaceDpEvent):
            raise ValueError(f"accountant='rdp' has no bound for {type(event).__name__}; use accountant='pld'")
        accountant.compose(event, count)
    return accountant


@lru_cache(maxsize=64)
def _loss(history: tuple[tuple[DpEvent, int], ...]) -> pld.PrivacyLossDistribution:
    """The privacy loss distribution of a history, continuous Gaussians merged into one."""
    bucket = min(_bucket_for(e) for e, _ in history)
    mu_squared = sum(n / e.noise_multiplier**2 for e, n in history if isinstance(e, GaussianDpEvent))
    lattice = sum(n * (e.sensitivity / e.sigma) ** 2 for e, n in history if isinstance(e, DiscreteGaussianDpEvent))
    # a release with hardly any noise has losses so wide that the usual buckets would not fit in memory
    bucket = max(bucket, 18 * math.sqrt(mu_squared + lattice) / _MOST_BUCKETS)
    parts = [_basic_loss(e, n, bucket) for e, n in history if not isinstance(e, GaussianDpEvent)]
    if mu_squared > 0:
        parts.append(_basic_loss(GaussianDpEvent(1 / math.sqrt(mu_squared)), 1, bucket))
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part, _TAIL)
    return total


def _bucket_for(event: DpEvent) -> float:
    if not isinstance(event, PoissonSampledDpEvent):
        return _BUCKETS[0]
    spread = event.sampling_probability / event.event.noise_multiplier
    return next((width for width in _BUCKETS if spread >= 16 * width), _BUCKETS[-1])


@lru_cache(maxsize=64)
def _basic_loss(event: DpEvent, count: int, bucket: float) -> pld.PrivacyLossDistribution:
    if isinstance(event, GaussianDpEvent):
        one = pld.from_gaussian_mechanism(event.noise_multiplier, value_discretization_interval=bucket)
    elif isinstance(event, PoissonSampledDpEvent):
        one = pld.from_gaussian_mechanism(
            event.event.noise_multiplier,
            sampling_prob=event.sampling_probability,
            value_discretization_interval=bucket,
        )
    elif isinstance(event, DiscreteGaussianDpEvent):
        one = _discrete_gaussian_loss(event.sigma, event.sensitivity, bucket)
    elif isinstance(event, LaplaceDpEvent):
        one = pld.from_laplace_mechanism(event.noise_multiplier, value_discretization_interval=bucket)
    elif isinstance(event, ApproximateDpEvent):
        parameters = common.DifferentialPrivacyParameters(event.epsilon, event.delta)
        one = pld.from_privacy_parameters(parameters, value_discretization_interval=bucket)
    else:
        raise ValueError(f"accountant='pld' has no privacy loss distribution for {type(event).__name__}")
    return one.self_compose(count, _TAIL) if count > 1 else one


def _discrete_gaussian_loss(sigma: int, sensitivity: int, bucket: float) -> pld.PrivacyLossDistribution:
    """The loss of one release X = statistic + discrete Gaussian, in buckets rounded against us.

    The loss (D^2 - 2 x D) / (2 sigma^2) falls with the output x, so the outputs of one bucket are a run of integers
    and its probabilities p (without the record's shift) and q (with it) are differences of the distribution
    function. Each bucket's mass goes to its two ends so that both p and q are kept: the connect-the-dots rule,
    which can only raise delta.
    """
    reach = sensitivity / sigma
    # beyond nine standard deviations lies less than 1e-18: charged in full to infinity or rounded up
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
    pmf = pld_pmf.DensePLDPmf(bucket, low, masses, float(below[-1]), True)
    return pld.PrivacyLossDistribution(pmf)


def discrete_gaussian_cdf(x: ArrayLike, sigma: float) -> NDArray[np.float64]:
    """P(X <= x) of the discrete Gaussian, to the precision of a float.

    Direct summation for small scales; beyond, Euler-Maclaurin about x + 1/2, whose next term is below 1e-20.
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
    value = special.ndtr(z) + density * (z / (24 * sigma**2) + 7 * (3 * z - z**3) / (5760 * sigma**4))
    return np.asarray(np.clip(value, 0.0, 1.0))
