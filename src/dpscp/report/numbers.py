"""Compute the numbers of a report: spending, promises, evaluation on labeled records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp import metrics
from dpscp.core.evaluation import PrivateEstimate
from dpscp.data.groups import is_member
from dpscp.data.schema import check_metadata
from dpscp.data.schema_text import METADATA_KEYS
from dpscp.data.validation import label_index
from dpscp.guarantees import Certificate

# False-alarm rates at which the attacker's best detection rate is printed.
ATTACKS = (0.01, 0.05, 0.1)
# Numbers of records of one person for which the page prints the group epsilon.
GROUP_SIZES = (1, 2, 5, 10)
_BINS = 20
# Intervals from this width on count as infinite: pictures and means of such numbers overflow.
_WIDEST = 1e300

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
class StudyBudget:
    """Hold the state of a budget store: the total, and what its fits have spent.

    Attributes
    ----------
    epsilon, delta : the total budget.
    spent, left : spent and remaining epsilon.
    fits : number of reservations.
    """

    epsilon: float
    delta: float
    spent: float
    left: float
    fits: int


@dataclass(frozen=True)
class About:
    """Hold what the author of a report declares; nothing comes from records.

    Attributes
    ----------
    purpose : purpose of the release.
    data : name of the records.
    study : state of the budget store, if there is one.
    responsible : person or organization that is responsible for the release.
    contact : address for questions.
    legal_basis : legal basis of the processing.
    collection_period : time in which the records were collected.
    recipients : who receives the release.
    """

    purpose: str | None = None
    data: str | None = None
    study: StudyBudget | None = None
    responsible: str | None = None
    contact: str | None = None
    legal_basis: str | None = None
    collection_period: str | None = None
    recipients: str | None = None

    def with_metadata(self, metadata: Mapping[str, str] | None) -> "About":
        """Return the same with declarations by key; what is declared already stays.

        Raises ``ValueError`` for an unknown key.
        """
        added: dict[str, Any] = {} if metadata is None else check_metadata(metadata)
        return replace(self, **{key: value for key, value in added.items() if getattr(self, key) is None})

    @property
    def declared(self) -> tuple[tuple[str, str], ...]:
        """The declarations about the release, as (name, text)."""
        found = ((key.replace("_", " ").capitalize(), getattr(self, key)) for key in METADATA_KEYS)
        return tuple((name, text) for name, text in found if text)


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
    unbounded : share of infinite intervals.
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
    unbounded: float

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
    held_out : whether a comparison showed that these records are not those of the fit.
    by_label, by_group : results by true label, and by the groups of the fit.
    reference : results of a non-private method.
    accuracy : share of right predictions; None for intervals.
    mean_absolute_error : mean distance of the prediction to the target; None for sets.
    """

    n: int
    kind: str
    levels: tuple[LevelEvaluation, ...]
    held_out: bool = False
    by_label: tuple[PartEvaluation, ...] = ()
    by_group: tuple[PartEvaluation, ...] = ()
    reference: Reference | None = None
    accuracy: float | None = None
    mean_absolute_error: float | None = None


@dataclass(frozen=True)
class NominalSize:
    """Hold the public number of records or persons; ``is_declared`` is False if it was counted in the table."""

    count: int
    noun: str
    is_declared: bool


def nominal_size(estimator: Any) -> NominalSize | None:
    """Return the public number of records or persons of a fit; None if there is none."""
    terms = estimator.certificates_[0].terms
    if terms.n_units is None:
        return None
    counted = estimator.ledger_.taken_from_data
    return NominalSize(terms.n_units, f"{terms.unit.noun}s", terms.unit.count_name not in counted)


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


def evaluate(estimator: Any, X: Any, y: Any) -> Evaluation:
    """Evaluate a fitted estimator on new labeled records, without privacy.

    No ledger pays for the result. It reveals exact numbers about these records.

    Parameters
    ----------
    estimator : fitted PrivateConformalClassifier or PrivateConformalRegressor
    X, y : (n, n_features) and (n,) labeled records that the fit did not use.

    Returns
    -------
    Evaluation
    """
    estimator.require_readable_rows(X)
    return evaluate_blocks(estimator, [(X, y)])


