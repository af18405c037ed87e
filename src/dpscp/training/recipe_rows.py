"""The preprocessing of the recipe: how rows are bounded and scaled, from public numbers only.

Theory: Facts 1 and 5
"""

import math
from dataclasses import dataclass
from typing import Any

from dpscp._base.checks import check_positive
from dpscp.training.preprocessing.features import (
    NormClip,
    PrivateCentering,
    PrivateStandardize,
    PublicBounds,
    UnitNorm,
)
from dpscp.training.preprocessing.quantile_transform import QuantileTransform
from dpscp.training.preprocessing.step import Step
from dpscp.training.preprocessing.whitening import PrivateWhitening

# Rows without declared bounds that are wider than this are taken as embeddings, and scaled to norm one.
WIDEST_UNBOUNDED = {"classification": 127, "regression": 256}
# Below it hidden layers do not pay. A classifier does better with centering and whitening than with private feature
# scales, a regression with random features and a linear model: docs/recipe.md.
WEAK_SIGNAL = 300
# The value of an indicator in a weak regression, where it has one of its own: a longer number is learned sooner.
_WEAK_INDICATOR = 2.0
# The part of the training mu^2 for the scales, and the quantiles, of a table's features, and for all private steps
# before a linear head.
TABLE_SHARE, EMBEDDING_SHARE = 0.1, 0.2
# Above this noise of one count, as a share of the records, a quantile tells less than its noise hides.
LARGEST_QUANTILE_NOISE = 0.08


def pays_as_quantiles(signal: float, n_features: int, share: float = TABLE_SHARE) -> bool:
    """Whether quantiles of the features are expected to be worth the noise of their distribution functions.

    ``signal`` is records times mu of the training budget, ``share`` the part of its mu^2 for the counts. The noise of
    one count, as a share of the records, is compared with a limit. Measured on tables: docs/recipe.md.

    >>> pays_as_quantiles(250, 8), pays_as_quantiles(100, 8), pays_as_quantiles(1_000, 500)
    (True, False, False)
    """
    counts = n_features * len(QuantileTransform.branching)
    return math.sqrt(counts / share) / signal <= LARGEST_QUANTILE_NOISE


@dataclass(frozen=True)
class TableRows:
    """How rows are bounded, and the first preprocessing steps that follow from it."""

    width: int
    kind: str
    bound: float | None
    bounds: tuple[Any, Any] | None
    indicators: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "clipped":
            check_positive("feature_bound", self.bound)
        if self.kind == "bounded" and self.bounds is None:
            raise ValueError("features='bounded' needs feature_bounds=(low, high), public bounds of every feature")

    @property
    def norm(self) -> float:
        """A public bound on the norm of a row after `public_steps`; for standardized rows one that rarely acts."""
        if self.kind == "clipped":
            assert self.bound is not None
            return float(self.bound)
        return {"unit": 1.0, "bounded": math.sqrt(self.width), "standardized": 4 * math.sqrt(self.width)}[self.kind]

    def public_steps(self) -> tuple[Step, ...]:
        """Steps that bound a row with public constants only."""
        if self.kind == "bounded":
            assert self.bounds is not None
            return (PublicBounds(*self.bounds),)
        return (UnitNorm(),) if self.kind == "unit" else (NormClip(self.norm),)

    @property
    def numeric_columns(self) -> tuple[int, ...]:
        """Columns that are not declared to be indicators."""
        indicators = set(self.indicators)
        return tuple(column for column in range(self.width) if column not in indicators)

    def direction_steps(self, signal: float, *, whiten: bool) -> tuple[Step, ...]:
        """Steps after which rows have norm one and no common direction; the length of a wide row says little.

        Numeric columns beside indicators are scaled and get their quantiles first, where these pay.
        """
        first: tuple[Step, ...] = self.public_steps() if self.kind == "bounded" else ()
        last: tuple[Step, ...] = (UnitNorm(),)
        if self.kind != "standardized":
            last = (*last, PrivateCentering(), UnitNorm())
        if whiten:
            last = (*last, PrivateWhitening())
        columns = self.numeric_columns if self.kind == "bounded" else ()
        n_private = 1 + sum(not step.is_public for step in last)
        if columns and pays_as_quantiles(signal, len(columns), EMBEDDING_SHARE / n_private):
            first = (self._quantiles(columns),)
        return (*first, *last)

    def standardizing_steps(self, signal: float) -> tuple[Step, ...]:
        """Steps after which numbers have about mean 0 and spread 1; with quantiles where they pay."""
        if self.kind == "standardized":
            return ()
        if self.kind == "bounded":
            return (self._bounded_step(signal),)
        # inside a ball every feature lies within the radius; a typical one within radius / sqrt(width) times
        # a few
        reach = min(self.norm, 5 * self.norm / math.sqrt(self.width))
        return (*self.public_steps(), PrivateStandardize(-reach, reach))

    def _bounded_step(self, signal: float) -> Step:
        """The step that scales the columns of a table; indicators stay 0 or 1 where the other columns get quantiles.

        Standardized, an indicator of a rare category would be the longest number of its rows.
        """
        assert self.bounds is not None
        columns = self.numeric_columns
        if columns and pays_as_quantiles(signal, len(columns)):
            return self._quantiles(columns, indicator=_WEAK_INDICATOR if signal < WEAK_SIGNAL else 1.0)
        if not columns and signal >= WEAK_SIGNAL:
            return PublicBounds(-1.0, 1.0)  # leaves 0 and 1 as they are
        return PrivateStandardize(*self.bounds)

    def _quantiles(self, columns: tuple[int, ...], *, indicator: float = 1.0) -> QuantileTransform:
        assert self.bounds is not None
        counted = columns if len(columns) < self.width else None
        return QuantileTransform(*self.bounds, self.width, columns=counted, others=indicator)
