"""The JSON form of events, which ledgers and files use."""

from collections.abc import Callable, Mapping
from typing import Any

import attr
import numpy as np
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from dpscp._base.checks import check_fraction, check_positive
from dpscp.privacy.events import (
    ApproximateDpEvent,
    BoundedRangeDpEvent,
    DiscreteGaussianDpEvent,
    ParallelDpEvent,
    SecretSplitDpEvent,
    approximate_dp_event,
    bounded_range_event,
    checked_count,
    discrete_gaussian_event,
    gaussian_event,
    require_event,
    secret_split,
)

# The field of dp-accounting that has another name in JSON.
_THEIRS, _OURS = "sampling_probability", "sampling_rate"
_NAMES: dict[type[DpEvent], str] = {}
_READERS: dict[str, tuple[type[DpEvent], Callable[..., DpEvent]]] = {}


def register_event(name: str, cls: type[DpEvent], read: Callable[..., DpEvent] | None = None) -> None:
    """Register a class of basic events, so that ledgers and files accept it.

    Parameters
    ----------
    name : str
        The type in JSON.
    cls : type
        A class of attrs. Class and name must not be registered yet; ``ValueError`` otherwise.
    read : callable, optional
        Build an event from all its fields, by name; default: ``cls``.
    """
    if cls in _NAMES or name in _READERS:
        raise ValueError(f"{cls.__name__} or the name {name!r} is registered already; choose another")
    _NAMES[cls], _READERS[name] = name, (cls, read or cls)


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Return the event as plain JSON values."""
    name = _NAMES.get(type(require_event(event)))
    if name is None:
        known = ", ".join(_READERS)
        raise ValueError(f"{type(event).__name__} has no JSON form; use register_event, or one of: {known}")
    fields = attr.asdict(event, recurse=False)
    return {"type": name} | {_OURS if field == _THEIRS else field: _to_json(value) for field, value in fields.items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_dict(value)
    if isinstance(value, list | tuple):
        return [event_to_dict(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def event_from_dict(data: Mapping[str, Any]) -> DpEvent:
    """Return the event that ``event_to_dict`` wrote; raise ``ValueError`` otherwise."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ValueError("an event must be a JSON object with the key 'type'")
    kind = data["type"]
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"the event type is unknown; it must be one of: {', '.join(_READERS)}")
    cls, read = _READERS[kind]
    fields = {_THEIRS if key == _OURS else key: _from_json(value) for key, value in data.items() if key != "type"}
    # a missing field must not get the default of a function
    if set(fields) != {field.name for field in attr.fields(cls)}:
        raise ValueError(f"the fields of a {kind!r} event are wrong")
    try:
        return read(**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the fields of a {kind!r} event are wrong: {error}") from None


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(event_from_dict, value))
    return event_from_dict(value) if isinstance(value, Mapping) else value


def _several(events: Any) -> tuple[DpEvent, ...]:
    # an empty string or object would be read as "nothing was spent"
    if not isinstance(events, tuple):
        raise ValueError("events must be a list")
    return events


def _laplace(noise_multiplier: float) -> DpEvent:
    return LaplaceDpEvent(check_positive("noise_multiplier", noise_multiplier))


def _repeated(event: DpEvent, count: int) -> DpEvent:
    return SelfComposedDpEvent(require_event(event), checked_count("count", count))


def _sampled(event: DpEvent, sampling_probability: float) -> DpEvent:
    return PoissonSampledDpEvent(check_fraction("sampling_rate", sampling_probability), require_event(event))


register_event("gaussian", GaussianDpEvent, gaussian_event)
register_event("laplace", LaplaceDpEvent, _laplace)
register_event("discrete_gaussian", DiscreteGaussianDpEvent, discrete_gaussian_event)
register_event("bounded_range", BoundedRangeDpEvent, bounded_range_event)
register_event("approximate_dp", ApproximateDpEvent, approximate_dp_event)
register_event("no_op", NoOpDpEvent)
register_event("non_private", NonPrivateDpEvent)
register_event("repeated", SelfComposedDpEvent, _repeated)
register_event("poisson_sampled", PoissonSampledDpEvent, _sampled)
register_event("composed", ComposedDpEvent, lambda events: ComposedDpEvent(_several(events)))
register_event("parallel", ParallelDpEvent, lambda events: ParallelDpEvent(_several(events)))
register_event("secret_split", SecretSplitDpEvent, secret_split)
