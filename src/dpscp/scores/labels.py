"""Scores of labels: the score of every label and its public range."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import OWN_SCORE, Assumption
from dpscp._base.checks import check_choice
from dpscp._base.object_state import copy_if_possible, refuse_memory
from dpscp.data.validation import check_row_by_row, suppress_float_warnings
from dpscp.scores.functions import (
    aps_of_labels,
    infinite_without_probabilities,
    lac_of_labels,
    raps_of_labels,
    raps_range,
)

# Rounding of float32 sums: a score may leave its range by this much.
_ROUNDING = 1e-5


@runtime_checkable
class LabelScore(Protocol):
    """Interface of a score of labels.

    A row's scores must be functions of that row alone, within ``range``.
    """

    @property
    def natural(self) -> bool:
        """Whether stability bounds apply: the score is 1 - p_y."""

    def range(self, n_classes: int) -> tuple[float, float]:
        """Return the public range of the score."""

    def of_labels(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """Compute the score of every label, (n, n_classes)."""


class CheckedLabelScore(LabelScore, Protocol):
    """A score as a release uses it: a built-in one, or a caller's own with its checks."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What a certificate assumes of the score."""

    def check_on_synthetic_rows(self, n_classes: int) -> None:
        """Refuse a score that cannot work; the check uses synthetic probabilities only."""

    def of_records(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """Compute the score of every label (n, n_classes) for records of a fit; refuse scores that mix rows."""


@dataclass(frozen=True)
class _Known:
    """Hold a built-in score."""

    function: Callable[[NDArray[Any]], NDArray[Any]]
    natural: bool = False

    assumptions: ClassVar[tuple[Assumption, ...]] = ()

    def range(self, n_classes: int) -> tuple[float, float]:
        return raps_range(n_classes) if self.function is raps_of_labels else (0.0, 1.0)

    def of_labels(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        return infinite_without_probabilities(self.function, probabilities)

    def check_on_synthetic_rows(self, n_classes: int) -> None:
        """Pass: this package tests its own scores."""

    of_records = of_labels


@dataclass(frozen=True)
class _Function:
    """Hold a caller's function with scores between 0 and 1."""

    function: Callable[[NDArray[Any]], NDArray[Any]]
    natural: bool = False

    def range(self, n_classes: int) -> tuple[float, float]:  # noqa: ARG002
        return 0.0, 1.0

    def of_labels(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        return self.function(probabilities)


@dataclass(frozen=True)
class OwnLabelScore:
    """Wrap a caller's score and check it: on synthetic rows first, then on each use.

    Theory: section 4 (a score may depend on its record, the model and independent noise only)
    """

    score: LabelScore

    assumptions: ClassVar[tuple[Assumption, ...]] = (OWN_SCORE,)

    @property
    def natural(self) -> bool:
        return self.score.natural

    def range(self, n_classes: int) -> tuple[float, float]:
        return self.score.range(n_classes)

    def of_labels(self, probabilities: NDArray[Any], *, thorough: bool = False) -> NDArray[Any]:
        """Compute the score of every label; NaN becomes infinity.

        ``thorough`` also compares the scores with those of parts of the rows.
        """
        with suppress_float_warnings():
            scores = infinite_without_probabilities(self._scores, probabilities)
            check_row_by_row(
                "conformity_score",
                lambda part, _: infinite_without_probabilities(self._scores, part),
                probabilities,
                scores,
                thorough=thorough,
            )
        return scores

    def of_records(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        return self.of_labels(probabilities, thorough=True)

    def check_on_synthetic_rows(self, n_classes: int) -> None:
        """Refuse a score that cannot work; the check uses synthetic probabilities only."""
        with refuse_memory("conformity_score", self.score):
            scores = self.of_labels(_synthetic_probabilities(n_classes), thorough=True)
        (low, high), (least, most) = (scores.min(), scores.max()), self.range(n_classes)
        if not (low >= least - _ROUNDING and high <= most + _ROUNDING):
            raise ValueError(
                f"conformity_score must return scores between {least:g} and {most:g}, got {low:g} to {high:g} for "
                "synthetic probabilities (NaN counts as infinity); rescale or clip it with public constants"
            )

    def _scores(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        if not len(probabilities):  # a caller's function need not know tables without a row
            return np.empty(probabilities.shape)
        # a copy is called: whatever the call stores on it is discarded
        scores = np.asarray(copy_if_possible(self.score).of_labels(probabilities))
        if scores.shape != probabilities.shape or scores.dtype.kind not in "fiub":
            raise ValueError("conformity_score must return one real number for each row and label")
        return np.where(np.isnan(scores), np.inf, scores)


LABEL_SCORES: Mapping[str, CheckedLabelScore] = {
    "lac": _Known(lac_of_labels, natural=True),
    "aps": _Known(aps_of_labels),
    "raps": _Known(raps_of_labels),
}


def label_score(score: str | LabelScore | Callable[[NDArray[Any]], NDArray[Any]]) -> CheckedLabelScore:
    """Return the named score, or wrap the caller's own score or function.

    Parameters
    ----------
    score : str, LabelScore, or function of probabilities (n, n_classes) that returns scores of the same shape

    Returns
    -------
    CheckedLabelScore
    """
    if isinstance(score, LabelScore):
        return OwnLabelScore(score)
    if callable(score):
        return OwnLabelScore(_Function(score))
    return LABEL_SCORES[check_choice("conformity_score", score, LABEL_SCORES)]


def _synthetic_probabilities(n_classes: int) -> NDArray[np.float64]:
    """Make rows of probabilities: uniform, certain, tied, and from flat to sharp."""
    labels = np.arange(n_classes)
    certain = np.eye(n_classes)[:: max(1, n_classes // 8)]
    tie = np.where(labels < 2, 0.5, 0.0)
    waves = np.array([sharpness * np.cos(sharpness + 2.3 * labels) for sharpness in np.linspace(0.1, 30, 15)])
    shifted = np.exp(waves - waves.max(axis=1, keepdims=True))
    return np.vstack([np.full(n_classes, 1 / n_classes), certain, tie, shifted / shifted.sum(axis=1, keepdims=True)])
