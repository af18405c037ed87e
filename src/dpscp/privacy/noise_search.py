"""Find the smallest noise that fits a budget, and divide a budget in two.

Every search ends on the side that keeps the budget: the accountant has checked the returned value itself. The division
treats both parts as Gaussian. It decides what training may spend and where the search for the noise of the held-out
part starts; it proves nothing.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from numpy.typing import NDArray
from scipy import special

from dpscp._base.checks import check_count, check_fraction, check_positive, check_probability, last_where
from dpscp._base.format import format_epsilon, format_number
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import Accountant, as_accountant, epsilon_of, is_private
from dpscp.privacy.events import (
    compose,
    dpsgd_event,
    require_event,
    secret_parts,
)
from dpscp.privacy.ledger import Ledger
from dpscp.privacy.random_streams import LatticeNoise, lattice_noise, sensitivity_fraction
from dpscp.privacy.tradeoff import gdp_epsilon, gdp_mu
from dpscp.privacy.units import Relation

_PRECISION = 2e-4
_LARGEST_NOISE, _SMALLEST_NOISE = 1e9, 1e-3
# Short strides: at a noise far below the answer, a privacy loss distribution is wide and slow.
_STRIDE = 1.2
# Where noise hardly changes the cost: the precision of the noise, and the first stride from a close guess.
_FLAT_PRECISION, _SHORT_STRIDE = 2e-3, 1.02
# Above this epsilon the mixture of a secret split costs within 1 % of its more expensive part.
LARGEST_MIXED = 8.0
# The relative decrease of the set size for an e-fold of training's mu (4 to 15 % per doubling on real tables), its
# relative increase with an overshoot in coverage, and the overshoot times (held-out records * mu): docs/recipe.md.
TRAINING_GAIN = 0.1
SIZE_OF_OVERSHOOT, OVERSHOOT = 3.0, 1.5
# Candidate shares of its largest mu that training gives up for the search.
GIVEN_UP = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)


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
        At most 0.02 % above the smallest noise (0.2 % if ``flat``), and never below it.

    Raises
    ------
    BudgetError
        If no noise is enough.
    """
    epsilon, delta = check_positive("epsilon", epsilon), check_probability("delta", delta)

    @cache
    def cost(noise: float) -> float:
        return epsilon_of(event_at(noise), delta, accountant)

    bad, good = None, check_positive("guess", guess)
    stride = _SHORT_STRIDE if flat else _STRIDE
    while not cost(good) <= epsilon and good <= _LARGEST_NOISE:  # a NaN cost fits no budget
        bad, good = good, good * stride
        stride = stride**2 if flat else stride
    if good > _LARGEST_NOISE:
        raise BudgetError(
            f"no amount of noise meets epsilon = {epsilon:g} at delta = {delta:g}; raise epsilon or delta"
        )
    while bad is None and good >= _SMALLEST_NOISE:
        lower = good / stride
        stride = stride**2 if flat else stride
        bad, good = (None, lower) if cost(lower) <= epsilon else (lower, good)
    return good if bad is None else _narrow(cost, epsilon, bad, good, flat)


def _narrow(cost: Callable[[float], float], epsilon: float, bad: float, good: float, flat: bool) -> float:
    """Shorten a bracket, and return its good end.

    Stop when the bracket is short, or, unless ``flat``, when the good end costs nearly epsilon.

    The log of the cost is nearly linear in the log of the noise, so a line through both ends shows where the answer is
    likely. What is tried is a little above it, then a little below it, so that the answer is soon between two tries.
    Where the line misleads twice, the bracket is halved.
    """
    precision = _FLAT_PRECISION if flat else _PRECISION
    aside, is_above, misled = (1 + precision) ** 0.4, True, 0
    while good / bad > 1 + precision and (flat or cost(good) < epsilon * (1 - _PRECISION)):
        length, share = good / bad, 0.5
        if misled < 2 and cost(good) > 0 and math.isfinite(cost(bad)):
            share = math.log(cost(bad) / epsilon) / math.log(cost(bad) / cost(good))
        likely = bad * length**share
        above, below = likely * aside, likely / aside
        noise = above if (is_above and above < good) or below <= bad else below
        is_above = cost(noise) > epsilon
        bad, good = (noise, good) if is_above else (bad, noise)
        misled = misled + 1 if (good / bad) ** 2 > length and misled < 2 else 0
    return good


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
        One that supports the integer noise of the search.

    Returns
    -------
    float
        The standard deviation of the noise on each count.

    >>> [round(count_noise(eps, 1e-5, steps=20, accountant="rdp"), 2) for eps in (0.5, 1, 2)]
    [34.29, 18.09, 9.61]

    Paper: Lemma 2 [lemma:search_privacy], Supplement S6.1
    """
    (noise,), _ = sized_lattice_noise(epsilon, delta, steps, (sensitivity,), training, accountant)
    return noise.count_noise


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
    """Return the noise of several searches, and of the release of the size.

    Each noise is proportional to the sensitivity of its search, so every count costs the same. Training, all searches
    and the size together stay in the budget. The accountant charged the returned objects, to sample from.

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
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    spent, others = as_event(training), () if beside is None else (beside,)
    if not is_private(spent):
        raise BudgetError(
            "training is not private, so no calibration noise is enough; train privately, or pass its event or ledger"
        )
    if not 0 <= size_share < 1:
        raise ValueError(f"size_share must be at least 0 and below 1, got {size_share:g}: the search needs the rest")
    fractions = [sensitivity_fraction(s) for s in sensitivities]
    each = steps if isinstance(steps, tuple | list) else [steps] * len(fractions)
    counts = [check_count("steps", count) for count in each]
    releases = sum(counts)
    # one record changes the size by 1: 1 / size_noise^2 = share / (1 - share) * releases / ratio^2
    size_ratio = math.sqrt((1 - size_share) / (size_share * releases)) if size_share else None

    def noises(ratio: float) -> tuple[tuple[LatticeNoise, ...], LatticeNoise | None]:
        size = None if size_ratio is None else lattice_noise(ratio * size_ratio)
        return tuple(lattice_noise(ratio * float(s), s, multiple) for s in fractions), size

    def spending(ratio: float) -> DpEvent:
        searches, size = noises(ratio)
        events = (noise.event(copies * count) for noise, count in zip(searches, counts, strict=True))
        return compose(*([] if size is None else [size.event(copies)]), *events)

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
    held_out = 0.0 if secret_part is None else secret_part + sum(share for _, share in others)
    mu = spare_mu(epsilon, delta, epsilon_of(spent, delta, accountant), held_out)
    ratio = smallest_noise(
        lambda ratio: together(spending(ratio)),
        epsilon,
        delta,
        accountant=accountant,
        guess=math.sqrt(copies * releases / (1 - size_share)) / mu,
        flat=secret_part is not None,
    )
    return noises(ratio)


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
) -> tuple[float, float]:
    """Return what training and a search on a secret part may spend.

    With an accountant that cannot count the secrecy of the split, each may spend the whole budget, and the more
    expensive part counts.

    Parameters
    ----------
    epsilon, delta : float
    fraction : float
        The probability that a record is held out.
    n_records : int
    accountant : str or Accountant

    Returns
    -------
    (float, float)
        Epsilon of training, and mu of the search.
    """
    if counts_secrecy(epsilon, accountant):
        return split_budget(epsilon, delta, fraction, n_records)
    return epsilon, gdp_mu(epsilon, delta)


