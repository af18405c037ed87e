"""Compute the numbers of a report: spending, promises, evaluation on labeled records."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp.core.evaluation import PrivateEstimate
from dpscp.data.groups import RowGroups, is_member
from dpscp.deployment.evaluation import labeled_outcomes, size_limit
from dpscp.exceptions import SeededWarning
from dpscp.guarantees import Certificate
from dpscp.privacy.store import BudgetStore

# False-alarm rates at which the attacker's best detection rate is printed.
ATTACKS = (0.01, 0.05, 0.1)
# Numbers of records of one person for which the page prints the group epsilon.
GROUP_SIZES = (1, 2, 5, 10)
_BINS = 20

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

# Possible reasons for an evaluation below the promise, the most likely first.
WHY_BELOW = (
    "the declared n_records is wrong, these records differ from those of the fit (other people, another time, an "
    "unshuffled table), or, if the difference is small, chance: the promise is an average over releases"
)
FULL_SETS = "The promise holds only because the sets contain nearly every answer, so it is not useful."
_TOO_LITTLE = "Too little coverage is proven for the promise to be useful."
_LABELS_FROM_RECORDS = "No coverage is proven, because the list of labels was taken from the records."


@dataclass(frozen=True)
class LevelEvaluation:
    """Hold the results of one level on labeled records; not private.

    Attributes
    ----------
    target, promised : the requested level, and the level that the certificate proves.
    coverage, interval : share of covered records, with its 95 % Clopper-Pearson interval.
    mean_size : mean number of labels in a set, or mean width of an interval.
    single : share of sets with one label; None for intervals.
    sizes, shares : set sizes, or left edges of equal bins of widths, and the share of records in each.
    widest : right edge of the last bin.
    """

    target: float
    promised: float
    coverage: float
    interval: tuple[float, float]
    mean_size: float
    single: float | None
    sizes: tuple[float, ...]
    shares: tuple[float, ...]
    widest: float

    @property
    def is_below_promise(self) -> bool:
        """Whether the whole interval lies below the promised level."""
        return self.interval[1] < self.promised


@dataclass(frozen=True)
class Reference:
    """Hold the results of a non-private method on the same records at the first level."""

    method: str
    coverage: float
    mean_size: float


@dataclass(frozen=True)
class PartEvaluation:
    """Hold the results of the records of one label or group; one coverage and one mean size for each level.

    ``interval`` is a 95 % Clopper-Pearson interval for the coverage at the first level.
    """

    name: str
    n: int
    coverage: tuple[float, ...]
    interval: tuple[float, float]
    mean_size: tuple[float, ...]

    def is_below(self, target: float) -> bool:
        """Whether the whole interval lies below a level."""
        return self.interval[1] < target


@dataclass(frozen=True)
class Evaluation:
    """Hold results on labeled records; these numbers are not private.

    Attributes
    ----------
    n : number of records.
    kind : "set" or "interval".
    levels : one result for each level.
    by_label, by_group : results by true label, and by the groups of the fit.
    reference : results of a non-private method.
    accuracy : share of right predictions; None for intervals.
    mean_absolute_error : mean distance of the prediction to the target; None for sets.
    """

    n: int
    kind: str
    levels: tuple[LevelEvaluation, ...]
    by_label: tuple[PartEvaluation, ...] = ()
    by_group: tuple[PartEvaluation, ...] = ()
    reference: Reference | None = None
    accuracy: float | None = None
    mean_absolute_error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the results of all records as JSON values."""
        levels = [
            {
                "target": level.target,
                "coverage": level.coverage,
                "interval": level.interval,
                "below_promise": level.is_below_promise,
                "mean_size": level.mean_size,
            }
            for level in self.levels
        ]
        reference = None if self.reference is None else asdict(self.reference)
        return {"n": self.n, "is_private": False, "levels": levels, "reference": reference}


def nominal_size(estimator: Any) -> dict[str, Any] | None:
    """Return the public number of records or persons of a fit, and whether it was declared; None if there is none."""
    terms = estimator.certificates_[0].terms
    if terms.n_units is None:
        return None
    is_declared = terms.unit.count_name not in estimator.ledger_.taken_from_data
    return {"count": terms.n_units, "noun": f"{terms.unit.noun}s", "is_declared": is_declared}


