"""Compute the numbers of a report: spending, promises, evaluation on labeled records."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp.core.evaluation import labeled_outcomes
from dpscp.core.findings import Findings, Part, PrivateEstimate, around, constant_set_size, rare_names
from dpscp.data.groups import RowGroups, is_member
from dpscp.data.validation import validate_targets
from dpscp.exceptions import SeededWarning
from dpscp.guarantees import Certificate
from dpscp.privacy.store import BudgetStore
from dpscp.report.release import Release

# Numbers of records of one person for which the page prints the group epsilon.
GROUP_SIZES = (1, 2, 5, 10)
_BINS = 20
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


@dataclass(frozen=True)
class LevelEvaluation:
    """Hold the results of one level on labeled records; not private.

    Attributes
    ----------
    target, promised : the requested level, and the level that the certificate proves.
    coverage, interval : share of covered records, with its 95 % Clopper-Pearson interval.
    mean_size, size_error : mean number of labels in a set, or mean width of an interval, and the reach of its 95 %
        interval.
    single : share of sets with one label; None for intervals.
    sizes, shares : set sizes, or left edges of equal bins of widths, and the share of records in each.
    widest : right edge of the last bin.
    """

    target: float
    promised: float
    coverage: float
    interval: tuple[float, float]
    mean_size: float
    size_error: float
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

    def as_part(self, kind: str) -> Part:
        """Return the coverage at the first level, as a verdict uses it."""
        return Part(kind, self.name, PrivateEstimate(self.coverage[0], self.interval))

    def is_below(self, target: float) -> bool:
        """Whether the whole interval lies below a level."""
        return self.interval[1] < target


@dataclass(frozen=True)
class Evaluation:
    """Hold results on labeled records; these numbers are not private.

    Attributes
    ----------
    n : number of records, or of persons.
    kind : "set" or "interval".
    levels : one result for each level.
    by_label, by_group : results by true label, and by the groups of the fit.
    reference : results of a non-private method.
    accuracy : share of right predictions; None for intervals.
    mean_absolute_error : mean distance of the prediction to the target; None for sets.
    full, empty : share of the sets with every answer, and without any, at the first level.
    n_rows : number of rows of the persons; None without ids.
    constant_width : width of the shortest interval that, as the same answer for everybody, has the same coverage, and
        at the ends of its interval; None for sets.
    """

    n: int
    kind: str
    levels: tuple[LevelEvaluation, ...]
    by_label: tuple[PartEvaluation, ...] = ()
    by_group: tuple[PartEvaluation, ...] = ()
    reference: Reference | None = None
    accuracy: float | None = None
    mean_absolute_error: float | None = None
    full: float = 0.0
    empty: float = 0.0
    n_rows: int | None = None
    constant_width: PrivateEstimate | None = None

    @property
    def evaluated(self) -> str:
        """Return what was evaluated, in words."""
        if self.n_rows is None:
            return f"{self.n:,} labeled records"
        return f"{self.n:,} persons, one random record of each ({self.n_rows:,} rows)"

    @property
    def findings(self) -> Findings:
        """What the verdict about the release uses; not private."""
        first, n = self.levels[0], self.n
        kinds = (("class", self.by_label), ("group", self.by_group))
        shares = [part.n / n for part in self.by_label]

        def rate(share: float) -> PrivateEstimate:
            return PrivateEstimate(share, clopper_pearson(round(share * n), n))

        is_classifier = self.accuracy is not None
        coverages = tuple(PrivateEstimate(level.coverage, level.interval) for level in self.levels)
        coverage, reach = coverages[0], first.size_error
        constant = self.constant_width
        if is_classifier:
            constant = around(coverage, lambda level: constant_set_size(shares, level))
        return Findings(
            is_private=False,
            coverages=coverages,
            set_size=PrivateEstimate(first.mean_size, (first.mean_size - reach, first.mean_size + reach)),
            constant_size=constant,
            accuracy=None if self.accuracy is None else rate(self.accuracy),
            most_frequent=rate(max(shares)) if is_classifier else None,
            full=rate(self.full),
            empty=rate(self.empty),
            parts=tuple(part.as_part(kind) for kind, parts in kinds for part in parts),
            rare_classes=rare_names((part.name, part.n / n) for part in self.by_label),
        )

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


def nominal_size(release: Release) -> dict[str, Any] | None:
    """Return the public number of records or persons, and whether it was declared; None if there is none."""
    terms = release.certificate.terms
    if terms.n_units is None:
        return None
    is_declared = terms.unit.count_name not in release.ledger.taken_from_data
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
    no_width = is_classifier or np.ndim(y) > 1
    error, hits = float(outcomes.errors.mean()), int(covered[:, 0].sum())
    first = PrivateEstimate(hits / n, clopper_pearson(hits, n))
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
        full=float((sizes[:, 0] >= limit).mean()),
        empty=float((sizes[:, 0] <= 0).mean()),
        n_rows=None if persons is None else len(y),
        constant_width=None if no_width else around(first, lambda level: shortest_width(y, level)),
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
        size_error=float(_Z * sizes.std() / np.sqrt(len(sizes))),
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


def shortest_width(targets: Any, level: float) -> float:
    """Return the width of the shortest interval that holds a share of the targets."""
    ordered, kept = np.sort(validate_targets(targets, len(targets))), max(1, int(np.ceil(level * len(targets) - 1e-9)))
    return float((ordered[kept - 1 :] - ordered[: len(ordered) - kept + 1]).min())


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
