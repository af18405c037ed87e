"""Nonconformity scores: how badly a candidate y fits what the model says about x.

Pure functions of the model's outputs; each has its partner in ``sets`` that turns a threshold into a prediction set.
A label's score and its membership in a set come from the same expression, so that they agree to the last bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count, check_nonnegative

Floats = NDArray[Any]
# A probability may exceed 1 by what float32 sums lose.
_ROUNDING = 1e-5


def absolute_residual(y: ArrayLike, prediction: ArrayLike) -> Floats:
    """|y - prediction|. Partner: ``sets.residual_interval``."""
    return np.asarray(np.abs(np.asarray(y, float) - np.asarray(prediction, float)))


def normalized_residual(y: ArrayLike, prediction: ArrayLike, scale: ArrayLike) -> Floats:
    """|y - prediction| / scale with a positive ``scale`` from the model. Partner: ``sets.normalized_interval``."""
    scale = np.asarray(scale, float)
    if np.any(~(scale > 0)):
        raise ValueError("scale must be positive everywhere; bound it from below by a public constant")
    return np.asarray(absolute_residual(y, prediction) / scale)


def cqr(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Floats:
    """max(lower - y, y - upper): how far y lies outside a pair of predicted quantiles (negative inside).

    Partner: ``sets.quantile_interval``.
    """
    y = np.asarray(y, float)
    return np.asarray(np.maximum(np.asarray(lower, float) - y, y - np.asarray(upper, float)))


def lac_of_labels(probabilities: ArrayLike) -> Floats:
    """1 - p for every label, shape (n, n_classes)."""
    return 1.0 - _probabilities(probabilities)


def lac(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """1 - p_y: the paper's classification score. Partner: ``sets.label_set`` of ``lac_of_labels``.

    Paper: Section 6.1
    """
    p = _probabilities(probabilities)
    return np.asarray(1.0 - p[np.arange(len(p)), _labels(labels, p)])


def aps_of_labels(probabilities: ArrayLike, uniforms: ArrayLike | None = None) -> Floats:
    """The mass of the labels at least as likely, each label's own mass included in full or, randomised, in part.

    ``uniforms`` (one independent uniform for each row) makes the score randomised: the label's own mass counts only
    ``u`` times. Equal probabilities are ordered by label, the same way everywhere.
    """
    return _ranked_mass(_probabilities(probabilities), uniforms)[0]


def aps(probabilities: ArrayLike, labels: ArrayLike, uniforms: ArrayLike | None = None) -> Floats:
    """The adaptive score of the true label. Partner: ``sets.label_set`` of ``aps_of_labels``."""
    p = _probabilities(probabilities)
    return np.asarray(aps_of_labels(p, uniforms)[np.arange(len(p)), _labels(labels, p)])


def raps_of_labels(
    probabilities: ArrayLike, uniforms: ArrayLike | None = None, *, penalty: float = 0.01, free_labels: int = 1
) -> Floats:
    """``aps_of_labels`` plus ``penalty`` for each place beyond the first ``free_labels`` in the order of likelihood."""
    penalty, free_labels = check_nonnegative("penalty", penalty), check_count("free_labels", free_labels, minimum=0)
    mass, rank = _ranked_mass(_probabilities(probabilities), uniforms)
    return np.asarray(mass + penalty * np.maximum(rank + 1 - free_labels, 0))


def raps(
    probabilities: ArrayLike,
    labels: ArrayLike,
    uniforms: ArrayLike | None = None,
    *,
    penalty: float = 0.01,
    free_labels: int = 1,
) -> Floats:
    """The regularised adaptive score of the true label. Partner: ``sets.label_set`` of ``raps_of_labels``."""
    p = _probabilities(probabilities)
    scores = raps_of_labels(p, uniforms, penalty=penalty, free_labels=free_labels)
    return np.asarray(scores[np.arange(len(p)), _labels(labels, p)])


def raps_range(n_classes: int, *, penalty: float = 0.01, free_labels: int = 1) -> tuple[float, float]:
    """The public range of ``raps`` for a number of classes."""
    penalty, free_labels = check_nonnegative("penalty", penalty), check_count("free_labels", free_labels, minimum=0)
    return 0.0, 1.0 + penalty * max(check_count("n_classes", n_classes) - free_labels, 0)


def infinite_without_probabilities(label_scores: Callable[[Floats], Floats], probabilities: ArrayLike) -> Floats:
    """``label_scores(probabilities)``; a row that holds no probabilities scores infinity at every label.

    A finite record can make a model overflow. Refusing its row would tell that the record is there, so that it fits as
    badly as can be instead; an infinite threshold covers it.
    """
    p = np.asarray(probabilities)
    if p.size == 0 or (p.min() >= 0 and p.max() <= 1 + _ROUNDING):  # false for NaN
        return label_scores(p)
    usable = np.all((p >= 0) & (p <= 1 + _ROUNDING), axis=1, keepdims=True)
    return np.where(usable, label_scores(np.where(usable, p, 1 / p.shape[1]).astype(p.dtype)), np.inf)


def _ranked_mass(p: Floats, uniforms: ArrayLike | None) -> tuple[Floats, NDArray[np.int64]]:
    """Cumulative mass in order of falling probability, and each label's place in that order, both in label order."""
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    mass = np.minimum(np.cumsum(ordered, axis=1), 1.0)
    if uniforms is not None:
        u = np.asarray(uniforms, float)
        if u.shape != (len(p),) or np.any(~((u >= 0) & (u <= 1))):
            raise ValueError("uniforms must hold one number between 0 and 1 for each row")
        mass = mass - (1 - u)[:, None] * ordered
    by_label, rank = np.empty_like(mass), np.empty_like(order)
    np.put_along_axis(by_label, order, np.maximum(mass, 0.0), axis=1)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(p.shape[1]), p.shape), axis=1)
    return by_label, rank


def _probabilities(values: ArrayLike) -> Floats:
    p = np.asarray(values)
    if p.ndim != 2 or p.shape[1] < 1 or not np.issubdtype(p.dtype, np.floating):
        raise ValueError("probabilities must be a float array of shape (n, n_classes)")
    if np.any(~((p >= 0) & (p <= 1 + _ROUNDING))):
        raise ValueError("probabilities must lie between 0 and 1; logits need a softmax first")
    return p


def _labels(values: ArrayLike, p: Floats) -> NDArray[np.int64]:
    labels = np.asarray(values)
    if labels.shape != (len(p),) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError("labels must be one integer class index for each row")
    if labels.size and (labels.min() < 0 or labels.max() >= p.shape[1]):
        raise ValueError("labels must be class indices between 0 and n_classes - 1")
    return labels
