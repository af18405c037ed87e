"""Predict synthetic rows as examples of the answers of a release; no record is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpscp.data.groups import read_groups
from dpscp.training.prefit import Prefit

__all__ = ["Example", "predict_examples"]

# The number of synthetic rows, of which the first ones with different answers are shown.
_TRIED, _COUNT = 64, 4
_SHOWN = 6


@dataclass(frozen=True)
class Example:
    """Hold a synthetic row and its prediction.

    Attributes
    ----------
    values : the first columns of the row, by name.
    hidden : number of columns that are not in ``values``.
    answers : the columns of ``predict_columns``, by name.
    """

    values: Mapping[str, str]
    hidden: int
    answers: Mapping[str, str]


def predict_examples(estimator: Any) -> tuple[Example, ...]:
    """Predict a few synthetic rows, spread evenly over the public ranges of the columns; no random number is drawn.

    The result is empty without a schema and its ranges, and if functions of the caller (groups, scores, models) would
    be called.
    """
    schema = vars(estimator).get("schema_")
    if schema is None or isinstance(estimator.estimator, Prefit) or estimator.task_.score_assumptions:
        return ()
    groups = read_groups(estimator.groups)
    if (groups is None and estimator.group_values_ is not None) or (groups is not None and groups.calls_functions):
        return ()
    import pandas as pd

    columns = schema.feature_columns
    places = (np.outer(np.sqrt(np.arange(len(columns)) + 0.5), np.arange(1, _TRIED + 1))) % 1
    values = {column.name: column.kind.spread(column, place) for column, place in zip(columns, places, strict=True)}
    if any(found is None for found in values.values()):
        return ()
    found = estimator.predict_columns(pd.DataFrame(values))
    answers = [{name: _text(column[k]) for name, column in found.items()} for k in range(_TRIED)]
    shown = list(values)[:_SHOWN]
    # later rows with the same answers come last, because sorting by whether an answer is new keeps the order
    chosen = sorted(range(_TRIED), key=lambda k: answers[k] in answers[:k])[:_COUNT]
    return tuple(
        Example({name: _text(values[name][k]) for name in shown}, len(values) - len(shown), answers[k]) for k in chosen
    )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
