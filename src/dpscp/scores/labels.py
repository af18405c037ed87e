"""Scores of labels: how badly each label fits the predicted probabilities.

The scores are functions of probabilities. ``LABEL_SCORES`` has them by the names that an estimator takes. To add one,
write its class and add a line to that table. A label's score and its membership in a set come from the same expression,
so they agree exactly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.callers import FLOAT32_ROUNDING, ROUNDING, call_on_rows
from dpscp._base.checks import check_choice, check_count, check_nonnegative
from dpscp.data.validation import suppress_float_warnings

# A probability may exceed 1, and a score its range, by what float32 sums lose.
_ROUNDING = 1e-5


def lac_of_labels(probabilities: ArrayLike) -> NDArray[Any]:
    """Compute 1 - p for every label.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)

    Returns
    -------
    array of shape (n, n_classes)
    """
    return 1.0 - _probabilities(probabilities)


def lac(probabilities: ArrayLike, labels: ArrayLike) -> NDArray[Any]:
    """Compute 1 - p_y; the set is ``sets.label_set`` of ``lac_of_labels``.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    array of shape (n,)

    Paper: Section 6.1
    """
    return _at_labels(lac_of_labels(probabilities), labels)


def aps_of_labels(probabilities: ArrayLike) -> NDArray[Any]:
    """Compute the total probability of the labels that are at least as likely.

    Equal probabilities are ordered by label.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)

    Returns
    -------
    array of shape (n, n_classes)
    """
    return _ranked_mass(_probabilities(probabilities))[0]


def aps(probabilities: ArrayLike, labels: ArrayLike) -> NDArray[Any]:
    """Compute the adaptive score of the true label, see ``aps_of_labels``.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    array of shape (n,)
    """
    return _at_labels(aps_of_labels(probabilities), labels)


def raps_of_labels(probabilities: ArrayLike, *, penalty: float = 0.01, free_labels: int = 1) -> NDArray[Any]:
    """Add a penalty for unlikely labels to ``aps_of_labels``.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)
    penalty : float
        The penalty for each place beyond the first ``free_labels``, in the order of likelihood.
    free_labels : int
        The number of labels without a penalty.

    Returns
    -------
    array of shape (n, n_classes)
    """
    penalty, free_labels = check_nonnegative("penalty", penalty), check_count("free_labels", free_labels, minimum=0)
    mass, rank = _ranked_mass(_probabilities(probabilities))
    return np.asarray(mass + penalty * np.maximum(rank + 1 - free_labels, 0))


def raps(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    penalty: float = 0.01,
    free_labels: int = 1,
) -> NDArray[Any]:
    """Compute the regularized adaptive score of the true label.

    Parameters
    ----------
    probabilities, penalty, free_labels : see ``raps_of_labels``.
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    array of shape (n,)
    """
    return _at_labels(raps_of_labels(probabilities, penalty=penalty, free_labels=free_labels), labels)


def raps_range(n_classes: int, *, penalty: float = 0.01, free_labels: int = 1) -> tuple[float, float]:
    """Return the public range of ``raps`` for a number of classes.

    Parameters
    ----------
    n_classes : int
    penalty, free_labels
        See ``raps``.

    Returns
    -------
    (low, high) : floats
    """
    penalty, free_labels = check_nonnegative("penalty", penalty), check_count("free_labels", free_labels, minimum=0)
    return 0.0, 1.0 + penalty * max(check_count("n_classes", n_classes) - free_labels, 0)


def infinite_without_probabilities(
    label_scores: Callable[[NDArray[Any]], NDArray[Any]], probabilities: ArrayLike
) -> NDArray[Any]:
    """Score the labels of each row, with infinity for rows without probabilities.

    A finite record can make a model overflow. An error would reveal that the record is present. So its scores are
    infinite instead, and only an infinite threshold covers it.

    Parameters
    ----------
    label_scores : function of probabilities of shape (n, n_classes) with one score for each label
    probabilities : array of shape (n, n_classes)

    Returns
    -------
    array of shape (n, n_classes)
    """
    p = np.asarray(probabilities)
    if p.size == 0 or (p.min() >= 0 and p.max() <= 1 + _ROUNDING):  # false for NaN
        return label_scores(p)
    usable = np.all((p >= 0) & (p <= 1 + _ROUNDING), axis=1, keepdims=True)
    return np.where(usable, label_scores(np.where(usable, p, 1 / p.shape[1]).astype(p.dtype)), np.inf)


def _ranked_mass(p: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Compute cumulative mass by falling probability, and each label's place.

    Both arrays are in label order, (n, n_classes).
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    mass = np.minimum(np.cumsum(ordered, axis=1), 1.0)
    by_label, rank = np.empty_like(mass), np.empty_like(order)
    np.put_along_axis(by_label, order, mass, axis=1)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(p.shape[1]), p.shape), axis=1)
    return by_label, rank


def _probabilities(values: ArrayLike) -> NDArray[Any]:
    p = np.asarray(values)
    if p.ndim != 2 or p.shape[1] < 1 or not np.issubdtype(p.dtype, np.floating):
        raise ValueError("probabilities must be a float array of shape (n, n_classes)")
    if np.any(~((p >= 0) & (p <= 1 + _ROUNDING))):
        raise ValueError("probabilities must be between 0 and 1; apply a softmax to logits first")
    return p


def _at_labels(scores: NDArray[Any], labels: ArrayLike) -> NDArray[Any]:
    """Return the score of each row's own label."""
    places = np.asarray(labels)
    if places.shape != (len(scores),) or not np.issubdtype(places.dtype, np.integer):
        raise ValueError("labels must be one integer class index for each row")
    if places.size and (places.min() < 0 or places.max() >= scores.shape[1]):
        raise ValueError("labels must be class indices between 0 and n_classes - 1")
    return np.asarray(scores[np.arange(len(places)), places])


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


