"""The certificate: what is proven about the coverage of one release, in public numbers and in words."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from dpscp._base.checks import check_probability
from dpscp._base.format import asked, at_least, at_most, html_paragraph, html_table, odds
from dpscp.guarantees.base import Guarantee
from dpscp.guarantees.registry import AUTO, guarantee_of
from dpscp.guarantees.terms import Terms
from dpscp.privacy.units import Unit

# What a proven level is an average of; said wherever one is shown to a person.
ON_AVERAGE = "on average over data sets like this one, over the noise and over new records"
_ONE_RELEASE = "a single release may cover somewhat less"
_ONE_RELEASE_RISK = "a single release may lose somewhat more"
# How sure the printed statement about one release is, where no other confidence was asked for.
RELEASE_CONFIDENCE = 0.95
# Below this a coverage level is no promise anybody can use.
_USELESS_LEVEL = 0.5


class Promise(StrEnum):
    """What a certificate speaks of."""

    COVERAGE = "coverage"
    """How often a set holds the truth."""
    RISK = "risk"
    """How large the mean loss of a new record is (Result J)."""


@dataclass(frozen=True)
class Certificate:
    """The promise of one release about its coverage, or about its mean loss, in public numbers.

    ``coverage`` is the level that is proven in finite samples; ``target`` the level that was asked for; ``terms`` the
    numbers behind it (a mapping of them by name is read, and a name that is no term refused with ``TypeError``);
    ``assumptions`` what the proof needs. ``str()`` is a paragraph for a person. Where ``promise`` is a risk, the loss
    takes the place of a miss: ``coverage`` is one minus the proven bound on the mean loss.
    """

    guarantee: str
    target: float
    coverage: float
    assumptions: tuple[str, ...]
    terms: Terms
    advice: str = ""
    promise: Promise = Promise.COVERAGE

    def __post_init__(self) -> None:
        object.__setattr__(self, "promise", Promise(self.promise))
        guarantee_of(self.guarantee)  # a name that nobody knows is refused
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        if not isinstance(self.terms, Terms):
            object.__setattr__(self, "terms", Terms.from_mapping(self.terms))

    @property
    def risk(self) -> float:
        """The proven upper bound on the mean loss of a new record; of coverage, on the probability of a miss."""
        return round(1 - self.coverage, 12)

    @property
    def is_certified(self) -> bool:
        """Whether the guarantee proves its target in finite samples."""
        return guarantee_of(self.guarantee).certified and self.coverage >= self.target - 1e-12

    @property
    def is_vacuous(self) -> bool:
        """Whether the promise is useless: a level nobody can use, or one that only full sets can keep."""
        useless = min(_USELESS_LEVEL, self.target)  # whoever asks for less knows what for
        return self.coverage < useless or not self.terms.finite_threshold_expected

    @property
    def classes_declared(self) -> bool:
        """False if the list of labels was taken from the records; True for declared ones and for regression."""
        return self.terms.classes_declared

    def with_found_classes(self) -> "Certificate":
        """The same release if the list of labels was taken from the records: no coverage is proven then.

        A label that no record has is in no set, and nothing in the proofs bounds how often such a label occurs.
        """
        terms = replace(self.terms, classes_declared=False, release_confidence=None, release_level=None)
        return replace(self, coverage=0.0, terms=terms)

    @property
    def unit(self) -> Unit:
        """Who is covered: a record, or one chosen at random among those of a person."""
        return self.terms.unit

    @property
    def on_average(self) -> str:
        """What the proven level is an average of."""
        return ON_AVERAGE.replace("new records", "new persons") if self.unit.by_person else ON_AVERAGE

    @property
    def one_release(self) -> str:
        """What is known of a single release, in words.

        Theory: Result I
        """
        level, confidence = self.terms.release_level, self.terms.release_confidence
        if self.promise is Promise.RISK:
            if not level or confidence is None:
                return _ONE_RELEASE_RISK
            return f"{odds(confidence)} such releases have a mean loss of at most {at_most(1 - level)}"
        if not level or confidence is None:
            return _ONE_RELEASE
        return f"{odds(confidence)} such releases cover at least {at_least(level)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        parts = {"assumptions": list(self.assumptions), "terms": dict(self.terms), "unit": self.unit.to_dict()}
        return {**vars(self), **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Certificate":
        """The certificate that ``to_dict`` wrote, in this release or an earlier one (which wrote no unit)."""
        # some of 0.2 listed the sizes of all groups here; they are among the ledger's public facts
        shown = {name: value for name, value in data["terms"].items() if not isinstance(value, list)}
        unit = Unit.from_dict(data["unit"]) if "unit" in data else None
        return cls(
            str(data["guarantee"]),
            float(data["target"]),
            float(data["coverage"]),
            tuple(map(str, data["assumptions"])),
            Terms.from_mapping(shown, unit),
            str(data["advice"]),
            Promise(data.get("promise", Promise.COVERAGE)),
        )

    def _head(self) -> str:
        """The promise in one or two sentences."""
        if not self.classes_declared:
            head = (
                "Not certified: the list of labels was taken from the records, and a label that none of them has is in "
                f"no prediction set, so nothing is proven about the target {asked(self.target)}. Declare classes=[...] "
                "with every label that can occur."
            )
        elif self.promise is Promise.RISK:
            head = self._risk_head()
        elif self.is_certified:
            population = "" if self.terms.ratio_bound is None else " of the declared population"
            held = f"Prediction sets hold the truth for at least {at_least(self.coverage)} of new records{population}"
            if self.unit.by_person:
                held = (
                    f"For {self.unit.covered}{population}, prediction sets hold the truth with probability at least "
                    f"{at_least(self.coverage)}"
                )
            head = (
                f"{held}, {self.on_average} ({self.one_release}); proven for finite samples "
                f"(target {asked(self.target)})."
            )
        else:
            head = (
                f"No finite-sample proof of the target {asked(self.target)}: coverage is expected near the target, and "
                f"at least {at_least(self.coverage)}, {self.on_average}, is proven by the privacy of training alone."
            )
        if self.is_vacuous and self.classes_declared:
            head += " VACUOUS: with these numbers the promise is kept only by sets too large to be of use."
        return head

    def _risk_head(self) -> str:
        """The promise about a loss."""
        who = self.unit.covered if self.unit.by_person else "a new record"
        loss = "running maximum of the loss" if self.terms.running_maximum else "loss"
        sentences = [
            f"The mean {loss} of {who} is at most {at_most(self.risk)}, {self.on_average} ({self.one_release}); proven "
            f"for finite samples (target {asked(1 - self.target)})."
        ]
        if self.terms.running_maximum:
            sentences.append("The loss itself may rise with the threshold; it never exceeds its running maximum.")
        return " ".join(sentences)

    def _reasons(self) -> list[str]:
        proof = guarantee_of(self.guarantee).proof
        if self.terms.ratio_bound is not None:
            proof += "; Result K: secret coins kept them in proportion to the likelihood ratio of the new population"
        if self.promise is Promise.RISK:
            proof = f"Result J: a bounded loss that falls with the threshold takes the place of a miss; {proof}"
        return [f"Why: {proof}.", f"Assumes: {'; '.join(self.assumptions)}."]

    def _numbers(self) -> list[list[str]]:
        shown = {name: value for name, value in self.terms.items() if not isinstance(value, bool)}
        return [[name.replace("_", " "), term_text(name, value)] for name, value in shown.items()]

    def __str__(self) -> str:
        numbers = "; ".join(" ".join(pair) for pair in self._numbers())
        parts = [self._head(), *self._reasons(), f"Numbers: {numbers}."]
        return " ".join([*parts, self.advice] if self.advice else parts)

    def _repr_html_(self) -> str:
        rows = [["asked for", asked(self.target)], ["proven", at_least(self.coverage)], ["guarantee", self.guarantee]]
        told = [self._head(), *self._reasons(), *([self.advice] if self.advice else [])]
        return "".join(map(html_paragraph, told)) + html_table(["term", "value"], [*rows, *self._numbers()])


def check_release_confidence(confidence: object, guarantee: str | Guarantee) -> float:
    """The probability with which one release must cover its level; refused where no bound on that is known.

    Theory: Result I
    """
    value = check_probability("release_confidence", confidence)
    if guarantee != AUTO and not guarantee_of(guarantee).held_out:
        named = guarantee_of(guarantee).name
        raise ValueError(
            f"release_confidence={value:g} needs guarantee='split', got {named!r}: for a threshold found on "
            "training records no bound on what a single release covers is known, because their scores depend on each "
            "other through the model; hold records out, or leave release_confidence at None"
        )
    return value


def term_text(name: str, value: Any) -> str:
    """A number of a certificate for a person: levels are rounded down, bounds on misses up."""
    if name.endswith("_level"):
        return at_least(value, 2)
    if name.endswith("_confidence"):
        return asked(value)
    if name.endswith("_miss_bound"):
        return at_most(value, 2)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
