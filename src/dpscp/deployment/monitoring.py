"""Monitor the coverage of a release by noisy counts of each batch.

The evidence is valid at all times.

Theory: Result L
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpscp._base.checks import check_count, check_probability
from dpscp.core.evaluation import labeled_outcomes, require_coverage_release
from dpscp.data.used_records import remember_use
from dpscp.deployment.evaluation import evaluated_unit, sketch_records, warn_if_not_new
from dpscp.deployment.following import FollowPlan, LongRun, NoisyPair, long_run_bound, noisy_counts
from dpscp.privacy import Budget, IntegerSource, LatticeNoise, Ledger, gdp_mu, sized_lattice_noise
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import Unit, check_budget, warn_of_failures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT, _VERSION = "dpscp-monitor", 1
_CONSTANTS = ("epsilon", "delta", "tolerated", "level", "expected_batch", "follow")
STAGE = "monitoring"
# The default tolerated rate is at most this many times the promised one: a larger one would not detect a rise.
_MOST_TOLERATED = 1.5
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
    alarm : whether the alarm has been raised, now or before.
    n_batches : number of batches so far.
    ledger : privacy cost of the batch to each of its persons; batches of different persons compose in parallel.
    threshold : threshold in force after the batch, or one for each group; None if thresholds do not follow.
    """

    log_evidence: float
    alarm: bool
    n_batches: int
    ledger: Ledger
    threshold: Any = None


@dataclass(frozen=True)
class _Bet:
    """Public constants of the evidence, eta (misses - share records).

    They include the noise of a count.

    Theory: Result L
    """

    eta: float
    share: float
    noise: LatticeNoise

    @classmethod
    def of(cls, eta: float, tolerated: float, budget: Budget, counts: int) -> "_Bet":
        """Return the constants; a record changes ``counts`` noisy counts by one."""
        kappa = math.log1p(tolerated * math.expm1(eta))
        (noise,), _ = sized_lattice_noise(budget.epsilon, budget.delta, counts, (1.0,))
        # rounded up, so that the mean factor of a record is at most one
        return cls(eta, kappa / eta * (1 + 1e-12), noise)

    def log_factor(self, pair: NoisyPair) -> float:
        """Return the log evidence of a batch.

        Without a change, the mean of its exponential is at most one.
        """
        return self.eta * pair.balance(self.share) - self._noise_parameter(pair.draws) ** 2 / 2

    def _noise_parameter(self, draws: tuple[int, int]) -> float:
        """Return the noise parameter of the evidence, from a pair's noise draws."""
        return self.eta * self.noise.count_noise * NoisyPair(0, 0, draws).spread(self.share)

    def smallest_rate(
        self, n: int, limit: float, batches: int, power: float, draws: tuple[int, int] = (1, 1)
    ) -> float | None:
        """Return the smallest miss rate that raises the alarm in time.

        The alarm comes within these batches with this probability. The evidence of a change in the first batch alone,
        as a normal number; None if no rate is detected so soon.
        """
        parameter = self._noise_parameter(draws)

        def is_seen(rate: float) -> bool:
            mean = n * self.eta * (rate - self.share) - parameter**2 / 2
            variance = n * self.eta**2 * rate * (1 - rate) + parameter**2
            return bool(batches * mean - special.ndtri(power) * math.sqrt(batches * variance) >= limit + math.log(2))

        low, high = 0.0, 1.0
        if not is_seen(high):
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if is_seen(middle) else (middle, high)
        return high


