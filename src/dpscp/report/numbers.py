"""The numbers of a report, without any drawing: what was spent, what was promised, how labelled records fare."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp import metrics
from dpscp.data.validation import label_index
from dpscp.guarantees import Certificate
from dpscp.pipeline.evaluation import PrivateEstimate, PrivateEvaluation
from dpscp.privacy import Ledger, epsilon_of, gdp_mu
from dpscp.privacy.events import DpEvent, SecretSplitDpEvent, composed_parts, event_words

# False-alarm rates at which the attacker's best detection is printed.
ATTACKS = (0.01, 0.05, 0.1)
# How many records somebody may have: the promise is about one, and the page says what it means for these.
GROUP_SIZES = (1, 2, 5, 10)
_BINS = 20

# What each number of a certificate means, in plain words.
TERMS: Mapping[str, str] = {
    "n_records": "the public, nominal number of records of the whole table",
    "n_persons": "the public, nominal number of persons in the whole table",
    "rows_per_person": "the public cap on the records of one person",
    "calibration_persons": "how many of the persons are held out for the threshold, nominally",
    "calibration_records": "how many of them are held out for the threshold, nominally",
    "inner_level": "the level the search really aims at, so that the promised one holds",
    "count_noise": "standard deviation of the noise on every count of the search",
    "conformity_score": "how badly a target fits: distance to the forecast (absolute) or to a pair of quantiles (cqr)",
    "steps": "noisy counts that the search asks for",
    "rank_target": "the noisy count a threshold must reach to be accepted, on average over the steps",
    "noise_offset": "ranks added so that noise costs no coverage on average (Result F), a mean over the steps",
    "size_noise": "standard deviation of the noise on the number of scores, which stays private (Result G)",
    "released_size": "the noisy number of scores that the search went by; public from now on",
    "smallest_n": "a table with fewer records is expected to get full sets at this noise",
    "smallest_n_calibration": "the held-out records of such a table",
    "smallest_group": "a group with fewer records in the table is expected to get full sets",
    "smallest_group_calibration": "the held-out records of such a group",
    "value_buffer": "added to the threshold for the shift one record can cause (Result C)",
    "ideal_miss_bound": "bound on the miss rate if the scores were those of unseen records",
    "classes_declared": "whether the list of labels was declared; found in the records, it certifies nothing",
    "release_confidence": "how sure the next number is, over records and noise",
    "release_level": "what a single release covers at least, with that confidence (Result I)",
    "finite_threshold_expected": "whether these numbers leave room for sets smaller than full",
}

# What a person should look for when an evaluation lies below the promise; likely things first.
WHY_BELOW = (
    "n_records in the declarations is far from the truth, these records are not like those of the fit (other people, "
    "another time, an unshuffled table), or, where it is close, chance: the promise is an average over releases"
)


@dataclass(frozen=True)
class StudyBudget:
    """What a study may spend on these records, and what all its fits have spent so far; numbers of a budget store."""

    epsilon: float
    delta: float
    spent: float
    left: float
    fits: int


@dataclass(frozen=True)
class About:
    """What a page says about itself. All of it is declared by whoever writes the page; nothing comes from records.

    ``model_sha256`` is the checksum of the model file that the page is about.
    """

    purpose: str | None = None
    data: str | None = None
    model_sha256: str | None = None
    study: StudyBudget | None = None


@dataclass(frozen=True)
class Spending:
    """One stage's part of the budget: epsilon if it were alone, and its share of the squared Gaussian-DP budget.

    Epsilons do not add up; squared Gaussian-DP levels do (exactly for Gaussian noise), so shares are made of these.
    ``parts`` are what the stage is made of, in words and by the same measure.
    """

    stage: str
    epsilon: float
    share: float
    parts: tuple["Spending", ...] = ()


def budget_tracks(ledger: Ledger, epsilon: float, delta: float) -> tuple[tuple[Spending, ...], ...]:
    """What a record meets, stage by stage: one track, or one for each of the disjoint parts it can lie in.

    Epsilons are for the ledger's unit. Of a secret split epsilon is what a part would cost a record known to lie in it,
    and shares are of that.

    Paper: Theorem 1 [thm:overall_privacy]
    """
    tracks: list[tuple[Spending, ...]] = [()]
    rows = ledger.rows
    for entry in ledger.entries:
        # a part that nobody knows a record to be in may spend more than the budget alone: shares are of its own
        secret = isinstance(entry.event, SecretSplitDpEvent)
        spent = [
            _spending(name, part, max(epsilon, epsilon_of(part, delta, rows=rows)) if secret else epsilon, delta, rows)
            for name, part in entry.stages
        ]
        tracks = [(*track, item) for item in spent for track in tracks]
    return tuple(tracks)


def _spending(stage: str, event: DpEvent, epsilon: float, delta: float, rows: int, *, split: bool = True) -> Spending:
    alone = epsilon_of(event, delta, rows=rows)
    if not np.isfinite(alone):
        return Spending(stage, alone, 1.0)
    pieces = composed_parts(event) if split else []
    parts = [_spending(event_words(piece), piece, epsilon, delta, rows, split=False) for piece in pieces]
    share = (gdp_mu(alone, delta) / gdp_mu(epsilon, delta)) ** 2 if alone > 0 else 0.0
    return Spending(stage, alone, share, tuple(parts) if len(parts) > 1 else ())


@dataclass(frozen=True)
class LevelEvaluation:
    """How the sets of one level fare on labelled records outside the promise.

    ``interval`` is a 95 % Clopper-Pearson interval for the coverage. ``sizes`` are set sizes, or the left edges of
    equal bins of interval widths up to ``widest``; ``shares`` the share of records in each. ``unbounded`` is the share
    of infinite intervals. ``promised`` is the level that the certificate proves.
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
        """Whether even the upper end of the interval lies below what was promised."""
        return self.interval[1] < self.promised


