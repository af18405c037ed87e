"""The ledger: all that was spent on a set of records, and all public facts.

A ledger is immutable: adding an entry returns a new one. It does not depend on models or scores.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from numpy.typing import ArrayLike

from dpscp._base.assumptions import Assumption, first_words, require_assumptions
from dpscp._base.checks import check_nonnegative, check_probability, last_where
from dpscp._base.format import at_most, format_epsilon, format_level, html_card, html_table, text_table
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
    compose,
    describe_event,
    event_from_dict,
    event_to_dict,
    frozen_event,
    parallel,
    parallel_parts,
    secret_parts,
)
from dpscp.privacy.tradeoff import Tradeoff, chained_misses
from dpscp.privacy.units import RECORDS, Relation, Unit, join_units

_FORMAT = "dpscp-ledger"
# The delta of the printed table: the default of the estimators.
_SHOWN_DELTA = 1e-5
# The false-alarm rate of the attacker in a notebook.
_SHOWN_ALARMS = 0.05
_SMALLEST_LOG_DELTA = -690.0
_VERSION = 1
_LISTS = ("entries", "assumptions", "taken_from_data", "found_privately")


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a stage, an event, a note and the unit of privacy.

    Parameters
    ----------
    stage : str
    event : DpEvent
        What happens to one ``unit``. For a person without ids: what happens to each row.
    note : str
        A sentence for the reader.
    parts : tuple of str
        The stages of a parallel event, one for each of its events. If empty, all have the name ``stage``.
    unit : Unit
    relation : Relation
        Between which tables the event is private. For a replacement it says what one of the two units costs, where the
        number of units stays as it is; a ledger charges two.
    components : tuple of tuple of str
        For each part, one name for each event that it composes: what training consists of. Empty: no names.
    """

    stage: str
    event: DpEvent
    note: str = ""
    parts: tuple[str, ...] = ()
    unit: Unit = RECORDS
    components: tuple[tuple[str, ...], ...] = ()
    relation: Relation = Relation.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation(self.relation))
        if not isinstance(self.unit, Unit):
            found = type(self.unit).__name__
            raise TypeError(f"unit must be a unit of privacy, for example Unit(3, by_person=True), got {found}")
        if self.parts and len(self.parts) != len(parallel_parts(self.event)):
            raise ValueError("parts must have one name for each event of the parallel event, in the same order")
        counts = [len(_events_of(part)) for part in parallel_parts(self.event)]
        named = [len(names) or count for names, count in zip(self.components, counts, strict=False)]
        if self.components and (len(self.components) != len(counts) or named != counts):
            raise ValueError("components must have one name for each composed event of each part, in the same order")

    @property
    def stages(self) -> tuple[tuple[str, DpEvent], ...]:
        """The name and the event of each part, or of the entry itself."""
        events = parallel_parts(self.event)
        return tuple(zip(self.parts or (self.stage,) * len(events), events, strict=True))

    def components_of(self, place: int) -> tuple[tuple[str, DpEvent], ...]:
        """Return name and event of each component of a part, or of the part itself.

        The part itself is returned if its components have no names.
        """
        part, event = self.stages[place]
        names = self.components[place] if self.components else ()
        if not names:
            return ((part, event),)
        return tuple((f"{part}: {name}", one) for name, one in zip(names, _events_of(event), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values for ``from_dict``."""
        found = {"stage": self.stage, "event": event_to_dict(self.event), "note": self.note}
        found |= {"unit": self.unit.to_dict(), "relation": str(self.relation)}
        names = {"parts": list(self.parts), "components": list(map(list, self.components))}
        return found | {name: value for name, value in names.items() if value}

    @classmethod
    def from_dict(cls, data: Any) -> "Entry":
        """Return the entry that ``to_dict`` wrote."""
        unit, relation = Unit.from_dict(data["unit"]), Relation(data["relation"])
        stage, note, parts = data["stage"], data["note"], data.get("parts", [])
        if not (isinstance(stage, str) and isinstance(note, str)):
            raise ValueError("stage and note must be strings")
        if not _is_list_of_texts(parts):
            raise ValueError("parts must be a list of strings")
        components = data.get("components", [])
        if not (isinstance(components, list) and all(map(_is_list_of_texts, components))):
            raise ValueError("components must be a list of lists of strings")
        event = event_from_dict(data["event"])
        return cls(stage, event, note, tuple(parts), unit, tuple(map(tuple, components)), relation)


@dataclass(frozen=True)
class Ledger:
    """All events of a release, in order, and all public facts.

    The entries compose adaptively on the same records. Disjoint parts are one ``parallel`` event. Neighbors differ by
    one record or one person, as the units of the entries state. Entries whose units have no common proof are rejected.

    Parameters
    ----------
    entries : tuple of Entry
    public_facts : mapping
        What was declared public, for people. No code decides by it.
    seeded : bool
        Whether the noise came from a seed. The numbers then state the cost of the mechanism, but this run is not
        private.
    assumptions : tuple of Assumption
        What the privacy proof assumes about the caller's code; public.
    taken_from_data : tuple of str
        The names of the public facts that were read from the records.
    found_privately : tuple of str
        The names of the public facts that an entry paid for.

    >>> from dpscp.privacy import dpsgd_event
    >>> ledger = Ledger().add("train", dpsgd_event(2.0, 0.01, 100), note="linear head")
    >>> round(ledger.epsilon(1e-5), 2), ledger.is_private
    (0.19, True)

    Paper: Theorem 1 [thm:overall_privacy]
    """

    entries: tuple[Entry, ...] = ()
    public_facts: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    assumptions: tuple[Assumption, ...] = ()
    taken_from_data: tuple[str, ...] = ()
    found_privately: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        object.__setattr__(self, "assumptions", require_assumptions(self.assumptions))
        for name in ("taken_from_data", "found_privately"):
            object.__setattr__(self, name, tuple(dict.fromkeys(map(str, getattr(self, name)))))
        facts = {str(name): _frozen_fact(fact) for name, fact in self.public_facts.items()}
        object.__setattr__(self, "public_facts", MappingProxyType(facts))
        _ = self.unit  # raises for entries whose units cannot be combined

    def __reduce__(self) -> tuple[Any, ...]:
        # a mapping proxy can be neither copied nor pickled, but fitted estimators are copied and pickled
        names = [field.name for field in fields(self)]
        return Ledger, tuple(getattr(self, n) if n != "public_facts" else dict(self.public_facts) for n in names)

    def add(
        self,
        stage: str,
        event: DpEvent,
        note: str = "",
        *,
        unit: Unit = RECORDS,
        relation: Relation = Relation.ADD_OR_REMOVE,
    ) -> "Ledger":
        """Return a new ledger with one more entry.

        Parameters
        ----------
        stage : str
        event : DpEvent
            What happens to one ``unit``; for a person without ids, to each row.
        note : str
        unit : Unit
        relation : Relation
            ``REPLACE_ONE`` for an event that holds at a fixed number of units only. The promise of the whole ledger is
            then about replacing one unit.
        """
        entry = Entry(str(stage), frozen_event(event), str(note), unit=unit, relation=relation)
        return replace(self, entries=(*self.entries, entry))

    def add_disjoint(
        self,
        stages: Mapping[str, DpEvent],
        note: str = "",
        *,
        secret_part: float | Sequence[float] | None = None,
        components: Mapping[str, Sequence[str]] | None = None,
        unit: Unit = RECORDS,
        relation: Relation = Relation.ADD_OR_REMOVE,
    ) -> "Ledger":
        """Return a new ledger with one entry for stages on disjoint parts.

        The cost is that of the most expensive stage. ``ParallelDpEvent`` states the condition on the parts.

        Parameters
        ----------
        stages : mapping of str to DpEvent
        note : str
        secret_part : float or sequence of float, optional
            The probability with which each record is secretly assigned to the second stage, or the probabilities of all
            stages but the first. The cost is then that of the mixture (``SecretSplitDpEvent``).
        components : mapping of str to names, optional
            For a stage, one name for each event that its event composes. Names change no number.
        unit : Unit
        relation : Relation
        """
        if secret_part is None:
            event = frozen_event(parallel(*stages.values()))
        else:
            training, *held_out = stages.values()
            shares = secret_part if isinstance(secret_part, Sequence) else (secret_part,)
            event = secret_parts(training, *zip(held_out, shares, strict=True))
        # equal events are merged; the parts then have no names of their own
        parts = tuple(stages) if len(parallel_parts(event)) == len(stages) else ()
        named = tuple(tuple((components or {}).get(part, ())) for part in parts)
        entry = Entry(" | ".join(stages), event, str(note), parts, unit, named if any(named) else (), relation)
        return replace(self, entries=(*self.entries, entry))

    def declare(self, **facts: Any) -> "Ledger":
        """Return a new ledger with more public facts, given as plain JSON values.

        They change no other number and no promise.
        """
        json.dumps(facts)
        return replace(self, public_facts={**self.public_facts, **facts})

    def show_at(self, delta: float) -> "Ledger":
        """Return a new ledger that is printed at this delta.

        The delta becomes a public fact, except for the default one.
        """
        return self if delta == _SHOWN_DELTA else self.declare(delta=float(delta))

    @property
    def _shown_delta(self) -> float:
        declared = self.public_facts.get("delta")
        return declared if isinstance(declared, float) and 0 < declared < 1 else _SHOWN_DELTA

    def assume(self, *assumptions: Assumption) -> "Ledger":
        """Return a new ledger with more assumptions; ``TypeError`` for a sentence."""
        return replace(self, assumptions=(*self.assumptions, *require_assumptions(assumptions)))

    def mark_taken(self, *names: str) -> "Ledger":
        """Return a new ledger that marks public facts as read from the records."""
        return replace(self, taken_from_data=(*self.taken_from_data, *names))

    def mark_found(self, *names: str) -> "Ledger":
        """Return a new ledger that marks public facts as paid for by its entries."""
        return replace(self, found_privately=(*self.found_privately, *names))

    def mark_seeded(self) -> "Ledger":
        """Return a new ledger that states that its noise came from a seed."""
        return replace(self, seeded=True)

    def then(self, other: "Ledger") -> "Ledger":
        """Return a new ledger with the entries and facts of ``other`` appended.

        Raises ``ValueError`` if the units cannot be combined.
        """
        facts = {**self.public_facts, **other.public_facts}
        joined = replace(self, entries=self.entries + other.entries, public_facts=facts)
        joined = joined.assume(*other.assumptions).mark_taken(*other.taken_from_data).mark_found(*other.found_privately)
        return joined.mark_seeded() if other.seeded else joined

    @property
    def event(self) -> DpEvent:
        """All entries as one event."""
        return compose(*(entry.event for entry in self.entries))

    @property
    def component_names(self) -> tuple[str, ...]:
        """The stages as names of what ``event`` composes; none where it is a single one.

        The stage ``"training"`` is ``"model"`` beside others, because all of them are training.
        """
        names = tuple("model" if entry.stage == "training" else entry.stage for entry in self.entries)
        return names if len(names) > 1 else ()

    @property
    def non_private_stages(self) -> tuple[str, ...]:
        """The stages without privacy."""
        return tuple(entry.stage for entry in self.entries if not is_private(entry.event))

    @property
    def is_private(self) -> bool:
        """Whether every step is private and no seed was used."""
        return not self.seeded and not self.non_private_stages

    @property
    def unit(self) -> Unit:
        """The unit of privacy of the whole ledger: the join of the entries' units.

        Theory: Result H
        """
        return join_units(entry.unit for entry in self.entries)

    def convert_unit(self, unit: Unit) -> "Ledger":
        """Return the same steps as a promise about another unit, where that is proven.

        Among records and persons without ids each event describes one row, and ``epsilon`` chains it. A ledger about
        persons with ids is the same for every cap. Raises ``ValueError`` between the two kinds.

        Theory: Result H
        """
        if not self.entries or self.unit.join(unit).by_person:
            return self
        return replace(self, entries=tuple(replace(entry, unit=unit) for entry in self.entries))

    @property
    def rows(self) -> int:
        """The number of records that the promise covers at once.

        It is k for persons without ids who have at most k records, otherwise 1.

        Theory: Result H
        """
        return self.unit.group

    @property
    def relation(self) -> Relation:
        """Between which tables the promise holds: about a replacement, if one entry is.

        Every entry is then charged for two units, the one that leaves and the one that comes. A promise about a
        replacement is never converted into one about adding or removing.
        """
        replaces = any(entry.relation is Relation.REPLACE_ONE for entry in self.entries)
        return Relation.REPLACE_ONE if replaces else Relation.ADD_OR_REMOVE

    @property
    def neighbors(self) -> str:
        """The pairs of tables between which the promise holds, in words."""
        return self.unit.replacements if self.relation is Relation.REPLACE_ONE else self.unit.neighbors

    def epsilon(self, delta: float, accountant: str | Accountant = "pld", rows: int | None = None) -> float:
        """Return epsilon at ``delta`` for the whole ledger; infinite if not private.

        Parameters
        ----------
        delta : float
        accountant : str or Accountant
        rows : int, optional
            The number of records of one person, in whichever parts they lie. Default: the ledger's own unit (see
            ``neighbors``).

        Returns
        -------
        float
            For k rows, the trade-off function of one record is chained k times, for adding all and for removing all,
            and the larger epsilon is returned. This is exact (k * mu) for continuous Gaussian noise, otherwise an upper
            bound. It is infinite if the accountant proves nothing at this ``delta``.

        Theory: Result H
        """
        return self.cost_of(self.event, delta, accountant, rows)

    def cost_of(
        self, event: DpEvent, delta: float, accountant: str | Accountant = "pld", rows: int | None = None
    ) -> float:
        """Return epsilon of one event, for the unit and the relation of this ledger."""
        rows = self.rows if rows is None else rows
        if self.relation is Relation.REPLACE_ONE:
            return as_accountant(accountant).replacement_epsilon(event, delta, rows)
        return epsilon_of(event, delta, accountant, rows)

    def delta(self, epsilon: ArrayLike, accountant: str | Accountant = "pld") -> Any:
        """Return delta at ``epsilon`` for the ledger's own unit.

        Parameters
        ----------
        epsilon : float or array
        accountant : str or Accountant

        Returns
        -------
        float or ndarray of the shape of ``epsilon``
            The privacy profile.
        """
        if self.rows == 1 and self.relation is Relation.ADD_OR_REMOVE:
            return delta_of(self.event, epsilon, accountant)
        found = np.vectorize(lambda one: self._group_delta(one, accountant), otypes=[float])(epsilon)
        return float(found) if np.ndim(epsilon) == 0 else found

    def _group_delta(self, epsilon: float, accountant: str | Accountant) -> float:
        """Return the smallest delta whose group epsilon is at most this one, rounded up."""
        epsilon = check_nonnegative("epsilon", epsilon)

        def holds(log_delta: float) -> bool:
            return self.epsilon(math.exp(log_delta), accountant) <= epsilon

        nearly_one = -1e-12
        if not holds(nearly_one):
            return 1.0
        return math.exp(last_where(holds, nearly_one, _SMALLEST_LOG_DELTA, within=1e-6))

    def tradeoff(self, x: ArrayLike) -> Any:
        """Return the trade-off function of the ledger at false-alarm rate ``x``.

        It is the smallest miss rate of an attacker. For persons without ids, the function of one record is chained.

        Parameters
        ----------
        x : float or array

        Returns
        -------
        float or ndarray of the shape of ``x``
        """
        return chained_misses(self.tradeoff_function(), x, self.rows)

    def tradeoff_function(self, direction: Direction = "both") -> Tradeoff:
        """Return the trade-off function of one record, or of one person with ids.

        Parameters
        ----------
        direction : {"both", "add", "remove"}
            ``"add"`` is the one-sided curve that Result B needs. For a replacement there is one curve: two chained
            steps, each bounded by the worse direction.

        Returns
        -------
        callable
        """
        if self.relation is Relation.REPLACE_ONE:
            either = tradeoff_of(self.event, direction="both")
            return partial(chained_misses, either, rows=self.relation.steps)
        return tradeoff_of(self.event, direction=direction)

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as plain JSON values, with format name and version."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "seeded": self.seeded,
            "assumptions": [assumption.to_dict() for assumption in self.assumptions],
            "taken_from_data": list(self.taken_from_data),
            "found_privately": list(self.found_privately),
            "public_facts": _listed_fact(self.public_facts),
            "entries": [entry.to_dict() for entry in self.entries],
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Return the ledger that ``to_json`` wrote.

        Raises ``ValueError`` for another format or version.
        """
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ValueError("this is not a ledger: the text is not JSON") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> "Ledger":
        """Return the ledger that ``to_dict`` wrote; raises as ``from_json`` does."""
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise ValueError(f"this is not a ledger: expected JSON of format {_FORMAT!r}")
        version = data.get("version")
        if isinstance(version, bool) or version != _VERSION:
            raise ValueError(
                f"the ledger has version {version!r}, but this release reads version {_VERSION} only; use the release "
                "of dpscp that wrote it"
            )
        try:
            facts, seeded = data["public_facts"], data["seeded"]
            lists = entries, assumed, taken, found = [data[name] for name in _LISTS]
            # other types would convert silently: an empty string to no entries, null to "not seeded"
            if not (isinstance(facts, dict) and isinstance(seeded, bool) and all(isinstance(x, list) for x in lists)):
                raise ValueError(f"{', '.join(_LISTS)} must be lists, public_facts an object, and seeded true or false")
            if not all(isinstance(name, str) for name in (*taken, *found)):
                raise ValueError("taken_from_data and found_privately must be lists of names")
            assumptions = tuple(map(Assumption.from_dict, assumed))
            return cls(tuple(map(Entry.from_dict, entries)), facts, seeded, assumptions, tuple(taken), tuple(found))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"the ledger is damaged: {error}") from None

    def summary(self, delta: float) -> str:
        """Return a text with the table of entries, the public facts and assumptions."""
        lines = self._lines(check_probability("delta", delta))
        if self.public_facts:
            lines.append("declared public: " + ", ".join(f"{k} = {v}" for k, v in self.public_facts.items()))
        if self.taken_from_data:
            lines.append(f"read from the records: {', '.join(self.taken_from_data)}")
        lines += [f"assumed: {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)

    @property
    def not_private_because(self) -> tuple[str, ...]:
        """The reasons why this run is not private, in words; empty if it is private."""
        open_steps = (entry for entry in self.entries if not is_private(entry.event))
        steps = (f"the step {e.stage!r} has no privacy" + (f" ({e.note})" if e.note else "") for e in open_steps)
        return (*steps, *(("the noise came from a seed",) if self.seeded else ()))

    def _warnings(self) -> list[str]:
        return [f"NOT private: {reason}" for reason in self.not_private_because]

    def _table(self, delta: float) -> tuple[list[str], list[list[str]]]:
        """Return titles and cells of the table of entries."""
        titles = ["stage", f"epsilon alone at delta {delta:g}", "note"]
        rows = []
        for e in self.entries:
            rows.append([e.stage, format_epsilon(self.cost_of(e.event, delta)), e.note])
            if e.components:
                parts = (one for place in range(len(e.stages)) for one in e.components_of(place))
                # without an epsilon: it would be that of a record whose part is known
                rows += [[f"- {name}", "", describe_event(event)] for name, event in parts]
        rows.append(["total", format_epsilon(self.epsilon(delta)), f"for {self.neighbors}"])
        return titles, rows

    def __str__(self) -> str:
        """Return the entries as a table, at the delta of the fit or the default one."""
        return "\n".join(self._lines(self._shown_delta))

    def _lines(self, delta: float) -> list[str]:
        return [*first_words(self.assumptions), *text_table(*self._table(delta)), *self._warnings()]

    def html_card(self, delta: float) -> str:
        """Return the privacy promise as an HTML card for a notebook.

        Parameters
        ----------
        delta : float

        Returns
        -------
        str
        """
        found, unit = at_most(1 - float(self.tradeoff(_SHOWN_ALARMS))), self.unit.protected
        alarms = format_level(_SHOWN_ALARMS)
        where = "that replaced another" if self.relation is Relation.REPLACE_ONE else "in the data"
        texts = [
            *first_words(self.assumptions),
            f"An attacker with {alarms} false alarms finds at most {found} of the {unit}s {where}. Guessing finds "
            f"{alarms}.",
            f"For {self.neighbors}, at delta {delta:g}.",
        ]
        headline = f"epsilon {format_epsilon(self.epsilon(delta))}"
        return html_card("Privacy", headline, texts, self._warnings(), [html_table(*self._table(delta))])

    def _repr_html_(self) -> str:
        return self.html_card(self._shown_delta)


def _listed_fact(value: Any) -> Any:
    """Return the fact with lists for tuples, as in JSON."""
    if isinstance(value, tuple):
        return list(map(_listed_fact, value))
    return {k: _listed_fact(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _frozen_fact(value: Any) -> Any:
    """Return the fact with tuples for lists, so that it is immutable."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen_fact, value))
    return {str(k): _frozen_fact(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _events_of(part: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events that a part composes (one level deep), or the part itself."""
    return tuple(part.events) if isinstance(part, ComposedDpEvent) else (part,)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
