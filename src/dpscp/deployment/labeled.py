"""Score labeled records with a released model, one record of each person."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp import metrics
from dpscp.data.persons import keep_rows
from dpscp.data.validation import group_index, label_index, validate_labels, validate_targets
from dpscp.privacy.units import RECORDS, PersonWithIds, Unit


@dataclass(frozen=True)
class LabeledOutcomes:
    """What a released model does on labeled records, one row for each unit of privacy; private, never released.

    ``covered`` is bool (n, levels), ``sizes`` (n, levels) are set sizes as shares of the largest possible one,
    ``hits`` and ``errors`` (n,) whether the prediction is right or how far it lies off, as a share of the range.
    ``labels`` and ``groups`` are places in the public lists, -1 for a record of no group.
    """

    covered: NDArray[np.bool_]
    sizes: NDArray[np.float64]
    errors: NDArray[np.float64]
    labels: NDArray[np.int64] | None
    groups: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.covered)

    def take(self, rows: NDArray[np.int64]) -> "LabeledOutcomes":
        """Return the outcomes of some rows."""
        labels = None if self.labels is None else self.labels[rows]
        groups = None if self.groups is None else self.groups[rows]
        return LabeledOutcomes(self.covered[rows], self.sizes[rows], self.errors[rows], labels, groups)


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
    groups: Callable[[Any], Any] | None = None,
    group_values: tuple[Any, ...] | None = None,
    random_state: int | None = None,
) -> LabeledOutcomes:
    """Score labeled records with a released model.

    With ``persons``, one random record of each person is used. Invalid input is refused before any budget is spent, and
    no message contains a value of a record.
    """
    classes = getattr(estimator, "classes_", None)
    predicted, sets = estimator.predict_set(X) if classes is not None else estimator.predict_interval(X)
    n = len(sets)
    if n == 0:
        raise ValueError("X contains no record: pass at least one labeled record")
    limit = size_limit(estimator)
    labels: NDArray[np.int64] | None = None
    if classes is not None:
        truth = validate_labels(y, n)
        labels = label_index(truth, tuple(classes.tolist()))
        covered = np.take_along_axis(sets, labels[:, None, None], axis=1)[:, 0]
        sizes = sets.sum(axis=1) / limit
        errors = (label_index(np.asarray(predicted), tuple(classes.tolist())) != labels).astype(float)
    else:
        truth = validate_targets(y, n)
        covered = metrics.covered(truth, sets)
        sizes = np.clip(sets[:, 1] - sets[:, 0], 0.0, limit) / limit
        errors = np.clip(np.abs(truth - predicted), 0.0, limit) / limit
    places = None if groups is None else group_index(groups, X, group_values or (), n, thorough=True)
    outcomes = LabeledOutcomes(covered.reshape(n, -1), sizes.reshape(n, -1), errors, labels, places)
    if persons is None:
        return outcomes
    kept, _ = keep_rows(persons, n_rows=n, rows_per_person=1, random_state=random_state)
    return outcomes.take(kept)
