"""One line of a ledger."""

from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from dpscp.privacy.event_json import event_from_dict, event_to_dict
from dpscp.privacy.events import parallel_parts
from dpscp.privacy.units import RECORDS, Relation, Unit

__all__ = ["Entry"]


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
        """Return the name and the event of each component of a part, or of the part itself where they have no names."""
        part, event = self.stages[place]
        names = self.components[place] if self.components else ()
        if not names:
            return ((part, event),)
        return tuple((f"{part}: {name}", one) for name, one in zip(names, _events_of(event), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values for ``from_dict``."""
        found = {"stage": self.stage, "event": event_to_dict(self.event), "note": self.note}
        found |= {"unit": self.unit.to_dict(), "relation": str(self.relation)} | (
            {"parts": list(self.parts)} if self.parts else {}
        )
        return found | ({"components": list(map(list, self.components))} if self.components else {})

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


def _events_of(part: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events that a part composes, or the part itself; those inside them stay together."""
    return tuple(part.events) if isinstance(part, ComposedDpEvent) else (part,)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
