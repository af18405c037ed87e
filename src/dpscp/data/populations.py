"""Define promises for another population, by a public likelihood ratio.

Secret coins keep records by this ratio. Each held-out record is kept with probability w / W, where w is its likelihood
ratio and W the public bound. The kept records are independent draws of the declared population.

Theory: Result K
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscp._base.arrays import FloatArray
from dpscp._base.callers import ROUNDING, call_on_rows
from dpscp._base.checks import check_positive
from dpscp.data.persons import Persons
from dpscp.privacy.random_streams import THINNING, PlacedDraws, stream_seed

Index = NDArray[np.int64]
_PRIOR_ROUNDING = 1e-6


@dataclass(frozen=True)
class Population:
    """Declare another population than the records', by a public likelihood ratio.

    Parameters
    ----------
    likelihood_ratio : function or array
        A public function of X, or of X and y. It returns for each row, from that row alone, the density w of the
        population that new records come from, relative to that of these records. ``calibrate`` and ``control_risk``
        take an array with the ratio of each record.
    bound : float
        The public upper bound W >= w. About one of W held-out records is kept.
    normalized : bool, default False
        Declares that w has mean 1 over the population of these records. Without groups no record is dropped then: a
        miss counts w / W, and training records may be used. False: w need be correct only up to a factor.

    Examples
    --------
    >>> older = Population(lambda X: 2 * X[:, 1], bound=2.0)
    >>> Population.from_class_priors({"ill": 0.2, "well": 0.8}, {"ill": 0.5, "well": 0.5}).bound
    1.6

    Theory: Result K
    """

    likelihood_ratio: Any
    _: KW_ONLY
    bound: float
    normalized: bool = False

    def __post_init__(self) -> None:
        if not callable(self.likelihood_ratio) and np.ndim(self.likelihood_ratio) != 1:
            raise TypeError(
                "likelihood_ratio must be a function of X (or of X and y), or an array with the ratio of each record, "
                f"got {type(self.likelihood_ratio).__name__}"
            )
        if not isinstance(self.normalized, bool):
            raise TypeError(f"normalized must be True or False, got {type(self.normalized).__name__}")
        object.__setattr__(self, "bound", check_ratio_bound(self.bound))

    @classmethod
    def from_class_priors(cls, target: Mapping[Any, float], source: Mapping[Any, float]) -> "Population":
        """Declare other public probabilities of the classes.

        Within a class, both populations have one distribution.

        Parameters
        ----------
        target : dict of {label: probability}
            The probabilities in the population of new records.
        source : dict of {label: probability}
            The probabilities in the population of these records.
        """
        new, old = _check_prior("target", target), _check_prior("source", source, positive=True)
        if set(new) != set(old):
            raise ValueError("target and source must give a probability to the same classes")
        shares = tuple(new[label] for label in old)
        ratios = ClassRatios(tuple(old), tuple(new[label] / old[label] for label in old), shares)
        return cls(ratios, bound=max(1.0, *ratios.ratios), normalized=True)

    @property
    def class_shares(self) -> dict[Any, float]:
        """The declared probability of each class among new records; may be empty."""
        declared = self.likelihood_ratio
        if not isinstance(declared, ClassRatios):
            return {}
        return dict(zip(declared.classes, declared.target, strict=True))

    @property
    def is_array(self) -> bool:
        """Whether an array of ratios is declared, not a function."""
        return not callable(self.likelihood_ratio)

    def check_classes(self, classes: tuple[Any, ...] | None) -> None:
        """Refuse class probabilities that do not match the public classes.

        The classes are None for a regression.
        """
        ratios = self.likelihood_ratio
        if isinstance(ratios, ClassRatios) and (classes is None or set(ratios.classes) != set(classes)):
            raise ValueError(
                "Population.from_class_priors needs a classifier with classes=[...], and a probability for each of "
                "these classes and for no other label"
            )

    def ratios_of(self, rows: Any, targets: Any, n: int) -> FloatArray:
        """Return each record's ratio, computed from that record alone.

        A function that uses more is refused.
        """
        if self.is_array:
            raise ValueError(
                "population needs a function of X (or of X and y) here; an array of ratios is for calibrate and "
                "control_risk"
            )
        tables = (rows, targets) if _takes_targets(self.likelihood_ratio) else (rows,)
        return call_on_rows(
            "population", self.likelihood_ratio, tables, n, read=self._read, empty=np.empty(0), tolerance=ROUNDING
        )

    def of_records(self, n: int) -> FloatArray:
        """Return the ratios of n records in memory, which are declared as an array."""
        if not self.is_array:
            raise ValueError("population needs an array with the ratio of each record here: dp.Population(w, bound=W)")
        return self._read(self.likelihood_ratio, n)

    def _read(self, ratios: Any, n: int) -> FloatArray:
        """Return one ratio for each record.

        An error about a ratio outside its bounds contains no value.
        """
        found = np.asarray(ratios)
        if found.shape != (n,) or found.dtype.kind not in "biuf":
            raise ValueError("population must have one number for each record")
        found = found.astype(np.float64)
        # a ratio that was computed in floating point may exceed its bound by rounding
        if not np.all((found >= 0) & (found <= self.bound * (1 + ROUNDING))):
            raise ValueError(
                f"the likelihood ratio must lie between 0 and bound={self.bound:g}, and that of some record does not; "
                "declare a larger bound, from public knowledge"
            )
        return np.asarray(np.minimum(found, self.bound))


def read_population(population: Any) -> Population | None:
    """Return the declared population; ``TypeError`` for another type."""
    if population is None or isinstance(population, Population):
        return population
    raise TypeError(f"population must be a dp.Population, got {type(population).__name__}")


def check_ratio_bound(bound: object) -> float:
    """Return the public bound of a likelihood ratio, or raise ValueError."""
    value = check_positive("bound", bound)
    if value < 1:
        raise ValueError(f"bound must be at least 1, got {value:g}: a likelihood ratio has mean 1")
    return value


def keep_by_ratio(ratios: FloatArray, bound: float, coins: FloatArray) -> NDArray[np.bool_]:
    """Return which records are kept, with probability ratio / bound.

    ``coins`` are uniform in [0, 1).

    Theory: Result K
    """
    return np.asarray(bound * coins < ratios)


def _takes_targets(function: Callable[..., Any]) -> bool:
    """Return whether a function takes targets beside rows.

    It then has two parameters without a default.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a compiled function has no readable signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in found) > 1


