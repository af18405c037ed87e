"""The certificate: the proven coverage of one release, in numbers and words."""

import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from dpscp._base.assumptions import Assumption, first_words, require_assumptions
from dpscp._base.checks import check_probability
from dpscp._base.format import at_least, at_most, format_level, format_odds, html_card, html_paragraph, html_table
from dpscp.guarantees.registry import AUTO, Guarantee, guarantee_of
from dpscp.privacy.units import RECORDS, BudgetCheck, Relation, Unit

# What a proven level is an average over; shown with every level. A study is records, noise and new records.
ON_AVERAGE = "on average over repeated studies"
_ONE_RELEASE = "a single release may cover somewhat less"
_ONE_RELEASE_RISK = "a single release may lose somewhat more"
# The default confidence of the printed statement about one release.
RELEASE_CONFIDENCE = 0.95
# A lower coverage level is not useful.
_USELESS_LEVEL = 0.5
# Fields whose name in the mapping depends on the unit.
_BY_UNIT = ("unit", "n_units", "calibration_units")
_CALIBRATION = "calibration_{}s"
_TRUTHS = ("finite_threshold_expected", "classes_declared", "running_maximum")


class Promise(StrEnum):
    """What a certificate promises."""

    COVERAGE = "coverage"
    """How often a set contains the true answer."""
    RISK = "risk"
    """How large the mean loss of a new record is (Result J)."""


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
        rest = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        always = "finite_threshold_expected"  # other numbers are shown where they are not the usual ones
        shown = {name: value for name, (value, usual) in rest.items() if value != usual or name == always}
        return found | {name: value for name, value in shown.items() if name not in _BY_UNIT}

    def __getitem__(self, name: str) -> Any:
        return self._shown()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown())

    def __len__(self) -> int:
        return len(self._shown())


_NUMBERS = tuple(
    field.name for field in fields(Terms) if field.name not in ("unit", *_TRUTHS, "conformity_score", "relation")
)


