"""Find the smallest noise that fits a budget.

Every search ends on the side that keeps the budget: the accountant has checked the returned value itself.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from dp_accounting.dp_event import DpEvent, NoOpDpEvent

from dpscp._base.checks import check_count, check_fraction, check_positive, check_probability
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import Accountant, as_accountant, epsilon_of, is_private
from dpscp.privacy.events import (
    DiscreteGaussianDpEvent,
    compose,
    dpsgd_event,
    gaussian_event,
    require_event,
    secret_parts,
)
from dpscp.privacy.ledger import Ledger
from dpscp.privacy.noise import LatticeNoise, lattice_noise, sensitivity_fraction
from dpscp.privacy.split_budget import SplitBudget, spare_mu, split_budget
from dpscp.privacy.tradeoff import gdp_mu
from dpscp.privacy.units import Relation

__all__ = [
    "as_event",
    "count_noise",
    "counts_secrecy",
    "noise_multiplier",
    "secret_shares",
    "shared_count_noise",
    "shared_lattice_noise",
    "sized_lattice_noise",
    "smallest_noise",
]

_PRECISION = 2e-4
_LARGEST_NOISE, _SMALLEST_NOISE = 1e9, 1e-3
# Short strides: at a noise far below the answer, a privacy loss distribution is wide and slow.
_STRIDE = 1.2
# Where noise hardly changes the cost: the precision of the noise, and the first stride from a close guess.
_FLAT_PRECISION, _SHORT_STRIDE = 2e-3, 1.02
# Above this epsilon the mixture of a secret split costs within 1 % of its more expensive part.
LARGEST_MIXED = 8.0


def as_event(training: DpEvent | Ledger | None) -> DpEvent:
    """Return the event of a training stage: an event, a ledger, or None.

    Noise is computed for one unit, so a ledger about persons without ids is rejected: its promise chains several rows.

    Parameters
    ----------
    training : DpEvent, Ledger or None
        None: nothing was spent.

    Returns
    -------
    DpEvent
    """
    if training is None:
        return NoOpDpEvent()
    if not isinstance(training, Ledger):
        return require_event(training)
    if training.relation is not Relation.ADD_OR_REMOVE:
        raise ValueError(
            "the ledger is about replacing one record, but this noise is for adding or removing one: use calibrate or "
            "an estimator, which charge two records"
        )
    if training.rows > 1:
        raise ValueError(
            f"the ledger is about {training.unit.protected_words}, but this noise is for one record: use calibrate or "
            "an estimator with rows_per_person, or ledger.convert_unit(RECORDS) for a promise about one record"
        )
    return training.event


def smallest_noise(
    event_at: Callable[[float], DpEvent],
    epsilon: float,
    delta: float,
    *,
    accountant: str | Accountant = "pld",
    guess: float = 1.0,
    flat: bool = False,
) -> float:
    """Return the smallest noise at which ``event_at(noise)`` fits the budget.

    Parameters
    ----------
    event_at : callable
        Return the event at a noise. Less noise must cost more.
    epsilon, delta : float
    accountant : str or Accountant
    guess : float
        Where the search starts.
    flat : bool
        The noise changes epsilon little. The noise itself is then found to 0.2 %, from a close guess.

    Returns
    -------
    float
        At most 0.02 % above the smallest noise, and never below it.

    Raises
    ------
    BudgetError
        If no noise is enough.
    """

    epsilon, delta = check_positive("epsilon", epsilon), check_probability("delta", delta)

    def cost(noise: float) -> float:
        return epsilon_of(event_at(noise), delta, accountant)

    guess = check_positive("guess", guess)
    bad, good = _find_bracket(cost, epsilon, delta, guess, flat)
    if bad is None:
        return good.noise
    return _find_cell(cost, epsilon, bad, good) if flat else _narrow(cost, epsilon, bad, good)


class _Tried(NamedTuple):
    """A noise and what it costs."""

    noise: float
    cost: float


def _find_bracket(
    cost: Callable[[float], float], epsilon: float, delta: float, guess: float, flat: bool
) -> tuple[_Tried | None, _Tried]:
    """Return a noise over the budget, and one within it; None if even the smallest noise fits."""
    stride = _SHORT_STRIDE if flat else _STRIDE
    bad, good = None, _Tried(guess, cost(guess))
    while not good.cost <= epsilon or good.noise > _LARGEST_NOISE:  # a NaN cost fits no budget
        if good.noise > _LARGEST_NOISE:
            raise BudgetError(
                f"no amount of noise meets epsilon = {epsilon:g} at delta = {delta:g}; raise epsilon or delta"
            )
        bad, noise = good, good.noise * stride
        good = _Tried(noise, cost(noise))
        stride = stride**2 if flat else stride
    while bad is None and good.noise >= _SMALLEST_NOISE:
        noise = good.noise / stride
        tried = _Tried(noise, cost(noise))
        stride = stride**2 if flat else stride
        bad, good = (None, tried) if tried.cost <= epsilon else (tried, good)
    return bad, good


def _narrow(cost: Callable[[float], float], epsilon: float, bad: _Tried, good: _Tried) -> float:
    """Return a noise of the bracket that costs nearly epsilon, or whose neighbor 0.02 % below costs more."""
    aim = epsilon * (1 - _PRECISION / 2)
    while good.cost < epsilon * (1 - _PRECISION) and good.noise / bad.noise > 1 + _PRECISION:
        middle = bad.noise * (good.noise / bad.noise) ** _share_of_bracket(aim, bad, good, margin=0.05)
        tried = _Tried(middle, cost(middle))
        bad, good = (bad, tried) if tried.cost <= epsilon else (tried, good)
    return good.noise


def _share_of_bracket(aim: float, bad: _Tried, good: _Tried, margin: float) -> float:
    """Return where in the bracket the cost is about ``aim``, as a share of its length on a log scale.

    The log of the cost is nearly linear in the log of the noise. The margin to both ends keeps a bracket shrinking
    where it is not.
    """
    if not (good.cost > 0 and math.isfinite(bad.cost)):
        return 0.5
    return min(max(math.log(bad.cost / aim) / math.log(bad.cost / good.cost), margin), 1 - margin)


def _find_cell(cost: Callable[[float], float], epsilon: float, bad: _Tried, good: _Tried) -> float:
    """Return where a bisection of the bracket by noise ends, with fewer costs than it needs.

    Each cost shows which cell of the bisection is the likely end. Both ends of the returned cell were tried.
    """
    first, last = bad.noise, good.noise
    while True:
        likely = bad.noise * (good.noise / bad.noise) ** _share_of_bracket(epsilon, bad, good, margin=1e-3)
        low, high = first, last
        while high / low > 1 + _FLAT_PRECISION:
            middle = low * (high / low) ** 0.5
            low, high = (low, middle) if middle > likely else (middle, high)
        untried = [noise for noise in (low, high) if bad.noise < noise < good.noise]
        if not untried:
            return high
        tried = _Tried(untried[-1], cost(untried[-1]))
        bad, good = (bad, tried) if tried.cost <= epsilon else (tried, good)


def noise_multiplier(
    epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: str | Accountant = "pld"
) -> float:
    """Return the smallest noise multiplier with which DP-SGD fits the budget.

    Parameters
    ----------
    epsilon, delta : float
    sampling_rate : float
        The probability that a record enters a batch.
    steps : int
    accountant : str or Accountant

    Returns
    -------
    float
        The noise scale divided by the clip norm.
    """
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    check_fraction("sampling_rate", sampling_rate)
    check_count("steps", steps)

    def event_at(noise: float) -> DpEvent:
        return dpsgd_event(noise, sampling_rate, steps)

    # the central limit of sampled Gaussian steps: mu^2 = rate^2 * steps * (exp(1 / noise^2) - 1)
    guess = 1 / math.sqrt(math.log1p((gdp_mu(epsilon, delta) / sampling_rate) ** 2 / steps))
    return smallest_noise(event_at, epsilon, delta, accountant=accountant, guess=guess)


def count_noise(
    epsilon: float,
    delta: float,
    steps: int,
    training: DpEvent | Ledger | None = None,
    sensitivity: float = 1.0,
    accountant: str | Accountant = "pld",
) -> float:
    """Return the smallest noise per count that keeps the whole release in budget.

    Parameters
    ----------
    epsilon, delta : float
    steps : int
        The number of counts.
    training : DpEvent or Ledger, optional
        What was spent before on the same records. Leave it out for a held-out part.
    sensitivity : float
        That of the rank statistic: 1/2 centered, max(alpha, 1 - alpha) linear, 1 for the paper's.
    accountant : str or Accountant
        The noise is the integer noise of the search. With an accountant that does not support it (``gdp``) it is
        continuous, for planning.

    Returns
    -------
    float
        The standard deviation of the noise on each count.

    >>> [round(count_noise(eps, 1e-5, steps=20, accountant="rdp"), 2) for eps in (0.5, 1, 2)]
    [34.29, 18.09, 9.61]

    Paper: Lemma 2 [lemma:search_privacy], Supplement S6.1
    """
    return shared_count_noise(epsilon, delta, steps, (sensitivity,), training, accountant)[0]


def shared_count_noise(
    epsilon: float,
    delta: float,
    steps: int,
    sensitivities: Sequence[float],
    training: DpEvent | Ledger | None = None,
    accountant: str | Accountant = "pld",
) -> tuple[float, ...]:
    """Return ``count_noise`` for several searches of the same records.

    Each noise is proportional to the sensitivity of its search, so every search of ``steps`` counts costs the same.
    Training and all searches together stay in the budget.

    Parameters
    ----------
    epsilon, delta : float
    steps : int
    sensitivities : sequence of float
    training : DpEvent or Ledger, optional
    accountant : str or Accountant

    Returns
    -------
    tuple of float
        One noise for each sensitivity.
    """
    if as_accountant(accountant).supports(DiscreteGaussianDpEvent(1)):
        lattices = shared_lattice_noise(epsilon, delta, steps, sensitivities, training, accountant)
        return tuple(lattice.count_noise for lattice in lattices)
    releases = check_count("steps", steps) * len(sensitivities)
    ratio = _smallest_ratio(
        lambda ratio: gaussian_event(ratio, releases), epsilon, delta, releases, training, accountant
    )
    return tuple(ratio * float(sensitivity_fraction(s)) for s in sensitivities)


def shared_lattice_noise(
    epsilon: float,
    delta: float,
    steps: int,
    sensitivities: Sequence[float | Fraction],
    training: DpEvent | Ledger | None = None,
    accountant: str | Accountant = "pld",
) -> tuple[LatticeNoise, ...]:
    """Return the noise of ``shared_count_noise`` as objects to sample from.

    Parameters
    ----------
    epsilon, delta : float
    steps : int
    sensitivities : sequence of float
    training : DpEvent or Ledger, optional
    accountant : str or Accountant

    Returns
    -------
    tuple of LatticeNoise
        The objects that the accountant charged.
    """
    return sized_lattice_noise(epsilon, delta, steps, sensitivities, training, accountant)[0]


def sized_lattice_noise(  # noqa: PLR0913 (one argument a choice)
    epsilon: float,
    delta: float,
    steps: int | Sequence[int],
    sensitivities: Sequence[float | Fraction],
    training: DpEvent | Ledger | None = None,
    accountant: str | Accountant = "pld",
    size_share: float = 0.0,
    secret_part: float | None = None,
    beside: tuple[DpEvent, float] | None = None,
    multiple: int = 1,
    copies: int = 1,
) -> tuple[tuple[LatticeNoise, ...], LatticeNoise | None]:
    """Return ``shared_lattice_noise`` and the noise of one release of the size.

    Parameters
    ----------
    epsilon, delta : float
    steps : int or sequence of int
        The number of counts, or one number for each sensitivity.
    sensitivities : sequence of float or Fraction
    training : DpEvent or Ledger, optional
    accountant : str or Accountant
    size_share : float
        The part of the squared Gaussian-DP level of all these releases that the size gets.
    secret_part : float, optional
        The searches use a secret random part with this share of all records, which ``training`` did not use
        (``SecretSplitDpEvent``).
    beside : (DpEvent, float), optional
        Another event on a secret part of its own, and the share of that part.
    multiple : int
        See ``lattice_noise``.
    copies : int
        One record takes part in so many releases of all of this, each with its own noise.

    Returns
    -------
    noises : tuple of LatticeNoise
    size_noise : LatticeNoise or None
        None if ``size_share`` is 0.

    Theory: Result G
    """
    if not 0 <= size_share < 1:
        raise ValueError(f"size_share must be at least 0 and below 1, got {size_share:g}: the search needs the rest")
    fractions = [sensitivity_fraction(s) for s in sensitivities]
    each = steps if isinstance(steps, tuple | list) else [steps] * len(fractions)
    counts = [check_count("steps", count) for count in each]
    releases = sum(counts)
    # one record changes the size by 1: 1 / size_noise^2 = share / (1 - share) * releases / ratio^2
    size_ratio = math.sqrt((1 - size_share) / (size_share * releases)) if size_share else None

    def lattices(ratio: float) -> tuple[LatticeNoise, ...]:
        return tuple(lattice_noise(ratio * float(s), s, multiple) for s in fractions)

    def size(ratio: float) -> LatticeNoise | None:
        return None if size_ratio is None else lattice_noise(ratio * size_ratio, Fraction(1))

    def spending(ratio: float) -> DpEvent:
        own = size(ratio)
        searches = (lattice.event(copies * n) for lattice, n in zip(lattices(ratio), counts, strict=True))
        return compose(*([] if own is None else [own.event(copies)]), *searches)

    weight = copies * releases / (1 - size_share)
    ratio = _smallest_ratio(spending, epsilon, delta, weight, training, accountant, secret_part, beside)
    return lattices(ratio), size(ratio)


def counts_secrecy(epsilon: float, accountant: str | Accountant = "pld") -> bool:
    """Return whether the secrecy of a split lowers its cost here.

    The accountant must support mixtures, and epsilon must be small enough that something is gained.

    Parameters
    ----------
    epsilon : float
    accountant : str or Accountant

    Returns
    -------
    bool
    """
    return as_accountant(accountant).keeps_secrets and epsilon <= LARGEST_MIXED


def secret_shares(
    epsilon: float, delta: float, fraction: float, n_records: int, accountant: str | Accountant = "pld"
) -> SplitBudget:
    """Return what training and a search on a secret part may spend.

    Parameters
    ----------
    epsilon, delta : float
    fraction : float
        The probability that a record is held out.
    n_records : int
    accountant : str or Accountant

    Returns
    -------
    SplitBudget
    """
    if counts_secrecy(epsilon, accountant):
        return split_budget(epsilon, delta, fraction, n_records)
    return SplitBudget(epsilon, gdp_mu(epsilon, delta), mixed=False)


def _smallest_ratio(
    searches: Callable[[float], DpEvent],
    epsilon: float,
    delta: float,
    releases: float,
    training: DpEvent | Ledger | None,
    accountant: str | Accountant,
    secret_part: float | None = None,
    beside: tuple[DpEvent, float] | None = None,
) -> float:
    """Return the smallest noise / sensitivity at which everything fits the budget."""
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    spent = as_event(training)
    if not is_private(spent):
        raise BudgetError(
            "training is not private, so no calibration noise is enough; train privately, or pass its event or ledger"
        )

    others = () if beside is None else (beside,)

    def together(calibration: DpEvent) -> DpEvent:
        if secret_part is None:
            return compose(spent, calibration)
        return secret_parts(spent, (calibration, secret_part), *others)

    already = epsilon_of(together(NoOpDpEvent()), delta, accountant)
    if already >= epsilon:
        raise BudgetError(
            f"training alone spends epsilon = {format_epsilon(already)} at delta = {delta:g} of a budget of "
            f"epsilon = {format_number(epsilon)}, so nothing is left for calibration; raise epsilon, or train with "
            "more noise"
        )
    mu = gdp_mu(epsilon, delta)
    if secret_part is not None:
        held_out = secret_part + sum(share for _, share in others)
        mu = spare_mu(epsilon, delta, held_out, epsilon_of(spent, delta, accountant))
    return smallest_noise(
        lambda ratio: together(searches(ratio)),
        epsilon,
        delta,
        accountant=accountant,
        guess=math.sqrt(releases) / mu,
        flat=secret_part is not None,
    )
