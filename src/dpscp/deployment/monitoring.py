"""Monitor the coverage of a release: one noisy number for each batch, valid at all times.

Theory: Result L
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dpscp._base.checks import check_count, check_probability
from dpscp.data.used_records import remember_use
from dpscp.deployment.evaluation import (
    evaluated_unit,
    labeled_outcomes,
    require_coverage_release,
    sketch_records,
    warn_if_not_new,
)
from dpscp.privacy import Budget, IntegerSource, LatticeNoise, Ledger, gdp_mu, sized_lattice_noise
from dpscp.privacy.budgets import check_budget, warn_of_failures
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import Unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT, _VERSION = "dpscp-monitor", 2
_CONSTANTS = ("epsilon", "delta", "tolerated", "level", "expected_batch")
STAGE = "monitoring"
# kappa is a multiple of eta / _KAPPA_STEPS, rounded upwards.
_KAPPA_STEPS = 1024
# The rise of the miss rate that eta is chosen for: this many times the tolerated rate.
_RISE = 1.25
_ETAS = tuple(2.0 ** (k / 4) for k in range(-28, 5))


@dataclass(frozen=True)
class MonitorStep:
    """Hold the state of a monitor after a batch.

    Attributes
    ----------
    log_evidence : natural logarithm of the evidence against the tolerated miss rate; the alarm is raised when it
        reaches log(1 / level).
    alarm : whether the alarm was ever raised.
    n_batches : number of batches so far.
    ledger : privacy cost of the batch to each of its persons; batches of different persons compose in parallel.
    """

    log_evidence: float
    alarm: bool
    n_batches: int
    ledger: Ledger


@dataclass(frozen=True)
class _Bet:
    """Hold the public constants of a monitor: the statistic M - share n in units of eta, and its noise.

    Theory: Result L
    """

    eta: float
    share: Fraction
    noise: LatticeNoise

    @classmethod
    def of(cls, eta: float, tolerated: float, budget: Budget) -> "_Bet":
        kappa = math.log1p(tolerated * math.expm1(eta))
        # rounded up, so that the mean factor of a record is at most one
        share = Fraction(math.ceil(kappa / eta * _KAPPA_STEPS * (1 + 1e-12)), _KAPPA_STEPS)
        (noise,), _ = sized_lattice_noise(budget.epsilon, budget.delta, 1, (max(share, 1 - share),))
        return cls(eta, share, noise)

    @property
    def noise_parameter(self) -> float:
        """Parameter s of the discrete Gaussian noise on the evidence."""
        return self.eta * self.noise.count_noise

    def log_factor(self, misses: int, n: int, source: IntegerSource) -> float:
        """Release what a batch adds to the log evidence.

        Without a change, its exponential has a mean of at most one.
        """
        exact = self.noise.scale * (misses - self.share * n)
        (drawn,) = self.noise.sample(1, source)
        return self.eta * float(exact + drawn) / self.noise.scale - self.noise_parameter**2 / 2


def log_evidence(log_factors: Sequence[float]) -> tuple[float, ...]:
    """Compute the log evidence after each batch: a mixture over the batch of the change.

    The product of all factors falls without a change, which would delay the alarm after a later change. The mixture has
    weight 1/2 on a change in the first batch and 1 / (2 j (j - 1)) on a change in batch j. Each product from batch j on
    is an e-process, and so is the mixture. By Ville's inequality it ever reaches 1 / level with probability at most
    ``level``.

    Theory: Result L
    """
    running, found = -math.inf, []
    for batch, factor in enumerate(log_factors, start=1):
        weight = 0.5 if batch == 1 else 0.5 / (batch * (batch - 1))
        running = factor + float(np.logaddexp(running, math.log(weight)))
        found.append(float(np.logaddexp(running, math.log(0.5 / batch))))  # weight of later changes
    return tuple(found)


class CoverageMonitor:
    """Raise an alarm if a release misses more often than tolerated.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    epsilon, delta : privacy cost of a batch to each of its records, or persons.
    tolerated : tolerated miss rate at the first level. None: one minus the level that this release covers with
        confidence .95 (Result I); needs ``guarantee="split"``.
    level : largest probability of ever raising a false alarm.
    expected_batch : public guess of the number of records in a batch; it affects the delay of an alarm, no promise.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Form batches by calendar, never by count: with a fixed number, one person would shift all later batches. A person is
    in one batch. For persons who return, a budget store adds up the cost (``update(..., budget=store)``).

    Privacy: each batch releases eta M - kappa n + Z for its M misses among n records, with integer noise, and nothing
    else; (epsilon, delta) for adding or removing one record of the batch, or one person with ``persons``.

    Assumes: records (with ``persons``, persons) are independent, and each is missed with probability at most
    ``tolerated`` unless something changed. With the default ``tolerated`` a false alarm has probability at most
    ``level`` + .05, because the release may be one of the few that cover less.

    Theory: Result L
    """

    def __init__(
        self,
        estimator: Any,
        *,
        epsilon: float,
        delta: float,
        tolerated: float | None = None,
        level: float = 0.05,
        expected_batch: int = 500,
        random_state: int | None = None,
    ) -> None:
        require_coverage_release(estimator)
        self.budget = Budget(epsilon, delta)
        self.tolerated = _tolerated(estimator) if tolerated is None else check_probability("tolerated", tolerated)
        self.level = check_probability("level", level)
        self.expected_batch = check_count("expected_batch", expected_batch)
        warn_of_failures(check_budget(self.budget, self.expected_batch))
        self.estimator = estimator
        self._seed = seed_of(random_state)
        self._bet = _choose_bet(self.tolerated, self.budget, self.expected_batch)
        self._model = estimator.digest()
        self._factors: list[float] = []
        self._names: list[str] = []

    @property
    def n_batches(self) -> int:
        """Number of batches so far."""
        return len(self._factors)

    @property
    def batches(self) -> tuple[str, ...]:
        """Public names of the batches so far."""
        return tuple(self._names)

    @property
    def is_seeded(self) -> bool:
        """Whether the noise comes from a seed; then nothing is private."""
        return self._seed is not None

    @property
    def evidence(self) -> tuple[float, ...]:
        """Log evidence after each batch, computed from released numbers."""
        return log_evidence(self._factors)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached the level."""
        return any(value >= self.alarm_limit for value in self.evidence)

    @property
    def alarm_limit(self) -> float:
        """Log evidence at which the alarm is raised."""
        return -math.log(self.level)

    def _ledger(self, unit: Unit) -> Ledger:
        """Create the ledger of a batch."""
        note = "misses of one batch against the tolerated rate"
        return Ledger(seeded=self.is_seeded).add(STAGE, self._bet.noise.event(1), note, unit=unit)

    def update(
        self, X: Any, y: Any, persons: Any = None, *, batch: str | None = None, budget: BudgetStore | None = None
    ) -> MonitorStep:
        """Add one batch of new labeled records.

        Parameters
        ----------
        X, y : (n, n_features) and (n,) labeled records.
        persons : (n,) ids; one random record of each person is counted.
        batch : public name, for example "2026-11"; a name that was used before is refused.
        budget : budget store that pays.

        Returns
        -------
        MonitorStep
        """
        name = f"batch {self.n_batches + 1}" if batch is None else str(batch)
        if name in self._names:
            raise ValueError(f"batch {name!r} was counted before: count each batch once, under its own name")
        row_seed, noise_seed = child_seeds(None if self._seed is None else self._seed + self.n_batches, 2)
        if budget is not None:
            budget.require_spendable(seeded=self.is_seeded)
        outcomes = labeled_outcomes(self.estimator, X, y, persons=persons, random_state=row_seed)
        sketch, adds_up = sketch_records(self.estimator, X), budget is None and not self.is_seeded
        warn_if_not_new(self.estimator, sketch, "the batch of the monitor has", adds_up=adds_up)
        ledger = self._ledger(evaluated_unit(persons))
        reservation = None if budget is None else budget.reserve(ledger, note=f"monitor {name}")
        misses = int((~outcomes.covered[:, 0]).sum())
        added = self._bet.log_factor(misses, len(outcomes), IntegerSource(noise_seed))
        if reservation is not None:
            reservation.commit(ledger)
        remember_use(sketch, is_private=not self.is_seeded)
        self._factors.append(added)
        self._names.append(name)
        return MonitorStep(self.evidence[-1], self.alarm, self.n_batches, ledger)

    def plot(self) -> "Figure":
        """Plot the evidence after each batch and the limit of the alarm; needs ``dpscp[report]``.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from dpscp.report.figures import evidence_figure

        return evidence_figure(self)

    def to_json(self) -> str:
        """Return the state as JSON; it contains public constants and released numbers only.

        A checksum of all of it shows a state that was changed. It is no signature: it does not show who wrote it.
        """
        state = {
            "format": _FORMAT,
            "version": _VERSION,
            "model": self._model,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "tolerated": self.tolerated,
            "level": self.level,
            "expected_batch": self.expected_batch,
            "seed": self._seed,
            "batches": [{"name": n, "log_factor": f} for n, f in zip(self._names, self._factors, strict=True)],
        }
        return json.dumps({**state, "checksum": _checksum(state)})

    @classmethod
    def from_json(cls, text: str, estimator: Any) -> Self:
        """Create the monitor from the result of ``to_json``; refuse the state of another model."""
        try:
            state = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("the text is not the state of a monitor: it is not JSON") from None
        if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (_FORMAT, _VERSION):
            raise ValueError(f"the text is not the state of a monitor of format {_FORMAT!r}, version {_VERSION}")
        if state.pop("checksum", None) != _checksum(state):
            raise ValueError("the state of the monitor was changed: its checksum is not that of its content")
        if state.get("model") != estimator.digest():
            raise ValueError("this state belongs to another model: load the model for which the monitor was created")
        try:
            monitor = cls(estimator, random_state=state["seed"], **{name: state[name] for name in _CONSTANTS})
            monitor._factors = [float(batch["log_factor"]) for batch in state["batches"]]
            monitor._names = [str(batch["name"]) for batch in state["batches"]]
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"the state of the monitor is damaged: {error}") from None
        if not np.isfinite(monitor._factors).all() or len(set(monitor._names)) < len(monitor._names):
            raise ValueError("the state of the monitor is damaged: a batch is counted twice or without a number")
        return monitor


def _checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _tolerated(estimator: Any) -> float:
    """Return one minus the level that this release covers with confidence .95.

    Theory: Result I
    """
    covered = estimator.certificate_.terms.release_level
    if covered is None or not 0 < covered < 1:
        raise ValueError(
            "tolerated must be set: this release has no proven level of a single release (only guarantee='split' has "
            "one); choose the tolerated miss rate, for example tolerated=0.12"
        )
    return float(1 - covered)


def _choose_bet(tolerated: float, budget: Budget, expected_batch: int) -> _Bet:
    """Choose the eta with the fastest growth of evidence after a rise; from public numbers, for continuous noise."""
    mu, n = gdp_mu(budget.epsilon, budget.delta), expected_batch
    rise = tolerated + (_RISE - 1) * min(tolerated, 1 - tolerated)

    def growth(eta: float) -> float:
        kappa = math.log1p(tolerated * math.expm1(eta))
        return n * (eta * rise - kappa) - (max(kappa, eta - kappa) / mu) ** 2 / 2

    while growth(max(_ETAS, key=growth)) <= 0 and rise <= 0.9:
        rise += (1 - rise) / 4
    return _Bet.of(max(_ETAS, key=growth), tolerated, budget)
