"""What happened to the data: thin helpers over dp-accounting's events, and the few events it lacks.

An event says what was released and with how much noise; what that costs is decided in ``accounting``. Every
helper takes public numbers only. Neighbouring data sets differ by one added or removed record throughout.
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
    "disclosed",
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

# A ledger with several parallel stages has one history for each combination of parts; real ones have a handful.
_MOST_HISTORIES = 64
# Far above any real scale or number of steps, and far below what the accountants' floats can hold.
_LARGEST_COUNT = 10**18


class TooManyHistoriesError(UnsupportedEventError):
    """Parallel parts have more combinations than are looked at one by one."""


@attr.frozen
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Integer noise: discrete Gaussian of scale ``sigma`` on an integer statistic of sensitivity ``sensitivity``.

    Exactly rho-zCDP with rho = (sensitivity / sigma)^2 / 2; its trade-off curve lies slightly below the
    continuous Gaussian's, so it is accounted for with its own privacy loss distribution.
    """

    sigma: int
    sensitivity: int = 1


@attr.frozen
class ApproximateDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """A mechanism of which only an (epsilon, delta) guarantee is known."""

    epsilon: float
    delta: float = 0.0


@attr.frozen
class BoundedRangeDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """An output whose log-probability changes with one record by amounts that differ by at most ``loss_range``.

    An exponential mechanism that draws e with weight exp(-rate u(e)) is one of loss range rate * r, where one record
    changes u by amounts within r of each other over all e: r is twice the sensitivity, and the sensitivity alone where
    an added record never lowers u. Such a mechanism is (loss_range, 0)-DP and loss_range^2 / 8-zCDP.
    """

    loss_range: float


@attr.frozen
class ParallelDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Mechanisms on disjoint parts of the records: one record meets exactly one of ``events``.

    The part must be a fixed function of the record itself, or drawn for each record on its own. The cost is
    the worst of the parts, not the sum: the parallel composition of f-DP.
    """

    events: tuple[DpEvent, ...] = attr.field(converter=tuple)


@attr.frozen
class SecretSplitDpEvent(DpEvent):  # type: ignore[misc]  # dp-accounting has no types
    """Two mechanisms, of which one record meets one, and nobody learns which.

    A secret coin of the record's own decides: ``held_out`` with probability ``fraction``, otherwise ``training``.
    ``held_out`` may use what ``training`` released. The cost is that of the mixture, below the worse of the two. It
    needs the coins and all that depends on them to stay secret: no realised size of a part is published, used or told
    in a message, unless ``held_out`` or ``training`` releases it with noise and pays for it.

    Theory: docs/guarantees.md, the secret split
    """

    training: DpEvent
    held_out: DpEvent
    fraction: float


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


def bounded_range_event(loss_range: float, count: int = 1) -> DpEvent:
    """``count`` draws of exponential mechanisms of this ``loss_range`` (see ``BoundedRangeDpEvent``)."""
    event = BoundedRangeDpEvent(check_positive("loss_range", loss_range))
    count = _count("count", count)
    return event if count == 1 else SelfComposedDpEvent(event, count)


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


def secret_split(training: DpEvent, held_out: DpEvent, fraction: float) -> DpEvent:
    """One event for two on random parts of the records (see ``SecretSplitDpEvent``)."""
    check_probability("fraction", fraction)
    return SecretSplitDpEvent(
        frozen_event(require_event(training)), frozen_event(require_event(held_out)), float(fraction)
    )


def secret_parts(training: DpEvent, *held_out: tuple[DpEvent, float]) -> DpEvent:
    """One event for several on random parts of the records: the part of ``training``, and others with their shares.

    One secret coin of a record's own, with a face for each part, decides. The mixture of three is a secret split whose
    held-out side is a secret split again.

    Theory: docs/guarantees.md, the secret split
    """
    (event, share), *others = held_out
    if not others:
        return secret_split(training, event, share)
    together = share + sum(fraction for _, fraction in others)
    inner = secret_parts(event, *((other, fraction / together) for other, fraction in others))
    return secret_split(training, inner, together)


def require_event(event: object) -> DpEvent:
    """Return ``event`` if it is one, or raise."""
    if not isinstance(event, DpEvent):
        raise TypeError(f"event must be a DpEvent (see dpscp.privacy.dpsgd_event), got {type(event).__name__}")
    return event


@dataclass(frozen=True)
class EventKind:
    """How the events of one class are written to a file, read back and taken apart.

    ``read`` takes the fields that ``write`` returned, by name. An event with ``parts`` is put together again by
    ``rebuilt(event, parts)``. ``histories`` lists what one record may have met, see ``possible_histories``. ``words``
    says what happened, for a person.
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
# What holds for an event that nobody registered: no parts, met once, refused by every accountant.
_UNKNOWN = EventKind("unknown", DpEvent, DpEvent)


