"""Calibrate a released model again on new labeled records.

An example is the newest batch after an alarm.

Theory: Results E and L
"""

import copy
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import OTHER_PERSONS
from dpscp._base.checks import check_count
from dpscp.core.evaluation import separate_release
from dpscp.core.problem import Problem, group_fields
from dpscp.core.release import Counted, release_scores
from dpscp.data.groups import RecordGroups
from dpscp.data.persons import keep_rows
from dpscp.data.used_records import remember_use, warn_if_used
from dpscp.data.validation import label_index, suppress_float_warnings, validate_labels, validate_targets
from dpscp.deployment.evaluation import evaluated_unit, has_trained_release, sketch_records
from dpscp.exceptions import GuaranteeWarning
from dpscp.guarantees import Certificate
from dpscp.guarantees.registry import SPLIT
from dpscp.privacy import Budget, Ledger
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.training.base import Trained

STAGE = "new thresholds"


def recalibrate(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float,
    persons: Any = None,
    n_records: int | None = None,
    budget: BudgetStore | None = None,
    random_state: int | None = None,
) -> Any:
    """Return a copy of a fitted estimator with thresholds from new labeled records.

    The model does not change. Levels, groups, score and ``release_confidence`` are those of the fit. The promise is
    then about new records of the population that these records come from.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    X, y : (n, n_features) and (n,) labeled records that training did not use.
    epsilon, delta : privacy budget of each of these records, or persons.
    persons : (n,) ids where the fit had ids; one random record of each person is used.
    n_records : public nominal number of records, or of persons; the true number stays private and a noisy one is
        released. None declares it public.
    budget : budget store of these records; the cost is reserved before any record is counted.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Returns
    -------
    estimator of the same class, fitted
        Its ledger has the fit and the recalibration as parts on disjoint records: each person is in one of them and
        pays for that one (parallel composition). Its certificate is that of the recalibration.

    Privacy: (epsilon, delta) for adding or removing one of the new records (with ``persons``, one person). The costs
    add up for a person whose records were also used for training, monitoring or evaluation; a budget store adds them
    up.

    Assumes: the new records and those that follow are exchangeable, and training did not use them.

    Theory: Results E, F, G and L
    """
    limit, seed = Budget(epsilon, delta), seed_of(random_state)
    row_seed, search_seed = child_seeds(seed, 2)
    separate = separate_release(estimator)
    if budget is not None:
        budget.require_spendable(seeded=seed is not None)
    scores, groups = _score(separate, X, y, persons, row_seed)
    unit, sketch = evaluated_unit(persons), sketch_records(estimator, X)
    if has_trained_release(estimator, sketch):
        raise ValueError(
            "recalibrate was called with records that the fit of this release used: its thresholds would cover less "
            "than they state, and the ledger would charge these records once only. Pass labeled records that the fit "
            "did not use"
        )
    if budget is None and seed is None:
        warn_if_used(sketch, "recalibrate was called with", stacklevel=2)
    n = check_count(unit.count_name, len(scores) if n_records is None else n_records)
    task = estimator._task()
    problem = Problem(
        task=task,
        budget=limit,
        alphas=tuple(round(1 - certificate.target, 12) for certificate in estimator.certificates_),
        n_records=n,
        guarantee=SPLIT,
        n_found=n_records is None,
        unit=unit,
        accountant=estimator.accountant,
        release_confidence=estimator.release_confidence,
        **group_fields(groups),
    )
    by_group = [scores] if groups is None else [scores[member] for member in groups.members]
    counted = Counted(by_group, Ledger(), assumptions=(*task.assumptions, *task.score_assumptions))
    found = release_scores(problem, counted, random_state=search_seed, store=budget, note="recalibrate")
    remember_use(sketch, is_private=seed is None)
    ledger = _join(estimator.ledger_, found.ledger, {f"new_{unit.count_name}": n}, counted=n_records is None)
    return _with_thresholds(estimator, found.threshold, found.certificates, ledger, limit)


def _score(estimator: Any, X: Any, y: Any, persons: Any, seed: int | None) -> tuple[NDArray[Any], RecordGroups | None]:
    """Return scores and groups of new records, one of each person.

    Wrong records are refused before anything is spent.
    """
    fitted = estimator.ledger_.unit
    if fitted.group > 1 or fitted.by_person != (persons is not None):
        raise ValueError(
            "persons is required if the fit had ids, and refused if it had none, because a ledger has one unit of "
            "privacy; pass persons=ids or remove it"
        )
    task, classes = estimator._task(), getattr(estimator, "classes_", None)
    estimator.require_readable_rows(X)
    rows = estimator._read_new_rows(X)[0]
    n = len(rows)
    by_label = classes is not None and estimator.groups == "label"
    if classes is None:
        targets: NDArray[Any] = validate_targets(y, n, task.n_targets)
    else:
        targets = label_index(validate_labels(y, n), tuple(classes.tolist()))
    with suppress_float_warnings():
        scores = task.scores(Trained(estimator.model_, estimator.ledger_.event, None), rows, targets, corrected=False)
    groups = None
    if estimator.group_values_ is not None:
        places: NDArray[np.int64] = targets.astype(np.int64) if by_label else estimator.group_of(X, n)
        groups = RecordGroups(tuple(estimator.group_values_), places, 1 if places.ndim == 1 else places.shape[1])
    if persons is not None:
        kept, _ = keep_rows(persons, n_rows=n, rows_per_person=1, random_state=seed)
        scores, groups = scores[kept], None if groups is None else groups.take(kept)
    return np.asarray(scores), groups


def _join(fitted: Ledger, added: Ledger, size: dict[str, int], *, counted: bool) -> Ledger:
    """Return the ledger of a fit and of a recalibration on records of other persons.

    ``size`` is the public number of these; ``counted`` says that it was taken from them.
    """
    stages = {"fit": fitted.event, STAGE: added.event}
    # a secret split is one event without composed events, so a note keeps the names of its parts
    parts = [part for entry in fitted.entries for part in zip(entry.parts, entry.components, strict=False)]
    named = [f"{part} consisted of {', '.join(names)}" for part, names in parts if names]
    counted_once = "records of different persons, the more expensive part counts"
    note = "; ".join([counted_once, *named, *(entry.note for entry in added.entries)])
    joined = replace(fitted, entries=()).add_disjoint(
        stages,
        note,
        components={"fit": fitted.component_names},
        unit=fitted.unit.join(added.unit),
        relation=fitted.relation,
    )
    joined = joined.assume(*added.assumptions, OTHER_PERSONS)
    sizes = {f"new_{name}": value for name, value in added.public_facts.items() if name == "released_sizes"}
    joined = joined.declare(**size, **sizes).mark_taken(*(size if counted else ()))
    return joined.mark_seeded() if added.seeded else joined


def _with_thresholds(
    estimator: Any, values: NDArray[np.float64], certificates: tuple[Certificate, ...], ledger: Ledger, limit: Budget
) -> Any:
    """Return a copy of the estimator with other thresholds and promises.

    Warns if its sets are full.
    """
    new = copy.copy(estimator)
    new.threshold_ = values if estimator.group_values_ is not None else values[0]
    new.certificates_, new.certificate_, new.ledger_, new.evaluation_ = certificates, certificates[0], ledger, None
    new.epsilon, new.delta = max(estimator.epsilon, limit.epsilon), max(estimator.delta, limit.delta)
    if new.certificate_.is_vacuous or not np.isfinite(values).all():
        warnings.warn(str(new.certificate_), GuaranteeWarning, stacklevel=3)
    return new
