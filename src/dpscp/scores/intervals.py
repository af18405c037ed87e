"""Scores of real targets as values: what the model must give, the score of a target, the interval of a threshold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice
from dpscp._base.object_state import copy_if_possible, refuse_memory
from dpscp.data.validation import check_row_by_row, suppress_float_warnings
from dpscp.scores.functions import absolute_residual, cqr, normalized_residual
from dpscp.scores.sets import normalized_interval, quantile_interval, residual_interval

Floats = NDArray[Any]
# A predicted scale below this share of the target's range counts as this share: a public floor keeps scores bounded.
_SMALLEST_SCALE = 0.01


@dataclass(frozen=True)
class Pair:
    """What a model says about each row, within the public range: lower and upper quantile, equal for one output."""

    lower: Floats
    upper: Floats
    y_bounds: tuple[float, float]

    @classmethod
    def of(cls, outputs: Floats, y_bounds: tuple[float, float]) -> "Pair":
        """From a model's one or two outputs; an output that is not a number becomes the middle of the range."""
        low, high = y_bounds
        inside = np.array(outputs, dtype=np.float64)
        np.clip(inside, low, high, out=inside)
        if np.isnan(inside).any():  # the model overflowed: the middle of the range is as good a guess as any
            inside[np.isnan(inside)] = (low + high) / 2
        if inside.shape[1] == 1:
            return cls(inside[:, 0], inside[:, 0], y_bounds)
        return cls(inside.min(axis=1), inside.max(axis=1), y_bounds)

    @property
    def centre(self) -> Floats:
        """The prediction."""
        return self.lower if self.lower is self.upper else (self.lower + self.upper) / 2

    @property
    def scale(self) -> Floats:
        """Half the width of the pair, not below a public floor."""
        low, high = self.y_bounds
        return np.asarray(np.maximum((self.upper - self.lower) / 2, _SMALLEST_SCALE * (high - low)))


@runtime_checkable
class IntervalScore(Protocol):
    """How badly a target fits what the model says, and the interval of all targets that fit.

    A record's score must depend on that record alone. ``natural``: the Lipschitz constant that a training mechanism
    states is about this score (the absolute residual).
    """

    @property
    def natural(self) -> bool:
        """Whether this is the score that stability bounds speak of."""

    @property
    def outputs(self) -> int:
        """What the model must give: 1, a forecast, or 2, a pair of quantiles."""

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        """The public range of the score; a larger one counts as the end of it."""

    def of_targets(self, targets: Floats, pair: Pair) -> Floats:
        """The score of each target, (n,)."""

    def interval(self, pair: Pair, thresholds: Floats) -> Floats:
        """The targets whose score is at most the threshold, (n, 2, n_levels).

        ``thresholds`` is (n_levels,), or (n, n_levels) where rows have thresholds of their own.
        """


@dataclass(frozen=True)
class _Absolute:
    """|y - prediction|."""

    natural: bool = True
    outputs: int = 1

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        return 0.0, y_bounds[1] - y_bounds[0]

    def of_targets(self, targets: Floats, pair: Pair) -> Floats:
        return absolute_residual(targets, pair.centre)

    def interval(self, pair: Pair, thresholds: Floats) -> Floats:
        return residual_interval(pair.centre, thresholds)


@dataclass(frozen=True)
class _Normalized:
    """|y - centre| / half-width of the pair."""

    natural: bool = False
    outputs: int = 2

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:  # noqa: ARG002
        return 0.0, 1 / _SMALLEST_SCALE

    def of_targets(self, targets: Floats, pair: Pair) -> Floats:
        return normalized_residual(targets, pair.centre, pair.scale)

    def interval(self, pair: Pair, thresholds: Floats) -> Floats:
        return normalized_interval(pair.centre, pair.scale, thresholds)


@dataclass(frozen=True)
class _Cqr:
    """Distance outside the pair, negative inside."""

    natural: bool = False
    outputs: int = 2

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        return y_bounds[0] - y_bounds[1], y_bounds[1] - y_bounds[0]

    def of_targets(self, targets: Floats, pair: Pair) -> Floats:
        return cqr(targets, pair.lower, pair.upper)

    def interval(self, pair: Pair, thresholds: Floats) -> Floats:
        return quantile_interval(pair.lower, pair.upper, thresholds)


@dataclass(frozen=True)
class OwnIntervalScore:
    """A score of the caller, asked again about parts of the rows: each score must come from its record alone."""

    score: IntervalScore

    @property
    def natural(self) -> bool:
        return self.score.natural

    @property
    def outputs(self) -> int:
        return self.score.outputs

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        return self.score.range(y_bounds)

    def of_targets(self, targets: Floats, pair: Pair) -> Floats:
        """The caller's score of each target; infinite where there is no number."""
        table = np.column_stack([targets, pair.lower, pair.upper])

        def scores(part: Floats, n: int) -> Floats:
            own = np.asarray(
                copy_if_possible(self.score).of_targets(part[:, 0], Pair(part[:, 1], part[:, 2], pair.y_bounds)), float
            )
            if own.shape != (n,):
                raise ValueError("conformity_score must return one score for every record, a real number")
            return np.where(np.isnan(own), np.inf, own)

        with suppress_float_warnings():
            found = scores(table, len(table))
            check_row_by_row("conformity_score", scores, table, found, thorough=True)
        return found

    def check_on_synthetic_rows(self, y_bounds: tuple[float, float]) -> None:
        """Refuse a score whose interval does not hold what it accepts, on made-up targets: no record is used."""
        low, high = y_bounds
        ends = np.linspace(low, high, 7)
        lower, upper = (a.ravel() for a in np.meshgrid(ends[:4], ends[3:]))
        if self.outputs == 1:
            upper = lower
        pair = Pair(np.repeat(lower, 7), np.repeat(upper, 7), y_bounds)
        targets = np.tile(ends, len(lower))
        with refuse_memory("conformity_score", self.score):
            scores = self.of_targets(targets, pair)
        inside = np.asarray(self.score.interval(pair, scores[:, None]), float)
        if inside.shape != (len(targets), 2, 1):
            raise ValueError("conformity_score.interval must return the ends of an interval, (n, 2, n_levels)")
        slack = 1e-6 * (high - low)
        if np.any((targets < inside[:, 0, 0] - slack) | (targets > inside[:, 1, 0] + slack)):
            raise ValueError("conformity_score.interval must hold every target whose score is at most the threshold")

    def interval(self, pair: Pair, thresholds: Floats) -> Floats:
        score: IntervalScore = copy_if_possible(self.score)
        return score.interval(pair, thresholds)


INTERVAL_SCORES: Mapping[str, IntervalScore] = {
    "absolute": _Absolute(),
    "normalized": _Normalized(),
    "cqr": _Cqr(),
}


def interval_score(given: str | IntervalScore) -> IntervalScore:
    """The score that a caller named, or the caller's own behind its checks."""
    if isinstance(given, IntervalScore):
        return OwnIntervalScore(given)
    return INTERVAL_SCORES[check_choice("conformity_score", given, INTERVAL_SCORES)]


def score_name(score: IntervalScore) -> str | None:
    """The name of one of the library's scores; None for a score of the caller's own."""
    return next((name for name, known in INTERVAL_SCORES.items() if known == score), None)