def register_event(kind: EventKind) -> None:
    """Make a class of events known, so that ledgers hold it and files keep it; a class and a name are taken once."""
    if kind.cls in _KINDS or kind.name in _KIND_NAMED:
        raise ValueError(f"{kind.cls.__name__} or the name {kind.name!r} is registered already")
    _KINDS[kind.cls] = _KIND_NAMED[kind.name] = kind


def _kind_of(event: DpEvent) -> EventKind:
    return _KINDS.get(type(require_event(event)), _UNKNOWN)


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """The event as plain JSON values."""
    kind = _kind_of(event)
    if kind is _UNKNOWN:
        raise ValueError(f"{type(event).__name__} has no JSON form; known: {', '.join(_KIND_NAMED)}")
    return {"type": kind.name} | kind.write(event)


def event_from_dict(data: Mapping[str, Any]) -> DpEvent:
    """The event that ``event_to_dict`` wrote; anything else is refused."""
    if not isinstance(data, Mapping) or "type" not in data:
        raise ValueError("an event must be an object with a 'type'")
    fields = {key: value for key, value in data.items() if key != "type"}
    kind = data["type"]
    if not isinstance(kind, str) or kind not in _KIND_NAMED:
        raise ValueError(f"unknown event type; known: {', '.join(_KIND_NAMED)}")
    try:
        return _KIND_NAMED[kind].read(**fields)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"the fields of a {kind!r} event are wrong: {error}") from None


def frozen_event(event: DpEvent) -> DpEvent:
    """The same event with tuples for lists: nobody can change it later, and equal events are found by hashing."""
    kind = _kind_of(event)
    return kind.rebuilt(event, tuple(map(frozen_event, kind.parts(event))))


def disclosed(event: DpEvent) -> DpEvent:
    """The event as if everybody knew which part a record fell in: an upper bound that needs no mixture."""
    kind = _kind_of(event)
    parts = tuple(map(disclosed, kind.parts(event)))
    return ParallelDpEvent(parts) if isinstance(event, SecretSplitDpEvent) else kind.rebuilt(event, parts)


def composed_parts(event: DpEvent) -> list[DpEvent]:
    """The events that ``event`` composes one after the other, itself if it is none of several."""
    if not isinstance(event, ComposedDpEvent):
        return [event]
    return [part for inner in event.events for part in composed_parts(inner)]


def event_words(event: DpEvent) -> str:
    """What happened, for a person; noise in units of what one record can change."""
    return _kind_of(event).words(event)


def parallel_parts(event: DpEvent) -> tuple[DpEvent, ...]:
    """The events of which one record meets exactly one, itself if it meets all."""
    if isinstance(event, SecretSplitDpEvent):
        # the held-out side of three parts is a secret split again
        held_out = event.held_out
        rest = parallel_parts(held_out) if isinstance(held_out, SecretSplitDpEvent) else (held_out,)
        return event.training, *rest
    return tuple(event.events) if isinstance(event, ParallelDpEvent) else (event,)


def basic_events(event: DpEvent) -> frozenset[DpEvent]:
    """Every basic event that some record may have met."""
    kind = _kind_of(event)
    parts = kind.parts(event)
    if not parts:
        return frozenset(basic for history in kind.histories(event) for basic in history)
    return frozenset().union(*map(basic_events, parts))


def possible_histories(event: DpEvent) -> list[Mapping[DpEvent, int]]:
    """What one record may have met: for each choice of its parallel parts, how often each basic event ran.

    The privacy of ``event`` is the worst over the list, because a record lies in exactly one part.
    """
    return [dict(history) for history in _histories(event)]


def _histories(event: DpEvent) -> list[Counter[DpEvent]]:
    """The histories, each once: the order in which a record met its events does not matter."""
    return list({frozenset(h.items()): h for h in _kind_of(event).histories(event)}.values())


