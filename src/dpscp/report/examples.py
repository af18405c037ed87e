"""Predict synthetic rows, so that a reader sees what a release answers; no record is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscp._base.format import format_level
from dpscp.core.tasks import Classification, Regression
from dpscp.data.feature_bounds import stated_bounds
from dpscp.data.groups import read_groups
from dpscp.training.prefit import Prefit

__all__ = ["Example", "predict_examples"]

# Among so many synthetic rows, the first ones with different answers are shown.
_TRIED, _COUNT = 64, 4
# Rows with more features without names are embeddings, which tell a reader nothing.
_MOST_FEATURES = 20
_SHOWN = 6


@dataclass(frozen=True)
class Example:
    """Hold a synthetic row and its prediction.

    Attributes
    ----------
    values : the first columns of the row, by name.
    hidden : number of columns that are not in ``values``.
    prediction : the most likely answer.
    answers : the set or interval of each level, as (level, text).
    """

    values: Mapping[str, str]
    hidden: int
    prediction: str
    answers: tuple[tuple[str, str], ...]


def predict_examples(estimator: Any) -> tuple[Example, ...]:
    """Predict a few synthetic rows, spread evenly over the public ranges of the features.

    Returns an empty tuple where such rows make no sense (images, embeddings), or where the caller's own functions would
    be called (groups, scores, models).
    """
    if not isinstance(vars(estimator).get("task_"), Classification | Regression):
        return ()
    groups = read_groups(estimator.groups)
    own_functions = isinstance(estimator.estimator, Prefit) or bool(estimator.task_.score_assumptions)
    own_functions = own_functions or (groups is not None and groups.calls_functions)
    lost_groups = estimator.group_values_ is not None and estimator.groups is None
    if own_functions or lost_groups or estimator.input_shape_ is not None:
        return ()
    rows = _synthetic_columns(estimator)
    if rows is None:
        return ()
    values, inputs = rows
    answers = _answers(estimator, inputs)
    shown = list(values)[:_SHOWN]
    # later rows with the same answers come last, because sorting by whether an answer is new keeps the order
    chosen = sorted(range(_TRIED), key=lambda k: answers[k] in answers[:k])[:_COUNT]
    return tuple(
        Example({name: _text(values[name][k]) for name in shown}, len(values) - len(shown), *answers[k]) for k in chosen
    )


def _synthetic_columns(estimator: Any) -> tuple[dict[str, Any], Any] | None:
    """Return the values of each column, and the rows that the estimator takes; None without public ranges."""
    schema = estimator.schema_
    if schema is None:
        width = estimator.n_features_in_
        if width > _MOST_FEATURES:
            return None
        low, high = stated_bounds(estimator.ledger_.public_facts, width)
        matrix = low + (high - low) * _positions(width)
        names = vars(estimator).get("feature_names_in_", [f"feature {place + 1}" for place in range(width)])
        return dict(zip(map(str, names), matrix.T, strict=True)), matrix
    import pandas as pd

    columns = [c for c in schema.columns if c.type != "ignore" and c.name not in (*schema.target_names, schema.person)]
    positions = _positions(len(columns)).T
    values: dict[str, Any] = {}
    for column, place in zip(columns, positions, strict=True):
        found = column.kind.spread(column, place)
        if found is None:
            return None
        values[column.name] = found
    return values, pd.DataFrame(values)


def _positions(width: int) -> Any:
    """Return evenly spread points of the unit cube, (_TRIED, width); no random number is drawn."""
    return np.outer(np.arange(1, _TRIED + 1), np.sqrt(np.arange(width) + 0.5)) % 1


def _answers(estimator: Any, inputs: Any) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return prediction, and set or interval of each level, for each row."""
    levels = [format_level(certificate.target) for certificate in estimator.certificates_]
    if isinstance(estimator.task_, Classification):
        labels, sets = estimator.predict_answers(inputs)
        texts = [
            [", ".join(map(str, estimator.classes_[row[:, k]])) or "empty" for k in range(len(levels))] for row in sets
        ]
        predictions = list(map(str, labels))
    else:
        numbers, intervals = estimator.predict_answers(inputs)
        ends, numbers = intervals.reshape(len(numbers), -1, 2, len(levels)), numbers.reshape(len(numbers), -1)
        texts = [
            [", ".join(f"{low:.4g} to {high:.4g}" for low, high in row[:, :, k]) for k in range(len(levels))]
            for row in ends
        ]
        predictions = [", ".join(f"{number:.4g}" for number in row) for row in numbers]
    return [(told, tuple(zip(levels, text, strict=True))) for told, text in zip(predictions, texts, strict=True)]


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
