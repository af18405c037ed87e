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

# A field that has another name in JSON.
_FIELDS = {"sampling_probability": "sampling_rate"}
_NAMES: dict[type[DpEvent], str] = {}
_READERS: dict[str, Callable[..., DpEvent]] = {}


def register_event(name: str, cls: type[DpEvent], read: Callable[..., DpEvent] | None = None) -> None:
    """Register a class of basic events, so that ledgers and files accept it.

    Parameters
    ----------
    name : str
        The type in JSON.
    cls : type
        A class of attrs. Class and name must not be registered yet; ``ValueError`` otherwise.
    read : callable, optional
        Build an event from its fields, by name; default: ``cls``.
    """
    if cls in _NAMES or name in _READERS:
        raise ValueError(f"{cls.__name__} or the name {name!r} is registered already; choose another")
    _NAMES[cls], _READERS[name] = name, read or cls


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Return the event as plain JSON values."""
    name = _NAMES.get(type(require_event(event)))
    if name is None:
        known = ", ".join(_READERS)
        raise ValueError(f"{type(event).__name__} has no JSON form; use register_event, or one of: {known}")
    fields = attr.asdict(event, recurse=False)
    return {"type": name} | {_FIELDS.get(field, field): _to_json(value) for field, value in fields.items()}


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
    fields = {key: _from_json(value) for key, value in data.items() if key != "type"}
    try:
        return _READERS[kind](**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the fields of a {kind!r} event are wrong: {error}") from None


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(event_from_dict, value))
    return event_from_dict(value) if isinstance(value, Mapping) else value


def _read_several(cls: type[DpEvent]) -> Callable[..., DpEvent]:
    def read(events: Any) -> DpEvent:
        # an empty string or object would be read as "nothing was spent"
        if not isinstance(events, tuple):
            raise ValueError("events must be a list")
        return cls(events)

    return read


# Readers have named fields, so an unknown or missing field is a TypeError.
register_event("gaussian", GaussianDpEvent, lambda noise_multiplier: gaussian_event(noise_multiplier))
register_event(
    "laplace",
    LaplaceDpEvent,
    lambda noise_multiplier: LaplaceDpEvent(check_positive("noise_multiplier", noise_multiplier)),
)
register_event(
    "discrete_gaussian",
    DiscreteGaussianDpEvent,
    lambda sigma, sensitivity: discrete_gaussian_event(sigma, sensitivity),
)
register_event("bounded_range", BoundedRangeDpEvent, lambda loss_range: bounded_range_event(loss_range))
register_event("approximate_dp", ApproximateDpEvent, lambda epsilon, delta: approximate_dp_event(epsilon, delta))
register_event("no_op", NoOpDpEvent)
register_event("non_private", NonPrivateDpEvent)
register_event(
    "repeated",
    SelfComposedDpEvent,
    lambda event, count: SelfComposedDpEvent(require_event(event), checked_count("count", count)),
)
register_event(
    "poisson_sampled",
    PoissonSampledDpEvent,
    lambda event, sampling_rate: PoissonSampledDpEvent(
        check_fraction("sampling_rate", sampling_rate), require_event(event)
    ),
)
register_event("composed", ComposedDpEvent, _read_several(ComposedDpEvent))
register_event("parallel", ParallelDpEvent, _read_several(ParallelDpEvent))
register_event(
    "secret_split",
    SecretSplitDpEvent,
    lambda training, held_out, fraction: secret_split(training, held_out, fraction),
)
