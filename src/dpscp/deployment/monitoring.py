"""Watch the coverage of a release for years: one noisy number a batch, and an alarm that may be looked at for ever.

Theory: Result L
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np

from dpscp._base.checks import check_count, check_positive, check_probability
from dpscp.deployment.labeled import evaluated_unit, labeled_outcomes
from dpscp.privacy import Budget, IntegerSource, LatticeNoise, Ledger, gdp_mu, shared_lattice_noise
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import Unit

_FORMAT, _VERSION = "dpscp-monitor", 1
STAGE = "monitoring"
# kappa is a multiple of eta / _KAPPA_STEPS, rounded upwards.
_KAPPA_STEPS = 1024
# The rise of the miss rate that eta is chosen for: this many times the tolerated rate.
_RISE = 1.25
_ETAS = tuple(2.0 ** (k / 4) for k in range(-28, 5))


@dataclass(frozen=True)
class MonitorStep:
    """What is known after a batch: the evidence so far, whether the alarm was ever raised, what the batch cost.

    ``log_evidence`` is the natural logarithm of the evidence against the tolerated miss rate; the alarm is raised when
    it reaches log(1 / level). ``ledger`` is what the batch cost each of its persons; batches of different persons
    compose in parallel.
    """

    log_evidence: float
    alarm: bool
    n_batches: int
    ledger: Ledger


@dataclass(frozen=True)
class _Bet:
    """The public constants of a monitor: the statistic M - share n in units of eta, and its noise.

    Theory: Result L
    """

    eta: float
    share: Fraction
    noise: LatticeNoise

    @classmethod
    def of(cls, eta: float, tolerated: float, budget: Budget) -> "_Bet":
        kappa = math.log1p(tolerated * math.expm1(eta))
        # rounded up: rounded down, a record's factor would have a mean above one
        share = Fraction(math.ceil(kappa / eta * _KAPPA_STEPS * (1 + 1e-12)), _KAPPA_STEPS)
        (noise,) = shared_lattice_noise(budget.epsilon, budget.delta, 1, (max(share, 1 - share),))
        return cls(eta, share, noise)

    @property
    def noise_parameter(self) -> float:
        """The parameter s of the discrete Gaussian noise on the evidence."""
        return self.eta * self.noise.count_noise

    def log_factor(self, misses: int, n: int, source: IntegerSource) -> float:
        """Release what a batch adds to the log evidence; its exponential has a mean of at most one without change."""
        exact = self.noise.scale * (misses - self.share * n)
        (drawn,) = self.noise.sample(1, source)
        return self.eta * float(exact + drawn) / self.noise.scale - self.noise_parameter**2 / 2

    def growth(self, miss_rate: float, n: int) -> float:
        """Expected growth of the evidence in a batch of ``n`` records with this miss rate."""
        return self.eta * n * (miss_rate - float(self.share)) - self.noise_parameter**2 / 2


def log_evidence(log_factors: Sequence[float]) -> tuple[float, ...]:
    """Return the log evidence after each batch: a mixture over the batch in which a change may have begun.

    A plain product of the factors falls while all is well, and a later change would have to make up for that. Half of
    the stake is on a change from the start, the other half is spread over later batches j as 1 / (2 j (j - 1)). Each
    product that begins at batch j is an e-process, and so is their mixture: it reaches 1 / level with probability at
    most ``level``, ever (Ville).

    Theory: Result L
    """
    running, found = -math.inf, []
    for batch, factor in enumerate(log_factors, start=1):
        stake = 0.5 if batch == 1 else 0.5 / (batch * (batch - 1))
        running = factor + float(np.logaddexp(running, math.log(stake)))
        found.append(float(np.logaddexp(running, math.log(0.5 / batch))))  # stakes on changes that are still to come
    return tuple(found)


class CoverageMonitor:
    """Raise an alarm when a release misses more often than tolerated; false alarms have probability at most ``level``.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    epsilon, delta : what a batch costs each of its records, or persons.
    tolerated : miss rate at the first level that is still fine. None: one minus the level that this very release
        covers with confidence .95 (Result I), which only ``guarantee="split"`` knows.
    level : probability of a false alarm, ever.
    expected_batch : public guess of the number of records in a batch; it decides how fast an alarm comes, no promise.
    random_state : None for system entropy; an integer repeats the run and is NOT private.

    Batches must be cut by calendar, never by count: with batches of a fixed size, one person would shift all later
    ones. A person is in one batch; persons who return are composed by a budget store (``update(..., budget=store)``).

    Privacy: each batch releases eta M - kappa n + Z for its M misses among n records, with integer noise, and nothing
    else; (epsilon, delta) for adding or removing one record of the batch, or one person with ``persons``.

    Assumes: records (with ``persons``, persons) are independent, and each is missed with probability at most
    ``tolerated`` unless something changed. With the default ``tolerated`` a false alarm has probability at most
    ``level`` + .05: the release itself may be one of the few that cover less.

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
        self.budget = Budget(epsilon, delta)
        self.tolerated = _tolerated(estimator) if tolerated is None else check_probability("tolerated", tolerated)
        self.level = check_probability("level", level)
        self.expected_batch = check_count("expected_batch", expected_batch)
        self.estimator = estimator
        self._seed = seed_of(random_state)
        self._bet = _choose_bet(self.tolerated, self.budget, self.expected_batch)
        self._model = model_digest(estimator)
        self._factors: list[float] = []
        self._names: list[str] = []
        self._seeded = self._seed is not None

    @property
    def n_batches(self) -> int:
        """How many batches were counted."""
        return len(self._factors)

    @property
    def evidence(self) -> tuple[float, ...]:
        """The log evidence after each batch, from released numbers alone."""
        return log_evidence(self._factors)

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever reached the level."""
        return any(value >= self.alarm_limit for value in self.evidence)

    @property
    def alarm_limit(self) -> float:
        """The log evidence at which the alarm is raised."""
        return -math.log(self.level)

    def _ledger(self, unit: Unit) -> Ledger:
        """What a batch costs each of its records, or persons."""
        note = "misses of one batch against the tolerated rate"
        return Ledger(seeded=self._seeded).add(STAGE, self._bet.noise.event(1), note, unit=unit)

    def update(
        self, X: Any, y: Any, persons: Any = None, *, batch: str | None = None, budget: BudgetStore | None = None
    ) -> MonitorStep:
        """Count one batch of new labeled records and return the evidence so far.

        ``persons`` are ids, one for each row: one random record of each person is counted. ``batch`` is a public name,
        such as ``"2026-11"``; a name that was used before is refused, so that a batch is not counted twice.
        """
        name = f"batch {self.n_batches + 1}" if batch is None else str(batch)
        if name in self._names:
            raise ValueError(f"batch {name!r} was counted before: each batch is counted once")
        row_seed, noise_seed = child_seeds(None if self._seed is None else self._seed + self.n_batches, 2)
        if budget is not None:
            budget.require_spendable(seeded=self._seeded)
        outcomes = labeled_outcomes(self.estimator, X, y, persons=persons, random_state=row_seed)
        ledger = self._ledger(evaluated_unit(persons))
        reservation = None if budget is None else budget.reserve(ledger, note=f"monitor {name}")
        misses = int((~outcomes.covered[:, 0]).sum())
        added = self._bet.log_factor(misses, len(outcomes), IntegerSource(noise_seed))
        if reservation is not None:
            reservation.commit(ledger)
        self._factors.append(added)
        self._names.append(name)
        return MonitorStep(self.evidence[-1], self.alarm, self.n_batches, ledger)

    def to_json(self) -> str:
        """Return the state as JSON: public constants and released numbers, nothing of the records."""
        noise = self._bet.noise
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "model": self._model,
                "epsilon": self.budget.epsilon,
                "delta": self.budget.delta,
                "tolerated": self.tolerated,
                "level": self.level,
                "expected_batch": self.expected_batch,
                "eta": self._bet.eta,
                "share": [self._bet.share.numerator, self._bet.share.denominator],
                "noise": [noise.scale, noise.sigma, noise.sensitivity],
                "seed": self._seed,
                "batches": [{"name": n, "log_factor": f} for n, f in zip(self._names, self._factors, strict=True)],
            }
        )

    @classmethod
    def from_json(cls, text: str, estimator: Any) -> Self:
        """Return the monitor that ``to_json`` wrote; the state of another model is refused."""
        state = _read_state(text)
        if state["model"] != model_digest(estimator):
            raise ValueError("this state belongs to another model: load the model that the monitor was made for")
        monitor = cls.__new__(cls)
        monitor.estimator, monitor._model = estimator, state["model"]
        try:
            monitor.budget = Budget(state["epsilon"], state["delta"])
            monitor.tolerated = check_probability("tolerated", state["tolerated"])
            monitor.level = check_probability("level", state["level"])
            monitor.expected_batch = check_count("expected_batch", state["expected_batch"])
            scale, sigma, sensitivity = (check_count("noise", value) for value in state["noise"])
            share = Fraction(*(check_count("share", value) for value in state["share"]))
            monitor._bet = _Bet(check_positive("eta", state["eta"]), share, LatticeNoise(scale, sigma, sensitivity))
            monitor._seed = None if state["seed"] is None else check_count("seed", state["seed"], minimum=0)
            monitor._factors = [float(batch["log_factor"]) for batch in state["batches"]]
            monitor._names = [str(batch["name"]) for batch in state["batches"]]
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"the state of the monitor is damaged: {error}") from None
        expected = _Bet.of(monitor._bet.eta, monitor.tolerated, monitor.budget)
        if expected != monitor._bet or not np.isfinite(monitor._factors).all():
            raise ValueError("the state of the monitor is damaged: its noise and its budget do not belong together")
        monitor._seeded = monitor._seed is not None
        return monitor


def _read_state(text: str) -> Mapping[str, Any]:
    try:
        state = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("this is not the state of a monitor: the text is not JSON") from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise ValueError(f"this is not the state of a monitor: expected JSON of format {_FORMAT!r}")
    if state.get("version") != _VERSION:
        raise ValueError(f"monitor version {state.get('version')!r} is unknown, this release reads {_VERSION}")
    if "model" not in state:
        raise ValueError("the state of the monitor is damaged: it names no model")
    return state


def model_digest(estimator: Any) -> str:
    """Return a public checksum of a release: its thresholds and its ledger."""
    thresholds = np.ascontiguousarray(estimator.threshold_, dtype="<f8")
    return hashlib.sha256(thresholds.tobytes() + estimator.ledger_.to_json().encode()).hexdigest()


def _tolerated(estimator: Any) -> float:
    """One minus the level that this very release covers with confidence .95.

    Theory: Result I
    """
    covered = estimator.certificate_.terms.release_level
    if covered is None or not 0 < covered < 1:
        raise ValueError(
            "tolerated is needed: this release has no proven level of its own (only guarantee='split' has one); give "
            "the miss rate that is still fine, such as tolerated=0.12"
        )
    return float(1 - covered)


def _choose_bet(tolerated: float, budget: Budget, expected_batch: int) -> _Bet:
    """The eta whose evidence grows fastest if the miss rate rises; from public numbers only."""
    rise = tolerated + (_RISE - 1) * min(tolerated, 1 - tolerated)
    while True:
        bets = [_Bet.of(eta, tolerated, budget) for eta in _coarse_etas(tolerated, budget, rise, expected_batch)]
        best = max(bets, key=lambda bet: bet.growth(rise, expected_batch))
        if best.growth(rise, expected_batch) > 0 or rise > 0.9:
            return best
        rise += (1 - rise) / 4


def _coarse_etas(tolerated: float, budget: Budget, rise: float, n: int) -> tuple[float, ...]:
    """The two best of a grid, by the continuous noise of the same budget."""
    mu = gdp_mu(budget.epsilon, budget.delta)

    def growth(eta: float) -> float:
        kappa = math.log1p(tolerated * math.expm1(eta))
        return n * (eta * rise - kappa) - (max(kappa, eta - kappa) / mu) ** 2 / 2

    return tuple(sorted(_ETAS, key=growth)[-2:])
