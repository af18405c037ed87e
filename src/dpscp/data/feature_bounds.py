"""Define the bounds of a table's features, declared or found by a fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.checks import check_choice, check_count, check_positive, check_range
from dpscp.data.scales import LINEAR, SCALES, bounds_on_scales, check_scale, from_scale

# Words in place of bounds: the fit finds them with noise; or the column is 0 or 1.
PRIVATE, INDICATOR, CATEGORIES = "private", "indicator", "categories"
_FLOATS = np.finfo(np.float64)


@dataclass(frozen=True)
class RowNorm:
    """Bound the norm of each row, as ``feature_bounds``: longer rows are shortened.

    Parameters
    ----------
    bound : float
        The public bound.
    """

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", check_positive("RowNorm", self.bound))


@dataclass(frozen=True)
class FeatureBounds:
    """Bounds of the features of a fit.

    Attributes
    ----------
    low, high : float, or array of shape (n_features,)
        The public bounds, in the units of the features. A feature whose bounds the fit finds has -1 and 1: training
        sees it in units of the found bounds.
    private : tuple of int
        The features whose bounds the fit finds.
    found : tuple of int
        The features whose bounds the fit has found; ``low`` and ``high`` then contain them.
    indicators : tuple of int
        The features that are declared to be 0 or 1.
    scales : tuple of str, optional
        The public scale of each feature; None: all are linear. ``low`` and ``high`` are always in the units of the
        features.
    categories : tuple of (int, int)
        The features that are codes of categories, 0 to k - 1, with the number k of categories.
    """

    low: Any
    high: Any
    private: tuple[int, ...] = ()
    found: tuple[int, ...] = ()
    indicators: tuple[int, ...] = ()
    scales: tuple[str, ...] | None = None
    categories: tuple[tuple[int, int], ...] = ()

    @property
    def pair(self) -> tuple[Any, Any]:
        """The bounds as (low, high)."""
        return self.low, self.high

    @property
    def on_scales(self) -> "FeatureBounds":
        """The bounds on the public scales of the features; private ones are found."""
        scales = self.scales
        if scales is None:
            return self
        low, high = (np.broadcast_to(end, len(scales)).astype(np.float64) for end in self.pair)
        declared = [place for place in range(len(scales)) if place not in self.private]
        low[declared], high[declared] = bounds_on_scales(
            (low[declared], high[declared]), tuple(scales[place] for place in declared)
        )
        return replace(self, low=low, high=high)

    def with_found(self, ends: tuple[Any, Any]) -> "FeatureBounds":
        """Return all bounds in the units of the features.

        ``ends`` are (lows, highs) of all features. The ends of the private features were found, on their scales.
        """
        whole = [np.broadcast_to(end, len(ends[0])).astype(np.float64) for end in self.pair]
        for end, found in zip(whole, ends, strict=True):
            for place in self.private:
                in_units = found[place] if self.scales is None else from_scale(found[place], self.scales[place])
                end[place] = np.clip(in_units, _FLOATS.min, _FLOATS.max)
        return replace(self, low=whole[0], high=whole[1], private=(), found=self.private)


def stated_bounds(facts: Mapping[str, Any], width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the public (lows, highs) of the features.

    They are -1 and 1 for features without bounds in the public facts.
    """
    stated = facts.get("feature_bounds", (None, None))
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), width) for end in stated)
    return np.where(np.isnan(low), -1.0, low), np.where(np.isnan(high), 1.0, high)


