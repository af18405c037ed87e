"""Score labeled records with a released model, one record of each person."""

from typing import Any

import numpy as np

from dpscp.data.groups import Groups
from dpscp.data.persons import keep_rows
from dpscp.data.validation import label_index, validate_labels, validate_targets
from dpscp.pipeline.evaluation import LabeledOutcomes, outcomes_of_intervals, outcomes_of_sets
from dpscp.privacy.units import RECORDS, PersonWithIds, Unit


def evaluated_unit(persons: Any) -> Unit:
    """Return the unit of privacy of an evaluation: a record, or with ids a person."""
    return RECORDS if persons is None else PersonWithIds(1)


def size_limit(estimator: Any) -> float:
    """Return the largest counted set size: number of classes, or width of the target range."""
    classes = getattr(estimator, "classes_", None)
    if classes is not None:
        return float(len(classes))
    low, high = estimator.y_bounds_
    return float(high - low)


def labeled_outcomes(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    persons: Any = None,
    groups: Groups | None = None,
    random_state: int | None = None,
) -> LabeledOutcomes:
    """Score labeled records with a released model.

    With ``persons``, one random record of each person is used. Invalid input is refused before any budget is spent, and
    no message contains a value of a record.
    """
    classes = getattr(estimator, "classes_", None)
    estimator.require_readable_rows(X)
    predicted, sets = estimator.predict_set(X) if classes is not None else estimator.predict_interval(X)
    n = len(sets)
    if n == 0:
        raise ValueError("X contains no record: pass at least one labeled record")
    places = None if groups is None else groups.places(X, n, thorough=True)
    if classes is not None:
        names = tuple(classes.tolist())
        labels = label_index(validate_labels(y, n), names)
        outcomes = outcomes_of_sets(sets, label_index(np.asarray(predicted), names), labels, places)
    else:
        truth = validate_targets(y, n)
        outcomes = outcomes_of_intervals(sets, predicted, truth, size_limit(estimator), places)
    if persons is None:
        return outcomes
    kept, _ = keep_rows(persons, n_rows=n, rows_per_person=1, random_state=random_state)
    return outcomes.take(kept)
