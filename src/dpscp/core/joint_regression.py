"""The task of several real targets for each record; the promise is about all of them together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import Assumption
from dpscp._base.checks import check_positive
from dpscp.core.tasks import FOUND_RANGE, Prediction, Regression
from dpscp.scores import IntervalScore
from dpscp.scores.sets import scaled_threshold
from dpscp.training.base import Mechanism, Trained
from dpscp.training.mechanisms.one_vs_rest import SPREAD, OneVsRest, SeveralTargets
from dpscp.training.preprocessing.private_bounds import PrivateBounds


@dataclass(frozen=True)
class JointRegression(Prediction):
    """Several real targets for each record; intervals contain all of them together.

    The score of a record is the largest score of its targets, each divided by the spread of its residuals. So one
    threshold gives intervals that contain all targets at once.

    Attributes
    ----------
    each : tuple of Regression
        The task of each target; they differ in their ranges only.
    spreads : tuple of float
        The divisor of each target's score, on its scale. Training releases them; if empty, it is half the range.

    Theory: Results A, B and E
    """

    each: tuple[Regression, ...]
    spreads: tuple[float, ...] = ()

    name = "regression"
    scaled_bounds = (-1.0, 1.0)  # training sees each target scaled by its range
    natural_score = False
    size_limit = 1.0  # the mean width, as a share of the ranges

    def __post_init__(self) -> None:
        if self.score_name is None:
            raise ValueError("your own conformity_score is for one target only; pass the name of a score")
        object.__setattr__(self, "y_scale", self.each[0].y_scale)

    @property
    def score(self) -> IntervalScore:
        """The score of each target."""
        return self.each[0].score

    @property
    def n_targets(self) -> int:
        """The number of targets."""
        return len(self.each)

    @property
    def score_outputs(self) -> int:
        """The number of outputs that the score of a target reads."""
        return self.each[0].score_outputs

    @property
    def is_one_sided(self) -> bool:
        """Whether intervals have one end."""
        return self.each[0].is_one_sided

    @property
    def y_bounds(self) -> tuple[tuple[float, float], ...]:
        """The public range of each target."""
        return tuple(task.y_bounds for task in self.each)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumptions of coverage for every guarantee."""
        return self.each[0].assumptions

    @property
    def score_facts(self) -> Mapping[str, Any]:
        """The public facts about the score, with the ranges that training found."""
        facts = dict(self.each[0].score_facts)
        found = {FOUND_RANGE: [list(task.found_range or ()) for task in self.each]} if FOUND_RANGE in facts else {}
        return facts | found

    @property
    def _divisors(self) -> tuple[float, ...]:
        if self.score_name == "normalized":  # has no unit
            return (1.0,) * self.n_targets
        ranges = [task.scaled_bounds for task in self.each]
        return self.spreads or tuple((high - low) / 2 for low, high in ranges)

    @property
    def score_range(self) -> tuple[float, float]:
        """The public range of the score."""
        pairs = zip(self.each, self._divisors, strict=True)
        ends = np.array([np.array(task.score_range) / spread for task, spread in pairs])
        return float(ends[:, 0].min()), float(ends[:, 1].max())

    @property
    def fine_near(self) -> float | None:
        """Where the grid of thresholds is finest."""
        return self.each[0].fine_near

    def around(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that trains one model for each target, and finds ranges that are not public."""
        first = self.each[0]
        if not first.private_range:
            return SeveralTargets(OneVsRest(mechanism, self.n_targets), tuple(task.scaled_bounds for task in self.each))
        finds = PrivateBounds(mechanism, target=True, target_scale=first.y_scale)
        return SeveralTargets(OneVsRest(finds, self.n_targets))

    def with_found_range(self, trained: Trained) -> "JointRegression":
        """Return the task with the ranges and the spreads that training found."""
        found = trained.found_privately
        ranges = found.get("y_bounds", ((),) * self.n_targets)
        each = [
            task.with_found_range(replace(trained, found_privately={"y_bounds": ends}))
            for task, ends in zip(self.each, ranges, strict=True)
        ]
        return JointRegression(tuple(each), found.get(SPREAD, ()))

    def to_dict(self) -> dict[str, Any]:
        """Return what a file states of the task, as JSON values."""
        return {"each": [task.to_dict() for task in self.each], "spreads": list(self.spreads)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **given: Any) -> "JointRegression":
        """Return the task that ``to_dict`` wrote; ``ValueError`` for other fields or values."""
        if set(data) != {"each", "spreads"} or not isinstance(data["each"], list) or len(data["each"]) < 2:
            raise ValueError("its task must have the fields each and spreads, of several targets")
        spreads = tuple(check_positive("spreads[i]", spread) for spread in data["spreads"])
        if len(spreads) not in (0, len(data["each"])):
            raise ValueError("its task must have one spread for each target")
        return cls(tuple(Regression.from_dict(task, **given) for task in data["each"]), spreads)

    def training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets on their scale, each clipped to its public range unless training has to find one."""
        return np.column_stack([task.training_targets(y) for task, y in zip(self.each, targets.T, strict=True)])

    def _parts(self, outputs: NDArray[Any]) -> Iterator[tuple[Regression, NDArray[Any], float]]:
        """Yield task, outputs and divisor of each target."""
        self.check_outputs(outputs.shape[1])
        return zip(self.each, np.split(outputs, self.n_targets, axis=1), self._divisors, strict=True)

    def predictions(self, outputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the predicted targets of a model's outputs, in their units, (n, n_targets)."""
        return np.column_stack([task.predictions(own) for task, own, _ in self._parts(outputs)])

    def answers(self, outputs: NDArray[Any], thresholds: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return predictions, and intervals in which all scores are at most the threshold, (n, n_targets, 2, n_levels).

        ``thresholds`` has shape (n_levels,), or (n, n_levels).
        """
        found = [task.answers(own, scaled_threshold(thresholds, spread)) for task, own, spread in self._parts(outputs)]
        predictions, intervals = zip(*found, strict=True)
        return np.column_stack(predictions), np.stack(intervals, axis=1)

    def _own_scores(self, predicted: NDArray[Any], targets: NDArray[Any]) -> NDArray[Any]:
        parts = zip(self._parts(predicted), targets.T, strict=True)
        return np.asarray(np.max([task._own_scores(own, y) / spread for (task, own, spread), y in parts], axis=0))


def read_regression(data: Mapping[str, Any]) -> Regression | JointRegression:
    """Return the task of one or several targets that ``to_dict`` wrote."""
    return JointRegression.from_dict(data) if isinstance(data, dict) and "each" in data else Regression.from_dict(data)