@dataclass(frozen=True)
class Reference:
    """What another method reached on the same records at the first level, for comparison."""

    method: str
    coverage: float
    mean_size: float


@dataclass(frozen=True)
class PartEvaluation:
    """How the sets fare on the records of one label or group; coverage and mean size, one of each level.

    ``interval`` is a 95 % Clopper-Pearson interval for the coverage of the first level.
    """

    name: str
    n: int
    coverage: tuple[float, ...]
    interval: tuple[float, float]
    mean_size: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """Results on labelled records outside the promise; these numbers are not private.

    ``held_out`` says that a comparison told the records from those of the fit; nothing else may be called held out.
    ``by_label`` and ``by_group`` split the records by their true label and by the groups of the fit, where it has any.
    ``reference`` is a method without privacy, beside it.
    """

    n: int
    kind: str
    levels: tuple[LevelEvaluation, ...]
    held_out: bool = False
    by_label: tuple[PartEvaluation, ...] = ()
    by_group: tuple[PartEvaluation, ...] = ()
    reference: Reference | None = None


def verdict(
    certificates: Sequence[Certificate], evaluation: Evaluation | None, measured: PrivateEvaluation | None = None
) -> tuple[str, str]:
    """One word about a release, and a sentence why: contradicted, vacuous, checked or unchecked.

    ``measured`` is what the fit counted privately on records of its own. Contradicted: labelled records put coverage
    below a promise. Vacuous: a promise is kept only by sets too large to be
    of use, or nothing is proven.
    """
    if evaluation is not None and any(level.is_below_promise for level in evaluation.levels):
        return "contradicted", "the evaluation puts coverage below the promise: do not rely on these sets"
    if measured is not None and any(map(_is_below, measured.coverages, certificates)):
        return "contradicted", "the private check puts coverage below the promise: do not rely on these sets"
    if any(certificate.is_vacuous for certificate in certificates):
        return "vacuous", "the promise is kept, and its sets are too large, or too little is proven, to be of use"
    if any(not certificate.is_certified for certificate in certificates):
        return "not certified", "privacy is proven, coverage is expected and not proven at the level that was asked for"
    if evaluation is None and measured is not None:
        return "usable", "both promises are proven, and a private check of this release does not contradict them"
    if evaluation is None:
        return "usable", "both promises are proven; no evaluation on labelled records is part of this page"
    return "usable", "both promises are proven, and the evaluation does not contradict them"


