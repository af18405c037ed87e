"""Events: descriptions of noisy computations, from which the cost is computed.

Helpers for the events of dp-accounting, and the events that it lacks. An event states what was released and with how
much noise. ``accounting`` computes the cost. All helpers take public numbers only. Neighbors differ by one added or
removed record.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

from dpscp._base.checks import check_count, check_fraction, check_nonnegative, check_positive, check_probability
from dpscp.exceptions import UnsupportedEventError
from dpscp.privacy.event_types import (
    ApproximateDpEvent,
    BoundedRangeDpEvent,
    DiscreteGaussianDpEvent,
    ParallelDpEvent,
    SecretSplitDpEvent,
)

__all__ = [
    "ApproximateDpEvent",
    "BoundedRangeDpEvent",
    "DiscreteGaussianDpEvent",
    "DpEvent",
    "EventKind",
    "ParallelDpEvent",
    "SecretSplitDpEvent",
    "TooManyHistoriesError",
    "approximate_dp_event",
    "basic_events",
    "bounded_range_event",
    "compose",
    "composed_parts",
    "disclose_parts",
    "discrete_gaussian_event",
    "dpsgd_event",
    "event_from_dict",
    "event_to_dict",
    "gaussian_event",
    "non_private_event",
    "parallel",
    "parallel_parts",
    "possible_histories",
    "register_event",
    "secret_parts",
    "secret_split",
]

# A ledger with several parallel stages has one history for each combination of parts; typical ledgers have about five.
_MOST_HISTORIES = 64
# Far above any real noise scale or number of steps, and far below the largest float of an accountant.
_LARGEST_COUNT = 10**18


class TooManyHistoriesError(UnsupportedEventError):
    """Parallel parts have too many combinations to examine each."""


def _count(name: str, value: object) -> int:
    count = check_count(name, value)
    if count > _LARGEST_COUNT:
        raise ValueError(f"{name} must be at most {_LARGEST_COUNT:g}")
    return count


def gaussian_event(noise_multiplier: float, count: int = 1) -> DpEvent:
    """Return the event of ``count`` releases with continuous Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        The noise scale divided by the sensitivity.
    count : int

    Returns
    -------
    DpEvent
    """
    event = GaussianDpEvent(check_positive("noise_multiplier", noise_multiplier))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def dpsgd_event(noise_multiplier: float, sampling_rate: float, steps: int) -> DpEvent:
    """Return the event of DP-SGD: noisy gradient sums over Poisson samples.

    Parameters
    ----------
    noise_multiplier : float
        The noise scale divided by the clip norm.
    sampling_rate : float
        The probability that a record enters a batch; 1 is full-batch descent.
    steps : int

    Returns
    -------
    DpEvent

    Paper: Algorithm 3 [alg:dp-sgd]
    """
    check_positive("noise_multiplier", noise_multiplier)
    sampling_rate = check_fraction("sampling_rate", sampling_rate)
    if sampling_rate == 1:
        return gaussian_event(noise_multiplier, steps)
    step = PoissonSampledDpEvent(sampling_rate, GaussianDpEvent(float(noise_multiplier)))
    return SelfComposedDpEvent(step, _count("steps", steps))


def discrete_gaussian_event(sigma: int, sensitivity: int = 1, count: int = 1) -> DpEvent:
    """Return the event of integer releases with discrete Gaussian noise.

    Parameters
    ----------
    sigma : int
        The noise scale.
    sensitivity, count : int

    Returns
    -------
    DpEvent
    """
    event = DiscreteGaussianDpEvent(_count("sigma", sigma), _count("sensitivity", sensitivity))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def approximate_dp_event(epsilon: float, delta: float = 0.0) -> DpEvent:
    """Return the event of a step that is only known to be (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon, delta : float

    Returns
    -------
    DpEvent
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_nonnegative("delta", delta)
    if delta >= 1:
        raise ValueError(f"delta must be below 1, got {delta:g}; use non_private_event() for a step without privacy")
    return ApproximateDpEvent(epsilon, delta)


def bounded_range_event(loss_range: float, count: int = 1) -> DpEvent:
    """Return the event of draws from exponential mechanisms.

    Parameters
    ----------
    loss_range : float
        See ``BoundedRangeDpEvent``.
    count : int
        The number of draws.

    Returns
    -------
    DpEvent
    """
    event = BoundedRangeDpEvent(check_positive("loss_range", loss_range))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


def non_private_event() -> DpEvent:
    """Return the event of a step without privacy: epsilon becomes infinite.

    Returns
    -------
    DpEvent
    """
    return NonPrivateDpEvent()


def compose(*events: DpEvent) -> DpEvent:
    """Return one event for several that ran one after the other on the same records.

    Parameters
    ----------
    *events : DpEvent

    Returns
    -------
    DpEvent
    """
    for event in events:
        require_event(event)
    if len(events) == 1:
        return events[0]
    return ComposedDpEvent(tuple(events)) if events else NoOpDpEvent()


def parallel(*events: DpEvent) -> DpEvent:
    """Return one event for several that ran on disjoint parts of the records.

    Parameters
    ----------
    *events : DpEvent
        See ``ParallelDpEvent`` for the condition on the parts.

    Returns
    -------
    DpEvent
    """
    for event in events:
        require_event(event)
    distinct = tuple(dict.fromkeys(map(frozen_event, events)))
    if not distinct:
        return NoOpDpEvent()
    return distinct[0] if len(distinct) == 1 else ParallelDpEvent(distinct)


def secret_split(training: DpEvent, held_out: DpEvent, fraction: float) -> DpEvent:
    """Return one event for two mechanisms on secret random parts of the records.

    Parameters
    ----------
    training, held_out : DpEvent
    fraction : float
        The probability that a record is held out; see ``SecretSplitDpEvent``.

    Returns
    -------
    DpEvent

    Theory: The secret split
    """
    check_probability("fraction", fraction)
    return SecretSplitDpEvent(
        frozen_event(require_event(training)), frozen_event(require_event(held_out)), float(fraction)
    )


def secret_parts(training: DpEvent, *held_out: tuple[DpEvent, float]) -> DpEvent:
    """One event for several on random parts of the records: the part of ``training``, and others with their shares.

    One secret coin of a record's own, with a face for each part, decides. The mixture of three is a secret split whose
    held-out side is a secret split again.

    Parameters
    ----------
    training : DpEvent
        The event of the part that the shares leave.
    *held_out : tuple of (DpEvent, float)
        The event of each other part and the probability that a record is in it.

    Returns
    -------
    DpEvent

    Theory: The secret split
    """
    (event, share), *others = held_out
    if not others:
        return secret_split(training, event, share)
    together = share + sum(fraction for _, fraction in others)
    inner = secret_parts(event, *((other, fraction / together) for other, fraction in others))
    return secret_split(training, inner, together)


def require_event(event: object) -> DpEvent:
    """Return ``event`` if it is an event; raise ``TypeError`` otherwise."""
    if not isinstance(event, DpEvent):
        raise TypeError(f"event must be a DpEvent (see dpscp.privacy.dpsgd_event), got {type(event).__name__}")
    return event


@dataclass(frozen=True)
class EventKind:
    """How the events of one class are written, read, taken apart and described.

    Attributes
    ----------
    name : str
        The type in JSON.
    cls : type
    read : callable
        Build an event from the fields that ``write`` returned, by name.
    write : callable
        Return the fields of an event as plain JSON values.
    parts : callable
        Return the events inside an event.
    rebuilt : callable
        ``rebuilt(event, parts)`` returns the event with other parts.
    histories : callable
        Return what one record may have been used by, see ``possible_histories``.
    words : callable
        Describe an event to a reader.
    """

    name: str
    cls: type[DpEvent]
    read: Callable[..., DpEvent]
    write: Callable[[Any], dict[str, Any]] = attr.asdict
    parts: Callable[[Any], Sequence[DpEvent]] = lambda _event: ()
    rebuilt: Callable[[Any, tuple[DpEvent, ...]], DpEvent] = lambda event, _parts: event
    histories: Callable[[Any], list[Counter[DpEvent]]] = lambda event: [Counter({event: 1})]
    words: Callable[[Any], str] = lambda event: type(event).__name__.removesuffix("DpEvent")


_KINDS: dict[type[DpEvent], EventKind] = {}
_KIND_NAMED: dict[str, EventKind] = {}
# The kind of an unregistered event: no parts, one history, rejected by every accountant.
_UNKNOWN = EventKind("unknown", DpEvent, DpEvent)


def register_event(kind: EventKind) -> None:
    """Register a class of events, so that ledgers and files accept it.

    Parameters
    ----------
    kind : EventKind
        Class and name must not be registered yet; ``ValueError`` otherwise.
    """
    if kind.cls in _KINDS or kind.name in _KIND_NAMED:
        raise ValueError(f"{kind.cls.__name__} or the name {kind.name!r} is registered already; choose another")
    _KINDS[kind.cls] = _KIND_NAMED[kind.name] = kind


def _kind_of(event: DpEvent) -> EventKind:
    return _KINDS.get(type(require_event(event)), _UNKNOWN)


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Return the event as plain JSON values."""
    kind = _kind_of(event)
    if kind is _UNKNOWN:
        raise ValueError(
            f"{type(event).__name__} has no JSON form; use register_event, or one of: {', '.join(_KIND_NAMED)}"
        )
    return {"type": kind.name} | kind.write(event)


def event_from_dict(data: Mapping[str, Any]) -> DpEvent:
    """Return the event that ``event_to_dict`` wrote; raise ``ValueError`` otherwise."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ValueError("an event must be a JSON object with the key 'type'")
    fields = {key: value for key, value in data.items() if key != "type"}
    kind = data["type"]
    if not isinstance(kind, str) or kind not in _KIND_NAMED:
        raise ValueError(f"the event type is unknown; it must be one of: {', '.join(_KIND_NAMED)}")
    try:
        return _KIND_NAMED[kind].read(**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the fields of a {kind!r} event are wrong: {error}") from None


def frozen_event(event: DpEvent) -> DpEvent:
    """Return the event with tuples for lists, so that it is immutable and hashable."""
    kind = _kind_of(event)
    return kind.rebuilt(event, tuple(map(frozen_event, kind.parts(event))))


def disclose_parts(event: DpEvent) -> DpEvent:
    """Return the event as if the part of every record were public.

    This is an upper bound that needs no mixture.
    """
    kind = _kind_of(event)
    parts = tuple(map(disclose_parts, kind.parts(event)))
    return ParallelDpEvent(parts) if isinstance(event, SecretSplitDpEvent) else kind.rebuilt(event, parts)


def composed_parts(event: DpEvent) -> list[DpEvent]:
    """Return the events that ``event`` composes, or the event itself."""
    if not isinstance(event, ComposedDpEvent):
        return [event]
    return [part for inner in event.events for part in composed_parts(inner)]


def describe_event(event: DpEvent) -> str:
    """Describe the event; the noise is given in units of one record's effect."""
    return _kind_of(event).words(event)


def parallel_parts(event: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events of which each record is used by exactly one.

    This is the event itself if it has no parallel parts.
    """
    if isinstance(event, SecretSplitDpEvent):
        # the held-out side of three parts is a secret split again
        held_out = event.held_out
        rest = parallel_parts(held_out) if isinstance(held_out, SecretSplitDpEvent) else (held_out,)
        return event.training, *rest
    return tuple(event.events) if isinstance(event, ParallelDpEvent) else (event,)


def basic_events(event: DpEvent) -> frozenset[DpEvent]:
    """Return every basic event that may have used some record."""
    kind = _kind_of(event)
    parts = kind.parts(event)
    if not parts:
        return frozenset(basic for history in kind.histories(event) for basic in history)
    return frozenset().union(*map(basic_events, parts))


def possible_histories(event: DpEvent) -> list[Mapping[DpEvent, int]]:
    """Return the counts of basic events for each choice of parallel parts.

    A record lies in exactly one part, so the cost of ``event`` is the largest over the list.
    """
    return [dict(history) for history in _histories(event)]


def _histories(event: DpEvent) -> list[Counter[DpEvent]]:
    """Return each history once: the order of events does not matter."""
    return list({frozenset(h.items()): h for h in _kind_of(event).histories(event)}.values())


def _noisy_histories(event: GaussianDpEvent | LaplaceDpEvent) -> list[Counter[DpEvent]]:
    # events of dp-accounting accept zero noise, which releases the exact statistic
    exact = check_nonnegative("noise_multiplier", event.noise_multiplier) == 0
    return [Counter({NonPrivateDpEvent() if exact else event: 1})]


def _sampled_histories(event: PoissonSampledDpEvent) -> list[Counter[DpEvent]]:
    inner = _histories(event.event)
    if any(NonPrivateDpEvent() in history for history in inner):
        return [Counter({NonPrivateDpEvent(): 1})]
    basic, count = next(iter(inner[0].items()), (None, 0))
    if len(inner) > 1 or len(inner[0]) > 1 or not isinstance(basic, GaussianDpEvent):
        raise UnsupportedEventError(
            f"the event under Poisson sampling must be Gaussian, got {type(event.event).__name__}; use gaussian_event"
        )
    # several releases on one sample cost as much as one release with less noise
    gaussian = basic if count == 1 else GaussianDpEvent(basic.noise_multiplier / count**0.5)
    return [Counter({PoissonSampledDpEvent(event.sampling_probability, gaussian): 1})]


def _secret_histories(event: SecretSplitDpEvent) -> list[Counter[DpEvent]]:
    """Return the mixture for each choice inside the two parts."""
    choices = [_histories(part) for part in (event.training, event.held_out)]
    if any(NonPrivateDpEvent() in history for histories in choices for history in histories):
        return [Counter({NonPrivateDpEvent(): 1})]
    first, second = ([_as_one_event(history) for history in histories] for histories in choices)
    return [Counter({SecretSplitDpEvent(a, b, event.fraction): 1}) for a in first for b in second]


def _as_one_event(history: Counter[DpEvent]) -> DpEvent:
    """Return a history as one event."""
    return compose(*(event if count == 1 else SelfComposedDpEvent(event, count) for event, count in history.items()))


def _repeated_histories(event: SelfComposedDpEvent) -> list[Counter[DpEvent]]:
    if not _repeated_parts(event):
        return [Counter()]
    inner = _histories(event.event)
    if len(inner) > 1 and event.count > 1:
        raise ValueError("a parallel event cannot be repeated; add each repetition as its own ledger entry")
    return [Counter({e: k * event.count for e, k in h.items()}) for h in inner]


def _composed_histories(event: ComposedDpEvent) -> list[Counter[DpEvent]]:
    together: list[Counter[DpEvent]] = [Counter()]
    for part in event.events:
        choices = _histories(part)
        # k fits with the same two parts have k + 1 histories, not 2^k
        together = list({frozenset((h := a + b).items()): h for a in together for b in choices}.values())
        if len(together) > _MOST_HISTORIES:
            raise TooManyHistoriesError(
                f"the parallel parts have more than {_MOST_HISTORIES} combinations; merge some ledger entries"
            )
    return together


def _repeated_parts(event: SelfComposedDpEvent) -> Sequence[DpEvent]:
    return (event.event,) if check_count("count", event.count, minimum=0) else ()


def _several(
    name: str,
    cls: type[ComposedDpEvent] | type[ParallelDpEvent],
    histories: Callable[[Any], list[Counter[DpEvent]]],
) -> EventKind:
    def read(events: Any) -> DpEvent:
        # an empty string or object would be read as "nothing was spent"
        if not isinstance(events, list | tuple):
            raise ValueError("events must be a list")
        return cls(tuple(event_from_dict(e) for e in events))

    return EventKind(
        name,
        cls,
        read,
        lambda event: {"events": [event_to_dict(e) for e in event.events]},
        lambda event: tuple(event.events),
        lambda _event, parts: cls(parts),
        histories,
        lambda event: ("; " if cls is ComposedDpEvent else " | ").join(map(describe_event, event.events)),
    )


# ``read`` has named fields, so an unknown or missing field is a TypeError.
for _kind in (
    EventKind(
        "gaussian",
        GaussianDpEvent,
        lambda noise_multiplier: gaussian_event(noise_multiplier),
        histories=_noisy_histories,
        words=lambda event: f"one noisy sum (noise scale: {event.noise_multiplier:.4g} times one record)",
    ),
    EventKind(
        "laplace",
        LaplaceDpEvent,
        lambda noise_multiplier: LaplaceDpEvent(check_positive("noise_multiplier", noise_multiplier)),
        histories=_noisy_histories,
    ),
    EventKind(
        "discrete_gaussian",
        DiscreteGaussianDpEvent,
        lambda sigma, sensitivity: discrete_gaussian_event(sigma, sensitivity),
        words=lambda event: f"one noisy count (noise scale: {event.sigma / event.sensitivity:.4g} times one record)",
    ),
    EventKind("bounded_range", BoundedRangeDpEvent, lambda loss_range: bounded_range_event(loss_range)),
    EventKind("approximate_dp", ApproximateDpEvent, lambda epsilon, delta: approximate_dp_event(epsilon, delta)),
    EventKind("no_op", NoOpDpEvent, NoOpDpEvent, histories=lambda _event: [Counter()]),
    EventKind("non_private", NonPrivateDpEvent, NonPrivateDpEvent),
    EventKind(
        "repeated",
        SelfComposedDpEvent,
        lambda event, count: SelfComposedDpEvent(event_from_dict(event), _count("count", count)),
        lambda event: {"count": int(event.count), "event": event_to_dict(event.event)},
        _repeated_parts,
        lambda event, parts: SelfComposedDpEvent(parts[0], event.count) if parts else event,
        _repeated_histories,
        lambda event: f"{event.count} times {describe_event(event.event)}",
    ),
    # the event under sampling is part of one basic event: it cannot be accounted for alone
    EventKind(
        "poisson_sampled",
        PoissonSampledDpEvent,
        lambda event, sampling_rate: PoissonSampledDpEvent(
            check_fraction("sampling_rate", sampling_rate), event_from_dict(event)
        ),
        lambda event: {"sampling_rate": float(event.sampling_probability), "event": event_to_dict(event.event)},
        histories=_sampled_histories,
        words=lambda event: f"{describe_event(event.event)}, over a random share of {event.sampling_probability:.3g}",
    ),
    _several("composed", ComposedDpEvent, _composed_histories),
    _several(
        "parallel",
        ParallelDpEvent,
        lambda event: [h for part in event.events for h in _histories(part)] or [Counter()],
    ),
    EventKind(
        "secret_split",
        SecretSplitDpEvent,
        lambda training, held_out, fraction: secret_split(
            event_from_dict(training), event_from_dict(held_out), fraction
        ),
        lambda event: {
            "training": event_to_dict(event.training),
            "held_out": event_to_dict(event.held_out),
            "fraction": event.fraction,
        },
        lambda event: (event.training, event.held_out),
        lambda event, parts: SecretSplitDpEvent(parts[0], parts[1], event.fraction),
        _secret_histories,
        lambda event: f"{describe_event(event.training)} | {describe_event(event.held_out)} (secret assignment)",
    ),
):
    register_event(_kind)
