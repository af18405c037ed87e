"""Evaluate a released model privately on new labeled records.

Every number is a ratio of two noisy counts, and its interval accounts for the noise.

Theory: section 13
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_probability
from dpscp._base.format import format_epsilon, html_paragraph, html_table, text_table
from dpscp.deployment.labeled import LabeledOutcomes, evaluated_unit, labeled_outcomes, size_limit
from dpscp.deployment.noisy_rates import rate_interval, size_reach
from dpscp.privacy import IntegerSource, LatticeNoise, Ledger, secure_generator, shared_lattice_noise
from dpscp.privacy.random_streams import child_seeds, seed_of
from dpscp.privacy.store import BudgetStore

STAGE = "evaluation"


@dataclass(frozen=True)
class PrivateEstimate:
    """Hold a private estimate and a confidence interval of the true mean.

    ``estimate`` is NaN where the noisy number of records is not positive.
    """

    estimate: float
    interval: tuple[float, float]

    def scaled(self, factor: float) -> "PrivateEstimate":
        """Return the estimate multiplied by a factor."""
        low, high = self.interval
        return PrivateEstimate(factor * self.estimate, (factor * low, factor * high))

    def complement(self) -> "PrivateEstimate":
        """Return the estimate of one minus this rate."""
        low, high = self.interval
        return PrivateEstimate(1 - self.estimate, (1 - high, 1 - low))


@dataclass(frozen=True)
class PrivateEvaluation:
    """Hold the private results of a release on labeled records.

    Attributes
    ----------
    coverages, set_sizes : one ``PrivateEstimate`` for each level; ``coverage`` and ``set_size`` are the first ones.
        The size of a set is its number of labels, or the width of the interval, cut at the width of the target's range.
    accuracy : share of right predictions; None for a regressor.
    mean_absolute_error : mean distance to the prediction, cut at the width of the target's range; None for a
        classifier.
    by_class, by_group : coverage at the first level of each public class and group.
    n_records : noisy number of records, or of persons, with its interval.
    confidence : probability, over records and noise, with which each single interval contains its number.
    ledger : privacy cost to the evaluated records; it does not include the training records.
    """

    coverages: tuple[PrivateEstimate, ...]
    set_sizes: tuple[PrivateEstimate, ...]
    accuracy: PrivateEstimate | None
    mean_absolute_error: PrivateEstimate | None
    by_class: Mapping[Hashable, PrivateEstimate]
    by_group: Mapping[Hashable, PrivateEstimate]
    n_records: PrivateEstimate
    targets: tuple[float, ...]
    confidence: float
    ledger: Ledger
    delta: float = field(repr=False)

    @property
    def coverage(self) -> PrivateEstimate:
        """Coverage at the first level."""
        return self.coverages[0]

    @property
    def set_size(self) -> PrivateEstimate:
        """Mean set size at the first level."""
        return self.set_sizes[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the released numbers as JSON values."""

        def plain(value: PrivateEstimate) -> dict[str, Any]:
            return {"estimate": value.estimate, "interval": list(value.interval)}

        named = {"accuracy": self.accuracy, "mean_absolute_error": self.mean_absolute_error}
        return {
            "confidence": self.confidence,
            "targets": list(self.targets),
            "coverage": [plain(value) for value in self.coverages],
            "set_size": [plain(value) for value in self.set_sizes],
            **{name: plain(value) for name, value in named.items() if value is not None},
            "by_class": {str(name): plain(value) for name, value in self.by_class.items()},
            "by_group": {str(name): plain(value) for name, value in self.by_group.items()},
            "n_records": plain(self.n_records),
            "ledger": self.ledger.to_dict(),
        }

    def _rows(self) -> list[list[str]]:
        rows = []
        for target, coverage, size in zip(self.targets, self.coverages, self.set_sizes, strict=True):
            rows.append(_row(f"coverage (target {target:.1%})", coverage, "{:.1%}"))
            rows.append(_row("mean set size", size, "{:.3g}"))
        if self.accuracy is not None:
            rows.append(_row("accuracy", self.accuracy, "{:.1%}"))
        if self.mean_absolute_error is not None:
            rows.append(_row("mean absolute error", self.mean_absolute_error, "{:.3g}"))
        parts = [("class", self.by_class), ("group", self.by_group)]
        rows += [
            _row(f"coverage, {kind} {name}", value, "{:.1%}") for kind, named in parts for name, value in named.items()
        ]
        return rows

    def _titles(self) -> list[str]:
        return ["measure", "estimate", f"{self.confidence:.0%} interval"]

    def _note(self) -> str:
        spent = format_epsilon(self.ledger.epsilon(self.delta))
        private = "" if self.ledger.is_private else " NOT private: the noise came from a seed."
        return f"Private evaluation: epsilon {spent} at delta {self.delta:g} for the evaluated records.{private}"

    def __str__(self) -> str:
        return "\n".join([*text_table(self._titles(), self._rows()), self._note()])

    def _repr_html_(self) -> str:
        return html_table(self._titles(), self._rows()) + html_paragraph(self._note())


