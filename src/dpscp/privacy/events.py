"""What happened to the data: thin helpers over dp-accounting's events, and the few events it lacks.

An event says what was released and with how much noise; what that costs is decided in ``accounting``. Every
helper takes public numbers only. Neighbouring data sets differ by one added or removed record throughout.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attr
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

from dpscp._checks import check_count, check_fraction, check_nonnegative, check_positive

__all__ = [
    "ApproximateDpEvent",
    "DiscreteGaussianDpEvent",
    "DpEvent",
    "ParallelDpEvent",
    "approximate_dp_event",
    "compose",
    "discrete_gaussian_event",
    "dpsgd_event",
    "event_from_dict",
    "event_to_dict",
    "gaussian_event",
    "non_private_event",
    "parallel",
    "possible_histories",
]

# A ledger with several parallel stages has one history for each combination of parts; real ones have a handful.
_MOST_HISTORIES = 64
# Far above any real scale or number of steps, and far below what the accountants' floats can hold.
_LARGEST_COUNT = 10**18


@attr.frozen
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """Integer noise: discrete Gaussian of scale ``sigma`` on an integer statistic of sensitivity ``sensitivity``.

    Exactly rho-zCDP with rho = (sensitivity / sigma)^2 / 2; its trade-off curve lies slightly below the
    continuous Gaussian's, so it is accounted for with its own privacy loss distribution.
    """

    sigma: int
    sensitivity: int = 1


@attr.frozen
class ApproximateDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism of which only an (epsilon, delta) guarantee is known."""

    epsilon: float
    delta: float = 0.0


@attr.frozen
class ParallelDpEvent(DpEvent):  # type: ignore[misc]
    """Mechanisms on disjoint parts of the records: one record meets exactly one of ``events``.

    The part must be a fixed function of the record itself, or drawn for each record on its own. The cost is
    the worst of the parts, not the sum: the parallel composition of f-DP.
    """

    events: tuple[DpEvent, ...] = attr.field(converter=tuple)


def _count(name: str, value: object) -> int:
    count = check_count(name, value)
    if count > _LARGEST_COUNT:
        raise ValueError(f"{name} must be at most {_LARGEST_COUNT:g}")
    return count


def gaussian_event(noise_multiplier: float, count: int = 1) -> DpEvent:
    """``count`` releases with continuous Gaussian noise of ``noise_multiplier`` times the sensitivity."""
    event = GaussianDpEvent(check_positive("noise_multiplier", noise_multiplier))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def dpsgd_event(noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """``steps`` noisy gradient sums over Poisson samples; ``sampling_rate=1`` is full-batch descent.

    Paper: Algorithm 3 [alg:dp-sgd]
    """
    check_positive("noise_multiplier", noise_multiplier)
    sampling_rate = check_fraction("sampling_rate", sampling_rate)
    if sampling_rate == 1:
        return gaussian_event(noise_multiplier, steps)
    step = PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(float(noise_multiplier)))
    return SelfComposedDpEvent(step, _count("steps", steps))


def discrete_gaussian_event(sigma: int, sensitivity: int = 1, count: int = 1) -> DpEvent:
    """``count`` integer releases with discrete Gaussian noise of integer scale ``sigma``."""
    event = DiscreteGaussianDpEvent(_count("sigma", sigma), _count("sensitivity", sensitivity))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def approximate_dp_event(epsilon: float, delta: float = 0.0) -> DpEvent:
    """A step known only to be (epsilon, delta)-DP."""
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, got {delta:g}; use non_private_event for a step without privacy")
    return ApproximateDpEvent(epsilon, delta)


def non_private_event() -> DpEvent:
    """A step without any privacy; it makes the whole ledger's epsilon infinite."""
    return NonPrivateDpEvent()


def compose(*events: DpEvent) -> DpEvent:
    """One event for several that were run one after the other on the same records."""
    for event in events:
        require_event(event)
    if len(events) == 1:
        return events[0]
    return ComposedDpEvent(tuple(events)) if events else NoOpDpEvent()


def parallel(*events: DpEvent) -> DpEvent:
    """One event for several that were run on disjoint parts of the records (see ``ParallelDpEvent``)."""
    for event in events:
        require_event(event)
    distinct = tuple(dict.fromkeys(map(frozen_event, events)))
    if not distinct:
        return NoOpDpEvent()
    return distinct[0] if len(distinct) == 1 else ParallelDpEvent(distinct)


def require_event(event: object) -> DpEvent:
    """Return ``event`` if it is one, or raise."""
    if not isinstance(event, DpEvent):
        raise TypeError(f"event must be a DpEvent (see dpscp.privacy.dpsgd_event), got {type(event).__name__}")
    return event


def frozen_event(event: DpEvent) -> DpEvent:
    """The same event with tuples for lists: nobody can change it later, and equal events are found by hashing."""
    if isinstance(event, ComposedDpEvent):
        return ComposedDpEvent(tuple(frozen_event(e) for e in event.events))
    if isinstance(event, ParallelDpEvent):
        return ParallelDpEvent(tuple(frozen_event(e) for e in event.events))
    if isinstance(event, SelfComposedDpEvent):
        return SelfComposedDpEvent(frozen_event(event.event), event.count)
    return event


def possible_histories(event: DpEvent) -> list[Mapping[DpEvent, int]]:
    """What one record may have met: for each choice of its parallel parts, how often each basic event ran.

    The privacy of ``event`` is the worst over the list, because a record lies in exactly one part.
    """
    histories = _histories(require_event(event))
    return [dict(h) for h in {frozenset(h.items()): h for h in histories}.values()]


