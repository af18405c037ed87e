"""Measure a released model on labeled records by noisy counts in a ledger.

``deployment.evaluate`` counts new records; a fit with ``evaluation_fraction`` counts a part of its own, kept secret.
Every rate comes from two noisy counts, of the records with and without an outcome. Its interval holds with the noise.

Theory: Private evaluation
"""

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special
from sklearn.utils.validation import check_is_fitted

from dpscp import metrics
from dpscp._base.arrays import Array
from dpscp._base.checks import last_where
from dpscp._base.format import format_epsilon, html_paragraph, html_table, text_table
from dpscp.core.tasks import Classification, JointRegression, Prediction, Regression
from dpscp.data.groups import RowGroups, has_group, largest_thresholds
from dpscp.data.persons import keep_rows
from dpscp.data.sources import Block, added
from dpscp.data.sources.places import Places
from dpscp.data.validation import label_index, suppress_float_warnings, validate_labels, validate_targets
from dpscp.guarantees.certificate import Promise
from dpscp.privacy import IntegerSource, LatticeNoise, Ledger
from dpscp.privacy.pld import discrete_gaussian_cdf
from dpscp.privacy.random_streams import PlacedDraws
from dpscp.scores.labels import score_labels
from dpscp.threshold.sizes import binomial_law
from dpscp.training.model import Model, model_for_records

# The confidence of each interval of ``evaluation_fraction``.
SELF_CONFIDENCE = 0.95
# Share of the allowed error for a noisy size outside its reach.
_SIZE_TAIL = 0.1
# More than the rounding error of the sums below; added to each tail, so that intervals are never too narrow.
_ROUNDING = 1e-9


def rate_interval(
    noisy_count: float, sizes: tuple[int, int], noise: LatticeNoise, tail: float, share: float = 1.0
) -> tuple[float, float]:
    """Return an interval for the rate p of a count M ~ Bin(n, share p).

    M + Z is released, and a range contains n. Z is a draw of ``noise``. P(Bin(n, share p) + Z <= m) is inverted in p,
    at the smallest n for the upper limit and at the largest for the lower one. Each limit fails with probability at
    most ``tail`` beyond that of the range, for every n and p, however the range depends on Z.

    Theory: Private evaluation
    """
    fewest, most = sizes
    high = _largest(lambda p: _probability_at_most(noisy_count, fewest, share * p, noise) + _ROUNDING >= tail)

    def at_least(p: float) -> float:
        return 1 - _probability_at_most(noisy_count, most, share * p, noise, strictly=True)

    low = 1 - _largest(lambda q: at_least(1 - q) + _ROUNDING >= tail)
    return (low, high) if low <= high else (0.0, 1.0)


