"""The task of several labels for each record, whose sets bound a mean loss.

Theory: Result J
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import ALL_LABELS_IF_INFINITE, NO_LABEL_IF_INFINITE, Assumption
from dpscp._base.checks import check_choice
from dpscp.core.tasks import Prediction, task_fields
from dpscp.data.model_files import plain
from dpscp.guarantees.certificate import Promise
from dpscp.scores.losses import Losses, false_discoveries, missed_labels
from dpscp.training.base import Mechanism, Trained
from dpscp.training.mechanisms.one_vs_rest import OneVsRest
from dpscp.training.model import Model

MISSED, DISCOVERIES = "missed_labels", "false_discoveries"


@dataclass(frozen=True)
class Multilabel(Prediction):
    """Several labels of each record, as indicators (n, n_labels); the sets bound a mean loss.

    Attributes
    ----------
    labels : tuple
        The public names of the columns.
    loss : str
        ``"missed_labels"`` or ``"false_discoveries"``.
    costs : tuple of float or None
        The public cost of missing each label.

    Theory: Result J
    """

    labels: tuple[Any, ...]
    loss: str = MISSED
    costs: tuple[float, ...] | None = None

    name = "multilabel"
    promise = Promise.RISK
    score_range = (0.0, 1.0)
    fine_near = None
    resolution = 64
    most_steps = 10
    natural_score = False
    score_assumptions = ()
    scaled_bounds = None
    quantile_pair = False
    trains = "classification"
    training_labels = (0, 1)

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, (MISSED, DISCOVERIES))
        if self.costs is not None and self.loss == DISCOVERIES:
            raise ValueError("label_costs is for loss='missed_labels'; remove it")
        one = np.zeros((1, len(self.labels)))
        missed_labels(one, one, self.costs)  # checks the costs

    @property
    def running_maximum(self) -> bool:
        """Whether the promise is about the running maximum of a loss that may rise with the threshold."""
        return self.loss == DISCOVERIES

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """The assumption about sets without a finite threshold."""
        return (ALL_LABELS_IF_INFINITE if self.loss == MISSED else NO_LABEL_IF_INFINITE,)

    @property
    def score_facts(self) -> Mapping[str, Any]:
        """The labels, the loss and the costs."""
        facts = {"labels": [str(label) for label in self.labels], "loss": self.loss}
        return facts if self.costs is None else {**facts, "label_costs": list(self.costs)}

    def to_dict(self) -> dict[str, Any]:
        """Return what a file states of the task, as JSON values."""
        costs = None if self.costs is None else list(self.costs)
        return {"labels": [plain(label) for label in self.labels], "loss": self.loss, "costs": costs}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Multilabel":
        """Return the task that ``to_dict`` wrote; ``ValueError`` for other fields or values."""
        labels, loss, costs = task_fields(data, "labels", "loss", "costs")
        return cls(tuple(labels), loss, None if costs is None else tuple(map(float, costs)))

    def with_found_range(self, trained: Trained) -> Self:  # noqa: ARG002 (indicators have no range to find)
        """Return the task unchanged."""
        return self

    def with_own_score(self, score: Any) -> Self:  # noqa: ARG002 (the loss is one of two)
        """Return the task unchanged."""
        return self

    def try_score(self) -> None:
        """Do nothing, because the loss is one of two."""

    def training_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the indicators unchanged."""
        return targets

    def around(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism that trains one binary model for each label."""
        return OneVsRest(mechanism, len(self.labels))

    def check_model(self, model: Model) -> None:
        """Refuse a model without one head for each label."""
        row = np.zeros((1, model.n_features))
        if model.task != self.name or model.outputs(row).shape[1] != len(self.labels):
            raise ValueError("estimator must train one binary model for each label")

    def losses(self, probabilities: NDArray[np.float64], truth: NDArray[Any]) -> Losses:
        """Return the loss of each record as a function of the threshold."""
        # a model that overflows gets the worst probability of each label
        shown = np.nan_to_num(probabilities, nan=0.0 if self.loss == MISSED else 1.0)
        if self.loss == DISCOVERIES:
            return false_discoveries(shown, truth)
        return missed_labels(1 - shown, truth, self.costs)

    def sets(self, probabilities: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which labels are in the sets, (n, n_labels, n_levels).

        ``thresholds`` are (n_levels,), or (n, n_levels) for each row.
        """
        shown = probabilities[:, :, None]
        cut = thresholds if thresholds.ndim == 1 else thresholds[:, None, :]
        return np.asarray(shown > cut if self.loss == DISCOVERIES else 1 - shown <= cut)