def _histories(event: DpEvent) -> list[Counter[DpEvent]]:
    if isinstance(event, NoOpDpEvent):
        return [Counter()]
    if isinstance(event, SelfComposedDpEvent):
        if check_count("count", event.count, minimum=0) == 0:
            return [Counter()]
        inner = _distinct(_histories(event.event))
        if len(inner) > 1 and event.count > 1:
            raise ValueError("a parallel event cannot be repeated: write each repetition as its own entry")
        return [Counter({e: k * event.count for e, k in h.items()}) for h in inner]
    if isinstance(event, ParallelDpEvent):
        return [h for part in event.events for h in _histories(part)] or [Counter()]
    if isinstance(event, ComposedDpEvent):
        together: list[Counter[DpEvent]] = [Counter()]
        for part in event.events:
            choices = _distinct(_histories(part))
            # the order does not matter: k fits with the same two parts have k + 1 histories, not 2^k
            together = _distinct([before + now for before in together for now in choices])
            if len(together) > _MOST_HISTORIES:
                raise ValueError(f"more than {_MOST_HISTORIES} combinations of parallel parts: merge some entries")
        return together
    if isinstance(event, PoissonSampledDpEvent):
        if _without_noise(event.event):
            return [Counter({NonPrivateDpEvent(): 1})]
        return [Counter({PoissonSampledDpEvent(event.sampling_probability, _sampled_gaussian(event.event)): 1})]
    return [Counter({NonPrivateDpEvent() if _without_noise(event) else event: 1})]


def _without_noise(event: DpEvent) -> bool:
    """Whether the event releases the exact statistic; dp-accounting's own events may be built with zero noise."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        return check_nonnegative("noise_multiplier", event.noise_multiplier) == 0
    return isinstance(event, NonPrivateDpEvent)


def _distinct(histories: list[Counter[DpEvent]]) -> list[Counter[DpEvent]]:
    return list({frozenset(h.items()): h for h in histories}.values())


def _sampled_gaussian(event: DpEvent) -> GaussianDpEvent:
    """The one Gaussian that a sampled event amounts to."""
    if isinstance(event, GaussianDpEvent):
        return event
    if isinstance(event, SelfComposedDpEvent) and isinstance(event.event, GaussianDpEvent):
        return GaussianDpEvent(event.event.noise_multiplier / event.count**0.5)
    raise ValueError(f"only Gaussian noise can be accounted for under Poisson sampling, got {type(event).__name__}")


_LEAVES: dict[str, type[DpEvent]] = {
    "gaussian": GaussianDpEvent,
    "laplace": LaplaceDpEvent,
    "discrete_gaussian": DiscreteGaussianDpEvent,
    "approximate_dp": ApproximateDpEvent,
    "no_op": NoOpDpEvent,
    "non_private": NonPrivateDpEvent,
}
_LEAF_NAMES = {cls: name for name, cls in _LEAVES.items()}


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """The event as plain JSON values."""
    if isinstance(event, SelfComposedDpEvent):
        return {"type": "repeated", "count": int(event.count), "event": event_to_dict(event.event)}
    if isinstance(event, PoissonSampledDpEvent):
        rate = float(event.sampling_probability)
        return {"type": "poisson_sampled", "sampling_rate": rate, "event": event_to_dict(event.event)}
    if isinstance(event, ComposedDpEvent):
        return {"type": "composed", "events": [event_to_dict(e) for e in event.events]}
    if isinstance(event, ParallelDpEvent):
        return {"type": "parallel", "events": [event_to_dict(e) for e in event.events]}
    name = _LEAF_NAMES.get(type(event))
    if name is None:
        raise ValueError(f"{type(event).__name__} has no JSON form; known: {', '.join(_LEAVES)}")
    return {"type": name} | attr.asdict(event)


def event_from_dict(data: Mapping[str, Any]) -> DpEvent:
    """The event that ``event_to_dict`` wrote; anything else is refused."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ValueError("an event must be an object with a 'type'")
    fields = {key: value for key, value in data.items() if key != "type"}
    kind = data["type"]
    if not isinstance(kind, str) or kind not in _BUILDERS:
        raise ValueError(f"unknown event type; known: {', '.join(_BUILDERS)}")
    try:
        return _BUILDERS[kind](**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the fields of a {kind!r} event are wrong: {error}") from None


def _repeated(event: Any, count: int) -> DpEvent:
    return SelfComposedDpEvent(event_from_dict(event), _count("count", count))


def _poisson_sampled(event: Any, sampling_rate: float) -> DpEvent:
    return PoissonSampledDpEvent(check_fraction("sampling_rate", sampling_rate), event_from_dict(event))


def _several(kind: Callable[[tuple[DpEvent, ...]], DpEvent], events: Any) -> DpEvent:
    # an empty string or object would iterate to "nothing was spent"
    if not isinstance(events, list | tuple):
        raise ValueError("events must be a list")
    return kind(tuple(event_from_dict(e) for e in events))


# Functions with named fields: an unknown or missing one is a TypeError, nothing is ignored.
_BUILDERS: dict[str, Callable[..., DpEvent]] = {
    "gaussian": lambda noise_multiplier: gaussian_event(noise_multiplier),
    "laplace": lambda noise_multiplier: LaplaceDpEvent(check_positive("noise_multiplier", noise_multiplier)),
    "discrete_gaussian": lambda sigma, sensitivity: discrete_gaussian_event(sigma, sensitivity),
    "approximate_dp": lambda epsilon, delta: approximate_dp_event(epsilon, delta),
    "no_op": NoOpDpEvent,
    "non_private": NonPrivateDpEvent,
    "repeated": _repeated,
    "poisson_sampled": _poisson_sampled,
    "composed": lambda events: _several(ComposedDpEvent, events),
    "parallel": lambda events: _several(ParallelDpEvent, events),
}