@dataclass(frozen=True)
class _FromFunction:
    """A score that is a function of probabilities: built-in, or custom in [0, 1]."""

    function: Callable[[NDArray[Any]], NDArray[Any]]
    natural: bool = False

    def range(self, n_classes: int) -> tuple[float, float]:
        return raps_range(n_classes) if self.function is raps_of_labels else (0.0, 1.0)

    def of_labels(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        return self.function(probabilities)


LABEL_SCORES: Mapping[str, LabelScore] = {
    "lac": _FromFunction(lac_of_labels, natural=True),
    "aps": _FromFunction(aps_of_labels),
    "raps": _FromFunction(raps_of_labels),
}


def label_score(score: str | LabelScore | Callable[[NDArray[Any]], NDArray[Any]]) -> LabelScore:
    """Return the named score, or the caller's own score or function.

    Parameters
    ----------
    score : str, LabelScore, or function of probabilities (n, n_classes) that returns scores of the same shape

    Returns
    -------
    LabelScore
    """
    if isinstance(score, LabelScore):
        return score
    if callable(score):
        return _FromFunction(score)
    return LABEL_SCORES[check_choice("conformity_score", score, LABEL_SCORES)]


def score_name(score: Any, scores: Mapping[str, Any]) -> str | None:
    """Return the name of a built-in score; None for a custom one."""
    return next((name for name, known in scores.items() if type(known) is type(score) and known == score), None)


def score_labels(score: LabelScore, probabilities: NDArray[Any]) -> NDArray[Any]:
    """Compute the score of every label, (n, n_classes).

    It is infinite for NaN and in rows without probabilities.

    Theory: Result B
    """
    of_labels = score.of_labels
    if score_name(score, LABEL_SCORES) is not None:
        return infinite_without_probabilities(of_labels, probabilities)

    def own_scores(rows: NDArray[Any]) -> NDArray[Any]:
        return call_on_rows(
            "conformity_score",
            of_labels,
            (rows,),
            len(rows),
            read=lambda found, size: _read_scores(found, (size, rows.shape[1])),
            empty=np.empty(rows.shape),
            tolerance=ROUNDING if rows.dtype == np.float64 else FLOAT32_ROUNDING,
        )

    return infinite_without_probabilities(own_scores, probabilities)


def check_label_score(score: LabelScore, n_classes: int) -> None:
    """Reject a custom score that leaves its range on synthetic probabilities."""
    if score_name(score, LABEL_SCORES) is not None:
        return
    rows = _synthetic_probabilities(n_classes)
    with suppress_float_warnings():  # an error of the caller's is shown here, on synthetic rows
        _read_scores(score.of_labels(rows.copy()), rows.shape)
    scores = score_labels(score, rows)
    (low, high), (least, most) = (scores.min(), scores.max()), score.range(n_classes)
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


def _synthetic_probabilities(n_classes: int) -> NDArray[np.float64]:
    """Make rows of probabilities: uniform, certain, tied, and from flat to sharp."""
    labels = np.arange(n_classes)
    certain = np.eye(n_classes)[:: max(1, n_classes // 8)]
    tie = np.where(labels < 2, 0.5, 0.0)
    waves = np.array([sharpness * np.cos(sharpness + 2.3 * labels) for sharpness in np.linspace(0.1, 30, 15)])
    shifted = np.exp(waves - waves.max(axis=1, keepdims=True))
    return np.vstack([np.full(n_classes, 1 / n_classes), certain, tie, shifted / shifted.sum(axis=1, keepdims=True)])
