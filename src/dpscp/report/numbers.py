"""The numbers of a report, without any drawing: what was spent, what was promised, how labelled records fare."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpscp import metrics
from dpscp.privacy import Ledger, epsilon_of, gdp_mu

__all__ = [
    "ATTACKS",
    "GROUP_SIZES",
    "TERMS",
    "WHY_BELOW",
    "Evaluation",
    "LevelEvaluation",
    "Spending",
    "budget_tracks",
    "evaluate",
    "evaluate_blocks",
]

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
    "rank_target": "the noisy count a threshold must reach to be accepted",
    "noise_offset": "ranks added so that noise costs no coverage on average (Result F)",
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
class Spending:
    """One stage's part of the budget: epsilon if it were alone, and its share of the squared Gaussian-DP budget.

    Epsilons do not add up; squared Gaussian-DP levels do (exactly for Gaussian noise), so shares are made of these.
    """

    stage: str
    epsilon: float
    share: float


def budget_tracks(ledger: Ledger, epsilon: float, delta: float) -> tuple[tuple[Spending, ...], ...]:
    """What a record meets, stage by stage: one track, or one for each of the disjoint parts it can lie in.

    Paper: Theorem 1 [thm:overall_privacy]
    """
    tracks: list[tuple[Spending, ...]] = [()]
    for entry in ledger.entries:
        spent = [_spending(name, part, epsilon, delta) for name, part in entry.stages]
        tracks = [(*track, item) for item in spent for track in tracks]
    return tuple(tracks)


def _spending(stage: str, event: Any, epsilon: float, delta: float) -> Spending:
    alone = epsilon_of(event, delta)
    if not np.isfinite(alone):
        return Spending(stage, alone, 1.0)
    return Spending(stage, alone, (gdp_mu(alone, delta) / gdp_mu(epsilon, delta)) ** 2 if alone > 0 else 0.0)


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
class Evaluation:
    """Results on labelled records outside the promise; these numbers are not private.

    ``held_out`` says that a comparison told the records from those of the fit; nothing else may be called held out.
    """

    n: int
    kind: str
    levels: tuple[LevelEvaluation, ...]
    held_out: bool = False


def evaluate(estimator: Any, X: Any, y: Any) -> Evaluation:
    """Coverage and size of a fitted estimator's sets on labelled records that were not used to fit it.

    The result is computed in the clear: it tells about these records, and no ledger pays for it.
    """
    return evaluate_blocks(estimator, [(X, y)])


def evaluate_blocks(estimator: Any, blocks: Iterable[tuple[Any, Any]]) -> Evaluation:
    """``evaluate`` on records that come in blocks; of each record only the sizes of its sets are kept."""
    classes = getattr(estimator, "classes_", None)
    kept, hits = [], np.zeros(len(estimator.certificates_), dtype=np.int64)
    for X, y in blocks:
        if classes is not None:
            sets = estimator.predict_set(X)[1]
            sizes = sets.sum(axis=1, dtype=np.min_scalar_type(len(classes)))
        else:
            sets = estimator.predict_interval(X)[1]
            sizes = np.maximum(sets[:, 1] - sets[:, 0], 0.0)
        covered = np.atleast_1d(metrics.coverage(y, sets, classes=classes))
        hits += np.round(covered * len(sets)).astype(np.int64)
        kept.append(sizes)
    sizes = np.concatenate(kept)
    n = len(sizes)
    levels = []
    for place, certificate in enumerate(estimator.certificates_):
        described = _widths(sizes[:, place]) if classes is None else _set_sizes(sizes[:, place], len(classes))
        share, interval = hits[place] / n, _clopper_pearson(int(hits[place]), n)
        levels.append(LevelEvaluation(certificate.target, certificate.coverage, float(share), interval, **described))
    return Evaluation(n, "interval" if classes is None else "set", tuple(levels))


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


def _clopper_pearson(hits: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, hits, n - hits + 1) if hits else 0.0
    high = stats.beta.ppf(1 - tail, hits + 1, n - hits) if hits < n else 1.0
    return float(low), float(high)
