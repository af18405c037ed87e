"""Calibrate your own scores privately, with a ledger and a certificate."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.assumptions import OWN_SCORES
from dpscp._base.checks import check_count, check_probability
from dpscp.core.problem import Problem, group_fields
from dpscp.core.release import Counted, release_scores
from dpscp.core.tasks import OwnScores
from dpscp.data.groups import Groups, RecordGroups, read_groups
from dpscp.data.persons import Persons, choose_unit, keep_rows, require_unit
from dpscp.data.populations import Population, keep_by_ratio, read_population
from dpscp.guarantees import Guarantee, Stability, guarantee_of
from dpscp.guarantees.registry import SPLIT, UNIVERSAL
from dpscp.privacy import Budget, Ledger, Unit, as_event, secure_generator
from dpscp.privacy.accounting import Accountant
from dpscp.privacy.random_streams import THINNING, stream_seed
from dpscp.privacy.store import BudgetStore
from dpscp.report.release import Release
from dpscp.threshold.counts import known_size

__all__ = ["calibrate"]


def calibrate(  # noqa: PLR0913 (public: one argument a choice)
    scores: Any,
    *,
    training: DpEvent | Ledger | None = None,
    epsilon: float,
    delta: float,
    alpha: float = 0.1,
    score_range: tuple[float, float],
    guarantee: str | Guarantee = "universal",
    held_out: bool = False,
    stability: Stability | None = None,
    fine_near: float | tuple[float, float] | None = None,
    n_records: int | None = None,
    persons: Any = None,
    rows_per_person: int | None = None,
    n_persons: int | None = None,
    release_confidence: float | None = None,
    population: Population | None = None,
    groups: Any = None,
    budget: BudgetStore | None = None,
    accountant: str | Accountant = "pld",
    random_state: int | None = None,
) -> Release:
    """Find a private threshold for your own scores.

    The whole release, training included, is (epsilon, delta)-differentially private.

    Parameters
    ----------
    scores : array of shape (n,), Dask array or iterator of arrays
        The scores s(x_i, y_i; theta) of the records. A score may depend on its record, the model and independent noise
        only.
    training : event or Ledger, optional
        The privacy cost of the model's training. Required unless ``held_out``.
    epsilon, delta : float
        The privacy budget of training and calibration. Calibration gets what training left.
    alpha : float, default 0.1
        The wanted miscoverage.
    score_range : (low, high)
        The public range of the scores; scores outside are clipped.
    guarantee : str or Guarantee, default "universal"
        With ``"universal"``, ``"stability"``, ``"finite"`` or ``"asymptotic"`` the scored records are the training
        records.
    held_out : bool, default False
        Whether the scored records were not used in training (guarantee ``"split"``). Each part may then spend the whole
        budget.
    stability : Stability, optional
        The bound on the model's change, with the Lipschitz constant of the score, for ``guarantee="stability"``.
    fine_near : float or pair, optional
        A public value near which the grid of thresholds is finest: 0 for residuals, both ends for probabilities. Then
        even a far too wide ``score_range`` costs little.
    n_records : int, optional
        The public nominal number of scores. None declares the true number public. A given number is a plan only: the
        true one stays private, and a noisy one is released.
    persons : one id for each score, optional
        Where a person has several scores, one random score of each person is counted. Then ``training`` must be the
        cost per person with at most ``rows_per_person`` rows each, and a ledger must have that unit. The certificate is
        for a random record of a new person.
    rows_per_person : int, optional
        The public cap on the rows of one person. Without ``persons``, each person is assumed to have at most so many
        scores. The budget then holds for all of them together, and coverage is per record.
    n_persons : int, optional
        The public nominal number of persons. None declares the true number public.
    release_confidence : float, optional
        The probability with which this threshold itself covers the level, in addition to the average. It needs
        held-out, independent scores.
    population : Population, optional
        For held-out scores: ``dp.Population(w, bound=W)`` makes the promise for the population that new records come
        from. The array w has the density of that population relative to that of these records, a public function of
        each record. A secret coin keeps each score with probability w / W.
    groups : array of shape (n,), list of such arrays, or Groups, optional
        The group of each score: each group has its own threshold and promise. An array of booleans is enough. Declare
        another array as ``dp.Groups(array, values=[...])``, with the public list of groups. A score outside the list is
        in no group. With several arrays, or with an (n, n_groups) boolean array and ``per_record``, groups overlap. A
        new row then gets the largest threshold of its groups, or the full set if it is in no group.
    budget : BudgetStore, optional
        The store of these records; the cost is reserved before anything is drawn.
    accountant : str or Accountant, default "pld"
    random_state : int, optional
        None uses system entropy. An integer makes the run repeatable and NOT private.

    Returns
    -------
    Release
        Its ``threshold`` is a number, or an array of shape (n_groups,) with groups.

    Examples
    --------
    >>> import numpy as np
    >>> from dpscp.privacy import dpsgd_event
    >>> scores = np.random.default_rng(0).uniform(size=20_000)
    >>> spent = dpsgd_event(40.0, 1.0, 50)
    >>> c = calibrate(scores, training=spent, epsilon=1, delta=1e-6, score_range=(0, 1), random_state=0)
    >>> c.ledger.epsilon(1e-6) <= 1, c.certificate.coverage
    (True, 0.9)

    Theory: Results B, C, E, F, G, H, I and K
    """
    chosen = _choose_guarantee(guarantee, held_out=held_out, trained=training is not None)
    unit = choose_unit(persons, rows_per_person, n_records=n_records, n_persons=n_persons)
    spent = read_training_cost(training, unit).assume(OWN_SCORES)
    other, declared = read_population(population), read_groups(groups)
    used = _choose_records(scores, persons, unit, declared, other, random_state)
    nominal = n_persons if unit.by_person else n_records
    problem = Problem(
        task=OwnScores(score_range, fine_near),
        budget=Budget(epsilon, delta),
        alphas=(check_probability("alpha", alpha),),
        n_records=check_count(unit.count_name, _count_scores(scores, used) if nominal is None else nominal),
        guarantee=chosen,
        n_found=nominal is None,
        unit=unit,
        accountant=accountant,
        release_confidence=release_confidence,
        **group_fields(None if used is None else used.groups),
        population=other,
    )
    counted = Counted(
        [scores] if used is None else used.scores_of_groups(np.asarray(scores)),
        spent,
        stability=stability,
    )
    found = release_scores(problem, counted, random_state=random_state, store=budget, note="calibrate")
    threshold = float(found.threshold[0, 0]) if declared is None else found.threshold[:, 0]
    return Release(**vars(found) | {"threshold": threshold}).warn_if_full()


@dataclass(frozen=True)
class UsedRecords:
    """The records that are counted, person by person, with their groups.

    ``rows`` are their places in the table; None for all of them. ``n_units`` is the number of records, or persons,
    before a coin dropped any. ``weights`` are w / W of each row, where a likelihood ratio with mean 1 weights misses;
    ``kept`` marks the rows that the coins keep.
    """

    rows: NDArray[np.int64] | None
    owners: Persons
    groups: RecordGroups | None
    n_units: int
    weights: FloatArray | None = None
    kept: NDArray[np.bool_] | None = None

    @classmethod
    def choose(
        cls,
        n_rows: int,
        persons: Any,
        unit: Unit,
        groups: Groups | None,
        population: Population | None,
        *,
        one_each: bool,
        seed: int | None,
    ) -> "UsedRecords":
        """Choose the counted rows of each person.

        With another population, secret coins keep some of them.

        Theory: Results H and K
        """
        found = None if groups is None else groups.of_records(n_rows)
        rows, owners = None, Persons.single(n_rows)
        if unit.by_person:
            cap = 1 if one_each else unit.cap
            rows, owners = keep_rows(persons, n_rows=n_rows, rows_per_person=cap, random_state=seed)
        n_units, weights, kept = owners.count, None, None
        if population is not None:
            rows = np.arange(n_rows) if rows is None else rows
            ratios = population.of_records(n_rows)[rows]
            coins = secure_generator(stream_seed(seed, THINNING)).random(len(rows))
            kept = keep_by_ratio(ratios, population.bound, coins)
            if population.normalized and groups is None:
                weights = ratios / population.bound
            else:
                rows, kept = rows[kept], None
                owners = Persons.single(len(rows))
        groups_of_rows = found if found is None or rows is None else found.take(rows)
        return cls(rows, owners, groups_of_rows, n_units, weights, kept)

    @property
    def members(self) -> list[NDArray[np.int64]] | None:
        """The places of the units of each group; None without groups."""
        return None if self.groups is None else [np.flatnonzero(member) for member in self.groups.members]

    def scores_of_groups(self, scores: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the scores of each group, one row for each unit.

        Without groups, all scores are one group. A record that the coins of a weighting ratio reject gets the lowest
        score, so it is never missed.
        """
        found = scores if self.rows is None else scores[self.rows]
        found = found if self.kept is None else np.where(self.kept, found, -np.inf)
        return [found] if self.members is None else [found[places] for places in self.members]