def _row(name: str, value: PrivateEstimate, form: str) -> list[str]:
    low, high = (form.format(end) for end in value.interval)
    return [name, form.format(value.estimate), f"{low} to {high}"]


def evaluate(  # noqa: PLR0913 (public: one argument a choice)
    estimator: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float,
    delta: float,
    persons: Any = None,
    groups: Callable[[Any], Any] | None = None,
    group_values: Sequence[Any] | None = None,
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
    groups : function of X that returns one of ``group_values`` for each row, from that row alone. None: the groups of
        the fit, if it has any.
    group_values : public list of groups.
    confidence : probability with which each interval contains its number.
    budget : budget store of the evaluated records; the cost is reserved before a record is counted.
    random_state : None for system entropy; an integer makes the run repeatable and NOT private.

    Returns
    -------
    PrivateEvaluation

    Privacy: (epsilon, delta) for adding or removing one evaluated record (with ``persons``, one person). Released are
    noisy sums of sensitivity 1: the number of records; for each level the covered records and the set sizes; the right
    predictions or errors; for each class, and for each group, the records and the covered ones. A record counts in one
    class and in one group, so each of these two costs two sums, however many classes there are. Sizes and errors are
    shares of a public limit and rounded to 0 or 1 at random, which preserves their mean.

    Assumes: the records are independent draws from the population of interest.

    Theory: section 13
    """
    confidence = check_probability("confidence", confidence)
    seed = seed_of(random_state)
    row_seed, dither_seed, noise_seed = child_seeds(seed, 3)
    if budget is not None:
        budget.require_spendable(seeded=seed is not None)
    groups, values = _declared_groups(estimator, groups, group_values)
    outcomes = labeled_outcomes(
        estimator, X, y, persons=persons, groups=groups, group_values=values, random_state=row_seed
    )
    counts = _Counts.of(outcomes, getattr(estimator, "classes_", ()), values or (), dither_seed)
    (noise,) = shared_lattice_noise(epsilon, delta, counts.sensitive_sums, (1.0,))
    ledger = Ledger(seeded=seed is not None).add(
        STAGE,
        noise.event(counts.sensitive_sums),
        "noisy counts of covered records, sizes and errors",
        unit=evaluated_unit(persons),
    )
    reservation = None if budget is None else budget.reserve(ledger, note="evaluate")
    noisy = counts.with_noise(noise, IntegerSource(noise_seed))
    if reservation is not None:
        reservation.commit(ledger)
    return _evaluation(estimator, noisy, noise, values or (), confidence=confidence, ledger=ledger, delta=delta)


def _declared_groups(
    estimator: Any, groups: Callable[[Any], Any] | None, group_values: Sequence[Any] | None
) -> tuple[Callable[[Any], Any] | None, tuple[Any, ...] | None]:
    """Return the function and the public list of groups: the caller's, or those of the fit."""
    if groups is None:
        own = estimator.groups if callable(getattr(estimator, "groups", None)) else None
        return own, tuple(estimator.group_values_) if own is not None else None
    if not callable(groups):
        raise TypeError(f"groups must be a function of X, got {type(groups).__name__}")
    if group_values is None:
        raise ValueError("groups needs group_values, the public list of groups; it is never taken from the records")
    return groups, tuple(group_values)


@dataclass(frozen=True)
class _Counts:
    """Hold sums over the records, before or after noise.

    ``classes`` and ``groups`` are (n_parts, 2): the records and the covered records of each part.
    """

    size: float
    sums: NDArray[np.float64]
    classes: NDArray[np.float64]
    groups: NDArray[np.float64]

    @classmethod
    def of(
        cls, outcomes: LabeledOutcomes, classes: Sequence[Any], groups: Sequence[Any], seed: int | None
    ) -> "_Counts":
        generator = secure_generator(seed)
        shares = np.column_stack([outcomes.sizes, outcomes.errors])
        rounded = generator.random(shares.shape) < shares
        first = outcomes.covered[:, 0]
        return cls(
            float(len(outcomes)),
            np.concatenate([outcomes.covered.sum(axis=0), rounded.sum(axis=0)]).astype(float),
            _sums_by_part(outcomes.labels, first, len(classes)),
            _sums_by_part(outcomes.groups, first, len(groups)),
        )

    @property
    def sensitive_sums(self) -> int:
        """Number of sums that one record may change, each by at most one."""
        return 1 + len(self.sums) + 2 * bool(self.classes.size) + 2 * bool(self.groups.size)

    def with_noise(self, noise: LatticeNoise, source: IntegerSource) -> "_Counts":
        def add(values: NDArray[np.float64]) -> NDArray[np.float64]:
            drawn = np.array(noise.sample(values.size, source), dtype=float).reshape(values.shape)
            return values + drawn / noise.scale

        return _Counts(float(add(np.array([self.size]))[0]), add(self.sums), add(self.classes), add(self.groups))


def _sums_by_part(places: NDArray[np.int64] | None, covered: NDArray[np.bool_], n_parts: int) -> NDArray[np.float64]:
    """Count the records and the covered records of each part, (n_parts, 2)."""
    if places is None or not n_parts:
        return np.zeros((0, 2))
    inside = places >= 0
    records = np.bincount(places[inside], minlength=n_parts)
    hits = np.bincount(places[inside], weights=covered[inside], minlength=n_parts)
    return np.column_stack([records, hits])


def _estimate(count: float, size: float, *, noise: LatticeNoise, confidence: float) -> PrivateEstimate:
    """Estimate the rate of a noisy count among a noisy number of records."""
    share = float(np.clip(count / size, 0.0, 1.0)) if size > 0 else float("nan")
    return PrivateEstimate(share, rate_interval(count, size, noise, confidence))


def _evaluation(
    estimator: Any,
    noisy: _Counts,
    noise: LatticeNoise,
    group_values: Sequence[Any],
    *,
    confidence: float,
    ledger: Ledger,
    delta: float,
) -> PrivateEvaluation:
    targets = tuple(certificate.target for certificate in estimator.certificates_)
    levels, limit = len(targets), size_limit(estimator)
    rate = partial(_estimate, noise=noise, confidence=confidence)
    rates = [rate(float(count), noisy.size) for count in noisy.sums]
    classes = getattr(estimator, "classes_", None)

    def parts(names: Sequence[Any], sums: NDArray[np.float64]) -> Mapping[Hashable, PrivateEstimate]:
        return MappingProxyType({name: rate(float(hit), float(n)) for name, (n, hit) in zip(names, sums, strict=True)})

    reach = size_reach(noise, 1 - confidence)
    return PrivateEvaluation(
        coverages=tuple(rates[:levels]),
        set_sizes=tuple(value.scaled(limit) for value in rates[levels : 2 * levels]),
        accuracy=rates[-1].complement() if classes is not None else None,
        mean_absolute_error=rates[-1].scaled(limit) if classes is None else None,
        by_class=parts(() if classes is None else classes.tolist(), noisy.classes),
        by_group=parts(group_values, noisy.groups),
        n_records=PrivateEstimate(noisy.size, (max(0.0, noisy.size - reach), noisy.size + reach)),
        targets=targets,
        confidence=confidence,
        ledger=ledger,
        delta=delta,
    )
