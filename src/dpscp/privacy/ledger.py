"""The ledger: everything that was spent on one set of records, and every fact that was declared public.

A ledger is immutable; adding an entry returns a new one. It knows no model and no score.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpscp._base.checks import check_nonnegative, check_positive, check_probability
from dpscp._base.format import format_epsilon, html_paragraph, html_table, text_table
from dpscp.exceptions import BudgetError
from dpscp.privacy.accounting import (
    Accountant,
    Direction,
    as_accountant,
    delta_of,
    epsilon_of,
    is_private,
    tradeoff_of,
)
from dpscp.privacy.events import (
    DpEvent,
    compose,
    event_from_dict,
    event_to_dict,
    frozen_event,
    parallel,
    parallel_parts,
    require_event,
    secret_parts,
)
from dpscp.privacy.tradeoff import Tradeoff, chained_misses, last_where
from dpscp.privacy.units import RECORDS, Unit, join_units, unit_of_old_facts

__all__ = ["Budget", "Entry", "Ledger"]

_FORMAT = "dpscp-ledger"
# A table needs some delta to be printed at: the default of the estimators.
_SHOWN_DELTA = 1e-5
_SMALLEST_LOG_DELTA = -690.0
_VERSION = 2
# Releases 0.1 to 0.3 wrote no unit: it is derived from their public facts, once, when such a ledger is read.
_WITHOUT_UNITS = 1
_ASSUMED, _TAKEN = "assumed", "taken_from_data"
# How version 0.1 called its only parallel entry, whose parts had no names of their own.
_UNNAMED_PARTS = "training | calibration"


@dataclass(frozen=True)
class Budget:
    """A privacy target: the whole release must be (epsilon, delta)-DP."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_probability("delta", self.delta)

    def require(self, ledger: "Ledger", accountant: str | Accountant = "pld") -> None:
        """Raise ``BudgetError`` with both numbers if ``ledger`` spends more than this budget."""
        spent = ledger.epsilon(self.delta, accountant)
        if not spent <= self.epsilon:
            steps = f" (not private: {', '.join(ledger.non_private_stages)})" if math.isinf(spent) else ""
            raise BudgetError(
                f"the ledger spends epsilon = {format_epsilon(spent)}{steps} at delta = {self.delta:g}, over the "
                f"budget of epsilon = {self.epsilon:g}; raise the budget or spend less"
            )


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: which stage, what happened, a note for a person, and the unit of privacy.

    ``parts`` names the stages of a parallel event, one for each of its events; empty: all are called ``stage``. The
    event is what one ``unit`` meets; for a person without ids, what each of their rows meets.
    """

    stage: str
    event: DpEvent
    note: str = ""
    parts: tuple[str, ...] = ()
    unit: Unit = RECORDS

    def __post_init__(self) -> None:
        if not isinstance(self.unit, Unit):
            raise TypeError(f"unit must be a unit of privacy (PersonWithIds(3), say), got {type(self.unit).__name__}")
        if self.parts and len(self.parts) != len(parallel_parts(self.event)):
            raise ValueError("parts must name each of the events of a parallel event, in their order")

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        # a pickle of 0.1 to 0.3 holds no unit, and the ledger around it finds the one it was about
        vars(self).update({"unit": None, **state})

    @property
    def stages(self) -> tuple[tuple[str, DpEvent], ...]:
        """What one record may have met here: each part by its name, or the entry itself."""
        events = parallel_parts(self.event)
        return tuple(zip(self.parts or (self.stage,) * len(events), events, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as ``from_dict`` reads them."""
        found = {"stage": self.stage, "event": event_to_dict(self.event), "note": self.note}
        return found | {"unit": self.unit.to_dict()} | ({"parts": list(self.parts)} if self.parts else {})

    @classmethod
    def from_dict(cls, data: Any) -> "Entry":
        """The entry that ``to_dict`` wrote."""
        return cls._read(data, Unit.from_dict(data["unit"]))

    @classmethod
    def from_old_dict(cls, data: Any, unit: Unit) -> "Entry":
        """The entry of a release that wrote no unit; ``unit`` is what its ledger's facts say."""
        if "unit" in data:
            raise ValueError("an entry of this version has no unit")
        return cls._read(data, unit)

    @classmethod
    def _read(cls, data: Any, unit: Unit) -> "Entry":
        stage, note, parts = data["stage"], data["note"], data.get("parts", [])
        if not (isinstance(stage, str) and isinstance(note, str)):
            raise ValueError("stage and note must be texts")
        if not (isinstance(parts, list) and all(isinstance(part, str) for part in parts)):
            raise ValueError("parts must be a list of texts")
        event = event_from_dict(data["event"])
        if "parts" not in data and stage == _UNNAMED_PARTS and len(parallel_parts(event)) == 2:
            parts = stage.split(" | ")
        return cls(stage, event, note, tuple(parts), unit)