def read_training_cost(training: DpEvent | Ledger | None, unit: Unit) -> Ledger:
    """Return the cost of training as a ledger; refuse one with another unit."""
    if isinstance(training, Ledger):
        return require_unit(training, unit)
    return Ledger() if training is None else Ledger().add("training", as_event(training), unit=unit.counted)


def _choose_guarantee(name: str | Guarantee, *, held_out: bool, trained: bool) -> Guarantee:
    """Return the guarantee; refuse one that does not match the origin of the scores."""
    chosen = SPLIT if held_out and name == UNIVERSAL.name else guarantee_of(name)
    if chosen.needs_trajectory:
        raise ValueError(
            f"guarantee={chosen.name!r} removes each record's influence from its own score, which needs the trained "
            "model; use an estimator, or guarantee='universal'"
        )
    if held_out != chosen.held_out:
        raise ValueError(
            "guarantee='split' and held_out=True belong together: pass both for scores of held-out records"
        )
    if not held_out and not trained:
        raise ValueError(
            f"guarantee={chosen.name!r} needs training=, the event or ledger of the model's training, because the "
            "model was trained on the scored records. If it was not, pass held_out=True"
        )
    return chosen


def _choose_records(
    scores: Any,
    persons: Any,
    unit: Unit,
    groups: Groups | None,
    population: Population | None,
    random_state: int | None,
) -> UsedRecords | None:
    """Return the scores that are counted; None for all of them, in memory or not."""
    if not unit.by_person and groups is None and population is None:
        return None
    if np.ndim(scores) != 1:
        raise ValueError("with persons, population or groups, scores must be a one-dimensional array")
    return UsedRecords.choose(len(scores), persons, unit, groups, population, one_each=True, seed=random_state)


def _count_scores(scores: Any, used: UsedRecords | None) -> int:
    """Return the number of scores, or of persons, which the caller declares public."""
    size = known_size(scores) if used is None else used.n_units
    if size is None:
        raise ValueError("n_records is required for scores of unknown length; pass the public number of scores")
    if size == 0:
        raise ValueError("scores is empty; at least one score is required, unless n_records or n_persons is declared")
    return size