@dataclass(frozen=True)
class Certificate:
    """The promise of one release about its coverage or its mean loss.

    It contains public numbers only.

    ``str()`` returns a paragraph for the reader.

    Parameters
    ----------
    guarantee : str
    target : float
        The requested level.
    coverage : float
        The level that is proven in finite samples.
    assumptions : tuple of Assumption
        What the proof assumes.
    terms : Terms or mapping
        The numbers behind it. An unknown name raises ``TypeError``.
    advice : str
    promise : Promise
        For a risk, the loss takes the place of a miss: ``coverage`` is one minus the proven bound on the mean loss.
    void_because : str
        Why nothing is proven for this fit, whatever its numbers; empty if the proof applies.
    checks : tuple of BudgetCheck
        The checks of the release's budget by public numbers, and their outcome.
    """

    guarantee: str
    target: float
    coverage: float
    assumptions: tuple[Assumption, ...]
    terms: Terms
    advice: str = ""
    promise: Promise = Promise.COVERAGE
    void_because: str = ""
    checks: tuple[BudgetCheck, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "promise", Promise(self.promise))
        guarantee_of(self.guarantee)  # raises for an unknown name
        object.__setattr__(self, "assumptions", require_assumptions(self.assumptions))
        if not isinstance(self.terms, Terms):
            object.__setattr__(self, "terms", Terms.from_mapping(self.terms))

    @property
    def risk(self) -> float:
        """The proven upper bound on the mean loss, or on the probability of a miss."""
        return round(1 - self.coverage, 12)

    @property
    def is_certified(self) -> bool:
        """Whether the guarantee proves its target in finite samples."""
        return guarantee_of(self.guarantee).certified and self.coverage >= self.target - 1e-12

    @property
    def is_vacuous(self) -> bool:
        """Whether the promise is useless: a very low level, or only full sets keep it."""
        useless = min(_USELESS_LEVEL, self.target)  # a low target was requested on purpose
        return self.coverage < useless or not self.terms.finite_threshold_expected

    @property
    def classes_declared(self) -> bool:
        """False if the list of labels was taken from the records.

        True for declared labels and for regression.
        """
        return self.terms.classes_declared

    def with_found_classes(self) -> "Certificate":
        """Return the certificate for labels that were read from the records.

        No coverage is proven then: a label that no record has is in no set, and no proof bounds how often it occurs.
        """
        return self._without_proof(classes_declared=False)

    def voided(self, reason: str) -> "Certificate":
        """Return the certificate of a fit of which nothing is proven, with the reason."""
        return replace(self._without_proof(), void_because=reason)

    def _without_proof(self, **terms: Any) -> "Certificate":
        return replace(
            self, coverage=0.0, terms=replace(self.terms, release_confidence=None, release_level=None, **terms)
        )

    @property
    def unit(self) -> Unit:
        """The unit that is covered: a record, or a random record of a person."""
        return self.terms.unit

    on_average = ON_AVERAGE
    """What the proven level is an average over."""

    @property
    def one_release(self) -> str:
        """What is known about a single release, in words.

        Theory: Result I
        """
        level, confidence = self.terms.release_level, self.terms.release_confidence
        if self.promise is Promise.RISK:
            if not level or confidence is None:
                return _ONE_RELEASE_RISK
            return f"{format_odds(confidence)} such releases have a mean loss of at most {at_most(1 - level)}"
        if not level or confidence is None:
            return _ONE_RELEASE
        return f"{format_odds(confidence)} such releases cover at least {at_least(level)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        parts = {
            "assumptions": [a.to_dict() for a in self.assumptions],
            "terms": dict(self.terms),
            "unit": self.unit.to_dict(),
            "checks": [check.to_dict() for check in self.checks],
        }
        return {**vars(self), **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Certificate":
        """Return the certificate that ``to_dict`` wrote."""
        return cls(
            str(data["guarantee"]),
            float(data["target"]),
            float(data["coverage"]),
            tuple(map(Assumption.from_dict, data["assumptions"])),
            Terms.from_mapping(data["terms"], Unit.from_dict(data["unit"])),
            str(data["advice"]),
            Promise(data["promise"]),
            str(data["void_because"]),
            tuple(map(BudgetCheck.from_dict, data["checks"])),
        )

    @property
    def about(self) -> str:
        """What the promise is about."""
        population = "" if self.terms.ratio_bound is None else " of the declared population"
        return f"{self.unit.covered}{population}{' in each group' if self.terms.is_grouped else ''}"

    def _head(self) -> str:
        """Return the promise in one or two sentences."""
        if self.void_because:
            return (
                f"Not certified: {self.void_because}. Nothing is proven about the target {format_level(self.target)}, "
                "because the proof needs that the records are used in this fit alone."
            )
        if not self.classes_declared:
            head = (
                "Not certified: the list of labels was taken from the records. A label that none of them has is in no "
                f"prediction set, so nothing is proven about the target {format_level(self.target)}. Declare "
                "classes=[...] with every label that can occur."
            )
        elif self.promise is Promise.RISK:
            head = self._risk_head()
        elif self.is_certified:
            head = (
                f"For {self.about}, the prediction set contains the true answer with probability at "
                f"least {at_least(self.coverage)}, {self.on_average} ({self.one_release}). This is proven for finite "
                f"samples (target {format_level(self.target)})."
            )
        else:
            head = (
                f"The target {format_level(self.target)} is not proven for finite samples. Coverage is expected near "
                f"the target. The privacy of training alone proves at least {at_least(self.coverage)}, "
                f"{self.on_average}."
            )
        if self.is_vacuous and self.classes_declared:
            head += (
                " VACUOUS: the promise holds only because the sets contain nearly every answer, so it is not useful."
            )
        return head

    def _risk_head(self) -> str:
        """Return the promise about a loss."""
        loss = "running maximum of the loss" if self.terms.running_maximum else "loss"
        sentences = [
            f"The mean {loss} of {self.about} is at most {at_most(self.risk)}, {self.on_average} ({self.one_release}); "
            f"proven for finite samples (target {format_level(1 - self.target)})."
        ]
        if self.terms.running_maximum:
            sentences.append("The loss itself may rise with the threshold; it never exceeds its running maximum.")
        return " ".join(sentences)

    def _reasons(self) -> list[str]:
        proof = guarantee_of(self.guarantee).proof
        if self.terms.ratio_bound is not None:
            proof += "; Result K: secret coins follow the likelihood ratio of the new population"
        if self.promise is Promise.RISK:
            proof = f"Result J: a bounded loss that falls with the threshold takes the place of a miss; {proof}"
        return [f"Why: {proof}.", f"Assumes: {'; '.join(a.sentence for a in self.assumptions)}."]

    def _numbers(self) -> list[list[str]]:
        shown = {name: value for name, value in self.terms.items() if not isinstance(value, bool)}
        return [[name.replace("_", " "), term_text(name, value)] for name, value in shown.items()]

    @property
    def summary(self) -> str:
        """The promise and the advice, for a warning."""
        parts = [*first_words(self.assumptions), self._head(), *([self.advice] if self.advice else [])]
        return " ".join(parts)

    def __str__(self) -> str:
        numbers = "; ".join(" ".join(pair) for pair in self._numbers())
        parts = [*first_words(self.assumptions), self._head(), *self._reasons(), f"Numbers: {numbers}."]
        weak = [f"Weak: {check.sentence}." for check in self.checks if not check.passed]
        return " ".join([*parts, *weak, *([self.advice] if self.advice else [])])

    def _headline(self) -> str:
        """Return the proven number in a few words."""
        if not self.classes_declared:
            return "not certified"
        if self.promise is Promise.RISK:
            return f"mean loss at most {at_most(self.risk)}"
        if not self.is_certified:
            return f"near {format_level(self.target)}, not proven"
        return f"at least {at_least(self.coverage)}"

    def _repr_html_(self) -> str:
        rows = [
            ["requested", format_level(self.target)],
            ["proven", at_least(self.coverage)],
            ["guarantee", self.guarantee],
        ]
        table = html_table(["term", "value"], [*rows, *self._numbers()])
        warnings = [self.advice] if self.advice else []
        details = [*map(html_paragraph, self._reasons()), table]
        texts = [*first_words(self.assumptions), self._head()]
        return html_card(self.promise.capitalize(), self._headline(), texts, warnings, details)


def check_release_confidence(confidence: object, guarantee: str | Guarantee) -> float:
    """Return a checked ``release_confidence``; raise if no bound is known for it.

    Theory: Result I
    """
    value = check_probability("release_confidence", confidence)
    if guarantee != AUTO and not guarantee_of(guarantee).held_out:
        named = guarantee_of(guarantee).name
        raise ValueError(
            f"release_confidence={value:g} needs guarantee='split', got {named!r}: no bound for a single release is "
            "known if the threshold comes from training records, because their scores depend on each other through the "
            "model; use guarantee='split', or release_confidence=None"
        )
    return value


def term_text(name: str, value: Any) -> str:
    """Format a number of a certificate: levels are rounded down, bounds up."""
    if name.endswith("_level"):
        return at_least(value, 2)
    if name.endswith("_confidence"):
        return format_level(value)
    if name.endswith("_miss_bound"):
        return at_most(value, 2)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