def study_budget(store: BudgetStore | None) -> dict[str, Any] | None:
    """Return the budget of a store and what its releases have spent, for a report or a statement.

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


def explain_useless_promise(estimator: Any) -> str | None:
    """Explain in one sentence why a coverage promise of a fit is not useful; return None if all are."""
    levels = np.reshape(estimator.threshold_, (-1, len(estimator.certificates_))).T
    for certificate, thresholds in zip(estimator.certificates_, levels, strict=True):
        if certificate.void_because:
            return f"No coverage is proven: {certificate.void_because}."
        if not certificate.classes_declared:
            return _LABELS_FROM_RECORDS
        if not certificate.terms.finite_threshold_expected or np.isinf(thresholds).all():
            return FULL_SETS
        if certificate.is_vacuous:
            return _TOO_LITTLE
    return None


def judge_release(estimator: Any, evaluation: Evaluation | None) -> tuple[str, str]:
    """Give a verdict on a release: one or two words, and a sentence with the reason."""
    if evaluation is not None and any(level.is_below_promise for level in evaluation.levels):
        return "contradicted", "The evaluation shows coverage below the promise. Do not rely on these sets."
    if estimator.ledger_.non_private_stages:
        return "not private", f"Neither promise is proven: {'; '.join(estimator.ledger_.not_private_because)}."
    measured = estimator.evaluation_
    if measured is not None and any(map(_is_below_promise, measured.coverages, estimator.certificates_)):
        return "contradicted", "The private evaluation shows coverage below the promise. Do not rely on these sets."
    useless = explain_useless_promise(estimator)
    if useless:
        return "vacuous", useless
    if estimator.ledger_.seeded:
        return (
            "for tests only",
            "Privacy is not proven: the noise came from a seed. Fit without random_state to publish.",
        )
    if not all(certificate.is_certified for certificate in estimator.certificates_):
        return "not certified", "Privacy is proven. The requested coverage is expected, but not proven."
    if evaluation is None and measured is not None:
        return "usable", "Both promises are proven, and the private evaluation does not contradict them."
    if evaluation is None:
        return "usable", "Both promises are proven. This page contains no evaluation on labeled records."
    return "usable", "Both promises are proven, and the evaluation does not contradict them."


@dataclass(frozen=True)
class LowPart:
    """Hold a class or group whose coverage is clearly below the target; ``high`` is the upper end of its interval."""

    kind: str
    name: str
    coverage: float
    high: float
    is_private: bool


def find_low_parts(estimator: Any, evaluation: Evaluation | None) -> list[LowPart]:
    """List the classes and groups whose whole coverage interval is below the first target, in either evaluation."""
    found, target, measured = [], estimator.certificates_[0].target, estimator.evaluation_
    if measured is not None:
        for kind, parts in (("class", measured.by_class), ("group", measured.by_group)):
            low = {name: rate for name, rate in parts.items() if rate.interval[1] < target}
            found += [LowPart(kind, str(name), rate.estimate, rate.interval[1], True) for name, rate in low.items()]
    if evaluation is not None:
        for kind, results in (("class", evaluation.by_label), ("group", evaluation.by_group)):
            below = [part for part in results if part.is_below(target)]
            found += [LowPart(kind, part.name, part.coverage[0], part.interval[1], False) for part in below]
    return found


def _is_below_promise(measured: PrivateEstimate, certificate: Certificate) -> bool:
    """Return whether the whole interval is below the proven coverage."""
    return measured.interval[1] < certificate.coverage


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
    limit, n, covered = size_limit(estimator), len(outcomes), outcomes.covered
    sizes, is_classifier = outcomes.sizes * limit, outcomes.labels is not None
    classes, group_names = getattr(estimator, "classes_", ()), () if groups is None else groups.names
    error = float(outcomes.errors.mean())
    return Evaluation(
        n,
        "set" if is_classifier else "interval",
        tuple(
            _measure_level(certificate, covered[:, place], sizes[:, place], int(limit) if is_classifier else None)
            for place, certificate in enumerate(estimator.certificates_)
        ),
        by_label=tuple(_measure_parts(classes, outcomes.labels, covered, sizes)),
        by_group=tuple(_measure_parts(group_names, outcomes.groups, covered, sizes)),
        accuracy=1 - error if is_classifier else None,
        mean_absolute_error=None if is_classifier else error * limit,
    )


def _measure_level(
    certificate: Certificate, covered: NDArray[np.bool_], sizes: NDArray[np.float64], n_classes: int | None
) -> LevelEvaluation:
    """Measure one level; ``n_classes`` is None for intervals, whose widths are counted in equal bins."""
    if n_classes is None:
        counts, edges = np.histogram(sizes, bins=_BINS, range=(0.0, float(sizes.max()) or 1.0))
        places, widest = edges[:-1], float(edges[-1])
    else:
        counts = np.bincount(np.rint(sizes).astype(np.int64), minlength=n_classes + 1)
        places, widest = np.arange(n_classes + 1.0), float(n_classes)
    shares = tuple((counts / len(sizes)).tolist())
    return LevelEvaluation(
        target=certificate.target,
        promised=certificate.coverage,
        coverage=float(covered.mean()),
        interval=clopper_pearson(int(covered.sum()), len(covered)),
        mean_size=float(sizes.mean()),
        single=None if n_classes is None else shares[1],
        sizes=tuple(places.tolist()),
        shares=shares,
        widest=widest,
    )


def _measure_parts(
    names: Sequence[Any], places: NDArray[np.int64] | None, covered: NDArray[np.bool_], sizes: NDArray[np.float64]
) -> Iterator[PartEvaluation]:
    """Measure the parts that have records; place -1 is in no part, and a record may be in several."""
    for part, name in enumerate(names):
        assert places is not None  # of labels or groups that have names
        member = is_member(places, part)
        n, hits = int(member.sum()), covered[member]
        if n:
            interval = clopper_pearson(int(hits[:, 0].sum()), n)
            yield PartEvaluation(str(name), n, tuple(hits.mean(axis=0)), interval, tuple(sizes[member].mean(axis=0)))


def clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the exact confidence interval of a rate.

    Parameters
    ----------
    hits, n : number of successes, and of trials.
    confidence : probability with which the interval contains the rate.

    Returns
    -------
    (low, high)
    """
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - tail, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)
