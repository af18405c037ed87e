"""Scores of labels as values: the score of every label, and the public range it lies in.

A prediction set holds the labels whose score is at most the threshold, so the score is all there is to say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

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

Floats = NDArray[Any]

# A score may leave its range by what sums of float32 probabilities lose.
_ROUNDING = 1e-5


@runtime_checkable
class LabelScore(Protocol):
    """How badly each label fits a row of probabilities.

    A row's scores must be functions of that row alone, within ``range``. ``natural``: the Lipschitz constant that a
    training mechanism states is about this score (1 - p_y), so that ``guarantee="stability"`` can use it.
    """

    @property
    def natural(self) -> bool:
        """Whether this is the score that stability bounds speak of."""

    def range(self, n_classes: int) -> tuple[float, float]:
        """The public range of the score."""

    def of_labels(self, probabilities: Floats) -> Floats:
        """The score of every label, (n, n_classes)."""


@dataclass(frozen=True)
class _Known:
    """A score of this package."""

    function: Callable[[Floats], Floats]
    natural: bool = False

    def range(self, n_classes: int) -> tuple[float, float]:
        return raps_range(n_classes) if self.function is raps_of_labels else (0.0, 1.0)

    def of_labels(self, probabilities: Floats) -> Floats:
        return infinite_without_probabilities(self.function, probabilities)


@dataclass(frozen=True)
class _Function:
    """A function of the caller with scores between 0 and 1."""

    function: Callable[[Floats], Floats]
    natural: bool = False

    def range(self, n_classes: int) -> tuple[float, float]:  # noqa: ARG002
        return 0.0, 1.0

    def of_labels(self, probabilities: Floats) -> Floats:
        return self.function(probabilities)


@dataclass(frozen=True)
class OwnLabelScore:
    """A score of the caller, tried before it is trusted: on made-up rows before anything is spent, then as it is used.

    Theory: section 4 (a score may depend on its record, the model and independent noise only)
    """

    score: LabelScore

    @property
    def natural(self) -> bool:
        return self.score.natural

    def range(self, n_classes: int) -> tuple[float, float]:
        return self.score.range(n_classes)

    def of_labels(self, probabilities: Floats, *, thorough: bool = False) -> Floats:
        """The score of every label; infinite where there is no number. ``thorough``: asked about parts as well."""
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

    def check_on_synthetic_rows(self, n_classes: int) -> None:
        """Refuse a score that cannot work, on made-up probabilities: no record is used."""
        with refuse_memory("conformity_score", self.score):
            scores = self.of_labels(_synthetic_probabilities(n_classes), thorough=True)
        (low, high), (least, most) = (scores.min(), scores.max()), self.range(n_classes)
        if not (low >= least - _ROUNDING and high <= most + _ROUNDING):
            raise ValueError(
                f"conformity_score must return scores between {least:g} and {most:g}, got {low:g} to {high:g} for "
                "made-up probabilities (NaN counts as infinite); rescale it by public constants, or clip it"
            )

    def _scores(self, probabilities: Floats) -> Floats:
        # what a call leaves on the caller's object is gone with the copy
        scores = np.asarray(copy_if_possible(self.score).of_labels(probabilities))
        if scores.shape != probabilities.shape or scores.dtype.kind not in "fiub":
            raise ValueError("conformity_score must return one score for every row and label, a real number")
        return np.where(np.isnan(scores), np.inf, scores)


LABEL_SCORES: Mapping[str, LabelScore] = {
    "lac": _Known(lac_of_labels, natural=True),
    "aps": _Known(aps_of_labels),
    "raps": _Known(raps_of_labels),
}


def label_score(given: str | LabelScore | Callable[[Floats], Floats]) -> LabelScore:
    """The score that a caller named, or the caller's own behind its checks."""
    if isinstance(given, LabelScore):
        return OwnLabelScore(given)
    if callable(given):
        return OwnLabelScore(_Function(given))
    return LABEL_SCORES[check_choice("conformity_score", given, LABEL_SCORES)]


def _synthetic_probabilities(n_classes: int) -> NDArray[np.float64]:
    """Rows that a model could give: no opinion, certainty, ties, and fixed waves from flat to sharp."""
    labels = np.arange(n_classes)
    certain = np.eye(n_classes)[:: max(1, n_classes // 8)]
    tie = np.where(labels < 2, 0.5, 0.0)
    waves = np.array([sharpness * np.cos(sharpness + 2.3 * labels) for sharpness in np.linspace(0.1, 30, 15)])
    shifted = np.exp(waves - waves.max(axis=1, keepdims=True))
    return np.vstack([np.full(n_classes, 1 / n_classes), certain, tie, shifted / shifted.sum(axis=1, keepdims=True)])
