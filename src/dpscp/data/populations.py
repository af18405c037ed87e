"""Another population than that of the records: a public likelihood ratio, and secret coins that follow it.

Each held-out record is kept with probability w / W, where w is its likelihood ratio and W the public bound. The kept
records are independent draws of the declared population.

Theory: Result K
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.checks import check_positive
from dpscp._base.object_state import copy_if_possible, refuse_memory
from dpscp.data.persons import Persons
from dpscp.data.validation import check_row_by_row, suppress_float_warnings
from dpscp.privacy.random_streams import THINNING, PlacedDraws, stream_seed

Index = NDArray[np.int64]
# A ratio that was computed in floating point may exceed its bound by this part of it: it is put back.
_ROUNDING = 1e-9
_PRIOR_ROUNDING = 1e-6


def check_ratio_bound(bound: object) -> float:
    """Return the public bound of a likelihood ratio, or raise ValueError."""
    value = check_positive("ratio_bound", bound)
    if value < 1:
        raise ValueError(f"ratio_bound must be at least 1, got {value:g}: a likelihood ratio has mean 1")
    return value


def check_ratios(ratios: Any, bound: float, n: int) -> FloatArray:
    """Return one likelihood ratio for each record; ValueError without a value for a ratio that is not within bounds."""
    found = np.asarray(ratios)
    if found.shape != (n,) or found.dtype.kind not in "biuf":
        raise ValueError("likelihood_ratio must hold one number for each record")
    found = found.astype(np.float64)
    if not np.all((found >= 0) & (found <= bound * (1 + _ROUNDING))):
        raise ValueError(
            f"likelihood_ratio must lie between 0 and ratio_bound={bound:g}, and that of some record does not; give a "
            "larger ratio_bound, from public knowledge"
        )
    return np.asarray(np.minimum(found, bound))


def keep_by_ratio(ratios: FloatArray, bound: float, coins: FloatArray) -> NDArray[np.bool_]:
    """Return which records are kept, with probability ratio / bound; ``coins`` are uniform in [0, 1).

    Theory: Result K
    """
    return np.asarray(bound * coins < ratios)


@dataclass(frozen=True)
class LikelihoodRatio:
    """A public function of rows, or of rows and targets, at most ``bound`` everywhere."""

    function: Callable[..., Any]
    bound: float
    takes_targets: bool

    @classmethod
    def of(cls, function: Any, bound: Any) -> "LikelihoodRatio | None":
        """Return the declared ratio; None without one."""
        if function is None and bound is None:
            return None
        if function is None or bound is None:
            raise ValueError("likelihood_ratio and ratio_bound go together: the ratio, and its public upper bound")
        if not callable(function):
            raise TypeError(f"likelihood_ratio must be a function of rows, got {type(function).__name__}")
        return cls(function, check_ratio_bound(bound), _takes_targets(function))

    @classmethod
    def of_priors(cls, class_prior: Any, source_prior: Any, classes: tuple[Any, ...]) -> "LikelihoodRatio":
        """Return the ratio of two public laws of the label; how a label looks is the same in both populations."""
        new, old = _prior("class_prior", class_prior, classes), _prior("source_prior", source_prior, classes)
        ratios = ClassRatios(classes, tuple(float(value) for value in new / old))
        return cls(ratios, check_ratio_bound(max(1.0, *ratios.ratios)), takes_targets=True)

    def ratios_of(self, rows: Any, targets: Any, n: int, *, thorough: bool) -> FloatArray:
        """Return each record's ratio; a function that looks at more than the record itself is refused."""

        def ratios(places: Any, size: int) -> FloatArray:
            part = (_take(rows, places), targets[places]) if self.takes_targets else (_take(rows, places),)
            return check_ratios(copy_if_possible(self.function)(*part), self.bound, size)

        everything = np.arange(n)
        name = "likelihood_ratio"
        with suppress_float_warnings(), refuse_memory(name, self.function) if thorough else nullcontext():
            found = ratios(everything, n) if n else np.empty(0)
            check_row_by_row(name, ratios, everything, found, thorough=thorough)
        return found


def _take(rows: Any, places: Index) -> Any:
    """Some rows of an array or a frame."""
    if len(places) == len(rows) and np.array_equal(places, np.arange(len(rows))):
        return rows
    return rows.iloc[places] if hasattr(rows, "iloc") else rows[places]


def _takes_targets(function: Callable[..., Any]) -> bool:
    """Whether a function takes targets beside rows: it has two parameters without a default."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a compiled function says nothing
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in found) > 1


@dataclass(frozen=True)
class ClassRatios:
    """The likelihood ratio of each public label."""

    classes: tuple[Any, ...]
    ratios: tuple[float, ...]

    def __call__(self, rows: Any, labels: Any) -> FloatArray:  # noqa: ARG002 (a ratio takes rows and labels)
        """Return the ratio of each record's label."""
        found = np.full(len(labels), np.nan)
        for label, ratio in zip(self.classes, self.ratios, strict=True):
            found[np.asarray(labels) == label] = ratio
        return found


def _prior(name: str, prior: Any, classes: tuple[Any, ...]) -> FloatArray:
    """The public probability of each class, in the order of the classes."""
    if not isinstance(prior, Mapping):
        raise TypeError(f"{name} must be a dictionary {{class: probability}}, got {type(prior).__name__}")
    if set(prior) != set(classes):
        raise ValueError(f"{name} must give a probability to each of the classes, and to no other label")
    found = np.array([float(prior[label]) for label in classes])
    is_source = name == "source_prior"
    if not np.all(found > 0 if is_source else found >= 0) or abs(found.sum() - 1) > _PRIOR_ROUNDING:
        least = "positive" if is_source else "at least 0"
        raise ValueError(f"{name} must be probabilities that are {least} and add up to 1")
    return found


@dataclass(frozen=True)
class Thinning:
    """Secret coins that keep records in proportion to a likelihood ratio.

    Each person has one coin, that of its place, so a block that is read again keeps the same records. One row of each
    person is counted, and the ratio of that row decides.
    """

    ratio: LikelihoodRatio
    coins: PlacedDraws

    @classmethod
    def of(cls, ratio: LikelihoodRatio, random_state: int | None) -> "Thinning":
        """Return coins of the operating system, or of a seed."""
        return cls(ratio, PlacedDraws.of(stream_seed(random_state, THINNING)))

    def place_groups(self, ratios: FloatArray, groups: Index | None, owners: Persons, places: range | Index) -> Index:
        """Return the group of each row, -1 for a rejected one: it counts in no search.

        Without groups the kept rows are all of group 0.

        Parameters
        ----------
        ratios : array of shape (n,)
            The likelihood ratio of each row.
        groups : array of shape (n,) or (n, groups_per_record), optional
        owners : Persons
            Which rows belong to which person.
        places : range or array
            The place of each person among all persons of the table.

        Theory: Result K
        """
        is_kept = keep_by_ratio(ratios, self.ratio.bound, np.repeat(self.coins.uniform(places), owners.sizes))
        if groups is None:
            return np.where(is_kept, 0, -1)
        return np.where(is_kept if groups.ndim == 1 else is_kept[:, None], groups, -1)
