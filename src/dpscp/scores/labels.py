"""Scores of labels: the score of every label and its public range."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpscp._base.assumptions import OWN_SCORE, Assumption
from dpscp._base.callers import FLOAT32_ROUNDING, ROUNDING, call_on_rows
from dpscp._base.checks import check_choice
from dpscp.data.validation import suppress_float_warnings
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

    def check_range(self, n_classes: int) -> None:
        """Refuse a score that leaves its range on synthetic probabilities."""


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

    def check_range(self, n_classes: int) -> None:
        """Pass: this package tests its own scores."""


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
    """Wrap a caller's score: it gets copies of the rows.

    Theory: Result B
    """

    score: LabelScore

    assumptions: ClassVar[tuple[Assumption, ...]] = (OWN_SCORE,)

    @property
    def natural(self) -> bool:
        return self.score.natural

    def range(self, n_classes: int) -> tuple[float, float]:
        return self.score.range(n_classes)

    def of_labels(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """Compute the score of every label; NaN becomes infinity."""

        def scores(rows: NDArray[Any]) -> NDArray[Any]:
            def read(found: Any, size: int) -> NDArray[Any]:
                return _read_scores(found, (size, rows.shape[1]))

            return call_on_rows(
                "conformity_score",
                self.score.of_labels,
                (rows,),
                len(rows),
                read=read,
                empty=np.empty(rows.shape),
                tolerance=ROUNDING if rows.dtype == np.float64 else FLOAT32_ROUNDING,
            )

        return infinite_without_probabilities(scores, probabilities)

    def check_range(self, n_classes: int) -> None:
        """Refuse a score that leaves its range on synthetic probabilities."""
        rows = _synthetic_probabilities(n_classes)
        with suppress_float_warnings():  # an error of the caller's is shown here, on synthetic rows
            _read_scores(self.score.of_labels(rows.copy()), rows.shape)
        scores = self.of_labels(rows)
        (low, high), (least, most) = (scores.min(), scores.max()), self.range(n_classes)
        if not (low >= least - _ROUNDING and high <= most + _ROUNDING):
            raise ValueError(
                f"conformity_score must return scores between {least:g} and {most:g}, got {low:g} to {high:g} for "
                "synthetic probabilities (NaN counts as infinity); rescale or clip it with public constants"
            )


def _read_scores(found: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return scores of this shape with infinity in place of NaN."""
    scores = np.asarray(found)
    if scores.shape != shape or scores.dtype.kind not in "fiub":
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
