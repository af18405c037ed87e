"""Losses of label sets as functions of a threshold (``dpscp.control_risk``).

Each function returns another one: of a threshold t, with one loss in [0, 1] for each record.

Theory: Result J
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["class_costs", "false_discoveries", "missed_labels"]

Losses = Callable[[float], NDArray[np.float64]]


def missed_labels(doubt: Any, truth: Any) -> Losses:
    """Return the loss: the share of true labels that {label : doubt <= t} misses.

    Parameters
    ----------
    doubt : array of shape (n, n_labels)
        How unlikely each label is, such as one minus its probability.
    truth : indicator array of shape (n, n_labels)
        Which labels are true. A record without true labels has no loss.

    Returns
    -------
    function of t that returns n losses, which do not rise with t

    >>> losses = missed_labels([[0.1, 0.6], [0.9, 0.2]], [[1, 1], [1, 0]])
    >>> losses(0.5).tolist(), losses(0.9).tolist()
    ([0.5, 1.0], [0.0, 0.0])
    """
    shown, true = _same_shape(doubt, truth)
    total = np.maximum(true.sum(axis=1), 1)
    return lambda t: np.asarray((true & (shown > t)).sum(axis=1) / total)


def false_discoveries(probability: Any, truth: Any) -> Losses:
    """Return the loss: the share of {label : probability > t} that is not true.

    It is 0 for an empty set. It may rise with t: control its running maximum, ``dpscp.control_risk(...,
    running_maximum=True)``. Where no finite threshold is found the set is empty.

    Parameters
    ----------
    probability : array of shape (n, n_labels)
    truth : indicator array of shape (n, n_labels)

    Returns
    -------
    function of t that returns n losses
    """
    shown, true = _same_shape(probability, truth)

    def losses(t: float) -> NDArray[np.float64]:
        inside = shown > t
        return np.asarray((inside & ~true).sum(axis=1) / np.maximum(inside.sum(axis=1), 1))

    return losses


def class_costs(doubt: Any, y: Any, costs: Any) -> Losses:
    """Return the loss: the cost of the true class if {class : doubt <= t} misses it.

    Parameters
    ----------
    doubt : array of shape (n, n_classes)
        How unlikely each class is, such as one minus its probability.
    y : int array of shape (n,)
        The place of the true class.
    costs : array of shape (n_classes,)
        The public cost of missing each class, between 0 and 1; divide costs by the largest one.

    Returns
    -------
    function of t that returns n losses, which do not rise with t
    """
    shown, places = np.asarray(doubt, dtype=np.float64), np.asarray(y)
    if shown.ndim != 2 or places.shape != (len(shown),) or places.dtype.kind not in "iu":
        raise ValueError("doubt must have shape (n, n_classes), and y one class index for each record")
    if len(places) and not (places.min() >= 0 and places.max() < shown.shape[1]):
        raise ValueError("y must hold class indices from 0 to n_classes - 1, but that of some record is another number")
    price = np.asarray(costs, dtype=np.float64)
    if price.shape != (shown.shape[1],) or not ((price >= 0) & (price <= 1)).all():
        raise ValueError("costs must be one number between 0 and 1 for each class; divide them by the largest one")
    own, paid = shown[np.arange(len(places)), places], price[places]
    return lambda t: np.asarray(paid * (own > t))


def _same_shape(shown: Any, truth: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, true = np.asarray(shown, dtype=np.float64), np.asarray(truth)
    if values.ndim != 2 or true.shape != values.shape:
        raise ValueError("the true labels must be an indicator for each record and label, (n, n_labels)")
    if not np.isin(true, (0, 1)).all():
        raise ValueError("the true labels must be 0 or 1")
    return values, true.astype(bool)