@dataclass(frozen=True)
class ClassRatios:
    """The likelihood ratio and the new probability of each public label.

    The probability is that in the population of new records.
    """

    classes: tuple[Any, ...]
    ratios: tuple[float, ...]
    target: tuple[float, ...]

    def __call__(self, rows: Any, labels: Any) -> FloatArray:  # noqa: ARG002 (a ratio takes rows and labels)
        """Return the ratio of each record's label."""
        found = np.full(len(labels), np.nan)
        for label, ratio in zip(self.classes, self.ratios, strict=True):
            found[np.asarray(labels) == label] = ratio
        return found


def _check_prior(name: str, prior: Any, *, positive: bool = False) -> dict[Any, float]:
    """Return the public probability of each class."""
    if not isinstance(prior, Mapping):
        raise TypeError(f"{name} must be a dictionary {{class: probability}}, got {type(prior).__name__}")
    found = {label: float(value) for label, value in prior.items()}
    least = min(found.values(), default=-1.0)
    if not (least > 0 if positive else least >= 0) or abs(sum(found.values()) - 1) > _PRIOR_ROUNDING:
        raise ValueError(
            f"{name} must be probabilities that are {'positive' if positive else 'at least 0'} and add up to 1"
        )
    return found


@dataclass(frozen=True)
class Thinning:
    """Secret coins that keep records in proportion to a likelihood ratio.

    Each person has one coin, which belongs to the person's place. So a block that is read again keeps the same records.
    One row of each person is counted, and the ratio of that row decides.
    """

    population: Population
    coins: PlacedDraws

    @classmethod
    def of(cls, population: Population, random_state: int | None) -> "Thinning":
        """Return coins from the operating system, or from a seed."""
        return cls(population, PlacedDraws.of(stream_seed(random_state, THINNING)))

    def place_groups(self, ratios: FloatArray, groups: Index | None, owners: Persons, places: range | Index) -> Index:
        """Return the group of each row; -1 for a rejected row, which no search counts.

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
        is_kept = keep_by_ratio(ratios, self.population.bound, np.repeat(self.coins.uniform(places), owners.sizes))
        if groups is None:
            return np.where(is_kept, 0, -1)
        return np.where(is_kept if groups.ndim == 1 else is_kept[:, None], groups, -1)
