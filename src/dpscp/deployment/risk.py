"""Control any bounded loss that falls with a threshold, privately.

The promise holds in finite samples. Coverage is one such loss. Others are the share of a scan's positive pixels or of a
patient's diagnoses that a set misses, or a cost that depends on the class.

Theory: Result J
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from dpscp._base.assumptions import OWN_LOSSES
from dpscp._base.checks import check_count, check_probability, check_range
from dpscp.core.losses import check_losses, check_thresholds, counted_losses, even_thresholds, sum_losses
from dpscp.core.plan import plan_release
from dpscp.core.problem import Problem, group_fields
from dpscp.core.release import release_counts
from dpscp.core.tasks import OwnLosses
from dpscp.data.groups import RecordGroups, read_groups
from dpscp.data.persons import choose_unit
from dpscp.data.populations import Population, read_population
from dpscp.deployment.calibrate import UsedRecords, read_training_cost
from dpscp.guarantees import Guarantee
from dpscp.guarantees.registry import SPLIT, UNIVERSAL
from dpscp.privacy import Budget, Ledger, secure_generator
from dpscp.privacy.accounting import Accountant
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.report.release import Release
from dpscp.threshold.counts import LossSums

# A function of the threshold is evaluated at 2^11 - 1 points at most.
_MOST_HALVINGS = 11


def control_risk(  # noqa: PLR0913 (public: one argument a choice)
    losses: Any,
    *,
    alpha: float | Sequence[float] = 0.1,
    thresholds: Any = None,
    threshold_range: tuple[float, float] | None = None,
    epsilon: float,
    delta: float,
    training: DpEvent | Ledger | None = None,
    held_out: bool | None = None,
    persons: Any = None,
    rows_per_person: int | None = None,
    n_persons: int | None = None,
    n_records: int | None = None,
    groups: Any = None,
    population: Population | None = None,
    resolution: int = 64,
    running_maximum: bool = False,
    release_confidence: float | None = None,
    budget: BudgetStore | None = None,
    accountant: str | Accountant = "pld",
    random_state: int | None = None,
) -> Release:
    """Find a private threshold with a mean loss of at most ``alpha``.

    The mean loss is that of a new record, on average over repeated studies.

    Parameters
    ----------
    losses : (n, m) array of losses in [0, 1] at m public ``thresholds``; or a function of the threshold that returns
        the n losses, with a public ``threshold_range``. A record's losses must not rise with the threshold.
    alpha : bound on the mean loss, or a list of bounds that share the budget.
    thresholds : (m,) increasing public thresholds of a table of losses.
    threshold_range : (low, high), public; a function is evaluated on an even grid between them.
    epsilon, delta : privacy budget of the whole release, training included.
    training : event or ledger of the training of the model behind the losses, where it used these records.
    held_out : True if the model did not use these records, although ``training`` is given. None: True without
        ``training``.
    persons : (n,) ids. A person's loss is the mean over their rows; with ``groups`` it is that of one random row.
        ``rows_per_person`` is the public cap on the rows of a person that are used, ``n_persons`` the public number.
    n_records : public nominal number of records, a plan only: the true number stays private and a noisy one is
        released. None declares the number of records public.
    groups : (n,) booleans, or ``dp.Groups`` with the (n,) group of each record and the public ``values``: one threshold
        and one promise for each. A record of no listed group counts in none. A list of arrays, or an (n, n_groups)
        boolean array with the public maximum ``per_record``, gives overlapping groups: use the largest threshold of a
        record's groups.
    population : ``dp.Population(w, bound=W)`` with the (n,) public density ratio of the population of new records to
        that of these. Secret coins keep each record with probability w / W, and the promise is for that population
        (Result K). Needs held-out records; with persons one random row of each counts.
    resolution : losses are rounded to multiples of 1 / ``resolution`` by a secret uniform, which keeps their mean. 1
        turns the loss into a score. The certificate then bounds the loss of a single release, but the rounding adds
        noise.
    running_maximum : control the running maximum of a loss that may rise with the threshold, taken from the right.
    release_confidence : probability that this single release keeps the bound. Needs ``resolution=1`` and
        held-out records.
    budget : store of these records; the share is reserved before anything is released.
    accountant : ``"pld"`` or ``"rdp"``.
    random_state : None for system entropy; an integer repeats the run and is NOT private.

    Returns
    -------
    Release
        Its ``threshold`` is a number; an array (n_levels,) for a list of levels, (n_groups, n_levels) with groups.
        Infinite where no finite threshold keeps the promise: then act so that the loss is 0, for example with full
        sets. The ``risk`` of a certificate is the proven bound on the mean loss.

    Privacy: (epsilon, delta) for adding or removing one record, or one person. One record changes the sum of one minus
    the loss, less half the number of records, by at most 1/2, as in a search for coverage.

    Assumes: records (persons) are exchangeable; the loss is 0 where no finite threshold is returned.

    Raises: ValueError for losses outside [0, 1] or that rise with the threshold, before anything is spent.

    >>> import numpy as np
    >>> u = np.random.default_rng(0).beta(2, 3, size=2_000)
    >>> r = control_risk(lambda t: np.clip(1 - t / u, 0, 1), threshold_range=(0, 1), epsilon=1, delta=1e-6,
    ...                  n_records=2_000, random_state=0)
    >>> 0 < r.threshold < 1, r.certificate.risk, r.ledger.epsilon(1e-6) <= 1
    (True, 0.1, True)

    Theory: Result J
    """
    seed = seed_of(random_state)
    row_seed, dither_seed, search_seed = child_seeds(seed, 3)
    alphas = tuple(check_probability("alpha", a) for a in np.atleast_1d(np.asarray(alpha, dtype=object)))
    unit = choose_unit(persons, rows_per_person, n_records=n_records, n_persons=n_persons)
    spent = read_training_cost(training, unit).assume(OWN_LOSSES)
    grouping, other = read_groups(groups), read_population(population)
    one_each = grouping is not None or other is not None  # its groups and its ratio are the person's (Results H, K)
    n_rows = _count_rows(losses, thresholds, threshold_range)
    used = UsedRecords.choose(n_rows, persons, unit, grouping, other, one_each=one_each, seed=row_seed)
    declared = n_persons if unit.by_person else n_records
    most_steps = _MOST_HALVINGS if callable(losses) else len(np.asarray(thresholds)).bit_length()
    task = OwnLosses(check_count("resolution", resolution), running_maximum, most_steps)
    problem = Problem(
        task=task,
        budget=Budget(epsilon, delta),
        alphas=alphas,
        n_records=check_count(unit.count_name, used.n_units if declared is None else declared),
        guarantee=_guarantee(training, held_out),
        n_found=declared is None,
        unit=unit,
        accountant=accountant,
        release_confidence=release_confidence,
        **group_fields(used.groups),
        population=other,
    )
    problem.require_payable(budget, seeded=seed is not None)
    plan = plan_release(problem, spent)
    points = check_thresholds(thresholds) if threshold_range is None else even_thresholds(threshold_range, plan.steps)
    counted = counted_losses(_sum_at(points, losses, used, task, dither_seed), points, spent)
    found = release_counts(plan, lambda: counted, random_state=search_seed, store=budget, note="risk")
    return Release(**vars(found) | {"threshold": _shaped(found.threshold, alpha, used.groups)}).warn_if_full()


def _guarantee(training: DpEvent | Ledger | None, held_out: bool | None) -> Guarantee:
    """Return the guarantee: ``split`` or the privacy of training (Result B).

    ``split`` is for held-out records.
    """
    if training is None and held_out is False:
        raise ValueError("held_out=False needs training=, the event or ledger of all that the model learned from")
    is_held_out = training is None if held_out is None else bool(held_out)
    return SPLIT if is_held_out else UNIVERSAL


def _count_rows(losses: Any, thresholds: Any, threshold_range: tuple[float, float] | None) -> int:
    """The number of rows of a table or of the losses of a function.

    A function is called at the end of its range.
    """
    if callable(losses) != (threshold_range is not None) or (thresholds is not None) == callable(losses):
        raise ValueError("losses must be an (n, m) array with thresholds=, or a function with threshold_range=")
    if threshold_range is not None:
        return len(check_losses(losses(check_range("threshold_range", threshold_range)[1])))
    table, n_points = np.asarray(losses), len(check_thresholds(thresholds))
    if table.ndim != 2 or table.shape[1] != n_points:
        raise ValueError(f"losses must be an (n, {n_points}) array: one column for each of the thresholds")
    return len(table)


def _sum_at(
    points: NDArray[np.float64], losses: Any, used: UsedRecords, task: OwnLosses, seed: int | None
) -> list[LossSums]:
    """Return the sums of the losses of each group at public thresholds."""
    table = None if callable(losses) else np.asarray(losses)
    return sum_losses(
        lambda j: losses(float(points[j])) if table is None else table[:, j],
        len(points),
        rows=used.rows,
        owners=used.owners,
        groups=used.members,
        dither=secure_generator(seed).random(used.owners.count),
        resolution=task.resolution,
        running_maximum=task.running_maximum,
        weights=used.weights,
    )


def _shaped(values: NDArray[np.float64], alpha: Any, groups: RecordGroups | None) -> Any:
    """A number, or an array by group and level."""
    if groups is not None:
        return values
    return float(values[0, 0]) if np.ndim(alpha) == 0 else values[0]
