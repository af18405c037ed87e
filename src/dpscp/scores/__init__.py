"""Nonconformity scores: how badly a candidate y fits what the model says about x.

``functions`` has them as plain functions of a model's outputs; ``labels`` and ``intervals`` as values that know the
score, the set that a threshold makes of it, and its public range. The estimators take a name, a value, or (labels) a
function. To add one: write its value, and a line in the table of its file.
"""

from dpscp._base.trust import OWN_SCORE
from dpscp.scores.functions import (
    absolute_residual,
    aps,
    aps_of_labels,
    cqr,
    infinite_without_probabilities,
    lac,
    lac_of_labels,
    normalized_residual,
    raps,
    raps_of_labels,
    raps_range,
)
from dpscp.scores.intervals import INTERVAL_SCORES, IntervalScore, Pair, interval_score
from dpscp.scores.labels import LABEL_SCORES, LabelScore, label_score

__all__ = [
    "INTERVAL_SCORES",
    "LABEL_SCORES",
    "OWN_SCORE",
    "IntervalScore",
    "LabelScore",
    "Pair",
    "absolute_residual",
    "aps",
    "aps_of_labels",
    "cqr",
    "infinite_without_probabilities",
    "interval_score",
    "label_score",
    "lac",
    "lac_of_labels",
    "normalized_residual",
    "raps",
    "raps_of_labels",
    "raps_range",
]
