"""Conformity scores: how badly an answer y fits what the model predicts for x.

``labels`` and ``intervals`` have the scores as functions of a model's outputs, and as objects with the score, its
public range and, for intervals, the set of a threshold. The estimators take a name, such an object, or a function of
probabilities. To add a score, write its class and add a line to the table of its module.
"""

from dpscp.scores.intervals import (
    INTERVAL_SCORES,
    SIDES,
    IntervalScore,
    Pair,
    absolute_residual,
    cqr,
    interval_score,
    normalized_residual,
    sided_score,
)
from dpscp.scores.labels import (
    LABEL_SCORES,
    LabelScore,
    aps,
    aps_of_labels,
    infinite_without_probabilities,
    label_score,
    lac,
    lac_of_labels,
    raps,
    raps_of_labels,
    raps_range,
)
from dpscp.scores.losses import class_costs, false_discoveries, missed_labels

__all__ = [
    "INTERVAL_SCORES",
    "LABEL_SCORES",
    "SIDES",
    "IntervalScore",
    "LabelScore",
    "Pair",
    "absolute_residual",
    "aps",
    "aps_of_labels",
    "class_costs",
    "cqr",
    "false_discoveries",
    "infinite_without_probabilities",
    "interval_score",
    "label_score",
    "lac",
    "lac_of_labels",
    "missed_labels",
    "normalized_residual",
    "raps",
    "raps_of_labels",
    "raps_range",
    "sided_score",
]
