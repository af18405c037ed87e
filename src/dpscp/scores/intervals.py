"""Scores of real targets, and the interval that belongs to a threshold.

A score says how badly a target fits what the model predicts for x.

``INTERVAL_SCORES`` has the scores by the names that an estimator takes. To add one, write its class and add a line to
that table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.callers import ROUNDING, call_on_rows
from dpscp._base.checks import check_choice
from dpscp.data.validation import suppress_float_warnings
from dpscp.scores.labels import score_name
from dpscp.scores.sets import normalized_interval, quantile_interval

# The smallest predicted scale, as a share of the target's range. This public floor keeps scores bounded.
SMALLEST_SCALE = 0.01


def absolute_residual(y: ArrayLike, prediction: ArrayLike) -> NDArray[Any]:
    """Compute |y - prediction|; the set is ``sets.residual_interval``.

    Parameters
    ----------
    y, prediction : arrays of shape (n,)

    Returns
    -------
    array of shape (n,)
    """
    return np.asarray(np.abs(np.asarray(y, float) - np.asarray(prediction, float)))


def normalized_residual(y: ArrayLike, prediction: ArrayLike, scale: ArrayLike) -> NDArray[Any]:
    """Compute |y - prediction| / scale; the set is ``sets.normalized_interval``.

    Parameters
    ----------
    y, prediction : arrays of shape (n,)
    scale : array of shape (n,)
        Positive numbers from the model.

    Returns
    -------
    array of shape (n,)
    """
    scale = np.asarray(scale, float)
    if np.any(~(scale > 0)):
        raise ValueError("scale must be positive in every row; bound it from below by a public constant")
    return np.asarray(absolute_residual(y, prediction) / scale)


def cqr(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> NDArray[Any]:
    """Compute max(lower - y, y - upper); the set is ``sets.quantile_interval``.

    This is the distance of y from a pair of predicted quantiles, negative inside.

    Parameters
    ----------
    y, lower, upper : arrays of shape (n,)

    Returns
    -------
    array of shape (n,)
    """
    y = np.asarray(y, float)
    return np.asarray(np.maximum(np.asarray(lower, float) - y, y - np.asarray(upper, float)))


@dataclass(frozen=True)
class Pair:
    """Hold the predicted quantiles of each row, clipped to the public range.

    Attributes
    ----------
    lower, upper : arrays of shape (n,)
        The same array where the model has one output.
    y_bounds : (low, high)
        The public range of the target.
    """

    lower: NDArray[Any]
    upper: NDArray[Any]
    y_bounds: tuple[float, float]

    @classmethod
    def of(cls, outputs: NDArray[Any], y_bounds: tuple[float, float]) -> "Pair":
        """Make the pair from a model's outputs of shape (n, 1) or (n, 2).

        Outputs are clipped to the range. NaN becomes the middle of the range.
        """
        low, high = y_bounds
        inside = np.array(outputs, dtype=np.float64)
        np.clip(inside, low, high, out=inside)
        if np.isnan(inside).any():  # the model overflowed
            inside[np.isnan(inside)] = (low + high) / 2
        if inside.shape[1] == 1:
            only = inside[:, 0]  # one object, which `center` returns as it is
            return cls(only, only, y_bounds)
        return cls(inside.min(axis=1), inside.max(axis=1), y_bounds)

    @property
    def center(self) -> NDArray[Any]:
        """The prediction: the middle of the pair, (n,)."""
        return self.lower if self.lower is self.upper else (self.lower + self.upper) / 2

    @property
    def scale(self) -> NDArray[Any]:
        """Half the width of the pair, at least 1 % of the public range, (n,)."""
        low, high = self.y_bounds
        return np.asarray(np.maximum((self.upper - self.lower) / 2, SMALLEST_SCALE * (high - low)))


@runtime_checkable
class IntervalScore(Protocol):
    """Interface of a score of real targets.

    A record's score must depend on that record and on the model only.
    """

    @property
    def natural(self) -> bool:
        """Whether stability bounds apply: the score is the absolute residual."""

    @property
    def outputs(self) -> int:
        """The outputs that the model must have: 1 (a prediction) or 2 (two quantiles)."""

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        """Return the public range of the score; larger scores are clipped to its end."""

    def of_targets(self, targets: NDArray[Any], pair: Pair) -> NDArray[Any]:
        """Compute the score of each target, (n,)."""

    def interval(self, pair: Pair, thresholds: NDArray[Any]) -> NDArray[Any]:
        """Return the targets whose score is at most the threshold, (n, 2, n_levels).

        ``thresholds`` has shape (n_levels,), or (n, n_levels) where each row has its own.
        """


@dataclass(frozen=True)
class _Normalized:
    """Score by |y - center| / half-width of the pair."""

    natural: bool = False
    outputs: int = 2

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:  # noqa: ARG002
        return 0.0, 1 / SMALLEST_SCALE

    def of_targets(self, targets: NDArray[Any], pair: Pair) -> NDArray[Any]:
        return normalized_residual(targets, pair.center, pair.scale)

    def interval(self, pair: Pair, thresholds: NDArray[Any]) -> NDArray[Any]:
        return normalized_interval(pair.center, pair.scale, thresholds)


@dataclass(frozen=True)
class _Distance:
    """Score by the distance beyond the ends of the pair, negative inside.

    For a model with one output this is the absolute residual.

    Attributes
    ----------
    outputs : int
        1 for the prediction, 2 for a pair of quantiles.
    side : str
        "both", or "upper" or "lower": the one end that the interval has. It has no limit on the other side.
    """

    outputs: int
    side: str = "both"

    @property
    def natural(self) -> bool:
        """A prediction moves this score as it moves the absolute residual."""
        return self.outputs == 1

    def range(self, y_bounds: tuple[float, float]) -> tuple[float, float]:
        """Return the public range of the score."""
        width = y_bounds[1] - y_bounds[0]
        return (0.0 if (self.outputs, self.side) == (1, "both") else -width), width

    def of_targets(self, targets: NDArray[Any], pair: Pair) -> NDArray[Any]:
        """Compute the distance of each target beyond the ends."""
        if self.side == "both":
            return cqr(targets, pair.lower, pair.upper)
        return np.asarray(targets - pair.upper if self.side == "upper" else pair.lower - targets)

    def interval(self, pair: Pair, thresholds: NDArray[Any]) -> NDArray[Any]:
        """Return the targets whose score is at most the threshold."""
        ends = quantile_interval(pair.lower, pair.upper, thresholds)
        if self.side == "upper":
            ends[:, 0] = -np.inf
        elif self.side == "lower":
            ends[:, 1] = np.inf
        return ends


SIDES = ("both", "upper", "lower")
ONE_SIDED_SCORES: Mapping[str, IntervalScore] = {
    f"{name}_{side}": _Distance(outputs, side) for name, outputs in (("absolute", 1), ("cqr", 2)) for side in SIDES[1:]
}
INTERVAL_SCORES: Mapping[str, IntervalScore] = {
    "absolute": _Distance(1),
    "normalized": _Normalized(),
    "cqr": _Distance(2),
    **ONE_SIDED_SCORES,
}


def sided_score(score: str | IntervalScore, side: str) -> str | IntervalScore:
    """Return the score for one side of the interval, or for both.

    Parameters
    ----------
    score : str or IntervalScore
    side : str
        "both", "upper" or "lower".

    Returns
    -------
    str or IntervalScore
    """
    if check_choice("side", side, SIDES) == "both" or (isinstance(score, str) and score.endswith(f"_{side}")):
        return score
    if isinstance(score, str) and f"{score}_{side}" in INTERVAL_SCORES:
        return f"{score}_{side}"
    shown = repr(score) if isinstance(score, str) else "your own score"
    raise ValueError(
        f"side={side!r} needs conformity_score='absolute', 'cqr' or 'auto', got {shown}; change one of the two"
    )


def interval_score(score: str | IntervalScore) -> IntervalScore:
    """Return the named score, or the caller's own.

    Parameters
    ----------
    score : str or IntervalScore

    Returns
    -------
    IntervalScore
    """
    if isinstance(score, IntervalScore):
        return score
    return INTERVAL_SCORES[check_choice("conformity_score", score, INTERVAL_SCORES)]


def score_targets(score: IntervalScore, targets: NDArray[Any], pair: Pair) -> NDArray[Any]:
    """Compute the score of each target, (n,); NaN becomes infinity."""
    of_targets = score.of_targets
    if score_name(score, INTERVAL_SCORES) is not None:
        return of_targets(targets, pair)
    return call_on_rows(
        "conformity_score",
        lambda targets, lower, upper: of_targets(targets, Pair(lower, upper, pair.y_bounds)),
        (targets, pair.lower, pair.upper),
        len(targets),
        read=_read_scores,
        empty=np.empty(0),
        tolerance=ROUNDING,
    )


def score_intervals(score: IntervalScore, pair: Pair, thresholds: NDArray[Any]) -> NDArray[Any]:
    """Return the targets whose score is at most the threshold, (n, 2, n_levels)."""
    interval = score.interval
    if score_name(score, INTERVAL_SCORES) is not None:
        return interval(pair, thresholds)
    n, levels = len(pair.lower), thresholds.shape[-1]

    def read(found: Any, size: int) -> NDArray[Any]:
        ends = np.asarray(found, dtype=np.float64)
        if ends.shape != (size, 2, levels):
            raise ValueError("conformity_score.interval must return interval ends of shape (n, 2, n_levels)")
        return ends

    return call_on_rows(
        "conformity_score",
        lambda lower, upper, limits: interval(Pair(lower, upper, pair.y_bounds), limits),
        (pair.lower, pair.upper, np.broadcast_to(thresholds, (n, levels))),
        n,
        read=read,
        empty=np.empty((0, 2, levels)),
        tolerance=ROUNDING,
    )


def check_interval_score(score: IntervalScore, y_bounds: tuple[float, float]) -> None:
    """Reject a custom score whose intervals miss targets that it accepts.

    It is tried on synthetic targets. The scores of this package are tested elsewhere.
    """
    if score_name(score, INTERVAL_SCORES) is not None:
        return
    low, high = y_bounds
    ends = np.linspace(low, high, 7)
    lower, upper = (a.ravel() for a in np.meshgrid(ends[:4], ends[3:]))
    if score.outputs == 1:
        upper = lower
    pair = Pair(np.repeat(lower, 7), np.repeat(upper, 7), y_bounds)
    targets = np.tile(ends, len(lower))
    with suppress_float_warnings():  # an error of the caller's is shown here, on synthetic targets
        _read_scores(score.of_targets(targets.copy(), pair), len(targets))
    inside = score_intervals(score, pair, score_targets(score, targets, pair)[:, None])
    slack = 1e-6 * (high - low)
    if np.any((targets < inside[:, 0, 0] - slack) | (targets > inside[:, 1, 0] + slack)):
        raise ValueError("conformity_score.interval must contain every target whose score is at most the threshold")


def _read_scores(found: Any, size: int) -> NDArray[np.float64]:
    """Return one score for each record, with infinity in place of NaN."""
    scores = np.asarray(found, dtype=np.float64)
    if scores.shape != (size,):
        raise ValueError("conformity_score must return one real number for each record")
    return np.where(np.isnan(scores), np.inf, scores)
