"""The numbers behind a certificate, as typed fields and as a mapping."""

import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dpscp.privacy.units import RECORDS, Relation, Unit

__all__ = ["Terms"]

# Fields whose name in the mapping depends on the unit.
_BY_UNIT = ("unit", "n_units", "calibration_units")
_CALIBRATION = "calibration_{}s"
_TRUTHS = ("finite_threshold_expected", "classes_declared", "running_maximum")


@dataclass(frozen=True)
class Terms(Mapping[str, Any]):
    """The numbers of one certificate; None if a search had no such number.

    As a mapping it shows the numbers that are present, by field name; ``n_units`` is shown as ``n_records`` or
    ``n_persons``. ``dpscp.report.numbers.TERMS`` explains each of them.

    Attributes
    ----------
    unit : Unit
        The unit of privacy; ``n_units`` counts such units in the whole table, ``calibration_units`` those held out.
    n_units, calibration_units : int or None
    inner_level : float or None
        The level at which the search works.
    count_noise, steps : float and int, or None
        The noise of each count and the number of counts.
    noise_offset, rank_target : float or None
        The ranks added for the noise, and the noisy count that is accepted; means over the steps.
    size_noise, released_size : float or None
        The noise on the number of scores, and the noisy number.
    smallest_n, smallest_n_calibration, smallest_group, smallest_group_calibration : int or None
        Full sets are expected with fewer records.
    finite_threshold_expected : bool
    value_buffer : float or None
        What was added to the threshold for the shift by one record.
    ideal_miss_bound : float or None
    release_confidence, release_level : float or None
        The confidence and the level of a single release.
    conformity_score : str or None
    classes_declared : bool
    resolution : int or None
        Losses are counted in multiples of one over this number.
    running_maximum : bool
    ratio_bound : float or None
    groups_per_record : int or None
        The public maximum of groups of one record, where groups overlap.
    relation : Relation
        Between which tables training is private.

    Theory: Result C; Which one to use
    """

    unit: Unit = RECORDS
    n_units: int | None = None
    calibration_units: int | None = None
    inner_level: float | None = None
    count_noise: float | None = None
    steps: int | None = None
    noise_offset: float | None = None
    rank_target: float | None = None
    size_noise: float | None = None
    released_size: float | None = None
    smallest_n: int | None = None
    smallest_n_calibration: int | None = None
    smallest_group: int | None = None
    smallest_group_calibration: int | None = None
    finite_threshold_expected: bool = True
    value_buffer: float | None = None
    ideal_miss_bound: float | None = None
    release_confidence: float | None = None
    release_level: float | None = None
    conformity_score: str | None = None
    classes_declared: bool = True
    resolution: int | None = None
    running_maximum: bool = False
    ratio_bound: float | None = None
    groups_per_record: int | None = None
    relation: Relation = Relation.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation(self.relation))
        if not isinstance(self.unit, Unit):
            raise TypeError(f"unit must be a unit of privacy, got {type(self.unit).__name__}")
        for name in _TRUTHS:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {type(getattr(self, name)).__name__}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real)):
                raise TypeError(f"{name} must be a number, got {type(value).__name__}")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Terms) else Mapping.__eq__(self, other)

    @property
    def is_grouped(self) -> bool:
        """Whether each of several groups has its own threshold."""
        return self.smallest_group is not None

    @classmethod
    def from_mapping(cls, shown: Mapping[str, Any], unit: Unit = RECORDS) -> "Terms":
        """Return the terms of a mapping; ``TypeError`` for an unknown name.

        Parameters
        ----------
        shown : mapping
        unit : Unit, optional
            Default: a record.

        Returns
        -------
        Terms
        """
        found = dict(shown)
        found.pop("rows_per_person", None)
        named = {"n_units": unit.count_name, "calibration_units": _CALIBRATION.format(unit.noun)}
        own = {field: found.pop(name, None) for field, name in named.items()}
        unknown = sorted(set(found) - {field.name for field in fields(cls)} | set(found) & set(_BY_UNIT))
        if unknown:
            raise TypeError(f"a certificate has no term {unknown[0]!r}; use the fields of {cls.__name__}")
        return cls(unit, **own, **found)

    def _shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {} if self.n_units is None else {self.unit.count_name: self.n_units}
        found |= self.unit.limit_facts
        if self.calibration_units is not None:
            found[_CALIBRATION.format(self.unit.noun)] = self.calibration_units
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _BY_UNIT}
        if self.classes_declared:
            del rest["classes_declared"]  # shown only if False
        if not self.running_maximum:
            del rest["running_maximum"]
        rest["relation"] = None if self.relation is Relation.ADD_OR_REMOVE else str(self.relation)  # the usual one
        return found | {name: value for name, value in rest.items() if value is not None}

    def __getitem__(self, name: str) -> Any:
        return self._shown()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown())

    def __len__(self) -> int:
        return len(self._shown())


_NUMBERS = tuple(
    field.name for field in fields(Terms) if field.name not in ("unit", *_TRUTHS, "conformity_score", "relation")
)