def _is_below(measured: PrivateEstimate, certificate: Certificate) -> bool:
    """Whether even the upper end of the interval lies below what is proven."""
    return measured.interval[1] < certificate.coverage


def evaluate(estimator: Any, X: Any, y: Any) -> Evaluation:
    """Coverage and size of a fitted estimator's sets on labelled records that were not used to fit it.

    The result is computed in the clear: it tells about these records, and no ledger pays for it.
    """
    return evaluate_blocks(estimator, [(X, y)])


def evaluate_blocks(estimator: Any, blocks: Iterable[tuple[Any, Any]]) -> Evaluation:
    """``evaluate`` on records that come in blocks; of each record only the sizes of its sets are kept."""
    classes = getattr(estimator, "classes_", None)
    kept, hits = [], np.zeros(len(estimator.certificates_), dtype=np.int64)
    labels, groups = _Parts(() if classes is None else classes), _Parts(_own_groups(estimator))
    for X, y in blocks:
        if classes is not None:
            sets = estimator.predict_set(X)[1]
            sizes = sets.sum(axis=1, dtype=np.min_scalar_type(len(classes)))
        else:
            sets = estimator.predict_interval(X)[1]
            sizes = np.maximum(sets[:, 1] - sets[:, 0], 0.0)
        covered = metrics.covered(y, sets, classes=classes)
        hits += covered.sum(axis=0)
        kept.append(sizes)
        if classes is not None:
            labels.add(label_index(np.asarray(y), tuple(classes.tolist())), covered, sizes)
        if groups.names:
            groups.add(estimator.group_of(X, len(sets)), covered, sizes)
    sizes = np.concatenate(kept)
    n = len(sizes)
    levels = []
    for place, certificate in enumerate(estimator.certificates_):
        described = _widths(sizes[:, place]) if classes is None else _set_sizes(sizes[:, place], len(classes))
        share, interval = hits[place] / n, clopper_pearson(int(hits[place]), n)
        levels.append(LevelEvaluation(certificate.target, certificate.coverage, float(share), interval, **described))
    kind = "interval" if classes is None else "set"
    return Evaluation(n, kind, tuple(levels), by_label=labels.found(), by_group=groups.found())


def _own_groups(estimator: Any) -> Sequence[Any]:
    """The groups of a fit; those by label are in the table of labels already."""
    return () if estimator.group_values_ is None or estimator.groups == "label" else estimator.group_values_


class _Parts:
    """Sums for each of some parts of the evaluated records; a record of no part is in none of them."""

    def __init__(self, names: Sequence[Any]) -> None:
        self.names = [str(name) for name in names]
        self._sums: tuple[Any, ...] = (0, 0, 0)

    def add(self, place: NDArray[np.int64], covered: NDArray[np.bool_], sizes: NDArray[Any]) -> None:
        member = place == np.arange(len(self.names))[:, None]
        added = (member.sum(axis=1), member.astype(np.int64) @ covered, member.astype(np.float64) @ sizes)
        self._sums = tuple(a + b for a, b in zip(self._sums, added, strict=True))

    def found(self) -> tuple[PartEvaluation, ...]:
        if not self.names:
            return ()
        return tuple(
            PartEvaluation(name, int(n), tuple(hits / n), clopper_pearson(int(hits[0]), int(n)), tuple(sizes / n))
            for name, n, hits, sizes in zip(self.names, *self._sums, strict=True)
            if n
        )


def _set_sizes(sizes: NDArray[Any], n_classes: int) -> dict[str, Any]:
    shares = np.bincount(sizes, minlength=n_classes + 1) / len(sizes)
    return {
        "mean_size": float(sizes.mean()),
        "single": float(shares[1]),
        "sizes": tuple(float(k) for k in range(len(shares))),
        "shares": tuple(shares.tolist()),
        "widest": float(n_classes),
        "unbounded": 0.0,
    }


def _widths(width: NDArray[np.float64]) -> dict[str, Any]:
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
    """The exact interval for a rate of which ``hits`` of ``n`` were seen."""
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - tail, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)
