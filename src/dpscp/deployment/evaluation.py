"""Score labeled records with a released model, and evaluate it privately on them.

Every rate comes from two noisy counts, and its interval accounts for the noise.

Theory: Private evaluation
"""

import warnings
from typing import Any

from dpscp._base.checks import check_probability
from dpscp.core.evaluation import (
    OutcomeCounts,
    PrivateEstimate,
    PrivateEvaluation,
    labeled_outcomes,
    require_coverage_release,
    sensitive_sums,
)
from dpscp.data.groups import RowGroups, read_groups
from dpscp.data.used_records import Sketch, has_trained, remember_use, sketch_rows, warn_if_used
from dpscp.exceptions import ReuseWarning
from dpscp.privacy import Budget, IntegerSource, Ledger, secure_generator, sized_lattice_noise
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore
from dpscp.privacy.units import RECORDS, Unit, check_budget, warn_of_failures
from dpscp.training.model import digest_parameters
from dpscp.training.prefit import Prefit

__all__ = ["PrivateEstimate", "PrivateEvaluation", "evaluate"]

STAGE = "evaluation"


def evaluate(  # noqa: PLR0913 (public: one argument a choice)
    estimator: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float,
    persons: Any = None,
    groups: Any = None,
    confidence: float = 0.95,
    size_is_public: bool = False,
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
    confidence : probability that an interval contains its true number.
    size_is_public : whether the number of evaluated records (with ``persons``, of persons) may be published. Intervals
        are then narrower.
    budget : budget store of the evaluated records; the cost is reserved before any record is counted.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Returns
    -------
    PrivateEvaluation

    Privacy: (epsilon, delta) for adding or removing one evaluated record (with ``persons``, one person). The release
    consists of pairs of noisy counts, of the records with and without an outcome. The outcomes are, for each level, the
    misses and the sizes of sets; wrong predictions or errors; the misses of each class and each group. A record changes
    one count of a pair by one, so a pair costs one count of sensitivity 1. A record is in one class, so all classes
    together cost one count. Each overlapping group that a record may be in costs one count. Sizes and errors are shares
    of a public limit and rounded to 0 or 1 at random, which preserves their mean.

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
    (noise,), _ = sized_lattice_noise(epsilon, delta, sums, (1.0,))
    public = {"n_evaluated": len(outcomes)} if size_is_public else {}
    ledger = (
        Ledger(seeded=seed is not None)
        .declare(**public)
        .add(
            STAGE,
            noise.event(sums),
            "noisy counts of misses, sizes and errors",
            unit=evaluated_unit(persons),
        )
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
        limit=estimator._task().size_limit,
        confidence=confidence,
        ledger=ledger,
        delta=delta,
        public_size=(len(outcomes), 1.0) if size_is_public else None,
    )


def _find_groups(estimator: Any, groups: Any) -> RowGroups | None:
    """Return the caller's groups, or those of the fit.

    None without groups, and if the classes are the groups.
    """
    declared = read_groups(groups)
    found: RowGroups | None = estimator.declared_groups() if declared is None else declared.of_rows(estimator.schema_)
    return found


# ---- labeled records


def evaluated_unit(persons: Any) -> Unit:
    """Return the unit of privacy of an evaluation: a record, or with ids a person."""
    return RECORDS if persons is None else Unit(1, by_person=True)


def sketch_records(estimator: Any, X: Any) -> Sketch:
    """Return the sketch of these records, to recognize them in this process.

    It is computed as in the fit.
    """
    return sketch_rows(X if isinstance(estimator.estimator, Prefit) else estimator._read_new_rows(X)[0])


def has_trained_release(estimator: Any, sketch: Sketch) -> bool:
    """Return whether a release's fit in this process used some of these records.

    Fits in other processes are not known.
    """
    return has_trained(sketch, estimator.model_, digest_parameters(estimator.model_))


def warn_if_not_new(estimator: Any, sketch: Sketch, what: str, *, adds_up: bool) -> None:
    """Warn about training records, and about records that were used before.

    A store or a seed makes the second warning needless.
    """
    if has_trained_release(estimator, sketch):
        warnings.warn(
            f"{what} records that trained this release, so their coverage says nothing about new records. Use labeled "
            "records that the fit did not use",
            ReuseWarning,
            stacklevel=4,
        )
    if adds_up:
        warn_if_used(sketch, what, stacklevel=4)