def log_evidence(log_factors: Sequence[float]) -> tuple[float, ...]:
    """Compute the log evidence after each batch, a mixture over the change.

    The mixture is over the batch of the change. Without a change, the product of all factors falls. This would delay
    the alarm after a later change. The mixture has weight 1/2 on a change in the first batch and 1 / (2 j (j - 1)) on a
    change in batch j. Each product from batch j on is an e-process, and so is the mixture. By Ville's inequality, the
    probability that it ever reaches 1 / level is at most ``level``.

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
    epsilon, delta : privacy budget of a batch for each of its records, or persons.
    tolerated : tolerated miss rate at the first level. None: one minus the level that this release covers with
        confidence .95 (Result I), at most 1.5 times the promised miss rate; needs ``guarantee="split"``.
    level : largest probability of ever raising a false alarm.
    expected_batch : public guess of the number of records in a batch. It affects the delay of an alarm and the steps of
        thresholds that follow, but no promise.
    follow : size of the steps of thresholds that follow new records (Result M), in units of the first threshold; 1.0 is
        a good start. None: the thresholds do not change. The alarm is always about the first thresholds.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Form batches by calendar, never by count: with a fixed number, one person would shift all later batches. A person is
    in one batch. For persons who return, a budget store adds up the cost (``update(..., budget=store)``).

    Privacy: (epsilon, delta) for adding or removing one record of the batch, or one person with ``persons``. Each batch
    releases noisy counts and nothing else: of its covered and of its missed records. With ``follow`` these are the
    records below, between and above the first threshold and the one in force; with groups, covered and missed records
    by the first thresholds, and by those in force in each group.

    Assumes: for the alarm, records (with ``persons``, persons) are independent, and each is missed with probability at
    most ``tolerated`` unless something changed. With the default ``tolerated`` a false alarm has probability at most
    ``level`` + .05, because the release may be one of the few that cover less. If 1.5 times the promised miss rate is
    smaller than the default, this probability is larger. For ``long_run``, nothing is assumed about the records.

    Theory: Results L and M
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
        follow: float | None = None,
        random_state: int | None = None,
    ) -> None:
        require_coverage_release(estimator)
        self.budget = Budget(epsilon, delta)
        self.tolerated = _tolerated(estimator) if tolerated is None else check_probability("tolerated", tolerated)
        self.level = check_probability("level", level)
        self.expected_batch = check_count("expected_batch", expected_batch)
        warn_of_failures(check_budget(self.budget, self.expected_batch))
        self.follow = follow
        self._release, self._model = estimator, estimator.digest()
        self._plan = None if follow is None else FollowPlan.of(estimator, follow, self.expected_batch)
        self._seed = seed_of(random_state)
        self._n_counts = 1 if self._plan is None else self._plan.n_counts
        self._bet = _choose_bet(self.tolerated, self.budget, self.expected_batch, self._n_counts)
        self._names: list[str] = []
        self._factors: list[float] = []
        # the released counts and the delay of each batch; the thresholds around it, where they follow
        self._counts: list[tuple[float, ...]] = []
        self._delays: list[int] = []
        self._pairs: list[list[NoisyPair]] = []
        self._thresholds: list[tuple[float, ...]] = [() if self._plan is None else self._plan.first]

    @property
    def estimator(self) -> Any:
        """The estimator with the thresholds in force.

        It is the released one if thresholds do not follow.
        """
        if self._plan is None:
            return self._release
        return self._plan.release(self._release, self._thresholds[-1], is_first=not self._names)

    @property
    def thresholds(self) -> tuple[Any, ...]:
        """The thresholds in force before the first batch and after each one.

        Empty if thresholds do not follow.
        """
        plan = self._plan
        return () if plan is None else tuple(self._shaped(plan.in_force(one)) for one in self._thresholds)

    @property
    def released_coverage(self) -> tuple[tuple[float, ...], ...]:
        """The noisy coverage of each batch under the thresholds in force.

        It has one number for each group that follows.
        """
        return tuple(tuple(pair.coverage for pair in pairs) for pairs in self._pairs)

    def _shaped(self, values: NDArray[np.float64]) -> Any:
        return float(values[0]) if self._release.group_values_ is None else values

    @property
    def smallest_rise(self) -> float | None:
        """The smallest miss rate that raises the alarm in 12 expected batches.

        The alarm has probability .9; None if no rate raises it.
        """
        draws = (1, 1) if self._plan is None or self._plan.is_grouped else (1, 2)
        return self._bet.smallest_rate(self.expected_batch, self.alarm_limit, 12, 0.9, draws)

    @property
    def n_batches(self) -> int:
        """Number of batches so far."""
        return len(self._names)

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
        note = "noisy counts of the covered and of the missed records of one batch"
        return Ledger(seeded=self.is_seeded).add(STAGE, self._bet.noise.event(self._n_counts), note, unit=unit)

    def update(
        self,
        X: Any,
        y: Any,
        persons: Any = None,
        *,
        batch: str | None = None,
        predicted_after: int | None = None,
        budget: BudgetStore | None = None,
    ) -> MonitorStep:
        """Add one batch of new labeled records.

        Parameters
        ----------
        X, y : (n, n_features) and (n,) labeled records.
        persons : (n,) ids; one random record of each person is counted.
        batch : public name, for example "2026-11"; a name that was used before is refused.
        predicted_after : number of batches that had been counted when these records were predicted. None: all so far.
            Late labels are compared with the threshold of that time. It needs ``follow``.
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
        plan, before = self._plan, self._threshold_before(predicted_after)
        scored = self._release if plan is None else plan.both(self._release, before)
        groups = None if plan is None else self._release.declared_groups()
        outcomes = labeled_outcomes(scored, X, y, persons=persons, groups=groups, random_state=row_seed)
        sketch, adds_up = sketch_records(self._release, X), budget is None and not self.is_seeded
        warn_if_not_new(self._release, sketch, "the batch of the monitor has", adds_up=adds_up)
        ledger = self._ledger(evaluated_unit(persons))
        reservation = None if budget is None else budget.reserve(ledger, note=f"monitor {name}")
        if plan is None:
            first = outcomes.covered[:, 0]
            exact = np.array([first.sum(), (~first).sum()])
        else:
            places = None if not plan.is_grouped else outcomes.labels if groups is None else outcomes.groups
            exact = plan.count(outcomes.covered, places, before)
        counts = noisy_counts(exact, self._bet.noise, IntegerSource(noise_seed))
        if reservation is not None:
            reservation.commit(ledger)
        remember_use(sketch, is_private=not self.is_seeded)
        self._add(name, counts, 0 if predicted_after is None else self.n_batches - predicted_after)
        threshold = None if plan is None else self.thresholds[-1]
        return MonitorStep(self.evidence[-1], self.alarm, self.n_batches, ledger, threshold)

    def _threshold_before(self, predicted_after: int | None) -> tuple[float, ...]:
        """Return the thresholds in force when a batch's records were predicted."""
        if predicted_after is None:
            return self._thresholds[-1]
        if self._plan is None:
            raise ValueError("predicted_after needs thresholds that follow: create the monitor with follow=1.0")
        if isinstance(predicted_after, bool) or predicted_after not in range(self.n_batches + 1):
            raise ValueError(f"predicted_after must be a number of batches from 0 to {self.n_batches}")
        return self._thresholds[predicted_after]

    def _add(self, name: str, counts: tuple[float, ...], delay: int) -> None:
        """Add the released counts of a batch.

        They determine the evidence and the next thresholds.
        """
        plan = self._plan
        if delay not in range(self.n_batches + 1):
            raise ValueError(f"batch {name!r} has a wrong delay")
        before = self._thresholds[0 if plan is None else self.n_batches - delay]
        if len(counts) != (2 if plan is None else plan.n_cells(before)):
            raise ValueError(f"batch {name!r} has the wrong number of counts")
        if plan is None:
            first = NoisyPair(counts[0], counts[1], (1, 1))
            self._pairs.append([first])
        else:
            first, pairs = plan.read(counts, before)
            self._pairs.append(pairs)
            self._thresholds.append(plan.next(self._thresholds[-1], pairs))
        self._factors.append(self._bet.log_factor(first))
        self._counts.append(counts)
        self._delays.append(delay)
        self._names.append(name)

    def long_run(
        self, beta: float = 0.05, *, n_records: int | None = None, largest_batch: int | None = None
    ) -> LongRun | tuple[LongRun, ...]:
        """Return the promise of the thresholds in force over all batches so far.

        It holds for any sequence of records.

        Parameters
        ----------
        beta : probability over the noise that a bound fails; with groups they share it.
        n_records : declared number of records in all batches. None: a lower bound from the released counts.
        largest_batch : declared largest number of records in a batch. None: an upper bound from the released counts.
            With groups, both are for each group.

        Returns
        -------
        LongRun, or one for each group

        Theory: Result M
        """
        beta = check_probability("beta", beta)
        if self._plan is None:
            raise ValueError("long_run needs thresholds that follow: create the monitor with follow=1.0")
        names = self._release.group_values_ if self._plan.is_grouped else [None]
        found = tuple(
            long_run_bound(
                self._plan,
                place,
                [pairs[place] for pairs in self._pairs],
                self._bet.noise,
                group=name,
                beta=beta / len(names),
                delay=max(self._delays, default=0),
                n_records=n_records,
                largest_batch=largest_batch,
            )
            for place, name in enumerate(names)
        )
        return found if self._plan.is_grouped else found[0]

    def plot(self) -> "Figure":
        """Plot the evidence after each batch, and any thresholds that follow.

        Needs ``dpscp[report]``.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from dpscp.report.figures import monitor_figure

        return monitor_figure(self)

    def to_json(self) -> str:
        """Return the state as JSON: public constants and released numbers only.

        A checksum detects a changed state. It is not a signature: it does not show who wrote the state.
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
            "follow": self.follow,
            "batches": [
                {"name": name, "counts": counts, "delay": delay}
                for name, counts, delay in zip(self._names, self._counts, self._delays, strict=True)
            ],
        }
        return json.dumps({**state, "checksum": _checksum(state)})

    @classmethod
    def from_json(cls, text: str, estimator: Any) -> Self:
        """Create the monitor from ``to_json``; refuse the state of another model."""
        try:
            state = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("the text is not the state of a monitor: it is not JSON") from None
        if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (_FORMAT, _VERSION):
            raise ValueError(f"the text is not the state of a monitor of format {_FORMAT!r}, version {_VERSION}")
        if state.pop("checksum", None) != _checksum(state):
            raise ValueError("the state of the monitor was changed: its checksum does not match; restore a backup")
        if state.get("model") != estimator.digest():
            raise ValueError("this state belongs to another model: load the model for which the monitor was created")
        try:
            monitor = cls(estimator, random_state=state["seed"], **{name: state[name] for name in _CONSTANTS})
            for batch in state["batches"]:
                monitor._add(str(batch["name"]), tuple(map(float, batch["counts"])), batch["delay"])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"the state of the monitor is damaged: {error}") from None
        numbers = list(chain.from_iterable(monitor._counts))
        if not np.isfinite(numbers).all() or len(set(monitor._names)) < len(monitor._names):
            raise ValueError("the state of the monitor is damaged: a batch is counted twice or without a number")
        return monitor