@lru_cache(maxsize=256)
def split_budget(epsilon: float, delta: float, fraction: float, n_records: int) -> tuple[float, float]:
    """Return epsilon of training and mu of the search for the smallest expected sets.

    Training alone would be a release on a Poisson sample of rate 1 - ``fraction``. The more it gives up of what that
    allows, the more the search gets.

    >>> train_epsilon, held_out_mu = split_budget(1.0, 1e-5, 0.125, 15_000)
    >>> round(train_epsilon, 3), round(held_out_mu / gdp_mu(1.0, 1e-5), 2)
    (1.084, 2.15)

    Theory: The secret split
    """
    largest = _sampled_mu(epsilon, delta, 1 - fraction)

    def size(mu_training: float, mu: float) -> float:
        overshoot = OVERSHOOT / (fraction * n_records * mu) if mu > 0 else math.inf
        return SIZE_OF_OVERSHOOT * overshoot - TRAINING_GAIN * math.log(mu_training)

    # a level near delta costs no epsilon, so no noise could be computed for it: training then gets the whole epsilon
    levels = [(1 - given_up) * largest for given_up in GIVEN_UP]
    levels = [level for level in levels if gdp_epsilon(delta, level) > 0] or [gdp_mu(epsilon, delta)]
    shares = [(level, _held_out_mu(epsilon, delta, fraction, level)) for level in levels]
    mu_training, mu = min(shares, key=lambda share: size(*share))
    return gdp_epsilon(delta, mu_training) or epsilon, mu or gdp_mu(epsilon, delta)


def _sampled_mu(epsilon: float, delta: float, rate: float) -> float:
    """Return the mu on a Poisson sample that is (epsilon, delta)-DP for removal."""
    # log(1 + (e^epsilon - 1) / rate), where e^epsilon may be too large for a float
    return gdp_mu(epsilon + math.log1p((rate - 1) * math.exp(-epsilon)) - math.log(rate), min(delta / rate, 0.5))


def spare_mu(epsilon: float, delta: float, train_epsilon: float, secret_part: float = 0.0) -> float:
    """Estimate the mu that training leaves for the search.

    With ``secret_part`` the search uses a secret part of other records, otherwise those of training.
    """
    whole = gdp_mu(epsilon, delta)
    if secret_part:
        return _held_out_mu(epsilon, delta, secret_part, gdp_mu(train_epsilon, delta)) or whole
    return math.sqrt(whole**2 - gdp_mu(min(epsilon, train_epsilon), delta) ** 2) or whole


def _held_out_mu(epsilon: float, delta: float, fraction: float, mu_training: float) -> float:
    """Return the largest mu of the held-out part beside training; 0 if there is none.

    One integral is numerical, over the normal variable of training. The other one has a formula.
    """
    z = np.linspace(-9.0, 9.0, 361)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    trained = (1 - fraction) * np.exp(mu_training * z - mu_training**2 / 2)

    def delta_at(mu: float) -> float:
        removed = _call((math.exp(epsilon) - trained) / fraction, mu)
        strike = (math.exp(-epsilon) - trained) / fraction
        added = math.exp(epsilon) * np.where(strike > 0, _call(strike, mu) - 1 + strike, 0.0)
        return float(fraction * max(weights @ removed, weights @ added))

    smallest = 1e-3 * mu_training
    if delta_at(smallest) > delta:
        return 0.0
    largest = _sampled_mu(epsilon, delta, fraction)
    return last_where(lambda mu: delta_at(mu) <= delta, smallest, largest, within=1e-4 * largest)


def _call(strike: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """Return E max(0, L - strike) for L = exp(mu Z - mu^2 / 2).

    L is the density ratio of two normal laws.
    """
    positive = np.maximum(strike, 1e-300)
    reach = mu / 2 - np.log(positive) / mu
    return np.asarray(np.where(strike > 0, special.ndtr(reach) - positive * special.ndtr(reach - mu), 1 - strike))