def evaluate_blocks(estimator: Any, blocks: Iterable[tuple[Any, Any]]) -> Evaluation:
    """Evaluate an estimator on blocks of records; only the set sizes stay in memory."""
    classes = getattr(estimator, "classes_", None)
    kept, hits, errors = [], np.zeros(len(estimator.certificates_), dtype=np.int64), 0.0
    labels, groups = _Parts(() if classes is None else classes), _Parts(_list_groups(estimator))
    for X, y in blocks:
        if classes is not None:
            predicted, sets = estimator.predict_set(X)
            sizes = sets.sum(axis=1, dtype=np.min_scalar_type(len(classes)))
        else:
            predicted, sets = estimator.predict_interval(X)
            errors += float(np.sum(np.abs(predicted - np.asarray(y))))
            sizes = np.maximum(sets[:, 1] - sets[:, 0], 0.0)
        covered = metrics.covered(y, sets, classes=classes)
        hits += covered.sum(axis=0)
        kept.append(sizes)
        if classes is not None:
            names = tuple(classes.tolist())
            truth = label_index(np.asarray(y), names)
            errors += float(np.sum(label_index(predicted, names) != truth))
            labels.add(truth, covered, sizes)
        if groups.names:
            groups.add(estimator.group_of(X, len(sets)), covered, sizes)
    sizes = np.concatenate(kept)
    n = len(sizes)
    levels = []
    for place, certificate in enumerate(estimator.certificates_):
        described = (
            _summarize_widths(sizes[:, place])
            if classes is None
            else _summarize_set_sizes(sizes[:, place], len(classes))
        )
        share, interval = hits[place] / n, clopper_pearson(int(hits[place]), n)
        levels.append(LevelEvaluation(certificate.target, certificate.coverage, float(share), interval, **described))
    return Evaluation(
        n,
        "interval" if classes is None else "set",
        tuple(levels),
        by_label=labels.results(),
        by_group=groups.results(),
        accuracy=None if classes is None else 1 - errors / n,
        mean_absolute_error=errors / n if classes is None else None,
    )


def _list_groups(estimator: Any) -> Sequence[Any]:
    """Return the groups of a fit, but not labels, which have their own table."""
    return () if estimator.group_values_ is None or estimator.groups == "label" else estimator.group_values_


class _Parts:
    """Add up results for parts of the records; place -1 is in no part, and a record may be in several."""

    def __init__(self, names: Sequence[Any]) -> None:
        self.names = [str(name) for name in names]
        self._sums: tuple[Any, ...] = (0, 0, 0)

    def add(self, place: NDArray[np.int64], covered: NDArray[np.bool_], sizes: NDArray[Any]) -> None:
        member = np.stack([is_member(place, part) for part in range(len(self.names))])
        added = (member.sum(axis=1), member.astype(np.int64) @ covered, member.astype(np.float64) @ sizes)
        self._sums = tuple(a + b for a, b in zip(self._sums, added, strict=True))

    def results(self) -> tuple[PartEvaluation, ...]:
        if not self.names:
            return ()
        return tuple(
            PartEvaluation(name, int(n), tuple(hits / n), clopper_pearson(int(hits[0]), int(n)), tuple(sizes / n))
            for name, n, hits, sizes in zip(self.names, *self._sums, strict=True)
            if n
        )


def _summarize_set_sizes(sizes: NDArray[Any], n_classes: int) -> dict[str, Any]:
    shares = np.bincount(sizes, minlength=n_classes + 1) / len(sizes)
    return {
        "mean_size": float(sizes.mean()),
        "single": float(shares[1]),
        "sizes": tuple(float(k) for k in range(len(shares))),
        "shares": tuple(shares.tolist()),
        "widest": float(n_classes),
        "unbounded": 0.0,
    }


def _summarize_widths(width: NDArray[np.float64]) -> dict[str, Any]:
    width = np.where(width < _WIDEST, width, np.inf)
    finite = width[np.isfinite(width)]
    top = float(finite.max()) if len(finite) else 1.0
    top = top if top > 0 else 1.0
    counts, edges = np.histogram(finite, bins=_BINS, range=(0.0, top))
    return {
        "mean_size": float(width.mean()),
        "single": None,
        "sizes": tuple(edges[:-1].tolist()),
        "shares": tuple((counts / len(width)).tolist()),
        "widest": top,
        "unbounded": float(1 - len(finite) / len(width)),
    }


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