def _checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _tolerated(estimator: Any) -> float:
    """Return one minus the level that this release covers with confidence .95.

    It is at most 1.5 times the promised rate.

    Theory: Result I
    """
    covered = estimator.certificate_.terms.release_level
    if covered is None or not 0 < covered < 1:
        raise ValueError(
            "tolerated must be set, because only guarantee='split' has a proven level of a single release; choose the "
            "tolerated miss rate, for example tolerated=0.12"
        )
    return float(min(1 - covered, _MOST_TOLERATED * (1 - estimator.certificate_.target)))


def _choose_bet(tolerated: float, budget: Budget, expected_batch: int, counts: int = 1) -> _Bet:
    """Choose the eta with the fastest growth of evidence after a rise.

    It follows from public numbers, for continuous noise.
    """
    mu, n = gdp_mu(budget.epsilon, budget.delta), expected_batch
    rise = tolerated + (_RISE - 1) * min(tolerated, 1 - tolerated)

    def growth(eta: float) -> float:
        kappa = math.log1p(tolerated * math.expm1(eta))
        spread = math.sqrt(counts) * math.hypot(kappa, eta - kappa)
        return n * (eta * rise - kappa) - (spread / mu) ** 2 / 2

    while growth(max(_ETAS, key=growth)) <= 0 and rise <= 0.9:
        rise += (1 - rise) / 4
    return _Bet.of(max(_ETAS, key=growth), tolerated, budget, counts)
