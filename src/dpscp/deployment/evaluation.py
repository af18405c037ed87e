"""Evaluate a released model privately on new labeled records.

Every number is a ratio of two noisy counts, and its interval accounts for the noise.

Theory: Private evaluation
"""

from typing import Any

from dpscp._base.checks import check_probability
from dpscp.core.evaluation import OutcomeCounts, PrivateEstimate, PrivateEvaluation, sensitive_sums
from dpscp.data.groups import RowGroups, read_groups
from dpscp.data.used_records import remember_use
from dpscp.deployment.labeled import (
    evaluated_unit,
    labeled_outcomes,
    require_coverage_release,
    size_limit,
    sketch_records,
    warn_if_not_new,
)
from dpscp.privacy import Budget, IntegerSource, Ledger, secure_generator, shared_lattice_noise
from dpscp.privacy.checks import check_budget, warn_of_failures
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore

__all__ = ["PrivateEstimate", "PrivateEvaluation", "evaluate"]

STAGE = "evaluation"


def evaluate(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float,
    persons: Any = None,
    groups: Any = None,
    confidence: float = 0.95,
    budget: BudgetStore | None = None,
    random_state: int | None = None,
) -> PrivateEvaluation:
    """Evaluate a fitted estimator on new labeled records, privately.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    X, y : (n, n_features) and (n,) labeled records that training and calibration did not use.
    epsilon, delta : privacy budget of each evaluated record, or person.
    persons : (n,) ids; one random record of each person is used, and everything is per person.
    groups : function of X that returns a boolean for each row, column of the schema, a list of these, or ``dp.Groups``
        with the public values of a function, as in the estimators. None: the groups of the fit, if it has any.
    confidence : probability with which each interval contains its number.
    budget : budget store of the evaluated records; the cost is reserved before a record is counted.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Returns
    -------
    PrivateEvaluation

    Privacy: (epsilon, delta) for adding or removing one evaluated record (with ``persons``, one person). Released are
    noisy sums of sensitivity 1: the number of records; for each level the covered records and the set sizes; the right
    predictions or errors; for each class, and for each group, the records and the covered ones. A record counts in one
    class and in one group, so each of these two costs two sums, however many classes there are; of overlapping groups
    each that a record may be in costs two. Sizes and errors are
    shares of a public limit and rounded to 0 or 1 at random, which preserves their mean.

    Assumes: the records are independent draws from the population of interest.

    Theory: Private evaluation
    """
    confidence = check_probability("confidence", confidence)
    warn_of_failures(check_budget(Budget(epsilon, delta)))
    seed = seed_of(random_state)
    row_seed, dither_seed, noise_seed = child_seeds(seed, 3)
    if budget is not None:
        budget.require_spendable(seeded=seed is not None)
    require_coverage_release(estimator)
    found = _find_groups(estimator, groups)
    values = () if found is None else found.names
    outcomes = labeled_outcomes(estimator, X, y, persons=persons, groups=found, random_state=row_seed)
    sketch = sketch_records(estimator, X)
    warn_if_not_new(estimator, sketch, "evaluate was called with", adds_up=budget is None and seed is None)
    classes = getattr(estimator, "classes_", None)
    n_classes = 0 if classes is None else len(classes)
    drawn = secure_generator(dither_seed).random((len(outcomes), outcomes.covered.shape[1] + 1))
    counts = OutcomeCounts.of(outcomes, n_classes, len(values), drawn)
    sums = sensitive_sums(outcomes.covered.shape[1], n_classes, 0 if found is None else found.per_record)
    (noise,) = shared_lattice_noise(epsilon, delta, sums, (1.0,))
    ledger = Ledger(seeded=seed is not None).add(
        STAGE,
        noise.event(sums),
        "noisy counts of covered records, sizes and errors",
        unit=evaluated_unit(persons),
    )
    reservation = None if budget is None else budget.reserve(ledger, note="evaluate")
    noisy = counts.with_noise(noise, IntegerSource(noise_seed))
    if reservation is not None:
        reservation.commit(ledger)
    remember_use(sketch, is_private=seed is None)
    return noisy.evaluation(
        noise,
        targets=tuple(certificate.target for certificate in estimator.certificates_),
        classes=None if classes is None else classes.tolist(),
        group_values=values,
        limit=size_limit(estimator),
        confidence=confidence,
        ledger=ledger,
        delta=delta,
    )


def _find_groups(estimator: Any, groups: Any) -> RowGroups | None:
    """Return the caller's groups, or those of the fit; None without any, and where the classes are the groups."""
    declared = read_groups(groups)
    found: RowGroups | None = estimator.declared_groups() if declared is None else declared.of_rows(estimator.schema_)
    return found
