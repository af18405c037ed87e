"""Labeled records that meet a released model: which sets cover, how large they are, one record a person."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpscp.data.persons import kept_rows
from dpscp.data.validation import group_index, label_index, validate_labels, validate_targets
from dpscp.pipeline.evaluation import LabeledOutcomes, outcomes_of_intervals, outcomes_of_sets
from dpscp.privacy.units import RECORDS, PersonWithIds, Unit


def evaluated_unit(persons: Any) -> Unit:
    """Return who is counted: a record, or with ids a person, by one of their records."""
    return RECORDS if persons is None else PersonWithIds(1)


def size_limit(estimator: Any) -> float:
    """Return the largest set size that is counted: the number of classes, or the width of the target's range."""
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
    groups: Callable[[Any], Any] | None = None,
    group_values: tuple[Any, ...] | None = None,
    random_state: int | None = None,
) -> LabeledOutcomes:
    """Score labeled records with a released model; with ``persons``, one random record of each person.

    Bad input is refused before anything is spent, and no message carries a value of a record.
    """
    classes = getattr(estimator, "classes_", None)
    predicted, sets = estimator.predict_set(X) if classes is not None else estimator.predict_interval(X)
    n = len(sets)
    if n == 0:
        raise ValueError("X holds no record: give at least one labeled record")
    places = None if groups is None else group_index(groups, X, group_values or (), n, thorough=True)
    if classes is not None:
        names = tuple(classes.tolist())
        labels = label_index(validate_labels(y, n), names)
        outcomes = outcomes_of_sets(sets, label_index(np.asarray(predicted), names), labels, places)
    else:
        truth = validate_targets(y, n)
        outcomes = outcomes_of_intervals(sets, predicted, truth, size_limit(estimator), places)
    if persons is None:
        return outcomes
    kept, _ = kept_rows(persons, n_rows=n, rows_per_person=1, random_state=random_state)
    return outcomes.take(kept)