def column_bounds(bounds: Any, width: int, names: Sequence[Any] | None) -> FeatureBounds | None:
    """Return the bounds of the features.

    Parameters
    ----------
    bounds : None, FeatureBounds, "private", (low, high), or a mapping
        Two numbers for all features, or two arrays of shape (width,). Or a mapping from column name (from index where X
        has no names) to (low, high), "private", "indicator" for a column of 0 and 1, or ("categories", k) for a column
        of codes from 0 to k - 1. There a scale may follow: (low, high, "log"), ("private", "log").
    width : int
        The number of features.
    names : sequence, optional
        The names of the features.

    Returns
    -------
    FeatureBounds, or None without bounds
    """
    if bounds is None or isinstance(bounds, FeatureBounds):
        return bounds
    columns = list(range(width)) if names is None else list(names)
    if isinstance(bounds, Mapping):
        return _bounds_by_column(bounds, columns)
    if isinstance(bounds, str):
        check_private("feature_bounds", bounds)
        return FeatureBounds(-1.0, 1.0, tuple(range(width)))
    if isinstance(bounds, list | tuple) and all(np.ndim(end) == 0 for end in bounds):
        return FeatureBounds(*check_range("feature_bounds", bounds))
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), width) for end in bounds)
    except (TypeError, ValueError):
        raise ValueError(
            f"feature_bounds must be (low, high): two numbers, or two arrays with one number for each of the {width} "
            "features; 'private'; {column: (low, high), 'private', 'indicator' or ('categories', k)}; or "
            "dp.RowNorm(bound)"
        ) from None
    for column, *pair in zip(columns, low.tolist(), high.tolist(), strict=True):
        check_range(f"feature_bounds of column {column!r}", pair)
    return FeatureBounds(low, high)


def _separate_scale(declared: Any) -> tuple[Any, str]:
    """Return bounds without the scale that follows them, and the scale."""
    last = declared[-1] if isinstance(declared, list | tuple) and len(declared) > 1 else None
    if not isinstance(last, str) or last in (PRIVATE, INDICATOR):
        return declared, LINEAR
    bounds = declared[0] if len(declared) == 2 else declared[:-1]
    return bounds, check_choice("the scale in feature_bounds", last, SCALES)


def _with_scales(bounds: FeatureBounds, scales: Sequence[str], columns: Sequence[Any]) -> FeatureBounds:
    """Return the bounds with a scale for each feature.

    A scale that is not defined within declared bounds is refused.
    """
    if set(scales) <= {LINEAR}:
        return bounds
    lows, highs = (np.broadcast_to(end, len(scales)).tolist() for end in bounds.pair)
    for place, (column, scale) in enumerate(zip(columns, scales, strict=True)):
        known = None if place in bounds.private else (lows[place], highs[place])
        check_scale(f"scale of feature_bounds[{column!r}]", scale, known)
    return replace(bounds, scales=tuple(scales))


def check_private(name: str, word: str) -> str:
    """Return the word for private bounds; ValueError for another word."""
    if word != PRIVATE:
        raise ValueError(f"{name} must be (low, high) or {PRIVATE!r}, got {word!r}")
    return word


def _bounds_by_column(bounds: Mapping[Any, Any], columns: list[Any]) -> FeatureBounds:
    kind = "column of X" if any(isinstance(c, str) for c in columns) else "column of X (by index: it has no names)"
    for named, where, remedy in (
        ([c for c in columns if c not in bounds], "feature_bounds lacks", "declare its (low, high), or 'private'"),
        ([c for c in bounds if c not in columns], "feature_bounds names", "X has no such column, so remove it"),
    ):
        if named:
            raise ValueError(f"{where} {kind} {', '.join(map(repr, named))}; {remedy}")
    split = {column: _separate_scale(bounds[column]) for column in columns}
    ends = [_pair_of(f"feature_bounds[{column!r}]", declared) for column, (declared, _) in split.items()]
    low, high = np.array(ends, dtype=np.float64).T
    words = {place: _word_of(declared) for place, (declared, _) in enumerate(split.values())}
    private, indicators = (tuple(p for p, word in words.items() if word == kind) for kind in (PRIVATE, INDICATOR))
    codes = tuple((place, int(bounds[columns[place]][1])) for place, word in words.items() if word == CATEGORIES)
    found = FeatureBounds(low, high, private, indicators=indicators, categories=codes)
    return _with_scales(found, [scale for _, scale in split.values()], columns)


def _word_of(declared: Any) -> str | None:
    """Return the word in place of bounds; None for numbers."""
    word = declared[0] if isinstance(declared, list | tuple) and len(declared) else declared
    return word if isinstance(word, str) else None


def _pair_of(name: str, declared: Any) -> tuple[float, float]:
    if _word_of(declared) == CATEGORIES and len(declared) == 2:
        return 0.0, float(check_count(f"the number of categories of {name}", declared[1]))
    if isinstance(declared, str):
        check_choice(name, declared, (PRIVATE, INDICATOR))
        return (-1.0, 1.0) if declared == PRIVATE else (0.0, 1.0)
    return check_range(name, declared)
