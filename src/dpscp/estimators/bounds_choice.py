"""Choose the bounds of the features of a fit from public numbers: declared ones, found ones, or none."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpscp.data.feature_bounds import PRIVATE, FeatureBounds, column_bounds
from dpscp.exceptions import HintWarning
from dpscp.training.recipe import WIDEST_UNBOUNDED, pays_as_quantiles

# A message names so many columns.
_SHOWN = 8


@dataclass(frozen=True)
class BoundsChoice:
    """Hold the public numbers that decide how the features of a fit are bounded.

    Attributes
    ----------
    width : the number of features.
    names : their names; None where X has none.
    signal : records times mu of the budget.
    in_schema : whether a schema declares the columns.
    needs_public : why bounds must not depend on the records; None where they may.
    """

    width: int
    names: Sequence[Any] | None
    signal: float
    in_schema: bool
    needs_public: str | None

    def of_declared(self, declared: Any) -> FeatureBounds | None:
        """Return the declared bounds; hint at those that the fit is likely to find in the wrong place."""
        bounds = column_bounds(declared, self.width, self.names)
        if bounds is None or not bounds.private:
            return bounds
        named = self._list_columns(bounds.private)
        remedy = "Declare bounds = [low, high] of each in the schema"
        if not self.in_schema:
            remedy = "Pass feature_bounds={column: (low, high)}"
        elif self.needs_public is not None:
            raise ValueError(
                f"the schema declares no bounds of {named}, so they would depend on the records, but "
                f"{self.needs_public}. {remedy}"
            )
        if self.needs_public is None and not pays_as_quantiles(self.signal, len(bounds.private)):
            warnings.warn(
                f"the fit finds bounds of {named}, and records and budget are so small that noise may hide where the "
                f"values are. {remedy}, if they are publicly known",
                HintWarning,
                stacklevel=6,
            )
        return bounds

    def _list_columns(self, places: tuple[int, ...]) -> str:
        """Return the names of columns in words, or their indices."""
        columns = range(self.width) if self.names is None else self.names
        shown = ", ".join(repr(columns[place]) for place in places[:_SHOWN])
        rest = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        return f"column{'s' if len(places) > 1 else ''} {shown}{rest}"

    def of_table(self, task: str) -> FeatureBounds | None:
        """Return bounds that the fit finds, where nobody declares any and that pays; else a hint is given."""
        if self.width > WIDEST_UNBOUNDED[task]:
            return None
        if self.needs_public is None and pays_as_quantiles(self.signal, self.width):
            return column_bounds(PRIVATE, self.width, self.names)
        warnings.warn(
            "feature_bounds is None, so each row is scaled to norm one, which loses information of a table. Pass "
            "public bounds of the features, such as feature_bounds=(0, 100) or {column: (low, high)}"
            + (", or feature_bounds='private'" if self.needs_public is None else ""),
            HintWarning,
            stacklevel=6,
        )
        return None