def size_reach(noise: LatticeNoise, probability: float, draws: int = 1) -> float:
    """Return r with P(|Y| > r) <= ``probability``, for a sum Y of noise draws.

    The sum of draws with scales of thousands of lattice units is a discrete Gaussian up to a factor of 1 + 1e-100.
    """
    sigma = noise.sigma * math.sqrt(draws)
    reach = np.ceil(sigma * special.ndtri(1 - probability / 2)) + 1
    while 2 * float(discrete_gaussian_cdf(-reach - 1, sigma)) > probability:
        reach += max(1.0, sigma // 1000)
    return float(reach / noise.scale)


def _probability_at_most(bound: float, n: int, p: float, noise: LatticeNoise, *, strictly: bool = False) -> float:
    """P(Bin(n, p) + Z <= bound), or of being strictly below it."""
    counts, masses = binomial_law(n, p)
    return float(masses @ discrete_gaussian_cdf(np.round((bound - counts) * noise.scale) - strictly, noise.sigma))


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest rate of a monotone condition, rounded up; 0 for none."""
    return 1.0 if holds(1.0) else last_where(lambda p: not holds(p), 1.0, 0.0, within=1e-7)


@dataclass(frozen=True)
class PrivateEstimate:
    """A private estimate and a confidence interval for the true mean.

    Attributes
    ----------
    estimate : float
        NaN where the noisy number of records is not positive.
    interval : (low, high)
    """

    estimate: float
    interval: tuple[float, float]

    def scaled(self, factor: float) -> "PrivateEstimate":
        """Return the estimate and its interval in other units."""
        low, high = self.interval
        return PrivateEstimate(factor * self.estimate, (factor * low, factor * high))

    def complement(self) -> "PrivateEstimate":
        """Return the estimate of one minus this rate."""
        low, high = self.interval
        return PrivateEstimate(1 - self.estimate, (1 - high, 1 - low))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; None stands for NaN."""
        return {"estimate": None if math.isnan(self.estimate) else self.estimate, "interval": list(self.interval)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PrivateEstimate":
        """Return the estimate that ``to_dict`` wrote."""
        estimate, (low, high) = data["estimate"], data["interval"]
        return cls(float("nan") if estimate is None else float(estimate), (float(low), float(high)))


def constant_set_size(shares: Iterable[float], level: float) -> float:
    """Return the mean size of the smallest constant set that reaches a level.

    A constant set is the same for every record.

    ``shares`` are those of the labels. The last label is in the set as often as the level needs it.

    >>> constant_set_size([0.25, 0.5, 0.25], 0.625)
    1.5
    """
    size, reached = 0.0, 0.0
    for share in sorted((max(0.0, share) for share in shares), reverse=True):
        if reached + share >= level:
            return size + (level - reached) / share if share else size
        size, reached = size + 1, reached + share
    return size


def around(rate: PrivateEstimate, size_at: Callable[[float], float]) -> PrivateEstimate:
    """Return a size that grows with a rate, at the estimate and both interval ends."""
    low, high = rate.interval
    return PrivateEstimate(size_at(rate.estimate), (size_at(low), size_at(high)))


@dataclass(frozen=True)
class PrivateEvaluation:
    """Private estimates of coverage, set size and accuracy on labeled records.

    Attributes
    ----------
    coverages, set_sizes : one ``PrivateEstimate`` for each level; ``coverage`` and ``set_size`` are the first ones.
        The size of a set is its number of labels, or the width of the interval, cut at the width of the target's range.
    accuracy : share of correct predictions; None for a regressor.
    mean_absolute_error : mean distance to the prediction, cut at the width of the target's range; None for a
        classifier.
    by_class, by_group : coverage at the first level for each public class and group.
    class_shares : share of each class in the records.
    n_records : noisy number of records, or of persons, with its interval.
    targets : coverage that the release promises, one number for each level.
    confidence : probability, over records and noise, that a single interval contains its true number.
    ledger : what the evaluation cost the evaluated records. It says nothing about the training records.
    delta : delta at which its epsilon is printed.
    full, empty : share of the sets that contain every answer, and that contain none; None if not measured.
    constant_width : width of the shortest constant interval (the same for every record) with the same coverage, at the
        estimate and at both ends of its interval; None for sets, and if not measured.
    note : text that replaces the line about the cost.
    """

    coverages: tuple[PrivateEstimate, ...]
    set_sizes: tuple[PrivateEstimate, ...]
    accuracy: PrivateEstimate | None
    mean_absolute_error: PrivateEstimate | None
    by_class: Mapping[Hashable, PrivateEstimate]
    by_group: Mapping[Hashable, PrivateEstimate]
    class_shares: Mapping[Hashable, PrivateEstimate]
    n_records: PrivateEstimate
    targets: tuple[float, ...]
    confidence: float
    ledger: Ledger
    delta: float = field(repr=False)
    full: PrivateEstimate | None = None
    empty: PrivateEstimate | None = None
    constant_width: PrivateEstimate | None = None
    note: str = ""

    @property
    def coverage(self) -> PrivateEstimate:
        """Coverage at the first level."""
        return self.coverages[0]

    @property
    def set_size(self) -> PrivateEstimate:
        """Mean set size at the first level."""
        return self.set_sizes[0]

    @property
    def is_private(self) -> bool:
        """Whether noise protects the numbers."""
        return self.ledger.is_private

    @property
    def parts(self) -> tuple[tuple[str, str, PrivateEstimate], ...]:
        """Kind, name and coverage at the first level of each class and group."""
        parts = (("class", self.by_class), ("group", self.by_group))
        return tuple((kind, str(name), rate) for kind, named in parts for name, rate in named.items())

    @property
    def most_frequent(self) -> PrivateEstimate | None:
        """Share of the most frequent class."""
        return max(self.class_shares.values(), key=lambda rate: rate.estimate, default=None)

    @property
    def constant_size(self) -> PrivateEstimate | None:
        """Size of the smallest constant answer (one for all records) of this coverage."""
        if self.constant_width is not None:
            return self.constant_width
        shares = [rate.estimate for rate in self.class_shares.values()]
        return around(self.coverage, lambda level: constant_set_size(shares, level)) if shares else None

    def to_dict(self) -> dict[str, Any]:
        """Return released numbers as JSON values."""
        named = {name: getattr(self, name) for name in ("accuracy", "mean_absolute_error", "full", "empty")}
        return {
            "confidence": self.confidence,
            "targets": list(self.targets),
            "coverage": [value.to_dict() for value in self.coverages],
            "set_size": [value.to_dict() for value in self.set_sizes],
            **{name: value.to_dict() for name, value in named.items() if value is not None},
            "by_class": {str(name): value.to_dict() for name, value in self.by_class.items()},
            "by_group": {str(name): value.to_dict() for name, value in self.by_group.items()},
            "class_shares": {str(name): value.to_dict() for name, value in self.class_shares.items()},
            "n_records": self.n_records.to_dict(),
            "ledger": self.ledger.to_dict(),
        }

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        ledger: Ledger,
        delta: float,
        classes: Sequence[Any],
        group_values: Sequence[Any],
    ) -> "PrivateEvaluation":
        """Return the evaluation that ``to_dict`` wrote, with names of its fit."""
        read = PrivateEstimate.from_dict

        def named(names: Sequence[Any], values: Mapping[str, Any]) -> Mapping[Hashable, PrivateEstimate]:
            if values and len(values) != len(names):
                raise ValueError("its evaluation does not match its classes or groups")
            return dict(zip(names, map(read, values.values()), strict=False))

        return cls(
            coverages=tuple(map(read, data["coverage"])),
            set_sizes=tuple(map(read, data["set_size"])),
            accuracy=read(data["accuracy"]) if "accuracy" in data else None,
            mean_absolute_error=read(data["mean_absolute_error"]) if "mean_absolute_error" in data else None,
            by_class=named(classes, data["by_class"]),
            by_group=named(group_values, data["by_group"]),
            class_shares=named(classes, data["class_shares"]),
            n_records=read(data["n_records"]),
            targets=tuple(map(float, data["targets"])),
            confidence=float(data["confidence"]),
            ledger=ledger,
            delta=delta,
        )

    @property
    def rows(self) -> list[list[str]]:
        """Name, estimate and interval of each number, as texts."""
        rows = []
        for target, coverage, size in zip(self.targets, self.coverages, self.set_sizes, strict=True):
            rows.append(_row(f"coverage (target {target:.1%})", coverage, "{:.1%}"))
            rows.append(_row("mean set size", size, "{:.3g}"))
        if self.accuracy is not None:
            rows.append(_row("accuracy", self.accuracy, "{:.1%}"))
        if self.mean_absolute_error is not None:
            rows.append(_row("mean absolute error", self.mean_absolute_error, "{:.3g}"))
        return rows + [_row(f"coverage, {kind} {name}", value, "{:.1%}") for kind, name, value in self.parts]

    def _titles(self) -> list[str]:
        return ["measure", "estimate", f"{self.confidence:.0%} interval"]

    def _note(self) -> str:
        if self.note:
            return self.note
        spent = format_epsilon(self.ledger.epsilon(self.delta))
        private = "".join(f" NOT private: {reason}." for reason in self.ledger.not_private_because)
        return f"Private evaluation: epsilon {spent} at delta {self.delta:g} for the evaluated records.{private}"

    def __str__(self) -> str:
        return "\n".join([*text_table(self._titles(), self.rows), self._note()])

    def _repr_html_(self) -> str:
        return html_table(self._titles(), self.rows) + html_paragraph(self._note())


def _row(name: str, value: PrivateEstimate, form: str) -> list[str]:
    low, high = (form.format(end) for end in value.interval)
    estimate = "not known" if math.isnan(value.estimate) else form.format(value.estimate)
    return [name, estimate, f"{low} to {high}"]


@dataclass(frozen=True)
class LabeledOutcomes:
    """Results of a released model, one row for each unit; never released.

    ``covered`` is bool (n, levels), ``sizes`` (n, levels) are set sizes as shares of the largest possible one,
    ``hits`` and ``errors`` (n,) whether the prediction is right or how far it lies off, as a share of the range.
    ``labels`` and ``groups`` are places in the public lists, -1 for a record of no group; ``groups`` may be
    (n, groups_per_record).
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


def outcomes_of_sets(
    sets: Array, predicted: Array, labels: NDArray[np.int64], groups: NDArray[np.int64] | None
) -> LabeledOutcomes:
    """Return the outcomes of bool sets (n, n_classes, levels), by class indices."""
    covered = np.take_along_axis(sets, labels[:, None, None], axis=1)[:, 0]
    sizes = sets.sum(axis=1) / sets.shape[1]
    return LabeledOutcomes(covered, sizes, (predicted != labels).astype(float), labels, groups)


def outcomes_of_intervals(
    intervals: Array, predicted: Array, truth: Array, bounds: Any, groups: NDArray[np.int64] | None
) -> LabeledOutcomes:
    """Return the outcomes of intervals: (n, 2, levels), or with a target axis.

    With several targets, the shape is (n, n_targets, 2, levels). Sizes and errors are shares of the width of the public
    bounds, cut there; of several targets their means. An interval with one end is measured from the other end of the
    bounds.
    """
    limits = np.reshape(bounds, (-1, 2))
    width = limits[:, 1] - limits[:, 0]
    ends = intervals.reshape(len(intervals), len(width), 2, intervals.shape[-1])
    low, high = (np.where(np.isinf(ends[:, :, k]), limits[:, k, None], ends[:, :, k]) for k in (0, 1))
    sizes = np.clip(high - low, 0.0, width[:, None]) / width[:, None]
    errors = np.clip(np.abs(truth - predicted).reshape(len(ends), len(width)), 0.0, width) / width
    # an overflow of the model counts as the worst prediction
    sizes, errors = (np.nan_to_num(found, nan=1.0).mean(axis=1) for found in (sizes, errors))
    covered = metrics.covered(truth, intervals)
    return LabeledOutcomes(covered, sizes, errors, None, groups)


def require_coverage_release(estimator: Any) -> None:
    """Refuse an unfitted estimator, and a promise that is not about coverage."""
    check_is_fitted(estimator)
    if estimator.certificate_.promise is not Promise.COVERAGE:
        raise TypeError(
            "estimator must be a PrivateConformalClassifier or a PrivateConformalRegressor, got "
            f"{type(estimator).__name__}, whose promise is about another loss"
        )


def separate_release(estimator: Any) -> Any:
    """Return a copy of a release whose own code gets copies of the records.

    This concerns a model that is the caller's own. A release without a promise about coverage is refused.
    """
    require_coverage_release(estimator)
    separate = copy.copy(estimator)
    separate.model_ = model_for_records(estimator.model_)
    return separate


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
    predicted, sets = estimator.predict_answers(X)
    n = len(sets)
    places = None if groups is None else groups.places(X, n)
    if classes is not None:
        names = tuple(classes.tolist())
        labels = label_index(validate_labels(y, n), names)
        outcomes = outcomes_of_sets(sets, label_index(np.asarray(predicted), names), labels, places)
    else:
        truth = validate_targets(y, n, estimator._task().n_targets)
        outcomes = outcomes_of_intervals(sets, predicted, truth, estimator.y_bounds_, places)
    if persons is None:
        return outcomes
    kept, _ = keep_rows(persons, n_rows=n, rows_per_person=1, random_state=random_state)
    return outcomes.take(kept)


def sensitive_sums(n_levels: int, n_classes: int, groups_per_record: int) -> int:
    """Return how many counts one record changes, each by one."""
    return 1 + 2 * n_levels + bool(n_classes) + groups_per_record


class OutcomeCounts(NamedTuple):
    """Numbers of records with and without each outcome, before and after noise.

    The shape is (n_outcomes, 2). A record is in one cell of each pair, so a pair costs what one count costs, and its
    sum is a noisy size. The outcomes of ``totals`` are the misses of each level, the size of each set and the error,
    rounded to 0 or 1. Those of ``classes`` and ``groups`` are the misses at the first level within each part.
    """

    totals: NDArray[np.float64]
    classes: NDArray[np.float64]
    groups: NDArray[np.float64]

    @classmethod
    def of(
        cls, outcomes: LabeledOutcomes, n_classes: int, n_groups: int, drawn: NDArray[np.float64]
    ) -> "OutcomeCounts":
        """Count outcomes; round shares to 0 or 1 at random with the same mean.

        ``drawn`` are secret uniform numbers, (n, n_levels + 1).
        """
        rounded = drawn < np.column_stack([outcomes.sizes, outcomes.errors])
        happened = np.column_stack([~outcomes.covered, rounded]).sum(axis=0)
        return cls(
            np.column_stack([happened, len(outcomes) - happened]).astype(float),
            _misses_by_part(outcomes.labels, ~outcomes.covered[:, 0], n_classes),
            _misses_by_part(outcomes.groups, ~outcomes.covered[:, 0], n_groups),
        )

    def with_noise(self, noise: LatticeNoise, source: IntegerSource) -> "OutcomeCounts":
        """Return the counts with a draw of the noise on each."""

        def add(values: NDArray[np.float64]) -> NDArray[np.float64]:
            drawn = np.array(noise.sample(values.size, source), dtype=float).reshape(values.shape)
            return values + drawn / noise.scale

        return OutcomeCounts(*map(add, self))

    def evaluation(
        self,
        noise: LatticeNoise,
        *,
        targets: tuple[float, ...],
        classes: Sequence[Any] | None,
        group_values: Sequence[Any],
        limit: float,
        confidence: float,
        ledger: Ledger,
        delta: float,
        public_size: tuple[int, float] | None = None,
    ) -> PrivateEvaluation:
        """Return the private evaluation from these noisy counts.

        ``targets``, ``classes``, ``group_values`` and the largest set size ``limit`` are public. So is
        ``public_size``, a number of records of which each was evaluated with the same known probability.
        """
        levels, error = len(targets), 1 - confidence

        def rate(
            pair: NDArray[np.float64], others: NDArray[np.float64], error: float = 1 - confidence
        ) -> PrivateEstimate:
            """The rate of a pair's first outcome, where all ``others`` count the same records."""
            size, reach = _noisy_size(others, noise, _SIZE_TAIL * error)
            share = float(np.clip(pair[0] / size, 0.0, 1.0)) if size > 0 else float("nan")
            if public_size is not None and others is self.totals:
                n, chance = public_size
                share = float(np.clip(pair[0] / (n * chance), 0.0, 1.0)) if n > 0 else float("nan")
                return PrivateEstimate(share, rate_interval(pair[0], (n, n), noise, error / 2, chance))
            sizes = max(0, math.ceil(size - reach)), max(0, math.floor(size + reach))
            return PrivateEstimate(share, rate_interval(pair[0], sizes, noise, (1 - _SIZE_TAIL) * error / 2))

        def share_of(pair: NDArray[np.float64]) -> PrivateEstimate:
            """Return the share of a class among the missed and the covered records."""
            missed, kept = (rate(np.array([count]), self.totals, error / 2) for count in pair)
            low, high = (sum(ends) for ends in zip(missed.interval, kept.interval, strict=True))
            return PrivateEstimate(missed.estimate + kept.estimate, (low, min(1.0, high)))

        def parts(names: Sequence[Any], pairs: NDArray[np.float64]) -> Mapping[Hashable, PrivateEstimate]:
            return {name: rate(pair, pair[None]).complement() for name, pair in zip(names, pairs, strict=True)}

        rates = [rate(pair, self.totals) for pair in self.totals[levels:]]
        size, reach = _noisy_size(self.totals, noise, error)
        return PrivateEvaluation(
            coverages=tuple(rate(pair, self.totals).complement() for pair in self.totals[:levels]),
            set_sizes=tuple(value.scaled(limit) for value in rates[:levels]),
            accuracy=None if classes is None else rates[-1].complement(),
            mean_absolute_error=rates[-1].scaled(limit) if classes is None else None,
            by_class=parts(classes or (), self.classes),
            by_group=parts(group_values, self.groups),
            class_shares={name: share_of(pair) for name, pair in zip(classes or (), self.classes, strict=True)},
            n_records=PrivateEstimate(size, (max(0.0, size - reach), size + reach)),
            targets=targets,
            confidence=confidence,
            ledger=ledger,
            delta=delta,
        )


def _noisy_size(pairs: NDArray[np.float64], noise: LatticeNoise, probability: float) -> tuple[float, float]:
    """Return the mean sum of noisy pairs, and its reach of this failure probability."""
    return float(pairs.sum() / len(pairs)), size_reach(noise, probability, pairs.size) / len(pairs)


def _misses_by_part(places: NDArray[np.int64] | None, missed: NDArray[np.bool_], n_parts: int) -> NDArray[np.float64]:
    """The missed and the covered records of each part, (n_parts, 2)."""
    if places is None or not n_parts:
        return np.zeros((0, 2))
    each = places if places.ndim == 2 else places[:, None]  # a record may be in several groups
    inside, miss = each >= 0, np.broadcast_to(missed[:, None], each.shape)
    records = np.bincount(each[inside], minlength=n_parts)
    misses = np.bincount(each[inside], weights=miss[inside], minlength=n_parts)
    return np.column_stack([misses, records - misses])


@dataclass(frozen=True)
class CountOutcomes:
    """Count the outcomes of the records of a block, one record of each person.

    ``thresholds`` is (n_groups, n_levels). ``by_label``: the groups are the classes, each with its own threshold.
    ``places`` are those of the persons; the numbers of ``draws`` at them round the shares. ``by_ratio``: the records
    that a likelihood ratio rejected are in no group and are not counted (Result K).
    """

    task: Prediction
    model: Model
    thresholds: NDArray[np.float64]
    n_groups: int
    by_label: bool
    draws: PlacedDraws
    places: Places
    by_ratio: bool = False

    def __call__(self, block: Block) -> tuple[NDArray[np.float64], ...]:
        """Return the counts of one block."""
        drawn = self._draw_dither(block)
        if self.by_ratio and block.groups is not None:
            kept = np.flatnonzero(has_group(block.groups))
            block, drawn = block.take_rows(kept, None), drawn[kept]
        # a custom model gets all rows at once, as in prediction
        own, model = not self.model.is_row_wise, model_for_records(self.model)
        n_classes, n_groups = len(self.task.classes or ()), 0 if self.by_label else self.n_groups
        counts = [OutcomeCounts(*(np.zeros((n, 2)) for n in (2 * self.thresholds.shape[1] + 1, n_classes, n_groups)))]
        with suppress_float_warnings():
            for part, rows in block.parts(max(1, len(block)) if own else None):
                groups = None if block.groups is None else block.groups[part]
                outcomes = self._outcomes(model, rows, block.targets[part], groups)
                counts.append(OutcomeCounts.of(outcomes, n_classes, n_groups, drawn[part]))
        return added(counts)

    def _draw_dither(self, block: Block) -> NDArray[np.float64]:
        """Return the uniform numbers that round the shares of each record."""
        each = self.thresholds.shape[1] + 1
        places = np.asarray(self.places.persons[block.id], dtype=np.int64)
        return self.draws.uniform((each * places[:, None] + np.arange(each)).ravel()).reshape(-1, each)

    def _outcomes(self, model: Model, rows: Array, targets: Array, groups: Array | None) -> LabeledOutcomes:
        thresholds = self._row_thresholds(groups)
        if isinstance(self.task, Classification):
            probabilities = np.asarray(model.predict_proba(rows))
            scores = score_labels(self.task.score, probabilities)[:, :, None]
            if not self.by_label and thresholds.ndim == 2:
                thresholds = thresholds[:, None, :]
            return outcomes_of_sets(scores <= thresholds, probabilities.argmax(axis=1), targets, groups)
        assert isinstance(self.task, Regression | JointRegression)
        predictions, intervals = self.task.answers(np.asarray(model.outputs(rows)), thresholds)
        return outcomes_of_intervals(intervals, predictions, targets, self.task.y_bounds, groups)

    def _row_thresholds(self, groups: Array | None) -> NDArray[np.float64]:
        """Thresholds for each row and level or, by label, for each class and level."""
        if self.by_label:
            return self.thresholds
        if groups is None:
            return np.asarray(self.thresholds[0])
        return largest_thresholds(groups, self.thresholds)
