"""Choose the bounds of the features of a fit from public numbers: declared ones, found ones, or none."""

import warnings
from collections.abc import Sequence
from typing import Any

from dpscp.data.feature_bounds import PRIVATE, FeatureBounds, column_bounds
from dpscp.exceptions import HintWarning
from dpscp.training.recipe import WIDEST_UNBOUNDED, pays_as_quantiles

# A message names so many columns.
_SHOWN = 8


def choose_bounds(
    declared: Any,
    width: int,
    names: Sequence[Any] | None,
    signal: float,
    *,
    recipe_task: str | None,
    in_schema: bool,
    needs_public: str | None,
) -> FeatureBounds | None:
    """Return declared bounds, or bounds that the fit finds where nobody declares any and that pays; or give a hint.

    Parameters
    ----------
    declared : bounds as ``column_bounds`` takes them, or None
    width : int
        The number of features.
    names : sequence or None
        Their names; None where X has none.
    signal : float
        Records times mu of the budget.
    recipe_task : str or None
        What the recipe trains; None for another estimator, which has a rule of its own for features without bounds.
    in_schema : bool
        Whether a schema declares the columns.
    needs_public : str or None
        Why bounds must not depend on the records; None where they may.
    """
    if declared is None:
        if recipe_task is None or width > WIDEST_UNBOUNDED[recipe_task]:
            return None
        if needs_public is None and pays_as_quantiles(signal, width):
            return column_bounds(PRIVATE, width, names)
        _hint(
            "feature_bounds is None, so each row is scaled to norm one, which loses information of a table. Pass "
            "public bounds of the features, such as feature_bounds=(0, 100) or {column: (low, high)}"
            + (", or feature_bounds='private'" if needs_public is None else "")
        )
        return None
    bounds = column_bounds(declared, width, names)
    if bounds is None or not bounds.private:
        return bounds
    columns = range(width) if names is None else names
    rest = f" and {len(bounds.private) - _SHOWN} more" if len(bounds.private) > _SHOWN else ""
    shown = ", ".join(repr(columns[place]) for place in bounds.private[:_SHOWN])
    named = f"column{'s' if len(bounds.private) > 1 else ''} {shown}{rest}"
    remedy = "Declare bounds = [low, high] of each in the schema"
    if not in_schema:
        remedy = "Pass feature_bounds={column: (low, high)}"
    elif needs_public is not None:
        raise ValueError(
            f"the schema declares no bounds of {named}, so they would depend on the records, but {needs_public}. "
            f"{remedy}"
        )
    if needs_public is None and not pays_as_quantiles(signal, len(bounds.private)):
        _hint(
            f"the fit finds bounds of {named}, and records and budget are so small that noise may hide where the "
            f"values are. {remedy}, if they are publicly known"
        )
    return bounds


def _hint(text: str) -> None:
    warnings.warn(text, HintWarning, stacklevel=6)