@dataclass(frozen=True)
class Ledger:
    """What was spent, in order, under add/remove neighbours: one record, or one person, as the entries' units say.

    The entries compose adaptively, one after the other, on the same records; disjoint parts enter as one
    ``parallel`` event. ``public_facts`` lists what was declared public; no number and no word about who is protected
    depends on it. ``seeded`` marks a run whose noise came from a seed: its numbers are what the mechanism would cost,
    but the run itself is not private. Entries of units that no proof leads together are refused.

    >>> from dpscp.privacy import dpsgd_event
    >>> ledger = Ledger().add("train", dpsgd_event(2.0, 0.01, 100), note="linear head")
    >>> round(ledger.epsilon(1e-5), 2), ledger.is_private
    (0.19, True)

    Paper: Theorem 1 [thm:overall_privacy]
    """

    entries: tuple[Entry, ...] = ()
    public_facts: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(_with_unit(entry, self.public_facts) for entry in self.entries))
        facts = {str(name): _frozen_fact(fact) for name, fact in self.public_facts.items()}
        object.__setattr__(self, "public_facts", MappingProxyType(facts))
        _ = self.unit  # entries about records and about persons with ids are refused

    def __reduce__(self) -> tuple[Any, ...]:
        # a mapping proxy can be neither copied nor pickled, and fitted estimators are both
        return Ledger, (self.entries, dict(self.public_facts), self.seeded)

    def add(self, stage: str, event: DpEvent, note: str = "", *, unit: Unit = RECORDS) -> "Ledger":
        """A new ledger with one more entry; ``event`` is what one ``unit`` meets, or each row of one without ids."""
        return self._with(Entry(str(stage), frozen_event(require_event(event)), str(note), unit=unit))

    def add_disjoint(
        self,
        stages: Mapping[str, DpEvent],
        note: str = "",
        *,
        secret_part: float | Sequence[float] | None = None,
        unit: Unit = RECORDS,
    ) -> "Ledger":
        """A new ledger with one entry for stages on disjoint parts of the records: the worst of them counts.

        The condition on the parts is that of ``ParallelDpEvent``. With ``secret_part`` a record meets the
        second with that probability, by a coin that nobody sees, and the mixture counts (``SecretSplitDpEvent``); a
        list holds the shares of all parts but the first.
        """
        if secret_part is None:
            event = frozen_event(parallel(*stages.values()))
        else:
            training, *held_out = stages.values()
            shares = secret_part if isinstance(secret_part, Sequence) else (secret_part,)
            event = secret_parts(training, *zip(held_out, shares, strict=True))
        # stages that cost the same are one event, and no part has a name of its own
        parts = tuple(stages) if len(parallel_parts(event)) == len(stages) else ()
        return self._with(Entry(" | ".join(stages), event, str(note), parts, unit))

    def _with(self, entry: Entry) -> "Ledger":
        return replace(self, entries=(*self.entries, entry))

    def declare(self, **facts: Any) -> "Ledger":
        """A new ledger with more public facts (plain JSON values); they change no other number and no promise."""
        json.dumps(facts)
        return replace(self, public_facts={**self.public_facts, **facts})

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the privacy of these steps assumes about code of the caller; kept among the public facts."""
        texts = self.public_facts.get(_ASSUMED, ())
        return tuple(map(str, texts)) if isinstance(texts, tuple) else (str(texts),)

    def assume(self, *texts: str) -> "Ledger":
        """A new ledger with more assumptions of its privacy."""
        return self.declare(**{_ASSUMED: list(dict.fromkeys((*self.assumptions, *texts)))}) if texts else self

    def mark_seeded(self) -> "Ledger":
        """A new ledger that says its noise came from a seed."""
        return replace(self, seeded=True)

    def then(self, other: "Ledger") -> "Ledger":
        """A new ledger with the entries and facts of ``other`` after this one's; ``ValueError`` for unlike units."""
        facts = {**self.public_facts, **other.public_facts}
        both = Ledger(self.entries + other.entries, facts, self.seeded or other.seeded)
        return both.assume(*self.assumptions)

    @property
    def event(self) -> DpEvent:
        """All entries as one event."""
        return compose(*(entry.event for entry in self.entries))

    @property
    def non_private_stages(self) -> tuple[str, ...]:
        """The stages without any privacy."""
        return tuple(entry.stage for entry in self.entries if not is_private(entry.event))

    @property
    def is_private(self) -> bool:
        """Whether every step has privacy and no seed was used."""
        return not self.seeded and not self.non_private_stages

    @property
    def unit(self) -> Unit:
        """Who the promise is about: what the units of the entries have in common.

        Theory: Result H
        """
        return join_units(entry.unit for entry in self.entries)

    def convert_unit(self, unit: Unit) -> "Ledger":
        """The same steps as a promise about another unit, where that is proven.

        Among records and persons without ids each event is what one row meets, and ``epsilon`` chains it. A ledger
        about persons with ids stays as it is for another cap. ``ValueError`` between the two kinds.

        Theory: Result H
        """
        if not self.entries or self.unit.join(unit).by_person:
            return self
        return replace(self, entries=tuple(replace(entry, unit=unit) for entry in self.entries))

    @property
    def rows(self) -> int:
        """How many records the promise covers at once: k for persons without ids who have up to k, else 1.

        Theory: Result H
        """
        return self.unit.group

    @property
    def neighbours(self) -> str:
        """Between which tables the promise holds, in words."""
        return self.unit.neighbours

    @property
    def neighbors(self) -> str:
        """The same as ``neighbours``."""
        return self.neighbours

    @property
    def taken_from_data(self) -> tuple[str, ...]:
        """The names of the public facts that were found in the records and are thereby published."""
        names = self.public_facts.get(_TAKEN, ())
        return tuple(map(str, names)) if isinstance(names, tuple) else (str(names),)

    def epsilon(self, delta: float, accountant: str | Accountant = "pld", rows: int | None = None) -> float:
        """Epsilon at ``delta`` of everything in the ledger; infinite if a step is not private.

        None is the ledger's own unit (``neighbours`` says which). ``rows=k`` is the promise to someone with up to k of
        the records, however they are spread over parallel parts: the trade-off function of one record chained k times,
        for adding all and for removing all, the worse of the two. Exact (k * mu) for continuous Gaussian noise;
        otherwise an upper bound, rounded against us, and infinite where ``delta`` is too small for the accountant to
        prove anything about k records.

        Theory: section 9
        """
        return epsilon_of(self.event, delta, accountant, self.rows if rows is None else rows)

    def replacement_epsilon(self, delta: float, accountant: str | Accountant = "pld") -> float:
        """Epsilon at ``delta`` for replacing one unit (a record, or a person) by another, an upper bound.

        Replacing is removing and adding, so two units are chained, each step at the worse of its two directions.

        Theory: section 9
        """
        return as_accountant(accountant).replacement_epsilon(self.event, delta, self.rows)

    def delta(self, epsilon: ArrayLike, accountant: str | Accountant = "pld") -> Any:
        """Delta at ``epsilon`` (a number or an array): the privacy profile, for the ledger's own unit."""
        if self.rows == 1:
            return delta_of(self.event, epsilon, accountant)
        found = np.vectorize(lambda one: self._group_delta(one, accountant), otypes=[float])(epsilon)
        return float(found) if np.ndim(epsilon) == 0 else found

    def _group_delta(self, epsilon: float, accountant: str | Accountant) -> float:
        """The smallest delta whose epsilon for all rows of a person is at most this one, rounded up."""
        epsilon = check_nonnegative("epsilon", epsilon)

        def holds(log_delta: float) -> bool:
            return self.epsilon(math.exp(log_delta), accountant) <= epsilon

        nearly_one = -1e-12
        if not holds(nearly_one):
            return 1.0
        return math.exp(last_where(holds, nearly_one, _SMALLEST_LOG_DELTA, within=1e-6))

    def tradeoff(self, x: ArrayLike) -> Any:
        """The attacker's smallest miss rate at false-alarm rate ``x``: the trade-off function f of the whole ledger.

        For the ledger's own unit: with up to k records a person and no ids, f of one record chained k times.
        """
        return chained_misses(self.tradeoff_function(), x, self.rows)

    def tradeoff_function(self, direction: Direction = "both") -> Tradeoff:
        """The trade-off function of one counted thing: a record, or a person with ids.

        ``direction="add"`` is the one-sided curve that Result B needs, whose coverage is about the same things.
        """
        return tradeoff_of(self.event, direction=direction)

    def to_dict(self) -> dict[str, Any]:
        """The ledger as plain JSON values, with a format name and version."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "seeded": self.seeded,
            "public_facts": _listed_fact(self.public_facts),
            "entries": [entry.to_dict() for entry in self.entries],
        }

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """The ledger that ``to_json`` wrote; a text of another format or a newer version is refused."""
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("this is not a ledger: the text is not JSON") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> "Ledger":
        """The ledger that ``to_dict`` wrote, under the same conditions."""
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(f"this is not a ledger: expected JSON of format {_FORMAT!r}")
        version = data.get("version")
        if isinstance(version, bool) or version not in (_WITHOUT_UNITS, _VERSION):
            raise ValueError(f"ledger version {version!r} is unknown, this release reads 1 to {_VERSION}")
        try:
            entries, facts, seeded = data["entries"], data["public_facts"], data["seeded"]
            # other types would often convert in silence: an empty string to no entries, null to "not seeded"
            if not (isinstance(entries, list) and isinstance(facts, dict) and isinstance(seeded, bool)):
                raise ValueError("entries must be a list, public_facts an object, seeded true or false")
            return cls(tuple(map(_reader(version, facts), entries)), facts, seeded)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"the ledger is damaged: {error}") from None

    def summary(self, delta: float) -> str:
        """A few lines for a person: each entry, the total, and what was declared public."""
        delta = check_probability("delta", delta)
        lines = [
            f"{e.stage}: epsilon {self._alone(e, delta)} alone at delta {delta:g}" + (f" ({e.note})" if e.note else "")
            for e in self.entries
        ]
        total = format_epsilon(self.epsilon(delta))
        lines.append(f"total: epsilon {total} at delta {delta:g}, for {self.neighbours}")
        if self.non_private_stages:
            lines.append(f"NOT private because of: {', '.join(self.non_private_stages)}")
        if self.seeded:
            lines.append("NOT private: the noise came from a seed")
        public = {k: v for k, v in self.public_facts.items() if k != _ASSUMED}
        if public:
            lines.append("declared public: " + ", ".join(f"{k} = {v}" for k, v in public.items()))
        lines += [f"assumed: {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)

    def _alone(self, entry: Entry, delta: float) -> str:
        """What an entry costs by itself, for the unit of the whole ledger."""
        return format_epsilon(epsilon_of(entry.event, delta, rows=self.rows))

    def _told(self, delta: float) -> tuple[list[str], list[list[str]], list[str]]:
        """Titles and cells of the table of entries, and what must be said beside it."""
        titles = ["stage", f"epsilon alone at delta {delta:g}", "note"]
        rows = [[e.stage, self._alone(e, delta), e.note] for e in self.entries]
        rows.append(["together", format_epsilon(self.epsilon(delta)), f"for {self.neighbours}"])
        notes = [f"NOT private because of: {', '.join(self.non_private_stages)}"] if self.non_private_stages else []
        return titles, rows, notes + (["NOT private: the noise came from a seed"] if self.seeded else [])

    def __str__(self) -> str:
        """The entries as a table, at the estimators' default delta; ``summary(delta)`` is for another."""
        titles, rows, notes = self._told(_SHOWN_DELTA)
        return "\n".join([*text_table(titles, rows), *notes])

    def _repr_html_(self) -> str:
        titles, rows, notes = self._told(_SHOWN_DELTA)
        return html_table(titles, rows) + "".join(map(html_paragraph, notes))

    def remaining(self, budget: Budget, accountant: str | Accountant = "pld") -> float:
        """How far the total epsilon lies below the budget's, at the budget's delta (negative if over)."""
        return check_nonnegative("epsilon", budget.epsilon) - self.epsilon(budget.delta, accountant)


def _listed_fact(value: Any) -> Any:
    """The fact with lists for tuples, as JSON has them."""
    if isinstance(value, tuple):
        return list(map(_listed_fact, value))
    return {k: _listed_fact(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _with_unit(entry: Entry, facts: Mapping[str, Any]) -> Entry:
    """The entry; one from a pickle of an earlier release with the unit that its ledger's facts speak of."""
    return entry if isinstance(entry.unit, Unit) else replace(entry, unit=unit_of_old_facts(facts))


def _reader(version: int, facts: Mapping[str, Any]) -> Callable[[Any], Entry]:
    """What reads an entry of a ledger of this version."""
    if version == _VERSION:
        return Entry.from_dict
    return partial(Entry.from_old_dict, unit=unit_of_old_facts(facts))


def _frozen_fact(value: Any) -> Any:
    """The fact with tuples for lists, so that nobody can change it later; JSON reads it back as the same."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen_fact, value))
    return {str(k): _frozen_fact(v) for k, v in value.items()} if isinstance(value, Mapping) else value
