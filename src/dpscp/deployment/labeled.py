"""Score labeled records with a released model, one record of each person."""

import copy
import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpscp.core.evaluation import LabeledOutcomes, outcomes_of_intervals, outcomes_of_sets
from dpscp.data.groups import RowGroups
from dpscp.data.persons import keep_rows
from dpscp.data.used_records import Sketch, has_trained, sketch_rows, warn_if_used
from dpscp.data.validation import label_index, validate_labels, validate_targets
from dpscp.estimators.prefit import Prefit
from dpscp.exceptions import ReuseWarning
from dpscp.guarantees.certificate import require_coverage
from dpscp.privacy.units import RECORDS, PersonWithIds, Unit
from dpscp.training.model import digest_parameters
from dpscp.training.private_model import model_for_records


def evaluated_unit(persons: Any) -> Unit:
    """Return the unit of privacy of an evaluation: a record, or with ids a person."""
    return RECORDS if persons is None else PersonWithIds(1)


def require_coverage_release(estimator: Any) -> None:
    """Refuse what is not fitted, and a release whose promise is not about coverage."""
    check_is_fitted(estimator)
    require_coverage(estimator.certificate_, type(estimator).__name__)


def separate_release(estimator: Any) -> Any:
    """Return a release as records reach it: a model of the caller's own gets copies of them.

    A release without coverage is refused.
    """
    require_coverage_release(estimator)
    separate = copy.copy(estimator)
    separate.model_ = model_for_records(estimator.model_)
    return separate


def sketch_records(estimator: Any, X: Any) -> Sketch:
    """Return what recognizes these records in this process, as the fit of the estimator reads its own."""
    return sketch_rows(X if isinstance(estimator.estimator, Prefit) else estimator._read_new_rows(X).rows)


def has_trained_release(estimator: Any, sketch: Sketch) -> bool:
    """Return whether this process knows that the fit of a release used some of these records."""
    return has_trained(sketch, estimator.model_, digest_parameters(estimator.model_))


def warn_if_not_new(estimator: Any, sketch: Sketch, what: str, *, adds_up: bool) -> None:
    """Warn about training records and, unless a store or a seed makes that pointless, about records used before."""
    if has_trained_release(estimator, sketch):
        warnings.warn(
            f"{what} records that trained this release: coverage on them says nothing about new records. Use labeled "
            "records that the fit did not use",
            ReuseWarning,
            stacklevel=4,
        )
    if adds_up:
        warn_if_used(sketch, what, stacklevel=4)


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
    groups: RowGroups | None = None,
    random_state: int | None = None,
) -> LabeledOutcomes:
    """Score labeled records with a released model.

    With ``persons``, one random record of each person is used. Invalid input is refused before any budget is spent, and
    no message contains a value of a record.
    """
    estimator = separate_release(estimator)
    classes = getattr(estimator, "classes_", None)
    estimator.require_readable_rows(X)
    predicted, sets = estimator.predict_set(X) if classes is not None else estimator.predict_interval(X)
    n = len(sets)
    places = None if groups is None else groups.places(X, n)
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
