"""Compute the numbers of a report: spending, promises, evaluation."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp.core.evaluation import PrivateEstimate, PrivateEvaluation, around, labeled_outcomes
from dpscp.data.groups import RowGroups, is_member
from dpscp.data.validation import validate_targets
from dpscp.exceptions import SeededWarning
from dpscp.privacy import Ledger, non_private_event
from dpscp.privacy.store import BudgetStore
from dpscp.report.release import Release

# Numbers of records of one person for which the page prints the group epsilon.
GROUP_SIZES = (1, 2, 5, 10)
# The normal quantile of a 95 % interval.
_Z = 1.96

# The meaning of each number of a certificate.
TERMS: Mapping[str, str] = {
    "n_records": "public number of records in the whole table",
    "n_persons": "public number of persons in the whole table",
    "rows_per_person": "public limit on the records of one person",
    "calibration_persons": "expected number of persons held out for the threshold",
    "calibration_records": "expected number of records held out for the threshold",
    "inner_level": "level at which the search works, so that the target level is proven",
    "count_noise": "standard deviation of the noise on every count of the search",
    "conformity_score": "distance of the target to the prediction (absolute) or to a pair of quantiles (cqr)",
    "steps": "number of noisy counts in the search",
    "rank_target": "noisy count at which the search accepts a threshold, averaged over the steps",
    "noise_offset": "ranks added so that noise costs no coverage on average (Result F), averaged over the steps",
    "size_noise": "standard deviation of the noise on the number of scores (Result G)",
    "released_size": "noisy number of scores that the search used; it is published",
    "smallest_n": "with fewer records, full sets are expected at this noise",
    "smallest_n_calibration": "the number of held-out records of such a table",
    "smallest_group": "a group with fewer records is expected to get full sets",
    "smallest_group_calibration": "the number of held-out records of such a group",
    "value_buffer": "added to the threshold for the shift that one record can cause (Result C)",
    "ideal_miss_bound": "upper bound on the miss rate if the scores came from unseen records",
    "classes_declared": "whether the list of labels was declared; without a declaration no coverage is proven",
    "release_confidence": "probability, over records and noise, that a release covers the release level",
    "release_level": "coverage that a single release reaches with this confidence (Result I)",
    "resolution": "losses are counted in multiples of one over this number, rounded by a secret uniform (Result J)",
    "running_maximum": "whether the promise is about the running maximum of a loss that may rise with the threshold",
    "ratio_bound": "the public bound W on the likelihood ratio of the declared population (Result K)",
    "groups_per_record": "the public maximum of groups of one record; their searches are charged together",
    "finite_threshold_expected": "whether sets smaller than full are expected at these numbers",
}


@dataclass(frozen=True, kw_only=True)
class Evaluation(PrivateEvaluation):
    """Hold exact results on labeled records; these numbers are not private.

    Attributes
    ----------
    evaluated : a description of the evaluated records.

    The other attributes are those of a private evaluation, with exact estimates and their 95 % intervals.
    """

    evaluated: str


def nominal_size(release: Release) -> dict[str, Any] | None:
    """Return the public number of units, and whether it was declared.

    Units are records or persons; None if there is no public number.
    """
    terms = release.certificate.terms
    if terms.n_units is None:
        return None
    is_declared = terms.unit.count_name not in release.ledger.taken_from_data
    return {"count": terms.n_units, "noun": f"{terms.unit.noun}s", "is_declared": is_declared}


def study_budget(store: BudgetStore | None) -> dict[str, Any] | None:
    """Return the budget of a store and what its releases have spent.

    Parameters
    ----------
    store : BudgetStore or None

    Returns
    -------
    dict with epsilon, delta, spent, left and fits (the number of reservations); None without a store.
    """
    if store is None:
        return None
    state = store.to_dict()
    spent = float("inf") if state["spent"] is None else state["spent"]
    budget = {"epsilon": state["epsilon"], "delta": state["delta"]}
    return {**budget, "spent": spent, "left": store.remaining(), "fits": len(state["entries"])}


def evaluate(estimator: Any, X: Any, y: Any, persons: Any = None) -> Evaluation:
    """Evaluate a fitted estimator on new labeled records, without privacy.

    No ledger pays for the result. It reveals exact numbers about these records.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    X, y : (n, n_features) and (n,) labeled records that the fit did not use.
    persons : (n,) ids; one record of each person is used, drawn with a fixed seed so that a report can be repeated.

    Returns
    -------
    Evaluation
        The width of an interval is cut at the width of the target's range.
    """
    groups: RowGroups | None = estimator.declared_groups() if estimator.group_values_ is not None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeededWarning)  # this evaluation is not private, and the output states it
        outcomes = labeled_outcomes(estimator, X, y, persons=persons, groups=groups, random_state=0)
    if not len(outcomes):
        raise ValueError(
            "X has no record, so there is nothing to evaluate; pass labeled records that the fit did not use"
        )
    limit, n, covered = estimator._task().size_limit, len(outcomes), outcomes.covered
    sizes, is_classifier = outcomes.sizes * limit, outcomes.labels is not None
    classes, group_names = getattr(estimator, "classes_", ()), () if groups is None else groups.names
    coverages = tuple(_rate(column) for column in covered.T)
    no_width = is_classifier or np.ndim(y) > 1
    evaluated = f"{n:,} labeled records"
    if persons is not None:
        evaluated = f"{n:,} persons, one random record of each ({len(y):,} rows)"
    return Evaluation(
        coverages=coverages,
        set_sizes=tuple(map(_mean, sizes.T)),
        accuracy=_rate(1 - outcomes.errors) if is_classifier else None,
        mean_absolute_error=None if is_classifier else _mean(outcomes.errors * limit),
        by_class=_by_part(classes, outcomes.labels, covered[:, 0]),
        by_group=_by_part(group_names, outcomes.groups, covered[:, 0]),
        class_shares={}
        if outcomes.labels is None
        else {name: _rate(outcomes.labels == place) for place, name in enumerate(classes)},
        n_records=PrivateEstimate(n, (n, n)),
        targets=tuple(certificate.target for certificate in estimator.certificates_),
        confidence=0.95,
        ledger=Ledger().add("evaluation", non_private_event(), "numbers without noise"),
        delta=estimator.delta,
        full=_rate(sizes[:, 0] >= limit),
        empty=_rate(sizes[:, 0] <= 0),
        evaluated=evaluated,
        note=f"NOT private: the evaluation of {evaluated} is computed without noise. Publish it only if these records "
        "may be published. It says nothing about new records if the fit used these.",
        constant_width=None if no_width else around(coverages[0], lambda level: shortest_width(y, level)),
    )


def _rate(holds: NDArray[Any]) -> PrivateEstimate:
    """Return a share with its 95 % Clopper-Pearson interval."""
    found = stats.binomtest(int(np.sum(holds)), len(holds))
    low, high = found.proportion_ci(0.95)
    return PrivateEstimate(float(found.statistic), (float(low), float(high)))


def _mean(values: NDArray[np.float64]) -> PrivateEstimate:
    """Return a mean with a 95 % interval."""
    mean, reach = float(values.mean()), float(_Z * values.std() / np.sqrt(len(values)))
    return PrivateEstimate(mean, (mean - reach, mean + reach))


def _by_part(
    names: Sequence[Any], places: NDArray[np.int64] | None, covered: NDArray[np.bool_]
) -> dict[Any, PrivateEstimate]:
    """Return the coverage of each part that has records.

    Place -1 is in no part, and a record may be in several.
    """
    members = {name: is_member(places, part) for part, name in enumerate(names) if places is not None}
    return {name: _rate(covered[member]) for name, member in members.items() if member.any()}


def shortest_width(targets: Any, level: float) -> float:
    """Return the width of the shortest interval that holds a share of the targets."""
    ordered, kept = np.sort(validate_targets(targets, len(targets))), max(1, int(np.ceil(level * len(targets) - 1e-9)))
    return float((ordered[kept - 1 :] - ordered[: len(ordered) - kept + 1]).min())