def _noisy_histories(event: GaussianDpEvent | LaplaceDpEvent) -> list[Counter[DpEvent]]:
    # dp-accounting's own events may be built with zero noise: they release the exact statistic
    exact = check_nonnegative("noise_multiplier", event.noise_multiplier) == 0
    return [Counter({NonPrivateDpEvent() if exact else event: 1})]


def _sampled_histories(event: PoissonSampledDpEvent) -> list[Counter[DpEvent]]:
    inner = _histories(event.event)
    if any(NonPrivateDpEvent() in history for history in inner):
        return [Counter({NonPrivateDpEvent(): 1})]
    basic, count = next(iter(inner[0].items()), (None, 0))
    if len(inner) > 1 or len(inner[0]) > 1 or not isinstance(basic, GaussianDpEvent):
        raise UnsupportedEventError(
            f"only Gaussian noise can be accounted for under Poisson sampling, got {type(event.event).__name__}"
        )
    # releases on one sample are one release with less noise
    gaussian = basic if count == 1 else GaussianDpEvent(basic.noise_multiplier / count**0.5)
    return [Counter({PoissonSampledDpEvent(event.sampling_probability, gaussian): 1})]


def _secret_histories(event: SecretSplitDpEvent) -> list[Counter[DpEvent]]:
    """The mixture for each choice inside the two parts, which the record itself decides."""
    choices = [_histories(part) for part in (event.training, event.held_out)]
    if any(NonPrivateDpEvent() in history for histories in choices for history in histories):
        return [Counter({NonPrivateDpEvent(): 1})]
    first, second = ([_met(history) for history in histories] for histories in choices)
    return [Counter({SecretSplitDpEvent(a, b, event.fraction): 1}) for a in first for b in second]


def _met(history: Counter[DpEvent]) -> DpEvent:
    """A history as one event."""
    return compose(*(event if count == 1 else SelfComposedDpEvent(event, count) for event, count in history.items()))


def _repeated_histories(event: SelfComposedDpEvent) -> list[Counter[DpEvent]]:
    if not _repeated_parts(event):
        return [Counter()]
    inner = _histories(event.event)
    if len(inner) > 1 and event.count > 1:
        raise ValueError("a parallel event cannot be repeated: write each repetition as its own entry")
    return [Counter({e: k * event.count for e, k in h.items()}) for h in inner]


def _composed_histories(event: ComposedDpEvent) -> list[Counter[DpEvent]]:
    together: list[Counter[DpEvent]] = [Counter()]
    for part in event.events:
        choices = _histories(part)
        # k fits with the same two parts have k + 1 histories, not 2^k
        together = list({frozenset((h := a + b).items()): h for a in together for b in choices}.values())
        if len(together) > _MOST_HISTORIES:
            raise TooManyHistoriesError(
                f"more than {_MOST_HISTORIES} combinations of parallel parts: merge some entries"
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
        # an empty string or object would iterate to "nothing was spent"
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
        lambda event: ("; " if cls is ComposedDpEvent else " | ").join(map(event_words, event.events)),
    )


# ``read`` has named fields: an unknown or missing one is a TypeError, nothing is ignored.
for _kind in (
    EventKind(
        "gaussian",
        GaussianDpEvent,
        lambda noise_multiplier: gaussian_event(noise_multiplier),
        histories=_noisy_histories,
        words=lambda event: f"a noisy sum, noise {event.noise_multiplier:.4g} times one record",
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
        words=lambda event: f"a noisy count, noise {event.sigma / event.sensitivity:.4g} times one record",
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
        lambda event: f"{event.count} times {event_words(event.event)}",
    ),
    # what was sampled together is one basic event, not a part
    EventKind(
        "poisson_sampled",
        PoissonSampledDpEvent,
        lambda event, sampling_rate: PoissonSampledDpEvent(
            check_fraction("sampling_rate", sampling_rate), event_from_dict(event)
        ),
        lambda event: {"sampling_rate": float(event.sampling_probability), "event": event_to_dict(event.event)},
        histories=_sampled_histories,
        words=lambda event: f"{event_words(event.event)}, over a random share of {event.sampling_probability:.3g}",
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
        lambda event: f"{event_words(event.training)} | {event_words(event.held_out)}, nobody learns which",
    ),
):
    register_event(_kind)
