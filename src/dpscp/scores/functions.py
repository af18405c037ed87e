"""Conformity scores as functions of a model's outputs.

A score measures how badly an answer y fits what the model predicts for x. Each score has a function in ``sets`` that
turns a threshold into a prediction set. A label's score and its membership in a set come from the same expression, so
they agree exactly.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpscp._base.checks import check_count, check_nonnegative

# A probability may exceed 1 by what float32 sums lose.
_ROUNDING = 1e-5


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
    p = _probabilities(probabilities)
    return np.asarray(1.0 - p[np.arange(len(p)), _labels(labels, p)])


def aps_of_labels(probabilities: ArrayLike, uniforms: ArrayLike | None = None) -> NDArray[Any]:
    """Compute the total probability of the labels that are at least as likely.

    Equal probabilities are ordered by label.

    Parameters
    ----------
    probabilities : array of shape (n, n_classes)
    uniforms : array of shape (n,), optional
        Independent uniform numbers that randomize the score: the label's own probability counts ``u`` times. Without
        them it counts in full.

    Returns
    -------
    array of shape (n, n_classes)
    """
    return _ranked_mass(_probabilities(probabilities), uniforms)[0]


def aps(probabilities: ArrayLike, labels: ArrayLike, uniforms: ArrayLike | None = None) -> NDArray[Any]:
    """Compute the adaptive score of the true label, see ``aps_of_labels``.

    Parameters
    ----------
    probabilities, uniforms : see ``aps_of_labels``.
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    array of shape (n,)
    """
    p = _probabilities(probabilities)
    return np.asarray(aps_of_labels(p, uniforms)[np.arange(len(p)), _labels(labels, p)])


def raps_of_labels(
    probabilities: ArrayLike, uniforms: ArrayLike | None = None, *, penalty: float = 0.01, free_labels: int = 1
) -> NDArray[Any]:
    """Add a penalty for unlikely labels to ``aps_of_labels``.

    Parameters
    ----------
    probabilities, uniforms : see ``aps_of_labels``.
    penalty : float
        The penalty for each place beyond the first ``free_labels``, in the order of likelihood.
    free_labels : int
        The number of labels without a penalty.

    Returns
    -------
    array of shape (n, n_classes)
    """
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
) -> NDArray[Any]:
    """Compute the regularized adaptive score of the true label.

    Parameters
    ----------
    probabilities, uniforms, penalty, free_labels : see ``raps_of_labels``.
    labels : int array of shape (n,)
        Class indices.

    Returns
    -------
    array of shape (n,)
    """
    p = _probabilities(probabilities)
    scores = raps_of_labels(p, uniforms, penalty=penalty, free_labels=free_labels)
    return np.asarray(scores[np.arange(len(p)), _labels(labels, p)])


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


def _ranked_mass(p: NDArray[Any], uniforms: ArrayLike | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Compute cumulative mass by falling probability, and each label's place.

    Both arrays are in label order, (n, n_classes).
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ordered = np.take_along_axis(p, order, axis=1)
    mass = np.minimum(np.cumsum(ordered, axis=1), 1.0)
    if uniforms is not None:
        u = np.asarray(uniforms, float)
        if u.shape != (len(p),) or np.any(~((u >= 0) & (u <= 1))):
            raise ValueError("uniforms must have one number between 0 and 1 for each row")
        mass = mass - (1 - u)[:, None] * ordered
    by_label, rank = np.empty_like(mass), np.empty_like(order)
    np.put_along_axis(by_label, order, np.maximum(mass, 0.0), axis=1)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(p.shape[1]), p.shape), axis=1)
    return by_label, rank


def _probabilities(values: ArrayLike) -> NDArray[Any]:
    p = np.asarray(values)
    if p.ndim != 2 or p.shape[1] < 1 or not np.issubdtype(p.dtype, np.floating):
        raise ValueError("probabilities must be a float array of shape (n, n_classes)")
    if np.any(~((p >= 0) & (p <= 1 + _ROUNDING))):
        raise ValueError("probabilities must be between 0 and 1; apply a softmax to logits first")
    return p


def _labels(values: ArrayLike, p: NDArray[Any]) -> NDArray[np.int64]:
    labels = np.asarray(values)
    if labels.shape != (len(p),) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError("labels must be one integer class index for each row")
    if labels.size and (labels.min() < 0 or labels.max() >= p.shape[1]):
        raise ValueError("labels must be class indices between 0 and n_classes - 1")
    return labels
